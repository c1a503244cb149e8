// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A channel on an IOThread whose kernel is a socket of this test, message by message as `/dev/fuse`: what no kernel sends.

use super::channel::{Channel, SLOTS, Shared};
use super::session::FileAttrs;
use super::wire::{MAX_DATA, OUT_HEADER, ROOT, WRITE_CACHE, opcode};
use crate::mem::Regions;
use crate::serve::{IoThreads, Polling, ServedDisk, SourceHandle, ThreadOptions};
use crate::target::{Needs, TargetSpec};
use crate::waiting::until;
use blk::id::Sector;
use blk::settings::QueueConfig;
use blk::stripe::{Stripe, StripeMap};
use proptest::prelude::*;
use rustix::fs::SeekFrom;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

const SIZE: u64 = 4 << 20;

/// The kernel's end of a channel.
struct Kernel {
    socket: OwnedFd,
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    shared: Arc<Shared>,
    channel: SourceHandle,
}

impl Kernel {
    fn new(target: &str) -> Kernel {
        Kernel::over(&[target], QueueConfig::default())
    }

    /// Of a disk over one target or striped over several.
    fn over(targets: &[&str], config: QueueConfig) -> Kernel {
        let option = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling: Polling::default() };
        let threads = Arc::new(IoThreads::start(&[option.clone(), option]).unwrap());
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let open = |t: &&str| TargetSpec::parse(t).unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
        let mut drivers: Vec<_> = targets.iter().map(open).collect();
        let disk = match drivers.len() {
            1 => threads.disk("disk", drivers.remove(0), regions, config),
            n => {
                let stripes = vec![Stripe { start: Sector(0), nr_sectors: SIZE / 512 }; n];
                let map = StripeMap::new(4096, 512, &stripes).unwrap();
                threads.striped("disk", map, drivers, regions, config)
            }
        };
        Kernel::of(threads, disk.unwrap(), 0)
    }

    /// How many of the requests that were sent to the channel on this IOThread it has taken.
    fn taken(&self, thread: usize) -> u64 {
        let report = &self.threads.report()[thread].sources[0];
        report.served + report.in_flight as u64
    }

    /// Another export of the same disk, on the other IOThread.
    fn another(&self) -> Kernel {
        Kernel::of(Arc::clone(&self.threads), Arc::clone(&self.disk), 1)
    }

    fn of(threads: Arc<IoThreads>, disk: Arc<ServedDisk>, thread: usize) -> Kernel {
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::io::ioctl_fionbio(&other, true).unwrap();
        // A reply that does not come fails the test.
        let limit = Some(std::time::Duration::from_secs(60));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit).unwrap();
        // Make room for all messages in flight, because /dev/fuse never defers a reply.
        for end in [&socket, &other] {
            rustix::net::sockopt::set_socket_send_buffer_size_force(end, 256 << 20).unwrap();
        }
        let attrs = FileAttrs { discard: true, ..FileAttrs::new(0o600, 0, 0, 0) };
        let (gone, ends) = (OnceLock::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { name: "f".into(), disk: Arc::clone(&disk), attrs, gone, ends });
        let channel = Channel::new(Arc::new(other), 0, &shared).unwrap();
        let channel = threads.add(thread, &disk, channel).unwrap();
        Kernel { socket, threads, disk, shared, channel }
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::net::send(&self.socket, bytes, SendFlags::empty()).unwrap(), bytes.len());
    }

    /// The next reply: whose, its error, its body.
    fn reply(&self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; OUT_HEADER + MAX_DATA];
        // A ring of io_uring that the thread of the test made and dropped interrupts calls with a timeout.
        let received =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()));
        let (n, _) = received.unwrap();
        bytes.truncate(n);
        let said = u32::from_ne_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(said as usize, n, "a reply has the length that it says");
        let error = i32::from_ne_bytes(*bytes[4..].first_chunk().unwrap());
        let unique = u64::from_ne_bytes(*bytes[8..].first_chunk().unwrap());
        (unique, -error, bytes.split_off(OUT_HEADER))
    }

    /// What the file holds.
    fn content(&self, offset: u32, size: u32) -> Vec<u8> {
        self.send(&read(u64::MAX, offset, size));
        let (unique, error, body) = self.reply();
        assert_eq!((unique, error), (u64::MAX, 0));
        body
    }

    /// Nothing is left behind.
    fn check_idle(self) {
        assert!(self.threads.remove(&self.channel).is_some());
        assert!(self.disk.locks.is_unused());
        for member in self.disk.members() {
            member.queue.begin_freeze();
            // Another export's IOThread may be in the round still in which it replied.
            until("nothing is in flight", || member.queue.is_drained());
        }
    }
}

