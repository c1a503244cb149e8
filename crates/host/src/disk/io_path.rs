// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread's entry to a disk: the submitter of a plain disk, or of a striped one.
//!
//! Guarantees: both have the same calls; a plain disk pays one comparison per call. Does not do: anything beyond passing calls on.

use crate::disk::device::Submitter;
use blk::bio::Bio;
use blk::id::{HctxId, SubmitterId};
use blk::rmw::Below;
use blk::stripe::Striped;
use blk::submitter::{Done, SubmitError};
use blk::time::Instant;
use parking_lot::RawMutex;

/// See the module's text.
#[allow(clippy::large_enum_variant, reason = "one per disk and thread; the plain one is reached without a pointer")]
pub(crate) enum IoPath {
    /// Of one device.
    Plain(Submitter),
    /// Of several.
    Striped(Box<Striped<RawMutex>>),
}

impl Below for IoPath {
    #[inline]
    fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError> {
        match self {
            IoPath::Plain(s) => s.submit(bio, now),
            IoPath::Striped(s) => s.submit(bio, now),
        }
    }
}

impl IoPath {
    #[inline]
    pub(crate) fn start_plug(&mut self, nr_ios: u32) {
        match self {
            IoPath::Plain(s) => s.start_plug(nr_ios),
            IoPath::Striped(s) => s.start_plug(nr_ios),
        }
    }

    /// Issues what was gathered, and collects what has ended.
    #[inline]
    pub(crate) fn finish(&mut self, now: Instant, done: &mut Vec<Done>) {
        let collect = |d: Done| done.push(d);
        match self {
            IoPath::Plain(s) => {
                s.finish_plug(now);
                s.poll(now);
                s.reap(collect);
            }
            IoPath::Striped(s) => {
                s.finish_plug(now);
                s.poll(now);
                s.reap(collect);
            }
        }
    }

    /// Issues what was gathered.
    pub(crate) fn finish_plug(&mut self, now: Instant) {
        match self {
            IoPath::Plain(s) => s.finish_plug(now),
            IoPath::Striped(s) => s.finish_plug(now),
        }
    }

    /// Collects what has ended.
    pub(crate) fn poll(&mut self, now: Instant) {
        match self {
            IoPath::Plain(s) => s.poll(now),
            IoPath::Striped(s) => s.poll(now),
        }
    }

    /// Calls `f` for each bio that was collected.
    pub(crate) fn reap(&mut self, f: impl FnMut(Done)) {
        match self {
            IoPath::Plain(s) => s.reap(f),
            IoPath::Striped(s) => s.reap(f),
        }
    }

    /// Numbers of its submitters, by member.
    pub(crate) fn submitter_ids(&self) -> Vec<SubmitterId> {
        self.submitters().iter().map(Submitter::id).collect()
    }

    /// Its submitters, by member.
    pub(crate) fn submitters_mut(&mut self) -> &mut [Submitter] {
        match self {
            IoPath::Plain(s) => std::slice::from_mut(s),
            IoPath::Striped(s) => s.below_mut(),
        }
    }

    /// As [`IoPath::submitters_mut`], for reading.
    pub(crate) fn submitters(&self) -> &[Submitter] {
        match self {
            IoPath::Plain(s) => std::slice::from_ref(s),
            IoPath::Striped(s) => s.below(),
        }
    }

    pub(crate) fn rest(&mut self) {
        match self {
            IoPath::Plain(s) => s.rest(),
            IoPath::Striped(s) => s.rest(),
        }
    }

    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        match self {
            IoPath::Plain(s) => s.outstanding(),
            IoPath::Striped(s) => s.outstanding(),
        }
    }

    pub(crate) fn state_generation(&self) -> u64 {
        match self {
            IoPath::Plain(s) => s.state_generation(),
            IoPath::Striped(s) => s.state_generation(),
        }
    }

    /// Hardware queues where completions appear, with the number of their member.
    pub(crate) fn hctxs(&self) -> Vec<(usize, HctxId)> {
        match self {
            IoPath::Plain(s) => s.hctxs().map(|h| (0, h)).collect(),
            IoPath::Striped(s) => s.hctxs().collect(),
        }
    }
}
