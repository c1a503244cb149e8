// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces that a job replays (`read_iolog`): from the bytes of a file to a list of I/Os.
//!
//! | module | what it is |
//! |---|---|
//! | `text` | fio's I/O logs, versions 2 and 3 |
//! | `events` | blktrace's binary records |
//! | [`blktrace`] | one such record |
//! | `cursor` | where a thread is in its trace |
//!
//! Guarantees: no bytes of a trace make the reader panic or use unbounded memory. The answer is a [`Replay`], or an error with the place and a remedy.
//! Order, offsets, lengths and times are those that fio replays, after `replay_scale`, `replay_align`, `replay_skip`,
//! `replay_redirect`, `replay_time_scale` and `replay_no_stall`. Memory: 24 bytes per I/O, which the instances of a job share; while a trace
//! is read up to twice that, and up to 96 bytes per event of a binary trace. Does not do: open files, issue I/O ([`crate::engine`]).
//!
//! Source: fio HOWTO, "I/O Replay" and "Trace file format", and what fio 3.33 does.

pub mod blktrace;
mod cursor;
mod events;
mod text;

pub(crate) use cursor::{Cursor, Step};
pub(crate) use text::VERSION_3;

use crate::job::{Dir, PerDir};
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

/// Most I/Os of a job's traces: 3 GiB of memory. Also most events of a binary trace.
const IOS_MAX: usize = 1 << 27;
/// Longest I/O, bytes.
const IO_BYTES_MAX: u32 = 1 << 30;

/// A file of a trace, open.
pub struct TraceFile {
    /// Its name, for messages.
    pub name: String,
    /// Its bytes.
    pub from: Box<dyn BufRead>,
}

/// The `replay_*` options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// `replay_no_stall=`: without pauses.
    pub no_stall: bool,
    /// `replay_time_scale=`: percent of the trace's speed, at least 1.
    pub time_scale_pct: u64,
    /// `replay_redirect=`: all I/O goes to this file or target.
    pub redirect: Option<String>,
    /// `replay_scale=`: offsets are divided by this; 0 = 1.
    pub scale: u64,
    /// `replay_align=`: offsets are rounded down to a multiple of this power of two; 0 = off.
    pub align: u64,
    /// `replay_skip=`: reads, writes and trims that are left out.
    pub skip: PerDir<bool>,
    /// `replay_skip=sync`: flushes are left out.
    pub skip_sync: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        let skip = PerDir::all(false);
        ReplayOptions {
            no_stall: false,
            time_scale_pct: 100,
            redirect: None,
            scale: 1,
            align: 0,
            skip,
            skip_sync: false,
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOp {
    /// An I/O in this direction.
    Io(Dir),
    /// A flush of the file.
    Sync,
    /// Wait until [`TraceIo::delay`] milliseconds after the start.
    Wait,
}

/// One step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIo {
    /// Least time after the step before, nanoseconds; of a [`TraceOp::Wait`] milliseconds after the start.
    pub delay: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The operation in the lowest 3 bits, and the file.
    what: u32,
}

impl TraceIo {
    fn new(op: TraceOp, file: usize, delay: u64, (offset, len): (u64, u32)) -> TraceIo {
        let code = match op {
            TraceOp::Io(dir) => dir as u32,
            TraceOp::Sync => 3,
            TraceOp::Wait => 4,
        };
        TraceIo { delay, offset, len, what: (file as u32) << 3 | code }
    }

    /// The operation.
    pub fn op(&self) -> TraceOp {
        match self.what & 7 {
            3 => TraceOp::Sync,
            4 => TraceOp::Wait,
            dir => TraceOp::Io(Dir::ALL[dir as usize]),
        }
    }

    /// Number of its file in [`Replay::files`].
    pub fn file(&self) -> usize {
        (self.what >> 3) as usize
    }
}

/// A file that traces name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedFile {
    /// Its name in the trace, or `replay_redirect`.
    pub name: String,
    /// End of the last byte that I/O touches.
    pub reach: u64,
}