fn message(opcode: u32, unique: u64, fields: &[u32], data: &[u8]) -> Vec<u8> {
    let len = 40 + 4 * fields.len() + data.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(ROOT.to_ne_bytes());
    bytes.extend([0; 16]);
    fields.iter().for_each(|f| bytes.extend(f.to_ne_bytes()));
    bytes.extend(data);
    bytes
}

fn read(unique: u64, offset: u32, size: u32) -> Vec<u8> {
    message(opcode::READ, unique, &[0, 0, offset, 0, size, 0, 0, 0, 0, 0], &[])
}

fn seek(unique: u64, offset: u64, whence: i32) -> Vec<u8> {
    message(opcode::LSEEK, unique, &[0, 0, offset as u32, (offset >> 32) as u32, whence as u32, 0], &[])
}

fn write(unique: u64, offset: u32, flags: u32, data: &[u8]) -> Vec<u8> {
    message(opcode::WRITE, unique, &[0, 0, offset, 0, data.len() as u32, flags, 0, 0, 0, 0], data)
}

/// What is no request is rejected if its sender can be identified, and the next request is served.
#[test]
fn malformed_messages_do_not_end_the_channel() {
    let kernel = Kernel::new("ram:size=4m");
    let mut good = read(1, 0, 512);
    kernel.send(&good[..20]);
    kernel.send(&good[..79]);
    assert_eq!(kernel.reply(), (1, libc::EINVAL, Vec::new()));
    good[..4].copy_from_slice(&81u32.to_ne_bytes());
    kernel.send(&good);
    assert_eq!(kernel.reply(), (1, libc::EINVAL, Vec::new()));
    // Less data than it says, and more.
    let mut bad = write(2, 0, 0, &[7; 1024]);
    bad.truncate(80 + 512);
    kernel.send(&bad);
    assert_eq!(kernel.reply(), (2, libc::EINVAL, Vec::new()));
    bad[..4].copy_from_slice(&(80u32 + 512).to_ne_bytes());
    kernel.send(&bad);
    assert_eq!(kernel.reply(), (2, libc::EINVAL, Vec::new()));
    kernel.send(&read(3, 0, MAX_DATA as u32 + 1));
    assert_eq!(kernel.reply(), (3, libc::EINVAL, Vec::new()));
    kernel.send(&message(9999, 4, &[], &[1; 70_000]));
    assert_eq!(kernel.reply(), (4, libc::ENOSYS, Vec::new()));
    kernel.send(&message(opcode::INIT, 5, &[7, 31, 0, 0], &[]));
    assert_eq!(kernel.reply(), (5, libc::EPROTO, Vec::new()));
    kernel.send(&message(opcode::FORGET, 6, &[1, 0], &[]));
    kernel.send(&read(7, 0, 1000));
    assert_eq!(kernel.reply(), (7, 0, vec![0; 1000]));
    kernel.check_idle();
}

/// More requests than there are slots and pieces of memory, long ones and parts of blocks over each other: each is answered once,
/// and the disk holds what it should.
#[test]
fn a_kernel_that_asks_for_everything_at_once_is_answered() {
    let kernel = Kernel::new("ram:size=4m,blocksize=4k");
    let mut expected = vec![0; SIZE as usize];
    let mut replies = HashMap::new();
    let n = 3 * SLOTS as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..n {
                // Parts of the same blocks, then long ones that are no whole blocks, then long reads.
                let at = i as u32 * 700;
                let request = match i % 3 {
                    0 => write(i, at, if i % 2 == 0 { WRITE_CACHE } else { 0 }, &[i as u8 + 1; 700]),
                    1 => write(i, (1 << 20) + 100 + at, 0, &[i as u8 + 1; 700]),
                    _ => read(i, 3 << 20, 1 << 20),
                };
                kernel.send(&request);
                if i % 16 == 0 {
                    kernel.send(&write(n + i, (2 << 20) + 50, 0, &vec![9; 900_000]));
                }
            }
        });
        for _ in 0..n + n.div_ceil(16) {
            let (unique, error, body) = kernel.reply();
            assert_eq!(error, 0, "request {unique}");
            assert!(replies.insert(unique, body.len()).is_none(), "request {unique} is answered twice");
        }
    });
    for i in (0..n as usize).filter(|i| i % 3 < 2) {
        let at = i * 700 + if i % 3 == 1 { (1 << 20) + 100 } else { 0 };
        expected[at..at + 700].fill(i as u8 + 1);
    }
    expected[(2 << 20) + 50..][..900_000].fill(9);
    for (i, piece) in expected.chunks(MAX_DATA).enumerate() {
        kernel.send(&read(1, (i * MAX_DATA) as u32, MAX_DATA as u32));
        let (_, error, body) = kernel.reply();
        assert!(error == 0 && body == piece, "MiB {i}");
    }
    kernel.check_idle();
}

