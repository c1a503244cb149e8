// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tag allocator: an [`Sbitmap`] on which submitters can wait for a tag.
//!
//! # Guarantees
//! No wake-up is lost under the protocol below; waiters of one wait queue are woken in the order they came, and the wait
//! queues take turns. A put with no waiter costs one load more than clearing the bit.
//!
//! # Needs from callers
//! A submitter that found no tag and is willing to wait does, in this order:
//!
//! 1. [`add_waiter`](SbitmapQueue::add_waiter),
//! 2. `get` once more: the tag it needs may have been freed before step 1;
//! 3. on success, [`remove_waiter`](SbitmapQueue::remove_waiter), whatever it answers;
//! 4. else sleep until the `wake` callback of some put names it. It is then no longer registered: start over.
//!
//! A waiter that leaves without a tag (it turns to another map, or gives up) calls `remove_waiter` too; `false` then means
//! that a wake-up was spent on it, which it must pass on with [`wake_one`](SbitmapQueue::wake_one). One that leaves with a
//! tag owes nothing, woken or not: the put of that tag counts like any other.
//!
//! Every tag taken is put some day, and every woken waiter runs. `wake` is called without a lock held and may call back
//! into the queue.
//!
//! # Why no wake-up is lost
//! *Waiter:* registers under the queue's lock, counts itself in `active`, passes a `SeqCst` fence, then reads the words.
//! *Put:* frees the bit by a `SeqCst` read-modify-write, then reads `active` with `SeqCst`. Either the put comes first in
//! the total order of these operations, and the waiter's reads find the bit; or the fence does, and the put finds the
//! waiter. So the fence is on the slow side and the put needs no barrier beyond its read-modify-write.
//!
//! Wakes come in batches, so one more step is needed. A waiter that sleeps has, after registering, seen each of the `d` bits
//! it may use owned. Each of these owners frees its bit later and counts one completion, so at least `d` are counted. The
//! batch is at most `d` (see [`SbitmapQueue::wake_batch`]), so a batch of waiters is woken. If the waiter is not among them,
//! those that are take tags, put them, and count again; or they pass the wake on.
//!
//! Owners that free without counting are the threads which return surplus bits to `word` (see `sbitmap::word`). They do so
//! only if they saw no waiter before. Afterwards they look again, in the way of a put, and if there is a waiter they count a
//! whole batch of completions. They have taken a tag of their own at that point, so a put follows, which does the waking.
//! The models in `tests/models/loom_sbitmap.rs` fail if this credit, or the fence, is left out.
//!
//! # Does not do
//! Sleeping: a [`WaiterId`] is a name, and what `wake` does with it is the caller's business. Fair share between users of
//! shared tags, which is `share`'s business, through `put_unannounced` and `take_waiter`. Resizing.
//!
//! Source: Linux lib/sbitmap.c (sbitmap_queue_*).

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence, full_barrier_after_rmw};
use crate::tags::sbitmap::{Reclaim, Sbitmap, TagAllocHint, TagBatch};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;
use std::collections::VecDeque;

/// Wait queues per map: waiters on different ones do not contend for a lock.
const WAIT_QUEUES: u32 = 8;

/// Most waiters woken at a time: a wake-up per completion would cost more than it gains.
const WAKE_BATCH_MAX: u32 = 8;

/// Waiters each wait queue holds without allocating.
const WAITERS_RESERVED: usize = 64;

/// Name of a waiter for a tag; chosen by the caller, registered at most once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u32);

/// What a put reads. Written by waiters as they come and go, and by changes of the configuration.
struct Waiting {
    /// Waiters now registered.
    active: AtomicU32,
    /// A user takes tags with a limit: see [`SbitmapQueue::wake_singly`].
    singly: AtomicBool,
}

/// What is written by puts, but only while waiters are registered. Counts wrap round.
struct Accounts {
    /// Tags freed while waiters were registered.
    completions: AtomicU32,
    /// How many of these have been turned into wake-ups.
    wakeups: AtomicU32,
    /// Wait queue the next wake-up starts at.
    wake_index: AtomicU32,
    /// Wait queue the next waiter joins.
    wait_index: AtomicU32,
}

