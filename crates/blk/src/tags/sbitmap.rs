// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scalable bitmap: a set of `depth` bits spread over words on cache lines of their own.
//!
//! Guarantees: a bit belongs to one caller from the take until that caller gives it back. [`Sbitmap::get`] and its
//! variants are lock free and never hold a bit they do not return. They fail only if every usable bit was owned when its
//! word was checked. What an owner does before it gives a bit back happens before anything the next owner of that bit
//! does. All memory is allocated by `new`.
//!
//! Needs from callers: a bit is given back once. One map is used either as an allocator (`get*`, `clear_deferred`,
//! `clear_batch`) or as a set of flags (`set_bit`, `clear_bit`): flags know nothing of deferred clears.
//!
//! Does not do: waiting and waking, which is `sbitmap_queue`; resizing.
//!
//! Differs from lib/sbitmap.c in two ways. There is no swap lock (reason in `word`). A round-robin search ends with the
//! bits of its first word that are below the hint, so a failed search means that the map is full. Linux does not check
//! those bits and relies on the caller to try again from 0.
//!
//! Source: Linux lib/sbitmap.c, include/linux/sbitmap.h.

mod word;

pub(crate) use self::word::Reclaim;
use self::word::{NoWaiters, WORD_BITS, Word, low_mask};

/// A map of small depth is still spread over this many words, so that CPUs contend less for a cache line.
const MIN_WORDS: u32 = 4;

/// Where a submitter starts its search: at the tag that it freed last, or after the tag that it took last.
///
/// The hint belongs to one submitter (a software queue) and is not shared. Any value is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagAllocHint(u32);

impl TagAllocHint {
    /// A first hint. Spread the seeds of different submitters, so that they start in different words; taken modulo the
    /// depth at first use.
    pub fn new(seed: u32) -> TagAllocHint {
        TagAllocHint(seed)
    }

    /// Says that `tag` was freed by this submitter: its cache lines are warm, so the next search starts there.
    #[inline]
    pub(crate) fn note_freed(&mut self, tag: u32) {
        self.0 = tag;
    }
}

/// Up to 64 bits taken from one word; an iterator over their numbers, lowest first.
///
/// Dropping a batch does not free the bits that are left in it: the owner must free them (`base` and `mask` are the
/// arguments of [`Sbitmap::clear_batch`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the bits stay taken until they are cleared"]
pub struct TagBatch {
    /// Number of the word's bit 0.
    pub base: u32,
    /// The bits that belong to this batch, relative to `base`.
    pub mask: u64,
}

impl TagBatch {
    /// The empty batch.
    pub const EMPTY: TagBatch = TagBatch { base: 0, mask: 0 };

    /// Bits left.
    #[inline]
    pub fn len(&self) -> u32 {
        self.mask.count_ones()
    }

    /// True if no bit is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.mask == 0
    }

    /// Takes the lowest bit out of the batch.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.mask == 0 {
            return None;
        }
        let bit = self.mask.trailing_zeros();
        self.mask &= self.mask - 1;
        Some(self.base + bit)
    }
}

impl Iterator for TagBatch {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        self.pop()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.len() as usize;
        (n, Some(n))
    }
}

impl ExactSizeIterator for TagBatch {}

/// A scalable bitmap. See the module header.
pub struct Sbitmap {
    words: Box<[Word]>,
    depth: u32,
    /// log2 of bits per word.
    shift: u32,
    round_robin: bool,
}

