// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write-back throttling: keeps few background writes in flight while reads miss their latency target.
//!
//! Guarantees: the kernel's windows, steps, depths and limits (see each function); a throttled write gets a token in the
//! order of asking, within its kind; every token is given back once. Reads and direct writes (SYNC with IDLE) are never
//! throttled.
//!
//! Needs from callers: `Throttle::end_window` at the end of each window, `Throttle::release` for each token. Time is an
//! argument; the first call after the end of a window judges the window as of its end. Does not do: hold bios, measure
//! (both `wbt_hooks`), take locks. Dirty-page throttling, which raises the kernel's limits for a second, is not here, as
//! there is no page cache. Source: block/blk-wbt.c, blk-rq-qos.c of Linux 6.19.

use crate::bio::{Op, OpFlags};
use crate::id::SubmitterId;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// Maximum number of background writes in flight at step 0 (`RWB_DEF_DEPTH`).
const DEFAULT_DEPTH: u32 = 16;
/// Length of a window that is not shortened (`RWB_WINDOW_NSEC`).
pub(crate) const WINDOW: Duration = Duration::from_ms(100);
/// Minimum number of writes in a window whose read latency is judged (`RWB_MIN_WRITE_SAMPLES`).
const MIN_WRITES: u64 = 3;
/// After this many windows without a verdict, the step moves one towards 0 (`RWB_UNKNOWN_BUMP`).
const UNKNOWN_BUMP: u32 = 5;
/// For this long after I/O that is not throttled, normal writes get the background limit (`HZ / 10`).
pub(crate) const CLOSE_IO: Duration = Duration::from_ms(100);
/// `wbt_lat_usec` of a disk that does not rotate, and of one that does.
pub(crate) const DEFAULT_TARGET_US: [u64; 2] = [2_000, 75_000];

/// Kinds of tokens: writes and discards are counted separately (`WBT_RWQ_BG`, `WBT_RWQ_DISCARD`).
pub(crate) const KINDS: usize = 2;

/// The class of a write, which selects its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A write that a thread waits for, or metadata.
    HiPrio,
    /// Write-back.
    Normal,
    /// Write-back that is in no hurry.
    Background,
    /// Discard.
    Discard,
}

impl Class {
    /// `None`: it is not throttled.
    pub(crate) fn of(op: Op, flags: OpFlags) -> Option<Class> {
        match op {
            Op::Discard => Some(Class::Discard),
            Op::Write if flags.contains(OpFlags::SYNC.union(OpFlags::IDLE)) => None,
            Op::Write if flags.intersects(OpFlags::SYNC.union(OpFlags::META)) => Some(Class::HiPrio),
            Op::Write if flags.contains(OpFlags::BACKGROUND) => Some(Class::Background),
            Op::Write => Some(Class::Normal),
            Op::Read | Op::Flush | Op::WriteZeroes => None,
        }
    }

    /// Returns the kind of token that a write of this class uses.
    pub(crate) fn kind(self) -> usize {
        usize::from(self == Class::Discard)
    }
}

/// How many writes may be in flight, scaled in steps (`struct rq_depth`).
#[derive(Clone, Copy, Debug)]
struct Depth {
    device: u32,
    /// Above 0: the depth is halved this many times. Below 0: it is doubled this many times.
    step: i32,
    /// Doubling again would not raise the depth.
    scaled_max: bool,
    max: u32,
}

impl Depth {
    fn new(device: u32) -> Depth {
        let mut depth = Depth { device, step: 0, scaled_max: false, max: 0 };
        depth.calc();
        depth
    }

    /// `rq_depth_calc_max_depth`. Returns whether the depth cannot be scaled up any further.
    fn calc(&mut self) -> bool {
        if self.device == 1 {
            // Two, so that another write is always ready; one if even two are too many.
            self.max = if self.step > 0 { 1 } else { 2 };
            return self.step <= 0;
        }
        let d = DEFAULT_DEPTH.min(self.device);
        if self.step > 0 {
            self.max = 1 + ((d - 1) >> self.step.min(31));
            return false;
        }
        let wanted = 1 + (u64::from(d - 1) << (-self.step).min(31));
        // Less than at step 0 if the device takes 2 or 3: the kernel's rule for devices with a real queue.
        let most = u64::from(3 * self.device / 4);
        let capped = self.step < 0 && wanted > most;
        self.max = if capped { most } else { wanted } as u32;
        capped
    }

    /// `rq_depth_scale_up`.
    fn scale_up(&mut self) -> bool {
        if self.scaled_max {
            return false;
        }
        self.step -= 1;
        self.scaled_max = self.calc();
        true
    }

    /// `rq_depth_scale_down`. `hard` resets a doubled depth to step 0 at once.
    fn scale_down(&mut self, hard: bool) -> bool {
        if self.max == 1 {
            return false;
        }
        self.step = if self.step < 0 && hard { 0 } else { self.step + 1 };
        self.scaled_max = false;
        self.calc();
        true
    }

    /// `calc_wb_limits`: normal and background.
    fn limits(&self) -> (u32, u32) {
        if self.max <= 2 { (self.max, 1) } else { (self.max.div_ceil(2), self.max.div_ceil(4)) }
    }
}

