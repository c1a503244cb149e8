// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator with the kernel's locks around it.
//!
//! Guarantees: decides as the elevator inside. Accounts for each hold of the kernel's lock at the call in which the kernel
//! takes it. The locks of the elevator inside cost nothing.

use super::lock::KernelLock;
use super::sites::{ELEVATORS, ElevatorSites};
use crate::machine::meter;
use blk::bio::{Op, OpFlags};
use blk::elevator::{BioMerge, BioRef, DebugAttr, Elevator, ElvCx, Tunable};
use blk::id::{HctxId, SubmitterId};
use blk::request::Rq;
use blk::time::Instant;
use parking_lot::Mutex;

/// An elevator that dispatches request by request.
pub fn locked(inside: Box<dyn Elevator>) -> Box<dyn Elevator> {
    wrap(inside, false)
}

/// An elevator that dispatches a batch under one hold of its lock.
pub fn locked_in_batches(inside: Box<dyn Elevator>) -> Box<dyn Elevator> {
    wrap(inside, true)
}

fn wrap(inside: Box<dyn Elevator>, batches: bool) -> Box<dyn Elevator> {
    match ELEVATORS.iter().find(|sites| sites.name == inside.name()) {
        Some(sites) => {
            let (lock, counters) = (KernelLock::default(), KernelLock::default());
            Box::new(Locked { inside, sites, batches, lock, counters, hctxs: Mutex::default() })
        }
        None => inside,
    }
}

struct Locked {
    inside: Box<dyn Elevator>,
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
    fn name(&self) -> &'static str {
        self.inside.name()
    }

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        match self.sites.per_hctx {
            true => meter::charge(meter::scaled(self.sites.merge.hold_ns)),
            false => self.lock.take(&self.sites.merge),
        }
        meter::without_locks(|| self.inside.bio_merge(cx, bio))
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
        meter::without_locks(|| self.inside.insert(cx, rqs, at_head, freed));
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let before = out.len();
        meter::without_locks(|| self.inside.dispatch(cx, hctx, max, out));
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
        meter::without_locks(|| self.inside.has_work(hctx))
    }

    fn next_run(&self) -> Option<Instant> {
        meter::without_locks(|| self.inside.next_run())
    }

    fn may_hold(&self) -> bool {
        self.inside.may_hold()
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        meter::charge(meter::scaled(self.sites.unlocked_ns));
        if let Some(site) = &self.sites.finish {
            let lock = if site.lock == self.sites.dispatch.lock { &self.lock } else { &self.counters };
            lock.take(site);
        }
        meter::without_locks(|| self.inside.completed(cx, rq));
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        meter::without_locks(|| self.inside.requeued(cx, rq));
    }

    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32> {
        meter::without_locks(|| self.inside.limit_depth(op, flags))
    }

    fn limit_depth_of(&self, submitter: SubmitterId, op: Op, flags: OpFlags) -> Option<u32> {
        meter::without_locks(|| self.inside.limit_depth_of(submitter, op, flags))
    }

    fn debug(&self) -> Vec<DebugAttr> {
        self.inside.debug()
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.inside.tunables()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inside.set_tunable(name, value)
    }
}
