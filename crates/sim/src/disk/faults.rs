// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of the simulated disk that last longer than one request: a path that is down, repeated completions, and the
//! contents that would be left if power were cut now. Their model is described in [`fault`](crate::fault).
//!
//! Guarantees: without these faults nothing here draws a random number, so a case without them is the same case.

use super::media::Media;
use super::{Inner, Issue, NEVER_SAFE, Pending, SimDisk};
use crate::fault::Plant;
use crate::mem::Mem;
use crate::rng::Rng;
use blk::bio::Op;
use blk::status::BlkStatus;

/// Longest time that a path is down, ns.
const MAX_OUTAGE_NS: u64 = 50_000_000;

/// A completion that the device will report again.
struct Repeat {
    due: u64,
    hctx: usize,
    tag: usize,
    /// Number of the request that it completed.
    n: usize,
}

#[derive(Default)]
pub(super) struct Faults {
    repeats: Vec<Repeat>,
    path_down_until: u64,
    /// Planted: hctx and tag of requests that were completed while the device still has them.
    zombies: Vec<(usize, usize)>,
    /// Planted: failed writes, each carried out once a number of requests have completed.
    late: Vec<(u64, u64, u64)>,
}

impl Faults {
    /// Hardware queues are new: the device forgets all tags.
    pub(super) fn restart(&mut self) {
        self.repeats.clear();
        self.zombies.clear();
    }

    /// Whether polling this hctx finds a repeated completion. No request waits for one, so it is no reason for time to advance.
    pub(super) fn is_repeat_due(&self, hctx: usize, now: u64) -> bool {
        self.repeats.iter().any(|r| r.hctx == hctx && r.due <= now)
    }

    /// Whether the device still uses this tag although its request was completed (planted).
    pub(super) fn has_zombie(&self, hctx: usize, tag: usize) -> bool {
        self.zombies.contains(&(hctx, tag))
    }
}

impl Inner {
    /// Whether requests cannot reach the device now.
    pub(super) fn path_is_down(&mut self, now: u64) -> bool {
        if now < self.faults.path_down_until {
            return true;
        }
        if !self.rng.per_mille(self.behaviour.path_loss) {
            return false;
        }
        self.faults.path_down_until = now + 1 + self.rng.below(MAX_OUTAGE_NS);
        self.trace.event(now, 'F', format_args!("path down until {} us", self.faults.path_down_until / 1000));
        self.break_off(now, |_| true);
        true
    }

    /// Makes each of these requests lost or failed.
    fn break_off(&mut self, now: u64, mut these: impl FnMut(&Issue) -> bool) {
        let Inner { pending, rng, .. } = self;
        for p in pending.iter_mut().flatten().filter(|p| p.back.is_none() && !p.lost && these(&p.issue)) {
            if !p.found && rng.below(2) == 0 {
                (p.lost, p.due) = (true, u64::MAX);
            } else {
                (p.status, p.due) = (BlkStatus::Transport, now + 1);
            }
        }
    }

    /// A request has completed. The seed decides whether the device reports that again.
    pub(super) fn plan_repeat(&mut self, p: &Pending, now: u64) {
        if self.rng.per_mille(self.behaviour.duplicate) {
            let due = now + 1 + self.rng.below(1_000_000);
            self.faults.repeats.push(Repeat { due, hctx: p.issue.hctx, tag: p.issue.tag, n: p.issue.n });
        }
        if self.behaviour.plant == Some(Plant::SameTagTwice) && p.issue.n % 50 == 49 {
            self.faults.zombies.push((p.issue.hctx, p.issue.tag));
        }
    }

