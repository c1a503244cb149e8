// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress on standard error: one line that is overwritten, for anything that takes longer than two seconds.
//!
//! The line of a run is fio's: `Jobs: 2 (f=2): [r(2)][45.0%][r=381MiB/s][r=97.5k IOPS][eta 00m:11s]`. Letters as in fio: R
//! r W w M m D d (sequential and random read, write, mixed, trim), / ramping, P waiting for its turn, _ ended.

use crate::args::Eta;
use host::run::{Progress, ThreadProgress, ThreadState};
use lab::report::num::{self, RATE_DIGITS, Scale};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};
use workload::job::{Dir, Job, RwMode};
use workload::schedule::Instance;

/// Nothing is shown before this.
const QUIET: Duration = Duration::from_secs(2);
/// How often the line changes.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often a line is added if standard error is no terminal, where lines cannot be overwritten.
const INTERVAL_APPENDED: Duration = Duration::from_secs(1);

/// The line on standard error.
pub struct Line {
    enabled: bool,
    terminal: bool,
    interval: Duration,
    /// How long a line may be overwritten, if not for ever, and since when it is.
    newline: Option<(Duration, Instant)>,
    quiet: Duration,
    began: Instant,
    shown_at: Option<Instant>,
    /// Characters of the line that is on the screen.
    width: usize,
}

impl Line {
    /// A line that shows nothing yet.
    pub fn new(when: Eta) -> Line {
        let terminal = std::io::stderr().is_terminal();
        Line {
            enabled: when == Eta::Always || when == Eta::Auto && terminal,
            terminal,
            interval: if terminal { INTERVAL } else { INTERVAL_APPENDED },
            newline: None,
            quiet: if when == Eta::Always { Duration::ZERO } else { QUIET },
            began: Instant::now(),
            shown_at: None,
            width: 0,
        }
    }

    /// Changes the time between two updates, and the time after which a line stays on the screen.
    pub fn timed(self, interval: Option<Duration>, newline: Option<Duration>) -> Line {
        let newline = newline.map(|after| (after, self.began));
        Line { interval: interval.unwrap_or(self.interval), newline, ..self }
    }

    /// Shows `text` if an update is due. Returns whether it was.
    pub fn show(&mut self, text: impl FnOnce() -> String) -> bool {
        let due = self.shown_at.map_or(self.began.elapsed() >= self.quiet, |at| at.elapsed() >= self.interval);
        if !self.enabled || !due {
            return false;
        }
        self.shown_at = Some(Instant::now());
        let text = text();
        let width = std::mem::replace(&mut self.width, text.chars().count());
        let mut err = std::io::stderr().lock();
        if let Some((after, since)) = &mut self.newline
            && self.terminal
            && since.elapsed() >= *after
        {
            *since = Instant::now();
            let _ = writeln!(err);
        }
        // Progress that cannot be shown is no reason to stop.
        let _ = match self.terminal {
            true => write!(err, "\r{text:<width$}"),
            false => writeln!(err, "{text}"),
        };
        let _ = err.flush();
        true
    }

