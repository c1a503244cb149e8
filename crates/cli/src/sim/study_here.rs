// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same study on this host: measured on the null device through an ordinary run, and simulated with the machine's costs.
//!
//! Guarantees: measured runs are interleaved, so that a busy moment affects all points alike; each point has its minimum and maximum;
//! interrupted runs are discarded. The simulation to compare with is of mqblk in user space: it uses the machine file's own costs, without
//! those of a kernel and a device.

use super::study::simulate_all;
use crate::args::SimArgs;
use crate::calibrate::Host;
use crate::interrupt;
use crate::progress::Line;
use crate::status::Failure;
use lab::report::pages::of_study::{APART, HostPoint, HostResults};
use lab::run::{RunSpec, Unobserved};
use lab::world::execute;
use sim::scenario::file::Scenario;
use sim::study::reason::rate;
use sim::study::{Cell, Effort, Study, base, cells};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::job::{JobFile, ParseContext};

/// Runs of each point.
const RUNS: usize = 5;

/// Measures and simulates the points of a study for which this host has enough CPUs.
pub(super) fn measure(
    study: Study,
    machine: &Scenario,
    args: &SimArgs,
    line: &mut Line,
) -> Result<HostResults, Failure> {
    host::clock::start();
    let stop = interrupt::stop_flag()?;
    let ours = base::of_null_driver(machine, Host::read().shape);
    let cpus = host::process::allowed_cpus();
    let all = cells::of(study, &ours, cpus.len() as u32);
    let run_us = if args.quick { 50_000 } else { 400_000 };
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    'runs: for n in 0..RUNS {
        for (i, cell) in all.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break 'runs;
            }
            line.show(|| format!("Measured {} of {} runs on this host", n * all.len() + i, RUNS * all.len()));
            rates[i].extend(run(cell, &cpus, run_us, &stop)?);
        }
    }
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let simulated = simulate_all(&ours, &all, effort, args.seed, line)?;
    let beside = |(runs, point): (Vec<f64>, sim::study::Point)| HostPoint::of(point.series, point.x, &runs, point.iops);
    Ok(HostResults {
        cpus: cpus.len() as u32,
        runs: RUNS,
        is_interrupted: stop.load(Ordering::Relaxed),
        own_costs: args.machine.is_some(),
        points: rates.into_iter().zip(simulated).filter_map(beside).collect(),
    })
}

/// Runs a cell on this host, each thread on a CPU of its own. Returns I/Os per second; `None` if the run was interrupted, maybe during its
/// ramp, because its figures are invalid then.
fn run(cell: &Cell, cpus: &[u32], run_us: u64, stop: &Arc<AtomicBool>) -> Result<Option<f64>, Failure> {
    let Some(text) = cell.job(run_us / 4, run_us) else { return Err(Failure::new("a study of users is not measured")) };
    let names: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let text = format!("{text}cpus_allowed={}\ncpus_allowed_policy=split\n", names.join(","));
    let ncpus = cpus.iter().max().map_or(1, |cpu| cpu + 1);
    let context = ParseContext { ncpus, ..ParseContext::bare("study") };
    let file = JobFile::parse_str(&text, &context, &[]).map_err(Failure::new)?;
    let settings: Vec<(String, String)> = cell.set.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let spec = RunSpec {
        file: &file,
        target: Some("null:size=16g"),
        settings: &settings,
        entropy: 0,
        stop: Arc::clone(stop),
        trace_events: 0,
        force: false,
        slices: false,
        files: None,
    };
    let run = execute(&spec, &mut Unobserved)?;
    if run.outcome.stopped {
        return Ok(None);
    }
    let reads = run.stats().map(|s| &s.dirs[0]).filter(|d| d.runtime_ns > 0);
    Ok(Some(reads.map(|d| d.ios as f64 / (d.runtime_ns as f64 / 1e9)).sum()))
}

/// Returns the table that follows the table of the study.
pub(super) fn text(here: &HostResults, study: Study) -> String {
    let mut out = format!(
        "\nthis host, {} CPUs: measured on the null device, medians of {} runs; simulated: our block layer in user space\n",
        here.cpus,
        here.runs_of_a_point()
    );
    let widest = here.points.iter().map(|p| p.series.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "{:widest$}  {:>9}  {:>8}  {:>19}  {:>9}  {:>8}",
        "series",
        study.unit(),
        "measured",
        "least .. most",
        "simulated",
        "error"
    );
    for p in &here.points {
        let between = format!("{} .. {}", rate(p.least), rate(p.most));
        let _ = writeln!(
            out,
            "{:widest$}  {:>9}  {:>8}  {between:>19}  {:>9}  {:>6.0} %",
            p.series,
            p.x,
            rate(p.measured),
            rate(p.simulated),
            100.0 * p.error
        );
    }
    if here.is_interrupted {
        out += "measuring was interrupted: points without a whole run are missing\n";
    }
    if here.is_apart() {
        let percent = 100.0 * APART;
        let _ = writeln!(
            out,
            "runs of the same point differ by more than {percent:.0} %: other programs used the CPUs, so the errors mean \
             little; repeat when the machine is idle"
        );
    }
    if !here.own_costs {
        out += "the costs are the built-in ones, of another machine; for this host's: 'mqblk calibrate --out FILE', \
                then --machine FILE\n";
    }
    out
}
