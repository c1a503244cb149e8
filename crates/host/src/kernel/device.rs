// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a path to a block device of this host, the disk it is on, and what the kernel reports of that disk.
//!
//! Guarantees: reads only. A partition has its disk's settings and counters of its own. Needs: sysfs at /sys. Does not: open
//! the device.

use crate::error::{Error, ErrorKind, Result};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A block device, and the disk whose request queue it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// As the user named it.
    pub node: PathBuf,
    /// The kernel's name of it, such as `sda1`.
    pub name: String,
    /// The kernel's name of its disk, such as `sda`; the same for a whole disk.
    pub disk: String,
    /// Its directory in sysfs, without links.
    pub dir: PathBuf,
    /// Its disk's directory in sysfs, without links.
    pub disk_dir: PathBuf,
    /// Its number.
    pub rdev: u64,
}

impl KernelDevice {
    /// The device that `path` leads to, through links.
    ///
    /// # Errors
    /// It is not there, or no block device, or sysfs does not know it.
    pub fn find(path: &Path) -> Result<KernelDevice> {
        let shown = path.display();
        let meta = fs::metadata(path).map_err(|e| {
            let text =
                format!("kernel:{shown}: there is no such device: name a block device, such as kernel:/dev/nvme0n1");
            Error::os(e, text)
        })?;
        if !meta.file_type().is_block_device() {
            let text = format!(
                "kernel:{shown}: must be a block device; leave 'kernel:' out to run on it through mqblk's block layer"
            );
            return Err(Error::new(ErrorKind::Usage, text));
        }
        let rdev = meta.rdev();
        let link = format!("/sys/dev/block/{}:{}", libc::major(rdev), libc::minor(rdev));
        let dir = fs::canonicalize(&link).map_err(|e| {
            Error::os(
                e,
                format!(
                    "kernel:{shown}: {link} cannot be read, so the device's settings are not known; is /sys mounted?"
                ),
            )
        })?;
        let is_partition = dir.join("partition").exists();
        let disk_dir = match dir.parent() {
            Some(parent) if is_partition => parent.to_owned(),
            _ => dir.clone(),
        };
        let name = |dir: &Path| dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(KernelDevice { node: path.to_owned(), name: name(&dir), disk: name(&disk_dir), dir, disk_dir, rdev })
    }

    /// The disk of this name in /sys/block.
    ///
    /// # Errors
    /// There is none.
    pub fn of_disk(name: &str) -> Result<KernelDevice> {
        KernelDevice::find(&Path::new("/dev").join(name.replace('!', "/")))
    }

    /// Whether it is a part of its disk.
    pub fn is_partition(&self) -> bool {
        self.dir != self.disk_dir
    }

    /// Names of the disk's partitions, as the kernel has read them.
    pub fn partitions(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.disk_dir).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|e| e.path().join("partition").exists())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// What sort of disk it is: `scsi`, `nvme`, `virtio`, `loop`, `device-mapper`, ... as far as it can be told.
    pub fn kind(&self) -> String {
        let dir = &self.disk_dir;
        if dir.join("device/scsi_device").exists() || dir.join("device/scsi_disk").exists() {
            return "scsi".to_owned();
        }
        if let Ok(subsystem) = fs::canonicalize(dir.join("device/subsystem"))
            && let Some(name) = subsystem.file_name()
        {
            return name.to_string_lossy().into_owned();
        }
        let by_name = [("dm-", "device-mapper"), ("md", "md"), ("loop", "loop"), ("zram", "zram"), ("nbd", "nbd")];
        let more = [("ublk", "ublk"), ("nullb", "null_blk"), ("ram", "ram disk"), ("rbd", "rbd"), ("xvd", "xen")];
        let known = by_name.iter().chain(&more).find(|(prefix, _)| self.disk.starts_with(prefix));
        known.map_or_else(|| self.disk.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), |k| k.1.to_owned())
    }

    /// Hardware queues of the disk; `None` where the kernel shows none (no blk-mq).
    pub fn nr_hw_queues(&self) -> Option<usize> {
        let count = fs::read_dir(self.disk_dir.join("mq")).ok()?.flatten().count();
        (count > 0).then_some(count)
    }

    /// Driver tags of each hardware queue.
    pub fn nr_tags(&self) -> Option<u32> {
        attribute(&self.disk_dir.join("mq/0/nr_tags"))?.parse().ok()
    }

    /// What a person recognises the disk by: size, kind, model, serial number or backing file.
    pub fn identity(&self) -> String {
        let mut parts = vec![self.kind()];
        let bytes = attribute(&self.dir.join("size")).and_then(|s| s.parse::<u64>().ok()).map(|sectors| sectors << 9);
        parts.extend(bytes.map(|b| format!("{b} bytes")));
        for (label, file) in [
            ("", "device/vendor"),
            ("", "device/model"),
            ("serial ", "device/serial"),
            ("wwid ", "wwid"),
            ("wwid ", "device/wwid"),
            ("dm ", "dm/name"),
            ("on ", "loop/backing_file"),
        ] {
            parts.extend(attribute(&self.disk_dir.join(file)).map(|value| format!("{label}{value}")));
        }
        parts.extend(self.nr_hw_queues().map(|n| format!("{n} hardware queue{}", if n == 1 { "" } else { "s" })));
        parts.extend(self.nr_tags().map(|n| format!("{n} tags")));
        parts.join(", ")
    }

    /// What tells it from another device that has its name, or is named instead of it: what its maker, its driver or a file below it
    /// call it, as far as there is such a thing, and its size; a disk without a name of its own by its number, too.
    pub fn own_name(&self) -> String {
        let of_disk = |file: &str| Some(format!("{file}={}", attribute(&self.disk_dir.join(file))?));
        let files = ["wwid", "device/wwid", "device/serial", "serial", "dm/uuid", "md/uuid"];
        let mut parts: Vec<String> = files.into_iter().filter_map(of_disk).collect();
        if parts.is_empty() {
            parts.extend(of_disk("dev"));
            parts.extend(of_disk("loop/backing_file"));
        }
        parts.extend(of_disk("size"));
        if self.is_partition() {
            let of_part = |file: &str| Some(format!("part {file}={}", attribute(&self.dir.join(file))?));
            parts.extend(["partition", "start", "size"].into_iter().filter_map(of_part));
        }
        parts.join(", ")
    }

    /// What tells it from another disk that gets its name later.
    pub(super) fn fingerprint(&self) -> String {
        let own = ["wwid", "device/wwid", "device/serial", "dm/uuid"];
        let own = own.iter().find_map(|file| attribute(&self.disk_dir.join(file)));
        format!("{} {}", self.disk_dir.display(), own.unwrap_or_default()).trim_end().to_owned()
    }
}

/// Returns the number of the block device that a path leads to; `None`: it leads to none.
pub(crate) fn device_number(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?;
    Some(meta.rdev())
}

/// A file's one line; `None` when it is not there, cannot be read, or is empty.
pub(crate) fn attribute(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_block_device_is_refused() {
        let file = KernelDevice::find(Path::new("/dev/null")).unwrap_err();
        assert!(file.to_string().contains("must be a block device"), "{file}");
        let none = KernelDevice::find(Path::new("/dev/nonexistent")).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        assert!(none.to_string().contains("there is no such device"), "{none}");
    }
}
