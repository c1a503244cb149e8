// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signatures on a device: file systems, partition tables and volumes, recognised by magic numbers at known places.
//!
//! Guarantees: reads only; the common signatures of Linux, BSD and Windows are known. Does not: prove that a device is free. Data without
//! a signature (a database's raw volume that leaves none, an encrypted one without a header) is not recognised.
//!
//! Source: the superblock layouts that util-linux's libblkid looks for.

use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A mark: its bytes, where they are (from the start, or from the end where it is negative), and of what.
pub(crate) type Mark = (&'static [u8], i64, &'static str);

const MARKS: &[Mark] = &[
    (b"EFI PART", 512, "a partition table (GPT)"),
    (b"EFI PART", 4096, "a partition table (GPT)"),
    (&[0x53, 0xef], 1080, "a file system (ext2, ext3 or ext4)"),
    (b"XFSB", 0, "a file system (xfs)"),
    (b"_BHRfS_M", 0x10040, "a file system (btrfs)"),
    (&[0x10, 0x20, 0xf5, 0xf2], 1024, "a file system (f2fs)"),
    (&[0xe2, 0xe1, 0xf5, 0xe0], 1024, "a file system (erofs)"),
    (b"hsqs", 0, "a file system (squashfs)"),
    (b"NTFS    ", 3, "a file system (NTFS)"),
    (b"EXFAT   ", 3, "a file system (exFAT)"),
    (b"FAT32   ", 82, "a file system (FAT)"),
    (b"FAT16   ", 54, "a file system (FAT)"),
    (b"FAT12   ", 54, "a file system (FAT)"),
    (b"CD001", 32769, "a file system (ISO 9660)"),
    (b"NXSB", 32, "a file system (APFS)"),
    (b"H+", 1024, "a file system (HFS+)"),
    (b"ReIsEr2Fs", 65588, "a file system (reiserfs)"),
    (b"JFS1", 32768, "a file system (jfs)"),
    (&[0x01, 0x16, 0x19, 0x70], 0x10000, "a cluster file system (gfs2)"),
    (b"OCFSV2", 2048, "a cluster file system (ocfs2)"),
    (b"LABELONE", 0, "an LVM volume"),
    (b"LABELONE", 512, "an LVM volume"),
    (b"LABELONE", 1024, "an LVM volume"),
    (b"LABELONE", 1536, "an LVM volume"),
    (b"LUKS\xba\xbe", 0, "an encrypted volume (LUKS)"),
    (&[0xfc, 0x4e, 0x2b, 0xa9], 0, "a member of an array (md)"),
    (&[0xfc, 0x4e, 0x2b, 0xa9], 4096, "a member of an array (md)"),
    (&[0xfc, 0x4e, 0x2b, 0xa9], -65536, "a member of an array (md)"),
    (&[0xfc, 0x4e, 0x2b, 0xa9], -8192, "a member of an array (md)"),
    (b"SWAPSPACE2", 4086, "swap space"),
    (b"SWAP-SPACE", 4086, "swap space"),
    (&[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], 4120, "a bcache or bcachefs device"),
    (b"bluestore block device", 0, "a Ceph OSD (bluestore)"),
    (b"ORCLDISK", 32, "an Oracle ASM disk"),
    (&[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], 0x20000, "a ZFS pool"),
    (&[0x0d, 0xd0, 0x01, 0xc0], 0x0010_0000, "a VMware file system (VMFS)"),
];

/// What is on the device, in words; none: no mark that is known.
///
/// # Errors
/// It cannot be read.
pub fn found_on(path: &Path, size_bytes: u64) -> Result<Vec<&'static str>> {
    let failed = |e| Error::os(e, format!("cannot read '{}' to see what is on it", path.display()));
    let device = File::open(path).map_err(failed)?;
    let mut found = marks_on(&device, 0..size_bytes, MARKS).map_err(failed)?;
    // A FAT or NTFS boot sector ends with the same two bytes as a partition table.
    let mut sector = [0; 512];
    if found.is_empty() && size_bytes >= 512 {
        device.read_exact_at(&mut sector, 0).map_err(failed)?;
        if is_partition_table(&sector) {
            found.push("a partition table (MBR)");
        }
    }
    Ok(found)
}

/// Returns what the marks that are in this range of the device or file stand for, each once, in the order of `marks`. A mark has at most
/// 32 bytes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn marks_on(device: &File, within: Range<u64>, marks: &[Mark]) -> io::Result<Vec<&'static str>> {
    let size_bytes = within.end - within.start;
    let mut found = Vec::new();
    for (bytes, at, what) in marks {
        // md puts its oldest superblock on a multiple of 64 KiB, the later one on one of 4 KiB.
        let align = match at {
            ..=-65536 => 0xffff,
            ..=-4096 => 0xfff,
            _ => 0,
        };
        let at =
            if *at < 0 { size_bytes.checked_add_signed(*at).map(|at| at & !align) } else { Some(at.unsigned_abs()) };
        let Some(at) = at.filter(|at| at + bytes.len() as u64 <= size_bytes) else { continue };
        let mut read = [0; 32];
        let read = &mut read[..bytes.len()];
        device.read_exact_at(read, within.start + at)?;
        if read == *bytes && !found.contains(what) {
            found.push(*what);
        }
    }
    Ok(found)
}

/// Whether it is a master boot record: its mark, and entries that can be meant.
fn is_partition_table(sector: &[u8; 512]) -> bool {
    let entries = || sector[446..510].chunks_exact(16);
    let sane = entries().all(|e| matches!(e[0], 0 | 0x80));
    sector[510..] == [0x55, 0xaa] && sane && entries().any(|e| e[4] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(marks: &[(usize, &[u8])]) -> Vec<&'static str> {
        let mut bytes = vec![0u8; 2 << 20];
        for (at, mark) in marks {
            bytes[*at..*at + mark.len()].copy_from_slice(mark);
        }
        let path = std::env::temp_dir().join(format!("mqblk-signature-{}-{:p}", std::process::id(), &raw const bytes));
        std::fs::write(&path, &bytes).unwrap();
        let found = found_on(&path, bytes.len() as u64).unwrap();
        std::fs::remove_file(&path).unwrap();
        found
    }

    #[test]
    fn marks_are_found_where_they_belong_and_nowhere_else() {
        assert_eq!(look(&[]), Vec::<&str>::new());
        assert_eq!(look(&[(1080, &[0x53, 0xef])]), ["a file system (ext2, ext3 or ext4)"]);
        assert_eq!(look(&[(1082, &[0x53, 0xef])]), Vec::<&str>::new());
        assert_eq!(look(&[(512, b"EFI PART"), (510, &[0x55, 0xaa])]), ["a partition table (GPT)"]);
        assert_eq!(look(&[(510, &[0x55, 0xaa]), (450, &[0x83])]), ["a partition table (MBR)"]);
        assert_eq!(look(&[(510, &[0x55, 0xaa])]), Vec::<&str>::new(), "a table without an entry holds nothing");
        let end = 2 << 20;
        assert_eq!(look(&[(end - 65536, &[0xfc, 0x4e, 0x2b, 0xa9])]), ["a member of an array (md)"]);
    }

    #[test]
    fn a_device_smaller_than_the_places_is_no_error() {
        let path = std::env::temp_dir().join(format!("mqblk-signature-small-{}", std::process::id()));
        std::fs::write(&path, [0; 100]).unwrap();
        assert_eq!(found_on(&path, 100).unwrap(), Vec::<&str>::new());
        std::fs::remove_file(&path).unwrap();
    }
}
