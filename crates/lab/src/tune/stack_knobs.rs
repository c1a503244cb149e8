// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The knobs of our block layer on a target: settings with values worth trying, and the rules of thumb in use.
//!
//! Guarantees: one table serves targets of this host and simulated machines. Defaults are those in effect on the opened
//! target, not those of a manual. The rules come from drivers and manuals (one queue; four; one per CPU; half the CPUs;
//! eight at most). Does not: open anything.

use std::sync::Arc;

use blk::elevator::MqElevator;
use blk::id::BLK_MQ_MAX_DEPTH;
use blk::lock::Lock;
use blk::queue::RequestQueue;
use blk::settings::{BLKDEV_MIN_RQ, MAX_SCHED_RQ, QueueConfig};
use host::disk::Disk;
use host::driver::null::{Null, NullOptions};

use super::point::{Knob, Knobs, Point};
use crate::stack::Setting;

/// Smallest request to try, KiB: the kernel takes no less than a page.
pub(super) const SECTORS_KB_MIN: u64 = 4;
/// Elevators to try, with their tunables.
const ELEVATORS: [&str; 4] =
    MqElevator::names_without(&[(MqElevator::K2, "a recommendation has forms for kernels, which do not have it")]);
/// Tunables that change the behaviour of an elevator under load. The others are for rare cases.
const TUNABLES: [&str; 9] = [
    "iosched.read_expire",
    "iosched.write_expire",
    "iosched.writes_starved",
    "iosched.fifo_batch",
    "iosched.async_depth",
    "iosched.read_lat_nsec",
    "iosched.write_lat_nsec",
    "iosched.slice_idle",
    "iosched.low_latency",
];

/// Where the ranges of a disk's settings end. Values beyond are another disk's.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Hardware queues of the disk, at most.
    pub hw_queues: u32,
    /// Tags of each hardware queue, at most; for SCSI also the commands of the LUN.
    pub tags: u32,
    /// Largest request, KiB.
    pub sectors_kb: u64,
    /// Whether the path to the disk can also be the single-queue one.
    pub has_sq: bool,
}

impl Ends {
    /// The ends for a disk whose driver has as many queues and tags as the stack takes.
    pub fn of<L: Lock>(queue: &RequestQueue<L>) -> Ends {
        let cpus = u32::from(queue.config().topology.nr_cpus);
        let sectors_kb = u64::from(queue.limits().max_hw_sectors / 2);
        Ends { cpus, hw_queues: cpus, tags: BLK_MQ_MAX_DEPTH, sectors_kb, has_sq: true }
    }
}

/// Knobs and rules of a disk whose settings in effect are `now`.
pub fn of(now: &[Setting], ends: Ends) -> Knobs {
    let knobs = knobs(now, ends);
    let queues = knobs.iter().find(|k| k.name == "nr_hw_queues").map_or_else(String::new, |k| k.default.clone());
    let rules = rules(ends.cpus, &queues);
    (knobs, rules)
}

/// The knobs of a stack whose settings in effect are `now`.
pub fn knobs(now: &[Setting], ends: Ends) -> Vec<Knob> {
    let value = |name: &str| now.iter().find(|s| s.name == name).map(|s| s.value.clone());
    let mut all = Vec::new();
    let mut add = |name: &str, make: &dyn Fn(&str) -> Knob| all.extend(value(name).map(|default| make(&default)));
    let tags = u64::from(ends.tags);
    add("nr_hw_queues", &|now| Knob::new("nr_hw_queues", now, queue_counts(ends.cpus.min(ends.hw_queues))));
    add("queue_depth", &|now| Knob::number("queue_depth", now, 1, tags));
    // Only SCSI disks of simulated machines have this setting.
    add("lun_queue_depth", &|now| Knob::number("lun_queue_depth", now, 1, tags));
    add("nr_requests", &|now| Knob::number("nr_requests", now, BLKDEV_MIN_RQ.into(), MAX_SCHED_RQ.into()));
    add("scheduler", &|now| Knob::new("scheduler", now, ELEVATORS));
    add("max_sectors_kb", &|now| Knob::number("max_sectors_kb", now, SECTORS_KB_MIN, ends.sectors_kb));
    add("nomerges", &|now| Knob::new("nomerges", now, [0, 1, 2]));
    add("rq_affinity", &|now| Knob::new("rq_affinity", now, [0, 1, 2]));
    add("wbt_lat_usec", &|now| Knob::new("wbt_lat_usec", now, [0, 2000, 75000]));
    if ends.has_sq {
        add("mode", &|now| Knob::new("mode", now, ["mq", "sq"]));
    }
    all.extend(ELEVATORS.iter().flat_map(|elevator| tunables(elevator)));
    all
}

