// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The controller on disks of several kinds, in virtual time: a capped cloud disk, SSDs, hard disks. Submitters keep a
//! number of requests in flight, in batches, as fio's `iodepth_batch_submit` and `iodepth_batch_complete` do.

use crate::bio::{Bio, DataRef, OpFlags};
use crate::elevator::interface::Elevator;
use crate::elevator::k2::K2;
use crate::elevator::testbed::TestBed;
use crate::id::{CpuId, HctxId, Sector};
use crate::limits::Limits;
use crate::request::Rq;
use crate::time::Instant;
use sim::rng::Rng;
use std::collections::BTreeMap;

const HCTX: HctxId = HctxId::new(0);
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A model of when a disk completes a request that it gets now.
enum Disk {
    /// A cap on requests and bytes, first come, first served, then a fixed latency.
    Capped { latency_ns: u64, request_ns: u64, sector_ns: u64, free_at: u64 },
    /// Parallel units, each of which takes a random time for a request.
    Ssd { latency_ns: u64, units: Vec<u64> },
    /// One head. The more requests there are, the nearer is the next one.
    Hdd { seek_ns: u64, free_at: u64 },
}

impl Disk {
    fn capped(iops: u64, mb_per_sec: u64, latency_us: u64) -> Disk {
        let sector_ns = 512_000 / mb_per_sec;
        Disk::Capped { latency_ns: latency_us * US, request_ns: 1_000_000_000 / iops, sector_ns, free_at: 0 }
    }

    fn ssd(units: usize, latency_us: u64) -> Disk {
        Disk::Ssd { latency_ns: latency_us * US, units: vec![0; units] }
    }

    fn hdd() -> Disk {
        Disk::Hdd { seek_ns: 8 * MS, free_at: 0 }
    }

    /// `depth`: requests at the disk, this one too.
    fn done_at(&mut self, now: u64, nr_sectors: u32, depth: usize, rng: &mut Rng) -> u64 {
        // Uniform between a half and one and a half times the mean.
        let mut spread = |ns: u64| ns / 2 + rng.below(ns + 1);
        match self {
            Disk::Capped { latency_ns, request_ns, sector_ns, free_at } => {
                *free_at = (*free_at).max(now) + (*request_ns).max(*sector_ns * u64::from(nr_sectors));
                *free_at + *latency_ns
            }
            Disk::Ssd { latency_ns, units } => {
                let unit = units.iter_mut().min().expect("a disk has units");
                *unit = (*unit).max(now) + spread(*latency_ns);
                *unit
            }
            Disk::Hdd { seek_ns, free_at } => {
                let shorter = 1.0 + (depth as f64).ln() / 2.0;
                *free_at = (*free_at).max(now) + spread((*seek_ns as f64 / shorter) as u64);
                *free_at
            }
        }
    }
}

/// Keeps `depth` requests in flight and submits new ones when `batch` have completed.
#[derive(Clone, Copy)]
struct Load {
    depth: u32,
    batch: u32,
    nr_sectors: u32,
    write: bool,
}

const JOURNAL: Load = Load { depth: 1, batch: 1, nr_sectors: 16, write: true };

/// Random reads.
const fn reads(depth: u32, batch: u32, nr_sectors: u32) -> Load {
    Load { depth, batch, nr_sectors, write: false }
}

struct Submitter {
    load: Load,
    owed: u32,
    /// Latencies since the last report, ns.
    latencies: Vec<u64>,
    sectors: u64,
}

struct World {
    bed: TestBed,
    e: K2<parking_lot::RawMutex>,
    disk: Disk,
    rng: Rng,
    now: u64,
    subs: Vec<Submitter>,
    /// By time of completion, then order.
    at_disk: BTreeMap<(u64, u64), (Rq, usize, u64)>,
    seq: u64,
    tags: usize,
}

/// What a submitter got in an interval.
#[derive(Clone, Copy, Debug)]
struct Got {
    iops: f64,
    mean_us: u64,
    p99_us: u64,
}

impl World {
    fn new(disk: Disk, loads: &[Load], tunables: &[(&str, u64)]) -> World {
        let e = K2::new(2048, 1024);
        for (name, value) in tunables {
            e.set_tunable(name, *value).expect("test tunables are valid");
        }
        let subs = loads.iter().map(|l| Submitter { load: *l, owed: 0, latencies: Vec::new(), sectors: 0 }).collect();
        let bed = TestBed::with_submitters(loads.len() as u32, 2048, 1024, Limits::default()).with_nomerges(2);
        let (rng, at_disk) = (Rng::new(7), BTreeMap::new());
        let mut world = World { bed, e, disk, rng, now: 1_000_000_000, subs, at_disk, seq: 0, tags: 1024 };
        (0..loads.len()).for_each(|i| world.start(i));
        world
    }

