// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guarantees of a disk with limits to its submitters, from blk's `qos/limits.rs`, on a device that completes each
//! request at once.
//!
//! **No more than the rate.** In any span of time, at most rate times span is admitted, plus the burst, or one I/O if that is
//! more. This is exact to the nanosecond: an I/O is admitted at the first whole nanosecond at which it may be.
//!
//! **No less than the rate.** While bios wait without a gap, any span admits at least rate times span, less at most one I/O
//! that is not due yet at the end of the span. No part of a rate is lost as long as turns are served when they are due, which
//! they are here, to the nanosecond. Two rates that both hold one submitter back are not drawn, because then neither need be
//! used up.
//!
//! **Round robin.** Without a burst each I/O is admitted at a time of its own, and a submitter that had a turn is queued
//! behind all others. So between two I/Os of one submitter every other under the same rate gets at most one.

use super::bound::{Bound, Pressed, SeenRequest};
use super::stack::{self, Client, Clients};
use super::turns::Turns;
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

const NS_PER_SEC: i128 = 1_000_000_000;
/// A turn may be late by this much while the next one is on time, because times are whole nanoseconds.
const ROUNDING_NS: i128 = 1;

/// One rate, and what it has admitted. Amounts are units (I/Os or bytes) times [`NS_PER_SEC`], so nothing is rounded.
struct Rate {
    name: String,
    bytes: bool,
    /// The operation that the rate applies to; `None` = all.
    of: Option<Op>,
    per_sec: u64,
    burst: u64,
    largest: u64,
    /// Amount admitted so far.
    went: i128,
    waiting: u64,
    /// The largest rest of the rate at any time, and the smallest since bios began to wait without a gap.
    most_left: i128,
    least_left: i128,
    turns: Option<Turns>,
    closest: u64,
}

impl Rate {
    fn counts(&self, op: Op) -> bool {
        self.of.is_none_or(|of| of == op)
    }

    /// Returns how much more the rate could have admitted by `now` than it did.
    fn left(&self, now: u64) -> i128 {
        i128::from(self.per_sec) * i128::from(now) - self.went
    }

    fn queued(&mut self, r: &SeenRequest) {
        if let Some(turns) = &mut self.turns {
            turns.queued(r.client);
        }
        if self.waiting == 0 {
            self.least_left = self.left(r.at);
        }
        self.waiting += 1;
    }

    fn given(&mut self, r: &SeenRequest, now: u64) {
        let (name, per_sec, burst) = (&self.name, self.per_sec, self.burst);
        let before = self.left(now);
        let rounding = ROUNDING_NS * i128::from(per_sec);
        let (unused, may) = (before - self.least_left, i128::from(self.largest) * NS_PER_SEC + rounding);
        assert!(
            unused <= may,
            "limits: {name}={per_sec}: while bios waited, {} less than the rate had gone by {now}, below the limit",
            unused / NS_PER_SEC
        );
        self.closest = self.closest.max((unused * 1000 / may) as u64);
        self.most_left = self.most_left.max(before);
        self.went += if self.bytes { i128::from(r.nr_sectors) << 9 } else { 1 } * NS_PER_SEC;
        let after = self.left(now);
        let (over, may) = (self.most_left - after, i128::from(burst.max(self.largest)) * NS_PER_SEC + rounding);
        assert!(
            over <= may,
            "limits: {name}={per_sec} with a burst of {burst}: {} more than the rate had gone by {now}, above the limit",
            over / NS_PER_SEC
        );
        self.closest = self.closest.max((over * 1000 / may) as u64);
        self.least_left = self.least_left.min(after);
        self.waiting -= 1;
        if let Some(turns) = &mut self.turns {
            turns.given(r.client, 1, r);
        }
    }
}

struct Rates {
    rates: Vec<Rate>,
    now: u64,
}

impl Bound for Rates {
    fn queued(&mut self, r: &SeenRequest) {
        self.rates.iter_mut().filter(|rate| rate.counts(r.op)).for_each(|rate| rate.queued(r));
    }

    fn asked(&mut self, now: u64) {
        self.now = now;
    }

    fn given(&mut self, r: &SeenRequest) {
        self.rates.iter_mut().filter(|rate| rate.counts(r.op)).for_each(|rate| rate.given(r, self.now));
    }

    fn closest(&self) -> u64 {
        self.rates.iter().map(|r| r.closest).max().unwrap_or(0)
    }
}

