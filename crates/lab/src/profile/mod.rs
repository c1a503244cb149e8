// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A workload as a job file: the I/O of processes on a disk, from a trace or from the results of a run.
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | what is wrong with a file, and where |
//! | [`records`] | blktrace's binary records, of the kernel's tracer and of [`crate::trace::blktrace`] |
//! | [`text`] | the lines of blkparse |
//! | [`lives`] | from events to lifetimes: of a bio from submission to completion, of a request at the device |
//! | [`shape`] | from the lifetimes of one job's I/Os to its mix, sizes, order, depth and rate |
//! | [`service`] | how long the device takes, and how much of that is uncertain |
//! | [`results`] | the same of a run's JSON, fio's or ours |
//! | [`mod@write`] | the job file, and the lines of a machine file |
//!
//! # Guarantees
//! Nothing in a file is trusted: whatever its bytes, the answer is a profile, or an error with the file and the place. The
//! same file gives the same profile. What a trace cannot show results in a note, and in a range instead of a number.
//!
//! # Does not do
//! The content of the data, the memory and CPU use of the processes, and think times that depend on answers. If a trace has
//! several devices, one of them is profiled.

pub mod error;
pub mod records;
pub mod text;
pub mod lives;
pub mod shape;
pub mod service;
pub mod results;
pub mod write;

use serde::Serialize;
use std::collections::BTreeMap;

pub use error::ProfileError;
pub use service::DiskProfile;
pub use shape::JobProfile;

/// Maximum number of events of a trace that are kept: 1 GiB of memory.
pub const EVENTS_MAX: usize = 1 << 25;

/// The operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards.
    Trim,
    /// Flushes of the write cache; no data.
    Flush,
}

/// The events that a profile needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Q: a bio was submitted.
    Queue,
    /// D: a request was issued to the device.
    Issue,
    /// R: a request was requeued.
    Requeue,
    /// C: a request or bio completed.
    Complete,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Nanoseconds since the trace began.
    pub time_ns: u64,
    /// First sector of 512 bytes.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// The process. For a completion it may be any process.
    pub pid: u32,
    /// Major number in the upper 12 bits, minor in the lower 20.
    pub device: u32,
    /// The kind of event.
    pub act: Act,
    /// The operation.
    pub class: Class,
}

/// A trace that was read.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Events, in the order of their times after [`Trace::sort`].
    pub events: Vec<TraceEvent>,
    /// Names of processes.
    pub names: BTreeMap<u32, String>,
}

impl Trace {
    /// Adds an event.
    ///
    /// # Errors
    /// There are too many events, or no disk can have the extent.
    pub(crate) fn push(&mut self, event: TraceEvent) -> Result<(), String> {
        if self.events.len() >= EVENTS_MAX {
            return Err(format!("more than {EVENTS_MAX} events: trace for a shorter time, or one device only"));
        }
        if event.sector > 1 << 54 {
            return Err(format!("sector {}: beyond any disk (at most 2^54)", event.sector));
        }
        self.events.push(event);
        Ok(())
    }

    /// Keeps the name of a process, limited to letters that a job's name may have.
    pub(crate) fn name(&mut self, pid: u32, name: &str) {
        let good = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let name: String = name.chars().take(32).map(good).collect();
        if !name.is_empty() {
            self.names.insert(pid, name);
        }
    }

    /// Merges the events of several CPUs in the order of their times. Events with the same time stay in the order in which
    /// they were read.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|e| e.time_ns);
    }

    /// Devices with submissions, and how many each has.
    pub fn devices(&self) -> BTreeMap<u32, u64> {
        let mut devices = BTreeMap::new();
        for e in self.events.iter().filter(|e| e.act == Act::Queue) {
            *devices.entry(e.device).or_default() += 1;
        }
        devices
    }
}

/// `MAJOR,MINOR`, as blkparse prints it.
pub fn device_name(device: u32) -> String {
    format!("{},{}", device >> 20, device & 0xf_ffff)
}

/// Parses `MAJOR,MINOR` or `MAJOR:MINOR`.
pub fn device_of(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once([',', ':'])?;
    let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The trace or results file.
    pub source: String,
    /// The device as `MAJOR,MINOR`; `None` for results of a run.
    pub device: Option<String>,
    /// Length of the observed time, seconds.
    pub seconds: f64,
    /// Its jobs, busiest first.
    pub jobs: Vec<JobProfile>,
    /// The device, as far as the trace shows it.
    pub disk: DiskProfile,
    /// What is not known, or was left out.
    pub notes: Vec<String>,
}

/// Longest time of a trace, seconds: a year. Times of a damaged trace are up to 584 years apart.
const SECONDS_MAX: f64 = 366.0 * 86400.0;

/// Makes the profile of one device of a trace. If there are several, `device` selects one.
///
/// # Errors
/// There is no I/O in the trace, or none of `device`, or there are several devices and none was named, or its I/Os span more than a year.
pub fn of_trace(source: &str, mut trace: Trace, device: Option<u32>) -> Result<Profile, ProfileError> {
    trace.sort();
    let devices = trace.devices();
    let all = || devices.iter().map(|(d, n)| format!("{} ({n} I/Os)", device_name(*d))).collect::<Vec<_>>().join(", ");
    let device = match (device, devices.len()) {
        (_, 0) => {
            let text = "no submissions (Q) in it: trace with the actions queue, issue and complete, as blktrace does by default";
            return Err(ProfileError::new(source, text));
        }
        (Some(d), _) if devices.contains_key(&d) => d,
        (Some(d), _) => {
            let text = format!("device {}: not in the trace; the trace has {}", device_name(d), all());
            return Err(ProfileError::new(source, text));
        }
        (None, 1) => *devices.keys().next().expect("one"),
        (None, n) => {
            let text = format!("{n} devices in one trace: choose one with --device; the trace has {}", all());
            return Err(ProfileError::new(source, text));
        }
    };
    let lives = lives::of(&trace, device);
    if lives.bios.is_empty() {
        let text = "no I/O is both submitted (Q) and completed (C): trace longer, and with both actions";
        return Err(ProfileError::new(source, text));
    }
    let (first, last) = lives.span();
    let seconds = (last - first) as f64 / 1e9;
    if seconds > SECONDS_MAX {
        let text =
            format!("its I/Os span {seconds:.0} s: must be at most a year; the times of a trace count from its start");
        return Err(ProfileError::new(source, text));
    }
    let mut notes = lives.notes();
    let jobs = shape::jobs(&lives, &trace.names, &mut notes);
    let disk = service::of(&lives.requests, &mut notes);
    Ok(Profile { source: source.into(), device: Some(device_name(device)), seconds, jobs, disk, notes })
}

#[cfg(test)]
mod tests;
