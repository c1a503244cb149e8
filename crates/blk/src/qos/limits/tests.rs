// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limiter by itself: exact rates, the order of turns, bursts. The code that holds the bios is tested in
//! `tests/it/core_limits.rs`.

use super::*;
use crate::qos::rates::{LIMIT_NAMES, MAX_BPS, MAX_IOPS};

const SEC: u64 = 1_000_000_000;

fn limiter(settings: &[(&str, u64)]) -> Limiter {
    let mut l = Limiter::default();
    l.set(&limits(settings), 4);
    l
}

fn limits(settings: &[(&str, u64)]) -> IoLimits {
    let mut limits = IoLimits::default();
    for (name, value) in settings {
        *limits.field(name).unwrap_or_else(|| panic!("{name} is one of {LIMIT_NAMES:?}")).0 = *value;
    }
    limits
}

fn entry(submitter: u32, dir: Dir, bytes: u64, since: u64) -> WaitEntry {
    WaitEntry { submitter: SubmitterId::new(submitter), fifo: 0, dir, bytes, since: Instant::from_ns(since) }
}

fn none_granted(entry: WaitEntry) {
    panic!("{entry:?} was granted");
}

/// Returns when each of `n` I/Os gets its turn, for one submitter that always has another I/O.
fn times(l: &mut Limiter, dir: Dir, bytes: u64, n: usize, start: u64) -> Vec<u64> {
    let mut now = start;
    (0..n)
        .map(|_| {
            if !l.ask(entry(0, dir, bytes, start), Instant::from_ns(now), &mut none_granted) {
                now = l.next_due().expect("an entry waits").as_ns();
                let mut granted = 0;
                l.serve(Instant::from_ns(now - 1), &mut none_granted);
                l.serve(Instant::from_ns(now), &mut |_| granted += 1);
                assert_eq!(granted, 1);
            }
            now
        })
        .collect()
}

#[test]
fn the_nth_io_goes_at_n_over_rate_whatever_the_rate() {
    for rate in [1, 3, 7, 999, 1000, 1001, 50_000, 333_333, 1_000_000, 1_999_993, MAX_IOPS] {
        let t = times(&mut limiter(&[("iops_total", rate)]), Dir::Read, 4096, 5000, 77);
        for (n, t) in t.iter().enumerate() {
            assert_eq!(*t, 77 + (n as u64 * SEC).div_ceil(rate), "I/O {n} at {rate} per second");
        }
    }
}

#[test]
fn bytes_are_exact_at_odd_rates_too() {
    for (rate, bytes) in [(1_000_003, 4096), (123_456_789, 65536), (512, 512), (99_999_999_977, 512), (MAX_BPS, 512)] {
        let t = times(&mut limiter(&[("bps_write", rate)]), Dir::Write, bytes, 5000, 0);
        for (n, t) in t.iter().enumerate() {
            assert_eq!(u128::from(*t), (n as u128 * u128::from(bytes * SEC)).div_ceil(u128::from(rate)), "at {rate}");
        }
    }
}

#[test]
fn an_io_of_more_bytes_than_a_product_holds_does_not_wrap() {
    let mut l = limiter(&[("bps_total", 1)]);
    assert!(l.ask(entry(0, Dir::Write, 1 << 41, 0), Instant::ZERO, &mut none_granted));
    assert!(
        !l.ask(entry(0, Dir::Write, 512, 0), Instant::from_ns(u64::MAX - 1), &mut none_granted),
        "paid for in 69000 years"
    );
    assert_eq!(l.next_due(), Some(Instant::MAX));
}

#[test]
fn what_is_saved_up_goes_at_once_and_no_more() {
    let at_once = |l: &mut Limiter, now: u64, bytes: u64| {
        (0..)
            .find(|_| !l.try_now(entry(0, Dir::Read, bytes, now), Instant::from_ns(now), &mut none_granted))
            .expect("ends")
    };
    let mut l = limiter(&[("iops_total", 100), ("iops_total_burst", 25)]);
    assert_eq!(at_once(&mut l, 0, 4096), 25);
    assert_eq!(at_once(&mut l, SEC / 10, 4096), 10, "a tenth of a second's worth");
    assert_eq!(at_once(&mut l, 100 * SEC, 4096), 25, "an idle time saves up no more");
    let mut l = limiter(&[("bps_read", 1 << 20), ("bps_read_burst", 1 << 20)]);
    assert_eq!(at_once(&mut l, 0, 1 << 16), 16);
    assert_eq!(at_once(&mut l, SEC / 16 - 1, 1 << 16), 0);
    assert_eq!(at_once(&mut l, SEC / 16, 1 << 16), 1);
    assert_eq!(at_once(&mut l, 10 * SEC, 3 << 20), 1, "more than the burst goes when nothing is owed");
    let mut l = limiter(&[("iops_read", 100)]);
    assert_eq!(at_once(&mut l, 7, 512), 1, "nothing is saved up without a burst");
}

#[test]
fn the_tightest_limit_counts_and_the_others_are_paid_as_well() {
    let mut l = limiter(&[("iops_total", 1000), ("bps_read", 4096 * 500), ("iops_read", 2000)]);
    let t = times(&mut l, Dir::Read, 4096, 10, 0);
    assert_eq!(t[9], 9 * SEC / 500);
    // The limit on all I/Os holds back small ones.
    let t = times(&mut l, Dir::Read, 512, 10, SEC);
    assert_eq!(t[9] - t[0], 9 * SEC / 1000);
}

