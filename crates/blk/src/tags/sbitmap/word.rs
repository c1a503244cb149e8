// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One word of a scalable bitmap: up to 64 bits, taken and given back by many threads at once.
//!
//! # States of a bit
//!
//! | `word` | `cleared` | meaning                                              |
//! |--------|-----------|------------------------------------------------------|
//! | 0      | 0         | free                                                 |
//! | 1      | 0         | taken: exactly one caller owns it                    |
//! | 1      | 1         | free, given back by a deferred clear                 |
//! | 0      | 1         | cannot be; found only after a double free (asserted) |
//!
//! Takers write `word`, givers write `cleared`, each on a cache line of its own. So a completion on one CPU does not take
//! the allocation line away from a submitter on another. A taker that finds no free bit in `word` collects all the frees in
//! `cleared` with one exchange.
//!
//! # Why there is no swap lock
//!
//! Linux moves `cleared` to `word` under a spin lock (`sbitmap_word::swap_lock`), not for safety but for liveness. Between
//! "exchange `cleared` with 0" and "and-not it out of `word`" the bits are in neither place. A second allocator that
//! searches in between sees a full map, goes to sleep, and may never be woken although bits are free. A user-space thread
//! can lose its CPU for milliseconds inside such a section, so spinning on a lock here is a bad bargain. Instead:
//!
//! 1. The exchange *is* an allocation. `claim_cleared` moves bits from state (1, 1) to (1, 0) by one read-modify-write of
//!    `cleared`; if one of them is a bit that the taker may use, the taker keeps it. From this moment the taker owns
//!    every bit that it moved, so no second thread can take, free or move one of them. Two such threads always hold
//!    disjoint sets, and the later and-not of `word` touches no other owner's bit. This is the safety argument; it needs
//!    no lock.
//! 2. The surplus is then given back with one and-not of `word`, which is an ordinary free. A second allocator that saw a
//!    full map in between was right: every bit was owned. As with every free, a waiter that had to go to sleep in between
//!    must be woken. [`Reclaim::returned`] is that duty; the wait side discharges it. A limited search (`shallow_depth`)
//!    that finds only bits it may not use returns them all, as the kernel does. That decides which bits the next search sees
//!    first. Such a search then owns no bit whose put would discharge the duty. This is correct because its caller registers
//!    as a waiter and searches again before it sleeps: see [`Reclaim::returned`].
//! 3. While waiters exist ([`Reclaim::waiters`]), a taker takes just the bits it wants from `cleared`. The rest stays there,
//!    visible. So the bits are never in neither place, and no duty arises, while waiters exist, which is when both would be
//!    frequent.
//!
//! Needs from callers: a bit is given back once, by its owner. Does not do: waiting, hints, choice of word.
//! Source of the data layout: Linux lib/sbitmap.c, include/linux/sbitmap.h.

use crate::sync::{AtomicU64, Ordering};

/// Bits in the largest word.
pub(super) const WORD_BITS: u32 = u64::BITS;

/// How a word interacts with the waiters of its map when bits become free without a put.
pub(crate) trait Reclaim {
    /// True if a waiter may be waiting for a bit. A stale result costs an unneeded call of `returned`, never a lost
    /// wake-up.
    fn waiters(&self) -> bool;

    /// Reports that bits became free in `word` other than by a put, and that a sleeping waiter may have missed them.
    /// Called after the `SeqCst` read-modify-write that freed them. The caller either has just taken a bit of its own,
    /// whose put follows later, or its limited search may fail. A search that fails is repeated as a registered waiter,
    /// when no surplus is returned any more. If the repeated search fails too, each bit that it may use is owned, so a put
    /// follows later as well.
    fn returned(&self);
}

/// A map without waiters.
pub(crate) struct NoWaiters;

impl Reclaim for NoWaiters {
    #[inline]
    fn waiters(&self) -> bool {
        false
    }

    #[inline]
    fn returned(&self) {}
}

/// The cache line that takers write. `mask` (the bits that exist) never changes and is read with every allocation.
#[repr(align(64))]
struct TakeLine {
    word: AtomicU64,
    mask: u64,
}

/// The cache line that givers write.
#[repr(align(64))]
struct GiveLine {
    cleared: AtomicU64,
}

/// See the module header. 128 bytes: adjacent-line prefetch then never pulls in a neighbour.
#[repr(align(128))]
pub(super) struct Word {
    take: TakeLine,
    give: GiveLine,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Word>() == 128);

