// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator with the kernel's locks around it.
//!
//! Guarantees: decides as the elevator inside. Accounts for each hold of the kernel's lock at the call in which the kernel
//! takes it. The locks of the elevator inside cost nothing.

use super::lock::KernelLock;
use super::sites::{BFQ, ElevatorSites, KYBER, MQ_DEADLINE};
use crate::machine::meter;
use crate::pressure::unfair::forward_to_inner;
use blk::elevator::{BioMerge, BioRef, CustomElevator, DiskShape, Elevator, ElvCx, for_map};
use blk::id::HctxId;
use blk::request::Rq;
use parking_lot::Mutex;

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
    let inner = for_map::<parking_lot::RawMutex>(sites.name, disk.nr_slab_requests, disk.map, disk.nr_requests);
    let inner = inner.expect("built in").expect("an elevator");
    let (lock, counters) = (KernelLock::default(), KernelLock::default());
    Box::new(Locked { inner, sites, batches, lock, counters, hctxs: Mutex::default() })
}

struct Locked {
    inner: Box<dyn Elevator>,
    sites: &'static ElevatorSites,
    batches: bool,
    lock: KernelLock,
    /// Counters that completions share, where they have no need of the lock.
    counters: KernelLock,
    /// The locks of hardware queues, where each has its own.
    hctxs: Mutex<Vec<KernelLock>>,
}

impl Locked {
    /// Accounts for a run in which `n` requests were dispatched. The kernel looks for work without the lock, and takes it
    /// in vain only if the elevator holds back what it has.
    fn dispatched(&self, lock: &KernelLock, n: usize, in_vain: bool) {
        let (one, none) = (self.sites.dispatch, self.sites.dispatch_none);
        if self.batches && n > 0 {
            let ((hold, lines), more) = (self.sites.dispatch_more, n as u64 - 1);
            return lock.take_scaled(
                u64::from(one.hold_ns) + u64::from(hold) * more,
                u64::from(one.lines) + u64::from(lines) * more,
            );
        }
        (0..n).for_each(|_| lock.take(&one));
        if in_vain {
            lock.take(&none);
        }
    }
}

impl Elevator for Locked {
    forward_to_inner!();

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        match self.sites.per_hctx {
            true => meter::charge(meter::scaled(self.sites.merge.hold_ns)),
            false => self.lock.take(&self.sites.merge),
        }
        self.inner.bio_merge(cx, bio)
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let (site, n) = (&self.sites.insert, rqs.len() as u64);
        match self.sites.insert_each {
            _ if self.sites.per_hctx => meter::charge(meter::scaled(site.hold_ns) * n as u32),
            Some((hold, lines)) => {
                self.lock.take_scaled(
                    u64::from(site.hold_ns) + u64::from(hold) * n,
                    u64::from(site.lines) + u64::from(lines) * n,
                );
            }
            None => (0..n).for_each(|_| self.lock.take(site)),
        }
        self.inner.insert(cx, rqs, at_head, freed);
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let before = out.len();
        self.inner.dispatch(cx, hctx, max, out);
        let n = out.len() - before;
        let in_vain = n < max && self.has_work(hctx);
        if !self.sites.per_hctx {
            return self.dispatched(&self.lock, n, in_vain);
        }
        let mut hctxs = self.hctxs.lock();
        if hctxs.len() <= hctx.index() {
            hctxs.resize_with(hctx.index() + 1, KernelLock::default);
        }
        self.dispatched(&hctxs[hctx.index()], n, in_vain);
    }

    fn has_work(&self, hctx: HctxId) -> bool {
        self.inner.has_work(hctx)
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        meter::charge(meter::scaled(self.sites.unlocked_ns));
        if let Some(site) = &self.sites.finish {
            let lock = if site.lock == self.sites.dispatch.lock { &self.lock } else { &self.counters };
            lock.take(site);
        }
        self.inner.completed(cx, rq);
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.inner.requeued(cx, rq);
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inner.set_tunable(name, value)
    }
}
