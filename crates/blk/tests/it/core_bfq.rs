// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq in the core: requests that it holds back are dispatched at the time that it requested, or when the awaited request
//! arrives, on any hardware queue. Submitters get shares of the disk by their weights.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector};
use blk::limits::Limits;
use blk::settings::QueueConfig;
use blk::time::Instant;
use sim::disk::Behaviour;
use sim::harness::Harness;

const MS: u64 = 1_000_000;

fn config(hw: u16, depth: u32, iosched: &[(&str, u64)]) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(4),
        nr_hw_queues: Some(hw),
        queue_depth: depth,
        scheduler: Some("bfq".into()),
        iosched: iosched.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
        ..QueueConfig::default()
    }
}

/// A rotational disk, on which bfq idles, with low_latency off.
fn waiting_harness(hw: u16) -> Harness {
    let limits = Limits { rotational: true, ..Limits::default() };
    let behaviour = Behaviour { manual: true, limits, capacity: 1 << 20, ..Behaviour::default() };
    Harness::new(1, behaviour, config(hw, 16, &[("low_latency", 0)]), &[0, 1, 2, 3])
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::new(0, 0)).with_user_data(sector)
}

fn issued(harness: &Harness) -> Vec<u64> {
    harness.disk.issues().iter().map(|i| i.sector).collect()
}

/// Completes the requests at the disk until none is left.
fn finish(harness: &mut Harness) {
    while harness.disk.in_flight() > 0 {
        harness.disk.release(|_| true);
        harness.run(1000);
    }
    harness.run_dry(1000);
}

/// bfq serves submitter 0 and idles for it, while submitter 1 waits; each has its own hardware queue if there are
/// several.
fn one_waits_for_the_other(hw: u16) -> Harness {
    let mut harness = waiting_harness(hw);
    harness.submit(0, read(0));
    harness.submit(1, read(500_000));
    assert_eq!(issued(&harness), [0], "the other one's request is at the disk");
    harness.now += 40 * MS;
    harness.disk.release(|_| true);
    while harness.step_now() {}
    assert_eq!(issued(&harness), [0]);
    assert_eq!(harness.q.next_timer(), Some(Instant::from_ns(harness.now + 8 * MS)), "slice_idle after the completion");
    harness
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    for hw in [1, 4] {
        let mut harness = one_waits_for_the_other(hw);
        harness.now += 8 * MS - 1;
        assert!(!harness.step_now());
        harness.now += 1;
        assert!(harness.step_now());
        assert_eq!(issued(&harness), [0, 500_000]);
        finish(&mut harness);
    }
}

#[test]
fn a_wait_ends_when_the_next_request_comes() {
    for hw in [1, 4] {
        let mut harness = one_waits_for_the_other(hw);
        harness.now += MS;
        harness.submit(0, read(64));
        assert_eq!(issued(&harness), [0, 64]);
        finish(&mut harness);
        assert_eq!(issued(&harness), [0, 64, 500_000]);
    }
}

#[test]
fn completion_releases_requests_held_on_another_hctx() {
    // One request at a time for the whole disk: each completion lets a request of another hardware queue be issued at
    // once.
    let behaviour = Behaviour { manual: true, capacity: 1 << 20, ..Behaviour::default() };
    let rules = [("strict_guarantees", 1), ("slice_idle", 0), ("low_latency", 0)];
    let mut harness = Harness::new(2, behaviour, config(4, 16, &rules), &[0, 1, 2, 3]);
    for s in 0..4u64 {
        (0..5).for_each(|i| harness.submit(s as usize, read(s * 100_000 + i * 64)));
    }
    let start = harness.now;
    for ended in 0..20 {
        assert_eq!((issued(&harness).len(), harness.disk.in_flight()), (ended + 1, 1), "{}", harness.describe());
        harness.disk.release(|_| true);
        while harness.step_now() {}
    }
    assert_eq!(harness.now, start, "no time passed");
    finish(&mut harness);
}

#[test]
fn weights_are_set_on_the_submitter_and_end_with_it() {
    let behaviour = Behaviour { capacity: 1 << 20, ..Behaviour::default() };
    // More scheduler tags than requests, so that the elevator alone decides the shares.
    let config = QueueConfig { nr_requests: Some(128), ..config(1, 1, &[("max_budget", 64)]) };
    let mut harness = Harness::new(3, behaviour, config, &[0, 1]);
    let text = harness.subs[0].set_weight(Some(0)).expect_err("0 is no weight").to_string();
    assert_eq!(text, "weight=0: must be 1..=1000; leave it out to use the I/O priority");
    assert!(harness.subs[0].set_weight(Some(1001)).is_err());
    harness.subs[0].set_weight(Some(900)).expect("in range");
    harness.subs[1].set_weight(Some(100)).expect("in range");
    // Both keep 30 requests waiting, 64 sectors apart.
    let mut next = [0u64, 0];
    let mut ended = [0u64, 0];
    let mut waiting = [0u64, 0];
    while ended[0] + ended[1] < 4000 {
        for s in 0..2 {
            while waiting[s] < 30 {
                harness.submit(s, read(s as u64 * 500_000 + next[s] % 7000 * 64));
                next[s] += 1;
                waiting[s] += 1;
            }
        }
        assert!(harness.step(), "{}", harness.describe());
        for s in 0..2 {
            let n = harness.take_done(s).len() as u64;
            ended[s] += n;
            waiting[s] -= n;
        }
    }
    // A budget is 8 requests: the shares are within one of each.
    assert!(ended[0].abs_diff(3600) <= 16, "{ended:?}");
    harness.run_dry(100_000);
    assert_eq!(harness.subs[0].weight(), Some(900));
    drop(harness.subs.remove(0));
    let next = harness.q.submitter(CpuId::new(0)).expect("its number is free");
    assert_eq!(next.weight(), None, "it was another submitter's");
}
