// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: compares our figures with fio's, measured in the same run.
//!
//! Goals of this harness: ratios hold on a busy or drifting machine, because every round runs all sides of a row, in
//! alternating order. Losses are shown as prominently as wins. Raw figures and the machine's set-up are kept under `results/`.
//! Non-goals: absolute records, statistics beyond median and range (`mqblk compare` has those), anything in-process.
//!
//! [`rows`] defines what is measured. [`job`] and [`side`] run one side once, [`served`] runs a client against a server, and
//! [`turns`] runs two programs by turns. [`unequal`] runs a disk of several paths, each through a [`link`]; [`stall`] runs a
//! disk that loses a path. [`agrees`] compares the simulator with the machine. [`judge`] compares, [`setup`] describes the
//! machine, [`report`] prints and saves.

mod agrees;
mod beside;
mod job;
mod judge;
mod link;
mod options;
mod report;
mod rows;
mod sample;
mod served;
mod setup;
mod side;
mod stall;
mod turns;
mod unequal;

use crate::outcome::Outcome;
use crate::project::Project;
use judge::Measured;
pub use options::Options;
use report::Results;
use rows::Row;
use sample::Sample;
use side::Bench;

/// Measures the chosen rows, prints them and keeps the raw figures.
///
/// # Errors
/// On an unknown row, a side that cannot be run, or results that cannot be written.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    if options.list {
        for row in rows::all() {
            println!("{:<22} {}", row.name, row.title);
        }
        return Ok(Outcome::Passed);
    }
    let rows = chosen(&options.rows)?;
    let bench = Bench::prepare(project, options, &rows)?;
    let rounds = if options.smoke { 1 } else { options.rounds };
    let setup = setup::Setup::read(project, &bench.time);
    if let Some(warning) = setup.warning() {
        println!("warning: {warning}");
    }
    let judged = !options.smoke && !options.control;
    let kind = if judged { "bench" } else { "check" };
    let mut results = Results::create(&bench.results, kind, setup)?;
    for row in rows {
        if row.cpus > bench.cpus.len() {
            println!("{}: left out, it needs {} CPUs", row.name, row.cpus);
            continue;
        }
        if options.control && row.is_ours_alone() {
            println!("{}: left out, no program stands in for mqblk", row.name);
            continue;
        }
        let mut measured = Measured::new(row);
        for round in 0..rounds {
            measured.rounds.push(one_round(&bench, row, round)?);
            results.keep(&measured)?;
        }
        report::print(&measured, judged);
    }
    println!("raw figures: {}", results.path().display());
    if results.missed() > 0 && judged {
        println!("{} goals missed", results.missed());
        return Ok(Outcome::Failed);
    }
    Ok(Outcome::Passed)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Row>, String> {
    if names.is_empty() {
        return Ok(rows::all().collect());
    }
    let find = |name: &String| {
        let row = rows::all().find(|row| row.name == name);
        row.ok_or_else(|| {
            let known: Vec<&str> = rows::all().map(|row| row.name).collect();
            format!("--rows {name}: must be one of {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// Runs every side once. The order is reversed in every other round, so that a drift favours no side.
fn one_round(bench: &Bench, row: &Row, round: u32) -> Result<Vec<Sample>, String> {
    let mut order: Vec<usize> = (0..row.sides.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    if row.turns && !bench.is_smoke() {
        return bench.by_turns(row, &order);
    }
    let mut samples: Vec<Option<Sample>> = row.sides.iter().map(|_| None).collect();
    for index in order {
        samples[index] = Some(bench.sample(row, &row.sides[index])?);
    }
    Ok(samples.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_name_and_an_unknown_one_is_refused() {
        assert_eq!(chosen(&[]).unwrap().len(), rows::all().count());
        let one = chosen(&["null-qd1".to_owned()]).unwrap();
        assert_eq!(one[0].name, "null-qd1");
        let error = chosen(&["nul-qd1".to_owned()]).err().unwrap();
        assert!(error.contains("must be one of null-qd32"), "{error}");
    }
}
