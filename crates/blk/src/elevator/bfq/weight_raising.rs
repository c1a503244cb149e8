// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `low_latency`: raises the weight of queues that look interactive for a while.
//!
//! - Interactive: a new queue, or one that comes back after at least [`MIN_IDLE`] without I/O, gets [`COEFFICIENT`] times
//!   its weight. This lasts as long as an application's start takes on this disk, or until [`MAX_INTERACTIVE_SERVICE`] was
//!   served.
//! - Soft real-time: a queue that has just paused, and whose rate since the previous pause never exceeded
//!   [`SOFT_RT_RATE`]. It gets a hundred times the interactive weight for [`SOFT_RT_TIME`], repeatedly as long as it
//!   keeps to that rate. A queue whose last 32 requests were all seeks is excluded: random I/O is slow even if the
//!   queue always wants more.
//!
//! Only synchronous queues of default weight are raised (a weight that a user set is kept). Queues that came in a large
//! burst are not raised: many queues starting together are a job that wants throughput. Guarantees: without `low_latency`
//! the coefficient is 1 from the queue's next turn on. Source: `bfq_update_bfqq_wr_on_rq_arrival`, `bfq_update_wr_data`,
//! `bfq_bfqq_softrt_next_start`.

use crate::time::{Duration, Instant};

/// What the weight of an interactive queue is multiplied by.
pub(crate) const COEFFICIENT: u32 = 30;
/// Further factor for soft real-time queues.
const SOFT_RT_FACTOR: u32 = 100;
/// The most that a weight is multiplied by.
pub const MAX_RAISING: u32 = COEFFICIENT * SOFT_RT_FACTOR;
/// A queue that issues I/O again after this long without any is taken for an application that a user starts.
pub(crate) const MIN_IDLE: Duration = Duration::from_ms(2000);
/// After this long without I/O a queue of a large burst counts as new.
const BURST_FORGOTTEN: Duration = Duration::from_ms(10_000);
/// Sectors after which an interactive start is over: 60 MB.
pub const MAX_INTERACTIVE_SERVICE: u64 = 120_000;
/// Sectors per second that a player of compressed video needs at most.
const SOFT_RT_RATE: u64 = 7000;
/// How long a soft real-time queue is raised at a time.
pub const SOFT_RT_TIME: Duration = Duration::from_ms(300);
/// The pause, in addition to `slice_idle`, by which a soft real-time queue differs from one that always wants more.
const SOFT_RT_PAUSE: Duration = Duration::from_ms(16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Not,
    Interactive,
    SoftRt,
}

/// The raising of one queue.
#[derive(Debug)]
pub(crate) struct WeightRaising {
    kind: Kind,
    since: Instant,
    lasts: Duration,
    /// If the soft real-time period began within an interactive period: when the interactive one had begun.
    interactive_since: Option<Instant>,
    /// Sectors since it was raised as interactive.
    service: u64,
    /// When its present backlog began, and the sectors served since.
    backlogged_since: Instant,
    backlogged_service: u64,
    /// A queue that comes back before this time exceeds the soft real-time rate.
    soft_rt_from: Instant,
    /// `soft_rt_from` is to be computed when the last request at the disk completes.
    soft_rt_due: bool,
    /// The time limit of its last turn, or when it last ran out of requests; `None`: it never had a request.
    left: Option<Instant>,
    pub(crate) in_large_burst: bool,
}

/// A queue that has become backlogged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) now: Instant,
    pub(crate) low_latency: bool,
    /// Synchronous, default weight, not of the IDLE class.
    pub(crate) may_be_raised: bool,
    /// All its last requests were seeks.
    pub(crate) only_seeks: bool,
    /// Requests of it are at the disk.
    pub(crate) has_out: bool,
    /// How long an interactive start takes.
    pub(crate) start_duration: Duration,
}

impl WeightRaising {
    pub(crate) fn new(now: Instant) -> WeightRaising {
        WeightRaising {
            kind: Kind::Not,
            since: now,
            lasts: Duration::ZERO,
            interactive_since: None,
            service: 0,
            backlogged_since: now,
            backlogged_service: 0,
            // It has not asked for anything yet.
            soft_rt_from: now,
            soft_rt_due: false,
            left: None,
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
            Kind::SoftRt => MAX_RAISING,
        }
    }

