// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients, an elevator and a device of known speed, without the rest of the block layer.
//!
//! Guarantees: the elevator is called as the core calls it: insertions, dispatches of up to a number of requests,
//! completions. It is called again when it requested a run, at the time it named, or after 3 ms. Each client keeps a number
//! of requests in flight. Nothing merges.

use super::bound::{Bound, Pressed, SeenRequest};
use crate::rng::Rng;
use crate::trace::{Trace, time};
use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
use blk::cpumap::{CpuTopology, QueueMap};
use blk::elevator::testbed::TestBed;
use blk::elevator::{Elevator, for_map};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::request::Rq;
use blk::time::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Bios of a client: more than a client has in flight.
const BIOS: u32 = 256;
/// When the core retries an elevator that gave no request and named no time, ns.
const LOOK_AGAIN_NS: u64 = 3_000_000;
const START_NS: u64 = 1_000_000_000;

/// A client that keeps requests in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) cpu: u16,
    pub(super) op: Op,
    pub(super) class: IoPrioClass,
    pub(super) nr_sectors: u32,
    /// Requests in flight.
    pub(super) depth: u32,
    /// Weight for bfq; 0 = none.
    pub(super) weight: u16,
    /// Addresses ascend with gaps, instead of being random.
    pub(super) sequential: bool,
    /// When it begins, from the start of the case, ns.
    pub(super) starts_ns: u64,
}

impl Client {
    /// Draws size, depth and order, without a weight. Elevators distinguish clients by their `op` and `class`.
    pub(super) fn draw(rng: &mut Rng, ops: &[Op], class: impl FnOnce(&mut Rng) -> IoPrioClass) -> Client {
        Client {
            cpu: rng.below(4) as u16,
            op: rng.pick(ops),
            class: class(rng),
            nr_sectors: rng.pick(&[8, 8, 64]),
            depth: rng.pick(&[1, 4, 32, 64]),
            weight: 0,
            sequential: rng.below(2) == 0,
            starts_ns: 0,
        }
    }
}

/// The speed of the device, which serves one request after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Maximum number of requests that it holds.
    pub(super) cap: usize,
    pub(super) request_ns: u64,
    pub(super) sector_ns: u64,
}

impl Speed {
    /// From a fast device that takes one request at a time to a slow one with a queue.
    pub(super) fn draw(rng: &mut Rng) -> Speed {
        let cap = rng.pick(&[1, 4, 32]);
        Speed { cap, request_ns: rng.pick(&[10_000, 300_000, 3_000_000]), sector_ns: 1000 }
    }
}

/// Describes speed and clients, one line each.
fn describe(speed: Speed, clients: &[Client]) -> String {
    let each = [speed.request_ns, speed.sector_ns].map(time);
    let mut text = format!("device    {} requests at a time, each {} and {} per sector\n", speed.cap, each[0], each[1]);
    for (i, c) in clients.iter().enumerate() {
        let Client { cpu, op, class, nr_sectors, depth, weight, sequential, starts_ns } = c;
        let order = if *sequential { "in sequence" } else { "anywhere" };
        text += &format!(
            "client {i}  CPU {cpu}, {depth} in flight: {op:?} of {nr_sectors} sectors {order}, class {class:?}"
        );
        text += &if *weight > 0 { format!(", weight {weight}") } else { String::new() };
        text += &if *starts_ns > 0 { format!(", from {}\n", time(*starts_ns)) } else { "\n".into() };
    }
    text
}

pub(super) struct World<'a> {
    bed: TestBed,
    elevator: Option<Box<dyn Elevator>>,
    clients: Vec<Client>,
    speed: Speed,
    rng: &'a mut Rng,
    trace: &'a Trace,
    now: u64,
    next_id: u64,
    next_sector: Vec<u64>,
    nr_hctxs: u32,
    /// The hardware queue that the elevator is asked for next.
    next_hctx: u32,
    /// How long each client waits between a completion and its next request, ns.
    thinks_ns: Vec<u64>,
    /// Requests in the elevator, by address: no two have the same.
    queued: BTreeMap<u64, SeenRequest>,
    at_disk: VecDeque<(Rq, SeenRequest, u64)>,
}

