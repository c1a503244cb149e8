// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One io_uring for one hctx.
//!
//! Module `handover` does what concerns several threads (submission, sleep, wake-up), and `requests` what a request is; this module fills
//! and reads the rings. No system calls are made under the lock, except submissions that make room in a full ring, and registrations.
//!
//! Flags of a ring without an owner. COOP_TASKRUN: the kernel does not interrupt a running thread to post its completions; it posts them
//! when the thread next enters the kernel, and TASKRUN_FLAG tells a polling thread that entering is useful. SINGLE_ISSUER and
//! DEFER_TASKRUN are only for rings with an owner, because other rings are used by several threads. (An owner that polls gets its deferred
//! completions because io-uring's `submit` sets GETEVENTS where TASKRUN is set, since 0.7.15.)
//!
//! Guarantees to the kernel: everything an entry points to (data spans, iovec lists, the zero buffer) outlives the request. Data is in
//! regions, kept by `regions`; lists and zeroes are the ring's own. `drop` waits for requests in flight. If `drop` cannot wait, because
//! the owner is another thread, it leaks all of that memory.

use super::handover::{Handover, Kernel, Pushed, Reaped};
use super::open::Opened;
use super::owner::Owner;
use super::requests::Requests;
use super::slot::ZERO_CHUNK;
use super::sqe;
use crate::mem::{MAX_REGIONS, Region, Regions};
use crate::readable::poll_fds;
use blk::driver::{Completions, RqBatch};
use blk::status::QueueRqStatus;
use blk::time::Duration;
use io_uring::{IoUring, opcode, squeue, types};
use libc::iovec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Marks the completion that ends a sleep.
const WAKE: u64 = u64::MAX;
/// Marks read-ahead advice, whose failure is ignored. Every other entry carries a tag.
const READ_AHEAD: u64 = u64::MAX - 1;
/// Maximum number of entries of the submission ring. The ring is used in a cycle, so a large one costs cache; a larger batch is submitted
/// in pieces.
const MAX_SQ_ENTRIES: u32 = 64;
/// Maximum number of requests that one system call hands to the kernel. The kernel plugs them, so an idle device stays idle until the
/// whole call is done. At depth 32, 32 per call made 10-13 % fewer IOPS than 8 or 16 (fio loses the same with
/// iodepth_batch_submit=32), and 8 cost no more CPU time per I/O than 32.
const COMMIT_CHUNK: usize = 8;
/// Longest sleep of a thread that waits at another thread's ring, which it cannot enter.
const OUTSIDE_WAIT: Duration = Duration::from_ms(1);
/// Largest buffer that the kernel registers.
const MAX_REGISTERED_BYTES: usize = 1 << 30;

pub(super) struct Ring(Handover<Uring>);

/// The ring itself and what all its requests need.
struct Uring {
    ring: IoUring,
    /// The only thread that may enter the ring; `None`: all threads may.
    owner: Option<Owner>,
    /// [`ZERO_CHUNK`] bytes that are never written, aligned as O_DIRECT needs it.
    zeroes: Arc<Region>,
    regions: Arc<Regions>,
    file: Arc<Opened>,
}

struct RingState {
    /// Requests in flight: in the kernel, in the submission ring, or in `again`.
    requests: Requests,
    /// Tags of requests with another entry to submit for which the submission ring had no room.
    again: VecDeque<usize>,
    /// With fewer entries than this, `wait` or `poll` submits them.
    lazy_below: usize,
    buffers: Buffers,
}

/// The registered buffers of a ring, by region number.
struct Buffers(Box<[Registered]>);

/// Whether a region is a registered buffer of the ring (under its own number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    NotTried,
    Yes,
    Refused,
}

impl Ring {
    /// Makes a ring that any thread may use, for requests with tags below `depth`, a power of two.
    pub(super) fn shared(depth: u32, file: Arc<Opened>, regions: Arc<Regions>) -> io::Result<Ring> {
        Ring::new(build(depth)?, None, depth, file, regions)
    }

    /// Makes a ring that only the calling thread submits to and waits in.
    pub(super) fn owned(depth: u32, file: Arc<Opened>, regions: Arc<Regions>) -> io::Result<Ring> {
        Ring::new(build_owned(depth)?, Some(Owner::this_thread()?), depth, file, regions)
    }