    fn start(&mut self, i: usize) {
        self.subs[i].owed = self.subs[i].load.depth;
        self.submit(i);
    }

    /// Changes the load of a submitter from its next batch on.
    fn change(&mut self, i: usize, load: Load) {
        let more = load.depth.saturating_sub(self.subs[i].load.depth);
        self.subs[i].load = load;
        self.subs[i].owed += more;
    }

    fn submit(&mut self, i: usize) {
        let load = self.subs[i].load;
        let now = Instant::from_ns(self.now);
        let mut rqs = Vec::new();
        for _ in 0..core::mem::take(&mut self.subs[i].owed) {
            let sector = Sector(self.rng.below(1 << 30) * 8);
            let bio = match load.write {
                true => Bio::write(sector, load.nr_sectors, DataRef::NONE).with_flags(OpFlags::SYNC),
                false => Bio::read(sector, load.nr_sectors, DataRef::NONE),
            };
            let bio = self.bed.bio_of(i as u32, bio.with_user_data(i as u64), now);
            rqs.push(self.bed.request_on(CpuId::new(0), HCTX, bio, now));
        }
        self.e.insert(&self.bed.cx(now), &mut rqs, false, &mut Vec::new());
        self.run();
    }

    fn run(&mut self) {
        let now = Instant::from_ns(self.now);
        let mut out = Vec::new();
        self.e.dispatch(&self.bed.cx(now), HCTX, self.tags - self.at_disk.len(), &mut out);
        for rq in out {
            let fields = self.bed.get(&rq);
            let (i, start, nr_sectors) = (fields.bio_head().submitter(), fields.start_time(), fields.nr_sectors());
            let done = self.disk.done_at(self.now, nr_sectors, self.at_disk.len() + 1, &mut self.rng);
            self.seq += 1;
            self.at_disk.insert((done, self.seq), (rq, i, start.as_ns()));
        }
    }

    fn step(&mut self) {
        let ((at, _), (rq, i, start)) = self.at_disk.pop_first().expect("a request keeps the disk busy");
        self.now = at;
        let sub = &mut self.subs[i];
        sub.latencies.push(at - start);
        sub.sectors += u64::from(self.bed.get(&rq).nr_sectors());
        sub.owed += 1;
        self.e.completed(&self.bed.cx(Instant::from_ns(at)), &rq);
        self.bed.free(rq);
        self.run();
        let load = self.subs[i].load;
        if self.subs[i].owed >= load.batch.min(load.depth) {
            self.submit(i);
        }
    }

    /// Lets `ms` pass and returns what each submitter got.
    fn pass_ms(&mut self, ms: u64) -> Vec<Got> {
        let end = self.now + ms * MS;
        self.subs.iter_mut().for_each(|s| s.latencies.clear());
        while self.at_disk.first_key_value().is_some_and(|((at, _), _)| *at < end) {
            self.step();
        }
        self.now = end;
        let got = |s: &mut Submitter| {
            s.latencies.sort_unstable();
            let n = s.latencies.len().max(1);
            Got {
                iops: s.latencies.len() as f64 * 1000.0 / ms as f64,
                mean_us: s.latencies.iter().sum::<u64>() / n as u64 / US,
                p99_us: s.latencies.get(n * 99 / 100).map_or(0, |l| l / US),
            }
        };
        self.subs.iter_mut().map(got).collect()
    }
}

/// Returns what the journal and all others get with this bound, once the controller has settled.
fn settled(disk: Disk, loads: &[Load], tunables: &[(&str, u64)], seconds: u64) -> (Got, f64, u32) {
    let mut w = World::new(disk, loads, tunables);
    w.pass_ms(1000 * seconds);
    let got = w.pass_ms(1000 * seconds);
    let bulk = got[1..].iter().map(|g| g.iops).sum();
    let found = w.e.state.lock().found();
    (got[0], bulk, found.unwrap_or(0))
}

const UNBOUND: [(&str, u64); 1] = [("max_inflight", 65_536)];

#[test]
fn on_a_capped_disk_the_bound_is_rate_times_latency() {
    // 750 MB/s in 64 KiB requests and 2.5 ms: 28.6 requests keep it busy, 97 % need 27.8.
    let scan = [JOURNAL, reads(110, 55, 128), reads(110, 55, 128)];
    let disk = || Disk::capped(18_000, 750, 2500);
    let (free, free_bulk, _) = settled(disk(), &scan, &UNBOUND, 2);
    let (journal, bulk, limit) = settled(disk(), &scan, &[], 2);
    assert!((28..=30).contains(&limit), "{limit}");
    assert!(free.mean_us > 15_000 && journal.mean_us < 2_650 && journal.p99_us < 3_300, "{free:?} {journal:?}");
    assert!(bulk > 0.97 * free_bulk, "{bulk} of {free_bulk}");
}

