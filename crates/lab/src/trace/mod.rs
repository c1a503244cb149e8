// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a run's trace as files: in blktrace's format ([`blktrace`]), or as Chrome's trace events ([`chrome`]).
//!
//! Guarantees: one set of files per disk. Events of several threads are in the order of their times, and events of one
//! thread with the same time stay in the thread's order. Needs from callers: logs with a common clock, such as those of one
//! run. Does not: protect existing files of these names; they are replaced.

pub mod blktrace;
pub mod chrome;

use blk::trace::{Event, TraceLog};
use host::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::run::Run;

/// A layout of trace files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// blktrace's binary format, one file per CPU: `PREFIX.blktrace.CPU`.
    Blktrace,
    /// Chrome's trace event format, which Perfetto opens: `PREFIX.json`.
    Chrome,
}

/// The events of one thread.
#[derive(Clone, Debug)]
pub struct ThreadEvents<'a> {
    /// A number that is unique among the threads of the disk. blkparse shows it as the process.
    pub pid: u32,
    /// The job's name.
    pub name: &'a str,
    /// The events it traced.
    pub log: &'a TraceLog,
}

/// The files that were written for a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The files, in the order they were written.
    pub files: Vec<PathBuf>,
    /// Events in them.
    pub events: u64,
    /// Events that were dropped because the thread's log was full.
    pub dropped: u64,
}

/// Checks before a run whether its trace can be written. Leaves no file behind.
pub fn probe(prefix: &Path, format: TraceFormat) -> Result<()> {
    let path = first_file(prefix, format);
    let there = path.exists();
    File::options().write(true).create(true).truncate(false).open(&path).map_err(|e| failed(e, &path))?;
    if !there {
        std::fs::remove_file(&path).map_err(|e| failed(e, &path))?;
    }
    Ok(())
}

/// Writes the trace of a run. If there are several disks, each has its own files: `-` and the disk's number follow the prefix.
pub fn write(run: &Run<'_>, prefix: &Path, format: TraceFormat) -> Result<Written> {
    let disks = run.outcome.devices.len();
    let mut written = Written::default();
    for disk in 0..disks {
        let prefix = if disks == 1 { prefix.to_owned() } else { with_suffix(prefix, &format!("-{disk}")) };
        let threads = threads_of(run, disk);
        written.events += threads.iter().map(|t| t.log.events.len() as u64).sum::<u64>();
        written.dropped += threads.iter().map(|t| t.log.dropped).sum::<u64>();
        match format {
            TraceFormat::Blktrace => write_blktrace(&threads, disk as u32, &prefix, &mut written.files)?,
            TraceFormat::Chrome => {
                let path = with_suffix(&prefix, ".json");
                let name = &run.outcome.devices[disk];
                to_file(&path, |out| chrome::write(&threads, name, out))?;
                written.files.push(path);
            }
        }
    }
    Ok(written)
}

fn threads_of<'r>(run: &'r Run<'_>, disk: usize) -> Vec<ThreadEvents<'r>> {
    let threads = run.outcome.threads.iter().zip(&run.outcome.instances);
    threads
        .filter_map(|(end, instance)| Some((end.as_ref()?, instance)))
        .flat_map(|(end, instance)| {
            let name = &run.file.jobs[instance.job].name;
            let its = end.traces.iter().filter(move |t| t.disk == disk);
            its.map(move |t| ThreadEvents { pid: instance.number, name, log: &t.log })
        })
        .collect()
}

fn write_blktrace(threads: &[ThreadEvents<'_>], disk: u32, prefix: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let cpus = blktrace::nr_cpus(threads);
    for cpu in 0..cpus {
        let path = blktrace_file(prefix, cpu);
        to_file(&path, |out| blktrace::write_cpu(threads, cpu, disk, out))?;
        files.push(path);
    }
    // blkparse reads files until a number is missing, so files of an earlier trace with more CPUs have to be removed.
    for cpu in cpus.. {
        let path = blktrace_file(prefix, cpu);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) => return Err(failed(e, &path)),
        }
    }
    Ok(())
}

fn first_file(prefix: &Path, format: TraceFormat) -> PathBuf {
    match format {
        TraceFormat::Blktrace => blktrace_file(prefix, 0),
        TraceFormat::Chrome => with_suffix(prefix, ".json"),
    }
}

fn blktrace_file(prefix: &Path, cpu: u32) -> PathBuf {
    with_suffix(prefix, &format!(".blktrace.{cpu}"))
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn to_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let file = File::create(path).map_err(|e| failed(e, path))?;
    let mut out = BufWriter::with_capacity(1 << 16, file);
    write(&mut out).and_then(|()| out.flush()).map_err(|e| failed(e, path))
}

fn failed(e: io::Error, path: &Path) -> Error {
    let text =
        format!("trace file '{}' cannot be written; name a prefix in a directory you may write to", path.display());
    Error::os(e, text)
}

/// Returns all events in the order of their times, each with the index of its thread.
fn in_order<'a>(threads: &'a [ThreadEvents<'a>], keep: impl Fn(&Event) -> bool) -> Vec<(usize, &'a Event)> {
    let each = threads.iter().enumerate().flat_map(|(i, t)| t.log.events.iter().map(move |e| (i, e)));
    let mut all: Vec<_> = each.filter(|(_, e)| keep(e)).collect();
    // Stable: equal times stay in the thread's order.
    all.sort_by_key(|(_, e)| e.time);
    all
}

#[cfg(test)]
mod tests;