    fn new(
        ring: IoUring,
        owner: Option<Owner>,
        depth: u32,
        file: Arc<Opened>,
        regions: Arc<Regions>,
    ) -> io::Result<Ring> {
        ring.submitter().register_files(&[file.fd()])?;
        // Kernels before 5.19 have no sparse table. Without it there are no registered buffers, which is only slower.
        let sparse = ring.submitter().register_buffers_sparse(MAX_REGIONS as u32).is_ok();
        let initially = if sparse { Registered::NotTried } else { Registered::Refused };
        let mut state = RingState {
            requests: Requests::new(depth, &file),
            again: VecDeque::with_capacity(depth as usize),
            lazy_below: 0,
            buffers: Buffers(vec![initially; MAX_REGIONS].into()),
        };
        regions.each(|number, region| state.buffers.register(&ring, number, region));
        let zeroes = Arc::new(Region::new(ZERO_CHUNK, false).map_err(|e| io::Error::other(e.to_string()))?);
        Ok(Ring(Handover::new(Uring { ring, owner, zeroes, regions, file }, state)))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.kernel().ring.as_raw_fd()
    }

    pub(super) fn set_lazy_commit(&self, fewer_than: u32) {
        self.0.with_state(|_, state| state.lazy_below = fewer_than as usize);
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>) -> QueueRqStatus {
        loop {
            let answer = self.0.queue(|uring, state| uring.push_chunk(state, batch));
            if answer != QueueRqStatus::Queued || batch.remaining() == 0 {
                return answer;
            }
        }
    }

    pub(super) fn poll(&self, done: &mut Completions) {
        self.0.poll(done);
    }

    pub(super) fn wait(&self, seen: u64, min: u32, timeout: Option<Duration>) {
        self.0.wait(seen, min, timeout);
    }

    pub(super) fn wakes(&self) -> u64 {
        self.0.wakes()
    }

    pub(super) fn wake(&self) {
        self.0.wake();
    }

    /// Whether entries or failed requests wait for the next poll, although nothing has completed. Entries wait if the kernel refused them,
    /// or were queued lazily, or have just been queued by another thread.
    pub(super) fn has_unsubmitted(&self) -> bool {
        // SAFETY: the state's lock is held, so this is the only user of the submission ring.
        self.0.with_state(|uring, state| uring.has_work(state) || !unsafe { uring.ring.submission_shared() }.is_empty())
    }

    /// Whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.0.with_state(|_, state| state.requests.in_flight() == 0)
    }

    /// Unregisters the buffers, which count as locked memory of the process, until the next requests. No request may be in flight.
    pub(super) fn unregister_buffers(&self) {
        self.0.with_state(|uring, state| state.unregister_buffers(&uring.ring));
    }

    /// Unregisters file and buffers before the ring is dropped. If the ring has an owner, only the owner can do that.
    pub(super) fn retire(&self) {
        self.0.kernel().retire();
    }
}

impl Uring {
    /// Puts the next requests, up to a chunk, into the submission ring. Returns the answer of `Driver::queue_rqs`, and
    /// whether the system call may be left to `wait`.
    fn push_chunk(&self, state: &mut RingState, batch: &mut RqBatch<'_>) -> Pushed<QueueRqStatus> {
        let may_enter = self.may_enter();
        // SAFETY: the state's lock is held, so this is the only user of the submission ring.
        let mut sq = unsafe { self.ring.submission_shared() };
        for _ in 0..COMMIT_CHUNK {
            let Some(rq) = batch.front() else { break };
            if sq.is_full() {
                // Entries that the kernel does not take now are submitted by a later call, at the latest by a poll.
                sq.sync();
                if may_enter {
                    let _ = self.ring.submit();
                }
                sq.sync();
                if sq.is_full() {
                    let busy = state.requests.in_flight() > 0;
                    let answer = if busy { QueueRqStatus::DevResource } else { QueueRqStatus::Resource };
                    return Pushed { answer, lazy: false };
                }
            }
            let tag = batch.accept();
            let index = tag.tag().index();
            let RingState { requests, buffers, .. } = state;
            let buffer = |number| buffers.of_region(number, &self.ring, &self.regions, may_enter);
            if requests.begin((&self.file, &self.regions), &rq, tag, buffer) {
                state.push(&mut sq, index, self.zeroes.base());
                state.push_read_ahead(&mut sq, index);
            }
        }
        Pushed { answer: QueueRqStatus::Queued, lazy: batch.remaining() == 0 && sq.len() < state.lazy_below }
    }

    /// Ignores errors that mean "later"; panics for all others, because the ring is used wrongly.
    fn check(&self, e: &io::Error) {
        let later = [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ETIME, libc::ENOMEM];
        assert!(e.raw_os_error().is_some_and(|n| later.contains(&n)), "io_uring_enter: {e}");
    }

