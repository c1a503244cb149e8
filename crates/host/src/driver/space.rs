// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a disk is stored, and how much room there is for more.

use crate::error::Result;
use blk::id::Sector;

/// What a driver knows of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Nothing: all may be data.
    Data,
    /// All is a hole, always.
    Hole,
    /// [`Space::survey`] tells.
    Survey,
}

/// Sectors in a row of which the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many; at least one.
    pub nr_sectors: u64,
    /// Nothing is stored, and they read as zeroes.
    pub is_hole: bool,
}

/// A device whose space is more than a fixed range of sectors that may all hold data.
pub trait Space {
    /// Gives the device `bytes`, or with `None` finds out what size it has now; what that is in sectors. What lay beyond
    /// a smaller size is gone. `None`: a disk of this driver keeps the size it was made with.
    ///
    /// # Errors
    /// Usage: not to this size. Others: the system refused.
    fn resize(&self, _bytes: Option<u64>) -> Option<Result<Sector>> {
        None
    }

    /// How it can be found out what of the disk is stored.
    fn allocation(&self) -> Allocation {
        Allocation::Data
    }

    /// What of the range is stored, from its beginning on: up to `most` stretches that lie within it one behind the other, at least
    /// one, of whole logical blocks. What was written by requests that had ended before the call is data; what is told as a hole reads
    /// as zeroes until it is written. May wait for the device, so not on a thread that serves others. Only for
    /// [`Allocation::Survey`].
    fn survey(&self, _sector: Sector, nr_sectors: u64, _most: usize) -> Vec<Stretch> {
        vec![Stretch { nr_sectors, is_hole: false }]
    }

    /// Bytes that are set aside for what is stored, as far as the system has them at hand: it does not wait. Only for
    /// [`Allocation::Survey`].
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether [`Space::prefetch`] does anything.
    fn caches(&self) -> bool {
        false
    }

    /// The range, or as much of it as is reasonable, will be read soon. May wait, as [`Space::survey`].
    fn prefetch(&self, _sector: Sector, _nr_sectors: u64) {}

    /// Whether writes that find no space are tried again once a second instead of failed. False: it has no such mode.
    fn set_hold_on_enospc(&self, _hold: bool) -> bool {
        false
    }

    /// How often a write found no space and was kept to be tried again.
    fn held_on_enospc(&self) -> u64 {
        0
    }
}