impl Word {
    /// A word of `bits` free bits, 1..=64.
    pub(super) fn new(bits: u32) -> Word {
        assert!((1..=WORD_BITS).contains(&bits));
        Word {
            take: TakeLine { word: AtomicU64::new(0), mask: low_mask(bits) },
            give: GiveLine { cleared: AtomicU64::new(0) },
        }
    }

    /// The bits that exist.
    #[inline]
    pub(super) fn mask(&self) -> u64 {
        self.take.mask
    }

    /// Takes the lowest free bit of `usable` out of `word`, leaving `cleared` alone.
    #[inline]
    pub(super) fn claim_one(&self, usable: u64) -> Option<u32> {
        loop {
            let free = !self.take.word.load(Ordering::Relaxed) & usable;
            if free == 0 {
                return None;
            }
            let bit = lowest_bit(free);
            // Setting a bit that is set already changes nothing, so a lost race has nothing to undo.
            // Pairs with: clear, return_surplus (the last owner's use of the bit happens before ours).
            if self.take.word.fetch_or(bit, Ordering::Acquire) & bit == 0 {
                return Some(bit.trailing_zeros());
            }
        }
    }

    /// Takes up to `n` bits: from `word` in one compare-exchange, and what is missing from `cleared` in another.
    ///
    /// Each exchange sets its whole mask or nothing, so a lost race leaves no bit behind.
    #[inline]
    pub(super) fn claim_batch(&self, n: u32, reclaim: &impl Reclaim) -> u64 {
        let mut word = self.take.word.load(Ordering::Relaxed);
        loop {
            let free = !word & self.take.mask;
            let want = lowest_bits(free, n);
            if want == 0 {
                return self.claim_cleared(self.take.mask, n, reclaim);
            }
            // Pairs with: clear, return_surplus.
            match self.take.word.compare_exchange_weak(word, word | want, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if want != free => return want,
                Ok(_) => return self.fill_up(want, n, reclaim),
                Err(now) => word = now,
            }
        }
    }

    /// The rest of `claim_batch` after it has taken the last free bit of `word`.
    #[inline(never)]
    fn fill_up(&self, taken: u64, n: u32, reclaim: &impl Reclaim) -> u64 {
        match taken.count_ones() {
            got if got < n => taken | self.claim_cleared(self.take.mask, n - got, reclaim),
            _ => taken,
        }
    }

    /// Takes the lowest free bit of `usable`, out of `word` if it has one, else out of `cleared`.
    #[inline]
    pub(super) fn claim_anywhere(&self, usable: u64, reclaim: &impl Reclaim) -> Option<u32> {
        self.claim_from(0, usable, reclaim)
    }

    /// As [`Word::claim_anywhere`], but prefers the lowest bit at or above `start`, both in `word` and in `cleared`.
    #[inline]
    pub(super) fn claim_from(&self, start: u32, usable: u64, reclaim: &impl Reclaim) -> Option<u32> {
        let above = usable & u64::MAX << start;
        self.claim_one(above).or_else(|| if start == 0 { None } else { self.claim_one(usable) }).or_else(|| {
            let bits = self.claim_cleared_from(start, usable, 1, reclaim);
            (bits != 0).then(|| bits.trailing_zeros())
        })
    }

    /// Takes up to `n` of the `usable` bits that were given back by a deferred clear; 0 if there are none.
    ///
    /// Returns the bits that it does not take to `word`, even if it takes none, unless a waiter is registered: see the
    /// module header.
    #[inline]
    pub(super) fn claim_cleared(&self, usable: u64, n: u32, reclaim: &impl Reclaim) -> u64 {
        self.claim_cleared_from(0, usable, n, reclaim)
    }

