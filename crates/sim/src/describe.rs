// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes settings, devices and faults for readers of a timeline: one fact per line, settings under their own names.
//! What is off is left out. The trace's hash covers the full values instead, so a short description cannot make two cases
//! equal.

use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::trace::time;
use blk::bio::OpFlags;
use blk::cpumap::CpuTopology;
use blk::limits::Limits;
use blk::multipath::{Features, Selector};
use blk::qos::rates::LIMIT_NAMES;
use blk::settings::QueueConfig;
use blk::stat::HctxStats;
use blk::tags::TagSetConfig;
use std::fmt;
use std::fmt::Write;

/// Characters of a line's first word and the gap after it.
const NAME: usize = 10;

/// Lines, each with a name and a fact.
#[derive(Default)]
struct Facts(String);

impl Facts {
    fn add(&mut self, name: &str, fact: impl fmt::Display) {
        let _ = writeln!(self.0, "{name:NAME$}{fact}");
    }
}

impl Facts {
    /// Adds a fact that takes several lines.
    fn add_lines(&mut self, name: &str, fact: &str) {
        fact.lines().enumerate().for_each(|(i, line)| self.add(if i == 0 { name } else { "" }, line));
    }
}

/// Joins items with a word between them.
fn joined<T: fmt::Display>(all: impl IntoIterator<Item = T>, between: &str) -> String {
    all.into_iter().map(|t| t.to_string()).collect::<Vec<_>>().join(between)
}

/// Flags of a bio, `+NAME` each.
pub(crate) fn flags(flags: OpFlags) -> String {
    flags.names().map(|name| format!(" +{name}")).collect()
}

fn or_default(v: Option<impl ToString>) -> String {
    v.map_or("default".into(), |v| v.to_string())
}

fn cpus(t: &CpuTopology) -> String {
    let nodes = t.node_of.iter().max().map_or(1, |n| n + 1);
    let cores = t.core_of.iter().max().map_or(1, |n| n + 1);
    let s = if nodes == 1 { "" } else { "s" };
    format!("{} CPUs, {cores} cores, {nodes} node{s}", t.nr_cpus)
}

/// Settings that are set, in the form that `--set` takes, a few per line.
pub(crate) fn settings(c: &QueueConfig) -> String {
    let QueueConfig {
        mode,
        // The description has facts of their own for these.
        topology: _,
        bios_per_submitter: _,
        nr_hw_queues,
        nr_read_queues,
        nr_poll_queues,
        queue_depth,
        reserved_tags,
        host_tagset,
        nr_requests,
        scheduler,
        // `--set` does not know these, and no case has them.
        custom_elevators: _,
        no_sched_by_default: _,
        iosched,
        nomerges,
        rq_affinity,
        iostats,
        io_timeout_ms,
        max_sectors_kb,
        read_ahead_kb,
        wbt_lat_usec,
        io_limits,
    } = c;
    let mut all = vec![
        format!("mode={mode}"),
        format!("nr_hw_queues={}", or_default(*nr_hw_queues)),
        format!("queue_depth={queue_depth}"),
        format!("scheduler={}", or_default(scheduler.as_ref())),
        format!("nr_requests={}", or_default(*nr_requests)),
        format!("io_timeout={io_timeout_ms}"),
    ];
    let mut unless_0 = |name: &str, v: u64| {
        if v > 0 {
            all.push(format!("{name}={v}"));
        }
    };
    unless_0("nr_read_queues", (*nr_read_queues).into());
    unless_0("nr_poll_queues", (*nr_poll_queues).into());
    unless_0("reserved_tags", (*reserved_tags).into());
    unless_0("host_tagset", (*host_tagset).into());
    unless_0("nomerges", (*nomerges).into());
    unless_0("rq_affinity", (*rq_affinity).into());
    unless_0("max_sectors_kb", max_sectors_kb.unwrap_or(0).into());
    for name in LIMIT_NAMES {
        unless_0(name, io_limits.get(name).unwrap_or(0));
    }
    if !iostats {
        all.push("iostats=0".into());
    }
    // 0 is a valid value here: no read-ahead.
    all.extend(read_ahead_kb.map(|kb| format!("read_ahead_kb={kb}")));
    match wbt_lat_usec {
        None => all.push("wbt_lat_usec=-1".into()),
        Some(0) => {}
        Some(us) => all.push(format!("wbt_lat_usec={us}")),
    }
    all.extend(iosched.iter().map(|(name, value)| format!("iosched.{name}={value}")));
    joined(all.chunks(4).map(|few| few.join(" ")), "\n")
}

