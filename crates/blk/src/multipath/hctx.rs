// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of a multipath disk for each hardware queue: the path of each tag, and requests that wait to be requeued.
//!
//! Guarantees: no lock on the I/O path. The thread that issues a tag writes its slot before the path gets it; the
//! thread that completes it reads the slot. Passing the request through the path's driver in between orders the two
//! accesses. Slots are made at the start and never move, so a disk that is started again with more tags only gets more
//! slots.

use super::config::MAX_PATHS;
use super::selector::Turns;
use crate::driver::InFlight;
use crate::id::{BLK_MQ_MAX_DEPTH, Tag};
use crate::lock::Lock;
use crate::relaxed::{FieldU8, FieldU32, FieldU64};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::time::Duration;
use std::sync::OnceLock;

/// log2 of the tags of the first part; each later part is as large as all parts before it.
const FIRST_SHIFT: u32 = 6;
const NR_PARTS: usize = (BLK_MQ_MAX_DEPTH.ilog2() - FIRST_SHIFT + 2) as usize;

/// The path of a request in flight.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) path: FieldU8,
    pub(super) bytes: FieldU32,
    pub(super) issue_ns: FieldU64,
}

/// See the module's text.
pub(super) struct MultipathHctx<L: Lock> {
    slots: [OnceLock<Box<[Slot]>>; NR_PARTS],
    /// Requests in flight at each path.
    pub(super) in_flight: [AtomicU32; MAX_PATHS],
    pub(super) turns: Turns,
    /// The path that is polled first.
    pub(super) poll_from: FieldU8,
    nr_held: AtomicU32,
    held: Mutex<L, Vec<(InFlight, Option<Duration>)>>,
}

/// Returns the part of a tag, and the tag's index in that part.
#[inline(always)]
fn place(tag: usize) -> (usize, usize) {
    let size = 1 << FIRST_SHIFT;
    if tag < size {
        return (0, tag);
    }
    let shift = tag.ilog2();
    ((shift - FIRST_SHIFT + 1) as usize, tag - (1 << shift))
}

impl<L: Lock> MultipathHctx<L> {
    pub(super) fn new() -> MultipathHctx<L> {
        MultipathHctx {
            slots: core::array::from_fn(|_| OnceLock::new()),
            in_flight: core::array::from_fn(|_| AtomicU32::new(0)),
            turns: Turns::default(),
            poll_from: FieldU8::default(),
            nr_held: AtomicU32::new(0),
            held: Mutex::new(Vec::new()),
        }
    }

    /// Makes room for this many tags.
    pub(super) fn grow(&self, depth: u32) {
        let (last, _) = place(depth.clamp(1, BLK_MQ_MAX_DEPTH) as usize - 1);
        for (i, part) in self.slots[..=last].iter().enumerate() {
            let n = 1 << (FIRST_SHIFT as usize + i.saturating_sub(1));
            part.get_or_init(|| (0..n).map(|_| Slot::default()).collect());
        }
        let mut held = self.held.lock();
        let more = (depth as usize).saturating_sub(held.len());
        held.reserve(more);
    }

    /// Returns the slot of a tag. Panics for a tag that the disk was not started with.
    #[inline(always)]
    pub(super) fn slot(&self, tag: Tag) -> &Slot {
        let (part, at) = place(tag.index());
        &self.slots[part].get().expect("a tag of those it was started with")[at]
    }

    /// Whether there are held requests for [`MultipathHctx::take_held`].
    #[inline(always)]
    pub(super) fn has_held(&self) -> bool {
        // Pairs with: MultipathHctx::hold
        self.nr_held.load(Ordering::Acquire) > 0
    }

    /// Holds a request that a path failed while it was being issued, and that is to be issued again.
    #[cold]
    pub(super) fn hold(&self, rq: InFlight, delay: Option<Duration>) {
        let mut held = self.held.lock();
        held.push((rq, delay));
        // Pairs with: MultipathHctx::has_held
        self.nr_held.store(held.len() as u32, Ordering::Release);
    }

    #[cold]
    pub(super) fn take_held(&self, mut give_back: impl FnMut(InFlight, Option<Duration>)) {
        let mut held = self.held.lock();
        self.nr_held.store(0, Ordering::Relaxed);
        held.drain(..).for_each(|(rq, delay)| give_back(rq, delay));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_a_slot_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for tag in 0..BLK_MQ_MAX_DEPTH as usize {
            let (part, at) = place(tag);
            assert!(part < NR_PARTS && at < 1 << (FIRST_SHIFT as usize + part.saturating_sub(1)), "tag {tag}");
            assert!(seen.insert((part, at)), "tag {tag} shares a slot");
        }
        let hctx = MultipathHctx::<parking_lot::RawMutex>::new();
        for depth in [1, 64, 65, 1000, BLK_MQ_MAX_DEPTH] {
            hctx.grow(depth);
            hctx.slot(Tag::new(depth - 1)).bytes.set(depth);
        }
        assert_eq!(hctx.slot(Tag::new(64)).bytes.get(), 65, "growing moves nothing");
    }
}
