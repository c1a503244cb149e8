// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Driver tags shared by several disks or hardware queues: waiters and wake-ups.
//!
//! # Waiting
//! Without an elevator, submitters wait for driver tags. With an elevator, hardware queues wait (`TAG_WAIT` marks a
//! registered hardware queue). All waiters are in the wait queues of the map, under identifiers that include their disk. A
//! put wakes one waiter *that may use the tag*. Waiters of a disk whose share is used up may not: the next put of their own
//! disk wakes one of them. So each put is one wake-up. (In a map of one disk any waiter may use any tag, and wake-ups come
//! in batches of an eighth of the depth.) A registered submitter does not try again before it is woken. Otherwise a disk
//! would always retake the tag that it has just freed, because mostly its own completion makes it poll. Hardware queues of
//! one disk (`host_tagset`) are woken but may also try at any time.
//!
//! To wake a submitter is to notify it. A hardware queue is marked (`TAG_WOKEN`) and is run in the next poll of its disk. If
//! it is of another disk than the put, the owner of a request that waits there is notified, so that it polls.
//!
//! # Why no waiter is forgotten
//! A sleeping waiter has registered, passed a `SeqCst` fence, and then found its disk's tag count at the share or the map
//! full. A put lowers the count, then frees the bit, then looks for waiters, each with `SeqCst`. If the put does not see
//! the waiter, the waiter saw both changes; what `sbitmap_queue` says of the bit holds for the count. If the put sees the
//! waiter but skips it because of its share, the waiter's disk holds tags. The first put of one of these tags sees a count
//! below the share. Everything else that may raise a share (a disk falls idle or leaves, fair sharing is turned off) wakes
//! all waiters afterwards.
//!
//! A wake-up that is not used is passed on. A submitter passes it on if it no longer waits, is frozen, or its disk has used
//! up its share. A hardware queue passes it on at once, in `wake`, if it has nothing to send. It also does so if its run
//! took no tag although a tag is free. The wake-up goes to a waiter that may use it *now*, so two waiters that may not use
//! it do not wake each other in turn.
//!
//! Setting `TAG_WAIT` registers a hardware queue; a thread that finds it set relies on that. The waker clears the mark
//! before it checks the list. A thread that leaves requests on the list checks the mark afterwards, and schedules a run
//! if the mark is cleared. So one of the two threads handles a wake-up that comes in between. A hardware queue whose
//! driver is busy waits for the driver and not for tags. It unregisters before it gives its tags back, or two such
//! hardware queues would pass each other the same tags for ever.
//!
//! Source: block/blk-mq.h (`hctx_may_queue`), blk-mq-tag.c, blk-mq.c (`blk_mq_mark_tag_wait`, `blk_mq_dispatch_wake`).

use crate::bio::BioId;
use crate::id::SubmitterId;
use crate::lock::Lock;
use crate::queue::hctx::{Hctx, state};
use crate::queue::request_queue::RequestQueue;
use crate::queue::state::QueueState;
use crate::request::rqf;
use crate::submitter::{Env, Local};
use crate::sync::{Ordering, fence};
use crate::tags::hctx_tags::{HctxTags, TagClass, Waiter, disk_of};
use crate::tags::sbitmap::TagAllocHint;
use crate::tags::sbitmap_queue::WaiterId;
use crate::tags::share::Share;
use crate::time::Instant;

impl<L: Lock> QueueState<L> {
    /// Number of requests of an hctx.
    pub(crate) fn hctx_requests(&self, hctx: usize) -> u32 {
        let tags = self.alloc_tags(hctx);
        if !self.tags_are_shared {
            return tags.in_use();
        }
        let mut n = 0;
        tags.for_each_in_use(&mut |tag| {
            n += u32::from(self.slab.get(self.rq_of_tag(hctx, tag)).has_rqf(rqf::LIVE));
        });
        n
    }

    /// Notes that a request has completed. While hctxs share tags, a mark says which hctx uses a tag; this clears it.
    #[inline]
    pub(crate) fn note_ended(&self, hctx: usize, tag: u32) {
        if self.tags_are_shared {
            self.slab.get(self.rq_of_tag(hctx, tag)).clear_rqf(rqf::LIVE);
        }
    }

    /// Clears the mark that an hctx waits for a tag, and marks the hctx to be run if it has a request to send.
    fn mark_woken(&self, h: &Hctx<L>, class: TagClass) -> bool {
        h.take_flag(state::TAG_WAIT[kind(class)]);
        // Pairs with: Env::leave_over. The mark is cleared, then the list checked.
        fence(Ordering::SeqCst);
        if h.dispatch.is_empty() {
            return false;
        }
        h.set_flag(state::RUN_PENDING | state::TAG_WOKEN[kind(class)]);
        true
    }
}

/// Index of a class among the marks of an hctx.
fn kind(class: TagClass) -> usize {
    usize::from(class == TagClass::Reserved)
}

