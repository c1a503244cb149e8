// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The knobs of a kernel disk in sysfs: settings with values worth trying, and the rules of thumb in use.
//!
//! Guarantees: only settings of that disk that are writable, with the values in effect as defaults. Nothing is written
//! here. An elevator's tunables have the names and defaults of our elevators, which are the kernel's. The tunables of the
//! elevator in effect are read. Does not: predict which values the kernel rejects. A rejected point is dropped when it is
//! tried.

use super::point::{Knob, Point};
use super::stack_knobs::{DEPTHS, SECTORS_KB, tunables};

/// The facts of a disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// All settings with their values.
    pub now: Vec<(String, String)>,
    /// Names of the writable settings.
    pub writable: Vec<String>,
    /// Elevators that the kernel offers.
    pub schedulers: Vec<String>,
    /// No job goes through the page cache.
    pub direct_only: bool,
}

impl Disk {
    fn value(&self, name: &str) -> Option<&str> {
        self.now.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }
}

/// The knobs of a disk.
pub fn knobs(disk: &Disk) -> Vec<Knob> {
    let mut all = Vec::new();
    let mut add = |name: &str, values: Vec<String>| {
        let is_writable = disk.writable.iter().any(|w| w == name);
        if let Some(default) = disk.value(name).filter(|_| is_writable) {
            all.push(Knob::new(name, default, values));
        }
    };
    let text = |values: &mut dyn Iterator<Item = u64>| values.map(|v| v.to_string()).collect::<Vec<_>>();
    let words = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    add("scheduler", disk.schedulers.clone());
    add("nr_requests", text(&mut DEPTHS.into_iter()));
    // The present value of a SCSI disk comes from its host, and a higher one is seldom possible.
    let tags = disk.number("queue_depth").unwrap_or(0);
    add("queue_depth", text(&mut [1, 8].into_iter().chain(DEPTHS).filter(|d| *d <= tags)));
    let most = disk.number("max_hw_sectors_kb").unwrap_or(0);
    add("max_sectors_kb", text(&mut SECTORS_KB.into_iter().filter(|kb| *kb <= most)));
    add("nomerges", words(&["0", "1", "2"]));
    add("rq_affinity", words(&["0", "1", "2"]));
    if !disk.direct_only {
        add("wbt_lat_usec", words(&["0", "2000", "75000"]));
        add("read_ahead_kb", words(&["0", "128", "512", "4096"]));
    }
    all.extend(disk.schedulers.iter().flat_map(|elevator| of_elevator(disk, elevator)));
    all
}

/// The tunables of an elevator. For the elevator in effect, values are chosen around those on this disk.
fn of_elevator(disk: &Disk, elevator: &str) -> Vec<Knob> {
    let is_now = disk.value("scheduler") == Some(elevator);
    let own = |knob: Knob| {
        if !is_now {
            return Some(knob);
        }
        let value = disk.value(&knob.name)?;
        if value == knob.default {
            return Some(knob);
        }
        let around = disk.number(&knob.name).map(|v| [v / 4, v.saturating_mul(4)]);
        let values = match around {
            Some(around) if knob.values.len() > 1 => around.iter().filter(|v| **v > 0).map(u64::to_string).collect(),
            _ => vec![knob.default.clone()],
        };
        Some(Knob { default: value.to_owned(), values, ..knob })
    };
    tunables(elevator).into_iter().filter_map(own).collect()
}

/// The usual settings without measurements.
pub fn rules(disk: &Disk) -> Vec<(String, Point)> {
    let sentences = [
        ("no elevator for a fast disk", "scheduler", "none".to_owned()),
        ("mq-deadline for every disk", "scheduler", "mq-deadline".to_owned()),
        ("no merge lookup on a fast disk", "nomerges", "2".to_owned()),
        (
            "the largest requests the disk takes",
            "max_sectors_kb",
            disk.value("max_hw_sectors_kb").unwrap_or_default().to_owned(),
        ),
    ];
    let has = |name: &str, value: &str| {
        disk.writable.iter().any(|w| w == name) && (name != "scheduler" || disk.schedulers.iter().any(|s| s == value))
    };
    let point = |name: &str, value: &str| {
        if disk.value(name) == Some(value) { Point::default() } else { Point::of(&[(name, value)]) }
    };
    let there = sentences.into_iter().filter(|(_, name, value)| has(name, value));
    there.map(|(sentence, name, value)| (sentence.to_owned(), point(name, &value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(direct_only: bool) -> Disk {
        let now = [
            ("scheduler", "mq-deadline"),
            ("nr_requests", "64"),
            ("max_sectors_kb", "128"),
            ("max_hw_sectors_kb", "256"),
            ("nomerges", "0"),
            ("wbt_lat_usec", "0"),
            ("iosched.fifo_batch", "32"),
            ("iosched.read_expire", "500"),
        ];
        let writable = now.iter().map(|(k, _)| (*k).to_owned()).filter(|k| k != "max_hw_sectors_kb").collect();
        Disk {
            now: now.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            writable,
            schedulers: ["none", "mq-deadline", "kyber"].map(str::to_owned).into(),
            direct_only,
        }
    }

    #[test]
    fn knobs_are_what_the_disk_has_with_the_values_in_effect() {
        let all = knobs(&disk(true));
        let of = |name: &str, elevator: &str| {
            let is = |k: &&Knob| k.name == name && k.when.as_ref().is_none_or(|(_, value)| value == elevator);
            all.iter().find(is).map(|k| format!("{} of {}", k.default, k.values.join(" ")))
        };
        assert_eq!(of("scheduler", ""), Some("mq-deadline of none mq-deadline kyber".into()));
        assert_eq!(of("max_sectors_kb", ""), Some("128 of 64 128 256".into()));
        assert_eq!(of("iosched.fifo_batch", "mq-deadline"), Some("32 of 8 128".into()), "around its own value");
        assert_eq!(of("iosched.read_expire", "mq-deadline"), Some("500 of 125 2000".into()));
        assert!(of("iosched.read_lat_nsec", "kyber").is_some(), "of an elevator that is not in effect");
        assert_eq!((of("wbt_lat_usec", ""), of("rq_affinity", ""), of("queue_depth", "")), (None, None, None));
        assert!(knobs(&disk(false)).iter().any(|k| k.name == "wbt_lat_usec"));
    }

    #[test]
    fn rules_are_of_what_there_is() {
        let all: Vec<String> = rules(&disk(true)).iter().map(|(_, p)| p.to_string()).collect();
        assert_eq!(all, ["scheduler=none", "default", "nomerges=2", "max_sectors_kb=256"]);
    }
}
