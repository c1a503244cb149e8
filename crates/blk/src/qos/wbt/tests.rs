// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The throttle by itself: depths against a table worked out by hand, verdicts, steps, windows, tokens. Tests with
//! requests: `tests/it/core_wbt.rs`.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn throttle(target_ms: u64, device_depth: u32, write_cache: bool) -> Throttle {
    let mut t = Throttle::new();
    t.set(Params { target: Duration::from_ms(target_ms), device_depth, write_cache }, 8, &mut no_grant);
    t
}

fn no_grant(submitter: SubmitterId, kind: usize) {
    panic!("{submitter} got a token of kind {kind}");
}

fn reads(n: u64, min_ms: u64) -> Sample {
    Sample { reads: n, writes: 3, min_read_ns: min_ms * MS }
}

const NOTHING: Sample = Sample { reads: 0, writes: 0, min_read_ns: u64::MAX };

/// Ends the open window, or one that begins at 0.
fn end(t: &mut Throttle, sample: Sample, oldest_ms: u64) -> WindowVerdict {
    let at = t.window_end().unwrap_or(Instant::ZERO);
    t.end_window(&sample, Duration::from_ms(oldest_ms), at, false, &mut |_, _| {})
}

fn windows(n: usize, t: &mut Throttle, sample: Sample) {
    for _ in 0..n {
        end(t, sample, 0);
    }
}

fn depths(t: &Throttle) -> (i32, u32, u32, u32) {
    let s = t.state();
    (s.scale_step, s.max_depth, s.wb_normal, s.wb_background)
}

#[test]
fn depths_of_each_step() {
    /// Step, max, normal, background.
    type Row = (i32, u32, u32, u32);
    let table: [(u32, &[Row]); 7] = [
        (1, &[(-1, 2, 2, 1), (0, 2, 2, 1), (1, 1, 1, 1)]),
        (2, &[(-1, 1, 1, 1), (0, 2, 2, 1), (1, 1, 1, 1)]),
        (3, &[(-1, 2, 2, 1), (0, 3, 2, 1), (1, 2, 2, 1), (2, 1, 1, 1)]),
        (8, &[(0, 8, 4, 2), (1, 4, 2, 1), (2, 2, 2, 1), (3, 1, 1, 1)]),
        (16, &[(0, 16, 8, 4), (1, 8, 4, 2), (2, 4, 2, 1), (3, 2, 2, 1), (4, 1, 1, 1)]),
        (64, &[(-2, 48, 24, 12), (-1, 31, 16, 8), (0, 16, 8, 4), (1, 8, 4, 2)]),
        (1024, &[(-4, 241, 121, 61), (-6, 768, 384, 192), (-5, 481, 241, 121)]),
    ];
    for (device, rows) in table {
        for row in rows {
            let mut t = throttle(1, device, false);
            for _ in 0..row.0.unsigned_abs() {
                end(&mut t, if row.0 > 0 { reads(1, 2) } else { reads(1, 0) }, 0);
            }
            assert_eq!(depths(&t), *row, "device {device}");
        }
    }
}

#[test]
fn steps_end_where_depths_do() {
    let mut t = throttle(1, 64, false);
    windows(10, &mut t, reads(1, 0));
    assert_eq!(depths(&t), (-2, 48, 24, 12), "three quarters of the device");
    end(&mut t, reads(1, 2), 0);
    assert_eq!(depths(&t), (0, 16, 8, 4), "straight back");
    windows(10, &mut t, reads(1, 2));
    assert_eq!(depths(&t), (4, 1, 1, 1), "one is the least");
    end(&mut t, reads(1, 0), 0);
    assert_eq!(depths(&t), (3, 2, 2, 1));
    // For a device of depth 1, a second step below 0 has no effect.
    let mut t = throttle(1, 1, false);
    windows(3, &mut t, reads(1, 0));
    assert_eq!(depths(&t), (-1, 2, 2, 1));
}

