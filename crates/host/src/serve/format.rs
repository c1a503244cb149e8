// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the beginning of an image shows: that it is not raw, but holds a disk in a container, and which block size it was made for.
//!
//! Guarantees: [`of_target`] finds each format in [`FORMATS`] and names it. Served as raw data, such a file would show its clients the
//! container, and their writes would destroy it. Does not do: read any of these formats. A client may write such a beginning to its raw
//! disk, too (LUKS over a whole disk); `format = "raw"` is for that. Of a disk that is a part of its file, only the part is read.
//!
//! Source: the probe functions of QEMU's block drivers, and the formats' own specifications.

use super::plan::{DiskPlan, StripePlan, TargetPlan};
use crate::driver::file::FilePart;
use crate::kernel::signature::{Mark, marks_on};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::stripe::{Stripe, StripeMap};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

/// Magic numbers, from the beginning of the image or from its end. The first that is found counts.
const FORMATS: [Mark; 19] = [
    (b"QFI\xfb\0\0\0\x02", 0, "qcow2"),
    (b"QFI\xfb\0\0\0\x03", 0, "qcow2"),
    (b"QFI\xfb", 0, "qcow"),
    (b"KDMV", 0, "vmdk"),
    (b"COWD", 0, "vmdk"),
    (b"# Disk DescriptorFile", 0, "vmdk"),
    (b"vhdxfile", 0, "vhdx"),
    (b"conectix", 0, "vhd (vpc)"),
    (b"conectix", -512, "vhd (vpc)"),
    (b"\x7f\x10\xda\xbe", 64, "vdi"),
    (b"LUKS\xba\xbe", 0, "luks"),
    (b"QED\0", 0, "qed"),
    (b"WithoutFreeSpace", 0, "parallels"),
    (b"WithouFreSpacExt", 0, "parallels"),
    (b"Bochs Virtual HD Image", 0, "bochs"),
    (b"koly", -512, "dmg"),
    (b"\x1f\x8b\x08", 0, "gzip"),
    (b"\xfd7zXZ\0", 0, "xz"),
    (b"\x28\xb5\x2f\xfd", 0, "zstd"),
];

/// Returns why an image of the target is not served as raw data; `None` if all are raw, or the plan says that they are. An image that cannot
/// be read is left to the driver.
pub(super) fn of_target(disk: &DiskPlan, target: &TargetPlan) -> Option<String> {
    if disk.is_raw {
        return None;
    }
    let (path, name) = target.paths().into_iter().find_map(|path| Some((path, format_of(path, disk.part).ok()??)))?;
    Some(format!(
        "image '{}' is not raw but {name}: its clients would see the container, and their writes would destroy it; convert it \
         (qemu-img convert -O raw), serve it with qemu-storage-daemon, or set format = \"raw\" in the configuration if the raw \
         data really begins like that",
        path.display()
    ))
}

/// Returns the logical block size of a disk: as set, or as its images show; `None` if its targets determine it.
pub(super) fn logical_block_size(disk: &DiskPlan) -> Option<u32> {
    disk.geometry.logical.or_else(|| made_for(disk))
}

/// Block sizes for which a partition table (GPT) is looked for. Its header is in the second block of a disk.
const TABLE_BLOCKS: [u32; 2] = [512, 4096];

/// Returns the block size that the data of a disk was made for, if its targets are files. Files without a partition table count as made for
/// 512, the block size of nearly all disks of guests.
fn made_for(plan: &DiskPlan) -> Option<u32> {
    let paths: Vec<&Path> = plan.targets.iter().map(|t| t.paths().first().copied()).collect::<Option<_>>()?;
    if !paths.iter().all(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file())) {
        return None;
    }
    let nr_sectors = |path: &&Path| fs::metadata(path).map_or(0, |meta| meta.len() >> SECTOR_SHIFT);
    let stripes: Vec<Stripe> =
        paths.iter().map(|path| Stripe { start: Sector(0), nr_sectors: nr_sectors(path) }).collect();
    // A stripe that cannot be is refused when it is opened.
    let map =
        plan.stripe.and_then(|StripePlan { chunk_bytes }| StripeMap::new(chunk_bytes, SECTOR_SIZE, &stripes).ok());
    let has_table = |block: u32| -> io::Result<bool> {
        let second = Sector(u64::from(block) >> SECTOR_SHIFT);
        let (target, at) = map.as_ref().map_or((0, second), |map| map.locate(second));
        let file = File::open(paths[target])?;
        let bytes = file.metadata()?.len();
        let header: Mark = (b"EFI PART", (at.0 << SECTOR_SHIFT) as i64, "GPT");
        Ok(first_mark(&file, plan.part, bytes, &[header])?.is_some())
    };
    // A file that cannot be read counts as a file without a table; the driver handles it.
    Some(TABLE_BLOCKS.into_iter().find(|block| has_table(*block).unwrap_or(false)).unwrap_or(512))
}

