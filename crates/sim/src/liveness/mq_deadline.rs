// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What mq-deadline owes a request in any case. The bounds of `pressure::deadline` hold for one class at a time.
//!
//! **Sweeps.** In a direction of a class, the elevator takes the first request at or after its position, or the oldest
//! one. So whenever the position moves back, it has taken the oldest. If n requests of its class and direction were
//! before it in the FIFO, the position moves back at most n times before a request is taken, whatever the tunables and
//! other classes. Only requests that were given back may move the position anywhere; the next request then counts from
//! there.
//!
//! **Directions and expiry**, as in `pressure::deadline`, with b = `fifo_batch` and w = `writes_starved`: one batch of
//! writes passes reads, w + 1 batches of reads pass writes, and (n + 1) b requests of its direction pass a request
//! whose expiry has passed. Both are counted while the requests in the elevator and at the disk are of one class. With
//! more classes, each search for an aged request may end a batch and choose a direction, in the kernel, too; then there
//! is no such bound.

use super::{Held, Rules, value};
use crate::pressure::turns::{Expiry, Turns, between_directions};
use blk::elevator::{Elevator, Tunable};

const MS: u64 = 1_000_000;

pub(super) struct MqDeadline {
    /// Requests in the elevator and at the disk, by class.
    pending: [u64; 3],
    turns: Turns,
    expiry: [Expiry; 2],
    sweeps: [[Sweep; 2]; 3],
}

impl MqDeadline {
    pub(super) fn new() -> MqDeadline {
        let late = |what| Expiry::new(what, 0, 0, 1);
        MqDeadline {
            pending: [0; 3],
            turns: Turns::new("mq-deadline: direction", [0; 2]),
            expiry: [late("mq-deadline: a read"), late("mq-deadline: a write")],
            sweeps: Default::default(),
        }
    }
}

impl Rules for MqDeadline {
    fn tuned(&mut self, tunables: &[Tunable]) {
        let (batch, starved) = (value(tunables, "fifo_batch"), value(tunables, "writes_starved"));
        self.turns.set_most(between_directions(batch, starved));
        for (expiry, name) in self.expiry.iter_mut().zip(["read_expire", "write_expire"]) {
            expiry.set(value(tunables, name) * MS, batch.max(1));
        }
    }

    fn queued(&mut self, r: &Held) {
        if r.again {
            return;
        }
        let (class, dir) = (r.class(), r.direction());
        self.pending[class] += 1;
        self.turns.queued(dir);
        self.expiry[dir].queued(&r.seen);
        self.sweeps[class][dir].queued(r);
    }

    fn joined(&mut self, r: &Held) {
        let (class, dir) = (r.class(), r.direction());
        self.pending[class] -= 1;
        self.turns.joined(dir);
        self.expiry[dir].joined(r.seen.id);
        self.sweeps[class][dir].remove(r);
    }

    fn asked(&mut self, now: u64, _hctx: usize, _elevator: &dyn Elevator) {
        let one_class = self.pending.iter().filter(|n| **n > 0).count() < 2;
        for dir in 0..2 {
            if one_class {
                self.expiry[dir].asked(now);
            } else {
                self.turns.excuse(dir);
                self.expiry[dir].excuse();
            }
        }
    }

    fn given(&mut self, r: &Held, _now: u64, _elevator: &dyn Elevator) {
        let dir = r.direction();
        let sweep = &mut self.sweeps[r.class()][dir];
        if r.again {
            sweep.position = r.sector;
            return;
        }
        sweep.given(r, "mq-deadline");
        self.turns.given(dir, 1, &r.seen);
        self.expiry[dir].given(&r.seen, 1);
    }

    fn left(&mut self, r: &Held, comes_back: bool) {
        self.pending[r.class()] -= u64::from(!comes_back);
    }
}

/// One direction of one class.
#[derive(Default)]
struct Sweep {
    position: u64,
    /// Waiting requests, oldest first: number, requests that were before it, and how often the position has moved back
    /// since.
    waiting: Vec<(u64, u64, u64)>,
}

impl Sweep {
    fn queued(&mut self, r: &Held) {
        self.waiting.push((r.seen.id, self.waiting.len() as u64, 0));
    }

    fn remove(&mut self, r: &Held) {
        self.waiting.retain(|(id, ..)| *id != r.seen.id);
    }

    fn given(&mut self, r: &Held, elevator: &str) {
        self.remove(r);
        if std::mem::replace(&mut self.position, r.sector) <= r.sector {
            return;
        }
        for (id, before, sweeps) in &mut self.waiting {
            *sweeps += 1;
            assert!(
                sweeps <= before,
                "{elevator}: request {id} starves: {before} were before it, and it was passed by {sweeps} sweeps, last {r:?}"
            );
        }
    }
}
