// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every interleaving of hardware queues that want the same token, explored by loom.

use super::*;
use crate::bio::BioPools;
use crate::elevator::interface::HctxRunner;
use crate::id::CpuId;
use crate::limits::Limits;
use crate::request::RequestSlab;
use crate::time::Instant;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Hardware queues that were told to run, one bit each. Each queue sleeps until its bit is set.
#[derive(Default)]
struct RunRequests {
    hctxs: Mutex<u32>,
    told_changed: Condvar,
}

impl HctxRunner for RunRequests {
    fn run_soon(&self, hctx: HctxId) {
        *self.hctxs.lock().unwrap() |= 1 << hctx.index();
        self.told_changed.notify_all();
    }
}

impl RunRequests {
    fn wait_until_told(&self, hctx: HctxId) {
        let bit = 1 << hctx.index();
        let mut told = self.hctxs.lock().unwrap();
        while *told & bit == 0 {
            told = self.told_changed.wait(told).unwrap();
        }
        *told &= !bit;
    }
}

struct World {
    tokens: Tokens<parking_lot::RawMutex>,
    told: RunRequests,
    rqs: RequestSlab,
    bios: BioPools,
    limits: Limits,
}

impl World {
    /// Runs a hardware queue with one request: it waits for a token, takes it and puts it back.
    fn run(&self, hctx: u32) {
        let hctx = HctxId::new(hctx);
        let mut user = TokenUser::new(0);
        let token = loop {
            match self.tokens.get(hctx, &mut user) {
                Some(token) => break token,
                None => self.told.wait_until_told(hctx),
            }
        };
        let (rqs, bios, limits, core) = (&self.rqs, &self.bios, &self.limits, &self.told);
        let cx = ElvCx { rqs, bios, limits, nomerges: 0, now: Instant::ZERO, cpu: CpuId::new(0), core };
        self.tokens.put(&cx, token);
    }
}

fn explore(max_depth: u32, depth: u64, hctxs: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 10_000;
    builder.check(move || {
        let world = Arc::new(World {
            tokens: Tokens::new(max_depth),
            told: RunRequests::default(),
            rqs: RequestSlab::new(1),
            bios: BioPools::new(1),
            limits: Limits::default(),
        });
        world.tokens.resize(depth);
        let others = (1..hctxs).map(|hctx| {
            let world = world.clone();
            thread::spawn(move || world.run(hctx))
        });
        let others: Vec<_> = others.collect();
        world.run(0);
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(world.tokens.in_use(), 0);
    });
}

/// Catches: a queue that does not try again after it registered as a waiter, or that stays registered once it has a token.
#[test]
fn the_last_token_goes_round() {
    explore(1, 1, 2);
}

/// Catches: a put that wakes no waiter because a whole batch did not come together.
#[test]
fn a_depth_below_the_map_wakes_for_each_token() {
    explore(16, 1, 2);
}