#[test]
fn verdicts() {
    let mut t = throttle(2, 64, false);
    for (sample, oldest_ms, busy, verdict) in [
        (reads(1, 2), 0, false, WindowVerdict::Ok),
        (reads(100, 3), 0, false, WindowVerdict::Exceeded),
        (reads(1, 0), 101, false, WindowVerdict::Exceeded),
        (reads(1, 0), 100, false, WindowVerdict::Ok),
        (NOTHING, 3, false, WindowVerdict::Exceeded),
        (NOTHING, 2, false, WindowVerdict::Unknown),
        (NOTHING, 2, true, WindowVerdict::UnknownWrites),
        (Sample { writes: 1, ..NOTHING }, 0, false, WindowVerdict::UnknownWrites),
        (Sample { writes: 2, ..reads(9, 50) }, 0, false, WindowVerdict::UnknownWrites),
        (Sample { writes: 0, ..reads(9, 50) }, 0, false, WindowVerdict::Unknown),
        (Sample { writes: 100, ..NOTHING }, 0, false, WindowVerdict::UnknownWrites),
    ] {
        t.in_flight[0] = u32::from(busy);
        assert_eq!(t.verdict(&sample, Duration::from_ms(oldest_ms)), verdict, "{sample:?}, {oldest_ms} ms");
    }
}

#[test]
fn five_windows_without_knowledge_go_one_step_back() {
    let mut t = throttle(1, 64, false);
    windows(2, &mut t, reads(1, 2));
    let mut steps = Vec::new();
    while t.window_end().is_some() {
        assert_eq!(end(&mut t, NOTHING, 0), WindowVerdict::Unknown);
        steps.push(t.state().scale_step);
    }
    assert_eq!(steps, [2, 2, 2, 2, 1, 1, 1, 1, 1, 0], "and then nothing is watched any more");
    let mut t = throttle(1, 64, false);
    end(&mut t, reads(1, 0), 0);
    windows(5, &mut t, NOTHING);
    assert_eq!((t.state().scale_step, t.window_end()), (0, None));
}

#[test]
fn windows_shorten_with_the_step() {
    let mut t = throttle(1, 64, false);
    assert_eq!(t.window_end(), None, "opened by the first throttled write");
    assert!(t.start(Class::Normal, None, false, Instant::from_ns(7 * MS)));
    assert_eq!(t.window_end(), Some(Instant::from_ns(107 * MS)));
    assert!(t.start(Class::Normal, None, false, Instant::from_ns(50 * MS)));
    assert_eq!(t.window_end(), Some(Instant::from_ns(107 * MS)));
    // 100 ms * 16 / isqrt(step + 1 << 8): isqrt(512) = 22, isqrt(768) = 27, isqrt(1024) = 32.
    let mut at = 107 * MS;
    for length in [72_727_272, 59_259_259, 50 * MS] {
        end(&mut t, reads(1, 2), 0);
        at += length;
        assert_eq!(t.window_end(), Some(Instant::from_ns(at)));
    }
    let mut t = throttle(1, 64, false);
    end(&mut t, reads(1, 0), 0);
    assert_eq!(t.window_end(), Some(Instant::from_ns(100 * MS)), "not longer with a doubled depth");
}

#[test]
fn classes() {
    let of = |op, flags| Class::of(op, flags);
    let (sync, idle, none) = (OpFlags::SYNC, OpFlags::IDLE, OpFlags::NONE);
    assert_eq!(of(Op::Write, sync.union(idle)), None, "a direct write");
    assert_eq!(of(Op::Write, sync), Some(Class::HiPrio));
    assert_eq!(of(Op::Write, OpFlags::META.union(OpFlags::BACKGROUND)), Some(Class::HiPrio));
    assert_eq!(of(Op::Write, OpFlags::BACKGROUND), Some(Class::Background));
    assert_eq!(of(Op::Write, idle), Some(Class::Normal));
    assert_eq!(of(Op::Discard, sync), Some(Class::Discard));
    for op in [Op::Read, Op::Flush, Op::WriteZeroes] {
        assert_eq!(of(op, none), None);
    }
}

#[test]
fn limits_by_class() {
    let now = Instant::ZERO;
    let count = |class, close_io| {
        let mut t = throttle(1, 64, false);
        (0..).find(|_| !t.start(class, None, close_io, now)).expect("a limit")
    };
    for close_io in [false, true] {
        assert_eq!(count(Class::HiPrio, close_io), 16);
        assert_eq!(count(Class::Background, close_io), 4);
        assert_eq!(count(Class::Discard, close_io), 4);
    }
    assert_eq!((count(Class::Normal, false), count(Class::Normal, true)), (8, 4));
    // Tokens of discards are counted separately.
    let mut t = throttle(1, 64, false);
    while t.start(Class::Normal, None, false, now) {}
    assert!(t.start(Class::Discard, None, false, now));
    assert!(t.start(Class::HiPrio, None, false, now), "a higher limit counts all the same tokens");
    assert_eq!(t.state().inflight, [9, 1]);
}

