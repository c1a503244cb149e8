// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the lifetimes of I/Os to jobs: one job for all processes of a name, with its mix, sizes, order, depth and rate.
//!
//! Guarantees: shares and depths are those of the trace, not a guess about the program. A job is a closed loop if a
//! completion triggers its next I/O: it keeps its depth most of the time, or answers each completion at once. Otherwise it
//! has a rate, or at depth 1 a pause between I/Os.

use super::Class;
use super::lives::{Bio, Lives};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// What triggers the I/Os of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// The completion of an I/O triggers the next one.
    Closed,
    /// The next I/O follows after a pause (depth 1).
    Think {
        /// Mean pause, microseconds.
        us: f64,
    },
    /// A clock triggers I/Os, whether others have completed or not.
    Open {
        /// The gaps vary as if random; otherwise they are even.
        poisson: bool,
    },
}

/// One direction of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DirProfile {
    /// Number of I/Os.
    pub ios: u64,
    /// I/Os per second of all processes together.
    pub iops: f64,
    /// Bytes per second.
    pub bw: f64,
    /// (bytes, share of the I/Os), largest share first.
    pub sizes: Vec<(u32, f64)>,
    /// Share of I/Os that begin where one of the last few of the same process ended.
    pub sequential: f64,
    /// Mean from submission to completion, microseconds.
    pub lat_us: f64,
}

/// The profile of one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobProfile {
    /// Name of the processes.
    pub name: String,
    /// Number of processes.
    pub numjobs: u32,
    /// Reads.
    pub read: Option<DirProfile>,
    /// Writes.
    pub write: Option<DirProfile>,
    /// Discards; a job with discards has nothing else.
    pub trim: Option<DirProfile>,
    /// Maximum number of I/Os that a process has in flight.
    pub iodepth: u32,
    /// I/Os that a process has in flight on average over time.
    pub in_flight: f64,
    /// I/Os submitted together.
    pub batch: u32,
    /// What triggers the I/Os.
    pub arrival: Arrival,
    /// Writes for each flush of the write cache; `None`: there was no flush.
    pub fsync: Option<u32>,
    /// First byte of the region.
    pub offset_bytes: u64,
    /// Length of the region.
    pub size_bytes: u64,
    /// Options of the job file as they were, if a run's results contain them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<(String, String)>,
}

impl JobProfile {
    /// Its directions.
    pub fn dirs(&self) -> impl Iterator<Item = &DirProfile> {
        [&self.read, &self.write, &self.trim].into_iter().flatten()
    }

    /// I/Os per second of all directions.
    pub fn iops(&self) -> f64 {
        self.dirs().map(|d| d.iops).sum()
    }

    /// Mean latency over all directions, microseconds.
    pub fn lat_us(&self) -> f64 {
        let ios: u64 = self.dirs().map(|d| d.ios).sum();
        self.dirs().map(|d| d.lat_us * d.ios as f64).sum::<f64>() / ios.max(1) as f64
    }
}

/// Streams that a process may continue: it may read several files alternately.
const STREAMS: usize = 8;
/// A job is a closed loop if it has at least this share of its depth in flight.
const CLOSED: f64 = 0.7;
/// A job is also a closed loop if at least this share of its submissions follow a completion at once. A thread that is
/// often off its CPU has few I/Os in flight.
const PROMPT: f64 = 0.6;
/// Longest time between a completion and a submission that follows it at once, in nanoseconds, and the same as a share of
/// the mean gap between submissions.
const ANSWERS: (f64, f64) = (50_000.0, 0.4);
/// Pauses below this are the process's own work and the machine's.
const THINK_MIN_US: f64 = 10.0;
/// Processes of a name are left out if they have less than this share of all I/Os.
const SHARE_MIN: f64 = 0.002;
/// Largest share of all I/Os that may be left out in this way.
const LOST_MAX: f64 = 0.05;
/// Largest depth of a job, which is the limit of job files.
const DEPTH_MAX: i64 = 65_536;

/// The name of processes that are one job, and whether they read, write and trim.
type Group = (String, [bool; 3]);

