// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the rate of the disk at a certain depth of bulk requests, over windows that are long enough.
//!
//! After a change of the bound a window opens once the queue at the disk has been turned over: the requests queued at the
//! old depth have left. It ends after [`MIN_TIME`] with at least [`MIN_REQUESTS`] completions, or after [`MAX_TIME`] on a
//! slow disk. Time in which the disk has no bulk request at all is taken out.
//!
//! Latency requests count as work, too: what they take from bulk is intended, not a loss.
//!
//! Work is counted as sectors plus a constant per request. So a mix of sizes does not hide a change, nor does a cap on
//! requests or on bytes alone. A window ends between two readings of the clock, never inside a batch of completions: a
//! thread that did not poll for a while finds many completions at once.

use crate::time::{Duration, Instant};

/// A shorter window would measure how completions bunch.
const MIN_TIME: Duration = Duration::from_ms(20);
/// Fewer completions would measure chance.
const MIN_REQUESTS: u64 = 192;
/// On a slow disk the window ends after this time, if it has [`FEW_REQUESTS`].
const MAX_TIME: Duration = Duration::from_ms(1000);
const FEW_REQUESTS: u64 = 24;
/// Cost of a request beside its sectors, in sectors. The byte and I/O caps of cloud disks have a ratio of 32 to 48 KiB
/// per I/O.
const SECTORS_PER_REQUEST: u64 = 64;

/// What a window found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// Work per second, of both classes.
    pub(super) work: f64,
    /// Bulk requests per second.
    pub(super) requests: f64,
    /// Maximum number of bulk requests at the disk at once.
    pub(super) peak: u32,
    /// Bulk requests waited for the bound at a quarter of the completions or more. Otherwise the rate is that of the
    /// submitters, not that of the disk at this depth.
    pub(super) was_bound: bool,
}

/// A completion, as it is reported to the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) now: Instant,
    pub(super) nr_sectors: u32,
    /// Bulk requests still at the disk.
    pub(super) in_flight: u32,
    /// Bulk requests wait in the elevator.
    pub(super) backlog: bool,
}

/// The measurement in progress.
#[derive(Debug)]
pub(super) struct Window {
    /// Completions to come before it opens.
    settling: u32,
    /// When it opened; `None` while it settles.
    since: Option<Instant>,
    requests: u64,
    sectors: u64,
    unbound: u64,
    latency_work: u64,
    peak: u32,
    /// When the last completion was found.
    last: Instant,
    /// Since when the disk has no bulk request; `None`: it has one.
    empty: Option<Instant>,
}

impl Window {
    /// Makes a window that opens when `turnover` requests have completed and fewer than the bound are at the disk.
    pub(super) fn after(turnover: u32) -> Window {
        Window {
            settling: turnover,
            since: None,
            requests: 0,
            sectors: 0,
            unbound: 0,
            latency_work: 0,
            peak: 0,
            last: Instant::ZERO,
            empty: None,
        }
    }

    /// Counts a completion of the latency class.
    #[inline]
    pub(super) fn add_latency(&mut self, nr_sectors: u32) {
        self.latency_work += u64::from(nr_sectors) + SECTORS_PER_REQUEST;
    }

    /// The disk was without bulk requests and gets one.
    #[inline]
    pub(super) fn resume(&mut self, now: Instant) {
        if let (Some(since), Some(empty)) = (self.since.as_mut(), self.empty.take()) {
            *since = *since + now.since(empty);
            self.last = now;
        }
    }

    /// Counts a completion. Returns the rate up to the completions before it, if those ended the window. `limit` is the
    /// bound in force.
    pub(super) fn add(&mut self, done: &Completed, limit: u32) -> Option<Rate> {
        let rate = if done.now > self.last { self.end() } else { None };
        self.last = self.last.max(done.now);
        self.empty = (done.in_flight == 0).then_some(done.now);
        if self.since.is_none() {
            self.settling = self.settling.saturating_sub(1);
            if self.settling == 0 && done.in_flight < limit {
                (self.since, self.latency_work) = (Some(done.now), 0);
            }
        } else {
            self.requests += 1;
            self.sectors += u64::from(done.nr_sectors);
            self.unbound += u64::from(!done.backlog);
            self.peak = self.peak.max(done.in_flight + 1);
        }
        rate
    }

    /// Returns the rate, and begins the next window, if this window is long enough.
    fn end(&mut self) -> Option<Rate> {
        let time = self.last.since(self.since?);
        let enough = time >= MIN_TIME && self.requests >= MIN_REQUESTS.max(2 * u64::from(self.peak));
        if !enough && (time < MAX_TIME || self.requests < FEW_REQUESTS) {
            return None;
        }
        let seconds = time.as_secs_f64();
        let rate = Rate {
            work: (self.sectors + self.requests * SECTORS_PER_REQUEST + self.latency_work) as f64 / seconds,
            requests: self.requests as f64 / seconds,
            peak: self.peak,
            was_bound: 4 * self.unbound <= 3 * self.requests,
        };
        *self = Window { since: Some(self.last), last: self.last, empty: self.empty, ..Window::after(0) };
        Some(rate)
    }
}

/// The last few windows of one step. Their median is not affected by one window in which the host was busy elsewhere
/// and the next one, which catches up.
#[derive(Debug, Default)]
pub(super) struct Recent {
    rates: [Rate; Recent::LEN],
    nr: usize,
}

impl Recent {
    const LEN: usize = 3;

    pub(super) fn push(&mut self, rate: Rate) {
        self.rates[self.nr % Recent::LEN] = rate;
        self.nr += 1;
    }

    /// Returns the window with the median work, with the greatest peak of all; `None` while there are too few.
    pub(super) fn median(&self) -> Option<Rate> {
        if self.nr < Recent::LEN {
            return None;
        }
        let mut rates = self.rates;
        rates.sort_by(|a, b| a.work.total_cmp(&b.work));
        let peak = rates.iter().map(|r| r.peak).max()?;
        Some(Rate { peak, ..rates[Recent::LEN / 2] })
    }
}
