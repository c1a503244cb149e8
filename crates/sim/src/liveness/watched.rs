// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator of blk-mq with the check around it.
//!
//! Guarantees: the core sees no difference. The inner elevator is asked for one request at a time, so that its rules
//! are checked between two requests; for every elevator that is the same as being asked for several.

use super::bfq::Bfq;
use super::k2::K2;
use super::kyber::Kyber;
use super::mq_deadline::MqDeadline;
use super::{Held, Rules};
use crate::pressure::bound::SeenRequest;
use crate::pressure::unfair::StarvingElevator;
use crate::wrapped::{built_in, forward_to_inner};
use blk::bio::{IoPrioClass, OpFlags};
use blk::elevator::{
    BioMerge, BioRef, CustomElevator, DiskShape, Elevator, ElvCx, MqElevator, bfq, k2, kyber, mq_deadline,
};
use blk::id::HctxId;
use blk::request::{RequestId, Rq};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Elevators that take the place of the built-in ones, each with the check around it.
pub(crate) const WATCHED: &[CustomElevator] = &[
    CustomElevator { name: mq_deadline::NAME, make: |disk| watch(MqElevator::MqDeadline, disk, |e| e) },
    CustomElevator { name: kyber::NAME, make: |disk| watch(MqElevator::Kyber, disk, |e| e) },
    CustomElevator { name: bfq::NAME, make: |disk| watch(MqElevator::Bfq, disk, |e| e) },
    CustomElevator { name: k2::NAME, make: |disk| watch(MqElevator::K2, disk, |e| e) },
];

/// As [`WATCHED`], but one request in forty waits until nothing else is left: a planted bug.
pub(crate) const STARVING: &[CustomElevator] = &[
    CustomElevator { name: mq_deadline::NAME, make: |disk| watch(MqElevator::MqDeadline, disk, starving) },
    CustomElevator { name: kyber::NAME, make: |disk| watch(MqElevator::Kyber, disk, starving) },
    CustomElevator { name: bfq::NAME, make: |disk| watch(MqElevator::Bfq, disk, starving) },
    CustomElevator { name: k2::NAME, make: |disk| watch(MqElevator::K2, disk, starving) },
];

const _: () = assert!(WATCHED.len() == MqElevator::ALL.len() - 1 && STARVING.len() == WATCHED.len());

fn starving(inner: Box<dyn Elevator>) -> Box<dyn Elevator> {
    Box::new(StarvingElevator::new(inner))
}

fn watch(
    elevator: MqElevator,
    disk: &DiskShape<'_>,
    plant: fn(Box<dyn Elevator>) -> Box<dyn Elevator>,
) -> Box<dyn Elevator> {
    let mut rules: Box<dyn Rules> = match elevator {
        MqElevator::None => unreachable!("it has no interface that can be wrapped; see at_driver"),
        MqElevator::MqDeadline => Box::new(MqDeadline::new()),
        MqElevator::Kyber => Box::new(Kyber::new(disk)),
        MqElevator::Bfq => Box::new(Bfq::default()),
        MqElevator::K2 => Box::new(K2::default()),
    };
    let inner = plant(built_in(elevator.name(), disk));
    rules.tuned(&inner.tunables());
    let books = Books { rules, held: BTreeMap::new(), out: BTreeMap::new(), next_id: 0 };
    Box::new(Watched { inner, books: Mutex::new(books) })
}

struct Watched {
    inner: Box<dyn Elevator>,
    books: Mutex<Books>,
}

struct Books {
    rules: Box<dyn Rules>,
    /// Requests in the elevator, and those that it dispatched and that have not completed.
    held: BTreeMap<RequestId, Held>,
    out: BTreeMap<RequestId, Held>,
    next_id: u64,
}

impl Books {
    /// Describes a request that is inserted now.
    fn of(&mut self, cx: &ElvCx<'_>, rq: &Rq, again: bool) -> Held {
        let fields = cx.rqs.get(rq.id());
        let seen = SeenRequest {
            id: self.next_id,
            client: fields.submitter().index(),
            cpu: fields.cpu().index(),
            op: fields.op(),
            class: fields.prio().class(),
            nr_sectors: fields.nr_sectors(),
            at: cx.now.as_ns(),
        };
        self.next_id += 1;
        let level = if fields.prio().class() == IoPrioClass::None { 4 } else { fields.prio().level() };
        Held {
            seen,
            hctx: fields.hctx().index(),
            sync: !fields.op().is_write() || fields.flags().contains(OpFlags::SYNC),
            weight: (8 - u64::from(level)) * 10,
            sector: fields.sector().0,
            again,
        }
    }

    /// Requests were joined to others. Some may not have been known yet.
    fn joined<'a>(&mut self, gone: impl IntoIterator<Item = &'a Rq>) {
        for rq in gone {
            if let Some(held) = self.held.remove(&rq.id()) {
                self.rules.joined(&held);
            }
        }
    }

    /// Something was merged into a request in the elevator.
    fn grown(&mut self, cx: &ElvCx<'_>) {
        let largest = self.held.keys().map(|id| cx.rqs.get(*id).nr_sectors()).max().unwrap_or(0);
        self.rules.grown(largest);
    }

    fn given(&mut self, cx: &ElvCx<'_>, rq: &Rq, elevator: &dyn Elevator) {
        let mut held = self.held.remove(&rq.id()).expect("it was inserted and not given since");
        let fields = cx.rqs.get(rq.id());
        (held.sector, held.seen.nr_sectors) = (fields.sector().0, fields.nr_sectors());
        self.rules.given(&held, cx.now.as_ns(), elevator);
        self.out.insert(rq.id(), held);
    }

    fn left(&mut self, rq: &Rq, comes_back: bool) {
        if let Some(held) = self.out.remove(&rq.id()) {
            self.rules.left(&held, comes_back);
        }
    }
}

impl Watched {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Elevator for Watched {
    forward_to_inner!();

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        let merge = self.inner.bio_merge(cx, bio);
        if let BioMerge::Merged { freed } = &merge {
            let mut books = self.books();
            books.joined(freed);
            books.grown(cx);
        }
        merge
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let mut books = self.books();
        let mut new: Vec<(RequestId, Held)> = rqs.iter().map(|rq| (rq.id(), books.of(cx, rq, at_head))).collect();
        let already_freed = freed.len();
        self.inner.insert(cx, rqs, at_head, freed);
        let freed = &freed[already_freed..];
        new.retain(|(id, _)| freed.iter().all(|gone| gone.id() != *id));
        for (id, held) in new {
            books.rules.queued(&held);
            books.held.insert(id, held);
        }
        books.joined(freed);
        if !freed.is_empty() {
            books.grown(cx);
        }
    }

    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let mut books = self.books();
        let mut given = Vec::new();
        for _ in 0..max {
            books.rules.asked(cx.now.as_ns(), hctx.index(), &*self.inner);
            self.inner.dispatch(cx, hctx, 1, &mut given);
            let Some(rq) = given.pop() else { return };
            books.given(cx, &rq, &*self.inner);
            out.push(rq);
        }
    }

    fn has_work(&self, hctx: HctxId) -> bool {
        self.inner.has_work(hctx)
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.books().left(rq, false);
        self.inner.completed(cx, rq);
    }

    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        self.books().left(rq, true);
        self.inner.requeued(cx, rq);
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inner.set_tunable(name, value)?;
        self.books().rules.tuned(&self.inner.tunables());
        Ok(())
    }
}
