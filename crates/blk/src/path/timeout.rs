// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request timeouts: the driver's timeout function is called for each request that the driver has had for longer than
//! `io_timeout`.
//!
//! One timer per disk. Issuing a request arms the timer, at most five seconds ahead, if it is not armed. So the timer
//! costs a request one load. A poll of any submitter finds the timer due ([`RequestQueue::next_timer`] announces it to
//! sleeping threads). That poll checks all requests, and calls [`Driver::timeout`](crate::driver::Driver::timeout) once
//! for each late one. The driver returns whether it has completed the request or gives the request another
//! `io_timeout`. So a late request is found at its deadline at the earliest, and at most five seconds later.
//!
//! A request may complete on another CPU while it is checked. The driver decides: it gets the issue time of the
//! request, and its answer is about that issue only. Only this module reads what it writes. Source: block/blk-mq.c
//! (`blk_mq_timeout_work`), blk-timeout.c. The kernel first waits for running `queue_rq` calls; this code does not.

use crate::driver::{TimedOut, TimeoutAnswer};
use crate::id::{HctxId, Tag};
use crate::lock::Lock;
use crate::queue::request_queue::RequestQueue;
use crate::request::{NO_TAG, Request, RequestId, RqState};
use crate::submitter::{Env, Local};
use crate::sync::Ordering;
use crate::time::{Duration, Instant};
use crate::trace::event::EventKind;

/// `BLK_MAX_TIMEOUT`: the timer is never further ahead.
const BLK_MAX_TIMEOUT: Duration = Duration::from_secs(5);
/// Checks are at least this far apart, or half of `io_timeout` if that is less.
const MAX_GRAIN: Duration = Duration::from_secs(1);
impl<L: Lock> RequestQueue<L> {
    /// Returns how long a request may be at the driver.
    fn io_timeout(&self) -> Duration {
        Duration::from_ms(u64::from(self.live.io_timeout_ms.load(Ordering::Relaxed)))
    }

    /// Arms the timer. Called when a request is about to be issued and the timer is not armed.
    #[cold]
    pub(crate) fn arm_timeout(&self, now: Instant) {
        self.timer.arm(now + self.io_timeout().min(BLK_MAX_TIMEOUT));
    }
}

impl<L: Lock> Env<L> {
    /// Calls the driver's timeout function for every late request.
    #[cold]
    pub(crate) fn check_timeouts(&self, local: &mut Local, now: Instant) {
        if !self.q.timer.take(now) {
            return;
        }
        let timeout = self.q.io_timeout();
        let mut next: Option<Instant> = None;
        let mut ids = core::mem::take(&mut local.scratch.ids);
        for hctx in 0..self.st.hctxs.len() {
            local.completions.place.hctx = HctxId::new(hctx as u32);
            self.ids_at_driver(hctx, &mut ids);
            for id in ids.drain(..) {
                let rq = self.st.slab.get(id);
                let Some(mut deadline) = deadline_of(rq, timeout) else { continue };
                if deadline <= now {
                    self.ask_about(local, hctx, rq, now);
                    // Assume another `io_timeout`; the next check finds out if the request has completed.
                    deadline = now + timeout;
                }
                next = Some(next.map_or(deadline, |n| n.min(deadline)));
            }
            self.take_polled(local, hctx, now);
        }
        local.scratch.ids = ids;
        if let Some(next) = next {
            // Avoids a separate check for each late request.
            let grain = Duration::from_ns((timeout.as_ns() / 2).min(MAX_GRAIN.as_ns()));
            self.q.timer.arm(next.max(now + grain).min(now + BLK_MAX_TIMEOUT));
        } else {
            // No request at the driver for the period of the timer: give up this disk's share of the tags.
            self.q.retire_tags();
        }
    }

    /// Requests that hold a driver tag of an hctx, or held one a moment ago.
    fn ids_at_driver(&self, hctx: usize, ids: &mut Vec<RequestId>) {
        let mut add = |tag: u32| {
            let id = self.rq_of_driver_tag(hctx, tag as usize);
            // If the tag is free, or another hctx or disk holds it now, this is the last request here that held it.
            if u32::from(self.st.slab.get(id).driver_tag.get()) == tag {
                ids.push(id);
            }
        };
        if self.st.sq.is_none() {
            self.st.driver_tags(hctx).for_each_in_use(&mut add);
        } else {
            (0..self.st.queue_depth).for_each(&mut add);
        }
    }

    fn ask_about(&self, local: &mut Local, hctx: usize, rq: &Request, now: Instant) {
        let tag = rq.driver_tag.get();
        let issued_ns = rq.issue_ns.get();
        if tag == NO_TAG || rq.ended_by_timeout_ns.get() == issued_ns {
            return;
        }
        let late = TimedOut { tag: Tag::new(u32::from(tag)), issued: Instant::from_ns(issued_ns) };
        if local.completions.room() == 0 {
            self.take_polled(local, hctx, now);
        }
        self.hctx_counters(hctx).timeouts.add(1);
        // Traced before the call: afterwards another thread may own the request.
        self.trace_rq(local, EventKind::Timeout, rq, now);
        match self.q.driver.timeout(HctxId::new(hctx as u32), late, &mut local.completions, now) {
            TimeoutAnswer::Done => rq.ended_by_timeout_ns.set(issued_ns),
            TimeoutAnswer::ResetTimer => rq.deadline_ns.set((now + self.q.io_timeout()).as_ns()),
        }
    }
}

/// Returns when a request is late; `None` when it is not at the driver.
fn deadline_of(rq: &Request, timeout: Duration) -> Option<Instant> {
    if rq.state.get() != RqState::InFlight as u8 {
        return None;
    }
    let by_issue = Instant::from_ns(rq.issue_ns.get()) + timeout;
    // A deadline that was reset may be of an earlier issue or of this one: the later of the two times applies.
    Some(by_issue.max(Instant::from_ns(rq.deadline_ns.get())))
}
