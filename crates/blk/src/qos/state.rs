// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies of one disk that hold bios back: which are on, when one is due, and what they granted to submitters.

use super::limits::Limiter;
use super::wbt_shared::{NEVER, Wbt};
use crate::id::MAX_SUBMITTERS;
use crate::lock::Lock;
use crate::settings::QueueConfig;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};
use crate::time::Instant;
use crossbeam_utils::CachePadded;

/// Bits of [`Qos::active`].
pub(crate) mod active {
    /// Some rate is limited.
    pub(crate) const LIMITS: u8 = 1 << 0;
    /// Reads and writes of a submitter wait in separate queues.
    pub(crate) const DIRECTIONS: u8 = 1 << 1;
    /// Limits were changed or removed while entries waited: these entries still have to get their turns.
    pub(crate) const LEAVING: u8 = 1 << 2;
    /// Write-back is throttled.
    pub(crate) const WBT: u8 = 1 << 3;
}

/// Queues of a submitter for bios under limits.
pub(crate) const NR_FIFOS: usize = 2;

/// The policies of a disk that hold bios back.
pub(crate) struct Qos<L: Lock> {
    active: AtomicU8,
    /// When the next turn is due, ns. Written only under the limiter's lock, so it is never later than the limiter's
    /// own time.
    pub(super) turn_due: AtomicU64,
    pub(super) limiter: CachePadded<Mutex<L, Limiter>>,
    pub(crate) wbt: CachePadded<Wbt<L>>,
}

impl<L: Lock> Qos<L> {
    /// Nothing is held back.
    pub(crate) fn new() -> Qos<L> {
        Qos {
            active: AtomicU8::new(0),
            turn_due: AtomicU64::new(NEVER),
            limiter: CachePadded::new(Mutex::new(Limiter::default())),
            wbt: CachePadded::new(Wbt::new()),
        }
    }

    /// Returns which policies are on now: bits of [`active`].
    #[inline]
    pub(crate) fn active(&self) -> u8 {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether a turn or the end of a window is due at `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.active() != 0 && now.as_ns() >= self.due_ns()
    }

    #[inline]
    fn due_ns(&self) -> u64 {
        self.turn_due.load(Ordering::Relaxed).min(self.wbt.due_ns())
    }

    /// Returns when a submitter has to poll next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match self.due_ns() {
            NEVER => None,
            ns => Some(Instant::from_ns(ns)),
        }
    }

    /// Sets new limits. The next poll checks waiting bios again; the caller has to notify a submitter, so that it
    /// polls.
    pub(crate) fn set_limits(&self, config: &QueueConfig) {
        let mut limiter = self.limiter.lock();
        limiter.set(&config.io_limits, NR_FIFOS * MAX_SUBMITTERS as usize);
        self.mark(active::LIMITS, config.io_limits.is_set());
        self.mark(active::DIRECTIONS, config.io_limits.has_directions());
        if !limiter.is_empty() {
            self.mark(active::LEAVING, true);
            self.turn_due.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn mark(&self, bit: u8, on: bool) {
        if on {
            self.active.fetch_or(bit, Ordering::Relaxed);
        } else if self.active() & bit != 0 {
            self.active.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    pub(super) fn turns_changed(&self, limiter: &Limiter) {
        let due = limiter.next_due().map_or(NEVER, Instant::as_ns);
        self.turn_due.store(due, Ordering::Relaxed);
        if due == NEVER {
            self.mark(active::LEAVING, false);
        }
    }
}

/// Turns and tokens that a submitter was given and has not taken, one bit per queue.
#[derive(Debug, Default)]
pub(crate) struct Granted(AtomicU8);

impl Granted {
    pub(super) fn give(&self, fifo: usize) {
        self.0.fetch_or(1 << fifo, Ordering::Release); // Pairs with: Granted::take
    }

    pub(super) fn take(&self, fifo: usize) -> bool {
        // Pairs with: Granted::give
        self.0.load(Ordering::Acquire) & 1 << fifo != 0 && self.0.fetch_and(!(1 << fifo), Ordering::Acquire) != 0
    }
}