fn draw_rate(rng: &mut Rng, of: Option<Op>, clients: &[Client]) -> Rate {
    let bytes = rng.below(2) == 0;
    let (rates, bursts): (&[u64], &[u64]) = match bytes {
        true => (&[70_000, 1_000_000, 123_456_789, 1_000_000_000], &[0, 0, 1, 4096, 100_000]),
        false => (&[7, 300, 1000, 3333, 20_000, 1_000_000], &[0, 0, 1, 7, 50]),
    };
    let direction = match of {
        None => "total",
        Some(Op::Read) => "read",
        Some(_) => "write",
    };
    let under = || clients.iter().filter(|c| of.is_none_or(|of| of == c.op));
    let largest = under().map(|c| if bytes { u64::from(c.nr_sectors) << 9 } else { 1 }).max().unwrap_or(1);
    let (per_sec, burst) = (rng.pick(rates), rng.pick(bursts));
    let others = under().count().saturating_sub(1) as u64;
    let turns = (burst <= 1).then(|| Turns::new("limits: submitter", clients.iter().map(|_| others)));
    let name = format!("{}_{direction}", if bytes { "bps" } else { "iops" });
    let (went, waiting, most_left, least_left, closest) = (0, 0, i128::MIN, i128::MAX, 0);
    Rate { name, bytes, of, per_sec, burst, largest, went, waiting, most_left, least_left, turns, closest }
}

/// The rate that the disk is set to. It differs from `rate` only if a bug is planted.
fn told(rate: &Rate, unfair: Option<Unfair>) -> u64 {
    match unfair {
        Some(Unfair::GrantsTooMuch) => rate.per_sec + rate.per_sec.div_ceil(10),
        Some(Unfair::GrantsTooLittle) => rate.per_sec - rate.per_sec.div_ceil(10),
        _ => rate.per_sec,
    }
}

pub(super) fn run(seed: u64, rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let ops: &[Op] = rng.pick(&[&[Op::Read][..], &[Op::Write], &[Op::Read, Op::Write]]);
    let n = 2 + rng.below(4) as u16;
    let client = |i| Client {
        op: ops[i as usize % ops.len()],
        nr_sectors: rng.pick(&[8, 8, 64]),
        depth: rng.pick(&[1, 4, 16, 64]),
    };
    let clients: Vec<Client> = (0..n).map(client).collect();
    let split = ops.len() > 1 || rng.below(2) == 0;
    let of: Vec<Option<Op>> =
        if split && rng.below(3) > 0 { ops.iter().copied().map(Some).collect() } else { vec![None] };
    let rates: Vec<Rate> = of.into_iter().map(|of| draw_rate(rng, of, &clients)).collect();
    let (mode, scheduler) = rng.pick(&[(Mode::Mq, "none"), (Mode::Mq, "mq-deadline"), (Mode::Sq, "noop")]);
    let mut config = QueueConfig {
        topology: CpuTopology::uniform(n),
        mode,
        queue_depth: 1024,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        wbt_lat_usec: Some(0),
        ..QueueConfig::default()
    };
    let mut limits = Vec::new();
    for rate in &rates {
        limits.push((rate.name.clone(), told(rate, unfair).to_string()));
        limits.push((format!("{}_burst", rate.name), rate.burst.to_string()));
    }
    for (name, value) in &limits {
        config.set(name, value).unwrap_or_else(|e| panic!("{name}={value}: {e}"));
    }
    let behaviour = Behaviour { service: Service::Ideal { ns: rng.pick(&[1, 1000, 50_000]) }, ..Behaviour::default() };
    let cpus: Vec<u16> = (0..n).collect();
    let all = format_args!("{config:?} {behaviour:?} {clients:?}");
    trace.summed_up(0, 'X', all, || {
        let limits = format!("limits    {}\n", describe::limits(&limits));
        describe::disk(&config, &behaviour, &cpus) + &limits + &stack::describe(&clients)
    });
    let mut harness = Harness::new(seed, behaviour, config, &cpus);
    harness.patience_ns = u64::MAX;
    harness.disk.trace_to(trace.clone());
    let mut bound = Rates { rates, now: harness.now };
    let left = 300 + rng.below(900);
    Clients::new("limits", harness, clients, rng).run(left, &mut bound, |_, _| {})
}
