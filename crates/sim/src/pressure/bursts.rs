// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq with `low_latency`: bursts, processes that come later, raised weights, class IDLE. Shares by weight do not hold then, and no queue
//! may starve all the same.
//!
//! **A best-effort queue.** Let w be its weight, B the largest budget, and L its request's length. While it waits, another queue of
//! weight W and requests of length L' gets at most W (B + L) / w + B + L' sectors: B-WF2Q+ serves both in proportion to their weights, to
//! within a budget of each (see `bfq`). A changed weight counts from the next turn on, which doubles the bound. To this comes the turn in
//! service when the queue begins to wait. A queue that bfq may raise as interactive (new, of default weight, not in a large burst) may
//! lag behind virtual time, and gets as many sectors more as it may get while it is raised. Soft real-time queues do not occur here,
//! because no client pauses.
//!
//! **Class IDLE.** It gets a request at the end of the first turn after 200 ms without one; the device may hold others' requests then.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::Turns;
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::limits::Limits;

const MS: u64 = 1_000_000;
const SECTOR_NS: u64 = 2000;
/// Weight of a client that has none of its own.
const DEFAULT_WEIGHT: u64 = 40;
/// Sectors after which an interactive queue is not raised any more (`MAX_INTERACTIVE_SERVICE`).
const RAISED_SECTORS: u64 = 120_000;
/// Clients that begin together and are a large burst.
const LARGE_BURST: usize = 8;
/// Time after which the IDLE class is served.
const IDLE_NS: u64 = 200 * MS;

struct Liveness {
    turns: Turns,
    /// Of each client: the index of its group. Those of class IDLE are one.
    group: Vec<usize>,
}

/// Weight of a client, and the sectors that it may get out of turn because it is raised.
fn weight(clients: &[Client], c: &Client) -> (u64, u64) {
    let together = clients.iter().filter(|c| c.starts_ns == 0).count();
    let in_large_burst = c.starts_ns == 0 && together >= LARGE_BURST;
    match c.weight {
        0 if in_large_burst => (DEFAULT_WEIGHT, 0),
        0 => (DEFAULT_WEIGHT, RAISED_SECTORS),
        own => (own.into(), 0),
    }
}

impl Liveness {
    fn new(clients: &[Client], budget: u64, cap: u64) -> Liveness {
        let turn = |c: &Client| budget + u64::from(c.nr_sectors);
        let longest = clients.iter().map(turn).max().unwrap_or(0);
        let idle = IDLE_NS / SECTOR_NS + (2 + cap) * longest;
        let is_idle = |c: &Client| c.class == IoPrioClass::Idle;
        let others_get = |i: usize| -> u64 {
            let (own, _) = weight(clients, &clients[i]);
            let others = clients.iter().enumerate().filter(|(j, c)| *j != i && !is_idle(c));
            let gets = |c: &Client| {
                let (theirs, raised) = weight(clients, c);
                2 * (theirs * turn(&clients[i]) / own + turn(c)) + raised
            };
            let most = longest + others.map(|(_, c)| gets(c)).sum::<u64>();
            // One request of the IDLE class every 200 ms.
            most + (1 + most / (IDLE_NS / SECTOR_NS)) * longest
        };
        let best_effort: Vec<usize> = (0..clients.len()).filter(|&i| !is_idle(&clients[i])).collect();
        let place = |i: usize| best_effort.iter().position(|&b| b == i).unwrap_or(best_effort.len());
        let most = best_effort.iter().map(|&i| others_get(i)).chain([idle]);
        Liveness { turns: Turns::new("bfq: queue", most), group: (0..clients.len()).map(place).collect() }
    }
}

impl Bound for Liveness {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(self.group[r.client]);
    }

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        self.turns.given(self.group[r.client], r.nr_sectors.into(), r);
    }

    fn closest(&self) -> u64 {
        self.turns.closest()
    }
}

pub(super) fn run(rng: &mut Rng, trace: &Trace) -> Pressed {
    let cap = rng.pick(&[1, 8, 32, 64]);
    let (together, later) = (rng.pick(&[1, 4, 8, 9, 10, 12]), 1 + rng.below(3) as usize);
    let mut client = |starts_ns: u64, classes: &[IoPrioClass], weights: &[u16]| Client {
        cpu: rng.below(4) as u16,
        op: rng.pick(&[Op::Read, Op::Read, Op::Read, Op::Write]),
        class: rng.pick(classes),
        nr_sectors: rng.pick(&[8, 64, 256, 256]),
        depth: rng.pick(&[1, 2, 2, 2, 4]),
        weight: rng.pick(weights),
        sequential: rng.below(3) > 0,
        starts_ns,
    };
    let (be, any) = ([IoPrioClass::Be], [IoPrioClass::Be, IoPrioClass::Be, IoPrioClass::Idle]);
    let mut clients: Vec<Client> = (0..together).map(|_| client(0, &be, &[0, 0, 0, 100])).collect();
    for (ms, classes) in [(1000, &be[..]), (1500, &any[..]), (1520, &any[..])].into_iter().take(later) {
        clients.push(client(ms * MS, classes, &[0, 0, 10, 1000]));
    }
    let budget = rng.pick(&[256, 1024, 4096]);
    let mut bound = Liveness::new(&clients, budget, cap as u64);
    let speed = Speed { cap, request_ns: rng.pick(&[0, 100_000]), sector_ns: SECTOR_NS };
    let limits = Limits { rotational: rng.below(4) == 0, ..Limits::default() };
    let slice_idle = rng.pick(&[0, 8, 8]);
    let mut world = World::new("bfq", clients, speed, limits, rng, trace);
    world.set(&[("low_latency", 1), ("max_budget", budget), ("slice_idle", slice_idle)]);
    world.run(12_000, &mut bound)
}
