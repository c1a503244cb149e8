// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kyber: latency targets for reads and writes, met by bounding how many requests of each kind are at the disk.
//!
//! # Synopsis
//! Requests belong to domains: reads, writes, discards, others. A request goes to the disk with a token of its domain. There
//! are at most 256, 128, 64 and 16 of these. When the disk gets slow (see `depth`), domains well within their target get
//! fewer tokens, which leaves room for those that miss theirs. Each hardware queue serves the domains in turn, up to 16, 8,
//! 1 and 1 requests each; within a domain the order is that of arrival. Asynchronous writes may use three quarters of the
//! scheduler tags.
//!
//! # Options
//! `read_lat_nsec` (ns, 2000000), `write_lat_nsec` (ns, 10000000): the targets. Discards have one of 5 s that cannot be
//! changed.
//!
//! # Example
//! `mqblk run job.fio --set scheduler=kyber --set iosched.read_lat_nsec=1000000`
//!
//! # Limits
//! No lock is taken for the whole disk. A bio is merged only into one of the last eight requests of its CPU's own queue
//! and domain, while they are in that queue. Adjacent requests of different CPUs are not merged, and requests are not
//! joined. Priorities are ignored. The depths adapt only after 500 completions of a kind, see `latency`.
//!
//! A caller that runs hardware queues by itself must implement [`HctxRunner`](super::HctxRunner): a hardware queue that
//! found no token must be run again when kyber asks for it.
//!
//! # Differences from the kernel
//! There is no timer. The next call into the elevator adjusts the depths, as of the time at which the kernel's timer
//! fires. Each put of a token wakes one of the hardware queues that wait; the kernel wakes up to eight at every eighth
//! put.
//!
//! # Since
//! Behaviour of Linux 6.12 to 6.19, block/kyber-iosched.c.

mod depth;
mod domain;
mod latency;
mod queues;

#[cfg(test)]
mod tests;

use super::interface::{BioMerge, BioRef, Elevator, ElvCx, Tunable};
use super::tunables::{TunableDef, TunableSet};
use crate::bio::{Op, OpFlags};
use crate::cpumap::{HctxType, QueueMap};
use crate::elevator::interface::DebugAttr;
use crate::id::HctxId;
use crate::path::merge::{self, MergeKind};
use crate::relaxed::FieldU16;
use crate::request::{RequestId, Rq};
use crate::time::Instant;
use depth::DepthControl;
use domain::{BATCH, DEPTH, Domain, NR_DOMAINS, NR_TIMED, Tokens};
use latency::{CpuHistograms, Kind, bucket_of};
use lock_api::RawMutex;
use queues::{HctxQueue, HctxState, Queues};

/// The name in `queue/scheduler`.
pub const NAME: &str = "kyber";

static TUNABLES: [TunableDef; 2] = [
    TunableDef { name: "read_lat_nsec", default: 2_000_000, min: 0, max: u64::MAX, unit: "ns" },
    TunableDef { name: "write_lat_nsec", default: 10_000_000, min: 0, max: u64::MAX, unit: "ns" },
];
const DISCARD_LAT_NSEC: u64 = 5_000_000_000;

/// Share of the scheduler tags that asynchronous requests may use.
const ASYNC_PERCENT: u32 = 75;

/// Number of the newest requests in its CPU's list that a bio is tried against.
const MERGE_DEPTH: usize = 8;

/// In `token_of`: the request has no token.
const NO_TOKEN: u16 = u16::MAX;

/// The elevator of one disk; `L` is the lock of its many small parts.
pub struct Kyber<L: RawMutex> {
    tunables: TunableSet<2>,
    async_depth: u32,
    queues: Queues<L>,
    tokens: [Tokens<L>; NR_DOMAINS],
    /// Per request: the token it went to the disk with. A field belongs to the owner of the request.
    token_of: Box<[FieldU16]>,
    latencies: CpuHistograms,
    control: DepthControl<L>,
}

impl<L: RawMutex> Kyber<L> {
    /// For a disk with `nr_slab_requests` requests in all, the hardware queues of `map`, and `nr_requests` scheduler tags
    /// on each of them.
    pub fn new(nr_slab_requests: usize, map: &QueueMap, nr_requests: u32) -> Kyber<L> {
        let no_token = || {
            let token = FieldU16::default();
            token.set(NO_TOKEN);
            token
        };
        Kyber {
            tunables: TunableSet::new(&TUNABLES),
            async_depth: (nr_requests * ASYNC_PERCENT / 100).max(1),
            queues: Queues::new(nr_slab_requests, map),
            tokens: DEPTH.map(Tokens::new),
            token_of: (0..nr_slab_requests).map(|_| no_token()).collect(),
            latencies: CpuHistograms::new(map.nr_cpus()),
            control: DepthControl::new(),
        }
    }

    /// Latency target of a timed domain, ns.
    #[inline]
    fn target_ns(&self, domain: usize) -> u64 {
        if domain == Domain::Discard as usize { DISCARD_LAT_NSEC } else { self.tunables.get(domain) }
    }

    #[inline]
    fn catch_up(&self, now: Instant) {
        self.control.look_if_due(now, &self.latencies, &self.tokens);
    }

    /// Gives back the token of a request that has left the disk.
    #[inline]
    fn put_token(&self, cx: &ElvCx<'_>, id: RequestId) {
        let field = &self.token_of[id.index()];
        let token = field.get();
        if token != NO_TOKEN {
            field.set(NO_TOKEN);
            self.tokens[Domain::of(cx.rqs.get(id).op()) as usize].put(cx, token);
        }
    }

