// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coordinates the threads that use one ring: which thread submits entries that another thread queued, which sleeps, and how they wake
//! each other. A [`Kernel`] defines what a request is and how it is executed: io_uring, or a list in the models.
//!
//! A lock guards the state and the user side of both rings. System calls that may sleep or that submit a batch are made without the lock,
//! so one thread can sleep while another queues and polls. A thread's system call may submit entries that other threads pushed, because
//! the kernel takes all entries in the ring.
//!
//! A ring may have an owner. The kernel then lets only this thread submit to the ring and sleep in it (SINGLE_ISSUER), and posts
//! completions only when this thread enters (DEFER_TASKRUN). So there is no interruption per completion, and a new request can be sent to
//! the device before the rest of a burst is processed. In exchange, other threads can only queue, take completions, and wake the owner.
//!
//! Guarantees:
//! - a sleep does not begin, or ends, if there are completions to take or a wake-up came after `seen`;
//! - when another thread takes the last completion, the sleeps that waited for it end; the same holds for a wake-up whose mark
//!   another thread took;
//! - a wake-up after the owner went to sleep ends that sleep, once, whatever the number of completions that the sleep waits for. A thread
//!   that takes the wake-up's marks instead of the owner sends the wake-up again.
//!
//! Needs from callers: a thread that queues without a system call ([`Pushed::lazy`]) waits or polls later; an owner keeps entering the
//! ring while others have requests in flight. Does not wake other threads that sleep at an owner's ring: such sleeps end by time
//! ([`Kernel::sleep_outside`]).

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, store_relaxed};
use blk::time::Duration;

/// A ring and its state. Functions that take `state` are called with its lock held, all others without it.
pub(super) trait Kernel {
    /// State of the requests and of the user side of both rings.
    type State;
    /// Receives completed requests.
    type Done;

    /// Whether only one thread may enter.
    fn has_owner(&self) -> bool;
    /// Whether the calling thread may make system calls on the ring.
    fn may_enter(&self) -> bool;
    /// Makes the kernel take the entries of the submission ring, and post deferred completions. Refused entries stay in the ring.
    fn submit(&self);
    /// As [`Kernel::submit`], then sleeps until `want` completions are there or `timeout` has passed.
    fn sleep_for(&self, want: usize, timeout: Option<Duration>);
    /// Sleeps for a short time; for threads that may not enter.
    fn sleep_outside(&self, timeout: Option<Duration>);
    /// Posts as many marks as `marks` returns into the completion ring. Calls, including `marks`, are serialized.
    fn wake_owner(&self, marks: impl FnOnce() -> u32);

    /// Puts a mark into the submission ring, which completes as a completion.
    fn push_mark(&self, state: &mut Self::State);
    /// Takes requests that failed early, and completions, including marks.
    fn reap(&self, state: &mut Self::State, done: &mut Self::Done) -> Reaped;
    /// Returns the number of requests in flight.
    fn in_flight(&self, state: &Self::State) -> u32;
    /// Returns the number of completions that can be taken.
    fn ready(&self, state: &Self::State) -> usize;
    /// Whether a poll has work to do even without a completion.
    fn has_work(&self, state: &Self::State) -> bool;
}

/// The result of [`Kernel::reap`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// There were completions of any kind.
    pub(super) found: bool,
    /// The mark of a wake-up was among them.
    pub(super) woke: bool,
    /// Completed requests were returned to the caller.
    pub(super) gave: bool,
    /// Entries wait for submission.
    pub(super) unsubmitted: bool,
    /// Nothing was found and nothing waits for submission, but the kernel has deferred completions, which it posts when entered.
    pub(super) put_off: bool,
}

/// The result of queueing.
pub(super) struct Pushed<T> {
    /// The caller's answer.
    pub(super) answer: T,
    /// The system call may be left to a later call of any thread.
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
    /// Completions that the owner sleeps for, or slept for last; 0 once it was woken from that sleep. Set under the state's lock, taken
    /// while wake-ups are serialized.
    owner_sleeps_for: AtomicU32,
    /// Completions that the owner sleeps for while that sleep lasts, otherwise 0. Wake-ups do not take it. Set under the state's lock.
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

    /// Queues the entries that `push` puts into the submission ring, and makes sure that the kernel gets them.
    #[inline]
    pub(super) fn queue<T>(&self, push: impl FnOnce(&K, &mut K::State) -> Pushed<T>) -> T {
        let pushed = self.with_state(push);
        if !pushed.lazy {
            self.commit();
        }
        pushed.answer
    }

    /// Submits the entries in the submission ring, or wakes the owner to do so if that is another thread.
    #[inline]
    fn commit(&self) {
        if self.kernel.has_owner() && !self.kernel.may_enter() { self.wake_owner() } else { self.kernel.submit() }
    }

