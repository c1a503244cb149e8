// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selectors over two or more paths with requests in flight: order of choices, and shares as measured with a kernel.

use super::*;
use std::collections::VecDeque;

struct SelectorFixture {
    selectors: Selectors,
    policy: Policy,
    turns: Turns,
}

impl SelectorFixture {
    fn new(selector: Selector, throughput: &[u8]) -> SelectorFixture {
        let selectors = Selectors::new();
        throughput.iter().enumerate().for_each(|(p, t)| selectors.add(p, *t));
        SelectorFixture { selectors, policy: Policy::new(selector, &[], &[]), turns: Turns::default() }
    }

    fn start(&self, usable: u64, bytes: u32, now: u64) -> usize {
        let path = self.selectors.select(&self.policy, usable, &self.turns, bytes, CpuId::new(0), now);
        self.selectors.started(&self.policy, path, bytes);
        path
    }

    fn end(&self, path: usize, bytes: u32, start: u64, now: u64) {
        self.selectors.ended(&self.policy, path, bytes, start, now, 2);
    }

    /// Issues `n` requests of 4 KiB, `depth` at a time. Each path completes its requests in order after its service time,
    /// one after another (`serial`) or in parallel. Returns how many requests each path got.
    fn shares(&self, n: usize, depth: usize, service: &[u64], serial: bool) -> Vec<usize> {
        let usable = (1 << service.len()) - 1;
        let mut out: Vec<VecDeque<(u64, u64)>> = vec![VecDeque::new(); service.len()];
        let (mut now, mut counts) = (0, vec![0; service.len()]);
        for i in 0..n {
            if i >= depth {
                let path = (0..out.len()).filter(|p| !out[*p].is_empty()).min_by_key(|p| out[*p][0].1).unwrap();
                let (start, end) = out[path].pop_front().unwrap();
                now = end;
                self.end(path, 4096, start, now);
            }
            let path = self.start(usable, 4096, now);
            let begin = out[path].back().map_or(now, |(_, end)| if serial { (*end).max(now) } else { now });
            out[path].push_back((now, begin + service[path]));
            counts[path] += 1;
        }
        counts
    }
}

const HST: Selector = Selector::HistoricalServiceTime { base_weight: BASE_WEIGHT, threshold_multiplier: 0 };

#[test]
fn equals_take_turns_whatever_the_selector() {
    for selector in [Selector::RoundRobin, Selector::QueueLength, Selector::ServiceTime, HST] {
        let bed = SelectorFixture::new(selector, &[1; 4]);
        let order: Vec<_> = (0..8).map(|_| bed.start(0b1111, 4096, 0)).collect();
        assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3], "{selector:?}");
        // A path that is not usable loses only its own turn.
        let order: Vec<_> = (0..3).map(|_| bed.start(0b1011, 4096, 0)).collect();
        assert_eq!(order, [0, 1, 3], "{selector:?}");
    }
}

#[test]
fn of_equals_the_one_chosen_longest_ago() {
    let bed = SelectorFixture::new(Selector::QueueLength, &[1; 3]);
    assert_eq!([0; 3].map(|_| bed.start(0b111, 4096, 0)), [0, 1, 2]);
    // All requests complete and the order of turns stays. Path 2 is the only usable one here.
    (0..3).for_each(|p| bed.end(p, 4096, 0, 1));
    assert_eq!(bed.start(0b100, 4096, 1), 2);
    bed.end(2, 4096, 1, 2);
    // A choice among one path does not count as a turn, so 0 is next, then 1.
    assert_eq!([0; 2].map(|_| bed.start(0b011, 4096, 0)), [0, 1]);
}

/// oracle/multipath-6.1.txt: round-robin and queue-length 1:1, service-time with throughputs 1 and 2 1:2.2 (3477 and 7634
/// requests) in mq mode and 1:2.15 in bio mode, over two equal null_blk devices.
#[test]
fn shares_are_what_the_kernel_was_seen_to_give() {
    for (selector, throughput, expected) in [
        (Selector::RoundRobin, [1, 1], 0.5..=0.5),
        (Selector::QueueLength, [1, 1], 0.49..=0.51),
        (Selector::ServiceTime, [1, 1], 0.49..=0.51),
        (Selector::ServiceTime, [1, 2], 0.66..=0.70),
        (HST, [1, 1], 0.45..=0.55),
    ] {
        let bed = SelectorFixture::new(selector, &throughput);
        // HST samples are the time since the last completion: a device that completes all requests at once gives no
        // samples.
        let shares = bed.shares(12_000, 32, &[10_000_000, 10_000_000], selector == HST);
        let second = shares[1] as f64 / 12_000.0;
        assert!(expected.contains(&second), "{selector:?} {throughput:?}: {shares:?}");
    }
}

#[test]
fn a_slow_path_gets_less() {
    for selector in [Selector::QueueLength, Selector::ServiceTime, HST] {
        let shares = SelectorFixture::new(selector, &[1, 1]).shares(10_000, 32, &[1_000_000, 100_000_000], true);
        assert!(shares[1] * 4 < shares[0], "{selector:?}: {shares:?}");
        assert!(shares[1] > 0, "{selector:?}: it is still looked at");
    }
    let shares =
        SelectorFixture::new(Selector::RoundRobin, &[1, 1]).shares(10_000, 32, &[1_000_000, 100_000_000], true);
    assert_eq!(shares, [5000, 5000]);
}

#[test]
fn what_was_counted_is_taken_off() {
    for selector in [Selector::RoundRobin, Selector::QueueLength, Selector::ServiceTime, HST, Selector::IoAffinity] {
        let bed = SelectorFixture::new(selector, &[3, 5]);
        let at: Vec<_> = (1..50).map(|n| (bed.start(0b11, n * 512, 7), n * 512)).collect();
        at.iter().for_each(|(p, bytes)| bed.end(*p, *bytes, 7, 9));
        assert_eq!([bed.selectors.load(0), bed.selectors.load(1)], [0, 0], "{selector:?}");
        assert_eq!(bed.selectors.info(&bed.policy, 0, &[]).split(' ').count() - 1, bed.policy.nr_info());
    }
}
