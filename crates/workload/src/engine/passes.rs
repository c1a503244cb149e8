// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Passes over the region: their limits, what follows each one (flush, reading back), and when the job is over.
//!
//! A pass ends when it has issued the region's bytes (or `io_size`), when `number_ios` is reached, or when the offsets are
//! used up. There are `loops` passes. There are more if `io_size` is larger than one region, or if a
//! verified pass ended early, and with `time_based` as many as fit into the time.

use super::plan::Plan;
use super::{JobThread, Next, Phase, StopReason};
use crate::job::{Dir, RwMode};
use crate::sizes::Sizes;
use crate::verify::log::NextPiece;
use blk::time::Instant;

#[derive(Clone, Debug)]
pub(super) struct Passes {
    /// Further passes that `loops` requires.
    left: u64,
    /// Bytes issued in this pass, reading back included.
    bytes: u64,
    /// I/Os and bytes of reading back, in all passes. They count against `number_ios`, and against further passes of `io_size`.
    read_back: (u64, u64),
}

impl Passes {
    pub fn new(plan: &Plan) -> Passes {
        Passes { left: plan.loops - 1, bytes: 0, read_back: (0, 0) }
    }

    #[inline]
    pub fn issued(&mut self, len: u32) {
        self.bytes += u64::from(len);
    }

    pub fn reads_back(&mut self, len: u32) {
        self.read_back.0 += 1;
        self.read_back.1 += u64::from(len);
    }

    /// An I/O that was issued does not count.
    pub fn forget(&mut self, len: u32) {
        self.bytes -= u64::from(len);
    }
}

impl JobThread {
    /// Bytes that count against `size` and `io_size`.
    fn limited_bytes(&self) -> u64 {
        let [read, write, trim] = self.issued_bytes;
        match self.plan.mode {
            RwMode::Read => read,
            RwMode::Write | RwMode::TrimWrite => write,
            RwMode::Trim => trim,
            RwMode::ReadWrite => read + write,
            RwMode::Replay { .. } => read + write + trim,
        }
    }

    /// Whether only time ends a pass.
    fn endless(&self) -> bool {
        self.plan.time_based && !self.plan.verify
    }

    /// Whether the pass has issued all its I/O.
    pub(super) fn pass_is_over(&mut self) -> bool {
        if self.endless() {
            return false;
        }
        if self.passes.bytes >= self.plan.pass_bytes {
            return true;
        }
        if self.plan.time_based {
            return false;
        }
        let limit = self.plan.loop_bytes.saturating_mul(self.plan.loops);
        (self.limited_bytes() >= limit || self.ios_used_up()) && !self.trim_is_due()
    }

    fn ios_used_up(&self) -> bool {
        self.plan.number_ios.is_some_and(|n| self.issued_ios.iter().sum::<u64>() + self.passes.read_back.0 >= n)
    }

    /// How many I/Os of `len` bytes can be issued before a limit has to be checked.
    pub(super) fn ios_left(&self, len: u64) -> u64 {
        if self.endless() {
            return u64::MAX;
        }
        let limit = self.plan.loop_bytes.saturating_mul(self.plan.loops);
        let bytes =
            self.plan.pass_bytes.saturating_sub(self.passes.bytes).min(limit.saturating_sub(self.limited_bytes()));
        let ios = self.plan.number_ios.map_or(u64::MAX, |n| n.saturating_sub(self.issued_ios.iter().sum()));
        bytes.div_ceil(len).min(ios)
    }

    /// Returns the next step between passes. `None`: the phase has changed, call again.
    pub(super) fn next_between(&mut self, phase: Phase, now: Instant) -> Option<Next> {
        match phase {
            Phase::Io => unreachable!("a pass is not between passes"),
            Phase::Verify => return self.next_read_back(now),
            Phase::Finished => return Some(Next::Done),
            Phase::EndOfIo | Phase::EndSync | Phase::VerifySync | Phase::EndOfVerify => {}
        }
        if self.in_flight > 0 {
            self.reap.cancel();
            return Some(Next::Reap { min: self.in_flight, max: self.in_flight });
        }
        match phase {
            Phase::EndOfIo => {
                self.phase = Phase::EndSync;
                let failed = matches!(self.stop, Some(StopReason::Failed(_)));
                // A flush that was the last I/O is enough, as in fio; here only if it covers all I/Os.
                (self.plan.end_fsync && !failed && !self.issuing.was_flush).then(|| self.flush_all(now))
            }
            Phase::EndSync => {
                if self.plan.dry_run {
                    self.clock.phase_start = now.as_ns();
                }
                if let Some(flush) = self.flush_next(now) {
                    return Some(flush);
                }
                self.end_timed_phase(now, None);
                self.log_all_closed(now);
                let go_on = self.stop.is_none() && !self.clock.expired;
                if self.plan.read_back && go_on && !self.log.is_empty() {
                    self.phase = Phase::VerifySync;
                    return Some(self.flush_all(now));
                }
                self.end_pass(now);
                None
            }
            Phase::VerifySync => {
                if let Some(flush) = self.flush_next(now) {
                    return Some(flush);
                }
                self.clock.phase_start = now.as_ns();
                self.phase = Phase::Verify;
                None
            }
            _ => {
                self.end_timed_phase(now, Some(Dir::Read));
                self.log_all_closed(now);
                self.end_pass(now);
                None
            }
        }
    }

    fn next_read_back(&mut self, now: Instant) -> Option<Next> {
        if self.stop.is_some() || self.clock.expired {
            self.phase = Phase::EndOfVerify;
            return None;
        }
        if let Some((min, max)) = self.reap.ask(&self.plan, self.in_flight, self.free.is_empty()) {
            return Some(Next::Reap { min, max });
        }
        match self.log.take_next() {
            NextPiece::Read(piece, id) => Some(self.hand_out_read_back(piece, id, now)),
            NextPiece::InFlight => unreachable!("all writes completed before reading back"),
            NextPiece::None => {
                self.phase = Phase::EndOfVerify;
                None
            }
        }
    }

    fn end_pass(&mut self, now: Instant) {
        if !self.another_pass() {
            self.phase = Phase::Finished;
            self.finish(now);
            return;
        }
        self.passes.bytes = 0;
        self.issuing.was_flush = false;
        let reseed = self.plan.reseed_each_pass;
        self.offsets.start_pass();
        if let Some(files) = &mut self.files {
            files.start_pass(reseed);
        }
        if let Some(mix) = &mut self.mix {
            mix.start_pass(reseed);
        }
        if reseed {
            self.offsets.reseed();
            self.buffers.reseed();
            self.sizes.iter_mut().for_each(Sizes::reseed);
            self.verify_seeds = self.first_verify_seeds.clone();
        }
        self.log.clear();
        if let Some(trims) = &mut self.trims {
            trims.start_pass(reseed);
        }
        if let Some(search) = &mut self.search {
            search.restart();
        }
        self.clock.phase_start = now.as_ns();
        self.phase = Phase::Io;
    }

    fn another_pass(&mut self) -> bool {
        // A pass without any I/O would be followed by passes without I/O for ever.
        if self.stop.is_some() || self.clock.expired || self.passes.bytes == 0 {
            return false;
        }
        if self.plan.time_based {
            return true;
        }
        if self.passes.left > 0 {
            self.passes.left -= 1;
            return true;
        }
        let done = self.issued_bytes.iter().sum::<u64>() + self.passes.read_back.1;
        self.plan.repeats_if_short
            && !self.ios_used_up()
            && self.plan.loop_bytes.saturating_sub(done) >= self.plan.max_block
    }
}
