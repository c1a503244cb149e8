// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether to wait for the next request of the queue in service although others have some, and for how long.
//!
//! Waiting keeps a disk's head where it is. It also keeps the share of a queue that issues one request at a time beside
//! queues that are always backlogged. So the disk waits
//! - for throughput: on a disk with a head and without internal queueing. If only one of the two holds: only for a
//!   sequential queue that issues without pause. Not while any weight is raised;
//! - for the shares: when not all busy queues have the same weight and class; when the queue is raised and others are not;
//!   or when it is the only busy queue;
//! - always under `strict_guarantees`; never for asynchronous queues, the IDLE class, or with `slice_idle` 0.
//!
//! Guarantees: no wait is longer than `slice_idle`, except that a raised queue is waited for at least 20 ms. A seeky
//! queue that is not raised is waited for at most 2 ms, unless weights or classes differ. Source: `bfq_better_to_idle`,
//! `bfq_arm_slice_timer`, `bfq_update_has_short_ttime`.

use super::queue::Queue;
use super::tunables::Rules;
use super::wf2q::IDLE;
use crate::time::Duration;

const MIN_SLICE_SEEKY: Duration = Duration::from_ms(2);
const MIN_SLICE_RAISED: Duration = Duration::from_ms(20);
/// If other queues have this many requests at the disk, the disk waits for a raised queue, so that they do not get
/// more.
const RAISED_OTHERS_OUT: u32 = 4;

/// The disk and the other queues, as far as waiting depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdlingContext {
    /// The disk works on several requests at once.
    pub(crate) device_queues: bool,
    /// Queues with requests, or in service.
    pub(crate) nr_busy: u32,
    /// Of these, raised.
    pub(crate) nr_raised: u32,
    /// Weights or classes differ.
    pub(crate) asymmetric: bool,
    /// Requests at the disk.
    pub(crate) nr_out: u32,
}

/// Whether waiting for the next request of `q` is better than continuing with another queue.
pub(crate) fn worth_waiting(q: &Queue, class: u8, context: &IdlingContext, rules: &Rules) -> bool {
    if rules.strict_guarantees {
        return true;
    }
    if rules.slice_idle == Duration::ZERO || !q.sync || class == IDLE {
        return false;
    }
    boosts_throughput(q, context, rules) || keeps_shares(q, context)
}

fn boosts_throughput(q: &Queue, context: &IdlingContext, rules: &Rules) -> bool {
    if context.nr_raised > 0 {
        return false;
    }
    let streams = !q.io_pattern.is_seeky() && q.io_pattern.io_bound && q.io_pattern.short_think;
    rules.rotational && !context.device_queues || (rules.rotational || !context.device_queues) && streams
}

fn keeps_shares(q: &Queue, context: &IdlingContext) -> bool {
    if context.nr_busy <= 1 {
        // No other queue waits, and one that becomes busy meanwhile can still preempt.
        return true;
    }
    let raised = q.raising.is_raised()
        && (context.nr_raised < context.nr_busy || context.nr_out >= q.nr_out + RAISED_OTHERS_OUT);
    raised || context.asymmetric
}

/// How long to wait for `q`.
pub(crate) fn slice(q: &Queue, context: &IdlingContext, rules: &Rules) -> Duration {
    if q.raising.is_raised() {
        rules.slice_idle.max(MIN_SLICE_RAISED)
    } else if q.io_pattern.is_seeky() && !context.asymmetric {
        rules.slice_idle.min(MIN_SLICE_SEEKY)
    } else {
        rules.slice_idle
    }
}
