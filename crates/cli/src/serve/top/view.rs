// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The difference of two samples: rates, averages and percentiles of the time between them.
//!
//! Guarantees: an object that is only in the later sample counts from zero, one that is only in the earlier is left out. There is no
//! division by zero, and a restarted counter gives no false rate. Does not do: format the result.

use super::sample::{Disk, Hctx, IoThread, Op, Sample, Source};
use serde::Serialize;
use std::collections::BTreeMap;
use workload::hist::Histogram;

const SECTOR: f64 = 512.0;
const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// One interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// Uptime of the daemon at the end of the interval.
    pub uptime_s: f64,
    /// Length of the interval.
    pub interval_s: f64,
    /// Disks, in the plan's order.
    pub disks: Vec<DiskView>,
    /// IOThreads, by number.
    pub iothreads: Vec<ThreadView>,
    /// Virtqueues and connections, by export and number.
    pub queues: Vec<QueueView>,
}

/// A disk; averages are microseconds per request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it, as iostat's do")]
pub struct DiskView {
    pub disk: String,
    pub reads_s: f64,
    pub writes_s: f64,
    /// Discards, flushes and writes of zeroes.
    pub others_s: f64,
    pub read_mib_s: f64,
    pub write_mib_s: f64,
    pub rareq_kib: f64,
    pub wareq_kib: f64,
    pub r_await_us: f64,
    pub w_await_us: f64,
    pub in_flight: u64,
    pub tag_wait_us: f64,
    pub scheduler_us: f64,
    /// Time in the software queue and the dispatch list.
    pub queued_us: f64,
    pub device_us: f64,
    pub util_percent: f64,
    pub errors: u64,
    pub hctxs: Vec<HctxView>,
}

/// A hardware queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct HctxView {
    pub hctx: usize,
    pub requests_s: f64,
    /// Requests per call of the driver.
    pub batch: f64,
    pub requeues_s: f64,
    pub timeouts: u64,
}

/// An IOThread.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ThreadView {
    pub iothread: String,
    pub busy_percent: f64,
    pub cpu_percent: f64,
    pub sleeps_s: f64,
    pub queues: usize,
    pub requests_s: f64,
}

/// A virtqueue or connection; percentiles in microseconds, 0 if no request completed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct QueueView {
    pub export: String,
    pub index: u32,
    #[serde(rename = "type")]
    pub kind: String,
    pub disk: String,
    pub iothread: String,
    pub requests_s: f64,
    pub in_flight: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn us_each(ns: u64, count: u64) -> f64 {
    ratio(ns as f64 / 1000.0, count as f64)
}

impl View {
    /// Computes the difference from one sample to a later one.
    pub fn between(before: &Sample, now: &Sample) -> View {
        let ns = now.uptime_ns.saturating_sub(before.uptime_ns);
        let seconds = ns as f64 / 1e9;
        let disks = now.disks.iter().map(|disk| {
            let earlier = before.disks.iter().find(|d| d.name == disk.name).cloned().unwrap_or_default();
            of_disk(&earlier, disk, ns)
        });
        let earlier: BTreeMap<u64, &Source> =
            before.iothreads.iter().flat_map(|t| &t.sources).map(|s| (s.number, s)).collect();
        let mut queues = Vec::new();
        let mut iothreads = Vec::new();
        for thread in &now.iothreads {
            let own: Vec<_> =
                thread.sources.iter().map(|s| of_queue(earlier.get(&s.number).copied(), s, thread, seconds)).collect();
            let was = before.iothreads.iter().find(|t| t.name == thread.name && t.alive_ns <= thread.alive_ns);
            iothreads.push(of_thread(was, thread, own.iter().map(|q| q.requests_s).sum()));
            queues.extend(own);
        }
        queues.sort_by(|a, b| (&a.export, a.index).cmp(&(&b.export, b.index)));
        let uptime_s = now.uptime_ns as f64 / 1e9;
        View { uptime_s, interval_s: seconds, disks: disks.collect(), iothreads, queues }
    }
}

