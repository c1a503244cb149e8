// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of a submitter that other threads access: whether it is inside, its CPU, completions passed to it, its
//! counters.

use crate::bio::PIECE_SLOTS;
use crate::id::{CpuId, HctxId};
use crate::lock::Lock;
use crate::qos::state::Granted;
use crate::qos::wbt_shared::Samples;
use crate::request::RequestId;
use crate::stat::{Counters, HctxCounters};
use crate::status::BlkStatus;
use crate::sync::{AtomicBool, AtomicU16, AtomicU32, Mutex, Ordering};
use crossbeam_utils::CachePadded;

/// A completion that another submitter passes to this one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote {
    /// A bio completed.
    BioEnd(u32, BlkStatus),
    /// A request whose completion has to be handled on this submitter's CPU (`rq_affinity`).
    Complete(HctxId, RequestId, BlkStatus),
}

/// Returns the maximum number of entries of the list: each bio, or the request that begins with it, is in the list once at most.
pub(super) fn remote_capacity(nr_bios: u32) -> usize {
    (nr_bios + PIECE_SLOTS) as usize
}

/// The part of a submitter that other threads access.
pub(crate) struct SubmitterShared<L: Lock> {
    /// 1 while it is inside the block layer with requests that a freeze has to wait for.
    pub(super) inside: CachePadded<AtomicU32>,
    pub(super) in_use: AtomicBool,
    cpu: AtomicU16,
    pub(super) remote: CachePadded<Mutex<L, Vec<Remote>>>,
    pub(super) has_remote: AtomicBool,
    /// Turns and tokens for held bios.
    pub(crate) granted: Granted,
    pub(crate) counters: CachePadded<Counters>,
    /// For write-back throttling.
    pub(crate) samples: CachePadded<Samples>,
    pub(crate) hctxs: Box<[HctxCounters]>,
}

impl<L: Lock> SubmitterShared<L> {
    pub(crate) fn new(nr_bios: u32, nr_cpus: u16) -> Self {
        SubmitterShared {
            inside: CachePadded::new(AtomicU32::new(0)),
            in_use: AtomicBool::new(false),
            cpu: AtomicU16::new(0),
            remote: CachePadded::new(Mutex::new(Vec::with_capacity(remote_capacity(nr_bios)))),
            has_remote: AtomicBool::new(false),
            granted: Granted::default(),
            counters: CachePadded::new(Counters::default()),
            samples: CachePadded::new(Samples::default()),
            hctxs: (0..3 * usize::from(nr_cpus)).map(|_| HctxCounters::default()).collect(),
        }
    }

    pub(crate) fn take(&self, cpu: CpuId) -> bool {
        // Pairs with: Submitter::drop
        let free = self.in_use.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if free {
            self.set_cpu(cpu);
        }
        free
    }

    /// Returns the CPU from which the submitter submits.
    pub(crate) fn cpu(&self) -> CpuId {
        // Pairs with: SubmitterShared::set_cpu
        CpuId::new(u32::from(self.cpu.load(Ordering::SeqCst)))
    }

    /// Sets the CPU. A thread that reads the new CPU sees everything that was submitted from the old one.
    pub(super) fn set_cpu(&self, cpu: CpuId) {
        // Pairs with: SubmitterShared::cpu
        self.cpu.store(cpu.index() as u16, Ordering::SeqCst);
    }

    pub(crate) fn is_inside(&self) -> bool {
        // Pairs with: Submitter::mark_inside, Submitter::leave
        self.inside.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn push_remote(&self, r: Remote) {
        self.remote.lock().push(r);
        // Pairs with: Env::take_remote
        self.has_remote.store(true, Ordering::Release);
    }
}
