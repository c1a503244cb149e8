// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data that a submitter uses on the data path: its view of the disk ([`Env`]), and the data that only its own thread
//! accesses ([`Local`]).
//!
//! Guarantees: all data about hardware queues in [`Env`] belongs to one state of the queue. Does not do: notice a new
//! state. A submitter does that when it enters (see `inside`).

use super::shared::{Remote, SubmitterShared, remote_capacity};
use crate::bio::BioPool;
use crate::cpumap::HctxType;
use crate::driver::{Completions, Ended, POLL_BATCH};
use crate::id::{CpuId, SubmitterId};
use crate::lock::Lock;
use crate::path::plug::{BLK_MAX_REQUEST_COUNT, Plug};
use crate::qos::held_bios::HeldBios;
use crate::queue::request_queue::RequestQueue;
use crate::queue::state::QueueState;
use crate::request::{RequestId, Rq};
use crate::sq::request_list::Batching;
use crate::stat::HctxCounters;
use crate::tags::hctx_tags::TagClass;
use crate::tags::sbitmap::TagAllocHint;
use crate::tags::sbitmap_queue::WaiterId;
use crate::time::Instant;
use crate::trace::log::Tracer;
use std::collections::VecDeque;
use std::sync::Arc;

/// A submitter's view of the disk, for all steps of the data path.
pub(crate) struct Env<L: Lock> {
    pub(crate) q: Arc<RequestQueue<L>>,
    pub(crate) st: Arc<QueueState<L>>,
    pub(crate) shared: Arc<SubmitterShared<L>>,
    pub(super) pool: Arc<BioPool>,
    pub(crate) id: SubmitterId,
    pub(crate) cpu: CpuId,
    /// The hctx of this CPU per queue type.
    pub(crate) hctx_of: [u16; 3],
    /// The hctxs of `hctx_of` without repeats: the first `nr_polled` entries.
    pub(super) polled: [u16; 3],
    pub(super) nr_polled: usize,
    /// The route of requests of each queue type, looked up once per state of the queue.
    pub(crate) routes: [HctxRoute; 3],
    /// No elevator, no single-queue mode, no shared tags: a request that no plug holds back is issued directly to the
    /// driver, and its tag may be kept for the next request.
    pub(crate) direct: bool,
    /// The elevator may hold requests back, so it has to be checked after completions.
    pub(crate) may_hold: bool,
}

/// Where requests of one queue type go.
#[derive(Clone, Copy, Default)]
pub(crate) struct HctxRoute {
    pub(crate) hctx: usize,
    /// Index of the hctx's tag map.
    pub(crate) map: usize,
    /// Index of this CPU's software queue of the hctx.
    pub(crate) ctx: usize,
    /// Index of the allocation hint, which is the queue type of the hctx.
    pub(crate) hint: usize,
}

impl<L: Lock> Env<L> {
    #[inline]
    pub(crate) fn pool(&self) -> &BioPool {
        &self.pool
    }

    /// Returns the hctxs to which this submitter's requests go.
    #[inline]
    pub(crate) fn polled(&self) -> &[u16] {
        &self.polled[..self.nr_polled]
    }

    /// Makes another CPU the one from which this submitter submits.
    pub(crate) fn go_to(&mut self, cpu: CpuId) {
        self.cpu = cpu;
        self.remap();
        self.shared.set_cpu(cpu);
    }

    /// Looks up the hctxs and routes in a new state.
    pub(super) fn remap(&mut self) {
        let map = &self.st.map;
        self.hctx_of = HctxType::ALL.map(|t| map.hctx(self.cpu.index() as u16, t));
        self.nr_polled = 0;
        for hctx in self.hctx_of {
            if !self.polled[..self.nr_polled].contains(&hctx) {
                self.polled[self.nr_polled] = hctx;
                self.nr_polled += 1;
            }
        }
        self.routes = self.hctx_of.map(|hctx| {
            let ty = map.hctx_type(hctx);
            let map = self.st.map_of(usize::from(hctx));
            HctxRoute { hctx: usize::from(hctx), map, ctx: self.st.ctx_index(self.cpu, ty), hint: ty as usize }
        });
        self.direct = self.st.elevator.is_none() && self.st.sq.is_none() && !self.st.tags_are_shared;
        self.may_hold = self.st.elevator.as_ref().is_some_and(|e| e.may_hold());
    }

    pub(crate) fn nr_bios(&self) -> u32 {
        self.pool().nr_bios()
    }

    /// Returns how many bios are inside the block layer or waiting.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.shared.counters.in_flight.get() as u32
    }

    /// Returns this submitter's counters of an hctx.
    #[inline]
    pub(crate) fn hctx_counters(&self, hctx: usize) -> &HctxCounters {
        &self.shared.hctxs[hctx]
    }
}

