// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the machine before anything is tuned: caps and burst credits of the device, a load generator that is the
//! bottleneck, a device that does not settle.
//!
//! A cap is a plateau that neither depth nor block size changes, while the job threads have CPU time left. Reads are measured
//! at two depths. With an IOPS cap, reads of 4 KiB and 16 KiB have the same I/Os per second. With a bandwidth cap, reads of
//! 256 KiB and 1 MiB have the same bytes per second. The settings of the probe let both depths through, so that a plateau is
//! not theirs. A burst credit is the content of a token bucket at the start. A line through the second half of a run's
//! progress, extended to time zero, lies above zero by the credit, whatever the shape of the first half.
//!
//! Guarantees: only reads. Caps are those under the recommended settings, if there are any. The credit is measured first,
//! on a rested device, under today's settings. Does not: distinguish a configured cap from the limit of the device, because
//! both give the same plateau. It does not detect a credit that was used up before, or one that lasts longer than the probe;
//! credits of cloud disks may last half an hour.

use serde::{Deserialize, Serialize};

use super::bench::{Ask, Length, Load, Reading, Snapshot};
use super::journal::{Halt, Recorder, Tried, TunePlan};
use super::point::Point;
use crate::report::num::{self, RATE_DIGITS, Scale};
use crate::steady::Steadiness;

/// CPU time of the job threads, in percent of one CPU each, from which they are the bottleneck.
const BUSY_PERCENT: f64 = 90.0;
/// Two rates that differ by less than this share form a plateau.
const PLATEAU: f64 = 0.05;
/// Seconds of a probe.
const PROBE_SECONDS: f64 = 1.0;
/// Seconds of the first probe, which looks for a credit.
const CREDIT_SECONDS: f64 = 2.4;
/// Share of the budget that the probes may use.
const PROBE_SHARE: f64 = 0.10;
/// A smaller credit, in seconds at the base rate, is only the effect of the queue filling up.
const CREDIT_MIN_SECONDS: f64 = 0.05;

/// Whose settings a probe ran under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbedSettings {
    /// The default of the tuning.
    Today,
    /// The recommendation.
    Recommended,
}

impl std::fmt::Display for ProbedSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ProbedSettings::Today => "today's settings",
            ProbedSettings::Recommended => "the recommended settings",
        })
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "finding")]
pub enum Finding {
    /// The job threads use up their CPUs.
    CpuBound {
        /// CPU time in percent of one CPU each.
        percent: f64,
    },
    /// The default's results drift or jump.
    NotSteady {
        /// The figures.
        steadiness: Steadiness,
    },
    /// The device does no more I/Os per second than this, at any depth.
    IopsCap {
        /// I/Os per second.
        iops: f64,
        /// The settings of the probes.
        under: ProbedSettings,
    },
    /// The device moves no more bytes per second than this, at any depth.
    BandwidthCap {
        /// Bytes per second.
        bytes_per_second: f64,
        /// The settings of the probes.
        under: ProbedSettings,
    },
    /// The rate falls from a burst rate to a base rate.
    Burst {
        /// I/Os per second at the burst rate.
        burst: f64,
        /// I/Os per second at the base rate.
        base: f64,
        /// I/Os that the device does beyond the base rate after a pause.
        credit: f64,
        /// Seconds until the credit is used up at full load.
        seconds: f64,
        /// Seconds of a full run of the jobs.
        run_seconds: f64,
    },
}

fn iops(rate: f64) -> String {
    num::short(rate.round() as u64, RATE_DIGITS, Scale::Decimal, " IOPS")
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::CpuBound { percent } => {
                write!(f, "the load generator is the bottleneck: job threads use {percent:.0}% of their CPUs")
            }
            Finding::NotSteady { steadiness: s } => write!(
                f,
                "the device is not in steady state: with the default settings the goal's metric drifts by {:+.1}%, the worst \
                 run is {:.1}% off the mean",
                100.0 * s.drift,
                100.0 * s.deviation
            ),
            Finding::IopsCap { iops: cap, under } => write!(
                f,
                "the device is capped at {} under {under}: reads of 4 and 16 KiB reach it at two depths",
                iops(*cap)
            ),
            Finding::BandwidthCap { bytes_per_second, under } => write!(
                f,
                "the device is capped at {} under {under}: reads of 256 KiB and 1 MiB reach it at two depths",
                num::bytes_per_second(bytes_per_second.round() as u64, Scale::Binary)
            ),
            Finding::Burst { burst, base, credit, seconds, .. } => write!(
                f,
                "the device bursts under today's settings: {} at first, {} after {}; its credit is about {credit:.0} I/Os \
                 beyond the base rate",
                iops(*burst),
                iops(*base),
                num::latency(seconds * 1e9)
            ),
        }
    }
}

