// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What would change if a machine were different. The same jobs run on the machine as it is and on the changed one, many
//! times over, because some constants of the machine are known only as ranges.
//!
//! | module | what it is |
//! |---|---|
//! | [`change`] | what is asked: settings, the disk, costs, the CPUs, options of the jobs |
//! | [`draw`] | a possible machine: each constant at some value in its known range |
//! | [`judge`] | from the results of all possible machines to an interval and a verdict |
//!
//! A *member* is one possible machine with a seed. It is simulated as it is and once for each question, with the same
//! constants and the same seed. So the difference is the question's alone. Members that do not match what was measured on
//! the real machine are left out. When most are left out, the model does not describe the machine, and the answer is that it
//! cannot tell.
//!
//! # Guarantees
//! The same question gives the same answer. An interval covers all members that are left, not a part of them.
//!
//! # Does not do
//! File systems, page cache and anything else that a machine file has no constant for: the answer is then that it cannot tell.

pub mod change;
pub mod draw;
pub mod judge;

use crate::machine::jobs::refusal;
use crate::scenario::file::{Scenario, split_figure};
use crate::scenario::outcome::{self, RowOutcome};
use change::Variant;
use draw::Draws;
use workload::job::{Dir, Extent, Job, JobFile, Override, ParseContext};

/// Approximate number of I/Os of a run.
pub const DEFAULT_IOS: u64 = 20_000;
/// Default number of members.
pub const DEFAULT_MEMBERS: u32 = 16;
/// Shortest and longest virtual time of a run.
const RUN_NS: (u64, u64) = (20_000_000, 60_000_000_000);
/// Least I/Os of a first run from which the speed of a machine is estimated.
const LOOK_IOS: u64 = 500;

/// A set of questions about one machine.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Name of the machine file, for messages.
    pub machine_file: &'a str,
    /// Text of the machine file.
    pub machine: &'a str,
    /// Name and text of the job file; `None` for a machine with guests.
    pub jobs: Option<(&'a str, &'a str)>,
    /// The questions, each as `KEY=VALUE[,KEY=VALUE...]`.
    pub changes: &'a [String],
    /// Number of members, 4 or more.
    pub members: u32,
    /// Approximate number of I/Os of each run.
    pub ios: u64,
    /// Seed of all runs.
    pub seed: u64,
}

/// Questions that can be simulated.
pub struct Plan {
    /// The machine as it is, then each changed machine, in the order of the questions.
    pub variants: Vec<Variant>,
    /// The uncertain constants.
    pub draws: Draws,
    /// Reasons for which no question has an answer.
    pub cannot: Vec<String>,
    jobs: Vec<Vec<Job>>,
    members: u32,
    seed: u64,
}

impl Plan {
    /// Checks the questions.
    ///
    /// # Errors
    /// The first error, with its file and line or its flag.
    pub fn new(q: &Question<'_>) -> Result<Plan, String> {
        let scenario = Scenario::parse_machine(q.machine_file, q.machine).map_err(|e| e.to_string())?;
        let table: toml::Table = q.machine.parse().map_err(|e| format!("{}: {e}", q.machine_file))?;
        let base = Variant::as_it_is(&scenario);
        let mut variants = vec![base];
        for text in q.changes {
            variants.push(change::read(text, &scenario, &table).map_err(|e| format!("--what-if {text}: {e}"))?);
        }
        if scenario.guests.is_none() && q.jobs.is_none() {
            return Err(format!("{}: has no [guests]: name a job file by --jobs", q.machine_file));
        }
        let mut jobs = Vec::new();
        for v in &variants {
            jobs.push(match q.jobs {
                Some((name, text)) if scenario.guests.is_none() => v.jobs(name, text)?,
                _ => Vec::new(),
            });
        }
        let cannot: Vec<String> = jobs[0].iter().filter_map(not_simulated).collect();
        for (v, jobs) in variants.iter_mut().zip(&jobs).skip(1).filter(|_| cannot.is_empty()) {
            v.cannot.extend(jobs.iter().filter_map(not_simulated));
        }
        // All measured figures of these jobs are simulated, whatever the metric.
        let measured: Vec<String> = scenario.measured.keys().filter(|f| is_of(f, &jobs[0])).cloned().collect();
        for v in &mut variants {
            v.row.published.extend(measured.iter().map(|f| (f.clone(), scenario.measured[f])));
        }
        let draws = Draws::new(&scenario, &table, q.members, q.seed);
        let mut plan = Plan { variants, draws, cannot, jobs, members: q.members, seed: q.seed };
        if plan.cannot.is_empty() && scenario.guests.is_none() {
            plan.cut(q.ios)?;
        }
        Ok(plan)
    }

