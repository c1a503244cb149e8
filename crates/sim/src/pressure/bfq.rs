// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bfq owes its submitters, from the algorithm (Valente and Checconi, "High Throughput Disk Scheduling with Fair
//! Bandwidth Distribution", 2010; block/bfq-iosched.c; blk's `elevator/bfq.rs`).
//!
//! **Shares.** Submitters of one class that always have requests waiting get service, in sectors, in proportion to their
//! weights. B-WF2Q+ bounds, at any moment, the difference in service between two of them, each service divided by its
//! submitter's weight. The bound is the largest budget B of each, divided by its weight. A request may not fit into the
//! remaining budget, which adds the request's length L for each: |Wi / wi - Wj / wj| <= (B + Li) / wi + (B + Lj) / wj. That
//! is also the starvation bound between submitters: one with weight wi cannot be passed for longer than this difference
//! lasts.
//!
//! The bound holds for sectors as long as no turn is charged for its time. So sizes and budgets are drawn such that a turn
//! at sequential addresses lasts less than 20 ms. `low_latency` is off, because it breaks shares on purpose.
//!
//! **Within a submitter.** Once in each turn bfq checks the oldest request, and dispatches it next if its expiry has
//! passed. If n requests are before it at that time, at most n + 1 more turns and the rest of the present turn precede it.
//! Each turn is at most one budget, or one request that is larger: (n + 2) max(B, L) sectors.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::Expiry;
use super::unfair::{StarvingElevator, Unfair};
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::limits::Limits;

const MS: u64 = 1_000_000;
/// Requests of a client that wait beyond those at the device, so that the client is always backlogged.
const BACKLOG: u32 = 4;

struct Shares {
    clients: Vec<Client>,
    budget: u64,
    service: Vec<u64>,
    expiry: Vec<Expiry>,
    /// Requests of each client in the elevator. Shares hold while each client has some.
    waiting: Vec<u32>,
    /// A client has run out of requests, which ends the case.
    over: bool,
    closest: u64,
}

impl Shares {
    fn new(clients: &[Client], budget: u64, fifo_expire_ms: u64) -> Shares {
        let expiry = |c: &Client| {
            let turn = budget.max(u64::from(c.nr_sectors));
            Expiry::new("bfq: a request of a submitter", fifo_expire_ms * MS, turn, 2)
        };
        Shares {
            budget,
            service: vec![0; clients.len()],
            expiry: clients.iter().map(expiry).collect(),
            waiting: vec![0; clients.len()],
            clients: clients.to_vec(),
            over: false,
            closest: 0,
        }
    }

    /// Returns the service of a client and the bound on its difference, both divided by the weight.
    fn share(&self, i: usize) -> (f64, f64) {
        let (c, w) = (&self.clients[i], f64::from(self.clients[i].weight));
        (self.service[i] as f64 / w, (self.budget + u64::from(c.nr_sectors)) as f64 / w)
    }
}

impl Bound for Shares {
    fn queued(&mut self, r: &SeenRequest) {
        self.waiting[r.client] += 1;
        self.expiry[r.client].queued(r);
    }

    fn asked(&mut self, now: u64) {
        self.expiry.iter_mut().for_each(|e| e.asked(now));
    }

    fn given(&mut self, r: &SeenRequest) {
        let sectors = u64::from(r.nr_sectors);
        self.expiry[r.client].given(r, sectors);
        self.service[r.client] += sectors;
        self.waiting[r.client] -= 1;
        self.over |= self.waiting[r.client] == 0;
        if self.over {
            return;
        }
        let (mine, slack) = self.share(r.client);
        for other in 0..self.clients.len() {
            let (theirs, their_slack) = self.share(other);
            let (apart, most) = ((mine - theirs).abs(), slack + their_slack);
            assert!(
                apart <= most + 1e-9,
                "bfq: shares of {} and {other} are {apart:.1} sectors per weight apart, at most {most:.1}: {:?} of {:?}",
                r.client,
                self.service,
                self.clients
            );
            self.closest = self.closest.max((apart / most * 1000.0) as u64);
        }
    }

    fn closest(&self) -> u64 {
        self.closest
    }
}

pub(super) fn run(rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let cap = rng.pick(&[1, 2, 8]);
    let n = 2 + rng.below(5);
    let client = |_| Client {
        cpu: rng.below(4) as u16,
        op: rng.pick(&[Op::Read, Op::Read, Op::Write]),
        class: IoPrioClass::Be,
        nr_sectors: rng.pick(&[8, 8, 64, 256]),
        depth: cap as u32 + BACKLOG + rng.pick(&[0, 12]),
        weight: rng.pick(&[1, 10, 100, 100, 333, 1000]),
        sequential: true,
        starts_ns: 0,
    };
    let clients: Vec<Client> = (0..n).map(client).collect();
    let speed = Speed { cap, request_ns: 0, sector_ns: 2000 };
    let budget = rng.pick(&[256, 1024, 4096]);
    let fifo_expire = rng.pick(&[1, 20, 125]);
    let slice_idle = rng.pick(&[0, 8]);
    let requests = 1000 + rng.below(2000);
    let mut bound = Shares::new(&clients, budget, fifo_expire);
    let mut world = World::new("bfq", clients, speed, Limits::default(), rng, trace);
    world.set(&[("low_latency", 0), ("max_budget", budget), ("slice_idle", slice_idle)]);
    world.set(&[("fifo_expire_sync", fifo_expire)]);
    match unfair {
        Some(Unfair::Starves) => world.wrap(|e| Box::new(StarvingElevator::new(e))),
        Some(Unfair::WrongWeights) => world.lie_about_weights(),
        _ => {}
    }
    world.run(requests, &mut bound)
}
