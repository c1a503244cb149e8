// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real clock of the stack: [`now`], in nanoseconds of `CLOCK_MONOTONIC`.
//!
//! A clock is read several times per I/O, so its price counts. [`start`] uses the CPU's time stamp counter if it is invariant (ticks at a
//! constant rate in every power state) and the kernel itself keeps time by it. `start` calibrates the counter against `CLOCK_MONOTONIC`;
//! from then on `now` is one `rdtsc`, a multiplication and a shift. Everywhere else, and before `start`, `now` is `clock_gettime` through
//! the vDSO. Both have the same zero point, so a process may take readings before and after `start`.
//!
//! Not promised: readings on two CPUs that are ordered to the nanosecond (`Instant::since` saturates). Over hours `now` may differ from
//! `CLOCK_MONOTONIC` by some parts per million, because the calibration is not repeated.

use blk::time::Instant;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where [`now`] takes the time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The CPU's time stamp counter; ticks per second.
    Tsc {
        /// Measured rate of the counter.
        hz: u64,
    },
    /// `clock_gettime(CLOCK_MONOTONIC)`, and why not the time stamp counter.
    ClockGettime {
        /// The check that failed.
        because: &'static str,
    },
}

/// `ns = origin_ns + ((tsc - origin_tsc) * ns_per_tick_32 >> 32)`; on a line of its own, written once.
#[repr(align(128))]
struct Calibration {
    /// Nanoseconds per tick, 32 fractional bits; 0 = not calibrated, use `clock_gettime`.
    ns_per_tick_32: AtomicU64,
    origin_tsc: AtomicU64,
    origin_ns: AtomicU64,
}

static CALIBRATION: Calibration =
    Calibration { ns_per_tick_32: AtomicU64::new(0), origin_tsc: AtomicU64::new(0), origin_ns: AtomicU64::new(0) };

/// The time now.
#[inline]
pub fn now() -> Instant {
    // Pairs with: start.
    let ns_per_tick_32 = CALIBRATION.ns_per_tick_32.load(Ordering::Acquire);
    if ns_per_tick_32 == 0 {
        return now_by_clock_gettime();
    }
    let ticks = tsc::read().wrapping_sub(CALIBRATION.origin_tsc.load(Ordering::Relaxed));
    let ns = ((u128::from(ticks) * u128::from(ns_per_tick_32)) >> 32) as u64;
    Instant::from_ns(CALIBRATION.origin_ns.load(Ordering::Relaxed) + ns)
}

