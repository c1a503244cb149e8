// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The path of a request: a path is chosen, the request is issued there, and its result is judged.
//!
//! Guarantees: consecutive requests to the same path are one batch. Each request is counted at its path from before the
//! path gets it until the path has completed it or given it back. A path that refuses a request with a path error
//! fails, and the request is offered to the next path. A busy path is skipped for the rest of the call. If a poll fills
//! up before all paths were polled, the next poll begins with the remaining ones.
//!
//! Source: drivers/md/dm-mpath.c (`multipath_clone_and_map`, `multipath_end_io`), dm-rq.c. The kernel returns RESOURCE when the
//! chosen path is busy; here the driver is busy only when all paths of the group are.

use super::config::{MAX_PATHS, PathId};
use super::disk::{LEAVING, Multipath, PathEvent};
use super::group::Found;
use super::hctx::{MultipathHctx, Slot};
use crate::driver::{Completions, Driver, RqBatch, RqRef, TimedOut, TimeoutAnswer, Verdict};
use crate::id::{HctxId, SECTOR_SHIFT, Sector, Tag};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::status::{BlkStatus, QueueRqStatus};
use crate::sync::Ordering;
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;

/// A request that completes with RESOURCE is issued again after this time.
const DELAY: Duration = Duration::from_ms(100);

/// The chosen path of a request, which is counted there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Choice {
    path: usize,
    driver: u16,
}

/// Paths that were busy during this call, and their combined status.
#[derive(Default)]
struct Busy {
    paths: u64,
    answer: Option<QueueRqStatus>,
}

impl Busy {
    /// Adds a busy path and combines its status with the others. A retry time takes precedence over waiting for a
    /// completion, and the shortest retry time over longer ones.
    fn add(&mut self, path: usize, said: QueueRqStatus) {
        let rank = |s: QueueRqStatus| match s {
            QueueRqStatus::Resource => 0,
            QueueRqStatus::DelayMs(ms) => 1 + u32::from(ms),
            _ => u32::MAX,
        };
        self.paths |= 1 << path;
        self.answer = Some(self.answer.map_or(said, |a| if rank(said) < rank(a) { said } else { a }));
    }
}

impl<L: Lock> Multipath<L> {
    #[inline]
    fn hctx(&self, hctx: HctxId) -> &MultipathHctx<L> {
        let part: &CachePadded<MultipathHctx<L>> =
            self.hctxs[hctx.index()].get().expect("a hardware queue it was started with");
        part
    }

    #[inline]
    fn driver(&self, index: u16) -> &dyn Driver {
        self.drivers[usize::from(index)].get().expect("kept before its number was published").as_ref()
    }

    /// Chooses a path for a request and counts the request there. If there is no path, the error is the status to
    /// return.
    #[inline]
    fn choose(
        &self,
        hctx: &MultipathHctx<L>,
        rq: &RqRef<'_>,
        busy: &Busy,
        now: Instant,
    ) -> Result<Choice, QueueRqStatus> {
        let bytes = rq.nr_sectors() << SECTOR_SHIFT;
        loop {
            // Pairs with: Multipath::publish
            let mut open = self.open.load(Ordering::Acquire);
            if open == 0 {
                open = self.find(now)?;
            }
            let usable = open & !busy.paths;
            if usable == 0 {
                // If paths have changed since one was busy, the thread that changed them runs the queue afterwards.
                return Err(busy.answer.unwrap_or(QueueRqStatus::Resource));
            }
            let policy = &self.policies[usize::from(self.group_of[usable.trailing_zeros() as usize].get())];
            let path = self.selectors.select(policy, usable, &hctx.turns, bytes, rq.cpu(), now.as_ns());
            // Counted, then the mark is checked. A thread that removes the path sets the mark, then checks the count.
            hctx.in_flight[path].fetch_add(1, Ordering::SeqCst); // Pairs with: Multipath::in_flight
            let driver = self.at[path].load(Ordering::SeqCst); // Pairs with: Multipath::remove_path
            if driver & LEAVING != 0 {
                hctx.in_flight[path].fetch_sub(1, Ordering::SeqCst); // Pairs with: Multipath::in_flight
                continue;
            }
            // The policy of the present path: that path cannot be removed while the request is counted.
            let policy = &self.policies[usize::from(self.group_of[path].get())];
            self.selectors.started(policy, path, bytes);
            let slot = hctx.slot(rq.tag());
            slot.path.set(path as u8);
            slot.bytes.set(bytes);
            slot.issue_ns.set(now.as_ns());
            return Ok(Choice { path, driver });
        }
    }

