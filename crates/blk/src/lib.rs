// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multi-queue block layer without a clock, a thread or a system call: the Linux blk-mq design as a library.
//!
//! Time, CPU number and the lock's implementation come from the caller, so the same code runs on real threads and in a
//! deterministic simulation. Modules in the order a request meets them:
#![forbid(unsafe_code)]

// Words and units.
pub mod time;
pub mod id;
pub mod status;
pub mod limits;
pub mod settings;
pub mod suggest;
pub mod lock;
mod relaxed;
mod sync;

// What travels.
pub mod bio;
pub mod request;

// The way down.
pub mod submitter;
mod submit;
mod split;
mod merge;
mod plug;
pub mod qos;
pub mod cpumap;
pub mod sbitmap;
pub mod sbitmap_queue;
mod tags;
pub mod tag_set;
mod share;
mod hctx;
pub mod elevator;
mod dispatch;
mod delayed;
mod flush;
pub mod driver;
pub mod readahead;

// Drivers over drivers.
pub mod multipath;

// Above disks.
pub mod stripe;

// Disks that speak SCSI.
pub mod scsi;

// A device's speed, for drivers without a device.
pub mod model;

// The way up.
mod complete;
mod requeue;
mod timeout;
pub mod stat;
pub mod trace;
pub mod debugfs;

// The disk that wires it, CPUs that leave it, and its legacy twin.
pub mod queue;
mod build;
pub mod hotplug;
pub mod live;
mod sq;
