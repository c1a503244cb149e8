// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk calibrate`: what things cost on this host, printed and written as a machine file for `mqblk sim`.
//!
//! An existing file is not overwritten without `--force`. Whether the file can be written is checked before measuring.

mod file;

use crate::args::Eta;
use crate::interrupt;
use crate::output;
use crate::progress::Line;
use crate::status::{Failure, Outcome, Status};
use blk::cpumap::CpuTopology;
use clap::Args;
use host::calibrate::{self, Calibration, Cost};
use host::topology;
use lab::setup::Setup;
use sim::machine::costs::Shape;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// `mqblk calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Write a machine file, for 'mqblk sim --study cpus --machine FILE'
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Overwrite FILE if it exists
    #[arg(long, requires = "out")]
    pub force: bool,
    /// How long to measure
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: f64,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Progress on standard error: auto = after two seconds, if it is a terminal
    #[arg(long, value_enum, default_value_t = Eta::Auto, value_name = "WHEN")]
    pub eta: Eta,
}

fn seconds(text: &str) -> Result<f64, String> {
    let n: f64 = text.parse().map_err(|_| format!("'{text}': must be a number of seconds, 0.1..=600"))?;
    if (0.1..=600.0).contains(&n) { Ok(n) } else { Err(format!("{text} seconds: must be 0.1..=600")) }
}

/// Load per CPU from other programs above which a warning is printed.
const BUSY: f64 = 0.3;
/// Distance of the quartiles, relative to the median, above which a figure counts as scattered.
const SCATTERED: f64 = 0.5;

/// Measures, prints and writes.
pub fn main(args: &CalibrateArgs) -> Outcome {
    if let Some(path) = &args.out {
        check(path, args.force)?;
    }
    host::clock::start();
    let stop = interrupt::stop_flag()?;
    let load = load_per_cpu();
    let host = Host::read();
    let mut line = Line::new(args.eta);
    let mut progress = |part: f64| {
        line.show(|| format!("Measuring: {:.0} %", 100.0 * part));
    };
    let measured = calibrate::run(&host.topology, args.seconds, &stop, &mut progress)?;
    drop(line);
    let warnings = warnings(&measured, &host, load);
    warnings.iter().for_each(|w| output::tell(&format!("warning: {w}")));
    if stop.load(Ordering::Relaxed) {
        output::print(&text(&measured, &host))?;
        return Ok(Status::Interrupted);
    }
    let machine = file::of(&measured, &host, &warnings);
    if let Some(path) = &args.out {
        write(path, &machine, args.force)?;
    }
    let out = if args.json { json(&measured, &host, &warnings) } else { text(&measured, &host) };
    output::print(&out)?;
    if let (Some(path), false) = (&args.out, args.json) {
        let path = path.display();
        output::print(&format!(
            "\n{path} has these costs; edit its [disk], then: mqblk sim --study cpus --machine {path}\n"
        ))?;
    }
    Ok(Status::Done)
}

/// This host, as far as a machine file describes it.
pub struct Host {
    topology: CpuTopology,
    /// Sockets, cores and threads.
    pub shape: Shape,
    /// Where the topology differs from the shape, if it does.
    pub odd: Option<String>,
    /// CPU model, kernel.
    pub setup: Setup,
}

impl Host {
    /// Reads the host from the system. If the topology is unknown, all CPUs are taken for cores of one socket.
    pub fn read() -> Host {
        let cpus = host::process::nr_cpus();
        let known = topology::read(Path::new(topology::SYSTEM), cpus);
        let unknown = known
            .is_none()
            .then(|| format!("the topology of this process's {cpus} CPUs is unknown: assuming cores of one socket"));
        let topology = known.unwrap_or_else(|| CpuTopology::uniform(cpus));
        let (shape, odd) = shape_of(&topology);
        Host { topology, shape, odd: unknown.or(odd), setup: Setup::read(&[]) }
    }
}

/// Returns the topology as sockets, cores per socket and threads per core, and a note if it is less regular.
fn shape_of(t: &CpuTopology) -> (Shape, Option<String>) {
    let count = |of: &[u16]| {
        let mut all = of.to_vec();
        all.sort_unstable();
        all.dedup();
        all.len().max(1) as u16
    };
    let (nodes, cores) = (count(&t.node_of), count(&t.core_of));
    let shape = Shape { sockets: nodes, cores: (cores / nodes).max(1), threads: (t.nr_cpus / cores).max(1) };
    let odd = (shape.cpus() != u32::from(t.nr_cpus)).then(|| {
        format!(
            "{} CPUs on {cores} cores of {nodes} nodes are not evenly spread: assuming {} x {} x {}",
            t.nr_cpus, nodes, shape.cores, shape.threads
        )
    });
    (shape, odd)
}

/// Returns the load of the last minute, divided by the number of CPUs.
fn load_per_cpu() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(load / f64::from(host::process::nr_cpus()))
}

