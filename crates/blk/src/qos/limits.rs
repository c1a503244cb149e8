// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Per-disk limits on I/Os and bytes per second: which I/O may go when.
//!
//! Guarantees: over any span of time no more goes than rate x span + burst (without a burst: + one I/O), to the
//! nanosecond, if entries are served when they are due. A late call makes up for what should have gone, up to
//! [`MAX_LATENESS`], so nothing of the rate is lost while I/O waits. Each I/O goes at a time of its own, however small
//! or great the rate (no period, no slice, no floor). Each waiting FIFO has one entry, in the order of arrival, and
//! queues again for its next I/O. So none starves, and a deep queue gets no more than a shallow one that always has
//! something to send.
//!
//! How: each rate has a theoretical arrival time (GCRA, the virtual scheduling algorithm of ITU-T I.371): the time at
//! which all that went so far is paid for. It is kept to the fraction of a nanosecond, so rates that do not divide a
//! second are exact as well. Reads and writes have a queue each. One that only its own direction's limit holds back
//! lets the other direction pass; one that a common limit holds back lets none pass.
//!
//! Needs from callers: time that does not go back by more than the clocks of two CPUs differ; calls at
//! [`Limiter::next_due`]. Does not do: hold I/Os (they stay with their submitters, which queue one entry for each of
//! their FIFOs), take locks, wake threads.

use super::rates::{IoLimits, Rate};
use crate::id::SubmitterId;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// A late I/O is charged from when it could have gone, but from at most this long ago; what is older is lost to the rate. So
/// a thread that did not run for a second does not send a second's worth at once. (QEMU's buckets hold as much.)
pub(crate) const MAX_LATENESS: Duration = Duration::from_ms(100);

const NS_PER_SEC: u64 = 1_000_000_000;

/// Which limits of a direction hold.
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

/// A submitter's place in line, for the first I/O of one of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitEntry {
    pub(crate) submitter: SubmitterId,
    /// Which of the submitter's lines.
    pub(crate) fifo: usize,
    pub(crate) dir: Dir,
    pub(crate) bytes: u64,
    /// Since when it wants to go.
    pub(crate) since: Instant,
}

/// One rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    rate: Rate,
    /// When all that went is paid for: whole nanoseconds, and `frac / rate` of one.
    paid_ns: u64,
    frac: u64,
}

impl Bucket {
    /// Debts under the old rate are forgotten, or a new limit would take effect after them.
    fn set(&mut self, rate: Rate) {
        if self.rate != rate {
            *self = Bucket { rate, ..Bucket::default() };
        }
    }

    fn paid_up(&self) -> u64 {
        self.paid_ns.saturating_add(u64::from(self.frac > 0))
    }

    /// From when on `units` may go: when what they add to the debt is within the burst.
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

    /// `units` went at `start`.
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
    /// An I/O without data (a discard) is not held back by bytes.
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
    /// By [`Dir`]: waiting entries, the longest first, each with a number in the order of all.
    lines: [VecDeque<(u64, WaitEntry)>; 2],
    next_number: u64,
}

impl Limiter {
    /// New limits. Rates that change start afresh. `max_turns`: how many there can be.
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

    /// Asks to go now. False: the entry is queued, and a later call of any submitter passes it to `granted`.
    pub(crate) fn ask(&mut self, entry: WaitEntry, now: Instant, granted: &mut dyn FnMut(WaitEntry)) -> bool {
        if self.try_now(entry, now, granted) {
            return true;
        }
        self.lines[entry.dir as usize].push_back((self.next_number, entry));
        self.next_number += 1;
        false
    }

    /// As [`Limiter::ask`], of one that does not wait.
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

    /// Gives every turn whose time has come.
    pub(crate) fn serve(&mut self, now: Instant, granted: &mut dyn FnMut(WaitEntry)) {
        while let Some(first) = self.first() {
            let dir =
                [first, first.other()].into_iter().find(|d| self.due_at(*d, first).is_some_and(|t| t <= now.as_ns()));
            let Some((_, entry)) = dir.and_then(|d| self.lines[d as usize].pop_front()) else { return };
            self.pay(&entry, now);
            granted(entry);
        }
    }

    /// When [`Limiter::serve`] has to be called.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let first = self.first()?;
        let due = [first, first.other()].into_iter().filter_map(|d| self.due_at(d, first)).min();
        due.map(Instant::from_ns)
    }

    fn head(&self, dir: Dir) -> Option<&(u64, WaitEntry)> {
        self.lines[dir as usize].front()
    }

    /// The line whose head came first.
    fn first(&self) -> Option<Dir> {
        match (self.head(Dir::Read), self.head(Dir::Write)) {
            (Some(r), Some(w)) => Some(if r.0 < w.0 { Dir::Read } else { Dir::Write }),
            (Some(_), None) => Some(Dir::Read),
            (None, Some(_)) => Some(Dir::Write),
            (None, None) => None,
        }
    }

    /// When the head of a line may go; the one that came later not before the common limits would let the `first` go.
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

    /// It goes; as of when it could have gone, unless that is too long ago.
    fn pay(&mut self, entry: &WaitEntry, now: Instant) {
        let start = self.eligible_at(entry).max(entry.since.as_ns()).max((now - MAX_LATENESS).as_ns());
        let start = start.min(now.as_ns());
        self.total.take(start, entry.bytes);
        self.of_dir[entry.dir as usize].take(start, entry.bytes);
    }
}

#[cfg(test)]
mod tests;
