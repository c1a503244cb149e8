// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multi-queue block layer without a clock, a thread or a system call: the Linux blk-mq design as a library.
#![doc = include_str!("../README.md")]
//!
//! # Life of a request
//!
//! | step | what happens | where |
//! |---|---|---|
//! | bio | [`Bio`] is one I/O as the caller asks for it: operation, sectors, and a [`DataRef`] to memory that this crate never touches | [`bio`] |
//! | submitter | [`Submitter`] is one thread's entry to one disk. It checks the bio against the disk's [`Limits`] and splits it where it is too large | [`submitter`] |
//! | plug | between [`Submitter::start_plug`] and [`Submitter::finish_plug`] bios collect in the plug; adjacent ones are merged | [`submitter`] |
//! | limits | rate limits and write-back throttling may hold a bio back | [`qos`] |
//! | software queue | without an elevator, requests of a CPU wait in its software queue, or go straight to the driver | [`cpumap`] |
//! | elevator | with one, requests wait there: it merges and orders them | [`elevator`] |
//! | tag | a request needs a tag of its hardware queue to be at the driver. Without one it waits; several disks may share tags | [`tags`] |
//! | hardware queue | it takes requests from the elevator or the software queues of its CPUs, and offers them to the driver as a batch | [`queue`], [`cpumap`] |
//! | driver | [`Driver::queue_rqs`] starts requests. An accepted request is an [`InFlight`], which the driver must complete | [`driver`] |
//! | completion | [`Submitter::poll`] asks the driver what has finished, frees tags and runs hardware queues that waited for them | [`driver`] |
//! | end | [`Submitter::reap`] returns each bio exactly once, as a [`Done`], on the submitter that brought it | [`submitter`] |
//!
//! # What the caller does
//!
//! - **Threads**: any number, each with a submitter of its own. Nothing here blocks or spins. Before a thread sleeps it calls
//!   [`Submitter::rest`]. [`Notify`] wakes it when it has to poll because of another thread, and [`RequestQueue::next_timer`]
//!   returns when it must poll at the latest.
//! - **Time**: the caller passes an [`Instant`] with each call, in nanoseconds of any monotonic clock.
//! - **Memory**: a [`DataRef`] is a region number and an offset. Only the caller and the driver follow it.
//! - **Settings**: [`QueueConfig`] has the kernel's names, units and defaults. [`RequestQueue::set_live`] changes some
//!   while I/O runs; the others need a freeze ([`RequestQueue::begin_freeze`], [`RequestQueue::rebuild`]).
//!
//! # Other modules
//!
//! [`multipath`] and [`stripe`] make one disk from several, [`rmw`] takes I/O that is not whole blocks, and [`scsi`] is a midlayer
//! for drivers of SCSI devices. [`stat`],
//! [`trace`] and [`debugfs`] report statistics, events and state in the kernel's formats. The example `own_driver` keeps data and
//! has a latency; `own_elevator` adds a scheduler.
//!
//! Guarantees: every accepted bio completes once; there is no allocation per I/O; the same calls at the same times give
//! the same results. Does not: cache data, or find a driver. Source: Linux block/; each file names its part.
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

// Bios and requests.
pub mod bio;
pub mod request;

// One thread's entry to one disk.
pub mod submitter;

// The steps of a request.
mod path;
pub mod qos;
pub mod cpumap;
pub mod tags;
pub mod elevator;
pub mod driver;

// Drivers on top of drivers.
pub mod multipath;

// Above disks.
pub mod stripe;
pub mod rmw;

// SCSI disks.
pub mod scsi;

// Statistics and traces.
pub mod stat;
pub mod trace;
pub mod debugfs;

// The disk, and the legacy path.
pub mod queue;
mod sq;

// The names that a user of the crate needs first, and the names in their signatures.
pub use bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
pub use cpumap::{CpuTopology, QueueMap};
pub use driver::{Completions, Driver, InFlight, Lent, RqBatch, RqRef, TimedOut, TimeoutAnswer, Verdict};
pub use elevator::{
    BioMerge, BioRef, CustomElevator, DebugAttr, DiskShape, Elevator, ElevatorError, ElvCx, HctxRunner, Tunable,
};
pub use id::{CpuId, HctxId, SECTOR_SHIFT, SECTOR_SIZE, Sector, SubmitterId, Tag};
pub use limits::Limits;
pub use lock::Lock;
pub use queue::{HotplugError, NoNotify, Notify, RequestQueue};
pub use request::{Request, RequestId, Rq, Segment, Segments};
pub use settings::{Mode, QueueConfig, SettingError};
pub use stat::{DiskStats, HctxStats};
pub use status::{BlkStatus, QueueRqStatus};
pub use submitter::{Done, SubmitError, Submitter};
pub use tags::{TagSet, TagSetConfig};
pub use time::{Duration, Instant};

// `cargo test --doc` compiles the program in the README of the tree.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct TreeReadme;
