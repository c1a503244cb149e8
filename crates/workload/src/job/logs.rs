// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of the logs: which logs a job writes, what is averaged, and the names of the files.
//!
//! Guarantees: as in fio 3.33, bandwidth and IOPS are logged per I/O, or per window of `bwavgtime` and `iopsavgtime`. Each
//! window defaults to `log_avg_msec`. Source: fio HOWTO, "Measurements and reporting".

use super::draft::Draft;
use super::spec::Job;

/// fio's default of `bwavgtime` and `iopsavgtime`, milliseconds.
pub const RATE_INTERVAL_MS: u64 = 500;

/// A log file of a job's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Total latency, nanoseconds.
    Lat,
    /// Submission latency, nanoseconds.
    Slat,
    /// Completion latency, nanoseconds.
    Clat,
    /// Histograms of completion latencies.
    Hist,
    /// Bandwidth: per window KiB/s, per I/O bytes per millisecond.
    Bw,
    /// I/Os per second in a window; 1 for each I/O without windows.
    Iops,
    /// What was issued, to be replayed (`write_iolog`).
    Iolog,
}

impl LogKind {
    /// All kinds, in the order in which fio opens them.
    pub const ALL: [LogKind; 7] =
        [LogKind::Iolog, LogKind::Lat, LogKind::Slat, LogKind::Clat, LogKind::Hist, LogKind::Bw, LogKind::Iops];

    /// fio's word for it in file names.
    pub const fn name(self) -> &'static str {
        match self {
            LogKind::Lat => "lat",
            LogKind::Slat => "slat",
            LogKind::Clat => "clat",
            LogKind::Hist => "clat_hist",
            LogKind::Bw => "bw",
            LogKind::Iops => "iops",
            LogKind::Iolog => "iolog",
        }
    }
}

/// A requested log: the beginning of its file name; empty = the job's name.
pub type LogName = Option<String>;

/// Bandwidth or IOPS over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLog {
    /// The log, if requested.
    pub name: LogName,
    /// The log has a line for each I/O, not for each window.
    pub each_io: bool,
    /// Length of a window, also of the samples in results; milliseconds, at least 1.
    pub interval_ms: u64,
}

impl Default for RateLog {
    fn default() -> Self {
        RateLog { name: None, each_io: false, interval_ms: RATE_INTERVAL_MS }
    }
}

impl RateLog {
    /// Applies fio's rules, once all options are known. `avgtime`: `bwavgtime` or `iopsavgtime` was given.
    fn resolve(&mut self, log_avg_ms: u64, avgtime: bool) {
        if self.name.is_some() {
            self.each_io = log_avg_ms == 0 || (avgtime && self.interval_ms == 0);
            if !avgtime && log_avg_ms > 0 {
                self.interval_ms = log_avg_ms;
            }
        }
        if self.interval_ms == 0 {
            self.interval_ms = RATE_INTERVAL_MS;
        }
    }
}