    /// Asks the locked state for a path, because `open` is 0.
    #[cold]
    fn find(&self, now: Instant) -> Result<u64, QueueRqStatus> {
        let mut state = self.state.lock();
        let (found, wanted) = state.find(now);
        self.publish(&state);
        drop(state);
        self.see_to(wanted);
        match found {
            Found::Paths(mask) => Ok(mask),
            // Rounded up, because a request that is retried too early would have to wait again.
            Found::Wait(after) => {
                let ms = after.as_ns().div_ceil(1_000_000);
                Err(QueueRqStatus::DelayMs(ms.min(u64::from(u16::MAX)) as u16))
            }
            Found::Fail => Err(QueueRqStatus::Error(BlkStatus::IoErr)),
        }
    }

    /// Takes a request off the counts of its chosen path, which did not accept it.
    fn undo(&self, hctx: &MultipathHctx<L>, rq: &RqRef<'_>) {
        let slot = hctx.slot(rq.tag());
        let path = usize::from(slot.path.get());
        let policy = &self.policies[usize::from(self.group_of[path].get())];
        self.selectors.undone(policy, path, slot.bytes.get());
        hctx.in_flight[path].fetch_sub(1, Ordering::SeqCst); // Pairs with: Multipath::in_flight
    }

    /// Decides what becomes of a request that a path has completed, or given back (`None`).
    #[inline]
    fn judge(&self, hctx: &MultipathHctx<L>, tag: Tag, status: Option<BlkStatus>, now: Instant) -> Verdict {
        let slot: &Slot = hctx.slot(tag);
        let path = usize::from(slot.path.get());
        let group = usize::from(self.group_of[path].get());
        let (policy, valid) = (&self.policies[group], self.valid[group].get());
        let issued = slot.issue_ns.get();
        self.selectors.ended(policy, path, slot.bytes.get(), issued, now.as_ns(), valid);
        let verdict = match status {
            Some(status) if status.is_path_error() => self.path_error(path, status, Instant::from_ns(issued), now),
            Some(status) => Verdict::Ends(status),
            None => Verdict::Again(None),
        };
        // Decrement the count last: from here on, a new path may take the number of a removed path, and this request
        // must not count for the new path.
        hctx.in_flight[path].fetch_sub(1, Ordering::SeqCst); // Pairs with: Multipath::in_flight
        verdict
    }

    /// Handles a path error of a request that was issued at this time. The path fails, while the request is still
    /// counted there; the request is issued again on another path if there is one.
    #[cold]
    fn path_error(&self, path: usize, status: BlkStatus, issued: Instant, now: Instant) -> Verdict {
        let id = PathId(path as u8);
        let mut state = self.state.lock();
        let failed = state.fail(id, now);
        let again = state.may_retry(issued, now);
        self.publish(&state);
        drop(state);
        if failed {
            (self.listener)(PathEvent::PathFailed(id));
        }
        match again {
            false => Verdict::Ends(status),
            true => Verdict::Again((status == BlkStatus::Resource).then_some(DELAY)),
        }
    }

    /// Lends the first `n` requests to their path. Returns `None` to continue with the rest of the batch.
    #[inline]
    fn lend(
        &self,
        batch: &mut RqBatch<'_>,
        hctx: &MultipathHctx<L>,
        (choice, n): (Choice, usize),
        busy: &mut Busy,
        now: Instant,
    ) -> Option<QueueRqStatus> {
        let lent = batch.lend(n, self.driver(choice.driver), now);
        batch.review_ended(
            &lent,
            |tag, status| self.judge(hctx, tag, Some(status), now),
            |rq, delay| hctx.hold(rq, delay),
        );
        if lent.taken == n {
            return None;
        }
        self.turned_down(batch, hctx, (choice, n - lent.taken), lent.status, busy, now)
    }

    #[cold]
    fn turned_down(
        &self,
        batch: &mut RqBatch<'_>,
        hctx: &MultipathHctx<L>,
        (choice, left): (Choice, usize),
        status: QueueRqStatus,
        busy: &mut Busy,
        now: Instant,
    ) -> Option<QueueRqStatus> {
        let verdict = match status {
            QueueRqStatus::Error(error) if error.is_path_error() => Some(self.path_error(choice.path, error, now, now)),
            _ => None,
        };
        (0..left).filter_map(|i| batch.peek(i)).for_each(|rq| self.undo(hctx, &rq));
        match (verdict, status) {
            (Some(Verdict::Ends(status)), _) => Some(QueueRqStatus::Error(status)),
            (Some(Verdict::Again(None)), _) => None,
            (Some(Verdict::Again(Some(delay))), _) => Some(QueueRqStatus::DelayMs(delay.as_ms() as u16)),
            (None, QueueRqStatus::Error(_)) => Some(status),
            (None, said) => {
                busy.add(choice.path, said);
                None
            }
        }
    }

