// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `zonemode=strided`: the job works in one zone after the other, with a gap between them.
//!
//! A zone is left when `zonesize` bytes were issued in it. If that is more than the `zonerange`, the job goes over the zone
//! again. After the last zone that begins in the region the first one follows. A new pass begins in the first zone.

use super::Region;
use crate::job::Strided;

#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    zones: Strided,
    /// Start of the present zone.
    pub start: u64,
    /// Bytes issued in it.
    issued: u64,
}

impl Zone {
    pub fn new(zones: Strided, region: Region) -> Zone {
        Zone { zones, start: region.start, issued: 0 }
    }

    /// Length of a zone.
    pub fn range(&self) -> u64 {
        self.zones.range_bytes
    }

    /// One past the last byte of the zone.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.range())
    }

    /// Moves to the zone of the next I/O. Returns whether all its blocks are unused again.
    pub fn advance(&mut self, region: Region) -> bool {
        if self.issued >= self.zones.size_bytes {
            self.issued = 0;
            self.start = self.end().saturating_add(self.zones.skip_bytes);
            if self.start >= region.end() {
                self.start = region.start;
            }
        }
        self.issued.is_multiple_of(self.range())
    }

    /// An I/O of `len` bytes was issued.
    pub fn issued(&mut self, len: u64) {
        self.issued += len;
    }

    /// A new pass begins.
    pub fn start_pass(&mut self, region: Region) {
        *self = Zone::new(self.zones, region);
    }
}