/// Data that only the submitter's own thread accesses.
pub(crate) struct Local {
    pub(crate) free_bios: Vec<u32>,
    /// Slots for pieces of split bios only.
    pub(crate) free_pieces: Vec<u32>,
    pub(crate) done: VecDeque<u32>,
    /// Accepted bios that have no request yet, oldest first.
    pub(crate) waiting: VecDeque<u32>,
    /// Accepted bios that are held back by limits or write-back throttling.
    pub(crate) held: HeldBios,
    /// The hctx and class of tag for which this submitter is registered as a waiter.
    pub(crate) tag_wait: Option<(usize, TagClass)>,
    /// Whether the oldest waiting bio waits for a tag, and not for a bio slot.
    pub(crate) blocked_on_tag: bool,
    /// The hctx and class of tag for which this submitter was woken, until it takes a tag.
    pub(crate) woken: Option<(usize, TagClass)>,
    /// Hctxs of CPUs that this submitter has left, which may still have its requests.
    pub(crate) left_behind: Vec<u16>,
    pub(crate) plug: Plug,
    pub(crate) hints: [TagAllocHint; 3],
    pub(crate) completions: Completions,
    /// Single-queue mode: the right to keep allocating when the request list is full.
    pub(crate) sq_batching: Batching,
    /// Single-queue mode: the request list for which this submitter waits; true = synchronous.
    pub(crate) sq_wait: Option<bool>,
    /// io_ticks need no update before this time.
    pub(crate) next_tick: Instant,
    /// Requests were issued since the last [`rest`](crate::submitter::Submitter::rest), so the timeout timer has to be
    /// checked (see `path::timeout`).
    pub(crate) issued: bool,
    /// A batch is being passed to the driver: a request that completes meanwhile must not start another batch from
    /// inside that call.
    pub(crate) in_driver: bool,
    /// Runs of hctxs are left to the next poll.
    pub(crate) in_interrupt: bool,
    /// A run or a waiting bio is pending; it is handled before the call returns.
    pub(crate) owes: bool,
    pub(crate) trace: Tracer,
    pub(crate) scratch: Scratch,
}

impl Local {
    /// Makes all lists large enough for the requests of one hctx, so that the data path allocates nothing.
    pub(super) fn reserve(&mut self, rqs_per_hctx: usize) {
        self.scratch.reserve(rqs_per_hctx);
        self.completions.requeues.reserve(rqs_per_hctx);
    }

    /// Gives the slot of a piece back to the list that it was taken from.
    pub(crate) fn free_piece(&mut self, index: u32, nr_bios: u32) {
        if index < nr_bios { self.free_bios.push(index) } else { self.free_pieces.push(index) }
    }
}

/// Lists that are empty between calls, kept for their memory.
pub(crate) struct Scratch {
    pub(crate) rqs: Vec<Rq>,
    pub(crate) freed: Vec<Rq>,
    pub(crate) ids: Vec<RequestId>,
    pub(crate) flushed: Vec<Rq>,
    /// Requests that go back to the elevator.
    pub(crate) requeued: Vec<Rq>,
    pub(crate) ended: Vec<RequestId>,
    /// Requests that the driver completed while they were being issued, until the call of the driver returns.
    pub(crate) ended_inline: Vec<Ended>,
    /// Single-queue mode: the waiter to wake once the lock is dropped.
    pub(crate) woken: Vec<WaiterId>,
    pub(crate) remote: Vec<Remote>,
}

impl Scratch {
    pub(super) fn new(nr_bios: u32) -> Scratch {
        Scratch {
            rqs: Vec::new(),
            freed: Vec::with_capacity(2 * BLK_MAX_REQUEST_COUNT),
            ids: Vec::new(),
            flushed: Vec::new(),
            requeued: Vec::new(),
            ended: Vec::with_capacity(POLL_BATCH),
            ended_inline: Vec::new(),
            woken: Vec::with_capacity(2 * POLL_BATCH),
            // This list is swapped with the shared one, so both have the largest capacity that they can need.
            remote: Vec::with_capacity(remote_capacity(nr_bios)),
        }
    }

    fn reserve(&mut self, rqs_per_hctx: usize) {
        self.rqs.reserve(rqs_per_hctx);
        self.ids.reserve(rqs_per_hctx);
        self.flushed.reserve(rqs_per_hctx);
        self.requeued.reserve(rqs_per_hctx);
        self.ended.reserve(rqs_per_hctx);
        self.ended_inline.reserve(rqs_per_hctx);
    }
}
