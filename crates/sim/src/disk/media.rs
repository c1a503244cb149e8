// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a simulated disk keeps: durable sectors, and a volatile cache over them that a crash empties.

use crate::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// Contents: `cache` over `durable`. The cache has all versions of a sector since its last flush, oldest first. Beside each
/// version is a number of completions: a flush issued at or after that number has to include it.
#[derive(Clone, Default)]
pub(super) struct Media {
    durable: BTreeMap<u64, u64>,
    cache: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Media {
    pub(super) fn read(&self, sector: u64) -> u64 {
        let cached = self.cache.get(&sector).and_then(|list| list.last()).map(|(v, _)| *v);
        cached.or_else(|| self.durable.get(&sector).copied()).unwrap_or(0)
    }

    pub(super) fn write(&mut self, sector: u64, v: u64, durable: bool, safe_after: u64) {
        if durable {
            self.cache.remove(&sector);
            self.durable.insert(sector, v);
        } else {
            self.cache.entry(sector).or_default().push((v, safe_after));
        }
    }

    /// The last writes to these sectors, which are in the cache already, completed as number `safe_after`.
    pub(super) fn acknowledge(&mut self, sectors: Range<u64>, safe_after: u64) {
        for (_, list) in self.cache.range_mut(sectors) {
            list.last_mut().expect("a list in the cache has entries").1 = safe_after;
        }
    }

    /// Power is lost. Each sector of the cache may have reached the medium in any version, independently of the others: a
    /// write of several sectors may be torn.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        for (sector, list) in std::mem::take(&mut self.cache) {
            let kept = rng.below(list.len() as u64 + 1) as usize;
            if kept > 0 {
                self.durable.insert(sector, list[kept - 1].0);
            }
        }
    }

    /// Everything that had completed by number `completed` becomes durable.
    pub(super) fn flush(&mut self, completed: u64) {
        let durable = &mut self.durable;
        self.cache.retain(|sector, list| {
            if let Some(last) = list.iter().rposition(|(_, safe_after)| *safe_after <= completed) {
                durable.insert(*sector, list[last].0);
                list.drain(..=last);
            }
            !list.is_empty()
        });
    }
}
