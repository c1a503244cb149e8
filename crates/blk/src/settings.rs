// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of one disk's stack, under the kernel's names (`/sys/block/X/queue`, module parameters).
//!
//! Only [`QueueConfig::set`] turns a `key=value` into a setting. Unknown names and values out of range are rejected;
//! the message has the rule, the value and the remedy.

use crate::bio::MAX_BIOS_PER_SUBMITTER;
use crate::cpumap::CpuTopology;
use crate::elevator::registry::{CustomElevator, LEGACY_NAMES, NONE};
use crate::id::{BLK_MQ_MAX_DEPTH, MAX_CPUS};
use crate::qos::rates::IoLimits;
use crate::suggest::nearest;

/// The I/O path: single-queue (legacy) or multi-queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One request queue, one `queue_lock` (Linux up to 4.20).
    Sq,
    /// Software queues per CPU, tagged hardware queues.
    Mq,
}

impl core::fmt::Display for Mode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Mode::Sq => "sq",
            Mode::Mq => "mq",
        })
    }
}

/// Most `nr_requests` with an elevator (16 x 128, `MAX_SCHED_RQ`).
pub const MAX_SCHED_RQ: u32 = 2048;
/// `BLKDEV_MIN_RQ`: smaller `nr_requests` are raised to this.
pub const BLKDEV_MIN_RQ: u32 = 4;
/// `BLKDEV_DEFAULT_RQ`: legacy default of `nr_requests`, and the per-queue part of the elevator default.
pub const BLKDEV_DEFAULT_RQ: u32 = 128;

/// Default `io_timeout` (`BLK_DEFAULT_TIMEOUT`, 30 s), milliseconds.
pub(crate) const BLK_DEFAULT_TIMEOUT_MS: u32 = 30_000;

/// All settings of a stack. `None` means the kernel's default, which may depend on the other settings.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// `mode`: mq or sq.
    pub mode: Mode,
    /// CPUs, nodes and caches of the (possibly virtual) machine.
    pub topology: CpuTopology,
    /// Default-type hardware queues; `None` = one per CPU (mq) or 1 (sq).
    pub nr_hw_queues: Option<u16>,
    /// Hardware queues for plain reads; 0 = reads use the default ones.
    pub nr_read_queues: u16,
    /// Hardware queues for polled I/O; 0 = none.
    pub nr_poll_queues: u16,
    /// Driver tags per hardware queue.
    pub queue_depth: u32,
    /// How many of the driver tags are reserved.
    pub reserved_tags: u32,
    /// `queue_depth` and `nr_requests` are for all hardware queues together (`BLK_MQ_F_TAG_HCTX_SHARED`).
    pub host_tagset: bool,
    /// Requests per hardware queue (mq with elevator), per direction (sq).
    pub nr_requests: Option<u32>,
    /// Elevator; `None` = the kernel's default for this number of queues.
    pub scheduler: Option<String>,
    /// Elevators that `scheduler` may name in addition to the built-in ones (mq). One with the name of a built-in elevator
    /// takes its place.
    pub custom_elevators: &'static [CustomElevator],
    /// The default of `scheduler` is `none` (`BLK_MQ_F_NO_SCHED_BY_DEFAULT`): the layer below or above has an
    /// elevator.
    pub no_sched_by_default: bool,
    /// Elevator tunables by name, applied when the elevator is made.
    pub iosched: Vec<(String, u64)>,
    /// 0 = all merges, 1 = one-hit only, 2 = none.
    pub nomerges: u8,
    /// 0 = complete on the CPU that polls, 1 = on a CPU sharing the submitter's cache, 2 = on the submitting CPU.
    pub rq_affinity: u8,
    /// Whether the disk's statistics count I/O.
    pub iostats: bool,
    /// How long the driver may have a request before it is called for the timeout
    /// ([`Driver::timeout`](crate::driver::Driver::timeout)), milliseconds.
    pub io_timeout_ms: u32,
    /// Largest request in KiB; `None` = the driver's limit, at most 4 MiB.
    pub max_sectors_kb: Option<u32>,
    /// `read_ahead_kb`: most read-ahead of a buffered file, in KiB; `None` = the operating system's default.
    pub read_ahead_kb: Option<u32>,
    /// `wbt_lat_usec`: target latency of reads for write-back throttling, microseconds; 0 = off, `None` (-1) = the
    /// kernel's default for the disk.
    pub wbt_lat_usec: Option<u64>,
    /// `iops_*`, `bps_*`: limits on I/Os and bytes per second.
    pub io_limits: IoLimits,
    /// Bios each submitter may have in the block layer, pieces of split ones included.
    pub bios_per_submitter: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig {
            mode: Mode::Mq,
            topology: CpuTopology::uniform(1),
            nr_hw_queues: None,
            nr_read_queues: 0,
            nr_poll_queues: 0,
            queue_depth: 64,
            reserved_tags: 0,
            host_tagset: false,
            nr_requests: None,
            scheduler: None,
            custom_elevators: &[],
            no_sched_by_default: false,
            iosched: Vec::new(),
            nomerges: 0,
            iostats: true,
            io_timeout_ms: BLK_DEFAULT_TIMEOUT_MS,
            rq_affinity: 1,
            max_sectors_kb: None,
            read_ahead_kb: None,
            wbt_lat_usec: Some(0),
            io_limits: IoLimits::default(),
            bios_per_submitter: 1024,
        }
    }
}

