// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio job files, I/O patterns, verification and latency statistics.
//!
//! A job means the same on real hardware and in simulation: nothing here reads a clock, starts a thread or touches a
//! file. Modules in the order an I/O meets them:

pub mod job;
pub mod schedule;
pub mod rng;
pub mod offsets;
pub mod sizes;
pub mod rate;
pub mod buffer;
pub mod verify;
pub mod engine;
pub mod stats;
pub mod hist;
pub mod error;
