// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Observed behaviour of a queue's submitter: seeks, time between its requests, whether I/O limits it.
//!
//! Source: `bfq_update_io_seektime`, `bfq_update_io_thinktime`, `bfq_update_io_intensity`.

use super::tunables::Rules;
use crate::request::Request;
use crate::time::{Duration, Instant};

/// A request farther than this from the end of the one before it is a seek, in sectors.
const SEEK_THRESHOLD: u64 = 8 * 100;
/// Without a head only requests below this many sectors count as seeks.
const SMALL_NONROT: u32 = 2 * 32;
/// A queue is seeky if more than this many of its last 32 requests were seeks.
const SEEKY_ABOVE: u32 = 19;
/// The mean think time counts once the weight of its samples, in units of 1/256, is above this. A new sample weighs
/// 1/8.
const THINK_SAMPLES_VALID: u64 = 80;
/// A queue that was without request for more than 1 / 5 of the time is not bound by I/O.
const IDLE_SHARE: u64 = 5;
/// After this time older observations weigh half.
const INTENSITY_WINDOW: Duration = Duration::from_ms(200);

/// What a queue's source has been seen to do.
#[derive(Debug)]
pub(crate) struct IoPattern {
    /// One bit per request, 1 = seek.
    seeks: u32,
    /// The sector after the last request; `None` before the first.
    last_end: Option<u64>,
    think_samples: u64,
    think_total: u64,
    /// The source's mean think time is at most half the idle slice, as far as is known.
    pub(crate) short_think: bool,
    io_since: Instant,
    idle_ns: u64,
    pub(crate) io_bound: bool,
}

impl IoPattern {
    pub(crate) fn new(now: Instant) -> IoPattern {
        IoPattern {
            // The first request counts as a seek.
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

    /// The source issued a request after `idle` without any; its turn had ended by then.
    pub(crate) fn note_think_time(&mut self, idle: Duration, rules: &Rules) {
        let longest = 2 * rules.slice_idle.as_ns();
        self.think_samples = (7 * self.think_samples + 256) / 8;
        self.think_total = (7 * self.think_total + 256 * idle.as_ns().min(longest)) / 8;
        if self.think_samples > THINK_SAMPLES_VALID {
            let mean = (self.think_total + 128) / self.think_samples;
            self.short_think = mean <= rules.slice_idle.as_ns() / 2;
        }
    }

    /// The source issued a request after `idle` without any.
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
