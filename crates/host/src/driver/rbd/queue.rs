// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: an image of its own, the requests it has, and the threads that wait for them.
//!
//! Guarantees: a request completes once: by librbd's result, or by being given up, if librbd does not have its memory. A
//! wake-up ends the sleep of all threads that sleep or are about to.
//! Needs from callers: nothing in flight when the queue is dropped. An I/O that was given up and that librbd still has then
//! keeps the image open until the process ends, because closing would wait for it.
//!
//! One lock for all: calls under it do not wait. librbd's eventfd signals its completions. The other eventfd signals the rest: completions
//! found outside a poll, and wake-ups. It stays readable until no sleeping thread could have missed it.

use super::image::{Action, Image, Io};
use crate::clock;
use crate::driver::waits::{MAX_SLEEP, Waiting, Waits};
use crate::error::Result;
use crate::event;
use crate::mem::Regions;
use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, InFlight, RqBatch, RqRef};
use blk::id::SECTOR_SHIFT;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

/// With give-up set, a request without an answer for this long is given up.
const LATE: Duration = Duration::from_secs(1);

pub(super) struct Queue {
    image: Arc<Image>,
    copies_writes: bool,
    state: Mutex<QueueState>,
    waits: Waits,
}

struct QueueState {
    /// By tag.
    slots: Vec<Slot>,
    #[allow(clippy::vec_box, reason = "librbd is given their addresses")]
    spare: Vec<Box<Io>>,
    ended: VecDeque<(InFlight, BlkStatus)>,
    in_flight: usize,
    /// Number of I/Os in librbd, including those that were given up.
    with_library: usize,
    begun: u64,
    waiting: Waiting,
    gives_up: bool,
    /// The cluster has blocklisted this client.
    is_shut_out: bool,
}

#[derive(Default)]
struct Slot {
    rq: Option<InFlight>,
    /// Cookie of its I/O.
    cookie: u64,
    action: Option<Action>,
    issued: Instant,
}

/// Combines the tag and the number of an I/O.
fn cookie(tag: usize, number: u64) -> u64 {
    number << 16 | tag as u64 & 0xffff
}

impl Queue {
    pub(super) fn new(image: Arc<Image>) -> Result<Queue> {
        let waits = Waits::new()?;
        waits.watch(image.completed())?;
        let state = QueueState {
            slots: Vec::new(),
            spare: Vec::new(),
            ended: VecDeque::new(),
            in_flight: 0,
            with_library: 0,
            begun: 0,
            waiting: Waiting::default(),
            gives_up: false,
            is_shut_out: false,
        };
        let copies_writes = image.copies_writes();
        Ok(Queue { image, copies_writes, state: Mutex::new(state), waits })
    }

    /// Prepares the queue for tags below `depth`.
    pub(super) fn start(&self, depth: u32) {
        let mut state = self.state.lock();
        assert!(state.in_flight == 0, "restarted with requests in flight");
        state.slots.resize_with(depth as usize, Slot::default);
        state.ended.reserve(depth as usize);
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>, regions: &Regions, now: Instant) -> QueueRqStatus {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.gives_up && state.has_late(now) {
            (0..batch.remaining()).for_each(|_| batch.end(BlkStatus::IoErr));
            return QueueRqStatus::Queued;
        }
        while let Some(rq) = batch.front() {
            let mut io = state.spare.pop().unwrap_or_else(Io::new);
            if let Err(status) = describe(&mut io, &rq, regions) {
                state.spare.push(io);
                batch.end(status);
                continue;
            }
            let tag = rq.tag().index();
            state.begun += 1;
            io.cookie = cookie(tag, state.begun);
            let slot = &mut state.slots[tag];
            (slot.cookie, slot.action, slot.issued) = (io.cookie, Some(io.action), now);
            // A thread that polls for the completion waits for the lock.
            match self.image.submit(io) {
                Ok(()) => {
                    slot.rq = Some(batch.accept());
                    state.in_flight += 1;
                    state.with_library += 1;
                }
                Err((errno, io)) => {
                    state.spare.push(io);
                    batch.end(status_of(errno));
                }
            }
        }
        QueueRqStatus::Queued
    }

    /// Fetches librbd's completions.
    fn collect(&self, state: &mut QueueState) {
        // Drained first, so that later completions make it readable again.
        event::drain(self.image.completed());
        if state.with_library == 0 {
            return;
        }
        self.image.poll(|io, result| state.end(io, result));
    }

    pub(super) fn poll(&self, done: &mut Completions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.collect(state);
        let before = done.room();
        let n = state.ended.len().min(before);
        state.ended.drain(..n).for_each(|(rq, status)| done.push(rq, status));
        let found_last = n > 0 && state.in_flight == 0;
        self.waits.polled(&mut state.waiting, !state.ended.is_empty(), found_last);
    }

    /// Signals, by the eventfd, completions that librbd does not signal.
    fn tell_ends(&self, state: &mut QueueState) {
        if !state.ended.is_empty() {
            self.waits.signal(&mut state.waiting);
        }
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let idle = state.in_flight == 0 && timeout.is_none();
        if idle || !state.ended.is_empty() || self.waits.wakes() != seen {
            return self.waits.calm(&mut state.waiting, !state.ended.is_empty());
        }
        self.waits.sleep(&mut guard, |state| &mut state.waiting, timeout.unwrap_or(MAX_SLEEP));
        let state = &mut *guard;
        self.waits.calm(&mut state.waiting, !state.ended.is_empty());
    }

    pub(super) fn wakes(&self) -> u64 {
        self.waits.wakes()
    }

    pub(super) fn wake(&self) {
        self.waits.wake(&mut self.state.lock().waiting);
    }

