// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many bulk requests may be at the disk: as few as still get out of it nearly what a deep queue does.
//!
//! Without latency requests there is no bound. When a latency request comes, the rate of the disk with a deep queue is
//! known, or is measured first. Then the least depth is searched that delivers `throughput_pct` of it: halving until that is
//! too little, then between the two. The depth found is held. From time to time, and when the rate at it changes (the load
//! has changed its shape), a quarter more is tried. If that gives more, still more is tried until it does not, and the
//! search begins anew below that. If not, a fifth less is tried. Trials that change nothing get rarer, up to one in
//! [`MAX_HOLD`].
//!
//! The only assumption about the disk is that more depth does not make it slower. A capped disk has a sharp knee at rate x
//! latency, an SSD a soft one. A hard disk gains a little by every doubling and keeps its depth.
//!
//! Not a control of latency: if the disk needs its depth, latency requests find it deep. `max_inflight` is for that.
//! There is no timer, time passes with completions.
//!
//! Source of the bound itself: K2 (Miemietz et al., RTSS 2019), where it is fixed by hand. Relatives: BBR's operating
//! point (rate x least latency; a disk's least latency, a cache hit, would mislead) and PCC's trials.

use super::window::{Completed, Rate, Recent, Window};
use crate::time::{Duration, Instant};

/// No bound.
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// How long a depth found is kept before it is tried again, the first time and at most.
const FIRST_HOLD: Duration = Duration::from_ms(1000);
const MAX_HOLD: Duration = Duration::from_ms(8000);
/// And at least this many times as long as it took to find.
const REST: u64 = 8;
/// The search ends when the two depths are this close (high / low).
const CLOSE: f64 = 1.06;
/// The load has changed when its rate differs by this factor in so many windows in a row.
const CHANGED: f64 = 1.12;
const CHANGED_WINDOWS: u32 = 3;
/// The disk gets no more out of a deeper queue when what it got before is this share of what it gets now.
const FLAT: f64 = 0.95;
/// A depth is enough, or is not, when so many windows say so.
const VOTES: u32 = 2;

/// What the controller goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Share of the deep queue's rate that the disk keeps, 0..=1.
    pub(super) keep: f64,
    /// After this long without a latency request there is nothing to protect.
    pub(super) guard: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BoundPhase {
    /// Nothing to protect.
    Lifted,
    /// A deep queue, to know what it delivers.
    Deep,
    /// `limit` is between a depth that is too little (0: none known) and one that is enough.
    Search { low: u32, high: u32 },
    /// `limit` is what was found. `base` is its rate once measured, `odd` counts windows that differ from it.
    Hold { until: Instant, base: Option<Rate>, odd: u32 },
    /// `limit` is more than `high`; what is known of that and of the depth before (0: nothing).
    Up { low: Known, high: Known },
    /// `limit` is a little less than `high`.
    Down { high: u32 },
}

/// A depth and the work per second it delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    depth: u32,
    work: f64,
}

/// The controller.
#[derive(Debug)]
pub(super) struct Bound {
    limit: u32,
    phase: BoundPhase,
    window: Window,
    /// Work per second of the deepest queue measured in this search.
    reference: f64,
    /// Windows of this phase.
    recent: Recent,
    /// Of those, how many found that the depth is enough, and how many not.
    votes: [u32; 2],
    hold: Duration,
    /// When the present or last search began.
    began: Instant,
    /// The last depth found, for when latency requests come again.
    found: Option<u32>,
    /// The last measurement without a bound.
    deep: Option<(Instant, Rate)>,
    last_latency: Option<Instant>,
}

impl Bound {
    pub(super) fn new() -> Bound {
        Bound {
            limit: NO_LIMIT,
            phase: BoundPhase::Lifted,
            window: Window::after(0),
            reference: 0.0,
            recent: Recent::default(),
            votes: [0; 2],
            hold: FIRST_HOLD,
            began: Instant::ZERO,
            found: None,
            deep: None,
            last_latency: None,
        }
    }

    /// Bulk requests that may be at the disk at once.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// A latency request was queued.
    #[inline]
    pub(super) fn protect(&mut self, now: Instant) {
        self.last_latency = Some(now);
        if self.phase == BoundPhase::Lifted {
            self.begin(now);
        }
    }

    #[cold]
    fn begin(&mut self, now: Instant) {
        self.began = now;
        match (self.found, self.deep) {
            (Some(found), _) => {
                self.hold = FIRST_HOLD;
                self.go(BoundPhase::Hold { until: now + self.hold, base: None, odd: 0 }, found);
            }
            (None, Some((at, rate))) if now.since(at) < FIRST_HOLD => self.search_below(rate),
            _ => self.go(BoundPhase::Deep, NO_LIMIT),
        }
    }

    /// A bulk request goes to the disk, which had none.
    #[inline]
    pub(super) fn resume(&mut self, now: Instant) {
        self.window.resume(now);
    }

    /// What the last search found.
    pub(super) fn found(&self) -> Option<u32> {
        self.found
    }

    /// A latency request completed.
    #[inline]
    pub(super) fn completed_latency(&mut self, nr_sectors: u32) {
        self.window.add_latency(nr_sectors);
    }

    /// A bulk request completed.
    #[inline]
    pub(super) fn completed(&mut self, done: &Completed, goal: &Goal) {
        if let Some(rate) = self.window.add(done, self.limit) {
            self.judge(rate, done.now, goal);
        }
        if self.phase != BoundPhase::Lifted && self.last_latency.is_none_or(|at| done.now.since(at) > goal.guard) {
            self.deep = None;
            self.go(BoundPhase::Lifted, NO_LIMIT);
        }
    }

