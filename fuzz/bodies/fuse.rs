// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of `/dev/fuse` of arbitrary bytes: no panic, and what is to be done stays inside the disk, and
//! writes nothing to a disk that is read-only.
//!
//! The first byte chooses the disk. Lengths are fixed up, or nearly no input would get past the header; the in-tree twins, whose
//! lengths are wrong as well, are `wire_tests.rs` and `channel_tests.rs` in `crates/host/src/export/fuse`.
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use host::export::fuse::session::{Action, Disk, FileAttrs, action, init};
use host::export::fuse::wire::{IN_HEADER, MAX_BODY, MAX_DATA, Request, WRITE_HEAD, is_write, parse};

/// How far it came: 0 = no request, 1 = one that is refused, 2 = one that something is done for.
#[allow(clippy::disallowed_methods, reason = "the kernel speaks in the byte order of its machine")]
pub fn run(data: &[u8]) -> usize {
    let [choice, bytes @ ..] = data else { return 0 };
    let _ = parse(bytes, bytes.len());
    let mut bytes = bytes.to_vec();
    if bytes.len() < IN_HEADER {
        return 0;
    }
    // A write's data is not read, so it counts as being as long as its header says.
    let size = bytes.get(56..60).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b) as usize);
    let total = if is_write(&bytes) { WRITE_HEAD + size } else { bytes.len() };
    bytes[..4].copy_from_slice(&(total as u32).to_ne_bytes());
    bytes[16..24].copy_from_slice(&1u64.to_ne_bytes());
    let head = &bytes[..bytes.len().min(total)];
    let Ok((header, request)) = parse(head, total) else { return 0 };
    if let Request::Init(offered) = &request {
        let _ = init(offered, usize::from(*choice));
    }
    let block = 512u32 << (choice & 3);
    let disk = Disk { size: u64::from(block) * u64::from(choice >> 2), block, zeroes: choice & 4 != 0, stored: None };
    let read_only = choice & 8 != 0;
    let mut face = FileAttrs::new(0o644, 0, 0, 0);
    (face.read_only, face.discard) = (read_only, choice & 16 != 0);
    let inside = |offset: u64, n: u64| n > 0 && offset.checked_add(n).is_some_and(|end| end <= disk.size);
    match action(&header, &request, &face, disk) {
        Action::Read { offset, bytes } => assert!(inside(offset, bytes.into()) && bytes as usize <= MAX_DATA),
        Action::Write { offset, bytes, .. } => {
            assert!(inside(offset, bytes.into()) && bytes as usize <= MAX_DATA && !read_only);
        }
        Action::Zero { offset, bytes, .. } => assert!(inside(offset, bytes) && !read_only),
        Action::Seek { offset, .. } => assert!(inside(offset, 1)),
        Action::Flush => assert!(!read_only),
        Action::Reply(body) => assert!(body.as_bytes().len() <= MAX_BODY),
        Action::Refuse(error) => {
            assert!(error > 0);
            return 1;
        }
        Action::Silent => {}
    }
    2
}