impl Finding {
    /// What to do about it.
    pub fn advice(&self) -> String {
        match self {
            Finding::CpuBound { .. } => {
                "this tunes CPU cost, not the device: add jobs (numjobs) on other CPUs, or minimize cpu".to_owned()
            }
            Finding::NotSteady { .. } => {
                "let it settle first (ramp_time), stop other load, or make runs longer".to_owned()
            }
            Finding::IopsCap { .. } => {
                "more depth does not raise it; a lower depth lowers latency, merging helps small sequential I/O"
                    .to_owned()
            }
            Finding::BandwidthCap { .. } => {
                "more depth does not raise it; a lower depth lowers latency at the same rate".to_owned()
            }
            Finding::Burst { seconds, run_seconds, .. } => format!(
                "runs of {} start in the burst: set ramp_time={:.1}s to measure the base rate, or 0 for bursts",
                num::latency(run_seconds * 1e9),
                (2.0 * seconds).max(0.1)
            ),
        }
    }
}

/// Seconds of all probes together, by the clock of the jobs.
const PROBES_SECONDS: f64 = CREDIT_SECONDS + 6.0 * PROBE_SECONDS;

/// Real seconds that the probes take, if the budget allows them; `first` has shown how much of it a virtual second costs.
pub fn probes_seconds(plan: &TunePlan, first: &Reading) -> Option<f64> {
    let pace = first.virtual_seconds.filter(|s| *s > 0.0).map_or(1.0, |s| first.seconds / s);
    Some(PROBES_SECONDS * pace).filter(|s| *s <= PROBE_SHARE * plan.budget_seconds)
}

/// Looks for a burst credit under today's settings, before other runs use it up.
pub fn probe_credit(rec: &mut Recorder<'_>, plan: &TunePlan, first: &Reading) -> Result<Option<Finding>, Halt> {
    rec.status.phase = "probing the device's credit".to_owned();
    let load = Load { block_bytes: 4096, iodepth: 64, seconds: CREDIT_SECONDS };
    let run = probe(rec, plan, &Point::default(), load)?;
    Ok(run.and_then(|r| burst(&r.moments, first.own_seconds())))
}

/// Looks for caps of the device under the settings of `point`.
pub fn probe_caps(rec: &mut Recorder<'_>, plan: &TunePlan, point: &Point, seconds: f64) -> Result<Vec<Finding>, Halt> {
    rec.status.phase = "probing the device's limits".to_owned();
    let Some(loads) = cap_loads(plan, point) else { return Ok(Vec::new()) };
    let (mut readings, mut simulating) = (Vec::new(), 0.0);
    for (block_bytes, iodepth) in loads {
        // A probe has a greater depth than the jobs, so it may be slower to simulate than expected.
        let Some(reading) = probe(rec, plan, point, Load { block_bytes, iodepth, seconds: PROBE_SECONDS })? else {
            return Ok(Vec::new());
        };
        simulating += reading.virtual_seconds.map_or(0.0, |_| reading.seconds);
        readings.push(reading);
        if simulating > seconds.max(PROBE_SHARE * plan.budget_seconds) {
            return Ok(Vec::new());
        }
    }
    let under = if point.is_empty() { ProbedSettings::Today } else { ProbedSettings::Recommended };
    Ok(caps(&readings, under))
}

