// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The leader of the threads that wait at a hardware queue: it waits in the driver, and the others, its followers, sleep.
//!
//! If all waited in the driver, every completion would wake all of them, and each would look for its own. With 48 job threads on
//! two CPUs, that took most of their time.
//!
//! Guarantees: while threads follow, one leads or has been promoted. Needs from callers: a thread that leads calls
//! [`Leadership::resign`] when its wait ends, and so does a promoted one that does not wait.

use crate::sync::Mutex;
use blk::id::SubmitterId;
use std::collections::VecDeque;

/// See the module's text.
#[derive(Default)]
pub(super) struct Leadership(Mutex<Group>);

#[derive(Default)]
struct Group {
    has_leader: bool,
    /// The follower that is the next leader, and does not know it yet.
    promoted: Option<SubmitterId>,
    /// In the order of their arrival.
    followers: VecDeque<SubmitterId>,
}

impl Leadership {
    /// Makes the thread the leader if there is none, else a follower. Calls `follows` before another thread can see the new follower; if
    /// that returns false, the thread is none. Returns whether it leads.
    pub(super) fn lead_or_follow(&self, submitter: SubmitterId, follows: impl FnOnce() -> bool) -> bool {
        let mut group = self.0.lock();
        if !std::mem::replace(&mut group.has_leader, true) {
            return true;
        }
        if follows() {
            group.followers.push_back(submitter);
        }
        false
    }

    /// The thread no longer follows. Returns whether it leads now, because it was promoted.
    pub(super) fn end_following(&self, submitter: SubmitterId) -> bool {
        let mut group = self.0.lock();
        if group.promoted == Some(submitter) {
            group.promoted = None;
            return true;
        }
        group.followers.retain(|other| *other != submitter);
        false
    }

    /// The leader no longer leads. Returns the follower that is promoted, which the caller wakes.
    pub(super) fn resign(&self) -> Option<SubmitterId> {
        let mut group = self.0.lock();
        debug_assert!(group.has_leader && group.promoted.is_none());
        group.promoted = group.followers.pop_front();
        group.has_leader = group.promoted.is_some();
        group.promoted
    }
}
