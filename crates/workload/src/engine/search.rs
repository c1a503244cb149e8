// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks for the largest depth at which I/Os are fast enough: `latency_target`, `latency_window`, `latency_percentile`,
//! `latency_run`.
//!
//! As in fio, the job begins at depth one and doubles it after each good window. After a bad one it halves the distance to
//! the last good depth, and waits until nothing is in flight. When the depth stays the same over a good window, everything
//! measured so far is discarded, and a last window is measured. With a percentile of 100, one slow I/O makes a window bad at
//! once; at depth one it ends the job.
//!
//! Differs from fio: I/Os that were in flight when the depth was lowered do not lower it again.

use crate::job::LatencyGoal;

/// Good windows in a row after which a depth that stays the same may grow beyond the last bad one.
const STABLE_WINDOWS: u32 = 3;

/// What has to happen before the next I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    /// Everything in flight completes first.
    Drain,
    /// Nothing is in flight any more; a window begins.
    Drained,
    /// The same, and the measurements so far are discarded.
    MeasureAnew,
    /// The measured window is over.
    Done,
}

/// What a window says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The next window begins.
    Window,
    /// The next window begins when nothing is in flight.
    Lowered,
    /// As `Lowered`, and it is the one that is measured.
    Last,
    /// The measured window is over.
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct DepthSearch {
    goal: LatencyGoal,
    /// `iodepth`.
    most: u32,
    /// Depth in use, the largest good one, and the smallest bad one (`most` if there was none).
    depth: u32,
    low: u32,
    high: u32,
    stable: u32,
    /// Start of the window, and I/Os completed then; `None`: a window begins with the next I/O.
    window: Option<(u64, u64)>,
    /// Slow I/Os of the window.
    slow: u64,
    is_last: bool,
    /// What follows when nothing is in flight.
    draining: Option<Verdict>,
}

impl DepthSearch {
    pub fn new(goal: LatencyGoal, iodepth: u32) -> DepthSearch {
        DepthSearch {
            goal,
            most: iodepth,
            depth: 1,
            low: 1,
            high: iodepth,
            stable: 0,
            window: None,
            slow: 0,
            is_last: false,
            draining: None,
        }
    }

    /// Most I/Os in flight.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// A pass begins: as in fio, so does the search.
    pub fn restart(&mut self) {
        *self = DepthSearch::new(self.goal, self.most);
    }

    fn begin_window(&mut self, now: u64, ios: u64) {
        self.window = Some((now, ios));
        self.slow = 0;
    }

    /// An I/O that was created at `start_ns` has completed. Returns the target if the job cannot reach it.
    pub fn completed(&mut self, start_ns: u64, latency_ns: u64) -> Option<u64> {
        let is_of_window = self.window.is_some_and(|(since, _)| start_ns >= since);
        if latency_ns <= self.goal.target_ns || !is_of_window {
            return None;
        }
        self.slow += 1;
        if self.goal.percentile < 100.0 || self.draining.is_some() {
            return None;
        }
        self.draining = self.lower();
        self.draining.is_none().then_some(self.goal.target_ns)
    }

    /// Continues at `now`, with `ios` completed.
    pub fn step(&mut self, now: u64, ios: u64, is_busy: bool) -> Step {
        if self.draining.is_none() {
            match self.judge(now, ios) {
                None => return Step::Continue,
                Some(Verdict::Window) => {
                    self.begin_window(now, ios);
                    return Step::Continue;
                }
                Some(Verdict::Done) => return Step::Done,
                verdict => self.draining = verdict,
            }
        }
        if is_busy {
            return Step::Drain;
        }
        if self.draining.take() == Some(Verdict::Last) {
            self.is_last = true;
            self.begin_window(now, 0);
            return Step::MeasureAnew;
        }
        self.begin_window(now, ios);
        Step::Drained
    }

    /// Lowers the depth, if that is possible.
    fn lower(&mut self) -> Option<Verdict> {
        if self.depth == 1 {
            return None;
        }
        self.high = self.depth;
        if self.depth == self.low {
            self.low -= 1;
        }
        self.depth = u32::midpoint(self.depth, self.low);
        self.stable = 0;
        Some(Verdict::Lowered)
    }

    fn raise(&mut self) -> Verdict {
        let before = self.depth;
        self.low = before;
        if before + 1 == self.high {
            self.stable += 1;
            if self.stable >= STABLE_WINDOWS {
                self.high += 1;
                self.stable = 0;
            }
        }
        let raised = if self.high == self.most { before * 2 } else { u32::midpoint(before, self.high) };
        self.depth = raised.min(self.most);
        match (self.depth == before && !self.goal.runs_on, self.is_last) {
            (false, _) => Verdict::Window,
            (true, false) => Verdict::Last,
            (true, true) => Verdict::Done,
        }
    }

    /// Judges the window if it is over at `now`, with `ios` completed. `None`: it is not.
    fn judge(&mut self, now: u64, ios: u64) -> Option<Verdict> {
        let (since, before) = *self.window.get_or_insert((now, ios));
        if now - since < self.goal.window_ns {
            return None;
        }
        let done = ios.saturating_sub(before);
        let fast = 100.0 * done.saturating_sub(self.slow) as f64 / done as f64;
        // At depth one a bad window continues.
        if fast >= self.goal.percentile { Some(self.raise()) } else { self.lower() }
    }
}
