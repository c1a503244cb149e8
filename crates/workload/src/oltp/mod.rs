// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A database instance as a state machine. It makes the I/O of transactions of many users, as SLOB makes Oracle do it.
//!
//! Sessions (`users` times `threads_per_user`) each run one transaction after the other. A transaction reads `reads_per_tx`
//! blocks, one at a time. In `update_pct` percent of transactions it then changes `writes_per_tx` of them, leaves a redo
//! record, and waits for its commit. Then the session thinks for `thinktime`. The log writer writes all waiting records in
//! one write (group commit) and acknowledges them when that write completes. The database writer writes changed blocks back,
//! `writer_batch` at a time. One thread drives all of this, as in [`crate::engine`].
//!
//! # Guarantees
//! - A commit is acknowledged only after the write of its redo completed without error; redo writes are `FUA`.
//! - A changed block is written back after its redo is durable, and never twice at a time. At most `dirty_max` blocks wait
//!   for write-back.
//! - A session has at most one I/O in flight, the database writer `writer_batch`, the log writer one. An I/O completes once
//!   (asserted).
//! - Which blocks a session's n-th transaction reads and changes depends on the seeds alone.
//! - Nothing is allocated per I/O.
//!
//! # Needs from callers
//! - As for [`crate::engine`]. The last slot is the log writer's and belongs to the second volume.
//!
//! # Does not do
//! - A cache for reads: each block of a transaction is read from the disk, as with SLOB's small buffer cache.
//! - A clean shutdown of a run that ends by time: dirty blocks stay unwritten. After `transactions=N` they are written back.
//! - Shared state between instances: each of `numjobs` instances has its own sessions, log and writers over the same data.
//!
//! Source: K. Closson, SLOB 2.4 (slob.conf: `UPDATE_PCT`, `WORK_UNIT`, `THREADS_PER_SCHEMA`, `REDO_STRESS`); Oracle Database
//! Concepts 19c, "Process Architecture" (LGWR, DBW).

mod account;
mod dirty;
mod log;
mod plan;
mod session;
pub(crate) mod stats;

pub use stats::TxStats;

use crate::buffer::Buffers;
use crate::engine::{Completed, IoReq, Next, StopReason, ThreadId};
use crate::error::SetupError;
use crate::job::{Dir, Job};
use crate::load::{Load, Volume};
use crate::rng::Purpose;
use crate::stats::JobStats;
use crate::verify::VerifyError;
use account::{Account, Io};
use blk::bio::{IoPrio, OpFlags};
use blk::status::BlkStatus;
use blk::time::Instant;
use dirty::Dirty;
use log::{Record, RedoLog};
use plan::Plan;
use session::{Session, Step};
use std::collections::VecDeque;

/// Maximum number of I/Os submitted at once, so that the device can start on some while others are chosen.
const BATCH: usize = 64;

/// The kind of I/O in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Queued,
    Submitted,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: SlotState,
    io: Io,
    offset: u64,
    /// For the database writer: the entry of the block.
    entry: u32,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Oltp {
    plan: Plan,
    sessions: Vec<Session>,
    /// Sessions that can continue, in the order in which they became ready.
    ready: VecDeque<u32>,
    /// Sessions in their think time, with its end. All think times are equal, so the sessions are in order of that end.
    thinking: VecDeque<(u64, u32)>,
    /// Sessions that wait for room for their changes.
    starved: VecDeque<u32>,
    /// Sessions that still run transactions.
    active: u32,
    /// Transactions begun so far.
    begun: u64,
    log: RedoLog,
    /// Scratch: records of a redo write that has completed.
    ended: Vec<Record>,
    dirty: Dirty,
    /// Free slots of the database writer, and how many blocks its batch may still write.
    writer_free: Vec<u32>,
    batch_left: u32,
    buffers: Buffers,
    slots: Vec<Slot>,
    queued: Vec<u32>,
    in_flight: u32,
    prio: IoPrio,
    account: Account,
    stop: Option<StopReason>,
    done: bool,
}

