// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O schedulers: what the core asks of one, and the list of those that exist.
//!
//! The core refers to elevators only through [`Elevator`] and [`by_name`]. An elevator keeps [`Rq`] handles between
//! `insert` and `dispatch`; its own order is its own lock's business (kyber has none device-wide). One hold of that
//! lock serves a whole batch, so order inside a batch is never inverted.

mod bio_merge;
mod deadline_lists;
mod fifo;
mod merge_filter;
mod merge_hash;
mod rbtree;
mod sweep;
mod tunables;

pub mod bfq;
pub mod k2;
pub mod kyber;
pub mod mq_deadline;

pub mod deadline;
pub mod legacy;
pub mod noop;

pub mod testbed;
#[cfg(test)]
pub(crate) mod testutil;

use crate::bio::{BioId, BioPools, Op, OpFlags};
use crate::cpumap::{CpuTopology, QueueMap};
use crate::debugfs::DebugAttr;
use crate::id::{CpuId, HctxId, SubmitterId};
use crate::limits::Limits;
use crate::request::{RequestSlab, Rq};
use crate::suggest::nearest;
use crate::time::Instant;
use bfq::Bfq;
use k2::K2;
use kyber::Kyber;
use lock_api::RawMutex;
use mq_deadline::MqDeadline;

/// What an elevator may look at while it works.
#[derive(Clone, Copy)]
pub struct ElvCx<'a> {
    /// The requests behind the handles.
    pub rqs: &'a RequestSlab,
    /// The bios of the requests.
    pub bios: &'a BioPools,
    /// The disk's limits, for merging.
    pub limits: &'a Limits,
    /// `nomerges`: 0 = all merges, 1 = only the one-hit cache, 2 = none.
    pub nomerges: u8,
    /// The time of this call.
    pub now: Instant,
    /// The CPU this call is made on: of the submitter that brings a bio or request, or that found a completion.
    pub cpu: CpuId,
    /// Whom to tell that a hardware queue can go on.
    pub core: &'a dyn HctxRunner,
}

/// What an elevator may ask of the core.
pub trait HctxRunner {
    /// Has `hctx` run soon: [`Elevator::dispatch`] will be called for it after this call, as long as
    /// [`Elevator::has_work`] says so, however busy, quiesced or out of tags it is meanwhile.
    ///
    /// For an elevator that gave out nothing though it has requests, because it waited for something that has come now
    /// (a token that another hardware queue put back). It may be told at any time, in any call, with locks of the
    /// elevator held: nothing is run from inside, a mark is left.
    fn run_soon(&self, hctx: HctxId);
}

/// A bio on its way in, offered for merging.
#[derive(Clone, Copy)]
pub struct BioRef(pub(crate) BioId);

/// What became of a bio offered to [`Elevator::bio_merge`].
#[derive(Debug)]
#[must_use]
pub enum BioMerge {
    /// It needs a request of its own.
    No,
    /// It is part of a request now.
    Merged {
        /// A request that was joined into its neighbour because of this merge: the core frees it.
        freed: Option<Rq>,
    },
}

/// One tunable as `/sys/block/X/queue/iosched/` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// The kernel's name.
    pub name: &'static str,
    /// Present value, in the kernel's unit.
    pub value: u64,
    /// Least value accepted.
    pub min: u64,
    /// Greatest value accepted.
    pub max: u64,
    /// The unit, for people: "ms", "requests", "".
    pub unit: &'static str,
}

/// An I/O scheduler of one disk.
pub trait Elevator: Send + Sync {
    /// The name in `queue/scheduler`.
    fn name(&self) -> &'static str;

    /// Tries to merge a bio into a queued request (one-hit cache, back merge by hash, front merge).
    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge;

    /// Takes over requests, oldest first, draining `rqs`. With `at_head` they are dispatched before everything else. A
    /// request that can be joined to a queued neighbour is put into `freed` for the core to free.
    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>);

    /// Gives out up to `max` requests in the order they should reach the disk, appended to `out`. They may belong to
    /// other hctxs than `hctx` when the elevator's order is device-wide. An elevator that gives out nothing though it has
    /// work owes the hctx a [`HctxRunner::run_soon`], or says with [`Elevator::next_run`] when to come again; without
    /// either the core looks again after 3 ms.
    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>);

    /// Whether `dispatch(hctx)` could give out something. May be a little out of date.
    fn has_work(&self, hctx: HctxId) -> bool;

    /// When `dispatch`, which last gave nothing out although there is work, is worth another try.
    ///
    /// `None`: it does not hold anything back, or cannot tell when that ends. An instant that has passed: now.
    /// [`Instant::MAX`]: not before a request that was given out completes. The elevator promises that the instant is
    /// right from the moment that dispatch returned until the next `insert`, `completed` or `dispatch`, of which each may
    /// bring it forward. The core promises to ask after each dispatch that gave nothing (without an answer it looks again
    /// in 3 ms) and after each batch of completions, and to dispatch at that time or earlier; inserting it follows with
    /// a dispatch anyway. So nothing that is held back is forgotten.
    fn next_run(&self) -> Option<Instant> {
        None
    }

    /// Whether [`Elevator::next_run`] ever has an answer. It never changes, so that the core need not ask after each
    /// completion of an elevator that holds nothing back.
    fn may_hold(&self) -> bool {
        false
    }

    /// A request that this elevator gave out has completed, or has ended with an error without being issued. Requests
    /// that the driver gave back instead come again through [`Elevator::insert`], at the head.
    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq);

    /// The driver has given back a request that this elevator gave out. It comes again through [`Elevator::insert`], at
    /// the head, perhaps after a delay; until then what it went to the disk with may go to others.
    fn requeued(&self, _cx: &ElvCx<'_>, _rq: &Rq) {}

    /// How many of an hctx's scheduler tags a new request of this kind may use; `None` = all.
    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32>;

    /// The same for a request of one submitter, where an elevator tells them apart.
    fn limit_depth_of(&self, _submitter: SubmitterId, op: Op, flags: OpFlags) -> Option<u32> {
        self.limit_depth(op, flags)
    }

    /// What debugfs shows of it under `sched/`.
    fn debug(&self) -> Vec<DebugAttr> {
        Vec::new()
    }

    /// All tunables with their present values.
    fn tunables(&self) -> Vec<Tunable>;

    /// Sets a tunable. The error says the rule and the value, or names the nearest tunable.
    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String>;
}

