// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `round-robin`: each path in turn, one request each.
//!
//! Guarantees: usable paths are taken in the order of their numbers, and after the highest number the lowest is next. Each
//! hardware queue has its own position, so that CPUs share nothing; the kernel has one list for all CPUs. `repeat_count` is
//! 1, as the kernel has forced it to be since 4.6. Source: drivers/md/dm-ps-round-robin.c.

/// Returns the path of `usable` (not empty) after number `last`.
#[inline(always)]
pub(super) fn next(usable: u64, last: u32) -> u32 {
    // In two steps: `last` may be 63.
    let above = usable & (u64::MAX << 1 << last);
    if above != 0 { above.trailing_zeros() } else { usable.trailing_zeros() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_turn_and_round() {
        for (usable, last, expected) in [
            (0b111, 0, 1),
            (0b111, 2, 0),
            (0b101, 0, 2),
            (0b100, 2, 2),
            (1 << 63 | 1, 63, 0),
            (1 << 63 | 1, 0, 63),
            (u64::MAX, 62, 63),
        ] {
            assert_eq!(next(usable, last), expected, "{usable:b} after {last}");
        }
    }
}
