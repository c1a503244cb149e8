// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A search for settings that improve one metric while limits on others are kept. Fresh comparisons confirm its claims.
//!
//! In the order a tuning meets them:
//! - [`objective`], [`point`], [`mod@bench`]: the goal and limits, the knobs, the backend.
//! - [`journal`]: every run on disk, so that a tuning can be resumed.
//! - [`detect`]: the device's caps, and reasons why figures may mean less than they seem.
//! - [`race`], [`search`]: screening by short runs with early stopping.
//! - [`confirm`]: confirmation of what is claimed.
//! - [`explain`], [`forms`], [`guest_forms`], [`report`]: why a point is better, how to set it, and the whole result as text.
//! - [`world_bench`], [`guest_bench`], [`stack_knobs`], [`kernel_knobs`], [`target_knobs`]: the backends of a tuning, and
//!   their knobs; [`no_effect`]: which of them cannot matter.

pub mod bench;
pub mod confirm;
pub mod detect;
pub mod explain;
pub mod forms;
pub mod guest_bench;
pub mod guest_forms;
pub mod journal;
pub mod kernel_knobs;
pub mod no_effect;
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