impl Sbitmap {
    /// A map of `depth` free bits, spread over at least four words where `depth` allows.
    ///
    /// `round_robin`: bits are handed out in rising order instead of lowest first in the hinted word.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn new(depth: u32, round_robin: bool) -> Sbitmap {
        let mut shift = WORD_BITS.ilog2();
        if depth >= MIN_WORDS {
            while MIN_WORDS << shift > depth {
                shift -= 1;
            }
        }
        Sbitmap::with_shift(depth, shift, round_robin)
    }

    /// As [`Sbitmap::new`], with `1 << shift` bits per word.
    ///
    /// # Panics
    /// If `depth` is 0 or `shift` above 6.
    pub fn with_shift(depth: u32, shift: u32, round_robin: bool) -> Sbitmap {
        assert!(depth > 0, "a bitmap has at least one bit");
        assert!(shift <= WORD_BITS.ilog2(), "a word has at most 64 bits");
        let bits = 1 << shift;
        let words = (0..depth.div_ceil(bits)).map(|i| Word::new(bits.min(depth - (i << shift)))).collect();
        Sbitmap { words, depth, shift, round_robin }
    }

    /// Number of bits.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// True if bits are handed out in rising order.
    #[inline]
    pub fn round_robin(&self) -> bool {
        self.round_robin
    }

    /// Takes one free bit; `None` if all are taken.
    #[inline]
    pub fn get(&self, hint: &mut TagAllocHint) -> Option<u32> {
        self.get_watched(hint, &NoWaiters)
    }

    /// As [`Sbitmap::get`], but takes only `shallow_depth` bits of the map into account, a part of each word in
    /// proportion. A scheduler reserves the other bits for another class in this way.
    ///
    /// The parts add up to `shallow_depth`, or a little less if the last word is short. With `shallow_depth` at or above
    /// the depth this is `get`; with 0 it is `None`.
    #[cfg(test)]
    pub(crate) fn get_shallow(&self, hint: &mut TagAllocHint, shallow_depth: u32) -> Option<u32> {
        self.get_shallow_watched(hint, shallow_depth, &NoWaiters)
    }

    /// Takes up to `n` free bits of one word at once. May be empty, or shorter than `n` though other words have free bits;
    /// always empty for a round-robin map, whose order a batch would break.
    #[inline]
    pub fn get_batch(&self, hint: &mut TagAllocHint, n: u32) -> TagBatch {
        self.get_batch_watched(hint, n, &NoWaiters)
    }

    #[inline(always)] // Once per request: the first word, which nearly always has a bit.
    pub(crate) fn get_watched(&self, hint: &mut TagAllocHint, reclaim: &impl Reclaim) -> Option<u32> {
        let start = self.start(hint);
        let index = start >> self.shift;
        let word = &self.words[index as usize];
        let bit = match word.claim_one(word.mask() & self.from(start)) {
            Some(bit) => Some((index << self.shift) + bit),
            None => self.search_from(start, u32::MAX, reclaim),
        };
        self.update_hint(hint, start, bit);
        bit
    }

    /// Continues a search whose first word has no free bit in `word`: checks that word's deferred clears, then the
    /// other words.
    #[inline(never)]
    fn search_from(&self, start: u32, shallow_depth: u32, reclaim: &impl Reclaim) -> Option<u32> {
        let index = start >> self.shift;
        let usable = self.usable(index as usize, shallow_depth) & self.from(start);
        match self.words[index as usize].claim_cleared(usable, 1, reclaim) {
            0 => self.search_on(start, shallow_depth, reclaim),
            bits => Some((index << self.shift) + bits.trailing_zeros()),
        }
    }

    pub(crate) fn get_shallow_watched(
        &self,
        hint: &mut TagAllocHint,
        shallow_depth: u32,
        reclaim: &impl Reclaim,
    ) -> Option<u32> {
        let start = self.start(hint);
        let index = start >> self.shift;
        let usable = self.usable(index as usize, shallow_depth) & self.from(start);
        // The kernel starts such a search at the hint's bit, not at the first bit of the word, and wraps around once.
        let bit = match self.words[index as usize].claim_from(self.bit_in_word(start), usable, reclaim) {
            Some(bit) => Some((index << self.shift) + bit),
            None => self.search_on(start, shallow_depth, reclaim),
        };
        self.update_hint(hint, start, bit);
        bit
    }

    #[inline]
    pub(crate) fn get_batch_watched(&self, hint: &mut TagAllocHint, n: u32, reclaim: &impl Reclaim) -> TagBatch {
        if self.round_robin || n == 0 {
            return TagBatch::EMPTY;
        }
        let n = n.min(WORD_BITS);
        let start = self.start(hint);
        let first = (start >> self.shift) as usize;
        let mut index = first;
        loop {
            let mask = self.words[index].claim_batch(n, reclaim);
            if mask != 0 {
                let base = (index as u32) << self.shift;
                self.update_hint(hint, start, Some(base + mask.ilog2()));
                return TagBatch { base, mask };
            }
            index = self.next_word(index);
            if index == first {
                self.update_hint(hint, start, None);
                return TagBatch::EMPTY;
            }
        }
    }

    /// Searches the words after that of `start`. A round-robin search that started inside a word ends with the bits of
    /// that word below its start.
    #[inline(never)]
    fn search_on(&self, start: u32, shallow_depth: u32, reclaim: &impl Reclaim) -> Option<u32> {
        let mut index = (start >> self.shift) as usize;
        let visits = self.words.len() - usize::from(self.from(start) == u64::MAX);
        for _ in 0..visits {
            index = self.next_word(index);
            let usable = self.usable(index, shallow_depth);
            if let Some(bit) = self.words[index].claim_anywhere(usable, reclaim) {
                return Some(((index as u32) << self.shift) + bit);
            }
        }
        None
    }

    /// Returns the bits of a word that a search limited to `shallow_depth` may take: floor(word depth x shallow /
    /// depth). The first words get one bit more each, until the bits lost to rounding are given out.
    fn usable(&self, index: usize, shallow_depth: u32) -> u64 {
        let mask = self.words[index].mask();
        if shallow_depth >= self.depth {
            return mask;
        }
        let word_depth = u64::from(mask.count_ones());
        let product = word_depth * u64::from(shallow_depth);
        let (share, lost) = (product / u64::from(self.depth), product % u64::from(self.depth));
        let extra = u64::from(lost >= (index as u64 + 1) * word_depth);
        low_mask((share + extra) as u32)
    }

    #[inline]
    fn next_word(&self, index: usize) -> usize {
        if index + 1 == self.words.len() { 0 } else { index + 1 }
    }

    #[inline]
    fn start(&self, hint: &TagAllocHint) -> u32 {
        if hint.0 < self.depth { hint.0 } else { hint.0 % self.depth }
    }

    /// Returns the bits of the first word that a search from `start` may take.
    #[inline]
    fn from(&self, start: u32) -> u64 {
        if self.round_robin { u64::MAX << self.bit_in_word(start) } else { u64::MAX }
    }

    #[inline]
    fn update_hint(&self, hint: &mut TagAllocHint, start: u32, got: Option<u32>) {
        hint.0 = match got {
            None => 0,
            Some(bit) if bit == start || self.round_robin => {
                if bit + 1 >= self.depth - 1 {
                    0
                } else {
                    bit + 1
                }
            }
            Some(_) => start,
        };
    }

    /// Gives a bit back through the word's `cleared` half: the free does not touch what allocators write.
    ///
    /// # Panics
    /// If the bit is out of range, or not taken. (In release builds the free of a bit that was never taken may be found
    /// only when an allocator collects it.)
    #[inline]
    pub fn clear_deferred(&self, bit: u32) {
        self.check(bit);
        self.words[(bit >> self.shift) as usize].clear_deferred(self.bit_in_word(bit));
    }

    /// Gives all bits of `mask` in the word at `base` back with one read-modify-write.
    ///
    /// # Panics
    /// If `base` is not the first bit of a word, or one of the bits is out of range or not taken.
    #[inline]
    pub fn clear_batch(&self, base: u32, mask: u64) {
        self.check(base);
        assert!(self.bit_in_word(base) == 0, "a batch starts at a word");
        let word = &self.words[(base >> self.shift) as usize];
        assert!(mask & !word.mask() == 0, "bit out of range");
        word.clear(mask);
    }

    /// The number of the first bit of `bit`'s word, and of `bit` within that word.
    ///
    /// # Panics
    /// If the bit is out of range.
    #[inline]
    pub fn word_of(&self, bit: u32) -> (u32, u32) {
        self.check(bit);
        let within = self.bit_in_word(bit);
        (bit - within, within)
    }

    /// Sets a flag. What the caller did before is visible to a thread that finds the flag set.
    ///
    /// # Panics
    /// If the bit is out of range.
    #[inline]
    pub(crate) fn set_bit(&self, bit: u32) {
        self.check(bit);
        self.words[(bit >> self.shift) as usize].set_flags(1 << self.bit_in_word(bit));
    }

    /// Clears a flag. Clear the flag before you check what it announces, or an announcement may be lost.
    ///
    /// # Panics
    /// If the bit is out of range.
    #[inline]
    pub(crate) fn clear_bit(&self, bit: u32) {
        self.check(bit);
        self.words[(bit >> self.shift) as usize].clear_flags(1 << self.bit_in_word(bit));
    }

    /// True if the flag is set, or the bit taken.
    ///
    /// # Panics
    /// If the bit is out of range.
    #[inline]
    pub(crate) fn test_bit(&self, bit: u32) -> bool {
        self.check(bit);
        self.words[(bit >> self.shift) as usize].flags() >> self.bit_in_word(bit) & 1 == 1
    }

    /// True if some flag is set, or some bit taken. Words are checked one after the other.
    #[inline]
    pub(crate) fn any_bit_set(&self) -> bool {
        self.words.iter().any(|w| w.flags() != 0)
    }

    /// Calls `f` for each set flag (or taken bit), from `start` (0 if out of range) up, then from 0 up to below `start`.
    /// Stops when `f` returns false. Each word is read once when its turn comes.
    pub(crate) fn for_each_set(&self, start: u32, mut f: impl FnMut(u32) -> bool) {
        let start = if start < self.depth { start } else { 0 };
        let from = u64::MAX << self.bit_in_word(start);
        let first = (start >> self.shift) as usize;
        let mut index = first;
        let mut window = from;
        loop {
            let base = (index as u32) << self.shift;
            let mut bits = TagBatch { base, mask: self.words[index].flags() & window };
            if !bits.all(&mut f) {
                return;
            }
            if window == !from {
                return;
            }
            index = self.next_word(index);
            // The first word comes twice: its upper part first, its lower part last.
            window = if index == first { !from } else { u64::MAX };
        }
    }

    /// Number of taken bits (or set flags). Exact only while no other thread works on the map.
    pub fn weight(&self) -> u32 {
        // Counting the bits of a word is a dozen instructions where the processor need not have one for it.
        let taken = self.words.iter().map(Word::flags).filter(|flags| *flags != 0);
        taken.map(u64::count_ones).sum()
    }

    /// Number of bits that were given back and are not yet collected. They are free, but still set in `word`.
    pub fn cleared(&self) -> u32 {
        self.words.iter().map(|w| w.cleared().count_ones()).sum()
    }

    /// Bits of each word but the last.
    pub(crate) fn bits_per_word(&self) -> u32 {
        1 << self.shift
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    #[inline]
    fn bit_in_word(&self, bit: u32) -> u32 {
        bit & ((1 << self.shift) - 1)
    }

    #[inline]
    fn check(&self, bit: u32) {
        assert!(bit < self.depth, "bit out of range");
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
