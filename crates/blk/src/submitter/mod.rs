// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter: one thread's entry to one disk, and the only type that submits I/O and returns completions.
//!
//! It owns the data that its thread writes on every I/O: bio slots, plug, tag hints, counters. So two submitters on two
//! CPUs with their own hctx share no written cache line. [`Submitter::reap`] returns every accepted bio exactly once. A
//! bio that finds no tag waits in the submitter, in order, and is tried again at each poll.

mod env;
mod inside;
pub(crate) mod shared;
mod steps;

use env::Scratch;
pub(crate) use env::{Env, HctxRoute, Local};
use shared::Remote;

use crate::bio::{Bio, BioId, Op, OpFlags, PIECE_SLOTS};
use crate::driver::Completions;
use crate::id::{CpuId, SubmitterId};
use crate::lock::Lock;
use crate::path::plug::Plug;
use crate::qos::held_bios::HeldBios;
use crate::queue::request_queue::RequestQueue;
use crate::settings::SettingError;
use crate::sq::request_list::Batching;
use crate::status::BlkStatus;
use crate::sync::Ordering;
use crate::tags::sbitmap::TagAllocHint;
use crate::time::Instant;
use crate::trace::event::EventKind;
use crate::trace::log::Tracer;
use std::collections::VecDeque;
use std::sync::Arc;

/// A completed I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The bio's `user_data`.
    pub user_data: u64,
    /// The operation.
    pub op: Op,
    /// The outcome.
    pub status: BlkStatus,
}

/// Why a bio was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// All `bios_per_submitter` slots are in use: reap first.
    #[error("all bio slots of this submitter are in use; reap completions first")]
    NoBio,
}

/// Greatest weight of a submitter.
pub const MAX_WEIGHT: u16 = 1000;

/// One thread's entry to one disk. See the module's text.
pub struct Submitter<L: Lock> {
    pub(crate) env: Env<L>,
    pub(crate) local: Local,
    generation: u64,
    inside: bool,
    /// The CPU it was made for.
    pub(crate) home: CpuId,
    /// It is not on its home CPU, or still polls hardware queues of a former CPU.
    pub(crate) displaced: bool,
}

impl<L: Lock> RequestQueue<L> {
    /// Makes a submitter on `cpu`. `None` when all [`MAX_SUBMITTERS`](crate::id::MAX_SUBMITTERS) are in use. Panics
    /// when the stack has no such CPU.
    pub fn submitter(self: &Arc<Self>, cpu: CpuId) -> Option<Submitter<L>> {
        let (id, shared) = self.take_submitter(cpu)?;
        // In this order: after a rebuild in between, the submitter has an old generation, and notices that at its first
        // entry.
        let generation = self.generation();
        let st = self.state();
        let nr_bios = self.bios.pool_or_init(id).nr_bios();
        // The previous owner of this number may have set a weight.
        self.bios.set_weight(id, 0);
        let cap = nr_bios as usize;
        let mut submitter = Submitter {
            local: Local {
                free_bios: (0..nr_bios).rev().collect(),
                free_pieces: (nr_bios..nr_bios + PIECE_SLOTS).rev().collect(),
                done: VecDeque::with_capacity(cap),
                waiting: VecDeque::with_capacity(cap),
                held: HeldBios::default(),
                tag_wait: None,
                blocked_on_tag: false,
                woken: None,
                left_behind: Vec::new(),
                plug: Plug::new(cap),
                hints: [0, 1, 2].map(|t| TagAllocHint::new((id.index() as u32).wrapping_mul(0x9e37_79b9) ^ t)),
                completions: Completions::new(self.driver.name(), self.serial),
                sq_batching: Batching::default(),
                sq_wait: None,
                next_tick: Instant::ZERO,
                issued: false,
                in_driver: false,
                in_interrupt: false,
                owes: false,
                trace: Tracer::default(),
                scratch: Scratch::new(nr_bios),
            },
            env: Env {
                q: self.clone(),
                st,
                shared,
                pool: Arc::clone(self.bios.pool_or_init(id)),
                id,
                cpu,
                hctx_of: [0; 3],
                polled: [0; 3],
                nr_polled: 0,
                routes: [HctxRoute::default(); 3],
                direct: false,
                may_hold: false,
            },
            generation,
            inside: false,
            home: cpu,
            displaced: false,
        };
        submitter.env.go_to(cpu);
        submitter.follow_cpu(Instant::ZERO);
        submitter.local.reserve(submitter.env.st.stride as usize);
        Some(submitter)
    }
}

