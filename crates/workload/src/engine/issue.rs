// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Choosing the next I/O of a pass.
//!
//! The order of checks is that of fio's main loop: reap, pause, limits, read back a backlog, flush, flow, direction, rate,
//! offset, size. A job whose I/Os all follow one rule takes a shortcut in [`JobThread::next`], for as many I/Os as need
//! none of these checks.

use super::plan::Fast;
use super::think::Pause;
use super::{IoReq, JobThread, Kind, Next, Phase, Slot, SlotState, VerifySlot};
use crate::job::{Dir, RwMode};
use crate::offsets::Pick;
use crate::rate::Verdict;
use crate::verify::Stamp;
use crate::verify::log::{NextPiece, Piece, PieceId};
use blk::bio::{IoPrio, Op, OpFlags};
use blk::time::Instant;

/// Decisions that were made and could not be carried out yet.
#[derive(Clone, Debug, Default)]
pub(super) struct IssueState {
    /// The direction of the next I/O, waiting for its rate.
    dir: Option<Dir>,
    /// An I/O that waits for an overlapping verified write.
    pub held: Option<Chosen>,
    /// A flush is due before the next I/O.
    pub flush_due: bool,
    /// The last I/O of the pass is a flush that covers all I/Os: nothing else was in flight.
    pub was_flush: bool,
    /// Blocks of the backlog still to be read back in this round.
    backlog_left: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub dir: Dir,
    pub offset: u64,
    pub len: u32,
    pub due_ns: u64,
}

/// The I/O has no due time, because its direction has no rate.
pub(super) const NOT_RATED: u64 = u64::MAX;

impl JobThread {
    /// First half of [`JobThread::next`]: returns the I/O to issue at `now`, if only a uniform offset has to be chosen for
    /// it. `None` = call [`JobThread::next_other`]. A driver that calls this first gets the I/Os of the simplest jobs in
    /// registers.
    #[inline(always)] // The loop of a job thread, for each I/O.
    pub fn next_uniform(&mut self, now: Instant) -> Option<IoReq> {
        let Some(Fast::Uniform { dir, len }) = self.plan.fast else { return None };
        if self.fast_left == 0 || now.as_ns() >= self.check_at || !self.reap.idle() {
            return None;
        }
        let slot = self.free.pop()?;
        self.fast_left -= 1;
        let offset = self.offsets.plain_uniform(dir);
        Some(self.hand_out(slot, dir, offset, len, NOT_RATED, now))
    }