/// When a setting can change while the disk is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingChange {
    /// At once ([`RequestQueue::set_live`](crate::queue::RequestQueue::set_live)).
    Live,
    /// While the disk is frozen ([`RequestQueue::rebuild`](crate::queue::RequestQueue::rebuild)).
    Frozen,
    /// Never: it is fixed when the disk is made.
    Fixed,
}

/// One row of the settings table.
#[derive(Clone, Copy, Debug)]
pub struct SettingInfo {
    /// The kernel's name.
    pub name: &'static str,
    /// Accepted values, for people.
    pub range: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// When it may change.
    pub change: SettingChange,
    /// Disks that share tags have one value of this setting: a change applies to all of them
    /// ([`TagSet`](crate::tags::TagSet)).
    pub is_of_tag_set: bool,
}

impl SettingInfo {
    /// A setting that takes effect at once.
    pub const fn live(name: &'static str, range: &'static str, help: &'static str) -> SettingInfo {
        SettingInfo { name, range, help, change: SettingChange::Live, is_of_tag_set: false }
    }

    /// A setting that needs a freeze.
    pub const fn frozen(name: &'static str, range: &'static str, help: &'static str) -> SettingInfo {
        SettingInfo { change: SettingChange::Frozen, ..SettingInfo::live(name, range, help) }
    }

    /// A setting that cannot change.
    pub const fn fixed(name: &'static str, range: &'static str, help: &'static str) -> SettingInfo {
        SettingInfo { change: SettingChange::Fixed, ..SettingInfo::live(name, range, help) }
    }

    /// The same setting, one value for all disks of a tag set.
    pub const fn of_tag_set(self) -> SettingInfo {
        SettingInfo { is_of_tag_set: true, ..self }
    }

    /// Returns the row of [`SETTINGS`] with this name.
    pub fn named(name: &str) -> Option<&'static SettingInfo> {
        SETTINGS.iter().find(|s| s.name == name)
    }

    /// Whether the setting of this name takes effect at once.
    pub fn is_live(name: &str) -> bool {
        SettingInfo::named(name).is_some_and(|s| s.change == SettingChange::Live)
    }
}

const IOPS: &str = "0..=1000000000";
const BPS: &str = "0..=1000000000000";