/// One, the powers of two up to the number of CPUs, half the CPUs, and all CPUs.
fn queue_counts(cpus: u32) -> Vec<u64> {
    let cpus = u64::from(cpus.max(1));
    let mut counts: Vec<u64> = (0..16).map(|i| 1 << i).filter(|n| *n <= cpus).chain([cpus.div_ceil(2), cpus]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// A quarter and four times the default of each tunable, and the other state of a switch.
pub(super) fn tunables(elevator: &str) -> Vec<Knob> {
    let mut config = QueueConfig::default();
    if config.set("scheduler", elevator).is_err() {
        return Vec::new();
    }
    // A separate disk, used only to read the tunables of its elevator.
    let Ok(disk) = Disk::new(Arc::new(Null::new(NullOptions::default())), config, None) else { return Vec::new() };
    let wanted =
        disk.queue.iosched().into_iter().filter(|t| TUNABLES.contains(&format!("iosched.{}", t.name).as_str()));
    let knob = |t: blk::elevator::Tunable| {
        let values = if t.max <= 1 { vec![1 - t.value.min(1)] } else { vec![t.value / 4, t.value.saturating_mul(4)] };
        let values = values.into_iter().map(|v| v.clamp(t.min, t.max)).filter(|v| *v != t.value);
        let knob = Knob::new(&format!("iosched.{}", t.name), t.value, values.collect::<Vec<_>>());
        let knob = if t.max > 1 { knob.within(t.min, t.max) } else { knob };
        knob.only_when("scheduler", elevator)
    };
    wanted.map(knob).collect()
}

/// The usual settings without measurements. `default_queues` is the number of hardware queues in effect.
pub fn rules(cpus: u32, default_queues: &str) -> Vec<(String, Point)> {
    let sentences = [
        ("one queue", 1),
        ("four queues", 4),
        ("a queue per CPU", cpus),
        ("half as many queues as CPUs", cpus.div_ceil(2)),
        ("a queue per CPU, eight at most", cpus.min(8)),
    ];
    let point = |queues: u32| {
        let queues = queues.to_string();
        if queues == default_queues { Point::default() } else { Point::of(&[("nr_hw_queues", &queues)]) }
    };
    sentences.into_iter().map(|(sentence, queues)| (sentence.to_owned(), point(queues))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::qos::rates::LIMIT_NAMES;
    use blk::settings::SETTINGS;

    #[test]
    fn the_guide_names_the_elevators_that_are_tried() {
        let guide = include_str!("../../../../docs/tune.md");
        assert!(
            guide.contains(&format!("`scheduler` ({})", ELEVATORS.join(", "))),
            "docs/tune.md, knobs: {ELEVATORS:?}"
        );
    }

    fn ends(cpus: u32, sectors_kb: u64) -> Ends {
        Ends { cpus, hw_queues: cpus, tags: 1024, sectors_kb, has_sq: true }
    }

    /// Settings that are not tuned, each with its reason.
    const NOT_TUNED: [(&str, &str); 18] = [
        ("nr_cpus", "what the host has"),
        ("nr_read_queues", "nr_hw_queues stands for the number of queues"),
        ("nr_poll_queues", "only polled I/O uses them, which the job asks for"),
        ("reserved_tags", "for the driver's own commands"),
        ("host_tagset", "a property of the device"),
        ("io_timeout", "for errors, not for speed"),
        ("iostats", "a recommendation does not turn statistics off"),
        ("read_ahead_kb", "for buffered files only"),
        ("iosched.front_merges", "for rare cases"),
        ("iosched.prio_aging_expire", "only with several priorities"),
        ("iosched.slice_idle_us", "slice_idle in another unit"),
        ("iosched.fifo_expire_sync", "for rare cases"),
        ("iosched.fifo_expire_async", "for rare cases"),
        ("iosched.back_seek_max", "only for rotating disks"),
        ("iosched.back_seek_penalty", "only for rotating disks"),
        ("iosched.max_budget", "adjusts itself"),
        ("iosched.timeout_sync", "an upper bound: budgets end a slice first"),
        ("iosched.strict_guarantees", "a guarantee, not a matter of speed"),
    ];

    /// Limits are a policy of the operator. Elevators that are left out have their reason at [`ELEVATORS`].
    #[test]
    fn each_setting_and_tunable_is_tuned_or_left_out_with_a_reason() {
        let setting = |name: &str| Setting { name: name.into(), value: "1".into(), default: true, help: String::new() };
        let now: Vec<Setting> = SETTINGS.iter().map(|s| setting(s.name)).collect();
        let tuned: Vec<String> = knobs(&now, ends(4, 1280)).into_iter().map(|k| k.name).collect();
        let mut all: Vec<String> = SETTINGS.iter().map(|s| s.name.to_owned()).collect();
        all.retain(|name| !LIMIT_NAMES.contains(&name.as_str()));
        for elevator in MqElevator::ALL.iter().filter(|e| ELEVATORS.contains(&e.name())) {
            let config = QueueConfig { scheduler: Some(elevator.name().into()), ..QueueConfig::default() };
            let disk = Disk::new(Arc::new(Null::new(NullOptions::default())), config, None).unwrap();
            all.extend(disk.queue.iosched().into_iter().map(|t| format!("iosched.{}", t.name)));
        }
        for name in &all {
            let left_out = NOT_TUNED.iter().any(|(n, _)| n == name);
            assert!(tuned.contains(name) != left_out, "{name}: must be either tuned or in NOT_TUNED");
        }
        assert!(NOT_TUNED.iter().all(|(name, _)| all.iter().any(|n| n == name)), "NOT_TUNED has an unknown name");
        assert!(TUNABLES.iter().all(|name| all.iter().any(|n| n == name)), "TUNABLES has an unknown name");
    }

    #[test]
    fn the_table_has_the_target_s_own_defaults() {
        let setting = |name: &str, value: &str| Setting {
            name: name.into(),
            value: value.into(),
            default: true,
            help: String::new(),
        };
        let now = [setting("nr_hw_queues", "6"), setting("scheduler", "none"), setting("max_sectors_kb", "128")];
        let all = knobs(&now, ends(6, 256));
        let of = |name: &str| all.iter().find(|k| k.name == name);
        assert_eq!(
            of("nr_hw_queues").map(|k| (k.default.as_str(), k.values.join(" "))),
            Some(("6", "1 2 3 4 6".into()))
        );
        assert_eq!(of("max_sectors_kb").map(|k| k.values.join(" ")), Some("4 16 64 128 256".into()));
        assert!(of("queue_depth").is_none(), "the target does not have it");
        let expire = of("iosched.read_expire").expect("mq-deadline's");
        assert_eq!(
            (expire.default.as_str(), expire.when.clone()),
            ("500", Some(("scheduler".into(), "mq-deadline".into())))
        );
        assert_eq!(expire.values, ["125", "2000"]);
        // A SATA disk: one queue of 32 tags. The kernel's driver takes no other values.
        let sata = Ends { hw_queues: 1, tags: 32, has_sq: false, ..ends(8, 1024) };
        let now = [setting("nr_hw_queues", "1"), setting("queue_depth", "32"), setting("mode", "mq")];
        let of: Vec<String> = knobs(&now, sata).iter().map(|k| format!("{}: {}", k.name, k.values.join(" "))).collect();
        assert_eq!(of[..2], ["nr_hw_queues: 1", "queue_depth: 1 4 16 32"]);
        assert!(of[2].starts_with("iosched."), "{of:?}");
        let names: Vec<String> = rules(2, "2").iter().map(|(_, p)| p.to_string()).collect();
        assert_eq!(names, ["nr_hw_queues=1", "nr_hw_queues=4", "default", "nr_hw_queues=1", "default"]);
    }
}
