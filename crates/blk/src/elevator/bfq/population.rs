// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all queues that want the disk have the same weight and class. If so, they get equal shares without idling.
//!
//! Guarantees: exact, in O(1) and without a table of weights: n weights are all equal if and only if n x (sum of
//! squares) is the square of the sum. Counted are queues with requests queued or at the disk, and the one in service.

use super::wf2q::NR_CLASSES;

/// Sums over the counted queues.
#[derive(Default)]
pub(crate) struct Population {
    nr: u128,
    sum: u128,
    squares: u128,
    of_class: [u32; NR_CLASSES],
    /// Read for each request, so it is computed at each change.
    asymmetric: bool,
}

impl Population {
    pub(crate) fn add(&mut self, weight: u32, class: u8) {
        let w = u128::from(weight);
        self.nr += 1;
        self.sum += w;
        self.squares += w * w;
        self.of_class[usize::from(class)] += 1;
        self.compare();
    }

    pub(crate) fn remove(&mut self, weight: u32, class: u8) {
        let w = u128::from(weight);
        self.nr -= 1;
        self.sum -= w;
        self.squares -= w * w;
        self.of_class[usize::from(class)] -= 1;
        self.compare();
    }

    fn compare(&mut self) {
        let classes = self.of_class.iter().filter(|n| **n > 0).count();
        self.asymmetric = classes > 1 || self.nr * self.squares != self.sum * self.sum;
    }

    /// Weights or classes differ.
    #[inline]
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.asymmetric
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::bfq::wf2q::{BE, RT};

    #[test]
    fn one_stranger_makes_a_difference() {
        let mut p = Population::default();
        assert!(!p.is_asymmetric());
        for _ in 0..5 {
            p.add(40, BE);
            assert!(!p.is_asymmetric());
        }
        p.add(41, BE);
        assert!(p.is_asymmetric());
        p.remove(41, BE);
        assert!(!p.is_asymmetric());
        p.add(40, RT);
        assert!(p.is_asymmetric(), "another class");
        p.remove(40, RT);
        // The average alone would not tell.
        p.add(39, BE);
        p.add(41, BE);
        assert!(p.is_asymmetric());
    }

    #[test]
    fn the_heaviest_weights_do_not_overflow() {
        let mut p = Population::default();
        for _ in 0..6144 {
            p.add(3_000_000, BE);
        }
        assert!(!p.is_asymmetric());
        p.remove(3_000_000, BE);
        p.add(2_999_999, BE);
        assert!(p.is_asymmetric());
    }
}
