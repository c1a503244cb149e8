// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Driver tags that several disks, or several hardware queues, share: waiters and wake-ups.
//!
//! # Waiting
//! Without an elevator, submitters wait for tags; with one, hardware queues wait (`TAG_WAIT` marks a registered one). All
//! are in the wait queues of the map, under names that include their disk. A put wakes one waiter *that may use the tag*. A
//! disk with its share used up has none: its own next put wakes it. So each put is one wake-up. (In a map of one disk any
//! waiter is as good as another, and wake-ups come in batches of an eighth of the depth.) A registered submitter does not
//! try again before it is woken: mostly a disk's own completion makes it poll, and it would always take back what it has
//! just freed. Hardware queues of one disk (`host_tagset`) are woken and may try as ever.
//!
//! A waiter of the same disk is woken as ever. For a waiter of another disk it depends on its kind. A submitter is notified.
//! A hardware queue is marked (`TAG_WOKEN`), a run is owed, and the owner of a request that waits there is notified, to
//! poll.
//!
//! # Why no waiter is forgotten
//! A sleeper has registered, passed a `SeqCst` fence, and then found its disk's number at the share or the map full. A put
//! lowers the number, then frees the bit, then looks for waiters, each with `SeqCst`. If it does not see the sleeper, the
//! sleeper saw both; what `sbitmap_queue` says of the bit holds for the number. If it sees the sleeper but passes it by for
//! its share, that disk holds tags. The put of the first of them sees a number below the share. What else may raise a share
//! (a disk falls idle or leaves, fair sharing is turned off) wakes all waiters afterwards.
//!
//! A wake-up that is not used is passed on. A submitter passes it on if it waits no more, is frozen, or is refused for its
//! share. A hardware queue passes it on at once, in `wake`, if it has nothing to send. It also does so if it took no tag
//! when it was run though a tag is free. The wake-up goes to a waiter that may use it *now*, so two that may not do not wake
//! each other in turn.
//!
//! Setting `TAG_WAIT` registers a hardware queue; a thread that finds it set relies on that. The waker clears the mark
//! before it checks the list. A thread that leaves requests on the list checks the mark afterwards, and owes a run when
//! it is gone. So a wake-up that comes between the two falls to one of them. A hardware queue whose driver is busy
//! unregisters before it gives its tags back: it waits for the driver, and two like it would hand each other the same
//! tags for ever.
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
    /// Requests of an hctx.
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

    /// A request ends. Of a tag that is not its hctx's own this says whose request it was.
    #[inline]
    pub(crate) fn note_ended(&self, hctx: usize, tag: u32) {
        if self.tags_are_shared {
            self.slab.get(self.rq_of_tag(hctx, tag)).clear_rqf(rqf::LIVE);
        }
    }

    /// Clears the mark that an hctx waits, and marks it to be run if it has something to send.
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
    /// Wakes a waiter of this disk on behalf of another disk. False: the wake-up is of no use to it.
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

    /// Makes a submitter poll that stays until what waits on `hctx->dispatch` has ended.
    fn notify_owner_of(&self, st: &QueueState<L>, h: &Hctx<L>) {
        let owner = h.dispatch.with(|list| {
            let mut heads = list.iter().map(|rq| st.slab.get(rq.id()).bio_head());
            heads.find(|bio| *bio != BioId::NONE).map(BioId::submitter)
        });
        match owner {
            Some(owner) => self.notify.notify(SubmitterId::new(owner as u32)),
            // Only a flush command, or another thread is sending them just now.
            None => self.notify_all(),
        }
    }

    /// Whether it has no driver tag of its set.
    pub(crate) fn is_without_driver_tags(&self) -> bool {
        self.state().share.as_ref().is_none_or(|s| s.in_use() == 0)
    }

    /// It has been idle for as long as its timer takes: others may have its share.
    pub(crate) fn retire_tags(&self) {
        if let Some(share) = &self.state().share {
            share.retire();
        }
    }
}

impl<L: Lock> Env<L> {
    /// A driver tag of a map that disks share, or of this disk's own.
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

    /// A driver tag, if the disk may have one more.
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

    /// `blk_mq_tag_busy`. The timer that will find the disk idle runs from here on.
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
        // Pairs with: SbitmapQueue::add_waiter. The number is lowered before the bit is freed.
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

    /// Hands on a wake-up for an internal tag that was not used.
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

    /// Wakes `w`, or, when it has no use for a tag, the next one.
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
            // As HctxRunner::run_soon: served before or at the end of the poll that put the tag.
            Waiter::Hctx(id, class) => {
                let woken = self.st.mark_woken(&self.st.hctxs[id.index()], class);
                if woken {
                    self.q.owe_work();
                }
                woken
            }
        }
    }

    /// Registers an hctx that found no driver tag, unless it is; it must try again afterwards.
    pub(crate) fn wait_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) {
        if h.set_flag_once(state::TAG_WAIT[kind(class)]) {
            // Late news of an old registration may have cleared the mark of a current one.
            self.st.driver_tags(h.id.index()).ensure_waiter(class, self.hctx_waiter(h, class));
        }
    }

    /// Whether an hctx that found no driver tag will be told of the next one.
    pub(crate) fn waits_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) -> bool {
        h.has_flag(state::TAG_WAIT[kind(class)])
    }

    /// An hctx took a driver tag: it waits no more, and a wake-up that was spent on it is used.
    #[inline]
    pub(crate) fn settle_tag_taken(&self, h: &Hctx<L>, class: TagClass) {
        if h.has_flag(state::TAG_WOKEN[kind(class)] | state::TAG_WAIT[kind(class)]) {
            self.stop_waiting_for_driver_tag(h, class);
        }
    }

    /// The driver refused requests of an hctx: it is not for want of a tag that they wait. Its place in the line is given
    /// up before their tags are, or two such hctxs would wake each other with them for ever.
    pub(crate) fn leave_line(&self, h: &Hctx<L>) {
        self.settle_tag_taken(h, TagClass::Normal);
        if self.st.has_reserved_tags() {
            self.settle_tag_taken(h, TagClass::Reserved);
        }
    }

    #[cold]
    fn stop_waiting_for_driver_tag(&self, h: &Hctx<L>, class: TagClass) {
        h.take_flag(state::TAG_WOKEN[kind(class)]);
        // Gone from the queue already: the thread that took it out clears the mark.
        if self.st.driver_tags(h.id.index()).remove_waiter(class, self.hctx_waiter(h, class)) {
            h.take_flag(state::TAG_WAIT[kind(class)]);
        }
    }

    fn hctx_waiter(&self, h: &Hctx<L>, class: TagClass) -> WaiterId {
        Waiter::Hctx(h.id, class).of_disk(self.st.share.as_ref().map_or(0, |s| s.slot))
    }

    /// After a run that was owed: hands on a wake-up that it had no use for.
    pub(crate) fn settle_woken(&self, h: &Hctx<L>) {
        for class in [TagClass::Normal, TagClass::Reserved] {
            if h.take_flag(state::TAG_WOKEN[kind(class)]) && self.st.driver_tags(h.id.index()).free(class) > 0 {
                self.wake_next(h.id.index(), class);
            }
        }
    }

    /// Driver tags that a dispatch can count on: the fewest of any hctx, for the elevator may give requests of each.
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
