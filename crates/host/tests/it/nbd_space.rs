// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What NBD clients see and control of a disk's space: holes and data, zeroes that keep or release space, fast zeroes, prefetching,
//! sizes, and when a write is durable. The same file served by qemu-nbd and nbdkit is the reference.

use crate::serving;
use crate::waiting::until;

use blk::bio::Op;
use host::export::nbd::{NbdDisk, NbdExport};
use serving::{Served, run, try_run};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};

const MIB: u64 = 1 << 20;

struct Server {
    served: Served,
    export: Option<NbdExport>,
}

impl Server {
    fn new(target: &str) -> Server {
        Server::with(target, false)
    }

    fn with(target: &str, write_through: bool) -> Server {
        let served = Served::new("nbd-space", target, 1);
        let disk = NbdDisk { write_through, ..served.nbd_disk() };
        let export = Some(NbdExport::start(&served.threads, served.nbd_options(disk)).unwrap());
        Server { served, export }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///d?socket={}", self.path("nbd.sock"))
    }

    fn path(&self, name: &str) -> String {
        self.served.directory.join(name).to_str().unwrap().to_owned()
    }

    fn image(&self) -> File {
        File::options().read(true).write(true).open(self.path("disk.img")).unwrap()
    }

    /// Returns how many bytes the image occupies in its file system.
    fn space(&self) -> u64 {
        let image = self.image();
        // The file system allocates blocks when data is written to the disk.
        image.sync_all().unwrap();
        image.metadata().unwrap().blocks() * 512
    }

    /// Runs a script of libnbd with a connection `h`.
    fn python(&self, script: &str) {
        let before = format!(
            "import nbd, errno, os, time\nuri = {:?}\nimage = {:?}\ndef connect():\n    h = nbd.NBD()\n    \
             h.add_meta_context('base:allocation')\n    h.set_strict_mode(0)\n    h.connect_uri(uri)\n    return h\n\
             def fails(number, f):\n    try:\n        f()\n    except nbd.Error as e:\n        \
             assert e.errnum == number, e\n    else:\n        raise AssertionError('did not fail')\n\
             def status(h, n, at, flags=0):\n    told = []\n    \
             h.block_status(n, at, lambda c, o, e, err: told.extend(e) and 0, flags)\n    \
             return list(zip(told[::2], told[1::2]))\nh = connect()\n",
            self.uri(),
            self.path("disk.img")
        );
        run("/usr/bin/python3", &["-c", &(before + script)]);
    }

    fn check_idle(mut self) {
        self.export = None;
        serving::check_drained(&self.served.disk);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.served.directory);
    }
}

/// A reference server, killed by its own pid.
struct Reference(Child, PathBuf);

impl Reference {
    fn start(program: &str, arguments: &[&str], socket: PathBuf) -> Reference {
        let child = Command::new(program).args(arguments).spawn().unwrap();
        until(&format!("{program} listens"), || UnixStream::connect(&socket).is_ok());
        Reference(child, socket)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.1.display())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes data in islands of odd sizes to an image.
fn islands(image: &File) {
    for (at, len) in [(0, 4096), (MIB + 512, 100_000), (7 * MIB, 3 * MIB), (20 * MIB - 4096, 8192), (63 * MIB, MIB)] {
        image.write_all_at(&vec![0x5a; len as usize], at).unwrap();
    }
    // Allocated without data, and deallocated.
    run_on(image, &["--offset", "30MiB", "--length", "1MiB"]);
    run_on(image, &["--punch-hole", "--offset", "8MiB", "--length", "64KiB"]);
}

fn run_on(image: &File, arguments: &[&str]) {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    run("fallocate", &[arguments, &[&path]].concat());
}

/// Maps show the same holes and the same data as those of the reference servers.
#[test]
fn maps_are_those_of_other_servers() {
    let server = Server::new("file");
    islands(&server.image());
    let (path, qemu, kit) = (server.path("disk.img"), server.path("q.sock"), server.path("k.sock"));
    let references = [
        Reference::start("qemu-nbd", &["-r", "-t", "-f", "raw", "-k", &qemu, &path], qemu.clone().into()),
        Reference::start("nbdkit", &["-f", "-r", "-U", &kit, "file", &path], kit.clone().into()),
    ];
    let map = |uri: &str| run("nbdinfo", &["--map", uri]);
    let ours = map(&server.uri());
    assert!(ours.lines().count() >= 9, "{ours}");
    for reference in &references {
        assert_eq!(map(&reference.uri()), ours);
    }
    let map = |uri: &str| run("qemu-img", &["map", "-f", "raw", "--output=json", uri]);
    assert_eq!(map(&references[0].uri()), map(&server.uri()));
    server.check_idle();
}

#[test]
fn thin_images_stay_thin_both_ways() {
    let server = Server::new("file");
    islands(&server.image());
    let used = server.space();
    let copy = server.path("copy.img");
    File::create(&copy).unwrap();
    run("nbdcopy", &[&server.uri(), &copy]);
    let taken = fs::metadata(&copy).unwrap().blocks() * 512;
    assert!(taken <= used, "{taken} bytes of space for a copy of {used}");
    assert!(fs::read(&copy).unwrap() == fs::read(server.path("disk.img")).unwrap());
    // The target of the copy is an image full of data.
    let other = Server::new("file");
    other.image().write_all_at(&vec![7; 64 * MIB as usize], 0).unwrap();
    run("nbdcopy", &[&copy, &other.uri()]);
    run("nbdcopy", &["--flush", &copy, &other.uri()]);
    assert!(fs::read(&copy).unwrap() == fs::read(other.path("disk.img")).unwrap());
    assert!(other.space() <= used + MIB, "{} bytes of space for a copy of {used}", other.space());
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &copy, &other.uri()]);
    assert!(other.space() <= used + MIB, "{} bytes of space for a copy of {used}", other.space());
    server.check_idle();
    other.check_idle();
}

