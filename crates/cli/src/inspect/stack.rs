// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of a stack: builds the disk, without any I/O, and describes it.

use host::error::Result;
use host::mem::Regions;
use host::run::{Disk, RunSettings};
use host::target::{Needs, TargetSpec};
use lab::report::num::{self, Scale};
use lab::stack::StackFacts;
use std::fmt::Write;
use std::sync::Arc;

/// Opens the target for reading and describes the stack on it.
pub fn describe(target: &str, settings: &[(String, String)]) -> Result<StackFacts> {
    let read = RunSettings::read(settings)?;
    let shared = read.shared()?;
    let needs = Needs { write: false, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None };
    let open = TargetSpec::parse(target)?.open(&needs, Arc::new(Regions::new()))?;
    let disk = Disk::new(open.driver, read.disk, shared.as_ref())?;
    Ok(StackFacts::of(target, &disk.queue, settings))
}

/// The description for people.
pub fn text(f: &StackFacts) -> String {
    let size = num::bytes(f.size_bytes, Scale::Binary);
    let mut out = format!("target {}: {size}, blocks of {} bytes\n\nsettings", f.target, f.logical_block_bytes);
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
    out
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
