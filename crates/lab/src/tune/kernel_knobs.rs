// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The knobs of a kernel disk in sysfs: settings with values worth trying, and the rules of thumb in use.
//!
//! Guarantees: only settings of that disk that are writable, with the values in effect as defaults. Nothing is written
//! here. An elevator's tunables have the names and defaults of our elevators, which are the kernel's. The tunables of the
//! elevator in effect are read. Does not: predict which values the kernel rejects. A rejected point is dropped when it is
//! tried.

use blk::settings::{BLKDEV_MIN_RQ, MAX_SCHED_RQ};

use super::point::{Knob, Point};
use super::stack_knobs::{SECTORS_KB_MIN, tunables};

/// The facts of a disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// All settings with their values.
    pub now: Vec<(String, String)>,
    /// Names of the writable settings.
    pub writable: Vec<String>,
    /// Elevators that the kernel offers.
    pub schedulers: Vec<String>,
    /// Tags of each hardware queue. The kernel takes no larger `queue_depth` of a SCSI disk.
    pub nr_tags: Option<u32>,
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
    let mut add = |name: &str, make: &dyn Fn(&str) -> Knob| {
        let is_writable = disk.writable.iter().any(|w| w == name);
        all.extend(disk.value(name).filter(|_| is_writable).map(make));
    };
    add("scheduler", &|now| Knob::new("scheduler", now, &disk.schedulers));
    add("nr_requests", &|now| Knob::number("nr_requests", now, BLKDEV_MIN_RQ.into(), MAX_SCHED_RQ.into()));
    let tags = disk.number("queue_depth").max(disk.nr_tags.map(u64::from)).unwrap_or(1);
    add("queue_depth", &|now| Knob::number("queue_depth", now, 1, tags));
    let most = disk.number("max_hw_sectors_kb").or(disk.number("max_sectors_kb")).unwrap_or(SECTORS_KB_MIN);
    add("max_sectors_kb", &|now| Knob::number("max_sectors_kb", now, SECTORS_KB_MIN.min(most), most));
    add("nomerges", &|now| Knob::new("nomerges", now, [0, 1, 2]));
    add("rq_affinity", &|now| Knob::new("rq_affinity", now, [0, 1, 2]));
    add("wbt_lat_usec", &|now| Knob::new("wbt_lat_usec", now, [0, 2000, 75000]));
    add("read_ahead_kb", &|now| Knob::new("read_ahead_kb", now, [0, 128, 512, 4096]));
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

    fn disk() -> Disk {
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
            nr_tags: Some(64),
        }
    }

    #[test]
    fn knobs_are_what_the_disk_has_with_the_values_in_effect() {
        let all = knobs(&disk());
        let of = |name: &str, elevator: &str| {
            let is = |k: &&Knob| k.name == name && k.when.as_ref().is_none_or(|(_, value)| value == elevator);
            all.iter().find(is).map(|k| format!("{} of {}", k.default, k.values.join(" ")))
        };
        assert_eq!(of("scheduler", ""), Some("mq-deadline of none mq-deadline kyber".into()));
        assert_eq!(of("max_sectors_kb", ""), Some("128 of 4 16 64 128 256".into()));
        assert_eq!(of("iosched.fifo_batch", "mq-deadline"), Some("32 of 8 128".into()), "around its own value");
        assert_eq!(of("iosched.read_expire", "mq-deadline"), Some("500 of 125 2000".into()));
        assert!(of("iosched.read_lat_nsec", "kyber").is_some(), "of an elevator that is not in effect");
        assert_eq!((of("read_ahead_kb", ""), of("rq_affinity", ""), of("queue_depth", "")), (None, None, None));
        // A SCSI disk whose depth was lowered: its host has more tags.
        let mut scsi = disk();
        scsi.now.push(("queue_depth".into(), "4".into()));
        scsi.writable.push("queue_depth".into());
        let depth = knobs(&Disk { nr_tags: Some(32), ..scsi }).into_iter().find(|k| k.name == "queue_depth").unwrap();
        assert_eq!((depth.values.join(" ").as_str(), depth.range), ("1 2 4 8 16 32", Some((1, 32))));
    }

    #[test]
    fn rules_are_of_what_there_is() {
        let all: Vec<String> = rules(&disk()).iter().map(|(_, p)| p.to_string()).collect();
        assert_eq!(all, ["scheduler=none", "default", "nomerges=2", "max_sectors_kb=256"]);
    }
}
