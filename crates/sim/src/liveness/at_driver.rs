// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `none` and the legacy elevators owe a request in any case, seen from the driver.
//!
//! A request knows when it was queued and when it left the queue. When it is first offered to the driver, the check
//! counts those that were queued later and left earlier. Times are compared strictly, so requests of one instant are in
//! no order. The single queue and a hardware queue offer requests in the order in which they left. A request that
//! starves for ever is never offered, and is found at the end of the case. A request that bypasses the queue (a step of
//! a flush sequence) leaves it when it comes, and does not count.
//!
//! Let n be the requests of the same group that were before it: of its direction, or of its CPU and hardware queue.
//!
//! **noop**: first come, first served. No request is overtaken.
//!
//! **deadline**: as in `pressure::legacy`. In addition, a batch continues with the request that followed the last one,
//! or begins at the oldest of its direction. So whenever the next sector of a direction is lower, the oldest was taken:
//! at most n times.
//!
//! **none**: a request waits in the software queue of its CPU, which is in order. While the device is busy, the
//! hardware queue takes one request of each CPU in turn: at most n + 1 of each other CPU. Otherwise it takes all at
//! once, CPU by CPU, once: at most as many as it has tags. Requests that are issued at once enter no queue, as in the
//! kernel, and do not count.

use crate::harness::Harness;
use crate::pressure::turns::between_directions;
use blk::bio::Op;
use blk::driver::{Completions, Driver, RqBatch, RqRef, TimedOut, TimeoutAnswer};
use blk::elevator::{NONE, deadline};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::settings::Mode;
use blk::status::QueueRqStatus;
use blk::time::Instant;
use std::sync::{Arc, Mutex, PoisonError};

const MS: u64 = 1_000_000;

/// A request that the driver was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    now: u64,
    hctx: usize,
    cpu: usize,
    op: Op,
    sector: u64,
    /// When it was queued, and when it left the queue.
    queued: u64,
    left: u64,
}

impl Offer {
    fn of(rq: &RqRef<'_>, hctx: HctxId, now: Instant) -> Offer {
        let (queued, left) = rq.queued_times();
        let (queued, left, now) = (queued.as_ns(), left.as_ns(), now.as_ns());
        Offer { now, hctx: hctx.index(), cpu: rq.cpu().index(), op: rq.op(), sector: rq.sector().0, queued, left }
    }

    /// Whether `other` is an earlier offer of the same request.
    fn is_again(&self, other: &Offer) -> bool {
        Offer { now: self.now, hctx: self.hctx, ..*other } == *self
    }
}

/// A driver that records what it is offered, once asked to.
pub(crate) struct Offers {
    inner: Arc<dyn Driver>,
    log: Mutex<Option<Vec<Offer>>>,
}

impl Offers {
    pub(crate) fn to(inner: Arc<dyn Driver>) -> Arc<Offers> {
        Arc::new(Offers { inner, log: Mutex::default() })
    }

    /// What was offered since the last call. Nothing is recorded before the first one.
    fn take(&self) -> Vec<Offer> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).replace(Vec::new()).unwrap_or_default()
    }
}

impl Driver for Offers {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn capacity(&self) -> Sector {
        self.inner.capacity()
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.inner.start(nr_hw_queues, queue_depth)
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        if let Some(log) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner) {
            let hctx = batch.hctx();
            log.extend((0..batch.remaining()).filter_map(|n| batch.peek(n)).map(|rq| Offer::of(&rq, hctx, now)));
        }
        self.inner.queue_rqs(batch, now)
    }

    fn budget(&self, hctx: HctxId) -> u32 {
        self.inner.budget(hctx)
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        self.inner.timeout(hctx, late, done, now)
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.inner.poll(hctx, done, now);
    }
}