impl<L: Lock> Submitter<L> {
    /// Returns the submitter's number, which is passed to [`Notify`](crate::queue::Notify).
    pub fn id(&self) -> SubmitterId {
        self.env.id
    }

    /// Returns the CPU from which it submits.
    pub fn cpu(&self) -> CpuId {
        self.env.cpu
    }

    /// Returns the disk.
    pub fn disk(&self) -> &Arc<RequestQueue<L>> {
        &self.env.q
    }

    /// Returns the generation of the disk's settings that this submitter uses. It changes when the submitter adopts
    /// other settings; the submitter's hardware queues may change with it. The call reads only this submitter, for
    /// callers that cache values derived from the settings.
    #[inline]
    pub fn state_generation(&self) -> u64 {
        self.generation
    }

    /// Sets this submitter's weight for elevators that share by weight (bfq): 1..=1000. `None`, the default: (8 -
    /// level of the I/O priority) x 10, which is 40 without a priority. It takes effect at the submitter's next turn.
    /// Other elevators ignore it.
    pub fn set_weight(&mut self, weight: Option<u16>) -> Result<(), SettingError> {
        if let Some(w) = weight
            && !(1..=MAX_WEIGHT).contains(&w)
        {
            return Err(SettingError(format!(
                "weight={w}: must be 1..={MAX_WEIGHT}; leave it out to use the I/O priority"
            )));
        }
        self.env.q.bios.set_weight(self.env.id, weight.unwrap_or(0));
        Ok(())
    }

    /// Returns the weight that [`Submitter::set_weight`] has set.
    pub fn weight(&self) -> Option<u16> {
        Some(self.env.q.bios.weight(self.env.id.index())).filter(|w| *w != 0)
    }