/// Runs one probe; `None` if the bench does not support it, or the device is too small for it.
fn probe(rec: &mut Recorder<'_>, plan: &TunePlan, point: &Point, load: Load) -> Result<Option<Reading>, Halt> {
    let ask = Ask { point: point.clone(), length: Length::Short, load: Some(load), entropy: plan.seed };
    Ok(match rec.measure(ask)? {
        Tried::Read(reading) if reading.errors == 0 => Some(*reading),
        _ => None,
    })
}

/// Block sizes and depths of the probes for caps: three of small reads, three of large ones. A plateau between two depths
/// means something only if the settings let both through, so the tags bound the depths, and so do the pieces of a large read.
/// `None` if there are too few tags.
fn cap_loads(plan: &TunePlan, point: &Point) -> Option<[(u32, u32); 6]> {
    let value = |name: &str| {
        let today = || plan.today.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        point.get(name).or_else(today)?.parse::<u32>().ok()
    };
    let depths = ["queue_depth", "lun_queue_depth", "nr_requests"];
    let tags = depths.into_iter().filter_map(value).min().unwrap_or(u32::MAX);
    let piece = value("max_sectors_kb").map_or(u32::MAX, |kb| kb << 10);
    let of = |bytes: u32, depth: u32, tags: u32| (bytes, depth.min(tags / bytes.div_ceil(piece)));
    let loads = [
        of(4096, 64, tags / 2),
        of(4096, 256, tags),
        of(16 << 10, 256, tags),
        of(256 << 10, 64, tags / 2),
        of(1 << 20, 64, tags / 2),
        of(1 << 20, 128, tags),
    ];
    loads.iter().all(|(_, depth)| *depth > 0).then_some(loads)
}

/// Derives caps from the readings of the probes, which are in the order of the loads.
fn caps(readings: &[Reading], under: ProbedSettings) -> Vec<Finding> {
    let mut found = Vec::new();
    let idle = |r: &Reading| r.job_cpu_percent.is_none_or(|p| p < BUSY_PERCENT);
    let plateau = |which: &[usize], index: usize| {
        let rates: Option<Vec<f64>> =
            which.iter().map(|&i| tail_rate(&readings[i].moments).map(|r| [r.0, r.1][index])).collect();
        let rates = rates.filter(|_| which.iter().all(|&i| idle(&readings[i])))?;
        let (low, high) = rates.iter().fold((f64::INFINITY, 0.0f64), |(l, h), r| (l.min(*r), h.max(*r)));
        (low > 0.0 && high / low < 1.0 + PLATEAU).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    };
    found.extend(plateau(&[0, 1, 2], 0).map(|iops| Finding::IopsCap { iops, under }));
    let bandwidth = plateau(&[3, 4, 5], 1);
    found.extend(bandwidth.map(|bytes_per_second| Finding::BandwidthCap { bytes_per_second, under }));
    found
}

/// Fits a least-squares line to the progress over the second half. Returns I/Os and bytes per second, and the credit.
fn tail_rate(moments: &[Snapshot]) -> Option<(f64, f64, f64)> {
    let end = moments.last()?.at;
    let tail: Vec<&Snapshot> = moments.iter().filter(|m| m.at >= end / 2.0).collect();
    if tail.len() < 4 {
        return None;
    }
    let n = tail.len() as f64;
    let mean = |of: &dyn Fn(&Snapshot) -> f64| tail.iter().map(|m| of(m)).sum::<f64>() / n;
    let t = mean(&|m| m.at);
    let tt: f64 = tail.iter().map(|m| (m.at - t).powi(2)).sum();
    let slope = |of: &dyn Fn(&Snapshot) -> f64| {
        let y = mean(of);
        tail.iter().map(|m| (m.at - t) * (of(m) - y)).sum::<f64>() / tt
    };
    let ios = slope(&|m| m.ios as f64);
    let at_zero = mean(&|m| m.ios as f64) - ios * t;
    Some((ios, slope(&|m| m.bytes as f64), at_zero)).filter(|r| r.0 > 0.0)
}