    pub(super) fn ring_fd(&self) -> RawFd {
        self.waits.fd()
    }

    /// Whether the cluster has blocklisted this client; that is for good.
    pub(super) fn is_shut_out(&self) -> bool {
        self.state.lock().is_shut_out
    }

    /// Returns when a poll has something to do although librbd has signalled nothing.
    pub(super) fn next_due(&self) -> Option<Instant> {
        (!self.state.lock().ended.is_empty()).then_some(Instant::ZERO)
    }

    /// See [`DevicePath::set_give_up`](crate::driver::path::DevicePath::set_give_up). Returns how many requests stay in
    /// flight, because librbd still has their memory.
    pub(super) fn set_give_up(&self, give_up: bool) -> usize {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.gives_up = give_up;
        if !give_up {
            return 0;
        }
        self.collect(state);
        let stay = state.give_up_late(self.copies_writes, clock::now());
        self.tell_ends(state);
        stay
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.state.get_mut().with_library > 0 {
            std::mem::forget(Arc::clone(&self.image));
        }
    }
}

impl QueueState {
    fn end(&mut self, mut io: Box<Io>, result: i64) {
        self.with_library -= 1;
        self.is_shut_out |= result == -i64::from(libc::ESHUTDOWN);
        // An I/O that was given up may complete late, when another request has its tag or there are fewer tags.
        if let Some(slot) = self.slots.get_mut((io.cookie & 0xffff) as usize)
            && slot.cookie == io.cookie
            && let Some(rq) = slot.rq.take()
        {
            self.in_flight -= 1;
            self.ended.push_back((rq, status(io.action, io.len, result)));
        }
        io.clear();
        self.spare.push(io);
    }

    fn has_late(&self, now: Instant) -> bool {
        self.slots.iter().any(|slot| slot.rq.is_some() && now.since(slot.issued) >= LATE)
    }

    /// Fails requests that have been in flight for too long and whose memory librbd does not use. Returns how many stay in
    /// flight.
    fn give_up_late(&mut self, copies_writes: bool, now: Instant) -> usize {
        let mut stay = 0;
        for slot in &mut self.slots {
            if slot.rq.is_none() || now.since(slot.issued) < LATE {
                continue;
            }
            let leaves_memory = match slot.action {
                Some(Action::Read) | None => true,
                Some(Action::Write) => !copies_writes,
                Some(Action::Flush | Action::Discard | Action::WriteZeroes { .. }) => false,
            };
            if leaves_memory {
                stay += 1;
            } else if let Some(rq) = slot.rq.take() {
                self.in_flight -= 1;
                self.ended.push_back((rq, BlkStatus::Timeout));
            }
        }
        stay
    }
}

/// Fills in the I/O for a request.
fn describe(io: &mut Io, rq: &RqRef<'_>, regions: &Regions) -> std::result::Result<(), BlkStatus> {
    io.clear();
    io.action = match rq.op() {
        Op::Read => Action::Read,
        Op::Write => Action::Write,
        Op::Flush => Action::Flush,
        Op::Discard => Action::Discard,
        Op::WriteZeroes => Action::WriteZeroes { thick: rq.flags().contains(OpFlags::NOUNMAP) },
    };
    (io.offset, io.len) = (rq.sector().0 << SECTOR_SHIFT, u64::from(rq.nr_sectors()) << SECTOR_SHIFT);
    for segment in rq.segments() {
        io.push(regions.resolve(segment.data, segment.len_bytes as usize)?);
    }
    Ok(())
}

/// Returns the status of a completed I/O. A read that is short went beyond the image's end: the image was shrunk.
fn status(action: Action, len: u64, result: i64) -> BlkStatus {
    match result {
        bytes @ 0.. if action == Action::Read && bytes as u64 != len => BlkStatus::IoErr,
        0.. => BlkStatus::Ok,
        errno => {
            let errno = i32::try_from(-errno).unwrap_or(libc::EIO);
            if action == Action::Flush && errno == libc::EIO { BlkStatus::Target } else { status_of(errno) }
        }
    }
}

fn status_of(errno: i32) -> BlkStatus {
    match errno {
        libc::EDQUOT | libc::EFBIG => BlkStatus::NoSpc,
        // This client is blocklisted: another client has broken its lock.
        libc::ESHUTDOWN => BlkStatus::IoErr,
        libc::EOPNOTSUPP => BlkStatus::NotSupp,
        errno => BlkStatus::from_errno(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning() {
        assert_eq!(status(Action::Write, 4096, 0), BlkStatus::Ok);
        assert_eq!(status(Action::Read, 4096, 4096), BlkStatus::Ok);
        assert_eq!(status(Action::Read, 4096, 512), BlkStatus::IoErr);
        assert_eq!(status(Action::Read, 4096, 0), BlkStatus::IoErr);
        let of = |errno: i32| status(Action::Write, 4096, -i64::from(errno));
        assert_eq!(of(libc::EDQUOT), BlkStatus::NoSpc);
        assert_eq!(of(libc::ENOSPC), BlkStatus::NoSpc);
        assert_eq!(of(libc::ETIMEDOUT), BlkStatus::Timeout);
        assert_eq!(of(libc::ESHUTDOWN), BlkStatus::IoErr);
        assert_eq!(of(libc::EINVAL), BlkStatus::Inval);
        assert_eq!(status(Action::Flush, 0, i64::MIN + 1), BlkStatus::Target);
    }

    #[test]
    fn a_cookie_has_its_tag() {
        assert_eq!(cookie(65535, 3) & 0xffff, 65535);
        assert_ne!(cookie(7, 3), cookie(7, 4));
    }
}