/// Every setting that [`QueueConfig::set`] knows, besides the elevators' tunables (`iosched.NAME`).
pub const SETTINGS: &[SettingInfo] = &[
    SettingInfo::frozen("mode", "mq | sq", "multi-queue, or the legacy single-queue path"),
    SettingInfo::fixed("nr_cpus", "1..=4096", "CPUs of the stack (default: this host's)"),
    SettingInfo::frozen("nr_hw_queues", "0..=nr_cpus", "hardware queues (0, the default: one per CPU)").of_tag_set(),
    SettingInfo::frozen("nr_read_queues", "0..=nr_cpus", "further hardware queues for plain reads").of_tag_set(),
    SettingInfo::frozen("nr_poll_queues", "0..=nr_cpus", "further hardware queues for polled I/O").of_tag_set(),
    SettingInfo::frozen("queue_depth", "1..=10240", "driver tags per hardware queue").of_tag_set(),
    SettingInfo::frozen("reserved_tags", "0..queue_depth", "tags kept for the driver's own commands").of_tag_set(),
    SettingInfo::frozen("host_tagset", "0 | 1", "1: tags are shared by all hardware queues, not per queue")
        .of_tag_set(),
    SettingInfo::frozen(
        "nr_requests",
        "4..=2048 with an elevator, 4..=queue_depth without",
        "scheduler tags per hardware queue (sq: requests per direction)",
    ),
    SettingInfo::frozen(
        "scheduler",
        "none | mq-deadline | kyber | bfq | k2 (mq), noop | deadline (sq)",
        "the elevator",
    ),
    SettingInfo::live("io_timeout", "1..=4294967295", "request timeout, milliseconds"),
    SettingInfo::live("nomerges", "0..=2", "0 all merges, 1 simple one-hit merges, 2 none"),
    SettingInfo::live("rq_affinity", "0..=2", "0 complete anywhere, 1 same cache, 2 submitting CPU"),
    SettingInfo::live("iostats", "0..=1", "count I/O in the disk's statistics"),
    SettingInfo::fixed("max_sectors_kb", "4..=max_hw_sectors_kb", "largest request, KiB"),
    SettingInfo::fixed(
        "read_ahead_kb",
        "0..=1048576, or system",
        "read-ahead limit of files with buffered I/O (direct=0), KiB; system = the system's default",
    ),
    SettingInfo::live(
        "wbt_lat_usec",
        "-1 | 0..=1000000000",
        "read latency target of write-back throttling, microseconds; 0 off, -1 the kernel's default",
    ),
    SettingInfo::live("iops_total", IOPS, "I/Os per second, reads and writes together; 0 no limit"),
    SettingInfo::live("iops_read", IOPS, "reads per second"),
    SettingInfo::live("iops_write", IOPS, "writes and discards per second"),
    SettingInfo::live("iops_total_burst", IOPS, "I/Os that may be submitted at once after an idle time"),
    SettingInfo::live("iops_read_burst", IOPS, "reads that may be submitted at once after an idle time"),
    SettingInfo::live("iops_write_burst", IOPS, "writes that may be submitted at once after an idle time"),
    SettingInfo::live("bps_total", BPS, "bytes per second, reads and writes together; 0 no limit"),
    SettingInfo::live("bps_read", BPS, "bytes read per second"),
    SettingInfo::live("bps_write", BPS, "bytes written per second"),
    SettingInfo::live("bps_total_burst", BPS, "bytes that may be submitted at once after an idle time"),
    SettingInfo::live("bps_read_burst", BPS, "bytes of reads that may be submitted at once after an idle time"),
    SettingInfo::live("bps_write_burst", BPS, "bytes of writes that may be submitted at once after an idle time"),
];

/// Why a setting was rejected; the text is rule, value, remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

