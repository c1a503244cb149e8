// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hardware queues of one disk guarantee each other.
//!
//! **With tags of their own and nothing device-wide in between** (`none`, and a device that accepts every request) they do
//! not affect each other. A hardware queue is served as if it were alone, whatever load the others have. Whenever no
//! submitter has anything left to do at the present time, each hardware queue has all its tags at the device or no request
//! waiting. "All" excludes the tags of one batch of wake-ups: a waiter is woken once an eighth of the tags, up to eight,
//! have been freed since the last wake-up. The kernel does the same (`sbq_calc_wake_batch`). The case checks this.
//!
//! **Other things that they share have no bound between hardware queues**, by design and as in the kernel:
//!
//! - A device that answers DEV_RESOURCE: a completion runs its own hardware queue first, which may take the free place
//!   again. The other queues are run after it.
//! - Host-wide tags: each freed tag wakes one waiter, in turn, but the submitter that completes may take the tag first. The
//!   set cases check that no waiter is forgotten meanwhile.
//! - An elevator of the whole disk (mq-deadline, bfq, k2) decides between requests, not hardware queues, and its bounds hold
//!   over all of them. Kyber's tokens are the disk's as well.

use super::bound::{Bound, Pressed, SeenRequest};
use super::stack::{Client, Clients};
use super::unfair::Unfair;
use crate::describe;
use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::harness::Harness;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::Op;
use blk::cpumap::{CpuTopology, HctxType};
use blk::settings::QueueConfig;
use std::collections::BTreeMap;

/// As in the kernel: `SBQ_WAIT_QUEUES`, `SBQ_WAKE_BATCH`.
const WAIT_QUEUES: usize = 8;
const MOST_WAKE_BATCH: usize = 8;

/// Checks that requests of a CPU are dispatched in their order, although there are several hardware queues.
struct InOrder(Vec<Option<u64>>);

impl Bound for InOrder {
    fn queued(&mut self, _r: &SeenRequest) {}

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        let last = self.0[r.client].replace(r.id);
        assert!(last.is_none_or(|l| l < r.id), "hctxs: {r:?} was overtaken by number {last:?} of its submitter");
    }

    /// Either all tags are used or no request waits, so a bound is always reached in full.
    fn closest(&self) -> u64 {
        1000
    }
}

pub(super) fn run(seed: u64, rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let cpus = rng.pick(&[2u16, 3, 4, 8]);
    let config = QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(2 + rng.below(u64::from(cpus) - 1) as u16),
        queue_depth: rng.pick(&[1, 2, 4, 16]),
        scheduler: Some("none".into()),
        nomerges: 2,
        rq_affinity: rng.below(3) as u8,
        ..QueueConfig::default()
    };
    let client = |_| Client { op: rng.pick(&[Op::Read, Op::Write]), nr_sectors: 8, depth: rng.pick(&[1, 4, 16, 64]) };
    let clients: Vec<Client> = (0..cpus).map(client).collect();
    let max_ns = rng.pick(&[10_000, 1_000_000]);
    let device_cap = if unfair == Some(Unfair::DeviceWideCap) { 2 } else { usize::MAX };
    let behaviour = Behaviour { service: Service::Any { max_ns }, device_cap, ..Behaviour::default() };
    let on: Vec<u16> = (0..cpus).collect();
    let all = format_args!("{config:?} {behaviour:?} {clients:?}");
    trace.summed_up(0, 'X', all, || describe::disk(&config, &behaviour, &on) + &super::stack::describe(&clients));
    let depth = config.queue_depth as usize;
    let least = depth + 1 - (depth / WAIT_QUEUES).clamp(1, MOST_WAKE_BATCH);
    let harness = Harness::new(seed, behaviour, config, &on);
    harness.disk.trace_to(trace.clone());
    let map = harness.q.map();
    let hctx_of = |r: &SeenRequest| usize::from(map.hctx(r.cpu as u16, HctxType::Default));
    let quiet = |harness: &Harness, queued: &BTreeMap<u64, SeenRequest>| {
        let mut at_device = vec![0; usize::from(map.nr_hw_queues())];
        harness.disk.pending().iter().for_each(|i| at_device[i.hctx] += 1);
        for r in queued.values() {
            let n = at_device[hctx_of(r)];
            assert!(
                n >= least,
                "hctxs: {r:?} waits, and its hardware queue uses {n} of {depth} tags\n{}",
                harness.describe()
            );
        }
    };
    let mut bound = InOrder(vec![None; clients.len()]);
    let left = 300 + rng.below(900);
    Clients::new("hctxs", harness, clients, rng).run(left, &mut bound, quiet)
}