impl<'a> World<'a> {
    pub(super) fn new(
        name: &str,
        clients: Vec<Client>,
        speed: Speed,
        limits: Limits,
        rng: &'a mut Rng,
        trace: &'a Trace,
    ) -> World<'a> {
        World::with_hctxs(1, name, clients, speed, limits, rng, trace)
    }

    /// As [`World::new`], with several hardware queues, which ask the elevator in turn.
    pub(super) fn with_hctxs(
        nr_hctxs: u32,
        name: &str,
        clients: Vec<Client>,
        speed: Speed,
        limits: Limits,
        rng: &'a mut Rng,
        trace: &'a Trace,
    ) -> World<'a> {
        let requests: u32 = clients.iter().map(|c| c.depth).sum();
        let cpus = (clients.iter().map(|c| c.cpu).max().unwrap_or(0) + 1).max(nr_hctxs as u16);
        let map = QueueMap::new(&CpuTopology::uniform(cpus), nr_hctxs as u16, 0, 0).expect("a CPU for each");
        let elevator = for_map::<crate::Lock>(name, requests as usize, &map, requests);
        let mut bed = TestBed::with_submitters(clients.len() as u32, requests, BIOS, limits).with_nomerges(2);
        for (i, c) in clients.iter().enumerate() {
            bed.set_weight(i as u32, c.weight);
        }
        trace.summed_up(0, 'X', format_args!("{speed:?} {clients:?}"), || describe(speed, &clients));
        if nr_hctxs > 1 {
            trace.event(0, 'X', format_args!("{nr_hctxs} hardware queues"));
        }
        World {
            bed,
            elevator: elevator.expect("a name that exists"),
            next_sector: (0..clients.len() as u64).map(|i| i << 32).collect(),
            nr_hctxs,
            next_hctx: 0,
            thinks_ns: vec![0; clients.len()],
            clients,
            speed,
            rng,
            trace,
            now: START_NS,
            next_id: 0,
            queued: BTreeMap::new(),
            at_disk: VecDeque::new(),
        }
    }

    /// Wraps the elevator in another one (planted).
    pub(super) fn wrap(&mut self, wrap: impl FnOnce(Box<dyn Elevator>) -> Box<dyn Elevator>) {
        self.elevator = self.elevator.take().map(wrap);
    }

    /// Sets tunables and records them in the trace.
    pub(super) fn set(&mut self, tunables: &[(&str, u64)]) {
        for (name, value) in tunables {
            self.trace.event(0, 'X', format_args!("{name}={value}"));
            self.elevator().set_tunable(name, *value).expect("drawn in range");
        }
    }

    /// Makes a client wait so long between a completion and its next request.
    pub(super) fn think(&mut self, client: usize, ns: u64) {
        self.trace.event(0, 'X', format_args!("client {client} waits {} between its requests", time(ns)));
        self.thinks_ns[client] = ns;
    }

    /// Sets weights other than those that the bound uses (planted).
    pub(super) fn lie_about_weights(&mut self) {
        for (i, c) in self.clients.iter().rev().enumerate() {
            self.bed.set_weight(i as u32, c.weight);
        }
    }

    fn elevator(&self) -> &dyn Elevator {
        self.elevator.as_deref().expect("none is no elevator")
    }

    fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    fn draw_sector(&mut self, client: usize) -> u64 {
        let c = self.clients[client];
        if c.sequential {
            let at = self.next_sector[client];
            self.next_sector[client] += u64::from(c.nr_sectors) + 8;
            return at;
        }
        loop {
            let at = (1 << 50) + self.rng.below(1 << 12) * 1024;
            if !self.queued.contains_key(&at) {
                return at;
            }
        }
    }

    fn insert(&mut self, client: usize, bound: &mut dyn Bound) {
        let (c, sector, now) = (self.clients[client], self.draw_sector(client), self.t());
        let mut bio = Bio::read(Sector(sector), c.nr_sectors, DataRef::NONE);
        (bio.op, bio.prio) = (c.op, IoPrio::new(c.class, 4));
        bio.flags = OpFlags::SYNC;
        let r = SeenRequest {
            id: self.next_id,
            client,
            cpu: usize::from(c.cpu),
            op: c.op,
            class: c.class,
            nr_sectors: c.nr_sectors,
            at: self.now,
        };
        self.next_id += 1;
        self.trace.event(self.now, 'I', format_args!("client {client} #{} {:?} {sector}+{}", r.id, c.op, c.nr_sectors));
        let cpu = CpuId::new(u32::from(c.cpu));
        let bio = self.bed.bio_of(client as u32, bio, now);
        let (mut rqs, mut freed) =
            (vec![self.bed.request_on(cpu, HctxId::new(u32::from(c.cpu) % self.nr_hctxs), bio, now)], Vec::new());
        bound.queued(&r);
        self.elevator().insert(&self.bed.cx_on(cpu, now), &mut rqs, false, &mut freed);
        assert!(rqs.is_empty() && freed.is_empty(), "nothing merges here");
        let other = self.queued.insert(sector, r);
        assert!(other.is_none(), "two requests at sector {sector}");
    }

    /// Dispatches to the device until it is full or the elevator gives no more.
    fn dispatch(&mut self, bound: &mut dyn Bound) {
        while self.at_disk.len() < self.speed.cap {
            let room = self.speed.cap - self.at_disk.len();
            let max = 1 + self.rng.below(room as u64) as usize;
            let (now, mut out) = (self.t(), Vec::new());
            bound.asked(self.now);
            self.elevator().dispatch(&self.bed.cx(now), HctxId::new(self.next_hctx), max, &mut out);
            self.next_hctx = (self.next_hctx + 1) % self.nr_hctxs;
            if out.is_empty() {
                return;
            }
            for rq in out {
                let sector = self.bed.get(&rq).sector().0;
                let r = self.queued.remove(&sector).unwrap_or_else(|| panic!("sector {sector} was given twice"));
                self.trace.event(self.now, 'D', format_args!("client {} #{}", r.client, r.id));
                bound.given(&r);
                let began = self.at_disk.back().map_or(self.now, |(_, _, done)| *done);
                let takes = self.speed.request_ns + u64::from(r.nr_sectors) * self.speed.sector_ns;
                self.bed.issue(&rq, now);
                self.at_disk.push_back((rq, r, began + takes));
            }
        }
    }

    /// Runs until so many requests have completed, then until all requests have completed.
    pub(super) fn run(mut self, requests: u64, bound: &mut dyn Bound) -> Pressed {
        // Clients that insert later: when, which, and how many requests.
        let mut later: Vec<(u64, usize, u32)> =
            self.clients.iter().enumerate().map(|(i, c)| (START_NS + c.starts_ns, i, c.depth)).collect();
        let mut completed = 0;
        loop {
            for (_, i, n) in later.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
                (0..n).for_each(|_| self.insert(i, bound));
            }
            self.dispatch(bound);
            // A mark stands for a request that waits for something of the elevator; the elevator was asked just now.
            while self.bed.take_run().is_some() {
                self.dispatch(bound);
            }
            let idle = self.queued.is_empty() && self.at_disk.is_empty();
            if idle && !later.iter().any(|(_, i, _)| self.thinks_ns[*i] > 0) {
                break;
            }
            let held = (self.at_disk.len() < self.speed.cap && !self.queued.is_empty()).then(|| {
                let again = self.elevator().next_run().map(Instant::as_ns);
                again.unwrap_or(self.now + LOOK_AGAIN_NS).max(self.now + 1)
            });
            let done = self.at_disk.front().map(|(_, _, done)| *done);
            let starts = later.iter().map(|(at, ..)| *at).min();
            self.now = held.into_iter().chain(done).chain(starts).min().expect("something is queued or at the device");
            assert!(self.now < START_NS << 20, "the elevator gives nothing any more, {} queued", self.queued.len());
            while self.at_disk.front().is_some_and(|(_, _, done)| *done <= self.now) {
                let (rq, r, _) = self.at_disk.pop_front().expect("looked at");
                self.trace.event(self.now, 'C', format_args!("client {} #{}", r.client, r.id));
                let cpu = CpuId::new(r.cpu as u32);
                self.elevator().completed(&self.bed.cx_on(cpu, self.t()), &rq);
                bound.completed(&r);
                self.bed.free(rq);
                completed += 1;
                if completed + self.at_disk.len() as u64 <= requests {
                    match self.thinks_ns[r.client] {
                        0 => self.insert(r.client, bound),
                        ns => later.push((self.now + ns, r.client, 1)),
                    }
                }
            }
        }
        assert_eq!(completed, self.next_id, "requests were lost");
        Pressed { requests: completed, virtual_ns: self.now - START_NS, closest: bound.closest(), elevator: "" }
    }
}