    /// As [`Word::claim_cleared`]; if `n` is 1, prefers the lowest bit at or above `start`.
    #[inline]
    fn claim_cleared_from(&self, start: u32, usable: u64, n: u32, reclaim: &impl Reclaim) -> u64 {
        let mut cleared = self.give.cleared.load(Ordering::Relaxed);
        loop {
            let (free, above) = (cleared & usable, cleared & usable & u64::MAX << start);
            let want = if n == 1 { lowest_bit(if above != 0 { above } else { free }) } else { lowest_bits(free, n) };
            if want == 0 && (cleared == 0 || reclaim.waiters()) {
                return 0;
            }
            if want != cleared && !reclaim.waiters() {
                // Pairs with: clear_deferred (the last owner's use of the bits happens before ours).
                match self.give.cleared.compare_exchange_weak(cleared, 0, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        self.return_surplus(cleared & !want, reclaim);
                        return want;
                    }
                    Err(now) => cleared = now,
                }
            } else if want.is_power_of_two() {
                // Has the same effect as the compare-exchange below, but is cheaper. Pairs with: clear_deferred.
                cleared = self.give.cleared.fetch_and(!want, Ordering::Acquire);
                if cleared & want != 0 {
                    return want;
                }
            } else {
                // Pairs with: clear_deferred.
                let left = cleared & !want;
                match self.give.cleared.compare_exchange_weak(cleared, left, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return want,
                    Err(now) => cleared = now,
                }
            }
        }
    }

    /// Returns bits to `word` that the caller took out of `cleared` and does not keep.
    fn return_surplus(&self, surplus: u64, reclaim: &impl Reclaim) {
        self.assert_taken(surplus);
        // Pairs with: claim_one, claim_batch; SeqCst: add_waiter (see Reclaim::returned).
        self.take.word.fetch_and(!surplus, Ordering::SeqCst);
        reclaim.returned();
    }

    /// Panics if a bit the caller is about to free is free. The owner of a bit cannot read a value of `word` that is older
    /// than its own take, so a plain load is enough. Using the old value that the read-modify-write returns would make the
    /// operation a loop on x86-64.
    #[inline]
    fn assert_taken(&self, mask: u64) {
        assert!(self.take.word.load(Ordering::Relaxed) & mask == mask, "freed a bit that was free");
    }

    /// Gives bit number `bit` back by way of `cleared`.
    ///
    /// Panics if the bit was given back already and not taken since. If the bit was never taken, a debug build panics
    /// here. A release build does not read the takers' line; it panics in the `claim_cleared` that finds the bit.
    #[inline]
    pub(super) fn clear_deferred(&self, bit: u32) {
        let bit = 1u64 << bit;
        debug_assert!(self.take.word.load(Ordering::Relaxed) & bit != 0, "freed a bit that was free");
        // Pairs with: claim_cleared; SeqCst: add_waiter (a put reads the number of waiters after this).
        let old = self.give.cleared.fetch_or(bit, Ordering::SeqCst);
        assert!(old & bit == 0, "a bit was freed twice");
    }

    /// Gives the bits of `mask` back directly. Panics if one of them was not set in `word`.
    #[inline]
    pub(super) fn clear(&self, mask: u64) {
        debug_assert!(self.give.cleared.load(Ordering::Relaxed) & mask == 0, "freed a bit that was free");
        self.assert_taken(mask);
        // Pairs with: claim_one, claim_batch; SeqCst: add_waiter (a put reads the number of waiters after this).
        self.take.word.fetch_and(!mask, Ordering::SeqCst);
    }

    /// Sets bits of a map used as a set of flags.
    #[inline]
    pub(super) fn set_flags(&self, mask: u64) {
        // Pairs with: flags (what the flag announces is visible to a thread that finds it set).
        self.take.word.fetch_or(mask, Ordering::Release);
    }

    /// Clears bits of a map used as a set of flags.
    #[inline]
    pub(super) fn clear_flags(&self, mask: u64) {
        // Pairs with: set_flags. AcqRel, so that the check of what the flag announces stays after the clear.
        self.take.word.fetch_and(!mask, Ordering::AcqRel);
    }

    /// Bits that were given back and not collected yet; only read.
    pub(super) fn cleared(&self) -> u64 {
        self.give.cleared.load(Ordering::Relaxed)
    }

    /// The bits that are set and not given back. The two lines are read one after the other, so a bit that is taken or
    /// given back meanwhile may be counted either way.
    #[inline]
    pub(super) fn flags(&self) -> u64 {
        // Pairs with: set_flags.
        self.take.word.load(Ordering::Acquire) & !self.give.cleared.load(Ordering::Relaxed)
    }
}

/// The `n` lowest bits, `n` in 0..=64.
#[inline]
pub(super) fn low_mask(n: u32) -> u64 {
    debug_assert!(n <= WORD_BITS);
    if n >= WORD_BITS { u64::MAX } else { (1 << n) - 1 }
}

