// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The identity of a file or block device, by which two names of the same one are recognized.
//!
//! Guarantees: two with the same identity are the same. The identity of a regular file is its inode. That of a block device
//! is the identifier that its disk reports: `wwid` in sysfs, with the number of the partition, or the device mapper's UUID.
//! So two devices may be two paths to one disk. A device whose disk reports no identifier has its device number.
//!
//! Needs: a disk's `wwid` to be its own, which the vendor promises.
//! Source: Documentation/ABI/stable/sysfs-block, drivers/scsi/scsi_sysfs.c (`wwid`), drivers/nvme/host/sysfs.c (`wwid`).

use crate::kernel;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

pub(crate) fn of(meta: &Metadata) -> String {
    if !meta.file_type().is_block_device() {
        return format!("file-{:x}-{}", meta.dev(), meta.ino());
    }
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    of_device(Path::new(&device)).unwrap_or_else(|| format!("device-{major}:{minor}"))
}

/// Returns the identifier that the disk reports, from its directory in sysfs.
fn of_device(device: &Path) -> Option<String> {
    if let Some(partition) = attribute(&device.join("partition")) {
        // The symbolic link is resolved before `..`.
        return Some(format!("{}-part{partition}", of_disk(&device.join(".."))?));
    }
    of_disk(device)
}

fn of_disk(device: &Path) -> Option<String> {
    ["wwid", "device/wwid", "dm/uuid"].iter().find_map(|name| attribute(&device.join(name)))
}

/// Returns the WWID by which multipath identifies a block device; `None`: it is not a whole disk, or reports none.
pub(in crate::driver) fn wwid(path: &Path) -> Option<String> {
    let number = kernel::device_number(path)?;
    let device = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    wwid_of_disk(Path::new(&device))
}

/// Returns the WWID: for SCSI with the digit of the identifier's type instead of its name, for NVMe unchanged.
fn wwid_of_disk(device: &Path) -> Option<String> {
    if let Some(of_nvme) = attribute(&device.join("wwid")) {
        return Some(of_nvme);
    }
    let name = attribute(&device.join("device/wwid"))?;
    let digit = |kind: &str, digit: char| name.strip_prefix(kind).map(|rest| format!("{digit}{rest}"));
    digit("naa.", '3').or_else(|| digit("eui.", '2')).or_else(|| digit("t10.", '1'))
}

fn attribute(path: &Path) -> Option<String> {
    Some(kernel::attribute(path)?.replace(' ', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn partitions_are_identified_by_wwid_and_number() {
        let sys = std::env::temp_dir().join(format!("identity-{}", std::process::id()));
        fs::create_dir_all(sys.join("sda/device")).unwrap();
        fs::create_dir_all(sys.join("sda/sda2")).unwrap();
        fs::create_dir_all(sys.join("vda")).unwrap();
        fs::write(sys.join("sda/device/wwid"), "t10.ATA     DISK  77\n").unwrap();
        fs::write(sys.join("sda/sda2/partition"), "2\n").unwrap();
        assert_eq!(of_device(&sys.join("sda")).as_deref(), Some("t10.ATA_DISK_77"));
        assert_eq!(wwid_of_disk(&sys.join("sda")).as_deref(), Some("1ATA_DISK_77"));
        fs::write(sys.join("sda/device/wwid"), "naa.5000c500a1b2c3d4\n").unwrap();
        assert_eq!(wwid_of_disk(&sys.join("sda")).as_deref(), Some("35000c500a1b2c3d4"));
        fs::write(sys.join("sda/device/wwid"), "t10.ATA     DISK  77\n").unwrap();
        assert_eq!((wwid_of_disk(&sys.join("sda/sda2")), wwid_of_disk(&sys.join("vda"))), (None, None));
        assert_eq!(of_device(&sys.join("sda/sda2")).as_deref(), Some("t10.ATA_DISK_77-part2"));
        assert_eq!(of_device(&sys.join("vda")), None, "it is known by its number");
        fs::remove_dir_all(&sys).unwrap();
    }

    #[test]
    fn two_names_of_a_file_are_one_and_two_files_two() {
        let name = |n: &str| std::env::temp_dir().join(format!("identity-{}-{n}", std::process::id()));
        let (a, b, link) = (name("a"), name("b"), name("link"));
        fs::write(&a, [0; 512]).unwrap();
        fs::write(&b, [0; 512]).unwrap();
        fs::hard_link(&a, &link).unwrap();
        let of = |path| super::of(&fs::metadata(path).unwrap());
        assert_eq!(of(&a), of(&link));
        assert_ne!(of(&a), of(&b));
        [a, b, link].iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}
