// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where kyber keeps requests: a list per domain for each software queue, and per hardware queue what was taken from them.
//!
//! Bios are merged into, and requests inserted in, the software queue of the submitting CPU under its own lock. A
//! hardware queue with a token first moves all requests of the domain from its software queues to its own list. It
//! dispatches from that list; requests there are not merged any more. No lock is shared by two hardware queues.
//!
//! Guarantees: no allocation after construction; moving a list costs the same whatever its length. A request is in at
//! most one list (asserted). [`HctxQueue::has_work`] never misses a request that is in a list, unless it is being
//! dispatched.
//!
//! Source: Linux 6.19 block/kyber-iosched.c (`kyber_ctx_queue`, `kyber_hctx_data`, `kyber_flush_busy_kcqs`).

use super::domain::{Domain, NR_DOMAINS, TokenUser};
use crate::cpumap::{HctxType, QueueMap};
use crate::relaxed::FieldU32;
use crate::sync::{AtomicU8, Mutex, Ordering};
use crate::tags::sbitmap::Sbitmap;
use core::ops::DerefMut;
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;

/// End of a list.
const NIL: u32 = u32::MAX;
/// In `prev`: not in a list.
const UNLINKED: u32 = u32::MAX - 1;

struct Link {
    prev: FieldU32,
    next: FieldU32,
}

/// The links of all requests. Those of a request in a list belong to the holder of that list's lock.
pub(super) struct Links(Box<[Link]>);

impl Links {
    /// For requests 0..`nr_requests`.
    pub(super) fn new(nr_requests: usize) -> Links {
        assert!(nr_requests < UNLINKED as usize);
        let unlinked = || {
            let link = Link { prev: FieldU32::default(), next: FieldU32::default() };
            link.prev.set(UNLINKED);
            link
        };
        Links((0..nr_requests).map(|_| unlinked()).collect())
    }

    #[inline]
    fn at(&self, rq: u32) -> &Link {
        &self.0[rq as usize]
    }
}

/// A list of requests, linked through [`Links`].
pub(super) struct RqChain {
    head: u32,
    tail: u32,
}

impl RqChain {
    pub(super) const EMPTY: RqChain = RqChain { head: NIL, tail: NIL };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    fn link(&mut self, links: &Links, rq: u32, prev: u32, next: u32) {
        let link = links.at(rq);
        assert!(link.prev.get() == UNLINKED, "request {rq} is in a list already");
        link.prev.set(prev);
        link.next.set(next);
        if prev == NIL {
            self.head = rq;
        } else {
            links.at(prev).next.set(rq);
        }
        if next == NIL { self.tail = rq } else { links.at(next).prev.set(rq) }
    }

    /// Adds a request behind all others.
    #[inline]
    pub(super) fn push_back(&mut self, links: &Links, rq: u32) {
        self.link(links, rq, self.tail, NIL);
    }

    /// Adds a request before all others.
    pub(super) fn push_front(&mut self, links: &Links, rq: u32) {
        self.link(links, rq, NIL, self.head);
    }

    /// Takes the first request out.
    #[inline]
    pub(super) fn pop_front(&mut self, links: &Links) -> Option<u32> {
        let rq = self.head;
        if rq == NIL {
            return None;
        }
        let link = links.at(rq);
        self.head = link.next.get();
        if self.head == NIL {
            self.tail = NIL;
        } else {
            links.at(self.head).prev.set(NIL);
        }
        link.prev.set(UNLINKED);
        Some(rq)
    }

    /// Moves all of `other` behind what is here.
    #[inline]
    pub(super) fn append(&mut self, links: &Links, other: &mut RqChain) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.head = other.head;
        } else {
            links.at(self.tail).next.set(other.head);
            links.at(other.head).prev.set(self.tail);
        }
        self.tail = other.tail;
        *other = RqChain::EMPTY;
    }

    /// The requests from the last to the first.
    pub(super) fn newest_first<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + 'a {
        let some = |rq: u32| (rq != NIL).then_some(rq);
        core::iter::successors(some(self.tail), move |rq| some(links.at(*rq).prev.get()))
    }
}

/// Requests of one CPU for one hardware queue, by domain.
pub(super) struct CtxQueue<L: RawMutex> {
    pub(super) lists: Mutex<L, [RqChain; NR_DOMAINS]>,
    /// The hardware queue.
    pub(super) hctx: u16,
    /// Bit of this queue in its hardware queue's maps.
    bit: u32,
}

