// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collects the records of one thread's logs. See the parent module for the rules.

use super::{HistRecord, IoRecord, IologRecord, LogChunk, SubmitRecord, WindowRecord};
use crate::hist::Histogram;
use crate::job::{LogKind, LogOptions};
use crate::stats::{DIRS, DirStats};

const MS_NS: u64 = 1_000_000;
/// With so many records a chunk is worth handing out.
const CHUNK_RECORDS: usize = 8192;

/// A completed I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoEnd {
    pub dir: u8,
    pub len: u32,
    pub offset: u64,
    pub lat_ns: u64,
    pub clat_ns: u64,
}

/// A window of latencies per direction.
#[derive(Clone, Debug)]
struct LatencyWindows {
    kind: LogKind,
    len_ms: u64,
    max: bool,
    /// Beginning of the window, milliseconds.
    since_ms: [u64; DIRS],
    count: [u64; DIRS],
    sum: [u64; DIRS],
    largest: [u64; DIRS],
}

impl LatencyWindows {
    fn new(kind: LogKind, options: &LogOptions) -> LatencyWindows {
        let (len_ms, max, none) = (options.avg_ms, options.max_value, [0; DIRS]);
        LatencyWindows { kind, len_ms, max, since_ms: none, count: none, sum: none, largest: none }
    }

    fn add(&mut self, at_ms: u64, dir: usize, ns: u64, out: &mut Vec<WindowRecord>) {
        self.count[dir] += 1;
        self.sum[dir] = self.sum[dir].saturating_add(ns);
        self.largest[dir] = self.largest[dir].max(ns);
        if at_ms.saturating_sub(self.since_ms[dir]) >= self.len_ms {
            self.close(at_ms, dir, out);
            self.since_ms[dir] = at_ms - at_ms % self.len_ms;
        }
    }

    fn close(&mut self, at_ms: u64, dir: usize, out: &mut Vec<WindowRecord>) {
        let n = self.count[dir];
        if n > 0 {
            let mean = ((u128::from(self.sum[dir]) * 2 + u128::from(n)) / (u128::from(n) * 2)) as u64;
            let value = if self.max { self.largest[dir] } else { mean };
            out.push(WindowRecord { kind: self.kind, at_ms, dir: dir as u8, value });
        }
        (self.count[dir], self.sum[dir], self.largest[dir]) = (0, 0, 0);
    }

    fn close_all(&mut self, at_ms: u64, out: &mut Vec<WindowRecord>) {
        (0..DIRS).for_each(|dir| self.close(at_ms, dir, out));
    }
}

/// Histograms since the last line of each direction.
#[derive(Clone, Debug)]
struct Histograms {
    every_ms: u64,
    /// Time of the last line; 0 until the first I/O.
    last_ms: [u64; DIRS],
    /// The job's histograms at that time; `None` for a direction without.
    seen: [Option<Box<Histogram>>; DIRS],
}

impl Histograms {
    fn ended(&mut self, at_ms: u64, io: &IoEnd, now: Option<&Histogram>, out: &mut Vec<HistRecord>) {
        let dir = usize::from(io.dir);
        if self.last_ms[dir] == 0 {
            self.last_ms[dir] = at_ms;
        }
        if at_ms - self.last_ms[dir] < self.every_ms {
            return;
        }
        self.last_ms[dir] += self.every_ms;
        let mut bins = Vec::new();
        if let (Some(seen), Some(now)) = (&mut self.seen[dir], now) {
            seen.catch_up(now, |bucket, n| bins.push((bucket as u16, n)));
        }
        out.push(HistRecord { at_ms, dir: io.dir, len: io.len, bins });
    }

    /// The earliest time of a line, milliseconds; 0 while it is not known.
    fn next_ms(&self) -> u64 {
        let used = self.last_ms.iter().zip(&self.seen).filter(|(_, seen)| seen.is_some());
        used.map(|(last, _)| if *last == 0 { 0 } else { last + self.every_ms }).min().unwrap_or(0)
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    from_ns: u64,
    /// Some log has a line for each completed I/O.
    each_end: bool,
    /// The log of submission latencies has a line for each I/O.
    each_submit: bool,
    /// Logs with windows of latencies.
    lat: Option<LatencyWindows>,
    clat: Option<LatencyWindows>,
    slat: Option<LatencyWindows>,
    hist: Option<Histograms>,
    /// Windows of bandwidth and IOPS have lines.
    bw: bool,
    iops: bool,
    chunk: LogChunk,
}

impl Recorder {
    /// Of a job with logs, whose statistics are `dirs`.
    pub fn new(options: &LogOptions, dirs: &[DirStats; DIRS]) -> Recorder {
        let averages = options.avg_ms > 0;
        let windows = |kind: LogKind| (averages && options.has(kind)).then(|| LatencyWindows::new(kind, options));
        let each = |kind: LogKind| match kind {
            LogKind::Bw => options.bw.each_io,
            LogKind::Iops => options.iops.each_io,
            LogKind::Hist | LogKind::Iolog => false,
            _ => !averages,
        };
        let lists = |kind: LogKind| options.has(kind) && each(kind);
        let seen = dirs.each_ref().map(|d| d.clat.hist.as_ref().map(|_| Box::default()));
        let hist = options.has(LogKind::Hist) && options.hist_ms > 0;
        Recorder {
            from_ns: 0,
            each_end: [LogKind::Lat, LogKind::Clat, LogKind::Bw, LogKind::Iops].into_iter().any(lists),
            each_submit: lists(LogKind::Slat),
            lat: windows(LogKind::Lat),
            clat: windows(LogKind::Clat),
            slat: windows(LogKind::Slat),
            hist: hist.then_some(Histograms { every_ms: options.hist_ms, last_ms: [0; DIRS], seen }),
            bw: options.has(LogKind::Bw) && !options.bw.each_io,
            iops: options.has(LogKind::Iops) && !options.iops.each_io,
            chunk: LogChunk::default(),
        }
    }

