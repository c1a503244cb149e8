// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reasons why a comparison may mean less than it seems, each with a remedy.
//!
//! Guarantees: one line states the fact ([`std::fmt::Display`]) and one the remedy ([`Warning::advice`]). Does not: change
//! a verdict.

use serde::{Deserialize, Serialize};

use crate::plan::Side;
use crate::setup::Setup;
use crate::stage::{StageFacts, StageTimes};
use crate::steady::Steadiness;

/// Share of one CPU per job thread from which the submitters count as saturated.
pub const SATURATED_CPU_PERCENT: f64 = 95.0;
/// Share of the device stage below which the device is not the bottleneck.
pub const SMALL_DEVICE_SHARE: f64 = 0.5;

/// A reason to doubt a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "warning")]
pub enum Warning {
    /// The job threads use all their CPU and requests spend little time in the device.
    LoadGenerator {
        /// The side.
        side: Side,
        /// CPU time of the job threads in percent of one CPU each.
        cpu_percent: f64,
        /// Share of the device stage, percent.
        device_percent: f64,
    },
    /// The primary metric drifts or jumps from run to run.
    NotSteady {
        /// The side.
        side: Side,
        /// The figures.
        steadiness: Steadiness,
    },
    /// Few pairs.
    FewPairs {
        /// Pairs run.
        pairs: u32,
    },
    /// Rate x latency and the number in flight disagree.
    Little {
        /// The side.
        side: Side,
        /// Measured number in flight over the expected one, minus 1.
        error: f64,
    },
    /// Reading the kernel's clock takes a system call or slow hardware.
    SlowClock {
        /// Its name.
        clocksource: String,
    },
    /// CPUs change their frequency with load.
    Governor {
        /// Its name.
        governor: String,
    },
    /// More busy threads than CPUs.
    Oversubscribed {
        /// Job threads and reactors.
        threads: u32,
        /// CPUs this process may use.
        cpus: u32,
    },
    /// The sides differ in something that the model of the simulated disk does not have.
    NotModelled {
        /// What it is, and what to measure.
        reason: String,
    },
    /// I/Os failed; fast failures look like fast I/O.
    Errors {
        /// The side.
        side: Side,
        /// Failed I/Os over all runs.
        errors: u64,
    },
    /// Blocks read back did not hold what was written.
    BadData {
        /// The side.
        side: Side,
        /// Bad blocks over all runs.
        blocks: u64,
    },
}

impl Warning {
    /// Returns the remedy.
    pub const fn advice(&self) -> &'static str {
        match self {
            Warning::LoadGenerator { .. } => {
                "this compares CPU cost, not the device: add jobs (numjobs) on other CPUs, or compare CPU per I/O"
            }
            Warning::NotSteady { .. } => {
                "let the device settle first (ramp_time, more warm-up runs), stop other load, or make runs longer"
            }
            Warning::FewPairs { .. } => {
                "run 12 pairs or more (14 for three sides, 20 for sixteen): fewer may all agree by chance"
            }
            Warning::Little { .. } => {
                "latency may omit waiting before submission, or the queue was not full: check iodepth, thinktime and rate"
            }
            Warning::SlowClock { .. } => {
                "timestamps cost more than the I/O path here; prefer tsc or kvm-clock if the machine offers it"
            }
            Warning::Governor { .. } => "set the governor to performance during the test",
            Warning::Oversubscribed { .. } => "results measure the CPU scheduler too: use fewer jobs or more CPUs",
            Warning::NotModelled { .. } => {
                "measure it, or describe it in the machine file; these figures prove nothing"
            }
            Warning::Errors { .. } => "fix the cause first; a side that fails quickly is not fast",
            Warning::BadData { .. } => "find the cause first; mqblk run with the side's settings lists the blocks",
        }
    }

    /// Warnings from one side's totals. `cpu_percent`: CPU time of the job threads in percent of one CPU each, mean over the runs.
    pub fn of_side(side: Side, facts: Option<&StageFacts>, cpu_percent: Option<f64>) -> Vec<Warning> {
        let mut found = Vec::new();
        let Some(facts) = facts else { return found };
        if let Some(cpu_percent) = cpu_percent.filter(|c| *c >= SATURATED_CPU_PERCENT)
            && let Some(device) = facts.times.shares()[StageTimes::DEVICE].filter(|d| *d < SMALL_DEVICE_SHARE)
        {
            found.push(Warning::LoadGenerator { side, cpu_percent, device_percent: device * 100.0 });
        }
        if let Some(little) = facts.little.filter(|l| !l.holds()) {
            found.push(Warning::Little { side, error: little.error() });
        }
        found
    }

    /// Warnings from one side's errors: I/Os that failed and blocks that did not verify (`verify_errors` of `errors`).
    pub fn of_errors(side: Side, errors: u64, verify_errors: u64) -> Vec<Warning> {
        let failed = errors.saturating_sub(verify_errors);
        let failed = (failed > 0).then_some(Warning::Errors { side, errors: failed });
        let bad = (verify_errors > 0).then_some(Warning::BadData { side, blocks: verify_errors });
        failed.into_iter().chain(bad).collect()
    }

    /// Warnings from the machine. `threads`: busy threads of a run (jobs and reactors).
    pub fn of_setup(setup: &Setup, threads: u32) -> Vec<Warning> {
        let mut found = Vec::new();
        // Virtual times do not depend on this machine.
        if !setup.simulated.is_empty() {
            return found;
        }
        if let Some(clocksource) = setup.clocksource.as_deref().filter(|c| !FAST_CLOCKS.contains(c)) {
            found.push(Warning::SlowClock { clocksource: clocksource.to_owned() });
        }
        if let Some(governor) = setup.governor.as_deref().filter(|g| *g != "performance") {
            found.push(Warning::Governor { governor: governor.to_owned() });
        }
        if threads > setup.cpus {
            found.push(Warning::Oversubscribed { threads, cpus: setup.cpus });
        }
        found
    }
}

