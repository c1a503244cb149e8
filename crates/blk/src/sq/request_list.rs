// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests one direction may have, which submitters wait for a request, and the batching that lets a woken
//! submitter allocate several.
//!
//! All submitters may use `nr_requests`. When the list is full, only batching submitters get more, up to 1.5 times
//! `nr_requests`. The congestion mark has different thresholds for on and off. Source: block/blk-core.c of 4.19
//! (`__get_request`, `ioc_batching`, `blk_queue_congestion_threshold`).

use crate::id::MAX_SUBMITTERS;
use crate::tags::sbitmap_queue::WaiterId;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// `BLK_BATCH_REQ`: requests a batching submitter may take.
const BLK_BATCH_REQ: u32 = 32;
/// `BLK_BATCH_TIME`: how long a submitter may batch.
const BLK_BATCH_TIME: Duration = Duration::from_ms(20);

/// A submitter's right to keep allocating from a full list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batching {
    left: u32,
    since: Instant,
}

impl Batching {
    pub(crate) fn start(&mut self, now: Instant) {
        *self = Batching { left: BLK_BATCH_REQ, since: now };
    }

    /// The first request of a batch has no time limit, because the submitter may have to wait for it; the others must
    /// be taken within the batch time.
    fn is_active(&self, now: Instant) -> bool {
        self.left == BLK_BATCH_REQ || self.left > 0 && now < self.since + BLK_BATCH_TIME
    }
}

/// The requests of one direction.
#[derive(Debug)]
pub(crate) struct RequestList {
    count: u32,
    nr_requests: u32,
    full: bool,
    congested: bool,
    waiters: WaitList,
}

/// Waiters, in order, with a bit per submitter, because most submitters that check whether they wait do not wait.
#[derive(Debug)]
struct WaitList {
    order: VecDeque<WaiterId>,
    bits: [u64; MAX_SUBMITTERS as usize / 64],
}

impl WaitList {
    fn new() -> WaitList {
        WaitList { order: VecDeque::with_capacity(MAX_SUBMITTERS as usize), bits: [0; MAX_SUBMITTERS as usize / 64] }
    }

    fn contains(&self, w: WaiterId) -> bool {
        self.bits[w.0 as usize / 64] >> (w.0 % 64) & 1 != 0
    }

    /// Inverts the bit of a submitter.
    fn flip(&mut self, w: WaiterId) {
        self.bits[w.0 as usize / 64] ^= 1 << (w.0 % 64);
    }

    fn push_back(&mut self, w: WaiterId) {
        if !self.contains(w) {
            self.flip(w);
            self.order.push_back(w);
        }
    }

    fn pop_front(&mut self) -> Option<WaiterId> {
        let first = self.order.pop_front()?;
        self.flip(first);
        Some(first)
    }

    /// Removes a waiter. Returns whether it was in the list.
    fn remove(&mut self, w: WaiterId) -> bool {
        let is_in = self.contains(w);
        if is_in {
            self.flip(w);
            let at = self.order.iter().position(|x| *x == w).expect("its bit is set");
            self.order.remove(at);
        }
        is_in
    }
}

impl RequestList {
    pub(crate) fn new(nr_requests: u32) -> RequestList {
        RequestList { count: 0, nr_requests, full: false, congested: false, waiters: WaitList::new() }
    }