/// The traces of a job.
#[derive(Clone, PartialEq, Eq)]
pub struct Replay {
    /// A list of I/Os for each trace. Never empty.
    pub traces: Vec<Vec<TraceIo>>,
    /// The files of all traces.
    pub files: Vec<ReplayedFile>,
    /// Longest I/O of each direction, bytes; 0 = there is none.
    pub longest: PerDir<u32>,
    /// Shortest I/O of each direction.
    pub shortest: PerDir<u32>,
    /// Largest power of two that divides all offsets.
    pub offset_unit: u64,
    /// Largest power of two that divides all lengths.
    pub length_unit: u64,
    /// Depth that a binary trace shows.
    pub depth: Option<u32>,
}

impl fmt::Debug for Replay {
    /// Without the I/Os, of which there may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ios: Vec<usize> = self.traces.iter().map(Vec::len).collect();
        f.debug_struct("Replay").field("ios", &ios).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Replay {
    /// Whether there is I/O in this direction.
    pub fn has(&self, dir: Dir) -> bool {
        self.longest[dir] > 0
    }

    /// End of the last byte that I/O touches in any file.
    pub fn reach(&self) -> u64 {
        self.files.iter().map(|f| f.reach).max().unwrap_or(0)
    }

    /// The steps of a trace; its number counts modulo their number.
    pub fn of(&self, trace: u32) -> &[TraceIo] {
        &self.traces[trace as usize % self.traces.len()]
    }

    /// Reads traces.
    ///
    /// # Errors
    /// The first error of a trace.
    pub fn read(traces: Vec<Vec<TraceFile>>, options: &ReplayOptions) -> Result<Replay, TraceError> {
        let mut reading = Reading::new(options);
        for mut files in traces {
            reading.begin();
            let name = files.first().map_or(String::new(), |f| f.name.clone());
            // The file of an idle CPU is empty.
            let mut is_binary = false;
            for file in &mut files {
                is_binary |= blktrace::is_record(file.head()?);
            }
            if is_binary {
                events::read(files, &mut reading)?;
            } else {
                for mut file in files {
                    text::read(&mut file, &mut reading)?;
                }
            }
            reading.end(&name)?;
        }
        Ok(reading.replay)
    }
}

impl TraceFile {
    /// Its first bytes.
    fn head(&mut self) -> Result<&[u8], TraceError> {
        let name = &self.name;
        self.from.fill_buf().map_err(|e| TraceError::new(name, "", e.to_string(), "name a file that can be read"))
    }
}

/// The file, the place in it, the broken rule with the value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// File, place and rule.
    pub rule: String,
    /// What to do.
    pub remedy: String,
}

impl TraceError {
    fn new(file: &str, place: impl fmt::Display, rule: impl fmt::Display, remedy: impl Into<String>) -> TraceError {
        TraceError { rule: format!("'{file}'{place}: {rule}"), remedy: remedy.into() }
    }
}

/// A rule that a step breaks, and what to do.
type Broken = (String, &'static str);

/// Traces while they are read.
struct Reading<'a> {
    options: &'a ReplayOptions,
    replay: Replay,
    /// Time of the last step, in the unit of the trace.
    last: u64,
    /// Nanoseconds between the last step and the last line.
    gap_ns: u64,
    /// All offsets, and all lengths, combined bit by bit.
    offset_bits: u64,
    length_bits: u64,
    /// Numbers of the files.
    files: BTreeMap<String, usize>,
}

