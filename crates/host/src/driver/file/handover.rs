// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads at one ring: which thread submits entries queued by another, which sleeps, and how they wake each other.
//! What a request is and what the kernel does with it is the [`Kernel`]'s: io_uring, or a list in the models.
//!
//! A lock guards the books and the user side of both rings. System calls that may sleep or that submit a batch are made without
//! it, so one thread can sleep while another queues and polls. An entry pushed by one thread may be submitted by another's
//! call: the kernel takes what is in the ring.
//!
//! A ring may have an owner. The kernel then lets only this thread submit to the ring and sleep in it (SINGLE_ISSUER). It
//! leaves the work of completing to the moment when this thread enters (DEFER_TASKRUN). So there is no signal-like notification
//! per completion. One request is on its way to the device again before the rest of a burst is processed. In exchange other
//! threads only queue, take completions, and wake the owner.
//!
//! Guarantees:
//! - a sleep does not begin, or ends, if there is something to take or a wake-up came after `seen`;
//! - when another thread takes the last completion, the sleeps that waited for it end; the same holds for a wake-up whose mark
//!   another thread took;
//! - a wake-up after the owner went to sleep ends that sleep, once, whatever number of completions it is for. A thread that
//!   takes its marks in the owner's place sends it again.
//!
//! Needs from callers: a thread that queues without a system call ([`Pushed::lazy`]) waits or polls some time; an owner keeps
//! entering the ring while others have anything in flight. Does not do: sleeps of other threads at an owner's ring, which end
//! by time ([`Kernel::sleep_outside`]).

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, store_relaxed};
use blk::time::Duration;

/// A ring and its books. What takes `state` is called with their lock held, all else without it.
pub(super) trait Kernel {
    /// What is known of requests and of the user side of both rings.
    type State;
    /// Where what ended goes.
    type Done;

    /// Whether one thread alone may enter.
    fn has_owner(&self) -> bool;
    /// Whether the calling thread may make system calls on the ring.
    fn may_enter(&self) -> bool;
    /// Has the kernel take what is in the submission ring, and post what it has put off. What it refuses stays there.
    fn submit(&self);
    /// The same, and sleeps until so many completions are there or the time is over.
    fn sleep_for(&self, want: usize, timeout: Option<Duration>);
    /// Sleeps for a short time, of one that may not enter.
    fn sleep_outside(&self, timeout: Option<Duration>);
    /// Posts as many marks as `marks` says into the completion ring. One caller at a time, `marks` included.
    fn wake_owner(&self, marks: impl FnOnce() -> u32);

    /// Puts a mark into the submission ring, which comes back as a completion.
    fn push_mark(&self, state: &mut Self::State);
    /// Takes what ended early and completions, marks among them.
    fn reap(&self, state: &mut Self::State, done: &mut Self::Done) -> Reaped;
    /// Requests that have not been taken as ended.
    fn in_flight(&self, state: &Self::State) -> u32;
    /// Completions that can be taken.
    fn ready(&self, state: &Self::State) -> usize;
    /// Whether a poll has something to do without a completion.
    fn has_work(&self, state: &Self::State) -> bool;
}

/// What a look at the rings found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// Completions, of whatever kind.
    pub(super) found: bool,
    /// The mark of a wake-up was among them.
    pub(super) woke: bool,
    /// Something was given to the caller.
    pub(super) gave: bool,
    /// Entries wait for submission.
    pub(super) unsubmitted: bool,
    /// Nothing was found or waits for submission, and the kernel has completions that it posts when entered.
    pub(super) put_off: bool,
}

/// What came of queueing.
pub(super) struct Pushed<T> {
    /// The caller's answer.
    pub(super) answer: T,
    /// The system call may be left to a later one of any thread.
    pub(super) lazy: bool,
}

/// A ring that threads share. See the module's text.
pub(super) struct Handover<K: Kernel> {
    kernel: K,
    state: Mutex<K::State>,
    /// Threads in [`Handover::wait`].
    waiting: AtomicU32,
    /// Calls of [`Handover::wake`]; changed under the lock.
    wakes: AtomicU64,
    /// Completions that the owner sleeps for, or slept for last; 0 once it was woken from that. Set under the books' lock,
    /// taken under the wake-up's.
    owner_sleeps_for: AtomicU32,
    /// The same of a sleep that is not over and that no thread takes; else 0. Set under the state's lock.
    owner_wants: AtomicU32,
}

impl<K: Kernel> Handover<K> {
    pub(super) fn new(kernel: K, state: K::State) -> Handover<K> {
        Handover {
            kernel,
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            wakes: AtomicU64::new(0),
            owner_sleeps_for: AtomicU32::new(0),
            owner_wants: AtomicU32::new(0),
        }
    }

    pub(super) fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Calls `f` with the lock held.
    #[inline]
    pub(super) fn with_state<T>(&self, f: impl FnOnce(&K, &mut K::State) -> T) -> T {
        f(&self.kernel, &mut self.state.lock())
    }