    /// Maximum number of requests in use, batching included.
    pub(crate) fn most(nr_requests: u32) -> u32 {
        3 * nr_requests / 2
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    fn congestion_on(&self) -> u32 {
        (self.nr_requests - self.nr_requests / 8 + 1).min(self.nr_requests)
    }

    fn congestion_off(&self) -> u32 {
        (self.nr_requests - self.nr_requests / 8).saturating_sub(self.nr_requests / 16 + 1).max(1)
    }

    /// Whether [`RequestList::take`] would succeed.
    pub(crate) fn may_take(&self, batching: &Batching, now: Instant) -> bool {
        self.count < Self::most(self.nr_requests)
            && (self.count + 1 < self.nr_requests || !self.full || batching.is_active(now))
    }

    /// Takes one request for a submitter.
    pub(crate) fn take(&mut self, batching: &mut Batching, now: Instant) -> bool {
        if self.count + 1 >= self.congestion_on() {
            if self.count + 1 >= self.nr_requests {
                if self.full && !batching.is_active(now) {
                    return false;
                }
                if !self.full {
                    // The submitter that fills the list may finish its batch.
                    batching.start(now);
                    self.full = true;
                }
            }
            self.congested = true;
        }
        if self.count >= Self::most(self.nr_requests) {
            return false;
        }
        self.count += 1;
        if batching.is_active(now) {
            batching.left -= 1;
        }
        true
    }

    /// Gives one request back. Returns the waiter to wake, if there is one.
    pub(crate) fn put(&mut self) -> Option<WaiterId> {
        assert!(self.count > 0, "request list underflow");
        self.count -= 1;
        if self.count < self.congestion_off() {
            self.congested = false;
        }
        if self.count < self.nr_requests {
            self.full = false;
            return self.waiters.pop_front();
        }
        None
    }

    pub(crate) fn wait(&mut self, w: WaiterId) {
        self.waiters.push_back(w);
    }

    pub(crate) fn is_waiting(&self, w: WaiterId) -> bool {
        self.waiters.contains(w)
    }

    /// Removes a waiter. If it was woken already, that wake-up goes to another waiter, which is returned.
    pub(crate) fn stop_waiting(&mut self, w: WaiterId) -> Option<WaiterId> {
        if self.waiters.remove(w) || self.count >= self.nr_requests {
            return None;
        }
        self.waiters.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_batching_submitters_exceed_nr_requests_by_half_at_most() {
        let mut list = RequestList::new(128);
        let (mut first, mut other) = (Batching::default(), Batching::default());
        let t = Instant::from_ns(1);
        for _ in 0..127 {
            assert!(list.take(&mut first, t));
        }
        assert!(list.take(&mut first, t), "the one that fills it starts to batch");
        assert!(list.full && list.congested);
        assert!(!list.take(&mut other, t), "others wait");
        let mut more = 0;
        while list.take(&mut first, t) {
            more += 1;
        }
        assert_eq!(more + 1, BLK_BATCH_REQ, "a batch, the request that filled the list included");
        for _ in 0..3 {
            other.start(t);
            while list.take(&mut other, t) {}
        }
        assert_eq!(list.count(), RequestList::most(128));
    }

    #[test]
    fn a_waiter_is_queued_once_and_in_order() {
        let mut list = RequestList::new(4);
        let mut batching = Batching::default();
        while list.take(&mut batching, Instant::ZERO) {}
        for n in [700, 3, 64, 3, 700, 0] {
            list.wait(WaiterId(n));
        }
        assert_eq!(
            [700, 3, 64, 0, 1, 1023].map(|n| list.is_waiting(WaiterId(n))),
            [true, true, true, true, false, false]
        );
        assert_eq!(list.stop_waiting(WaiterId(3)), None, "it was in line");
        assert_eq!(list.stop_waiting(WaiterId(3)), None, "nothing is free for another");
        list.wait(WaiterId(3));
        let woken = std::iter::from_fn(|| (list.count() > 0).then(|| list.put())).flatten().take(3);
        assert_eq!(woken.map(|w| w.0).collect::<Vec<_>>(), [700, 64, 0]);
        assert_eq!(
            list.stop_waiting(WaiterId(64)),
            Some(WaiterId(3)),
            "the wake-up of one that left is the next one's"
        );
        assert!(!list.is_waiting(WaiterId(3)));
    }

    #[test]
    fn a_batch_ends_with_its_time() {
        let mut list = RequestList::new(4);
        let mut batching = Batching::default();
        let t = Instant::ZERO;
        for _ in 0..4 {
            assert!(list.take(&mut batching, t));
        }
        assert!(!list.may_take(&batching, t + Duration::from_ms(20)));
        assert!(list.may_take(&batching, t + Duration::from_ms(19)));
    }

    #[test]
    fn freeing_wakes_in_order_of_arrival() {
        let mut list = RequestList::new(4);
        let mut batching = Batching::default();
        for _ in 0..6 {
            assert!(list.take(&mut batching, Instant::ZERO));
        }
        list.wait(WaiterId(7));
        list.wait(WaiterId(8));
        list.wait(WaiterId(7));
        assert_eq!(list.put(), None, "still full");
        assert_eq!(list.put(), None);
        assert_eq!(list.put(), Some(WaiterId(7)));
        assert_eq!(list.put(), Some(WaiterId(8)));
        assert_eq!(list.put(), None);
    }
}
