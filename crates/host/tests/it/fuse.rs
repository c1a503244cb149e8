// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The FUSE export on the real kernel: dd, fio, mapped files, fallocate, loop devices with a file system, and mounts whose daemon has
//! ended. Needs root, /dev/fuse and loop devices.

use crate::serving;
use crate::waiting;

use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, Driver, RqBatch};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use host::driver::HostDriver;
use host::driver::ram::{Ram, RamOptions};
use host::export::fuse::{FuseExport, FuseOptions};
use host::mem::Regions;
use host::serve::{IoThreads, Polling, ServedDisk, ThreadOptions};
use serving::{Served, check_drained, run, try_run};
use sim::rng::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use waiting::until;

const MIB: u64 = 1 << 20;
/// Block sizes for fio: short ones, some at the limit between two ways to hold data, and some longer than one request.
const BLOCKS: &str = "--bssplit=512/20:4k/40:64k/20:68k/10:1280k/10";

/// A mounted disk.
struct Mounted {
    directory: PathBuf,
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    export: Option<FuseExport>,
}

impl Mounted {
    fn new(target: &str, iothreads: usize) -> Mounted {
        Mounted::with(target, iothreads, |_| {})
    }

    fn with(target: &str, iothreads: usize, change: impl FnOnce(&mut FuseOptions)) -> Mounted {
        Mounted::of(Served::new("fuse", target, iothreads), change)
    }

    fn of(served: Served, change: impl FnOnce(&mut FuseOptions)) -> Mounted {
        let Served { directory, threads, disk } = served;
        let mut mounted = Mounted { directory, threads, disk, export: None };
        fs::write(mounted.file(), []).unwrap();
        mounted.export = Some(mounted.start(change).unwrap());
        mounted
    }

    /// Mounts the disk at its mountpoint.
    fn start(&self, change: impl FnOnce(&mut FuseOptions)) -> host::error::Result<FuseExport> {
        let mut options = FuseOptions {
            name: "f".into(),
            mountpoint: self.file(),
            allow_other: false,
            read_only: false,
            discard: true,
            write_through: false,
            iothreads: (0..self.threads.len()).collect(),
        };
        change(&mut options);
        FuseExport::start(&self.threads, &self.disk, options)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("mount")
    }

    fn image(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    fn open(&self, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.file()).unwrap()
    }