/// The name that stands for "no elevator": requests go from the ctx lists to the driver.
pub const NONE: &str = "none";

/// What can be written to `queue/scheduler` of a multi-queue disk.
pub const NAMES: [&str; 5] = [NONE, mq_deadline::NAME, kyber::NAME, bfq::NAME, k2::NAME];

/// Why there is no elevator of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElevatorError {
    /// The name is none of the elevators'.
    #[error("scheduler={name}: must be one of {valid}{remedy}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        valid: String,
        /// `; did you mean 'x'?` when a name is near.
        remedy: String,
    },
}

fn unknown(name: &str, names: &'static [&'static str]) -> ElevatorError {
    let remedy =
        nearest(name, names.iter().copied()).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    ElevatorError::Unknown { name: name.to_owned(), valid: names.join(", "), remedy }
}

/// The elevator called `name` for a multi-queue disk with the hardware queues of `map`, `nr_slab_requests` requests in
/// all and `nr_requests` scheduler tags per hardware queue; `None` for [`NONE`]. `L` is the lock of elevators that have
/// one.
pub fn for_map<L>(
    name: &str,
    nr_slab_requests: usize,
    map: &QueueMap,
    nr_requests: u32,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    match name {
        NONE => Ok(None),
        mq_deadline::NAME => Ok(Some(Box::new(MqDeadline::<L>::new(nr_slab_requests, nr_requests)))),
        kyber::NAME => Ok(Some(Box::new(Kyber::<L>::new(nr_slab_requests, map, nr_requests)))),
        bfq::NAME => Ok(Some(Box::new(Bfq::<L>::new(nr_slab_requests, nr_requests)))),
        k2::NAME => Ok(Some(Box::new(K2::<L>::new(nr_slab_requests, nr_requests)))),
        _ => Err(unknown(name, &NAMES)),
    }
}

/// As [`for_map`], for a disk with `nr_hw_queues` hardware queues of one CPU each: what tests and benches of elevators
/// have, see [`testbed`].
///
/// # Panics
/// If `nr_hw_queues` is 0 or above [`MAX_CPUS`](crate::id::MAX_CPUS).
pub fn by_name<L>(
    name: &str,
    nr_slab_requests: usize,
    nr_hw_queues: u16,
    nr_requests: u32,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    let map = QueueMap::new(&CpuTopology::uniform(nr_hw_queues), nr_hw_queues, 0, 0).expect("a CPU for each queue");
    for_map::<L>(name, nr_slab_requests, &map, nr_requests)
}

/// The elevator a multi-queue disk starts with: mq-deadline where requests meet in one place anyway (one hardware queue,
/// or tags shared by the whole host), none otherwise.
pub const fn default_name(nr_hw_queues: u16, host_shared_tags: bool) -> &'static str {
    if nr_hw_queues == 1 || host_shared_tags { mq_deadline::NAME } else { NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lock = parking_lot::RawMutex;

    #[test]
    fn every_name_makes_the_elevator_of_that_name() {
        for name in NAMES {
            let e = by_name::<Lock>(name, 16, 1, 8).expect("listed");
            assert_eq!(e.map_or(NONE, |e| e.name()), name);
        }
        for name in legacy::LEGACY_NAMES {
            assert_eq!(legacy::legacy_by_name(name, 16).expect("listed").name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let e = by_name::<Lock>("mq_deadline", 16, 1, 8).err().expect("underscore");
        let text = e.to_string();
        assert!(text.starts_with("scheduler=mq_deadline: must be one of none, mq-deadline, kyber, bfq, k2"), "{text}");
        assert!(text.contains("did you mean 'mq-deadline'?"), "{text}");
        let e = legacy::legacy_by_name("cfq", 16).err().expect("not built");
        assert_eq!(e.to_string(), "scheduler=cfq: must be one of deadline, noop");
    }

    #[test]
    fn the_default_follows_the_number_of_queues() {
        assert_eq!(default_name(1, false), "mq-deadline");
        assert_eq!(default_name(4, false), "none");
        assert_eq!(default_name(4, true), "mq-deadline");
    }
}
