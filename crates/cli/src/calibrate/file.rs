// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine file: maps measured figures to the simulator's costs, and writes them with their sources.
//!
//! Guarantees: the file is read back by `Scenario::parse_machine`; each cost of `Costs` is either one of the figures or named in
//! [`NOT_MEASURABLE`] or kept with the reason why it could not be measured. Does not do: describe a real disk; the user edits the disk that
//! it writes.

use super::{Host, cpus};
use host::calibrate::{Calibration, CostKind};
use sim::machine::costs::{Costs, LineCosts};
use std::fmt::Write;

/// A cost that no program can measure.
pub struct NotMeasurable {
    /// Its place in a machine file.
    pub name: &'static str,
    /// Why the file does not contain it, and where the value is.
    pub why: &'static str,
}

/// The only one that the file contains nevertheless, with the value of the kernel's documentation.
const WAITING: NotMeasurable =
    NotMeasurable { name: "costs.line.waiting", why: "how the kernel's locks wait: queued from Linux 4.2 on" };

/// Costs that no program can measure.
pub const NOT_MEASURABLE: [NotMeasurable; 2] = [
    WAITING,
    NotMeasurable {
        name: "guests.kick_us",
        why: "a VM exit for a kick plus the host's eventfd, for guests in scenarios; doorbell_ns is the exit alone",
    },
];

/// Returns the name of a figure: its place in a machine file, if it has one.
pub fn name(what: CostKind) -> &'static str {
    match what {
        CostKind::Atomic => "costs.line.atomic_ns",
        CostKind::LineCore => "costs.line.core_ns",
        CostKind::LineSocket => "costs.line.socket_ns",
        CostKind::LineRemote => "costs.line.remote_ns",
        CostKind::HandOver => "hand-over, gives lines",
        CostKind::Syscall => "costs.path.syscall_ns",
        CostKind::Wakeup => "costs.path.wakeup_ns",
        CostKind::WakeupDelay => "costs.path.ipi_ns",
        CostKind::Ipi => "membarrier",
        CostKind::Switch => "costs.path.switch_ns",
        CostKind::Irq => "costs.path.irq_ns",
        CostKind::VmExit => "costs.path.doorbell_ns",
        CostKind::Submit => "costs.path.submit_ns",
        CostKind::Dispatch => "costs.path.dispatch_ns",
        CostKind::Complete => "costs.path.complete_ns",
        CostKind::Hold => "costs.path.hold_ns",
        CostKind::App => "costs.path.app_ns",
    }
}

/// Returns the meaning of a figure.
pub fn meaning(what: CostKind) -> &'static str {
    match what {
        CostKind::Atomic => "an atomic addition to a cache line of this core",
        CostKind::LineCore => "a cache line from the core's other hardware thread",
        CostKind::LineSocket => "a cache line from another core, one way of a round trip",
        CostKind::LineRemote => "a cache line from a core of another node, one way",
        CostKind::HandOver => "single queue: extra cost of an I/O if the previous one came from another CPU",
        CostKind::Syscall => "getppid",
        CostKind::Wakeup => "extra cost of an eventfd write if a thread on another CPU sleeps on it",
        CostKind::WakeupDelay => "from an eventfd write until the thread on the other CPU runs",
        CostKind::Ipi => "an IPI to a running CPU, and its acknowledgement (not used: the wake-up delay covers it)",
        CostKind::Switch => "sched_yield between two threads of one CPU, without the system call",
        CostKind::Irq => "a timer interrupt, in place of a device's",
        CostKind::VmExit => "a VM exit (measured with CPUID); a virtual disk's doorbell causes one",
        CostKind::Submit => "our block layer: a bio submitted",
        CostKind::Dispatch => "our block layer: a request issued to the null device",
        CostKind::Complete => "our block layer: a request completed",
        CostKind::Hold => "our block layer: one hold of the single queue's lock",
        CostKind::App => "the job engine, per I/O",
    }
}