/// After a write is answered, every client sees data there, however many requests are in flight.
#[test]
fn what_was_written_a_moment_ago_is_data() {
    let server = Server::new("file");
    server.python(
        "
g = connect()
pending = []
for n in range(0, 4096, 2):
    pending.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b'x' * 4096)), n * 4096))
    if len(pending) == 32:
        while h.aio_in_flight() > 0:
            h.poll(-1)
        for cookie in pending:
            assert h.aio_command_completed(cookie)
        pending.clear()
        assert status(g, 4096, n * 4096) == [(4096, 0)], n
        assert status(g, 8192, n * 4096) == [(4096, 0), (4096, 3)], n
        assert status(g, 1 << 20, n * 4096, nbd.CMD_FLAG_REQ_ONE) == [(4096, 0)], n
# Many pieces come in several replies.
at, pieces, replies = 0, [], 0
while at < 16 << 20:
    some = status(h, (16 << 20) - at, at)
    at += sum(n for n, _ in some)
    pieces += some
    replies += 1
assert pieces == [(4096, 0), (4096, 3)] * 2048, len(pieces)
assert replies == 4, replies
# Many questions at a time, and a client that does not wait for its answers.
cookies = [h.aio_block_status(1 << 24, 0, lambda c, o, e, err: 0) for _ in range(100)]
while h.aio_in_flight() > 0:
    h.poll(-1)
gone = connect()
for _ in range(100):
    gone.aio_block_status(1 << 24, 0, lambda c, o, e, err: 0)
gone.poll(0)
del gone
",
    );
    server.check_idle();
}

#[test]
fn disks_in_memory_are_data_and_null_is_a_hole() {
    for (target, told) in
        [("ram:size=16m", "data"), ("null:size=16m", "hole,zero"), ("model:over=ram,size=16m", "data")]
    {
        let server = Server::new(target);
        let map = run("nbdinfo", &["--map", &server.uri()]);
        assert_eq!(map.split_whitespace().collect::<Vec<_>>().last(), Some(&told), "{target}: {map}");
        assert_eq!(map.lines().count(), 1, "{map}");
        assert_eq!(try_run("nbdinfo", &["--can", "cache", &server.uri()]).status.code(), Some(2), "{target}");
        server.check_idle();
    }
}

#[test]
fn zeroes_keep_or_give_up_their_space() {
    let server = Server::new("file");
    run("nbdinfo", &["--can", "fast-zero", &server.uri()]);
    server.image().write_all_at(&vec![7; 8 * MIB as usize], 0).unwrap();
    let before = server.space();
    server.python("h.zero(4 << 20, 0, nbd.CMD_FLAG_NO_HOLE)\nassert h.pread(4 << 20, 0) == bytes(4 << 20)\n");
    assert!(server.space() >= before, "{} bytes of {before} after zeroes without a hole", server.space());
    // A hole of the image gets space.
    server.python("h.zero(4 << 20, 32 << 20, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)\n");
    let full = server.space();
    assert!(full >= before + 4 * MIB, "{full} bytes after {before}");
    server.python(
        "h.zero(8 << 20, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)\nassert h.pread(8 << 20, 0) == bytes(8 << 20)\n\
         assert status(h, 8 << 20, 0) == [(8 << 20, 3)]\n",
    );
    assert!(server.space() <= full - 8 * MIB, "{} bytes of {full} after zeroes", server.space());
    server.check_idle();
}

