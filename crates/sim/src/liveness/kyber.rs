// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kyber owes a request in any case: the bounds of `pressure::kyber`, for each hardware queue.
//!
//! **Between domains.** A waiting domain with nothing at the device finds a token when its turn comes, so each other
//! domain gets at most one batch before. While requests of the domain are at the device they may have all its tokens,
//! and what goes first meanwhile does not count. Requests that were given back wait and are served like all others.
//!
//! **Within a domain.** Requests of one CPU leave in order. Later requests of another CPU may go first if they are in
//! their CPU's list when the lists are taken over together. That happens at most once while a request is in its list,
//! so at most as many go first as a hardware queue has scheduler tags.

use super::{Held, Rules};
use crate::pressure::kyber::{BATCH, between_domains, domain};
use crate::pressure::turns::Turns;
use blk::elevator::{DiskShape, Elevator, Tunable};

pub(super) struct Kyber {
    hctxs: Vec<HctxBooks>,
    /// Requests at the device, by domain.
    out: [u64; BATCH.len()],
    /// Scheduler tags of a hardware queue.
    tags: u64,
}

struct HctxBooks {
    turns: Turns,
    /// Waiting requests, oldest first, each with how often it was overtaken.
    waiting: Vec<(Held, u64)>,
}

impl Kyber {
    pub(super) fn new(disk: &DiskShape<'_>) -> Kyber {
        let hctx = |_| HctxBooks { turns: between_domains(), waiting: Vec::new() };
        let hctxs = (0..disk.map.nr_hw_queues()).map(hctx).collect();
        Kyber { hctxs, out: [0; BATCH.len()], tags: u64::from(disk.nr_requests) }
    }
}

impl Rules for Kyber {
    fn tuned(&mut self, _tunables: &[Tunable]) {}

    fn queued(&mut self, r: &Held) {
        let hctx = &mut self.hctxs[r.hctx];
        hctx.turns.queued(domain(r.seen.op));
        if !r.again {
            hctx.waiting.push((*r, 0));
        }
    }

    fn joined(&mut self, r: &Held) {
        unreachable!("kyber joins no requests: {r:?}");
    }

    fn asked(&mut self, _now: u64, hctx: usize, _elevator: &dyn Elevator) {
        for (domain, _) in self.out.iter().enumerate().filter(|(_, out)| **out > 0) {
            self.hctxs[hctx].turns.excuse(domain);
        }
    }

    fn given(&mut self, r: &Held, _now: u64, _elevator: &dyn Elevator) {
        let (d, hctx) = (domain(r.seen.op), &mut self.hctxs[r.hctx]);
        hctx.turns.given(d, 1, &r.seen);
        self.out[d] += 1;
        if r.again {
            return;
        }
        let at = hctx.waiting.iter().position(|(w, _)| w.seen.id == r.seen.id).expect("it was queued");
        hctx.waiting.remove(at);
        for (w, overtaken) in hctx.waiting[..at].iter_mut().filter(|(w, _)| domain(w.seen.op) == d) {
            *overtaken += 1;
            assert!(
                w.seen.cpu != r.seen.cpu && *overtaken < self.tags,
                "kyber: {w:?} starves: {r:?} overtook it, {overtaken} in all, with {} tags",
                self.tags
            );
        }
    }

    fn left(&mut self, r: &Held, _comes_back: bool) {
        self.out[domain(r.seen.op)] -= 1;
    }
}
