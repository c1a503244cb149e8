// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's block devices as a world, and what they tell of a run.
//!
//! Guarantees: what the kernel does not tell (the stages of a request) is left out. Does not: write settings or do I/O; that is
//! `host::run`'s and `host::kernel`'s.

use host::error::{Error, Result};
use host::kernel::{self, Direction, DiskCounters, KernelDevice, Planned};
use host::run::{KernelOutcome, check_kernel_settings, is_target};
use host::secrets::without_secrets;
use host::target::TargetSpec;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

use workload::job::{Job, JobFile};

use super::{KernelDevices, Knobs, World};
use crate::report::fio_model::DiskUtil;
use crate::report::num;
use crate::run::{Observer, Run, RunSpec, execute_here};
use crate::stack::Setting;
use crate::tune::kernel_knobs;

impl World for KernelDevices {
    fn name(&self) -> &'static str {
        "the block layer of the kernel"
    }

    fn check(&self, target: Option<&str>, settings: &[(String, String)]) -> Result<()> {
        planned(target, settings).map(drop)
    }

    fn same(&self, target: Option<&str>, a: &[(String, String)], b: &[(String, String)]) -> Option<String> {
        let (a, b) = (planned(target, a).ok()??, planned(target, b).ok()??);
        let why = a.without_effect.iter().chain(&b.without_effect).next()?;
        (a.writes == b.writes && a.without_effect != b.without_effect).then(|| why.why.clone())
    }

    fn behind(&self, file: &JobFile, target: Option<&str>) -> Result<Option<String>> {
        let name = |(_, device): &(String, KernelDevice)| device.own_name();
        let names: Vec<String> = devices(file, target)?.iter().map(name).collect();
        Ok(Some(names.join("; ")))
    }

    fn knobs(&self, spec: &RunSpec<'_, '_>, _observer: &mut dyn Observer) -> Result<Knobs> {
        let devices = devices(spec.file, spec.target)?;
        let (first, device) = devices.first().ok_or_else(|| Error::usage("there is no job, and no device"))?;
        // What is the default of one disk need not be another's.
        if let Some((other, _)) = devices.iter().find(|(_, d)| d.disk != device.disk) {
            return Err(Error::usage(format!(
                "'{other}' beside '{first}': settings are tuned of one disk of the kernel; give all jobs that one, or --target {first}"
            )));
        }
        check_kernel_settings(&device.node, spec.settings)?;
        // What an earlier process left changed is not the disk's own.
        let (said, whole) = kernel::put_back_left(Some(device))?;
        if !whole {
            return Err(Error::usage(said.join("; ")));
        }
        let mut now = kernel::in_effect(device);
        for (name, value) in spec.settings {
            now.retain(|(key, _)| key != name);
            now.push((name.clone(), value.clone()));
        }
        let disk = kernel_knobs::Disk {
            now,
            writable: kernel::writable(device),
            schedulers: kernel::schedulers(device),
            direct_only: spec.file.jobs.iter().all(|j| j.direct),
        };
        Ok((kernel_knobs::knobs(&disk), kernel_knobs::rules(&disk)))
    }

    fn run<'f>(&self, spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
        if spec.trace_events > 0 {
            let text = "--trace: the requests of a kernel: target are the kernel's: trace them with blktrace -d DEV while it runs";
            return Err(Error::usage(text));
        }
        execute_here(spec, observer)
    }
}

/// The devices of a run, each with its target as the user named it.
fn devices(file: &JobFile, target: Option<&str>) -> Result<Vec<(String, KernelDevice)>> {
    let own = |job: &Job| -> Vec<String> {
        let all = 0..job.numjobs;
        let data = all.clone().map(|i| job.file_name(i, &is_target));
        data.chain(all.filter_map(|i| job.redo_file_name(i, &is_target))).collect()
    };
    let mut names = target.map_or_else(|| file.jobs.iter().flat_map(own).collect(), |t| vec![t.to_owned()]);
    names.sort();
    names.dedup();
    let find = |name: String| match TargetSpec::parse(&name)? {
        TargetSpec::Kernel(path) => Ok((name, KernelDevice::find(&path)?)),
        _ => Err(Error::usage(format!(
            "'{}': is no device of the kernel; give all jobs one kind of target, or --target",
            without_secrets(&name)
        ))),
    };
    names.into_iter().map(find).collect()
}

/// What the settings come to on this target; `None` where the jobs name their devices.
fn planned(target: Option<&str>, settings: &[(String, String)]) -> Result<Option<Planned>> {
    match target.map(TargetSpec::parse).transpose()? {
        Some(TargetSpec::Kernel(path)) => check_kernel_settings(&path, settings).map(Some),
        _ => Ok(None),
    }
}

/// Settings of a device as they were, marked where they were asked for.
pub(crate) fn settings(in_effect: &[(String, String)], asked: &[(String, String)]) -> Vec<Setting> {
    let setting = |(name, value): &(String, String)| Setting {
        name: name.clone(),
        value: value.clone(),
        default: !asked.iter().any(|(key, _)| key == name),
        help: String::new(),
    };
    in_effect.iter().map(setting).collect()
}

/// Figures of one direction, as `iostat -x` has them; what nothing was counted of is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IostatRow {
    /// Requests per second.
    pub ios_per_s: f64,
    /// KiB per second.
    pub kib_per_s: f64,
    /// Requests or bios per second that joined another request.
    pub merged_per_s: f64,
    /// The same in percent of what came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_percent: Option<f64>,
    /// Mean milliseconds of a request, waiting included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub await_ms: Option<f64>,
    /// Mean KiB of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_kib: Option<f64>,
}

