// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of the rows of a scenario beside what was published.

use super::build::{self, RowRun};
use super::file::{CPU, Row, Scenario, split_figure};
use super::unmodelled::Traffic;
use crate::machine::guest_times::PARTS;
use crate::machine::jobs::{CpuWaits, JobsError, JobsRun};
use serde::Serialize;
use workload::job::{Dir, Job};
use workload::stats::{JobStats, LatencyStats};

/// A figure of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// `job.metric`.
    pub name: String,
    /// The published figure, if there is one.
    pub published: Option<f64>,
    /// The simulated figure.
    pub simulated: f64,
    /// The published figure was used to choose a constant.
    pub fitted: bool,
}

impl Figure {
    /// Returns the error of the simulation as a share: 0.1 = 10 % above the published figure.
    pub fn error(&self) -> Option<f64> {
        self.published.map(|p| self.simulated / p - 1.0)
    }
}

/// Where the I/Os of one job spent their time, mean microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobStages {
    /// The job, and its direction if it has several.
    pub job: String,
    /// From submission to completion.
    pub lat_us: f64,
    /// Waiting for a tag, or for a request of the legacy request list.
    pub tag_wait_us: f64,
    /// From getting a tag to the device: plug, scheduler, dispatch.
    pub scheduler_us: f64,
    /// At the device.
    pub device_us: f64,
    /// Completed, while the thread waited for a CPU.
    pub cpu_wait_us: f64,
    /// The rest of the time from the device to the program.
    pub rest_us: f64,
}

/// Where the transactions of a number of users spent their time, mean microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UserTimes {
    /// `users10` and the like; the number counts the users of each virtual machine.
    pub users: String,
    /// Time of a transaction.
    pub transaction_us: f64,
    /// Its parts, in the order of [`PARTS`].
    pub parts_us: [f64; PARTS.len()],
}

/// A row that was simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowOutcome {
    /// Its name.
    pub name: String,
    /// Its figures: the published ones first, in the order of the file.
    pub figures: Vec<Figure>,
    /// Stages by job.
    pub stages: Vec<JobStages>,
    /// Times by number of users, for virtual machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserTimes>,
    /// Settings without effect, each with the reason.
    pub no_effect: Vec<String>,
    /// Share of all CPU time that was not idle, including lock waits.
    pub busy: f64,
    /// Share of all CPU time that was spent waiting for locks.
    pub spin: f64,
    /// I/Os simulated.
    pub ios: u64,
    /// The requests that reached the device.
    #[serde(skip)]
    pub traffic: Traffic,
}

/// Simulates one row.
///
/// # Errors
/// A setting or a job that does not fit, or a published figure of a job that does not exist.
pub fn simulate(scenario: &Scenario, row: &Row, jobs: &[Job], seed: u64) -> Result<RowOutcome, JobsError> {
    for figure in row.published.keys().chain(row.published_ratio.keys()).chain(scenario.over_rows.keys()) {
        let job = split_figure(figure).map_or("", |(job, _)| job);
        if job != CPU && jobs.iter().all(|j| j.name != job) {
            let names: Vec<&str> = jobs.iter().map(|j| j.name.as_str()).collect();
            let text =
                format!("{figure} of row '{}': there is no job '{job}'; there are {}", row.name, names.join(", "));
            return Err(JobsError::Unsupported(text));
        }
    }
    let RowRun { run, no_effect } = build::run(scenario, row, jobs, seed)?;
    let of_job = |name: &str| {
        let mut sum = JobStats::default();
        let mine = run.instances.iter().zip(&run.stats).filter(|(i, _)| jobs[i.job].name == name);
        mine.for_each(|(_, s)| sum.merge(s));
        sum
    };
    let all = run.elapsed_ns as f64 * f64::from(scenario.machine.cpus());
    let busy = run.cpu.busy_ns() as f64 / all;
    let figure = |name: &str| match split_figure(name).expect("checked with the file") {
        (CPU, metric) => (metric == "idle_pct").then_some(100.0 * (1.0 - busy)),
        (job, metric) => measure(&of_job(job), metric),
    };
    let mut figures = Vec::new();
    let ratios = row.published_ratio.keys().chain(scenario.over_rows.keys()).map(|name| (name, None));
    for (name, published) in row.published.iter().map(|(name, p)| (name, Some(*p))).chain(ratios) {
        if figures.iter().any(|f: &Figure| f.name == *name) {
            continue;
        }
        let Some(simulated) = figure(name) else {
            let text = format!("{name} of row '{}': the job has no such figure", row.name);
            return Err(JobsError::Unsupported(text));
        };
        let fitted = scenario.is_fitted(&row.name, name);
        figures.push(Figure { name: name.clone(), published, simulated, fitted });
    }
    for job in jobs {
        for metric in ["iops", "bw", "lat_us"] {
            let name = format!("{}.{metric}", job.name);
            if figures.iter().all(|f| f.name != name)
                && let Some(simulated) = measure(&of_job(&job.name), metric)
            {
                figures.push(Figure { name, published: None, simulated, fitted: false });
            }
        }
    }
    if figures.iter().all(|f| f.name != "cpu.idle_pct") {
        let (name, simulated) = ("cpu.idle_pct".to_owned(), 100.0 * (1.0 - busy));
        figures.push(Figure { name, published: None, simulated, fitted: false });
    }
    let waits_of = |name: &str| {
        let mut sum = CpuWaits::default();
        let mine = run.instances.iter().zip(&run.cpu_waits).filter(|(i, _)| jobs[i.job].name == name);
        mine.for_each(|(_, w)| sum.add(*w));
        sum
    };
    let stages = jobs.iter().flat_map(|job| stages(&job.name, &of_job(&job.name), waits_of(&job.name), &run)).collect();
    Ok(RowOutcome {
        name: row.name.clone(),
        figures,
        stages,
        users: Vec::new(),
        no_effect,
        busy,
        spin: run.cpu.spin_ns as f64 / all,
        ios: run.stats.iter().flat_map(|s| &s.dirs).map(|d| d.ios).sum(),
        traffic: Traffic::of(&scenario.disk.changed(&row.disk), &run),
    })
}

