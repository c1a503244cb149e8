// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No disk starves beside others: a disk that waits for a tag is notified to retry.
//!
//! A freed tag wakes the next of the submitters that may use one: the first in the next of [`WAIT_QUEUES`] wait queues. So
//! with n waiters in all, each of them is woken after at most n freed tags per wait queue. Others cannot have been given
//! more tags than those, and those that were free at first. When the woken submitter asks, the tag may be gone: as in the
//! kernel, a submitter that did not wait may take a freed tag before one that does. So a waiter is guaranteed a wake-up
//! within a bound, and not a tag. The end of the phase, when all bios have completed, shows that it gets tags at all.
//!
//! A disk waits for a tag when it has bios, nothing at its device, and will not retry by itself soon. It retries soon when
//! its elevator holds requests back (mq-deadline in favour of a higher class, bfq for the queue in service). From outside
//! it is not visible for which map of tags a disk waits, or whether it needs a reserved tag. So the check uses the map and
//! kind of tag of which the fewest were given to others.

use crate::disk::ledger::TagLedger;
use crate::set_harness::{Member, SetHarness};
use blk::elevator::MqElevator;

/// See the module's text.
pub(super) struct Progress {
    disks: Vec<Waiting>,
    most: u64,
}

/// When the core retries an elevator that gave no request and named no time (`BLK_MQ_BUDGET_DELAY`).
const LOOK_AGAIN_NS: u64 = 3_000_000;

/// Longest time that bfq keeps a disk idle for a queue whose weight it has raised.
const BFQ_IDLES_NS: u64 = 20_000_000;

/// Wait queues of a map of tags, as in the kernel (`SBQ_WAIT_QUEUES`).
const WAIT_QUEUES: u64 = 8;

struct Waiting {
    sent: usize,
    /// A disk that retries within this time holds requests back by itself, and does not wait for a tag.
    holds_ns: u64,
    /// For each map, and for its reserved tags: tags given to others so far, and the calls in which others got some since
    /// the disk began to wait without a notification.
    lines: Vec<(u64, u64)>,
}

impl Progress {
    /// Counts from now on. The set has `maps` maps of tags. Its disks and its shape must not change.
    pub(super) fn new(w: &SetHarness, ledger: &TagLedger, maps: usize) -> Progress {
        let set = w.set.config();
        let queues = usize::from(set.nr_hw_queues + set.nr_read_queues + set.nr_poll_queues);
        // Submitters wait, or hardware queues do; each hardware queue has one place for normal tags and one for reserved tags.
        let waiters: usize = w.disks.iter().map(|d| d.subs.len() + 2 * queues).sum();
        let lines = maps * if ledger.has_reserved() { 2 } else { 1 };
        let idles = |name: &str| MqElevator::named(name).is_some_and(|e| e.facts().idles);
        let holds_ns = |d: &Member| if idles(&d.harness.q.scheduler()) { BFQ_IDLES_NS } else { LOOK_AGAIN_NS };
        let waiting = |d: &Member| Waiting { sent: d.disk.issued(), holds_ns: holds_ns(d), lines: vec![(0, 0); lines] };
        Progress {
            disks: w.disks.iter().map(waiting).collect(),
            most: u64::from(set.queue_depth) + WAIT_QUEUES * waiters as u64,
        }
    }

    /// To be called after each action of a disk. Panics when a disk starves.
    pub(super) fn look(&mut self, w: &SetHarness, ledger: &TagLedger) {
        for (d, waiting) in self.disks.iter_mut().enumerate() {
            let (member, number) = (&w.disks[d], w.disks[d].number as usize);
            let before = std::mem::replace(&mut waiting.sent, member.disk.issued());
            let waits = before == waiting.sent && member.disk.in_flight() == 0 && member.outstanding() > 0;
            let waits = waits && !w.is_told(d) && !w.looks_within(d, waiting.holds_ns);
            for (i, (given, calls)) in waiting.lines.iter_mut().enumerate() {
                let (map, reserved) = if ledger.has_reserved() { (i / 2, i % 2 == 1) } else { (i, false) };
                let before = std::mem::replace(given, ledger.given_to_others(number, map, reserved));
                *calls = if waits { *calls + u64::from(before < *given) } else { 0 };
            }
            let passed = waiting.lines.iter().map(|(_, calls)| *calls).min().unwrap_or(0);
            assert!(
                passed <= self.most,
                "disk {number} starves: it waits for a tag and was not woken while others were given some {passed} times, \
                 at most {}\n{}",
                self.most,
                w.describe()
            );
        }
    }
}
