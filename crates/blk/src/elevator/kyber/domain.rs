// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scheduling domains, and the tokens that bound how many requests of one are at the disk.
//!
//! Guarantees: the tokens in use are at most as many as the domain's present depth, plus those taken while it was
//! deeper. A hardware queue that found no token is run again when one comes back, in the order in which the queues
//! asked. Needs from callers: each hardware queue asks under its own lock. When it is run again, it keeps asking for as
//! long as it has requests of the domain. This is the protocol of [`SbitmapQueue`], with the hctx as the waiter.
//!
//! A change of the depth only changes which bits may be taken (a shallow depth); the map itself keeps its size. So a
//! token beyond a new, smaller depth stays valid until it is put, as in the kernel.
//!
//! Source: Linux 6.19 block/kyber-iosched.c (domains, `kyber_get_domain_token`).

use crate::bio::Op;
use crate::elevator::interface::ElvCx;
use crate::id::HctxId;
use crate::sync::{AtomicU32, Ordering};
use crate::tags::sbitmap::TagAllocHint;
use crate::tags::sbitmap_queue::{SbitmapQueue, WaiterId};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;

/// A scheduling domain: requests that share a pool of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Domain {
    Read = 0,
    Write = 1,
    Discard = 2,
    /// Whatever else reaches an elevator: write zeroes. Its depth never changes.
    Other = 3,
}

/// Number of domains.
pub(super) const NR_DOMAINS: usize = 4;
/// Domains with a latency target: all but `Other`.
pub(super) const NR_TIMED: usize = 3;

/// Maximum number of requests of a domain at the disk.
pub(super) const DEPTH: [u32; NR_DOMAINS] = [256, 128, 64, 16];
/// Requests of a domain that one hardware queue dispatches in a row before it is another domain's turn.
pub(super) const BATCH: [u32; NR_DOMAINS] = [16, 8, 1, 1];

impl Domain {
    pub(super) const ALL: [Domain; NR_DOMAINS] = [Domain::Read, Domain::Write, Domain::Discard, Domain::Other];

    /// The domain of an operation.
    #[inline]
    pub(super) const fn of(op: Op) -> Domain {
        match op {
            Op::Read => Domain::Read,
            Op::Write => Domain::Write,
            Op::Discard => Domain::Discard,
            Op::Flush | Op::WriteZeroes => Domain::Other,
        }
    }

    /// The kernel's name of it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Domain::Read => "read",
            Domain::Write => "write",
            Domain::Discard => "discard",
            Domain::Other => "other",
        }
    }

    /// The domain whose turn is after this one's.
    #[inline]
    pub(super) const fn next(self) -> Domain {
        Domain::ALL[(self as usize + 1) % NR_DOMAINS]
    }
}

/// The tokens of one domain.
pub(super) struct Tokens<L> {
    map: SbitmapQueue<L>,
    max_depth: u32,
    depth: CachePadded<AtomicU32>,
}

/// What one hardware queue remembers of a domain's tokens; under that queue's lock.
pub(super) struct TokenUser {
    hint: TagAllocHint,
    /// Set from the registration as a waiter to the next token. A thread that put a token may have removed the
    /// registration since.
    may_be_waiting: bool,
}

impl TokenUser {
    /// For hardware queue `hctx`: queues start to look in different places.
    pub(super) fn new(hctx: usize) -> TokenUser {
        TokenUser { hint: TagAllocHint::new((hctx as u32).wrapping_mul(0x9e37_79b9)), may_be_waiting: false }
    }
}

impl<L: RawMutex> Tokens<L> {
    /// `max_depth` tokens, all usable.
    pub(super) fn new(max_depth: u32) -> Tokens<L> {
        let map = SbitmapQueue::new(max_depth, false);
        // The depth may fall to 1, so each token put wakes one hardware queue.
        map.wake_singly();
        Tokens { map, max_depth, depth: CachePadded::new(AtomicU32::new(max_depth)) }
    }

    /// Number of tokens that may be in use.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Changes the depth; kept within 1 and the greatest one.
    ///
    /// No waiter needs a wake-up: each has seen that all tokens it may take, at least one, are in use, and is notified
    /// when one of these is put.
    pub(super) fn resize(&self, depth: u64) {
        self.depth.store(depth.clamp(1, u64::from(self.max_depth)) as u32, Ordering::Relaxed);
    }

    /// Tokens in use.
    pub(super) fn in_use(&self) -> u32 {
        self.map.sb().weight()
    }

    #[inline]
    fn try_get(&self, hint: &mut TagAllocHint) -> Option<u32> {
        let depth = self.depth();
        if depth == self.max_depth { self.map.get(hint) } else { self.map.get_shallow(hint, depth) }
    }

    /// Takes a token for hardware queue `hctx`. `None`: the queue is run again when a token comes back.
    #[inline]
    pub(super) fn get(&self, hctx: HctxId, user: &mut TokenUser) -> Option<u16> {
        let waiter = WaiterId(hctx.index() as u32);
        let token = self.try_get(&mut user.hint).or_else(|| self.get_or_wait(waiter, user))?;
        if user.may_be_waiting {
            // A queue that has a token needs no wake-up, whether or not one was already spent on it.
            let _ = self.map.remove_waiter(waiter);
            user.may_be_waiting = false;
        }
        Some(token as u16)
    }

    #[cold]
    fn get_or_wait(&self, waiter: WaiterId, user: &mut TokenUser) -> Option<u32> {
        let waits = user.may_be_waiting && self.map.waiters_active() > 0 && self.map.is_waiting(waiter);
        if waits {
            return None;
        }
        self.map.add_waiter(waiter);
        user.may_be_waiting = true;
        // Once more: the token may have been put before this queue was visible as a waiter.
        self.try_get(&mut user.hint)
    }

    /// Puts a token back and schedules a run of the hardware queue that has waited longest.
    #[inline]
    pub(super) fn put(&self, cx: &ElvCx<'_>, token: u16) {
        self.map.put(u32::from(token), None, &mut |w| cx.core.run_soon(HctxId::new(w.0)));
    }
}

#[cfg(all(test, loom))]
mod models;