/// What completed in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) reads: u64,
    /// Writes of any kind, throttled or not.
    pub(crate) writes: u64,
    /// Shortest time that a read was at the driver; has no meaning without reads.
    pub(crate) min_read_ns: u64,
}

/// The verdict on a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowVerdict {
    /// Reads meet the target.
    Ok,
    /// Reads miss the target.
    Exceeded,
    /// There are writes and too few reads to judge.
    UnknownWrites,
    /// There is too little of both.
    Unknown,
}

/// Parameters that come from the disk and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// Zero = off.
    pub(crate) target: Duration,
    /// Maximum number of requests that the disk takes at once.
    pub(crate) device_depth: u32,
    /// The disk has a volatile write cache.
    pub(crate) write_cache: bool,
}

/// A submitter that waits for a token.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    submitter: SubmitterId,
    class: Class,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Throttle {
    params: Params,
    depth: Depth,
    normal: u32,
    background: u32,
    unknown: u32,
    window: Duration,
    window_end: Option<Instant>,
    in_flight: [u32; KINDS],
    waiters: [VecDeque<Waiter>; KINDS],
}

/// Called with each submitter that is given a token, and the token's kind.
pub(crate) type Grant<'a> = &'a mut dyn FnMut(SubmitterId, usize);

impl Throttle {
    pub(crate) fn new() -> Throttle {
        let params = Params { target: Duration::ZERO, device_depth: 1, write_cache: false };
        Throttle {
            params,
            depth: Depth::new(1),
            normal: 0,
            background: 0,
            unknown: 0,
            window: WINDOW,
            window_end: None,
            in_flight: [0; KINDS],
            waiters: [VecDeque::new(), VecDeque::new()],
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.params.target > Duration::ZERO
    }

    pub(crate) fn params(&self) -> Params {
        self.params
    }

    /// Sets new parameters and resets the step to 0. Equal parameters change nothing. `max_waiters`: most submitters
    /// that can wait.
    pub(crate) fn set(&mut self, params: Params, max_waiters: usize, grant: Grant<'_>) {
        if params == self.params {
            return;
        }
        self.params = params;
        self.depth = Depth::new(params.device_depth);
        self.unknown = 0;
        self.window_end = None;
        self.set_limits();
        if self.is_on() {
            self.waiters.iter_mut().for_each(|w| w.reserve(max_waiters.saturating_sub(w.len())));
        }
        self.wake_all(false, grant);
    }

    fn set_limits(&mut self) {
        (self.normal, self.background) = if self.is_on() { self.depth.limits() } else { (0, 0) };
    }

    /// Asks for a token for a write that is about to become a request. False: there is no token; `submitter`, if given, gets one
    /// later, in the order of asking. `close_io`: there was I/O that is not throttled within the last [`CLOSE_IO`].
    pub(crate) fn start(&mut self, class: Class, submitter: Option<SubmitterId>, close_io: bool, now: Instant) -> bool {
        let kind = class.kind();
        if self.waiters[kind].is_empty() && self.in_flight[kind] < self.limit(class, close_io) {
            self.in_flight[kind] += 1;
            if self.window_end.is_none() && self.is_on() {
                self.arm(now);
            }
            return true;
        }
        self.waiters[kind].extend(submitter.map(|submitter| Waiter { submitter, class }));
        false
    }

    /// Takes a token back. This does not wake waiters each time. With a volatile write cache, waiters are woken when no
    /// token is in use any more. Otherwise they are woken when there is room for half the background limit.
    pub(crate) fn release(&mut self, kind: usize, close_io: bool, grant: Grant<'_>) {
        assert!(self.in_flight[kind] > 0, "a token of write-back throttling came back twice");
        self.in_flight[kind] -= 1;
        let left = self.in_flight[kind];
        let limit = match kind {
            _ if !self.is_on() => u32::MAX,
            1 => self.background,
            _ if self.params.write_cache => 0,
            _ => self.normal,
        };
        if left == 0 || left < limit && limit - left >= self.background / 2 {
            self.wake(kind, close_io, grant);
        }
    }

    /// Returns how many tokens may be in use for a write of this class to get one.
    fn limit(&self, class: Class, close_io: bool) -> u32 {
        match class {
            _ if !self.is_on() => u32::MAX,
            Class::HiPrio => self.depth.max,
            Class::Normal if !close_io => self.normal,
            Class::Normal | Class::Background | Class::Discard => self.background,
        }
    }

    fn wake(&mut self, kind: usize, close_io: bool, grant: Grant<'_>) {
        while let Some(w) = self.waiters[kind].front().copied() {
            if self.in_flight[kind] >= self.limit(w.class, close_io) {
                return;
            }
            self.waiters[kind].pop_front();
            self.in_flight[kind] += 1;
            grant(w.submitter, kind);
        }
    }

    fn wake_all(&mut self, close_io: bool, grant: Grant<'_>) {
        (0..KINDS).for_each(|kind| self.wake(kind, close_io, grant));
    }

    /// When the window ends; `None` while none is open.
    pub(crate) fn window_end(&self) -> Option<Instant> {
        self.window_end
    }

    /// `rwb_arm_timer`: the more writes are throttled, the shorter the windows.
    pub(crate) fn arm(&mut self, now: Instant) {
        self.window = match self.depth.step {
            step @ 1.. => Duration::from_ns(WINDOW.as_ns() * 16 / ((step as u64 + 1) << 8).isqrt()),
            _ => WINDOW,
        };
        self.window_end = Some(now + self.window);
    }

    /// `latency_exceeded`. `oldest`: how long the watched read has been at the driver.
    fn verdict(&self, sample: &Sample, oldest: Duration) -> WindowVerdict {
        let target = self.params.target;
        if oldest > self.window || oldest > target && sample.reads == 0 {
            return WindowVerdict::Exceeded;
        }
        if sample.reads < 1 || sample.writes < MIN_WRITES {
            let writes = sample.writes > 0 || self.nr_in_flight() > 0;
            return if writes { WindowVerdict::UnknownWrites } else { WindowVerdict::Unknown };
        }
        if sample.min_read_ns > target.as_ns() { WindowVerdict::Exceeded } else { WindowVerdict::Ok }
    }

    /// `wb_timer_fn`: judges the window that ends at `at`. Opens the next one if the step is not 0 or a token is in
    /// use.
    pub(crate) fn end_window(
        &mut self,
        sample: &Sample,
        oldest: Duration,
        at: Instant,
        close_io: bool,
        grant: Grant<'_>,
    ) -> WindowVerdict {
        let verdict = self.verdict(sample, oldest);
        match verdict {
            WindowVerdict::Exceeded => self.scale_down(true),
            WindowVerdict::Ok | WindowVerdict::UnknownWrites => self.scale_up(close_io, grant),
            WindowVerdict::Unknown => {
                self.unknown += 1;
                match self.depth.step {
                    _ if self.unknown < UNKNOWN_BUMP => {}
                    1.. => self.scale_up(close_io, grant),
                    0 => {}
                    _ => self.scale_down(false),
                }
            }
        }
        self.window_end = None;
        if self.depth.step != 0 || self.nr_in_flight() > 0 {
            self.arm(at);
        }
        verdict
    }

    fn scale_up(&mut self, close_io: bool, grant: Grant<'_>) {
        if self.depth.scale_up() {
            self.unknown = 0;
            self.set_limits();
            self.wake_all(close_io, grant);
        }
    }

    fn scale_down(&mut self, hard: bool) {
        if self.depth.scale_down(hard) {
            self.unknown = 0;
            self.set_limits();
        }
    }

    fn nr_in_flight(&self) -> u32 {
        self.in_flight.iter().sum()
    }

    /// Returns what debugfs shows.
    pub(crate) fn state(&self) -> WbtState {
        WbtState {
            enabled: self.is_on(),
            min_lat_ns: self.params.target.as_ns(),
            curr_win_ns: self.window.as_ns(),
            inflight: self.in_flight,
            unknown_cnt: self.unknown,
            wb_normal: self.normal,
            wb_background: self.background,
            max_depth: self.depth.max,
            scale_step: self.depth.step,
        }
    }
}

/// Write-back throttling as the kernel's debugfs shows it (`rqos/wbt`), and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WbtState {
    /// Whether writes are throttled at all.
    pub enabled: bool,
    /// The target for reads, ns; 0 = off.
    pub min_lat_ns: u64,
    /// Length of the present window, ns.
    pub curr_win_ns: u64,
    /// Throttled writes and discards in flight.
    pub inflight: [u32; KINDS],
    /// Windows without a verdict since the step last changed.
    pub unknown_cnt: u32,
    /// Maximum number of normal writes-back in flight.
    pub wb_normal: u32,
    /// Maximum number of background writes-back in flight, and of discards.
    pub wb_background: u32,
    /// Maximum number of writes in flight that a thread waits for.
    pub max_depth: u32,
    /// Above 0: the depth is halved this many times. Below 0: it is doubled this many times.
    pub scale_step: i32,
}

impl WbtState {
    /// Returns the debugfs files by name. `by_default`: the target was not set.
    pub(crate) fn files(&self, by_default: bool) -> [(&'static str, String); 8] {
        let [writes, discards] = self.inflight;
        [
            ("curr_win_nsec", format!("{}\n", self.curr_win_ns)),
            // WBT_STATE_ON_DEFAULT, WBT_STATE_ON_MANUAL.
            ("enabled", format!("{}\n", if by_default { 1 } else { 2 })),
            ("id", "0\n".to_owned()),
            // The middle line is for swap, which mqblk does not have.
            ("inflight", format!("0: inflight {writes}\n1: inflight 0\n2: inflight {discards}\n")),
            ("min_lat_nsec", format!("{}\n", self.min_lat_ns)),
            ("unknown_cnt", format!("{}\n", self.unknown_cnt)),
            ("wb_background", format!("{}\n", self.wb_background)),
            ("wb_normal", format!("{}\n", self.wb_normal)),
        ]
    }
}

#[cfg(test)]
mod tests;
