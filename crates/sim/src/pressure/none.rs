// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What requests owe each other without an elevator, from the dispatch loop (block/blk-mq-sched.c, `blk_mq_do_dispatch_ctx`
//! and `blk_mq_flush_busy_ctxs`), with one hardware queue in front of a device that takes only so many.
//!
//! **Within a CPU** requests leave in the order they came: a list per CPU, and while the device is busy everything goes
//! through it.
//!
//! **Between CPUs.** Whenever a request waits in a CPU's list the device has refused one since the lists were last empty, so
//! `dispatch_busy` is not 0 and one request is taken of each list in turn. One that was taken and refused stays ahead of all
//! lists. So between two requests of a CPU that waits every other gets at most one, and one more may be that which was
//! refused: as many as there are CPUs. With several hardware queues there is no bound between them: which of them finds the
//! device free is the device's choice, as in the kernel.
//!
//! This is the whole stack, not an elevator by itself: submitters, tags, a driver that answers DEV_RESOURCE.

use super::turns::Turns;
use super::{Bound, Pressed, Seen};
use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::rig::{Rig, START_NS};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{Bio, DataRef, IoPrioClass, Op};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::QueueConfig;
use std::collections::BTreeMap;

struct Cpus {
    turns: Turns,
    /// Per CPU: the number of the request given last.
    last: Vec<Option<u64>>,
}

impl Bound for Cpus {
    fn queued(&mut self, r: &Seen) {
        self.turns.queued(r.cpu);
    }

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &Seen) {
        self.turns.given(r.cpu, 1, r);
        let last = self.last[r.cpu].replace(r.id);
        assert!(last.is_none_or(|l| l < r.id), "none: {r:?} was overtaken by number {last:?} of its CPU");
    }

    fn closest(&self) -> u64 {
        self.turns.closest()
    }
}

/// The case.
struct Clients<'a> {
    rig: Rig,
    rng: &'a mut Rng,
    bound: Cpus,
    depth: Vec<u32>,
    /// Accepted and not yet seen at the disk, by sector.
    queued: BTreeMap<u64, Seen>,
    next_id: u64,
    issues: usize,
}

impl Clients<'_> {
    fn submit(&mut self, s: usize) {
        let sector = loop {
            let sector = self.rng.below(1 << 16) * 16;
            if !self.queued.contains_key(&sector) {
                break sector;
            }
        };
        let (op, class) = (Op::Read, IoPrioClass::None);
        let r = Seen { id: self.next_id, client: s, cpu: s, op, class, nr_sectors: 8, at: self.rig.now };
        self.next_id += 1;
        self.queued.insert(sector, r);
        self.bound.queued(&r);
        self.rig.submit(s, Bio::read(Sector(sector), 8, DataRef::new(0, s as u64 * 4096)));
        self.look();
    }

    /// What reached the disk since.
    fn look(&mut self) {
        let issues = self.rig.disk.issues_from(self.issues);
        self.issues += issues.len();
        for i in issues {
            let r = self.queued.remove(&i.sector).expect("a request that was submitted");
            self.bound.given(&r);
        }
    }

    fn refill(&mut self, left: &mut u64) {
        for s in 0..self.depth.len() {
            for _ in self.rig.take_done(s) {
                if *left > 0 {
                    *left -= 1;
                    self.submit(s);
                }
            }
        }
    }
}

pub(super) fn run(seed: u64, rng: &mut Rng, trace: &Trace) -> Pressed {
    let n = 1 + rng.below(4) as u16;
    let depth: Vec<u32> = (0..n).map(|_| rng.pick(&[1, 4, 16])).collect();
    let all: u32 = depth.iter().sum();
    let config = QueueConfig {
        topology: CpuTopology::uniform(n),
        nr_hw_queues: Some(1),
        // No submitter waits for a tag: order among those that do is the tags', not the queue's.
        queue_depth: all,
        scheduler: Some("none".into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    let service = if rng.below(2) == 0 { Service::Ideal { ns: 50_000 } } else { Service::Any { max_ns: 100_000 } };
    let behaviour = Behaviour { device_cap: rng.pick(&[1, 2, 5]), service, ..Behaviour::default() };
    trace.event(0, 'X', format_args!("{n} submitters, depths {depth:?}, {behaviour:?}"));
    let cpus: Vec<u16> = (0..n).collect();
    let rig = Rig::new(seed, behaviour, config, &cpus);
    rig.disk.trace_to(trace.clone());
    let most = depth.iter().map(|_| u64::from(n));
    let bound = Cpus { turns: Turns::new("none: CPU", most), last: vec![None; usize::from(n)] };
    let mut left = 300 + rng.below(600);
    let mut c = Clients { rig, rng, bound, depth, queued: BTreeMap::new(), next_id: 0, issues: 0 };
    for s in 0..c.depth.len() {
        (0..c.depth[s]).for_each(|_| c.submit(s));
    }
    while c.rig.step() {
        c.look();
        c.refill(&mut left);
    }
    c.look();
    assert!(left == 0 && c.queued.is_empty(), "none: {} requests are stuck\n{}", c.queued.len(), c.rig.describe());
    c.rig.check_idle();
    let closest = c.bound.closest();
    Pressed { requests: c.next_id, virtual_ns: c.rig.now - START_NS, closest, elevator: "" }
}
