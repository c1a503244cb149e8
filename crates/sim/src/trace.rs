// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of a run, one line each, in order of virtual time.
//!
//! A disabled trace keeps only a count and a hash of the lines. So two runs can be compared without storing either. Letters
//! are blktrace's where it has one: Q a bio was submitted; D a request was issued to the device; C the device completed it; E
//! a bio completed. The others: R a request was returned unfinished; B the device was busy; T a request timed out; F the
//! device had a fault; H a CPU went offline or online; X a setting changed; S a phase begins or ends.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Log {
    keep: bool,
    lines: Vec<String>,
    events: u64,
    /// FNV-1a over all lines.
    hash: u64,
}

/// A handle to the trace of a run; clones share it.
#[derive(Clone, Default)]
pub struct Trace {
    log: Arc<Mutex<Log>>,
    /// Prefix of the lines that are written through this handle.
    label: Option<Arc<str>>,
}

/// Formats a duration in a suitable unit.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{} ms", ns as f64 / 1e6),
        _ => format!("{} s", ns as f64 / 1e9),
    }
}

/// Formats a time as timelines do, in microseconds.
pub(crate) fn clock(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl Trace {
    /// An empty trace; `keep`: it keeps its lines.
    pub fn new(keep: bool) -> Trace {
        Trace { log: Arc::new(Mutex::new(Log { keep, hash: FNV_OFFSET, ..Log::default() })), label: None }
    }

    /// Returns a handle to the same trace for one of several disks. All lines through it begin with `label`.
    pub fn labelled(&self, label: &str) -> Trace {
        Trace { log: self.log.clone(), label: Some(label.into()) }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event of virtual time `now` (nanoseconds).
    pub fn event(&self, now: u64, letter: char, what: fmt::Arguments<'_>) {
        self.add(now, letter, what, None::<fn() -> String>);
    }

    /// Adds a long event. The hash covers all of it; readers get `shown`, which has one or more lines.
    pub fn summed_up(&self, now: u64, letter: char, all: fmt::Arguments<'_>, shown: impl FnOnce() -> String) {
        self.add(now, letter, all, Some(shown));
    }

    fn add(&self, now: u64, letter: char, what: fmt::Arguments<'_>, shown: Option<impl FnOnce() -> String>) {
        let label = self.label.as_deref().unwrap_or_default();
        let head = format!("{:>12}.{:03} {letter} {label}", now / 1000, now % 1000);
        let line = format!("{head}{what}");
        let mut log = self.log();
        log.events += 1;
        for byte in line.bytes().chain([b'\n']) {
            log.hash = (log.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        if !log.keep {
            return;
        }
        log.lines.push(match shown {
            None => line,
            Some(shown) => {
                let indent = format!("\n{:1$}", "", head.len());
                head + &shown().trim_end().replace('\n', &indent)
            }
        });
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.log().events
    }

    /// A hash of all events.
    pub fn hash(&self) -> u64 {
        self.log().hash
    }

    /// The lines, if they were kept.
    pub fn lines(&self) -> Vec<String> {
        self.log().lines.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_stands_for_the_lines_whether_they_are_kept_or_not() {
        let (kept, counted) = (Trace::new(true), Trace::new(false));
        for t in [&kept, &counted] {
            t.event(1_234_567, 'Q', format_args!("read {}+8", 16));
        }
        assert_eq!(kept.lines(), ["        1234.567 Q read 16+8"]);
        assert!(counted.lines().is_empty());
        assert_eq!((kept.hash(), kept.events()), (counted.hash(), 1));
        counted.event(1_234_567, 'Q', format_args!("read 24+8"));
        assert_ne!(kept.hash(), counted.hash());
    }

    #[test]
    fn what_is_summed_up_is_hashed_in_full_and_shown_in_short() {
        let (short, long) = (Trace::new(true), Trace::new(true));
        short.labelled("disk 1 ").summed_up(5000, 'X', format_args!("everything"), || "depth 4\nnone\n".into());
        long.event(5000, 'X', format_args!("disk 1 everything"));
        assert_eq!(short.lines(), ["           5.000 X disk 1 depth 4\n                          none"]);
        assert_eq!((short.hash(), short.events()), (long.hash(), 1));
    }
}
