// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of a job thread: carries what a load asks for to a device, and completions back.
//!
//! Guarantees: every I/O that the load handed out is completed before the loop ends, also when the run is stopped. The exception is a
//! device that cannot complete its I/O ([`checkpoint`](super::checkpoint)). The loop then ends without that I/O, and the memory that the
//! I/O needs is never freed. One clock reading serves everything between two system calls or polls. Needs from devices: see the calls of
//! [`JobDevice`].
//!
//! One generic loop serves all devices. On the null driver it takes 0.96 to 0.98 of the processor time per I/O of a loop for
//! one disk alone (medians of 11 pairs at depths 1 and 32).

use super::checkpoint::{Checkpoint, RunLinks, ThreadEnd, ThreadTrace, VERIFY_REPORTS};
use super::waiter::STOP_CHECK;
use crate::clock;
use crate::mem::BufferPool;
use blk::bio::{Bio, DataRef};
use blk::status::BlkStatus;
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use workload::engine::{Completed, IoReq, Next};
use workload::load::Load;
use workload::verify::VerifyError;

/// Where the I/O of a job thread goes.
pub(super) trait JobDevice {
    /// I/O may complete during its submission. The clock reading that follows the submission is then the completion time, too.
    const ENDS_IN_SUBMIT: bool;
    /// A single I/O is also announced by [`JobDevice::plug`] and ended by [`JobDevice::finish_plug`].
    const PLUGS_SINGLE: bool;

    /// Announces up to `nr_ios` I/Os of a batch to the load's target `target`. `is_first`: none of the batch came before.
    fn plug(&mut self, target: usize, is_first: bool, nr_ios: u32);

    /// Takes an I/O, whose completion carries its slot as `user_data`.
    ///
    /// # Errors
    /// There is no room until some of the I/O in flight has completed.
    fn submit(&mut self, target: usize, bio: &Bio, now: Instant) -> Result<(), SubmitError>;

    /// Issues what was submitted so far of a batch that continues.
    fn flush_plug(&mut self, now: Instant);

    /// Issues a batch.
    fn finish_plug(&mut self, now: Instant);

    /// Collects completions. Does not wait.
    fn poll(&mut self, now: Instant);

    /// Burns time on the CPU while the load wants that.
    fn spin(&mut self, now: Instant) {
        self.poll(now);
    }

    /// Returns the next I/O of the collected completions.
    fn reap_one(&mut self) -> Option<Done>;

    /// Whether completions were collected and not reaped.
    fn is_ready(&mut self) -> bool;

    /// Returns the number of I/Os that were submitted and not reaped.
    fn outstanding(&self) -> u32;

    /// Whether to wait before polling, because the wait also submits or polls.
    fn waits_first(&self) -> bool;

    /// Waits until `min` I/Os may have completed, for `timeout` at most; it may return early for no reason. With nothing in flight it
    /// sleeps for `timeout`.
    fn wait(&mut self, min: u32, timeout: Option<Duration>);

    /// Whether a stopping run has I/O in flight that will never complete.
    fn is_stuck(&mut self, now: Instant) -> bool;

    /// Called when the loop has ended with nothing in flight.
    fn leave(&mut self) {}

    /// Returns the events that were traced.
    fn traces(&mut self) -> Vec<ThreadTrace> {
        Vec::new()
    }
}

/// Buffers of a load's volumes, of which there are one or two. Slots are numbered through both.
struct Buffers {
    first: BufferPool,
    second: Option<BufferPool>,
    /// The first slot of the second volume.
    second_from: u32,
}

impl Buffers {
    fn new(pools: Vec<BufferPool>) -> Buffers {
        let mut pools = pools.into_iter();
        let first = pools.next().expect("a load has a volume");
        let (second_from, second) = (first.slots(), pools.next());
        assert!(pools.next().is_none(), "a load has two volumes at most");
        Buffers { first, second, second_from }
    }

    /// Number of all slots.
    fn slots(&self) -> u32 {
        self.second_from + self.second.as_ref().map_or(0, BufferPool::slots)
    }