/// tmpfs can zero a range only by a hole. Zeroes that must keep their space are written there, or, if they must also be fast,
/// rejected without a change.
#[test]
fn a_fast_zero_that_would_be_slow_is_refused() {
    let image = PathBuf::from(format!("/dev/shm/mqblk-fast-zero-{}", std::process::id()));
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let server = Server::new(image.to_str().unwrap());
    server.python(
        "
h.pwrite(b'x' * 65536, 0)
keep, fast = nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO
fails(errno.ENOTSUP, lambda: h.zero(32768, 0, keep | fast))
assert h.pread(65536, 0) == b'x' * 65536
h.zero(32768, 0, keep)
assert h.pread(65536, 0) == bytes(32768) + b'x' * 32768
h.zero(65536, 0, fast)
assert h.pread(65536, 0) == bytes(65536)
",
    );
    server.check_idle();
    fs::remove_file(&image).unwrap();
}

/// Only a buffered file has a page cache into which data can be prefetched.
#[test]
fn cache_reads_ahead() {
    let server = Server::new("file");
    run("nbdinfo", &["--can", "cache", &server.uri()]);
    let image = server.path("disk.img");
    server.image().write_all_at(&vec![7; 16 * MIB as usize], 0).unwrap();
    server.space();
    run("dd", &[&format!("of={image}"), "oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"]);
    let cached = || run("fincore", &["--noheadings", "--bytes", "--output", "RES", &image]);
    assert_eq!(cached().trim(), "0");
    server.python("h.cache(8 << 20, 4 << 20)\n");
    // The kernel has started to prefetch by then, but may not have finished.
    until("8 MiB are cached", || cached().trim().parse::<u64>().unwrap() >= 8 * MIB);
    assert!(cached().trim().parse::<u64>().unwrap() < 12 * MIB);
    server.check_idle();
}

/// Writes, zeroes and reads of any bytes, many at once in the same few blocks, against a model in the client's memory.
#[test]
fn any_bytes_are_served_exactly() {
    for target in ["ram:size=16m,blocksize=4096", "model:size=16m,over=ram,lat_us=300"] {
        let server = Server::new(target);
        server.python(
            "
import random
assert [h.get_block_size(n) for n in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)] == [1, 4096, 64 << 20]
seed = 20261126
print('seed', seed)
r = random.Random(seed)
size, span = h.get_size(), 6 * 4096
model = bytearray(size)
def begin(at, n):
    kind = r.choice('wwwzr')
    if kind == 'w':
        data = r.randbytes(n)
        model[at:at + n] = data
        return h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at, flags=r.choice((0, nbd.CMD_FLAG_FUA)))
    if kind == 'z':
        model[at:at + n] = bytes(n)
        return h.aio_zero(n, at)
    return h.aio_pread(nbd.Buffer(n), at)
for i in range(250):
    # Neighbours that do not overlap, in any order.
    base = r.choice((0, size - span, r.randrange(size - span)))
    cuts = sorted(r.sample(range(1, span), r.randrange(1, 30)))
    parts = list(zip([0] + cuts, cuts + [span]))
    r.shuffle(parts)
    out = [begin(base + a, b - a) for a, b in parts]
    while out:
        h.poll(-1)
        out = [c for c in out if not h.aio_command_completed(c)]
    assert h.pread(span, base) == model[base:base + span], i
    at = r.randrange(size - 5000)
    n = r.randrange(1, 5000)
    assert h.pread(n, at) == model[at:at + n], i
# Longer than a buffer of rewritten blocks, and from and to odd places.
long = r.randbytes((5 << 20) + 777)
h.pwrite(long, 12345)
model[12345:12345 + len(long)] = long
h.zero((3 << 20) + 1, (1 << 20) + 99)
model[(1 << 20) + 99:(4 << 20) + 100] = bytes((3 << 20) + 1)
assert h.pread(size, 0) == model
h.trim(5000, 100)
assert h.pread(100, 0) == model[:100] and h.pread(5000, 5100) == model[5100:10100], 'neighbours of what was trimmed'
assert [e[0] for e in status(h, 1000, 333)] == [1000]
fails(errno.EINVAL, lambda: h.pread((32 << 20) + 1, 0))
fails(errno.EINVAL, lambda: h.pread(2, size - 1))
",
        );
        server.check_idle();
    }
}

