// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses between read and write: `rwmixread`.
//!
//! fio does not draw the direction of each I/O. It draws when the current direction has had its share. After a switch, the
//! new direction stays until it has issued its percentage of what the old one issued. The long-run mix is that of the
//! option, but runs of one direction are longer than with independent draws.

use crate::job::{Dir, Job, RwMode};
use crate::rng::{Purpose, Seeds, Taus88};
use crate::stats::DIRS;

#[derive(Clone, Debug)]
pub(super) struct Mix {
    rng: Taus88,
    seed: u32,
    read_pct: u32,
    dir: Dir,
    /// The next draw follows when `dir` has issued this many.
    turn_ends: u64,
}

impl Mix {
    pub fn new(job: &Job, seeds: Seeds) -> Option<Mix> {
        let seed = seeds.of(Purpose::Mix) as u32;
        (job.rw.mode == RwMode::ReadWrite).then(|| Mix {
            rng: Taus88::new(seed),
            seed,
            read_pct: job.rwmixread_pct,
            dir: Dir::Read,
            turn_ends: 0,
        })
    }

    /// Returns the direction of the next I/O, given how many were issued in each direction.
    pub fn next_dir(&mut self, issued: &[u64; DIRS]) -> Dir {
        if issued[self.dir as usize] >= self.turn_ends {
            let drawn = if self.rng.between(1, 100) <= self.read_pct { Dir::Read } else { Dir::Write };
            if drawn != self.dir {
                let share = if drawn == Dir::Read { self.read_pct } else { 100 - self.read_pct };
                self.turn_ends = issued[self.dir as usize] * u64::from(share) / 100;
            }
            self.dir = drawn;
        }
        self.dir
    }

    /// The rate has switched the job to this direction.
    pub fn turned_to(&mut self, dir: Dir) {
        self.dir = dir;
    }

    /// Returns the direction to which a job may switch when `dir` is ahead of its rate.
    pub fn other(&self, dir: Dir) -> Option<Dir> {
        let (other, pct) =
            if dir == Dir::Read { (Dir::Write, 100 - self.read_pct) } else { (Dir::Read, self.read_pct) };
        (pct > 0).then_some(other)
    }

    /// A new pass begins.
    pub fn start_pass(&mut self, reseed: bool) {
        self.turn_ends = 0;
        if reseed {
            self.rng = Taus88::new(self.seed);
        }
    }
}
