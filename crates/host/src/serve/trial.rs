// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the longest polling time that pays off on this machine for these clients, while they are served.
//!
//! Polling for a sleeping client pays if the client sends before polling ends. It saves the client's wake-up: 2 us on one machine, 40 us
//! on another where idle CPUs exit to the hypervisor. Without polling the client may be scheduled on the IOThread's own CPU, where it
//! sends at once. Neither is known in advance, so it is tried: another time is used for a short period, and kept if it does better twice
//! in a row. Better means more requests per second for no more CPU time each, or a gain in one that outweighs the loss in the other. The
//! score is requests per second divided by CPU time per request.
//!
//! Guarantees: if no other time is better, only one period in [`HOLD_MOST`] is a trial. There is no trial while the load is low, or while
//! the thread sleeps for disks. With slow disks the client's wake-up matters less, and a trial that moves the client to another CPU
//! distorts the comparison. Example: a file at depth 1 has 12 k requests per second for 40 us of CPU each, and 8 k for 79 us with a long
//! time. This module reads no clock or counter: the caller passes the usage. Does not apply if the user has set a polling time.

use blk::time::{Duration, Instant};

/// The times that are tried, beginning with the first: half of QEMU's `poll-max-ns`.
pub(super) const TIMES: [Duration; 4] =
    [Duration::from_ns(16_384), Duration::from_ns(32_768), Duration::from_ns(65_536), Duration::from_ns(131_072)];
/// Minimum waits of a judged period.
const WAITS: u32 = 32;
/// Minimum length of a period.
const PIECE: Duration = Duration::from_ms(5);
/// Longer periods have too little load to judge.
const PIECE_MOST: Duration = Duration::from_ms(50);
/// Maximum number of pieces between two trials.
const HOLD_MOST: u32 = 64;
/// If at least one in this many waits slept for a disk, the thread counts as sleeping for disks.
const DISK_SHARE: u32 = 4;
/// Factor by which the score of a trial must be better.
const BETTER: f64 = 1.15;

/// The thread's usage up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadUsage {
    pub(super) now: Instant,
    /// CPU time of the thread.
    pub(super) cpu: Duration,
    /// Requests that it has served.
    pub(super) served: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Trial {
    best: usize,
    /// The time that is being tried.
    tried: Option<usize>,
    /// The time that is tried next.
    next: usize,
    /// The tried time has won once.
    has_won: bool,
    /// Score of the best time in the period before the trial.
    score: f64,
    /// Periods between two trials, and (`left`) how many of them are left.
    hold: u32,
    left: u32,
    began: ThreadUsage,
    waits: u32,
    /// Waits in this period that slept for a disk.
    disk_sleeps: u32,
}

impl Trial {
    /// Records that a wait has ended; `slept_for_disk`: the thread slept with I/O in flight. Returns whether it is time for
    /// [`Trial::judge`].
    #[inline]
    pub(super) fn wait_ended(&mut self, now: Instant, slept_for_disk: bool) -> bool {
        self.waits += 1;
        self.disk_sleeps += u32::from(slept_for_disk);
        self.waits >= WAITS && now.since(self.began.now) >= PIECE
    }

    /// Returns the longest polling time to use now.
    pub(super) fn time(&self) -> Duration {
        TIMES[self.tried.unwrap_or(self.best)]
    }

    /// Judges the period that has passed. Returns whether another time is used from now on.
    pub(super) fn judge(&mut self, usage: ThreadUsage) -> bool {
        let (before, used) = (self.began, self.time());
        let waits_for_disks = self.disk_sleeps * DISK_SHARE >= self.waits;
        (self.began, self.waits, self.disk_sleeps) = (usage, 0, 0);
        if waits_for_disks {
            *self = Trial { began: usage, ..Trial::default() };
            return self.time() != used;
        }
        let time = usage.now.since(before.now);
        // A source may have left, and its count of served requests with it.
        let served = usage.served.saturating_sub(before.served) as f64;
        let cpu = usage.cpu.as_ns().saturating_sub(before.cpu.as_ns());
        if time > PIECE_MOST || served == 0.0 || cpu == 0 {
            (self.tried, self.has_won, self.left) = (None, false, self.hold);
            return self.time() != used;
        }
        let score = served / time.as_ns() as f64 * (served / cpu as f64);
        match self.tried.take() {
            None => self.after_the_best(score),
            Some(tried) => self.after(tried, score),
        }
        self.time() != used
    }

    fn after_the_best(&mut self, score: f64) {
        self.score = score;
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        if !self.has_won {
            self.next = (self.next + 1) % TIMES.len();
            if self.next == self.best {
                self.next = (self.next + 1) % TIMES.len();
            }
        }
        self.tried = Some(self.next);
    }

