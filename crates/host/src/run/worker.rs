// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job thread that is ready to run: its load, its buffers, and where its I/O goes.

use super::checkpoint::{RunLinks, ThreadEnd};
use super::commands::Commands;
use super::direct::DirectDevices;
use super::job_loop::run_load;
use super::plain::{PlainDisk, Submitting};
use super::watch::Watched;
use super::wide::WideVolume;
use crate::error::Result;
use crate::mem::BufferPool;
use crate::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use workload::engine::JobThread;
use workload::load::Load;

/// What a thread does.
pub(super) enum WorkerLoad {
    /// A fio job's.
    Job(Box<JobThread>),
    /// A transaction loop's.
    Other(Box<dyn Load + Send>),
}

impl WorkerLoad {
    pub(super) fn load_mut(&mut self) -> &mut (dyn Load + Send) {
        match self {
            WorkerLoad::Job(job) => job.as_mut(),
            WorkerLoad::Other(load) => load.as_mut(),
        }
    }

    /// Bytes it moves if nothing ends it earlier.
    fn planned_bytes(&self) -> Option<u64> {
        match self {
            WorkerLoad::Job(job) => job.planned_bytes(),
            WorkerLoad::Other(_) => None,
        }
    }

    fn boxed(self) -> Box<dyn Load + Send> {
        match self {
            WorkerLoad::Job(job) => job,
            WorkerLoad::Other(load) => load,
        }
    }
}

/// Where its I/O goes.
pub(super) enum WorkerDevice {
    /// To one disk, of a fio job.
    Plain(PlainDisk),
    /// To several, in the order of the load's volumes.
    Wide(Vec<WideVolume>),
    /// To devices of the kernel.
    Direct(DirectDevices),
}

/// A job thread that is ready to run.
pub(super) struct Worker {
    pub(super) load: WorkerLoad,
    /// Buffers of its volumes.
    pub(super) pools: Vec<BufferPool>,
    pub(super) device: WorkerDevice,
    pub(super) submitting: Submitting,
    pub(super) pin: Option<Vec<u32>>,
    pub(super) links: RunLinks,
    /// I/Os the job submits at once (`iodepth_batch_submit`).
    pub(super) batch: u32,
    pub(super) commands: Option<Box<Commands>>,
}

impl Worker {
    /// What is seen of it while it runs.
    pub(super) fn watched(&self) -> Watched {
        Watched { live: Arc::clone(&self.links.live), planned_bytes: self.load.planned_bytes(), started: None }
    }

    /// Devices it has I/O at, by their numbers in the run.
    pub(super) fn disks(&self) -> Vec<usize> {
        match &self.device {
            WorkerDevice::Plain(plain) => vec![plain.index],
            WorkerDevice::Wide(volumes) => volumes.iter().flat_map(|v| v.disks.iter().map(|d| d.0)).collect(),
            WorkerDevice::Direct(_) => Vec::new(),
        }
    }

    /// Runs the load to its end, between its commands.
    pub(super) fn run(mut self) -> Result<ThreadEnd> {
        let Some(commands) = self.commands.take() else { return self.run_load() };
        let (stop, live) = (Arc::clone(&self.links.stop), Arc::clone(&self.links.live));
        if let Some(why) = commands.before(&stop, &live)? {
            // Pairs with: run::watch::thread_progress
            live.done.store(true, Ordering::Release);
            let mut stats = self.load.load_mut().stats().clone();
            stats.ended_by = Some(why);
            return Ok(ThreadEnd {
                stats,
                verify_errors: Vec::new(),
                traces: Vec::new(),
                verify_state: None,
                not_dumped: None,
            });
        }
        let end = self.run_load()?;
        commands.after(&stop, &live)?;
        Ok(end)
    }

    fn run_load(self) -> Result<ThreadEnd> {
        let Worker { load, mut pools, device, submitting, pin, links, batch, commands: _ } = self;
        if let Some(cpus) = &pin {
            process::pin_thread(cpus)?;
        }
        match (device, load) {
            (WorkerDevice::Plain(disk), WorkerLoad::Job(job)) => {
                // I/Os that it submits before a wait: the device should start on a whole batch while others are prepared.
                let ahead = if job.depth() == 1 { 2 } else { batch };
                let device = disk.open(ahead, &submitting)?;
                Ok(run_load(job, pools, device, batch, links))
            }
            (WorkerDevice::Plain(_), WorkerLoad::Other(_)) => unreachable!("a transaction loop has volumes"),
            (WorkerDevice::Wide(volumes), load) => {
                let device = super::wide::open(&volumes, &submitting)?;
                Ok(run_load(load.boxed(), pools, device, batch, links))
            }
            (WorkerDevice::Direct(devices), load) => {
                let device = devices.open(&mut pools, batch, Arc::clone(&links.live))?;
                match load {
                    WorkerLoad::Job(job) => Ok(run_load(job, pools, device, batch, links)),
                    WorkerLoad::Other(load) => Ok(run_load(load, pools, device, batch, links)),
                }
            }
        }
    }
}

/// Bytes of buffer an operation of a job needs per slot.
pub(super) fn slot_bytes(job: &JobThread) -> usize {
    (job.max_io_bytes() as usize).max(512)
}
