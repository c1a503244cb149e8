// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator with the kernel's locks around it.
//!
//! Guarantees: decides as the elevator inside. Accounts for each hold of the kernel's lock at the call in which the kernel
//! takes it.

use super::lock::KernelLock;
use super::sites::{BFQ, ElevatorSites, KYBER, MQ_DEADLINE};
use crate::machine::meter;
use crate::wrapped::{built_in, forward_to_inner};
use blk::elevator::{BioMerge, BioRef, CustomElevator, DiskShape, Elevator, ElvCx};
use blk::id::HctxId;
use blk::request::Rq;

/// Elevators that dispatch request by request.
pub const ONE_BY_ONE: [CustomElevator; 3] = [
    CustomElevator { name: "mq-deadline", make: |disk| locked(&MQ_DEADLINE, disk, false) },
    CustomElevator { name: "bfq", make: |disk| locked(&BFQ, disk, false) },
    CustomElevator { name: "kyber", make: |disk| locked(&KYBER, disk, false) },
];

/// Elevators that dispatch a batch under one hold of their lock.
pub const IN_BATCHES: [CustomElevator; 3] = [
    CustomElevator { name: "mq-deadline", make: |disk| locked(&MQ_DEADLINE, disk, true) },
    CustomElevator { name: "bfq", make: |disk| locked(&BFQ, disk, true) },
    CustomElevator { name: "kyber", make: |disk| locked(&KYBER, disk, true) },
];

fn locked(sites: &'static ElevatorSites, disk: &DiskShape<'_>, batches: bool) -> Box<dyn Elevator> {
    let nr_locks = if sites.per_hctx { disk.map.nr_hw_queues() } else { 1 };
    Box::new(Locked {
        inner: built_in(sites.name, disk),
        sites,
        batches,
        locks: (0..nr_locks).map(|_| KernelLock::default()).collect(),
        counters: KernelLock::default(),
    })
}

struct Locked {
    inner: Box<dyn Elevator>,
    sites: &'static ElevatorSites,
    batches: bool,
    /// The lock of the disk, or those of its hardware queues.
    locks: Box<[KernelLock]>,
    /// Counters that completions share, where they have no need of the lock.
    counters: KernelLock,
}

impl Locked {
    /// Accounts for a run in which `n` requests were dispatched. The kernel looks for work without the lock, and takes it
    /// in vain only if the elevator holds back what it has.
    fn dispatched(&self, hctx: HctxId, n: usize, in_vain: bool) {
        let lock = &self.locks[if self.sites.per_hctx { hctx.index() } else { 0 }];
        let (one, none) = (&self.sites.dispatch, &self.sites.dispatch_none);
        if self.batches && n > 0 {
            return lock.take_with(one, self.sites.dispatch_more, n as u64 - 1);
        }
        (0..n).for_each(|_| lock.take(one));
        if in_vain {
            lock.take(none);
        }
    }
}

impl Elevator for Locked {
    forward_to_inner!();

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        match self.sites.per_hctx {
            true => meter::charge(meter::scaled(self.sites.merge.hold_ns)),
            false => self.locks[0].take(&self.sites.merge),
        }
        self.inner.bio_merge(cx, bio)
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let (site, n) = (&self.sites.insert, rqs.len() as u64);
        match self.sites.insert_each {
            _ if self.sites.per_hctx => meter::charge(meter::scaled(site.hold_ns) * n as u32),
            Some(each) => self.locks[0].take_with(site, each, n),
            None => (0..n).for_each(|_| self.locks[0].take(site)),
        }
        self.inner.insert(cx, rqs, at_head, freed);
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let before = out.len();
        self.inner.dispatch(cx, hctx, max, out);
        let n = out.len() - before;
        self.dispatched(hctx, n, n < max && self.has_work(hctx));
    }

    fn has_work(&self, hctx: HctxId) -> bool {
        self.inner.has_work(hctx)
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        meter::charge(meter::scaled(self.sites.unlocked_ns));
        let site = &self.sites.finish;
        let lock = if site.lock == self.sites.dispatch.lock { &self.locks[0] } else { &self.counters };
        lock.take(site);
        self.inner.completed(cx, rq);
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.inner.requeued(cx, rq);
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inner.set_tunable(name, value)
    }
}