/// Data and holes are where the file system of the image has them, from any byte on. More seeks are in flight at once than
/// there are slots. A disk that cannot tell answers in the way after which the kernel does not ask again.
#[test]
fn data_and_holes_are_found() {
    let path = std::env::temp_dir().join(format!("mqblk-fuse-seek-{}.img", std::process::id()));
    let image = std::fs::File::create(&path).unwrap();
    image.set_len(SIZE).unwrap();
    image.write_all_at(&[1; 65536], 1 << 20).unwrap();
    image.write_all_at(&[1; 4096], 2 << 20).unwrap();
    image.sync_all().unwrap();
    let kernel = Kernel::new(path.to_str().unwrap());
    let found = |offset: u64, whence: i32| {
        kernel.send(&seek(1, offset, whence));
        let (_, error, body) = kernel.reply();
        if error == 0 { Ok(u64::from_ne_bytes(*body.first_chunk().unwrap())) } else { Err(error) }
    };
    let mib = 1u64 << 20;
    let edges = [0, mib, mib + 65536, 2 * mib, 2 * mib + 4096, SIZE];
    for at in edges.iter().flat_map(|at| [at.wrapping_sub(1), *at, at + 1, at + 511]).chain([1 << 63, u64::MAX]) {
        for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
            // This is the kernel's answer for the image file itself.
            let from = if whence == libc::SEEK_DATA { SeekFrom::Data(at) } else { SeekFrom::Hole(at) };
            let expected = rustix::fs::seek(&image, from).map_err(|_| libc::ENXIO);
            assert_eq!(found(at, whence), expected, "whence {whence} from {at}");
        }
    }
    assert_eq!(found(0, libc::SEEK_END), Err(libc::EINVAL));
    // A range is data once its write has been answered.
    kernel.send(&write(1, 3 << 20, 0, &[7; 4096]));
    assert_eq!(kernel.reply().1, 0);
    assert_eq!(found(2 * mib + 4096, libc::SEEK_DATA), Ok(3 * mib));
    let many = 4 * SLOTS as u64;
    (0..many).for_each(|i| kernel.send(&seek(i, mib - i, libc::SEEK_DATA)));
    for _ in 0..many {
        let (_, error, body) = kernel.reply();
        assert_eq!((error, body), (0, mib.to_ne_bytes().to_vec()));
    }
    kernel.check_idle();
    for (target, expected) in [("ram:size=4m", [libc::ENOSYS; 2]), ("null:size=4m", [libc::ENXIO, 0])] {
        let kernel = Kernel::new(target);
        for (whence, expected) in [libc::SEEK_DATA, libc::SEEK_HOLE].into_iter().zip(expected) {
            kernel.send(&seek(1, 513, whence));
            let body = if expected == 0 { 513u64.to_ne_bytes().to_vec() } else { Vec::new() };
            assert_eq!(kernel.reply(), (1, expected, body), "{target}");
        }
        kernel.check_idle();
    }
    std::fs::remove_file(&path).unwrap();
}

/// The mount goes away with requests out.
#[test]
fn a_mount_that_is_gone_leaves_nothing_behind() {
    let kernel = Kernel::new("model:size=4m,over=ram,lat_us=2000");
    for i in 0..40 {
        kernel.send(&write(i, 1000 * i as u32 + 3, 0, &[1; 900]));
    }
    // When the first reply arrives, the channel has taken other requests, too.
    assert_eq!(kernel.reply().1, 0);
    let Kernel { socket, threads, disk, shared, channel } = kernel;
    drop(socket);
    assert!(threads.remove(&channel).is_some());
    // The channel notices the lost mount at the next reply, or earlier when it tries to take a request.
    let why = shared.gone.get().expect("it was noticed");
    assert!(why.starts_with("the FUSE connection failed ("), "{why}");
    assert!(disk.locks.is_unused());
    disk.members()[0].queue.begin_freeze();
    assert!(disk.members()[0].queue.is_drained());
}