    /// The buffers of a slot, and its number there.
    #[inline]
    fn of(&mut self, slot: u32) -> (&mut BufferPool, u32) {
        if slot < self.second_from {
            return (&mut self.first, slot);
        }
        let second = self.second.as_mut().expect("a slot beyond the first volume");
        (second, slot - self.second_from)
    }
}

struct JobLoop<L: Load + ?Sized, D> {
    // This field is dropped before the buffers, because the device uses them until then.
    device: D,
    load: Box<L>,
    buffers: Buffers,
    /// There is one slot.
    is_single: bool,
    /// I/Os submitted since the last commit.
    queued: u32,
    batch: u32,
    verify_errors: Vec<VerifyError>,
    checkpoint: Checkpoint,
    now: Instant,
}

/// Runs a load to its end. `batch`: the number of I/Os that it submits at once.
pub(super) fn run_load<L: Load + ?Sized, D: JobDevice>(
    mut load: Box<L>,
    pools: Vec<BufferPool>,
    device: D,
    batch: u32,
    links: RunLinks,
) -> ThreadEnd {
    let mut buffers = Buffers::new(pools);
    for slot in 0..buffers.slots() {
        let (pool, slot) = buffers.of(slot);
        pool.with_slot(slot, |buf| load.fill_first(buf));
    }
    let mut l = JobLoop {
        is_single: buffers.slots() == 1,
        device,
        load,
        buffers,
        queued: 0,
        batch,
        verify_errors: Vec::new(),
        now: clock::now(),
        checkpoint: Checkpoint::new(links),
    };
    l.run();
    let leaves = l.checkpoint.leaves();
    if !leaves {
        l.device.leave();
    }
    l.checkpoint.end(l.load.as_mut(), l.now);
    let verify_errors = std::mem::take(&mut l.verify_errors);
    let (stats, verify_state) = (l.load.stats().clone(), l.load.verify_state());
    let end = ThreadEnd {
        stats,
        verify_errors,
        traces: l.device.traces(),
        verify_state,
        not_dumped: l.checkpoint.not_dumped(),
    };
    if leaves {
        // The device may still write to its buffers, and complete what is in flight.
        std::mem::forget(l);
    }
    end
}