impl Oltp {
    /// Makes the instance `id` of `job`, which is a job with [`Job::oltp`]. Its data is on a target of `data_bytes`. Its
    /// redo is on a target of `redo_bytes`, or after the data.
    ///
    /// # Errors
    /// The option that does not fit its target.
    ///
    /// # Panics
    /// When the job is no transaction loop.
    pub fn new(job: &Job, id: ThreadId, data_bytes: u64, redo_bytes: Option<u64>) -> Result<Oltp, SetupError> {
        let plan = Plan::new(job, id, data_bytes, redo_bytes)?;
        let seeds = job.seeds(id.entropy, id.number);
        let sessions = plan.oltp.sessions();
        let io = Io { dir: Dir::Read, len: 0, start_ns: 0, issue_ns: 0 };
        Ok(Oltp {
            sessions: (0..sessions).map(|n| Session::new(seeds.of(Purpose::Offset), n, &plan)).collect(),
            ready: (0..sessions).collect(),
            thinking: VecDeque::with_capacity(sessions as usize),
            starved: VecDeque::with_capacity(sessions as usize),
            active: sessions,
            begun: 0,
            log: RedoLog::new(plan.log, sessions),
            ended: Vec::with_capacity(sessions as usize),
            dirty: Dirty::new(plan.oltp.dirty_max),
            writer_free: (sessions..plan.data_slots()).rev().collect(),
            batch_left: 0,
            buffers: Buffers::new(job, seeds, None),
            slots: vec![Slot { state: SlotState::Free, io, offset: 0, entry: 0 }; plan.data_slots() as usize + 1],
            queued: Vec::with_capacity(BATCH),
            in_flight: 0,
            prio: crate::engine::prio(job),
            account: Account::new(job),
            stop: None,
            done: false,
            plan,
        })
    }

    /// The log writer's slot.
    fn log_slot(&self) -> u32 {
        self.plan.data_slots()
    }

    /// Whether time or the user has ended the run. Transactions in progress are then not completed.
    fn is_interrupted(&self, now_ns: u64) -> bool {
        self.stop.is_some() || self.account.is_over(now_ns)
    }

    /// Returns an I/O to issue at `now_ns`, the most urgent first. Sessions wait for redo, but not for write-back.
    fn next_io(&mut self, now_ns: u64, interrupted: bool) -> Option<IoReq> {
        if let Some(io) = self.next_redo(now_ns, interrupted) {
            return Some(io);
        }
        while let Some(s) = self.ready.pop_front() {
            if self.sessions[s as usize].step == Step::Idle && !self.begin(s, now_ns) {
                continue;
            }
            return Some(self.read(s, now_ns));
        }
        // After the sessions, because blocks are still written back once the last session has ended.
        if interrupted { None } else { self.next_block_write(now_ns) }
    }

    /// Begins a session's next transaction. Returns false if there is none.
    fn begin(&mut self, s: u32, now_ns: u64) -> bool {
        if self.plan.oltp.transactions.is_some_and(|most| self.begun >= most) {
            self.leave(s);
            return false;
        }
        self.begun += 1;
        self.sessions[s as usize].begin(&self.plan, now_ns);
        true
    }

    fn read(&mut self, s: u32, now_ns: u64) -> IoReq {
        let (block, hot) = self.sessions[s as usize].next_block(&self.plan);
        let tx = self.account.tx();
        tx.reads += 1;
        tx.hot_reads += u64::from(hot);
        let offset = self.plan.start + block * u64::from(self.plan.block_bytes);
        self.hand_out(s, Dir::Read, offset, self.plan.block_bytes, now_ns)
    }

    fn next_redo(&mut self, now_ns: u64, interrupted: bool) -> Option<IoReq> {
        let write = self.log.next_write(now_ns, interrupted)?;
        self.account.tx().redo_wraps += u64::from(write.wraps);
        Some(self.hand_out(self.log_slot(), Dir::Write, write.offset, write.len, now_ns))
    }

    fn next_block_write(&mut self, now_ns: u64) -> Option<IoReq> {
        let batch = self.plan.oltp.writer_batch;
        if self.batch_left == 0 && self.writer_free.len() == batch as usize {
            let wanted = self.dirty.in_line() >= batch || !self.starved.is_empty() || self.active == 0;
            self.batch_left = if wanted { batch } else { 0 };
        }
        if self.batch_left == 0 {
            return None;
        }
        let Some((entry, block)) = self.dirty.next(self.log.durable()) else {
            self.batch_left = 0;
            return None;
        };
        self.batch_left -= 1;
        let slot = self.writer_free.pop().expect("a batch has as many blocks as the writer has slots");
        self.slots[slot as usize].entry = entry;
        let offset = self.plan.start + block * u64::from(self.plan.block_bytes);
        Some(self.hand_out(slot, Dir::Write, offset, self.plan.block_bytes, now_ns))
    }

