// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tag allocator: an [`Sbitmap`] on which submitters can wait for a tag.
//!
//! # Guarantees
//! No wake-up is lost under the protocol below; waiters of one wait queue are woken in the order of registration, and
//! the wait queues take turns. Without waiters, a put costs one load more than clearing the bit.
//!
//! # Needs from callers
//! A submitter that found no tag and is willing to wait does, in this order:
//!
//! 1. [`add_waiter`](SbitmapQueue::add_waiter),
//! 2. `get` once more: the tag it needs may have been freed before step 1;
//! 3. on success, [`remove_waiter`](SbitmapQueue::remove_waiter), and ignore its result;
//! 4. on failure, sleep until a put calls `wake` with its identifier. It is then no longer registered: start over.
//!
//! A waiter that leaves without a tag (it changes to another map, or gives up) calls `remove_waiter` too. `false` then
//! means that it was woken, and it must pass that wake-up on with [`wake_one`](SbitmapQueue::wake_one). A waiter that
//! leaves with a tag need not, woken or not: the put of that tag counts like any other.
//!
//! Every tag that is taken is put eventually, and every woken waiter runs. `wake` is called without a lock held and may
//! call back into the queue.
//!
//! # Why no wake-up is lost
//! *Waiter:* registers under the queue's lock, counts itself in `active`, passes a `SeqCst` fence, then reads the words.
//! *Put:* frees the bit by a `SeqCst` read-modify-write, then reads `active` with `SeqCst`. Either the put comes first in
//! the total order of these operations, and the waiter's reads find the bit; or the fence does, and the put finds the
//! waiter. So the fence is on the waiter's side, the slow path, and the put needs no barrier beyond its
//! read-modify-write.
//!
//! Wakes come in batches, so one more step is needed. After it registered, a sleeping waiter has seen that each of the `d`
//! bits it may use is owned. Each of these owners frees its bit later and counts one completion, so at least `d` completions
//! are counted. The batch is at most `d` (see [`SbitmapQueue::wake_batch`]), so a batch of waiters is woken. If the waiter
//! is not in that batch, the woken waiters take tags, put them, and count again; or they pass the wake-up on.
//!
//! The only owners that free without counting are threads that return surplus bits to `word` (see `sbitmap::word`). They do
//! so only if they saw no waiter before. Afterwards they check again as a put does, and if there is a waiter they count a
//! whole batch of completions. They have taken a tag of their own at that point, so a put follows, which does the waking.
//! The models in `tests/models/loom_sbitmap.rs` fail if this credit, or the fence, is left out.
//!
//! # Does not do
//! Sleeping: the caller decides what `wake` does with a [`WaiterId`]. Fair sharing of tags between disks: `share` does
//! that, with `put_unannounced` and `take_waiter`. Resizing.
//!
//! Source: Linux lib/sbitmap.c (sbitmap_queue_*).

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence, full_barrier_after_rmw};
use crate::tags::sbitmap::{Reclaim, Sbitmap, TagAllocHint, TagBatch};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;
use std::collections::VecDeque;

/// Wait queues per map: waiters on different ones do not contend for a lock.
const WAIT_QUEUES: u32 = 8;

/// Maximum number of waiters woken at a time. They are woken in batches because a wake-up per completion costs more than it gains.
const WAKE_BATCH_MAX: u32 = 8;

/// Waiters each wait queue holds without allocating.
const WAITERS_RESERVED: usize = 64;

/// Identifier of a waiter for a tag; chosen by the caller, registered at most once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u32);

/// What a put reads. Written when a waiter registers or leaves, and when the configuration changes.
struct Waiting {
    /// Waiters now registered.
    active: AtomicU32,
    /// A user takes tags with a limit: see [`SbitmapQueue::wake_singly`].
    singly: AtomicBool,
}

/// What a put writes, but only while waiters are registered. The counters wrap around.
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

/// A tag allocator on which submitters can wait for a tag. See the module header. `L` is the lock of the wait queues; a
/// put without waiters takes no lock.
pub struct SbitmapQueue<L> {
    sb: Sbitmap,
    waiting: CachePadded<Waiting>,
    accounts: CachePadded<Accounts>,
    wait_queues: [CachePadded<Mutex<L, VecDeque<WaiterId>>>; WAIT_QUEUES as usize],
}

