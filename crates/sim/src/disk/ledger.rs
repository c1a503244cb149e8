// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner of each tag of a tag set, over all its disks, as a host adapter knows it.
//!
//! Guarantees: panics, and names both owners, if a tag is given to a disk while it is at the same or another disk. A disk has
//! a tag from acceptance until it returns the tag, which is before the core frees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module's text.
pub struct TagLedger {
    /// All hardware queues share one map of tags.
    host_wide: bool,
    /// Tags below this one are reserved.
    reserved: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The disk that has a tag, by map and tag.
    owners: BTreeMap<(usize, usize), usize>,
    /// How often each disk was given a tag, by map, whether reserved, and disk.
    given: BTreeMap<(usize, bool, usize), u64>,
}

impl TagLedger {
    /// A ledger in which no disk has a tag.
    pub fn new(host_wide: bool, reserved: u32) -> Arc<TagLedger> {
        Arc::new(TagLedger { host_wide, reserved: reserved as usize, inner: Mutex::default() })
    }

    fn map_of(&self, hctx: usize) -> usize {
        if self.host_wide { 0 } else { hctx }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give(&self, disk: usize, hctx: usize, tag: usize) {
        let map = self.map_of(hctx);
        let mut inner = self.inner();
        *inner.given.entry((map, tag < self.reserved, disk)).or_default() += 1;
        let before = inner.owners.insert((map, tag), disk);
        drop(inner);
        if let Some(other) = before {
            panic!("tag {tag} of map {map} of the set was given to disk {disk} while disk {other} has it");
        }
    }

    pub(super) fn take_back(&self, hctx: usize, tag: usize) {
        let was = self.inner().owners.remove(&(self.map_of(hctx), tag));
        assert!(was.is_some(), "tag {tag} of hctx {hctx} of the set came back and was with no disk");
    }

    /// How many tags of a map a disk has, of those numbered `first` and up.
    pub fn held_by(&self, disk: usize, map: usize, first: u32) -> usize {
        let inner = self.inner();
        inner.owners.range((map, first as usize)..(map + 1, 0)).filter(|(_, d)| **d == disk).count()
    }

    /// Whether tags are reserved.
    pub fn has_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// How often disks other than `disk` were given tags of a map so far, counting either the reserved tags or the others.
    pub fn given_to_others(&self, disk: usize, map: usize, reserved: bool) -> u64 {
        let inner = self.inner();
        let of_all = inner.given.range((map, reserved, 0)..=(map, reserved, usize::MAX));
        of_all.filter(|((.., d), _)| *d != disk).map(|(_, n)| n).sum()
    }
}