/// Returns the simulator's costs: measured ones where available, otherwise the published ones.
pub fn costs(c: &Calibration) -> Costs {
    let mut costs = Costs::default();
    let (p, l) = (&mut costs.path, &mut costs.line);
    let set = |what: CostKind, field: &mut u32| {
        if let Ok(f) = &c.of(what).figure {
            *field = f.median.round().clamp(1.0, 1e9) as u32;
        }
    };
    set(CostKind::Atomic, &mut l.atomic_ns);
    set(CostKind::LineCore, &mut l.core_ns);
    set(CostKind::LineSocket, &mut l.socket_ns);
    set(CostKind::LineRemote, &mut l.remote_ns);
    set(CostKind::Syscall, &mut p.syscall_ns);
    set(CostKind::Wakeup, &mut p.wakeup_ns);
    set(CostKind::WakeupDelay, &mut p.ipi_ns);
    set(CostKind::Switch, &mut p.switch_ns);
    set(CostKind::Irq, &mut p.irq_ns);
    set(CostKind::VmExit, &mut p.doorbell_ns);
    set(CostKind::Submit, &mut p.submit_ns);
    set(CostKind::Dispatch, &mut p.dispatch_ns);
    set(CostKind::Complete, &mut p.complete_ns);
    set(CostKind::Hold, &mut p.hold_ns);
    set(CostKind::App, &mut p.app_ns);
    if let Some(lines) = lines(c) {
        l.lines = lines;
    }
    costs
}

/// Upper limit of the cache lines that a turn at the queue fetches.
const LINES_MAX: f64 = 64.0;

/// Returns how many cache lines move with the single queue from one CPU to another: the cost of a hand-over divided by the cost of one line
/// between the same CPUs. One line is subtracted, because it only signals whose turn it is.
fn lines(c: &Calibration) -> Option<u32> {
    let turn = c.of(CostKind::HandOver);
    let each = [CostKind::LineSocket, CostKind::LineRemote, CostKind::LineCore].map(|w| c.of(w));
    let line = each.iter().find(|l| l.cpus == turn.cpus)?.figure.as_ref().ok()?;
    let turn = turn.figure.as_ref().ok()?;
    Some((turn.median / line.median.max(1.0) - 1.0).round().clamp(1.0, LINES_MAX) as u32)
}

/// Returns the text of the file.
pub fn of(c: &Calibration, host: &Host, warnings: &[String]) -> String {
    let costs = costs(c);
    let (model, kernel) = (&host.setup.cpu_model, &host.setup.kernel);
    let known = |text: &Option<String>| text.as_deref().unwrap_or("unknown").replace(['"', '\\'], "");
    let mut out = format!(
        "# A machine, measured by 'mqblk calibrate' in {} rounds. Each cost has its quartiles and the CPUs it was measured on.\n",
        c.rounds
    );
    let _ = writeln!(out, "title = \"{}\"", known(model));
    let _ = writeln!(out, "source = \"measured: {}, Linux {}, {}\"", host.setup.program, known(kernel), day());
    warnings.iter().for_each(|w| {
        let _ = writeln!(out, "# warning: {w}");
    });
    let s = host.shape;
    let _ = write!(out, "\n[machine]\nsockets = {}\ncores = {}\nthreads = {}\n", s.sockets, s.cores, s.threads);
    out += "\n# Edit this: a device of 10 us without caps; no disk was measured.\n[disk]\nsize_gib = 1024\nread_us = \
            10\nwrite_us = 10\nqueue_depth = 512\n";
    let path = [
        (CostKind::App, costs.path.app_ns),
        (CostKind::Syscall, costs.path.syscall_ns),
        (CostKind::Submit, costs.path.submit_ns),
        (CostKind::Hold, costs.path.hold_ns),
        (CostKind::Dispatch, costs.path.dispatch_ns),
        (CostKind::VmExit, costs.path.doorbell_ns),
        (CostKind::Irq, costs.path.irq_ns),
        (CostKind::Complete, costs.path.complete_ns),
        (CostKind::Wakeup, costs.path.wakeup_ns),
        (CostKind::WakeupDelay, costs.path.ipi_ns),
        (CostKind::Switch, costs.path.switch_ns),
    ];
    out += "\n[costs.path]\n";
    path.iter().for_each(|(what, ns)| entry(&mut out, c, *what, *ns));
    let LineCosts { lines: nr_lines, .. } = costs.line;
    let line = [
        (CostKind::Atomic, costs.line.atomic_ns),
        (CostKind::LineCore, costs.line.core_ns),
        (CostKind::LineSocket, costs.line.socket_ns),
        (CostKind::LineRemote, costs.line.remote_ns),
    ];
    out += "\n[costs.line]\n";
    line.iter().for_each(|(what, ns)| entry(&mut out, c, *what, *ns));
    let from = match (lines(c), &c.of(CostKind::HandOver).figure) {
        (Some(_), Ok(f)) => {
            format!(
                "of {:.0} ns ({:.0} .. {:.0}) of a hand-over on {}",
                f.median,
                f.q1,
                f.q3,
                cpus(c.of(CostKind::HandOver))
            )
        }
        (_, Err(why)) => format!("not measured: {why}; the figure of docs/scenarios.md"),
        _ => "not measured: no cache-line cost of that pair of CPUs; the figure of docs/scenarios.md".into(),
    };
    let _ = writeln!(out, "lines = {nr_lines} # {from}");
    let _ = writeln!(out, "waiting = \"queued\" # {}", WAITING.why);
    out
}

