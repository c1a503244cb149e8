// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tags of one hctx: reserved ones below, normal ones above, each on its own bitmap.
//!
//! Used twice: as driver tags (bounded by the device's queue depth) and, with an elevator, as scheduler tags (bounded by
//! `nr_requests`). A tag number is an index into the hctx's part of the request slab. Source: block/blk-mq-tag.c.

use crate::id::{HctxId, MAX_CPUS, MAX_SUBMITTERS, SubmitterId};
use crate::lock::Lock;
use crate::tags::sbitmap::{Sbitmap, TagAllocHint, TagBatch};
use crate::tags::sbitmap_queue::{SbitmapQueue, WaiterId};

/// Which of an hctx's tags a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagClass {
    /// Any normal tag.
    Normal,
    /// A normal tag, out of this many that are spread over the map (an elevator limits a class of requests in this
    /// way).
    Shallow(u32),
    /// One of the reserved tags.
    Reserved,
}

/// A waiter for a tag: a decoded [`WaiterId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A submitter that waits for a tag to make a request with.
    Submitter(SubmitterId),
    /// A hardware queue whose next request waits for a driver tag of this class (never `Shallow`).
    Hctx(HctxId, TagClass),
}

/// Bits for the number of a submitter or hardware queue.
const NUMBER_BITS: u32 = 12;
/// The number is a hardware queue's.
const IS_HCTX: u32 = 1 << NUMBER_BITS;
/// The waiter needs a reserved tag.
const RESERVED: u32 = 1 << (NUMBER_BITS + 1);
const DISK_SHIFT: u32 = NUMBER_BITS + 2;
/// Mark on a waiter that may use only part of the tags, see [`HctxTags::wake_one_unlimited`].
const LIMITED: u32 = 1 << 31;
/// Maximum number of disks of one tag set: the disk number has the bits between `DISK_SHIFT` and `LIMITED`.
pub(crate) const MAX_DISKS: u32 = 1 << (31 - DISK_SHIFT);
const _: () = assert!(MAX_SUBMITTERS <= 1 << NUMBER_BITS && MAX_CPUS <= 1 << NUMBER_BITS);

impl Waiter {
    /// Returns the identifier of this waiter; `disk` is the number of its disk in the tag set (0 if the disk has tags
    /// of its own).
    #[inline]
    pub(crate) fn of_disk(self, disk: u32) -> WaiterId {
        debug_assert!(disk < MAX_DISKS);
        let submitter = match self {
            Waiter::Submitter(id) => id.index() as u32,
            Waiter::Hctx(id, TagClass::Reserved) => id.index() as u32 | IS_HCTX | RESERVED,
            Waiter::Hctx(id, _) => id.index() as u32 | IS_HCTX,
        };
        WaiterId(submitter | disk << DISK_SHIFT)
    }

    /// Decodes `w`.
    pub(crate) fn of(w: WaiterId) -> Waiter {
        let number = w.0 & (IS_HCTX - 1);
        if w.0 & IS_HCTX == 0 {
            return Waiter::Submitter(SubmitterId::new(number));
        }
        let class = if w.0 & RESERVED == 0 { TagClass::Normal } else { TagClass::Reserved };
        Waiter::Hctx(HctxId::new(number), class)
    }
}

/// The number of `w`'s disk in the tag set.
pub(crate) fn disk_of(w: WaiterId) -> u32 {
    (w.0 & !LIMITED) >> DISK_SHIFT
}

/// Returns the identifier under which `w` is registered when it waits for a tag of this class.
fn registered(class: TagClass, w: WaiterId) -> WaiterId {
    if matches!(class, TagClass::Shallow(_)) { WaiterId(w.0 | LIMITED) } else { w }
}

/// Tags of one hctx.
pub(crate) struct HctxTags<L: Lock> {
    normal: SbitmapQueue<L>,
    reserved: Option<SbitmapQueue<L>>,
    nr_reserved: u32,
}

impl<L: Lock> HctxTags<L> {
    /// `depth` tags in all, `nr_reserved` of them reserved. Panics unless at least one normal tag remains.
    pub(crate) fn new(depth: u32, nr_reserved: u32) -> Self {
        assert!(depth > nr_reserved, "a tag set needs at least one tag beyond the reserved ones");
        HctxTags {
            normal: SbitmapQueue::new(depth - nr_reserved, false),
            reserved: (nr_reserved > 0).then(|| SbitmapQueue::new(nr_reserved, false)),
            nr_reserved,
        }
    }

