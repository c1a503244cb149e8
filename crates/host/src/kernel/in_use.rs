// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other users of a block device: mounts, swap, devices on top of it, exclusive openers.
//!
//! Guarantees: finds a use by this mount namespace, by swap, or by device-mapper, md or bcache. It also finds an exclusive
//! opener; a mount in another namespace is one. While a [`Claim`] lives no process can mount the device. Does not: find openers
//! without O_EXCL, for that excludes nothing.

use super::device::{KernelDevice, device_number};
use crate::error::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an exclusive opener is waited for: the kernel may let go of what a ring had open some time after its process has ended.
const CLAIM_WAIT: Duration = Duration::from_millis(500);
const CLAIM_RETRY: Duration = Duration::from_millis(5);

/// A disk or partition that is checked: its name and its device number.
struct Part {
    name: String,
    dir: std::path::PathBuf,
    rdev: u64,
}

/// The uses of a device, in words; none: it is free. With `whole_disk` those of all its disk.
///
/// # Errors
/// The mounts cannot be read.
pub fn uses(device: &KernelDevice, whole_disk: bool) -> Result<Vec<String>> {
    let mut parts = Vec::new();
    let number = |dir: &Path| {
        let text = super::device::attribute(&dir.join("dev"))?;
        let (major, minor) = text.split_once(':')?;
        Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    let mut add = |dir: &Path| {
        let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        parts.extend(number(dir).map(|rdev| Part { name, dir: dir.to_owned(), rdev }));
    };
    // A user of a partition is a user of its disk.
    if whole_disk || !device.is_partition() {
        add(&device.disk_dir);
        device.partitions().iter().for_each(|p| add(&device.disk_dir.join(p)));
    } else {
        add(&device.dir);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Error::os(e, "cannot read /proc/self/mountinfo to check whether the device is mounted"))?;
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut found = Vec::new();
    for part in &parts {
        found.extend(
            mounts.lines().filter_map(|l| mounted(l, part.rdev)).map(|at| format!("{} is mounted at {at}", part.name)),
        );
        let is_swap =
            swaps.lines().skip(1).filter_map(|l| l.split_whitespace().next()).any(|p| is_device(p, part.rdev));
        found.extend(is_swap.then(|| format!("{} is swap space", part.name)));
        let holders = fs::read_dir(part.dir.join("holders")).into_iter().flatten().flatten();
        found.extend(holders.map(|h| format!("{} is part of {}", part.name, h.file_name().to_string_lossy())));
    }
    found.dedup();
    Ok(found)
}

/// The warning about the uses that were `found`, with `force`; without it they are an error. `what` is the effect on a process that uses
/// the device.
///
/// # Errors
/// The refusal.
pub fn use_anyway(device: &KernelDevice, found: &[String], what: &str, force: bool) -> Result<String> {
    let found = found.join(", ");
    if force {
        return Ok(format!("{}: {found}; used anyway because of --force", device.name));
    }
    let shown = device.node.display();
    Err(Error::usage(format!(
        "kernel:{shown} is in use: {found}; {what}. Use another device, free this one, or add --force"
    )))
}

/// What a change of settings does to users of the disk.
pub const SETTINGS_CHANGE: &str = "its settings would change under its users";

/// Where a line of mountinfo says that device is mounted.
fn mounted(line: &str, rdev: u64) -> Option<String> {
    let (mount, source) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (major, minor) = fields.next()?.split_once(':')?;
    let dev = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let at = fields.nth(1)?.replace("\\040", " ");
    // Some file systems (btrfs) have numbers of their own; they name the device as their source.
    let source = source.split(' ').nth(1)?;
    (dev == rdev || source.starts_with("/dev/") && is_device(source, rdev)).then_some(at)
}

fn is_device(path: &str, rdev: u64) -> bool {
    device_number(Path::new(&path.replace("\\040", " "))) == Some(rdev)
}

/// A device that no other process can mount or put another device on while this lives.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "held open")] File);

impl Claim {
    /// Claims it, or its disk; the present owner has half a second to let go. `Ok(None)`: it is in use.
    ///
    /// # Errors
    /// It cannot be opened for another reason.
    pub fn take(device: &KernelDevice, whole_disk: bool) -> Result<Option<Claim>> {
        let disk = Path::new("/dev").join(device.disk.replace('!', "/"));
        let node = if whole_disk && device.is_partition() { &disk } else { &device.node };
        let open = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node);
        let begun = Instant::now();
        loop {
            match open() {
                Ok(file) => return Ok(Some(Claim(file))),
                Err(e) if is_busy(&e) && begun.elapsed() < CLAIM_WAIT => std::thread::sleep(CLAIM_RETRY),
                Err(e) if is_busy(&e) => return Ok(None),
                Err(e) => return Err(Error::os(e, format!("cannot open '{}': are you root?", node.display()))),
            }
        }
    }
}

fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_blanks() {
        let line = "36 35 98:0 /mnt1 /mnt/my\\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mounted(line, libc::makedev(98, 0)).as_deref(), Some("/mnt/my disk"));
        assert_eq!(mounted(line, libc::makedev(98, 1)), None);
        assert_eq!(mounted("36 35 98:0", libc::makedev(98, 0)), None);
        assert_eq!(mounted("", 0), None);
    }
}
