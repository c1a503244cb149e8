// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted unfairness: a wrapper around an elevator that does what the bounds forbid.

use super::bound::{HCTXS, LIMITS};
use crate::rng::Rng;
use crate::wrapped::forward_to_inner;
use blk::elevator::{BioMerge, BioRef, Elevator, ElvCx, MqElevator, bfq};
use blk::id::HctxId;
use blk::request::Rq;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An unfairness that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfair {
    /// One request in forty waits until nothing else is left.
    Starves,
    /// The submitters' weights are exchanged.
    WrongWeights,
    /// A disk's limits let a tenth more through than they say.
    GrantsTooMuch,
    /// A disk's limits let a tenth less through than they say.
    GrantsTooLittle,
    /// The legacy deadline's batches are longer than its setting.
    LongBatches,
    /// The device takes only two requests at a time over all hardware queues, so that one hardware queue waits for another.
    DeviceWideCap,
}

/// Elevators that can keep a request for ever.
pub(super) const HOLD_REQUESTS: [&str; 4] = MqElevator::names_without(&[(
    MqElevator::None,
    "requests wait in software queues, which have a case of their own",
)]);

impl Unfair {
    /// The subject in which it is planted.
    pub(super) fn subject(self, rng: &mut Rng) -> &'static str {
        match self {
            Unfair::Starves => rng.pick(&HOLD_REQUESTS),
            Unfair::WrongWeights => bfq::NAME,
            Unfair::LongBatches => blk::elevator::deadline::NAME,
            Unfair::DeviceWideCap => HCTXS,
            Unfair::GrantsTooMuch | Unfair::GrantsTooLittle => LIMITS,
        }
    }
}

/// Withholds one request in forty until the elevator behind it has no other.
pub(crate) struct StarvingElevator {
    inner: Box<dyn Elevator>,
    kept: Mutex<Withheld>,
}

#[derive(Default)]
struct Withheld {
    seen: u64,
    rqs: Vec<Rq>,
    /// Number of requests that the elevator has.
    others: u64,
}

impl StarvingElevator {
    pub(crate) fn new(inner: Box<dyn Elevator>) -> StarvingElevator {
        StarvingElevator { inner, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Withheld> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Elevator for StarvingElevator {
    forward_to_inner!();

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        let merge = self.inner.bio_merge(cx, bio);
        self.kept().others -= u64::from(matches!(merge, BioMerge::Merged { freed: Some(_) }));
        merge
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let mut kept = self.kept();
        kept.seen += rqs.len() as u64;
        if kept.seen.is_multiple_of(40) && !at_head {
            kept.rqs.extend(rqs.pop());
        }
        kept.others += rqs.len() as u64;
        let already_freed = freed.len();
        self.inner.insert(cx, rqs, at_head, freed);
        kept.others -= (freed.len() - already_freed) as u64;
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        self.inner.dispatch(cx, hctx, max, out);
        let mut kept = self.kept();
        kept.others -= out.len() as u64;
        if kept.others == 0 && out.is_empty() {
            out.extend(kept.rqs.pop());
        }
    }

    fn has_work(&self, hctx: HctxId) -> bool {
        self.inner.has_work(hctx) || !self.kept().rqs.is_empty()
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.inner.completed(cx, rq);
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.inner.requeued(cx, rq);
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inner.set_tunable(name, value)
    }
}
