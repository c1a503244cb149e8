// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio job files, I/O patterns, verification and latency statistics.
//!
//! A job means the same on real hardware and in simulation: nothing here reads a clock, starts a thread or touches a
//! file. Modules in the order an I/O meets them:
//!
//! | module | holds |
//! |---|---|
//! | [`job`] | job files: from text to typed jobs |
//! | [`schedule`] | which instances start when |
//! | [`engine`] | one job thread: what to issue next, how to handle completions |
//! | [`oltp`] | another kind of job thread: the transactions of database users |
//! | [`load`] | the interface of both kinds of job thread to their driver |
//! | [`rng`] | fio's random numbers and seeds |
//! | `offsets`, `sizes`, `rate` | offset, length and due time of the next I/O |
//! | `buffer`, [`verify`] | the data of a write, and the check of a read |
//! | [`stats`], [`hist`], [`slices`] | what was measured |
//! | [`logs`] | fio's logs |
//! | [`replay`] | traces that a job replays |
//! | [`error`] | why a job does not fit its target |

pub mod job;
pub mod schedule;
pub mod flow;
mod shaped;
pub mod steady;
pub mod together;
pub mod engine;
pub mod oltp;
pub mod load;
pub mod rng;
mod offsets;
mod sizes;
mod rate;
mod buffer;
pub mod verify;
pub mod stats;
pub mod hist;
pub mod slices;
pub mod logs;
pub mod replay;
pub mod error;

// From text to jobs.
pub use job::{Job, JobFile, ParseContext};

// `cargo test --doc` compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
