// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job thread whose I/O goes to several devices: a striped target, or a database with its redo log.
//!
//! Guarantees: as of [`super::worker`]: every I/O that was handed out is completed before the thread ends, or left behind when the run is to
//! stop and one of the devices cannot end it ([`checkpoint`](super::checkpoint)); one clock reading serves everything between two polls. Does not
//! do: what only a thread that is alone on one hardware queue may (claims, lazy submission), or poll instead of waiting (`hipri`).

use super::checkpoint::{Checkpoint, Live, ThreadEnd, ThreadTrace, VERIFY_REPORTS};
use super::wait_set::WaitSet;
use super::waiter::STOP_CHECK;
use crate::clock;
use crate::disk::Disk;
use crate::disk::IoPath;
use crate::error::{Error, Result};
use crate::mem::BufferPool;
use crate::process;
use blk::bio::DataRef;
use blk::id::CpuId;
use blk::stripe::{StripeMap, Striped};
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use workload::engine::{IoReq, Next};
use workload::load::Load;
use workload::verify::VerifyError;

/// One of the disks its I/O goes to.
pub(super) struct WideVolume {
    /// The devices, one or those of a stripe, with their numbers in the run.
    pub(super) disks: Vec<(usize, Arc<Disk>)>,
    /// Where sectors lie, of a stripe.
    pub(super) map: Option<Arc<StripeMap>>,
    pub(super) buffers: BufferPool,
}

/// A thread that is ready to run.
pub(super) struct Wide {
    pub(super) load: Box<dyn Load + Send>,
    pub(super) volumes: Vec<WideVolume>,
    pub(super) cpu: CpuId,
    pub(super) pin: Option<Vec<u32>>,
    pub(super) live: Arc<Live>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) weight: Option<u16>,
    pub(super) batch: u32,
    /// Bytes it moves if nothing ends it earlier.
    pub(super) planned_bytes: Option<u64>,
    pub(super) trace_events: usize,
}

struct Volume {
    buffers: BufferPool,
    /// Its slots begin here, counted through all volumes.
    first_slot: u32,
    is_plugged: bool,
}

struct Loop {
    load: Box<dyn Load + Send>,
    volumes: Vec<Volume>,
    /// Of each volume.
    io_paths: Vec<IoPath>,
    wait_set: WaitSet,
    queued: u32,
    batch: u32,
    /// Bios that ended and were not handed to the load.
    done: VecDeque<Done>,
    verify_errors: Vec<VerifyError>,
    checkpoint: Checkpoint,
    now: Instant,
}

impl Wide {
    /// Runs the load to its end.
    pub(super) fn run(mut self) -> Result<ThreadEnd> {
        if let Some(cpus) = &self.pin {
            process::pin_thread(cpus)?;
        }
        clock::sleep_precisely();
        let (mut volumes, mut io_paths, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wait_set, mut first_slot) = (WaitSet::default(), 0);
        for volume in std::mem::take(&mut self.volumes) {
            let io_path = self.io_path(&volume)?;
            numbers.push(volume.disks.iter().map(|d| d.0).collect::<Vec<_>>());
            wait_set.add(volume.disks.iter().map(|d| Arc::clone(&d.1)), &io_path);
            let mut buffers = volume.buffers;
            for slot in 0..buffers.slots() {
                buffers.with_slot(slot, |buf| self.load.fill_first(buf));
            }
            let slots = buffers.slots();
            io_paths.push(io_path);
            volumes.push(Volume { buffers, first_slot, is_plugged: false });
            first_slot += slots;
        }
        let mut l = Loop {
            load: self.load,
            volumes,
            io_paths,
            wait_set,
            queued: 0,
            batch: self.batch,
            done: VecDeque::with_capacity(first_slot as usize),
            verify_errors: Vec::new(),
            now: clock::now(),
            checkpoint: Checkpoint::new(self.stop, self.live),
        };
        l.run();
        l.checkpoint.end(l.load.as_mut(), l.now);
        let mut traces = Vec::new();
        for (io_path, numbers) in l.io_paths.iter_mut().zip(numbers) {
            for (sub, disk) in io_path.submitters_mut().iter_mut().zip(numbers) {
                if self.trace_events > 0 {
                    traces.push(ThreadTrace { disk, log: sub.stop_trace() });
                }
            }
        }
        let verify_errors = std::mem::take(&mut l.verify_errors);
        let end = ThreadEnd { stats: l.load.stats().clone(), verify_errors, traces };
        if l.checkpoint.leaves() {
            // The disks may still write to its buffers, and end what its submitters have out.
            std::mem::forget(l);
        }
        Ok(end)
    }

    fn io_path(&self, volume: &WideVolume) -> Result<IoPath> {
        let mut below = Vec::new();
        for (_, disk) in &volume.disks {
            let mut sub = disk.queue.submitter(self.cpu).ok_or_else(|| {
                Error::usage(format!("numjobs: at most {} job threads per disk", blk::id::MAX_SUBMITTERS))
            })?;
            sub.set_weight(self.weight).map_err(|e| Error::usage(e.to_string()))?;
            if self.trace_events > 0 {
                sub.start_trace(self.trace_events);
            }
            below.push(sub);
        }
        Ok(match &volume.map {
            Some(map) => IoPath::Striped(Box::new(Striped::new(Arc::clone(map), below))),
            None => IoPath::Plain(below.remove(0)),
        })
    }
}