    /// Waits for requests in flight before the ring is dropped; see its `drop`.
    fn drain(&self, state: &mut RingState) {
        let mut with_kernel = state.requests.in_flight() as usize - state.again.len();
        if with_kernel > 0 && !self.may_enter() {
            std::mem::forget((Arc::clone(&self.regions), Arc::clone(&self.zeroes)));
            state.requests.leak();
            return;
        }
        while with_kernel > 0 {
            if let Err(e) = self.ring.submit_and_wait(1)
                && ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&e.raw_os_error().unwrap_or(0))
            {
                break;
            }
            // SAFETY: the state's lock is held, so this is the only user of the completion ring.
            let cq = unsafe { self.ring.completion_shared() };
            with_kernel -= cq.filter(|cqe| cqe.user_data() < READ_AHEAD).count();
        }
        self.retire();
    }

    fn retire(&self) {
        // Nothing to do about a failure: closing the ring has the same effect, later.
        let _ = self.ring.submitter().unregister_files();
        let _ = self.ring.submitter().unregister_buffers();
    }
}

impl Kernel for Uring {
    type State = RingState;
    type Done = Completions;

    #[inline]
    fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    #[inline]
    fn may_enter(&self) -> bool {
        self.owner.as_ref().is_none_or(Owner::is_here)
    }

    /// Submits entries. After a refusal (EAGAIN, EBUSY, EINTR) they stay in the ring, and the next poll or wait retries.
    fn submit(&self) {
        if let Err(e) = self.ring.submit() {
            self.check(&e);
        }
    }

    fn sleep_for(&self, want: usize, timeout: Option<Duration>) {
        let result = match timeout {
            None => self.ring.submit_and_wait(want),
            Some(timeout) => {
                let (secs, ns) = (timeout.as_ns() / 1_000_000_000, timeout.as_ns() % 1_000_000_000);
                let timespec = types::Timespec::new().sec(secs).nsec(ns as u32);
                self.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&timespec))
            }
        };
        if let Err(e) = result {
            self.check(&e);
        }
    }

    fn sleep_outside(&self, timeout: Option<Duration>) {
        let at_most = timeout.map_or(OUTSIDE_WAIT, |t| t.min(OUTSIDE_WAIT));
        poll_fds(&mut [libc::pollfd { fd: self.ring.as_raw_fd(), events: libc::POLLIN, revents: 0 }], at_most);
    }

    fn wake_owner(&self, marks: impl FnOnce() -> u32) {
        let owner = self.owner.as_ref().expect("only an owner is woken");
        owner.ring(self.ring.as_raw_fd(), WAKE, marks);
    }

    /// If the kernel accepts no entries (EBUSY), there are completions to take first, so no waiter sleeps. If the kernel lacks memory
    /// (EAGAIN), the mark is lost, and the waiter's timeout ends its sleep.
    fn push_mark(&self, _state: &mut RingState) {
        // SAFETY: the state's lock is held, so this is the only user of the submission ring.
        let mut sq = unsafe { self.ring.submission_shared() };
        if sq.is_full() {
            let _ = self.ring.submit();
            sq.sync();
        }
        // SAFETY: the entry points to nothing.
        let _ = unsafe { sq.push(&opcode::Nop::new().build().user_data(WAKE)) };
    }

    #[inline(always)] // Once in every poll, from one place.
    fn reap(&self, state: &mut RingState, done: &mut Completions) -> Reaped {
        // SAFETY: the state's lock is held, so this is the only user of either ring.
        let (mut sq, mut cq) = unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        let before = done.room();
        state.requests.take_failed(done);
        for _ in 0..state.again.len().min(sq.capacity() - sq.len()) {
            let Some(index) = state.again.pop_front() else { break };
            state.push(&mut sq, index, self.zeroes.base());
        }
        let (mut found, mut woke) = (false, false);
        while done.room() > 0
            && let Some(cqe) = cq.next()
        {
            found = true;
            if cqe.user_data() == WAKE {
                woke = true;
            } else if cqe.user_data() != READ_AHEAD {
                let index = cqe.user_data() as usize;
                if state.requests.complete(index, cqe.result(), done) {
                    state.push(&mut sq, index, self.zeroes.base());
                }
            }
        }
        drop(cq);
        let unsubmitted = !sq.is_empty();
        let put_off = !unsubmitted && !found && (sq.taskrun() || sq.cq_overflow());
        Reaped { found, woke, gave: done.room() != before, unsubmitted, put_off }
    }

    #[inline]
    fn in_flight(&self, state: &RingState) -> u32 {
        state.requests.in_flight()
    }

    fn ready(&self, _state: &RingState) -> usize {
        // SAFETY: the state's lock is held, so this is the only user of the completion ring.
        unsafe { self.ring.completion_shared() }.len()
    }

    fn has_work(&self, state: &RingState) -> bool {
        state.requests.have_failed() || !state.again.is_empty()
    }
}