/// The logs of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// `write_bw_log=`, `bwavgtime=`.
    pub bw: RateLog,
    /// `write_iops_log=`, `iopsavgtime=`.
    pub iops: RateLog,
    /// `write_lat_log=`: total, submission and completion latencies.
    pub lat: LogName,
    /// `write_hist_log=`.
    pub hist: LogName,
    /// `write_iolog=`: the name of the file.
    pub iolog: LogName,
    /// `log_avg_msec=`: window of latencies, milliseconds; 0 = a line for each I/O.
    pub avg_ms: u64,
    /// `log_max_value=`: a window of latencies has its maximum, not its mean.
    pub max_value: bool,
    /// `log_hist_msec=`: least time between two histograms of a direction, milliseconds; 0 = none is written.
    pub hist_ms: u64,
    /// `log_hist_coarseness=`: 2 to this power buckets are one number, 0..=6.
    pub hist_coarseness: u32,
    /// `log_offset=`: lines have the offset of the I/O.
    pub offset: bool,
    /// `log_prio=`: lines have the priority of the I/O, not only whether it is real time.
    pub prio: bool,
    /// `per_job_logs=`: each thread has its own file, which is replaced; else all append to one.
    pub per_job: bool,
    /// `log_unix_epoch=`: times count from the clock's zero, not from the start of what is measured.
    pub unix_epoch: bool,
    /// `log_alternate_epoch=`: as `log_unix_epoch`.
    pub alternate_epoch: bool,
    /// `log_alternate_epoch_clock_id=`: the clock of both, as `clock_gettime` numbers them; 0 = real time.
    pub clock_id: i32,
    /// `disable_lat=`: no log of total latencies.
    pub no_lat: bool,
    /// `disable_slat=`: no log of submission latencies.
    pub no_slat: bool,
    /// `disable_clat=`: no log of completion latencies.
    pub no_clat: bool,
    /// `disable_bw_measurement=`: a bandwidth log of each I/O is empty.
    pub no_bw: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            bw: RateLog::default(),
            iops: RateLog::default(),
            lat: None,
            hist: None,
            iolog: None,
            avg_ms: 0,
            max_value: false,
            hist_ms: 0,
            hist_coarseness: 0,
            offset: false,
            prio: false,
            per_job: true,
            unix_epoch: false,
            alternate_epoch: false,
            clock_id: 0,
            no_lat: false,
            no_slat: false,
            no_clat: false,
            no_bw: false,
        }
    }
}

impl LogOptions {
    /// The name that was given for a kind of log, if the log is written.
    fn name(&self, kind: LogKind) -> Option<&str> {
        let (name, off) = match kind {
            LogKind::Lat => (&self.lat, self.no_lat),
            LogKind::Slat => (&self.lat, self.no_slat),
            LogKind::Clat => (&self.lat, self.no_clat),
            LogKind::Hist => (&self.hist, false),
            LogKind::Bw => (&self.bw.name, false),
            LogKind::Iops => (&self.iops.name, false),
            LogKind::Iolog => (&self.iolog, false),
        };
        name.as_deref().filter(|_| !off)
    }

    /// Whether this kind of log is written.
    pub fn has(&self, kind: LogKind) -> bool {
        self.name(kind).is_some()
    }

    /// Whether any log is written.
    pub fn any(&self) -> bool {
        LogKind::ALL.into_iter().any(|kind| self.has(kind))
    }

    /// Whether lines of this kind are appended to the file; otherwise the file is replaced.
    pub fn appends(&self, kind: LogKind) -> bool {
        kind == LogKind::Iolog || !self.per_job
    }

    /// The clock that times are counted by, if not from the start.
    pub fn epoch_clock(&self) -> Option<i32> {
        (self.unix_epoch || self.alternate_epoch).then_some(self.clock_id)
    }
}

impl Job {
    /// Returns the log files of a thread. `number` is that of the thread, 1-based over all jobs of the file.
    pub fn log_files(&self, number: u32) -> Vec<(LogKind, String)> {
        let file = |kind: LogKind| {
            let name = self.logs.name(kind)?;
            if kind == LogKind::Iolog {
                return Some((kind, name.to_owned()));
            }
            let name = if name.is_empty() { &self.name } else { name };
            let number = if self.logs.per_job { format!(".{number}") } else { String::new() };
            Some((kind, format!("{name}_{}{number}.log", kind.name())))
        };
        LogKind::ALL.into_iter().filter_map(file).collect()
    }
}

/// Resolves what depends on several options.
pub(super) fn resolve(draft: &mut Draft) {
    let logs = &mut draft.job.logs;
    logs.bw.resolve(logs.avg_ms, draft.given.contains_key("bwavgtime"));
    logs.iops.resolve(logs.avg_ms, draft.given.contains_key("iopsavgtime"));
}

/// `write_bw_log` and its like, with or without a name.
pub(super) fn name(value: Option<&str>) -> LogName {
    Some(value.unwrap_or_default().to_owned())
}

/// `gtod_reduce=1` implies the other options; 0 changes nothing.
pub(super) fn set_gtod_reduce(draft: &mut Draft, on: bool) {
    if on {
        let logs = &mut draft.job.logs;
        (logs.no_lat, logs.no_slat, logs.no_clat, logs.no_bw) = (true, true, true, true);
    }
}
