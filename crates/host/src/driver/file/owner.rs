// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one thread that may enter a ring of its own, and how others reach it.
//!
//! The kernel lets one thread alone submit to and wait in such a ring (SINGLE_ISSUER), and leaves the work of completing
//! to the moment when this thread enters (DEFER_TASKRUN): no signal-like notification per completion, and one request is
//! on its way to the device again before the rest of a burst is worked up. In exchange other threads only queue, and
//! ring a bell.
//!
//! Guarantees: a bell rung after the owner's [`Owner::sleeps_for`] ends that sleep, whatever number of completions it is
//! for, and a sleep is ended by a bell once. Needs from callers: `sleeps_for` under the lock that also guards what the
//! bell is rung for, and that the owner submits what is queued before it sleeps.

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Messages of one system call: most sleeps are for fewer completions.
const BELL_ENTRIES: u32 = 32;
/// Refusals (EAGAIN, ENOMEM, EINTR) of one bell that are tried again.
const SUBMIT_TRIES: u32 = 1000;

thread_local! {
    /// Its address tells living threads apart, and reading it costs nothing.
    static MARK: u8 = const { 0 };
}

fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

pub(super) struct Owner {
    thread: usize,
    /// Completions that the owner sleeps for, or slept for last; 0 once it was woken from that.
    sleeps_for: AtomicU32,
    /// A ring through which any thread posts into the owner's.
    bell: Mutex<IoUring>,
}

impl Owner {
    /// The calling thread.
    pub(super) fn this_thread() -> io::Result<Owner> {
        let bell = Mutex::new(IoUring::builder().dontfork().build(BELL_ENTRIES)?);
        Ok(Owner { thread: this_thread(), sleeps_for: AtomicU32::new(0), bell })
    }

    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.thread == this_thread()
    }

    /// The owner is going to sleep for so many completions.
    #[inline]
    pub(super) fn sleeps_for(&self, want: u32) {
        // Relaxed: the caller's lock orders it.
        self.sleeps_for.store(want, Ordering::Relaxed);
    }

    /// Ends the owner's sleep in `ring`, if it sleeps: a completion with `mark` for each that it sleeps for. Not called
    /// under the ring's lock. A kernel that is short of memory is asked again a thousand times; what it has not taken
    /// then goes out with the next bell.
    pub(super) fn ring(&self, ring: RawFd, mark: u64) {
        let message = opcode::MsgRingData::new(types::Fd(ring), 0, mark, None).build();
        let message = message.flags(squeue::Flags::SKIP_SUCCESS);
        let mut bell = self.bell.lock();
        let mut left = self.sleeps_for.swap(0, Ordering::Relaxed);
        let mut tries = SUBMIT_TRIES;
        while left > 0 && tries > 0 {
            // SAFETY: the entry points to nothing.
            while left > 0 && unsafe { bell.submission().push(&message) }.is_ok() {
                left -= 1;
            }
            while tries > 0 && bell.submit().is_err() {
                tries -= 1;
                std::thread::yield_now();
            }
            bell.completion().for_each(drop);
        }
    }
}