/// Returns the name of the image's format; `None` if it is raw, as far as this can be seen.
fn format_of(path: &Path, part: FilePart) -> io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    first_mark(&file, part, size, &FORMATS)
}

/// Returns the first mark that is on the part of a file of `file_bytes`. A part that is not within the file is left to the driver.
fn first_mark(file: &File, part: FilePart, file_bytes: u64, marks: &[Mark]) -> io::Result<Option<&'static str>> {
    let Ok(bytes) = part.bytes_of(file_bytes) else { return Ok(None) };
    Ok(marks_on(file, part.offset..part.offset + bytes, marks)?.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetSpec;

    #[test]
    fn each_format_is_found_and_named_and_raw_data_is_not() {
        let path = std::env::temp_dir().join(format!("mqblk-format-{}", std::process::id()));
        for (magic, at, name) in &FORMATS {
            let mut bytes = vec![0; 4096];
            let from = if *at < 0 { 4096 - 512 } else { *at as usize };
            bytes[from..from + magic.len()].copy_from_slice(magic);
            std::fs::write(&path, &bytes).unwrap();
            let whole = FilePart::default();
            assert_eq!(format_of(&path, whole).unwrap(), Some(*name));
            // A part that does not have the mark is raw: the VHD's data before its footer.
            let part = FilePart { offset: 512, size: Some(2048) };
            assert_eq!(format_of(&path, part).unwrap(), None, "{name}");
            // Elsewhere, it is data.
            bytes.rotate_right(1);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(format_of(&path, whole).unwrap(), None, "{name}");
        }
        for raw in [&b""[..], b"QF", &[0xeb, 0x63, 0x90], &[0; 5000]] {
            std::fs::write(&path, raw).unwrap();
            assert_eq!(format_of(&path, FilePart::default()).unwrap(), None, "{raw:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// A table for 512 counts even if data behind it looks like one for 4096.
    #[test]
    fn a_partition_table_shows_what_the_image_was_made_for() {
        let path = std::env::temp_dir().join(format!("mqblk-made-for-{}", std::process::id()));
        let plan = |text: &str| DiskPlan::new("d", TargetSpec::parse(text).unwrap(), text);
        for (marks, size) in [(&[][..], 512), (&[512], 512), (&[4096], 4096), (&[512, 4096], 512)] {
            let mut bytes = vec![0; 1 << 16];
            marks.iter().for_each(|at: &usize| bytes[*at..*at + 8].copy_from_slice(b"EFI PART"));
            fs::write(&path, &bytes).unwrap();
            let whole = plan(path.to_str().unwrap());
            assert_eq!(made_for(&whole), Some(size), "{marks:?}");
            let part = FilePart { offset: 8192, size: None };
            assert_eq!(made_for(&DiskPlan { part, ..whole }), Some(512), "the table is not in the part");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(made_for(&plan("ram:size=1m,blocksize=4096")), None, "the target knows");
    }

    /// The second block of a disk may be on another target than its first. The first target alone used to be searched.
    #[test]
    fn the_table_of_a_stripe_is_found_across_its_targets() {
        let path = |n: usize| std::env::temp_dir().join(format!("mqblk-made-for-{}-{n}", std::process::id()));
        let of = |n| DiskPlan::new("d", TargetSpec::File(path(n)), "");
        for (chunk, target, at, size) in [
            (4096, 0, 512, 512),
            (4096, 1, 0, 4096),
            // Byte 8192 of the disk.
            (4096, 0, 4096, 512),
            (512, 1, 0, 512),
            (512, 0, 2048, 4096),
            (1 << 16, 0, 4096, 4096),
        ] {
            for n in 0..2 {
                let mut bytes = vec![0; 1 << 16];
                if n == target {
                    bytes[at..at + 8].copy_from_slice(b"EFI PART");
                }
                fs::write(path(n), &bytes).unwrap();
            }
            let striped = of(0).striped(chunk, [of(0).targets, of(1).targets].concat());
            assert_eq!(made_for(&striped), Some(size), "chunks of {chunk}, table at {at} of target {target}");
        }
        (0..2).for_each(|n| fs::remove_file(path(n)).unwrap());
    }
}
