// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `low_latency`: the weight of queues that look like somebody sitting in front of them is raised for a while.
//!
//! - Interactive: a queue that comes (back) after at least [`MIN_IDLE`] without I/O gets [`COEFFICIENT`] times its weight
//!   for as long as an application's start takes on this disk, or until it has been served [`MAX_INTERACTIVE_SERVICE`].
//! - Soft real-time: a queue that never asked for more than [`SOFT_RT_RATE`] since its last pause, and paused, gets a
//!   hundred times that for [`SOFT_RT_TIME`], again and again as long as it keeps to that rate.
//!
//! Only synchronous queues of default weight are raised (a weight that somebody chose is meant), and none that came in a
//! large burst: many queues starting together are a job that wants throughput. Guarantees: without `low_latency` the
//! coefficient is 1 from the queue's next turn on. Source: `bfq_update_bfqq_wr_on_rq_arrival`, `bfq_update_wr_data`,
//! `bfq_bfqq_softrt_next_start`.

use crate::time::{Duration, Instant};

/// What the weight of an interactive queue is multiplied by.
pub(crate) const COEFFICIENT: u32 = 30;
/// What a soft real-time queue gets more than that.
const SOFT_RT_FACTOR: u32 = 100;
/// A queue without I/O for this long is started by somebody, not by itself.
pub(crate) const MIN_IDLE: Duration = Duration::from_ms(2000);
/// Sectors after which an interactive start is over: 60 MB.
const MAX_INTERACTIVE_SERVICE: u64 = 120_000;
/// Sectors per second that a player of compressed video needs at most.
const SOFT_RT_RATE: u64 = 7000;
/// How long a soft real-time queue is raised at a time.
const SOFT_RT_TIME: Duration = Duration::from_ms(300);
/// The pause by which a soft real-time queue is told from one that never has enough.
const SOFT_RT_PAUSE: Duration = Duration::from_ms(16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Not,
    Interactive,
    SoftRt,
}

/// The raising of one queue.
#[derive(Debug)]
pub(crate) struct Raising {
    kind: Kind,
    since: Instant,
    lasts: Duration,
    /// A soft real-time period began inside an interactive one that ends then.
    interactive_until: Instant,
    /// Sectors since it was raised.
    service: u64,
    /// When its present backlog began, and sectors since.
    backlogged_since: Instant,
    backlogged_service: u64,
    /// Before this it asks for more than soft real-time does.
    soft_rt_from: Instant,
    /// The last request at the disk decides about the next soft real-time start.
    soft_rt_due: bool,
    /// When it last ran empty; `None`: it never had a request.
    idle_since: Option<Instant>,
    pub(crate) in_large_burst: bool,
}

/// A queue that has become backlogged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) now: Instant,
    pub(crate) low_latency: bool,
    /// Synchronous, default weight, not of the IDLE class.
    pub(crate) may_be_raised: bool,
    /// Requests of it are at the disk.
    pub(crate) has_out: bool,
    /// What an interactive start takes.
    pub(crate) start_duration: Duration,
}

