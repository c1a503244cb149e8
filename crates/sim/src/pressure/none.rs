// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What requests guarantee each other without an elevator, with one hardware queue and a device that takes a limited number
//! of requests. From the dispatch loop: block/blk-mq-sched.c, `blk_mq_do_dispatch_ctx` and `blk_mq_flush_busy_ctxs`.
//!
//! **Within a CPU** requests leave in order of arrival: there is a list per CPU, and while the device is busy every request
//! goes through it.
//!
//! **Between CPUs.** Whenever a request waits in a CPU's list, the device has refused a request since the lists were last
//! empty. So `dispatch_busy` is not 0, and one request is taken from each list in turn. A request that was taken and
//! refused stays ahead of all lists. So between two requests of a CPU that waits, every other CPU gets at most one, and the
//! refused request goes once more: as many as there are CPUs. The guarantees between hardware queues are in `hctxs`.
//!
//! The case uses the whole stack, not an elevator by itself: submitters, tags, a driver that answers DEV_RESOURCE.

use super::bound::{Bound, Pressed, SeenRequest};
use super::stack::{Client, Clients};
use super::turns::Turns;
use crate::describe;
use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::harness::Harness;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::Op;
use blk::cpumap::CpuTopology;
use blk::settings::QueueConfig;

struct Cpus {
    turns: Turns,
    /// The number of the request that was given last, by CPU.
    last: Vec<Option<u64>>,
}

impl Bound for Cpus {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(r.cpu);
    }

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        self.turns.given(r.cpu, 1, r);
        let last = self.last[r.cpu].replace(r.id);
        assert!(last.is_none_or(|l| l < r.id), "none: {r:?} was overtaken by number {last:?} of its CPU");
    }

    fn closest(&self) -> u64 {
        self.turns.closest()
    }
}

pub(super) fn run(seed: u64, rng: &mut Rng, trace: &Trace) -> Pressed {
    let n = 1 + rng.below(4) as u16;
    let depth: Vec<u32> = (0..n).map(|_| rng.pick(&[1, 4, 16])).collect();
    let all: u32 = depth.iter().sum();
    let config = QueueConfig {
        topology: CpuTopology::uniform(n),
        nr_hw_queues: Some(1),
        // There are enough tags for all submitters: if some had to wait, the tags and not the queue would determine their order.
        queue_depth: all,
        scheduler: Some("none".into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    let service = if rng.below(2) == 0 { Service::Ideal { ns: 50_000 } } else { Service::Any { max_ns: 100_000 } };
    let behaviour = Behaviour { device_cap: rng.pick(&[1, 2, 5]), service, ..Behaviour::default() };
    let cpus: Vec<u16> = (0..n).collect();
    let all = format_args!("{n} submitters, depths {depth:?}, {behaviour:?}");
    trace.summed_up(0, 'X', all, || {
        describe::disk(&config, &behaviour, &cpus) + &format!("bios      {depth:?} in flight\n")
    });
    let harness = Harness::new(seed, behaviour, config, &cpus);
    harness.disk.trace_to(trace.clone());
    let most = depth.iter().map(|_| u64::from(n));
    let mut bound = Cpus { turns: Turns::new("none: CPU", most), last: vec![None; usize::from(n)] };
    let left = 300 + rng.below(600);
    let clients = depth.iter().map(|depth| Client { op: Op::Read, nr_sectors: 8, depth: *depth }).collect();
    Clients::new("none", harness, clients, rng).run(left, &mut bound, |_, _| {})
}
