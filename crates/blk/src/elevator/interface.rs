// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elevator interface: the core's calls to an elevator, and an elevator's calls to the core.
//!
//! An elevator keeps [`Rq`] handles between `insert` and `dispatch`. The elevator's own lock protects their order
//! (kyber has no lock for the whole device). The lock is held for a whole batch, so the order inside a batch is never
//! inverted.
//!
//! Source: include/linux/elevator.h (`struct elevator_mq_ops`).

use crate::bio::{BioId, BioPools, Op, OpFlags};
use crate::id::{CpuId, HctxId, SubmitterId};
use crate::limits::Limits;
use crate::request::{RequestId, RequestSlab, Rq};
use crate::time::Instant;

/// What an elevator may read during a call.
#[derive(Clone, Copy)]
pub struct ElvCx<'a> {
    /// The requests that the handles refer to.
    pub rqs: &'a RequestSlab,
    /// The bios of the requests.
    pub bios: &'a BioPools,
    /// The disk's limits, for merging.
    pub limits: &'a Limits,
    /// `nomerges`: 0 = all merges, 1 = only the one-hit cache, 2 = none.
    pub nomerges: u8,
    /// The time of this call.
    pub now: Instant,
    /// The CPU of this call: that of the submitter which submits the bio or request, or which found the completion.
    pub cpu: CpuId,
    /// The runner to notify when a hardware queue can continue.
    pub core: &'a dyn HctxRunner,
}

/// The core's calls that an elevator may use.
pub trait HctxRunner {
    /// Schedules a run of `hctx`. After this call the core calls [`Elevator::dispatch`] for `hctx` if
    /// [`Elevator::has_work`] is true. The run is not lost if the queue is busy, quiesced or out of tags in the
    /// meantime.
    ///
    /// An elevator that dispatched nothing although it has requests calls this when the event that it waits for occurs.
    /// An example is a token that another hardware queue puts back. The call is allowed at any time, in any elevator
    /// call and with the elevator's locks held: it only sets a mark and runs nothing.
    fn run_soon(&self, hctx: HctxId);
}

/// A bio on its way in, offered for merging.
#[derive(Clone, Copy)]
pub struct BioRef(pub(crate) BioId);

/// The result of offering a bio to [`Elevator::bio_merge`].
#[derive(Debug)]
#[must_use]
pub enum BioMerge {
    /// The bio was not merged: it needs a request of its own.
    No,
    /// The bio is part of a request now.
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
    /// Minimum value accepted.
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

    /// Appends up to `max` requests to `out`, in the order in which they should reach the disk. They may belong to
    /// other hctxs than `hctx` if the elevator's order is device-wide. An elevator that dispatches nothing although it
    /// has work must later call [`HctxRunner::run_soon`] for the hctx, or give a retry time by [`Elevator::next_run`].
    /// Without either the core retries after 3 ms.
    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>);

    /// Whether `dispatch(hctx)` could return a request. May be stale.
    fn has_work(&self, hctx: HctxId) -> bool;

    /// The retry time: when to call `dispatch` again, after it returned nothing although there is work.
    ///
    /// `None`: the elevator holds nothing back, or cannot tell for how long. An instant that has passed: now.
    /// [`Instant::MAX`]: not before a dispatched request completes.
    ///
    /// The elevator guarantees that the instant is valid from the return of that dispatch until the next `insert`,
    /// `completed` or `dispatch`. Each of these may bring the instant forward. The core asks after each dispatch that
    /// returned nothing and after each batch of completions, and dispatches at that time or earlier. If the answer
    /// after such a dispatch is `None`, the core retries in 3 ms. The core also dispatches after inserting. So no
    /// request that is held back is forgotten.
    fn next_run(&self) -> Option<Instant> {
        None
    }

    /// Whether [`Elevator::next_run`] ever returns an instant. This value never changes. So the core need not ask after
    /// each completion if the elevator never holds requests back.
    fn may_hold(&self) -> bool {
        false
    }

    /// A request that this elevator dispatched has completed, or has failed without being issued. Requests that the
    /// driver requeues instead return through [`Elevator::insert`], at the head.
    fn completed(&self, _cx: &ElvCx<'_>, _rq: &Rq) {}

    /// The driver has requeued a request that this elevator dispatched. The request returns through
    /// [`Elevator::insert`], at the head, perhaps after a delay. Until then, what it held at the disk, such as a token,
    /// may go to other requests.
    fn requeued(&self, _cx: &ElvCx<'_>, _rq: &Rq) {}

    /// How many of an hctx's scheduler tags a new request of this kind may use; `None` = all.
    fn limit_depth(&self, _op: Op, _flags: OpFlags) -> Option<u32> {
        None
    }

    /// As [`Elevator::limit_depth`], for a request of one submitter, if the elevator's limits depend on the submitter.
    fn limit_depth_of(&self, _submitter: SubmitterId, op: Op, flags: OpFlags) -> Option<u32> {
        self.limit_depth(op, flags)
    }

    /// The files that debugfs shows of this elevator under `sched/`.
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

/// One debugfs file of an elevator, under `sched/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugAttr {
    /// The hardware queue that the file describes; such a file is under `hctxN/sched/`.
    pub hctx: Option<usize>,
    /// The file's name, the same as in the kernel if the kernel has such a file.
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

    /// Makes this a file of one hardware queue.
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
