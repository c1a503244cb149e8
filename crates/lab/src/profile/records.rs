// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads blktrace's binary records: `NAME.blktrace.CPU`, and the output of `blkparse -d` and `blktrace -o -`.
//!
//! Guarantees: those of [`workload::replay::blktrace`]. Tolerant of actions that are not needed. Uses no more memory than the events need.

use super::{Act, Class, ProfileError, Trace, TraceEvent};
use std::io::Read;
use workload::replay::blktrace::{Record, RecordError, RecordOp, Records, action};

pub use workload::replay::blktrace::is_record as is_binary;

/// Adds the records of `from` to `trace`.
///
/// # Errors
/// The first invalid record, with its place.
pub fn read(file: &str, from: impl Read, trace: &mut Trace) -> Result<(), ProfileError> {
    let mut records = Records::new(from);
    loop {
        let added = match records.next_record() {
            Ok(None) => return Ok(()),
            Ok(Some((record, payload))) => add(&record, payload, trace),
            Err(e) => Err(format!("{e}{}", remedy(&e))),
        };
        added.map_err(|text| ProfileError::byte(file, records.at(), text))?;
    }
}

fn remedy(e: &RecordError) -> String {
    match e {
        RecordError::Cut(at) => {
            format!(": cut it off with 'truncate -s {at} FILE', and end the next blktrace with SIGINT")
        }
        RecordError::BigEndian => ": run blkparse there, and profile its output".into(),
        RecordError::Version(_) => "; run blkparse on it, and profile its output".into(),
        RecordError::Io(_) | RecordError::Magic(_) => String::new(),
    }
}

fn add(record: &Record, payload: &[u8], trace: &mut Trace) -> Result<(), String> {
    if record.is_note() {
        if record.act() == 0 {
            let end = payload.iter().position(|b| *b == 0).unwrap_or(payload.len());
            trace.name(record.pid, &String::from_utf8_lossy(&payload[..end]));
        }
        return Ok(());
    }
    let act = match record.act() {
        action::QUEUE => Act::Queue,
        action::REQUEUE => Act::Requeue,
        action::ISSUE => Act::Issue,
        action::COMPLETE => Act::Complete,
        _ => return Ok(()),
    };
    let class = match record.op() {
        Some(RecordOp::Read) => Class::Read,
        Some(RecordOp::Write) => Class::Write,
        Some(RecordOp::Trim) => Class::Trim,
        Some(RecordOp::Flush) => Class::Flush,
        None => return Ok(()),
    };
    let Record { time_ns, sector, bytes, pid, device, .. } = *record;
    trace.push(TraceEvent { time_ns, sector, bytes, pid, device, act, class })
}