/// The requests that the device takes.
fn requests(l: &Limits) -> String {
    let mut text =
        format!("at most {} sectors, {} segments of {} bytes", l.max_sectors, l.max_segments, l.max_segment_size);
    if l.chunk_sectors > 0 {
        let _ = write!(text, ", none across {} sectors", l.chunk_sectors);
    }
    text
}

/// The requests without data that it takes.
fn empty_requests(l: &Limits) -> String {
    let most = [("discard", l.max_discard_sectors), ("write zeroes", l.max_write_zeroes_sectors)];
    joined(most.map(|(name, n)| if n == 0 { format!("no {name}") } else { format!("{name} of {n} sectors") }), ", ")
}

fn device(s: &Service) -> String {
    match s {
        Service::Any { max_ns } => {
            format!("each request takes a random time of up to {}, one in 16 up to 50 times that", time(*max_ns))
        }
        Service::Ideal { ns } => format!("each request {}", time(*ns)),
        Service::Ssd { units, read_ns, write_ns } => {
            format!("flash, {units} units, read {}, write {}", time(*read_ns), time(*write_ns))
        }
        Service::Hdd { full_seek_ns, rotation_ns, sector_ns } => {
            let [seek, turn, sector] = [full_seek_ns, rotation_ns, sector_ns].map(|t| time(*t));
            format!("rotating disk, full seek {seek}, rotation {turn}, sector {sector}")
        }
        Service::Capped { latency_ns, iops, sectors_per_sec } => {
            format!("cloud disk, {}, capped at {iops} IOPS and {sectors_per_sec} sectors/s", time(*latency_ns))
        }
        Service::Array { hit_per_mille, hit_ns, spindles, miss_ns } => format!(
            "array, {}.{} % cache hits of {}, {spindles} spindles of {}",
            hit_per_mille / 10,
            hit_per_mille % 10,
            time(*hit_ns),
            time(*miss_ns)
        ),
    }
}

