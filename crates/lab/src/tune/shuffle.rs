// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random orders from a seed: the same seed gives the same order on every machine.

pub(crate) use crate::plan::splitmix64;

/// A generator of random orders.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    seed: u64,
    drawn: u64,
}

impl Shuffle {
    /// Starts from a seed.
    pub const fn new(seed: u64) -> Shuffle {
        Shuffle { seed, drawn: 0 }
    }

    /// Returns a number below `n`, which must not be 0. The bias of the multiplication is below n / 2^64.
    fn below(&mut self, n: usize) -> usize {
        let random = splitmix64(self.seed, self.drawn);
        self.drawn += 1;
        ((u128::from(random) * n as u128) >> 64) as usize
    }

    /// Shuffles by the method of Fisher and Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_up_about_as_often() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            let mut items = [0, 1, 2];
            Shuffle::new(splitmix64(1, seed)).shuffle(&mut items);
            *counts.entry(items).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}
