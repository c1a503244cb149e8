// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hard disk alone, under closed loads, against published figures and against bounds.

use super::*;
use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SECTORS: u64 = 4_000_000_000_000 / 512;

/// A load that keeps `depth` I/Os in flight.
struct Closed<F> {
    disk: Hdd,
    depth: u32,
    /// Makes the next I/O: operation, first sector, length.
    next: F,
    /// Completions: time, tag, time of arrival.
    due: BinaryHeap<Reverse<(u64, u32, u64)>>,
    arrived: Vec<u64>,
    latencies_ns: Vec<u64>,
}

impl<F: FnMut() -> (Op, u64, u32)> Closed<F> {
    fn new(spec: &HddSpec, depth: u32, next: F) -> Closed<F> {
        spec.check().expect("a good data sheet");
        let arrived = vec![0; depth as usize];
        let disk = Hdd::new(spec, SECTORS);
        Closed { disk, depth, next, due: BinaryHeap::new(), arrived, latencies_ns: Vec::new() }
    }

    fn submit(&mut self, tag: u32, now_ns: u64) {
        let (op, sector, nr_sectors) = (self.next)();
        self.arrived[tag as usize] = now_ns;
        let job = Job { hctx: 0, tag, op, sector, nr_sectors };
        if let Some(at) = self.disk.done_at(&job, Instant::from_ns(now_ns)) {
            self.due.push(Reverse((at.as_ns(), tag, now_ns)));
        }
    }

    /// Runs until `until_ns`. Returns the I/Os per second.
    fn run(&mut self, until_ns: u64) -> f64 {
        (0..self.depth).for_each(|tag| self.submit(tag, 0));
        loop {
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            let choice = self.disk.next_choice().map(|(_, at)| at.as_ns());
            let now_ns = due.into_iter().chain(choice).min().expect("I/O is in flight, so the disk has a next event");
            if now_ns > until_ns {
                return self.latencies_ns.len() as f64 / (until_ns as f64 / 1e9);
            }
            while let Some((job, at)) = self.disk.chosen(Instant::from_ns(now_ns)) {
                self.due.push(Reverse((at.as_ns(), job.tag, self.arrived[job.tag as usize])));
            }
            while let Some(Reverse((at, tag, arrived))) = self.due.peek().copied().filter(|Reverse(d)| d.0 <= now_ns) {
                self.due.pop();
                assert!(at >= arrived, "an I/O completes after its arrival");
                self.latencies_ns.push(at - arrived);
                self.submit(tag, now_ns);
            }
        }
    }

    fn longest_ms(&self) -> u64 {
        self.latencies_ns.iter().max().copied().unwrap_or_default() / 1_000_000
    }
}

const MINUTE: u64 = 60_000_000_000;

fn random(op: Op) -> impl FnMut() -> (Op, u64, u32) {
    let mut rng = Rng::new(7);
    move || (op, rng.below(SECTORS / 8 - 1) * 8, 8)
}

fn sequential(op: Op, from: u64, sectors: u32) -> impl FnMut() -> (Op, u64, u32) {
    let mut at = from;
    move || {
        at += u64::from(sectors);
        (op, at - u64::from(sectors), sectors)
    }
}

/// HGST Ultrastar 15K450 (FC-AL) specification, table 7 (average seek 3.3 and 3.8 ms); the other seek times as in the
/// defaults.
fn sas_15k() -> HddSpec {
    HddSpec {
        rpm: 15_000,
        seek_track_us: 280.0,
        seek_avg_us: 3300.0,
        seek_full_us: 5500.0,
        write_settle_us: 500.0,
        ncq: 128,
        write_cache: false,
        ..HddSpec::default()
    }
}

fn random_read_iops(spec: &HddSpec, depth: u32) -> f64 {
    Closed::new(spec, depth, random(Op::Read)).run(MINUTE)
}

/// Published: 73.8 a second for a drive with 8.5 ms instead of 8.2 ms (Hitachi Deskstar 7K500 specification, table 12: 4096
/// reads take 55.5 s); deep queues improve nearline SATA drives "by nearly 100 %", and SAS drives "more than double" to
/// over 400 (Wikipedia, IOPS).
#[test]
fn random_reads_are_as_fast_as_published() {
    let nearline = HddSpec::default();
    let [one, deep] = [1, 32].map(|depth| random_read_iops(&nearline, depth));
    assert!((75.0..85.0).contains(&one), "{one}");
    assert!((150.0..200.0).contains(&deep), "{deep}");
    let [one, deep] = [1, 128].map(|depth| random_read_iops(&sas_15k(), depth));
    assert!((180.0..220.0).contains(&one), "{one}");
    assert!((400.0..550.0).contains(&deep) && deep > 2.0 * one, "{deep}");
}

#[test]
fn deeper_queues_help_up_to_the_drives_own() {
    let iops: Vec<f64> = [1, 4, 8, 16, 32].into_iter().map(|d| random_read_iops(&HddSpec::default(), d)).collect();
    assert!(iops.windows(2).all(|w| w[1] > 1.1 * w[0]), "{iops:?}");
    let deeper = random_read_iops(&HddSpec::default(), 128);
    assert!((deeper / iops[4] - 1.0).abs() < 0.03, "{deeper} against {iops:?}");
    let alone = random_read_iops(&HddSpec { ncq: 1, ..HddSpec::default() }, 32);
    assert!((alone / iops[0] - 1.0).abs() < 0.03, "{alone} against {iops:?}");
}

