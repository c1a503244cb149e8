// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trims of verified blocks.
//!
//! Guarantees: a block is trimmed after its write has completed. It must read back as zeroes then, or is not read back at all without
//! `trim_verify_zero`. As with fio, trims come before the I/Os of the job's own pattern, and those that are due when a limit is
//! reached still follow. Nothing else follows: at a limit no write is chosen.

use super::issue::NOT_RATED;
use super::{JobThread, Next};
use crate::job::Dir;
use crate::verify::log::{PieceId, Trimmable};
use blk::time::Instant;

impl JobThread {
    /// Whether [`JobThread::next_trim`] has a trim.
    pub(super) fn trim_is_due(&mut self) -> bool {
        let after_read = self.clock.last_completed_read;
        self.trims.as_mut().is_some_and(|trims| trims.next(&self.log, after_read).is_some())
    }

    /// Returns a trim of a verified block, if one is due.
    pub(super) fn next_trim(&mut self, now: Instant) -> Option<Next> {
        let trims = self.trims.as_mut()?;
        let (id, can_be) = trims.next(&self.log, self.clock.last_completed_read)?;
        if can_be == Trimmable::InFlight {
            return Some(Next::Reap { min: 1, max: self.in_flight });
        }
        trims.taken();
        let keeps = trims.keeps();
        let place = self.log.trim(id, keeps);
        Some(self.issue_trim(id, keeps, place, now))
    }

    fn issue_trim(&mut self, id: PieceId, keeps: bool, (address, len): (u64, u32), now: Instant) -> Next {
        let (file, offset) = self.files.as_ref().map_or((0, address), |files| files.locate(address));
        let slot = self.free.pop().expect("a full queue reaps before it issues");
        let io = self.hand_out(slot, Dir::Trim, offset, len, NOT_RATED, now);
        // A pass ends by the bytes that it reads and writes.
        self.passes.forget(len);
        self.verify_slots[slot as usize].trims = Some((id, keeps));
        if self.files.is_some() { self.direct(Next::Io(io), file) } else { Next::Io(io) }
    }
}