impl<L: Lock> RequestQueue<L> {
    /// Wakes a waiter of this disk on behalf of another disk. False: the waiter has no use for the wake-up.
    pub(crate) fn wake_waiter(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Submitter(_) if self.is_frozen() => false,
            Waiter::Submitter(id) => {
                self.notify.notify(id);
                true
            }
            Waiter::Hctx(id, class) => {
                let st = self.state();
                let Some(h) = st.hctxs.get(id.index()) else { return false };
                if !st.mark_woken(h, class) {
                    return false;
                }
                self.owe_work();
                self.notify_owner_of(&st, h);
                true
            }
        }
    }

    /// Notifies a submitter that owns a request on `hctx->dispatch`: that submitter keeps polling until the request
    /// completes.
    fn notify_owner_of(&self, st: &QueueState<L>, h: &Hctx<L>) {
        let owner = h.dispatch.with(|list| {
            let mut heads = list.iter().map(|rq| st.slab.get(rq.id()).bio_head());
            heads.find(|bio| *bio != BioId::NONE).map(BioId::submitter)
        });
        match owner {
            Some(owner) => self.notify.notify(SubmitterId::new(owner as u32)),
            // There is only a flush command, or another thread is sending the requests at this moment.
            None => self.notify_all(),
        }
    }

    /// Whether the disk holds no driver tag of its set.
    pub(crate) fn is_without_driver_tags(&self) -> bool {
        self.state().share.as_ref().is_none_or(|s| s.in_use() == 0)
    }

    /// Gives up the share of this disk, because the disk has been idle for the period of its timer.
    pub(crate) fn retire_tags(&self) {
        if let Some(share) = &self.state().share {
            share.retire();
        }
    }
}

impl<L: Lock> Env<L> {
    /// Takes a driver tag, of a map that disks share or of this disk's own map.
    #[inline]
    pub(crate) fn get_driver_tag_of(
        &self,
        hctx: usize,
        class: TagClass,
        hint: &mut TagAllocHint,
        now: Instant,
    ) -> Option<u32> {
        match &self.st.share {
            None => self.st.driver_tags(hctx).get(class, hint),
            Some(share) => self.get_shared_tag(share, hctx, class, hint, now),
        }
    }

    /// Takes a driver tag if the disk may have one more.
    #[inline(never)]
    pub(crate) fn get_shared_tag(
        &self,
        share: &Share<L>,
        hctx: usize,
        class: TagClass,
        hint: &mut TagAllocHint,
        now: Instant,
    ) -> Option<u32> {
        let (map, tags) = (self.st.map_of(hctx), self.st.driver_tags(hctx));
        let usage = &share.usage[map];
        if class != TagClass::Reserved {
            if !usage.counts.load(Ordering::Relaxed) {
                self.count_in(share, map, now);
            }
            if !share.may_queue(map, tags.normal_depth()) {
                share.set.retire_idle(now);
                return None;
            }
        }
        let tag = tags.get(class, hint)?;
        usage.number_of(class).fetch_add(1, Ordering::Relaxed);
        Some(tag)
    }

    /// Marks the disk as active and starts the timer that is to find it idle (`blk_mq_tag_busy`).
    #[cold]
    fn count_in(&self, share: &Share<L>, map: usize, now: Instant) {
        share.usage[map].enlist(&share.users[map]);
        if !self.q.timer.is_armed() {
            self.q.arm_timeout(now);
        }
    }

    /// Frees a driver tag and wakes a waiter that may use it.
    #[inline(always)] // A put, unless the tag is shared.
    pub(crate) fn put_driver_tag(&self, hctx: usize, tag: u32) {
        let tags = self.st.driver_tags(hctx);
        match &self.st.share {
            None => tags.put(tag, None, &mut |w| self.wake(w)),
            Some(share) => self.put_shared_tag(share, hctx, tags, tag),
        }
    }

    #[inline(never)]
    fn put_shared_tag(&self, share: &Share<L>, hctx: usize, tags: &HctxTags<L>, tag: u32) {
        let class = tags.class_of(tag);
        // Pairs with: SbitmapQueue::add_waiter. The count is lowered before the bit is freed.
        share.usage[self.st.map_of(hctx)].number_of(class).fetch_sub(1, Ordering::SeqCst);
        for _ in 0..tags.put_unannounced(tag) {
            if !self.wake_next(hctx, class) {
                return;
            }
        }
    }

    /// Frees the internal tag of a request: a scheduler tag with an elevator, a driver tag without.
    #[inline]
    pub(crate) fn put_alloc_tag(&self, local: &mut Local, hctx: usize, tag: u32) {
        self.st.note_ended(hctx, tag);
        match self.st.alloc_share() {
            None => self.st.alloc_tags(hctx).put(tag, self.hint_after_free(local, hctx), &mut |w| self.wake(w)),
            Some(share) => self.put_shared_tag(share, hctx, self.st.driver_tags(hctx), tag),
        }
    }

    /// Passes on an unused wake-up for an internal tag.
    pub(crate) fn pass_on(&self, hctx: usize, class: TagClass) {
        if self.st.elevator.is_none() {
            self.wake_next(hctx, class);
        } else {
            self.st.alloc_tags(hctx).wake_one(class, &mut |w| self.wake(w));
        }
    }