#[test]
fn the_bound_follows_the_load() {
    let mut w = World::new(Disk::capped(18_000, 750, 2500), &[JOURNAL, reads(110, 55, 128), reads(110, 55, 128)], &[]);
    let limit = |w: &World| w.e.state.lock().limit(&w.e.rules(Instant::from_ns(w.now)));
    w.pass_ms(2000);
    for _ in 0..2 {
        // From bandwidth to IOPS: 18000 x 2.5 ms = 45.
        w.change(1, reads(110, 1, 8));
        w.change(2, reads(110, 1, 8));
        w.pass_ms(1000);
        assert!((43..=48).contains(&limit(&w)), "{}", limit(&w));
        assert!(w.pass_ms(500)[0].mean_us < 2_700);
        w.change(1, reads(110, 55, 128));
        w.change(2, reads(110, 55, 128));
        w.pass_ms(1000);
        assert!((28..=31).contains(&limit(&w)), "{}", limit(&w));
        assert!(w.pass_ms(500)[0].mean_us < 2_800);
    }
}

#[test]
fn on_an_ssd_the_bound_is_a_little_more_than_its_units() {
    for units in [4, 16, 64] {
        let loads = [JOURNAL, reads(256, 32, 8)];
        let (free, free_bulk, _) = settled(Disk::ssd(units, 200), &loads, &UNBOUND, 1);
        let (journal, bulk, limit) = settled(Disk::ssd(units, 200), &loads, &[], 2);
        assert!((units as u32 * 9 / 10..=2 * units as u32).contains(&limit), "{units} units: {limit}");
        assert!(2 * journal.mean_us < free.mean_us, "{units} units: {free:?} {journal:?}");
        // The journal now does more I/Os itself, and these take their part of the disk's rate.
        let (all, all_free) = (bulk + journal.iops, free_bulk + free.iops);
        assert!(all > 0.95 * all_free, "{units} units: {all} of {all_free}");
    }
}

#[test]
fn a_disk_that_gains_by_depth_keeps_it_unless_told_otherwise() {
    let loads = [JOURNAL, reads(32, 1, 8)];
    let (free, free_bulk, _) = settled(Disk::hdd(), &loads, &UNBOUND, 30);
    let (_, bulk, _) = settled(Disk::hdd(), &loads, &[], 30);
    assert!(bulk > 0.92 * free_bulk, "{bulk} of {free_bulk}");
    // 60 % of the throughput for a fraction of the latency: an option, not the default.
    let (journal, bulk, limit) = settled(Disk::hdd(), &loads, &[("throughput_pct", 60)], 30);
    assert!(bulk + journal.iops > 0.55 * free_bulk && limit <= 8, "{bulk} of {free_bulk}, {limit}");
    assert!(3 * journal.mean_us < free.mean_us, "{free:?} {journal:?}");
}

#[test]
fn bulk_alone_is_not_bound() {
    let disks: [fn() -> Disk; 3] = [|| Disk::capped(18_000, 750, 2500), || Disk::ssd(16, 200), Disk::hdd];
    for (i, disk) in disks.iter().enumerate() {
        let alone = [reads(64, 16, 8), reads(64, 1, 8)];
        let rate = |t: &[(&str, u64)]| {
            let mut w = World::new(disk(), &alone, t);
            w.pass_ms(3000).iter().map(|g| g.iops).sum::<f64>()
        };
        let (free, k2) = (rate(&UNBOUND), rate(&[]));
        assert!(k2 > 0.99 * free, "disk {i}: {k2} of {free}");
    }
}

#[test]
fn bound_is_lifted_after_guard_ms_and_returns_at_once() {
    let loads = [JOURNAL, reads(220, 1, 8)];
    let mut w = World::new(Disk::capped(18_000, 750, 2500), &loads, &[]);
    let limit = |w: &World| w.e.state.lock().limit(&w.e.rules(Instant::from_ns(w.now)));
    w.pass_ms(1500);
    let found = limit(&w);
    assert!((43..=48).contains(&found), "{found}");
    // The journal is full; nothing more comes from it.
    w.subs[0].load.batch = u32::MAX;
    w.subs[0].load.depth = u32::MAX;
    w.pass_ms(900);
    assert!(limit(&w) < 2 * found, "guard_ms is not over");
    w.pass_ms(200);
    assert_eq!(limit(&w), super::NO_LIMIT);
    assert_eq!(w.at_disk.len(), 220);
    w.subs[0].load = JOURNAL;
    w.start(0);
    assert_eq!(limit(&w), found, "what was found is remembered");
    w.pass_ms(500);
    assert!(w.pass_ms(500)[0].p99_us < 3_300);
}
