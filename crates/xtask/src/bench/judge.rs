// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns runs into figures with a spread, and figures into verdicts.
//!
//! Guarantees: a ratio is formed within a round (neighbours in time), and the result is the median over rounds. So a slow phase
//! of the machine cancels out. The median decides; the range is always shown beside it.

use serde::Serialize;

use super::job::Stall;
use super::rows::{Goal, Metric, Need, Row};
use super::sample::Sample;

/// The runs of one row.
pub struct Measured {
    /// The row that was measured.
    pub row: &'static Row,
    /// For each round the sides in the row's order.
    pub rounds: Vec<Vec<Sample>>,
}

/// Median and range of some values.
#[derive(Clone, Copy, Serialize, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Whether a goal was met.
#[derive(Clone, Copy, Serialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Met,
    Missed,
    Shown,
}

/// A goal with its figures.
#[derive(Clone, Serialize)]
pub struct Judgement {
    /// For example `mqblk / fio, IOPS`.
    pub figure: String,
    /// The goal in words.
    pub goal: String,
    #[serde(flatten)]
    pub spread: Spread,
    pub verdict: Verdict,
}

/// The names of [`Metric::Share`], one per path.
const SHARES: [&str; 4] = ["% by path 1", "% by path 2", "% by path 3", "% by path 4"];

impl Metric {
    /// The metric's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Iops => "IOPS",
            Metric::CpuPerIo => "CPU us per I/O",
            Metric::ProcessCpuPerIo => "process CPU us per I/O",
            Metric::AddedNs => "ns more per I/O",
            Metric::AddedNs32 => "ns more, batches of 32",
            Metric::Scaling => "two CPUs / one",
            Metric::PlainScaling => "two CPUs / one, plain",
            Metric::IdleCpu => "CPU %",
            Metric::Resident => "resident MB",
            Metric::P50 => "p50 us",
            Metric::P99 => "p99 us",
            Metric::Share(path) => SHARES[usize::from(path)],
            Metric::ReadMb => "read MB/s",
            Metric::WriteIops => "write IOPS",
            Metric::GapBefore => "longest gap before, ms",
            Metric::Gap => "longest gap, ms",
            Metric::GapBack => "longest gap when back, ms",
            Metric::Longest => "longest I/O, ms",
            Metric::Errors => "errors",
        }
    }

    fn of(self, sample: &Sample) -> f64 {
        let layers = sample.figures.layers;
        let paths = sample.figures.paths.as_ref();
        let stall = |of: fn(&Stall) -> Option<f64>| sample.figures.stall.as_ref().and_then(of).unwrap_or(f64::NAN);
        match self {
            Metric::Iops => sample.figures.iops,
            Metric::CpuPerIo => sample.figures.cpu_us_per_io,
            Metric::ProcessCpuPerIo => sample.process_cpu_s * 1e6 / sample.figures.total_ios as f64,
            Metric::AddedNs => layers.map_or(f64::NAN, |l| l.added_ns),
            Metric::AddedNs32 => layers.map_or(f64::NAN, |l| l.added_ns_32),
            Metric::Scaling => layers.map_or(f64::NAN, |l| l.scaling),
            Metric::PlainScaling => layers.map_or(f64::NAN, |l| l.plain_scaling),
            Metric::IdleCpu => sample.figures.idle.map_or(f64::NAN, |idle| idle.cpu_percent),
            Metric::Resident => sample.figures.idle.map_or(f64::NAN, |idle| idle.resident_mb),
            Metric::P50 => paths.map_or(f64::NAN, |p| p.p50_us),
            Metric::P99 => paths.map_or(f64::NAN, |p| p.p99_us),
            Metric::Share(path) => {
                paths.and_then(|p| p.share_percent.get(usize::from(path)).copied()).unwrap_or(f64::NAN)
            }
            Metric::ReadMb => sample.figures.mixed.map_or(f64::NAN, |m| m.read_mb),
            Metric::WriteIops => sample.figures.mixed.map_or(f64::NAN, |m| m.write_iops),
            Metric::GapBefore => stall(|s| Some(s.gap_before_ms as f64)),
            Metric::Gap => stall(|s| Some(s.gap_ms as f64)),
            Metric::GapBack => stall(|s| s.gap_back_ms.map(|ms| ms as f64)),
            Metric::Longest => stall(|s| Some(s.longest_ms)),
            Metric::Errors => stall(|s| Some(s.errors as f64)),
        }
    }
}

impl Spread {
    /// Makes the spread of at least one value.
    ///
    /// # Panics
    /// When `values` is empty.
    pub fn of(mut values: Vec<f64>) -> Spread {
        assert!(!values.is_empty(), "a spread needs a value");
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Spread { median, min: values[0], max: values[values.len() - 1] }
    }
}

impl Measured {
    /// Nothing measured yet.
    pub fn new(row: &'static Row) -> Measured {
        Measured { row, rounds: Vec::new() }
    }

    /// One side's metric over the rounds.
    pub fn spread(&self, side: &str, metric: Metric) -> Spread {
        Spread::of(self.values(side, metric))
    }

    /// Every goal of the row.
    pub fn judgements(&self) -> Vec<Judgement> {
        self.row.goals.iter().map(|goal| self.judge(goal)).collect()
    }

