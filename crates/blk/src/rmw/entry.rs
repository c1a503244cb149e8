// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread's way into a disk: bios of whole blocks go straight in, all other I/O step by step ([`super::partial`]).
//!
//! Guarantees: each I/O ends once, in the list of [`Entry::end`], with the first error of its parts. Bios that find no slot
//! below enter later, in order of submission. A write to blocks that are locked waits, and other I/O passes it, except locks of
//! its blocks ([`super::locks`] has the bound). It is tried again when what it waits for is released, so waiting I/O costs nothing
//! while other I/O completes. Nothing is allocated per I/O once the lists have grown, except where I/O waits for a lock.
//!
//! Needs from callers: a round is [`Entry::begin`], submissions, a poll of what is below, [`Entry::end`]. A round follows when
//! something below has completed, when the entry's [`Wake`] was woken, and while [`Entry::has_work`]. The halves of a bio's
//! `user_data` are small numbers: a source, never [`Entry::OWN`], and its I/O. An entry is dropped when it is idle. The entry of a
//! thread that panics stays recorded, with its locks, because its writes may still reach the disk. Writes to the same blocks wait
//! until the process ends. Its I/O that only waits gives up, and delays no other.

use super::locks::{BlockLocks, TicketId, Wait, Wake, Writes};
use super::partial::{ByteIo, Partial, Step, inner};
use super::{BUFFER_BYTES, Below, Memory, NoBuffer};
use crate::bio::{Bio, DataRef, Op, OpFlags};
use crate::lock::Lock;
use crate::status::BlkStatus;
use crate::submitter::Done;
use crate::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The result of a bio's attempt to enter.
enum Entered {
    Yes,
    /// There is no slot for it.
    Full,
    /// Some of its blocks are locked.
    Locked(Wait),
}

/// A bio that has not entered yet.
struct Queued {
    bio: Bio,
    /// Its ticket, once it had to wait for a lock.
    ticket: Option<TicketId>,
}

/// What waits until a ticket is released, in the order of the attempts. Tickets decide which may go first.
#[derive(Default)]
struct Waiting {
    partials: Vec<u32>,
    /// Bios that write to its blocks.
    bios: Vec<Queued>,
}

/// A thread's entry to a disk, for whole blocks and for parts of blocks. See the module's text.
pub struct Entry<L: Lock, W: Wake> {
    locks: Arc<BlockLocks<L, W>>,
    writes: Arc<Writes<L, W>>,
    /// Bytes of a block.
    block: u64,
    /// Bios that found no slot, oldest first.
    backlog: VecDeque<Queued>,
    /// What waits for the release of another I/O's ticket.
    waiting: BTreeMap<TicketId, Waiting>,
    /// Partial I/Os that have this lock, and wait for the writes that are inside.
    clearing: BTreeMap<TicketId, u32>,
    /// Empty, for reuse: what this entry was told.
    changed: Vec<TicketId>,
    /// Number of writes inside, without those of `partials`.
    inside: usize,
    /// Whether writes ask before they enter; then `writes` knows all that are inside.
    asks: bool,
    partials: Vec<Option<Partial>>,
    free: Vec<u32>,
    /// Partial I/Os that wait for a buffer, oldest first.
    bufferless: VecDeque<u32>,
    /// Partial I/Os whose bios have completed.
    due: VecDeque<u32>,
    /// What has ended without a bio.
    ended: Vec<Done>,
    /// A buffer came back since `bufferless` was tried last.
    has_buffer: bool,
}

impl<L: Lock, W: Wake> Entry<L, W> {
    /// Upper half of the `user_data` of this module's own bios.
    pub const OWN: u32 = u32::MAX;

    /// Makes the entry of a thread that `waker` wakes, to a disk with blocks of `block` bytes.
    pub fn new(locks: &Arc<BlockLocks<L, W>>, waker: W, block: u32) -> Entry<L, W> {
        let (writes, asks) = locks.add_entry(waker);
        Entry {
            locks: Arc::clone(locks),
            writes,
            block: block.into(),
            backlog: VecDeque::new(),
            waiting: BTreeMap::new(),
            clearing: BTreeMap::new(),
            changed: Vec::new(),
            inside: 0,
            asks,
            partials: Vec::new(),
            free: Vec::new(),
            bufferless: VecDeque::new(),
            due: VecDeque::new(),
            ended: Vec::new(),
            has_buffer: false,
        }
    }

