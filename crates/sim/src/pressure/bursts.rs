// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq with `low_latency`: bursts, processes that come later, raised weights, all classes, one or several hardware
//! queues. Shares by weight do not hold then, and no queue may starve all the same.
//!
//! **A best-effort queue.** Let w be its weight, B the largest budget, and L its request's length. While it waits,
//! another queue of weight W and requests of length L' gets at most W (B + L) / w + B + L' sectors: B-WF2Q+ serves both
//! in proportion to their weights, to within a budget of each (see `bfq`). A changed weight counts from the next turn
//! on, which doubles the bound. To this comes the turn in service when the queue begins to wait. A queue that bfq may
//! raise as interactive (new, of default weight, not in a large burst) may lag behind virtual time, and gets as many
//! sectors more as it may get while it is raised. From its second request on, bfq may take it for soft real-time, in
//! the kernel, too: for 300 ms its service has no other limit than the speed of the disk. After that no queue is soft
//! real-time here, because only clients with weights of their own pause. What the other classes get does not count: RT
//! goes first by contract, and IDLE is bounded below.
//!
//! **A real-time queue** has the same bound beside others of its class. Of the lower classes it may find a turn in
//! service when it comes, which ends at once if RT is next. IDLE may be due instead, before and after that turn, and
//! then every 200 ms: two turns, and one request each time.
//!
//! **Class IDLE.** It gets a request at the end of the first turn after 200 ms without one, also before RT; the device
//! may hold others' requests then.
//!
//! The elevator's order is the disk's, so the number of hardware queues changes nothing.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::Turns;
use super::unfair::{StarvingElevator, Unfair};
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::elevator::bfq::{IDLE_CLASS_TIMEOUT, LARGE_BURST, MAX_INTERACTIVE_SERVICE, SOFT_RT_TIME};
use blk::limits::Limits;

const MS: u64 = 1_000_000;
const SECTOR_NS: u64 = 2000;
/// Weight of a client that has none of its own.
const DEFAULT_WEIGHT: u64 = 40;
/// Time after which the IDLE class is served.
const IDLE_NS: u64 = IDLE_CLASS_TIMEOUT.as_ns();

/// A bound for each class: RT, best effort, IDLE.
struct Liveness {
    turns: [Turns; 3],
    /// Of each client: its group in the bound of its class.
    group: Vec<usize>,
    /// The group of all lower classes in the bound of RT.
    lower: usize,
}

/// In the bound of IDLE, whose clients are one group: that group, and all others.
const IDLE_GROUP: usize = 0;
const NOT_IDLE: usize = 1;

/// Weight of a client, and the sectors that it may get out of turn because it is raised.
fn weight(clients: &[Client], c: &Client) -> (u64, u64) {
    let together = clients.iter().filter(|c| c.starts_ns == 0).count();
    let in_large_burst = c.starts_ns == 0 && together >= LARGE_BURST as usize;
    match c.weight {
        0 if in_large_burst => (DEFAULT_WEIGHT, 0),
        0 => {
            let most = MAX_INTERACTIVE_SERVICE.max(SOFT_RT_TIME.as_ns() / SECTOR_NS);
            (DEFAULT_WEIGHT, most + u64::from(c.nr_sectors))
        }
        own => (own.into(), 0),
    }
}

impl Liveness {
    fn new(clients: &[Client], budget: u64, cap: u64) -> Liveness {
        let turn = |c: &Client| budget + u64::from(c.nr_sectors);
        let longest = clients.iter().map(turn).max().unwrap_or(0);
        let others_get = |i: usize| -> u64 {
            let (own, _) = weight(clients, &clients[i]);
            let others = clients.iter().enumerate().filter(|(j, c)| *j != i && c.class == clients[i].class);
            let gets = |c: &Client| {
                let (theirs, raised) = weight(clients, c);
                2 * (theirs * turn(&clients[i]) / own + turn(c)) + raised
            };
            longest + others.map(|(_, c)| gets(c)).sum::<u64>()
        };
        let of_class = |class| move |i: &usize| clients[*i].class == class;
        let members = |class| (0..clients.len()).filter(of_class(class));
        let others = |class| members(class).map(others_get);
        let and_lower = |most: u64| 2 * longest + most + (1 + most / (IDLE_NS / SECTOR_NS)) * longest;
        let rt = others(IoPrioClass::Rt).map(and_lower).chain([u64::MAX]);
        let idle = [IDLE_NS / SECTOR_NS + (2 + cap) * longest, u64::MAX];
        let turns = [
            Turns::new("bfq: RT queue", rt),
            Turns::new("bfq: queue", others(IoPrioClass::Be)),
            Turns::new("bfq: class IDLE, queue", idle),
        ];
        let place = |i: usize| members(clients[i].class).position(|c| c == i).unwrap_or_default();
        Liveness { turns, group: (0..clients.len()).map(place).collect(), lower: members(IoPrioClass::Rt).count() }
    }