#[test]
fn sequential_reads_run_at_the_rate_of_the_zone() {
    for (from, mb) in [(0, 175.0), (SECTORS - (1 << 22), 83.0)] {
        for depth in [1, 8] {
            let iops = Closed::new(&HddSpec::default(), depth, sequential(Op::Read, from, 128)).run(MINUTE / 10);
            let read = iops * 65_536.0 / 1e6;
            assert!((read / mb - 1.0).abs() < 0.02, "{read} MB/s at {from}, depth {depth}");
        }
    }
}

/// The drive drops its read-ahead for another stream's command, so streams cost each other a seek per read.
#[test]
fn two_streams_seek_for_each_read() {
    let (mut a, mut b) = (sequential(Op::Read, 0, 256), sequential(Op::Read, SECTORS / 2, 256));
    let mut n = 0;
    let both = move || {
        n += 1;
        if n % 2 == 0 { a() } else { b() }
    };
    let iops = Closed::new(&HddSpec::default(), 2, both).run(MINUTE / 10);
    assert!((60.0..140.0).contains(&iops), "{iops}");
}

#[test]
fn a_write_without_cache_misses_its_turn() {
    let spec = HddSpec { write_cache: false, ..HddSpec::default() };
    let iops = Closed::new(&spec, 1, sequential(Op::Write, 0, 8)).run(MINUTE / 10);
    assert!((iops - 120.0).abs() < 2.0, "one write for each of 120 revolutions a second: {iops}");
    let cached = Closed::new(&HddSpec::default(), 1, sequential(Op::Write, 0, 8)).run(MINUTE / 10);
    assert!(cached > 50.0 * iops, "{cached}");
}

/// The buffer takes writes at once until it is full; from then on the medium sets the rate, at any depth.
#[test]
fn a_full_write_cache_is_as_slow_as_the_medium() {
    for depth in [1, 32] {
        let mut load = Closed::new(&HddSpec::default(), depth, random(Op::Write));
        let iops = load.run(MINUTE);
        assert!((150.0..300.0).contains(&iops), "{iops}");
        assert!(load.latencies_ns[..CACHED_WRITES / 2].iter().all(|ns| *ns < 10_000_000), "{:?}", load.latencies_ns);
    }
}

#[test]
fn a_flush_waits_for_cached_writes() {
    let mut rng = Rng::new(3);
    let mut n = 0;
    let next = move || {
        n += 1;
        if n % 2 == 0 { (Op::Flush, 0, 0) } else { (Op::Write, rng.below(SECTORS - 8), 8) }
    };
    let mut load = Closed::new(&HddSpec::default(), 1, next);
    load.run(MINUTE / 10);
    let flushes: Vec<u64> = load.latencies_ns.iter().skip(1).step_by(2).copied().collect();
    let mean_ms = flushes.iter().sum::<u64>() as f64 / flushes.len() as f64 / 1e6;
    assert!((11.0..13.5).contains(&mean_ms), "a seek and half a turn: {mean_ms}");
}

/// Commands around one place arrive for ever, and one is at the other end of the disk.
#[test]
fn a_distant_command_does_not_starve() {
    let mut rng = Rng::new(5);
    let mut n = 0;
    let next = move || {
        n += 1;
        if n % 1000 == 500 { (Op::Read, SECTORS - 8, 8) } else { (Op::Read, rng.below(1 << 16) * 8, 8) }
    };
    let mut load = Closed::new(&HddSpec::default(), 32, next);
    load.run(MINUTE);
    // A command that has waited 64 times the longest positioning goes before each that arrives later.
    let longest = (13_700 + 8_400) * AGEING / 1000 + 32 * 22;
    assert!(load.longest_ms() > 100 && load.longest_ms() < longest, "{} ms", load.longest_ms());
}

#[test]
fn the_same_commands_take_the_same_times() {
    let run = || {
        let mut rng = Rng::new(11);
        let next = move || (rng.pick(&[Op::Read, Op::Write, Op::Flush]), rng.below(SECTORS - 2048), 2048);
        let mut load = Closed::new(&HddSpec::default(), 16, next);
        load.run(MINUTE / 6);
        load.latencies_ns
    };
    assert_eq!(run(), run());
}

#[test]
fn figures_of_different_data_sheets_are_rejected() {
    let e = |spec: HddSpec| spec.check().unwrap_err().1;
    let default = HddSpec::default();
    assert_eq!(e(HddSpec { rpm: 7, ..default }), "rpm = 7: must be 1000..=30000");
    assert_eq!(e(HddSpec { inner_mb: 300.0, ..default }), "inner_mb = 300: must be 1..=175");
    assert_eq!(
        e(HddSpec { seek_avg_us: 3000.0, ..default }),
        "seek_avg_us = 3000: must be 5033..=10233 with seek_track_us = 700 and seek_full_us = 13700; take all three from \
         one data sheet"
    );
}