#[test]
fn a_discard_is_an_io_without_bytes() {
    let mut l = limiter(&[("bps_total", 512)]);
    assert!(l.ask(entry(0, Dir::Write, 4096, 0), Instant::ZERO, &mut none_granted));
    assert!(l.ask(entry(0, Dir::Write, 0, 0), Instant::ZERO, &mut none_granted), "bytes are owed, but it has none");
    let mut l = limiter(&[("iops_total", 10)]);
    assert!(l.ask(entry(0, Dir::Write, 0, 0), Instant::ZERO, &mut none_granted));
    assert!(!l.ask(entry(0, Dir::Write, 0, 0), Instant::ZERO, &mut none_granted));
}

#[test]
fn direction_limit_lets_the_other_pass_a_common_one_none() {
    let mut l = limiter(&[("iops_write", 10)]);
    assert!(l.ask(entry(0, Dir::Write, 512, 0), Instant::ZERO, &mut none_granted));
    assert!(!l.ask(entry(1, Dir::Write, 512, 0), Instant::ZERO, &mut none_granted));
    for _ in 0..100 {
        assert!(l.ask(entry(2, Dir::Read, 512, 0), Instant::ZERO, &mut none_granted));
    }
    assert!(!l.try_now(entry(2, Dir::Write, 0, 0), Instant::ZERO, &mut none_granted), "not past earlier entries");
    assert_eq!(l.next_due(), Some(Instant::from_ns(SEC / 10)));

    // A large write waits until no bytes are owed. A small read would fit into the burst earlier, and must not pass the
    // write.
    let mut l = limiter(&[("bps_total", 1000), ("bps_total_burst", 1000)]);
    assert!(l.ask(entry(0, Dir::Write, 800, 0), Instant::ZERO, &mut none_granted));
    assert!(!l.ask(entry(0, Dir::Write, 1000, 0), Instant::ZERO, &mut none_granted));
    assert!(!l.ask(entry(1, Dir::Read, 100, 0), Instant::ZERO, &mut none_granted));
    l.serve(Instant::from_ns(8 * SEC / 10 - 1), &mut none_granted);
    assert_eq!(l.next_due(), Some(Instant::from_ns(8 * SEC / 10)));
    let mut order = Vec::new();
    l.serve(Instant::from_ns(8 * SEC / 10), &mut |t| order.push(t.submitter.index()));
    assert_eq!(order, [0], "first come, first served");
    l.serve(Instant::from_ns(9 * SEC / 10), &mut |t| order.push(t.submitter.index()));
    assert_eq!(order, [0, 1]);
    assert!(l.is_empty() && l.next_due().is_none());
}

#[test]
fn turns_go_round() {
    let mut l = limiter(&[("iops_total", 1000)]);
    assert!(l.ask(entry(9, Dir::Read, 512, 0), Instant::ZERO, &mut none_granted));
    for submitter in 0..4 {
        let dir = if submitter % 2 == 0 { Dir::Read } else { Dir::Write };
        assert!(!l.ask(entry(submitter, dir, 512, 0), Instant::ZERO, &mut none_granted));
    }
    let mut order = Vec::new();
    for _ in 0..12 {
        let now = l.next_due().expect("an entry waits");
        let mut t = None;
        l.serve(now, &mut |x| t = Some(x));
        let again = t.expect("one goes at its time");
        order.push(again.submitter.index());
        assert!(!l.ask(again, now, &mut none_granted));
    }
    assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn a_late_entry_catches_up_but_not_for_long() {
    let mut l = limiter(&[("iops_total", 1000)]);
    let go = |l: &mut Limiter, now: u64| {
        (0..).find(|_| !l.try_now(entry(0, Dir::Read, 512, 0), Instant::from_ns(now), &mut none_granted)).expect("ends")
    };
    assert_eq!(go(&mut l, 0), 1);
    assert_eq!(go(&mut l, SEC / 20), 50, "it wanted to go all the time");
    assert_eq!(go(&mut l, SEC), 101, "a tenth of a second at most");
    // A submitter that had no I/O has no turns to catch up on.
    let mut l = limiter(&[("iops_total", 1000)]);
    for now in [0, SEC / 20] {
        assert!(l.try_now(entry(0, Dir::Read, 512, now), Instant::from_ns(now), &mut none_granted));
        assert!(!l.try_now(entry(0, Dir::Read, 512, now), Instant::from_ns(now), &mut none_granted));
    }
}

#[test]
fn new_rate_counts_from_now_and_the_same_changes_nothing() {
    let mut l = limiter(&[("iops_total", 1), ("iops_read", 10)]);
    assert!(l.ask(entry(0, Dir::Read, 512, 0), Instant::ZERO, &mut none_granted));
    assert!(!l.ask(entry(0, Dir::Read, 512, 0), Instant::ZERO, &mut none_granted));
    assert_eq!(l.next_due(), Some(Instant::from_ns(SEC)));
    l.set(&limits(&[("iops_total", 1), ("iops_read", 10), ("bps_write", 5)]), 4);
    assert_eq!(l.next_due(), Some(Instant::from_ns(SEC)));
    l.set(&limits(&[("iops_total", 5), ("iops_read", 10)]), 4);
    assert_eq!(l.next_due(), Some(Instant::from_ns(SEC / 10)), "what the other limit is owed stays");
    l.set(&IoLimits::default(), 4);
    let mut n = 0;
    l.serve(Instant::ZERO, &mut |_| n += 1);
    assert_eq!((n, l.next_due()), (1, None));
}