impl Raising {
    pub(crate) fn new(now: Instant) -> Raising {
        Raising {
            kind: Kind::Not,
            since: now,
            lasts: Duration::ZERO,
            interactive_until: Instant::ZERO,
            service: 0,
            backlogged_since: now,
            backlogged_service: 0,
            // Unknown until it has been seen to pause.
            soft_rt_from: Instant::MAX,
            soft_rt_due: false,
            idle_since: None,
            in_large_burst: false,
        }
    }

    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.kind != Kind::Not
    }

    /// What the weight is multiplied by.
    #[inline]
    pub(crate) fn coefficient(&self) -> u32 {
        match self.kind {
            Kind::Not => 1,
            Kind::Interactive => COEFFICIENT,
            Kind::SoftRt => COEFFICIENT * SOFT_RT_FACTOR,
        }
    }

    /// It never had a request.
    pub(crate) fn is_new(&self) -> bool {
        self.idle_since.is_none()
    }

    /// Without requests for so long that a new one is somebody's doing.
    pub(crate) fn was_idle_for_long(&self, now: Instant) -> bool {
        self.idle_since.is_none_or(|since| now.since(since) >= MIN_IDLE)
    }

    /// The queue has become backlogged.
    pub(crate) fn arrived(&mut self, a: &Arrival) {
        let rested = !a.has_out && self.was_idle_for_long(a.now);
        let may = a.low_latency && a.may_be_raised && !self.in_large_burst;
        let interactive = may && rested;
        let soft_rt = may && !a.has_out && a.now >= self.soft_rt_from;
        if interactive {
            self.raise(Kind::Interactive, a.now, a.start_duration);
        } else if soft_rt {
            if self.kind == Kind::Interactive {
                self.interactive_until = self.since + self.lasts;
            }
            self.raise(Kind::SoftRt, a.now, SOFT_RT_TIME);
        } else if !may {
            self.end();
        }
        self.backlogged_since = a.now;
        self.backlogged_service = 0;
        self.soft_rt_due = false;
        self.idle_since = Some(a.now);
    }

    fn raise(&mut self, kind: Kind, now: Instant, lasts: Duration) {
        if self.kind == Kind::Not {
            self.service = 0;
        }
        self.kind = kind;
        self.since = now;
        self.lasts = lasts;
    }

    fn end(&mut self) {
        self.kind = Kind::Not;
        self.interactive_until = Instant::ZERO;
    }

    /// `sectors` of it go to the disk; a raising whose time or service is used up ends.
    pub(crate) fn served(&mut self, sectors: u32, now: Instant, low_latency: bool) {
        self.backlogged_service += u64::from(sectors);
        if self.kind == Kind::Not {
            return;
        }
        self.service += u64::from(sectors);
        let over = now > self.since + self.lasts;
        if !low_latency || self.in_large_burst {
            self.end();
        } else if self.kind == Kind::SoftRt && over && now < self.interactive_until {
            self.kind = Kind::Interactive;
            self.lasts = self.interactive_until.since(self.since);
        } else if over || self.kind == Kind::Interactive && self.service > MAX_INTERACTIVE_SERVICE {
            self.end();
        }
    }

    /// The queue has run empty. `has_out`: requests of it are still at the disk.
    pub(crate) fn ran_empty(&mut self, now: Instant, has_out: bool, slice_idle: Duration) {
        self.idle_since = Some(now);
        if has_out { self.soft_rt_due = true } else { self.expect_soft_rt(now, slice_idle) }
    }

    /// The last request at the disk completed while none was queued.
    pub(crate) fn all_done(&mut self, now: Instant, slice_idle: Duration) {
        if core::mem::take(&mut self.soft_rt_due) {
            self.expect_soft_rt(now, slice_idle);
        }
    }

    /// A queue that keeps to the rate does not come back before the time its service would have taken at that rate, and
    /// not without a pause.
    fn expect_soft_rt(&mut self, now: Instant, slice_idle: Duration) {
        let at_rate = Duration::from_ns(self.backlogged_service * 1_000_000_000 / SOFT_RT_RATE);
        let pause = slice_idle + SOFT_RT_PAUSE;
        self.soft_rt_from = (self.backlogged_since + at_rate).max(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_ms(4000);
    const SLICE: Duration = Duration::from_ms(8);

    fn ms(n: u64) -> Instant {
        Instant::from_ns(n * 1_000_000)
    }

    fn arrive(r: &mut Raising, at: u64) {
        let now = ms(at);
        r.arrived(&Arrival { now, low_latency: true, may_be_raised: true, has_out: false, start_duration: START });
    }

    #[test]
    fn who_comes_after_a_pause_is_interactive_for_a_while() {
        let mut r = Raising::new(ms(0));
        arrive(&mut r, 10_000);
        assert_eq!(r.coefficient(), 30, "a new one as well");
        r.served(1000, ms(14_000), true);
        assert!(r.is_raised());
        r.served(1000, ms(14_001), true);
        assert_eq!(r.coefficient(), 1, "4 s are over");
        r.ran_empty(ms(14_100), false, SLICE);
        arrive(&mut r, 14_105);
        assert!(!r.is_raised(), "back too soon");
        r.ran_empty(ms(15_000), false, SLICE);
        arrive(&mut r, 17_000);
        assert!(r.is_raised());
    }

    #[test]
    fn a_hog_is_soon_known() {
        let mut r = Raising::new(ms(0));
        arrive(&mut r, 5000);
        r.served(120_000, ms(5100), true);
        assert!(r.is_raised());
        r.served(8, ms(5101), true);
        assert!(!r.is_raised(), "more than 60 MB");
    }

    #[test]
    fn soft_real_time_is_who_keeps_to_the_rate() {
        let mut r = Raising::new(ms(0));
        arrive(&mut r, 5000);
        r.served(100_000, ms(9500), true);
        assert!(!r.is_raised());
        r.ran_empty(ms(9550), false, SLICE);
        // A frame: 700 sectors take 100 ms at 7000 a second.
        let frame = |r: &mut Raising, at: u64| {
            r.served(700, ms(at + 2), true);
            r.ran_empty(ms(at + 3), true, SLICE);
            r.all_done(ms(at + 5), SLICE);
        };
        arrive(&mut r, 9600);
        assert!(!r.is_raised(), "100000 sectors take 14 s at that rate");
        frame(&mut r, 9600);
        arrive(&mut r, 9699);
        assert!(!r.is_raised(), "1 ms too early");
        frame(&mut r, 9699);
        arrive(&mut r, 9799);
        assert_eq!(r.coefficient(), 3000);
        r.served(700, ms(10_099), true);
        assert!(r.is_raised());
        r.served(700, ms(10_100), true);
        assert!(!r.is_raised(), "300 ms are over");
    }

    #[test]
    fn an_interactive_period_outlives_a_soft_real_time_one() {
        let mut r = Raising::new(ms(0));
        arrive(&mut r, 5000);
        r.served(7, ms(5001), true);
        r.ran_empty(ms(5002), false, SLICE);
        arrive(&mut r, 5100);
        assert_eq!(r.coefficient(), 3000);
        r.served(7, ms(5401), true);
        assert_eq!(r.coefficient(), 30);
        r.served(7, ms(9000), true);
        assert_eq!(r.coefficient(), 30);
        r.served(7, ms(9001), true);
        assert_eq!(r.coefficient(), 1, "5000 + 4000 ms");
    }

    #[test]
    fn bursts_chosen_weights_and_a_cleared_tunable_are_not_raised() {
        let mut r = Raising::new(ms(0));
        r.in_large_burst = true;
        arrive(&mut r, 5000);
        assert!(!r.is_raised());
        let no = |low_latency, may_be_raised| {
            let mut r = Raising::new(ms(0));
            let now = ms(5000);
            r.arrived(&Arrival { now, low_latency, may_be_raised, has_out: false, start_duration: START });
            r.is_raised()
        };
        assert!(!no(false, true) && !no(true, false) && no(true, true));
        let mut r = Raising::new(ms(0));
        arrive(&mut r, 5000);
        r.served(8, ms(5001), false);
        assert!(!r.is_raised(), "switched off meanwhile");
    }
}
