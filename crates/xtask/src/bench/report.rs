// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table that is printed, and the file of raw figures against which it can be checked later.
//!
//! Guarantees: the file is rewritten after every round. It gets its final name only when it is complete, so an interrupted run keeps
//! what it measured. An earlier file is never overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::judge::{Judgement, Measured, Spread, Verdict, shown};
use super::rows::{Client, Metric, Program, Pull, Pulled, Row, Served, Side, Unequal};
use super::sample::Sample;
use super::setup::Setup;

/// The results of one call, in memory and on disk.
pub struct Results {
    path: PathBuf,
    content: Content,
}

#[derive(Serialize)]
struct Content {
    setup: Setup,
    rows: BTreeMap<&'static str, RowContent>,
}

#[derive(Serialize)]
struct RowContent {
    title: &'static str,
    judgements: Vec<Judgement>,
    rounds: Vec<Vec<Sample>>,
}

impl Results {
    /// Chooses a name below `directory` that no file has yet. `kind` begins the name: it says what the figures may be used for.
    ///
    /// # Errors
    /// When a thousand names of this day and commit are taken.
    pub fn create(directory: &Path, kind: &str, setup: Setup) -> Result<Results, String> {
        let name = format!("{kind}-{}-{}", setup.date, setup.commit);
        let numbered = (2..1000).map(|n| format!("{name}-{n}.json"));
        let path = std::iter::once(format!("{name}.json"))
            .chain(numbered)
            .map(|name| directory.join(name))
            .find(|path| !path.exists())
            .ok_or_else(|| format!("too many results of one commit in {}", directory.display()))?;
        let rows = BTreeMap::new();
        let content = Content { setup, rows };
        Ok(Results { path, content })
    }

    /// Where the results are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stores what is measured of a row so far, and writes the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep(&mut self, measured: &Measured) -> Result<(), String> {
        let row = RowContent {
            title: measured.row.title,
            judgements: measured.judgements(),
            rounds: measured.rounds.clone(),
        };
        self.content.rows.insert(measured.row.name, row);
        let text =
            serde_json::to_string(&self.content).map_err(|e| format!("results cannot be written as JSON: {e}"))?;
        let part = self.path.with_extension("part");
        let failed = |e| format!("cannot write {}: {e}", self.path.display());
        fs::write(&part, text + "\n").map_err(failed)?;
        fs::rename(&part, &self.path).map_err(failed)
    }

    /// How many goals are missed so far.
    pub fn missed(&self) -> usize {
        let rows = self.content.rows.values();
        let judgements = rows.flat_map(|row| &row.judgements);
        judgements.filter(|j| j.verdict == Verdict::Missed).count()
    }
}

/// Prints one row. `judged` adds the verdicts.
pub fn print(measured: &Measured, judged: bool) {
    let row = measured.row;
    println!("\n{}: {} (n = {})", row.name, row.title, measured.rounds.len());
    let judgements = measured.judgements();
    let names = row.sides.iter().flat_map(|side| metrics(row, side).into_iter().map(|m| figure_name(side, m)));
    let figures = judgements.iter().map(|j| j.figure.clone());
    let width = names.chain(figures).map(|name| name.len()).max().unwrap_or(0).max(28);
    println!("  {:<width$} {:>10} {:>10} {:>10}", "", "median", "min", "max");
    // The goals of a row of layers already show all of its figures.
    for side in row.sides.iter().filter(|side| side.program != Program::Layers) {
        for metric in metrics(row, side) {
            let [median, min, max] = shown_spread(measured.spread(side.name, metric));
            println!("  {:<width$} {median:>10} {min:>10} {max:>10}", figure_name(side, metric));
        }
    }
    for judgement in judgements {
        let verdict = match judgement.verdict {
            Verdict::Met if judged => format!("   {}: met", judgement.goal),
            Verdict::Missed if judged => format!("   {}: MISSED", judgement.goal),
            _ => String::new(),
        };
        let [median, min, max] = shown_spread(judgement.spread);
        let figure = judgement.figure;
        println!("  {figure:<width$} {median:>10} {min:>10} {max:>10}{verdict}");
    }
    for doubt in doubts(measured) {
        println!("  warning: {doubt}");
    }
}

