// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Simulates a cell: the machine, its disk and its load run until there are enough I/Os.
//!
//! Guarantees: the time in which queues fill is not counted; on average each thread completes several times its depth of
//! I/Os. Does not do: a spread over seeds, because a machine without jitter has none.

use super::cells::{Cell, Load};
use crate::machine::jobs::{JobsError, JobsRun};
use crate::scenario::build;
use crate::scenario::file::{Row, Scalar, Scenario};
use crate::scenario::unmodelled::Traffic;
use serde::Serialize;
use workload::job::{Job, JobFile, ParseContext};

/// The length of the simulation of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// I/Os that are counted.
    pub ios: u64,
    /// Minimum number of I/Os that each thread completes on average, in multiples of its depth.
    pub rounds: u64,
    /// Maximum virtual time.
    pub most_us: u64,
}

impl Effort {
    /// For a table of accurate figures.
    pub const FULL: Effort = Effort { ios: 200_000, rounds: 20, most_us: 2_000_000 };
    /// For a table within seconds.
    pub const QUICK: Effort = Effort { ios: 20_000, rounds: 6, most_us: 500_000 };
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The name of its series.
    pub series: String,
    /// The value of the quantity that the study scales.
    pub x: u32,
    /// CPUs that did I/O; for a virtual machine, all CPUs of its host.
    pub cpus: u32,
    /// I/Os per second.
    pub iops: f64,
    /// Mean time of an I/O (of users: of a transaction) as its program sees it, microseconds.
    pub lat_us: f64,
    /// CPU time of an I/O including lock waits, nanoseconds; `None`: not known.
    pub cpu_ns: Option<f64>,
    /// Share of that CPU time that was waiting for locks; `None`: not known.
    pub lock_wait: Option<f64>,
    /// Share of time that the CPUs that did I/O were not idle.
    pub busy: f64,
    /// I/Os simulated.
    pub ios: u64,
    /// The requests that reached the device.
    #[serde(skip)]
    pub traffic: Traffic,
}

/// Simulates a cell on `machine`, with the cell's CPUs instead of the machine's.
///
/// # Errors
/// A setting that the machine's disk does not have.
pub fn simulate(machine: &Scenario, cell: &Cell, effort: Effort, seed: u64) -> Result<Point, JobsError> {
    let mut machine = machine.clone();
    machine.machine = cell.shape;
    match cell.load {
        Load::Users { users, iothreads } => of_users(&machine, cell, users, iothreads, seed),
        Load::Reads { threads, depth } => {
            let out = u64::from(threads * depth);
            let enough = effort.ios.max(out * effort.rounds);
            // The speed is not known beforehand, so the run time grows until there are enough I/Os. Slow cells often begin
            // fast, so each extrapolation from a rate is limited to a factor.
            let mut run_us = (50 + machine.disk.mean_read_us() as u64 * 4).max(out / 20);
            loop {
                let run = read(&machine, cell, run_us / 2, run_us, seed)?;
                let point = of_reads(&machine, cell, threads, &run);
                let counted = run.stats.iter().map(|s| s.dirs[0].ios).sum::<u64>();
                if counted >= enough || run_us >= effort.most_us {
                    return Ok(point);
                }
                let short = 1.1 * enough as f64 / counted.max(1) as f64;
                run_us = ((run_us as f64 * short.clamp(1.5, 8.0)) as u64).min(effort.most_us);
            }
        }
    }
}

fn row(cell: &Cell, iothreads: Option<u32>) -> Row {
    let set = cell.set.iter().map(|(k, v)| ((*k).to_owned(), Scalar::Word(v.clone()))).collect();
    Row { set, vms: iothreads.map(|_| 1), iothreads, ..Row::named(format!("{} {}", cell.series, cell.x)) }
}

fn read(machine: &Scenario, cell: &Cell, ramp_us: u64, run_us: u64, seed: u64) -> Result<JobsRun, JobsError> {
    let text = cell.job(ramp_us, run_us).expect("a cell of reads");
    let jobs: Vec<Job> = JobFile::parse_str(&text, &ParseContext::bare("study"), &[])
        .map_err(|e| JobsError::Unsupported(e.to_string()))?
        .jobs;
    Ok(build::run(machine, &row(cell, None), &jobs, seed)?.run)
}

fn rate_of(run: &JobsRun) -> f64 {
    let reads = run.stats.iter().map(|s| &s.dirs[0]);
    reads.filter(|d| d.runtime_ns > 0).map(|d| d.ios as f64 / (d.runtime_ns as f64 / 1e9)).sum()
}

fn of_reads(machine: &Scenario, cell: &Cell, threads: u32, run: &JobsRun) -> Point {
    // Costs are over all I/Os, including those before counting begins.
    let all = run.disk.ops[0].ios.max(1) as f64;
    let busy_ns = run.cpu.busy_ns() as f64;
    let (ios, lat) = run.stats.iter().fold((0, 0.0), |(n, sum), s| {
        let d = &s.dirs[0];
        (n + d.ios, sum + d.clat.run.mean() * d.ios as f64)
    });
    Point {
        series: cell.series.clone(),
        x: cell.x,
        cpus: threads,
        iops: rate_of(run),
        lat_us: if ios > 0 { lat / ios as f64 / 1e3 } else { 0.0 },
        cpu_ns: Some(busy_ns / all),
        lock_wait: Some(run.cpu.spin_ns as f64 / busy_ns.max(1.0)),
        busy: (busy_ns / (run.elapsed_ns as f64 * f64::from(threads))).min(1.0),
        ios: run.disk.ops[0].ios,
        traffic: Traffic::of(&machine.disk, run),
    }
}

fn of_users(machine: &Scenario, cell: &Cell, users: u32, iothreads: u32, seed: u64) -> Result<Point, JobsError> {
    let Some(guests) = &machine.guests else {
        return Err(JobsError::Unsupported("the machine has no [guests]: IOThreads serve virtual machines".into()));
    };
    let run = build::run_guests(machine, &row(cell, Some(iothreads)), users, seed)?;
    Ok(Point {
        series: cell.series.clone(),
        x: cell.x,
        cpus: machine.machine.cpus(),
        iops: run.tps * f64::from(guests.reads + guests.writes),
        lat_us: run.tx_ns / 1e3,
        cpu_ns: None,
        lock_wait: None,
        busy: run.busy.min(1.0),
        ios: run.ios,
        traffic: Traffic::default(),
    })
}