    /// The group of a request in each bound that counts it.
    fn groups(&self, r: &SeenRequest) -> [Option<usize>; 3] {
        let own = self.group[r.client];
        match r.class {
            IoPrioClass::Rt => [Some(own), None, Some(NOT_IDLE)],
            IoPrioClass::Idle => [Some(self.lower), None, Some(IDLE_GROUP)],
            _ => [Some(self.lower), Some(own), Some(NOT_IDLE)],
        }
    }
}

impl Bound for Liveness {
    fn queued(&mut self, r: &SeenRequest) {
        for (turns, group) in self.groups(r).into_iter().enumerate().filter_map(|(i, g)| Some((i, g?))) {
            self.turns[turns].queued(group);
        }
    }

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        for (turns, group) in self.groups(r).into_iter().enumerate().filter_map(|(i, g)| Some((i, g?))) {
            self.turns[turns].given(group, r.nr_sectors.into(), r);
        }
    }

    fn closest(&self) -> u64 {
        self.turns.iter().map(Turns::closest).max().unwrap_or(0)
    }
}

/// Real-time clients, which pause between their requests, or else no other class would get anything.
fn draw_rt(rng: &mut Rng) -> Vec<(Client, u64)> {
    let client = |_| {
        let client = Client {
            cpu: rng.below(4) as u16,
            op: rng.pick(&[Op::Read, Op::Write]),
            class: IoPrioClass::Rt,
            nr_sectors: rng.pick(&[8, 64, 256]),
            depth: rng.pick(&[1, 2, 4]),
            weight: rng.pick(&[10, 100, 1000]),
            sequential: rng.below(2) == 0,
            starts_ns: rng.pick(&[0, 0, 700, 1510]) * MS,
        };
        (client, rng.pick(&[500_000, 5 * MS, 50 * MS]))
    };
    (0..3).map(client).collect()
}

pub(super) fn run(seed: u64, rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
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
    let speed = Speed { cap, request_ns: rng.pick(&[0, 100_000]), sector_ns: SECTOR_NS };
    let limits = Limits { rotational: rng.below(4) == 0, ..Limits::default() };
    let slice_idle = rng.pick(&[0, 8, 8]);
    // A separate stream, so that the other cases draw what they drew before there were real-time clients.
    let mut more = Rng::new(seed ^ 0x27c1a55);
    let mut thinks = vec![0; clients.len()];
    if more.below(2) == 0 {
        let rt = draw_rt(&mut more).into_iter().take(1 + more.below(3) as usize);
        let (rt, pauses): (Vec<Client>, Vec<u64>) = rt.unzip();
        clients.extend(rt);
        thinks.extend(pauses);
    }
    let nr_hctxs = more.pick(&[1, 1, 2, 4]);
    let mut bound = Liveness::new(&clients, budget, cap as u64);
    let mut world = World::with_hctxs(nr_hctxs, "bfq", clients, speed, limits, rng, trace);
    world.set(&[("low_latency", 1), ("max_budget", budget), ("slice_idle", slice_idle)]);
    thinks.into_iter().enumerate().filter(|(_, ns)| *ns > 0).for_each(|(client, ns)| world.think(client, ns));
    if unfair == Some(Unfair::Starves) {
        world.wrap(|e| Box::new(StarvingElevator::new(e)));
    }
    world.run(12_000, &mut bound)
}