/// Reads another clock, by its number for `clock_gettime`; nanoseconds. `None`: there is no such clock.
pub fn read_ns(clock_id: i32) -> Option<u64> {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live, writable timespec; the call rejects numbers that name no clock.
    let is_read = unsafe { libc::clock_gettime(clock_id, &raw mut ts) } == 0;
    is_read.then_some(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// The time now by `clock_gettime`, whatever [`start`] found.
#[inline]
fn now_by_clock_gettime() -> Instant {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live, writable timespec. The call cannot fail for CLOCK_MONOTONIC and a valid address.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    Instant::from_ns(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// Chooses the clock source, once per process (about 10 ms where a counter is calibrated); later calls only answer.
pub fn start() -> ClockSource {
    static SOURCE: OnceLock<ClockSource> = OnceLock::new();
    *SOURCE.get_or_init(|| {
        if let Err(because) = tsc::usable() {
            return ClockSource::ClockGettime { because };
        }
        let first = calibrate(CALIBRATION_NS / 2);
        let second = calibrate(CALIBRATION_NS);
        let differ = first.ns_per_tick_32.abs_diff(second.ns_per_tick_32);
        if second.ns_per_tick_32 == 0 || differ > second.ns_per_tick_32 / CALIBRATION_TOLERANCE {
            return ClockSource::ClockGettime { because: "two calibrations of the time stamp counter disagree" };
        }
        CALIBRATION.origin_tsc.store(second.origin_tsc, Ordering::Relaxed);
        CALIBRATION.origin_ns.store(second.origin_ns, Ordering::Relaxed);
        // Pairs with: now. Readers that see the rate see the origin.
        CALIBRATION.ns_per_tick_32.store(second.ns_per_tick_32, Ordering::Release);
        ClockSource::Tsc { hz: ((1_000_000_000u128 << 32) / u128::from(second.ns_per_tick_32)) as u64 }
    })
}

/// Lets this thread's timed sleeps end on time. The kernel may otherwise wake it up to 50 us late (its timer slack). If a
/// sleeping thread plays a device, that would be part of every latency.
pub fn sleep_precisely() {
    thread_local!(static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    if !DONE.replace(true) {
        // SAFETY: PR_SET_TIMERSLACK takes a number and changes this thread's timers only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    }
}

/// Length of the longer of two calibrations: a bracket of 40 ns at each end makes 10 parts per million at most.
const CALIBRATION_NS: u64 = 8_000_000;
/// The two calibrations may differ by one part in this many.
const CALIBRATION_TOLERANCE: u64 = 5_000;

struct Measured {
    ns_per_tick_32: u64,
    origin_tsc: u64,
    origin_ns: u64,
}

/// Rate of the counter over `span_ns` or more. Asleep meanwhile: spun away, it was 1 % of the CPU time of a run of 3 s.
fn calibrate(span_ns: u64) -> Measured {
    let (tsc_a, ns_a) = read_both();
    std::thread::sleep(std::time::Duration::from_nanos(span_ns));
    let (tsc_b, ns_b) = read_both();
    let ticks = tsc_b.wrapping_sub(tsc_a);
    let rate = (u128::from(ns_b - ns_a) << 32).checked_div(u128::from(ticks)).unwrap_or(0);
    // Above 2^40 (256 ns per tick) it is no CPU's counter.
    let ns_per_tick_32 = if rate < 1 << 40 { rate as u64 } else { 0 };
    Measured { ns_per_tick_32, origin_tsc: tsc_b, origin_ns: ns_b }
}

/// Both clocks at one moment: the narrowest of several brackets, the middle of its counter readings.
fn read_both() -> (u64, u64) {
    (0..16)
        .map(|_| {
            let before = tsc::read();
            let ns = now_by_clock_gettime().as_ns();
            let width = tsc::read().wrapping_sub(before);
            (width, before.wrapping_add(width / 2), ns)
        })
        .min()
        .map(|(_, tsc, ns)| (tsc, ns))
        .expect("sixteen readings")
}

#[cfg(target_arch = "x86_64")]
mod tsc {
    use core::arch::x86_64::{__cpuid, _rdtsc};

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: rdtsc has no memory operand, and every x86_64 CPU has it. The kernel forbids it to user space only on
        // request (PR_SET_TSC), and nothing has requested that.
        unsafe { _rdtsc() }
    }

    /// Whether the counter may stand for time: the CPU promises a constant rate, the kernel trusts it on all CPUs.
    pub(super) fn usable() -> Result<(), &'static str> {
        if __cpuid(0x8000_0000).eax < 0x8000_0007 || __cpuid(0x8000_0007).edx & (1 << 8) == 0 {
            return Err("the CPU does not report an invariant time stamp counter (CPUID 8000_0007h EDX bit 8)");
        }
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        match std::fs::read_to_string(path).as_deref().map(str::trim) {
            Ok("tsc" | "kvm-clock") => Ok(()),
            Ok(_) => Err("the kernel's clock source is neither tsc nor kvm-clock"),
            Err(_) => Err("the kernel's clock source cannot be read"),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tsc {
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn usable() -> Result<(), &'static str> {
        Err("no time stamp counter is known for this architecture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds for any scheduling of the test: a reading lies between the `clock_gettime` readings around it, give or
    /// take the calibration error since `start` (10 ppm of a test that lasts seconds).
    #[test]
    fn both_sources_tell_the_same_time() {
        let source = start();
        assert_eq!(source, start(), "the choice is made once");
        let slack = blk::time::Duration::from_ms(1);
        let mut last = now();
        for _ in 0..10_000 {
            let before = now_by_clock_gettime();
            let t = now();
            let after = now_by_clock_gettime();
            assert!(before <= t + slack && t <= after + slack, "{before:?} {t:?} {after:?} by {source:?}");
            assert!(last <= t + slack);
            last = t;
        }
    }

    #[test]
    fn a_calibrated_rate_is_a_cpus() {
        if let ClockSource::Tsc { hz } = start() {
            assert!((100_000_000..20_000_000_000).contains(&hz), "{hz}");
        }
    }
}
