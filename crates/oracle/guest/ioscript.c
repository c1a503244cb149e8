// SPDX-License-Identifier: Apache-2.0 OR MIT
// ioscript - issue an exact, scripted sequence of direct I/Os to a block device.
//   ioscript DEV < script          (static build: gcc -O2 -static -o ioscript ioscript.c)
// Script lines ('#' starts a comment); offsets and lengths in 512-byte sectors:
//   R|W OFF LEN [CLASS LEVEL]  queue a read or write in the current batch (class 0 none,1 RT,2 BE,3 idle)
//   go       io_submit() the batch in one call (the kernel plugs a batch of more than two)
//   one      io_submit() the batch one I/O per call (no plug: every I/O is inserted by itself)
//   sleep US | wait            sleep; wait until everything submitted has completed
// Prints, in completion order: "C <n> <op> <off> <len> <res> submit_us complete_us".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define MAX 8192
static struct iocb cb[MAX], *ptr[MAX];
static struct { char op; long off, len, t; } io[MAX];
static int n, first, inflight;
static aio_context_t ctx;
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000L + t.tv_nsec / 1000; }
static void die(const char *s) { perror(s); exit(1); }
static void reap(int min) {
  struct io_event ev[256];
  while (inflight > 0) {
    struct timespec z = {0, 0};
    int r = syscall(SYS_io_getevents, ctx, min > 0 ? 1 : 0, 256, ev, min > 0 ? NULL : &z);
    if (r < 0) { if (errno == EINTR) continue; die("io_getevents"); }
    for (int i = 0; i < r; i++) {
      int k = ev[i].data;
      printf("C %d %c %ld %ld %lld %ld %ld\n", k, io[k].op, io[k].off, io[k].len, (long long)ev[i].res, io[k].t, now());
    }
    inflight -= r;
    if (min <= 0 || inflight == 0) return;
  }
}
static void submit(int one) {
  while (first < n) {
    long t = now();
    for (int i = first; i < n; i++) io[i].t = t;
    int r = syscall(SYS_io_submit, ctx, one ? 1 : n - first, ptr + first);
    if (r < 0) { if (errno == EAGAIN) { reap(1); continue; } die("io_submit"); }
    inflight += r; first += r;
  }
}
int main(int c, char **v) {
  if (c != 2) return fprintf(stderr, "usage: ioscript DEV < script\n"), 2;
  int fd = open(v[1], O_RDWR | O_DIRECT);
  if (fd < 0) die(v[1]);
  if (syscall(SYS_io_setup, MAX, &ctx) < 0) die("io_setup");
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    char op[8]; long off, len; int cls, lvl = 0;
    if (line[0] == '#' || sscanf(line, "%7s", op) != 1) continue;
    if (!strcmp(op, "go")) submit(0);
    else if (!strcmp(op, "one")) submit(1);
    else if (!strcmp(op, "wait")) reap(inflight);
    else if (!strcmp(op, "sleep")) usleep(atol(line + 6));
    else if (*op == 'R' || *op == 'W') {
      int f = sscanf(line, "%*s %ld %ld %d %d", &off, &len, &cls, &lvl);
      void *b; if (f < 2 || n >= MAX || posix_memalign(&b, 4096, len * 512)) die("line");
      memset(b, 0x40 + n % 64, len * 512);
      io[n].op = *op; io[n].off = off; io[n].len = len;
      cb[n] = (struct iocb){ .aio_data = n, .aio_lio_opcode = *op == 'R' ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, .aio_fildes = fd,
                             .aio_buf = (unsigned long)b, .aio_nbytes = len * 512, .aio_offset = off * 512 };
      if (f > 2) { cb[n].aio_flags = 2 /* IOCB_FLAG_IOPRIO */; cb[n].aio_reqprio = cls << 13 | lvl; }
      ptr[n] = &cb[n]; n++;
    }
  }
  submit(0); reap(inflight);
  return 0;
}
