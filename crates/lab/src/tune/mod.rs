// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A search for settings that make one metric better while others are kept, whose claims are confirmed by fresh
//! comparisons.
//!
//! In the order a tuning meets them:
//! - [`objective`], [`point`], [`mod@bench`]: what is asked, what may be set, where it is run.
//! - [`journal`]: every run on disk, and a tuning resumed.
//! - [`detect`]: what the device's caps are, and what would make figures mean less than they seem.
//! - [`race`], [`search`]: screening by short runs with early stopping.
//! - [`confirm`]: what is claimed.
//! - [`explain`], [`forms`], [`report`]: why, how to set it, and all of it as text.
//! - [`host_bench`]: our block layer on this machine.

pub mod bench;
pub mod confirm;
pub mod detect;
pub mod explain;
pub mod forms;
pub mod host_bench;
pub mod host_knobs;
pub mod journal;
pub mod objective;
pub mod outcome;
pub mod point;
pub mod race;
pub mod report;
pub mod search;
mod climb;
mod shuffle;