/// Makes the jobs of a device, busiest first.
pub fn jobs(lives: &Lives, names: &BTreeMap<u32, String>, notes: &mut Vec<String>) -> Vec<JobProfile> {
    let mut by_pid: BTreeMap<(u32, bool), Vec<&Bio>> = BTreeMap::new();
    for b in &lives.bios {
        by_pid.entry((b.pid, b.class == Class::Trim)).or_default().push(b);
    }
    // Processes of the same name and the same directions are one job, because a single thread may have next to nothing to do.
    let mut groups: BTreeMap<Group, Vec<Vec<&Bio>>> = BTreeMap::new();
    for ((pid, _), bios) in by_pid {
        let name = names.get(&pid).cloned().unwrap_or_else(|| format!("pid{pid}"));
        let does = [Class::Read, Class::Write, Class::Trim].map(|c| bios.iter().any(|b| b.class == c));
        groups.entry((name, does)).or_default().push(bios);
    }
    drop_small(&mut groups, lives.bios.len(), notes);
    let foreign = foreign_flushes(&mut groups, notes);
    let (first, last) = lives.span();
    let each = |all: Vec<_>| all.into_iter().map(Process::of).collect::<Vec<_>>();
    let flushes_of =
        |key: &Group| foreign.as_ref().filter(|(writer, _)| writer == key).map_or(0, |(_, flushes)| *flushes);
    let mut jobs: Vec<JobProfile> = groups
        .into_iter()
        .map(|(key, all)| {
            let flushes = flushes_of(&key);
            job(key.0, &each(all), (last - first).max(1), flushes)
        })
        .collect();
    jobs.sort_by(|a, b| b.iops().total_cmp(&a.iops()));
    // Each job gets its own name.
    for i in 1..jobs.len() {
        let same =
            jobs[..i].iter().filter(|j| j.name == jobs[i].name || j.name.starts_with(&format!("{}-", jobs[i].name)));
        match same.count() {
            0 => {}
            n => jobs[i].name = format!("{}-{}", jobs[i].name, n + 1),
        }
    }
    jobs
}

/// Takes out the processes that only flush, such as a journal's. Returns the job that writes most, with the number of their flushes:
/// they are for its writes.
fn foreign_flushes(groups: &mut BTreeMap<Group, Vec<Vec<&Bio>>>, notes: &mut Vec<String>) -> Option<(Group, u64)> {
    let flushers: Vec<Group> = groups.keys().filter(|(_, does)| !does.contains(&true)).cloned().collect();
    if flushers.is_empty() {
        return None;
    }
    let bios = |all: Vec<Vec<&Bio>>| all.iter().map(|bios| bios.len() as u64).sum::<u64>();
    let flushes: u64 = flushers.iter().filter_map(|key| groups.remove(key)).map(bios).sum();
    let names: Vec<&str> = flushers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let writes = |all: &Vec<Vec<&Bio>>| all.iter().flatten().filter(|b| b.class == Class::Write).count();
    let writer = groups.iter().max_by_key(|(_, all)| writes(all)).filter(|(_, all)| writes(all) > 0);
    notes.push(match writer {
        Some(((name, _), _)) => {
            format!("{flushes} flushes of {names}, which has no other I/O, count for '{name}', which writes most")
        }
        None => format!("{flushes} flushes of {names} are left out: no process writes"),
    });
    writer.map(|(key, _)| (key.clone(), flushes))
}

/// Drops groups with few of the `most` I/Os, the smallest first, as long as the total loss stays small.
fn drop_small(groups: &mut BTreeMap<Group, Vec<Vec<&Bio>>>, most: usize, notes: &mut Vec<String>) {
    let share = |ios: usize| ios as f64 / most as f64;
    let ios = |all: &Vec<Vec<&Bio>>| all.iter().map(Vec::len).sum::<usize>();
    let mut small: Vec<(usize, Group)> =
        groups.iter().map(|(key, all)| (ios(all), key.clone())).filter(|(n, _)| share(*n) < SHARE_MIN).collect();
    small.sort();
    let (mut lost, mut processes) = (0, 0);
    for (n, key) in small {
        if share(lost + n) > LOST_MAX {
            break;
        }
        lost += n;
        processes += groups.remove(&key).map_or(0, |all| all.len());
    }
    if processes > 0 {
        let (min, lost) = (100.0 * SHARE_MIN, 100.0 * share(lost));
        notes.push(format!(
            "{processes} processes, of names with less than {min} % of all I/Os each, are left out: {lost:.2} % of all I/Os"
        ));
    }
}

/// One process: its bios in the order of submission, and figures about its depth.
struct Process<'b> {
    bios: Vec<&'b Bio>,
    depth: u32,
    in_flight: f64,
    batch: f64,
    /// Mean pause after an I/O, microseconds.
    think_us: f64,
    /// Coefficient of variation of the gaps between submissions.
    gap_cv: f64,
    /// Share of the submissions after a completion that follow at once.
    prompt: f64,
}

