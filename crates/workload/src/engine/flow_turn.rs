// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job's turns among the jobs of its flow ([`crate::flow`]).

use crate::flow::FlowShare;
use crate::job::Job;
use std::sync::Arc;

/// A job that is ahead and does not sleep asks again after this time.
const RETRY_NS: u64 = 20_000;

/// What has to happen before the next I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Go,
    /// Everything in flight completes first.
    Drain,
    /// The job waits for so many nanoseconds.
    Wait(u64),
}

#[derive(Clone, Debug)]
pub(super) struct FlowTurn {
    share: Arc<FlowShare>,
    sleep_ns: u64,
    /// The next I/O has its turn.
    has_turn: bool,
    /// The job is to sleep when nothing is in flight.
    drains: bool,
}

impl FlowTurn {
    pub fn new(job: &Job, share: Arc<FlowShare>) -> FlowTurn {
        let sleep_ns = job.flow.map_or(0, |flow| flow.sleep_ns);
        FlowTurn { share, sleep_ns, has_turn: false, drains: false }
    }

    /// The I/O was issued.
    pub fn issued(&mut self) {
        self.has_turn = false;
    }

    /// Asks for the turn of the next I/O.
    pub fn ask(&mut self, in_flight: u32) -> Turn {
        if self.has_turn {
            return Turn::Go;
        }
        if !self.drains {
            if self.share.take_turn() {
                self.has_turn = true;
                return Turn::Go;
            }
            if self.sleep_ns == 0 {
                return Turn::Wait(RETRY_NS);
            }
            self.drains = true;
        }
        if in_flight > 0 {
            return Turn::Drain;
        }
        self.drains = false;
        Turn::Wait(self.sleep_ns)
    }
}
