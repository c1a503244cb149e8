// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts of a disk are stored, and how much room there is for more.

use crate::error::Result;
use blk::id::Sector;

/// How a driver knows what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It does not know: all may be data.
    Data,
    /// All is always a hole.
    Hole,
    /// [`Space::survey`] reports it.
    Survey,
}

/// Consecutive sectors that are all data or all a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many; at least one.
    pub nr_sectors: u64,
    /// Nothing is stored, and they read as zeroes.
    pub is_hole: bool,
}

/// A device whose space is more than a fixed range of sectors that may all hold data.
pub trait Space {
    /// Gives the device `bytes`, or with `None` asks for its present size. Returns the size in sectors. Data beyond a
    /// smaller size is lost. `None`: a disk of this driver keeps the size it was made with.
    ///
    /// # Errors
    /// Usage: the device cannot have this size. Others: the system refused.
    fn resize(&self, _bytes: Option<u64>) -> Option<Result<Sector>> {
        None
    }

    /// Returns how to find out which parts of the disk are stored.
    fn allocation(&self) -> Allocation {
        Allocation::Data
    }

    /// Returns what is stored of the range, from its beginning: at least one and at most `most` adjoining stretches within
    /// the range, of whole logical blocks. Data of requests that completed before the call is reported as data. A reported
    /// hole reads as zeroes until it is written. May wait for the device, so call it on a thread that serves no other
    /// requests. Only for [`Allocation::Survey`].
    fn survey(&self, _sector: Sector, nr_sectors: u64, _most: usize) -> Vec<Stretch> {
        vec![Stretch { nr_sectors, is_hole: false }]
    }

    /// Returns the bytes allocated for stored data, as far as the system knows them without waiting. Only for
    /// [`Allocation::Survey`].
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether [`Space::prefetch`] does anything.
    fn caches(&self) -> bool {
        false
    }

    /// Announces that the range, or as much of it as is reasonable, will be read soon. May wait, as [`Space::survey`].
    fn prefetch(&self, _sector: Sector, _nr_sectors: u64) {}

    /// Sets whether writes that find no space are retried once a second instead of failed. False: the driver has no such
    /// mode.
    fn set_hold_on_enospc(&self, _hold: bool) -> bool {
        false
    }

    /// Returns how often a write found no space and was kept for a retry.
    fn held_on_enospc(&self) -> u64 {
        0
    }
}
