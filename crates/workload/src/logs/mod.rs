// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's logs of a job thread: per interval (`write_bw_log`, `write_iops_log`, `write_lat_log`, `write_hist_log`), and of what it issued
//! (`write_iolog`, [`IologRecord`]).
//!
//! A thread with logs collects a [`LogChunk`]. The host takes it from time to time
//! ([`JobThread::take_log`](crate::engine::JobThread::take_log)) and writes its lines ([`LogFormat`]).
//!
//! Guarantees: an I/O is one record for all logs that have a line for each I/O. Memory for records grows by doubling, and
//! is at most what comes between two calls of the host. Times count from the start of what is measured, after `ramp_time`.
//! Flushes, failed I/Os and I/Os of the ramp have no lines; reading back has, as reads.
//!
//! - Latencies are averaged as in fio: the first I/O after the end of a window is the last one of it, and gives the time of
//!   the line. The next window ends at the following multiple of `log_avg_msec`. The last line covers what is left.
//! - Bandwidth and IOPS of a window are counted exactly from its beginning to its end, and so are its time and value. A
//!   window without an I/O has no line, and neither has the part of a window at the end of the job. fio's helper thread
//!   samples at about these times. As with fio, windows do not count what is read back.
//! - A histogram is written by the first I/O that completes `log_hist_msec` or more after the last one of its direction.
//!
//! Does not do: files, formats of other programs.

mod iolog;
mod lines;
mod recorder;

pub(crate) use iolog::IssueLog;
pub use iolog::{IologAct, IologRecord};
pub use lines::LogFormat;
pub(crate) use recorder::{IoEnd, Recorder};

use crate::job::LogKind;

/// An I/O that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRecord {
    /// When, milliseconds since the start of what is measured.
    pub at_ms: u64,
    /// Total latency, nanoseconds.
    pub lat_ns: u64,
    /// Completion latency, nanoseconds.
    pub clat_ns: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Direction.
    pub dir: u8,
}

/// An I/O that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitRecord {
    /// When, milliseconds since the start of what is measured.
    pub at_ms: u64,
    /// Submission latency, nanoseconds.
    pub slat_ns: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Direction.
    pub dir: u8,
}

/// The value of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRecord {
    /// The log that it belongs to.
    pub kind: LogKind,
    /// Its end, milliseconds since the start of what is measured.
    pub at_ms: u64,
    /// Direction.
    pub dir: u8,
    /// The value, in the unit of the log.
    pub value: u64,
}

/// Completion latencies between two histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistRecord {
    /// Its end, milliseconds since the start of what is measured.
    pub at_ms: u64,
    /// Direction.
    pub dir: u8,
    /// Bytes of the I/O that ended it.
    pub len: u32,
    /// Bucket of a [`Histogram`](crate::hist::Histogram) and I/Os in it, ascending; empty buckets are left out.
    pub bins: Vec<(u16, u64)>,
}

/// What a thread has logged since the last chunk, each list in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogChunk {
    /// Start of what is measured, nanoseconds on the driver's clock.
    pub from_ns: u64,
    /// Completed I/Os, if a log has a line for each.
    pub ended: Vec<IoRecord>,
    /// Submitted I/Os, if a log has a line for each.
    pub submitted: Vec<SubmitRecord>,
    /// Windows of all logs that have windows.
    pub windows: Vec<WindowRecord>,
    /// Histograms.
    pub hists: Vec<HistRecord>,
    /// What was issued, for `write_iolog`.
    pub issued: Vec<IologRecord>,
}

impl LogChunk {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.ended.len() + self.submitted.len() + self.windows.len() + self.hists.len() + self.issued.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
