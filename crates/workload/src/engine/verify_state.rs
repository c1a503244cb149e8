// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the writes of a verified job got: what a job keeps of its own, and how a job verifies no more than an earlier one
//! wrote.
//!
//! Guarantees: with a state, a verify reads each block whose write is known to have completed, in the order of the writes,
//! and no other. fio 3.33 ends at the first block that is in doubt; later versions skip it, as this does.

use super::issue::Chosen;
use super::{JobThread, Kind, Phase, Slot, StopReason};
use crate::job::Dir;
use crate::verify::progress::{Earlier, Known};
use crate::verify::state::VerifyState;

impl JobThread {
    /// The state of the job's writes as the bytes of its file, also after [`JobThread::abandon`]. `None` for a job that keeps none.
    pub fn verify_state(&self) -> Option<Vec<u8>> {
        let completions = self.completions.as_ref()?;
        let is_out = |(slot, _): &(&Slot, _)| slot.is_in_use() && slot.kind == Kind::Write;
        let out = self.slots.iter().zip(&self.verify_slots).filter(is_out).map(|(_, v)| v.ordinal).min();
        Some(completions.state(out).encode(self.offsets.generator()))
    }

    /// Makes the job verify only what an earlier one wrote. To be called before the first I/O, with the state of a thread with the same
    /// number and options.
    pub fn load_verify_state(&mut self, state: VerifyState) {
        self.earlier = Some(Box::new(Earlier::new(state)));
    }

    /// Records a completed write of a verified job.
    pub(super) fn write_completed(&mut self, file: u32, offset: u64) {
        if let Some(completions) = &mut self.completions {
            completions.completed(file, offset);
        }
    }

    /// Records a failed write or trim of a verified job.
    pub(super) fn write_or_trim_failed(&mut self, slot: u32, kind: Kind) {
        let v = &mut self.verify_slots[slot as usize];
        if let Some((piece, keeps)) = v.trims.take() {
            self.log.fail_trim(piece, keeps);
        }
        if let (Kind::Write, Some(completions)) = (kind, &mut self.completions) {
            completions.failed(v.ordinal);
        }
    }

    /// The file of the I/O that is chosen now.
    pub(super) fn current_file(&self) -> u32 {
        self.files.as_ref().map_or(0, |files| files.current())
    }

    /// Whether a block is to be verified, as far as an earlier job's state tells. Ends the pass at the first block that was
    /// never written.
    pub(super) fn holds_data(&mut self, c: &Chosen) -> bool {
        let file = self.current_file();
        let Some(earlier) = &mut self.earlier else { return true };
        let is_judged = if self.plan.dry_run { c.dir == Dir::Write } else { c.dir == Dir::Read && !self.plan.writes };
        if !is_judged {
            return true;
        }
        match earlier.judge(file, c.offset) {
            Known::Written => true,
            Known::InDoubt => false,
            Known::NeverWritten => {
                self.phase = Phase::EndOfIo;
                if !self.plan.dry_run {
                    self.stop(StopReason::Asked);
                }
                false
            }
        }
    }
}
