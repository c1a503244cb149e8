// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flush and FUA sequencing: PREFLUSH -> DATA -> POSTFLUSH, steps that the disk does not need are left out.
//!
//! Guarantees: a flush command is issued only after every step that has to precede it has completed; all requests that
//! wait when it is issued share it; at most one flush command is in flight per hctx. A request that needs a flush while
//! the command runs waits for the next one (two lists: pending and running). This module makes the decisions; its
//! callers (dispatch and completion) move the requests. Source: block/blk-flush.c.

use crate::bio::{Op, OpFlags};
use crate::limits::Limits;
use crate::request::Rq;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// Flush the cache first.
pub(crate) const PREFLUSH: u8 = 1 << 0;
/// The write itself.
pub(crate) const DATA: u8 = 1 << 1;
/// Flush the cache afterwards (FUA emulated).
pub(crate) const POSTFLUSH: u8 = 1 << 2;
/// Nothing left to do.
pub(crate) const DONE: u8 = 1 << 3;

/// A flush waits this long for writes in flight; then it is issued while they are in flight (`FLUSH_PENDING_TIMEOUT`).
const FLUSH_PENDING_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the steps that a request needs on a disk with these limits; 0 = it can complete at once.
pub(crate) fn policy(limits: &Limits, op: Op, flags: OpFlags, nr_sectors: u32) -> u8 {
    let mut steps = 0;
    if nr_sectors > 0 {
        steps |= DATA;
    }
    if limits.write_cache {
        if flags.contains(OpFlags::PREFLUSH) || op == Op::Flush {
            steps |= PREFLUSH;
        }
        if flags.contains(OpFlags::FUA) && !limits.fua {
            steps |= POSTFLUSH;
        }
    }
    steps
}

/// First step not in `done`.
pub(crate) fn next_step(done: u8) -> u8 {
    1 << (!done).trailing_zeros().min(3)
}

/// The flush state of one hctx.
#[derive(Debug)]
pub(crate) struct FlushQueue {
    /// Requests waiting for a flush: `pending` is filled, the other list is being served.
    lists: [VecDeque<Rq>; 2],
    pending: usize,
    running: usize,
    pending_since: Instant,
    data_in_flight: u32,
}

impl FlushQueue {
    pub(crate) fn new(nr_requests: usize) -> FlushQueue {
        FlushQueue {
            lists: [VecDeque::with_capacity(nr_requests), VecDeque::with_capacity(nr_requests)],
            pending: 0,
            running: 0,
            pending_since: Instant::ZERO,
            data_in_flight: 0,
        }
    }

    /// Adds a request whose next step is a flush.
    pub(crate) fn wait_for_flush(&mut self, rq: Rq, now: Instant) {
        let list = &mut self.lists[self.pending];
        if list.is_empty() {
            self.pending_since = now;
        }
        list.push_back(rq);
    }

    /// Notes that the data step of a sequence is sent to the driver.
    pub(crate) fn data_started(&mut self) {
        self.data_in_flight += 1;
    }

    /// Notes that the data step of a sequence has completed.
    pub(crate) fn data_done(&mut self) {
        assert!(self.data_in_flight > 0, "flush data completed more often than started");
        self.data_in_flight -= 1;
    }

    /// If a flush command has to be issued now, makes the pending requests the running ones and returns the first of
    /// them, whose tag the flush command borrows. Else returns `None`.
    pub(crate) fn kick(&mut self, now: Instant) -> Option<&Rq> {
        let list = &self.lists[self.pending];
        if self.pending != self.running || list.is_empty() {
            return None;
        }
        if self.data_in_flight > 0 && now < self.pending_since + FLUSH_PENDING_TIMEOUT {
            return None;
        }
        self.pending ^= 1;
        self.lists[self.running].front()
    }

    /// Handles the completion of the flush command: appends the requests that shared it to `out`, oldest first.
    pub(crate) fn flush_done(&mut self, out: &mut Vec<Rq>) {
        assert!(self.pending != self.running, "flush completed that was not issued");
        out.extend(self.lists[self.running].drain(..));
        self.running ^= 1;
    }

    /// Whether nothing waits or runs.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.lists.iter().all(VecDeque::is_empty) && self.data_in_flight == 0 && self.pending == self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestId;

    fn rq(n: u32) -> Rq {
        Rq::from_id(RequestId::new(n))
    }

    #[test]
    fn steps_follow_the_cache() {
        let none = Limits::default();
        let cache = Limits { write_cache: true, ..none };
        let fua = Limits { write_cache: true, fua: true, ..none };
        let both = OpFlags::PREFLUSH.union(OpFlags::FUA);
        assert_eq!(policy(&none, Op::Write, both, 8), DATA);
        assert_eq!(policy(&none, Op::Flush, OpFlags::PREFLUSH, 0), 0);
        assert_eq!(policy(&cache, Op::Write, both, 8), PREFLUSH | DATA | POSTFLUSH);
        assert_eq!(policy(&fua, Op::Write, both, 8), PREFLUSH | DATA);
        assert_eq!(policy(&cache, Op::Flush, OpFlags::NONE, 0), PREFLUSH);
        assert_eq!(next_step(0), PREFLUSH);
        assert_eq!(next_step(PREFLUSH), DATA);
        assert_eq!(next_step(PREFLUSH | POSTFLUSH), DATA);
        assert_eq!(next_step(PREFLUSH | DATA | POSTFLUSH), DONE);
    }

    #[test]
    fn waiters_share_one_flush_and_later_ones_take_the_next() {
        let mut fq = FlushQueue::new(8);
        let t = Instant::from_ns(10);
        fq.wait_for_flush(rq(1), t);
        fq.wait_for_flush(rq(2), t);
        assert_eq!(fq.kick(t).map(|r| r.id().index()), Some(1));
        fq.wait_for_flush(rq(3), t);
        assert_eq!(fq.kick(t), None, "one flush in flight at a time");
        let mut out = Vec::new();
        fq.flush_done(&mut out);
        assert_eq!(out, vec![rq(1), rq(2)]);
        assert_eq!(fq.kick(t).map(|r| r.id().index()), Some(3));
        fq.flush_done(&mut out);
        assert!(fq.is_idle());
    }

    #[test]
    fn a_flush_waits_for_data_in_flight_but_not_for_ever() {
        let mut fq = FlushQueue::new(8);
        fq.data_started();
        fq.wait_for_flush(rq(1), Instant::ZERO);
        assert_eq!(fq.kick(Instant::from_ns(4_999_999_999)), None);
        assert!(fq.kick(Instant::from_ns(5_000_000_000)).is_some());
    }
}
