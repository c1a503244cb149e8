// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What both deadline schedulers are made of: per direction a tree sorted by sector and a FIFO with expiry times, and the
//! rule that chooses a direction.
//!
//! Guarantees: a request is in tree and FIFO of its direction or in neither. Needs: one lock around all calls. Not here:
//! which request comes next in a batch (mq-deadline goes by position, the legacy scheduler by a stored request).
//!
//! Source: Linux 6.19 block/mq-deadline.c, Linux 4.19 block/deadline-iosched.c.

use super::fifo::{Fifo, FifoNodes};
use super::rbtree::{RbNodes, RbTree};
use crate::bio::Op;
use crate::time::Instant;

/// Batches are reads or writes, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dir {
    Read = 0,
    Write = 1,
}

impl Dir {
    /// The kernel's `rq_data_dir`: everything that changes the medium is a write.
    #[inline]
    pub(crate) fn of(op: Op) -> Dir {
        if op.is_write() { Dir::Write } else { Dir::Read }
    }
}

/// Tree and list nodes of all requests of a disk.
pub(crate) struct SortNodes {
    pub(crate) rb: RbNodes,
    pub(crate) fifo: FifoNodes,
}

impl SortNodes {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> SortNodes {
        SortNodes { rb: RbNodes::new(nr_requests), fifo: FifoNodes::new(nr_requests) }
    }
}

/// Queued requests of one direction (of one priority class).
pub(crate) struct DirLists {
    sort: RbTree,
    fifo: Fifo,
}

impl DirLists {
    /// Empty, over `nodes`.
    pub(crate) fn new(nodes: &SortNodes) -> DirLists {
        DirLists { sort: RbTree::new(&nodes.rb), fifo: Fifo::new() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }

    /// Queues a request.
    #[inline]
    pub(crate) fn insert(&mut self, n: &mut SortNodes, rq: u32, sector: u64, expires: Instant) {
        self.sort.insert(&mut n.rb, rq, sector);
        n.fifo.set_expires(rq, expires);
        self.fifo.push_back(&mut n.fifo, rq);
    }

    /// Takes a request out.
    #[inline]
    pub(crate) fn remove(&mut self, n: &mut SortNodes, rq: u32) {
        self.sort.remove(&mut n.rb, rq);
        self.fifo.remove(&mut n.fifo, rq);
    }

    /// Sorts a request anew whose first sector changed.
    pub(crate) fn reposition(&mut self, n: &mut SortNodes, rq: u32, sector: u64) {
        self.sort.remove(&mut n.rb, rq);
        self.sort.insert(&mut n.rb, rq, sector);
    }

    /// `gone` (queued) was joined into `kept` (queued): the earlier expiry and its place in the FIFO are kept.
    pub(crate) fn absorb(&mut self, n: &mut SortNodes, kept: u32, gone: u32) {
        self.fifo.keep_earlier(&mut n.fifo, kept, gone);
        self.remove(n, gone);
    }

    /// The request that expires first.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.fifo.front()
    }

    /// All requests, the one that expires first at the front.
    pub(crate) fn by_age<'a>(&self, n: &'a SortNodes) -> impl Iterator<Item = u32> + 'a {
        self.fifo.iter(&n.fifo)
    }

    /// Whether the oldest request's time is up.
    #[inline]
    pub(crate) fn has_expired(&self, n: &SortNodes, now: Instant) -> bool {
        self.fifo.front().is_some_and(|rq| n.fifo.expires(rq) <= now)
    }

    /// The first request at or after `sector`.
    #[inline]
    pub(crate) fn first_at_or_after(&self, n: &SortNodes, sector: u64) -> Option<u32> {
        self.sort.first_at_or_after(&n.rb, sector)
    }

    /// A request that starts at `sector`.
    #[inline]
    pub(crate) fn starting_at(&self, n: &SortNodes, sector: u64) -> Option<u32> {
        self.sort.find(&n.rb, sector)
    }
}

/// Chooses the direction of a new batch: reads, unless writes have been passed over `writes_starved` times. Counts the
/// passes in `starved`. `None` when nothing is queued.
#[inline]
pub(crate) fn choose_direction(reads: bool, writes: bool, starved: &mut u64, writes_starved: u64) -> Option<Dir> {
    if reads {
        let passes = *starved;
        if writes {
            *starved += 1;
        }
        if !writes || passes < writes_starved {
            return Some(Dir::Read);
        }
    }
    if !writes {
        return None;
    }
    *starved = 0;
    Some(Dir::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_wait_for_at_most_writes_starved_read_batches() {
        for limit in 0..4 {
            let mut starved = 0;
            let turns: Vec<_> = (0..2 * (limit + 1))
                .map(|_| choose_direction(true, true, &mut starved, limit).expect("queued"))
                .collect();
            for (i, dir) in turns.iter().enumerate() {
                let expected = if (i as u64 + 1).is_multiple_of(limit + 1) { Dir::Write } else { Dir::Read };
                assert_eq!(*dir, expected, "writes_starved={limit} turn {i}");
            }
        }
    }

    #[test]
    fn a_lone_direction_is_taken_at_once() {
        let mut starved = 1;
        assert_eq!(choose_direction(true, false, &mut starved, 2), Some(Dir::Read));
        assert_eq!(starved, 1, "no write was passed over");
        assert_eq!(choose_direction(false, true, &mut starved, 2), Some(Dir::Write));
        assert_eq!(starved, 0);
        assert_eq!(choose_direction(false, false, &mut starved, 2), None);
    }

    #[test]
    fn a_joined_request_leaves_its_earlier_expiry_behind() {
        let mut n = SortNodes::new(4);
        let mut d = DirLists::new(&n);
        for (rq, sector) in [(0, 8), (1, 100), (2, 0)] {
            d.insert(&mut n, rq, sector, Instant::from_ns(u64::from(rq)));
        }
        d.absorb(&mut n, 2, 0);
        assert_eq!(d.oldest(), Some(2));
        assert_eq!(n.fifo.expires(2), Instant::ZERO);
        // The other way round nothing moves.
        d.absorb(&mut n, 2, 1);
        assert_eq!(n.fifo.expires(2), Instant::ZERO);
        d.remove(&mut n, 2);
        assert!(d.is_empty() && d.first_at_or_after(&n, 0).is_none());
    }
}
