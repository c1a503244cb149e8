// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What things cost on this host: cache lines, system calls, wake-ups, interrupts, and our own block layer, in nanoseconds.
//!
//! Guarantees: what was measured has a median and quartiles. The samples of all probes are interleaved, so that a busy moment affects all
//! alike. What could not be measured has a reason. Every probe ends, whatever else the machine does. Needs from callers: a started clock
//! ([`crate::clock::start`]), and some seconds. Does not do: decide how a simulator uses the costs; change anything on the host.
//!
//! | module | what it measures |
//! |---|---|
//! | `line` | an atomic operation, and a cache line from another CPU |
//! | `kernel` | system calls, wake-ups, thread switches, a timer's interrupt, an IPI, a VM exit |
//! | `stack` | our block layer on the null device, its locks, and the job engine |

#[allow(unsafe_code, reason = "system calls")]
mod kernel;
mod line;
#[allow(unsafe_code, reason = "a raw lock that counts is an unsafe promise")]
mod stack;

use crate::clock;
use crate::process::{allowed_cpus, pin_thread};
use blk::cpumap::CpuTopology;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is measured. Nanoseconds all, but for [`CostKind::HandOver`]'s lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CostKind {
    /// An atomic operation on a line that is here.
    Atomic,
    /// A line from a thread of the same core.
    LineCore,
    /// A line from another core of the node.
    LineSocket,
    /// A line from another node.
    LineRemote,
    /// A system call that does nothing.
    Syscall,
    /// Waking a thread that sleeps on another CPU: the waker's part, without the system call's.
    Wakeup,
    /// From the end of the waker's system call until that thread runs.
    WakeupDelay,
    /// An interrupt that another CPU answers while it runs (membarrier).
    Ipi,
    /// From one thread to another on one CPU.
    Switch,
    /// An interrupt of a timer, entry to exit.
    Irq,
    /// Out of this virtual machine to its hypervisor and back.
    VmExit,
    /// Our block layer: a bio handed in, without locks.
    Submit,
    /// A request issued to the null device, without locks.
    Dispatch,
    /// A request completed, without locks.
    Complete,
    /// How long a lock of the block layer is held.
    Hold,
    /// What the turn of another CPU at the single queue costs beside the same work on one CPU.
    HandOver,
    /// The job engine's own work for an I/O.
    App,
}

impl CostKind {
    /// All of them, in the order in which they are told.
    pub const ALL: [CostKind; 17] = [
        CostKind::Atomic,
        CostKind::LineCore,
        CostKind::LineSocket,
        CostKind::LineRemote,
        CostKind::HandOver,
        CostKind::Syscall,
        CostKind::Wakeup,
        CostKind::WakeupDelay,
        CostKind::Switch,
        CostKind::Irq,
        CostKind::VmExit,
        CostKind::Ipi,
        CostKind::App,
        CostKind::Submit,
        CostKind::Dispatch,
        CostKind::Complete,
        CostKind::Hold,
    ];
}

/// What a cost came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Half of the samples are below.
    pub median: f64,
    /// A quarter is below.
    pub q1: f64,
    /// A quarter is above.
    pub q3: f64,
    /// Samples, each of many operations.
    pub samples: usize,
}

impl Figure {
    /// Of samples in any order; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Figure> {
        let mut s = samples.to_vec();
        s.sort_by(f64::total_cmp);
        let at = |part: f64| s.get(((s.len() - 1) as f64 * part).round() as usize).copied();
        if s.is_empty() {
            return None;
        }
        Some(Figure { median: at(0.5)?, q1: at(0.25)?, q3: at(0.75)?, samples: s.len() })
    }

    /// Distance of the quartiles relative to the median.
    pub fn spread(&self) -> f64 {
        (self.q3 - self.q1) / self.median.max(f64::MIN_POSITIVE)
    }
}

/// A cost: its figure or why there is none, and on which CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// What.
    pub what: CostKind,
    /// The CPUs it was measured on.
    pub cpus: Vec<u32>,
    /// The figure, or why it could not be measured.
    pub figure: Result<Figure, String>,
}

/// What came of it all.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// In the order of [`CostKind::ALL`].
    pub costs: Vec<Cost>,
    /// Rounds that were made.
    pub rounds: u32,
}

impl Calibration {
    /// One of the costs.
    pub fn of(&self, what: CostKind) -> &Cost {
        self.costs.iter().find(|c| c.what == what).expect("all are there")
    }
}

/// Where a probe puts its samples.
type Samples<'a> = dyn FnMut(CostKind, f64) + 'a;

/// Measures once, or says why it cannot be.
type Sample = dyn FnMut(&mut Samples<'_>) -> Result<(), String> + Send;

/// A way to measure one or several costs: each call gives a sample of each, within some milliseconds.
struct Probe {
    gives: Vec<CostKind>,
    cpus: Vec<u32>,
    run: Box<Sample>,
}

impl Probe {
    /// One cost, on one CPU, with a figure at each call.
    fn one(what: CostKind, cpu: u32, figure: fn() -> Result<f64, String>) -> Probe {
        let run = move |samples: &mut Samples<'_>| {
            samples(what, figure()?);
            Ok(())
        };
        Probe { gives: vec![what], cpus: vec![cpu], run: Box::new(run) }
    }
}

