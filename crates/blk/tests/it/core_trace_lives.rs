// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace of random I/O, checked as a history: every event must be possible after the events before it, with every
//! elevator, and in the end every bio and request must have completed.

use blk::bio::{Bio, DataRef, OpFlags};
use blk::cpumap::CpuTopology;
use blk::elevator::{LEGACY_NAMES, NAMES};
use blk::id::Sector;
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig};
use blk::time::Instant;
use blk::trace::{Event, EventKind};
use sim::disk::Behaviour;
use sim::harness::Harness;
use std::collections::BTreeMap;

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifeStage {
    Got,
    Inserted,
    Issued,
    Requeued,
}

/// The state after the events so far: bios without requests, and requests, by their first sector.
#[derive(Default)]
struct History {
    bios: BTreeMap<u64, u32>,
    rqs: BTreeMap<u64, (u32, LifeStage)>,
    plugged: bool,
    time: Instant,
    /// Events of each letter.
    counts: BTreeMap<char, usize>,
}

impl History {
    fn read(&mut self, e: &Event) {
        assert!(e.time >= self.time, "time goes back");
        self.time = e.time;
        *self.counts.entry(e.kind.letter()).or_default() += 1;
        let (sector, nr) = (e.sector().0, e.nr_sectors());
        match e.kind {
            EventKind::Queue => assert_eq!(self.bios.insert(sector, nr), None, "queued twice"),
            EventKind::Split => self.split(sector, nr),
            EventKind::GetRq => {
                assert_eq!(self.bios.remove(&sector), Some(nr), "a request without a bio");
                assert_eq!(self.rqs.insert(sector, (nr, LifeStage::Got)), None);
            }
            EventKind::BackMerge => self.back_merge(sector, nr),
            EventKind::FrontMerge => {
                assert_eq!(self.bios.remove(&sector), Some(nr), "merged without being queued");
                let (len, at) = self.rqs.remove(&(sector + u64::from(nr))).expect("a request behind it");
                assert_ne!(at, LifeStage::Issued, "merged into one that is at the driver");
                self.rqs.insert(sector, (len + nr, at));
            }
            EventKind::Plug => assert!(!core::mem::replace(&mut self.plugged, true), "plugged twice"),
            EventKind::Unplug => {
                assert!(core::mem::replace(&mut self.plugged, false), "unplugged without a plug");
                assert!(e.count() > 0);
            }
            EventKind::Insert => self.step(e, &[LifeStage::Got, LifeStage::Requeued], LifeStage::Inserted),
            EventKind::Issue => {
                self.step(e, &[LifeStage::Got, LifeStage::Inserted, LifeStage::Requeued], LifeStage::Issued);
            }
            EventKind::Requeue => self.step(e, &[LifeStage::Issued], LifeStage::Requeued),
            EventKind::Timeout => self.step(e, &[LifeStage::Issued], LifeStage::Issued),
            EventKind::Complete => {
                self.step(e, &[LifeStage::Issued], LifeStage::Issued);
                self.rqs.remove(&sector);
            }
        }
    }

    fn step(&mut self, e: &Event, from: &[LifeStage], to: LifeStage) {
        let (len, at) = self.rqs.get_mut(&e.sector().0).expect("no such request");
        assert_eq!(*len, e.nr_sectors(), "its length");
        assert!(from.contains(at), "it was {at:?}");
        assert!(e.hctx().is_some());
        assert!(to != LifeStage::Issued || e.tag().is_some(), "at the driver without a tag");
        *at = to;
    }

    /// Handles a split: the event has the front piece; the rest stays a bio.
    fn split(&mut self, sector: u64, nr: u32) {
        let whole = self.bios.remove(&sector).expect("nothing to cut");
        assert!(nr < whole, "cut at its end");
        self.bios.insert(sector, nr);
        self.bios.insert(sector + u64::from(nr), whole - nr);
    }

    /// Handles a back merge: of a bio after a request, or of a request after another one.
    fn back_merge(&mut self, sector: u64, nr: u32) {
        if self.bios.get(&sector) == Some(&nr) {
            self.bios.remove(&sector);
        } else {
            let (len, at) = self.rqs.remove(&sector).expect("merged without being there");
            assert!(len == nr && at != LifeStage::Issued, "{len} sectors, {at:?}");
        }
        let before = self.rqs.range_mut(..sector).next_back();
        let (start, (len, at)) = before.expect("no request before it");
        assert_eq!(start + u64::from(*len), sector, "the one before does not reach it");
        assert_ne!(*at, LifeStage::Issued, "merged into one that is at the driver");
        *len += nr;
    }