impl Drop for Ring {
    /// Waits for requests in flight, because the kernel may write to their memory until they complete. Then unregisters file and buffers:
    /// the kernel tears down a ring some time after it was closed, and an exclusively opened device could not be opened again before that.
    fn drop(&mut self) {
        self.0.with_state(Uring::drain);
    }
}

/// Makes a ring whose owner is the calling thread.
fn build_owned(depth: u32) -> io::Result<IoUring> {
    let sq_entries = depth.min(MAX_SQ_ENTRIES);
    let attempt = |no_sqarray: bool| {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(2 * depth.max(sq_entries)).setup_submit_all();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        builder.build(sq_entries)
    };
    attempt(true).or_else(|_| attempt(false))
}

/// Makes a ring with the useful flags that the kernel supports.
fn build(depth: u32) -> io::Result<IoUring> {
    let sq_entries = depth.min(MAX_SQ_ENTRIES);
    let attempt = |coop: bool, no_sqarray: bool| {
        let mut builder = IoUring::builder();
        // Twice the tags, because wake marks need completions, too.
        builder.dontfork().setup_cqsize(2 * depth.max(sq_entries)).setup_submit_all();
        if coop {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        builder.build(sq_entries)
    };
    // NO_SQARRAY needs Linux 6.6, COOP_TASKRUN Linux 5.19.
    attempt(true, true).or_else(|_| attempt(true, false)).or_else(|_| attempt(false, false))
}

impl RingState {
    fn unregister_buffers(&mut self, ring: &IoUring) {
        assert!(self.requests.in_flight() == 0, "buffers are taken back with requests in flight");
        let registered = &mut self.buffers.0;
        if registered.contains(&Registered::Yes) && ring.submitter().unregister_buffers().is_ok() {
            let sparse = ring.submitter().register_buffers_sparse(MAX_REGIONS as u32).is_ok();
            registered.fill(if sparse { Registered::NotTried } else { Registered::Refused });
        }
    }

    /// Queues the entry of a slot, or defers it if there is no room now.
    fn push(&mut self, sq: &mut squeue::SubmissionQueue<'_>, index: usize, zeroes: *const u8) {
        let entry = self.requests.next(index).entry(zeroes).user_data(index as u64);
        // SAFETY: all that the entry points to outlives the request (module's text).
        if unsafe { sq.push(&entry) }.is_err() {
            self.again.push_back(index);
        }
    }

    /// After a read, advises the kernel to read ahead for the read's stream. Skipped if the ring has no room.
    #[inline]
    fn push_read_ahead(&mut self, sq: &mut squeue::SubmissionQueue<'_>, index: usize) {
        if let Some(range) = self.requests.read_ahead(index) {
            let entry = sqe::read_ahead_entry(range).user_data(READ_AHEAD);
            // SAFETY: the entry points to nothing.
            let _ = unsafe { sq.push(&entry) };
        }
    }
}

impl Buffers {
    /// Returns the registered buffer for a region. Registers the region first if that was not tried yet and is permitted.
    #[inline]
    fn of_region(&mut self, number: u16, ring: &IoUring, regions: &Regions, may_register: bool) -> Option<u16> {
        if may_register
            && self.0[usize::from(number)] == Registered::NotTried
            && let Some(region) = regions.get(number)
        {
            self.register(ring, number, region);
        }
        (self.0[usize::from(number)] == Registered::Yes).then_some(number)
    }

    /// Makes a region a registered buffer, or notes that it cannot be one (too large, no memory may be locked, shared).
    fn register(&mut self, ring: &IoUring, number: u16, region: &Region) {
        let buffer = iovec { iov_base: region.base().cast(), iov_len: region.len() };
        let known = &mut self.0[usize::from(number)];
        if *known == Registered::NotTried {
            // SAFETY: the region lives as long as its table, which the ring keeps.
            let register = || unsafe { ring.submitter().register_buffers_update(u32::from(number), &[buffer], None) };
            let done = region.may_be_registered() && region.len() <= MAX_REGISTERED_BYTES && register().is_ok();
            *known = if done { Registered::Yes } else { Registered::Refused };
        }
    }
}
