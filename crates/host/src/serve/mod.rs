// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving disks to VMs and hosts.
//!
//! The plan of a daemon, as a value:
//!
//! - [`plan`]: the requested plan
//! - [`check`]: makes a consistent plan of it
//! - [`preflight`]: checks on this machine whether the plan can be carried out
//! - `format`: refuses images that are not raw
//! - [`geometry`]: the block sizes that clients see
//! - [`mapping`]: the rules of virtqueues and IOThreads
//! - [`reload`]: the changes from one plan to the next
//!
//! The daemon that carries out the plan: an [`IoThread`] serves sources (virtqueues, connections), each through a [`Port`] to its disk. It
//! serves all of them in rounds, and polls for a while when there is no work (`adaptive`). Then it sleeps until a kick, a completion, a
//! timer or another thread's `wakeup`. [`daemon`] combines plan and IOThreads; `watch` logs problems of the disks,
//! `path_watch` those of the paths of images and sockets. [`inject`] makes requests of clients fail on purpose.

pub mod check;
mod format;
pub mod geometry;
pub mod cpus;
pub mod mapping;
pub mod export_spec;
pub mod plan;
pub mod preflight;
pub mod reload;
mod repath;
pub mod daemon;
mod balance;
mod adaptive;
mod begin;
mod wakeup;
pub(crate) mod helper;
pub mod inject;
mod disk;
mod ending;
#[allow(unsafe_code, reason = "waiting on descriptors of drivers")]
mod iothread;
mod iothreads;
mod latency;
mod members;
mod path_watch;
mod trial;
pub mod client_memory;
mod port;
mod port_buffers;
pub(crate) mod running;
mod source;
pub mod view;
mod watch;

pub use adaptive::Polling;
pub use balance::Balance;
pub use disk::ServedDisk;
pub use iothread::IoThread;
pub use iothreads::{IoThreads, SourceHandle, SourceReport, ThreadOptions, ThreadReport};
pub use members::Member;
pub use port::{BUFFER_BYTES, Port, SourceId};
pub use source::{Source, SourceLabel};