/// A whole block that is written while a part of it is: outside of that part it is what was written. Such a write used to go its own
/// way, ended before the part's block was written back as it had been, and was lost.
#[test]
fn a_whole_block_waits_for_the_write_of_a_part_of_it() {
    let kernel = Kernel::new("model:size=4m,over=ram,lat_us=2000");
    for (i, other) in [None, Some(kernel.another())].into_iter().enumerate() {
        let other = other.as_ref().unwrap_or(&kernel);
        for round in 1..=20u8 {
            let pattern = 10 * i as u8 + round;
            kernel.send(&write(1, 4096 + 100, 0, &[200; 100]));
            other.send(&write(2, 4096, 0, &[pattern; 1024]));
            let mut told = [kernel.reply(), other.reply()];
            told.sort();
            assert_eq!((told[0].0, told[0].1, told[1].0, told[1].1), (1, 0, 2, 0));
            let content = kernel.content(4096, 1024);
            let mut outside = content.iter().enumerate().filter(|(at, _)| !(100..200).contains(at));
            let lost = outside.find(|(_, byte)| **byte != pattern);
            assert_eq!(lost, None, "round {round}: byte and value, which should be {pattern}");
            assert!([200, pattern].contains(&content[100]) && content[100..200].iter().all(|b| *b == content[100]));
        }
    }
    kernel.check_idle();
}

/// Whole blocks whose writes wait for a tag, or at a disk that is drained, when the first part of a block comes. Such writes are no requests
/// yet, so a freeze did not wait for them. They landed between the reading of a block and its writing, and were lost.
#[test]
fn a_rewrite_does_not_undo_writes_from_before_it() {
    const MODEL: &str = "model:size=4m,over=ram,lat_read_us=30000,lat_write_us=2000";
    let n = 40;
    for (targets, drained) in [(&[MODEL][..], false), (&[MODEL], true), (&[MODEL, MODEL], false)] {
        let mut config = QueueConfig::default();
        config.set("nr_requests", "1").unwrap();
        let kernel = Kernel::over(targets, config);
        if drained {
            kernel.disk.drain().unwrap();
        }
        // Apart, or they would become one request.
        (0..n).for_each(|i| kernel.send(&write(i.into(), i * 1024, 0, &[i as u8 + 1; 512])));
        until("all writes are taken", || kernel.taken(0) >= n.into());
        let other = kernel.another();
        // The last one first: its block's write waits the longest.
        (0..n).rev().for_each(|i| other.send(&write(i.into(), i * 1024 + 100, 0, &[200; 100])));
        until("the last write is taken", || other.taken(1) > 0);
        kernel.disk.resume();
        (0..n).for_each(|_| assert_eq!((kernel.reply().1, other.reply().1), (0, 0)));
        let content = kernel.content(0, n * 1024);
        let block = |i: u32| content[i as usize * 1024..][..512].iter().enumerate();
        let stale = |i: &u32| block(*i).any(|(at, byte)| !(100..200).contains(&at) && *byte != *i as u8 + 1);
        let lost: Vec<u32> = (0..n).filter(stale).collect();
        assert!(lost.is_empty(), "{} targets, drained: {drained}: writes of blocks {lost:?} are lost", targets.len());
        assert!((0..n).all(|i| block(i).all(|(at, byte)| !(100..200).contains(&at) || *byte == 200)));
        drop(other.threads.remove(&other.channel));
        kernel.check_idle();
    }
}