    /// Whether some tags are reserved.
    pub(crate) fn has_reserved(&self) -> bool {
        self.nr_reserved > 0
    }

    /// The bitmap of the normal tags, for reading.
    pub(crate) fn bitmap(&self) -> &Sbitmap {
        self.normal.sb()
    }

    /// The normal tags and their waiters, to inspect.
    pub(crate) fn queue(&self) -> &SbitmapQueue<L> {
        &self.normal
    }

    /// Tags that only reserved requests get.
    pub(crate) fn nr_reserved(&self) -> u32 {
        self.nr_reserved
    }

    /// Tags in use.
    pub(crate) fn in_use(&self) -> u32 {
        self.normal.sb().weight() + self.reserved.as_ref().map_or(0, |r| r.sb().weight())
    }

    /// Calls `f` for each tag in use.
    pub(crate) fn for_each_in_use(&self, f: &mut dyn FnMut(u32)) {
        if let Some(r) = &self.reserved {
            r.sb().for_each_set(0, |bit| {
                f(bit);
                true
            });
        }
        self.normal.sb().for_each_set(0, |bit| {
            f(bit + self.nr_reserved);
            true
        });
    }

    /// Normal tags that were free a moment ago.
    pub(crate) fn free_normal(&self) -> u32 {
        self.free(TagClass::Normal)
    }

    /// Tags of a class (as if not `Shallow`) that were free a moment ago.
    pub(crate) fn free(&self, class: TagClass) -> u32 {
        let sb = self.map(class).sb();
        sb.depth() - sb.weight()
    }

    /// Normal tags in all.
    #[inline]
    pub(crate) fn normal_depth(&self) -> u32 {
        self.normal.sb().depth()
    }

    /// Returns the class of a tag.
    #[inline]
    pub(crate) fn class_of(&self, tag: u32) -> TagClass {
        if tag < self.nr_reserved { TagClass::Reserved } else { TagClass::Normal }
    }

