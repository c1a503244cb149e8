// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vhost-user-blk: a disk for a virtual machine, through memory that it shares with us.
//!
//! In the order of a request: the front end's messages (`backend`) set up the guest's `memory` and the rings; on an IOThread
//! a `virtqueue` takes chains out of its `ring` (`split`, `packed`), reads a `request` from each, and submits it.

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
