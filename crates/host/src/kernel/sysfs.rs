// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of a disk as files in sysfs: `queue/*`, `queue/iosched/*` as `iosched.*`, a SCSI disk's `device/queue_depth`.
//!
//! Guarantees: values are one line; the scheduler is the one in effect, not the list. Does not: know what a value means.

use super::device::{KernelDevice, attribute};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Prefix of the elevator's tunables.
pub(super) const IOSCHED: &str = "iosched.";
/// A SCSI disk's tags, which are not in its queue directory.
pub(super) const QUEUE_DEPTH: &str = "queue_depth";

/// Settings by name.
pub(super) type Values = BTreeMap<String, String>;

/// The file of a setting.
pub(super) fn file_of(device: &KernelDevice, name: &str) -> PathBuf {
    let queue = device.disk_dir.join("queue");
    match name.strip_prefix(IOSCHED) {
        Some(tunable) => queue.join("iosched").join(tunable),
        None if name == QUEUE_DEPTH => device.disk_dir.join("device").join(QUEUE_DEPTH),
        None => queue.join(name),
    }
}

/// A setting's value, as it is written; `None` where there is no such file, or nothing to read.
pub(super) fn value_of(device: &KernelDevice, name: &str) -> Option<String> {
    let text = attribute(&file_of(device, name))?;
    Some(if name == "scheduler" { selected(&text) } else { text })
}

/// `none [mq-deadline]` -> `mq-deadline`; a list without brackets has one member.
fn selected(list: &str) -> String {
    list.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']')).unwrap_or(list).to_owned()
}

/// The elevators the kernel offers for the disk now; it may have more as modules.
pub fn schedulers(device: &KernelDevice) -> Vec<String> {
    let list = attribute(&file_of(device, "scheduler")).unwrap_or_default();
    list.split_whitespace().map(|w| w.trim_matches(['[', ']']).to_owned()).collect()
}

fn names_in(dir: &Path, wanted: impl Fn(u32) -> bool) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_wanted = |e: &fs::DirEntry| e.metadata().is_ok_and(|m| m.is_file() && wanted(m.mode()));
    entries.filter(is_wanted).map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

fn names(device: &KernelDevice, wanted: impl Fn(u32) -> bool + Copy) -> Vec<String> {
    let queue = device.disk_dir.join("queue");
    let mut all = names_in(&queue, wanted);
    all.extend(names_in(&queue.join("iosched"), wanted).into_iter().map(|n| format!("{IOSCHED}{n}")));
    let depth = fs::metadata(file_of(device, QUEUE_DEPTH));
    all.extend(depth.is_ok_and(|m| wanted(m.mode())).then(|| QUEUE_DEPTH.to_owned()));
    all.sort();
    all
}

/// Names of the settings that can be written.
pub fn writable(device: &KernelDevice) -> Vec<String> {
    names(device, |mode| mode & 0o200 != 0)
}

/// All settings of the disk with their values, read now.
pub fn in_effect(device: &KernelDevice) -> Vec<(String, String)> {
    let all = names(device, |mode| mode & 0o400 != 0).into_iter();
    all.filter_map(|name| value_of(device, &name).map(|value| (name, value))).collect()
}

/// Those that can be written, with their values.
pub(super) fn snapshot(device: &KernelDevice) -> Values {
    writable(device).into_iter().filter_map(|name| value_of(device, &name).map(|value| (name, value))).collect()
}

/// Writes one setting. The kernel may take another value than this one.
pub(super) fn write(device: &KernelDevice, name: &str, value: &str) -> Result<()> {
    let file = file_of(device, name);
    let written = OpenOptions::new().write(true).open(&file).and_then(|mut f| f.write_all(value.as_bytes()));
    written.map_err(|e| Error::os(e, format!("{name}={value}: {} was refused", file.display())))
}

/// Whether two values are the same setting.
pub(super) fn same(a: &str, b: &str) -> bool {
    a == b || a.parse::<i64>().is_ok_and(|n| b.parse() == Ok(n))
}

/// Settings in the order in which they are written: each after those that reset it. The elevator comes with tunables and an
/// `nr_requests` of its own; `nr_requests` resets an elevator's depth; whatever changes the queue's limits sets `read_ahead_kb`.
pub(super) fn rank(name: &str) -> usize {
    const ORDER: [&str; 3] = [QUEUE_DEPTH, "scheduler", "nr_requests"];
    const LAST: [&str; 2] = ["wbt_lat_usec", "read_ahead_kb"];
    let first = ORDER.iter().position(|n| *n == name);
    let last = LAST.iter().position(|n| *n == name).map(|i| ORDER.len() + 2 + i);
    first.or(last).unwrap_or(ORDER.len() + usize::from(!name.starts_with(IOSCHED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_elevator_is_the_one_in_brackets() {
        assert_eq!(selected("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(selected("none"), "none");
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        assert!(same("0128", "128") && same("none", "none") && !same("128", "129") && !same("none", "0"));
    }

    #[test]
    fn what_is_reset_is_written_after_what_resets_it() {
        let mut names =
            ["read_ahead_kb", "iosched.async_depth", "nomerges", "nr_requests", "wbt_lat_usec", "scheduler"];
        names.sort_by_key(|n| rank(n));
        assert_eq!(
            names,
            ["scheduler", "nr_requests", "iosched.async_depth", "nomerges", "wbt_lat_usec", "read_ahead_kb"]
        );
    }
}
