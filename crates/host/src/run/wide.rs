// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several devices that a job thread has its I/O at: those of a striped target, of a job with several files, or of a database
//! with its redo log.
//!
//! Only the volumes that have I/O out are polled and waited for, so that a job may have thousands of files.
//!
//! Does not do: what only a thread that is alone on one hardware queue may (claims, lazy submission), or poll instead of waiting (`hipri`).

use super::checkpoint::ThreadTrace;
use super::job_loop::JobDevice;
use super::plain::{Submitting, submitter};
use super::wait_set::WaitSet;
use crate::clock;
use crate::disk::{Disk, IoPath};
use crate::error::Result;
use blk::bio::Bio;
use blk::rmw::Below;
use blk::stripe::{StripeMap, Striped};
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// One of the disks its I/O goes to.
pub(super) struct WideVolume {
    /// The devices, one or those of a stripe, with their numbers in the run.
    pub(super) disks: Vec<(usize, Arc<Disk>)>,
    /// Where sectors lie, of a stripe.
    pub(super) map: Option<Arc<StripeMap>>,
}

/// See the module's text.
pub(super) struct Wide {
    /// Of each volume, with the numbers of its devices in the run.
    io_paths: Vec<IoPath>,
    numbers: Vec<Vec<usize>>,
    /// Volumes with a plug, and whether each has one.
    plugged: Vec<usize>,
    is_plugged: Vec<bool>,
    /// Volumes with I/O out, and whether each has some.
    active: Vec<usize>,
    is_active: Vec<bool>,
    wait_set: WaitSet,
    /// Bios that ended and were not reaped.
    done: VecDeque<Done>,
    is_traced: bool,
}

/// Of the calling thread.
pub(super) fn open(volumes: &[WideVolume], how: &Submitting) -> Result<Wide> {
    clock::sleep_precisely();
    let (mut io_paths, mut numbers, mut wait_set) = (Vec::new(), Vec::new(), WaitSet::default());
    for WideVolume { disks, map } in volumes {
        let mut below = disks.iter().map(|(_, disk)| submitter(disk, how)).collect::<Result<Vec<_>>>()?;
        let io_path = match map {
            Some(map) => IoPath::Striped(Box::new(Striped::new(Arc::clone(map), below))),
            None => IoPath::Plain(below.remove(0)),
        };
        wait_set.add(disks.iter().map(|d| Arc::clone(&d.1)), &io_path);
        io_paths.push(io_path);
        numbers.push(disks.iter().map(|d| d.0).collect());
    }
    let none = vec![false; volumes.len()];
    Ok(Wide {
        io_paths,
        numbers,
        plugged: Vec::with_capacity(volumes.len()),
        is_plugged: none.clone(),
        active: Vec::with_capacity(volumes.len()),
        is_active: none,
        wait_set,
        done: VecDeque::new(),
        is_traced: how.trace_events > 0,
    })
}

impl JobDevice for Wide {
    const ENDS_IN_SUBMIT: bool = false;
    const PLUGS_SINGLE: bool = true;

    fn plug(&mut self, target: usize, _is_first: bool, nr_ios: u32) {
        if !std::mem::replace(&mut self.is_plugged[target], true) {
            self.plugged.push(target);
            self.io_paths[target].start_plug(nr_ios);
        }
    }

    fn submit(&mut self, target: usize, bio: &Bio, now: Instant) -> std::result::Result<(), SubmitError> {
        if !std::mem::replace(&mut self.is_active[target], true) {
            self.active.push(target);
        }
        self.io_paths[target].submit(bio, now)
    }

    fn flush_plug(&mut self, now: Instant) {
        self.finish_plug(now);
    }

    fn finish_plug(&mut self, now: Instant) {
        for volume in self.plugged.drain(..) {
            self.is_plugged[volume] = false;
            self.io_paths[volume].finish_plug(now);
        }
    }

    fn poll(&mut self, now: Instant) {
        let Wide { done, io_paths, is_active, .. } = self;
        self.active.retain(|&volume| {
            let io_path = &mut io_paths[volume];
            io_path.poll(now);
            io_path.reap(|d| done.push_back(d));
            is_active[volume] = io_path.outstanding() > 0;
            if !is_active[volume] {
                // Nothing polls it from here, and a freeze of its disk must not wait for that.
                io_path.rest();
            }
            is_active[volume]
        });
    }

    fn reap_one(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn is_ready(&mut self) -> bool {
        !self.done.is_empty()
    }

    fn outstanding(&self) -> u32 {
        let out = self.active.iter().map(|&volume| self.io_paths[volume].outstanding()).sum::<u32>();
        out + self.done.len() as u32
    }

    fn waits_first(&self) -> bool {
        false
    }

    fn wait(&mut self, _min: u32, timeout: Option<Duration>) {
        self.wait_set.wait(&mut self.io_paths, &self.active, timeout);
    }

    fn is_stuck(&mut self, _now: Instant) -> bool {
        self.wait_set.has_left(&self.io_paths, &self.active)
    }

    fn traces(&mut self) -> Vec<ThreadTrace> {
        let mut traces = Vec::new();
        if self.is_traced {
            for (io_path, numbers) in self.io_paths.iter_mut().zip(&self.numbers) {
                let submitters = io_path.submitters_mut().iter_mut().zip(numbers);
                traces.extend(submitters.map(|(sub, &disk)| ThreadTrace { disk, log: sub.stop_trace() }));
            }
        }
        traces
    }
}
