// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What k2 owes a request in any case: the bounds of `pressure::k2`, without knowing the class of a request beforehand.
//!
//! A request's class depends on how deep its submitter was. It shows when the request is dispatched: a bulk request
//! raises the number of bulk requests at the disk. Requests of a class leave in order. So a request may be overtaken by
//! later requests of the other class only, and if requests of both classes have overtaken it, one of them broke the
//! order.
//!
//! Let n requests be before it. Between two dispatches of bulk, at most `latency_batch` latency requests go while bulk
//! is eligible, so at most (n + 1) `latency_batch` overtake a bulk request in such times. Between two latency requests
//! at most one bulk request goes, so at most n + 1 overtake a latency request. Bulk is eligible if there is room below
//! the limit at the disk.

use super::{Held, Rules, value};
use blk::elevator::{Elevator, Tunable};

const LATENCY: usize = 0;
const BULK: usize = 1;

#[derive(Default)]
pub(super) struct K2 {
    /// Waiting requests, oldest first.
    waiting: Vec<WaitingRequest>,
    latency_batch: u64,
    /// Bulk requests at the disk when the elevator was asked, and whether there was room for one more.
    bulk_at_disk: u64,
    eligible: bool,
}

struct WaitingRequest {
    id: u64,
    /// How many were before it.
    before: u64,
    /// Later requests of each class that went first.
    overtaken: [u64; 2],
    /// Later latency requests that went first while bulk was eligible.
    by_latency: u64,
}

impl K2 {
    /// Removes a request that waits. Returns how many are before it.
    fn remove(&mut self, r: &Held) -> usize {
        let at = self.waiting.iter().position(|w| w.id == r.seen.id).expect("it was queued");
        self.waiting.remove(at);
        at
    }
}

/// Bulk requests at the disk, and their limit.
fn bulk(elevator: &dyn Elevator) -> (u64, u64) {
    let files = elevator.debug();
    let number = |name: &str| {
        let file = files.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("k2 has no file {name}"));
        file.text.trim().parse().unwrap_or(u64::MAX)
    };
    (number("bulk_inflight"), number("bulk_limit"))
}

impl Rules for K2 {
    fn tuned(&mut self, tunables: &[Tunable]) {
        self.latency_batch = value(tunables, "latency_batch");
        for w in &mut self.waiting {
            (w.overtaken, w.by_latency) = ([0; 2], 0);
        }
    }

    fn queued(&mut self, r: &Held) {
        if !r.again {
            let before = self.waiting.len() as u64;
            self.waiting.push(WaitingRequest { id: r.seen.id, before, overtaken: [0; 2], by_latency: 0 });
        }
    }

    fn joined(&mut self, r: &Held) {
        self.remove(r);
    }

    fn asked(&mut self, _now: u64, _hctx: usize, elevator: &dyn Elevator) {
        let (at_disk, limit) = bulk(elevator);
        (self.bulk_at_disk, self.eligible) = (at_disk, at_disk < limit);
    }

    fn given(&mut self, r: &Held, _now: u64, elevator: &dyn Elevator) {
        if r.again {
            return;
        }
        let class = if bulk(elevator).0 > self.bulk_at_disk { BULK } else { LATENCY };
        let at = self.remove(r);
        for w in &mut self.waiting[..at] {
            w.overtaken[class] += 1;
            w.by_latency += u64::from(class == LATENCY && self.eligible);
            let (id, before, by, by_bulk) = (w.id, w.before, w.by_latency, w.overtaken[BULK]);
            let most = (before + 1).saturating_mul(self.latency_batch);
            assert!(
                w.overtaken.contains(&0),
                "k2: request {id} starves: later requests of both classes overtook it, last {r:?}"
            );
            assert!(
                by <= most && by_bulk <= before + 1,
                "k2: request {id} starves: {before} were before it, and {by} latency requests of at most {most} or {by_bulk} bulk \
                 requests overtook it"
            );
        }
    }
}