    fn count(&self, letter: char) -> usize {
        self.counts.get(&letter).copied().unwrap_or(0)
    }
}

fn harness(seed: u64, scheduler: &str, mode: Mode) -> Harness {
    let config = QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: 8,
        scheduler: Some(scheduler.into()),
        mode,
        ..QueueConfig::default()
    };
    let limits = Limits::with_max_hw_sectors(64);
    let faults = Behaviour { resource: 50, dev_resource: 50, give_back: 50, at_once: 300, ..Behaviour::default() };
    let mut harness = Harness::new(seed, Behaviour { limits, lost: 30, device_cap: 6, ..faults }, config, &[0]);
    // Lost completions are found by the timer of `io_timeout`.
    harness.patience_ns = u64::MAX;
    harness.subs[0].start_trace(100_000);
    harness
}

/// Submits bios in short runs of neighbours, forwards and backwards, alone and in plugs, each sector once; some are
/// split.
fn submit_some(harness: &mut Harness, seed: u64) -> usize {
    let mut x = seed * 2 + 1;
    let mut draw = |below: u64| {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (x >> 33) % below
    };
    let mut bios = 0;
    for run in 0..60 {
        let (n, nr) = (1 + draw(5), if draw(8) == 0 { 80 } else { 8u32 });
        // Places in an order that is not ascending, with room between them.
        let begin = (run * 37 % 61) * 512;
        let mut order: Vec<u64> = (0..n).collect();
        match draw(3) {
            0 => order.reverse(),
            1 => order.rotate_left(draw(n) as usize),
            _ => {}
        }
        let plugged = draw(2) == 0;
        if plugged {
            harness.plug(0, 0);
        }
        for i in order {
            let sector = begin + i * u64::from(nr);
            let flags = if draw(2) == 0 { OpFlags::SYNC } else { OpFlags::NONE };
            let data = DataRef::new(0, sector << 9);
            let bio =
                if run % 3 == 0 { Bio::read(Sector(sector), nr, data) } else { Bio::write(Sector(sector), nr, data) };
            if harness.try_submit(0, bio.with_flags(flags)).is_err() {
                harness.run(100_000);
                harness.submit(0, bio.with_flags(flags));
            }
            bios += 1;
        }
        if plugged {
            harness.unplug(0);
        }
        (0..draw(4)).for_each(|_| _ = harness.step());
    }
    harness.run_dry(1_000_000);
    bios
}

#[test]
fn every_event_is_possible_after_those_before_it() {
    let stacks = NAMES.map(|name| (name, Mode::Mq)).into_iter().chain(LEGACY_NAMES.map(|name| (name, Mode::Sq)));
    for (scheduler, mode) in stacks {
        let mut all: BTreeMap<char, usize> = BTreeMap::new();
        for seed in 0..25 {
            let mut harness = harness(seed, scheduler, mode);
            let bios = submit_some(&mut harness, seed);
            let mut events = Vec::new();
            assert_eq!(harness.subs[0].drain_trace(|e| events.push(*e)), 0);
            let mut history = History::default();
            for (i, e) in events.iter().enumerate() {
                let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.read(e)));
                assert!(read.is_ok(), "{scheduler}, seed {seed}: event {i} of {}: {e:?}", events.len());
            }
            let note = format!("{scheduler}, seed {seed}");
            assert!(history.bios.is_empty() && history.rqs.is_empty() && !history.plugged, "{note}: left over");
            assert_eq!(history.count('Q'), bios, "{note}");
            assert_eq!(history.count('P'), history.count('U'), "{note}");
            for (letter, n) in history.counts {
                *all.entry(letter).or_default() += n;
            }
        }
        // The cases cover the events for which they are made.
        let inserted = if scheduler == "none" { "" } else { "I" };
        for letter in format!("QGDCMFPURXm{inserted}").chars() {
            assert!(all.contains_key(&letter), "{scheduler}: no {letter} in {all:?}");
        }
    }
}
