// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's counters for its devices over a run, in the form of `iostat -x`.
//!
//! Guarantees: figures that the kernel does not count are left out.

use host::kernel::{Direction, DiskCounters};
use host::run::KernelOutcome;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

use crate::report::fio_model::DiskUtil;
use crate::report::num;
use crate::stack::Setting;

/// Figures of one direction, as `iostat -x` shows them. Means and shares without anything counted are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IostatRow {
    /// Requests per second.
    pub ios_per_s: f64,
    /// KiB per second.
    pub kib_per_s: f64,
    /// Requests or bios per second that were merged into another request.
    pub merged_per_s: f64,
    /// Merged ones in percent of all that arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_percent: Option<f64>,
    /// Mean milliseconds of a request, including waiting.
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
    /// The device: kind, size, model.
    pub device: String,
    /// The counts; `None` if counting is off in the kernel (`iostats=0`).
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
    /// Percent of the time in which a request was in flight.
    pub util_percent: f64,
}

impl Iostat {
    /// Makes the figures from the counters over `measured_ns`.
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

/// fio's disk statistics of a device, made from the kernel's counters.
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

/// The lines about a device in our text report: the device, the settings in effect, and iostat's figures of the directions
/// with I/O.
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
