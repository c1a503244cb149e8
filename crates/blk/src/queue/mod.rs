// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One disk: its hardware queues, made from its settings, and changes to them while the disk is in use.
//!
//! - `request_queue`: the disk, [`RequestQueue`]; `state`: the state that a rebuild replaces as a whole; `build`: makes
//!   that state from settings.
//! - `hctx`: hardware queues and software queues, the lists that requests wait on; `delayed`: runs of hardware queues
//!   that are due later; `timer`: when requests are checked for timeouts; `flush_latch`: remembers that a flush failed.
//! - `freeze`: keeps requests out (freeze) or holds them back (quiesce); `rebuild`: other settings for a drained disk;
//!   `live`: settings that need no freeze.
//! - `hotplug`: CPUs that go offline and come back; `online`: which are online.

pub(crate) mod build;
pub(crate) mod delayed;
mod flush_latch;
pub(crate) mod freeze;
pub(crate) mod hctx;
pub(crate) mod hotplug;
mod live;
pub(crate) mod online;
mod rebuild;
pub(crate) mod request_queue;
pub(crate) mod state;
pub(crate) mod timer;

pub use hotplug::HotplugError;
pub use request_queue::{NoNotify, Notify, RequestQueue};
