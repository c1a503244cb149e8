// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An IOThread's entry to one disk: its submitter, its descriptors to wait on, and buffers for sources that have none.
//!
//! Guarantees: a submitted bio enters the block layer once; bios that cannot enter at once do so in order of submission. The exception is
//! a bio that writes to blocks that are being rewritten ([`rewrite`](super::rewrite)): it waits for the rewrite while other bios pass it.
//! Needs from callers: they take no request from a client while there is no room ([`Port::has_capacity`]).

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
/// Number of buffers of a port; each uses memory only after it was first written.
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

    /// Returns the number that the source gave a bio.
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

/// The result of a bio's attempt to enter the block layer.
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
    /// Declared, and so dropped, after `sub`, which uses its drivers: the last owner closes the image.
    disk: Arc<ServedDisk>,
    /// The IOThread's number.
    thread: u16,
    /// Bios that found no slot, oldest first.
    backlog: VecDeque<Waiting>,
    /// Bios whose blocks are being rewritten.
    held: VecDeque<Bio>,
    /// The writes that [`Rewrites`](super::rewrite::Rewrites) records.
    writes: Arc<Writes>,
    /// Number of recorded writes, including those that are only counted.
    writes_inside: usize,
    /// Number of all writing bios inside the block layer.
    writes_out: usize,
    /// Whether writes ask [`Rewrites`](super::rewrite::Rewrites) before they enter.
    asks: bool,
    buffers: Option<(u16, Vec<u32>)>,
    /// Hardware queues where completions appear, with the number of their member.
    hctxs: Vec<(usize, HctxId)>,
    generation: u64,
    starts: Starts,
    /// Number of sources that use the port.
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

    /// Returns the port's disk.
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

    /// Submits a bio whose user data comes from [`SourceId::tagged`].
    #[inline]
    pub fn submit(&mut self, bio: Bio, now: Instant) {
        self.starts.begin(bio.user_data, now);
        let writes = bio.op.is_write();
        // By far the most common case: nothing waits, no lock is taken, and the bio is copied only to its slot.
        if self.backlog.is_empty() && !(writes && self.asks) && self.sub.submit(&bio, now).is_ok() {
            self.writes_out += usize::from(writes);
            return;
        }
        self.place(Waiting { bio, rewrites: false }, now);
    }

    /// As [`Port::submit`], for a rewrite that holds the bio's blocks.
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

    /// Lets a bio that writes enter, on a disk where blocks may be rewritten.
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

    /// Checks whether writes must ask from now on, and counts writes inside that have not asked. A freeze of the disk could not replace
    /// the counting: it waits only for requests, and some of these bios may not be requests yet.
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

    /// Returns a free buffer of [`BUFFER_BYTES`] and its number, if there is one.
    pub fn take_buffer(&mut self) -> Option<(u32, DataRef)> {
        if self.buffers.is_none() {
            let number = self.disk.take_buffers(BUFFER_BYTES * BUFFERS as usize).ok()?;
            self.buffers = Some((number, (0..BUFFERS).collect()));
        }
        let (number, free) = self.buffers.as_mut()?;
        let buffer = free.pop()?;
        Some((buffer, DataRef::new(*number, u64::from(buffer) * BUFFER_BYTES as u64)))
    }

    /// Returns a buffer. No I/O to it may be in flight.
    pub fn give_buffer_back(&mut self, buffer: u32) {
        let (_, free) = self.buffers.as_mut().expect("a buffer came from there");
        assert!(buffer < BUFFERS && !free.contains(&buffer), "buffer {buffer} given back twice");
        free.push(buffer);
    }

    /// Begins a round, in which bios are gathered into batches.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.follow_rewrites();
        self.sub.start_plug(0);
        if !(self.held.is_empty() && self.backlog.is_empty()) {
            self.retry(now);
        }
    }

    /// Retries bios that were held, and those that found no slot.
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

    /// Issues the gathered bios, and collects completed ones.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, done: &mut Vec<Done>) {
        let before = done.len();
        self.writes_out -= self.sub.finish(now, done);
        if self.writes_inside > 0 {
            self.leave(&done[before..]);
        }
    }

    /// Reports completed bios that [`Rewrites`](super::rewrite::Rewrites) has recorded.
    fn leave(&mut self, done: &[Done]) {
        for d in done.iter().filter(|d| d.op.is_write()) {
            self.writes_inside -= usize::from(self.disk.rewrites.leave(&self.writes, d.user_data));
        }
    }

    /// Returns how long a bio that completes at `now` took, in nanoseconds.
    #[inline]
    pub(super) fn took(&self, done: &Done, now: Instant) -> Option<u64> {
        self.starts.took(done.user_data, now)
    }

    /// Marks the submitter as idle, so that others need not wait for it.
    pub(super) fn rest(&mut self) {
        self.sub.rest();
    }

    /// Whether no bio is in flight or waiting.
    pub(super) fn is_idle(&self) -> bool {
        self.sub.outstanding() == 0 && self.backlog.is_empty() && self.held.is_empty()
    }

    /// Whether the hardware queues have changed since the last call.
    pub(super) fn has_moved(&mut self) -> bool {
        let generation = self.sub.state_generation();
        if std::mem::replace(&mut self.generation, generation) == generation {
            return false;
        }
        self.hctxs = self.sub.hctxs();
        true
    }

    /// Returns the descriptors that are readable when there are completions.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let members = self.disk.members();
        self.hctxs.iter().filter_map(|(member, h)| members[*member].driver.ring_fd(*h))
    }

    /// Returns the longest time to sleep, until the next timer.
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