    /// Begins a turn and returns its time limit. An interactive start should finish soon, so its turn may exceed
    /// `timeout` by the factor of its weight. A soft real-time queue needs little at a time; time in which it is not
    /// served does not count towards its raising.
    pub(crate) fn begin_turn(&mut self, now: Instant, timeout: Duration) -> Instant {
        let factor = if self.kind == Kind::Interactive { COEFFICIENT } else { 1 };
        if self.kind == Kind::SoftRt
            && let Some(left) = self.left
            && self.since < now
            && left < now
        {
            self.since = if left > self.since { self.since + now.since(left) } else { now };
        }
        let ends = now + Duration::from_ns(timeout.as_ns().saturating_mul(factor.into()));
        self.left = Some(ends);
        ends
    }

    /// The queue never had a request.
    pub(crate) fn is_new(&self) -> bool {
        self.left.is_none()
    }

    /// Whether the queue has had no requests for longer than `time`.
    fn was_idle_for(&self, time: Duration, now: Instant) -> bool {
        self.left.is_none_or(|since| since + time < now)
    }

    /// The queue has become backlogged.
    pub(crate) fn arrived(&mut self, a: &Arrival) {
        let rested = !a.has_out && self.was_idle_for(MIN_IDLE, a.now);
        let may = a.low_latency && a.may_be_raised && !self.in_large_burst;
        if !self.is_new() && rested && self.was_idle_for(BURST_FORGOTTEN, a.now) {
            self.in_large_burst = false;
        }
        let soft_rt = may && !a.has_out && !a.only_seeks && a.now > self.soft_rt_from;
        if may && rested {
            if self.kind == Kind::Not {
                self.service = 0;
            }
            (self.kind, self.since, self.lasts) = (Kind::Interactive, a.now, a.start_duration);
        } else if soft_rt {
            if self.kind != Kind::SoftRt {
                self.interactive_since = (self.kind == Kind::Interactive).then_some(self.since);
            }
            (self.kind, self.since, self.lasts) = (Kind::SoftRt, a.now, SOFT_RT_TIME);
        } else if !may {
            self.kind = Kind::Not;
        }
        self.backlogged_since = a.now;
        self.backlogged_service = 0;
        self.soft_rt_due = false;
        self.left = Some(self.left.unwrap_or(a.now));
    }

    fn end(&mut self, now: Instant) {
        if self.kind == Kind::Interactive {
            self.soft_rt_from = now;
        }
        self.kind = Kind::Not;
        self.interactive_since = None;
    }

    /// A soft real-time period is over. If it began in an interactive period that is not over yet, that one continues.
    fn end_soft_rt(&mut self, now: Instant, start_duration: impl FnOnce() -> Duration) {
        if let Some(since) = self.interactive_since {
            let lasts = start_duration();
            if since + lasts >= now {
                (self.kind, self.since, self.lasts) = (Kind::Interactive, since, lasts);
                return;
            }
        }
        self.end(now);
    }

    /// All its last requests were seeks.
    pub(crate) fn only_seeks(&mut self, now: Instant, start_duration: impl FnOnce() -> Duration) {
        if self.kind == Kind::SoftRt {
            self.end_soft_rt(now, start_duration);
        }
    }

    /// `sectors` of the queue go to the disk. Ends the raising if its time or service is used up.
    #[inline]
    pub(crate) fn served(
        &mut self,
        sectors: u32,
        now: Instant,
        low_latency: bool,
        start_duration: impl FnOnce() -> Duration,
    ) {
        self.backlogged_service += u64::from(sectors);
        if self.kind == Kind::Not {
            return;
        }
        self.service += u64::from(sectors);
        if !low_latency || self.in_large_burst {
            return self.end(now);
        }
        if self.since + self.lasts < now {
            match self.kind {
                Kind::SoftRt => self.end_soft_rt(now, start_duration),
                _ => self.end(now),
            }
        }
        if self.kind == Kind::Interactive && self.service > MAX_INTERACTIVE_SERVICE {
            self.end(now);
        }
    }