    /// Wakes the first waiter for a driver tag that may use one; false if there is none.
    fn wake_next(&self, hctx: usize, class: TagClass) -> bool {
        let tags = self.st.driver_tags(hctx);
        loop {
            let next = match &self.st.share {
                None => tags.take_waiter(class, &|_| true),
                Some(share) => share.set.next_waiter(tags, self.st.map_of(hctx), class),
            };
            match next {
                None => return false,
                Some(w) if self.wake_named(w) => return true,
                Some(_) => {}
            }
        }
    }

    /// Wakes `w`, or the next waiter if `w` has no use for a tag.
    #[cold]
    pub(crate) fn wake(&self, w: WaiterId) {
        if !self.wake_named(w)
            && let Waiter::Hctx(hctx, class) = Waiter::of(w)
        {
            self.wake_next(hctx.index(), class);
        }
    }

    fn wake_named(&self, w: WaiterId) -> bool {
        if let Some(share) = &self.st.share
            && disk_of(w) != share.slot
        {
            return share.set.wake(w);
        }
        match Waiter::of(w) {
            Waiter::Submitter(id) => {
                self.q.notify.notify(id);
                true
            }
            // As HctxRunner::run_soon: the hctx is run before or at the end of the poll that put the tag.
            Waiter::Hctx(id, class) => {
                let woken = self.st.mark_woken(&self.st.hctxs[id.index()], class);
                if woken {
                    self.q.owe_work();
                }
                woken
            }
        }
    }

    /// Registers an hctx that found no driver tag, unless it is registered. The caller must try again afterwards.
    pub(crate) fn wait_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) {
        if h.set_flag_once(state::TAG_WAIT[kind(class)]) {
            // A late wake-up of an old registration may have cleared the mark of a current one.
            self.st.driver_tags(h.id.index()).ensure_waiter(class, self.hctx_waiter(h, class));
        }
    }

    /// Whether an hctx that found no driver tag is registered to be woken for the next one.
    pub(crate) fn waits_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) -> bool {
        h.has_flag(state::TAG_WAIT[kind(class)])
    }

    /// Notes that an hctx took a driver tag: it no longer waits, and has used the wake-up that it may have received.
    #[inline]
    pub(crate) fn settle_tag_taken(&self, h: &Hctx<L>, class: TagClass) {
        if h.has_flag(state::TAG_WOKEN[kind(class)] | state::TAG_WAIT[kind(class)]) {
            self.stop_waiting_for_driver_tag(h, class);
        }
    }

    /// Unregisters an hctx because the driver refused its requests: they wait for the driver and not for a tag. This
    /// happens before their tags are freed, or two such hctxs would wake each other with these tags for ever.
    pub(crate) fn leave_line(&self, h: &Hctx<L>) {
        self.settle_tag_taken(h, TagClass::Normal);
        if self.st.has_reserved_tags() {
            self.settle_tag_taken(h, TagClass::Reserved);
        }
    }

    #[cold]
    fn stop_waiting_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) {
        h.take_flag(state::TAG_WOKEN[kind(class)]);
        // If it is no longer in the wait queue, the thread that removed it clears the mark.
        if self.st.driver_tags(h.id.index()).remove_waiter(class, self.hctx_waiter(h, class)) {
            h.take_flag(state::TAG_WAIT[kind(class)]);
        }
    }

    fn hctx_waiter(&self, h: &Hctx<L>, class: TagClass) -> WaiterId {
        Waiter::Hctx(h.id, class).of_disk(self.st.share.as_ref().map_or(0, |s| s.slot))
    }

    /// After a pending run: passes on a wake-up that the run did not use.
    pub(crate) fn settle_woken(&self, h: &Hctx<L>) {
        for class in [TagClass::Normal, TagClass::Reserved] {
            if h.take_flag(state::TAG_WOKEN[kind(class)]) && self.st.driver_tags(h.id.index()).free(class) > 0 {
                self.wake_next(h.id.index(), class);
            }
        }
    }

    /// Returns how many driver tags a dispatch can count on: the minimum over all hctxs, because the elevator may
    /// return requests of any hctx.
    pub(crate) fn free_driver_tags(&self) -> u32 {
        let free = |(map, tags): (usize, &HctxTags<L>)| match &self.st.share {
            None => tags.free_normal(),
            Some(share) => tags.free_normal().min(share.tags_left(map, tags.normal_depth())),
        };
        self.st.driver_tags.iter().enumerate().map(free).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_waiters_keep_what_they_are_made_of() {
        let hctx = crate::id::HctxId::new(4095);
        let all = [
            Waiter::Submitter(SubmitterId::new(1023)),
            Waiter::Hctx(hctx, TagClass::Normal),
            Waiter::Hctx(hctx, TagClass::Reserved),
        ];
        for waiter in all {
            for disk in [0, 1, crate::tags::hctx_tags::MAX_DISKS - 1] {
                let w = waiter.of_disk(disk);
                assert_eq!((Waiter::of(w), disk_of(w)), (waiter, disk));
            }
        }
    }
}
