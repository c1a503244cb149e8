// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports which parts of a file are stored, and reads the file ahead. The calls may wait for the file system's own reads.
//!
//! Guarantees: a hole is reported only where the file system reports one after all completed writes. Holes consist of whole
//! logical blocks; a block that is stored in part counts as data. The part of a disk beyond the end of its file, and
//! whatever the file system does not report, counts as data: reading it shows what is wrong. Allocated space that was never
//! written reads as zeroes and counts as a hole, as in the kernel.
//! Not for block devices: the kernel reports nothing about them.
//!
//! Source: lseek(2) (SEEK_DATA, SEEK_HOLE), statx(2), posix_fadvise(2).

use super::open::Opened;
use crate::driver::space::Stretch;
use blk::id::{SECTOR_SHIFT, Sector};
use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags, fadvise, fstat, seek, statx};
use rustix::io::Errno;
use std::num::NonZeroU64;

/// Bytes of one read-ahead advice: the kernel starts no more than this per advice.
const PREFETCH_CHUNK: u64 = 128 << 10;
/// Maximum number of bytes of one call.
const PREFETCH_MAX: u64 = 64 << 20;

/// See [`Space::survey`](crate::driver::space::Space::survey).
pub(super) fn stretches(file: &Opened, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Stretch> {
    let (start, bytes) = (file.byte_of(sector), nr_sectors << SECTOR_SHIFT);
    let (end, block) = (start + bytes, u64::from(file.limits.logical_block_size));
    let fd = file.borrow();
    // The last sector may end beyond the disk.
    let used = end.min(file.part.offset + file.bytes());
    let is_short = fstat(fd).map_or(true, |stat| (stat.st_size as u64) < used);
    if is_short {
        return vec![Stretch { nr_sectors, is_hole: false }];
    }
    let mut found = Vec::new();
    let mut at = start;
    while at < end && found.len() < most {
        let (to, is_hole) = match seek(fd, SeekFrom::Data(at)) {
            // No data follows.
            Err(Errno::NXIO) => (end, true),
            Err(_) => (end, false),
            Ok(data) if data.min(end) / block * block > at => (data.min(end) / block * block, true),
            Ok(data) => match seek(fd, SeekFrom::Hole(data.max(at))) {
                Ok(hole) => (hole.min(end).next_multiple_of(block).min(end), false),
                Err(_) => (end, false),
            },
        };
        // The file may change between two calls; a block further on is always progress.
        let to = to.max((at + block).min(end));
        found.push(Stretch { nr_sectors: (to - at) >> SECTOR_SHIFT, is_hole });
        at = to;
    }
    found
}

/// See [`Space::stored_bytes`](crate::driver::space::Space::stored_bytes). The file system does not know it for a part of a file.
pub(super) fn stored_bytes(file: &Opened) -> Option<u64> {
    if !file.part.is_whole() {
        return None;
    }
    // A network file system returns its cached value, so this does not wait for its server.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = statx(file.borrow(), c"", flags, StatxFlags::BLOCKS).ok()?;
    // These blocks are always 512 bytes, whatever the file system's block size.
    (told.stx_mask & StatxFlags::BLOCKS.bits() != 0).then(|| told.stx_blocks.saturating_mul(512))
}

/// See [`Space::prefetch`](crate::driver::space::Space::prefetch).
pub(super) fn prefetch(file: &Opened, sector: Sector, nr_sectors: u64) {
    let start = file.byte_of(sector);
    let end = start + (nr_sectors << SECTOR_SHIFT).min(PREFETCH_MAX);
    let mut at = start;
    while let Some(len) = NonZeroU64::new((end - at).min(PREFETCH_CHUNK)) {
        if fadvise(file.borrow(), at, Some(len), Advice::WillNeed).is_err() {
            return;
        }
        at += len.get();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileOptions, FilePart};
    use super::*;
    use std::fs;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    fn told(file: &Opened, from: u64, bytes: u64, most: usize) -> Vec<(u64, bool)> {
        let found = stretches(file, Sector(from / 512), bytes / 512, most);
        found.iter().map(|s| (s.nr_sectors * 512, s.is_hole)).collect()
    }

    #[test]
    fn holes_are_told_from_data_that_was_just_written() {
        let path = std::env::temp_dir().join(format!("mqblk-survey-{}", std::process::id()));
        let plain = fs::File::create(&path).unwrap();
        plain.set_len(8 * MIB).unwrap();
        let options = FileOptions { direct: false, ..FileOptions::default() };
        let (file, _) = Opened::open(&path, &options).unwrap();
        assert_eq!(told(&file, 0, 8 * MIB, 10), [(8 * MIB, true)]);
        assert!(stored_bytes(&file).unwrap() < 65536);
        // This data is only in the page cache.
        plain.write_all_at(&[1; 65536], MIB).unwrap();
        plain.write_all_at(&[1; 100], 4 * MIB + 4096).unwrap();
        let all = told(&file, 0, 8 * MIB, 10);
        let data: u64 = all.iter().filter(|(_, hole)| !hole).map(|(n, _)| n).sum();
        assert_eq!((all[0], all[1], all.len()), ((MIB, true), (65536, false), 5), "{all:?}");
        assert!((65536 + 4096..65536 + MIB).contains(&data), "{all:?}");
        assert_eq!(all.iter().map(|(n, _)| n).sum::<u64>(), 8 * MIB);
        plain.sync_all().unwrap();
        let stored = stored_bytes(&file).unwrap();
        assert!((65536..MIB).contains(&stored), "{stored}");
        // From any offset, cut at both ends, and no more stretches than requested.
        assert_eq!(told(&file, MIB + 512, 1024, 10), [(1024, false)]);
        assert_eq!(told(&file, 0, 8 * MIB, 2), [(MIB, true), (65536, false)]);
        assert_eq!(told(&file, 6 * MIB, 2 * MIB, 2), [(2 * MIB, true)]);
        // The part that was cut off is not a hole: reading it fails.
        plain.set_len(7 * MIB).unwrap();
        assert_eq!(told(&file, 6 * MIB, 2 * MIB, 2), [(2 * MIB, false)]);
        prefetch(&file, Sector(0), 8 * MIB / 512);
        // A part of the file begins at its own sector 0.
        let part = FilePart { offset: MIB, size: Some(2 * MIB) };
        let (file, _) = Opened::open(&path, &FileOptions { part, ..options }).unwrap();
        assert_eq!(told(&file, 0, 2 * MIB, 10), [(65536, false), (2 * MIB - 65536, true)]);
        assert_eq!(stored_bytes(&file), None);
        prefetch(&file, Sector(0), 2 * MIB / 512);
        // A file may end within the last sector of its disk.
        plain.set_len(MIB + 65537).unwrap();
        let (file, _) = Opened::open(&path, &FileOptions { any_size: true, ..options }).unwrap();
        assert_eq!(told(&file, 0, MIB + 65536 + 512, 10).iter().map(|(n, _)| n).sum::<u64>(), MIB + 65536 + 512);
        assert_eq!(told(&file, 0, MIB + 65536 + 512, 1), [(MIB, true)]);
        plain.write_all_at(&[1], MIB + 65536).unwrap();
        assert_eq!(told(&file, MIB + 65536, 512, 10), [(512, false)]);
        fs::remove_file(&path).unwrap();
    }
}
