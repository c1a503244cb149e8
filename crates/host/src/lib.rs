// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real machine: clock, memory, drivers, exports. Nearly all of mqblk's system calls and `unsafe` code are here; a module that
//! needs `unsafe` says so in this file, and `crates/xtask/src/tidy/confine.rs` lists the three files of other crates that do.
//!
//! A program opens a [`TargetSpec`], makes a [`Disk`] of its driver and gives each of its threads a [`Submitter`]: see the example
//! `threads`. [`run`] does this for job files, [`serve`] for clients. Modules on a request's path come first:
//!
//! | module | what it is |
//! |---|---|
//! | [`run`] | a job file on this machine, with a thread for each job instance |
//! | [`export`] | what clients speak: vhost-user-blk, NBD, FUSE, ublk |
//! | [`serve`] | disks for clients on IOThreads, from a plan to the end |
//! | [`mem`] | memory that bios point into: [`Regions`], [`BufferPool`] |
//! | [`disk`] | an open disk: the block layer, its driver, ways to wait |
//! | [`target`] | target specifications: parsed from text, then opened |
//! | [`driver`] | drivers: memory, models, files, NBD, RBD, iSCSI, multipath |
//! | [`nbd`] | the NBD protocol, for driver and export |
//! | [`net`] | sockets, waits and TLS, for drivers and exports |
//! | [`kernel`] | the kernel's own block devices, their settings and counters |
//! | [`create`] | creates and extends files for use as a target |
//! | [`image_lock`] | locks on images, across mqblk and QEMU |
//! | [`multipath_conf`] | multipath.conf(5): parsing, and the options of a disk |
//! | [`clock`] | the clock, whose time every call takes |
//! | [`topology`] | the CPUs of this machine |
//! | [`process`] | processor time of threads, and pinning |
//! | [`calibrate`] | costs of operations on this host |
//! | [`handed`] | sockets from another process (socket activation) |
//! | [`service`] | notifications to the service manager |
//! | [`privileges`] | giving up root |
//! | [`confinement`] | giving up what programs could gain, and core dumps |
//! | [`sandbox`] | denying system calls and paths to a daemon |
//! | [`secrets`] | names of targets without their passwords |
//! | [`ratelimit`] | limits of repeated log messages, with counts |
//! | [`shell`] | quoting of words in printed commands |
//! | [`cpu_idle`] | how idle the CPUs were |
//! | [`error`] | the one error type |

pub mod confinement;
pub mod sandbox;
pub mod error;
pub mod ratelimit;
pub mod secrets;
pub mod shell;
#[allow(unsafe_code, reason = "system calls, rdtsc")]
pub mod clock;
#[allow(unsafe_code, reason = "mappings, raw copies")]
pub mod mem;
#[allow(unsafe_code, reason = "a raw lock is an unsafe promise")]
mod spin;
#[allow(unsafe_code, reason = "ppoll")]
mod readable;
mod event;
mod panics;
#[allow(unsafe_code, reason = "signals to threads of this process")]
mod stuck;
mod sync;
pub mod served_path;
pub mod net;
pub mod nbd;
pub mod driver;
pub mod disk;
pub mod kernel;
pub mod multipath_conf;
#[allow(unsafe_code, reason = "system calls")]
pub mod create;
#[allow(unsafe_code, reason = "locks of open file descriptions")]
pub mod image_lock;
pub mod target;
pub mod topology;
pub mod calibrate;
#[allow(unsafe_code, reason = "getrusage, affinity")]
pub mod process;
pub mod cpu_idle;
#[allow(unsafe_code, reason = "giving buffers back when their bio has ended")]
pub mod run;
pub mod serve;
#[allow(unsafe_code, reason = "descriptors that are known by number only")]
pub mod handed;
#[allow(unsafe_code, reason = "users and groups of the process")]
pub mod privileges;
pub mod service;
#[allow(unsafe_code, reason = "taking a guest's memory away when no I/O to it is left")]
pub mod export;

// Its types are in every signature here.
pub use blk;

// Re-exports: the types that every program with a disk needs.
pub use disk::{Disk, Submitter};
pub use error::{Error, Result};
pub use mem::{BufferPool, Regions};
pub use target::TargetSpec;
#[cfg(test)]
#[path = "../tests/it/waiting/mod.rs"]
mod waiting;