/// One hardware queue's part of the elevator.
pub(super) struct HctxQueue<L: RawMutex> {
    state: Mutex<L, HctxState>,
    /// Per domain: which of `ctxs` have requests. Written under the lock of the software queue.
    busy: [Sbitmap; NR_DOMAINS],
    /// Bit `d`: the hardware queue's own list of domain `d` is not empty, or is being filled.
    flushed: AtomicU8,
    /// Software queues mapped to this hardware queue, as indices into the table of all.
    ctxs: Box<[u32]>,
    ty: HctxType,
}

/// What the lock of a hardware queue protects.
pub(super) struct HctxState {
    flushed: [RqChain; NR_DOMAINS],
    /// Whose turn it is.
    pub(super) turn: Domain,
    /// Requests dispatched in this turn.
    pub(super) batching: u32,
    pub(super) users: [TokenUser; NR_DOMAINS],
}

impl HctxState {
    /// Requests of a domain that left their software queues and have no token yet, the oldest first.
    pub(super) fn listed(&self, domain: Domain, links: &Links) -> Vec<u32> {
        let mut rqs: Vec<_> = self.flushed[domain as usize].newest_first(links).collect();
        rqs.reverse();
        rqs
    }
}

/// All queues of a disk.
pub(super) struct Queues<L: RawMutex> {
    links: Links,
    ctxs: Box<[CachePadded<CtxQueue<L>>]>,
    hctxs: Box<[CachePadded<HctxQueue<L>>]>,
    map: QueueMap,
}

impl<L: RawMutex> Queues<L> {
    /// For `nr_requests` requests on the hardware queues of `map`.
    pub(super) fn new(nr_requests: usize, map: &QueueMap) -> Queues<L> {
        let ctx = |cpu: u16, ty: HctxType| {
            let hctx = map.hctx(cpu, ty);
            let bit = map.cpus_of(hctx).iter().position(|c| *c == cpu).expect("a CPU is in the mask of its hctx");
            let lists = Mutex::new([RqChain::EMPTY; NR_DOMAINS]);
            CachePadded::new(CtxQueue { lists, hctx, bit: bit as u32 })
        };
        let hctx = |hctx: u16| {
            let (cpus, ty) = (map.cpus_of(hctx), map.hctx_type(hctx));
            let state = HctxState {
                flushed: [RqChain::EMPTY; NR_DOMAINS],
                turn: Domain::Read,
                batching: 0,
                users: core::array::from_fn(|_| TokenUser::new(usize::from(hctx))),
            };
            CachePadded::new(HctxQueue {
                state: Mutex::new(state),
                busy: core::array::from_fn(|_| Sbitmap::with_shift(cpus.len() as u32, 3, false)),
                flushed: AtomicU8::new(0),
                ctxs: cpus.iter().map(|cpu| ctx_number(*cpu, ty)).collect(),
                ty,
            })
        };
        let types = [HctxType::Default, HctxType::Read, HctxType::Poll];
        Queues {
            links: Links::new(nr_requests),
            ctxs: (0..map.nr_cpus()).flat_map(|cpu| types.map(|ty| ctx(cpu, ty))).collect(),
            hctxs: (0..map.nr_hw_queues()).map(hctx).collect(),
            map: map.clone(),
        }
    }

    /// All hardware queues.
    pub(super) fn hctxs(&self) -> impl Iterator<Item = &HctxQueue<L>> {
        self.hctxs.iter().map(|h| &**h)
    }

    #[inline]
    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    #[inline]
    pub(super) fn hctx(&self, hctx: usize) -> &HctxQueue<L> {
        &self.hctxs[hctx]
    }

    /// The software queue through which `cpu` reaches `hctx`.
    #[inline]
    pub(super) fn ctx(&self, cpu: usize, hctx: usize) -> &CtxQueue<L> {
        &self.ctxs[ctx_number(cpu as u16, self.hctxs[hctx].ty) as usize]
    }

    /// The software queue in which `cpu` puts requests of a queue type.
    #[inline]
    pub(super) fn ctx_for(&self, cpu: usize, ty: HctxType) -> &CtxQueue<L> {
        self.ctx(cpu, usize::from(self.map.hctx(cpu as u16, ty)))
    }

    /// Whether a software queue has requests of a domain. Exact under its lock, otherwise it may be stale.
    #[inline]
    pub(super) fn is_busy(&self, ctx: &CtxQueue<L>, domain: Domain) -> bool {
        self.hctxs[usize::from(ctx.hctx)].busy[domain as usize].test_bit(ctx.bit)
    }