impl<L: Load + ?Sized, D: JobDevice> JobLoop<L, D> {
    fn run(&mut self) {
        loop {
            if let Some(io) = self.load.next_uniform(self.now) {
                self.queue(io);
                continue;
            }
            match self.load.next_other(self.now) {
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
                        self.now = clock::now();
                        self.device.spin(self.now);
                    }
                }
                Next::Done => break,
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
        }
        assert!(self.device.outstanding() == 0, "the load ended with I/O outstanding");
    }

    /// Reports the progress of the load now and then, and checks whether it is to stop.
    #[inline]
    fn look_around(&mut self) {
        if self.checkpoint.is_due(self.now) {
            self.look_around_now();
        }
    }

    fn look_around_now(&mut self) {
        // I/O that completes during submission needs no poll, but other I/O may need a poll to continue.
        self.device.poll(self.now);
        let (device, now) = (&mut self.device, self.now);
        self.checkpoint.look(self.load.as_mut(), now, || device.is_stuck(now));
    }

    /// Hands an I/O to the device, alone or with others of its batch.
    #[inline]
    fn queue(&mut self, io: IoReq) {
        let (pool, slot) = self.buffers.of(io.slot);
        let target = io.target as usize;
        if io.fill {
            let load = &mut self.load;
            pool.with_slot(slot, |buf| load.fill(io.slot, &mut buf[..io.len_bytes as usize]));
        }
        let bio = io.bio(if io.op.has_data() { pool.lend(slot) } else { DataRef::NONE });
        let alone = !D::PLUGS_SINGLE && self.queued == 0 && io.commit;
        if !alone {
            self.device.plug(target, self.queued == 0, self.batch);
            self.queued += 1;
        }
        while let Err(SubmitError::NoBio) = self.device.submit(target, &bio, self.now) {
            self.wait_for_bio();
            if self.checkpoint.leaves() {
                return;
            }
        }
        if alone {
            self.now = clock::now();
            // What completed during submission is reaped at once: one clock reading serves both times. With one slot, it is the I/O
            // that was just submitted.
            let exchanges = !self.is_single && self.load.exchanges(self.now);
            if D::ENDS_IN_SUBMIT
                && (self.is_single || exchanges)
                && let Some(done) = self.device.reap_one()
            {
                self.hand_back(done, if exchanges { L::exchanged } else { L::ended_at_once });
                self.look_around();
            } else {
                self.load.submitted(self.now);
            }
        } else if io.commit {
            self.commit();
        }
    }

    /// Waits for free bio slots, which the pieces of large I/Os use up. Does not hand completed I/Os to the load: the load does not know
    /// all submissions yet.
    #[cold]
    fn wait_for_bio(&mut self) {
        self.device.flush_plug(self.now);
        self.device.wait(1, None);
        self.now = clock::now();
        self.device.poll(self.now);
        self.look_around();
    }

    /// Ends a batch: its I/Os count as submitted from here. The clock is read again because the submission took time.
    #[inline]
    fn commit(&mut self) {
        if self.queued > 0 {
            self.queued = 0;
            self.device.finish_plug(self.now);
            self.now = clock::now();
            self.load.submitted(self.now);
        }
    }

    /// Waits for `min` I/Os and completes up to `max`. A load that is told to stop meanwhile issues nothing after that. Everything in
    /// flight is waited for, however slow the device, as long as it may complete.
    fn reap(&mut self, min: u32, max: u32) {
        // I/O that completed during submission is collected already, and took its time from the clock reading that followed.
        if D::ENDS_IN_SUBMIT
            && max == 1
            && let Some(done) = self.device.reap_one()
        {
            return self.hand_back(done, L::complete_one);
        }
        let mut got = 0;
        if self.device.is_ready() {
            // Read again for a batch, or every completion latency would be 0.
            self.now = clock::now();
            got = self.complete(max);
            if got >= min {
                return;
            }
        }
        loop {
            if self.device.waits_first() && min > got && !self.device.is_ready() {
                self.device.wait(min - got, None);
            }
            self.now = clock::now();
            self.device.poll(self.now);
            got += self.complete(max - got);
            if got >= min || got >= max {
                return;
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
            if !self.device.waits_first() {
                self.device.wait(min - got, None);
            }
        }
    }

    /// Hands up to `max` completed I/Os to the load. Returns how many there were.
    fn complete(&mut self, max: u32) -> u32 {
        let mut n = 0;
        while n < max
            && let Some(done) = self.device.reap_one()
        {
            self.hand_back(done, L::complete);
            n += 1;
        }
        if n > 0 {
            self.load.reaped(n);
        }
        n
    }

    /// Returns the buffer of a completed I/O to the load; `complete` notifies the load.
    #[inline]
    fn hand_back(&mut self, done: Done, complete: impl FnOnce(&mut L, u32, BlkStatus, Instant) -> Completed) {
        let slot = done.user_data as u32;
        if done.op.has_data() {
            let (pool, own) = self.buffers.of(slot);
            // SAFETY: the I/O with this buffer has completed: a device returns each once.
            unsafe { pool.give_back(own) };
        }
        if complete(&mut self.load, slot, done.status, self.now).needs_verify {
            self.verify(slot);
        }
    }

    #[cold]
    fn verify(&mut self, slot: u32) {
        let (pool, own) = self.buffers.of(slot);
        let load = &mut self.load;
        if let Err(mut e) = pool.with_slot(own, |buf| load.verify(slot, buf)) {
            self.checkpoint.dump(&mut e);
            if self.verify_errors.len() < VERIFY_REPORTS {
                self.verify_errors.push(e);
            }
        }
    }

    /// Issues nothing before `until`; completes I/O meanwhile.
    fn wait_until(&mut self, until: Instant) {
        self.now = clock::now();
        if !self.device.waits_first() {
            // I/O that completed during submission is collected already.
            self.device.poll(self.now);
        }
        if self.complete(u32::MAX) == 0 && self.now < until {
            self.device.wait(1, Some(until.since(self.now).min(STOP_CHECK)));
            self.now = clock::now();
            self.device.poll(self.now);
            self.complete(u32::MAX);
        }
    }
}
