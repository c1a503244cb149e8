// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `queue-length`: the path with the fewest requests in flight.
//!
//! Guarantees: fewer wins; of equals the one that was chosen longest ago. Source: drivers/md/dm-ps-queue-length.c.

use core::cmp::Ordering;

/// Less: the first has the better claim.
#[inline(always)]
pub(super) fn compare(a: u64, b: u64) -> Ordering {
    a.cmp(&b)
}