    /// Queues what `push` puts into the submission ring, and sees that the kernel gets it.
    #[inline]
    pub(super) fn queue<T>(&self, push: impl FnOnce(&K, &mut K::State) -> Pushed<T>) -> T {
        let pushed = self.with_state(push);
        if !pushed.lazy {
            self.commit();
        }
        pushed.answer
    }

    /// Makes the kernel see what is in the submission ring, or its owner if that is another thread.
    #[inline]
    fn commit(&self) {
        if self.kernel.has_owner() && !self.kernel.may_enter() { self.wake_owner() } else { self.kernel.submit() }
    }

    /// Ends the owner's sleep, if it sleeps: a mark for each completion that it sleeps for. Not called under the lock.
    fn wake_owner(&self) {
        // Relaxed: a thread that signals something has had the lock since the owner published what it sleeps for, or the owner looks
        // at it yet. Pairs with: Handover::to_wait_for
        self.kernel.wake_owner(|| self.owner_sleeps_for.swap(0, Ordering::Relaxed));
    }

    /// A mark for the owner was taken by another thread. The kernel posts it when the owner enters, and then checks
    /// what there is to sleep for: in between it may be taken, and the owner would sleep on.
    #[cold]
    fn ring_again(&self) {
        // Relaxed: a thread that takes a mark has had the lock since the owner published what it sleeps for. One that is awake by now finds a
        // mark too many. Pairs with: Handover::to_wait_for
        self.kernel.wake_owner(|| self.owner_wants.load(Ordering::Relaxed));
    }

    /// Takes what ended. Makes a system call when entries wait for submission or the kernel has completions put off.
    #[inline]
    pub(super) fn poll(&self, done: &mut K::Done) {
        let (enter, gave) = self.reap(done);
        if enter {
            self.commit();
            if !gave {
                self.reap(done);
            }
        }
    }

    /// Whether a system call is needed to get on, and whether anything was given.
    #[inline]
    fn reap(&self, done: &mut K::Done) -> (bool, bool) {
        let mut state = self.state.lock();
        let reaped = self.kernel.reap(&mut state, done);
        let last = reaped.found && self.kernel.in_flight(&state) == 0;
        drop(state);
        if reaped.woke && self.kernel.has_owner() && !self.kernel.may_enter() {
            self.ring_again();
        }
        // A thread may be on its way into `wait` for what was reaped here. It would sleep for nothing, and no other thread is
        // left to complete anything and wake it. If it checked the rings before this reap, the lock shows its mark here. The
        // same goes for a thread that was to be woken by the mark taken here.
        // Relaxed: the lock orders it. Pairs with: Handover::wait
        if (last || reaped.woke && !self.kernel.has_owner()) && self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
        // What the kernel has to post in another thread's ring wakes that thread by itself.
        (reaped.unsubmitted || reaped.put_off && self.kernel.may_enter(), reaped.gave)
    }

    /// Sleeps until `min` completions are there or as many as can come, unless there was a wake-up after `seen`.
    pub(super) fn wait(&self, seen: u64, min: u32, timeout: Option<Duration>) {
        // Before the look at the rings, see `reap`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(want) = self.to_wait_for(seen, min, timeout) {
            if self.kernel.may_enter() {
                self.kernel.sleep_for(want, timeout);
                if self.kernel.has_owner() {
                    store_relaxed(&self.owner_wants, 0);
                }
            } else {
                self.kernel.sleep_outside(timeout);
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many completions to sleep for; none when there is something to poll or nothing to come.
    fn to_wait_for(&self, seen: u64, min: u32, timeout: Option<Duration>) -> Option<usize> {
        let state = self.state.lock();
        // The mark of a wake-up may have been taken by another thread's poll already. Relaxed: the lock orders it.
        if self.wakes.load(Ordering::Relaxed) != seen {
            return None;
        }
        let in_flight = self.kernel.in_flight(&state);
        let want = min.min(in_flight).max(1);
        let idle = in_flight == 0 && timeout.is_none();
        let sleep = !self.kernel.has_work(&state) && self.kernel.ready(&state) < want as usize && !idle;
        if sleep && self.kernel.has_owner() && self.kernel.may_enter() {
            // Under the lock: what others do from here on they wake the owner for. Pairs with: Handover::wake_owner
            store_relaxed(&self.owner_sleeps_for, want);
            store_relaxed(&self.owner_wants, want);
        }
        sleep.then_some(want as usize)
    }

    /// Wake-ups so far.
    pub(super) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has published that it is going to wait. Pairs with: Handover::wake
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends the sleep of all threads, and of those on their way to it.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        // Pairs with: Handover::wakes
        self.wakes.fetch_add(1, Ordering::Release);
        if self.kernel.has_owner() {
            drop(state);
            return self.wake_owner();
        }
        self.kernel.push_mark(&mut state);
        drop(state);
        self.commit();
    }
}

#[cfg(all(test, loom))]
mod models;
