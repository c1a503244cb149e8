// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `queue-length`: the path with the fewest requests in flight.
//!
//! Guarantees: among paths with equally many, the one that was chosen longest ago. Source:
//! drivers/md/dm-ps-queue-length.c.

use core::cmp::Ordering;

/// Compares two paths; `Less`: the first is better.
#[inline(always)]
pub(super) fn compare(a: u64, b: u64) -> Ordering {
    a.cmp(&b)
}
