// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests as the kernel sends them, cut anywhere and made of anything; what becomes of them on a disk.

use super::session::{Action, Disk, FileAttrs, action, init};
use super::wire::{self, Body, Header, InitIn, MAX_DATA, Malformed, Request, WRITE_HEAD, opcode, parse};
use proptest::prelude::*;

const DISK: Disk = Disk { size: 1 << 20, block: 512, zeroes: true, stored: None };
const DIRECT: u32 = libc::O_DIRECT as u32;

/// A message: header of this operation, then fields of 4 bytes.
fn message(opcode: u32, fields: &[u32]) -> Vec<u8> {
    let len = wire::IN_HEADER + 4 * fields.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(7u64.to_ne_bytes());
    bytes.extend(wire::ROOT.to_ne_bytes());
    bytes.extend([0; 16]);
    fields.iter().for_each(|f| bytes.extend(f.to_ne_bytes()));
    bytes
}

fn attrs() -> FileAttrs {
    FileAttrs { discard: true, ..FileAttrs::new(0o640, 1, 2, 3) }
}

fn parsed(bytes: &[u8]) -> (Header, Request) {
    parse(bytes, bytes.len()).unwrap()
}

/// What becomes of a message on a disk of 1 MiB.
fn told(attrs: &FileAttrs, bytes: &[u8]) -> Action {
    let (header, request) = parsed(bytes);
    action(&header, &request, attrs, DISK)
}

fn read(offset: u32, size: u32) -> Vec<u8> {
    message(opcode::READ, &[0, 0, offset, 0, size, 0, 0, 0, 0, 0])
}

