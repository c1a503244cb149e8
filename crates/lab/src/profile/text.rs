// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the lines of blkparse in its default format: `254,0 1 17 0.000012345 1234 Q W 223490 + 8 [fio]`.
//!
//! Guarantees: a line that begins with a device has to be an event. Other lines (the summary at the end) are skipped, and so
//! are passthrough commands.
//! Does not do: formats of `blkparse -f`.
//!
//! Source: blkparse(1), blkparse_fmt.c of blktrace 1.3.

use super::{Act, Class, ProfileError, Trace, TraceEvent, device_of};
use std::io::BufRead;

/// Longest line that is read.
const LINE_BYTES: u64 = 4096;

/// Adds the events of `from` to `trace`.
///
/// # Errors
/// The first line that blkparse does not print.
pub fn read(file: &str, mut from: impl BufRead, trace: &mut Trace) -> Result<(), ProfileError> {
    let mut bytes = Vec::new();
    for n in 1.. {
        bytes.clear();
        let read = std::io::Read::take(&mut from, LINE_BYTES).read_until(b'\n', &mut bytes);
        let got = read.map_err(|e| ProfileError::line(file, n, e.to_string()))?;
        if got == 0 {
            return Ok(());
        }
        if got as u64 == LINE_BYTES {
            return Err(ProfileError::line(file, n, format!("longer than {LINE_BYTES} bytes: not a blkparse line")));
        }
        let line = String::from_utf8_lossy(&bytes);
        event(&line, trace).map_err(|text| ProfileError::line(file, n, text))?;
    }
    unreachable!("a file has an end")
}

fn event(line: &str, trace: &mut Trace) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let Some(device) = words.next().filter(|w| w.contains(',')).and_then(device_of) else { return Ok(()) };
    let mut word = |what: &str| words.next().ok_or_else(|| format!("{what} is missing: must be a blkparse line"));
    let number = |what: &str, w: &str| w.parse::<u64>().map_err(|_| format!("{what} '{w}': must be a number"));
    number("CPU", word("CPU")?)?;
    number("sequence", word("sequence")?)?;
    let time_ns = time(word("time")?)?;
    let pid = word("process")?;
    let pid = u32::try_from(number("process", pid)?).map_err(|_| format!("process {pid}: must be below 2^32"))?;
    let (action, rwbs) = (word("action")?, words.next().unwrap_or_default());
    let act = match action {
        "Q" => Act::Queue,
        "D" => Act::Issue,
        "R" => Act::Requeue,
        "C" => Act::Complete,
        _ => return Ok(()),
    };
    let rest: Vec<&str> = words.collect();
    let extent = match rest.as_slice() {
        [sector, "+", sectors, ..] => Some((number("sector", sector)?, number("length", sectors)?)),
        _ => None,
    };
    let sectors = extent.map_or(0, |(_, n)| n);
    let class = match rwbs {
        d if d.contains('D') => Class::Trim,
        d if d.contains('F') && sectors == 0 => Class::Flush,
        d if d.contains('W') => Class::Write,
        d if d.contains('R') => Class::Read,
        _ => return Ok(()),
    };
    if extent.is_none() && class != Class::Flush && is_command(&rest) {
        return Ok(());
    }
    let Some((sector, sectors)) = extent.or((class == Class::Flush).then_some((0, 0))) else {
        return Err(format!(
            "action {action} of '{rwbs}' without 'SECTOR + LENGTH': must be blkparse's default format"
        ));
    };
    let bytes = u32::try_from(sectors.saturating_mul(512)).unwrap_or(!511);
    if act != Act::Complete
        && let Some(name) = rest.last().and_then(|w| w.strip_prefix('[')?.strip_suffix(']'))
    {
        trace.name(pid, name);
    }
    trace.push(TraceEvent { time_ns, sector, bytes, pid, device, act, class })
}

/// Whether a line describes a passthrough command (SG_IO), which is no workload of the disk: `36 (12 00 ...) [smartctl]` or
/// `36 [smartctl]`, and its completion `(12 00 ...) [0]` or `[0]`.
fn is_command(rest: &[&str]) -> bool {
    let after = match rest {
        [bytes, after @ ..] if bytes.parse::<u32>().is_ok() => after,
        all => all,
    };
    after.first().is_some_and(|w| w.starts_with(['(', '[']))
}

/// Parses `12.000345678` into nanoseconds.
fn time(word: &str) -> Result<u64, String> {
    let bad = || format!("time '{word}': must be seconds with nine decimals, such as 0.000012345");
    let (s, ns) = word.split_once('.').filter(|(_, ns)| ns.len() == 9).ok_or_else(bad)?;
    let (s, ns) = (s.parse::<u64>().map_err(|_| bad())?, ns.parse::<u64>().map_err(|_| bad())?);
    s.checked_mul(1_000_000_000).and_then(|s| s.checked_add(ns)).ok_or_else(bad)
}