/// Writes that a limit holds back when the first part of a block comes are waited for, however many reads end meanwhile.
#[test]
fn reads_do_not_end_the_wait_for_unknown_writes() {
    let mut config = QueueConfig::default();
    config.set("iops_write", "1").unwrap();
    let kernel = Kernel::over(&["ram:size=4m"], config);
    let n = 30;
    (0..n).for_each(|i| kernel.send(&write(i, i as u32 * 1024, 0, &[1; 512])));
    until("all writes are taken", || kernel.taken(0) >= n);
    let other = kernel.another();
    other.send(&write(1, 2 << 20, 0, &[2; 100]));
    until("the write is taken", || other.taken(1) > 0);
    let mut written = 0;
    for _ in 0..2 * n {
        kernel.send(&read(u64::MAX, 0, 512));
        while kernel.reply().0 != u64::MAX {
            written += 1;
        }
    }
    let early = rustix::net::recv(&other.socket, &mut [0; OUT_HEADER][..], RecvFlags::DONTWAIT);
    assert!(written < n, "the limit is 1 per second");
    assert_eq!(early.err(), Some(rustix::io::Errno::AGAIN), "{written} of {n} writes have ended");
    kernel.disk.change(&[("iops_write".into(), "0".into())]).unwrap();
    (written..n).for_each(|_| assert_eq!(kernel.reply().1, 0));
    assert_eq!(other.reply().1, 0);
    drop(other.threads.remove(&other.channel));
    kernel.check_idle();
}

/// Two exports of a disk that write different parts of the same block: both are there. Each export used to know of its own only.
#[test]
fn parts_of_a_block_that_come_by_two_exports_are_both_written() {
    let kernel = Kernel::new("model:size=4m,over=ram,lat_us=1000");
    let other = kernel.another();
    for round in 1..=20u8 {
        kernel.send(&write(1, 512, 0, &[round; 100]));
        other.send(&write(2, 512 + 100, 0, &[100 + round; 412]));
        assert_eq!((kernel.reply().1, other.reply().1), (0, 0));
        let content = kernel.content(512, 512);
        assert!(content[..100].iter().all(|b| *b == round) && content[100..].iter().all(|b| *b == 100 + round));
    }
    drop(other.threads.remove(&other.channel));
    kernel.check_idle();
}

/// Parts and wholes of the same few blocks from two threads at once: every answer of a whole block without a later write is there.
#[test]
fn two_threads_rewrite_the_same_blocks() {
    let kernel = Kernel::new("ram:size=4m,blocksize=4k");
    let other = kernel.another();
    for round in 0..150u8 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..16).for_each(|i| {
                    kernel.send(&write(i, (i as u32 % 4) * 4096 + 512 * (i as u32 / 4), 0, &[round; 512]));
                });
            });
            scope.spawn(|| (0..4).for_each(|i| other.send(&write(i, i as u32 * 4096, 0, &[round; 4096]))));
        });
        (0..16).for_each(|_| assert_eq!(kernel.reply().1, 0));
        (0..4).for_each(|_| assert_eq!(other.reply().1, 0));
        assert!(kernel.content(0, 16384).iter().all(|b| *b == round), "round {round}");
    }
    drop(other.threads.remove(&other.channel));
    kernel.check_idle();
}

/// An IOThread with a request that waits for another rewrite's blocks used to spin until it had them.
#[test]
fn a_waiter_for_blocks_sleeps_and_is_woken() {
    let kernel = Kernel::new("ram:size=4m");
    kernel.disk.drain().unwrap();
    // The second waits for the blocks of the first, which waits for the disk.
    kernel.send(&write(1, 100, 0, &[7; 100]));
    kernel.send(&write(2, 300, 0, &[8; 100]));
    let sleeps = || kernel.threads.report()[0].sleeps;
    until("both writes are taken", || kernel.taken(0) >= 2);
    // Each look wakes it, after which it sleeps again, if it does.
    let before = sleeps();
    until("the IOThread has slept three times", || sleeps() >= before + 3);
    kernel.disk.resume();
    let mut told = [kernel.reply().0, kernel.reply().0];
    told.sort_unstable();
    assert_eq!(told, [1, 2]);
    kernel.check_idle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    /// Any messages: the channel lives, and serves the next request.
    #[test]
    fn any_messages_leave_the_channel_alive(
        messages in proptest::collection::vec((0u32..60, any::<bool>(), proptest::collection::vec(any::<u8>(), 1..400)), 1..40)
    ) {
        let kernel = Kernel::new("ram:size=4m");
        for (op, honest, mut bytes) in messages {
            if honest && bytes.len() >= 40 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..8].copy_from_slice(&op.to_ne_bytes());
                bytes[16..24].copy_from_slice(&ROOT.to_ne_bytes());
            }
            kernel.send(&bytes);
        }
        kernel.send(&read(u64::MAX, 512, 512));
        while kernel.reply().0 != u64::MAX {}
        kernel.check_idle();
    }
}
