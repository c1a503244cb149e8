// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a thread is in its trace, and when the next step is due.
//!
//! As in fio, an I/O is due as long after the issue of the one before as in the trace. A thread that falls behind does not catch up. A
//! late wake-up does not delay later I/Os.

use super::{Replay, TraceIo, TraceOp};
use std::sync::Arc;

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This I/O or flush, now.
    Issue(TraceIo),
    /// Nothing before this time, nanoseconds.
    Wait(u64),
    /// The trace has ended.
    End,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    replay: Arc<Replay>,
    /// Number of the trace.
    trace: u32,
    /// Number of the next step.
    next: usize,
    /// When the last I/O was issued, or was due if it was waited for; nanoseconds.
    last_ns: Option<u64>,
    /// The next I/O is waited for.
    waits: bool,
}

impl Cursor {
    pub fn new(replay: Arc<Replay>, trace: u32) -> Cursor {
        Cursor { replay, trace, next: 0, last_ns: None, waits: false }
    }

    /// Bytes of the trace.
    pub fn bytes(&self) -> u64 {
        self.replay.of(self.trace).iter().map(|io| u64::from(io.len)).sum()
    }

    /// Returns the next step at `now_ns`, of a thread that started at `epoch_ns`.
    pub fn step(&mut self, now_ns: u64, epoch_ns: u64) -> Step {
        while let Some(&io) = self.replay.of(self.trace).get(self.next) {
            let is_pause = io.op() == TraceOp::Wait;
            let due = match is_pause {
                true => epoch_ns.saturating_add(io.delay.saturating_mul(1_000_000)),
                false => self.last_ns.unwrap_or(epoch_ns).saturating_add(io.delay),
            };
            if now_ns < due {
                self.waits = true;
                return Step::Wait(due);
            }
            self.next += 1;
            self.last_ns = Some(if std::mem::take(&mut self.waits) { due } else { now_ns });
            if !is_pause {
                return Step::Issue(io);
            }
        }
        Step::End
    }
}