    /// Marks `ctx`, whose lock is held, as having requests of a domain.
    #[inline]
    pub(super) fn mark_busy(&self, ctx: &CtxQueue<L>, domain: Domain) {
        if !self.is_busy(ctx, domain) {
            self.hctxs[usize::from(ctx.hctx)].busy[domain as usize].set_bit(ctx.bit);
        }
    }

    /// Whether there are requests of a domain in `h`, whose lock is held, or in its software queues.
    #[inline]
    pub(super) fn has_requests(&self, h: &HctxQueue<L>, st: &HctxState, domain: Domain) -> bool {
        !st.flushed[domain as usize].is_empty() || h.busy[domain as usize].any_bit_set()
    }

    /// Takes the oldest request of a domain from the list of `h`, whose lock is held. If that list is empty, the
    /// requests of its software queues are moved there first.
    #[inline]
    pub(super) fn take(&self, h: &HctxQueue<L>, st: &mut HctxState, domain: Domain) -> Option<u32> {
        if st.flushed[domain as usize].is_empty() {
            self.flush_ctxs(h, st, domain);
        }
        let list = &mut st.flushed[domain as usize];
        let rq = list.pop_front(&self.links);
        if list.is_empty() {
            // Only the holder of the lock writes this.
            let rest = h.flushed.load(Ordering::Relaxed) & !(1 << domain as u8);
            h.flushed.store(rest, Ordering::Relaxed);
        }
        rq
    }

    fn flush_ctxs(&self, h: &HctxQueue<L>, st: &mut HctxState, domain: Domain) {
        // Set the flag before the bits are cleared, so that other threads see the requests in one place or the other.
        // Pairs with: HctxQueue::has_work
        h.flushed.store(h.flushed.load(Ordering::Relaxed) | 1 << domain as u8, Ordering::Release);
        let busy = &h.busy[domain as usize];
        busy.for_each_set(0, |bit| {
            let mut lists = self.ctxs[h.ctxs[bit as usize] as usize].lists.lock();
            busy.clear_bit(bit);
            st.flushed[domain as usize].append(&self.links, &mut lists[domain as usize]);
            true
        });
    }
}

#[inline]
fn ctx_number(cpu: u16, ty: HctxType) -> u32 {
    u32::from(cpu) * 3 + ty as u32
}

impl<L: RawMutex> HctxQueue<L> {
    #[inline]
    pub(super) fn lock(&self) -> impl DerefMut<Target = HctxState> + '_ {
        self.state.lock()
    }

    /// Whether this hardware queue has a request. The software queues are checked first: a request that has just left
    /// them is in `flushed`, or has been dispatched.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        // Pairs with: Queues::flush_ctxs
        self.busy.iter().any(Sbitmap::any_bit_set) || self.flushed.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;
    use std::collections::VecDeque;

    #[test]
    fn chains_behave_like_deques() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let size = 1 + rng.below(40) as u32;
            let links = Links::new(size as usize);
            let mut chains = [RqChain::EMPTY; 3];
            let mut models: [VecDeque<u32>; 3] = Default::default();
            for step in 0..2000 {
                let i = rng.below(3) as usize;
                let free = (0..size).find(|rq| !models.iter().any(|m| m.contains(rq)));
                match (rng.below(8), free) {
                    (0..3, Some(rq)) => {
                        chains[i].push_back(&links, rq);
                        models[i].push_back(rq);
                    }
                    (3, Some(rq)) => {
                        chains[i].push_front(&links, rq);
                        models[i].push_front(rq);
                    }
                    (4, _) => {
                        let j = (i + 1) % 3;
                        let mut other = core::mem::replace(&mut chains[j], RqChain::EMPTY);
                        chains[i].append(&links, &mut other);
                        assert!(other.is_empty());
                        let moved = core::mem::take(&mut models[j]);
                        models[i].extend(moved);
                    }
                    _ => assert_eq!(chains[i].pop_front(&links), models[i].pop_front()),
                }
                for (chain, model) in chains.iter().zip(&models) {
                    let newest_first: Vec<u32> = chain.newest_first(&links).collect();
                    assert!(newest_first.iter().rev().eq(model), "seed {seed} step {step}");
                    assert_eq!(chain.is_empty(), model.is_empty());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn a_request_is_in_one_list_only() {
        let links = Links::new(1);
        let (mut a, mut b) = (RqChain::EMPTY, RqChain::EMPTY);
        a.push_back(&links, 0);
        b.push_back(&links, 0);
    }
}
