// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a case counts, the limits of its length, and the phases in its trace.

use crate::harness::START_NS;
use crate::trace::Trace;

/// Sectors of a simulated disk.
pub(super) const CAPACITY: u64 = 4096;

/// Maximum number of steps of a case once there are no new faults. A lost request of a high class takes up to a minute to be noticed.
/// Meanwhile mq-deadline makes each hctx with work retry every 3 ms.
pub(super) const MOST_STEPS: usize = 1_000_000;

/// Limit of virtual time for cases in which write-back throttling's timer never stops. Under the slowest limit, the 64 MiB
/// that are in flight at most take 67 s. A lost request times out every 30 s, and one answer in two is to wait again.
pub(super) const MOST_LIVENESS_NS: u64 = 3600 * 1_000_000_000;

/// The counts of a case in which all checks held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed; in a sum, the greatest seed.
    pub seed: u64,
    /// Bios accepted; each completed once.
    pub bios: u64,
    /// Requests that reached the device.
    pub requests: u64,
    /// Bios that failed, as they may with faults.
    pub errors: u64,
    /// Nanoseconds of virtual time in the safety phase.
    pub safety_ns: u64,
    /// Bios in flight at the end of the safety phase.
    pub outstanding: u64,
    /// Nanoseconds of virtual time in the liveness phase: until all bios had completed.
    pub liveness_ns: u64,
    /// Requests that went through an elevator under pressure.
    pub pressed: u64,
    /// Events in the trace.
    pub events: u64,
    /// Hash of the trace; in a sum, of all traces.
    pub hash: u64,
}

impl Report {
    /// A report of zeroes.
    pub(super) fn of(seed: u64) -> Report {
        Report { seed, ..Report::default() }
    }

    /// Adds the counts of another case.
    pub fn add(&mut self, other: &Report) {
        self.seed = self.seed.max(other.seed);
        self.bios += other.bios;
        self.requests += other.requests;
        self.errors += other.errors;
        self.safety_ns += other.safety_ns;
        self.outstanding += other.outstanding;
        self.liveness_ns += other.liveness_ns;
        self.pressed += other.pressed;
        self.events += other.events;
        // A sum does not depend on the order in which cases ran.
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

/// A case in its safety phase or its liveness phase.
pub(super) struct Phases {
    trace: Trace,
    /// When the liveness phase began, and how many bios were in flight then.
    switched: u64,
    outstanding: u64,
}

impl Phases {
    /// The safety phase begins at `now`.
    pub(super) fn begin(trace: &Trace, now: u64) -> Phases {
        trace.event(now, 'S', format_args!("safety phase: work under faults"));
        Phases { trace: trace.clone(), switched: now, outstanding: 0 }
    }

    /// The liveness phase begins.
    pub(super) fn switch(&mut self, now: u64, outstanding: u64) {
        (self.switched, self.outstanding) = (now, outstanding);
        self.trace.event(now, 'S', format_args!("liveness phase: no more faults, {outstanding} bios to end"));
    }

    /// Ends the case at `now`. All bios had completed at `ended`. `counted` has the counts without times and trace.
    pub(super) fn end(self, ended: u64, now: u64, counted: Report) -> Report {
        let Phases { trace, switched, outstanding } = self;
        trace.event(now, 'S', format_args!("all ended, no tag in use, contents right"));
        Report {
            safety_ns: switched - START_NS,
            outstanding,
            liveness_ns: ended - switched,
            events: trace.events(),
            hash: trace.hash(),
            ..counted
        }
    }
}
