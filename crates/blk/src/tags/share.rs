// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Driver tags that several disks, or several hardware queues, share: which disk may take one.
//!
//! # The rule
//! A disk may take one more tag of a map while it has fewer than max(ceil(depth / disks that count), 4); of a map of one
//! tag, always. A disk counts from its first try to take a tag until its timeout work finds no request at the driver. That
//! is about five seconds after it fell idle, or `io_timeout`, if that is less. The rule is not applied to reserved tags, nor
//! while [`TagSet::set_fair_sharing`] is off. As in the kernel the number is checked and then raised: threads that take tags
//! of one disk at the same moment may exceed its share by as many as they are.
//!
//! Waiting for a tag, and wake-ups: `waiting`.
//!
//! Source: block/blk-mq.h (`hctx_may_queue`).

use super::hctx_tags::TagClass;
use super::tag_set::TagSet;
use crate::lock::Lock;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// A disk has at least this many tags, however many share them.
const LEAST_SHARE: u32 = 4;

/// What one disk has of one map.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Normal tags in use.
    active: AtomicU32,
    /// Reserved tags in use.
    reserved: AtomicU32,
    /// It counts among those the map is shared by.
    pub(super) counts: AtomicBool,
}

impl Usage {
    /// It counts from now on.
    pub(super) fn enlist(&self, users: &AtomicU32) {
        if !self.counts.swap(true, Ordering::Relaxed) {
            users.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It does not count any more; true if it did.
    pub(crate) fn retire(&self, users: &AtomicU32) -> bool {
        let did = self.counts.swap(false, Ordering::Relaxed);
        if did {
            users.fetch_sub(1, Ordering::Relaxed);
        }
        did
    }

    pub(super) fn number_of(&self, class: TagClass) -> &AtomicU32 {
        if class == TagClass::Reserved { &self.reserved } else { &self.active }
    }
}

/// Tags that each of `users` disks may have of a map with `depth`.
fn share_of(depth: u32, users: u32) -> u32 {
    // "Don't try dividing an ant."
    if depth == 1 || users == 0 { depth } else { depth.div_ceil(users).max(LEAST_SHARE) }
}

/// `hctx_may_queue`.
pub(crate) fn may_queue(usage: &Usage, users: &AtomicU32, depth: u32, fair: bool) -> bool {
    !fair
        || !usage.counts.load(Ordering::Relaxed)
        || usage.active.load(Ordering::Relaxed) < share_of(depth, users.load(Ordering::Relaxed))
        || depth == 1
}

/// A disk's part of a tag set that has other disks.
pub(crate) struct Share<L: Lock> {
    pub(crate) set: Arc<TagSet<L>>,
    /// Number of the disk in the set.
    pub(crate) slot: u32,
    pub(crate) users: Arc<[CachePadded<AtomicU32>]>,
    pub(crate) usage: Arc<[CachePadded<Usage>]>,
}

impl<L: Lock> Share<L> {
    pub(super) fn may_queue(&self, map: usize, depth: u32) -> bool {
        may_queue(&self.usage[map], &self.users[map], depth, self.set.is_fair())
    }

    /// Normal tags of a map that the disk may still take.
    pub(super) fn tags_left(&self, map: usize, depth: u32) -> u32 {
        if !self.set.is_fair() {
            return depth;
        }
        let share = share_of(depth, self.users[map].load(Ordering::Relaxed));
        share.saturating_sub(self.usage[map].active.load(Ordering::Relaxed))
    }

    /// Whether the disk counts among those a map is shared by.
    pub(crate) fn counts(&self, map: usize) -> bool {
        self.usage[map].counts.load(Ordering::Relaxed)
    }

    /// Normal tags this disk has of a map.
    pub(crate) fn active(&self, map: usize) -> u32 {
        self.usage[map].active.load(Ordering::Relaxed)
    }

    /// Driver tags this disk has.
    pub(crate) fn in_use(&self) -> u32 {
        let of = |u: &CachePadded<Usage>| u.active.load(Ordering::Relaxed) + u.reserved.load(Ordering::Relaxed);
        self.usage.iter().map(of).sum()
    }

    /// It has no request at the driver: it counts no more until its next.
    pub(super) fn retire(&self) {
        let mut any = false;
        for (usage, users) in self.usage.iter().zip(self.users.iter()) {
            any |= usage.retire(users);
        }
        if any {
            self.set.wake_all();
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_kernels() {
        for (depth, users, share) in [
            (16, 0, 16),
            (16, 1, 16),
            (16, 2, 8),
            (16, 3, 6),
            (16, 4, 4),
            (16, 9, 4),
            (31, 2, 16),
            (1, 3, 1),
            (2, 2, 4),
        ] {
            assert_eq!(share_of(depth, users), share, "{depth} tags, {users} disks");
        }
    }
}