    /// The queue has run empty. `has_out`: requests of it are still at the disk.
    pub(crate) fn ran_empty(&mut self, now: Instant, has_out: bool, slice_idle: Duration) {
        if has_out {
            self.soft_rt_due = true;
        } else {
            self.left = Some(now);
            self.expect_soft_rt(now, slice_idle);
        }
    }

    /// The queue's last request at the disk completed while none was queued. `gave_up`: the queue's turn is over as
    /// well.
    pub(crate) fn all_done(&mut self, now: Instant, gave_up: bool, slice_idle: Duration) {
        if gave_up {
            self.left = Some(now);
        }
        if self.soft_rt_due && self.kind != Kind::Interactive {
            self.expect_soft_rt(now, slice_idle);
        }
    }

    /// Computes `soft_rt_from`. A queue that keeps to the rate comes back only after a pause, and after the time that
    /// its service takes at that rate. `soft_rt_from` never moves back, so earlier service still counts.
    fn expect_soft_rt(&mut self, now: Instant, slice_idle: Duration) {
        // The service of a queue that never becomes idle has no bound, so the time is capped at what u64 holds in
        // nanoseconds.
        let ns = u128::from(self.backlogged_service) * 1_000_000_000 / u128::from(SOFT_RT_RATE);
        let at_rate = Duration::from_ns(u64::try_from(ns).unwrap_or(u64::MAX));
        let pause = slice_idle + SOFT_RT_PAUSE;
        self.soft_rt_from = self.soft_rt_from.max(self.backlogged_since + at_rate).max(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_ms(4000);
    const SLICE: Duration = Duration::from_ms(8);
    const TIMEOUT: Duration = Duration::from_ms(125);

    fn ms(n: u64) -> Instant {
        Instant::from_ns(n * 1_000_000)
    }

    fn arrival(at: u64) -> Arrival {
        Arrival {
            now: ms(at),
            low_latency: true,
            may_be_raised: true,
            only_seeks: false,
            has_out: false,
            start_duration: START,
        }
    }

    fn arrive(r: &mut WeightRaising, at: u64) {
        r.arrived(&arrival(at));
    }

    fn serve(r: &mut WeightRaising, sectors: u32, at: u64) {
        r.served(sectors, ms(at), true, || START);
    }

    #[test]
    fn a_queue_is_interactive_for_a_while_after_a_pause() {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 10_000);
        assert_eq!(r.coefficient(), 30, "a new one as well");
        serve(&mut r, 1000, 14_000);
        assert!(r.is_raised());
        serve(&mut r, 1000, 14_001);
        assert_eq!(r.coefficient(), 1, "4 s are over");
        r.ran_empty(ms(14_100), false, SLICE);
        arrive(&mut r, 14_105);
        assert!(!r.is_raised(), "back too soon");
        r.ran_empty(ms(15_000), true, SLICE);
        r.all_done(ms(15_010), true, SLICE);
        let mut again = |at, has_out| {
            r.arrived(&Arrival { only_seeks: true, has_out, ..arrival(at) });
            r.is_raised()
        };
        assert!(!again(17_009, false) && !again(17_010, false) && !again(17_011, true) && again(17_011, false));
    }

    #[test]
    fn an_interactive_turn_may_last_longer() {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        assert_eq!(r.begin_turn(ms(5000), TIMEOUT), ms(5000 + 30 * 125));
        serve(&mut r, 8, 9001);
        assert_eq!(r.begin_turn(ms(9001), TIMEOUT), ms(9126));
    }

    #[test]
    fn a_hog_is_soon_known() {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        serve(&mut r, 120_000, 5100);
        assert!(r.is_raised());
        serve(&mut r, 8, 5101);
        assert!(!r.is_raised(), "more than 60 MB");
    }

    /// One whose interactive start is over, since 9550 ms without I/O.
    fn started() -> WeightRaising {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        serve(&mut r, 20_000, 9500);
        assert!(!r.is_raised());
        r.ran_empty(ms(9550), false, SLICE);
        r
    }

    #[test]
    fn a_queue_that_keeps_to_the_rate_is_soft_real_time() {
        let mut r = started();
        // 20000 sectors take 2.857 s at 7000 a second, and it paused for 50 ms. A frame: 700 take 100 ms.
        let frame = |r: &mut WeightRaising, at: u64| {
            serve(r, 700, at + 2);
            r.ran_empty(ms(at + 3), true, SLICE);
            r.all_done(ms(at + 5), true, SLICE);
        };
        arrive(&mut r, 9574);
        assert!(!r.is_raised(), "a pause of 24 ms is too short");
        frame(&mut r, 9574);
        arrive(&mut r, 9674);
        assert!(!r.is_raised(), "too early");
        frame(&mut r, 9674);
        arrive(&mut r, 9775);
        assert_eq!(r.coefficient(), 3000);
        assert_eq!(r.begin_turn(ms(9775), TIMEOUT), ms(9900), "no longer than others");
        serve(&mut r, 700, 10_075);
        assert!(r.is_raised());
        serve(&mut r, 700, 10_076);
        assert!(!r.is_raised(), "300 ms are over");
    }

    #[test]
    fn what_was_asked_for_is_not_forgotten() {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        serve(&mut r, 100_000, 9500);
        r.ran_empty(ms(9550), false, SLICE);
        arrive(&mut r, 10_000);
        serve(&mut r, 7, 10_001);
        r.ran_empty(ms(10_002), false, SLICE);
        arrive(&mut r, 10_100);
        assert!(!r.is_raised(), "100000 sectors take 14 s");
    }

    #[test]
    fn random_io_is_not_soft_real_time() {
        let mut r = started();
        r.arrived(&Arrival { only_seeks: true, ..arrival(9600) });
        assert!(!r.is_raised());
        r.ran_empty(ms(9601), false, SLICE);
        arrive(&mut r, 9700);
        assert!(r.is_raised());
        r.only_seeks(ms(9701), || START);
        assert!(!r.is_raised(), "and the 4 s of the start are over");
    }

    #[test]
    fn an_unserved_queue_is_raised_for_longer() {
        let mut r = started();
        arrive(&mut r, 9600);
        r.begin_turn(ms(9600), TIMEOUT);
        // Its time was over at 9725, and it was not served for 175 ms.
        r.begin_turn(ms(9900), TIMEOUT);
        serve(&mut r, 8, 9600 + 175 + 300);
        assert!(r.is_raised());
        serve(&mut r, 8, 9600 + 175 + 301);
        assert!(!r.is_raised());
    }

    #[test]
    fn an_interactive_period_outlives_a_soft_real_time_one() {
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        serve(&mut r, 7, 5001);
        r.ran_empty(ms(5002), false, SLICE);
        arrive(&mut r, 5100);
        assert_eq!(r.coefficient(), 3000);
        serve(&mut r, 7, 5401);
        assert_eq!(r.coefficient(), 30);
        serve(&mut r, 7, 9000);
        assert_eq!(r.coefficient(), 30);
        serve(&mut r, 7, 9001);
        assert_eq!(r.coefficient(), 1, "5000 + 4000 ms");
    }

    #[test]
    fn bursts_chosen_weights_and_a_cleared_tunable_are_not_raised() {
        let raised = |a: Arrival, in_large_burst| {
            let mut r = WeightRaising::new(ms(0));
            r.in_large_burst = in_large_burst;
            r.arrived(&a);
            r.is_raised()
        };
        assert!(raised(arrival(5000), false));
        assert!(!raised(arrival(5000), true));
        assert!(!raised(Arrival { low_latency: false, ..arrival(5000) }, false));
        assert!(!raised(Arrival { may_be_raised: false, ..arrival(5000) }, false));
        let mut r = WeightRaising::new(ms(0));
        arrive(&mut r, 5000);
        r.served(8, ms(5001), false, || START);
        assert!(!r.is_raised(), "switched off meanwhile");
    }
}