/// Minimum number of rounds, however little time there is.
const ROUNDS_MIN: u32 = 5;

/// Measures for about `seconds`, or until `stop`. `progress` is told the share that is done.
///
/// # Errors
/// This process may not be pinned to its CPUs.
pub fn run(
    topology: &CpuTopology,
    seconds: f64,
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(f64) + Send),
) -> crate::error::Result<Calibration> {
    let cpus = allowed_cpus();
    let first = cpus[0];
    // Measure on a separate thread, so that the caller's thread keeps its CPUs.
    std::thread::scope(|s| {
        let measuring = s.spawn(move || {
            pin_thread(&[first])?;
            Ok(measure(topology, &cpus, seconds, stop, progress))
        });
        measuring.join().expect("a probe does not panic")
    })
}

fn measure(
    topology: &CpuTopology,
    cpus: &[u32],
    seconds: f64,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(f64),
) -> Calibration {
    let first = cpus[0];
    let pairs = line::pairs(topology, cpus);
    // The nearest other CPU that is not of the same core, or else any.
    let other = pairs.socket.or(pairs.remote).or(pairs.core);
    let mut probes = line::probes(first, &pairs);
    probes.extend(kernel::probes(first, other));
    probes.extend(stack::probes(first, other));
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); CostKind::ALL.len()];
    let mut broken: Vec<Option<String>> = vec![None; probes.len()];
    let place = |what: CostKind| CostKind::ALL.iter().position(|w| *w == what).expect("listed");
    let begun = clock::now();
    let elapsed = || clock::now().since(begun).as_ns() as f64 / 1e9;
    let mut rounds = 0;
    while (rounds < ROUNDS_MIN || elapsed() < seconds) && !stop.load(Ordering::Relaxed) {
        for (i, probe) in probes.iter_mut().enumerate() {
            if broken[i].is_some() {
                continue;
            }
            // A round that failed has given nothing.
            let mut got = Vec::new();
            match (probe.run)(&mut |what, ns| got.push((what, ns))) {
                Ok(()) => got.into_iter().for_each(|(what, ns)| samples[place(what)].push(ns)),
                Err(why) => broken[i] = Some(why),
            }
        }
        rounds += 1;
        progress((elapsed() / seconds).min(1.0));
    }
    let cost = |what: CostKind| {
        let by = probes.iter().position(|p| p.gives.contains(&what));
        let why = by.map_or_else(
            || pairs.why_not(what),
            |i| {
                broken[i]
                    .clone()
                    .unwrap_or_else(|| "other programs used the CPUs, or the calibration was suspended".into())
            },
        );
        Cost {
            what,
            cpus: by.map_or(Vec::new(), |i| probes[i].cpus.clone()),
            figure: Figure::of(&samples[place(what)]).ok_or(why),
        }
    };
    Calibration { costs: CostKind::ALL.into_iter().map(cost).collect(), rounds }
}

/// Time of `n` operations each, nanoseconds.
fn per_op(n: u32, mut op: impl FnMut()) -> f64 {
    let begun = clock::now();
    for _ in 0..n {
        op();
    }
    clock::now().since(begun).as_ns() as f64 / f64::from(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_the_samples() {
        let f = Figure::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((f.median, f.q1, f.q3, f.samples), (3.0, 2.0, 4.0, 5));
        assert!((f.spread() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(Figure::of(&[]), None);
    }

    #[test]
    fn all_is_measured_or_explained() {
        clock::start();
        let n = allowed_cpus().len() as u16;
        let topology = CpuTopology::uniform(n);
        let stop = AtomicBool::new(false);
        let c = run(&topology, 0.0, &stop, &mut |_| {}).expect("pinned");
        assert_eq!(c.costs.iter().map(|c| c.what).collect::<Vec<_>>(), CostKind::ALL);
        for cost in &c.costs {
            match &cost.figure {
                Ok(f) => assert!(f.q1 >= 0.0 && f.q3 < 1e9 && f.samples > 0 && !cost.cpus.is_empty(), "{cost:?}"),
                Err(why) => assert!(why.len() > 10, "{cost:?}"),
            }
        }
        for what in
            [CostKind::Atomic, CostKind::Syscall, CostKind::Submit, CostKind::Complete, CostKind::Hold, CostKind::App]
        {
            assert!(c.of(what).figure.is_ok(), "{:?}", c.of(what));
        }
    }

    #[test]
    fn on_one_cpu_what_takes_two_is_explained() {
        clock::start();
        let stop = AtomicBool::new(false);
        let cpus = [allowed_cpus()[0]];
        let c = std::thread::scope(|s| {
            s.spawn(|| measure(&CpuTopology::uniform(1), &cpus, 0.0, &stop, &mut |_| {})).join().unwrap()
        });
        for what in [CostKind::LineSocket, CostKind::Wakeup, CostKind::WakeupDelay, CostKind::Ipi, CostKind::HandOver] {
            let why = c.of(what).figure.as_ref().expect_err("one CPU");
            assert!(why.contains("one CPU"), "{what:?}: {why}");
        }
        assert!(c.of(CostKind::Syscall).figure.is_ok());
    }
}