fn write(offset: u32, size: u32, write_flags: u32, flags: u32) -> Vec<u8> {
    let mut bytes = message(opcode::WRITE, &[0, 0, offset, 0, size, write_flags, 0, 0, flags, 0]);
    bytes.extend(vec![0x5a; size as usize]);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

fn fallocate(mode: i32, offset: u32, length: u32) -> Vec<u8> {
    message(opcode::FALLOCATE, &[0, 0, offset, 0, length, 0, mode as u32, 0])
}

#[test]
fn requests_are_read_as_the_kernel_lays_them_out() {
    assert_eq!(parsed(&read(4096, 512)).1, Request::Read { offset: 4096, size: 512 });
    let (header, request) = parsed(&write(4096, 1024, 1, 5));
    assert_eq!(header, Header { opcode: opcode::WRITE, unique: 7, node: 1 });
    assert_eq!(request, Request::Write { offset: 4096, size: 1024, write_flags: 1, flags: 5 });
    let mut fields = [0; 22];
    (fields[0], fields[4], fields[5], fields[17], fields[19], fields[20]) = (9, 1, 2, 0o600, 11, 12);
    let request = parsed(&message(opcode::SETATTR, &fields)).1;
    assert_eq!(request, Request::SetAttr { valid: 9, size: 2 << 32 | 1, mode: 0o600, uid: 11, gid: 12 });
    let request = parsed(&fallocate(3, 512, 1024)).1;
    assert_eq!(request, Request::Fallocate { offset: 512, length: 1024, mode: 3 });
    // The short form of kernels before 5.17, and the long one.
    let old = parsed(&message(opcode::INIT, &[7, 31, 1 << 17, 1 << 5])).1;
    assert_eq!(old, Request::Init(InitIn { major: 7, minor: 31, max_readahead: 1 << 17, flags: 1 << 5 }));
    let mut fields = [0; 16];
    fields[..5].copy_from_slice(&[7, 45, 1 << 17, 1 << 30, 1 << 4]);
    let new = parsed(&message(opcode::INIT, &fields)).1;
    assert_eq!(new, Request::Init(InitIn { major: 7, minor: 45, max_readahead: 1 << 17, flags: 1 << 36 | 1 << 30 }));
    assert_eq!(parsed(&message(opcode::FORGET, &[1, 0])).1, Request::Silent);
    let request = parsed(&message(opcode::LSEEK, &[0, 0, 512, 1, 3, 0])).1;
    assert_eq!(request, Request::Seek { offset: 1 << 32 | 512, whence: 3 });
    assert_eq!(parsed(&message(9999, &[])).1, Request::Unknown);
}

/// Every message cut at every byte, or longer than it says, is told from a whole one.
#[test]
fn wrong_lengths_are_malformed() {
    let header = |opcode| Header { opcode, unique: 7, node: 1 };
    for (opcode, bytes) in [
        (opcode::READ, read(0, 512)),
        (opcode::WRITE, write(0, 512, 0, 0)),
        (opcode::SETATTR, message(opcode::SETATTR, &[0; 22])),
        (opcode::INIT, message(opcode::INIT, &[7, 31, 0, 0])),
        (opcode::FALLOCATE, fallocate(3, 0, 512)),
        (opcode::OPEN, message(opcode::OPEN, &[0, 0])),
        (opcode::LSEEK, message(opcode::LSEEK, &[0, 0, 512, 0, 3, 0])),
    ] {
        for len in 0..bytes.len() {
            let expected = if len < wire::IN_HEADER { Malformed::NoHeader } else { Malformed::Body(header(opcode)) };
            assert_eq!(parse(&bytes[..len], len).unwrap_err(), expected, "operation {opcode}, {len} bytes");
            // Also if the header says so.
            let mut short = bytes[..len].to_vec();
            if let Some(said) = short.first_chunk_mut() {
                *said = (len as u32).to_ne_bytes();
            }
            assert!(parse(&short, len).is_err(), "operation {opcode}, {len} bytes");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert!(parse(&longer, longer.len()).is_err(), "operation {opcode}");
    }
    // Data that is more or less than the write says, and more than there can be.
    let mut bytes = write(0, 512, 0, 0);
    bytes[56..60].copy_from_slice(&513u32.to_ne_bytes());
    assert!(parse(&bytes, bytes.len()).is_err());
    assert!(parse(&read(0, MAX_DATA as u32), 80).is_ok() && parse(&read(0, MAX_DATA as u32 + 1), 80).is_err());
    let huge = write(0, MAX_DATA as u32 + 512, 0, 0);
    assert!(parse(&huge[..WRITE_HEAD], huge.len()).is_err());
}

#[test]
fn a_seek_begins_inside_the_disk_and_wants_data_or_a_hole() {
    let (f, end) = (attrs(), 1 << 20);
    let told =
        |low: u32, high: u32, whence: i32| told(&f, &message(opcode::LSEEK, &[0, 0, low, high, whence as u32, 0]));
    let seek = |offset, hole| Action::Seek { offset, hole };
    assert_eq!(told(0, 0, libc::SEEK_DATA), seek(0, false));
    assert_eq!(told(end - 1, 0, libc::SEEK_HOLE), seek(u64::from(end) - 1, true));
    // At the end, behind it, beyond what a disk can have, negative.
    for (low, high) in [(end, 0), (end + 1, 0), (0, 1), (u32::MAX, i32::MAX as u32), (0, 1 << 31), (u32::MAX, u32::MAX)]
    {
        assert_eq!(told(low, high, libc::SEEK_DATA), Action::Refuse(libc::ENXIO));
        assert_eq!(told(low, high, libc::SEEK_HOLE), Action::Refuse(libc::ENXIO));
    }
    for whence in [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 5, -1] {
        assert_eq!(told(0, 0, whence), Action::Refuse(libc::EINVAL));
    }
}

#[test]
fn reads_and_writes_end_where_the_disk_does() {
    let (f, end) = (attrs(), 1 << 20);
    assert_eq!(told(&f, &read(end - 512, 4096)), Action::Read { offset: u64::from(end) - 512, bytes: 512 });
    assert_eq!(told(&f, &read(end, 4096)), Action::Reply(Body::EMPTY));
    assert_eq!(told(&f, &read(u32::MAX, 4096)), Action::Reply(Body::EMPTY));
    let w = |offset: u32, bytes, stable, alone| Action::Write { offset: u64::from(offset), bytes, stable, alone };
    assert_eq!(told(&f, &write(end - 512, 4096, 0, 0)), w(end - 512, 512, false, false));
    assert_eq!(told(&f, &write(end, 512, 0, 0)), Action::Refuse(libc::ENOSPC));
    assert_eq!(told(&f, &write(0, 0, 0, 0)), Action::Reply(wire::write_out(0)));
    // Any bytes. The page cache's writes are alone.
    assert_eq!(told(&f, &write(100, 100, 0, 0)), w(100, 100, false, false));
    assert_eq!(told(&f, &write(100, 512, 0, DIRECT)), w(100, 512, false, false));
    assert_eq!(told(&f, &write(512, 512, 0, DIRECT)), w(512, 512, false, false));
    assert_eq!(told(&f, &write(4096, 4096, wire::WRITE_CACHE, 0)), w(4096, 4096, false, true));
    assert_eq!(told(&f, &write(512, 512, 0, DIRECT | libc::O_DSYNC as u32)), w(512, 512, true, false));
    let through = FileAttrs { write_through: true, ..attrs() };
    assert_eq!(told(&through, &write(512, 512, 0, 0)), w(512, 512, true, false));
}

#[test]
fn holes_are_punched_and_nothing_else_is_allocated() {
    let (f, end) = (attrs(), 1u32 << 20);
    let zero = |offset, bytes, keep| Action::Zero { offset, bytes, keep };
    let (punch, range) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE);
    let keep = range | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(told(&f, &fallocate(punch, 512, 1024)), zero(512, 1024, false));
    assert_eq!(told(&FileAttrs { discard: false, ..attrs() }, &fallocate(punch, 512, 1024)), zero(512, 1024, true));
    assert_eq!(told(&f, &fallocate(range, 512, 1024)), zero(512, 1024, true));
    assert_eq!(told(&f, &fallocate(keep, end - 512, 4096)), zero(u64::from(end) - 512, 512, true));
    assert_eq!(told(&f, &fallocate(range, end - 512, 4096)), Action::Refuse(libc::ENOSPC));
    assert_eq!(told(&f, &fallocate(punch, end, 512)), Action::Reply(Body::EMPTY));
    assert_eq!(told(&f, &fallocate(punch, 1, 511)), zero(1, 511, false));
    assert_eq!(told(&f, &fallocate(range, end - 3, 3)), zero(u64::from(end) - 3, 3, true));
    for (mode, offset, length, error) in [
        (punch, 0, 0, libc::EINVAL),
        (0, 0, 512, libc::EOPNOTSUPP),
        (libc::FALLOC_FL_COLLAPSE_RANGE, 0, 512, libc::EOPNOTSUPP),
    ] {
        assert_eq!(told(&f, &fallocate(mode, offset, length)), Action::Refuse(error), "mode {mode}");
    }
    let none = Disk { zeroes: false, ..DISK };
    let (header, request) = parsed(&fallocate(range, 0, 512));
    assert_eq!(action(&header, &request, &f, none), Action::Refuse(libc::EOPNOTSUPP));
}

#[test]
fn the_size_stays_and_the_owner_may_change() {
    let f = attrs();
    let set = |valid: u32, size: u32, mode: u32| {
        let mut fields = [0; 22];
        (fields[0], fields[4], fields[17], fields[19], fields[20]) = (valid, size, mode, 8, 9);
        message(opcode::SETATTR, &fields)
    };
    assert_eq!(told(&f, &set(wire::fattr::SIZE, 0, 0)), Action::Refuse(libc::EPERM));
    assert!(matches!(told(&f, &set(wire::fattr::SIZE, 1 << 20, 0)), Action::Reply(_)));
    let get = message(opcode::GETATTR, &[0; 4]);
    let field = |f: &FileAttrs, at: usize| match told(f, &get) {
        Action::Reply(body) => u32::from_ne_bytes(*body.as_bytes()[at..].first_chunk().unwrap()),
        other => panic!("{other:?}"),
    };
    // Behind 16 bytes: inode, size, ..., mode at 60, owner, group.
    let owner = |f: &FileAttrs| [76, 84, 88].map(|at| field(f, at));
    assert_eq!((field(&f, 24), owner(&f)), (1 << 20, [libc::S_IFREG | 0o640, 1, 2]));
    // Blocks: all, unless the disk knows better; never more than the file has.
    let blocks = |stored| {
        let (header, request) = parsed(&get);
        let Action::Reply(body) = action(&header, &request, &f, Disk { stored, ..DISK }) else { panic!("refused") };
        u64::from_ne_bytes(*body.as_bytes()[32..].first_chunk().unwrap())
    };
    assert_eq!([None, Some(0), Some(4096), Some(1 << 40)].map(blocks), [2048, 0, 8, 2048]);
    told(&f, &set(wire::fattr::MODE | wire::fattr::UID | wire::fattr::GID, 0, libc::S_IFREG | 0o666));
    assert_eq!(owner(&f), [libc::S_IFREG | 0o666, 8, 9]);
    let shut = FileAttrs { read_only: true, ..f };
    assert_eq!(owner(&shut), [libc::S_IFREG | 0o444, 8, 9]);
    assert_eq!(told(&shut, &write(0, 512, 0, 0)), Action::Refuse(libc::EROFS));
    assert_eq!(told(&shut, &message(opcode::OPEN, &[libc::O_RDWR as u32, 0])), Action::Refuse(libc::EROFS));
    assert!(matches!(told(&shut, &message(opcode::OPEN, &[libc::O_RDONLY as u32, 0])), Action::Reply(_)));
    assert_eq!(told(&shut, &message(opcode::FSYNC, &[0; 4])), Action::Reply(Body::EMPTY));
    assert_eq!(told(&attrs(), &message(opcode::FSYNC, &[0; 4])), Action::Flush);
}

/// INIT by version: a newer kernel is asked for ours, an older one is refused.
#[test]
fn init_takes_what_is_offered_and_known() {
    let offer = |major, minor| InitIn { major, minor, max_readahead: 1 << 30, flags: u64::MAX };
    let out = init(&offer(7, 45), 64).unwrap().unwrap();
    assert_eq!((out.minor, out.max_readahead, out.max_background), (wire::NEWEST_MINOR, 1 << 20, 64));
    assert_eq!(out.body().as_bytes().len(), 64);
    assert_eq!(init(&InitIn { flags: 1 << 5, ..offer(7, 31) }, 1 << 20).unwrap().unwrap().flags, 1 << 5);
    assert_eq!(init(&offer(8, 0), 1), Ok(None));
    assert_eq!(init(&offer(7, 30), 1), Err((7, 30)));
    assert_eq!(init(&offer(6, 99), 1), Err((6, 99)));
}

#[test]
fn replies_have_the_lengths_of_the_kernel() {
    let attr = wire::Attr::default();
    assert_eq!(wire::attr_out(&attr).as_bytes().len(), 104);
    assert_eq!(wire::open_out(0).as_bytes().len(), 16);
    assert_eq!(wire::write_out(1).as_bytes(), [1u32.to_ne_bytes(), [0; 4]].concat());
    assert_eq!(wire::lseek_out(513).as_bytes(), 513u64.to_ne_bytes());
    assert_eq!(wire::statfs_out(1 << 20, 512).as_bytes().len(), 80);
    let header = wire::out_header(9, libc::EIO, 8);
    assert_eq!(header[..8], [24u32.to_ne_bytes(), (-libc::EIO).to_ne_bytes()].concat());
    assert_eq!(wire::notify_attr()[..8], [40u32.to_ne_bytes(), 2i32.to_ne_bytes()].concat());
}

proptest! {
    /// Any bytes: no panic, and I/O only inside the disk.
    #[test]
    fn no_message_leaves_the_disk(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        op in 0u32..60,
        node in 0u64..3,
        honest in any::<bool>(),
        blocks in 0u64..5000,
        read_only in any::<bool>(),
    ) {
        let len = bytes.len() as u32;
        if honest && bytes.len() >= 24 {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[4..8].copy_from_slice(&op.to_ne_bytes());
            bytes[16..24].copy_from_slice(&node.to_ne_bytes());
            // Fields that are small now and then, or nothing of a wild message fits.
            for field in bytes.chunks_exact_mut(8).skip(5).filter(|f| f[0] & 1 == 0) {
                field[3..].fill(0);
            }
        }
        let disk = Disk { size: blocks * 4096, block: 4096, zeroes: true, stored: None };
        let attrs = FileAttrs { read_only, ..attrs() };
        if let Ok((header, request)) = parse(&bytes, bytes.len()) {
            let inside = |offset: u64, len: u64| len > 0 && offset.checked_add(len).is_some_and(|end| end <= disk.size);
            match action(&header, &request, &attrs, disk) {
                Action::Seek { offset, .. } => prop_assert!(inside(offset, 1)),
                Action::Read { offset, bytes } => prop_assert!(inside(offset, bytes.into()) && bytes as usize <= MAX_DATA),
                Action::Write { offset, bytes, alone, .. } => {
                    prop_assert!(inside(offset, bytes.into()) && bytes as usize <= MAX_DATA && !read_only);
                    prop_assert!(alone || (offset | u64::from(bytes)).is_multiple_of(4096));
                }
                Action::Zero { offset, bytes, .. } => {
                    prop_assert!(inside(offset, bytes) && !read_only && (offset | bytes).is_multiple_of(4096));
                }
                Action::Flush => prop_assert!(!read_only),
                Action::Reply(_) | Action::Refuse(_) | Action::Silent => {}
            }
        }
    }
}