/// Faults that are on, per thousand requests, one line each.
fn faults(b: &Behaviour) -> String {
    let all = [
        ("RESOURCE", b.resource),
        ("DEV_RESOURCE", b.dev_resource),
        ("refused with an error", b.issue_error),
        ("completed with an error", b.complete_error),
        ("given back", b.give_back),
        ("lost", b.lost),
        ("completed twice", b.duplicate),
        ("path loss", b.path_loss),
    ];
    let on: Vec<String> = all.iter().filter(|f| f.1 > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if on.is_empty() { "none".into() } else { "of 1000 requests\n".to_string() + &on.join("\n") }
}

/// Groups of paths, and what happens without a usable path.
pub(crate) fn paths(groups: &[(Selector, usize)], features: &Features, first: usize) -> String {
    let mut f = Facts::default();
    let mut from = 0;
    for (i, (selector, n)) in groups.iter().enumerate() {
        let name = if i == 0 { "paths" } else { "" };
        f.add(name, format_args!("group {i}: {}, paths {from}..={}", selector.name(), from + n - 1));
        from += n;
    }
    if first > 0 {
        f.add("", "path 0 never breaks");
    }
    let without = match (features.queue_if_no_path, features.no_path_timeout.as_ns()) {
        (false, _) => "requests fail".to_owned(),
        (true, 0) => "requests wait".to_owned(),
        (true, ns) => format!("requests wait for {}, then fail", time(ns)),
    };
    f.add("", format_args!("without a path {without}"));
    f.0
}

/// A disk, its device, and its users.
pub(crate) fn disk(config: &QueueConfig, b: &Behaviour, submitters: &[u16]) -> String {
    let mut f = Facts::default();
    let on = joined(submitters, " ");
    f.add("host", cpus(&config.topology));
    f.add("", format_args!("submitters on CPU {on}; at most {} bios each", config.bios_per_submitter));
    f.add_lines("settings", &settings(config));
    f.add("size", format_args!("{} sectors, in blocks of {} bytes", b.capacity, b.limits.logical_block_size));
    f.add("requests", requests(&b.limits));
    f.add("", empty_requests(&b.limits));
    let cache = match (b.limits.write_cache, b.limits.fua) {
        (false, _) => "none: what is written is durable",
        (true, false) => "volatile, without FUA",
        (true, true) => "volatile, with FUA",
    };
    f.add("cache", cache);
    f.add("device", device(&b.service));
    if b.device_cap < usize::MAX {
        f.add("", format_args!("takes {} at a time, then answers DEV_RESOURCE", b.device_cap));
    }
    if b.at_once > 0 {
        f.add("", format_args!("{} of 1000 requests end while they are issued", b.at_once));
    }
    f.add_lines("faults", &faults(b));
    if let Some(plant) = b.plant {
        f.add("planted", format_args!("{plant:?}"));
    }
    f.0
}

/// The shape of a tag set.
pub(crate) fn tag_set(c: &TagSetConfig) -> String {
    let mut f = Facts::default();
    let TagSetConfig { nr_hw_queues, nr_read_queues, nr_poll_queues, queue_depth, reserved_tags, .. } = c;
    let of = if c.host_tagset { "for all hardware queues" } else { "for each hardware queue" };
    f.add("tag set", format_args!("{queue_depth} tags {of}, {reserved_tags} of them reserved"));
    f.add(
        "queues",
        format_args!("nr_hw_queues={nr_hw_queues} nr_read_queues={nr_read_queues} nr_poll_queues={nr_poll_queues}"),
    );
    f.add("sharing", if c.fair_tag_sharing { "fair" } else { "first come, first served" });
    f.0
}

/// Limits that are set, in the form that `--set` takes.
pub(crate) fn limits(new: &[(String, String)]) -> String {
    let on = new.iter().filter(|(name, value)| value != "0" || name == "wbt_lat_usec");
    let text = joined(on.map(|(name, value)| format!("{name}={value}")), " ");
    if text.is_empty() { "no limit".into() } else { text }
}

/// Counters of the hardware queues, one line each.
pub(crate) fn hctxs(stats: &[HctxStats]) -> String {
    let mut text = String::new();
    for (n, h) in stats.iter().enumerate() {
        let HctxStats { queued, run, dispatched, batches, requeues, timeouts } = h;
        let _ = writeln!(
            text,
            "  hctx {n}: {queued} queued, {dispatched} dispatched in {batches} batches, {run} queue runs, \
             {requeues} requeued, {timeouts} timed out"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_in_short_lines_without_what_is_off() {
        let config = QueueConfig { nr_hw_queues: Some(2), scheduler: Some("kyber".into()), ..QueueConfig::default() };
        let b = Behaviour { lost: 20, service: Service::Ideal { ns: 10_500 }, ..Behaviour::default() };
        let text = disk(&config, &b, &[0, 3]);
        for line in [
            "device    each request 10.5 us\n",
            "faults    of 1000 requests\n          lost 20\n",
            "submitters on CPU 0 3; ",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("planted") && text.lines().all(|l| l.len() <= 120), "{text}");
        assert!(settings(&config).contains("nr_hw_queues=2 ") && settings(&config).contains("scheduler=kyber"));
    }

    /// `--set` accepts the description, and the resulting settings have the same description.
    #[test]
    fn settings_are_as_set_takes_them() {
        let mut config = QueueConfig::default();
        let set = [
            "scheduler=kyber",
            "iosched.read_lat_nsec=5",
            "iostats=0",
            "max_sectors_kb=64",
            "read_ahead_kb=0",
            "wbt_lat_usec=-1",
            "iops_read=7",
            "bps_total_burst=9",
        ];
        for text in set {
            let (name, value) = text.split_once('=').unwrap();
            config.set(name, value).unwrap();
        }
        let text = settings(&config);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(set.iter().all(|s| words.contains(s)), "{text}");
        let mut again = QueueConfig::default();
        for (name, value) in words.iter().filter_map(|word| word.split_once('=')).filter(|w| w.1 != "default") {
            again.set(name, value).unwrap();
        }
        assert_eq!(settings(&again), text);
    }

    #[test]
    fn limits_and_flags_carry_their_names() {
        let set =
            |all: &[(&str, &str)]| limits(&all.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect::<Vec<_>>());
        assert_eq!(set(&[("iops_read", "0"), ("bps_total", "100")]), "bps_total=100");
        assert_eq!(
            (set(&[("iops_read", "0")]), set(&[("wbt_lat_usec", "0")])),
            ("no limit".into(), "wbt_lat_usec=0".into())
        );
        assert_eq!(flags(OpFlags::SYNC.union(OpFlags::FUA)), " +FUA +SYNC");
        assert_eq!([time(999), time(1500), time(30_000_000_000)], ["999 ns", "1.5 us", "30 s"]);
    }
}