impl QueueConfig {
    /// Applies one `key=value`. Ranges that depend on other settings are checked by [`QueueConfig::check`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        if let Some(tunable) = key.strip_prefix("iosched.") {
            let v = number(key, value, 0, u64::MAX)?;
            self.iosched.retain(|(k, _)| k != tunable);
            self.iosched.push((tunable.to_string(), v));
            return Ok(());
        }
        match key {
            "mode" => {
                self.mode = match value {
                    "mq" => Mode::Mq,
                    "sq" => Mode::Sq,
                    _ => return Err(SettingError(format!("mode={value}: must be mq or sq"))),
                }
            }
            "nr_cpus" => self.topology = CpuTopology::uniform(number(key, value, 1, MAX_CPUS.into())? as u16),
            "nr_hw_queues" => {
                let n = number(key, value, 0, MAX_CPUS.into())? as u16;
                self.nr_hw_queues = (n > 0).then_some(n);
            }
            "nr_read_queues" => self.nr_read_queues = number(key, value, 0, MAX_CPUS.into())? as u16,
            "nr_poll_queues" => self.nr_poll_queues = number(key, value, 0, MAX_CPUS.into())? as u16,
            "queue_depth" => self.queue_depth = number(key, value, 1, BLK_MQ_MAX_DEPTH.into())? as u32,
            "reserved_tags" => self.reserved_tags = number(key, value, 0, u64::from(BLK_MQ_MAX_DEPTH) - 1)? as u32,
            "host_tagset" => self.host_tagset = number(key, value, 0, 1)? == 1,
            "nr_requests" => {
                let n = number(key, value, 1, BLK_MQ_MAX_DEPTH.into())? as u32;
                self.nr_requests = Some(n.max(BLKDEV_MIN_RQ));
            }
            "wbt_lat_usec" if value == "-1" => self.wbt_lat_usec = None,
            "wbt_lat_usec" => {
                let us = number(key, value, 0, 1_000_000_000);
                self.wbt_lat_usec = Some(us.map_err(|e| SettingError(format!("{e}, or -1 for the kernel's default")))?);
            }
            "scheduler" => self.scheduler = Some(value.to_string()),
            "io_timeout" => self.io_timeout_ms = number(key, value, 1, u64::from(u32::MAX))? as u32,
            "nomerges" => self.nomerges = number(key, value, 0, 2)? as u8,
            "iostats" => self.iostats = number(key, value, 0, 1)? == 1,
            "rq_affinity" => self.rq_affinity = number(key, value, 0, 2)? as u8,
            "read_ahead_kb" if value == "system" => self.read_ahead_kb = None,
            "read_ahead_kb" => self.read_ahead_kb = Some(number(key, value, 0, 1 << 20)? as u32),
            "max_sectors_kb" => self.max_sectors_kb = Some(number(key, value, 4, 1 << 21)? as u32),
            _ if self.io_limits.get(key).is_some() => {
                let (field, max) = self.io_limits.field(key).expect("just looked at");
                *field = number(key, value, 0, max)?;
            }
            _ => {
                let names = || SETTINGS.iter().map(|s| s.name);
                let remedy = match nearest(key, names()) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => format!("must be one of {}", names().collect::<Vec<_>>().join(", ")),
                };
                return Err(SettingError(format!("{key}: no such setting; {remedy}")));
            }
        }
        Ok(())
    }

    /// Returns the number of default-type hardware queues, after defaults.
    pub fn hw_queues(&self) -> u16 {
        match (self.mode, self.nr_hw_queues) {
            (Mode::Sq, _) => 1,
            (Mode::Mq, Some(n)) => n,
            (Mode::Mq, None) => self.topology.nr_cpus,
        }
    }

    /// Checks the settings against each other. The error names the first setting that is not valid.
    pub fn check(&self) -> Result<(), SettingError> {
        let err = |text: String| Err(SettingError(text));
        let cpus = self.topology.nr_cpus;
        if self.mode == Mode::Sq && self.nr_hw_queues.is_some_and(|n| n != 1) {
            let n = self.nr_hw_queues.unwrap_or(1);
            return err(format!("nr_hw_queues={n}: mode=sq has one driver queue; leave it out or use mode=mq"));
        }
        if self.mode == Mode::Sq && self.nr_read_queues + self.nr_poll_queues > 0 {
            return err("nr_read_queues/nr_poll_queues: mode=sq has one driver queue; use mode=mq".into());
        }
        for (name, n) in [
            ("nr_hw_queues", self.hw_queues()),
            ("nr_read_queues", self.nr_read_queues),
            ("nr_poll_queues", self.nr_poll_queues),
        ] {
            if n > cpus {
                return err(format!(
                    "{name}={n}: must be at most the stack's {cpus} CPUs; lower it or set nr_cpus={n} as well"
                ));
            }
        }
        let queues = u32::from(self.hw_queues()) + u32::from(self.nr_read_queues) + u32::from(self.nr_poll_queues);
        if queues > MAX_CPUS {
            return err(format!("nr_hw_queues + nr_read_queues + nr_poll_queues={queues}: must be at most {MAX_CPUS}"));
        }
        if !(1..=MAX_BIOS_PER_SUBMITTER).contains(&self.bios_per_submitter) {
            let n = self.bios_per_submitter;
            return err(format!("bios_per_submitter={n}: must be 1..={MAX_BIOS_PER_SUBMITTER}"));
        }
        if self.mode == Mode::Sq && self.reserved_tags > 0 {
            let r = self.reserved_tags;
            return err(format!("reserved_tags={r}: mode=sq has none; leave it out or use mode=mq"));
        }
        if self.mode == Mode::Sq && self.host_tagset {
            return err("host_tagset=1: mode=sq has one driver queue; leave it out or use mode=mq".into());
        }
        if self.reserved_tags >= self.queue_depth {
            let (r, d) = (self.reserved_tags, self.queue_depth);
            return err(format!("reserved_tags={r}: must be below queue_depth={d}"));
        }
        if self.mode == Mode::Sq && self.wbt_lat_usec.is_some_and(|us| us > 0) {
            let us = self.wbt_lat_usec.unwrap_or(0);
            return err(format!(
                "wbt_lat_usec={us}: mode=sq has no write-back throttling; leave it out or use mode=mq"
            ));
        }
        if let Some((name, burst)) = self.io_limits.burst_without_rate() {
            let rate = name.trim_end_matches("_burst");
            return err(format!("{name}={burst}: a burst needs its rate; set {rate} as well, or {name}=0"));
        }
        for (i, CustomElevator { name, .. }) in self.custom_elevators.iter().enumerate() {
            if name.is_empty() || name.contains(char::is_whitespace) {
                return err(format!("custom_elevators: '{name}': a name is one word; choose another name"));
            }
            if *name == NONE || LEGACY_NAMES.contains(name) {
                return err(format!("custom_elevators: '{name}' cannot be replaced; choose another name"));
            }
            if self.custom_elevators[..i].iter().any(|e| e.name == *name) {
                return err(format!(
                    "custom_elevators: two elevators are named '{name}'; choose another name for one of them"
                ));
            }
        }
        if !(1..=BLK_MQ_MAX_DEPTH).contains(&self.queue_depth) {
            return err(format!("queue_depth={}: must be 1..={BLK_MQ_MAX_DEPTH}", self.queue_depth));
        }
        Ok(())
    }
}

