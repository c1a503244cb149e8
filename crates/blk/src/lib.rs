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

// In: one thread's way into one disk.
pub mod submitter;

// Down and up again: the steps of a request.
mod path;
pub mod qos;
pub mod cpumap;
pub mod tags;
pub mod elevator;
pub mod driver;

// Drivers over drivers.
pub mod multipath;

// Above disks.
pub mod stripe;

// Disks that speak SCSI.
pub mod scsi;

// What is seen of it.
pub mod stat;
pub mod trace;
pub mod debugfs;

// The disk that wires it, and its legacy twin.
pub mod queue;
mod sq;

// The names that a user of the crate needs first.
pub use bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
pub use driver::{Completions, Driver, InFlight, RqBatch, RqRef};
pub use elevator::{BioMerge, BioRef, CustomElevator, DiskShape, Elevator, ElvCx, Tunable};
pub use id::{CpuId, HctxId, Sector, SubmitterId, Tag};
pub use limits::Limits;
pub use lock::Lock;
pub use queue::{NoNotify, Notify, RequestQueue};
pub use request::{Request, Rq, Segment};
pub use settings::{Mode, QueueConfig, SettingError};
pub use status::{BlkStatus, QueueRqStatus};
pub use submitter::{Done, SubmitError, Submitter};
pub use time::{Duration, Instant};