/// The lowest set bit of `bits`, or 0.
#[inline]
fn lowest_bit(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

/// The `n` lowest set bits of `bits`, or all of them if there are fewer; `n` in 1..=64.
#[inline]
pub(super) fn lowest_bits(bits: u64, n: u32) -> u64 {
    // Nearly always the free bits lie in one run.
    let low = bits.trailing_zeros();
    if low + n <= WORD_BITS {
        let run = low_mask(n) << low;
        if bits & run == run {
            return run;
        }
    }
    select_lowest(bits, n)
}

/// `lowest_bits` for scattered bits. Halves the window in each step: keeps the whole low half, or continues inside it.
fn select_lowest(bits: u64, n: u32) -> u64 {
    if bits.count_ones() <= n {
        return bits;
    }
    // Holds: more than `left` bits are set in the `2 * width` bits at `pos`, and the answer's bits below `pos` are in `kept`.
    let (mut kept, mut pos, mut left) = (0u64, 0u32, n);
    for width in [32, 16, 8, 4, 2, 1] {
        let half = bits & (low_mask(width) << pos);
        let set = half.count_ones();
        if set <= left {
            kept |= half;
            left -= set;
            pos += width;
        }
    }
    kept
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lowest_by_hand(bits: u64, n: u32) -> u64 {
        (0..64).filter(|b| bits >> b & 1 == 1).take(n as usize).fold(0, |m, b| m | 1 << b)
    }

    proptest! {
        #[test]
        fn lowest_bits_is_the_n_lowest(bits: u64, sparse: u64, n in 1u32..=64) {
            for b in [bits, bits & sparse, bits | sparse, u64::MAX, 0] {
                prop_assert_eq!(lowest_bits(b, n), lowest_by_hand(b, n));
            }
        }
    }

    /// Returns a fixed answer for `waiters` and counts the calls of `returned`.
    struct Watch(bool, core::cell::Cell<u32>);

    impl Reclaim for Watch {
        fn waiters(&self) -> bool {
            self.0
        }
        fn returned(&self) {
            self.1.set(self.1.get() + 1);
        }
    }

    #[test]
    fn surplus_without_waiters_returns_to_word_and_is_reported() {
        let w = Word::new(8);
        while w.claim_one(w.mask()).is_some() {}
        for bit in [1, 4, 6] {
            w.clear_deferred(bit);
        }
        let watch = Watch(false, Default::default());
        assert_eq!(w.claim_cleared(0b0011_0000, 1, &watch), 1 << 4);
        assert_eq!(watch.1.get(), 1);
        assert_eq!(w.claim_one(w.mask()), Some(1));
        assert_eq!(w.claim_one(w.mask()), Some(6));
        assert_eq!(w.claim_one(w.mask()), None);
    }

    #[test]
    fn a_search_goes_on_from_its_start_among_what_came_back() {
        for (start, found) in [(0, [1, 4, 6]), (4, [4, 6, 1]), (5, [6, 1, 4]), (7, [1, 4, 6])] {
            let w = Word::new(8);
            while w.claim_one(w.mask()).is_some() {}
            for bit in [1, 4, 6] {
                w.clear_deferred(bit);
            }
            let watch = Watch(false, Default::default());
            let next = || w.claim_from(start, w.mask(), &watch);
            assert_eq!([next(), next(), next()], found.map(Some), "from {start}");
            assert_eq!(next(), None);
        }
    }

    #[test]
    fn with_waiters_the_surplus_stays_in_cleared() {
        let w = Word::new(8);
        while w.claim_one(w.mask()).is_some() {}
        for bit in [1, 4, 6] {
            w.clear_deferred(bit);
        }
        let watch = Watch(true, Default::default());
        assert_eq!(w.claim_cleared(w.mask(), 2, &watch), 0b1_0010);
        assert_eq!(w.claim_one(w.mask()), None);
        assert_eq!(w.claim_cleared(0b1111, 1, &watch), 0);
        assert_eq!(w.claim_cleared(w.mask(), 2, &watch), 1 << 6);
        assert_eq!(watch.1.get(), 0);
        assert_eq!(w.flags(), 0xff);
    }

    #[test]
    fn a_sole_cleared_bit_leaves_no_duty() {
        let w = Word::new(1);
        assert_eq!(w.claim_one(1), Some(0));
        w.clear_deferred(0);
        let watch = Watch(false, Default::default());
        assert_eq!(w.claim_cleared(1, 1, &watch), 1);
        assert_eq!(watch.1.get(), 0);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_second_deferred_free_panics() {
        let w = Word::new(4);
        w.claim_one(0b1);
        w.clear_deferred(0);
        w.clear_deferred(0);
    }

    #[test]
    #[should_panic(expected = "freed a bit that was free")]
    fn a_direct_free_of_a_free_bit_panics() {
        let w = Word::new(4);
        w.claim_one(0b1);
        w.clear(0b11);
    }
}
