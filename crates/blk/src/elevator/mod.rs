// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O schedulers: what the core asks of one, those that exist, and what they are made of.
//!
//! - [`Elevator`]: the trait, with what goes in and out of its calls. The core knows elevators only through it.
//! - `registry`: the elevators there are, [`MqElevator`]; one row there adds one. Another crate adds its own to a disk by
//!   [`CustomElevator`].
//! - [`mq_deadline`], [`kyber`], [`bfq`] are the kernel's, [`k2`] is not; [`deadline`] and `noop` are policies of the
//!   single-queue mode, in the frame that `legacy` gives them.
//! - Parts: `tunables`; `bio_merge` with `merge_filter` and `merge_hash` (merging with queued requests); `fifo`, `rbtree`,
//!   `deadline_lists`, `sweep` (orders).
//! - [`testbed`]: an elevator without a disk.

mod bio_merge;
mod deadline_lists;
mod fifo;
mod merge_filter;
mod merge_hash;
mod rbtree;
mod sweep;
mod tunables;

pub(crate) mod interface;
pub(crate) mod legacy;
pub(crate) mod registry;

pub mod bfq;
pub mod k2;
pub mod kyber;
pub mod mq_deadline;

pub mod deadline;
mod noop;

pub mod testbed;
#[cfg(test)]
pub(crate) mod testutil;

pub use interface::{BioMerge, BioRef, DebugAttr, Elevator, ElvCx, HctxRunner, Tunable};
pub use registry::{
    CustomElevator, DiskShape, ElevatorError, ElevatorFacts, LEGACY_NAMES, LeftOut, MqElevator, NAMES, NONE, by_name,
    default_name, for_map,
};