fn of_disk(before: &Disk, now: &Disk, ns: u64) -> DiskView {
    // A disk that was closed and reopened between the samples counts from zero.
    let anew = now.stages.requests < before.stages.requests;
    let none = Disk::default();
    let before = if anew { &none } else { before };
    let seconds = ns as f64 / 1e9;
    let since = |of: fn(&Disk) -> u64| of(now).saturating_sub(of(before));
    let op = |of: fn(&Disk) -> Op| {
        let (now, before) = (of(now), of(before));
        Op {
            ios: now.ios.saturating_sub(before.ios),
            sectors: now.sectors.saturating_sub(before.sectors),
            time_ns: now.time_ns.saturating_sub(before.time_ns),
        }
    };
    let (read, write) = (op(|d| d.ops.read), op(|d| d.ops.write));
    let others = [op(|d| d.ops.discard), op(|d| d.ops.flush), op(|d| d.ops.write_zeroes)];
    let bytes = |o: Op| o.sectors as f64 * SECTOR;
    let requests = since(|d| d.stages.requests);
    let stage = |of: fn(&Disk) -> u64| us_each(of(now).saturating_sub(of(before)), requests);
    let hctx = |(i, h): (usize, &Hctx)| {
        let was = before.hctx.get(i).copied().unwrap_or_default();
        let of = |of: fn(&Hctx) -> u64| of(h).saturating_sub(of(&was));
        HctxView {
            hctx: i,
            requests_s: ratio(of(|h| h.dispatched) as f64, seconds),
            batch: ratio(of(|h| h.dispatched) as f64, of(|h| h.batches) as f64),
            requeues_s: ratio(of(|h| h.requeues) as f64, seconds),
            timeouts: of(|h| h.timeouts),
        }
    };
    DiskView {
        disk: now.name.clone(),
        reads_s: ratio(read.ios as f64, seconds),
        writes_s: ratio(write.ios as f64, seconds),
        others_s: ratio(others.iter().map(|o| o.ios).sum::<u64>() as f64, seconds),
        read_mib_s: ratio(bytes(read) / MIB, seconds),
        write_mib_s: ratio(bytes(write) / MIB, seconds),
        rareq_kib: ratio(bytes(read) / KIB, read.ios as f64),
        wareq_kib: ratio(bytes(write) / KIB, write.ios as f64),
        r_await_us: us_each(read.time_ns, read.ios),
        w_await_us: us_each(write.time_ns, write.ios),
        in_flight: now.in_flight,
        tag_wait_us: stage(|d| d.stages.tag_wait_ns),
        scheduler_us: stage(|d| d.stages.scheduler_ns),
        queued_us: stage(|d| d.stages.ctx_ns + d.stages.dispatch_ns),
        device_us: stage(|d| d.stages.device_ns),
        util_percent: (100.0 * ratio(since(|d| d.io_ticks_ns) as f64, ns as f64)).min(100.0),
        errors: since(|d| d.errors),
        hctxs: now.hctx.iter().enumerate().map(hctx).collect(),
    }
}

fn of_thread(before: Option<&IoThread>, now: &IoThread, requests_s: f64) -> ThreadView {
    let none = IoThread::default();
    let before = before.unwrap_or(&none);
    let since = |of: fn(&IoThread) -> u64| of(now).saturating_sub(of(before)) as f64;
    let alive = since(|t| t.alive_ns);
    let percent = |ns: f64| (100.0 * ratio(ns, alive)).min(100.0);
    ThreadView {
        iothread: now.name.clone(),
        busy_percent: percent(since(|t| t.busy_ns)),
        cpu_percent: percent(since(|t| t.cpu_ns)),
        sleeps_s: ratio(since(|t| t.sleeps), alive / 1e9),
        queues: now.sources.len(),
        requests_s,
    }
}

fn of_queue(before: Option<&Source>, now: &Source, thread: &IoThread, seconds: f64) -> QueueView {
    let had: BTreeMap<u64, u64> = before.map(|s| s.latency_ns.iter().copied().collect()).unwrap_or_default();
    let mut latency = Histogram::new();
    for (ns, count) in &now.latency_ns {
        latency.record_n(*ns, count.saturating_sub(had.get(ns).copied().unwrap_or_default()));
    }
    let us = |percent: f64| latency.percentile(percent) as f64 / 1000.0;
    QueueView {
        export: now.export.clone(),
        index: now.index,
        kind: now.kind.clone(),
        disk: now.disk.clone(),
        iothread: thread.name.clone(),
        requests_s: ratio(now.served.saturating_sub(before.map_or(0, |s| s.served)) as f64, seconds),
        in_flight: now.in_flight,
        p50_us: us(50.0),
        p99_us: us(99.0),
        p99_9_us: us(99.9),
    }
}
