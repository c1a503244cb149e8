// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priorities of single I/Os: `cmdprio_percentage`, `cmdprio`, `cmdprio_class`, `cmdprio_bssplit`.
//!
//! As in fio, one sequence of random numbers serves both directions. An I/O draws from it only if its direction and size
//! may have another priority than the job's.

use super::plan;
use crate::job::{Dir, Job, PrioClass, PrioShare};
use crate::rng::{Purpose, Seeds, Taus88};
use crate::stats::{DIRS, DirStats, LatencyStats, PrioStats};
use blk::bio::IoPrio;

/// Shares of the I/Os of one size.
#[derive(Clone, Debug)]
struct Rule {
    /// `None`: of any size.
    bytes: Option<u64>,
    /// Cumulative percent, and index of the priority.
    shares: Vec<(u32, u8)>,
}

#[derive(Clone, Debug)]
pub(super) struct Prios {
    rng: Taus88,
    rules: [Vec<Rule>; DIRS],
    /// Distinct priorities per direction, the job's own first; empty for a direction without rules.
    prios: [Vec<IoPrio>; DIRS],
    /// Index of the priority of the I/O in each slot.
    slots: Vec<u8>,
    /// Total latencies are recorded instead of completion latencies.
    pub records_total: bool,
}

impl Prios {
    pub fn new(job: &Job, seeds: Seeds) -> Option<Box<Prios>> {
        if !job.cmdprio.is_used() {
            return None;
        }
        let mut prios = Prios {
            rng: Taus88::new(seeds.of(Purpose::Prio) as u32),
            rules: Default::default(),
            prios: Default::default(),
            slots: vec![0; job.iodepth as usize],
            records_total: job.lat_percentiles,
        };
        for dir in [Dir::Read, Dir::Write].into_iter().filter(|&dir| job.rw.has(dir)) {
            prios.add_rules(job, dir);
        }
        Some(Box::new(prios))
    }

    fn add_rules(&mut self, job: &Job, dir: Dir) {
        let cmdprio = &job.cmdprio;
        let given = cmdprio.prio[dir];
        let class = if given.class == PrioClass::None { PrioClass::RealTime } else { given.class };
        let default = plan::io_prio(class, given.level);
        let one = [PrioShare { pct: cmdprio.pct[dir], prio: None }];
        let by_size = cmdprio.by_size[dir].iter().map(|size| (Some(size.bytes), &size.shares[..]));
        let all = by_size.chain((cmdprio.pct[dir] > 0).then_some((None, &one[..])));
        let (rules, prios) = (&mut self.rules[dir as usize], &mut self.prios[dir as usize]);
        for (bytes, shares) in all {
            if prios.is_empty() {
                prios.push(plan::prio(job));
            }
            let mut sum = 0;
            let shares = shares.iter().map(|share| {
                let prio = share.prio.map_or(default, |p| plan::io_prio(p.class, p.level));
                let index = prios.iter().position(|p| *p == prio).unwrap_or_else(|| {
                    prios.push(prio);
                    prios.len() - 1
                });
                sum += share.pct;
                // There are 32 priorities.
                (sum, index as u8)
            });
            rules.push(Rule { bytes, shares: shares.collect() });
        }
    }

    /// Makes the statistics per priority.
    pub fn prepare(&self, dirs: &mut [DirStats; DIRS], percentiles: bool) {
        for (dir, prios) in dirs.iter_mut().zip(&self.prios) {
            let of = |&prio: &IoPrio| PrioStats { prio, lat: LatencyStats::new(percentiles) };
            dir.prios = prios.iter().map(of).collect();
        }
    }

    /// Draws the priority of an I/O of `len` bytes in `slot`; `None`: the job's.
    pub fn draw(&mut self, slot: u32, dir: Dir, len: u64) -> Option<IoPrio> {
        self.slots[slot as usize] = 0;
        let rule = self.rules[dir as usize].iter().find(|rule| rule.bytes.is_none_or(|bytes| bytes == len))?;
        let drawn = self.rng.between(0, 99);
        let index = rule.shares.iter().find(|(below, _)| drawn < *below)?.1;
        self.slots[slot as usize] = index;
        Some(self.prios[dir as usize][usize::from(index)])
    }

    /// Index of the priority of the I/O in `slot` among those of its direction.
    pub fn of_slot(&self, slot: u32) -> usize {
        usize::from(self.slots[slot as usize])
    }
}