    /// Takes the next request of a hardware queue. The present turn continues if possible. Otherwise the domains are
    /// tried round robin, the present one last.
    fn next(&self, hctx: HctxId, h: &HctxQueue<L>, st: &mut HctxState) -> Option<u32> {
        if st.batching < BATCH[st.turn as usize]
            && let Some(rq) = self.next_of_turn(hctx, h, st)
        {
            return Some(rq);
        }
        st.batching = 0;
        (0..NR_DOMAINS).find_map(|_| {
            st.turn = st.turn.next();
            self.next_of_turn(hctx, h, st)
        })
    }

    /// Takes a request of the domain whose turn it is, and a token for it.
    #[inline]
    fn next_of_turn(&self, hctx: HctxId, h: &HctxQueue<L>, st: &mut HctxState) -> Option<u32> {
        let domain = st.turn;
        if !self.queues.has_requests(h, st, domain) {
            return None;
        }
        // First the token: requests without one stay where bios can still be merged into them.
        let token = self.tokens[domain as usize].get(hctx, &mut st.users[domain as usize])?;
        let rq = self.queues.take(h, st, domain).expect("requests leave only under the lock that is held");
        st.batching += 1;
        self.token_of[rq as usize].set(token);
        Some(rq)
    }

    /// Requests at the disk, per domain.
    #[cfg(test)]
    fn tokens_in_use(&self) -> [u32; NR_DOMAINS] {
        core::array::from_fn(|d| self.tokens[d].in_use())
    }
}

impl<L: RawMutex + Send + Sync> Elevator for Kyber<L> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        let slot = cx.bios.bio(bio.0);
        if cx.nomerges >= 2 || !merge::bio_is_mergeable(slot) {
            return BioMerge::No;
        }
        let domain = Domain::of(slot.op());
        let ctx = self.queues.ctx_for(cx.cpu.index(), HctxType::of(slot.op(), slot.flags()));
        if !self.queues.is_busy(ctx, domain) {
            return BioMerge::No;
        }
        let lists = ctx.lists.lock();
        let mut last = lists[domain as usize].newest_first(self.queues.links()).take(MERGE_DEPTH);
        let merged = last.find_map(|rq| {
            let rq = cx.rqs.get(RequestId::new(rq));
            // A request that adjoins but may not grow ends the search: no other request would be found at that sector.
            match merge::bio_merge_kind(rq, slot)? {
                MergeKind::Back => Some(merge::bio_attempt_back_merge(cx, rq, bio.0)),
                MergeKind::Front => Some(merge::bio_attempt_front_merge(cx, rq, bio.0)),
            }
        });
        if merged == Some(true) { BioMerge::Merged { freed: None } } else { BioMerge::No }
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, _freed: &mut Vec<Rq>) {
        self.catch_up(cx.now);
        if at_head {
            rqs.reverse();
        }
        let place_of = |rq: &Rq| {
            let fields = cx.rqs.get(rq.id());
            (fields.cpu(), fields.hctx())
        };
        for same in rqs.chunk_by(|a, b| place_of(a) == place_of(b)) {
            let (cpu, hctx) = place_of(&same[0]);
            let ctx = self.queues.ctx(cpu.index(), hctx.index());
            let mut lists = ctx.lists.lock();
            for rq in same {
                let domain = Domain::of(cx.rqs.get(rq.id()).op());
                let (list, id) = (&mut lists[domain as usize], rq.id().index() as u32);
                if at_head {
                    list.push_front(self.queues.links(), id);
                } else {
                    list.push_back(self.queues.links(), id);
                }
                self.queues.mark_busy(ctx, domain);
            }
        }
        rqs.clear();
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        self.catch_up(cx.now);
        let h = self.queues.hctx(hctx.index());
        let mut st = h.lock();
        for _ in 0..max {
            // `next` is not called without requests: that would end the batch, and in the kernel a batch survives a
            // pause.
            if !h.has_work() {
                break;
            }
            let Some(rq) = self.next(hctx, h, &mut st) else { break };
            out.push(Rq::from_id(RequestId::new(rq)));
        }
    }

    #[inline]
    fn has_work(&self, hctx: HctxId) -> bool {
        self.queues.hctx(hctx.index()).has_work()
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.catch_up(cx.now);
        let fields = cx.rqs.get(rq.id());
        let domain = Domain::of(fields.op()) as usize;
        if domain < NR_TIMED {
            let target = self.target_ns(domain);
            for (kind, from_ns) in [(Kind::Total, fields.alloc_ns.get()), (Kind::Io, fields.issue_ns.get())] {
                let latency = cx.now.as_ns().saturating_sub(from_ns);
                self.latencies.add(cx.cpu.index(), domain, kind, bucket_of(latency, target));
            }
            self.control.arm(cx.now);
        }
        self.put_token(cx, rq.id());
    }

    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32> {
        (!flags.is_sync(op)).then_some(self.async_depth)
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.put_token(cx, rq.id());
    }

    fn debug(&self) -> Vec<DebugAttr> {
        let mut files = vec![DebugAttr::value("async_depth", self.async_depth)];
        for domain in Domain::ALL {
            let tokens = &self.tokens[domain as usize];
            let text = format!("depth={}\nbusy={}", tokens.depth(), tokens.in_use());
            files.push(DebugAttr::value(format!("{}_tokens", domain.name()), text));
        }
        for (i, h) in self.queues.hctxs().enumerate() {
            let st = h.lock();
            files.push(DebugAttr::value("batching", st.batching).of_hctx(i));
            files.push(DebugAttr::value("cur_domain", st.turn.name()).of_hctx(i));
            for domain in Domain::ALL {
                let rqs = st.listed(domain, self.queues.links());
                files.push(DebugAttr::list(format!("{}_rqs", domain.name()), rqs.into_iter()).of_hctx(i));
            }
        }
        files
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.tunables.list()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.tunables.set(NAME, name, value)
    }
}
