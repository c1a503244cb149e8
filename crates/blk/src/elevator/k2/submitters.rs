// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells submitters that wait for each request from those that keep many in flight, by how deep they queued recently.
//!
//! A submitter becomes *deep* when it has more than `latency_depth` requests in the elevator or at the disk. It stays deep
//! until [`MEMORY`] after the last such moment; otherwise it is *shallow*. A batch is counted whole before it is judged. So
//! the first requests of a deep submitter's next batch don't count as a shallow submitter's.
//!
//! Counting needs the elevator's lock; whether a submitter is deep can be read without the lock ([`Deep`]).

use crate::id::MAX_SUBMITTERS;
use crate::relaxed::FieldU64;
use crate::time::{Duration, Instant};
use std::sync::Arc;

/// How long a submitter counts as deep after it was.
const MEMORY: Duration = Duration::from_ms(100);

/// Until when each submitter counts as deep.
pub(super) struct Deep {
    until_ns: Box<[FieldU64]>,
}

impl Deep {
    #[inline]
    pub(super) fn is_deep(&self, submitter: usize, now: Instant) -> bool {
        now.as_ns() < self.until_ns[submitter].get()
    }

    /// Whether the submitter was deep at its last request, for callers without a clock. Stale if the submitter has been
    /// idle since.
    #[inline]
    pub(super) fn was_deep(&self, submitter: usize) -> bool {
        self.until_ns[submitter].get() != 0
    }
}

/// Requests of each submitter.
pub(super) struct Submitters {
    outstanding: Box<[u32]>,
    deep: Arc<Deep>,
}

impl Submitters {
    pub(super) fn new() -> Submitters {
        let n = MAX_SUBMITTERS as usize;
        let until_ns = (0..n).map(|_| FieldU64::default()).collect();
        Submitters { outstanding: vec![0; n].into_boxed_slice(), deep: Arc::new(Deep { until_ns }) }
    }

    /// The part that can be read without the lock.
    pub(super) fn deep(&self) -> &Arc<Deep> {
        &self.deep
    }

    /// A request of `submitter` came.
    #[inline]
    pub(super) fn add(&mut self, submitter: usize, latency_depth: u32, now: Instant) {
        self.outstanding[submitter] += 1;
        self.look(submitter, latency_depth, now);
    }

    /// A request of `submitter` is gone.
    #[inline]
    pub(super) fn remove(&mut self, submitter: usize, latency_depth: u32, now: Instant) {
        self.look(submitter, latency_depth, now);
        self.outstanding[submitter] -= 1;
    }

    /// Requests of `submitter` in the elevator or at the disk.
    #[cfg(test)]
    pub(super) fn outstanding(&self, submitter: usize) -> u32 {
        self.outstanding[submitter]
    }

    #[inline]
    fn look(&mut self, submitter: usize, latency_depth: u32, now: Instant) {
        let until_ns = &self.deep.until_ns[submitter];
        if self.outstanding[submitter] > latency_depth {
            until_ns.set((now + MEMORY).as_ns());
        } else if until_ns.get() != 0 && now.as_ns() >= until_ns.get() {
            until_ns.set(0);
        }
    }
}