    /// Ends the export. Then the file must be empty again, and nothing of the disk in use.
    fn check_idle(mut self) {
        self.export = None;
        assert_eq!(fs::metadata(self.file()).unwrap().len(), 0, "it is mounted still");
        check_drained(&self.disk);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path, more: &[&str]) -> Loop {
        let arguments = [&["--find", "--show"], more, &[text(file)]].concat();
        Loop(run("losetup", &arguments).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = try_run("losetup", &["--detach", &self.0]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs fio on a file or device. It must verify all that it wrote.
fn fio(file: &str, more: &[&str]) {
    let file = format!("--filename={file}");
    let fixed = ["--name=j", &file, "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randseed=4711"];
    let told = run("fio", &[&fixed[..], more].concat());
    assert!(told.contains("err= 0") && !told.contains("bad header"), "{told}");
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn fio_finds_what_it_wrote_past_the_page_cache() {
    for (target, iothreads, engine, jobs) in [
        ("ram:size=64m", 1, "libaio", 1),
        ("ram:size=64m", 2, "io_uring", 4),
        ("file", 2, "libaio", 4),
        ("file", 1, "psync", 2),
    ] {
        let mounted = Mounted::new(target, iothreads);
        assert_eq!(mounted.export.as_ref().unwrap().channels(), iothreads);
        let (engine, jobs) = (format!("--ioengine={engine}"), format!("--numjobs={jobs}"));
        let fixed = ["--direct=1", "--rw=randrw", BLOCKS, "--size=16m", "--offset_increment=16m"];
        fio(text(&mounted.file()), &[&fixed[..], &["--iodepth=32", "--fsync=64", &engine, &jobs]].concat());
        let served: u64 = mounted.export.as_ref().unwrap().served().iter().sum();
        assert!(served > 100, "{served} requests");
        mounted.check_idle();
    }
}

#[test]
fn fio_verifies_through_page_cache_and_mmap() {
    // With several jobs or block sizes, fio's mmap engine fails to verify on any file, so there is one of each.
    let mapped = ["--ioengine=mmap", "--rw=randwrite", "--bs=16k", "--numjobs=1"];
    let called = ["--ioengine=psync", "--rw=randrw", BLOCKS, "--numjobs=3"];
    for (target, how) in [("ram:size=64m", called), ("file", mapped), ("file", called)] {
        let mounted = Mounted::new(target, 2);
        let fixed = ["--size=12m", "--offset_increment=16m", "--fsync=32"];
        fio(text(&mounted.file()), &[&fixed[..], &how].concat());
        mounted.check_idle();
    }
}

/// I/O through the page cache and direct I/O see the same data, whatever the offsets and lengths.
#[test]
fn writes_of_any_length_keep_what_is_around_them() {
    for target in ["ram:size=16m", "ram:size=16m,blocksize=4k", "file"] {
        let (mounted, seed) = (Mounted::new(target, 2), 20_261_122);
        println!("{target}: seed {seed}");
        let mut rng = Rng::new(seed);
        let (file, direct) = (mounted.open(0), mounted.open(libc::O_DIRECT));
        let mut expected = vec![0; 4 << 20];
        for i in 0..400 {
            let longest = [10, 600, 5000, 100_000, 700_000][i % 5];
            let (offset, len) = (rng.below(3 << 20) as usize, 1 + rng.below(longest) as usize);
            let data = rng.bytes(len);
            file.write_all_at(&data, offset as u64).unwrap();
            expected[offset..offset + len].copy_from_slice(&data);
            let (offset, len) = (rng.below(3 << 20) as usize, 1 + rng.below(longest) as usize);
            let mut back = vec![0; len];
            // Direct I/O, even if the memory and the range are not whole blocks.
            let from = if i % 2 == 0 { &file } else { &direct };
            from.read_exact_at(&mut back, offset as u64).unwrap();
            assert!(back == expected[offset..offset + len], "{target}, step {i}: {len} bytes at {offset}");
        }
        // Direct writes of parts of blocks, too.
        direct.write_all_at(&[1; 300], 100).unwrap();
        expected[100..400].fill(1);
        let mut back = vec![0; 4 << 20];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == expected, "{target}");
        file.sync_all().unwrap();
        drop((file, direct));
        mounted.check_idle();
    }
}

/// A loop device with sectors of 512 bytes on a disk with larger blocks. Several sectors of one block are written at the same time
/// through several channels. None may be lost.
#[test]
fn neighbours_in_one_block_do_not_undo_each_other() {
    let mounted = Mounted::new("ram:size=64m,blocksize=4k", 2);
    let device = Loop::new(&mounted.file(), &["--direct-io=on"]);
    let fixed = ["--direct=1", "--ioengine=libaio", "--iodepth=64", "--bs=512", "--size=512k"];
    fio(&device.0, &[&fixed[..], &["--rw=randwrite"]].concat());
    fio(&device.0, &[&fixed[..], &["--rw=write", "--numjobs=2", "--offset_increment=512k"]].concat());
    drop(device);
    mounted.check_idle();
}

#[test]
fn the_disk_has_an_end_and_its_own_size() {
    let mounted = Mounted::new("ram:size=16m", 1);
    let (file, size) = (mounted.open(0), 16 * MIB);
    assert_eq!(file.metadata().unwrap().len(), size);
    file.write_all_at(&[7; 1024], size - 1024).unwrap();
    let mut back = [0; 4096];
    assert_eq!(file.read_at(&mut back, size - 1024).unwrap(), 1024);
    assert_eq!((file.read_at(&mut back, size).unwrap(), file.read_at(&mut back, size + 9999).unwrap()), (0, 0));
    assert_eq!(file.write_at(&[8; 1024], size - 512).unwrap(), 512);
    assert_eq!(errno(file.write_at(&[8; 512], size)), libc::ENOSPC);
    assert_eq!((errno(file.set_len(size - 1)), errno(file.set_len(size + 1))), (libc::EPERM, libc::EPERM));
    file.set_len(size).unwrap();
    assert_eq!(errno(File::create(mounted.file())), libc::EPERM);
    // The owner may change, but the times stay.
    let before = file.metadata().unwrap();
    run("chmod", &["640", text(&mounted.file())]);
    run("chown", &["nobody", text(&mounted.file())]);
    run("touch", &[text(&mounted.file())]);
    let after = file.metadata().unwrap();
    assert_eq!((after.mode() & 0o7777, after.mtime()), (0o640, before.mtime()));
    assert_ne!(after.uid(), before.uid());
    assert!(run("stat", &["-f", text(&mounted.file())]).contains("Namelen: 255"));
    drop(file);
    mounted.check_idle();
}

#[test]
fn a_disk_that_ends_within_a_sector_is_a_file_of_its_size() {
    for size in [1, 511, 513, 4097] {
        let mounted = Mounted::of(Served::of_any_size("fuse", size, 2), |_| {});
        for flags in [0, libc::O_DIRECT] {
            let file = mounted.open(flags);
            assert_eq!(file.metadata().unwrap().len(), size);
            let mut back = vec![0; 8192];
            assert_eq!(file.read_at(&mut back, 0).unwrap(), size as usize);
            assert_eq!(file.read_at(&mut back, size).unwrap(), 0);
            assert_eq!(file.write_at(&[8; 9], size - 1).unwrap(), 1, "it is cut");
            assert_eq!(errno(file.write_at(&[8], size)), libc::ENOSPC);
            file.sync_all().unwrap();
            assert_eq!(file.read_at(&mut back, size - 1).unwrap(), 1);
            assert_eq!(back[0], 8);
        }
        let of_file = |arguments: &[&str]| try_run("fallocate", &[arguments, &[text(&mounted.file())]].concat());
        for mode in ["--punch-hole", "--zero-range"] {
            let zeroed = of_file(&[mode, "--keep-size", "--offset", "0", "--length", "1M"]);
            assert!(zeroed.status.success(), "{zeroed:?}");
        }
        assert!(fs::read(mounted.image()).unwrap() == vec![0; size as usize], "size {size}");
        run("cp", &["--sparse=always", text(&mounted.file()), text(&mounted.directory.join("copy"))]);
        assert_eq!(fs::metadata(mounted.directory.join("copy")).unwrap().len(), size);
        mounted.check_idle();
    }
}

#[test]
fn fallocate_punches_holes_and_writes_zeroes() {
    let mounted = Mounted::new("file", 2);
    let file = mounted.open(0);
    file.write_all_at(&vec![0x5a; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let blocks = || fs::metadata(mounted.image()).unwrap().blocks();
    let full = blocks();
    let fallocate = |arguments: &[&str]| try_run("fallocate", &[arguments, &[text(&mounted.file())]].concat());
    let punched = fallocate(&["--punch-hole", "--offset", "1M", "--length", "1M"]);
    assert!(punched.status.success(), "{punched:?}");
    assert!(blocks() + 2048 <= full, "{full} blocks before, {} after", blocks());
    let zeroed = fallocate(&["--zero-range", "--keep-size", "--offset", "3M", "--length", "64K"]);
    assert!(zeroed.status.success(), "{zeroed:?}");
    let mut back = vec![0; 4 << 20];
    file.read_exact_at(&mut back, 0).unwrap();
    for (at, byte) in [(0, 0x5a), ((1 << 20) - 1, 0x5a), (1 << 20, 0), ((2 << 20) - 1, 0), (2 << 20, 0x5a)] {
        assert_eq!(back[at], byte, "at {at}");
    }
    assert!(back[3 << 20..][..64 << 10].iter().all(|b| *b == 0) && back[(3 << 20) + (64 << 10)] == 0x5a);
    // Any bytes, with their neighbours.
    for mode in ["--punch-hole", "--zero-range"] {
        file.write_all_at(&[0x77; 16384], 0).unwrap();
        let odd = fallocate(&[mode, "--keep-size", "--offset", "1000", "--length", "9001"]);
        assert!(odd.status.success(), "{odd:?}");
        file.read_exact_at(&mut back[..16384], 0).unwrap();
        let zeroes = 1000..10001;
        let wrong = (0..16384).find(|at| (back[*at] == 0) != zeroes.contains(at));
        assert_eq!(wrong, None, "{mode}");
    }
    // Allocation without zeroes is rejected.
    assert!(!fallocate(&["--length", "1M"]).status.success());
    drop(file);
    mounted.check_idle();
}

/// A RAM disk that counts flushes and durable writes, and fails on demand.
struct Watched {
    ram: Ram,
    flushes: AtomicU64,
    stable: AtomicU64,
    /// Fails all I/O: with 1 for lack of space, with 2 with a medium error.
    fails: AtomicU32,
}

impl Watched {
    fn new(regions: &Arc<Regions>) -> Arc<Watched> {
        let ram = Ram::new(RamOptions { size_bytes: 16 * MIB, ..RamOptions::default() }, Arc::clone(regions)).unwrap();
        Arc::new(Watched { ram, flushes: AtomicU64::new(0), stable: AtomicU64::new(0), fails: AtomicU32::new(0) })
    }

    fn seen(&self) -> (u64, u64) {
        (self.flushes.load(Ordering::SeqCst), self.stable.load(Ordering::SeqCst))
    }
}

impl Driver for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn limits(&self) -> Limits {
        Limits { write_cache: true, fua: true, ..self.ram.limits() }
    }

    fn capacity(&self) -> Sector {
        self.ram.capacity()
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.ram.start(nr_hw_queues, queue_depth)
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        // The tests of this driver do one I/O at a time.
        if let Some(rq) = batch.front() {
            let seen = if rq.op() == Op::Flush { &self.flushes } else { &self.stable };
            seen.fetch_add(u64::from(rq.op() == Op::Flush || rq.flags().contains(OpFlags::FUA)), Ordering::SeqCst);
        }
        let is_flush = batch.front().is_some_and(|rq| rq.op() == Op::Flush);
        let status = match (self.fails.load(Ordering::SeqCst), is_flush) {
            (1, false) => BlkStatus::NoSpc,
            (2, false) | (3, true) => BlkStatus::Medium,
            _ => return self.ram.queue_rqs(batch, now),
        };
        (0..batch.remaining()).for_each(|_| batch.end(status));
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.ram.poll(hctx, done, now);
    }
}

impl HostDriver for Watched {}

/// Makes a disk on this driver.
fn watched(change: impl FnOnce(&mut FuseOptions)) -> (Mounted, Arc<Watched>) {
    let Served { directory, .. } = Served::new("fuse", "null", 1);
    let option = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling: Polling::default() };
    let threads = Arc::new(IoThreads::start(&[option]).unwrap());
    let regions = Arc::new(Regions::new());
    let driver = Watched::new(&regions);
    let disk = threads.disk("disk", driver.clone(), regions, QueueConfig::default()).unwrap();
    (Mounted::of(Served { directory, threads, disk }, change), driver)
}

/// Every way to request durable data reaches the driver.
#[test]
fn what_is_to_be_stable_is_flushed() {
    let (mounted, driver) = watched(|_| {});
    let file = mounted.open(0);
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(driver.seen(), (0, 0));
    file.sync_all().unwrap();
    assert_eq!(driver.seen(), (1, 0));
    file.sync_data().unwrap();
    assert_eq!(driver.seen(), (2, 0));
    drop(file);
    assert_eq!(driver.seen(), (3, 0), "the last close");
    // Through the page cache, and with direct I/O, for which the kernel leaves durability to the export.
    let before = driver.seen();
    mounted.open(libc::O_DSYNC).write_all_at(&[2; 4096], 0).unwrap();
    assert!(driver.seen() > before, "{:?}", driver.seen());
    let file = text(&mounted.file()).to_owned();
    let before = driver.seen().1;
    let output = format!("of={file}");
    run("dd", &["if=/dev/zero", &output, "bs=4k", "count=10", "oflag=direct,dsync", "conv=notrunc"]);
    assert!(driver.seen().1 >= before + 10, "{:?} after 10 writes by O_DIRECT and O_DSYNC", driver.seen());
    mounted.check_idle();
    let (mounted, driver) = watched(|o| o.write_through = true);
    let file = mounted.open(0);
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(driver.seen(), (0, 1));
    run("fallocate", &["--zero-range", "--length", "4096", text(&mounted.file())]);
    assert!(driver.seen().0 >= 1);
    drop(file);
    mounted.check_idle();
}

#[test]
fn errors_are_told_as_what_they_are() {
    let (mounted, driver) = watched(|_| {});
    let file = mounted.open(libc::O_DIRECT);
    let run = |how: u32, oflag: &str| {
        driver.fails.store(how, Ordering::SeqCst);
        let (to, oflag) = (format!("of={}", text(&mounted.file())), format!("oflag={oflag}"));
        let done = try_run("dd", &["if=/dev/zero", &to, &oflag, "bs=4k", "count=1", "seek=5", "conv=notrunc"]);
        driver.fails.store(0, Ordering::SeqCst);
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    assert!(run(1, "direct").contains("No space left on device"));
    assert!(run(2, "direct").contains("Input/output error"));
    assert!(run(1, "seek_bytes").contains("No space left on device"), "half a block");
    assert!(run(0, "direct").contains("4096 bytes"));
    driver.fails.store(3, Ordering::SeqCst);
    assert_eq!(errno(file.sync_all()), libc::EIO);
    driver.fails.store(0, Ordering::SeqCst);
    assert_eq!(errno(file.sync_all()), libc::EIO, "it is remembered");
    drop(file);
    mounted.check_idle();
}

#[test]
fn a_file_system_on_a_loop_device_is_clean_after_it_was_used() {
    for target in ["file", "ram:size=64m"] {
        let mounted = Mounted::new(target, 2);
        let device = Loop::new(&mounted.file(), &["--direct-io=on"]);
        fio(&device.0, &["--direct=1", "--ioengine=libaio", "--iodepth=32", "--rw=randwrite", "--bs=4k", "--size=8m"]);
        run("mkfs.ext4", &["-q", "-F", &device.0]);
        let at = mounted.directory.join("fs");
        fs::create_dir(&at).unwrap();
        run("mount", &[&device.0, text(&at)]);
        let used = std::panic::catch_unwind(|| {
            let data = Rng::new(5).bytes(6 << 20);
            fs::write(at.join("a"), &data).unwrap();
            fs::write(at.join("b"), &data[..1 << 20]).unwrap();
            fs::remove_file(at.join("b")).unwrap();
            run("fstrim", &[text(&at)]);
            run("sync", &["-f", text(&at)]);
            fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
            assert!(fs::read(at.join("a")).unwrap() == data, "{target}");
        });
        run("umount", &[text(&at)]);
        used.unwrap();
        run("e2fsck", &["-fn", &device.0]);
        drop(device);
        mounted.check_idle();
    }
}

#[test]
fn a_read_only_export_takes_no_write() {
    let mounted = Mounted::with("file", 1, |o| o.read_only = true);
    let file = mounted.file();
    assert_eq!(errno(OpenOptions::new().write(true).open(&file)), libc::EROFS);
    assert_eq!(fs::read(&file).unwrap().len(), 64 << 20);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o222, 0);
    let device = Loop::new(&file, &["--read-only", "--direct-io=on"]);
    assert_eq!(run("blockdev", &["--getro", &device.0]).trim(), "1");
    run("dd", &[&format!("if={}", device.0), "of=/dev/null", "bs=1M"]);
    drop(device);
    mounted.check_idle();
}

/// A process that has the file open when the export ends gets errors, and the end does not wait for it.
#[test]
fn an_open_file_does_not_hold_the_export() {
    let mut mounted = Mounted::new("ram:size=16m", 2);
    let file = mounted.open(0);
    file.write_all_at(&[1; 4096], 0).unwrap();
    mounted.export = None;
    assert_eq!(fs::metadata(mounted.file()).unwrap().len(), 0);
    assert!(file.write_at(&[1; 4096], 0).is_err() && file.sync_all().is_err());
    drop(file);
    // The next export mounts at the same place.
    mounted.export = Some(mounted.start(|_| {}).unwrap());
    let mut back = [0; 4096];
    mounted.open(0).read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [1; 4096]);
    mounted.check_idle();
}

/// Another process has unmounted the file and mounted another disk there.
#[test]
fn an_export_that_ends_leaves_the_next_one_in_its_place() {
    let mut first = Mounted::new("ram:size=16m", 1);
    run("umount", &[text(&first.file())]);
    let second = first.start(|_| {}).unwrap();
    let file = first.open(0);
    first.export = None;
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(fs::metadata(first.file()).unwrap().len(), 16 << 20);
    drop((file, second));
    first.check_idle();
}

/// A forked process has copies of the descriptors of the file and of /dev/fuse, and closes them one by one in exec. Once, the export
/// could end between these closes, although the first close waited for its answer.
#[test]
#[allow(unsafe_code, reason = "pre_exec is called between fork and exec")]
fn a_process_that_is_being_started_does_not_outlast_the_export() {
    let mut mounted = Mounted::new("ram:size=16m", 2);
    let file = mounted.open(0);
    let [(at_exec, exec), (told, tell)] = [(); 2].map(|()| io::pipe().unwrap());
    let child = std::thread::spawn(move || {
        let mut command = std::process::Command::new("true");
        let wait = move || {
            (&exec).write_all(&[0])?;
            (&told).read_exact(&mut [0])
        };
        // SAFETY: the closure only reads and writes, which is allowed after a fork.
        unsafe { command.pre_exec(wait) };
        command.status().unwrap()
    });
    (&at_exec).read_exact(&mut [0]).unwrap();
    drop(file);
    mounted.export = None;
    (&tell).write_all(&[0]).unwrap();
    until("the child has ended", || child.is_finished());
    assert!(child.join().unwrap().success());
    mounted.check_idle();
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let mounted = Mounted::new("ram:size=16m", 1);
    let refused = |change: &dyn Fn(&mut FuseOptions)| mounted.start(change).err().expect("it is refused").to_string();
    assert!(refused(&|_| {}).contains("another program serves a file system there"));
    assert!(refused(&|o| o.mountpoint = mounted.directory.clone()).contains("must be a regular file"));
    assert!(refused(&|o| o.mountpoint = mounted.directory.join("none")).contains("No such file"));
    assert!(refused(&|o| o.iothreads = vec![1]).contains("one or more IOThreads, all of them existing"));
    assert!(refused(&|o| o.iothreads = Vec::new()).contains("one or more IOThreads"));
    mounted.check_idle();
}

/// Clients are killed during I/O, and a thread unmounts the file.
#[test]
fn clients_that_vanish_leave_nothing_behind() {
    for target in ["ram:size=64m", "file"] {
        let mounted = Mounted::new(target, 2);
        for round in 0..10 {
            let file = format!("--filename={}", text(&mounted.file()));
            let mut client = std::process::Command::new("fio");
            client.args(["--name=j", &file, "--rw=randrw", "--bs=64k", "--size=32m", "--time_based", "--runtime=60"]);
            client.args(["--thread", "--ioengine=libaio", "--iodepth=32", "--numjobs=3"]);
            client.arg(if round % 2 == 0 { "--direct=1" } else { "--direct=0" });
            let mut client = client.stdout(std::process::Stdio::null()).spawn().unwrap();
            let before: u64 = mounted.export.as_ref().unwrap().served().iter().sum();
            until("200 more requests are served", || {
                assert!(client.try_wait().unwrap().is_none(), "fio ended by itself");
                mounted.export.as_ref().unwrap().served().iter().sum::<u64>() >= before + 200
            });
            client.kill().unwrap();
            client.wait().unwrap();
        }
        if target == "file" {
            run("umount", &[text(&mounted.file())]);
            assert_eq!(fs::metadata(mounted.file()).unwrap().len(), 0);
        }
        mounted.check_idle();
    }
}
