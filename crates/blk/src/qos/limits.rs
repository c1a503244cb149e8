// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Per-disk limits on I/Os and bytes per second: when each I/O may be submitted.
//!
//! Guarantees: over any span of time, at most rate x span + burst (without a burst: + one I/O) is submitted. This is
//! exact to the nanosecond if entries are served when they are due. A late call catches up by [`MAX_LATENESS`] at most,
//! so no part of the rate is lost while I/O waits. Each I/O has its own time, at any rate (no period, no slice, no
//! floor). Each waiting FIFO has one entry, in the order of arrival, and queues again for its next I/O. So no FIFO
//! starves, and a deep FIFO gets no more than a shallow one that always has an I/O waiting.
//!
//! How: each rate has a theoretical arrival time (GCRA, the virtual scheduling algorithm of ITU-T I.371): the time at
//! which everything submitted so far fits the rate. It is kept to a fraction of a nanosecond, so rates that do not
//! divide a second are exact as well. Reads and writes have a queue each. If only the limit of its own direction holds
//! back the first entry of a queue, the other direction may pass it; if a common limit holds it back, nothing may pass
//! it.
//!
//! Needs from callers: time that goes back by no more than the difference between the clocks of two CPUs; calls at
//! [`Limiter::next_due`]. Does not do: hold I/Os (they stay with their submitters, which queue one entry for each of
//! their FIFOs), take locks, wake threads.

use super::rates::{IoLimits, Rate};
use crate::id::SubmitterId;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// A late I/O is charged as of the time at which it could have been submitted, but at most this long ago: any rate before
/// that is lost. So a thread that did not run for a second does not submit the I/Os of a whole second at once. (QEMU's
/// buckets hold as much.)
pub(crate) const MAX_LATENESS: Duration = Duration::from_ms(100);

const NS_PER_SEC: u64 = 1_000_000_000;

/// The direction of an I/O, which selects the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dir {
    Read = 0,
    Write = 1,
}

impl Dir {
    fn other(self) -> Dir {
        if self == Dir::Read { Dir::Write } else { Dir::Read }
    }
}

/// A submitter's entry in the limiter's queue, for the first I/O of one of the submitter's FIFOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitEntry {
    pub(crate) submitter: SubmitterId,
    /// Which of the submitter's FIFOs.
    pub(crate) fifo: usize,
    pub(crate) dir: Dir,
    pub(crate) bytes: u64,
    /// When the I/O was submitted by the caller.
    pub(crate) since: Instant,
}

/// One rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    rate: Rate,
    /// The theoretical arrival time: whole nanoseconds, and `frac / rate` of a nanosecond.
    paid_ns: u64,
    frac: u64,
}

impl Bucket {
    /// Sets the rate. Debts under an old rate are dropped, or a new limit would take effect only after them.
    fn set(&mut self, rate: Rate) {
        if self.rate != rate {
            *self = Bucket { rate, ..Bucket::default() };
        }
    }

    fn paid_up(&self) -> u64 {
        self.paid_ns.saturating_add(u64::from(self.frac > 0))
    }

    /// Returns when `units` may be submitted: when the debt including them is within the burst.
    fn eligible_at(&self, units: u64) -> u64 {
        let spare = self.rate.burst.saturating_sub(units);
        if self.rate.per_sec == 0 {
            return 0;
        }
        if spare == 0 {
            return self.paid_up();
        }
        let credit = u128::from(spare) * u128::from(NS_PER_SEC) / u128::from(self.rate.per_sec);
        self.paid_up().saturating_sub(u64::try_from(credit).unwrap_or(u64::MAX))
    }

    /// Charges `units`, submitted at `start`.
    fn take(&mut self, start: u64, units: u64) {
        let per_sec = self.rate.per_sec;
        if per_sec == 0 || units == 0 {
            return;
        }
        if start > self.paid_up() {
            (self.paid_ns, self.frac) = (start, 0);
        }
        let (ns, frac) = match units.checked_mul(NS_PER_SEC).and_then(|n| n.checked_add(self.frac)) {
            Some(n) => (n / per_sec, n % per_sec),
            None => {
                let n = u128::from(units) * u128::from(NS_PER_SEC) + u128::from(self.frac);
                let (ns, frac) = (n / u128::from(per_sec), n % u128::from(per_sec));
                (u64::try_from(ns).unwrap_or(u64::MAX), frac as u64)
            }
        };
        self.paid_ns = self.paid_ns.saturating_add(ns);
        self.frac = frac;
    }
}

/// I/Os and bytes of a direction, or of both together.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    iops: Bucket,
    bps: Bucket,
}

impl Pair {
    /// Returns when an I/O of `bytes` may be submitted. The byte limit does not hold back an I/O without data (a
    /// discard).
    fn eligible_at(&self, bytes: u64) -> u64 {
        let bps = if bytes > 0 { self.bps.eligible_at(bytes) } else { 0 };
        self.iops.eligible_at(1).max(bps)
    }