impl<'b> Process<'b> {
    fn of(bios: Vec<&'b Bio>) -> Process<'b> {
        let io: Vec<&Bio> = bios.iter().copied().filter(|b| b.class != Class::Flush).collect();
        // +1 for a submission, -1 for a completion. At equal times completions come first.
        let begins = io.iter().map(|b| (b.queued_ns, 1));
        let mut steps: Vec<(u64, i64)> = begins.chain(io.iter().map(|b| (b.done_ns, -1))).collect();
        steps.sort_unstable();
        let (mut out, mut last, mut area, mut idle_ns, mut pauses) = (0i64, steps[0].0, 0.0, 0.0, 0u64);
        let (mut depths, mut runs, mut was_end) = (Vec::new(), 0u64, true);
        let span = (steps[steps.len() - 1].0 - steps[0].0).max(1) as f64;
        let answers = ANSWERS.0.min(ANSWERS.1 * span / io.len() as f64);
        let mut prompt = 0u64;
        for (at, step) in &steps {
            let ns = (at - last) as f64;
            area += out as f64 * ns;
            if out == 0 {
                idle_ns += ns;
            }
            // Not below 0, in case times are at the end of their range.
            out = (out + step).max(0);
            last = *at;
            if *step > 0 {
                depths.push(out.clamp(1, DEPTH_MAX) as u32);
                runs += u64::from(was_end);
                prompt += u64::from(was_end && ns <= answers);
            } else if out == 0 {
                pauses += 1;
            }
            was_end = *step < 0;
        }
        depths.sort_unstable();
        let gaps: Vec<f64> = io.windows(2).map(|w| (w[1].queued_ns - w[0].queued_ns) as f64).collect();
        Process {
            depth: depths[(depths.len() - 1) * 99 / 100],
            in_flight: area / span,
            batch: io.len() as f64 / runs.max(1) as f64,
            think_us: idle_ns / pauses.max(1) as f64 / 1e3,
            gap_cv: cv(&gaps),
            prompt: prompt as f64 / runs.max(1) as f64,
            bios,
        }
    }
}

/// Standard deviation over mean; 0 for fewer than two values.
pub(super) fn cv(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 || mean <= 0.0 {
        return 0.0;
    }
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt() / mean
}

/// `foreign_flushes`: those of other processes for its writes. The job does not wait for them.
fn job(name: String, all: &[Process<'_>], span_ns: u64, foreign_flushes: u64) -> JobProfile {
    let n = all.len() as f64;
    let mean = |f: &dyn Fn(&Process<'_>) -> f64| all.iter().map(f).sum::<f64>() / n;
    let iodepth = all.iter().map(|p| p.depth).max().unwrap_or(1);
    let in_flight = mean(&|p| p.in_flight);
    let batch = (mean(&|p| p.batch).round() as u32).clamp(1, iodepth);
    let dir = |class| dir(all, class, span_ns);
    let [read, write, trim] = [Class::Read, Class::Write, Class::Trim].map(dir);
    let bios = || all.iter().flat_map(|p| p.bios.iter()).filter(|b| b.class != Class::Flush);
    let first = bios().map(|b| b.sector).min().unwrap_or(0);
    let end = bios().map(|b| b.sector + u64::from(b.bytes >> 9)).max().unwrap_or(0);
    let own_flushes = all.iter().flat_map(|p| p.bios.iter()).filter(|b| b.class == Class::Flush).count() as u64;
    let writes = write.as_ref().map_or(0, |w| w.ios);
    let flushes = own_flushes + foreign_flushes;
    let fsync = (flushes > 0 && writes > 0).then(|| ((writes as f64 / flushes as f64).round() as u32).max(1));
    let mut job = JobProfile {
        name,
        numjobs: all.len() as u32,
        read,
        write,
        trim,
        iodepth,
        in_flight,
        batch,
        arrival: Arrival::Closed,
        fsync,
        offset_bytes: first << 9,
        size_bytes: (end - first) << 9,
        options: Vec::new(),
    };
    let think_us = mean(&|p| p.think_us);
    // An I/O that waits for its batch to fill, or for a flush, is neither in flight nor idle.
    let kept = in_flight / f64::from(iodepth) + f64::from(batch - 1) / f64::from(2 * iodepth);
    if own_flushes > 0 && writes > 0 {
        return job;
    }
    if iodepth == 1 {
        if think_us >= THINK_MIN_US && think_us >= 0.1 * job.lat_us() {
            job.arrival = Arrival::Think { us: think_us };
        }
    } else if kept < CLOSED && mean(&|p| p.prompt) < PROMPT {
        job.arrival = Arrival::Open { poisson: mean(&|p| p.gap_cv) >= 0.5 };
    }
    job
}

fn dir(all: &[Process<'_>], class: Class, span_ns: u64) -> Option<DirProfile> {
    let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut ios, mut bytes, mut follows, mut lat_ns) = (0u64, 0u64, 0u64, 0.0);
    for p in all {
        let mut ends: VecDeque<u64> = VecDeque::new();
        for b in p.bios.iter().filter(|b| b.class == class) {
            ios += 1;
            bytes += u64::from(b.bytes);
            lat_ns += (b.done_ns - b.queued_ns) as f64;
            *sizes.entry(b.bytes).or_default() += 1;
            let end = b.sector + u64::from(b.bytes >> 9);
            if let Some(stream) = ends.iter().position(|e| *e == b.sector) {
                follows += 1;
                ends.remove(stream);
            } else if ends.len() == STREAMS {
                ends.pop_front();
            }
            ends.push_back(end);
        }
    }
    if ios == 0 {
        return None;
    }
    let mut sizes: Vec<(u32, f64)> = sizes.into_iter().map(|(s, n)| (s, n as f64 / ios as f64)).collect();
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let seconds = span_ns as f64 / 1e9;
    Some(DirProfile {
        ios,
        iops: ios as f64 / seconds,
        bw: bytes as f64 / seconds,
        sizes,
        // The first I/O of each process follows nothing.
        sequential: follows as f64 / (ios - (all.len() as u64).min(ios - 1)).max(1) as f64,
        lat_us: lat_ns / ios as f64 / 1e3,
    })
}