    /// Returns how many bios are accepted and not yet reaped.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.env.in_flight() + self.local.done.len() as u32
    }

    /// Returns how many bios wait for a tag or a slot.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.local.waiting.len()
    }

    /// Returns how many bios the disk's limits or write-back throttling hold back. They are released by polls at
    /// [`RequestQueue::next_timer`], or after this submitter is notified.
    #[inline]
    pub fn held(&self) -> usize {
        self.local.held.len()
    }

    /// Returns how many completed bios [`Submitter::reap`] would return now.
    #[inline]
    pub fn ready(&self) -> usize {
        self.local.done.len()
    }

    /// Opens the plug: bios submitted until [`Submitter::finish_plug`] go to the driver in batches. `nr_ios` is how many
    /// are expected (0 = unknown); that many tags are taken at once. Nests; the outermost counts.
    #[inline]
    pub fn start_plug(&mut self, nr_ios: u32) {
        self.local.plug.start(nr_ios);
    }

    /// Closes the plug and issues its requests.
    #[inline]
    pub fn finish_plug(&mut self, now: Instant) {
        let closed = self.env.close_plug(&mut self.local, now);
        self.serve_owed(now);
        if closed {
            self.leave_if_idle();
        }
    }

    /// Issues the requests in the plug without closing it (the kernel does this when a task sleeps).
    #[inline]
    pub fn flush_plug(&mut self, now: Instant) {
        self.env.flush_plug(&mut self.local, now);
        self.serve_owed(now);
    }

    /// Serves the runs that became due when requests completed inside the driver's call, because no later completion
    /// does it.
    #[inline]
    fn serve_owed(&mut self, now: Instant) {
        if self.local.owes {
            self.serve_owed_now(now);
        }
    }

    #[cold]
    fn serve_owed_now(&mut self, now: Instant) {
        assert!(self.inside, "what is owed comes of being inside, and no submitter leaves before it is done");
        self.local.owes = false;
        self.env.serve_pending(&mut self.local, now);
        if !self.local.waiting.is_empty() {
            self.retry_waiting(now);
        }
        if core::mem::take(&mut self.local.owes) {
            // The number of passes in one call is bounded: the rest is left to the next poll.
            self.env.wake(self.env.waiter());
        }
    }

    /// Submits a bio. An invalid bio (out of range, misaligned, unsupported) is accepted and completes with an error
    /// status; only a missing bio slot is an error here.
    #[inline]
    pub fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError> {
        let index = self.local.free_bios.pop().ok_or(SubmitError::NoBio)?;
        self.env.pool().slot(index as usize).fill(bio, index, now);
        self.env.shared.counters.in_flight.add(1);
        // Enters first, so that the bio is checked against the state in which it will be queued.
        let entered = self.local.waiting.is_empty() && self.enter(now);
        if let Err(status) = self.env.check_bio(bio) {
            self.env.end_bio(&mut self.local, BioId::new(self.env.id, index), status);
            self.leave_if_idle();
        } else if !entered || self.may_be_held() {
            self.env.trace_bio(&mut self.local, EventKind::Queue, self.env.pool().slot(index as usize), now);
            if self.may_be_held() {
                self.submit_limited(index, bio, now);
            } else {
                self.wait_in_line(bio.flags, index, now);
            }
        } else if !self.env.queue_bio(&mut self.local, index, bio, true, now) {
            self.wait_in_line(bio.flags, index, now);
        }
        // Flush the plug even if the submitter could not enter above: a bio that has passed the limits tries to enter again, and the freeze
        // may have ended by then.
        if self.local.plug.is_due() {
            self.env.flush_plug(&mut self.local, now);
        }
        self.serve_owed(now);
        Ok(())
    }

    #[cold]
    pub(crate) fn wait_in_line(&mut self, flags: OpFlags, index: u32, now: Instant) {
        if flags.contains(OpFlags::NOWAIT) {
            let id = BioId::new(self.env.id, index);
            let slot = self.env.pool().slot(index as usize);
            self.env.trace_ended_bio(&mut self.local, slot, BlkStatus::Again, now);
            self.local.held.refuse_throttled();
            self.env.wbt_cleanup(slot, now);
            self.env.end_bio(&mut self.local, id, BlkStatus::Again);
            self.env.settle_tag_wait(&mut self.local);
            self.serve_owed(now);
            self.leave_if_idle();
        } else if !self.local.held.hold_throttled(self.env.pool(), index) {
            self.local.waiting.push_back(index);
        }
    }

    /// Collects completions of this submitter's hardware queues, serves work that is due (restarts, delayed runs,
    /// requeues) and tries waiting bios again. Never blocks.
    ///
    /// A submitter stays inside the block layer until the first poll that begins without bios in flight. So at a depth of
    /// one, an I/O does not pay for leaving and entering. A caller that stops polling must call [`Submitter::rest`], or a
    /// freeze waits for this submitter.
    pub fn poll(&mut self, now: Instant) {
        self.poll_and(true, now);
    }

    fn poll_and(&mut self, awake: bool, now: Instant) {
        let was_idle = self.env.in_flight() == 0;
        self.return_kept_tag();
        let inside = self.enter_to_poll(now);
        if inside {
            self.env.poll_hctxs(&mut self.local, now);
            if self.displaced {
                self.poll_displaced(now);
            }
            if self.env.q.timer.is_due(now) {
                self.env.check_timeouts(&mut self.local, now);
            } else if self.local.issued && !self.env.q.timer.is_armed() {
                self.env.q.arm_timeout(now);
            }
        }
        // Pairs with: SubmitterShared::push_remote
        if self.env.shared.has_remote.load(Ordering::Acquire) {
            self.env.take_remote(&mut self.local, now);
        }
        if !inside {
            // A wake-up for a tag that others share is passed on, not kept until after the freeze.
            if self.local.tag_wait.is_some() {
                self.env.stop_waiting(&mut self.local);
            }
            return;
        }
        let gate = self.env.q.gate();
        if gate.is_leaving() {
            self.follow_cpu(now);
        }
        if self.env.q.has_work(now) {
            self.env.serve_pending(&mut self.local, now);
        }
        if awake && !self.local.waiting.is_empty() {
            self.retry_waiting(now);
        }
        if self.local.held.len() > 0 || self.env.q.qos.is_due(now) {
            self.serve_qos(now);
        }
        self.serve_owed(now);
        if was_idle || gate.is_frozen() {
            self.leave_if_idle();
        }
    }

    /// Notes that this submitter may be idle for a while; call it before the thread sleeps. After that a freeze waits
    /// for this submitter only if it has bios in flight. The tag kept for its next I/O is freed.
    pub fn rest(&mut self) {
        self.return_kept_tag();
        if core::mem::take(&mut self.local.issued) {
            self.env.q.timer.rearm_at_once();
        }
        self.leave_if_idle();
    }

    /// Gives back the tag that [`Plug::keep_tag`] kept.
    #[inline]
    fn return_kept_tag(&mut self) {
        if !self.local.plug.is_open() {
            self.env.return_cached_tags(&mut self.local);
        }
    }

    /// Calls `f` for each completed bio, in the order of completion, and frees its slot.
    #[inline]
    pub fn reap(&mut self, mut f: impl FnMut(Done)) {
        while let Some(done) = self.reap_one() {
            f(done);
        }
    }

    /// Returns the bio that completed first, and frees its slot.
    #[inline(always)] // So that the result stays in registers.
    pub fn reap_one(&mut self) -> Option<Done> {
        let index = self.local.done.pop_front()?;
        self.local.free_bios.push(index);
        let slot = self.env.pool().slot(index as usize);
        Some(Done { user_data: slot.user_data.get(), op: slot.op(), status: BlkStatus::from_u8(slot.status.get()) })
    }
}