/// Simulates one row of virtual machines, for each number of users.
///
/// # Errors
/// A number that does not fit, or a published figure for a number of users that is not simulated.
pub fn simulate_guests(scenario: &Scenario, row: &Row, seed: u64) -> Result<RowOutcome, JobsError> {
    let users = &scenario.guests.as_ref().expect("a scenario of guests").users;
    let load_of = |users: u32| format!("users{users}");
    let name_of = |users: u32| format!("{}.tpm", load_of(users));
    if let Some(other) =
        row.published.keys().chain(scenario.over_rows.keys()).find(|k| users.iter().all(|u| name_of(*u) != **k))
    {
        let known: Vec<String> = users.iter().map(|u| name_of(*u)).collect();
        let text = format!("row '{}': '{other}' names no figure of this row; use {}", row.name, known.join(", "));
        return Err(JobsError::Unsupported(text));
    }
    let (mut figures, mut times, mut busy, mut ios) = (Vec::new(), Vec::new(), 0.0, 0);
    for n in users {
        let run = build::run_guests(scenario, row, *n, seed)?;
        let name = name_of(*n);
        let (published, fitted) = (row.published.get(&name).copied(), scenario.is_fitted(&row.name, &name));
        figures.push(Figure { name, published, simulated: run.tps * 60.0, fitted });
        if run.times.transactions > 0 {
            let parts_us = std::array::from_fn(|i| run.times.mean_ns(i) / 1e3);
            times.push(UserTimes { users: load_of(*n), transaction_us: run.tx_ns / 1e3, parts_us });
        }
        busy = run.busy;
        ios += run.ios;
    }
    Ok(RowOutcome {
        name: row.name.clone(),
        figures,
        stages: Vec::new(),
        users: times,
        no_effect: Vec::new(),
        busy,
        spin: 0.0,
        ios,
        traffic: Traffic::default(),
    })
}

/// Returns a metric over all directions of a job; `None` if the job does not have it.
fn measure(stats: &JobStats, metric: &str) -> Option<f64> {
    let used = || stats.dirs.iter().filter(|d| d.ios > 0);
    let per_second = |n: fn(&workload::stats::DirStats) -> u64| {
        let rate = |d: &workload::stats::DirStats| n(d) as f64 / (d.runtime_ns as f64 / 1e9);
        (used().count() > 0).then(|| used().map(rate).sum::<f64>())
    };
    let lat = || {
        let mut sum = LatencyStats::default();
        used().for_each(|d| sum.merge(&d.clat));
        sum
    };
    match metric {
        "iops" => per_second(|d| d.ios),
        "bw" => per_second(|d| d.bytes),
        "lat_us" => (lat().run.count() > 0).then(|| lat().run.mean() / 1e3),
        "p50_us" => lat().hist.map(|h| h.percentile(50.0) as f64 / 1e3),
        "p99_us" => lat().hist.map(|h| h.percentile(99.0) as f64 / 1e3),
        "tps" => stats.tx.as_ref().map(|tx| tx.lat.run.count() as f64 / (stats.runtime_ns as f64 / 1e9)),
        "commit_us" => stats.tx.as_ref().map(|tx| tx.commit.run.mean() / 1e3),
        _ => None,
    }
}

/// Returns the stages of each direction of a job. The device's times of that direction count as the job's.
fn stages(job: &str, stats: &JobStats, waits: CpuWaits, run: &JobsRun) -> Vec<JobStages> {
    let used: Vec<Dir> = Dir::ALL.into_iter().filter(|d| stats.dir(*d).ios > 0).collect();
    let name = |dir: Dir| if used.len() > 1 { format!("{job}, {}", dir.name()) } else { job.to_owned() };
    used.iter().filter_map(|dir| stages_of(name(*dir), *dir, stats, waits, run)).collect()
}

fn stages_of(job: String, dir: Dir, stats: &JobStats, waits: CpuWaits, run: &JobsRun) -> Option<JobStages> {
    let seen = run.seen.of(dir.op());
    if seen.requests == 0 {
        return None;
    }
    let mean_us = |ns: u64, n: u64| ns as f64 / n.max(1) as f64 / 1e3;
    let lat_us = stats.dir(dir).clat.run.mean() / 1e3;
    let [scheduler_us, device_us, back_us] =
        [seen.before_ns, seen.device_ns, seen.back_ns].map(|ns| mean_us(ns, seen.requests));
    let rest = lat_us - scheduler_us - device_us;
    // The time of the interrupt and of the way back also occurs in requests that waited for nothing.
    let after = rest - back_us;
    // If a thread finds several I/Os done, each of them waited as long as the thread. A wait cannot be longer than the time
    // that is left.
    let cpu_wait_us = mean_us(waits.ns, waits.reaps).min(after).max(0.0);
    let tag_wait_us = (after - cpu_wait_us).max(0.0);
    let rest_us = rest.min(back_us).max(0.0);
    Some(JobStages { job, lat_us, tag_wait_us, scheduler_us, device_us, cpu_wait_us, rest_us })
}