fn entry(out: &mut String, c: &Calibration, what: CostKind, ns: u32) {
    let cost = c.of(what);
    let key = name(what).rsplit('.').next().expect("a name");
    let from = match &cost.figure {
        Ok(f) => format!("{:.1} .. {:.1}, {} samples on {}: {}", f.q1, f.q3, f.samples, cpus(cost), meaning(what)),
        Err(why) => format!("not measured: {why}; the published figure of docs/scenarios.md"),
    };
    let _ = writeln!(out, "{key} = {ns} # {from}");
}

/// Today, as `2026-11-23`.
fn day() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Days to a date of the civil calendar (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let z = (now / 86_400) as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::calibrate::{Cost, Figure};
    use sim::machine::costs::Shape;
    use sim::scenario::file::Scenario;

    fn calibration(figure: impl Fn(CostKind) -> Result<f64, String>) -> Calibration {
        let one = |what| {
            let of = |ns: f64| Figure { median: ns, q1: ns - 1.0, q3: ns + 1.0, samples: 9 };
            Cost { what, cpus: vec![0, 1], figure: figure(what).map(of) }
        };
        Calibration { costs: CostKind::ALL.into_iter().map(one).collect(), rounds: 9 }
    }

    fn host() -> Host {
        let mut host = Host::read();
        host.shape = Shape { sockets: 2, cores: 4, threads: 2 };
        host.setup.cpu_model = Some("A \"CPU\" \\ of 2026".into());
        host
    }

    #[test]
    fn the_file_is_read_back_with_every_cost() {
        let c = calibration(|what| Ok(if what == CostKind::HandOver { 710.0 } else { 100.0 + what as u32 as f64 }));
        let text = of(&c, &host(), &["busy".into()]);
        let m = Scenario::parse_machine("m.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!((m.machine.cpus(), m.costs), (16, costs(&c)), "{text}");
        assert_eq!(m.costs.line.lines, 6, "710 ns are seven lines of 102 ns, one of which told whose turn it was");
        assert_eq!(m.costs.path.syscall_ns, 100 + CostKind::Syscall as u32);
        for key in ["app_ns", "doorbell_ns", "switch_ns", "remote_ns", "waiting"] {
            assert!(text.contains(&format!("\n{key} = ")), "{key}: {text}");
        }
    }

    #[test]
    fn unmeasured_costs_keep_the_published_figure_with_a_reason() {
        let c = calibration(|what| match what {
            CostKind::Syscall => Ok(80.0),
            _ => Err("this process has one CPU; two are needed".into()),
        });
        let text = of(&c, &host(), &[]);
        let m = Scenario::parse_machine("m.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let published = Costs::default();
        assert_eq!((m.costs.line, m.costs.path.switch_ns), (published.line, published.path.switch_ns));
        assert_eq!(m.costs.path.syscall_ns, 80);
        assert!(text.contains("socket_ns = 50 # not measured: this process has one CPU"), "{text}");
    }

    #[test]
    fn today_is_a_date() {
        let d = day();
        assert!(d.len() == 10 && d.as_str() > "2025-01-01", "{d}");
    }
}
