// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One path: passes requests on to the disk while it works, and fails or delays them while it does not.
//!
//! The disk delivers completions to whichever path polls it, so [`Shared`] records the path of each request.

use crate::disk::SimDisk;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::driver::{Completions, Driver, InFlight, RqBatch, TimedOut, TimeoutAnswer, Verdict};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all paths of a disk have in common.
#[derive(Default)]
pub(super) struct Shared(Mutex<Fabric>);

#[derive(Default)]
struct Fabric {
    /// The path by which each request at the disk came, by hctx and tag.
    owners: BTreeMap<(usize, usize), usize>,
    /// How often the disk was started.
    starts: u64,
    /// A path is being added to a running disk.
    adding: bool,
    trace: Trace,
}

impl Shared {
    /// The path that a request at the disk came by.
    pub(super) fn owner(&self, hctx: usize, tag: usize) -> Option<usize> {
        locked(&self.0).owners.get(&(hctx, tag)).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        locked(&self.0).owners.is_empty()
    }

    pub(super) fn trace_to(&self, trace: &Trace) {
        locked(&self.0).trace = trace.clone();
    }

    pub(super) fn set_adding(&self, adding: bool) {
        locked(&self.0).adding = adding;
    }

    fn event(&self, now: Instant, what: std::fmt::Arguments<'_>) {
        locked(&self.0).trace.event(now.as_ns(), 'F', what);
    }
}

/// A request that the path has not passed on.
struct HeldRequest {
    hctx: HctxId,
    rq: InFlight,
    issued: u64,
    /// When the path completes it; [`u64::MAX`]: only its timeout completes it.
    due: u64,
    status: BlkStatus,
}

struct Inner {
    rng: Rng,
    down_until: u64,
    slower_ns: u64,
    busy: u32,
    kept: Vec<HeldRequest>,
    starts: u64,
}

/// A driver that passes requests to the disk.
pub struct SimPath {
    n: usize,
    disk: Arc<SimDisk>,
    shared: Arc<Shared>,
    /// The status that it returns while it is down.
    error: BlkStatus,
    inner: Mutex<Inner>,
}

/// What a path that is down does with a request.
enum PathFailure {
    Refuses,
    EndsAtOnce,
    EndsAt(u64),
    IsSilent,
}

/// Longest time until a path that is down fails a request, ns.
const LATE_NS: u64 = 5_000_000;

impl SimPath {
    pub(super) fn new(n: usize, disk: Arc<SimDisk>, shared: Arc<Shared>, rng: Rng, error: BlkStatus) -> SimPath {
        let inner = Inner { rng, down_until: 0, slower_ns: 0, busy: 0, kept: Vec::new(), starts: 0 };
        SimPath { n, disk, shared, error, inner: Mutex::new(inner) }
    }

    pub(super) fn number(&self) -> usize {
        self.n
    }

    pub(super) fn take_down(&self, until: u64) {
        locked(&self.inner).down_until = until;
    }

    pub(super) fn slow_down(&self, ns: u64) {
        locked(&self.inner).slower_ns = ns;
    }

    pub(super) fn make_busy(&self, per_mille: u32) {
        locked(&self.inner).busy = per_mille;
    }

    pub(super) fn repair(&self) {
        let mut i = locked(&self.inner);
        (i.down_until, i.slower_ns, i.busy) = (0, 0, 0);
    }

    pub(super) fn is_down(&self, now: u64) -> bool {
        now < locked(&self.inner).down_until
    }

    pub(super) fn kept(&self) -> usize {
        locked(&self.inner).kept.len()
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        locked(&self.inner).kept.iter().map(|k| k.due).filter(|d| *d != u64::MAX).min()
    }

    pub(super) fn is_ready(&self, hctx: HctxId, now: u64) -> bool {
        locked(&self.inner).kept.iter().any(|k| k.hctx == hctx && k.due <= now)
    }

    /// The disk has completed a request or given it back, no matter by which path it came.
    fn ended(&self, hctx: HctxId, tag: usize, status: Option<BlkStatus>) -> Verdict {
        let owner = locked(&self.shared.0).owners.remove(&(hctx.index(), tag));
        assert!(owner.is_some(), "hctx {} tag {tag}: the disk ended what no path sent", hctx.index());
        match status {
            // The disk returns this for a broken path; a planted bug returns a wrong error instead.
            Some(BlkStatus::Transport) => Verdict::Ends(self.error),
            Some(status) => Verdict::Ends(status),
            None => Verdict::Again(None),
        }
    }

