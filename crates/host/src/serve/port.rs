// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An IOThread's entry to one disk: its submitter, its descriptors to wait on, and buffers for sources that have none.
//!
//! Guarantees: a submitted I/O enters the block layer once, or ends here by [fault injection](super::inject). I/O of whole blocks that
//! cannot enter at once does so in order of submission; the exception is a write to blocks that are rewritten ([`blk::rmw`]): it waits for that while other I/O passes it. I/O of parts of
//! blocks is exact: it changes no other byte.
//! Needs from callers: they take no request from a client while there is no room ([`Port::has_capacity`]).

use super::disk::{ServedDisk, Waker};
use super::inject::{ClientIo, PortFaults};
use super::latency::Starts;
use super::port_buffers::{BlockBuffers, PortBuffers};
use crate::disk::IoPath;
use crate::error::Result;
use blk::bio::{Bio, DataRef};
use blk::id::HctxId;
use blk::rmw::{ByteIo, Entry};
use blk::submitter::Done;
use blk::time::{Duration, Instant};
use parking_lot::RawMutex;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of a buffer.
pub const BUFFER_BYTES: usize = 4 << 20;

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

/// An IOThread's entry to one disk. See the module's text. Fields are dropped in this order.
pub struct Port {
    sub: IoPath,
    entry: Entry<RawMutex, Waker>,
    blocks: BlockBuffers,
    /// Declared, and so dropped, after `sub`, which uses its drivers: the last owner closes the image.
    disk: Arc<ServedDisk>,
    /// The IOThread's number.
    thread: u16,
    buffers: PortBuffers<BUFFER_BYTES>,
    /// Hardware queues where completions appear, with the number of their member.
    hctxs: Vec<(usize, HctxId)>,
    generation: u64,
    starts: Starts,
    /// Made for the first request while there are rules; `None` = no request has a fault.
    faults: Option<Box<PortFaults>>,
    /// Number of sources that use the port.
    pub(super) users: u32,
}

impl Port {
    pub(super) fn new(disk: &Arc<ServedDisk>, thread: u16) -> Result<Port> {
        let sub = disk.io_path(thread)?;
        Ok(Port {
            entry: Entry::new(&disk.locks, disk.waker(thread), disk.block_size()),
            blocks: BlockBuffers::new(disk),
            disk: Arc::clone(disk),
            thread,
            generation: sub.state_generation(),
            hctxs: sub.hctxs(),
            sub,
            buffers: PortBuffers::new(disk),
            starts: Starts::default(),
            faults: None,
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
        self.entry.has_capacity()
    }

    /// Submits a bio whose user data comes from [`SourceId::tagged`]. It need not be whole blocks of the disk's targets.
    #[inline]
    pub fn submit(&mut self, bio: Bio, now: Instant) {
        self.starts.begin(bio.user_data, now);
        if self.may_have_faults() {
            return self.submit_with_faults(ClientIo::Bio(bio), now);
        }
        self.entry.submit(&mut self.sub, &mut self.blocks, bio, now);
    }

    /// As [`Port::submit`], for any bytes.
    #[inline]
    pub fn submit_bytes(&mut self, io: ByteIo, now: Instant) {
        self.starts.begin(io.user_data, now);
        if self.may_have_faults() {
            return self.submit_with_faults(ClientIo::Bytes(io), now);
        }
        self.entry.submit_bytes(&mut self.sub, &mut self.blocks, io, now);
    }

    #[inline]
    fn may_have_faults(&self) -> bool {
        self.faults.is_some() || self.disk.injection().is_active()
    }

    #[cold]
    fn submit_with_faults(&mut self, io: ClientIo, now: Instant) {
        let faults = self.faults.get_or_insert_default();
        if let Some(io) = faults.admit(io, self.disk.injection(), now) {
            self.pass_on(io, now);
        }
    }

    /// Passes on requests whose delay is over.
    #[cold]
    fn pass_on_delayed(&mut self, now: Instant) {
        let Some(mut faults) = self.faults.take() else { return };
        faults.follow(self.disk.injection());
        while let Some(io) = faults.take_due(self.disk.injection(), now) {
            self.pass_on(io, now);
        }
        self.faults = Some(faults);
    }

    /// Passes on what torn writes leave on the disk: whole logical blocks of the disk, whatever blocks the export shows.
    #[cold]
    fn pass_on_torn(&mut self, now: Instant) {
        let Some(mut faults) = self.faults.take() else { return };
        let block = u64::from(self.disk.limits().logical_block_size);
        faults.tear(block, |io| self.pass_on(io, now));
        self.faults = Some(faults);
    }

    fn pass_on(&mut self, io: ClientIo, now: Instant) {
        match io {
            ClientIo::Bio(bio) => self.entry.submit(&mut self.sub, &mut self.blocks, bio, now),
            ClientIo::Bytes(io) => self.entry.submit_bytes(&mut self.sub, &mut self.blocks, io, now),
        }
    }

    /// Returns a free buffer of [`BUFFER_BYTES`] and its number; `None` if all are in use, so that one will come back.
    ///
    /// # Errors
    /// Resource: there is no memory for any.
    pub fn take_buffer(&mut self) -> Result<Option<(u32, DataRef)>> {
        self.buffers.take()
    }

    /// Returns a buffer. No I/O to it may be in flight.
    pub fn give_buffer_back(&mut self, buffer: u32) {
        self.buffers.give_back(buffer);
    }

    /// Begins a round, in which bios are gathered into batches.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.sub.start_plug(0);
        self.entry.begin(&mut self.sub, &mut self.blocks, now);
        if self.faults.is_some() {
            self.pass_on_delayed(now);
        }
    }

    /// Issues the gathered bios, and collects completed ones.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, done: &mut Vec<Done>) {
        if self.faults.as_ref().is_some_and(|f| f.has_torn()) {
            self.pass_on_torn(now);
        }
        let before = done.len();
        self.sub.finish(now, done);
        self.entry.end(done, before);
        if let Some(faults) = &mut self.faults {
            faults.end(done, before);
            if faults.is_idle() && !self.disk.injection().is_active() {
                self.faults = None;
            }
        }
    }

    /// Whether I/O goes on in the next round, without a signal.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.entry.has_work()
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
        self.sub.outstanding() == 0 && self.entry.is_idle() && self.faults.as_ref().is_none_or(|f| f.is_idle())
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
        let delayed = self.faults.as_ref().and_then(|f| f.next_due());
        timers.chain(due).chain(delayed).min().map(|t| t.since(now))
    }
}