impl Loop {
    fn run(&mut self) {
        loop {
            match self.load.next(self.now) {
                Next::Io(io) => {
                    self.queue(io);
                    continue;
                }
                Next::Reap { min, max } => {
                    self.commit();
                    self.reap(min, max);
                }
                Next::Wait(until) => {
                    self.commit();
                    self.wait_until(until);
                }
                Next::Spin(until) => {
                    self.commit();
                    while self.now < until {
                        self.poll();
                    }
                }
                Next::Done => break,
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
        }
        assert!(self.outstanding() == 0 && self.done.is_empty(), "the load ended with I/O outstanding");
    }

    fn look_around(&mut self) {
        if self.checkpoint.is_due(self.now) {
            let is_left = || self.wait_set.has_left(&self.io_paths);
            self.checkpoint.look(self.load.as_mut(), self.now, is_left);
        }
    }

    fn outstanding(&self) -> u32 {
        self.io_paths.iter().map(IoPath::outstanding).sum()
    }

    /// The volume that a slot belongs to; there are one or two.
    fn volume_of(&self, slot: u32) -> usize {
        self.volumes.iter().rposition(|v| v.first_slot <= slot).expect("the first slot of the first volume is 0")
    }

    fn queue(&mut self, io: IoReq) {
        let number = self.volume_of(io.slot);
        let load = &mut self.load;
        let volume = &mut self.volumes[number];
        let slot = io.slot - volume.first_slot;
        if io.fill {
            volume.buffers.with_slot(slot, |buf| load.fill(io.slot, &mut buf[..io.len_bytes as usize]));
        }
        let bio = io.bio(if io.op.has_data() { volume.buffers.lend(slot) } else { DataRef::NONE });
        if !volume.is_plugged {
            volume.is_plugged = true;
            self.io_paths[number].start_plug(self.batch);
        }
        self.queued += 1;
        while let Err(SubmitError::NoBio) = self.io_paths[number].submit(&bio, self.now) {
            // Pieces of large I/Os have the slots. What ends meanwhile is handed over later: the load has not been told
            // of all submissions.
            self.unplug();
            self.wait(None);
            self.poll();
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
        }
        if io.commit {
            self.commit();
        }
    }

    fn unplug(&mut self) {
        for (volume, io_path) in self.volumes.iter_mut().zip(&mut self.io_paths).filter(|(v, _)| v.is_plugged) {
            volume.is_plugged = false;
            io_path.finish_plug(self.now);
        }
    }

    /// Ends a batch: its I/Os count as submitted from here.
    fn commit(&mut self) {
        if self.queued > 0 {
            self.queued = 0;
            self.unplug();
            self.now = clock::now();
            self.load.submitted(self.now);
        }
    }

    fn poll(&mut self) {
        self.now = clock::now();
        let done = &mut self.done;
        for io_path in &mut self.io_paths {
            io_path.poll(self.now);
            io_path.reap(|d| done.push_back(d));
        }
    }

    /// Completes `min` to `max` I/Os, waiting for them.
    fn reap(&mut self, min: u32, max: u32) {
        let mut got = 0;
        loop {
            self.poll();
            got += self.complete(max - got);
            if got >= min || got >= max {
                return;
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
            self.wait(None);
        }
    }

    /// Hands up to `max` ended I/Os to the load; how many there were.
    fn complete(&mut self, max: u32) -> u32 {
        let mut n = 0;
        while n < max
            && let Some(done) = self.done.pop_front()
        {
            self.hand_back(done);
            n += 1;
        }
        if n > 0 {
            self.load.reaped(n);
        }
        n
    }

    fn hand_back(&mut self, done: Done) {
        let slot = done.user_data as u32;
        let number = self.volume_of(slot);
        let volume = &mut self.volumes[number];
        let own = slot - volume.first_slot;
        if done.op.has_data() {
            // SAFETY: the bio with this buffer's DataRef has ended: the block layer returns each bio once.
            unsafe { volume.buffers.give_back(own) };
        }
        let load = &mut self.load;
        if load.complete(slot, done.status, self.now).needs_verify
            && let Err(e) = volume.buffers.with_slot(own, |buf| load.verify(slot, buf))
            && self.verify_errors.len() < VERIFY_REPORTS
        {
            self.verify_errors.push(e);
        }
    }

    /// Nothing may be issued before `until`; what ends meanwhile is completed.
    fn wait_until(&mut self, until: Instant) {
        // What ended while it was submitted is there already.
        self.poll();
        if self.complete(u32::MAX) == 0 && self.now < until {
            self.wait(Some(until.since(self.now).min(STOP_CHECK)));
            self.poll();
            self.complete(u32::MAX);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.wait_set.wait(&mut self.io_paths, timeout);
    }
}
