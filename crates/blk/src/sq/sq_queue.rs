// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of the single-queue mode: all data that its `queue_lock` protects.

use super::request_list::RequestList;
use crate::elevator::interface::Tunable;
use crate::elevator::legacy::LegacyElevator;
use crate::elevator::registry::{LEGACY_NAMES, legacy_by_name};
use crate::lock::Lock;
use crate::request::{RequestId, Rq};
use crate::settings::QueueConfig;
use crate::sync::Mutex;
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;

/// The queue with its `queue_lock`.
pub(crate) struct SqQueue<L: Lock> {
    pub(super) inner: CachePadded<Mutex<L, SqInner>>,
    nr_requests: u32,
}

/// The data that the lock protects.
pub(super) struct SqInner {
    pub(super) elevator: Box<dyn LegacyElevator>,
    /// Free requests.
    pub(super) free: Vec<RequestId>,
    /// Requests in use per direction: [async, sync].
    pub(super) lists: [RequestList; 2],
    /// Free driver tags.
    pub(super) tags: Vec<u16>,
    /// Requests that were taken from the elevator and then refused or given back by the driver.
    pub(super) requeued: VecDeque<Rq>,
    /// The driver refused a request: the next completion runs the queue.
    pub(super) busy: bool,
}

impl<L: Lock> SqQueue<L> {
    pub(crate) fn new(config: &QueueConfig, nr_requests: u32) -> Result<Self, String> {
        let nr_rqs = RequestList::most(nr_requests) * 2;
        let name = config.scheduler.as_deref().unwrap_or(LEGACY_NAMES[0]);
        let mut elevator = legacy_by_name(name, nr_rqs as usize + 1).map_err(|e| e.to_string())?;
        for (k, v) in &config.iosched {
            elevator.set_tunable(k, *v)?;
        }
        let inner = SqInner {
            elevator,
            free: (0..nr_rqs).rev().map(RequestId::new).collect(),
            lists: [RequestList::new(nr_requests), RequestList::new(nr_requests)],
            tags: (0..config.queue_depth).rev().map(|t| t as u16).collect(),
            requeued: VecDeque::with_capacity(nr_rqs as usize + 1),
            busy: false,
        };
        Ok(SqQueue { inner: CachePadded::new(Mutex::new(inner)), nr_requests })
    }

    /// Returns the number of requests: both directions and the flush command.
    pub(crate) fn slab_len(&self) -> usize {
        RequestList::most(self.nr_requests) as usize * 2 + 1
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.inner.lock().lists.iter().map(RequestList::count).sum()
    }

    pub(crate) fn elevator_name(&self) -> &'static str {
        self.inner.lock().elevator.name()
    }

    pub(crate) fn tunables(&self) -> Vec<Tunable> {
        self.inner.lock().elevator.tunables()
    }

    pub(crate) fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.inner.lock().elevator.set_tunable(name, value)
    }
}
