// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner of a ring, which alone may enter it, and the mechanism by which other threads post into that ring.
//!
//! Guarantees: a posted mark is a completion in the owner's ring, and ends a sleep for one completion. `handover` decides when to wake the
//! owner, and with how many marks.

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;

/// Maximum number of messages of one system call; most sleeps are for fewer completions.
const WAKE_ENTRIES: u32 = 32;
/// Maximum number of retries of one wake-up after a refusal (EAGAIN, ENOMEM, EINTR).
const SUBMIT_TRIES: u32 = 1000;

thread_local! {
    /// Its address identifies a living thread, and is cheap to read.
    static MARK: u8 = const { 0 };
}

fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

pub(super) struct Owner {
    thread: usize,
    /// A ring through which any thread posts into the owner's ring.
    wake_ring: Mutex<IoUring>,
}

impl Owner {
    /// The calling thread.
    pub(super) fn this_thread() -> io::Result<Owner> {
        let wake_ring = Mutex::new(IoUring::builder().dontfork().build(WAKE_ENTRIES)?);
        Ok(Owner { thread: this_thread(), wake_ring })
    }

    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.thread == this_thread()
    }

    /// Posts as many completions with `mark` into `ring`, the owner's ring, as `marks` returns; `marks` is called once no other wake-up is
    /// being sent. Not called under the ring's lock. If the kernel is short of memory, this retries a thousand times; messages that remain
    /// are sent with the next wake-up.
    pub(super) fn ring(&self, ring: RawFd, mark: u64, marks: impl FnOnce() -> u32) {
        let message = opcode::MsgRingData::new(types::Fd(ring), 0, mark, None).build();
        let message = message.flags(squeue::Flags::SKIP_SUCCESS);
        let mut wake_ring = self.wake_ring.lock();
        let mut left = marks();
        let mut tries = SUBMIT_TRIES;
        while tries > 0 && (left > 0 || !wake_ring.submission().is_empty()) {
            // SAFETY: the entry points to nothing.
            while left > 0 && unsafe { wake_ring.submission().push(&message) }.is_ok() {
                left -= 1;
            }
            while tries > 0 && wake_ring.submit().is_err() {
                tries -= 1;
                std::thread::yield_now();
            }
            wake_ring.completion().for_each(drop);
        }
    }
}
