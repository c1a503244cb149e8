// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An IOThread's entry to one disk: its submitter, its descriptors to wait on, and buffers for sources that have none.
//!
//! Guarantees: a submitted bio enters the block layer once; bios that cannot enter at once do so in order of submission. The exception is
//! a bio that writes to blocks that are being rewritten ([`rewrite`](super::rewrite)): it waits for that, and lets others pass. Needs
//! from callers: nothing is taken from a client while there is no room ([`Port::has_capacity`]).

use super::disk::{ServedDisk, Waker};
use super::latency::Starts;
use super::rewrite::Writes;
use crate::disk::IoPath;
use crate::error::Result;
use blk::bio::{Bio, DataRef};
use blk::id::HctxId;
use blk::submitter::Done;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of a buffer.
pub const BUFFER_BYTES: usize = 4 << 20;
/// Buffers of a port; each takes memory when it is first written.
const BUFFERS: u32 = 16;

/// Number of a source of an IOThread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId(pub(super) u32);

impl SourceId {
    /// Returns the user data of a bio of this source, with a number of the source's own.
    #[inline]
    pub fn tagged(self, own: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(own)
    }

    /// The source's own number of a bio.
    #[inline]
    pub fn own(user_data: u64) -> u32 {
        SourceId::of(user_data).1
    }

    #[inline]
    pub(super) fn of(user_data: u64) -> (usize, u32) {
        ((user_data >> 32) as usize, user_data as u32)
    }
}

/// A bio that waits for a slot.
struct Waiting {
    bio: Bio,
    /// The bio may write to blocks that are being rewritten, because it is part of the rewrite.
    rewrites: bool,
}

/// What became of a bio that was to enter.
enum Entry {
    Done,
    /// There is no slot for it.
    Full,
    /// Its blocks are being rewritten.
    Held,
}

/// See the module's text. Fields are dropped in this order.
pub struct Port {
    sub: IoPath,
    /// After what uses its drivers: the last owner frees the image.
    disk: Arc<ServedDisk>,
    /// The IOThread's number.
    thread: u16,
    /// Bios that found no slot, oldest first.
    backlog: VecDeque<Waiting>,
    /// Bios whose blocks are being rewritten.
    held: VecDeque<Bio>,
    /// The writes that [`Rewrites`](super::rewrite::Rewrites) records.
    writes: Arc<Writes>,
    /// How many these are, with those that it only counts.
    writes_inside: usize,
    /// Bios that write and are inside the block layer, of whatever kind.
    writes_out: usize,
    /// Writes ask [`Rewrites`](super::rewrite::Rewrites) before they enter.
    asks: bool,
    buffers: Option<(u16, Vec<u32>)>,
    /// Hardware queues where completions appear, with the number of their member.
    hctxs: Vec<(usize, HctxId)>,
    generation: u64,
    starts: Starts,
    /// Sources that use it.
    pub(super) users: u32,
}

impl Port {
    pub(super) fn new(disk: &Arc<ServedDisk>, thread: u16) -> Result<Port> {
        let sub = disk.io_path(thread)?;
        Ok(Port {
            disk: Arc::clone(disk),
            thread,
            generation: sub.state_generation(),
            hctxs: sub.hctxs(),
            sub,
            backlog: VecDeque::new(),
            held: VecDeque::new(),
            writes: disk.rewrites.add_port(),
            writes_inside: 0,
            writes_out: 0,
            asks: disk.rewrites.are_expected(),
            buffers: None,
            starts: Starts::default(),
            users: 0,
        })
    }

    /// The disk it leads to.
    pub fn disk(&self) -> &Arc<ServedDisk> {
        &self.disk
    }

    /// Returns a waker for the port's IOThread.
    pub(crate) fn waker(&self) -> Waker {
        self.disk.waker(self.thread)
    }

    /// Whether a client's next request may be taken.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Submits a bio whose user data is of [`SourceId::tagged`].
    #[inline]
    pub fn submit(&mut self, bio: Bio, now: Instant) {
        self.starts.begin(bio.user_data, now);
        let writes = bio.op.is_write();
        // By far the most: nothing waits, no lock is taken, and the bio is copied nowhere but to its slot.
        if self.backlog.is_empty() && !(writes && self.asks) && self.sub.submit(&bio, now).is_ok() {
            self.writes_out += usize::from(writes);
            return;
        }
        self.place(Waiting { bio, rewrites: false }, now);
    }

    /// As [`Port::submit`], for the holder of the blocks that it goes to.
    pub(crate) fn submit_rewrite(&mut self, bio: Bio, now: Instant) {
        self.starts.begin(bio.user_data, now);
        self.place(Waiting { bio, rewrites: true }, now);
    }

    #[inline(never)]
    fn place(&mut self, waiting: Waiting, now: Instant) {
        if !self.backlog.is_empty() {
            return self.backlog.push_back(waiting);
        }
        match self.enter(&waiting, now) {
            Entry::Done => {}
            Entry::Full => self.backlog.push_back(waiting),
            Entry::Held => self.held.push_back(waiting.bio),
        }
    }

    fn enter(&mut self, waiting: &Waiting, now: Instant) -> Entry {
        let Waiting { bio, rewrites } = waiting;
        let writes = bio.op.is_write();
        if writes && self.asks && !rewrites {
            return self.enter_known(bio, now);
        }
        if self.sub.submit(bio, now).is_err() {
            return Entry::Full;
        }
        self.writes_out += usize::from(writes);
        Entry::Done
    }

