// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the elevators of the legacy single queue guarantee a request, from their rules (Linux 4.19 block/noop-iosched.c and
//! block/deadline-iosched.c; blk's `elevator/noop.rs` and `elevator/deadline.rs`).
//!
//! The case uses the whole single-queue stack: the queue asks its elevator for a request when it has a tag for it. There
//! are as many tags as the device takes requests, so no request is chosen early, and the order of issue is the order of
//! choice. There are requests for all bios. Otherwise bios that wait for a request would leave in the order of the request
//! lists.
//!
//! **noop**: first come, first served, over all CPUs. No request is overtaken.
//!
//! **deadline** is mq-deadline without classes. Let b be `fifo_batch`, at least 1, and w be `writes_starved`. One batch of
//! writes, b requests, passes waiting reads. The rest of a batch of reads and w more pass waiting writes, (w + 1) b
//! requests. With w = 0 reads have no bound; it is not drawn. Take a request whose expiry has just passed, with n of its
//! direction before it: (n + 1) b of them pass it. A batch continues until it is used up, and each batch that begins after
//! the expiry begins at the oldest request.

use super::bound::{Bound, Pressed, SeenRequest};
use super::stack::{Client, Clients};
use super::turns::{Expiry, Turns, between_directions};
use super::unfair::Unfair;
use crate::describe;
use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::harness::Harness;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::Op;
use blk::cpumap::CpuTopology;
use blk::settings::{Mode, QueueConfig};

const MS: u64 = 1_000_000;

/// In order of submission.
#[derive(Default)]
struct InOrder {
    next: u64,
}

impl Bound for InOrder {
    fn queued(&mut self, _r: &SeenRequest) {}

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        assert_eq!(r.id, self.next, "noop: {r:?} overtook number {}, which starves", self.next);
        self.next += 1;
    }

    /// No request is ever out of order, so the bound is always reached in full.
    fn closest(&self) -> u64 {
        1000
    }
}

/// Reads and writes.
struct Directions {
    turns: Turns,
    expiry: [Expiry; 2],
}

fn direction(r: &SeenRequest) -> usize {
    usize::from(r.op.is_write())
}

impl Bound for Directions {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(direction(r));
        self.expiry[direction(r)].queued(r);
    }

    fn asked(&mut self, now: u64) {
        self.expiry.iter_mut().for_each(|e| e.asked(now));
    }

    fn given(&mut self, r: &SeenRequest) {
        self.turns.given(direction(r), 1, r);
        self.expiry[direction(r)].given(r, 1);
    }

    fn closest(&self) -> u64 {
        self.expiry.iter().map(Expiry::closest).fold(self.turns.closest(), u64::max)
    }
}

pub(super) fn run(name: &str, seed: u64, rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let n = 2 + rng.below(4) as u16;
    let client = |_| Client {
        op: rng.pick(&[Op::Read, Op::Read, Op::Write, Op::Discard]),
        nr_sectors: rng.pick(&[8, 8, 16]),
        depth: rng.pick(&[1, 4, 16, 32]),
    };
    let clients: Vec<Client> = (0..n).map(client).collect();
    let mut config = QueueConfig {
        topology: CpuTopology::uniform(n),
        mode: Mode::Sq,
        queue_depth: rng.pick(&[1, 4, 16]),
        nr_requests: Some(1024),
        scheduler: Some(name.into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    let expire = [rng.pick(&[0, 1, 5, 50]), rng.pick(&[0, 5, 50, 500])];
    let (batch, starved) = (rng.pick(&[0, 1, 2, 16, 64]), rng.pick(&[1, 2, 5]));
    if name == "deadline" {
        let told = if unfair == Some(Unfair::LongBatches) { 2 * batch + 2 } else { batch };
        let tunables = [
            ("read_expire", expire[0]),
            ("write_expire", expire[1]),
            ("fifo_batch", told),
            ("writes_starved", starved),
        ];
        config.iosched = tunables.iter().map(|(name, value)| ((*name).into(), *value)).collect();
    }
    let max_ns = rng.pick(&[10_000, 1_000_000]);
    let service = if rng.below(2) == 0 { Service::Ideal { ns: max_ns } } else { Service::Any { max_ns } };
    let behaviour = Behaviour { service, ..Behaviour::default() };
    let cpus: Vec<u16> = (0..n).collect();
    let all = format_args!("{config:?} {behaviour:?} {clients:?}");
    trace.summed_up(0, 'X', all, || describe::disk(&config, &behaviour, &cpus) + &super::stack::describe(&clients));
    let harness = Harness::new(seed, behaviour, config, &cpus);
    harness.disk.trace_to(trace.clone());
    let left = 300 + rng.below(900);
    if name == "noop" {
        return Clients::new("noop", harness, clients, rng).run(left, &mut InOrder::default(), |_, _| {});
    }
    let b = batch.max(1);
    let late = |what, ms: u64| Expiry::new(what, ms * MS, b, 1);
    let mut bound = Directions {
        turns: Turns::new("deadline: direction", between_directions(b, starved)),
        expiry: [late("deadline: a read", expire[0]), late("deadline: a write", expire[1])],
    };
    Clients::new("deadline", harness, clients, rng).run(left, &mut bound, |_, _| {})
}
