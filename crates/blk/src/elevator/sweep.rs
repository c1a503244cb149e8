// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One direction of mq-deadline: its lists, and the position of the ascending sweep.
//!
//! Guarantees: [`Sweep::ahead`] is always the first queued request that starts at or after the position. It is kept up to
//! date, because a search each time took a quarter of the scheduler's time. Nearly always the answer is the request that
//! follows the one just taken. Needs: one lock around all calls.

use super::deadline_lists::{DirLists, SortNodes};
use crate::time::Instant;

/// Queued requests of one direction of one priority class, with a position.
pub(crate) struct Sweep {
    lists: DirLists,
    /// First sector of the last dispatched request (the kernel's `latest_pos`).
    position: u64,
    ahead: Option<u32>,
}

impl Sweep {
    /// Empty, over `nodes`, at sector 0.
    pub(crate) fn new(nodes: &SortNodes) -> Sweep {
        Sweep { lists: DirLists::new(nodes), position: 0, ahead: None }
    }

    /// The lists, read-only.
    #[inline]
    pub(crate) fn lists(&self) -> &DirLists {
        &self.lists
    }

    /// The first request at or after the position.
    #[inline]
    pub(crate) fn ahead(&self) -> Option<u32> {
        self.ahead
    }

    /// Queues a request.
    #[inline]
    pub(crate) fn insert(&mut self, n: &mut SortNodes, rq: u32, sector: u64, expires: Instant) {
        self.lists.insert(n, rq, sector, expires);
        if sector >= self.position && self.ahead.is_none_or(|ahead| sector < n.rb.sector(ahead)) {
            self.ahead = Some(rq);
        }
        self.check(n);
    }

    /// Takes a request out for dispatch; the position moves to it.
    #[inline]
    pub(crate) fn take(&mut self, n: &mut SortNodes, rq: u32) {
        self.position = n.rb.sector(rq);
        if self.ahead == Some(rq) {
            self.ahead = n.rb.latter(rq);
            self.lists.remove(n, rq);
        } else {
            self.lists.remove(n, rq);
            self.search(n);
        }
        self.check(n);
    }

    /// A request that was not in the lists was dispatched at `sector`.
    pub(crate) fn move_to(&mut self, n: &SortNodes, sector: u64) {
        self.position = sector;
        self.search(n);
    }

    /// As [`DirLists::reposition`].
    pub(crate) fn reposition(&mut self, n: &mut SortNodes, rq: u32, sector: u64) {
        self.lists.reposition(n, rq, sector);
        self.search(n);
    }

    /// As [`DirLists::absorb`].
    pub(crate) fn absorb(&mut self, n: &mut SortNodes, kept: u32, gone: u32) {
        if self.ahead == Some(gone) {
            self.ahead = n.rb.latter(gone);
        }
        self.lists.absorb(n, kept, gone);
        self.check(n);
    }

    fn search(&mut self, n: &SortNodes) {
        self.ahead = self.lists.first_at_or_after(n, self.position);
    }

    #[inline]
    fn check(&self, n: &SortNodes) {
        debug_assert_eq!(self.ahead, self.lists.first_at_or_after(n, self.position));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    /// The assertion in `check` is the test; this makes every kind of change happen to every kind of request.
    #[test]
    fn the_request_ahead_is_the_one_a_search_finds() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let mut n = SortNodes::new(32);
            let mut s = Sweep::new(&n);
            for _ in 0..2000 {
                let (rq, other) = (rng.below(32) as u32, rng.below(32) as u32);
                let sector = rng.below(40);
                if !n.fifo.is_linked(rq) {
                    s.insert(&mut n, rq, sector, Instant::from_ns(rng.below(9)));
                    continue;
                }
                match rng.below(6) {
                    0 => s.reposition(&mut n, rq, sector),
                    1 if other != rq && n.fifo.is_linked(other) => s.absorb(&mut n, rq, other),
                    2 => s.move_to(&n, sector),
                    3 => s.take(&mut n, rq),
                    _ => {
                        if let Some(ahead) = s.ahead() {
                            s.take(&mut n, ahead);
                        }
                    }
                }
                assert_eq!(s.ahead(), s.lists().first_at_or_after(&n, s.position), "seed {seed}");
            }
        }
    }
}