    /// Takes the repeated completions of an hctx. The driver looks up the request of each, finds that it has completed, and
    /// drops the completion. A driver that looks up only the tag (planted) completes the request that has the tag now; these
    /// are returned.
    pub(super) fn take_repeats(&mut self, hctx: usize, now: u64) -> Vec<Pending> {
        let mut wronged = Vec::new();
        for r in self.faults.repeats.extract_if(.., |r| r.hctx == hctx && r.due <= now) {
            let list = &mut self.pending[hctx];
            let holder = list.iter().position(|p| p.issue.tag == r.tag && p.back.is_none());
            if self.behaviour.plant == Some(Plant::DuplicateBelieved)
                && let Some(at) = holder
            {
                let mut p = list.remove(at);
                // Nothing was executed for this request.
                p.landed = true;
                if let Some((ledger, _)) = &self.ledger {
                    ledger.take_back(p.issue.hctx, p.issue.tag);
                }
                wronged.push(p);
            }
            self.trace.event(now, 'F', format_args!("hctx {hctx} tag {} completed again, as request {}", r.tag, r.n));
        }
        wronged
    }

    /// Planted: plans a failed write to take effect after more requests have completed.
    pub(super) fn write_late(&mut self, mem: &Mem, p: &Pending) {
        if p.issue.op != Op::Write {
            return;
        }
        let sectors = p.segs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n));
        let when = self.completed + if self.behaviour.plant == Some(Plant::LatePath) { 30 } else { 5 };
        self.faults.late.extend(sectors.enumerate().map(|(i, at)| (when, p.issue.sector + i as u64, mem.get(at))));
    }

    pub(super) fn late_writes(&mut self) {
        for (_, sector, v) in self.faults.late.extract_if(.., |(when, ..)| *when <= self.completed) {
            self.media.write(sector, v, false, NEVER_SAFE);
        }
    }
}

/// What a disk would contain after a power cut.
pub struct Survivors(Media);

impl Survivors {
    /// Content of a sector.
    pub fn content(&self, sector: u64) -> u64 {
        self.0.read(sector)
    }
}

impl SimDisk {
    /// Loses every request in flight: each completes only through its timeout.
    pub fn forget(&self) {
        for p in self.inner().pending.iter_mut().flatten().filter(|p| p.back.is_none()) {
            (p.lost, p.due) = (true, u64::MAX);
        }
    }

    /// The path that these requests came by has broken: each of them is lost or fails.
    pub fn sever(&self, now: u64, these: impl FnMut(&Issue) -> bool) {
        self.inner().break_off(now, these);
    }

    /// Delays a request at the disk by `ns`. Has no effect on a request that is lost or not at the disk.
    pub fn delay(&self, hctx: usize, tag: usize, ns: u64) {
        let mut i = self.inner();
        let mut here = i.pending.get_mut(hctx).into_iter().flatten();
        if let Some(p) = here.find(|p| p.issue.tag == tag && p.due != u64::MAX) {
            p.due += ns;
        }
    }

    /// Stops all faults and restores the path. Requests that were lost before stay lost until their timeout.
    pub fn heal(&self) {
        let i = &mut *self.inner();
        let b = &mut i.behaviour;
        (b.resource, b.dev_resource, b.issue_error, b.complete_error, b.give_back, b.lost) = (0, 0, 0, 0, 0, 0);
        (b.duplicate, b.path_loss) = (0, 0);
        i.faults.path_down_until = 0;
    }

    /// What would be left if power were cut now. Each cached sector has any of its versions; each sector of a write at the
    /// device is there or not. The disk itself continues.
    pub fn if_power_were_cut(&self, seed: u64) -> Survivors {
        let (i, mut rng) = (self.inner(), Rng::new(seed));
        let mut media = i.media.clone();
        for p in i.pending.iter().flatten().filter(|p| !p.landed && p.back.is_none()) {
            let first = p.issue.sector;
            let mut torn = |i: u64, v: u64| {
                if rng.below(2) == 0 {
                    media.write(first + i, v, true, 0);
                }
            };
            match p.issue.op {
                Op::Write => {
                    let sectors = p.segs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n));
                    sectors.enumerate().for_each(|(i, at)| torn(i as u64, self.mem.get(at)));
                }
                Op::Discard | Op::WriteZeroes => (0..u64::from(p.issue.nr_sectors)).for_each(|i| torn(i, 0)),
                Op::Read | Op::Flush => {}
            }
        }
        media.crash(&mut rng);
        Survivors(media)
    }
}
