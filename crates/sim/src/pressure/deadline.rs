// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What mq-deadline guarantees a request, from its rules (block/mq-deadline.c; blk's `elevator/mq_deadline.rs`).
//!
//! Let b be `fifo_batch`, at least 1, and w be `writes_starved`.
//!
//! **Between directions.** A batch is at most b requests of one direction. At most one batch of writes, b requests, passes
//! waiting reads: when it ends `starved` is 0 and, with w of at least 1, a batch of reads follows. The rest of the present
//! batch of reads passes waiting writes, and w more batches before `starved` reaches w: (w + 1) b requests. With w = 0
//! reads have no bound: writes go first as long as there are any, as documented. That is not drawn.
//!
//! **Within a direction.** Take a request whose expiry has just passed, with n requests of its direction before it in the
//! FIFO. The rest of the present batch passes it (at most b - 1, but the whole b is allowed). One batch for each of the n
//! passes it, too. Every batch that begins from now on begins at the head of the FIFO, because the head has expired as
//! well. So at most (n + 1) b requests of its direction go before it.
//!
//! **A lower class.** This case has `fifo_batch` 1 and reads only. Take a request of a lower class that has waited for both
//! `prio_aging_expire` and its expiry, with n requests of its class before it. Each choice begins at the FIFO's head and
//! takes the head if it is that old. At most one choice may be spent on a probe that failed before and began a batch. So at
//! most n + 2 requests of any class go before it, as long as the higher class has requests queued. (The case keeps it so.
//! Otherwise the lower class waits, without anything going first, until the higher class is done.) With more than one
//! direction or a longer batch there is no bound: a young request ahead of the head makes the probe fail, in the kernel,
//! too. IDLE beside BE has no bound either, because BE ages first.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::{Expiry, Turns, between_directions};
use super::unfair::{StarvingElevator, Unfair};
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::limits::Limits;

const MS: u64 = 1_000_000;

/// Both directions, one class.
struct Directions {
    turns: Turns,
    expiry: [Expiry; 2],
}

fn direction(op: Op) -> usize {
    usize::from(op.is_write())
}

impl Bound for Directions {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(direction(r.op));
        self.expiry[direction(r.op)].queued(r);
    }

    fn asked(&mut self, now: u64) {
        self.expiry.iter_mut().for_each(|e| e.asked(now));
    }

    fn given(&mut self, r: &SeenRequest) {
        self.turns.given(direction(r.op), 1, r);
        self.expiry[direction(r.op)].given(r, 1);
    }

    fn closest(&self) -> u64 {
        self.expiry.iter().map(Expiry::closest).fold(self.turns.closest(), u64::max)
    }
}

/// Two classes, reads only, no batches.
struct Ageing {
    lower: Expiry,
}

impl Bound for Ageing {
    fn queued(&mut self, r: &SeenRequest) {
        if r.class != IoPrioClass::Rt {
            self.lower.queued(r);
        }
    }

    fn asked(&mut self, now: u64) {
        self.lower.asked(now);
    }

    fn given(&mut self, r: &SeenRequest) {
        if r.class == IoPrioClass::Rt { self.lower.given_to_others(1) } else { self.lower.given(r, 1) }
    }

    fn closest(&self) -> u64 {
        self.lower.closest()
    }
}

fn draw_clients(rng: &mut Rng, op: &[Op], class: IoPrioClass) -> Vec<Client> {
    let n = 1 + rng.below(4);
    let client = |_| Client {
        cpu: rng.below(4) as u16,
        op: rng.pick(op),
        class,
        nr_sectors: rng.pick(&[8, 8, 64, 256]),
        depth: rng.pick(&[1, 4, 32]),
        weight: 0,
        sequential: rng.below(2) == 0,
        starts_ns: 0,
    };
    (0..n).map(client).collect()
}

fn draw_speed(rng: &mut Rng) -> Speed {
    Speed { cap: rng.pick(&[1, 4, 16]), request_ns: rng.pick(&[10_000, 100_000, 5_000_000]), sector_ns: 1000 }
}

pub(super) fn run(rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let mut speed = draw_speed(rng);
    let expire = [rng.pick(&[0, 1, 5, 50, 500]), rng.pick(&[0, 5, 50, 5000])];
    let both = rng.below(3) > 0;
    let (batch, starved) = (rng.pick(&[0, 1, 2, 16, 64]), rng.pick(&[1, 2, 5]));
    let ageing = rng.pick(&[1, 5, 20]);
    let mut clients = draw_clients(rng, &[Op::Read, Op::Write, Op::Discard], IoPrioClass::Be);
    if both {
        clients.extend(draw_clients(rng, &[Op::Write], IoPrioClass::Be));
    } else {
        let lower = rng.pick(&[IoPrioClass::Be, IoPrioClass::Idle]);
        clients = draw_clients(rng, &[Op::Read], lower);
        // So many that some are always queued beside those at the device.
        let higher = Client { class: IoPrioClass::Rt, depth: 32, ..clients[0] };
        clients.push(higher);
        speed.cap = speed.cap.min(8);
    }
    let requests = 300 + rng.below(900);
    let mut world = World::new("mq-deadline", clients, speed, Limits::default(), rng, trace);
    let batch = if both { batch } else { 1 };
    world.set(&[("read_expire", expire[0]), ("write_expire", expire[1]), ("fifo_batch", batch)]);
    world.set(&[("writes_starved", starved), ("prio_aging_expire", ageing)]);
    if unfair == Some(Unfair::Starves) {
        world.wrap(|e| Box::new(StarvingElevator::new(e)));
    }
    let b = batch.max(1);
    if both {
        let turns = Turns::new("mq-deadline: direction", between_directions(b, starved));
        let late = |what, ms: u64| Expiry::new(what, ms * MS, b, 1);
        let expiry = [late("mq-deadline: a read", expire[0]), late("mq-deadline: a write", expire[1])];
        world.run(requests, &mut Directions { turns, expiry })
    } else {
        let after = ageing.max(expire[0]) * MS;
        world.run(requests, &mut Ageing { lower: Expiry::new("mq-deadline: a lower class", after, 1, 2) })
    }
}