/// The requests that one disk's driver was offered.
pub(crate) struct AtDriver {
    rules: Option<QueueRules>,
    /// The first offer of each request since the rules last changed.
    seen: Vec<Offer>,
    /// Checks the rules of this elevator, with its default tunables, whatever the disk has: a planted bug.
    instead: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueRules {
    Noop,
    Deadline {
        batch: u64,
        starved: u64,
        expire_ns: [u64; 2],
    },
    /// Tags, and most CPUs of a hardware queue.
    None {
        tags: u64,
        cpus: u64,
    },
}

impl QueueRules {
    /// The rules of a disk, if they are checked here.
    fn of(harness: &Harness, instead: Option<&'static str>) -> Option<QueueRules> {
        let (q, config) = (&harness.q, harness.q.config());
        let name = instead.map_or_else(|| q.scheduler(), String::from);
        let legacy = || match name.as_str() {
            deadline::NAME => {
                let tunables = q.iosched();
                let value = |name, default| match instead {
                    None => super::value(&tunables, name),
                    Some(_) => default,
                };
                let expire_ns = [value("read_expire", 500) * MS, value("write_expire", 5000) * MS];
                QueueRules::Deadline { batch: value("fifo_batch", 16), starved: value("writes_starved", 2), expire_ns }
            }
            _ => QueueRules::Noop,
        };
        if config.mode == Mode::Sq {
            return Some(legacy());
        }
        let map = q.map();
        let cpus = (0..map.nr_hw_queues()).map(|h| map.cpus_of(h).len() as u64).max().unwrap_or(1);
        (name == NONE).then(|| QueueRules::None { tags: config.queue_depth.into(), cpus })
    }
}

impl AtDriver {
    /// Counts from now on; `instead` as in the field.
    pub(crate) fn new(instead: Option<&'static str>) -> AtDriver {
        AtDriver { rules: None, seen: Vec::new(), instead }
    }

    /// Checks what the driver was offered since the last call. To be called before the elevator changes. Panics if a
    /// request starved.
    pub(crate) fn look(&mut self, harness: &Harness) {
        let rules = QueueRules::of(harness, self.instead);
        if self.rules != rules {
            self.rules = rules;
            self.seen.clear();
        }
        for offer in harness.offers.take() {
            let window = self.seen.iter().rev().take_while(|o| o.now >= offer.queued);
            // A flush enters no queue, so its times are those of an earlier request.
            if offer.op == Op::Flush || offer.left < offer.queued || window.clone().any(|o| offer.is_again(o)) {
                continue;
            }
            if let Some(rules) = &self.rules {
                check(rules, window, &offer);
                self.seen.push(offer);
            }
        }
    }
}

/// Checks a request against those that were offered since it was queued, the last one first.
fn check<'a>(rules: &QueueRules, window: impl Iterator<Item = &'a Offer> + Clone, r: &Offer) {
    let overtook = || window.clone().filter(|o| o.queued > r.queued && o.queued < o.left && o.left < r.left);
    match rules {
        QueueRules::Noop => {
            let first = overtook().next();
            assert!(first.is_none(), "noop: {r:?} starves: {first:?} overtook it");
        }
        QueueRules::Deadline { batch, starved, expire_ns } => {
            check_deadline(*batch, *starved, expire_ns[usize::from(r.op.is_write())], window, r);
        }
        QueueRules::None { tags, cpus } => {
            let overtook = || overtook().filter(|o| o.hctx == r.hctx);
            let own = overtook().find(|o| o.cpu == r.cpu);
            assert!(own.is_none(), "none: {r:?} starves: {own:?} of its CPU overtook it");
            let is_before =
                |o: &&Offer| (o.hctx, o.cpu) == (r.hctx, r.cpu) && o.queued <= r.queued && o.left >= r.queued;
            let before = window.clone().filter(is_before).count() as u64;
            let (n, most) = (overtook().count() as u64, (before + 1) * (cpus - 1) + tags);
            assert!(n <= most, "none: {r:?} starves: {n} of at most {most} overtook it, {before} were before it");
        }
    }
}

fn check_deadline<'a>(batch: u64, starved: u64, expire_ns: u64, window: impl Iterator<Item = &'a Offer>, r: &Offer) {
    let is_write = r.op.is_write();
    let most_others = between_directions(batch, starved)[usize::from(is_write)];
    let expires = r.queued.saturating_add(expire_ns);
    let (mut others, mut sweeps, mut before, mut late, mut before_late) = (0, 0, 0, 0, 0);
    let mut next = None;
    for o in window.filter(|o| o.left < r.left) {
        let passed = o.left > r.queued && o.queued < o.left;
        if o.op.is_write() != is_write {
            others += u64::from(passed);
            assert!(
                others <= most_others,
                "deadline: {r:?} starves: {others} of at most {most_others} of the other direction"
            );
            continue;
        }
        others = 0;
        if passed {
            sweeps += u64::from(next.replace(o.sector).is_some_and(|next| next < o.sector));
        }
        let is_before = o.queued <= r.queued && o.left >= r.queued;
        before += u64::from(is_before);
        late += u64::from(passed && o.left > expires);
        before_late += u64::from(is_before && o.left >= expires);
    }
    let most_late = (before_late + 1) * batch.max(1);
    assert!(sweeps <= before, "deadline: {r:?} starves: {before} were before it, and {sweeps} sweeps passed it");
    assert!(
        late <= most_late,
        "deadline: {r:?} starves: {late} of its direction of at most {most_late} after its expiry"
    );
}
