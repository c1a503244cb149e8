// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests one direction may have, who waits for one, and the batching that lets a woken submitter go on.
//!
//! `nr_requests` are for everybody; once the list is full only "batching" submitters get more, up to one and a half times
//! as many. Congestion marks have a gap between on and off. Source: block/blk-core.c of 4.19 (`__get_request`,
//! `ioc_batching`, `blk_queue_congestion_threshold`).

use crate::sbitmap_queue::WaiterId;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// `BLK_BATCH_REQ`: requests a batching submitter may take.
const BLK_BATCH_REQ: u32 = 32;
/// `BLK_BATCH_TIME`: how long it may.
const BLK_BATCH_TIME: Duration = Duration::from_ms(20);

/// A submitter's right to go on allocating from a full list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batching {
    left: u32,
    since: Instant,
}

impl Batching {
    pub(crate) fn start(&mut self, now: Instant) {
        *self = Batching { left: BLK_BATCH_REQ, since: now };
    }

    /// The first request of a batch may come late (the submitter had to wait for it), the rest within the batch time.
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
    waiters: VecDeque<WaiterId>,
}

impl RequestList {
    pub(crate) fn new(nr_requests: u32) -> RequestList {
        RequestList { count: 0, nr_requests, full: false, congested: false, waiters: VecDeque::with_capacity(64) }
    }

    /// Most requests in use, batching included.
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
    pub(crate) fn may_take(&self, who: &Batching, now: Instant) -> bool {
        self.count < Self::most(self.nr_requests)
            && (self.count + 1 < self.nr_requests || !self.full || who.is_active(now))
    }

    /// Takes one request for a submitter.
    pub(crate) fn take(&mut self, who: &mut Batching, now: Instant) -> bool {
        if self.count + 1 >= self.congestion_on() {
            if self.count + 1 >= self.nr_requests {
                if self.full && !who.is_active(now) {
                    return false;
                }
                if !self.full {
                    // The submitter that fills the list may finish its batch.
                    who.start(now);
                    self.full = true;
                }
            }
            self.congested = true;
        }
        if self.count >= Self::most(self.nr_requests) {
            return false;
        }
        self.count += 1;
        if who.is_active(now) {
            who.left -= 1;
        }
        true
    }

    /// Gives one back; the waiter to be woken, if any.
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
        if !self.waiters.contains(&w) {
            self.waiters.push_back(w);
        }
    }

    pub(crate) fn is_waiting(&self, w: WaiterId) -> bool {
        self.waiters.contains(&w)
    }

    /// Takes a waiter out of the line. If it was woken already, that wake-up is somebody else's now: who that is.
    pub(crate) fn stop_waiting(&mut self, w: WaiterId) -> Option<WaiterId> {
        let found = self.waiters.iter().position(|x| *x == w);
        match found {
            Some(at) => {
                self.waiters.remove(at);
                None
            }
            None if self.count < self.nr_requests => self.waiters.pop_front(),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_batching_submitters_pass_a_full_list_and_none_passes_one_and_a_half() {
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
    fn a_batch_ends_with_its_time() {
        let mut list = RequestList::new(4);
        let mut who = Batching::default();
        let t = Instant::ZERO;
        for _ in 0..4 {
            assert!(list.take(&mut who, t));
        }
        assert!(!list.may_take(&who, t + Duration::from_ms(20)));
        assert!(list.may_take(&who, t + Duration::from_ms(19)));
    }

    #[test]
    fn freeing_wakes_in_order_of_arrival() {
        let mut list = RequestList::new(4);
        let mut who = Batching::default();
        for _ in 0..6 {
            assert!(list.take(&mut who, Instant::ZERO));
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
