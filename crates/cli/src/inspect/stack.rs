// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of a stack: builds the disk, without any I/O, and describes it.

use host::disk::Disk;
use host::driver::ScsiDepth;
use host::driver::aio::{self, Aio};
use host::error::Result;
use host::mem::Regions;
use host::run::RunSettings;
use host::target::{Needs, TargetSpec};
use lab::report::num::{self, Scale};
use lab::stack::StackFacts;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;

/// Description of a stack.
#[derive(Serialize)]
pub struct Described {
    #[serde(flatten)]
    stack: StackFacts,
    /// How the I/O of files is issued, and why if that is not io_uring.
    #[serde(skip_serializing_if = "Option::is_none")]
    aio: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io_uring_refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scsi: Option<Scsi>,
}

/// How many commands a logical unit can have.
#[derive(Serialize)]
struct Scsi {
    can_queue: u32,
    cmd_per_lun: u32,
    queue_depth: u32,
    nr_hw_queues: u16,
    /// Requests that all hardware queues together have tags for.
    total_depth: u64,
    /// How many of them the device can use.
    usable: u64,
    /// Commands that the target takes over all sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
}

impl Scsi {
    fn of(depth: &ScsiDepth, tags: u32, host_tagset: bool) -> Scsi {
        let ScsiDepth { can_queue, cmd_per_lun, queue_depth, nr_hw_queues, window } = *depth;
        let queues = if host_tagset { 1 } else { u64::from(nr_hw_queues) };
        let total_depth = u64::from(tags) * queues;
        let usable = total_depth.min(queue_depth.into()).min(window.unwrap_or(u64::MAX));
        Scsi { can_queue, cmd_per_lun, queue_depth, nr_hw_queues, total_depth, usable, window }
    }

    fn text(&self) -> String {
        let Scsi { can_queue, cmd_per_lun, queue_depth, nr_hw_queues, total_depth, usable, window } = self;
        let mut out = format!(
            "\nSCSI\n  {total_depth:>6}  tags of {nr_hw_queues} hardware queues together\n  {can_queue:>6}  can_queue: \
             commands of one hardware queue\n  {cmd_per_lun:>6}  cmd_per_lun: initial queue_depth of a LUN\n  \
             {queue_depth:>6}  queue_depth of the LUN now\n"
        );
        if let Some(window) = window {
            let _ = writeln!(out, "  {window:>6}  commands that the target accepts over all sessions of this disk");
        }
        let _ = writeln!(out, "  {usable:>6}  of {total_depth} can be used by the device");
        if usable < total_depth {
            let per = usable.div_ceil((*nr_hw_queues).max(1).into());
            let _ = writeln!(
                out,
                "          further requests hold a tag but wait below the elevator: set queue_depth={per} or use \
                 fewer hardware queues"
            );
        }
        out
    }
}

/// Opens the target for reading and describes the stack on it.
pub fn describe(target: &str, settings: &[(String, String)]) -> Result<Described> {
    let read = RunSettings::read(settings)?;
    let shared = read.shared()?;
    let needs = Needs { write: false, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let open = TargetSpec::parse(target)?.open(&needs, Arc::new(Regions::new()))?;
    let driver = Arc::clone(&open.driver);
    let disk = Disk::new(open.driver, read.disk, shared.as_ref())?;
    let config = disk.queue.config();
    let scsi = driver.scsi().depth().map(|d| Scsi::of(&d, config.queue_depth, config.host_tagset));
    let aio = driver.aio();
    let io_uring_refused = aio.filter(|aio| *aio == Aio::Threads).and_then(|_| aio::refused());
    let stack = StackFacts::of(target, &disk.queue, settings);
    Ok(Described { stack, aio: aio.map(Aio::name), io_uring_refused, scsi })
}

/// The description for people.
pub fn text(described: &Described) -> String {
    let f = &described.stack;
    let size = num::bytes(f.size_bytes, Scale::Binary);
    let mut out = format!("target {}: {size}, blocks of {} bytes\n", f.target, f.logical_block_bytes);
    if let Some(why) = &described.io_uring_refused {
        let _ = writeln!(out, "aio=threads: {why}");
    }
    out.push_str("\nsettings");
    out.push_str(" (* = set, others are defaults)\n");
    let width = f.settings.iter().map(|s| s.name.len()).max().unwrap_or(0);
    for s in &f.settings {
        let mark = if s.default { ' ' } else { '*' };
        // Writing to a String cannot fail.
        let _ = writeln!(out, " {mark}{:<width$} = {:<12} {}", s.name, s.value, s.help);
    }
    out.push_str("\nhardware queues\n  hctx  type     NUMA  CPUs\n");
    for h in &f.hctxs {
        let _ = writeln!(out, "  {:<5} {:<8} {:<5} {}", h.hctx, h.kind, ranges(&h.nodes), ranges(&h.cpus));
    }
    out.push_str("\nwhat limits the I/O in flight, tightest first\n");
    for b in &f.in_flight {
        let _ = writeln!(out, "  {:>6}  {}: {}", b.limit, b.what, b.because);
    }
    out + &described.scsi.as_ref().map_or(String::new(), Scsi::text)
}

/// `0-3,8`: ascending numbers as the kernel lists CPUs.
pub fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match (run[0], run[run.len() - 1]) {
        (a, b) if a == b => a.to_string(),
        (a, b) => format!("{a}-{b}"),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_listed_as_the_kernel_does() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn tags_that_the_device_has_no_room_for_are_told() {
        let depth = ScsiDepth { can_queue: 1024, cmd_per_lun: 64, queue_depth: 64, nr_hw_queues: 8, window: Some(512) };
        let scsi = Scsi::of(&depth, 352, false);
        assert_eq!((scsi.total_depth, scsi.usable), (2816, 64));
        let text = scsi.text();
        assert!(text.contains("2816  tags of 8 hardware queues together") && text.contains("queue_depth=8"), "{text}");
        assert_eq!(Scsi::of(&depth, 352, true).total_depth, 352);
        let fits = Scsi::of(&ScsiDepth { queue_depth: 4096, window: None, ..depth }, 128, false);
        assert!(fits.usable == 1024 && !fits.text().contains("wait below"));
    }

    #[test]
    fn the_text_marks_what_was_set() {
        let settings = [("nr_cpus", "4"), ("nr_hw_queues", "2"), ("scheduler", "mq-deadline")];
        let settings = settings.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let text = text(&describe("null:size=1g", &settings).unwrap());
        for needle in [
            "target null:size=1g: 1024MiB, blocks of 512 bytes\n",
            " *nr_hw_queues ",
            "  queue_depth ",
            " *scheduler ",
            "  iosched.read_expire ",
            "  0     default  0     0-1\n  1     default  0     2-3\n",
            "x 2 hardware queues",
        ] {
            assert!(text.contains(needle), "{needle:?} in\n{text}");
        }
    }
}