/// See the module header. `L` is the lock of the wait queues; it is never taken without waiters.
pub struct SbitmapQueue<L> {
    sb: Sbitmap,
    waiting: CachePadded<Waiting>,
    accounts: CachePadded<Accounts>,
    wait_queues: [CachePadded<Mutex<L, VecDeque<WaiterId>>>; WAIT_QUEUES as usize],
}

impl<L: RawMutex> SbitmapQueue<L> {
    /// A queue of `depth` free tags; parameters and panics as for [`Sbitmap::new`].
    ///
    /// A wait queue allocates only to hold more waiters at once than ever before, and more than 64.
    pub fn new(depth: u32, round_robin: bool) -> Self {
        Self::on(Sbitmap::new(depth, round_robin))
    }

    /// As [`SbitmapQueue::new`], with `1 << shift` tags per word; panics as [`Sbitmap::with_shift`].
    pub fn with_shift(depth: u32, shift: u32, round_robin: bool) -> Self {
        Self::on(Sbitmap::with_shift(depth, shift, round_robin))
    }

    fn on(sb: Sbitmap) -> Self {
        let wait_queue = |_| CachePadded::new(Mutex::new(VecDeque::with_capacity(WAITERS_RESERVED)));
        SbitmapQueue {
            waiting: CachePadded::new(Waiting { active: AtomicU32::new(0), singly: AtomicBool::new(false) }),
            accounts: CachePadded::new(Accounts {
                completions: AtomicU32::new(0),
                wakeups: AtomicU32::new(0),
                wake_index: AtomicU32::new(0),
                wait_index: AtomicU32::new(0),
            }),
            wait_queues: std::array::from_fn(wait_queue),
            sb,
        }
    }

    /// The bitmap itself. Freeing a tag there wakes no waiter.
    #[inline]
    pub fn sb(&self) -> &Sbitmap {
        &self.sb
    }

    /// Takes one free tag; `None` if all are taken.
    #[inline(always)] // A forward.
    pub fn get(&self, hint: &mut TagAllocHint) -> Option<u32> {
        self.sb.get_watched(hint, self)
    }

    /// As [`Sbitmap::get_shallow`]. From then on waiters are woken singly.
    pub(crate) fn get_shallow(&self, hint: &mut TagAllocHint, shallow_depth: u32) -> Option<u32> {
        self.wake_singly();
        self.sb.get_shallow_watched(hint, shallow_depth, self)
    }

    /// As [`Sbitmap::get_batch`].
    #[inline]
    pub fn get_batch(&self, hint: &mut TagAllocHint, n: u32) -> TagBatch {
        self.sb.get_batch_watched(hint, n, self)
    }

    /// Each tag that comes back wakes one waiter from now on, as mq-deadline does in the kernel. A waiter may be limited to
    /// some of the tags. It might wait for a whole batch when fewer tags than that come back, and may not be able to use the
    /// next tag.
    #[inline]
    pub(crate) fn wake_singly(&self) {
        if !self.waiting.singly.load(Ordering::Relaxed) {
            self.waiting.singly.store(true, Ordering::Relaxed);
        }
    }

    /// How many completions it takes to wake this many waiters, 1..=8: an eighth of the tags, so that each of the eight wait
    /// queues gets its turn within one round of the tags; or 1 (`wake_singly`).
    pub fn wake_batch(&self) -> u32 {
        match self.waiting.singly.load(Ordering::Relaxed) {
            true => 1,
            false => (self.sb.depth() / WAIT_QUEUES).clamp(1, WAKE_BATCH_MAX),
        }
    }

