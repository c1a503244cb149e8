// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Driver tags shared by several disks or hardware queues: the rule that decides which disk may take a tag.
//!
//! # The rule
//! A disk may take one more tag of a map while it has fewer than max(ceil(depth / active disks), 4). The limit does not
//! apply to a map of one tag, to reserved tags, or while [`TagSet::set_fair_sharing`] is off. A disk is active from its
//! first try to take a tag until its timeout work finds no request at the driver. That is about five seconds after the disk
//! falls idle, or after `io_timeout`, if that is less. As in the kernel, the number of tags is checked and then raised. So
//! several threads that take tags of one disk at the same moment may exceed its share, each by one tag.
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

/// The smallest share of a disk, however many disks share the tags.
const LEAST_SHARE: u32 = 4;

/// The tags that one disk uses of one map.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Normal tags in use.
    active: AtomicU32,
    /// Reserved tags in use.
    reserved: AtomicU32,
    /// The disk is active: it counts among the disks that share the map.
    pub(super) counts: AtomicBool,
}

impl Usage {
    /// Marks the disk as active.
    pub(super) fn enlist(&self, users: &AtomicU32) {
        if !self.counts.swap(true, Ordering::Relaxed) {
            users.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Marks the disk as not active. Returns whether it was active.
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

/// Returns how many of the `depth` tags of a map each of `users` disks may have.
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

    /// Returns how many more normal tags of a map the disk may take.
    pub(super) fn tags_left(&self, map: usize, depth: u32) -> u32 {
        if !self.set.is_fair() {
            return depth;
        }
        let share = share_of(depth, self.users[map].load(Ordering::Relaxed));
        share.saturating_sub(self.usage[map].active.load(Ordering::Relaxed))
    }

    /// Whether the disk is active on a map.
    pub(crate) fn counts(&self, map: usize) -> bool {
        self.usage[map].counts.load(Ordering::Relaxed)
    }

    /// Number of normal tags of a map that this disk uses.
    pub(crate) fn active(&self, map: usize) -> u32 {
        self.usage[map].active.load(Ordering::Relaxed)
    }

    /// Number of driver tags that this disk uses.
    pub(crate) fn in_use(&self) -> u32 {
        let of = |u: &CachePadded<Usage>| u.active.load(Ordering::Relaxed) + u.reserved.load(Ordering::Relaxed);
        self.usage.iter().map(of).sum()
    }

    /// Marks the disk as not active until its next request, because it has no request at the driver.
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