/// A burst in a run's progress.
fn burst(moments: &[Snapshot], run_seconds: f64) -> Option<Finding> {
    let (base, _, credit) = tail_rate(moments)?;
    if credit < CREDIT_MIN_SECONDS * base {
        return None;
    }
    // The credit is used up where the progress meets the line of the base rate, within a hundredth of the credit.
    let over = |m: &&Snapshot| m.ios as f64 >= credit * 0.99 + base * m.at;
    let spent = moments.iter().find(over).map_or(0.0, |m| m.at);
    let steps = moments.windows(2).filter(|w| w[1].at > w[0].at);
    let fastest = steps.map(|w| (w[1].ios - w[0].ios) as f64 / (w[1].at - w[0].at)).fold(0.0, f64::max);
    let head = moments.iter().find(|m| m.at > 0.0).map_or(0.0, |m| m.ios as f64 / m.at);
    Some(Finding::Burst { burst: fastest.max(head), base, credit, seconds: spent, run_seconds })
}

/// Derives findings from the runs with the default settings.
pub fn of_baseline(plan: &TunePlan, first: &Reading, readings: &[Reading]) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(percent) = first.job_cpu_percent.filter(|p| *p >= BUSY_PERCENT) {
        found.push(Finding::CpuBound { percent });
    }
    let series: Vec<f64> = readings.iter().filter_map(|r| r.get(&plan.goal.metric)).collect();
    if let Some(steadiness) = Steadiness::of(&series).filter(|s| !s.is_steady()) {
        found.push(Finding::NotSteady { steadiness });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::bench::{Bench, BenchError};
    use crate::tune::journal::NoWatch;
    use crate::tune::objective::{Goal, MetricId};
    use crate::tune::point::Knob;

    /// Progress of a token bucket of `credit` I/Os that drains at `burst` and refills at `base`, every 20 ms.
    fn bucket(burst: f64, base: f64, credit: f64, bytes: u64, seconds: f64) -> Reading {
        let ends = credit / (burst - base).max(1e-9);
        let ios = |t: f64| if t < ends { burst * t } else { credit + base * t };
        let moments = (1..=(seconds * 50.0) as u64).map(|i| i as f64 / 50.0);
        let of = |at| Snapshot { at, ios: ios(at) as u64, bytes: ios(at) as u64 * bytes };
        Reading { moments: moments.map(of).collect(), job_cpu_percent: Some(20.0), ..Reading::default() }
    }

    #[test]
    fn burst_base_and_credit_are_told() {
        let r = bucket(20_000.0, 5_000.0, 6_000.0, 4096, 2.4);
        let Some(Finding::Burst { burst: b, base, credit, seconds, .. }) = burst(&r.moments, 1.0) else { panic!() };
        assert!((b / 20_000.0 - 1.0).abs() < 0.01 && (base / 5_000.0 - 1.0).abs() < 0.01, "{b} {base}");
        assert!((credit / 6_000.0 - 1.0).abs() < 0.02 && (seconds - 0.4).abs() < 0.03, "{credit} {seconds}");
        assert_eq!(burst(&bucket(5_000.0, 5_000.0, 0.0, 4096, 2.4).moments, 1.0), None);
        assert_eq!(burst(&[], 1.0), None);
    }

    /// A simulator whose real time is a multiple of the virtual time: a thousandth, or a hundred.
    struct Simulator(f64);

    impl Bench for Simulator {
        fn jobs(&self) -> Vec<String> {
            vec!["a".into()]
        }

        fn knobs(&self) -> Vec<Knob> {
            Vec::new()
        }

        fn rules(&self) -> Vec<(String, Point)> {
            Vec::new()
        }

        fn seconds(&self, _: Length) -> Option<f64> {
            None
        }

        fn check(&self, _: &Point) -> Result<(), String> {
            Ok(())
        }

        fn run(&mut self, ask: &Ask, _: &[MetricId]) -> Result<Reading, BenchError> {
            let seconds = ask.load.map_or(2.0, |l| l.seconds);
            let timed = |r| Reading { seconds: self.0 * seconds, virtual_seconds: Some(seconds), ..r };
            Ok(timed(bucket(20_000.0, 5_000.0, 6_000.0, 4096, seconds)))
        }
    }

    fn plan() -> TunePlan {
        TunePlan {
            goal: Goal::parse(true, "a.iops", &["a".to_owned()]).unwrap(),
            keeps: Vec::new(),
            knobs: Vec::new(),
            without_effect: Vec::new(),
            today: Vec::new(),
            rules: Vec::new(),
            base: Vec::new(),
            target: "sim:m.toml".into(),
            behind: None,
            seed: 1,
            budget_seconds: 10.0,
            detect: 0.03,
            run_seconds: None,
            job: String::new(),
        }
    }

    #[test]
    fn simulator_probes_cost_real_time_and_report_virtual_time() {
        let plan = plan();
        for (pace, found) in [(1e-3, true), (100.0, false)] {
            let (mut bench, mut out) = (Simulator(pace), Vec::new());
            let ask = Ask { point: Point::default(), length: Length::Full, load: None, entropy: 1 };
            let first = bench.run(&ask, &[]).unwrap();
            let mut unwatched = NoWatch;
            let mut rec = Recorder::new(&mut bench, &mut unwatched, &mut out, Vec::new(), &plan);
            let seconds = probes_seconds(&plan, &first);
            assert_eq!(seconds.is_some(), found, "{pace}");
            if let Some(seconds) = seconds {
                let Some(Finding::Burst { run_seconds, .. }) = probe_credit(&mut rec, &plan, &first).unwrap() else {
                    panic!("no burst");
                };
                assert_eq!(run_seconds, 2.0);
                let caps = probe_caps(&mut rec, &plan, &Point::of(&[("nomerges", "2")]), seconds).unwrap();
                assert!(caps.iter().any(|c| c.to_string().contains("IOPS under the recommended settings")), "{caps:?}");
            }
        }
    }

    /// Four tags look like a cap if both depths of a probe are above four.
    #[test]
    fn probes_of_caps_fit_into_the_tags() {
        let depths = |depth: &str, piece: &str| {
            let today = [("queue_depth", "1024"), ("nr_requests", depth), ("max_sectors_kb", piece)];
            let today = today.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            cap_loads(&TunePlan { today, ..plan() }, &Point::default()).map(|l| l.map(|(_, depth)| depth))
        };
        assert_eq!(depths("1024", "4096"), Some([64, 256, 256, 64, 64, 128]));
        assert_eq!(depths("64", "1024"), Some([32, 64, 64, 32, 32, 64]));
        assert_eq!(depths("64", "256"), Some([32, 64, 64, 32, 8, 16]), "a read of 1 MiB is four requests");
        assert_eq!((depths("1", "1024"), depths("4", "64")), (None, None), "too few tags");
        let more = Point::of(&[("nr_requests", "512")]);
        let today = vec![("nr_requests".to_owned(), "4".to_owned())];
        assert_eq!(cap_loads(&TunePlan { today, ..plan() }, &more).unwrap()[1], (4096, 256));
    }

    #[test]
    fn caps_are_plateaus_with_cpu_to_spare() {
        let probes = |iops: f64, bw: f64| -> Vec<Reading> {
            let loads = [4096u64, 4096, 16 << 10, 256 << 10, 1 << 20, 1 << 20];
            let of = |bytes: u64| {
                let rate = iops.min(bw / bytes as f64);
                bucket(rate, rate, 0.0, bytes, 2.0)
            };
            loads.into_iter().map(of).collect()
        };
        let found = caps(&probes(5_000.0, 100e6), ProbedSettings::Today);
        let text: Vec<String> = found.iter().map(Finding::to_string).collect();
        assert!(text.len() == 2 && text[0].contains("5000 IOPS") && text[1].contains("95.4MiB/s"), "{text:?}");
        // A device of 100 MB/s without an IOPS cap: it does a quarter as many 16 KiB reads as 4 KiB reads.
        assert!(matches!(caps(&probes(1e6, 100e6), ProbedSettings::Today)[..], [Finding::BandwidthCap { .. }]));
        let mut busy = probes(5_000.0, 1e12);
        busy.iter_mut().for_each(|r| r.job_cpu_percent = Some(99.0));
        assert_eq!(caps(&busy, ProbedSettings::Today), []);
    }
}