    /// Gives a tag back and, if enough tags came back for it, wakes waiters. `hint` is that of the submitter which will use
    /// the tag next, if there is one; a round-robin map leaves it alone.
    ///
    /// # Panics
    /// As [`Sbitmap::clear_deferred`].
    #[inline]
    pub fn put(&self, tag: u32, hint: Option<&mut TagAllocHint>, wake: &mut dyn FnMut(WaiterId)) {
        self.sb.clear_deferred(tag);
        if let Some(hint) = hint
            && !self.sb.round_robin()
        {
            hint.note_freed(tag);
        }
        if self.waiters_after_free() {
            self.completed(1, wake);
        }
    }

    /// Gives the tags of one batch back at once; parameters and panics as for [`Sbitmap::clear_batch`].
    #[inline]
    pub fn put_batch(&self, base: u32, mask: u64, wake: &mut dyn FnMut(WaiterId)) {
        self.sb.clear_batch(base, mask);
        if self.waiters_after_free() {
            self.completed(mask.count_ones(), wake);
        }
    }

    /// Registers `waiter` in the next wait queue. The caller follows the protocol of the module header.
    pub fn add_waiter(&self, waiter: WaiterId) {
        let index = self.accounts.wait_index.fetch_add(1, Ordering::Relaxed) % WAIT_QUEUES;
        let mut queue = self.wait_queues[index as usize].lock();
        debug_assert!(!queue.contains(&waiter), "{waiter:?} is registered already");
        queue.push_back(waiter);
        // Under the lock, so that `active` is never below the number of registered waiters.
        self.waiting.active.fetch_add(1, Ordering::Relaxed);
        drop(queue);
        // Pairs with: waiters_after_free. The caller's next get reads the words after this.
        fence(Ordering::SeqCst);
    }

    /// Takes `waiter` off its wait queue. False if it was not there because it has been woken: if it leaves without a tag,
    /// the caller then owes a [`wake_one`](Self::wake_one).
    pub fn remove_waiter(&self, waiter: WaiterId) -> bool {
        self.wait_queues.iter().any(|queue| {
            let mut queue = queue.lock();
            let found = queue.iter().position(|w| *w == waiter);
            if let Some(at) = found {
                queue.remove(at);
                self.waiting.active.fetch_sub(1, Ordering::Relaxed);
            }
            found.is_some()
        })
    }

    /// Whether `waiter` is registered now.
    pub(crate) fn is_waiting(&self, waiter: WaiterId) -> bool {
        self.wait_queues.iter().any(|queue| queue.lock().contains(&waiter))
    }

    /// Passes on a wake-up whose receiver no longer waits.
    pub fn wake_one(&self, wake: &mut dyn FnMut(WaiterId)) {
        self.wake_waiters(1, wake);
    }

    /// As [`wake_one`](Self::wake_one), for the first waiter that `may` agrees to; none if there is none.
    pub(crate) fn wake_one_of(&self, may: &dyn Fn(WaiterId) -> bool, wake: &mut dyn FnMut(WaiterId)) {
        if let Some(waiter) = self.take_waiter(may) {
            wake(waiter);
        }
    }

    /// Takes the first waiter that `may` agrees to off its wait queue: the caller wakes it. `may` is called with the lock
    /// of a wait queue held.
    pub(crate) fn take_waiter(&self, may: &dyn Fn(WaiterId) -> bool) -> Option<WaiterId> {
        let start = self.accounts.wake_index.load(Ordering::Relaxed);
        (start..start + WAIT_QUEUES).map(|i| i % WAIT_QUEUES).find_map(|index| {
            let mut queue = self.wait_queues[index as usize].lock();
            let at = queue.iter().position(|w| may(*w))?;
            self.waiting.active.fetch_sub(1, Ordering::Relaxed);
            // The next one is looked for behind this queue, or its waiters would be served before all others for ever.
            self.accounts.wake_index.store((index + 1) % WAIT_QUEUES, Ordering::Relaxed);
            queue.remove(at)
        })
    }

