// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real machine: clock, memory, drivers. Nearly all of mqblk's system calls and `unsafe` code are here; a module that
//! needs `unsafe` says so in this file, and `crates/xtask/src/tidy/confine.rs` lists the three files of other crates that do.

pub mod error;
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
#[allow(unsafe_code, reason = "signals to threads of this process")]
mod stuck;
mod sync;
pub mod net;
pub mod nbd;
pub mod driver;
pub mod disk;
pub mod kernel;
pub mod multipath_conf;
#[allow(unsafe_code, reason = "system calls")]
pub mod create;
pub mod target;
pub mod topology;
pub mod calibrate;
#[allow(unsafe_code, reason = "getrusage, affinity")]
pub mod process;
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
