// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An IOThread's way into one disk: its submitter, what it waits for there, and buffers for those who bring none.
//!
//! Guarantees: a bio that was submitted ends once, in order of submission if it could not enter at once. Needs from callers:
//! nothing is taken from a client while there is no room ([`Port::has_room`]).

use super::disk::{ServedDisk, Waker};
use super::latency::Starts;
use crate::error::{Error, Result};
use crate::run::Submitter;
use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, HctxId};
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
    /// What a bio of this source carries, with a number of the source's own.
    #[inline]
    pub fn tagged(self, own: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(own)
    }

    #[inline]
    pub(super) fn of(user_data: u64) -> (usize, u32) {
        ((user_data >> 32) as usize, user_data as u32)
    }
}

/// See the module's text.
pub struct Port {
    disk: Arc<ServedDisk>,
    sub: Submitter,
    /// Bios that found no slot, oldest first.
    backlog: VecDeque<Bio>,
    buffers: Option<(u16, Vec<u32>)>,
    /// Hardware queues where completions appear.
    hctxs: Vec<HctxId>,
    generation: u64,
    starts: Starts,
    /// Sources that use it.
    pub(super) users: u32,
}

impl Port {
    pub(super) fn new(disk: &Arc<ServedDisk>, thread: u16) -> Result<Port> {
        let cpus = disk.queue.config().topology.nr_cpus;
        let sub = disk
            .queue
            .submitter(CpuId::new(u32::from(thread % cpus)))
            .ok_or_else(|| Error::usage(format!("disk '{}': too many IOThreads", disk.name)))?;
        disk.introduce(sub.id(), thread);
        let mut port = Port {
            disk: Arc::clone(disk),
            generation: sub.state_generation(),
            sub,
            backlog: VecDeque::new(),
            buffers: None,
            hctxs: Vec::new(),
            starts: Starts::default(),
            users: 0,
        };
        port.hctxs = port.sub.hctxs().collect();
        Ok(port)
    }

    /// The disk it leads to.
    pub fn disk(&self) -> &Arc<ServedDisk> {
        &self.disk
    }

    /// Wakes the thread that this is of.
    pub(crate) fn waker(&self) -> Waker {
        self.disk.waker(self.sub.id())
    }

    /// Whether a client's next request may be taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Submits a bio whose user data is of [`SourceId::tagged`].
    #[inline]
    pub fn submit(&mut self, bio: Bio, now: Instant) {
        self.starts.begin(bio.user_data, now);
        if !self.backlog.is_empty() || self.sub.submit(&bio, now).is_err() {
            self.backlog.push_back(bio);
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
        self.sub.start_plug(0);
        while let Some(bio) = self.backlog.front() {
            if self.sub.submit(bio, now).is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Issues what was gathered, and collects what has ended.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, done: &mut Vec<Done>) {
        self.sub.finish_plug(now);
        self.sub.poll(now);
        self.sub.reap(|d| done.push(d));
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
        self.sub.outstanding() == 0 && self.backlog.is_empty()
    }

    /// Whether the hardware queues are others since the last call.
    pub(super) fn has_moved(&mut self) -> bool {
        let generation = self.sub.state_generation();
        if std::mem::replace(&mut self.generation, generation) == generation {
            return false;
        }
        self.hctxs = self.sub.hctxs().collect();
        true
    }

    /// Descriptors that are readable when there are completions.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.hctxs.iter().filter_map(|h| self.disk.driver.ring_fd(*h))
    }

    /// How long to sleep at most.
    pub(super) fn sleep_limit(&self, now: Instant) -> Option<Duration> {
        let driver = &self.disk.driver;
        let due = self.hctxs.iter().filter_map(|h| driver.next_due(*h));
        self.disk.queue.next_timer().into_iter().chain(due).min().map(|t| t.since(now))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some((number, free)) = &self.buffers
            && free.len() == BUFFERS as usize
        {
            self.disk.give_buffers_back(BUFFER_BYTES * BUFFERS as usize, *number);
        }
    }
}
