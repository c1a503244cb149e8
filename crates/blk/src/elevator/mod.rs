// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O schedulers: what the core asks of one, and the list of those that exist.
//!
//! The core refers to elevators only through [`Elevator`] and [`by_name`]. An elevator keeps [`Rq`] handles between
//! `insert` and `dispatch`; its own order is its own lock's business (kyber has none device-wide). One hold of that
//! lock serves a whole batch, so order inside a batch is never inverted.

pub mod testbed;
#[cfg(test)]
pub(crate) mod testutil;

use crate::bio::{BioId, BioPools, Op, OpFlags};
use crate::id::HctxId;
use crate::limits::Limits;
use crate::request::{RequestSlab, Rq};
use crate::time::Instant;

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
    /// other hctxs than `hctx` when the elevator's order is device-wide.
    fn dispatch(&self, cx: &ElvCx<'_>, hctx: HctxId, max: usize, out: &mut Vec<Rq>);

    /// Whether `dispatch(hctx)` could give out something. May be a little out of date.
    fn has_work(&self, hctx: HctxId) -> bool;

    /// A request that this elevator gave out has completed.
    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq);

    /// How many of an hctx's scheduler tags a new request of this kind may use; `None` = all.
    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32>;

    /// `nr_requests` was changed; called with nothing in flight.
    fn depth_updated(&self, nr_requests: u32);

    /// All tunables with their present values.
    fn tunables(&self) -> Vec<Tunable>;

    /// Sets a tunable. The error says the rule and the value, or names the nearest tunable.
    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String>;
}

/// temporary
#[derive(Clone, Copy)]
pub(crate) enum LegacyInsert { Sort, SortMerge, Front }
/// temporary
pub(crate) trait LegacyElevator: Send {
    fn name(&self) -> &'static str;
    fn bio_merge(&mut self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge;
    fn add(&mut self, cx: &ElvCx<'_>, rq: Rq, how: LegacyInsert, freed: &mut Vec<Rq>);
    fn next(&mut self, cx: &ElvCx<'_>) -> Option<Rq>;
    fn is_empty(&self) -> bool;
    fn tunables(&self) -> Vec<Tunable>;
    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String>;
}
pub(crate) fn legacy_by_name(name: &str, _slab: usize) -> Result<Box<dyn LegacyElevator>, String> {
    Err(name.into())
}
pub fn default_name(_n: u16, _shared: bool) -> &'static str {
    "none"
}
pub fn by_name<L>(name: &str, _slab: usize, _nr: u16, _rqs: u32) -> Result<Option<Box<dyn Elevator>>, String> {
    if name == "none" { Ok(None) } else { Err(name.into()) }
}