    /// Returns the paths that have requests of this hardware queue in flight, as a mask by path number.
    pub fn busy_paths(&self, hctx: HctxId) -> u64 {
        let Some(h) = self.hctxs[hctx.index()].get() else { return 0 };
        let mut known = self.known.load(Ordering::Relaxed);
        let mut busy = 0;
        while known != 0 {
            let path = known.trailing_zeros();
            known &= known - 1;
            // Pairs with: Multipath::choose
            busy |= u64::from(h.in_flight[path as usize].load(Ordering::SeqCst) > 0) << path;
        }
        busy
    }

    /// Whether a poll of this hardware queue returns a request even if no path has a completion. A thread must then
    /// poll instead of waiting for the paths.
    pub fn is_ready(&self, hctx: HctxId) -> bool {
        self.hctxs[hctx.index()].get().is_some_and(|h| h.has_held())
    }
}

impl<L: Lock> Driver for Multipath<L> {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        // Relaxed: a number by itself.
        Sector(self.capacity.load(Ordering::Relaxed))
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let mut started = self.started.lock();
        let paths: Vec<(String, usize)> =
            self.state.lock().present().map(|(id, p)| (p.name.clone(), id.index())).collect();
        for (name, path) in paths {
            let index = self.at[path].load(Ordering::Relaxed) & !LEAVING;
            self.driver(index).start(nr_hw_queues, queue_depth).map_err(|e| format!("path {name}: {e}"))?;
        }
        for hctx in &self.hctxs[..usize::from(nr_hw_queues)] {
            hctx.get_or_init(|| Box::new(CachePadded::new(MultipathHctx::new()))).grow(queue_depth);
        }
        *started = Some((nr_hw_queues, queue_depth));
        Ok(())
    }

    #[inline]
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let hctx = self.hctx(batch.hctx());
        let mut busy = Busy::default();
        let mut next: Option<Result<Choice, QueueRqStatus>> = None;
        while let Some(rq) = batch.front() {
            let choice = match next.take().unwrap_or_else(|| self.choose(hctx, &rq, &busy, now)) {
                Ok(choice) => choice,
                Err(status) => return status,
            };
            let mut n = 1;
            while let Some(rq) = batch.peek(n) {
                match self.choose(hctx, &rq, &busy, now) {
                    Ok(same) if same == choice => n += 1,
                    other => {
                        next = Some(other);
                        break;
                    }
                }
            }
            let before = batch.remaining();
            let stop = self.lend(batch, hctx, (choice, n), &mut busy, now);
            let left = n - (before - batch.remaining());
            // If the path did not accept all requests, the choice for the request after them is undone, and made again
            // later.
            if left > 0
                && let Some(Ok(_)) = next.take()
            {
                batch.peek(left).iter().for_each(|rq| self.undo(hctx, rq));
            }
            if let Some(status) = stop {
                return status;
            }
        }
        QueueRqStatus::Queued
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        let h = self.hctx(hctx);
        let slot = h.slot(late.tag);
        if slot.issue_ns.get() != late.issued.as_ns() {
            return TimeoutAnswer::Done;
        }
        let index = self.at[usize::from(slot.path.get())].load(Ordering::Relaxed) & !LEAVING;
        // The path does not know a request that has completed or is held, so nothing happens to it. The next poll gives back a
        // held one.
        done.timeout_below(self.driver(index), late, now, |tag, status| self.judge(h, tag, status, now))
    }

    #[inline]
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let h = self.hctx(hctx);
        if h.has_held() {
            h.take_held(|rq, delay| done.requeue(rq, delay));
        }
        let first = h.poll_from.get();
        let mut known = self.known.load(Ordering::Relaxed).rotate_right(first.into());
        while known != 0 {
            let path = (known.trailing_zeros() as usize + usize::from(first)) % MAX_PATHS;
            if done.room() == 0 {
                // The next poll begins with the paths that were not polled.
                h.poll_from.set(path as u8);
                break;
            }
            known &= known - 1;
            if h.in_flight[path].load(Ordering::Relaxed) > 0 {
                let index = self.at[path].load(Ordering::Relaxed) & !LEAVING;
                done.poll_below(self.driver(index), now, |tag, status| self.judge(h, tag, status, now));
            }
        }
    }
}
