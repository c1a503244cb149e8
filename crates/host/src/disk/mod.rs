// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open disk: its driver, the block layer on top, and the ways to submit to it and to wait for it.

mod device;
mod io_path;
mod leader;
mod wake;

pub(crate) use device::limit_hw_queues;
pub use device::{Disk, Queue, Shared, Submitter};
pub(crate) use io_path::IoPath;
pub use wake::{WakeTable, Waker};