    /// A bio that writes, on a disk where blocks may be rewritten.
    fn enter_known(&mut self, bio: &Bio, now: Instant) -> Entry {
        let range = bio.sector.0..bio.sector.0.saturating_add(u64::from(bio.nr_sectors));
        let rewrites = &self.disk.rewrites;
        if !rewrites.enter(&self.writes, bio.user_data, range, || self.waker()) {
            return Entry::Held;
        }
        if self.sub.submit(bio, now).is_err() {
            rewrites.leave(&self.writes, bio.user_data);
            return Entry::Full;
        }
        self.writes_inside += 1;
        self.writes_out += 1;
        Entry::Done
    }

    /// Checks whether writes have to ask from now on. Writes inside that have not asked are counted. They may be anywhere, and some may
    /// not even have become requests, which are all that a freeze of the disk would wait for.
    #[inline]
    pub(super) fn follow_rewrites(&mut self) {
        let expected = self.disk.rewrites.are_expected();
        if self.asks != expected {
            self.asks = expected;
            let unknown = self.writes_out - self.writes_inside;
            if expected && unknown > 0 {
                self.disk.rewrites.enter_unknown(&self.writes, unknown);
                self.writes_inside += unknown;
            }
        }
    }

    /// A buffer of [`BUFFER_BYTES`] and its number, if there is one free.
    pub fn take_buffer(&mut self) -> Option<(u32, DataRef)> {
        if self.buffers.is_none() {
            let number = self.disk.take_buffers(BUFFER_BYTES * BUFFERS as usize).ok()?;
            self.buffers = Some((number, (0..BUFFERS).collect()));
        }
        let (number, free) = self.buffers.as_mut()?;
        let buffer = free.pop()?;
        Some((buffer, DataRef::new(*number, u64::from(buffer) * BUFFER_BYTES as u64)))
    }

    /// All I/O to the buffer has ended.
    pub fn give_buffer_back(&mut self, buffer: u32) {
        let (_, free) = self.buffers.as_mut().expect("a buffer came from there");
        assert!(buffer < BUFFERS && !free.contains(&buffer), "buffer {buffer} given back twice");
        free.push(buffer);
    }

    /// A round begins: bios are gathered into batches.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.follow_rewrites();
        self.sub.start_plug(0);
        if !(self.held.is_empty() && self.backlog.is_empty()) {
            self.retry(now);
        }
    }

    /// What was held, and what found no slot.
    #[cold]
    fn retry(&mut self, now: Instant) {
        for _ in 0..self.held.len() {
            if let Some(bio) = self.held.pop_front() {
                self.place(Waiting { bio, rewrites: false }, now);
            }
        }
        while let Some(waiting) = self.backlog.pop_front() {
            match self.enter(&waiting, now) {
                Entry::Done => {}
                Entry::Full => {
                    self.backlog.push_front(waiting);
                    break;
                }
                Entry::Held => self.held.push_back(waiting.bio),
            }
        }
    }

    /// Issues what was gathered, and collects what has ended.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, done: &mut Vec<Done>) {
        let before = done.len();
        self.writes_out -= self.sub.finish(now, done);
        if self.writes_inside > 0 {
            self.leave(&done[before..]);
        }
    }

    /// Of bios that have ended, some may be known to [`Rewrites`](super::rewrite::Rewrites).
    fn leave(&mut self, done: &[Done]) {
        for d in done.iter().filter(|d| d.op.is_write()) {
            self.writes_inside -= usize::from(self.disk.rewrites.leave(&self.writes, d.user_data));
        }
    }

    /// How long a bio that ends at `now` took.
    #[inline]
    pub(super) fn took(&self, done: &Done, now: Instant) -> Option<u64> {
        self.starts.took(done.user_data, now)
    }

    /// Nothing to do: others need not wait for this submitter.
    pub(super) fn rest(&mut self) {
        self.sub.rest();
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.sub.outstanding() == 0 && self.backlog.is_empty() && self.held.is_empty()
    }

    /// Whether the hardware queues are others since the last call.
    pub(super) fn has_moved(&mut self) -> bool {
        let generation = self.sub.state_generation();
        if std::mem::replace(&mut self.generation, generation) == generation {
            return false;
        }
        self.hctxs = self.sub.hctxs();
        true
    }

    /// Descriptors that are readable when there are completions.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let members = self.disk.members();
        self.hctxs.iter().filter_map(|(member, h)| members[*member].driver.ring_fd(*h))
    }

    /// How long to sleep at most.
    pub(super) fn sleep_limit(&self, now: Instant) -> Option<Duration> {
        let members = self.disk.members();
        let due = self.hctxs.iter().filter_map(|(member, h)| members[*member].driver.next_due(*h));
        let timers = members.iter().filter_map(|m| m.queue.next_timer());
        timers.chain(due).min().map(|t| t.since(now))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.disk.rewrites.remove_port(&self.writes);
        if let Some((number, free)) = &self.buffers
            && free.len() == BUFFERS as usize
        {
            self.disk.give_buffers_back(BUFFER_BYTES * BUFFERS as usize, *number);
        }
    }
}
