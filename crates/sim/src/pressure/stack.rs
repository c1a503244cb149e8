// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients on the whole stack instead of an elevator alone: submitters, tags, limits and a driver. It tests guarantees that
//! are not an elevator's, and the legacy elevators, which live inside the single queue.
//!
//! Guarantees: each client keeps a number of bios in flight until the case has submitted enough; then all complete. A bound
//! is notified of a request when it is submitted and when it reaches the device. Nothing merges if the settings say so.

use super::bound::{Bound, Pressed, SeenRequest};
use crate::harness::{Harness, START_NS};
use crate::rng::Rng;
use blk::bio::{Bio, DataRef, IoPrioClass, Op};
use blk::id::Sector;
use std::collections::BTreeMap;

/// A client that keeps bios in flight. It is the submitter with the same number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) op: Op,
    pub(super) nr_sectors: u32,
    pub(super) depth: u32,
}

/// Sectors of the disk.
const CAPACITY: u64 = 1 << 20;

/// A pressure case on the whole stack.
pub(super) struct Clients<'a> {
    pub(super) harness: Harness,
    rng: &'a mut Rng,
    what: &'static str,
    clients: Vec<Client>,
    /// Requests that were accepted and not yet seen at the disk, by sector.
    queued: BTreeMap<u64, SeenRequest>,
    next_id: u64,
    issues: usize,
}

impl<'a> Clients<'a> {
    /// `what` is the subject under pressure; each message begins with it.
    pub(super) fn new(what: &'static str, harness: Harness, clients: Vec<Client>, rng: &'a mut Rng) -> Clients<'a> {
        Clients { harness, rng, what, clients, queued: BTreeMap::new(), next_id: 0, issues: 0 }
    }

    fn submit(&mut self, s: usize, bound: &mut dyn Bound) {
        let (Client { op, nr_sectors, .. }, class) = (self.clients[s], IoPrioClass::None);
        let sector = loop {
            let sector = (self.rng.below(1 << 16) * 16).min(CAPACITY - u64::from(nr_sectors));
            if !self.queued.contains_key(&sector) {
                break sector;
            }
        };
        let cpu = self.harness.subs[s].cpu().index();
        let r = SeenRequest { id: self.next_id, client: s, cpu, op, class, nr_sectors, at: self.harness.now };
        self.next_id += 1;
        self.queued.insert(sector, r);
        bound.queued(&r);
        let bio = Bio::read(Sector(sector), nr_sectors, DataRef::new(0, s as u64 * 4096));
        self.harness.submit(s, Bio { op, ..bio });
        self.look(bound);
    }

    /// Reports to the bound the requests that have reached the disk since the last call.
    fn look(&mut self, bound: &mut dyn Bound) {
        let issues = self.harness.disk.issues_from(self.issues);
        self.issues += issues.len();
        for i in issues {
            let r = self.queued.remove(&i.sector).expect("a request that was submitted");
            bound.asked(i.now);
            bound.given(&r);
        }
    }

    fn refill(&mut self, left: &mut u64, bound: &mut dyn Bound) {
        for s in 0..self.clients.len() {
            for _ in self.harness.take_done(s) {
                if *left > 0 {
                    *left -= 1;
                    self.submit(s, bound);
                }
            }
        }
    }

    /// Runs until `left` more bios have been submitted after the first ones, and all have completed. Calls `quiet` whenever
    /// no client has a reason to be polled at the present time, with the requests that have not reached the device.
    pub(super) fn run(
        mut self,
        mut left: u64,
        bound: &mut dyn Bound,
        mut quiet: impl FnMut(&Harness, &BTreeMap<u64, SeenRequest>),
    ) -> Pressed {
        for s in 0..self.clients.len() {
            (0..self.clients[s].depth).for_each(|_| self.submit(s, bound));
        }
        while self.harness.step_with(|harness| quiet(harness, &self.queued)) {
            self.look(bound);
            self.refill(&mut left, bound);
        }
        self.look(bound);
        let (what, n) = (self.what, self.queued.len());
        assert!(left == 0 && n == 0, "{what}: {n} requests are stuck\n{}", self.harness.describe());
        self.harness.check_idle();
        let virtual_ns = self.harness.now - START_NS;
        Pressed { requests: self.next_id, virtual_ns, closest: bound.closest(), elevator: "" }
    }
}

/// Describes clients, one line each.
pub(super) fn describe(clients: &[Client]) -> String {
    let line = |(i, c): (usize, &Client)| {
        let Client { op, nr_sectors, depth } = c;
        format!("client {i}  {depth} in flight: {op:?} of {nr_sectors} sectors\n")
    };
    clients.iter().enumerate().map(line).collect()
}
