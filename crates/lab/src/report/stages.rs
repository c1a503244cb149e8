// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines that follow fio's block in our text report: where the time went, merges, hctxs, cost per I/O, Little's law.
//!
//! Guarantees: figures that were not measured are left out, never shown as 0. Does not: repeat figures of fio's block.

use std::fmt::Write;

use super::num;
use crate::little::Little;
use crate::stage::{HctxCounts, StageFacts, StageTimes};

/// Maximum number of hardware queues listed one by one. Further busy ones are summed in one line, and idle ones are counted.
const HCTX_LINES: usize = 16;

/// Returns the lines; empty when nothing was measured.
pub fn text(f: &StageFacts) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail, so the results of write! are dropped.
    stage_lines(&mut out, &f.times);
    if f.times.n > 0 {
        let percent = 100.0 * f.merges as f64 / (f.merges + f.times.n) as f64;
        let _ = writeln!(out, "  merges       : {} bios merged into another request ({percent:.1}%)", f.merges);
    }
    hctx_lines(&mut out, &f.hctx);
    let cpu = f.cpu_per_io_ns().filter(|ns| *ns > 0.0).map(|ns| format!("cpu={} per I/O", num::latency(ns)));
    let switches = f.context_switches_per_io().map(|n| format!("context switches={n:.4} per I/O"));
    let cost: Vec<String> = cpu.into_iter().chain(switches).collect();
    if !cost.is_empty() {
        let _ = writeln!(out, "  cost         : {}", cost.join(", "));
    }
    if let Some(l) = f.little {
        let _ = writeln!(out, "  Little's law : {}", little(&l));
    }
    out
}

/// `in flight 31.9, rate x latency 32.1 (-0.6%)`, with an explanation if they disagree.
pub fn little(l: &Little) -> String {
    let verdict =
        if l.holds() { "" } else { ": DISAGREE, some waiting is missing from the latency or the queue was not full" };
    format!("in flight {:.1}, rate x latency {:.1} ({:+.1}%){verdict}", l.in_flight, l.expected(), 100.0 * l.error())
}

fn stage_lines(out: &mut String, t: &StageTimes) {
    if t.n == 0 {
        return;
    }
    let _ = writeln!(out, "  stages       : mean per request, {} requests", t.n);
    for (name, (mean, share)) in StageTimes::NAMES.iter().zip(t.means().iter().zip(t.shares())) {
        if let Some(mean) = mean {
            let share = 100.0 * share.unwrap_or(0.0);
            let _ = writeln!(out, "     {name:<10}: {:>7} {share:5.1}%", num::latency(*mean));
        }
    }
}

fn hctx_lines(out: &mut String, hctx: &[HctxCounts]) {
    let line = |out: &mut String, name: &str, h: &HctxCounts| {
        let per_call = if h.batches == 0 { 0.0 } else { h.dispatched as f64 / h.batches as f64 };
        let (queued, run, requeues) = (h.queued, h.run, h.requeues);
        let _ = writeln!(
            out,
            "  {name:<13}: queued={queued}, run={run}, per driver call={per_call:.1}, requeues={requeues}"
        );
    };
    let busy: Vec<(usize, &HctxCounts)> =
        hctx.iter().enumerate().filter(|(_, h)| **h != HctxCounts::default()).collect();
    let shown = if busy.len() > HCTX_LINES { HCTX_LINES - 1 } else { busy.len() };
    for (i, h) in &busy[..shown] {
        line(out, &format!("hctx {i}"), h);
    }
    if let Some(((_, first), rest)) = busy[shown..].split_first() {
        let mut sum = StageFacts { hctx: vec![**first], ..StageFacts::default() };
        rest.iter().for_each(|(_, h)| sum.merge(&StageFacts { hctx: vec![**h], ..StageFacts::default() }));
        line(out, &format!("{} other hctx", rest.len() + 1), &sum.hctx[0]);
    }
    if busy.len() < hctx.len() {
        let _ = writeln!(out, "  idle         : {} hctx without I/O", hctx.len() - busy.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> StageFacts {
        let times =
            StageTimes { ctx_ns: 5_000, scheduler_ns: 15_000, device_ns: 80_000, n: 100, ..StageTimes::default() };
        let hctx = vec![HctxCounts { queued: 100, run: 50, dispatched: 100, batches: 25, requeues: 1 }];
        let little = Little::new(30.0, 1e6, 32_000.0);
        StageFacts {
            times,
            merges: 25,
            hctx,
            ios: 125,
            cpu_ns: 25_000,
            context_switches: 5,
            little,
            ..StageFacts::default()
        }
    }

    #[test]
    fn the_whole_block() {
        let want = [
            "  stages       : mean per request, 100 requests",
            "     tag wait  :     0ns   0.0%",
            "     ctx       :    50ns   5.0%",
            "     scheduler :   150ns  15.0%",
            "     dispatch  :     0ns   0.0%",
            "     device    :   800ns  80.0%",
            "  merges       : 25 bios merged into another request (20.0%)",
            "  hctx 0       : queued=100, run=50, per driver call=4.0, requeues=1",
            "  cost         : cpu=200ns per I/O, context switches=0.0400 per I/O",
            "  Little's law : in flight 30.0, rate x latency 32.0 (-6.2%)",
        ];
        assert_eq!(text(&facts()).lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn nothing_measured_prints_nothing() {
        assert_eq!(text(&StageFacts::default()), "");
    }

    #[test]
    fn a_broken_law_is_said_aloud() {
        assert!(little(&Little::new(20.0, 1e6, 32_000.0).unwrap()).contains("(-37.5%): DISAGREE"));
    }

    #[test]
    fn many_hctxs_are_summed_up() {
        let mut f = facts();
        f.hctx = vec![f.hctx[0]; 40];
        let out = text(&f);
        assert_eq!(out.lines().filter(|l| l.contains("hctx")).count(), HCTX_LINES);
        assert!(out.contains("  25 other hctx: queued=2500, run=1250, per driver call=4.0, requeues=25\n"), "{out}");
        f.hctx.truncate(16);
        f.hctx.resize(40, HctxCounts::default());
        let out = text(&f);
        assert!(out.contains("  hctx 15      : queued=100"), "sixteen still fit: {out}");
        assert!(out.contains("  idle         : 24 hctx without I/O\n"), "{out}");
    }
}
