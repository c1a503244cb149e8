// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving disks to VMs and hosts: what is to be served, as a value.
//!
//! [`plan`] is what was asked for, [`check`] makes it a value that fits together, [`preflight`] asks the machine whether it
//! can be done, [`mapping`] has the rules of virtqueues and IOThreads, [`lock`] keeps a second writer off an image, [`reload`] says what
//! changes from one plan to the next.

#[allow(unsafe_code, reason = "fcntl: locks of open file descriptions")]
pub mod lock;
pub mod check;
pub mod cpus;
pub mod mapping;
pub mod plan;
pub mod preflight;
pub mod reload;
