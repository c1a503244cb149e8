// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bfq owes a queue in any case; a queue is the synchronous or the asynchronous requests of a submitter in a
//! class.
//!
//! Let B be the largest budget, L the largest request so far, and T = B + 3 L the most that a turn is charged: a
//! request may not fit into the rest of a budget, and asynchronous service may cost three times its sectors.
//!
//! **Within a class.** A queue of weight w waits. Its start lies at most T / w ahead of virtual time, because a turn is
//! charged at most T, and its budget ends at most T / w after its start. Until virtual time is there, a queue of weight
//! W gets W times as much, and its own turn. So it gets at most 2 T W / w + T. A changed weight counts from the next
//! turn on, and a queue that comes back in time may lag by a turn; both together at most double this. To this comes the
//! turn in service when the queue begins to wait. With `low_latency`, W is up to 3000 times the queue's own weight.
//!
//! **Between classes.** What a higher class gets does not count, because RT goes before BE before IDLE. A lower class
//! gets the rest of the turn in which the queue begins to wait: that turn ends at once if the queue is next, but IDLE
//! may be due instead. Two turns are allowed, and one request of IDLE every 200 ms. IDLE, once it has waited 200 ms,
//! waits for the end of the turn in service; two turns are allowed here as well.
//!
//! **Within a queue.** As in `pressure::bfq`: after the expiry of a request with n before it, (n + 2) T of its queue. A
//! request that arrives, or grows, may be nearer to the head than the one that was chosen because it is the oldest, and
//! then takes its place, as in the kernel. So counts begin anew then.

use super::{Held, Rules, value};
use crate::pressure::turns::Expiry;
use blk::elevator::bfq::{DEFAULT_MAX_BUDGET, IDLE_CLASS_TIMEOUT, MAX_RAISING, MAX_SECTORS_PER_US};
use blk::elevator::{Elevator, Tunable};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
const IDLE: usize = 2;
const IDLE_NS: u64 = IDLE_CLASS_TIMEOUT.as_ns();

/// Class, submitter, and whether a thread waits for its requests.
type QueueKey = (usize, usize, bool);

#[derive(Default)]
pub(super) struct Bfq {
    queues: BTreeMap<QueueKey, QueueBooks>,
    /// The largest budget and the largest request.
    budget: u64,
    largest: u64,
    /// By how much a weight may be raised.
    coefficient: u64,
    /// `fifo_expire_async` and `fifo_expire_sync`.
    expire_ns: [u64; 2],
    /// Since when the IDLE class waits, and what others got after 200 ms of that.
    idle_since: u64,
    idle_passed: u64,
}

struct QueueBooks {
    waiting: u64,
    /// Least and greatest weight so far.
    weights: (u64, u64),
    /// Since it began to wait, or was last served: the time, and the sectors that other queues of its class and lower
    /// classes got.
    since: u64,
    passed: BTreeMap<QueueKey, u64>,
    lower: u64,
    expiry: Expiry,
}

impl QueueBooks {
    fn restart(&mut self, now: u64) {
        self.since = now;
        self.passed.clear();
        self.lower = 0;
    }
}

fn key(r: &Held) -> QueueKey {
    (r.class(), r.seen.client, r.sync)
}

impl Bfq {
    fn turn(&self) -> u64 {
        self.budget + 3 * self.largest
    }

    fn idle_waits(&self) -> bool {
        self.queues.iter().any(|((class, ..), q)| *class == IDLE && q.waiting > 0)
    }

    fn set_largest(&mut self, nr_sectors: u64) {
        if nr_sectors > self.largest {
            self.largest = nr_sectors;
            let turn = self.turn();
            for ((.., sync), q) in &mut self.queues {
                q.expiry.set(self.expire_ns[usize::from(*sync)], turn);
            }
        }
    }