    /// Whether the next I/O would enter at once. Callers take no request from a client otherwise.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Whether an I/O can go on without a completion or a wake-up.
    #[inline]
    pub fn has_work(&self) -> bool {
        !(self.due.is_empty() && self.ended.is_empty()) || self.has_buffer && !self.bufferless.is_empty()
    }

    /// Whether nothing waits here and no step is in flight.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty()
            && self.waiting.is_empty()
            && self.ended.is_empty()
            && self.free.len() == self.partials.len()
    }

    /// Submits a bio.
    #[inline]
    pub fn submit(&mut self, below: &mut impl Below, memory: &mut impl Memory, bio: Bio, now: Instant) {
        let Bio { sector, nr_sectors, .. } = bio;
        if (sector.0 | u64::from(nr_sectors)) << 9 & (self.block - 1) != 0 {
            return self.submit_ragged(below, memory, &bio, now);
        }
        self.submit_whole(below, bio, now);
    }

    /// By far the most common case: nothing waits, no lock is taken, and the bio is copied only to its slot.
    #[inline]
    fn submit_whole(&mut self, below: &mut impl Below, bio: Bio, now: Instant) {
        let writes = bio.op.is_write();
        if self.backlog.is_empty() && !(writes && self.asks) && below.submit(&bio, now).is_ok() {
            self.inside += usize::from(writes);
            return;
        }
        self.place(below, Queued { bio, ticket: None }, now);
    }

    #[cold]
    fn submit_ragged(&mut self, below: &mut impl Below, memory: &mut impl Memory, bio: &Bio, now: Instant) {
        let Bio { op, flags, sector, nr_sectors, data, user_data, .. } = *bio;
        let (offset, bytes) = (sector.0 << 9, u64::from(nr_sectors) << 9);
        let io = ByteIo { op, flags, offset, bytes, data, user_data, exclusive: false };
        self.submit_bytes(below, memory, io, now);
    }

    /// Submits an I/O of any bytes. A discard leaves out the blocks that it covers in part, as discards may.
    #[inline]
    pub fn submit_bytes(&mut self, below: &mut impl Below, memory: &mut impl Memory, io: ByteIo, now: Instant) {
        match io.whole(self.block) {
            Some(bio) => self.submit_whole(below, bio, now),
            None => self.submit_partial(below, memory, io, now),
        }
    }

    #[cold]
    fn submit_partial(&mut self, below: &mut impl Below, memory: &mut impl Memory, mut io: ByteIo, now: Instant) {
        if io.op == Op::Discard {
            match inner(&io, self.block) {
                Some(inside) => io = inside,
                None => return self.ended.push(Done { user_data: io.user_data, op: io.op, status: BlkStatus::Ok }),
            }
        }
        // Polling one step's bios, or refusing to wait, has no meaning for the whole.
        io.flags = io.flags.without(OpFlags::POLLED).without(OpFlags::NOWAIT);
        let index = self.free.pop().unwrap_or(self.partials.len() as u32);
        if index as usize == self.partials.len() {
            self.partials.push(None);
        }
        self.partials[index as usize] = Some(Partial::new(io));
        self.go_on(below, memory, index, now);
    }

    fn place(&mut self, below: &mut impl Below, queued: Queued, now: Instant) {
        if !self.backlog.is_empty() {
            return self.backlog.push_back(queued);
        }
        match self.enter(below, &queued, now) {
            Entered::Yes => {}
            Entered::Full => self.backlog.push_back(queued),
            Entered::Locked(wait) => self.wait(queued.bio, wait),
        }
    }

    /// Keeps a bio until it is worth another attempt.
    fn wait(&mut self, bio: Bio, Wait { ticket, until }: Wait) {
        self.waiting.entry(until).or_default().bios.push(Queued { bio, ticket: Some(ticket) });
    }

    fn enter(&mut self, below: &mut impl Below, queued: &Queued, now: Instant) -> Entered {
        let bio = &queued.bio;
        // A partial I/O locks the blocks whose data it writes, but no others, such as the blocks that it zeroes.
        let is_own = is_own(bio.user_data) && bio.op.has_data();
        let writes = bio.op.is_write() && !is_own;
        if writes && self.asks {
            return self.enter_recorded(below, queued, now);
        }
        if below.submit(bio, now).is_err() {
            return Entered::Full;
        }
        self.inside += usize::from(writes);
        Entered::Yes
    }

    /// Lets a bio that writes enter a disk where blocks may be locked.
    fn enter_recorded(&mut self, below: &mut impl Below, queued: &Queued, now: Instant) -> Entered {
        let Queued { bio, ticket } = queued;
        let range = bio.sector.0..bio.sector.0.saturating_add(u64::from(bio.nr_sectors));
        if let Err(wait) = self.locks.enter(&self.writes, bio.user_data, range, *ticket) {
            return Entered::Locked(wait);
        }
        if below.submit(bio, now).is_err() {
            self.locks.leave(&self.writes, bio.user_data);
            return Entered::Full;
        }
        self.inside += 1;
        if let Some(ticket) = *ticket {
            self.locks.release(ticket);
        }
        Entered::Yes
    }

    /// Begins a round: follows the locks, and does what has become possible since the last round.
    #[inline]
    pub fn begin(&mut self, below: &mut impl Below, memory: &mut impl Memory, now: Instant) {
        if !self.asks && self.locks.are_used() {
            self.follow();
        }
        let waits = !(self.waiting.is_empty() && self.clearing.is_empty() && self.bufferless.is_empty());
        if waits || !(self.due.is_empty() && self.backlog.is_empty()) {
            self.retry(below, memory, now);
        }
    }

    /// Begins to ask, and counts the writes inside, none of which has asked. A freeze of the disk could not replace the counting: it
    /// waits only for requests, and some of these bios may not be requests yet.
    #[cold]
    fn follow(&mut self) {
        self.asks = true;
        self.locks.follow(&self.writes, self.inside);
    }

    #[cold]
    fn retry(&mut self, below: &mut impl Below, memory: &mut impl Memory, now: Instant) {
        while let Some(index) = self.due.pop_front() {
            self.go_on(below, memory, index, now);
        }
        // Take the changed locks before the attempts: locks that change after this are reported again.
        let mut changed = std::mem::take(&mut self.changed);
        self.writes.take_changed(&mut changed);
        for ticket in changed.drain(..) {
            if let Some(index) = self.clearing.remove(&ticket) {
                self.go_on(below, memory, index, now);
                continue;
            }
            let Some(Waiting { partials, bios }) = self.waiting.remove(&ticket) else { continue };
            for index in partials {
                self.go_on(below, memory, index, now);
            }
            for queued in bios {
                self.place(below, queued, now);
            }
        }
        self.changed = changed;
        if std::mem::take(&mut self.has_buffer) {
            self.hand_out_buffers(below, memory, now);
        }
        while let Some(queued) = self.backlog.pop_front() {
            match self.enter(below, &queued, now) {
                Entered::Yes => {}
                Entered::Full => {
                    self.backlog.push_front(queued);
                    break;
                }
                Entered::Locked(wait) => self.wait(queued.bio, wait),
            }
        }
    }

    /// Lets I/Os that wait for a buffer go on, until there is none left.
    fn hand_out_buffers(&mut self, below: &mut impl Below, memory: &mut impl Memory, now: Instant) {
        while let Some(index) = self.bufferless.pop_front() {
            self.go_on(below, memory, index, now);
            // An I/O that found no buffer is now last in the list. It was first, so it goes back to the front.
            if self.bufferless.back() == Some(&index) {
                self.bufferless.rotate_right(1);
                return;
            }
        }
    }

    /// Takes what was collected below from `done[from..]`, and leaves there what has ended for the callers.
    #[inline]
    pub fn end(&mut self, done: &mut Vec<Done>, from: usize) {
        if self.free.len() == self.partials.len() && !self.asks && self.ended.is_empty() {
            self.inside -= done[from..].iter().filter(|d| d.op.is_write()).count();
            return;
        }
        self.end_recorded(done, from);
    }

    #[inline(never)]
    fn end_recorded(&mut self, done: &mut Vec<Done>, from: usize) {
        let mut kept = from;
        for at in from..done.len() {
            let d = done[at];
            if d.op.is_write() && !(is_own(d.user_data) && d.op.has_data()) {
                self.inside -= 1;
                let is_known = !self.asks || self.locks.leave(&self.writes, d.user_data);
                assert!(is_known, "a write ended that was not recorded");
            }
            if is_own(d.user_data) {
                self.bio_ended(d.user_data as u32, d.status);
            } else {
                done[kept] = d;
                kept += 1;
            }
        }
        done.truncate(kept);
        done.append(&mut self.ended);
    }

    fn bio_ended(&mut self, index: u32, status: BlkStatus) {
        let partial = self.partials[index as usize].as_mut().expect("a step's bio has an I/O");
        assert!(partial.bios > 0, "a bio of a partial I/O ended that was not submitted");
        partial.bios -= 1;
        if partial.status.is_ok() {
            partial.status = status;
        }
        if partial.bios == 0 {
            self.due.push_back(index);
        }
    }

    /// Takes a partial I/O as far as it gets without waiting.
    fn go_on(&mut self, below: &mut impl Below, memory: &mut impl Memory, index: u32, now: Instant) {
        let block = self.block;
        let mut p = self.partials[index as usize].take().expect("it goes on");
        loop {
            match p.step {
                Step::Next => {
                    let step = p.choose(block);
                    if step != Some(Step::Buffer) {
                        self.give_back(memory, &mut p);
                    }
                    match step {
                        None => return self.finish(index, p),
                        Some(Step::Pass) => {
                            p.step = Step::Pass;
                            let bio = p.io.bio(p.cover(block), DataRef::NONE);
                            return self.issue(below, index, p, [bio], now);
                        }
                        Some(step) => p.step = step,
                    }
                }
                Step::Buffer => {
                    if p.buffer.is_none() {
                        match memory.take() {
                            Ok(buffer) => p.buffer = Some(buffer),
                            Err(NoBuffer::Busy) => {
                                self.partials[index as usize] = Some(p);
                                return self.bufferless.push_back(index);
                            }
                            Err(NoBuffer::NoMemory) => {
                                p.status = BlkStatus::Resource;
                                return self.finish(index, p);
                            }
                        }
                    }
                    p.step = if p.io.op.is_write() { Step::Lock } else { Step::Clear };
                }
                Step::Lock => {
                    self.use_locks();
                    match self.locks.lock(sectors(&p, block), &self.writes, p.lock) {
                        Ok(ticket) => p.lock = Some(ticket),
                        Err(Wait { ticket, until }) => {
                            p.lock = Some(ticket);
                            self.partials[index as usize] = Some(p);
                            return self.waiting.entry(until).or_default().partials.push(index);
                        }
                    }
                    p.step = Step::Clear;
                }
                Step::Clear => {
                    if let Some(lock) = p.lock
                        && !self.locks.is_clear(&sectors(&p, block))
                    {
                        self.partials[index as usize] = Some(p);
                        self.clearing.insert(lock, index);
                        return;
                    }
                    return self.begin_piece(below, memory, index, p, now);
                }
                Step::Load if p.status.is_ok() && p.io.op != Op::Read => {
                    return self.store(below, memory, index, p, now);
                }
                Step::Load | Step::Store | Step::Pass => self.end_piece(memory, &mut p),
            }
        }
    }

    /// Begins the bios of a piece that has its buffer and its lock.
    fn begin_piece(
        &mut self,
        below: &mut impl Below,
        memory: &mut impl Memory,
        index: u32,
        mut p: Partial,
        now: Instant,
    ) {
        let cover = p.cover(self.block);
        let Some((_, buffer)) = p.buffer else {
            p.step = Step::Store;
            let bio = p.io.bio(cover, p.io.data);
            return self.issue(below, index, p, [bio], now);
        };
        let load = |range: std::ops::Range<u64>| Bio {
            op: Op::Read,
            flags: OpFlags::NONE,
            ..p.io.bio(range.clone(), buffer.advance(range.start - cover.start))
        };
        if p.io.op == Op::Read {
            let bio = load(cover.clone());
            p.step = Step::Load;
            return self.issue(below, index, p, [bio], now);
        }
        let loads: [Option<Bio>; 2] = {
            let mut all = p.loads(self.block).map(load);
            [all.next(), all.next()]
        };
        if loads[0].is_none() {
            return self.store(below, memory, index, p, now);
        }
        p.step = Step::Load;
        self.issue(below, index, p, loads.into_iter().flatten(), now);
    }

    /// Writes the blocks of a piece, whose first and last block are in its buffer.
    fn store(&mut self, below: &mut impl Below, memory: &mut impl Memory, index: u32, mut p: Partial, now: Instant) {
        let (cover, (_, buffer)) = (p.cover(self.block), p.buffer.expect("its blocks were read to somewhere"));
        assert!(cover.end - cover.start <= BUFFER_BYTES, "a piece is longer than its buffer");
        let to = buffer.advance(p.io.offset - cover.start);
        p.step = Step::Store;
        if p.io.op == Op::Write && !memory.copy(p.io.data, to, p.piece) {
            p.status = BlkStatus::IoErr;
            self.partials[index as usize] = Some(p);
            return self.due.push_back(index);
        }
        if p.io.op == Op::WriteZeroes {
            memory.zero(to, p.piece);
        }
        let flags = if p.io.op == Op::Write { p.io.flags } else { OpFlags::NONE };
        let bio = Bio { op: Op::Write, flags, ..p.io.bio(cover, buffer) };
        self.issue(below, index, p, [bio], now);
    }

    fn end_piece(&mut self, memory: &mut impl Memory, p: &mut Partial) {
        if let Some(lock) = p.lock.take() {
            self.locks.release(lock);
        }
        if p.io.op == Op::Read
            && p.status.is_ok()
            && let Some((_, buffer)) = p.buffer
            && !memory.copy(buffer.advance(p.io.offset % self.block), p.io.data, p.piece)
        {
            p.status = BlkStatus::IoErr;
        }
        p.advance();
    }

    /// Gives the buffer of an I/O back, whose next step needs none.
    fn give_back(&mut self, memory: &mut impl Memory, p: &mut Partial) {
        if let Some((buffer, _)) = p.buffer.take() {
            memory.give_back(buffer);
            self.has_buffer = true;
        }
    }

    fn finish(&mut self, index: u32, p: Partial) {
        self.free.push(index);
        self.ended.push(Done { user_data: p.io.user_data, op: p.io.op, status: p.status });
    }

    /// Submits the bios of a step; the I/O goes on when all have completed.
    fn issue(
        &mut self,
        below: &mut impl Below,
        index: u32,
        mut p: Partial,
        bios: impl IntoIterator<Item = Bio, IntoIter: Clone>,
        now: Instant,
    ) {
        let bios = bios.into_iter();
        p.bios = bios.clone().count() as u32;
        self.partials[index as usize] = Some(p);
        for bio in bios {
            let bio = bio.with_user_data(u64::from(Self::OWN) << 32 | u64::from(index));
            self.place(below, Queued { bio, ticket: None }, now);
        }
    }

    /// Makes all entries ask, this one at once.
    fn use_locks(&mut self) {
        if !self.asks {
            self.locks.begin_use();
            self.follow();
        }
    }
}

impl<L: Lock, W: Wake> Drop for Entry<L, W> {
    /// Removes the entry, unless its thread panics. Panics if I/O waits here or is inside.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.locks.give_up(&self.writes);
        }
        assert!(self.is_idle() && self.inside == 0, "an entry was dropped with {} writes inside", self.inside);
        self.locks.remove_entry(&self.writes);
    }
}

#[inline]
fn is_own(user_data: u64) -> bool {
    (user_data >> 32) as u32 == u32::MAX
}

/// Returns the blocks of a piece, in sectors.
fn sectors(p: &Partial, block: u64) -> std::ops::Range<u64> {
    let cover = p.cover(block);
    cover.start >> 9..cover.end >> 9
}

#[cfg(all(test, not(loom)))]
mod tests;