fn warnings(c: &Calibration, host: &Host, load: Option<f64>) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(load) = load.filter(|l| *l > BUSY) {
        all.push(format!(
            "the machine was busy before this began (load {load:.1} per CPU): costs may be too high; repeat when it is idle"
        ));
    }
    all.extend(host.odd.clone());
    let scattered: Vec<&str> = c
        .costs
        .iter()
        .filter(|c| c.figure.as_ref().is_ok_and(|f| f.spread() > SCATTERED && f.q3 - f.q1 > 5.0))
        .map(|c| file::name(c.what))
        .collect();
    if !scattered.is_empty() {
        let names = scattered.join(", ");
        all.push(format!(
            "samples scatter (quartiles more than {:.0} % of the median apart): {names}; raise --seconds, or repeat \
             when the machine is idle",
            100.0 * SCATTERED
        ));
    }
    all
}

fn check(path: &Path, force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        let path = path.display();
        return Err(Failure::new(format!(
            "--out {path}: already exists; name another file, or add --force to overwrite it"
        )));
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let (path, parent) = (path.display(), parent.display());
        return Err(Failure::new(format!(
            "--out {path}: directory {parent} does not exist; create it, or name another"
        )));
    }
    Ok(())
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    let options = if force { options.create(true).truncate(true) } else { options.create_new(true) };
    let mut file = options.write(true).open(path).map_err(|e| failed(path, &e))?;
    file.write_all(text.as_bytes()).map_err(|e| failed(path, &e))
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(format!("--out {}: {e}; name a file that can be written", path.display()))
}

/// Returns the CPUs of a measurement as text.
fn cpus(cost: &Cost) -> String {
    let all: Vec<String> = cost.cpus.iter().map(u32::to_string).collect();
    match all.len() {
        0 => "-".into(),
        1 => format!("CPU {}", all[0]),
        _ => format!("CPUs {}", all.join(", ")),
    }
}

fn text(c: &Calibration, host: &Host) -> String {
    let s = host.shape;
    let model = host.setup.cpu_model.as_deref().unwrap_or("unknown CPU");
    let mut out = format!(
        "{model}: {} x {} cores x {} threads = {} CPUs; {} rounds\n\n",
        s.sockets,
        s.cores,
        s.threads,
        s.cpus(),
        c.rounds
    );
    let _ = writeln!(out, "{:<24} {:>9}  {:>19}  {:<10}  what it is", "cost", "median ns", "quartiles", "on");
    for cost in &c.costs {
        let (name, what) = (file::name(cost.what), file::meaning(cost.what));
        let _ = match &cost.figure {
            Ok(f) => {
                let between = format!("{:.1} .. {:.1}", f.q1, f.q3);
                writeln!(out, "{name:<24} {:>9.1}  {between:>19}  {:<10}  {what}", f.median, cpus(cost))
            }
            Err(why) => writeln!(out, "{name:<24} {:>9}  {:>19}  {:<10}  {what}; not measured: {why}", "-", "", "-"),
        };
    }
    let _ = writeln!(out, "\nnot measurable from a program, and left at the published figures:");
    file::NOT_MEASURABLE.iter().for_each(|file::NotMeasurable { name, why }| {
        let _ = writeln!(out, "  {name}: {why}");
    });
    out
}

fn json(c: &Calibration, host: &Host, warnings: &[String]) -> String {
    let costs: Vec<_> = c
        .costs
        .iter()
        .map(|cost| {
            let f = cost.figure.as_ref();
            serde_json::json!({
                "name": file::name(cost.what), "meaning": file::meaning(cost.what), "cpus": cost.cpus,
                "median_ns": f.ok().map(|f| f.median), "q1_ns": f.ok().map(|f| f.q1), "q3_ns": f.ok().map(|f| f.q3),
                "samples": f.map_or(0, |f| f.samples), "why_not": f.err(),
            })
        })
        .collect();
    let not: Vec<_> =
        file::NOT_MEASURABLE.iter().map(|n| serde_json::json!({ "name": n.name, "why_not": n.why })).collect();
    let all = serde_json::json!({
        "machine": host.shape, "setup": host.setup, "rounds": c.rounds, "costs": costs, "left_at_published": not,
        "in_effect": file::costs(c), "warnings": warnings,
    });
    output::json(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_what_the_topology_says() {
        let (shape, odd) = shape_of(&CpuTopology::symmetric(2, 4, 2));
        assert_eq!((shape, odd), (Shape { sockets: 2, cores: 4, threads: 2 }, None));
        assert_eq!(shape_of(&CpuTopology::uniform(1)).0.cpus(), 1);
        let odd = CpuTopology::new(vec![0, 0, 1], vec![0, 1, 2], vec![0, 0, 1], vec![true; 3]).unwrap();
        assert!(shape_of(&odd).1.is_some_and(|why| why.contains("not evenly spread")));
    }

    #[test]
    fn seconds_have_a_range() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert!(seconds("0").unwrap_err().contains("0.1..=600"));
        assert!(seconds("x").unwrap_err().contains("number"));
    }
}