    /// Another phase with another limit: measuring starts afresh.
    fn go(&mut self, phase: BoundPhase, limit: u32) {
        let turnover = if limit == NO_LIMIT { 64 } else { limit };
        (self.phase, self.limit, self.votes) = (phase, limit, [0; 2]);
        (self.recent, self.window) = (Recent::default(), Window::after(turnover));
    }

    /// The search has ended. If it found what it found before, the next one can wait longer.
    fn hold_at(&mut self, depth: u32, now: Instant) {
        let same = self.found.is_some_and(|before| before.abs_diff(depth) <= before / 8);
        let hold = if same { (2 * self.hold.as_ns()).min(MAX_HOLD.as_ns()) } else { FIRST_HOLD.as_ns() };
        (self.hold, self.found) = (Duration::from_ns(hold), Some(depth));
        // On a slow disk a search takes long, and is a disturbance all that time.
        let rest = now.since(self.began).as_ns().saturating_mul(REST);
        let until = now + Duration::from_ns(hold.max(rest));
        self.go(BoundPhase::Hold { until, base: None, odd: 0 }, depth);
    }

    /// Whether the depth on trial delivers the share `goal.keep` of the reference; `None`: not sure yet.
    fn is_enough(&mut self, rate: &Rate, goal: &Goal) -> Option<bool> {
        // What bulk does not fill cannot be what holds it back.
        let enough = !rate.was_bound || rate.work >= goal.keep * self.reference;
        let votes = &mut self.votes[usize::from(enough)];
        *votes += 1;
        (*votes == VOTES).then_some(enough)
    }

    fn judge(&mut self, rate: Rate, now: Instant, goal: &Goal) {
        self.recent.push(rate);
        match self.phase {
            BoundPhase::Lifted => self.deep = self.recent.median().map(|rate| (now, rate)),
            BoundPhase::Deep => {
                if let Some(deep) = self.recent.median() {
                    self.search_below(deep);
                }
            }
            BoundPhase::Search { low, high } => match self.is_enough(&rate, goal) {
                Some(true) => self.search(low, self.limit, now),
                Some(false) => self.search(self.limit, high, now),
                None => {}
            },
            BoundPhase::Hold { .. } => self.watch(rate, now),
            BoundPhase::Up { low, high } => self.judge_deeper(low, high, now, goal),
            BoundPhase::Down { high } => match self.is_enough(&rate, goal) {
                Some(true) if self.limit < high => self.search(0, self.limit, now),
                Some(_) => self.hold_at(high, now),
                None => {}
            },
        }
    }

    /// Is what `high` delivered enough of what the present limit, which is deeper, delivers?
    fn judge_deeper(&mut self, low: Known, high: Known, now: Instant, goal: &Goal) {
        let Some(rate) = self.recent.median() else { return };
        if high.work < FLAT * rate.work && rate.peak == self.limit {
            return self.climb(high, Known { depth: self.limit, work: rate.work });
        }
        self.reference = high.work.max(rate.work);
        match low.depth {
            0 => self.go(BoundPhase::Down { high: high.depth }, (high.depth * 4 / 5).max(1)),
            _ if low.work < goal.keep * self.reference => self.search(low.depth, high.depth, now),
            _ => self.search(0, high.depth, now),
        }
    }

    /// Deeper, as long as that gives more.
    fn climb(&mut self, low: Known, high: Known) {
        self.go(BoundPhase::Up { low, high }, high.depth.saturating_add(high.depth / 2 + 1).min(NO_LIMIT - 1));
    }

    fn search_below(&mut self, deep: Rate) {
        self.reference = deep.work;
        let high = deep.peak.max(1);
        self.go(BoundPhase::Search { low: 0, high }, (high / 2).max(1));
    }

    /// The next depth to try, or the end.
    fn search(&mut self, low: u32, high: u32, now: Instant) {
        if high <= low + 1 || low > 0 && f64::from(high) <= CLOSE * f64::from(low) {
            return self.hold_at(high, now);
        }
        let next = if low == 0 { high / 2 } else { (f64::from(low) * f64::from(high)).sqrt().round() as u32 };
        self.go(BoundPhase::Search { low, high }, next.clamp(low + 1, high - 1));
    }

    /// A window at the depth that was found.
    fn watch(&mut self, rate: Rate, now: Instant) {
        let BoundPhase::Hold { until, base, odd } = self.phase else { return };
        let Some(median) = self.recent.median() else { return };
        if !median.was_bound {
            return;
        }
        let base = base.unwrap_or(median);
        let changed = differs(base.work, rate.work) || differs(base.requests, rate.requests);
        let odd = if changed { odd + 1 } else { 0 };
        if odd >= CHANGED_WINDOWS {
            // These windows have something of both loads: the depth is measured afresh, then tried.
            self.hold = Duration::from_ns(FIRST_HOLD.as_ns() / 2);
            return self.go(BoundPhase::Hold { until: now, base: None, odd: 0 }, self.limit);
        }
        if now < until {
            self.phase = BoundPhase::Hold { until, base: Some(base), odd };
            return;
        }
        let high = Known { depth: self.limit, work: median.work };
        self.began = now;
        self.go(BoundPhase::Up { low: Known::default(), high }, high.depth + (high.depth / 4).max(1));
    }
}

fn differs(a: f64, b: f64) -> bool {
    a > CHANGED * b || b > CHANGED * a
}
