// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs both programs of a row by turns: both processes exist, but only one at a time runs, for a few hundredths of a second.
//!
//! A disk's speed can drift by a tenth from second to second. Runs of some seconds, one after the other, then hide a difference of a
//! hundredth: fio against itself gave 0.95 +-0.07. By turns of 50 ms it gives 0.993 +-0.027 after 20 s.
//!
//! Guarantees: the two never run at the same time. Both are measured in the same way by the kernel, without start-up: the bytes that
//! the process read from the device, and the CPU time of the thread that does the I/O. The processes have ended when a round returns,
//! also with an error. Bytes count when they are requested, not when they arrive. CPU time is that of one thread only. Needs from
//! callers: jobs of one thread each that read blocks of [`BLOCK`] bytes without the page cache, and that last longer than the round.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::job::Figures;
use super::sample::Sample;

/// Bytes of each I/O.
const BLOCK: u64 = 4096;
/// The lengths of the phases of a turn.
#[derive(Clone, Copy)]
pub struct Pace {
    /// From the start of a program to its first turn.
    start_up: Duration,
    /// A turn's beginning, which is not counted.
    settle: Duration,
    /// The part of a turn that is counted.
    turn: Duration,
    /// After a turn, time for the I/O that is still in flight.
    drain: Duration,
}

/// The lengths that the bench uses.
pub const PACE: Pace = Pace {
    start_up: Duration::from_millis(1000),
    settle: Duration::from_millis(8),
    turn: Duration::from_millis(50),
    drain: Duration::from_millis(3),
};

/// A program that is stopped except in its turns.
struct PausedProgram {
    side: &'static str,
    child: Child,
    /// It and its children.
    pids: Vec<u32>,
    /// The process that does the I/O, and its thread.
    worker: (u32, u32),
    total: Count,
}

#[derive(Clone, Copy, Default)]
struct Count {
    seconds: f64,
    ios: u64,
    cpu_ns: u64,
}

impl Drop for PausedProgram {
    fn drop(&mut self) {
        for pid in self.pids.iter().rev() {
            // The process may have ended by itself.
            let _ = signal("-KILL", *pid);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns how many seconds a program must last so that each of `sides` programs gets turns of `seconds` seconds in sum.
pub fn lasts(seconds: u32, sides: usize) -> u32 {
    // Settling and draining add to each turn, reading the counters and signals a little.
    (2 * seconds + 2) * sides as u32
}

/// Runs the commands by turns until each has had `seconds` of turns. Returns a sample of each, in their order.
///
/// # Errors
/// When a program cannot be run, ends early, or does no I/O in its turns.
pub fn round(commands: Vec<(&'static str, Command)>, seconds: u32, pace: Pace) -> Result<Vec<Sample>, String> {
    let mut players = Vec::new();
    for (side, command) in commands {
        players.push(PausedProgram::start(side, command, pace)?);
    }
    let turns = (f64::from(seconds) / pace.turn.as_secs_f64()).ceil() as u32;
    for turn in 0..turns {
        let order: Vec<usize> =
            if turn % 2 == 0 { (0..players.len()).collect() } else { (0..players.len()).rev().collect() };
        for index in order {
            players[index].take_turn(pace)?;
        }
    }
    players.iter().map(PausedProgram::sample).collect()
}

impl PausedProgram {
    fn start(side: &'static str, mut command: Command, pace: Pace) -> Result<PausedProgram, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|e| format!("{side}: cannot run {command:?}: {e}"))?;
        let pid = child.id();
        let mut player = PausedProgram { side, child, pids: vec![pid], worker: (pid, pid), total: Count::default() };
        sleep(pace.start_up);
        player.pids = family(pid);
        let threads = player.pids.iter().flat_map(|pid| threads(*pid).into_iter().map(|tid| (*pid, tid)));
        let busiest = threads.max_by_key(|(pid, tid)| cpu_ns(*pid, *tid).unwrap_or(0));
        player.worker = busiest.ok_or_else(|| player.gone())?;
        signal("-STOP", player.worker.0)?;
        Ok(player)
    }

    fn take_turn(&mut self, pace: Pace) -> Result<(), String> {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return Err(self.gone());
        }
        let (pid, tid) = self.worker;
        let count = || Some((Instant::now(), read_bytes(pid)?, cpu_ns(pid, tid)?));
        signal("-CONT", pid)?;
        sleep(pace.settle);
        let before = count().ok_or_else(|| self.gone())?;
        sleep(pace.turn);
        let after = count().ok_or_else(|| self.gone())?;
        signal("-STOP", pid)?;
        sleep(pace.drain);
        self.total.seconds += (after.0 - before.0).as_secs_f64();
        self.total.ios += (after.1 - before.1) / BLOCK;
        self.total.cpu_ns += after.2 - before.2;
        Ok(())
    }

    fn sample(&self) -> Result<Sample, String> {
        let Count { seconds, ios, cpu_ns } = self.total;
        if ios == 0 {
            return Err(format!("{}: no I/O in its turns", self.side));
        }
        let cpu_us = cpu_ns as f64 / 1e3;
        let cpu_us_per_io = cpu_us / ios as f64;
        let figures = Figures { iops: ios as f64 / seconds, total_ios: ios, cpu_us_per_io, ..Figures::default() };
        Ok(Sample { side: self.side, figures, process_cpu_s: cpu_us / 1e6, jobs: Value::Null })
    }

    fn gone(&self) -> String {
        format!("{}: it ended before its turns were over", self.side)
    }
}

fn signal(name: &str, pid: u32) -> Result<(), String> {
    let status = Command::new("kill").arg(name).arg(pid.to_string()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("kill {name} {pid}: no such process")),
        Err(e) => Err(format!("cannot run kill: {e}")),
    }
}

/// Returns the ids of a process and all of its descendants.
fn family(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    for tid in threads(pid) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|c| c.parse().ok()).flat_map(family));
    }
    found
}

fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Nanoseconds on a CPU so far: the first field of the thread's schedstat.
fn cpu_ns(pid: u32, tid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

/// Bytes the process has caused to be read from devices.
fn read_bytes(pid: u32) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_this_process_what_is_counted() {
        let pid = std::process::id();
        assert!(family(pid).contains(&pid));
        let tids = threads(pid);
        assert!(tids.contains(&pid));
        assert!(cpu_ns(pid, pid).is_some_and(|ns| ns > 0));
        assert!(read_bytes(pid).is_some());
    }

    #[test]
    fn a_program_that_ends_early_or_does_nothing_is_an_error() {
        let ms = Duration::from_millis;
        let quick = Pace { start_up: ms(20), settle: ms(1), turn: ms(500), drain: ms(1) };
        let mut idle = Command::new("sleep");
        idle.arg("60");
        assert_eq!(round(vec![("b", idle)], 1, quick).err().unwrap(), "b: no I/O in its turns");
        let mut brief = Command::new("sleep");
        brief.arg("0.1");
        assert_eq!(round(vec![("a", brief)], 1, quick).err().unwrap(), "a: it ended before its turns were over");
    }
}
