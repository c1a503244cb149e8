// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own block devices: what they are, their users, their settings in sysfs, their counters.
//!
//! Modules in the order a run uses them: `device` finds the disk behind a path; `in_use` and `signature` report what would be lost;
//! `settings` finds which requested settings can be written there; `keep` writes and restores them, whatever happens; `counters` reads
//! what `iostat` reads.
//!
//! Sources: Linux Documentation/ABI/stable/sysfs-block, Documentation/admin-guide/iostats.rst, block/blk-sysfs.c, block/elevator.c.

mod counters;
mod device;
mod in_use;
mod keep;
mod settings;
pub(crate) mod signature;
mod state;
mod sysfs;

pub use counters::{Direction, DiskCounters};
pub use device::KernelDevice;
pub(crate) use device::{attribute, device_number};
pub use in_use::{Claim, SETTINGS_CHANGE, use_anyway, uses};
pub use keep::{SettingsGuard, put_back_all, put_back_left, write_for_good};
pub use settings::{Effect, NoEffect, Planned, plan};
pub use signature::found_on;
pub use sysfs::{in_effect, schedulers, writable};
