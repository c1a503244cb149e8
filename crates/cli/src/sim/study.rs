// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim --study STUDY`: a table of simulated points, why the series have their shapes, and with `--measure` the measured points of
//! this host.
//!
//! Points share nothing, so all CPUs work on them; the output does not depend on the number of CPUs.

use super::study_here;
use crate::args::SimArgs;
use crate::output;
use crate::progress::Line;
use crate::replay::command;
use crate::report;
use crate::status::{Failure, Outcome, Status};
use lab::report::pages::of_study::{self, HostResults, StudyInput};
use lab::setup::Setup;
use sim::scenario::file::Scenario;
use sim::study::reason::rate;
use sim::study::{Cell, Effort, Point, Study, base, cells, efficiency, reason, simulate};
use std::fmt::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Simulates a study, measures this host with `--measure`, and prints all results.
pub fn main(study: Study, args: &SimArgs) -> Outcome {
    let (machine, file, text) = machine_of(study, args.machine.as_deref())?;
    if args.measure && study == Study::Iothreads {
        let text = "--measure: IOThreads serve virtual machines, and a study starts none; leave --measure out";
        return Err(Failure::new(text));
    }
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let all = cells::of(study, &machine, u32::MAX);
    if all.is_empty() {
        let text = "--study iothreads: the machine has no [guests]; name one that has, or leave --machine out";
        return Err(Failure::new(text));
    }
    let mut page = report::asked(args.report.as_ref(), &[args.machine.as_deref()])?;
    let mut line = Line::new(args.eta);
    let points = simulate_all(&machine, &all, effort, args.seed, &mut line)?;
    let here = args.measure.then(|| study_here::measure(study, &machine, args, &mut line)).transpose()?;
    drop(line);
    let input = StudyInput {
        study,
        machine: &machine,
        file: (&file, &text),
        cells: &all,
        points: &points,
        here: here.as_ref(),
        command: &command(),
        seed: args.seed,
        setup: &Setup::read(&[]),
    };
    match args.json {
        true => {
            output::print(&output::json(&of_study::data(&input)))?;
        }
        false => output::print(&render(study, &machine, &points, here.as_ref()))?,
    }
    if let Some(page) = &mut page {
        page.write(&of_study::document(&input))?;
    }
    Ok(if here.is_some_and(|here| here.is_interrupted) { Status::Interrupted } else { Status::Done })
}

/// The machine of a study, with its file's name and text.
fn machine_of(study: Study, file: Option<&Path>) -> Result<(Scenario, String, String), Failure> {
    let Some(file) = file else {
        let name = format!("(built in, for --study {})", study.name());
        return Ok((base::default_of(study), name, base::text_of(study).to_owned()));
    };
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::new(format!("--machine {name}: {e}; name a machine file, such as 'mqblk calibrate --out FILE' writes"))
    })?;
    let machine = Scenario::parse_machine(&name, &text).map_err(Failure::new)?;
    Ok((machine, name, text))
}

/// Simulates the points of cells. Returns them in order, whichever thread simulates which.
pub(super) fn simulate_all(
    machine: &Scenario,
    all: &[Cell],
    effort: Effort,
    seed: u64,
    line: &mut Line,
) -> Result<Vec<Point>, Failure> {
    let next = AtomicUsize::new(0);
    let done: Mutex<(Vec<Option<Point>>, &mut Line)> = Mutex::new((vec![None; all.len()], line));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(all.len());
    let work = || -> Result<(), Failure> {
        loop {
            // Start with the last points: they are the largest, so other threads would have to wait for them at the end.
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(i) = all.len().checked_sub(n + 1) else { return Ok(()) };
            let point = simulate(machine, &all[i], effort, seed).map_err(|e| {
                next.store(all.len(), Ordering::Relaxed);
                Failure::new(format!("{} {}: {e}", all[i].series, all[i].x))
            })?;
            let mut done = done.lock().expect("no thread panics with it");
            done.0[i] = Some(point);
            done.1.show(|| format!("Simulated {} of {} points", n + 1, all.len()));
        }
    };
    let failures: Vec<Failure> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().filter_map(|w| w.join().expect("a simulation does not panic").err()).collect()
    });
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure);
    }
    let (points, _) = done.into_inner().expect("no thread panics with it");
    Ok(points.into_iter().map(|p| p.expect("all are done")).collect())
}

fn render(study: Study, machine: &Scenario, points: &[Point], here: Option<&HostResults>) -> String {
    let m = machine.machine;
    let mut out = format!("{}\n", study.title());
    let title = if machine.title.is_empty() { "a machine" } else { &machine.title };
    let _ = writeln!(out, "simulated: {title} ({} x {} cores x {} threads)\n", m.sockets, m.cores, m.threads);
    let widest = points.iter().map(|p| p.series.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "{:widest$}  {:>9}  {:>8}  {:>10}  {:>9}  {:>10}  {:>9}  {:>5}",
        "series",
        study.unit(),
        "IOPS",
        "per CPU",
        "latency",
        "CPU per IO",
        "lock wait",
        "busy"
    );
    let mut last = "";
    for p in points {
        let name = if p.series == last { "" } else { p.series.as_str() };
        last = &p.series;
        let per_cpu = match study {
            Study::Iothreads => "-".into(),
            _ => format!("{:.0} %", 100.0 * efficiency(points, p)),
        };
        let cpu = p.cpu_ns.map_or("-".into(), |ns| format!("{:.2} us", ns / 1e3));
        let wait = p.lock_wait.map_or("-".into(), |w| format!("{:.0} %", 100.0 * w));
        let lat = sim::scenario::why::time(p.lat_us);
        let _ = writeln!(
            out,
            "{name:widest$}  {:>9}  {:>8}  {per_cpu:>10}  {lat:>9}  {cpu:>10}  {wait:>9}  {:>3.0} %",
            p.x,
            rate(p.iops),
            100.0 * p.busy
        );
    }
    out.push('\n');
    reason::of(study, points).iter().for_each(|why| {
        let _ = writeln!(out, "{why}");
    });
    if let Some(here) = here {
        out += &study_here::text(here, study);
    }
    out
}
