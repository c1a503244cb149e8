// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving disks to VMs and hosts.
//!
//! The plan of a daemon, as a value:
//!
//! - [`plan`]: the requested plan
//! - [`check`]: makes a consistent plan of it
//! - [`preflight`]: checks on this machine whether it can be carried out
//! - [`mapping`]: the rules of virtqueues and IOThreads
//! - [`lock`]: keeps a second writer off an image
//! - [`reload`]: the changes from one plan to the next
//!
//! The daemon that carries it out: an [`IoThread`] serves sources (virtqueues, connections), each on a [`Port`] into its disk. It checks
//! all of them in rounds, and polls for a while when there is nothing to do (`adaptive`). Then it sleeps until a kick, a completion, a
//! timer or another thread's `wakeup`. [`daemon`] combines the two; `watch` logs problems of its disks.

#[allow(unsafe_code, reason = "fcntl: locks of open file descriptions")]
pub mod lock;
pub mod check;
pub mod cpus;
pub mod mapping;
pub mod export_spec;
pub mod plan;
pub mod preflight;
pub mod reload;
pub mod daemon;
mod balance;
mod adaptive;
mod begin;
mod wakeup;
pub(crate) mod helper;
mod disk;
mod ending;
#[allow(unsafe_code, reason = "waiting on descriptors of drivers")]
mod iothread;
mod iothreads;
mod latency;
mod members;
mod trial;
mod port;
pub(crate) mod rewrite;
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