/// Clocks that user space reads without entering the kernel.
const FAST_CLOCKS: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"];

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::LoadGenerator { side, cpu_percent, device_percent } => write!(
                f,
                "{side:?}: the load generator is the bottleneck (job threads {cpu_percent:.0}% CPU, device {device_percent:.0}% of the time)"
            ),
            Warning::NotSteady { side, steadiness: s } => {
                let (drift, worst) = (100.0 * s.drift, 100.0 * s.deviation);
                write!(
                    f,
                    "{side:?}: not steady (drift {drift:+.1}% over the comparison, worst run {worst:.1}% off the mean)"
                )
            }
            Warning::FewPairs { pairs } => write!(f, "only {pairs} pairs"),
            Warning::Little { side, error } => {
                write!(f, "{side:?}: Little's law does not hold: in flight {:+.1}% off rate x latency", 100.0 * error)
            }
            Warning::SlowClock { clocksource } => write!(f, "the clock source is {clocksource}, which is slow to read"),
            Warning::Governor { governor } => write!(f, "the CPU frequency governor is {governor}"),
            Warning::Oversubscribed { threads, cpus } => write!(f, "{threads} busy threads on {cpus} CPUs"),
            Warning::NotModelled { reason } => f.write_str(reason),
            Warning::Errors { side, errors } => write!(f, "{side:?}: {errors} I/Os failed"),
            Warning::BadData { side, blocks } => {
                write!(f, "{side:?}: {blocks} blocks do not hold what was written")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::little::Little;

    fn facts(device_ns: u64, little: Option<Little>) -> StageFacts {
        let times = StageTimes { ctx_ns: 100, device_ns, n: 1, ..StageTimes::default() };
        StageFacts { times, little, ..StageFacts::default() }
    }

    #[test]
    fn load_generator_needs_full_cpu_and_a_small_device_share() {
        let of = |f: &StageFacts, cpu| Warning::of_side(Side::B, Some(f), cpu);
        let hot = of(&facts(20, None), Some(99.4));
        assert_eq!(hot.len(), 1);
        let text = hot[0].to_string();
        assert_eq!(text, "B: the load generator is the bottleneck (job threads 99% CPU, device 17% of the time)");
        assert!(of(&facts(20, None), Some(80.0)).is_empty());
        assert!(of(&facts(2_000, None), Some(99.4)).is_empty());
        assert!(of(&facts(20, None), None).is_empty());
        assert!(of(&StageFacts::default(), Some(100.0)).is_empty(), "nothing measured is not a small share");
    }

    #[test]
    fn little_and_errors() {
        let off = facts(9_000, Little::new(20.0, 1e6, 32_000.0));
        let mut found = Warning::of_errors(Side::A, 3, 0);
        found.extend(Warning::of_side(Side::A, Some(&off), None));
        let text: Vec<String> = found.iter().map(Warning::to_string).collect();
        assert_eq!(text, ["A: 3 I/Os failed", "A: Little's law does not hold: in flight -37.5% off rate x latency"]);
        assert!(Warning::of_side(Side::A, Some(&facts(9_000, Little::new(32.0, 1e6, 32_000.0))), None).is_empty());
        let told = |errors, bad| {
            let found = Warning::of_errors(Side::B, errors, bad);
            found.iter().map(Warning::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(told(5, 5), "B: 5 blocks do not hold what was written");
        assert_eq!(told(5, 3), "B: 2 I/Os failed, B: 3 blocks do not hold what was written");
        assert_eq!(told(0, 0), "");
    }

    #[test]
    fn machine() {
        let mut setup = Setup { cpus: 2, clocksource: Some("kvm-clock".into()), ..Setup::default() };
        assert!(Warning::of_setup(&setup, 2).is_empty());
        setup.clocksource = Some("acpi_pm".into());
        setup.governor = Some("powersave".into());
        let found = Warning::of_setup(&setup, 3);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|w| !w.advice().is_empty()));
        assert_eq!(found[2].to_string(), "3 busy threads on 2 CPUs");
    }
}
