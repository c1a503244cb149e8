// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/Os of a binary trace: its submissions (Q). Files of several CPUs are merged by time.
//!
//! As in fio, submissions are replayed, and all other events only show the depth. All I/O goes to `replay_redirect`: a trace names
//! devices by number, which may be other devices here. A write that flushes before it is a flush and a write; fio 3.33 leaves the
//! write out. A skipped I/O keeps its time.

use super::blktrace::{Record, RecordError, RecordOp, Records, action};
use super::{Broken, IOS_MAX, Reading, TraceError, TraceFile, TraceOp};
use crate::job::Dir;

/// Deepest queue that is taken from a trace. Events of stacked devices have no completions, and the depth would only grow.
const DEPTH_MAX: u32 = 1024;
const RECORD_AGAIN: &str = "record the trace again with blktrace, or with --trace";

/// Adds the I/Os of a trace.
pub(super) fn read(files: Vec<TraceFile>, reading: &mut Reading<'_>) -> Result<(), TraceError> {
    let name = files.first().map_or(String::new(), |f| f.name.clone());
    let several = files.len() > 1;
    let mut events: Vec<Record> = Vec::new();
    for file in files {
        let mut records = Records::new(file.from);
        loop {
            match records.next_record() {
                Ok(None) => break,
                Ok(Some((record, _))) if is_of_use(&record) && events.len() >= IOS_MAX => {
                    let rule = format!("has more than {IOS_MAX} submissions, merges and completions");
                    return Err(TraceError::new(&file.name, "", rule, "replay a part of it"));
                }
                Ok(Some((record, _))) if is_of_use(&record) => events.push(record),
                Ok(Some(_)) => {}
                Err(e) => {
                    let place = format!(" at byte {}", records.at());
                    let remedy = match e {
                        RecordError::Cut(at) => {
                            format!("cut it off with 'truncate -s {at} FILE', and end the next blktrace with SIGINT")
                        }
                        _ => RECORD_AGAIN.to_owned(),
                    };
                    return Err(TraceError::new(&file.name, place, e, remedy));
                }
            }
        }
    }
    if several {
        // Stable: the records of a CPU stay in order.
        events.sort_by_key(|e| e.time_ns);
    }
    let mut depths = Depths::default();
    for record in &events {
        depths.add(record);
        if record.act() == action::QUEUE {
            add(record, reading).map_err(|(rule, remedy)| {
                let place = format!(", event at {} ns", record.time_ns);
                TraceError::new(&name, place, rule, remedy)
            })?;
        }
    }
    let depth = depths.deepest().max(reading.replay.depth.unwrap_or(1));
    reading.replay.depth = Some(depth);
    Ok(())
}

fn is_of_use(record: &Record) -> bool {
    let acts = [action::QUEUE, action::BACKMERGE, action::FRONTMERGE, action::COMPLETE];
    !record.is_note() && acts.contains(&record.act()) && record.op().is_some()
}

/// Adds a submission.
fn add(record: &Record, reading: &mut Reading<'_>) -> Result<(), Broken> {
    let since_ns = reading.since_last(record.time_ns);
    reading.pass_ns(since_ns);
    let Some(offset) = record.sector.checked_mul(512) else {
        return Err((format!("sector {}: beyond any disk", record.sector), RECORD_AGAIN));
    };
    if record.flushes_first() {
        reading.io(TraceOp::Sync, "", 0, 0)?;
    }
    let dir = match record.op() {
        Some(RecordOp::Read) => Dir::Read,
        Some(RecordOp::Write) => Dir::Write,
        Some(RecordOp::Trim) => Dir::Trim,
        Some(RecordOp::Flush) | None => return Ok(()),
    };
    let unit = reading.options.align.max(1);
    match record.bytes.checked_next_multiple_of(u32::try_from(unit).unwrap_or(1)) {
        Some(0) => Ok(()),
        Some(bytes) => reading.io(TraceOp::Io(dir), "", offset, bytes),
        None => Err((format!("{} bytes: cannot be rounded up to {unit}", record.bytes), "lower replay_align")),
    }
}

/// How many I/Os of each direction were in flight at most: those that were submitted between two completions, as in fio.
#[derive(Default)]
struct Depths {
    now: [i64; 2],
    most: [i64; 2],
}

impl Depths {
    fn add(&mut self, record: &Record) {
        let d = match record.op() {
            Some(RecordOp::Read | RecordOp::Flush) => Dir::Read,
            Some(RecordOp::Write | RecordOp::Trim) => Dir::Write,
            None => return,
        } as usize;
        match record.act() {
            action::QUEUE => self.now[d] += 1,
            action::COMPLETE => {
                self.most[d] = self.most[d].max(self.now[d]);
                self.now[d] = 0;
            }
            _ => self.now[d] -= 1,
        }
    }

    fn deepest(&self) -> u32 {
        let most = self.most.into_iter().max().unwrap_or(1);
        u32::try_from(most).unwrap_or(1).clamp(1, DEPTH_MAX)
    }
}
