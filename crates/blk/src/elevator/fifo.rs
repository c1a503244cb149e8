// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of requests in order of arrival: doubly linked by request number, with the links in one table.
//!
//! Guarantees: no allocation after construction, every operation O(1). A request is in at most one of the lists that
//! share a table (asserted). Each link carries the time at which its request expires. Needs: all calls under one lock.

use crate::time::Instant;

#[derive(Clone, Copy)]
struct Link {
    expires: Instant,
    prev: u32,
    next: u32,
}

/// End of a list.
const NIL: u32 = u32::MAX;
/// In `prev`: not in a list.
const UNLINKED: u32 = u32::MAX - 1;

/// The links of all requests of a disk.
pub(crate) struct FifoNodes {
    links: Box<[Link]>,
}

/// One list.
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl FifoNodes {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> FifoNodes {
        assert!(nr_requests < UNLINKED as usize);
        let unlinked = Link { expires: Instant::ZERO, prev: UNLINKED, next: NIL };
        FifoNodes { links: vec![unlinked; nr_requests].into_boxed_slice() }
    }

    #[inline]
    fn at(&self, rq: u32) -> &Link {
        &self.links[rq as usize]
    }

    #[inline]
    fn at_mut(&mut self, rq: u32) -> &mut Link {
        &mut self.links[rq as usize]
    }

    /// When `rq` expires. While `rq` is in no list, this is the last value that was set.
    #[inline]
    pub(crate) fn expires(&self, rq: u32) -> Instant {
        self.at(rq).expires
    }

    /// Sets when `rq` expires; its place in the list stays.
    #[inline]
    pub(crate) fn set_expires(&mut self, rq: u32, expires: Instant) {
        self.at_mut(rq).expires = expires;
    }

    /// Whether `rq` is in a list.
    #[inline]
    pub(crate) fn is_linked(&self, rq: u32) -> bool {
        self.at(rq).prev != UNLINKED
    }

    /// The request behind `rq` in its list.
    #[inline]
    pub(crate) fn latter(&self, rq: u32) -> Option<u32> {
        debug_assert!(self.is_linked(rq));
        some(self.at(rq).next)
    }

    /// The request before `rq` in its list.
    #[inline]
    pub(crate) fn former(&self, rq: u32) -> Option<u32> {
        debug_assert!(self.is_linked(rq));
        some(self.at(rq).prev)
    }
}

#[inline]
fn some(rq: u32) -> Option<u32> {
    (rq != NIL).then_some(rq)
}

impl Fifo {
    /// An empty list.
    pub(crate) const fn new() -> Fifo {
        Fifo { head: NIL, tail: NIL }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// The oldest request.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// The requests, oldest first.
    pub(crate) fn iter<'a>(&self, n: &'a FifoNodes) -> impl Iterator<Item = u32> + 'a {
        core::iter::successors(self.front(), |rq| n.latter(*rq))
    }

    /// Links `rq` between two neighbours, either of which may be the end.
    #[inline]
    fn link(&mut self, n: &mut FifoNodes, rq: u32, prev: u32, next: u32) {
        assert!(!n.is_linked(rq), "request {rq} is in a list already");
        let l = n.at_mut(rq);
        (l.prev, l.next) = (prev, next);
        match prev {
            NIL => self.head = rq,
            _ => n.at_mut(prev).next = rq,
        }
        match next {
            NIL => self.tail = rq,
            _ => n.at_mut(next).prev = rq,
        }
    }

    /// Adds the newest request.
    #[inline]
    pub(crate) fn push_back(&mut self, n: &mut FifoNodes, rq: u32) {
        self.link(n, rq, self.tail, NIL);
    }

    /// Adds a request before all others.
    #[inline]
    pub(crate) fn push_front(&mut self, n: &mut FifoNodes, rq: u32) {
        self.link(n, rq, NIL, self.head);
    }

    /// Adds a request right behind `prev`, which is in this list.
    pub(crate) fn insert_after(&mut self, n: &mut FifoNodes, rq: u32, prev: u32) {
        debug_assert!(n.is_linked(prev));
        let next = n.at(prev).next;
        self.link(n, rq, prev, next);
    }

    /// Gives `kept` the earlier of the two expiry times, and the position that belongs to that time. `gone` was joined
    /// into `kept`; it is in this list, too, and stays there.
    pub(crate) fn keep_earlier(&mut self, n: &mut FifoNodes, kept: u32, gone: u32) {
        let expires = n.expires(gone);
        if expires < n.expires(kept) {
            self.remove(n, kept);
            n.set_expires(kept, expires);
            self.insert_after(n, kept, gone);
        }
    }

    /// Takes a request out.
    #[inline]
    pub(crate) fn remove(&mut self, n: &mut FifoNodes, rq: u32) {
        let Link { prev, next, .. } = *n.at(rq);
        assert!(prev != UNLINKED, "request {rq} is in no list");
        match prev {
            NIL => self.head = next,
            _ => n.at_mut(prev).next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => n.at_mut(next).prev = prev,
        }
        n.at_mut(rq).prev = UNLINKED;
    }

    /// Takes the oldest request out.
    #[inline]
    pub(crate) fn pop_front(&mut self, n: &mut FifoNodes) -> Option<u32> {
        let rq = self.front()?;
        self.remove(n, rq);
        Some(rq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;
    use std::collections::VecDeque;

    fn contents(n: &FifoNodes, f: &Fifo) -> Vec<u32> {
        f.iter(n).collect()
    }

    #[test]
    fn behaves_like_a_deque() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let size = 1 + rng.below(40);
            let mut n = FifoNodes::new(size as usize);
            let mut lists = [Fifo::new(), Fifo::new()];
            let mut models = [VecDeque::new(), VecDeque::new()];
            for step in 0..2000 {
                let which = rng.below(2) as usize;
                let (f, m) = (&mut lists[which], &mut models[which]);
                let rq = rng.below(size) as u32;
                match rng.below(5) {
                    0 | 1 if !n.is_linked(rq) => {
                        f.push_back(&mut n, rq);
                        m.push_back(rq);
                    }
                    2 if !n.is_linked(rq) => match m.iter().position(|&x| x < rq) {
                        Some(i) => {
                            f.insert_after(&mut n, rq, m[i]);
                            m.insert(i + 1, rq);
                        }
                        None => {
                            f.push_front(&mut n, rq);
                            m.push_front(rq);
                        }
                    },
                    3 => {
                        if let Some(i) = m.iter().position(|&x| x == rq) {
                            f.remove(&mut n, rq);
                            m.remove(i);
                        }
                    }
                    _ => assert_eq!(f.pop_front(&mut n), m.pop_front()),
                }
                assert_eq!(f.is_empty(), m.is_empty());
                assert_eq!(f.front(), m.front().copied());
                assert_eq!(contents(&n, f), Vec::from(m.clone()), "seed {seed} step {step}");
                for pair in contents(&n, f).windows(2) {
                    assert_eq!(n.former(pair[1]), Some(pair[0]));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn a_request_is_in_one_list_only() {
        let mut n = FifoNodes::new(1);
        let (mut a, mut b) = (Fifo::new(), Fifo::new());
        a.push_back(&mut n, 0);
        b.push_back(&mut n, 0);
    }
}