    fn hand_out(&mut self, slot: u32, dir: Dir, offset: u64, len: u32, now_ns: u64) -> IoReq {
        let is_redo = slot == self.log_slot();
        let s = &mut self.slots[slot as usize];
        assert!(s.state == SlotState::Free, "slot {slot} is handed out while it is {:?}", s.state);
        s.state = SlotState::Queued;
        (s.io, s.offset) = (Io { dir, len, start_ns: now_ns, issue_ns: 0 }, offset);
        self.queued.push(slot);
        self.in_flight += 1;
        IoReq {
            slot,
            len_bytes: len,
            offset_bytes: offset,
            target: is_redo.into(),
            op: dir.op(),
            fill: dir == Dir::Write && self.buffers.each_write_fills(),
            commit: self.queued.len() >= BATCH,
            // Sessions wait for redo, which is durable when it ends (FUA). No session waits for write-back of blocks, but
            // it bypasses the cache: SYNC and IDLE mark a direct write.
            flags: match (dir, is_redo) {
                (Dir::Write, true) => OpFlags::FUA.union(OpFlags::SYNC).union(OpFlags::IDLE),
                (Dir::Write, false) => OpFlags::SYNC.union(OpFlags::IDLE),
                _ => OpFlags::NONE,
            },
            prio: self.prio,
        }
    }

    /// Handles the completion of a session's read.
    fn was_read(&mut self, s: u32, now_ns: u64) {
        let interrupted = self.is_interrupted(now_ns);
        let session = &mut self.sessions[s as usize];
        session.reads_left -= 1;
        if interrupted {
            return self.leave(s);
        }
        if session.reads_left > 0 {
            return self.ready.push_back(s);
        }
        let (updates, began) = (session.updates, session.began_ns);
        self.account.tx().read.record(now_ns.saturating_sub(began));
        if !updates {
            return self.finish(s, now_ns);
        }
        if self.starved.is_empty() && self.dirty.has_room(self.plan.oltp.changes()) {
            return self.change(s, now_ns);
        }
        self.sessions[s as usize].step = Step::Starved;
        self.account.tx().buffer_waits += 1;
        self.starved.push_back(s);
    }

    /// Applies the changes of a session's transaction, and appends its redo record.
    fn change(&mut self, s: u32, now_ns: u64) {
        let session = &mut self.sessions[s as usize];
        session.step = Step::Committing;
        let record = self.log.leave(s, now_ns);
        let mut again = 0;
        for block in &session.touched {
            again += u64::from(self.dirty.change(*block, record));
        }
        self.account.tx().rewritten += again;
    }

    /// Handles the completion of a redo write. If it succeeded, the sessions with a record in it continue; otherwise the
    /// log ends before it.
    fn redo_ended(&mut self, written: bool, now_ns: u64) {
        let mut ended = std::mem::take(&mut self.ended);
        self.log.ended(written, &mut ended);
        if !written {
            self.log.give_up();
        }
        for Record { session, asked_ns } in ended.drain(..) {
            if written {
                let tx = self.account.tx();
                tx.commits += 1;
                tx.commit.record(now_ns.saturating_sub(asked_ns));
                self.finish(session, now_ns);
            } else {
                self.leave(session);
            }
        }
        self.ended = ended;
    }

    /// After blocks were written back, lets the sessions that waited for room continue.
    fn feed_starved(&mut self, now_ns: u64) {
        while let Some(s) = self.starved.front().copied()
            && self.dirty.has_room(self.plan.oltp.changes())
        {
            self.starved.pop_front();
            self.change(s, now_ns);
        }
    }

    fn finish(&mut self, s: u32, now_ns: u64) {
        let session = &mut self.sessions[s as usize];
        session.step = Step::Idle;
        let took = now_ns.saturating_sub(session.began_ns);
        let tx = self.account.tx();
        tx.transactions += 1;
        tx.lat.record(took);
        match self.plan.think_ns {
            0 => self.ready.push_back(s),
            think => self.thinking.push_back((now_ns.saturating_add(think), s)),
        }
    }

    fn leave(&mut self, s: u32) {
        self.sessions[s as usize].step = Step::Gone;
        self.active -= 1;
    }

    /// Ends all sessions that have neither an I/O in flight nor a record in the log.
    fn send_away(&mut self) {
        let idle = self.ready.drain(..).chain(self.starved.drain(..)).chain(self.thinking.drain(..).map(|(_, s)| s));
        for s in idle.collect::<Vec<_>>() {
            self.leave(s);
        }
        if matches!(self.stop, Some(StopReason::Failed(_))) {
            self.log.give_up();
        }
    }