    /// Returns the number of runs. Runs are numbered from 0.
    pub fn runs(&self) -> usize {
        if self.cannot.is_empty() { self.variants.len() * self.members as usize } else { 0 }
    }

    /// Simulates one run. Runs share no state.
    ///
    /// # Errors
    /// A setting or a job that does not fit.
    pub fn run(&self, number: usize) -> Result<RowOutcome, String> {
        let (member, variant) = (number / self.variants.len(), number % self.variants.len());
        let v = &self.variants[variant];
        if variant > 0 && !v.cannot.is_empty() {
            // The result of this run is not used.
            return self.run(number - variant);
        }
        self.simulate(variant, member as u32, &self.jobs[variant])
    }

    /// Derives the answers from the results of all runs, which are in the order of their numbers.
    pub fn judge(&self, runs: &[RowOutcome]) -> judge::Answers {
        judge::judge(self, runs)
    }

    fn simulate(&self, variant: usize, member: u32, jobs: &[Job]) -> Result<RowOutcome, String> {
        let v = &self.variants[variant];
        let scenario = self.draws.machine(&v.scenario, member, &v.places);
        let seed = self.seed.wrapping_add(u64::from(member) << 20);
        let done = match scenario.guests {
            Some(_) => outcome::simulate_guests(&scenario, &v.row, seed),
            None => outcome::simulate(&scenario, &v.row, jobs, seed),
        };
        done.map_err(|e| match variant {
            0 => e.to_string(),
            _ => format!("--what-if {}: {e}", v.row.name),
        })
    }

    /// Sets the run times so that each run makes about `ios` I/Os, whatever the job file says.
    fn cut(&mut self, ios: u64) -> Result<(), String> {
        let longest = self.jobs[0].iter().filter_map(|j| j.runtime_ns).max().unwrap_or(RUN_NS.1).min(RUN_NS.1);
        let mut ns = RUN_NS.0;
        let rate = loop {
            let jobs: Vec<Job> = self.jobs[0].iter().map(|j| for_so_long(j, ns)).collect();
            let seen = self.simulate(0, 0, &jobs)?.ios.max(1);
            if seen >= LOOK_IOS || ns >= longest {
                break seen as f64 / ns as f64;
            }
            ns = (ns * 8).min(longest);
        };
        let ns = ((ios as f64 / rate) as u64).clamp(RUN_NS.0, longest.max(RUN_NS.0));
        for jobs in &mut self.jobs {
            jobs.iter_mut().for_each(|j| *j = for_so_long(j, ns));
        }
        Ok(())
    }
}

/// Returns why a job cannot be simulated.
fn not_simulated(j: &Job) -> Option<String> {
    let why = match refusal(j) {
        Some(why) => return Some(format!("job '{}': {why}", j.name)),
        None if !j.direct => {
            "goes through the page cache (direct=0), which is not simulated; if it bypasses the cache, set direct=1"
        }
        None if j.rw.has(Dir::Trim) => "sends discards, which simulated disks do not have; leave it out",
        None => return None,
    };
    Some(format!("job '{}' {why}", j.name))
}

/// Whether a figure belongs to one of these jobs.
fn is_of(figure: &str, jobs: &[Job]) -> bool {
    split_figure(figure).is_some_and(|(job, _)| jobs.iter().any(|j| j.name == job))
}

/// Returns the job with a virtual run time of `ns`, after a ramp time of a tenth of that.
fn for_so_long(job: &Job, ns: u64) -> Job {
    Job {
        runtime_ns: Some(ns),
        time_based: true,
        ramp_time_ns: ns / 10,
        number_ios: None,
        io_size: None::<Extent>,
        loops: 1,
        // A map of all blocks of a large disk would take more memory than the rest of the machine. In so short a time
        // `norandommap` has the same effect.
        norandommap: true,
        ..job.clone()
    }
}

impl Variant {
    fn jobs(&self, name: &str, text: &str) -> Result<Vec<Job>, String> {
        let context = ParseContext { ncpus: self.scenario.machine.cpus(), ..ParseContext::bare(name) };
        let set = |(key, value): &(String, String)| Override {
            flag: "--what-if job.",
            key: key.clone(),
            value: value.clone(),
        };
        let overrides: Vec<Override> = self.job.iter().map(set).collect();
        JobFile::parse_str(text, &context, &overrides).map(|f| f.jobs).map_err(|e| e.to_string())
    }
}

/// Whether more of a figure is better.
pub(crate) fn is_more_better(figure: &str) -> bool {
    !split_figure(figure).is_some_and(|(_, metric)| metric.ends_with("_us"))
}

#[cfg(test)]
mod tests;