    /// Whether a waiter is registered for a normal tag.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.normal.waiters_active() > 0
    }

    fn map(&self, class: TagClass) -> &SbitmapQueue<L> {
        match class {
            TagClass::Reserved => self.reserved.as_ref().expect("submission checked that the disk has reserved tags"),
            _ => &self.normal,
        }
    }

    /// As [`HctxTags::get`] for a normal tag.
    #[inline(always)] // Once per request; the search beyond the first word is not inlined.
    pub(crate) fn get_normal(&self, hint: &mut TagAllocHint) -> Option<u32> {
        self.normal.get(hint).map(|b| b + self.nr_reserved)
    }

    #[inline]
    pub(crate) fn get(&self, class: TagClass, hint: &mut TagAllocHint) -> Option<u32> {
        match class {
            TagClass::Normal => self.get_normal(hint),
            TagClass::Shallow(depth) => self.normal.get_shallow(hint, depth).map(|b| b + self.nr_reserved),
            TagClass::Reserved => self.map(class).get(&mut TagAllocHint::new(0)),
        }
    }

    /// Up to `n` normal tags at once, as bits of the bitmap: [`HctxTags::tag_of`] turns a bit into a tag.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut TagAllocHint, n: u32) -> TagBatch {
        self.normal.get_batch(hint, n)
    }

    /// Whether a batch of `n` may fit into one word of the bitmap.
    #[inline]
    pub(crate) fn fits_word(&self, n: u32) -> bool {
        n <= self.sb().bits_per_word()
    }

    /// The tag behind a bit of a [`TagBatch`].
    #[inline]
    pub(crate) fn tag_of(&self, bit: u32) -> u32 {
        bit + self.nr_reserved
    }

    /// Frees one tag; `wake` is called for each waiter to be woken.
    #[inline]
    pub(crate) fn put(&self, tag: u32, hint: Option<&mut TagAllocHint>, wake: &mut dyn FnMut(WaiterId)) {
        if tag >= self.nr_reserved {
            self.normal.put(tag - self.nr_reserved, hint, wake);
        } else {
            self.map(TagClass::Reserved).put(tag, None, wake);
        }
    }

    /// Adds a tag to a batch of frees that share one word of the bitmap. Frees the batch first if it is for another
    /// word.
    #[inline]
    pub(crate) fn put_later(&self, tag: u32, batch: &mut PutBatch, wake: &mut dyn FnMut(WaiterId)) {
        if tag < self.nr_reserved {
            return self.put(tag, None, wake);
        }
        let (base, bit) = self.sb().word_of(tag - self.nr_reserved);
        if base != batch.base {
            self.put_now(batch, wake);
            batch.base = base;
        }
        batch.mask |= 1 << bit;
    }

    /// Frees what [`HctxTags::put_later`] has gathered.
    #[inline(always)] // Once per batch of completions, which is one request at a depth of one.
    pub(crate) fn put_now(&self, batch: &mut PutBatch, wake: &mut dyn FnMut(WaiterId)) {
        if batch.mask != 0 {
            self.normal.put_batch(batch.base, batch.mask, wake);
            batch.mask = 0;
        }
    }

    #[inline]
    fn sb(&self) -> &Sbitmap {
        self.normal.sb()
    }

    /// Removes a registration. False: `w` was woken already, and the caller has to pass that wake-up on to the next
    /// waiter.
    #[must_use = "a wake-up that was spent on `w` is to be passed on"]
    pub(crate) fn remove_waiter(&self, class: TagClass, w: WaiterId) -> bool {
        self.map(class).remove_waiter(registered(class, w))
    }

    /// Frees a tag of a map that several disks use. Returns how many waiters the caller has to take with
    /// [`HctxTags::take_waiter`] and wake.
    pub(crate) fn put_unannounced(&self, tag: u32) -> u32 {
        match self.class_of(tag) {
            TagClass::Reserved => self.map(TagClass::Reserved).put_unannounced(tag),
            _ => self.normal.put_unannounced(tag - self.nr_reserved),
        }
    }

    /// Takes the next waiter that `may` agrees to out of the wait queues of a class.
    pub(crate) fn take_waiter(&self, class: TagClass, may: &dyn Fn(WaiterId) -> bool) -> Option<WaiterId> {
        let map = self.map(class);
        if map.waiters_active() == 0 { None } else { map.take_waiter(may) }
    }

    /// Passes on a wake-up.
    pub(crate) fn wake_one(&self, class: TagClass, wake: &mut dyn FnMut(WaiterId)) {
        let map = self.map(class);
        if map.waiters_active() > 0 {
            map.wake_one(wake);
        }
    }

    /// Passes a wake-up that a waiter with a depth limit could not use on to a waiter without a limit. Another waiter with
    /// that limit could not use the wake-up either, and the two would wake each other for ever.
    pub(crate) fn wake_one_unlimited(&self, wake: &mut dyn FnMut(WaiterId)) {
        if self.normal.waiters_active() > 0 {
            self.normal.wake_one_of(&|w| w.0 & LIMITED == 0, wake);
        }
    }

    pub(crate) fn is_waiting(&self, class: TagClass, w: WaiterId) -> bool {
        self.map(class).is_waiting(registered(class, w))
    }

    /// Registers a waiter that found no tag, unless it is registered already. The waiter must try again afterwards.
    pub(crate) fn ensure_waiter(&self, class: TagClass, w: WaiterId) {
        let (map, w) = (self.map(class), registered(class, w));
        if !map.is_waiting(w) {
            map.add_waiter(w);
        }
    }

    /// Returns a normal tag that is in use as a batch of one; `None` for a reserved tag.
    #[inline]
    pub(crate) fn batch_of(&self, tag: u32) -> Option<TagBatch> {
        let (base, bit) = self.sb().word_of(tag.checked_sub(self.nr_reserved)?);
        Some(TagBatch { base, mask: 1 << bit })
    }

    /// Frees what is left of a [`HctxTags::get_batch`].
    pub(crate) fn put_batch_bits(&self, bits: &mut TagBatch, wake: &mut dyn FnMut(WaiterId)) {
        while let Some(bit) = bits.pop() {
            self.normal.put(bit, None, wake);
        }
    }

    /// Wakes all waiters: the tags are about to be replaced.
    pub(crate) fn wake_all(&self, wake: &mut dyn FnMut(WaiterId)) {
        self.normal.wake_all(wake);
        if let Some(r) = &self.reserved {
            r.wake_all(wake);
        }
    }
}

/// Tags of one bitmap word that are freed together.
#[derive(Debug, Default)]
pub(crate) struct PutBatch {
    base: u32,
    mask: u64,
}