impl<L: Lock> Drop for Submitter<L> {
    /// Frees the submitter's number. Panics when it still has bios inside the block layer, because their completions
    /// would go to the next owner of the number. Poll and reap until [`Submitter::outstanding`] is 0 first.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert!(self.outstanding() == 0, "a submitter was dropped with {} bios outstanding", self.outstanding());
        // An open plug may hold tags for bios that were never submitted.
        self.env.return_cached_tags(&mut self.local);
        self.leave();
        // Pairs with: SubmitterShared::take
        self.env.shared.in_use.store(false, Ordering::Release);
    }
}

impl<L: Lock> Env<L> {
    /// Completes bios and requests that other submitters passed to this one.
    #[cold]
    fn take_remote(&self, local: &mut Local, now: Instant) {
        let mut batch = core::mem::take(&mut local.scratch.remote);
        // Clear the flag before taking the list, so that the next call sees entries that are pushed meanwhile.
        // Pairs with: SubmitterShared::push_remote
        self.shared.has_remote.swap(false, Ordering::AcqRel);
        core::mem::swap(&mut batch, &mut *self.shared.remote.lock());
        for r in batch.drain(..) {
            match r {
                Remote::BioEnd(index, status) => self.end_bio(local, BioId::new(self.id, index), status),
                Remote::Complete(hctx, rq, status) => self.complete_rq(local, hctx.index(), rq, status, now),
            }
        }
        local.scratch.remote = batch;
    }
}
