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
//! - [`explain`], [`forms`], [`guest_forms`], [`report`]: why, how to set it, and all of it as text.
//! - [`world_bench`], [`guest_bench`], [`stack_knobs`], [`kernel_knobs`], [`target_knobs`]: the worlds it is run in, and what may be set there.

pub mod bench;
pub mod confirm;
pub mod detect;
pub mod explain;
pub mod forms;
pub mod guest_bench;
pub mod guest_forms;
pub mod journal;
pub mod kernel_knobs;
pub mod objective;
pub mod outcome;
pub mod point;
pub mod race;
pub mod report;
pub mod search;
pub mod stack_knobs;
pub mod target_knobs;
pub mod world_bench;
mod climb;
mod shuffle;
