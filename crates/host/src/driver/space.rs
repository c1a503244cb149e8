// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts of a disk are allocated, and its size.

use crate::error::{Error, Result};
use blk::id::Sector;

/// How a driver knows which blocks are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The driver does not know: everything counts as data.
    Data,
    /// Everything is always a hole.
    Hole,
    /// [`Space::survey`] reports it.
    Survey,
}

/// Consecutive sectors that are all data or all a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Number of sectors, at least one.
    pub nr_sectors: u64,
    /// The sectors are not stored, and read as zeroes.
    pub is_hole: bool,
}

/// Checks that a device of `had` bytes may have `bytes` bytes.
///
/// # Errors
/// Usage: that is smaller, and `shrink` is false.
pub(super) fn check_shrink(had: u64, bytes: u64, shrink: bool) -> Result<()> {
    if shrink || bytes >= had {
        return Ok(());
    }
    Err(Error::usage(format!(
        "size={bytes}: the disk has {had} bytes; data beyond the new size would be lost; use force (--force) to shrink it"
    )))
}

/// Returns the error for `what` if it cannot have a given size, because its size is that of a logical unit at a target.
pub(super) fn sized_at_target(what: &str) -> Error {
    Error::usage(format!("cannot resize {what} to a given size: resize it on the target, then repeat without a size"))
}

/// A device whose space is more than a fixed range of sectors that may all hold data.
pub trait Space {
    /// Resizes the device to `bytes`, or with `None` reads its current size. Returns the size in bytes. The driver keeps its capacity
    /// until [`Space::adopt`], so a caller can refuse the size. Data beyond a smaller size is lost. Returns `None` if a disk of this
    /// driver cannot be resized.
    ///
    /// # Errors
    /// Usage: the device cannot have this size, or the size is smaller and `shrink` is false; the device keeps its size. Others: the
    /// system refused.
    fn resize(&self, _bytes: Option<u64>, _shrink: bool) -> Option<Result<u64>> {
        None
    }

    /// Sets the driver's capacity to a size in bytes that [`Space::resize`] has returned, here or at another path to the same device.
    fn adopt(&self, _bytes: u64) {}

    /// Returns the size in bytes of a disk that was opened with an end within a sector; `None`: the size is whole sectors. The bytes of the
    /// last sector after the end read as zeroes, and a write leaves them out.
    fn exact_bytes(&self) -> Option<u64> {
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
}