    fn after(&mut self, tried: usize, score: f64) {
        let won = score > self.score * BETTER;
        if won && self.has_won {
            *self = Trial { best: tried, next: tried, began: self.began, ..Trial::default() };
        } else if won {
            self.has_won = true;
        } else {
            self.has_won = false;
            self.hold = (self.hold * 2).clamp(1, HOLD_MOST);
            self.left = self.hold;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `pieces` periods. `machine` returns, for a polling time, the requests per period and their CPU time. Returns the times that
    /// were used.
    fn run(
        trial: &mut Trial,
        usage: &mut ThreadUsage,
        pieces: usize,
        machine: impl Fn(Duration) -> (u64, Duration),
    ) -> Vec<Duration> {
        let piece = |_| {
            let time = trial.time();
            let (served, cpu) = machine(time);
            usage.now = usage.now + PIECE;
            usage.served += served;
            usage.cpu = usage.cpu + cpu;
            let ended = (1..=WAITS).find(|_| trial.wait_ended(usage.now, false));
            assert_eq!(ended, Some(WAITS));
            assert_eq!(trial.judge(*usage), trial.time() != time);
            time
        };
        (0..pieces).map(piece).collect()
    }

    #[test]
    fn polling_time_that_doubles_the_rate_is_found_and_kept() {
        let (mut trial, mut usage) = (Trial::default(), ThreadUsage::default());
        let sleepers = |time| if time >= TIMES[2] { (200, Duration::from_ms(4)) } else { (100, Duration::from_ms(2)) };
        run(&mut trial, &mut usage, 40, sleepers);
        assert!(trial.time() >= TIMES[2], "{trial:?}");
        let used = run(&mut trial, &mut usage, 1000, sleepers);
        let others = used.iter().filter(|time| **time < TIMES[2]).count();
        assert!(others < 40, "{others} of 1000 pieces were given to trials");
        // The clients have changed: a long time now costs CPU and gains nothing.
        run(&mut trial, &mut usage, 1000, |time| (100, time + Duration::from_us(10)));
        assert_eq!(TIMES[trial.best], TIMES[0]);
    }

    #[test]
    fn one_lucky_piece_changes_nothing() {
        let (mut trial, mut usage) = (Trial::default(), ThreadUsage::default());
        for lucky in 0..200 {
            let plain = |_| (100, Duration::from_ms(2));
            let time =
                run(&mut trial, &mut usage, 1, |_| (if lucky % 7 == 3 { 300 } else { 100 }, Duration::from_ms(2)));
            assert_eq!(trial.best, 0, "{time:?}");
            run(&mut trial, &mut usage, 2, plain);
        }
    }

    #[test]
    fn faster_at_a_higher_price_is_not_better() {
        let (mut trial, mut usage) = (Trial::default(), ThreadUsage::default());
        let dear = |time| if time == TIMES[0] { (100, Duration::from_ms(1)) } else { (120, Duration::from_us(1700)) };
        run(&mut trial, &mut usage, 500, dear);
        assert_eq!(trial.best, 0);
    }

    #[test]
    fn a_sleep_for_a_disk_is_no_trial() {
        let (mut trial, mut usage) = (Trial::default(), ThreadUsage::default());
        run(&mut trial, &mut usage, 40, |time| (time.as_ns(), Duration::from_ms(2)));
        assert!(trial.best > 0);
        for _ in 0..100 {
            usage.now = usage.now + PIECE;
            usage.served += 100;
            usage.cpu = usage.cpu + Duration::from_ms(1);
            assert!((0..WAITS).any(|i| trial.wait_ended(usage.now, i % 4 == 0)));
            trial.judge(usage);
            assert_eq!((trial.time(), trial.best), (TIMES[0], 0));
        }
    }

    #[test]
    fn little_to_do_is_not_judged_and_ends_a_trial() {
        let (mut trial, mut usage) = (Trial::default(), ThreadUsage::default());
        run(&mut trial, &mut usage, 1, |_| (100, Duration::from_ms(1)));
        assert_eq!(trial.time(), TIMES[1], "tried");
        usage.now = usage.now + Duration::from_secs(1);
        usage.served += 1;
        usage.cpu = usage.cpu + Duration::from_us(30);
        assert!(trial.judge(usage));
        assert_eq!(trial.time(), TIMES[0]);
        // The same holds for a period in which a source has left, with its count of requests.
        run(&mut trial, &mut usage, 1, |_| (100, Duration::from_ms(1)));
        usage.served = 0;
        usage.now = usage.now + PIECE;
        trial.judge(usage);
        assert_eq!((trial.time(), trial.best), (TIMES[0], 0));
    }
}