    fn judge(&self, goal: &Goal) -> Judgement {
        let values = match goal.to {
            Some(to) => self.ratios(goal.of, to, goal.metric),
            None => self.values(goal.of, goal.metric),
        };
        let spread = Spread::of(values);
        let (verdict, words) = self.verdict(goal, spread.median);
        let over = goal.to.map_or(String::new(), |to| format!(" / {to}"));
        Judgement { figure: format!("{}{over}, {}", goal.of, goal.metric.name()), goal: words, spread, verdict }
    }

    fn verdict(&self, goal: &Goal, value: f64) -> (Verdict, String) {
        let met = |yes: bool| if yes { Verdict::Met } else { Verdict::Missed };
        match goal.need {
            Need::AtLeast(bound) => (met(value >= bound), format!("at least {}", shown(bound))),
            Need::AtMost(bound) => (met(value <= bound), format!("at most {}", shown(bound))),
            Need::AtLeastOrPeer(bound, of, to) => {
                let peer = Spread::of(self.ratios(of, to, goal.metric)).median;
                let words = format!("at least {} or {of} / {to} = {}", shown(bound), shown(peer));
                (met(value >= bound.min(peer)), words)
            }
            Need::Within(part) => (met((value - 1.0).abs() <= part), format!("within {} of 1", shown(part))),
            Need::Shown => (Verdict::Shown, String::new()),
        }
    }

    fn values(&self, side: &str, metric: Metric) -> Vec<f64> {
        let samples = self.rounds.iter().flatten();
        let of_side = samples.filter(|sample| sample.side == side);
        of_side.map(|sample| metric.of(sample)).collect()
    }

    fn ratios(&self, of: &str, to: &str, metric: Metric) -> Vec<f64> {
        let pairs = self.values(of, metric).into_iter();
        let pairs = pairs.zip(self.values(to, metric));
        pairs.map(|(a, b)| a / b).collect()
    }
}

/// Formats a figure for comparison: `3.40`, `2.50 M`.
pub fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e4 => format!("{:.1} k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Figures;
    use super::super::rows;
    use super::*;

    fn sample(side: &'static str, iops: f64, cpu: f64) -> Sample {
        Sample {
            side,
            figures: Figures { iops, total_ios: 1, cpu_us_per_io: cpu, ..Figures::default() },
            process_cpu_s: 0.0,
            jobs: serde_json::Value::Null,
        }
    }

    fn row(name: &str) -> &'static Row {
        rows::all().find(|row| row.name == name).unwrap()
    }

    fn verdicts(name: &str, rounds: Vec<Vec<Sample>>) -> Vec<Verdict> {
        let measured = Measured { row: row(name), rounds };
        measured.judgements().iter().map(|j| j.verdict).collect()
    }

    #[test]
    fn the_median_of_even_and_odd_counts() {
        let want = |median, min, max| Spread { median, min, max };
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), want(2.0, 1.0, 3.0));
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 9.0]), want(3.0, 1.0, 9.0));
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        // The machine halves its speed in round two: the medians of the sides would say 2.
        let round = |ours, fio| vec![sample("mqblk", ours, 1.0), sample("fio", fio, 1.0)];
        let rounds = vec![round(8e6, 2e6), round(4e6, 1e6), round(8e6, 2e6)];
        let measured = Measured { row: row("null-qd32"), rounds };
        let judgement = &measured.judgements()[0];
        let want = Spread::of(vec![4.0]);
        assert_eq!((judgement.spread, judgement.verdict), (want, Verdict::Met));
        assert_eq!(judgement.figure, "mqblk / fio, IOPS");
    }

    #[test]
    fn bounds_are_met_at_the_bound_and_missed_beyond() {
        let file = |ours, cpu| vec![vec![sample("mqblk", ours, cpu), sample("fio", 100.0, 2.0)]];
        assert_eq!(verdicts("file-qd1", file(97.0, 2.0)), [Verdict::Met; 2]);
        assert_eq!(verdicts("file-qd1", file(96.9, 2.1)), [Verdict::Missed; 2]);
        let deadline = |ours| vec![vec![sample("mqblk", ours, 1.0), sample("fio", 1e6, 1.0)]];
        let want = [Verdict::Met, Verdict::Shown];
        assert_eq!(verdicts("mq-deadline", deadline(2.5e6)), want);
        assert_eq!(verdicts("mq-deadline", deadline(2.4e6))[0], Verdict::Missed);
    }

    #[test]
    fn scaling_is_held_to_the_peer_where_the_peer_is_lower() {
        let round = |mq2: f64, fio2: f64| {
            let iops = [1.0, mq2, 1.0, 1.0, 1.0, fio2];
            let names = ["mq-1", "mq-2", "sq-1", "sq-2", "fio-1", "fio-2"];
            let sides = names.into_iter().zip(iops);
            vec![sides.map(|(name, iops)| sample(name, iops, 1.0)).collect()]
        };
        assert_eq!(verdicts("scaling", round(1.7, 1.6))[0], Verdict::Met);
        assert_eq!(verdicts("scaling", round(1.7, 1.8))[0], Verdict::Missed);
        assert_eq!(verdicts("scaling", round(1.9, 2.0))[0], Verdict::Met);
    }

    #[test]
    fn figures_are_shown_in_units() {
        let all = [3.4, 8947.05, 97_000.0, 2.5e6].map(shown);
        assert_eq!(all, ["3.40", "8947", "97.0 k", "2.50 M"]);
    }
}
