// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `service-time`: the path that is expected to complete its requests in flight and the new one first.
//!
//! Guarantees: minimises (bytes in flight + bytes of the request) / relative throughput, by the kernel's rules. With equal
//! throughputs, fewer bytes in flight win. With equal loads, a throughput of 0 or equal expected times, the higher
//! throughput wins. So a path with throughput 0 is used only if there is no other. Never overflows: a load is below 2^56
//! bytes, a throughput at most [`MAX_THROUGHPUT`]. Source: drivers/md/dm-ps-service-time.c (`st_compare_load`).

use core::cmp::Ordering;

/// Largest relative throughput (`ST_MAX_RELATIVE_THROUGHPUT`).
pub const MAX_THROUGHPUT: u8 = 100;

/// The data about a path that this selector compares.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathLoad {
    /// Bytes in flight.
    pub(super) bytes: u64,
    /// 0..=100.
    pub(super) throughput: u8,
}

/// Compares two paths for a request of `incoming` bytes; `Less`: the first is better.
#[inline]
pub(super) fn compare(a: PathLoad, b: PathLoad, incoming: u64) -> Ordering {
    let higher = || b.throughput.cmp(&a.throughput);
    if a.throughput == b.throughput {
        return a.bytes.cmp(&b.bytes);
    }
    if a.bytes == b.bytes || a.throughput == 0 || b.throughput == 0 {
        return higher();
    }
    let (time_a, time_b) =
        ((a.bytes + incoming) * u64::from(b.throughput), (b.bytes + incoming) * u64::from(a.throughput));
    time_a.cmp(&time_b).then_with(higher)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::{Equal, Greater, Less};

    #[test]
    fn the_kernels_rules() {
        let p = |bytes, throughput| PathLoad { bytes, throughput };
        for (a, b, incoming, expected, why) in [
            (p(0, 1), p(0, 1), 4096, Equal, "the same"),
            (p(4096, 1), p(0, 1), 4096, Greater, "equal throughputs: fewer bytes"),
            (p(4096, 0), p(8192, 0), 4096, Less, "so too with 0"),
            (p(0, 1), p(0, 2), 4096, Greater, "equal loads: higher throughput"),
            (p(0, 0), p(1 << 30, 1), 4096, Greater, "0 only if there is no other"),
            (p(1 << 30, 1), p(0, 0), 4096, Less, "whichever is asked about"),
            (p(8192, 2), p(4096, 1), 4096, Less, "12288 / 2 before 8192"),
            (p(4096, 2), p(0, 1), 4096, Less, "an equal expectation: higher throughput"),
            (p(8192, 2), p(0, 1), 4096, Greater, "6144 after 4096"),
            (p(8192, 2), p(0, 1), 1 << 20, Less, "a large one goes where it is fast"),
            (p(1 << 55, 100), p(1 << 55, 99), 1 << 30, Less, "no overflow"),
            (p((1 << 55) + 1, 100), p(1 << 55, 99), 1 << 30, Less, "no overflow with unequal loads"),
        ] {
            assert_eq!(compare(a, b, incoming), expected, "{why}");
            assert_eq!(compare(b, a, incoming), expected.reverse(), "{why}, the other way round");
        }
    }
}