    /// What is measured begins; the job's histograms are empty.
    pub fn start(&mut self, now_ns: u64) {
        self.from_ns = now_ns;
        self.chunk.from_ns = now_ns;
    }

    /// Whether [`Recorder::submitted`] has to be called.
    pub fn wants_submissions(&self) -> bool {
        self.each_submit || self.slat.is_some()
    }

    /// The time of the next completion that has to be recorded, nanoseconds; 0 = each one.
    pub fn next(&self) -> u64 {
        if self.each_end || self.lat.is_some() || self.clat.is_some() {
            return 0;
        }
        self.hist.as_ref().map_or(u64::MAX, |h| self.from_ns.saturating_add(h.next_ms().saturating_mul(MS_NS)))
    }

    fn at_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.from_ns) / MS_NS
    }

    /// An I/O was submitted at `now_ns`.
    pub fn submitted(&mut self, now_ns: u64, slat_ns: u64, dir: u8, len: u32, offset: u64) {
        let at_ms = self.at_ms(now_ns);
        if self.each_submit {
            self.chunk.submitted.push(SubmitRecord { at_ms, slat_ns, offset, len, dir });
        }
        if let Some(slat) = &mut self.slat {
            slat.add(at_ms, usize::from(dir), slat_ns, &mut self.chunk.windows);
        }
    }

    /// An I/O has completed at `now_ns`; `dirs` includes it.
    pub fn ended(&mut self, now_ns: u64, io: &IoEnd, dirs: &[DirStats; DIRS]) {
        let (at_ms, dir) = (self.at_ms(now_ns), usize::from(io.dir));
        if self.each_end {
            let IoEnd { dir, len, offset, lat_ns, clat_ns } = *io;
            self.chunk.ended.push(IoRecord { at_ms, lat_ns, clat_ns, offset, len, dir });
        }
        if let Some(lat) = &mut self.lat {
            lat.add(at_ms, dir, io.lat_ns, &mut self.chunk.windows);
        }
        if let Some(clat) = &mut self.clat {
            clat.add(at_ms, dir, io.clat_ns, &mut self.chunk.windows);
        }
        if let Some(hist) = &mut self.hist {
            hist.ended(at_ms, io, dirs[dir].clat.hist.as_deref(), &mut self.chunk.hists);
        }
    }

    /// A line of the I/O log.
    pub fn issued(&mut self, record: IologRecord) {
        self.chunk.issued.push(record);
    }

    /// A window of bandwidth or IOPS has ended at `at_ns`.
    pub fn rate(&mut self, kind: LogKind, at_ns: u64, dir: u8, value: u64) {
        if if kind == LogKind::Bw { self.bw } else { self.iops } {
            let at_ms = self.at_ms(at_ns);
            self.chunk.windows.push(WindowRecord { kind, at_ms, dir, value });
        }
    }

    /// The job has ended: writes windows that have not.
    pub fn finish(&mut self, now_ns: u64) {
        let at_ms = self.at_ms(now_ns);
        for windows in [&mut self.clat, &mut self.slat, &mut self.lat].into_iter().flatten() {
            windows.close_all(at_ms, &mut self.chunk.windows);
        }
    }

    /// Hands out the records so far: if there are many, or `all`.
    pub fn take(&mut self, all: bool) -> Option<LogChunk> {
        let len = self.chunk.len();
        if !all && len < CHUNK_RECORDS {
            return None;
        }
        // As much memory as was needed this time will be needed again.
        let next = LogChunk {
            from_ns: self.from_ns,
            ended: Vec::with_capacity(if all { 0 } else { self.chunk.ended.len() }),
            submitted: Vec::with_capacity(if all { 0 } else { self.chunk.submitted.len() }),
            issued: Vec::with_capacity(if all { 0 } else { self.chunk.issued.len() }),
            ..LogChunk::default()
        };
        Some(std::mem::replace(&mut self.chunk, next))
    }
}
