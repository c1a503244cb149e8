// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tag of a new request: where it is taken from, and how a submitter waits for one.
//!
//! Guarantees: a submitter that finds no tag registers in the wait queue of the map before its last try; a waiting
//! submitter keeps no tags; an unused wake-up is passed on. Needs from callers: waiting bios are tried again between
//! [`Env::note_wake_up`] and [`Env::settle_tag_wait`]. Source: block/blk-mq-tag.c (`blk_mq_get_tag`,
//! `blk_mq_get_tags`).

use crate::bio::{BioSlot, Op, OpFlags};
use crate::lock::Lock;
use crate::path::plug::{BLK_MAX_REQUEST_COUNT, TagCache};
use crate::submitter::{Env, HctxRoute, Local};
use crate::tags::hctx_tags::{TagClass, Waiter};
use crate::tags::sbitmap_queue::WaiterId;
use crate::time::Instant;

impl<L: Lock> Env<L> {
    #[inline]
    pub(super) fn tag_class(&self, op: Op, flags: OpFlags) -> TagClass {
        if flags.contains(OpFlags::RESERVED) {
            return TagClass::Reserved;
        }
        match self.st.elevator.as_ref().and_then(|e| e.limit_depth_of(self.id, op, flags)) {
            Some(depth) if depth < self.st.nr_requests => TagClass::Shallow(depth),
            _ => TagClass::Normal,
        }
    }

    /// Takes an internal tag of the hctx from the plug's cache, else from the bitmap (several at once inside a plug).
    /// If no tag is free, flushes the plug, registers this submitter as a waiter and makes a last try.
    #[inline(always)] // Takes the tag that a submitter at a depth of one kept.
    pub(super) fn get_tag(
        &self,
        local: &mut Local,
        route: &HctxRoute,
        class: TagClass,
        new: Option<&BioSlot>,
        now: Instant,
    ) -> Option<u32> {
        if class == TagClass::Normal
            && local.plug.cache.hctx == route.hctx
            && let Some(bit) = local.plug.cache.bits.pop()
        {
            return Some(self.st.alloc_tags_of(route.map).tag_of(bit));
        }
        self.get_tag_of_map(local, route, class, new, now)
    }

    #[inline(never)]
    fn get_tag_of_map(
        &self,
        local: &mut Local,
        route: &HctxRoute,
        class: TagClass,
        new: Option<&BioSlot>,
        now: Instant,
    ) -> Option<u32> {
        let hctx = route.hctx;
        let tags = self.st.alloc_tags_of(route.map);
        if class == TagClass::Normal {
            if self.st.alloc_share().is_some() {
                // No tag is taken in advance: it would count against the share before there is a request for it.
                let tag = self.try_tag(local, hctx, class, route.hint, now);
                return tag.or_else(|| self.get_tag_slow(local, route, class, new, now));
            }
            let n = local.plug.nr_ios.min(BLK_MAX_REQUEST_COUNT as u32);
            // Scheduler tags are taken as a batch only if it fits one word, as in the kernel: this decides which tags a
            // search with a limited depth leaves free.
            if n > 1 && (self.st.elevator.is_none() || tags.fits_word(n)) {
                self.return_cached_tags(local);
                local.plug.cache.hctx = hctx;
                local.plug.cache.bits = tags.get_batch(&mut local.hints[route.hint], n);
                if let Some(bit) = local.plug.cache.bits.pop() {
                    return Some(tags.tag_of(bit));
                }
            }
            if let Some(tag) = tags.get_normal(&mut local.hints[route.hint]) {
                return Some(tag);
            }
        } else if let Some(tag) = self.try_tag(local, hctx, class, route.hint, now) {
            return Some(tag);
        }
        self.get_tag_slow(local, route, class, new, now)
    }

    /// Takes one internal tag, if one is free and this disk may have it.
    #[inline(never)]
    fn try_tag(&self, local: &mut Local, hctx: usize, class: TagClass, hint: usize, now: Instant) -> Option<u32> {
        let hint = &mut local.hints[hint];
        match self.st.alloc_share() {
            Some(share) => self.get_shared_tag(share, hctx, class, hint, now),
            None => self.st.alloc_tags(hctx).get(class, hint),
        }
    }