    fn take(&mut self, start: u64, bytes: u64) {
        self.iops.take(start, 1);
        self.bps.take(start, bytes);
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    total: Pair,
    /// By [`Dir`].
    of_dir: [Pair; 2],
    /// By [`Dir`]: waiting entries, oldest first, each with a sequence number across both queues.
    lines: [VecDeque<(u64, WaitEntry)>; 2],
    next_number: u64,
}

impl Limiter {
    /// Sets new limits. Rates that change start without debt. `max_turns`: most entries that can wait at once.
    pub(crate) fn set(&mut self, limits: &IoLimits, max_turns: usize) {
        self.total.iops.set(limits.iops.total);
        self.total.bps.set(limits.bps.total);
        let dirs = [(limits.iops.read, limits.bps.read), (limits.iops.write, limits.bps.write)];
        for (pair, (iops, bps)) in self.of_dir.iter_mut().zip(dirs) {
            pair.iops.set(iops);
            pair.bps.set(bps);
        }
        if limits.is_set() {
            // Allocates here, so that I/O does not have to.
            self.lines.iter_mut().for_each(|line| line.reserve(max_turns.saturating_sub(line.len())));
        }
    }

    /// Whether no entry waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    /// Asks for a turn now. False: the entry is queued, and a later call by any submitter passes it to `granted`.
    pub(crate) fn ask(&mut self, entry: WaitEntry, now: Instant, granted: &mut dyn FnMut(WaitEntry)) -> bool {
        if self.try_now(entry, now, granted) {
            return true;
        }
        self.lines[entry.dir as usize].push_back((self.next_number, entry));
        self.next_number += 1;
        false
    }

    /// As [`Limiter::ask`], but does not queue the entry.
    pub(crate) fn try_now(&mut self, entry: WaitEntry, now: Instant, granted: &mut dyn FnMut(WaitEntry)) -> bool {
        self.serve(now, granted);
        let may_pass = self.lines[entry.dir as usize].is_empty()
            && self.head(entry.dir.other()).is_none_or(|(_, first)| self.total_at(first) <= now.as_ns());
        if !may_pass || self.eligible_at(&entry) > now.as_ns() {
            return false;
        }
        self.pay(&entry, now);
        true
    }

    /// Passes every entry that is due to `granted`.
    pub(crate) fn serve(&mut self, now: Instant, granted: &mut dyn FnMut(WaitEntry)) {
        while let Some(first) = self.first() {
            let dir =
                [first, first.other()].into_iter().find(|d| self.due_at(*d, first).is_some_and(|t| t <= now.as_ns()));
            let Some((_, entry)) = dir.and_then(|d| self.lines[d as usize].pop_front()) else { return };
            self.pay(&entry, now);
            granted(entry);
        }
    }

    /// Returns when [`Limiter::serve`] has to be called next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let first = self.first()?;
        let due = [first, first.other()].into_iter().filter_map(|d| self.due_at(d, first)).min();
        due.map(Instant::from_ns)
    }

    fn head(&self, dir: Dir) -> Option<&(u64, WaitEntry)> {
        self.lines[dir as usize].front()
    }

    /// Returns the queue whose first entry is older.
    fn first(&self) -> Option<Dir> {
        match (self.head(Dir::Read), self.head(Dir::Write)) {
            (Some(r), Some(w)) => Some(if r.0 < w.0 { Dir::Read } else { Dir::Write }),
            (Some(_), None) => Some(Dir::Read),
            (None, Some(_)) => Some(Dir::Write),
            (None, None) => None,
        }
    }

    /// Returns when the first entry of a queue is due. The younger of the two first entries is not due before the
    /// common limits would let the older one, in `first`, go.
    fn due_at(&self, dir: Dir, first: Dir) -> Option<u64> {
        let (_, entry) = self.head(dir)?;
        let behind = if dir == first { 0 } else { self.head(first).map_or(0, |(_, t)| self.total_at(t)) };
        Some(self.eligible_at(entry).max(behind))
    }

    fn total_at(&self, entry: &WaitEntry) -> u64 {
        self.total.eligible_at(entry.bytes)
    }

    fn eligible_at(&self, entry: &WaitEntry) -> u64 {
        self.total_at(entry).max(self.of_dir[entry.dir as usize].eligible_at(entry.bytes))
    }

    /// Charges an entry as of the time at which it could have been submitted, unless that is too long ago.
    fn pay(&mut self, entry: &WaitEntry, now: Instant) {
        let start = self.eligible_at(entry).max(entry.since.as_ns()).max((now - MAX_LATENESS).as_ns());
        let start = start.min(now.as_ns());
        self.total.take(start, entry.bytes);
        self.of_dir[entry.dir as usize].take(start, entry.bytes);
    }
}

#[cfg(test)]
mod tests;