/// The metrics that are printed of a side, in addition to those of the goals.
fn metrics(row: &Row, side: &Side) -> Vec<Metric> {
    let whole = row.goals.iter().any(|goal| goal.metric == Metric::ProcessCpuPerIo);
    match side.program {
        Program::Served(Served { client: Client::Idle { .. }, .. }) => vec![Metric::IdleCpu, Metric::Resident],
        Program::Unequal(Unequal { paths, .. }) => {
            [Metric::Iops, Metric::P50, Metric::P99].into_iter().chain((0..paths).map(Metric::Share)).collect()
        }
        Program::Pull(Pull { what: Pulled::Dropped, .. }) => vec![Metric::GapBefore, Metric::Gap, Metric::Longest],
        Program::Agrees(_) => vec![Metric::ReadMb, Metric::WriteIops],
        Program::Pull(_) => vec![Metric::GapBefore, Metric::Gap, Metric::GapBack, Metric::Longest],
        _ if whole => vec![Metric::Iops, Metric::ProcessCpuPerIo],
        _ => vec![Metric::Iops, Metric::CpuPerIo],
    }
}

fn figure_name(side: &Side, metric: Metric) -> String {
    format!("{}, {}", side.name, metric.name())
}

fn shown_spread(spread: Spread) -> [String; 3] {
    [spread.median, spread.min, spread.max].map(shown)
}

/// Returns doubts about figures: our program reports less CPU time than the kernel charged (start-up is allowed for), or a stall ended
/// only when the path was back.
fn doubts(measured: &Measured) -> Vec<String> {
    const START_UP_S: f64 = 0.3;
    const SHARE: f64 = 1.10;
    let ours = |side: &str| {
        let side = measured.row.sides.iter().find(|s| s.name == side);
        // Threads of a library belong to no job. Only the CPU time of the process includes them.
        let whole = measured.row.goals.iter().any(|goal| goal.metric == Metric::ProcessCpuPerIo);
        !whole && side.is_some_and(|s| s.program == Program::Mqblk)
    };
    let samples = || measured.rounds.iter().flatten();
    let cut_short = samples().filter_map(|sample| {
        let stall = sample.figures.stall.as_ref().filter(|stall| stall.is_cut_short)?;
        Some(format!("{}: the gap of {} ms ended when the path was back", sample.side, stall.gap_ms))
    });
    let unreported = samples().filter(|sample| ours(sample.side)).filter_map(|sample| {
        let reported = sample.figures.cpu_us_per_io * sample.figures.total_ios as f64 / 1e6;
        let charged = sample.process_cpu_s;
        (charged > reported * SHARE + START_UP_S).then(|| {
            let side = sample.side;
            format!("{side} reports {reported:.2} s of CPU, the kernel says {charged:.2} s")
        })
    });
    unreported.chain(cut_short).collect()
}

#[cfg(test)]
mod tests {
    use super::super::job::Figures;
    use super::super::rows;
    use super::*;

    fn measured(process_cpu_s: f64) -> Measured {
        let sample = |side, iops| Sample {
            side,
            figures: Figures { iops, total_ios: 1_000_000, cpu_us_per_io: 1.0, ..Figures::default() },
            process_cpu_s,
            jobs: serde_json::json!([{"jobname": "j0"}]),
        };
        Measured { row: rows::all().next().unwrap(), rounds: vec![vec![sample("mqblk", 3.0e6), sample("fio", 1.0e6)]] }
    }

    #[test]
    fn cpu_time_that_was_not_reported_is_doubted() {
        assert_eq!(doubts(&measured(1.3)), Vec::<String>::new());
        let found = doubts(&measured(1.5));
        assert_eq!(found, ["mqblk reports 1.00 s of CPU, the kernel says 1.50 s"]);
    }

    #[test]
    fn results_are_kept_with_their_setup_and_never_overwritten() {
        let directory = std::env::temp_dir();
        let directory = directory.join(format!("mqblk-xtask-results-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let setup = Setup::sample();
        let mut first = Results::create(&directory, "bench", setup.clone()).unwrap();
        first.keep(&measured(0.0)).unwrap();
        assert_eq!(first.missed(), 1, "3.0 is below the goal of 3.4");
        let text = fs::read_to_string(first.path()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["setup"]["commit"], setup.commit);
        let row = &value["rows"]["null-qd32"];
        assert_eq!(row["rounds"][0][0]["iops"], 3.0e6);
        assert_eq!(row["judgements"][0]["verdict"], "missed");
        let second = Results::create(&directory, "bench", setup).unwrap();
        assert_ne!(second.path(), first.path());
        fs::remove_dir_all(&directory).unwrap();
    }
}