    /// Takes the line off the screen.
    pub fn clear(&mut self) {
        let width = std::mem::take(&mut self.width);
        if self.terminal && width > 0 {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r{:width$}\r", "");
            let _ = err.flush();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

/// `00m:11s`, `02h:00m:11s`, or `--` when it is not known.
pub fn eta(seconds: Option<f64>) -> String {
    let Some(s) = seconds.filter(|s| s.is_finite()) else { return "--".to_owned() };
    let s = s.ceil() as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h:02}h:{m:02}m:{s:02}s") } else { format!("{m:02}m:{s:02}s") }
}

/// Renders the progress of a run; keeps what is needed for rates.
pub struct JobsLine<'a> {
    jobs: &'a [Job],
    instances: Vec<Instance>,
    before: Option<(f64, [u64; 3], [u64; 3])>,
    /// Wall-clock start of a run whose own time is virtual.
    began: Option<Instant>,
}

impl<'a> JobsLine<'a> {
    /// Makes the line for a run of these instances of jobs.
    pub fn new(jobs: &'a [Job], instances: &[Instance]) -> JobsLine<'a> {
        JobsLine { jobs, instances: instances.to_vec(), before: None, began: None }
    }

    /// As [`Self::new`], for a run in virtual time: rates are in virtual time, the time left is in real time.
    pub fn virtual_time(jobs: &'a [Job], instances: &[Instance]) -> JobsLine<'a> {
        JobsLine { began: Some(Instant::now()), ..JobsLine::new(jobs, instances) }
    }

    /// Renders the line.
    pub fn render(&mut self, p: &Progress) -> String {
        let running = p.threads.iter().filter(|t| is_running(t)).count();
        let elapsed = p.elapsed.as_ns() as f64 / 1e9;
        let left = self.seconds_left(p);
        let done = left.map(|left| 100.0 * elapsed / (elapsed + left).max(1e-9));
        let mut line = format!("Jobs: {running} (f={running}): [{}]", self.letters(p));
        let _ = match done {
            Some(done) => write!(line, "[{done:.1}%]"),
            None => write!(line, "[-.-%]"),
        };
        line.push_str(&self.rates(p, elapsed));
        let pace = self.began.map_or(1.0, |began| began.elapsed().as_secs_f64() / elapsed.max(1e-9));
        let _ = write!(line, "[eta {}]", eta(left.map(|s| s * pace)));
        line
    }

    /// Returns one letter per thread, with repeats counted.
    fn letters(&self, p: &Progress) -> String {
        let letters: Vec<char> =
            p.threads.iter().zip(&self.instances).map(|(t, i)| letter(t, &self.jobs[i.job])).collect();
        let runs = letters.chunk_by(|a, b| a == b).map(|run| format!("{}({})", run[0], run.len()));
        runs.collect::<Vec<_>>().join(",")
    }

    /// Bandwidth and IOPS since the last line.
    fn rates(&mut self, p: &Progress, elapsed: f64) -> String {
        let sum = |of: fn(&ThreadProgress) -> [u64; 3]| {
            p.threads.iter().map(of).fold([0; 3], |a, b| std::array::from_fn(|d| a[d] + b[d]))
        };
        let (ios, bytes) = (sum(|t| t.ios), sum(|t| t.bytes));
        let (then, ios_then, bytes_then) = self.before.replace((elapsed, ios, bytes)).unwrap_or_default();
        let seconds = elapsed - then;
        if seconds <= 0.0 {
            return String::new();
        }
        // At the end of a ramp the counters start again.
        let per_second = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
        let active: Vec<Dir> = Dir::ALL.into_iter().filter(|d| ios[*d as usize] > 0).collect();
        let list = |format: &dyn Fn(usize) -> String| {
            let each = active.iter().map(|d| format!("{}={}", &d.name()[..1], format(*d as usize)));
            each.collect::<Vec<_>>().join(",")
        };
        let bw = list(&|d| num::bytes_per_second(per_second(bytes[d], bytes_then[d]), Scale::Binary));
        let iops = list(&|d| num::short(per_second(ios[d], ios_then[d]), RATE_DIGITS, Scale::Decimal, ""));
        if active.is_empty() { String::new() } else { format!("[{bw}][{iops} IOPS]") }
    }

    /// Returns the seconds until the last thread ends: the running ones, then each later stonewall group.
    fn seconds_left(&self, p: &Progress) -> Option<f64> {
        let waves = self.instances.iter().map(|i| i.wave).max()?;
        let mut left = 0.0;
        for wave in 0..=waves {
            let mut longest: f64 = 0.0;
            for (t, i) in p.threads.iter().zip(&self.instances).filter(|(_, i)| i.wave == wave) {
                longest = longest.max(thread_seconds_left(t, &self.jobs[i.job])?);
            }
            left += longest;
        }
        Some(left)
    }
}

fn is_running(t: &ThreadProgress) -> bool {
    matches!(t.state, ThreadState::Running | ThreadState::Ramping)
}

fn letter(t: &ThreadProgress, job: &Job) -> char {
    let small = match job.rw.mode {
        RwMode::Read => 'r',
        RwMode::Write => 'w',
        RwMode::ReadWrite | RwMode::Replay { .. } => 'm',
        RwMode::Trim | RwMode::TrimWrite => 'd',
    };
    match t.state {
        ThreadState::Waiting => 'P',
        ThreadState::Ended => '_',
        ThreadState::Ramping => '/',
        ThreadState::Running if job.rw.random => small,
        ThreadState::Running => small.to_ascii_uppercase(),
    }
}

/// Returns the seconds until a thread ends; `None` if unknown, because no data has moved yet and no runtime is given.
fn thread_seconds_left(t: &ThreadProgress, job: &Job) -> Option<f64> {
    let ran = t.ran.as_ns() as f64 / 1e9;
    let by_time = job.runtime_ns.map(|r| (r.saturating_add(job.ramp_time_ns) as f64 / 1e9 - ran).max(0.0));
    match t.state {
        ThreadState::Ended => Some(0.0),
        ThreadState::Waiting => by_time.map(|s| s + job.startdelay_max_ns as f64 / 1e9),
        ThreadState::Running | ThreadState::Ramping => {
            let moved: u64 = t.bytes.iter().sum();
            let planned = t.planned_bytes.filter(|_| moved > 0);
            let by_bytes = planned.map(|all| ran * all.saturating_sub(moved) as f64 / moved as f64);
            by_bytes.into_iter().chain(by_time).reduce(f64::min)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(set: impl FnOnce(&mut Job)) -> Job {
        let mut job = Job::new("a");
        job.rw.random = true;
        set(&mut job);
        job
    }

    fn thread(state: ThreadState, ran_s: u64, read_mib: u64) -> ThreadProgress {
        ThreadProgress {
            state,
            ran: blk::time::Duration::from_secs(ran_s),
            ios: [read_mib * 256, 0, 0],
            bytes: [read_mib << 20, 0, 0],
            planned_bytes: None,
        }
    }

    fn line(jobs: &[Job], threads: Vec<ThreadProgress>, elapsed_s: u64) -> String {
        let instances = workload::schedule::plan(jobs, 0).unwrap();
        let progress = Progress { elapsed: blk::time::Duration::from_secs(elapsed_s), threads };
        JobsLine::new(jobs, &instances).render(&progress)
    }

    #[test]
    fn a_timed_run_has_fio_s_line() {
        let jobs = [job(|j| (j.runtime_ns, j.time_based, j.numjobs) = (Some(20_000_000_000), true, 2))];
        let t = thread(ThreadState::Running, 9, 100);
        assert_eq!(line(&jobs, vec![t, t], 9), "Jobs: 2 (f=2): [r(2)][45.0%][r=22.2MiB/s][r=5688 IOPS][eta 00m:11s]");
    }

    #[test]
    fn bytes_and_later_groups_count_too() {
        let jobs = [job(|_| ()), job(|j| (j.stonewall, j.runtime_ns) = (true, Some(5_000_000_000)))];
        let first = ThreadProgress { planned_bytes: Some(400 << 20), ..thread(ThreadState::Running, 5, 100) };
        let text = line(&jobs, vec![first, thread(ThreadState::Waiting, 0, 0)], 5);
        assert!(text.starts_with("Jobs: 1 (f=1): [r(1),P(1)][20.0%]") && text.ends_with("[eta 00m:20s]"), "{text}");
    }

    #[test]
    fn what_cannot_be_told_is_not_told() {
        let text = line(&[job(|_| ())], vec![thread(ThreadState::Ramping, 1, 0)], 1);
        assert_eq!(text, "Jobs: 1 (f=1): [/(1)][-.-%][eta --]");
        assert_eq!(eta(Some(7211.2)), "02h:00m:12s");
    }
}
