// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaying a trace (`read_iolog`): its steps are the I/Os of the only pass ([`crate::replay`]).
//!
//! While a step is waited for, I/Os in flight are reaped.

use super::issue::{Chosen, NOT_RATED};
use super::{JobThread, Next, Phase};
use crate::replay::{Step, TraceOp};
use blk::time::Instant;

impl JobThread {
    /// The next step of the trace, if no pause and no limit stands in the way. `None`: the trace has ended.
    #[inline(never)]
    pub(super) fn next_of_replay(&mut self, now: Instant) -> Option<Next> {
        let replay = self.replay.as_mut().expect("a job that replays a trace");
        let io = match replay.step(now.as_ns(), self.clock.epoch) {
            Step::Issue(io) => io,
            Step::Wait(due) => return Some(Next::Wait(Instant::from_ns(due.min(self.check_at)))),
            Step::End => {
                self.phase = Phase::EndOfIo;
                return None;
            }
        };
        let next = match io.op() {
            TraceOp::Io(dir) => self.issue(Chosen { dir, offset: io.offset, len: io.len, due_ns: NOT_RATED }, now),
            TraceOp::Sync | TraceOp::Wait => self.hand_out_flush(now),
        };
        Some(if self.files.is_some() { self.direct(next, io.file()) } else { next })
    }
}