    /// Counts the sectors that queue `by` got for all queues that wait.
    fn pass(&mut self, by: QueueKey, sectors: u64, now: u64) {
        let (turn, largest) = (self.turn(), self.largest);
        let weight = self.queues[&by].weights.1 * self.coefficient;
        for (key, q) in self.queues.iter_mut().filter(|(key, q)| **key != by && q.waiting > 0 && key.0 <= by.0) {
            if key.0 < by.0 {
                q.lower += sectors;
                let (lower, most) = (q.lower, 2 * turn + (1 + (now - q.since) / IDLE_NS) * largest);
                assert!(
                    lower <= most,
                    "bfq: queue {key:?} starves: lower classes got {lower} sectors of at most {most}"
                );
                continue;
            }
            let passed = q.passed.entry(by).or_default();
            *passed += sectors;
            let most = 2 * (2 * turn * weight / q.weights.0 + turn) + turn;
            assert!(
                *passed <= most,
                "bfq: queue {key:?} starves: {} waiting, queue {by:?} got {passed} sectors of at most {most}",
                q.waiting
            );
        }
        if by.0 == IDLE {
            (self.idle_since, self.idle_passed) = (now, 0);
        } else if self.idle_waits() && now - self.idle_since >= IDLE_NS {
            self.idle_passed += sectors;
            let passed = self.idle_passed;
            assert!(passed <= 2 * turn, "bfq: class IDLE starves: others got {passed} sectors of at most {}", 2 * turn);
        }
    }
}

impl Rules for Bfq {
    fn tuned(&mut self, tunables: &[Tunable]) {
        let [budget, timeout] = ["max_budget", "timeout_sync"].map(|name| value(tunables, name));
        let measured = u64::from(DEFAULT_MAX_BUDGET).max(MAX_SECTORS_PER_US * timeout * 1000);
        self.budget = if budget == 0 { measured } else { budget };
        self.coefficient = if value(tunables, "low_latency") == 0 { 1 } else { MAX_RAISING.into() };
        self.expire_ns = ["fifo_expire_async", "fifo_expire_sync"].map(|name| value(tunables, name) * MS);
        let turn = self.turn();
        for ((.., sync), q) in &mut self.queues {
            q.expiry.set(self.expire_ns[usize::from(*sync)], turn);
            q.passed.clear();
            q.lower = 0;
        }
        self.idle_passed = 0;
    }

    fn queued(&mut self, r: &Held) {
        if r.again {
            return;
        }
        self.set_largest(r.seen.nr_sectors.into());
        if r.class() == IDLE && !self.idle_waits() {
            (self.idle_since, self.idle_passed) = (r.seen.at, 0);
        }
        let (after, turn) = (self.expire_ns[usize::from(r.sync)], self.turn());
        let q = self.queues.entry(key(r)).or_insert_with(|| QueueBooks {
            waiting: 0,
            weights: (r.weight, r.weight),
            since: 0,
            passed: BTreeMap::new(),
            lower: 0,
            expiry: Expiry::new("bfq: a request of a queue", after, turn, 2),
        });
        q.weights = (q.weights.0.min(r.weight), q.weights.1.max(r.weight));
        if q.waiting == 0 {
            q.restart(r.seen.at);
        }
        q.waiting += 1;
        q.expiry.excuse();
        q.expiry.queued(&r.seen);
    }

    fn joined(&mut self, r: &Held) {
        let q = self.queues.get_mut(&key(r)).expect("it was queued");
        q.waiting -= 1;
        q.expiry.joined(r.seen.id);
    }

    fn grown(&mut self, largest: u32) {
        self.set_largest(largest.into());
        self.queues.values_mut().for_each(|q| q.expiry.excuse());
        self.idle_passed = 0;
    }

    fn asked(&mut self, now: u64, _hctx: usize, _elevator: &dyn Elevator) {
        self.queues.values_mut().for_each(|q| q.expiry.asked(now));
    }

    fn given(&mut self, r: &Held, now: u64, _elevator: &dyn Elevator) {
        if r.again {
            return;
        }
        let (key, sectors) = (key(r), u64::from(r.seen.nr_sectors));
        let q = self.queues.get_mut(&key).expect("it was queued");
        q.waiting -= 1;
        q.restart(now);
        q.expiry.given(&r.seen, sectors);
        self.pass(key, sectors, now);
    }
}
