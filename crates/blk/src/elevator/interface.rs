// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elevator interface: the core's calls to an elevator, and an elevator's calls to the core.
//!
//! An elevator keeps [`Rq`] handles between `insert` and `dispatch`. Its order is protected by its own lock (kyber
//! has none for the whole device). One hold of that lock serves a whole batch, so order inside a batch is never
//! inverted.
//!
//! Source: include/linux/elevator.h (`struct elevator_mq_ops`).

use crate::bio::{BioId, BioPools, Op, OpFlags};
use crate::id::{CpuId, HctxId, SubmitterId};
use crate::limits::Limits;
use crate::request::{RequestId, RequestSlab, Rq};
use crate::time::Instant;

/// What an elevator may read while it works.
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
    /// The runner to notify when a hardware queue can continue.
    pub core: &'a dyn HctxRunner,
}

/// What an elevator may ask of the core.
pub trait HctxRunner {
    /// Has `hctx` run soon: [`Elevator::dispatch`] will be called for it after this call, as long as
    /// [`Elevator::has_work`] says so, however busy, quiesced or out of tags it is meanwhile.
    ///
    /// For an elevator that gave out nothing though it has requests, and whose awaited event has come now. An example is a
    /// token that another hardware queue put back. The elevator may call it at any time, in any call, with its locks held:
    /// it only leaves a mark and runs nothing.
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
    fn bio_merge(&self, _cx: &ElvCx<'_>, _bio: BioRef) -> BioMerge {
        BioMerge::No
    }

    /// Takes over requests, oldest first, draining `rqs`. With `at_head` they are dispatched before everything else. A
    /// request that can be joined to a queued neighbour is put into `freed` for the core to free.
    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>);

    /// Gives out up to `max` requests in the order they should reach the disk, appended to `out`. They may belong to
    /// other hctxs than `hctx` when the elevator's order is device-wide. An elevator that gives out nothing though it has
    /// work owes the hctx a [`HctxRunner::run_soon`], or says with [`Elevator::next_run`] when to come again; without
    /// either the core looks again after 3 ms.
    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>);

    /// Whether `dispatch(hctx)` could give out something. May be stale.
    fn has_work(&self, hctx: HctxId) -> bool;

    /// When `dispatch`, which last gave nothing out although there is work, is worth another try.
    ///
    /// `None`: it does not hold anything back, or cannot tell when that ends. An instant that has passed: now.
    /// [`Instant::MAX`]: not before a request that was given out completes.
    ///
    /// The elevator promises that the instant is right from the return of that dispatch until the next `insert`, `completed`
    /// or `dispatch`. Each of these may bring it forward. The core promises to ask after each dispatch that gave nothing and
    /// after each batch of completions, and to dispatch at that time or earlier. Without an answer to the first it looks
    /// again in 3 ms. It also dispatches after inserting. So nothing that is held back is forgotten.
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
    fn completed(&self, _cx: &ElvCx<'_>, _rq: &Rq) {}

    /// The driver has given back a request that this elevator gave out. It comes again through [`Elevator::insert`], at
    /// the head, perhaps after a delay; until then what it went to the disk with may go to others.
    fn requeued(&self, _cx: &ElvCx<'_>, _rq: &Rq) {}

    /// How many of an hctx's scheduler tags a new request of this kind may use; `None` = all.
    fn limit_depth(&self, _op: Op, _flags: OpFlags) -> Option<u32> {
        None
    }

    /// The same for a request of one submitter, where an elevator tells them apart.
    fn limit_depth_of(&self, _submitter: SubmitterId, op: Op, flags: OpFlags) -> Option<u32> {
        self.limit_depth(op, flags)
    }

    /// What debugfs shows of it under `sched/`.
    fn debug(&self) -> Vec<DebugAttr> {
        Vec::new()
    }

    /// All tunables with their present values.
    fn tunables(&self) -> Vec<Tunable> {
        Vec::new()
    }

    /// Sets a tunable. The error says the rule and the value, or names the nearest tunable.
    fn set_tunable(&self, name: &str, _value: u64) -> Result<(), String> {
        Err(format!("{name}: {} has no tunables", self.name()))
    }
}

/// What an elevator shows of itself under `sched/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugAttr {
    /// The hardware queue it is about: then it is under `hctxN/sched/`.
    pub hctx: Option<usize>,
    /// The file's name, the kernel's where it has one.
    pub name: String,
    /// The file's text, printed in front of the requests.
    pub text: String,
    /// Requests, one per line.
    pub rqs: Vec<RequestId>,
}

impl DebugAttr {
    /// A value.
    pub(crate) fn value(name: impl Into<String>, value: impl core::fmt::Display) -> DebugAttr {
        DebugAttr { hctx: None, name: name.into(), text: format!("{value}\n"), rqs: Vec::new() }
    }

    /// A list of requests.
    pub(crate) fn list(name: impl Into<String>, rqs: impl Iterator<Item = u32>) -> DebugAttr {
        DebugAttr { hctx: None, name: name.into(), text: String::new(), rqs: rqs.map(RequestId::new).collect() }
    }

    /// Of one hardware queue.
    pub(crate) fn of_hctx(mut self, hctx: usize) -> DebugAttr {
        self.hctx = Some(hctx);
        self
    }

    /// Its path below the disk's directory.
    pub(crate) fn path(&self) -> String {
        match self.hctx {
            None => format!("sched/{}", self.name),
            Some(hctx) => format!("hctx{hctx}/sched/{}", self.name),
        }
    }
}