/// What the kernel counted of a device over the measured part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iostat {
    /// The target.
    pub target: String,
    /// What it is.
    pub device: String,
    /// `None` where the kernel was told not to count (`iostats=0`).
    pub counted: Option<Counted>,
}

/// The counts, per second and per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Reads.
    pub read: IostatRow,
    /// Writes.
    pub write: IostatRow,
    /// Discards.
    pub discard: IostatRow,
    /// Flushes per second.
    pub flushes_per_s: f64,
    /// Mean milliseconds of a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_await_ms: Option<f64>,
    /// Mean number of requests in the queue and at the device.
    pub aqu_sz: f64,
    /// Percent of the time in which something was in flight.
    pub util_percent: f64,
}

impl Iostat {
    /// From the counters over `measured_ns`.
    pub fn of(outcome: &KernelOutcome, measured_ns: u64) -> Iostat {
        let (target, device) = (outcome.name.clone(), outcome.identity.clone());
        Iostat { target, device, counted: outcome.counters.as_ref().map(|c| Counted::of(c, measured_ns)) }
    }
}

impl Counted {
    fn of(c: &DiskCounters, measured_ns: u64) -> Counted {
        let seconds = measured_ns.max(1) as f64 / 1e9;
        let row = |d: &Direction| IostatRow {
            ios_per_s: d.ios as f64 / seconds,
            kib_per_s: d.sectors as f64 / 2.0 / seconds,
            merged_per_s: d.merges as f64 / seconds,
            merged_percent: d.merged_percent(),
            await_ms: d.await_ms(),
            mean_kib: d.mean_bytes().map(|b| b / 1024.0),
        };
        Counted {
            read: row(&c.read),
            write: row(&c.write),
            discard: row(&c.discard),
            flushes_per_s: c.flush_ios as f64 / seconds,
            flush_await_ms: (c.flush_ios > 0).then(|| c.flush_ticks_ms as f64 / c.flush_ios as f64),
            aqu_sz: c.time_in_queue_ms as f64 / 1e3 / seconds,
            util_percent: (c.io_ticks_ms as f64 / 10.0 / seconds).min(100.0),
        }
    }
}

/// fio's line about a device, from the kernel's counters, as fio has it.
pub(crate) fn disk_util(outcome: &KernelOutcome, measured_ns: u64) -> Option<DiskUtil> {
    let c = outcome.counters.as_ref()?;
    Some(DiskUtil {
        name: outcome.name.clone(),
        ios: [c.read.ios, c.write.ios],
        merges: [c.read.merges, c.write.merges],
        ticks: [c.read.ticks_ms, c.write.ticks_ms],
        in_queue: c.time_in_queue_ms,
        util: Counted::of(c, measured_ns).util_percent,
    })
}

/// The lines about a device in our text report: what it is, what was in effect, and iostat's figures of the directions that had any.
pub fn text(iostat: &Iostat, settings: &[Setting]) -> String {
    let mut out = format!("{}: {}\n", iostat.target, iostat.device);
    let shown = [
        "scheduler",
        "nr_requests",
        "nomerges",
        "rq_affinity",
        "max_sectors_kb",
        "read_ahead_kb",
        "wbt_lat_usec",
        "write_cache",
    ];
    let is_shown = |s: &&Setting| shown.contains(&s.name.as_str()) || !s.default || s.name.starts_with("iosched.");
    let list: Vec<String> = settings.iter().filter(is_shown).map(Setting::assignment).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "  in effect    : {}", list.join(", "));
    let Some(c) = &iostat.counted else {
        out.push_str("  counters     : none, the kernel was told not to count (iostats=0)\n");
        return out;
    };
    for (name, row) in [("read", &c.read), ("write", &c.write), ("discard", &c.discard)] {
        let (Some(wait), Some(size)) = (row.await_ms, row.mean_kib) else { continue };
        let _ = writeln!(
            out,
            "  {name:<13}: {:.1}/s, {:.1} KiB/s, merged={:.1}/s ({:.1}%), await={}, areq-sz={size:.1} KiB",
            row.ios_per_s,
            row.kib_per_s,
            row.merged_per_s,
            row.merged_percent.unwrap_or(0.0),
            num::latency(wait * 1e6)
        );
    }
    if let Some(wait) = c.flush_await_ms {
        let _ = writeln!(out, "  flush        : {:.1}/s, await={}", c.flushes_per_s, num::latency(wait * 1e6));
    }
    let _ = writeln!(out, "  device       : aqu-sz={:.2}, util={:.1}%", c.aqu_sz, c.util_percent);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_iostats_figures_and_nothing_is_invented() {
        let counters = DiskCounters {
            write: Direction { ios: 1000, merges: 3000, sectors: 32_000, ticks_ms: 500 },
            io_ticks_ms: 1000,
            time_in_queue_ms: 4000,
            ..DiskCounters::default()
        };
        let outcome = KernelOutcome { name: "kernel:/dev/x".into(), identity: "loop".into(), counters: Some(counters) };
        let iostat = Iostat::of(&outcome, 2_000_000_000);
        let c = iostat.counted.unwrap();
        assert_eq!((c.write.ios_per_s, c.write.kib_per_s, c.write.merged_percent), (500.0, 8000.0, Some(75.0)));
        assert_eq!((c.write.await_ms, c.write.mean_kib, c.aqu_sz, c.util_percent), (Some(0.5), Some(16.0), 2.0, 50.0));
        assert_eq!((c.read.await_ms, c.flush_await_ms), (None, None));
        let text = text(&iostat, &[]);
        assert!(
            text.contains("write        : 500.0/s") && !text.contains("read ") && !text.contains("flush"),
            "{text}"
        );
        let silent = Iostat::of(&KernelOutcome { counters: None, ..outcome }, 1);
        assert!(super::text(&silent, &[]).contains("told not to count"));
    }
}