impl<L: RawMutex> SbitmapQueue<L> {
    /// A queue of `depth` free tags; parameters and panics as for [`Sbitmap::new`].
    ///
    /// A wait queue allocates only when it holds more than 64 waiters at once, and more than ever before.
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

    /// From now on each freed tag wakes one waiter, as with mq-deadline in the kernel. A waiter may be limited to some of
    /// the tags. With batches, such a waiter could wait for more frees than its tags can give, and may not be able to use
    /// the next tag.
    #[inline]
    pub(crate) fn wake_singly(&self) {
        if !self.waiting.singly.load(Ordering::Relaxed) {
            self.waiting.singly.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the size of a batch, 1..=8: this many completions wake this many waiters. It is an eighth of the tags, so
    /// that each of the eight wait queues gets its turn while each tag is freed once; or 1 (`wake_singly`).
    pub fn wake_batch(&self) -> u32 {
        match self.waiting.singly.load(Ordering::Relaxed) {
            true => 1,
            false => (self.sb.depth() / WAIT_QUEUES).clamp(1, WAKE_BATCH_MAX),
        }
    }

    /// Gives a tag back and wakes waiters if a batch of tags was freed. `hint` belongs to the submitter that is to use the
    /// tag next, if there is one; a round-robin map does not change the hint.
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

    /// Removes `waiter` from its wait queue. False if the waiter has been woken and so is not in the queue. If it then
    /// leaves without a tag, the caller must call [`wake_one`](Self::wake_one).
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

    /// As [`wake_one`](Self::wake_one), for the first waiter that `may` accepts; wakes none if there is none.
    pub(crate) fn wake_one_of(&self, may: &dyn Fn(WaiterId) -> bool, wake: &mut dyn FnMut(WaiterId)) {
        if let Some(waiter) = self.take_waiter(may) {
            wake(waiter);
        }
    }

    /// Removes the first waiter that `may` accepts from its wait queue and returns it: the caller wakes it. `may` is
    /// called with the lock of a wait queue held.
    pub(crate) fn take_waiter(&self, may: &dyn Fn(WaiterId) -> bool) -> Option<WaiterId> {
        let start = self.accounts.wake_index.load(Ordering::Relaxed);
        (start..start + WAIT_QUEUES).map(|i| i % WAIT_QUEUES).find_map(|index| {
            let mut queue = self.wait_queues[index as usize].lock();
            let at = queue.iter().position(|w| may(*w))?;
            self.waiting.active.fetch_sub(1, Ordering::Relaxed);
            // The next search starts after this queue, or the waiters of this queue would be served before all others
            // for ever.
            self.accounts.wake_index.store((index + 1) % WAIT_QUEUES, Ordering::Relaxed);
            queue.remove(at)
        })
    }

    /// Gives a tag back. Returns how many waiters the caller has to take with [`take_waiter`](Self::take_waiter) and wake:
    /// one for the tag, and those that are due because of a reclaim. For maps where not every waiter may use every tag,
    /// because a batch of wake-ups could go to waiters that may not.
    ///
    /// # Panics
    /// As [`Sbitmap::clear_deferred`].
    pub(crate) fn put_unannounced(&self, tag: u32) -> u32 {
        self.sb.clear_deferred(tag);
        if self.waiters_after_free() { self.wakeups_due(1, 1) } else { 0 }
    }

    /// Wakes all waiters, for instance because the queue is removed.
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

    /// Counts `freed` completions and wakes the waiters of all full batches.
    #[cold]
    fn completed(&self, freed: u32, wake: &mut dyn FnMut(WaiterId)) {
        let due = self.wakeups_due(freed, self.wake_batch());
        if due > 0 {
            self.wake_waiters(due, wake);
        }
    }

    /// Counts `freed` completions. Returns how many waiters to wake: the full batches of `batch` that are due.
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
            // Wake at most the waiters that are in the queue now. So this call wakes a waiter eight times at most, even if `wake` registers
            // waiters again.
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
