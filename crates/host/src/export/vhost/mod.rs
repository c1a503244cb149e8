// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vhost-user-blk: a disk for a virtual machine, which shares its memory with this process.
//!
//! The modules, in the order in which they take part: the front end's messages (`backend`) set up the guest's `memory` and the rings. On
//! an IOThread, a `virtqueue` takes chains from its `ring` (`split`, `packed`), parses a `request` from each, and submits it.

mod memory;
mod descriptor;
mod ring;
mod inflight;
mod inflight_packed;
mod log;
mod split;
mod packed;
mod device;
mod request;
mod bounce;
mod call;
mod coalesce;
mod virtqueue;
mod backend;
mod channel;
mod listener;
mod hints;
pub mod spec;

pub use listener::{ExportOptions, VhostExport};

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

#[cfg(test)]
mod ring_tests;