    #[cold]
    fn get_tag_slow(
        &self,
        local: &mut Local,
        route: &HctxRoute,
        class: TagClass,
        new: Option<&BioSlot>,
        now: Instant,
    ) -> Option<u32> {
        let hctx = route.hctx;
        if let Some(bio) = new {
            self.trace_bio_waits(local, bio, now);
        }
        // Run the hctx once before the submitter waits and once when it is woken (see `retry_waiting`), but not more
        // often: each run changes the state of the elevator.
        if local.woken.is_none() && local.tag_wait != Some((hctx, class)) {
            self.run_hctx(local, hctx, now);
        }
        self.flush_plug(local, now);
        // A waiting submitter keeps no tags that others may wait for.
        self.return_cached_tags(local);
        let tags = self.st.alloc_tags(hctx);
        if local.tag_wait.is_some_and(|w| w != (hctx, class)) {
            self.stop_waiting(local);
        }
        tags.ensure_waiter(class, self.waiter());
        local.tag_wait = Some((hctx, class));
        let tag = self.try_tag(local, hctx, class, route.hint, now);
        local.blocked_on_tag = tag.is_none();
        match tag {
            Some(_) => self.stop_waiting(local),
            None => self.trace_bio_found_no_tag(local),
        }
        tag
    }

    /// Notes, before waiting bios are tried again, whether this submitter was woken.
    pub(crate) fn note_wake_up(&self, local: &mut Local) {
        if let Some((hctx, class)) = local.tag_wait
            && !self.st.alloc_tags(hctx).is_waiting(class, self.waiter())
        {
            local.woken = local.tag_wait.take();
        }
    }

    /// After waiting bios were tried again: leaves the wait queue if the submitter needs no tag any more. Passes on an
    /// unused wake-up, because otherwise another waiter would miss it.
    pub(crate) fn settle_tag_wait(&self, local: &mut Local) {
        let woken = local.woken.take();
        if local.blocked_on_tag && !local.waiting.is_empty() {
            // A submitter with a depth limit has only seen that its own part of the map is full: another waiter may be
            // able to use the tag.
            if let Some((hctx, TagClass::Shallow(_))) = woken {
                self.st.alloc_tags(hctx).wake_one_unlimited(&mut |w| self.wake(w));
            }
            // A submitter whose disk has used up its share leaves the tag to another disk.
            if let Some((hctx, class)) = woken
                && self.st.alloc_share().is_some()
                && self.st.alloc_tags(hctx).free(class) > 0
            {
                self.pass_on(hctx, class);
            }
            return;
        }
        if let Some((hctx, class)) = woken {
            self.pass_on(hctx, class);
        }
        self.stop_waiting(local);
        if self.st.sq.is_some() {
            self.sq_stop_waiting(local);
        }
    }

    /// Removes this submitter from its wait queue. If it was woken already, passes the wake-up on to another waiter.
    pub(crate) fn stop_waiting(&self, local: &mut Local) {
        if let Some((hctx, class)) = local.tag_wait.take()
            && !self.st.alloc_tags(hctx).remove_waiter(class, self.waiter())
        {
            self.pass_on(hctx, class);
        }
    }

    /// Returns the identifier of this submitter as a waiter for tags or requests.
    #[inline]
    pub(crate) fn waiter(&self) -> WaiterId {
        Waiter::Submitter(self.id).of_disk(self.st.share.as_ref().map_or(0, |s| s.slot))
    }

    #[inline]
    pub(crate) fn return_cached_tags(&self, local: &mut Local) {
        if !local.plug.cache.bits.is_empty() {
            self.return_cached_tags_now(&mut local.plug.cache);
        }
    }

    #[inline(never)]
    fn return_cached_tags_now(&self, cache: &mut TagCache) {
        self.st.alloc_tags(cache.hctx).put_batch_bits(&mut cache.bits, &mut |w| self.wake(w));
    }
}