    /// Returns what to do when nothing can be issued.
    fn rest(&mut self, now_ns: u64, interrupted: bool) -> Next {
        let over = interrupted || self.active == 0 && self.dirty.in_line() == 0;
        if self.in_flight == 0 && self.log.is_quiet() && over {
            self.done = true;
            self.account.update_run_times(now_ns);
            return Next::Done;
        }
        let timers = [self.thinking.front().map(|t| t.0), self.log.due_at()];
        match timers.into_iter().flatten().min() {
            Some(at) => Next::Wait(Instant::from_ns(at.min(self.account.end_at))),
            None => {
                assert!(self.in_flight > 0, "nothing is out, and no session waits for a time");
                Next::Reap { min: 1, max: self.in_flight }
            }
        }
    }
}

impl Load for Oltp {
    /// The data volume, then the redo volume.
    fn volumes(&self) -> Vec<Volume> {
        vec![
            Volume { slots: self.plan.data_slots(), slot_bytes: self.plan.block_bytes },
            Volume { slots: 1, slot_bytes: self.plan.log.max_write },
        ]
    }

    fn fill_first(&mut self, buf: &mut [u8]) {
        self.buffers.fill_first(buf);
    }

    fn next(&mut self, now: Instant) -> Next {
        let now_ns = now.as_ns();
        if self.done {
            return Next::Done;
        }
        self.account.tick(now_ns);
        while let Some((_, s)) = self.thinking.pop_front_if(|t| t.0 <= now_ns) {
            self.ready.push_back(s);
        }
        let interrupted = self.is_interrupted(now_ns);
        if interrupted {
            self.send_away();
        }
        match self.next_io(now_ns, interrupted) {
            Some(io) => Next::Io(io),
            None => self.rest(now_ns, interrupted),
        }
    }

    fn fill(&mut self, slot: u32, buf: &mut [u8]) {
        let Slot { state, io, offset, .. } = self.slots[slot as usize];
        assert!(state == SlotState::Queued && io.dir == Dir::Write, "fill of slot {slot}, which is {state:?}");
        self.buffers.fill_write(buf, offset, Instant::from_ns(io.start_ns));
    }

    fn submitted(&mut self, now: Instant) {
        let n = self.queued.len() as u32;
        if n == 0 {
            return;
        }
        for slot in self.queued.drain(..) {
            let s = &mut self.slots[slot as usize];
            s.state = SlotState::Submitted;
            s.io.issue_ns = now.as_ns();
            self.account.submitted(&s.io);
        }
        self.account.batch(n, self.in_flight);
    }

    fn complete(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        let now_ns = now.as_ns();
        self.account.tick(now_ns);
        let s = &mut self.slots[slot as usize];
        assert!(s.state == SlotState::Submitted, "completion for slot {slot}, which is {:?}", s.state);
        s.state = SlotState::Free;
        let (io, entry) = (s.io, s.entry);
        self.in_flight -= 1;
        if status.is_ok() {
            self.account.completed(&io, now_ns);
        } else {
            self.account.failed(&io, status.errno());
            self.stop(StopReason::Failed(status.errno()));
        }
        if slot < self.sessions.len() as u32 {
            self.was_read(slot, now_ns);
        } else if slot == self.log_slot() {
            if status.is_ok() {
                let tx = self.account.tx();
                tx.redo_writes += 1;
                tx.redo_bytes += u64::from(io.len);
                tx.redo_lat.record(now_ns.saturating_sub(io.issue_ns));
            }
            self.redo_ended(status.is_ok(), now_ns);
        } else {
            self.writer_free.push(slot);
            self.dirty.written(entry);
            if status.is_ok() {
                self.account.tx().block_writes += 1;
                self.feed_starved(now_ns);
            }
        }
        Completed { needs_verify: false }
    }

    fn reaped(&mut self, n: u32) {
        self.account.reaped(n);
    }

    fn verify(&mut self, slot: u32, _buf: &[u8]) -> Result<(), VerifyError> {
        unreachable!("slot {slot}: transactions verify nothing")
    }

    fn stop(&mut self, why: StopReason) {
        if self.stop.is_none() {
            if let StopReason::Failed(errno) = why
                && self.account.stats.first_error == 0
            {
                self.account.stats.first_error = errno;
            }
            self.stop = Some(why);
        }
    }

    fn abandon(&mut self, now: Instant) {
        self.stop(StopReason::Asked);
        self.account.update_run_times(now.as_ns());
        self.done = true;
    }

    fn is_ramping(&self) -> bool {
        self.account.ramping
    }

    fn stats(&self) -> &JobStats {
        &self.account.stats
    }

    fn stats_mut(&mut self) -> &mut JobStats {
        &mut self.account.stats
    }
}

#[cfg(test)]
mod tests;