fn number(key: &str, value: &str, min: u64, max: u64) -> Result<u64, SettingError> {
    match value.parse::<u64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        Ok(_) => Err(SettingError(format!("{key}={value}: must be {min}..={max}"))),
        Err(_) => Err(SettingError(format!("{key}={value}: must be a whole number, {min}..={max}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::NAMES;
    use crate::qos::rates::LIMIT_NAMES;

    #[test]
    fn out_of_range_and_unknown_are_refused_with_a_remedy() {
        let mut c = QueueConfig::default();
        assert_eq!(c.set("nr_hw_queues", "4097").unwrap_err().0, "nr_hw_queues=4097: must be 0..=4096");
        c.set("nr_hw_queues", "0").unwrap();
        assert_eq!((c.nr_hw_queues, c.hw_queues()), (None, c.topology.nr_cpus), "one per CPU");
        assert!(c.set("nr_hw_queue", "1").unwrap_err().0.contains("'nr_hw_queues'"));
        assert!(c.set("queue_depth", "many").unwrap_err().0.contains("whole number"));
        c.set("nr_cpus", "2").unwrap();
        c.set("nr_hw_queues", "3").unwrap();
        assert!(c.check().unwrap_err().0.contains("at most the stack's 2 CPUs"));
        c.set("nr_hw_queues", "2").unwrap();
        assert_eq!(c.check(), Ok(()));
        c.set("mode", "sq").unwrap();
        assert!(c.check().unwrap_err().0.contains("mode=sq"));
    }

    #[test]
    fn nr_requests_below_four_becomes_four() {
        let mut c = QueueConfig::default();
        c.set("nr_requests", "1").unwrap();
        assert_eq!(c.nr_requests, Some(4));
    }

    #[test]
    fn custom_elevators_have_names_of_their_own_of_one_word() {
        const fn named(name: &'static str) -> CustomElevator {
            CustomElevator { name, make: |_| unreachable!("refused before") }
        }
        const FIXED: &str = " cannot be replaced; choose another name";
        const ONE_WORD: &str = ": a name is one word; choose another name";
        const CASES: [(&[CustomElevator], &str, &str); 5] = [
            (&[named("own"), named("none")], "'none'", FIXED),
            (&[named("deadline")], "'deadline'", FIXED),
            (&[named("")], "''", ONE_WORD),
            (&[named("my own")], "'my own'", ONE_WORD),
            (&[named("own"), named("own")], "two elevators are named 'own'", "; choose another name for one of them"),
        ];
        const DISTINCT: &[CustomElevator] = &[named("own"), named("other"), named("bfq")];
        for (custom_elevators, name, rule) in CASES {
            let config = QueueConfig { custom_elevators, ..QueueConfig::default() };
            assert_eq!(config.check().unwrap_err().0, format!("custom_elevators: {name}{rule}"));
        }
        let config = QueueConfig { custom_elevators: DISTINCT, ..QueueConfig::default() };
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn every_limit_is_a_live_setting() {
        for name in LIMIT_NAMES {
            assert!(SettingInfo::is_live(name), "{name} has no row of its own in SETTINGS");
        }
    }

    #[test]
    fn the_range_of_scheduler_names_every_elevator() {
        let row = SETTINGS.iter().find(|s| s.name == "scheduler").expect("listed");
        let words: Vec<_> = row.range.split([' ', ',']).collect();
        for name in NAMES.iter().chain(&LEGACY_NAMES) {
            assert!(words.contains(name), "{name} is not in: {}", row.range);
        }
    }

    #[test]
    fn every_listed_setting_is_known() {
        for s in SETTINGS {
            let mut c = QueueConfig::default();
            let e = c.set(s.name, "not-a-value");
            assert!(s.name == "scheduler" || !e.unwrap_err().0.contains("no such setting"), "{}", s.name);
        }
    }
}