    /// Ends the owner's sleep, if it sleeps, by one mark for each completion that it sleeps for. Not called under the lock.
    fn wake_owner(&self) {
        // Relaxed: the lock orders this. Either this thread held the lock after the owner published what it sleeps for, or the owner has
        // yet to check whether it must sleep. Pairs with: Handover::to_wait_for
        self.kernel.wake_owner(|| self.owner_sleeps_for.swap(0, Ordering::Relaxed));
    }

    /// Sends a mark again that another thread took. The kernel posts a mark when the owner enters, and then checks whether the owner must
    /// sleep. If another thread takes the mark in between, the owner would continue to sleep.
    #[cold]
    fn ring_again(&self) {
        // Relaxed: this thread took the mark, so it held the lock after the owner published what it sleeps for. If the owner is awake
        // already, it finds an extra mark. Pairs with: Handover::to_wait_for
        self.kernel.wake_owner(|| self.owner_wants.load(Ordering::Relaxed));
    }

    /// Takes completed requests. Makes a system call when entries wait for submission or the kernel has deferred completions.
    #[inline]
    pub(super) fn poll(&self, done: &mut K::Done) {
        let (enter, gave) = self.reap(done);
        if enter {
            self.commit();
            // What is found now may go on as a new entry. It must not wait for the next poll, because the thread may sleep before that.
            if !gave && self.reap(done).0 {
                self.commit();
            }
        }
    }

    /// Takes completions. Returns whether a system call is needed to make progress, and whether any request was returned.
    #[inline]
    fn reap(&self, done: &mut K::Done) -> (bool, bool) {
        let mut state = self.state.lock();
        let reaped = self.kernel.reap(&mut state, done);
        let last = reaped.found && self.kernel.in_flight(&state) == 0;
        drop(state);
        if reaped.woke && self.kernel.has_owner() && !self.kernel.may_enter() {
            self.ring_again();
        }
        // Another thread may be entering `wait` for the completions that were reaped here. It would sleep in vain, and no other thread is
        // left to wake it. If it checked the rings before this reap, the lock makes its count in `waiting` visible here. The same holds for
        // a thread that the mark taken here should have woken.
        // Relaxed: the lock orders it. Pairs with: Handover::wait
        if (last || reaped.woke && !self.kernel.has_owner()) && self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
        // Deferred completions in another thread's ring wake that thread by themselves.
        (reaped.unsubmitted || reaped.put_off && self.kernel.may_enter(), reaped.gave)
    }

    /// Sleeps until `min` completions are there, or fewer if fewer are in flight, unless there was a wake-up after `seen`.
    pub(super) fn wait(&self, seen: u64, min: u32, timeout: Option<Duration>) {
        // Count this thread before it checks the rings; see `reap`.
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

    /// Returns how many completions to sleep for; `None` if there is something to poll or nothing can complete.
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
            // The owner publishes this under the lock, so other threads wake it for everything that they do later. Pairs with:
            // Handover::wake_owner
            store_relaxed(&self.owner_sleeps_for, want);
            store_relaxed(&self.owner_wants, want);
        }
        sleep.then_some(want as usize)
    }

    /// Returns the number of wake-ups so far.
    pub(super) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has published that it is going to wait. Pairs with: Handover::wake
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends the sleep of all threads, also of those that are about to sleep.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Answers each reap from a list, and counts the system calls.
    #[derive(Default)]
    struct Scripted(AtomicU32);

    impl Kernel for Scripted {
        type State = VecDeque<Reaped>;
        type Done = ();

        fn has_owner(&self) -> bool {
            false
        }
        fn may_enter(&self) -> bool {
            true
        }
        fn submit(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn sleep_for(&self, _want: usize, _timeout: Option<Duration>) {}
        fn sleep_outside(&self, _timeout: Option<Duration>) {}
        fn wake_owner(&self, _marks: impl FnOnce() -> u32) {}
        fn push_mark(&self, _state: &mut Self::State) {}
        fn reap(&self, state: &mut Self::State, (): &mut ()) -> Reaped {
            state.pop_front().unwrap_or_default()
        }
        fn in_flight(&self, state: &Self::State) -> u32 {
            state.len() as u32
        }
        fn ready(&self, state: &Self::State) -> usize {
            state.len()
        }
        fn has_work(&self, _state: &Self::State) -> bool {
            false
        }
    }

    /// Cause: the second reap of a poll found a short transfer, and the entry for its rest stayed in the ring. Effect: a thread that
    /// slept for the ring's descriptor had nothing to wake it.
    #[test]
    fn rest_of_a_request_is_submitted_by_the_poll_that_found_it() {
        let put_off = Reaped { put_off: true, ..Reaped::default() };
        let goes_on = Reaped { found: true, unsubmitted: true, ..Reaped::default() };
        for (reaps, calls) in
            [(vec![put_off, goes_on], 2), (vec![goes_on, goes_on], 2), (vec![put_off], 1), (vec![], 0)]
        {
            let ring = Handover::new(Scripted::default(), reaps.clone().into());
            ring.poll(&mut ());
            assert_eq!(ring.kernel().0.load(Ordering::Relaxed), calls, "{reaps:?}");
        }
    }
}
