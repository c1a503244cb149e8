// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A channel on an IOThread whose kernel is a socket of this test, message by message as `/dev/fuse`: what no kernel sends.

use super::channel::{Channel, SLOTS, Shared};
use super::partial::Partials;
use super::session::Face;
use super::wire::{MAX_DATA, OUT_HEADER, ROOT, WRITE_CACHE, opcode};
use crate::mem::Regions;
use crate::serve::{IoThreads, Polling, ServedDisk, Source, SourceHandle, ThreadOptions};
use crate::target::{Needs, TargetSpec};
use blk::settings::QueueConfig;
use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const SIZE: u64 = 4 << 20;

/// The kernel's end of a channel.
struct Kernel {
    socket: OwnedFd,
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    channel: SourceHandle,
}

impl Kernel {
    fn new(target: &str) -> Kernel {
        let option = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling: Polling::default() };
        let threads = Arc::new(IoThreads::start(&[option]).unwrap());
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None };
        let driver = TargetSpec::parse(target).unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
        let disk = threads.disk("disk", driver, regions, QueueConfig::default()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::io::ioctl_fionbio(&other, true).unwrap();
        // A reply that does not come fails the test.
        let limit = Some(std::time::Duration::from_secs(60));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit).unwrap();
        // Room for all that is ever under way: /dev/fuse has no "not now" for a reply.
        for end in [&socket, &other] {
            rustix::net::sockopt::set_socket_send_buffer_size_force(end, 256 << 20).unwrap();
        }
        let face = Face { discard: true, ..Face::new(0o600, 0, 0, 0) };
        let (name, partials) = ("f".into(), Partials::new(SLOTS));
        let shared = Arc::new(Shared { name, disk: Arc::clone(&disk), face, partials });
        let channel = Channel::new(Arc::new(other), 0, &shared).unwrap();
        let channel = threads.add(0, &disk, Source::Fuse(Box::new(channel))).unwrap();
        Kernel { socket, threads, disk, channel }
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::net::send(&self.socket, bytes, SendFlags::empty()).unwrap(), bytes.len());
    }

    /// The next reply: whose, its error, its body.
    fn reply(&self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; OUT_HEADER + MAX_DATA];
        let (n, _) = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        bytes.truncate(n);
        let said = u32::from_ne_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(said as usize, n, "a reply has the length that it says");
        let error = i32::from_ne_bytes(*bytes[4..].first_chunk().unwrap());
        let unique = u64::from_ne_bytes(*bytes[8..].first_chunk().unwrap());
        (unique, -error, bytes.split_off(OUT_HEADER))
    }

    /// Nothing is left behind.
    fn check_idle(self) {
        assert!(self.threads.remove(&self.channel).is_some());
        self.disk.queue.begin_freeze();
        assert!(self.disk.queue.is_drained());
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

fn write(unique: u64, offset: u32, flags: u32, data: &[u8]) -> Vec<u8> {
    message(opcode::WRITE, unique, &[0, 0, offset, 0, data.len() as u32, flags, 0, 0, 0, 0], data)
}

/// What is no request is refused if it can be told who asked, and the next request is served.
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

/// The mount goes away with requests out.
#[test]
fn a_mount_that_is_gone_leaves_nothing_behind() {
    let kernel = Kernel::new("model:size=4m,over=ram,lat_us=2000");
    for i in 0..40 {
        kernel.send(&write(i, 1000 * i as u32 + 3, 0, &[1; 900]));
    }
    let Kernel { socket, threads, disk, channel } = kernel;
    drop(socket);
    assert!(threads.remove(&channel).is_some());
    disk.queue.begin_freeze();
    assert!(disk.queue.is_drained());
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
