// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread's channel into a disk for programs with their own jobs: a submitter and a place to wait, without our job engine.
//!
//! Guarantees: it waits as a job thread of [`prepare`](super::prepare) does. This includes the cheap wait of a thread that is
//! alone on a hardware queue, wake-ups, and a change of settings during the wait. Needs from callers: all calls come from the
//! thread that made it, and everything submitted is waited for before it is dropped.

use super::waiter::{Waiter, WaiterSetup};
use crate::disk::{Disk, Submitter};
use crate::error::{Error, Result};
use blk::id::CpuId;
use blk::time::Duration;
use std::sync::Arc;

/// A thread's I/O channel to a disk. See the module's text.
pub struct IoChannel {
    /// What is submitted, polled and reaped.
    pub sub: Submitter,
    waiter: Waiter,
    disk: Arc<Disk>,
}

impl IoChannel {
    /// A way from `cpu` (taken modulo the disk's CPUs) into the disk, on which the threads at `others` may come, too. Up
    /// to `batch` - 1 I/Os may be left to the wait or poll that follows their submission to be seen by the device; 0 and 1
    /// leave none.
    ///
    /// # Errors
    /// The disk has no submitter left.
    pub fn new(disk: &Arc<Disk>, cpu: u32, others: &[u32], batch: u32) -> Result<IoChannel> {
        let nr_cpus = u32::from(disk.queue.config().topology.nr_cpus);
        let at = |cpu: u32| CpuId::new(cpu % nr_cpus);
        let waiter_lock = disk.waiter_lock.lock();
        let sub = disk.queue.submitter(at(cpu)).ok_or_else(|| {
            Error::usage(format!("at most {} threads per disk: lower the number of jobs", blk::id::MAX_SUBMITTERS))
        })?;
        let others = others.iter().map(|c| at(*c)).collect();
        let waiter = Waiter::take(disk, &sub, WaiterSetup { cpu: at(cpu), others, polled: false, batch });
        drop(waiter_lock);
        Ok(IoChannel { sub, waiter, disk: Arc::clone(disk) })
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Waits in the driver until `min` I/Os may have ended, `timeout` has passed, or for no reason; at most 50 ms unless
    /// the thread is alone with I/O at a device. Poll afterwards.
    pub fn wait(&mut self, min: u32, timeout: Option<Duration>) {
        self.waiter.wait(&self.disk, &mut self.sub, min, timeout);
    }

    /// Whether to wait before polling, because the wait also submits.
    pub fn waits_first(&self) -> bool {
        self.waiter.wait_first
    }
}

impl Drop for IoChannel {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.waiter.leave(&self.disk);
        }
    }
}
