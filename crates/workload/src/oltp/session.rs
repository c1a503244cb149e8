// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session: the blocks that its transactions read and change.
//!
//! Guarantees: the blocks of a session's n-th transaction depend only on the job's seeds and the session's number. So both
//! sides of a comparison do the same work, whichever is faster.

use super::plan::Plan;
use crate::rng::Taus258;

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Between two transactions.
    Idle,
    /// It reads its blocks.
    Reading,
    /// It has read its blocks, and waits for room for its changes.
    Starved,
    /// It waits for its commit.
    Committing,
    /// It runs no more transactions.
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    rng: Taus258,
    pub step: Step,
    /// Blocks still to be read.
    pub reads_left: u32,
    /// Whether the transaction changes blocks.
    pub updates: bool,
    /// The blocks that were read and will be changed.
    pub touched: Vec<u64>,
    pub began_ns: u64,
}

impl Session {
    pub fn new(seed: u64, number: u32, plan: &Plan) -> Session {
        let changes = if plan.oltp.update_pct > 0 { plan.oltp.changes() } else { 0 };
        Session {
            rng: Taus258::new(seed ^ u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            step: Step::Idle,
            reads_left: 0,
            updates: false,
            touched: Vec::with_capacity(changes as usize),
            began_ns: 0,
        }
    }

    /// Begins a transaction.
    pub fn begin(&mut self, plan: &Plan, now_ns: u64) {
        self.step = Step::Reading;
        self.reads_left = plan.oltp.reads_per_tx;
        self.updates = self.percent(plan.oltp.update_pct);
        self.touched.clear();
        self.began_ns = now_ns;
    }

    /// Returns the block to read next, and whether it is in the hot part.
    pub fn next_block(&mut self, plan: &Plan) -> (u64, bool) {
        let hot = self.percent(plan.oltp.hot_pct);
        let block = match hot {
            true => self.below(plan.hot_blocks),
            // Without a hot part, reads are uniform over all blocks.
            false if plan.oltp.hot_pct == 0 => self.below(plan.blocks),
            false => plan.hot_blocks + self.below(plan.blocks - plan.hot_blocks),
        };
        if self.updates && self.touched.len() < plan.oltp.changes() as usize {
            self.touched.push(block);
        }
        (block, hot)
    }

    fn percent(&mut self, pct: u32) -> bool {
        self.below(100) < u64::from(pct)
    }

    /// Returns a uniform number in `0..n`.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(n)) >> 64) as u64
    }
}