impl<'a> Reading<'a> {
    fn new(options: &'a ReplayOptions) -> Reading<'a> {
        let replay = Replay {
            traces: Vec::new(),
            files: Vec::new(),
            longest: PerDir::all(0),
            shortest: PerDir::all(u32::MAX),
            offset_unit: 1 << 63,
            length_unit: 1 << 63,
            depth: None,
        };
        Reading { options, replay, last: 0, gap_ns: 0, offset_bits: 0, length_bits: 0, files: BTreeMap::new() }
    }

    /// Another trace begins.
    fn begin(&mut self) {
        self.replay.traces.push(Vec::new());
        (self.last, self.gap_ns) = (0, 0);
    }

    /// The trace has ended.
    fn end(&mut self, name: &str) -> Result<(), TraceError> {
        let is_io = |io: &TraceIo| matches!(io.op(), TraceOp::Io(_));
        if !self.replay.traces.last().is_some_and(|ios| ios.iter().any(is_io)) {
            return Err(TraceError::new(name, "", "has no I/O to replay", "record a load, or change replay_skip"));
        }
        self.replay.traces.iter_mut().for_each(Vec::shrink_to_fit);
        let unit = |bits: u64| 1 << bits.trailing_zeros().min(63);
        (self.replay.offset_unit, self.replay.length_unit) = (unit(self.offset_bits), unit(self.length_bits));
        Ok(())
    }

    /// Returns how long after the line before the line at `time` comes, in the unit of the trace. As in fio, time begins to count at the
    /// first line whose time is not 0; a line with an earlier time is due at once.
    fn since_last(&mut self, time: u64) -> u64 {
        let last = std::mem::replace(&mut self.last, time);
        if last == 0 || self.options.no_stall || time < last {
            return 0;
        }
        match self.options.time_scale_pct {
            100 => time - last,
            pct => ((time - last) as f64 * (100.0 / pct as f64)) as u64,
        }
    }

    /// Adds the time of a line. It counts for the next step.
    fn pass_ns(&mut self, ns: u64) {
        self.gap_ns = self.gap_ns.saturating_add(ns);
    }

    /// Adds a pause until `ms` after the start.
    fn wait(&mut self, ms: u64) -> Result<(), Broken> {
        if self.options.no_stall { Ok(()) } else { self.push(TraceIo::new(TraceOp::Wait, 0, ms, (0, 0))) }
    }

    /// Adds an I/O, or a flush, to a file.
    fn io(&mut self, op: TraceOp, file: &str, offset: u64, len: u32) -> Result<(), Broken> {
        let ReplayOptions { scale, align, skip, skip_sync, redirect, .. } = self.options;
        let dir = match op {
            TraceOp::Io(dir) if skip[dir] => return Ok(()),
            TraceOp::Sync if *skip_sync => return Ok(()),
            TraceOp::Io(dir) => Some(dir),
            _ => None,
        };
        let scaled = offset / (*scale).max(1);
        let offset = if *align > 0 { scaled & !(align - 1) } else { scaled };
        let (offset, len) = if dir.is_some() { (offset, len) } else { (0, 0) };
        if len > IO_BYTES_MAX && dir != Some(Dir::Trim) {
            return Err((format!("{len} bytes: must be at most {IO_BYTES_MAX}"), "split the I/O"));
        }
        let Some(end) = offset.checked_add(len.into()).filter(|&end| end <= i64::MAX as u64) else {
            let rule = format!("offset {offset} and length {len}: end beyond the largest file offset (8 EiB)");
            return Err((rule, "remove the line, or set replay_scale"));
        };
        let file = self.file(redirect.as_deref().unwrap_or(file));
        if let Some(dir) = dir {
            self.offset_bits |= offset;
            self.length_bits |= u64::from(len);
            self.replay.longest[dir] = self.replay.longest[dir].max(len);
            self.replay.shortest[dir] = self.replay.shortest[dir].min(len);
            self.replay.files[file].reach = self.replay.files[file].reach.max(end);
        }
        let delay = std::mem::take(&mut self.gap_ns);
        self.push(TraceIo::new(op, file, delay, (offset, len)))
    }

    fn push(&mut self, io: TraceIo) -> Result<(), Broken> {
        if self.replay.traces.iter().map(Vec::len).sum::<usize>() >= IOS_MAX {
            return Err((format!("has more than {IOS_MAX} I/Os"), "replay a part of it"));
        }
        self.replay.traces.last_mut().expect("a trace has begun").push(io);
        Ok(())
    }

    /// Number of the file with this name.
    fn file(&mut self, name: &str) -> usize {
        if let Some(&file) = self.files.get(name) {
            return file;
        }
        let file = self.replay.files.len();
        self.replay.files.push(ReplayedFile { name: name.to_owned(), reach: 0 });
        self.files.insert(name.to_owned(), file);
        file
    }
}