/// Twice what clients may take for granted. There is memory for one such request of a client; the others wait for it.
#[test]
fn requests_of_64_mib_are_served() {
    for target in ["ram:size=130m", "file"] {
        let server = Server::new(target);
        server.python(
            "
n = 64 << 20
data = os.urandom(n)
h.pwrite(data, 0)
assert h.pread(n, 0) == data
buffers = [nbd.Buffer(n) for _ in range(3)]
out = [h.aio_pread(b, 0) for b in buffers] + [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data[:65537])), 0)]
while out:
    h.poll(-1)
    out = [c for c in out if not h.aio_command_completed(c)]
assert all(b.to_bytearray() == data for b in buffers)
",
        );
        server.check_idle();
    }
}

/// Clients cannot be notified of another size. A later client sees the new size, and an earlier one can use the old size as
/// before.
#[test]
fn a_resize_shows_to_later_clients() {
    let server = Server::new("file");
    let size = || run("nbdinfo", &["--size", &server.uri()]).trim().parse::<u64>().unwrap();
    let resize = |bytes: u64| {
        assert_eq!(server.served.disk.resize(Some(bytes), true, None).unwrap(), bytes);
        server.export.as_ref().unwrap().resized().unwrap();
    };
    assert_eq!(size(), 64 * MIB);
    resize(96 * MIB);
    assert_eq!(size(), 96 * MIB);
    run("qemu-io", &["-f", "raw", "-c", "write -P 3 95M 1M", "-c", "read -P 3 95M 1M", &server.uri()]);
    let (go, gone) = (server.path("go"), server.path("gone"));
    std::thread::scope(|s| {
        let client = s.spawn(|| {
            server.python(&format!(
                "open({gone:?}, 'w').close()\nwhile not os.path.exists({go:?}): time.sleep(.001)\n\
                 assert h.get_size() == 96 << 20 and h.pread(512, 0) == bytes(512)\n\
                 fails(errno.EINVAL, lambda: h.pread(512, 40 << 20))\n\
                 fails(errno.ENOSPC, lambda: h.pwrite(b'x' * 512, 32 << 20))\nh.pwrite(b'x' * 512, (32 << 20) - 512)\n"
            ));
        });
        until("the client is connected or has ended", || fs::exists(&gone).unwrap() || client.is_finished());
        resize(32 * MIB);
        fs::write(&go, "").unwrap();
    });
    assert_eq!(size(), 32 * MIB);
    server.check_idle();
}

/// A drain used to end between the read and the write of a block that is changed in part. The write then undid what had changed in the
/// image while the disk was drained.
#[test]
fn an_image_may_change_while_its_disk_is_drained() {
    let server = Server::new("file");
    let (image, disk, stop) = (server.image(), &server.served.disk, server.path("stop"));
    let writes = || disk.stats().op(Op::Write).ios;
    std::thread::scope(|s| {
        let client = s.spawn(|| {
            let begin = format!("i = 0\nwhile not os.path.exists({stop:?}):\n");
            server.python(&(begin + "    h.pwrite(bytes([i % 256]), 0)\n    i += 1\n"));
        });
        for value in 1..=200 {
            let from = writes();
            until("the client has written twice", || {
                assert!(!client.is_finished(), "the client has ended");
                writes() >= from + 2
            });
            disk.drain().unwrap();
            let mut byte = [0];
            image.read_exact_at(&mut byte, 100).unwrap();
            assert_eq!(byte, [value - 1], "a write of byte 0 brought an old byte 100 back");
            image.write_all_at(&[value], 100).unwrap();
            assert!(disk.resume());
        }
        fs::write(&stop, "").unwrap();
    });
    server.check_idle();
}

/// If every write is durable, no flush is offered, and none is needed.
#[test]
fn write_through_offers_no_flush_and_does_it_itself() {
    let server = Server::with("file", true);
    for (can, code) in [("flush", 2), ("fua", 0), ("multi-conn", 0), ("zero", 0)] {
        assert_eq!(try_run("nbdinfo", &["--can", can, &server.uri()]).status.code(), Some(code), "{can}");
    }
    let flushes = || server.served.disk.stats().op(Op::Flush).ios;
    let before = flushes();
    server.python(
        "h.zero(65536, 0)\nh.trim(65536, 65536)\nh.pwrite(b'x' * 4096, 0)\nassert h.pread(4096, 0) == b'x' * 4096\n",
    );
    assert_eq!(flushes() - before, 3, "a flush behind the zeroes, the trim and the write, as there is no O_DIRECT");
    run("qemu-io", &["-f", "raw", "-c", "write -P 3 0 1M", "-c", "flush", "-c", "read -P 3 0 1M", &server.uri()]);
    server.check_idle();
}
