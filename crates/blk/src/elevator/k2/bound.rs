// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bound on bulk requests at the disk: the least depth at which the disk delivers nearly the rate of a deep queue.
//!
//! Without latency requests there is no bound. When a latency request comes, the disk's rate with a deep queue is
//! measured, unless it is known. Then the least depth is searched that delivers `throughput_pct` percent of that rate.
//! The depth is halved until it is too low; then depths between the last two are tried. The depth found is held. From
//! time to time, and when the rate at that depth changes because the load has changed, a quarter more is tried. If the
//! rate grows, the depth is raised until it grows no more, and the search starts anew below that depth. If not, a fifth
//! less is tried. Trials that change nothing become rarer, down to one per [`MAX_HOLD`].
//!
//! The only assumption about the disk is that more depth does not make it slower. A capped disk has a sharp knee at rate x
//! latency, an SSD a soft one. A hard disk gains a little by every doubling and keeps its depth.
//!
//! This does not control latency: if the disk needs a deep queue for its rate, latency requests find a deep queue.
//! `max_inflight` sets a fixed bound instead. There is no timer: completions advance the time.
//!
//! Source of the bound itself: K2 (Miemietz et al., RTSS 2019), where it is fixed by hand. Relatives: BBR's operating
//! point (rate x least latency; a disk's least latency, a cache hit, would mislead) and PCC's trials.

use super::window::{Completed, Rate, Recent, Window};
use crate::time::{Duration, Instant};

/// No bound.
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// How long a depth found is kept before other depths are tried: the first time, and at most.
const FIRST_HOLD: Duration = Duration::from_ms(1000);
const MAX_HOLD: Duration = Duration::from_ms(8000);
/// A depth is also kept at least this many times as long as its search took.
const REST: u64 = 8;
/// The search ends when the two depths are this close (high / low).
const CLOSE: f64 = 1.06;
/// The load has changed when its rate differs by this factor in [`CHANGED_WINDOWS`] windows in a row.
const CHANGED: f64 = 1.12;
const CHANGED_WINDOWS: u32 = 3;
/// A deeper queue gains nothing if the rate before was at least this share of the rate now.
const FLAT: f64 = 0.95;
/// So many windows must agree that a depth is enough, or that it is not.
const VOTES: u32 = 2;

/// The targets of the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Share of the deep queue's rate that must be kept, 0..=1.
    pub(super) keep: f64,
    /// After this long without a latency request there is nothing to protect.
    pub(super) guard: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BoundPhase {
    /// No bound: there are no latency requests to protect.
    Lifted,
    /// No bound: the rate of a deep queue is measured.
    Deep,
    /// `limit` is tried. It is between `low`, which is too low (0: none known), and `high`, which is enough.
    Search { low: u32, high: u32 },
    /// `limit` is the depth found. `base` is the rate at it once measured; `odd` counts windows in a row that differ
    /// from `base`.
    Hold { until: Instant, base: Option<Rate>, odd: u32 },
    /// A `limit` above `high` is tried. `high` and `low` are the two depths before it (0: none) with their rates.
    Up { low: Known, high: Known },
    /// A `limit` a little below `high` is tried.
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
    /// Of those, how many found that the depth is too low, and how many that it is enough.
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

    /// Enters a phase with its limit, and restarts the measurement.
    fn go(&mut self, phase: BoundPhase, limit: u32) {
        let turnover = if limit == NO_LIMIT { 64 } else { limit };
        (self.phase, self.limit, self.votes) = (phase, limit, [0; 2]);
        (self.recent, self.window) = (Recent::default(), Window::after(turnover));
    }

    /// Ends the search. If it found about the same depth as the search before, the next one can wait longer.
    fn hold_at(&mut self, depth: u32, now: Instant) {
        let same = self.found.is_some_and(|before| before.abs_diff(depth) <= before / 8);
        let hold = if same { (2 * self.hold.as_ns()).min(MAX_HOLD.as_ns()) } else { FIRST_HOLD.as_ns() };
        (self.hold, self.found) = (Duration::from_ns(hold), Some(depth));
        // On a slow disk a search takes long, and disturbs the load all that time.
        let rest = now.since(self.began).as_ns().saturating_mul(REST);
        let until = now + Duration::from_ns(hold.max(rest));
        self.go(BoundPhase::Hold { until, base: None, odd: 0 }, depth);
    }

    /// Whether the depth on trial delivers the share `goal.keep` of the reference; `None`: not sure yet.
    fn is_enough(&mut self, rate: &Rate, goal: &Goal) -> Option<bool> {
        // If bulk does not fill the depth, the depth does not hold bulk back.
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

    /// Compares the rate at `high` with that at the present limit, which is deeper, and chooses the next step.
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

    /// Tries a still deeper limit, because the last one gave more.
    fn climb(&mut self, low: Known, high: Known) {
        self.go(BoundPhase::Up { low, high }, high.depth.saturating_add(high.depth / 2 + 1).min(NO_LIMIT - 1));
    }

    fn search_below(&mut self, deep: Rate) {
        self.reference = deep.work;
        let high = deep.peak.max(1);
        self.go(BoundPhase::Search { low: 0, high }, (high / 2).max(1));
    }

    /// Tries the next depth, or ends the search.
    fn search(&mut self, low: u32, high: u32, now: Instant) {
        if high <= low + 1 || low > 0 && f64::from(high) <= CLOSE * f64::from(low) {
            return self.hold_at(high, now);
        }
        let next = if low == 0 { high / 2 } else { (f64::from(low) * f64::from(high)).sqrt().round() as u32 };
        self.go(BoundPhase::Search { low, high }, next.clamp(low + 1, high - 1));
    }

    /// Checks a window at the depth that was found.
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
            // These windows mix both loads: the rate at this depth is measured again before another depth is tried.
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
