// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open disk: its driver, the block layer on top, and the ways to submit to it and to wait for it.

mod device;
mod inlet;
mod wake;

pub(crate) use device::limit_hw_queues;
pub use device::{Disk, Queue, Shared, Submitter};
pub(crate) use inlet::Inlet;
pub use wake::{WakeTable, Waker};
