// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of fio's I/O log, version 3 (`write_iolog`): what a thread issued, and when its files were opened and closed.
//!
//! `time file action[ offset length]`, after a line with the version. Times are microseconds since the job's start. Source: fio
//! HOWTO, "Trace file format v3".

use super::LogChunk;
use crate::replay::VERSION_3;
use std::fmt::Write;

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IologAct {
    /// The version; the first line.
    Begin,
    /// The job has the file.
    Add,
    /// I/O to the file begins.
    Open,
    /// I/O to the file is over.
    Close,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A trim.
    Trim,
    /// A flush.
    Sync,
    /// A flush of data only.
    Datasync,
}

impl IologAct {
    /// fio's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            IologAct::Begin => "begin",
            IologAct::Add => "add",
            IologAct::Open => "open",
            IologAct::Close => "close",
            IologAct::Read => "read",
            IologAct::Write => "write",
            IologAct::Trim => "trim",
            IologAct::Sync => "sync",
            IologAct::Datasync => "datasync",
        }
    }

    /// Whether the line has an offset and a length.
    const fn is_io(self) -> bool {
        !matches!(self, IologAct::Begin | IologAct::Add | IologAct::Open | IologAct::Close)
    }
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IologRecord {
    /// When, microseconds since the job's start.
    pub at_us: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Number of the file among those of the thread.
    pub file: u32,
    /// What it says.
    pub act: IologAct,
}

/// What the log of a thread has to remember.
#[derive(Clone, Debug)]
pub(crate) struct IssueLog {
    /// Which files are open.
    pub open: Vec<bool>,
    /// Offset of the last I/O in each slot.
    pub of_slot: Vec<u64>,
}

/// Appends the lines of a chunk. `files` are the names of the thread's files.
pub(super) fn write(chunk: &LogChunk, files: &[String], out: &mut String) {
    for r in &chunk.issued {
        let (at, act) = (r.at_us, r.act.name());
        let file = files.get(r.file as usize).map_or("", String::as_str);
        // Writing to a String cannot fail.
        let _ = match r.act {
            IologAct::Begin => writeln!(out, "{VERSION_3}"),
            a if a.is_io() => writeln!(out, "{at} {file} {act} {} {}", r.offset, r.len),
            _ => writeln!(out, "{at} {file} {act}"),
        };
    }
}