    /// Gives a tag back and says for how many waiters [`take_waiter`](Self::take_waiter) is due: one for the tag, and those
    /// that a reclaim owes. For callers that know that not every waiter may use every tag, so that a wake-up per batch
    /// would be spent on the wrong ones.
    ///
    /// # Panics
    /// As [`Sbitmap::clear_deferred`].
    pub(crate) fn put_unannounced(&self, tag: u32) -> u32 {
        self.sb.clear_deferred(tag);
        if self.waiters_after_free() { self.wakeups_due(1, 1) } else { 0 }
    }

    /// Wakes all waiters, for instance because the queue goes away.
    pub(crate) fn wake_all(&self, wake: &mut dyn FnMut(WaiterId)) {
        self.wake_waiters(u32::MAX, wake);
    }

    /// Number of registered waiters.
    #[inline]
    pub fn waiters_active(&self) -> u32 {
        self.waiting.active.load(Ordering::Relaxed)
    }

    /// True if a waiter may have gone to sleep without seeing what the caller has just freed by a `SeqCst` operation.
    #[inline]
    fn waiters_after_free(&self) -> bool {
        full_barrier_after_rmw();
        // Pairs with: add_waiter.
        self.waiting.active.load(Ordering::SeqCst) != 0
    }

    /// Counts `freed` completions and wakes as many waiters as full batches are due.
    #[cold]
    fn completed(&self, freed: u32, wake: &mut dyn FnMut(WaiterId)) {
        let due = self.wakeups_due(freed, self.wake_batch());
        if due > 0 {
            self.wake_waiters(due, wake);
        }
    }

    /// Counts `freed` completions; how many waiters full batches of `batch` are due for.
    ///
    /// Relaxed counting is enough. Of all threads that add to `completions`, the last in the order of its values sees
    /// them all, and leaves less than a batch. A thread that sees `wakeups` ahead of its own sum leaves the rest to a
    /// later adder.
    #[cold]
    fn wakeups_due(&self, freed: u32, batch: u32) -> u32 {
        let accounts = &self.accounts;
        let completions = accounts.completions.fetch_add(freed, Ordering::Relaxed).wrapping_add(freed);
        let mut wakeups = accounts.wakeups.load(Ordering::Relaxed);
        loop {
            let open = completions.wrapping_sub(wakeups).cast_signed();
            if open < batch.cast_signed() {
                return 0;
            }
            let due = open.cast_unsigned() / batch * batch;
            match accounts.wakeups.compare_exchange_weak(
                wakeups,
                wakeups.wrapping_add(due),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return due,
                Err(now) => wakeups = now,
            }
        }
    }

    /// Wakes up to `n` waiters, oldest first in each wait queue, starting at the queue after the last one served.
    #[cold]
    fn wake_waiters(&self, mut n: u32, wake: &mut dyn FnMut(WaiterId)) {
        let start = self.accounts.wake_index.load(Ordering::Relaxed);
        for index in (start..start + WAIT_QUEUES).map(|i| i % WAIT_QUEUES) {
            self.accounts.wake_index.store((index + 1) % WAIT_QUEUES, Ordering::Relaxed);
            // Bounded by those here now: if `wake` registers waiters again, at most eight rounds of them are woken in this call.
            let mut here = self.wait_queues[index as usize].lock().len();
            while n > 0 && here > 0 {
                let Some(waiter) = self.pop_waiter(index) else {
                    break;
                };
                wake(waiter);
                n -= 1;
                here -= 1;
            }
            if n == 0 {
                return;
            }
        }
    }

    fn pop_waiter(&self, index: u32) -> Option<WaiterId> {
        let mut queue = self.wait_queues[index as usize].lock();
        let waiter = queue.pop_front()?;
        self.waiting.active.fetch_sub(1, Ordering::Relaxed);
        Some(waiter)
    }
}

impl<L: RawMutex> Reclaim for SbitmapQueue<L> {
    #[inline]
    fn waiters(&self) -> bool {
        self.waiters_active() != 0
    }

    fn returned(&self) {
        if self.waiters_after_free() {
            // A waiter that sleeps now may have missed these bits. The caller's own put will find a batch due.
            self.accounts.completions.fetch_add(self.wake_batch(), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
