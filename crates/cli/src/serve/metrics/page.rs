// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of a daemon in Prometheus' text format.
//!
//! Guarantees: base units (seconds, bytes); the lines of a family are together, below its HELP and TYPE; no two lines have the same labels;
//! a counter never decreases while its object exists. Names follow those of the node exporter if it has the same counter for kernel disks.
//!
//! Source: Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".

use blk::bio::Op;
use host::driver::Connections;
use host::serve::plan::serves_connections;
use host::serve::view::View;
use host::serve::{ServedDisk, ThreadReport};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;

const SECTOR: u64 = 512;

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// Builds the text.
#[derive(Default)]
struct Page(String);

impl Page {
    /// Appends a family, whose samples have labels and a value. Appends nothing without samples.
    fn family<V: Display>(&mut self, name: &str, kind: Kind, help: &str, samples: Vec<(Vec<(&str, String)>, V)>) {
        if samples.is_empty() {
            return;
        }
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {word}\n");
        for (labels, value) in samples {
            self.0.push_str(name);
            for (i, (label, text)) in labels.iter().enumerate() {
                self.0.push(if i == 0 { '{' } else { ',' });
                let _ = write!(self.0, "{label}=\"{}\"", escaped(text));
            }
            if !labels.is_empty() {
                self.0.push('}');
            }
            let _ = writeln!(self.0, " {value}");
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Nanoseconds as seconds, exactly.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

type Disks<'a> = Vec<(&'a str, Arc<ServedDisk>)>;

/// Returns the whole page.
pub fn page(daemon: &View) -> String {
    let mut page = Page::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.family("mqblk_build_info", Kind::Gauge, "Version of mqblk, as a label.", vec![(version, 1)]);
    let names = daemon.plan().disks().iter().map(|d| d.name.as_str());
    let disks: Disks<'_> = names.filter_map(|name| Some((name, daemon.disk(name)?))).collect();
    of_disks(&mut page, &disks);
    of_images(&mut page, daemon);
    of_stages(&mut page, &disks);
    of_hctxs(&mut page, &disks);
    // Removing a disk waits until no thread holds it, so release the disks before waiting for IOThreads.
    drop(disks);
    let threads = daemon.report();
    of_threads(&mut page, &threads);
    of_exports(&mut page, daemon, &threads);
    page.0
}

fn of_disks(page: &mut Page, disks: &Disks<'_>) {
    let label = |name: &str| vec![("disk", name.to_owned())];
    let stats: Vec<_> = disks.iter().map(|(name, disk)| (*name, disk.stats())).collect();
    let ops = [
        (Op::Read, "reads", "read", "Reads"),
        (Op::Write, "writes", "write", "Writes"),
        (Op::Discard, "discards", "discard", "Discards"),
        (Op::WriteZeroes, "write_zeroes", "write_zeroes", "Writes of zeroes"),
        (Op::Flush, "flushes", "flush", "Flushes"),
    ];
    for (op, many, one, text) in ops {
        let each = |of: &dyn Fn(&blk::stat::OpStats) -> u64| {
            stats.iter().map(|(name, s)| (label(name), of(s.op(op)))).collect::<Vec<_>>()
        };
        let name = format!("mqblk_disk_{many}_completed_total");
        page.family(&name, Kind::Counter, &format!("{text} that have completed."), each(&|o| o.ios));
        if op != Op::Flush {
            let name = format!("mqblk_disk_{one}_bytes_total");
            page.family(&name, Kind::Counter, &format!("Bytes of {many}."), each(&|o| o.sectors * SECTOR));
            let name = format!("mqblk_disk_{many}_merged_total");
            page.family(&name, Kind::Counter, &format!("{text} merged into another request."), each(&|o| o.merges));
        }
        let time = each(&|o| o.time_ns).into_iter().map(|(l, ns)| (l, Seconds(ns))).collect();
        let name = format!("mqblk_disk_{one}_time_seconds_total");
        page.family(&name, Kind::Counter, &format!("Sum of the times of {many}, submission to end."), time);
    }
    let all = |of: &dyn Fn(&ServedDisk) -> u64| disks.iter().map(|(n, d)| (label(n), of(d))).collect::<Vec<_>>();
    let size = all(&|d| d.bytes());
    page.family("mqblk_disk_size_bytes", Kind::Gauge, "Size of the disk.", size);
    let drained = all(&|d| u64::from(d.is_drained()));
    page.family("mqblk_disk_drained", Kind::Gauge, "1 while the disk is drained.", drained);
    let held = all(&|d| d.held_on_enospc());
    page.family(
        "mqblk_disk_writes_held_total",
        Kind::Counter,
        "Times that a write found no space and was held for a retry.",
        held,
    );
    let failed = all(&|d| u64::from(d.failed_flush().is_some()));
    let help = "1 after a flush has failed: data that was acknowledged may be lost.";
    page.family("mqblk_disk_flush_failed", Kind::Gauge, help, failed);
    let faults = all(&|d| d.injection().hits());
    let help = "Requests of clients that got a fault from mqblk ctl inject.";
    page.family("mqblk_disk_injected_faults_total", Kind::Counter, help, faults);
    of_connections(page, disks);
    of_paths(page, disks);
    let each = |of: &dyn Fn(&blk::stat::DiskStats) -> u64| {
        stats.iter().map(|(name, s)| (label(name), of(s))).collect::<Vec<_>>()
    };
    page.family("mqblk_disk_in_flight", Kind::Gauge, "I/Os in flight, delayed ones included.", each(&|s| s.in_flight));
    page.family("mqblk_disk_errors_total", Kind::Counter, "Requests that ended with an error.", each(&|s| s.errors));
    let busy = each(&|s| s.io_ticks_ns).into_iter().map(|(l, ns)| (l, Seconds(ns))).collect();
    page.family("mqblk_disk_io_time_seconds_total", Kind::Counter, "Time with something in flight.", busy);
}

/// Appends the family of the paths of images.
fn of_images(page: &mut Page, daemon: &View) {
    let names = daemon.plan().disks().iter().map(|d| &d.name);
    let is_gone = |name: &String| u64::from(!daemon.image_troubles(name).is_empty());
    let samples = names.map(|name| (vec![("disk", name.clone())], is_gone(name))).collect();
    let help = "1 while the path of an image no longer names the file that is open.";
    page.family("mqblk_disk_image_gone", Kind::Gauge, help, samples);
}

/// Appends the families of disks that are reached over connections (NBD).
fn of_connections(page: &mut Page, disks: &Disks<'_>) {
    let all: Vec<_> = disks.iter().filter_map(|(name, disk)| Some((*name, disk.connections()?))).collect();
    type Of = fn(&Connections) -> u64;
    let families: [(&str, Kind, &str, Of); 4] = [
        ("connections", Kind::Gauge, "Established connections to the disk's server.", |c| c.up),
        ("connections_wanted", Kind::Gauge, "Connections to the disk's server that should be up.", |c| c.wanted),
        ("connection_losses_total", Kind::Counter, "Times a connection to the disk's server was lost.", |c| c.losses),
        ("requests_replayed_total", Kind::Counter, "Requests resent to the disk's server.", |c| c.replayed),
    ];
    for (name, kind, help, of) in families {
        let samples = all.iter().map(|(disk, c)| (vec![("disk", (*disk).to_owned())], of(c))).collect();
        page.family(&format!("mqblk_disk_{name}"), kind, help, samples);
    }
}

/// Appends the families of the paths of multipath disks.
fn of_paths(page: &mut Page, disks: &Disks<'_>) {
    let (mut active, mut failures) = (Vec::new(), Vec::new());
    for (_, disk) in disks {
        for (i, member) in disk.members().iter().enumerate() {
            let topology = member.driver.path().topology();
            for path in topology.into_iter().flat_map(|t| t.groups).flat_map(|g| g.paths) {
                let labels = || vec![("disk", disk.member_name(i)), ("path", path.name.clone())];
                active.push((labels(), u64::from(path.is_active)));
                failures.push((labels(), path.fail_count));
            }
        }
    }
    page.family("mqblk_path_active", Kind::Gauge, "1 while requests may use the path of a multipath disk.", active);
    page.family(
        "mqblk_path_failures_total",
        Kind::Counter,
        "Times that the path of a multipath disk failed.",
        failures,
    );
}

fn of_stages(page: &mut Page, disks: &Disks<'_>) {
    let (mut times, mut requests) = (Vec::new(), Vec::new());
    for (name, disk) in disks {
        let s = disk.stats().stages;
        requests.push((vec![("disk", (*name).to_owned())], s.requests));
        let stages = [
            ("tag_wait", s.tag_wait_ns),
            ("software_queue", s.ctx_ns),
            ("scheduler", s.scheduler_ns),
            ("dispatch", s.dispatch_ns),
            ("device", s.device_ns),
        ];
        times.extend(
            stages.map(|(stage, ns)| (vec![("disk", (*name).to_owned()), ("stage", stage.to_owned())], Seconds(ns))),
        );
    }
    page.family("mqblk_stage_requests_total", Kind::Counter, "Requests with measured stages.", requests);
    let help = "Sum of the times that requests spent in each stage; the stages follow each other without a gap.";
    page.family("mqblk_stage_seconds_total", Kind::Counter, help, times);
}

fn of_hctxs(page: &mut Page, disks: &Disks<'_>) {
    let stats: Vec<_> = disks.iter().map(|(name, disk)| (*name, disk.hctx_stats())).collect();
    type Of = fn(&blk::stat::HctxStats) -> u64;
    let families: [(&str, &str, Of); 6] = [
        ("queued", "Requests handed to a hardware queue.", |h| h.queued),
        ("runs", "Runs of the hardware queue's dispatch loop.", |h| h.run),
        ("dispatched", "Requests that the driver took.", |h| h.dispatched),
        ("batches", "Calls of the driver.", |h| h.batches),
        ("requeues", "Requests that the busy driver returned to be queued again.", |h| h.requeues),
        ("timeouts", "Requests that timed out.", |h| h.timeouts),
    ];
    for (name, help, of) in families {
        let mut samples = Vec::new();
        for (disk, hctxs) in &stats {
            let labels = |i: usize| vec![("disk", (*disk).to_owned()), ("hctx", i.to_string())];
            samples.extend(hctxs.iter().enumerate().map(|(i, h)| (labels(i), of(h))));
        }
        page.family(&format!("mqblk_hctx_{name}_total"), Kind::Counter, help, samples);
    }
}

fn of_threads(page: &mut Page, threads: &[ThreadReport]) {
    let label = |t: &ThreadReport| vec![("iothread", t.name.clone())];
    type Of = fn(&ThreadReport) -> u64;
    let times: [(&str, &str, Of); 3] = [
        ("alive", "Time since the IOThread started.", |t| t.alive.as_ns()),
        ("busy", "Time in event-loop rounds that found work.", |t| t.busy.as_ns()),
        ("cpu", "CPU time, polling included.", |t| t.cpu.as_ns()),
    ];
    for (name, help, of) in times {
        let samples = threads.iter().map(|t| (label(t), Seconds(of(t)))).collect();
        page.family(&format!("mqblk_iothread_{name}_seconds_total"), Kind::Counter, help, samples);
    }
    let sleeps = threads.iter().map(|t| (label(t), t.sleeps)).collect();
    page.family("mqblk_iothread_sleeps_total", Kind::Counter, "Times the IOThread slept.", sleeps);
    let sources = threads.iter().map(|t| (label(t), t.sources.len())).collect();
    page.family("mqblk_iothread_sources", Kind::Gauge, "Virtqueues and connections that the IOThread serves.", sources);
}

fn of_exports(page: &mut Page, daemon: &View, threads: &[ThreadReport]) {
    let (mut clients, mut stale, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_label: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for export in daemon.plan().exports() {
        let kind = export.plan.kind.name().to_owned();
        let labels = vec![("export", export.plan.name.clone()), ("type", kind), ("disk", export.plan.disk.clone())];
        if daemon.has_certificates(&export) {
            stale.push((labels.clone(), u64::from(daemon.certificate_problem(&export).is_some())));
        }
        if daemon.can_be_gone(&export) {
            gone.push((labels.clone(), u64::from(daemon.gone(&export).is_some())));
        }
        clients.push((labels, daemon.clients(&export)));
    }
    page.family("mqblk_export_clients", Kind::Gauge, "Clients that are connected.", clients);
    let help = "1 while new certificates cannot be loaded and the old ones stay in use.";
    page.family("mqblk_export_certificates_stale", Kind::Gauge, help, stale);
    let help = "1 while clients cannot reach the export: its socket was removed, or its mount undone.";
    page.family("mqblk_export_gone", Kind::Gauge, help, gone);
    // Connections come and go, and a sum over them would shrink.
    for source in threads.iter().flat_map(|t| &t.sources).filter(|s| !serves_connections(s.kind)) {
        *by_label.entry((source.export.clone(), source.index)).or_default() += source.served;
    }
    let labels = |(export, index): (String, u32)| vec![("export", export), ("queue", index.to_string())];
    let served = by_label.into_iter().map(|(at, n)| (labels(at), n)).collect();
    let help = "Requests of a virtqueue, or queue of a mount, that have completed since it was started.";
    page.family("mqblk_queue_requests_total", Kind::Counter, help, served);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_times_exact() {
        let mut page = Page::default();
        let labels = vec![("disk", "a\"b\\c\nd".to_owned()), ("x", String::new())];
        page.family("f", Kind::Counter, "Help.", vec![(labels, Seconds(61_000_000_007))]);
        page.family("g", Kind::Gauge, "Help.", vec![(Vec::new(), 1)]);
        page.family::<u64>("none", Kind::Gauge, "Help.", Vec::new());
        assert_eq!(
            page.0,
            "# HELP f Help.\n# TYPE f counter\nf{disk=\"a\\\"b\\\\c\\nd\",x=\"\"} 61.000000007\n\
             # HELP g Help.\n# TYPE g gauge\ng 1\n"
        );
    }
}
