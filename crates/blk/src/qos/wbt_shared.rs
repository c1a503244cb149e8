// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of write-back throttling that threads share, per disk and per submitter.

use super::wbt::{CLOSE_IO, Sample, Throttle};
use crate::lock::Lock;
use crate::relaxed::FieldU64;
use crate::request::RequestId;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::time::Instant;

/// A time that is never reached, ns.
pub(super) const NEVER: u64 = u64::MAX;
/// Resolution of the time of other I/O, so that a stream of reads does not write a shared cache line for each read.
const OTHER_GRAIN_NS: u64 = 1_000_000;

/// The shared state of write-back throttling of a disk.
pub(crate) struct Wbt<L: Lock> {
    pub(super) throttle: Mutex<L, Throttle>,
    /// End of the window, ns. Written under the lock only.
    pub(super) due: AtomicU64,
    /// Number of the window to which samples are added.
    pub(super) window: AtomicU64,
    /// When I/O that is not throttled was last submitted or completed.
    pub(super) last_other: AtomicU64,
    /// The watched read, as its number + 1; 0 = none. It is the first read that was issued while none was watched.
    pub(super) watched: AtomicU32,
}

impl<L: Lock> Wbt<L> {
    pub(crate) fn new() -> Wbt<L> {
        Wbt {
            throttle: Mutex::new(Throttle::new()),
            due: AtomicU64::new(NEVER),
            window: AtomicU64::new(1),
            last_other: AtomicU64::new(0),
            watched: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    pub(super) fn window_changed(&self, t: &Throttle) {
        self.due.store(t.window_end().map_or(NEVER, Instant::as_ns), Ordering::Relaxed);
    }

    pub(super) fn close_io(&self, now: Instant) -> bool {
        let last = self.last_other.load(Ordering::Relaxed);
        last != 0 && now < Instant::from_ns(last) + CLOSE_IO
    }

    #[inline]
    pub(super) fn note_other(&self, now: Instant) {
        if now.as_ns() >= self.last_other.load(Ordering::Relaxed).saturating_add(OTHER_GRAIN_NS) {
            self.last_other.store(now.as_ns(), Ordering::Relaxed);
        }
    }

    /// Stops watching `id` if it is the watched read.
    #[inline]
    pub(super) fn unwatch(&self, id: RequestId) {
        let id = id.index() as u32 + 1;
        if self.watched.load(Ordering::Relaxed) == id {
            let _ = self.watched.compare_exchange(id, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What one submitter has seen complete in a window. Only that submitter writes it.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(super) window: FieldU64,
    reads: FieldU64,
    writes: FieldU64,
    min_read_ns: FieldU64,
}

impl Samples {
    #[inline]
    pub(super) fn add(&self, window: u64, read: bool, ns: u64) {
        if self.window.get() != window {
            self.reads.set(0);
            self.writes.set(0);
            self.min_read_ns.set(u64::MAX);
            self.window.set(window);
        }
        if read {
            self.reads.add(1);
            self.min_read_ns.set(self.min_read_ns.get().min(ns));
        } else {
            self.writes.add(1);
        }
    }

    pub(super) fn add_to(&self, window: u64, sum: &mut Sample) {
        if self.window.get() == window {
            sum.reads += self.reads.get();
            sum.writes += self.writes.get();
            sum.min_read_ns = sum.min_read_ns.min(self.min_read_ns.get());
        }
    }
}