    /// Returns what to do at `now`.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Next {
        self.next_uniform(now).map_or_else(|| self.next_other(now), Next::Io)
    }

    /// Second half of [`JobThread::next`]. It is correct for every I/O, but slower.
    #[inline]
    pub fn next_other(&mut self, now: Instant) -> Next {
        if self.fast_left == 0 || now.as_ns() >= self.check_at {
            return self.next_slow(now);
        }
        let full = self.free.is_empty();
        if (full || !self.reap.idle())
            && let Some((min, max)) = self.reap.ask(&self.plan, self.in_flight, full)
        {
            return Next::Reap { min, max };
        }
        match self.plan.fast {
            Some(Fast::Uniform { .. }) => {
                Next::Io(self.next_uniform(now).expect("nothing stands in the way of this I/O"))
            }
            Some(Fast::Plain { .. }) => self.next_plain(now),
            None => self.next_slow(now),
        }
    }

    /// Returns the next I/O of a job that needs only a direction and an offset.
    fn next_plain(&mut self, now: Instant) -> Next {
        let dir = match self.plan.mode {
            RwMode::Write => Dir::Write,
            RwMode::Trim => Dir::Trim,
            _ => self.mix.as_mut().map_or(Dir::Read, |m| m.next_dir(&self.issued_ios)),
        };
        let Some((pick, len)) = self.choose_place(dir) else {
            // A second attempt would draw the same again, so the pass is over.
            self.phase = Phase::EndOfIo;
            self.leave_fast_path();
            return self.next_slow(now);
        };
        let len = self.offsets.issued(dir, pick, len) as u32;
        let slot = self.free.pop().expect("a full queue reaps before it issues");
        self.fast_left -= 1;
        Next::Io(self.hand_out(slot, dir, pick.offset, len, NOT_RATED, now))
    }

    #[inline(never)]
    fn next_slow(&mut self, now: Instant) -> Next {
        if now.as_ns() >= self.check_at {
            self.tick(now);
        }
        loop {
            let next = match self.phase {
                Phase::Io => self.next_of_pass(now),
                other => self.next_between(other, now),
            };
            if let Some(next) = next {
                if self.iolog.is_some() {
                    self.log_next(&next, now);
                }
                return next;
            }
        }
    }

    /// Returns the next step inside a pass; `None` when the pass has issued everything.
    fn next_of_pass(&mut self, now: Instant) -> Option<Next> {
        let ending = self.stop.is_some() || self.clock.expired;
        if !ending {
            if let Some(next) = self.search_depth(now) {
                return Some(next);
            }
            if let Some((min, max)) = self.reap.ask(&self.plan, self.in_flight, self.is_full()) {
                return Some(Next::Reap { min, max });
            }
            if let Some(next) = self.pause(now) {
                return Some(next);
            }
            self.check_min_rates(now.as_ns());
        }
        if ending || self.stop.is_some() || (self.replay.is_none() && self.pass_is_over()) {
            self.phase = Phase::EndOfIo;
            return None;
        }
        if let Some(next) = self.next_of_backlog(now) {
            return Some(next);
        }
        if self.trims.is_some()
            && let Some(next) = self.next_trim(now)
        {
            return Some(next);
        }
        // A flush needs no turn.
        if !self.issuing.flush_due
            && let Some(wait) = self.wait_for_flow(now)
        {
            return Some(wait);
        }
        if self.replay.is_some() {
            return self.next_of_replay(now);
        }
        if self.files.is_some() {
            return self.next_of_files(now);
        }
        if std::mem::take(&mut self.issuing.flush_due) {
            return Some(self.hand_out_flush(now));
        }
        let chosen = match self.issuing.held.take() {
            Some(held) => held,
            None => match self.choose(now)? {
                Ok(chosen) => chosen,
                Err(wait) => return Some(wait),
            },
        };
        if self.plan.dry_run {
            return self.skip(chosen, now);
        }
        if !self.holds_data(&chosen) {
            return None;
        }
        Some(self.issue(chosen, now))
    }

    /// Whether as many I/Os are in flight as may be.
    fn is_full(&self) -> bool {
        self.free.is_empty() || self.search.as_ref().is_some_and(|search| self.in_flight >= search.depth())
    }

    fn pause(&mut self, now: Instant) -> Option<Next> {
        let think = self.think.as_mut()?;
        let count = if think.count_issued { self.issued_ios.iter().sum() } else { self.stats.total_ios() };
        let until = |ns: u64| Instant::from_ns(ns.min(self.check_at));
        match think.ask(count, self.in_flight, now.as_ns()) {
            Pause::No => None,
            Pause::Drain => Some(Next::Reap { min: self.in_flight, max: self.in_flight }),
            Pause::Spin(ns) => Some(Next::Spin(until(ns))),
            Pause::Sleep(ns) => Some(Next::Wait(until(ns))),
        }
    }

    /// Returns a block to read back while the pass continues (`verify_backlog`).
    fn next_of_backlog(&mut self, now: Instant) -> Option<Next> {
        let backlog = self.plan.backlog;
        if backlog == 0 || self.log.is_empty() {
            return None;
        }
        if self.issuing.backlog_left == 0 {
            if !(self.log.len() as u64).is_multiple_of(backlog) || self.clock.last_completed_read {
                return None;
            }
            self.issuing.backlog_left = self.plan.backlog_batch;
        }
        match self.log.take_next() {
            NextPiece::Read(piece, id) => {
                self.issuing.backlog_left -= 1;
                Some(self.hand_out_read_back(piece, id, now))
            }
            NextPiece::InFlight | NextPiece::None => None,
        }
    }

    /// Chooses direction, offset and size of the next I/O. `None`: the pass is over. `Err`: it may not be issued yet.
    fn choose(&mut self, now: Instant) -> Option<Result<Chosen, Next>> {
        let (dir, due_ns) = match self.choose_dir(now) {
            Ok(chosen) => chosen,
            Err(wait) => return Some(Err(wait)),
        };
        let Some((pick, len)) = self.choose_place(dir) else {
            self.phase = Phase::EndOfIo;
            self.log_open(0, false, now);
            return None;
        };
        let len = self.offsets.issued(dir, pick, len) as u32;
        Some(Ok(Chosen { dir, offset: pick.offset, len, due_ns }))
    }

    pub(super) fn choose_dir(&mut self, now: Instant) -> Result<(Dir, u64), Next> {
        let dir = self.issuing.dir.take().unwrap_or_else(|| match self.plan.mode {
            RwMode::Read => Dir::Read,
            RwMode::Write => Dir::Write,
            RwMode::Trim => Dir::Trim,
            RwMode::TrimWrite if self.offsets.trim_is_next() => Dir::Trim,
            RwMode::TrimWrite => Dir::Write,
            RwMode::ReadWrite => self.mix.as_mut().map_or(Dir::Read, |m| m.next_dir(&self.issued_ios)),
            RwMode::Replay { .. } => unreachable!("a trace has directions"),
        });
        let Some(rates) = &self.rates else { return Ok((dir, NOT_RATED)) };
        let other = self.mix.as_ref().and_then(|m| m.other(dir));
        match rates.ask(dir, other, now.as_ns() - self.clock.epoch) {
            Verdict::Go(dir, due) => {
                if let Some(mix) = &mut self.mix {
                    mix.turned_to(dir);
                }
                Ok((dir, due.map_or(NOT_RATED, |ns| self.clock.epoch + ns)))
            }
            Verdict::NotBefore(ns) => {
                self.issuing.dir = Some(dir);
                let at = self.clock.epoch.saturating_add(ns).min(self.check_at);
                Err(Next::Wait(Instant::from_ns(at)))
            }
        }
    }

    pub(super) fn choose_place(&mut self, dir: Dir) -> Option<(Pick, u64)> {
        let pick = self.offsets.next(dir)?;
        let room = self.offsets.region().end() - pick.offset;
        let len = match self.offsets.last_trim_len() {
            Some(len) if dir == Dir::Write => len,
            _ => {
                let of = match (self.plan.sizes_by_order, pick.random) {
                    (false, _) => dir,
                    (true, true) => Dir::Write,
                    (true, false) => Dir::Read,
                };
                self.sizes[of as usize].next(room)?
            }
        };
        self.offsets.fits(pick.offset, len).then_some((pick, len))
    }

    pub(super) fn issue(&mut self, c: Chosen, now: Instant) -> Next {
        if c.dir == Dir::Write && self.plan.read_back && self.log.must_wait(self.address(c.offset), u64::from(c.len)) {
            self.issuing.held = Some(c);
            return Next::Reap { min: 1, max: self.in_flight };
        }
        let slot = self.free.pop().expect("a full queue reaps before it issues");
        self.issuing.was_flush = false;
        if c.dir == Dir::Write {
            self.note_write(slot, c);
        }
        if let Some(rates) = &mut self.rates {
            rates.issued(c.dir, u64::from(c.len));
        }
        let mut io = self.hand_out(slot, c.dir, c.offset, c.len, c.due_ns, now);
        io.prio = self.draw_prio(slot, c.dir, c.len);
        if let Some(flow) = &mut self.flow {
            flow.issued();
        }
        self.enter_fast_path();
        Next::Io(io)
    }

    /// The offset of an I/O as the log of writes counts it: through all files.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.files.as_ref().map_or(offset, |files| files.address(offset))
    }

    /// Records a write for verification and flushes.
    fn note_write(&mut self, slot: u32, c: Chosen) {
        let number = self.issued_ios[Dir::Write as usize];
        if self.plan.verify {
            let stamp = self.next_stamp();
            let address = self.address(c.offset);
            let v = &mut self.verify_slots[slot as usize];
            v.stamp = stamp;
            v.ordinal = self.completions.as_mut().map_or(0, |completions| completions.issued());
            v.piece = self.plan.read_back.then(|| self.log.begin(address, c.len, stamp));
            if let (Some(trims), Some(piece)) = (&mut self.trims, v.piece) {
                trims.written(piece, stamp);
            }
        }
        let due = |every: u64| every > 0 && (number + 1).is_multiple_of(every);
        self.issuing.flush_due = due(self.plan.fsync_every) || due(self.plan.fdatasync_every);
    }

    /// Returns what tells the next write from all others.
    pub(super) fn next_stamp(&mut self) -> Stamp {
        Stamp { seed: self.verify_seeds.block_seed(), number: self.issued_ios[Dir::Write as usize] as u16 }
    }

    /// Assigns an I/O to a slot.
    #[inline]
    pub(super) fn hand_out(&mut self, slot: u32, dir: Dir, offset: u64, len: u32, due_ns: u64, now: Instant) -> IoReq {
        let d = dir as usize;
        let kind = match dir {
            Dir::Read => Kind::Read,
            Dir::Write => Kind::Write,
            Dir::Trim => Kind::Trim,
        };
        self.issued_ios[d] += 1;
        self.issued_bytes[d] += u64::from(len);
        let state = SlotState::Queued;
        let start_ns = now.as_ns();
        let commit = self.queue(slot, Slot { start_ns, issue_ns: 0, due_ns, offset, len, kind, dir: d as u8, state });
        IoReq {
            slot,
            len_bytes: len,
            offset_bytes: offset,
            target: 0,
            op: dir.op(),
            fill: kind == Kind::Write && self.plan.fill_writes,
            commit,
            flags: self.plan.flags[d],
            prio: self.plan.prio,
        }
    }

    /// Puts an I/O into its slot. Returns whether the batch is complete.
    #[inline]
    fn queue(&mut self, slot: u32, io: Slot) -> bool {
        debug_assert!(self.slots[slot as usize].state == SlotState::Free);
        self.passes.issued(io.len);
        self.slots[slot as usize] = io;
        self.queued.push(slot);
        self.in_flight += 1;
        let commit = self.queued.len() >= self.plan.batch as usize || self.free.is_empty();
        if commit {
            self.reap.committed(&self.plan);
        }
        commit
    }

    /// Issues a flush; a slot is free.
    pub(super) fn hand_out_flush(&mut self, now: Instant) -> Next {
        let slot = self.free.pop().expect("a flush needs a free slot");
        self.issuing.was_flush = self.in_flight == 0;
        self.offsets.issued_other();
        let state = SlotState::Queued;
        let start_ns = now.as_ns();
        let kind = Kind::Flush;
        let io = Slot { start_ns, issue_ns: 0, due_ns: NOT_RATED, offset: 0, len: 0, kind, dir: 0, state };
        let commit = self.queue(slot, io);
        Next::Io(IoReq {
            slot,
            len_bytes: 0,
            offset_bytes: 0,
            target: 0,
            op: Op::Flush,
            fill: false,
            commit,
            flags: OpFlags::PREFLUSH,
            prio: IoPrio::default(),
        })
    }

    /// Issues the reading back of a written block; a slot is free.
    pub(super) fn hand_out_read_back(&mut self, piece: Piece, id: PieceId, now: Instant) -> Next {
        let slot = self.free.pop().expect("a full queue reaps before it issues");
        self.issuing.was_flush = false;
        self.offsets.issued_other();
        self.passes.reads_back(piece.len);
        self.verify_slots[slot as usize] =
            VerifySlot { stamp: piece.stamp, piece: Some(id), trimmed: piece.trimmed, ..VerifySlot::default() };
        let (file, offset) = self.files.as_ref().map_or((0, piece.offset), |files| files.locate(piece.offset));
        let len = piece.len;
        let (start_ns, kind, state) = (now.as_ns(), Kind::ReadBack, SlotState::Queued);
        let dir = Dir::Read as u8;
        let io = Slot { start_ns, issue_ns: 0, due_ns: NOT_RATED, offset, len, kind, dir, state };
        let commit = self.queue(slot, io);
        let prio = self.draw_prio(slot, Dir::Read, len);
        let next = Next::Io(IoReq {
            slot,
            len_bytes: len,
            offset_bytes: offset,
            target: 0,
            op: Op::Read,
            fill: false,
            commit,
            flags: self.plan.flags[Dir::Read as usize],
            prio,
        });
        if self.files.is_some() { self.direct(next, file) } else { next }
    }

    /// Allows the shortcut for as many I/Os as no limit can stop.
    fn enter_fast_path(&mut self) {
        if let Some(Fast::Uniform { len, .. } | Fast::Plain { max_len: len }) = self.plan.fast
            && self.stop.is_none()
            && !self.clock.expired
        {
            // The count assumes I/Os of the largest size. With smaller ones the limits are only checked earlier than necessary.
            self.fast_left = self.ios_left(u64::from(len));
        }
    }

    pub(super) fn leave_fast_path(&mut self) {
        self.fast_left = 0;
    }
}
