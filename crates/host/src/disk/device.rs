// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of this machine: a driver with the block layer on top and a way to wait for it.

use super::wake::{WakeTable, Waker};
use crate::driver::host_driver::HostDriver;
use crate::error::{Error, Result};
use blk::driver::Driver;
use blk::queue::RequestQueue;
use blk::settings::{Mode, QueueConfig};
use blk::tags::TagSet;
use parking_lot::{Mutex, RawMutex};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The block layer with this machine's lock.
pub type Queue = RequestQueue<RawMutex>;
/// A submitter of a [`Queue`].
pub type Submitter = blk::submitter::Submitter<RawMutex>;

/// What several disks have in common.
pub struct Shared {
    /// Their tags.
    pub tags: Arc<TagSet<RawMutex>>,
    /// [`Disk::waiter_lock`] of all of them: a change of the set changes all.
    pub(crate) waiter_lock: Arc<Mutex<()>>,
}

/// Where the number of hardware queues is not set, there are no more than the driver can have.
pub(crate) fn limit_hw_queues(driver: &dyn HostDriver, config: &mut QueueConfig) {
    let special = config.nr_read_queues.saturating_add(config.nr_poll_queues);
    let most = driver.max_hw_queues().saturating_sub(special).max(1);
    if config.nr_hw_queues.is_none() && config.mode == Mode::Mq && config.hw_queues() > most {
        config.nr_hw_queues = Some(most);
    }
}

/// One disk, ready for submitters.
pub struct Disk {
    /// The block layer.
    pub queue: Arc<Queue>,
    /// Its driver, for waiting.
    pub driver: Arc<dyn HostDriver>,
    /// The table of waiting threads.
    pub waker: Arc<WakeTable>,
    /// Held by a thread that takes a place to wait, and by one that changes what that depends on.
    pub(crate) waiter_lock: Arc<Mutex<()>>,
    /// Some job polls for its I/O, which needs a poll queue.
    pub(crate) polled: AtomicBool,
    /// Its I/O does not end: threads that have some leave without it.
    pub(crate) leave: AtomicBool,
}

impl Disk {
    /// Starts the block layer on an open driver, with tags of its own or those of a set. The error is the setting that
    /// does not fit.
    pub fn new(driver: Arc<dyn HostDriver>, mut config: QueueConfig, shared: Option<&Shared>) -> Result<Disk> {
        limit_hw_queues(driver.as_ref(), &mut config);
        let waker = Arc::new(WakeTable::new(Arc::clone(&driver)));
        let core: Arc<dyn Driver> = driver.clone();
        let notify = Box::new(Waker(Arc::clone(&waker)));
        let queue = match shared {
            Some(shared) => RequestQueue::with_tag_set(&shared.tags, core, config, notify),
            None => RequestQueue::new(core, config, notify),
        }
        .map_err(|e| Error::usage(e.to_string()))?;
        let waiter_lock = shared.map_or_else(Arc::default, |s| Arc::clone(&s.waiter_lock));
        Ok(Disk { queue, driver, waker, waiter_lock, polled: AtomicBool::new(false), leave: AtomicBool::new(false) })
    }
}
