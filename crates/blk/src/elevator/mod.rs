// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O schedulers: their interface to the core, the schedulers themselves, and the parts they share.
//!
//! - [`Elevator`]: the trait, with the types that its calls use. The core uses elevators only through this trait.
//! - `registry`: the list of elevators, [`MqElevator`], one row per elevator. Another crate adds its own elevator to a
//!   disk with [`CustomElevator`].
//! - [`mq_deadline`], [`kyber`] and [`bfq`] are elevators of the kernel; [`k2`] is not. [`deadline`] and `noop` are
//!   policies of the single-queue mode; `legacy` is the code that both share.
//! - Parts: `tunables`; `bio_merge` with `merge_filter` and `merge_hash` (merging with queued requests); `fifo`,
//!   `rbtree`, `deadline_lists`, `sweep` (orders of requests).
//! - [`testbed`]: runs an elevator without a disk.

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