/// Fills the normal tokens and lets three more wait.
fn full(write_cache: bool) -> Throttle {
    let mut t = throttle(1, 64, write_cache);
    for submitter in 0..11 {
        assert_eq!(t.start(Class::Normal, Some(SubmitterId::new(submitter)), false, Instant::ZERO), submitter < 8);
    }
    assert!(!t.start(Class::HiPrio, None, false, Instant::ZERO), "not past waiters");
    t
}

fn release(t: &mut Throttle) -> Vec<usize> {
    let mut woken = Vec::new();
    t.release(0, false, &mut |submitter, _| woken.push(submitter.index()));
    woken
}

#[test]
fn waiters_wake_in_order_for_half_the_background_limit() {
    let mut t = full(false);
    assert_eq!(release(&mut t), [] as [usize; 0]);
    assert_eq!(release(&mut t), [8, 9]);
    assert_eq!(release(&mut t), [] as [usize; 0]);
    assert_eq!(release(&mut t), [10]);
    assert_eq!(t.state().inflight, [7, 0]);
}

#[test]
fn with_a_write_cache_no_waiter_wakes_before_all_is_done() {
    let mut t = full(true);
    (0..7).for_each(|_| assert!(release(&mut t).is_empty()));
    assert_eq!(release(&mut t), [8, 9, 10]);
}

#[test]
fn more_depth_wakes_at_once_and_so_does_turning_it_off() {
    let mut t = full(false);
    let mut woken = 0;
    t.end_window(&reads(1, 0), Duration::ZERO, Instant::ZERO, false, &mut |_, _| woken += 1);
    assert_eq!(woken, 3);
    let mut t = full(false);
    let mut woken = 0;
    t.set(Params { target: Duration::ZERO, ..t.params() }, 8, &mut |_, _| woken += 1);
    assert_eq!((woken, t.state().inflight, t.window_end()), (3, [11, 0], None));
    (0..11).for_each(|_| assert!(release(&mut t).is_empty()));
    assert_eq!(t.state().inflight, [0, 0], "tokens come back all the same");
    assert!(!t.is_on() && t.state().wb_normal == 0);
}

proptest! {
    /// In every sequence of calls, each waiter gets a wake-up: tokens are in use, or the waiter was woken.
    #[test]
    fn no_waiter_waits_for_nothing(
        device in 1u32..200,
        write_cache: bool,
        ops in prop::collection::vec((0u8..6, any::<bool>(), 0u64..4), 1..400),
    ) {
        let mut t = throttle(1, device, write_cache);
        let (mut out, mut waiting) = ([0u32; KINDS], [0u32; KINDS]);
        for (op, close_io, min_ms) in ops {
            let mut granted = [0u32; KINDS];
            match op {
                0..3 => {
                    let class = [Class::HiPrio, Class::Normal, Class::Background, Class::Discard][min_ms as usize];
                    if t.start(class, Some(SubmitterId::new(1)), close_io, Instant::ZERO) {
                        out[class.kind()] += 1;
                    } else {
                        waiting[class.kind()] += 1;
                    }
                }
                3 | 4 => {
                    let kind = usize::from(op == 4);
                    if out[kind] > 0 {
                        out[kind] -= 1;
                        t.release(kind, close_io, &mut |_, k| granted[k] += 1);
                    }
                }
                _ => {
                    let at = t.window_end().unwrap_or(Instant::ZERO);
                    t.end_window(&reads(min_ms, min_ms), Duration::ZERO, at, close_io, &mut |_, k| granted[k] += 1);
                }
            }
            for kind in 0..KINDS {
                prop_assert!(granted[kind] <= waiting[kind]);
                waiting[kind] -= granted[kind];
                out[kind] += granted[kind];
                prop_assert!(waiting[kind] == 0 || out[kind] > 0, "kind {kind}: {waiting:?} wait for nothing");
                prop_assert!(out[kind] <= t.state().max_depth.max(16).max(3 * device / 4));
            }
            prop_assert_eq!(t.state().inflight, out);
        }
    }
}
