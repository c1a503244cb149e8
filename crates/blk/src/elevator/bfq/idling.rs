// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether to wait for the next request of the queue in service although others have some, and for how long.
//!
//! Waiting keeps a disk's head where it is, and keeps a queue that issues one request at a time from losing its share to
//! queues that are always backlogged. So it is done
//! - for throughput: on a disk with a head that does not queue, or (with a head or without internal queueing) for a
//!   sequential queue that issues without pause; not while anybody's weight is raised;
//! - for the shares: when not all busy queues have the same weight and class, or the queue is raised and others are not,
//!   or it is the only one that is busy;
//! - always under `strict_guarantees`; never for asynchronous queues, the IDLE class, or with `slice_idle` 0.
//!
//! Guarantees: no wait longer than `slice_idle` (2 ms for a seeky queue that needs it for nothing but throughput, at least
//! 20 ms for a raised one). Source: `bfq_better_to_idle`, `bfq_arm_slice_timer`, `bfq_update_has_short_ttime`.

use super::queue::Queue;
use super::tunables::Rules;
use super::wf2q::IDLE;
use crate::request::Request;
use crate::time::{Duration, Instant};

/// A request farther than this from the end of the one before it is a seek, in sectors.
const SEEK_THRESHOLD: u64 = 8 * 100;
/// Without a head only requests below this many sectors count as seeks.
const SMALL_NONROT: u32 = 2 * 32;
/// So many of the last 32 requests must have been seeks.
const SEEKY_ABOVE: u32 = 19;
/// Think times weigh 7/8 old to 1/8 new, in units of 1/256; valid from this many.
const THINK_SAMPLES_VALID: u64 = 80;
/// A queue that was without request for more than 1 / 5 of the time is not bound by I/O.
const IDLE_SHARE: u64 = 5;
/// Then older observations weigh half.
const INTENSITY_WINDOW: Duration = Duration::from_ms(200);
const MIN_SLICE_SEEKY: Duration = Duration::from_ms(2);
const MIN_SLICE_RAISED: Duration = Duration::from_ms(20);
/// Requests of others at the disk from which a raised queue is waited for, so that they do not become more.
const RAISED_OTHERS_OUT: u32 = 4;

/// What a queue's source has been seen to do.
#[derive(Debug)]
pub(crate) struct Habits {
    /// One bit per request, 1 = seek.
    seeks: u32,
    /// Behind the last request; `None` before the first.
    last_end: Option<u64>,
    think_samples: u64,
    think_total: u64,
    /// The source is back within half the idle slice, as far as is known.
    pub(crate) short_think: bool,
    io_since: Instant,
    idle_ns: u64,
    pub(crate) io_bound: bool,
}

/// The disk and the other queues, as far as waiting depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
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

impl Habits {
    pub(crate) fn new(now: Instant) -> Habits {
        Habits {
            // The first one certainly is one.
            seeks: 1,
            last_end: None,
            think_samples: 0,
            think_total: 0,
            short_think: true,
            io_since: now,
            idle_ns: 0,
            io_bound: true,
        }
    }

    /// A request was queued.
    #[inline]
    pub(crate) fn note_request(&mut self, rq: &Request, rules: &Rules) {
        let seek = self.last_end.is_some_and(|last| is_seek(rq, last, rules));
        self.seeks = self.seeks << 1 | u32::from(seek);
        self.last_end = Some(rq.end_sector().0);
    }

    /// All of the last requests were seeks.
    #[inline]
    pub(crate) fn only_seeks(&self) -> bool {
        self.seeks == u32::MAX
    }

    /// Most of the last requests were seeks.
    #[inline]
    pub(crate) fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKY_ABOVE
    }

    /// The source came back with a request after `idle` without any, in which its turn ended.
    pub(crate) fn note_think_time(&mut self, idle: Duration, rules: &Rules) {
        let longest = 2 * rules.slice_idle.as_ns();
        self.think_samples = (7 * self.think_samples + 256) / 8;
        self.think_total = (7 * self.think_total + 256 * idle.as_ns().min(longest)) / 8;
        if self.think_samples > THINK_SAMPLES_VALID {
            let mean = (self.think_total + 128) / self.think_samples;
            self.short_think = mean <= rules.slice_idle.as_ns() / 2;
        }
    }

    /// The source came with a request after `idle` without any.
    pub(crate) fn note_idle(&mut self, idle: Duration, rules: &Rules) {
        self.idle_ns += idle.as_ns();
        let observed = rules.now.since(self.io_since);
        self.io_bound = self.idle_ns * IDLE_SHARE <= observed.as_ns();
        if observed > INTENSITY_WINDOW {
            self.io_since = rules.now - Duration::from_ns(observed.as_ns() / 2);
            self.idle_ns /= 2;
        }
    }
}

/// Whether `rq`, which follows one that ended at `last`, costs a seek.
#[inline]
pub(crate) fn is_seek(rq: &Request, last: u64, rules: &Rules) -> bool {
    rq.sector().0.abs_diff(last) > SEEK_THRESHOLD && (rules.rotational || rq.nr_sectors() < SMALL_NONROT)
}

/// Whether waiting for the next request of `q` is better than going on with another queue.
pub(crate) fn worth_waiting(q: &Queue, class: u8, scene: &Scene, rules: &Rules) -> bool {
    if rules.strict_guarantees {
        return true;
    }
    if rules.slice_idle == Duration::ZERO || !q.sync || class == IDLE {
        return false;
    }
    boosts_throughput(q, scene, rules) || keeps_shares(q, scene)
}

fn boosts_throughput(q: &Queue, scene: &Scene, rules: &Rules) -> bool {
    if scene.nr_raised > 0 {
        return false;
    }
    let streams = !q.habits.is_seeky() && q.habits.io_bound && q.habits.short_think;
    rules.rotational && !scene.device_queues || (rules.rotational || !scene.device_queues) && streams
}

fn keeps_shares(q: &Queue, scene: &Scene) -> bool {
    if scene.nr_busy <= 1 {
        // Nobody is kept waiting, and who comes meanwhile does not find its turn given away.
        return true;
    }
    let raised =
        q.raising.is_raised() && (scene.nr_raised < scene.nr_busy || scene.nr_out >= q.nr_out + RAISED_OTHERS_OUT);
    raised || scene.asymmetric
}

/// How long to wait for `q`.
pub(crate) fn slice(q: &Queue, scene: &Scene, rules: &Rules) -> Duration {
    if q.raising.is_raised() {
        rules.slice_idle.max(MIN_SLICE_RAISED)
    } else if q.habits.is_seeky() && !scene.asymmetric {
        rules.slice_idle.min(MIN_SLICE_SEEKY)
    } else {
        rules.slice_idle
    }
}