    fn trouble(&self, now: u64) -> Option<PathFailure> {
        let mut i = locked(&self.inner);
        if now >= i.down_until {
            return None;
        }
        Some(match i.rng.below(4) {
            0 => PathFailure::Refuses,
            1 => PathFailure::EndsAtOnce,
            2 => PathFailure::EndsAt(now + i.rng.below(LATE_NS)),
            _ => PathFailure::IsSilent,
        })
    }

    /// Passes the front request on. Returns the disk's status if the disk did not take the request.
    fn pass_on(&self, batch: &mut RqBatch<'_>, now: Instant) -> Option<QueueRqStatus> {
        let hctx = batch.hctx();
        let key = (hctx.index(), batch.front()?.tag().index());
        locked(&self.shared.0).owners.insert(key, self.n);
        self.disk.comes_by(Some(self.n));
        let lent = batch.lend(1, self.disk.as_ref(), now);
        self.disk.comes_by(None);
        batch.review_ended(
            &lent,
            |tag, status| self.ended(hctx, tag.index(), Some(status)),
            |_, _| unreachable!("no verdict here is Again"),
        );
        if lent.taken == 0 {
            locked(&self.shared.0).owners.remove(&key);
            return Some(lent.status);
        }
        let slower = locked(&self.inner).slower_ns;
        self.disk.delay(key.0, key.1, slower);
        None
    }
}

impl Driver for SimPath {
    fn name(&self) -> &'static str {
        "path"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn capacity(&self) -> Sector {
        self.disk.capacity()
    }

    /// Starts the one disk only when the first of its paths is started again, not when a path is added later.
    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let (mut i, mut fabric) = (locked(&self.inner), locked(&self.shared.0));
        let is_first = i.starts == fabric.starts && !fabric.adding;
        fabric.starts += u64::from(is_first);
        i.starts = fabric.starts;
        drop((i, fabric));
        if is_first { self.disk.start(nr_hw_queues, queue_depth) } else { Ok(()) }
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let (hctx, n) = (batch.hctx(), self.n);
        while let Some(rq) = batch.front() {
            let tag = rq.tag().index();
            let tell =
                |what: &str| self.shared.event(now, format_args!("path {n} hctx {} tag {tag} {what}", hctx.index()));
            let (due, status) = match self.trouble(now.as_ns()) {
                None => {
                    let mut i = locked(&self.inner);
                    let busy = i.busy;
                    if i.rng.per_mille(busy) {
                        drop(i);
                        tell("busy");
                        return QueueRqStatus::Resource;
                    }
                    drop(i);
                    if let Some(status) = self.pass_on(batch, now) {
                        return status;
                    }
                    continue;
                }
                Some(PathFailure::Refuses) => {
                    tell("refused");
                    return QueueRqStatus::Error(self.error);
                }
                Some(PathFailure::EndsAtOnce) => {
                    tell("failed at once");
                    batch.end(self.error);
                    continue;
                }
                Some(PathFailure::EndsAt(due)) => (due, self.error),
                Some(PathFailure::IsSilent) => (u64::MAX, BlkStatus::Timeout),
            };
            tell(if due == u64::MAX { "lost" } else { "fails later" });
            let kept = HeldRequest { hctx, rq: batch.accept(), issued: now.as_ns(), due, status };
            locked(&self.inner).kept.push(kept);
        }
        QueueRqStatus::Queued
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        let mut i = locked(&self.inner);
        let asked = |k: &HeldRequest| k.hctx == hctx && k.rq.tag() == late.tag && k.issued == late.issued.as_ns();
        if let Some(at) = i.kept.iter().position(asked) {
            let HeldRequest { rq, status, .. } = i.kept.remove(at);
            drop(i);
            done.push(rq, status);
            return TimeoutAnswer::Done;
        }
        drop(i);
        done.timeout_below(self.disk.as_ref(), late, now, |tag, s| self.ended(hctx, tag.index(), s))
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut i = locked(&self.inner);
        while done.room() > 0
            && let Some(at) = i.kept.iter().position(|k| k.hctx == hctx && k.due <= now.as_ns())
        {
            let HeldRequest { rq, status, .. } = i.kept.remove(at);
            done.push(rq, status);
        }
        drop(i);
        if done.room() > 0 {
            done.poll_below(self.disk.as_ref(), now, |tag, s| self.ended(hctx, tag.index(), s));
        }
    }
}
