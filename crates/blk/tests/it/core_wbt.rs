// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write-back throttling in the core: it keeps read latency low, and no throttled submitter is forgotten.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector};
use blk::settings::{Mode, QueueConfig, SettingError};
use blk::status::BlkStatus;
use sim::disk::Behaviour;
use sim::disk::service::Service;
use sim::harness::Harness;
use sim::rng::Rng;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const SEC: u64 = 1000 * MS;

fn config(wbt: &str) -> QueueConfig {
    let mut c = QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: 64,
        scheduler: Some("none".into()),
        ..QueueConfig::default()
    };
    c.set("wbt_lat_usec", wbt).expect("a setting");
    c
}

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

/// Bios that adjoin nothing.
fn write(n: u64) -> Bio {
    Bio::write(Sector(n % 4096 * 16), 8, DataRef::new(0, n % 4096 * 4096)).with_user_data(n)
}

fn read(n: u64) -> Bio {
    Bio { op: Op::Read, ..write(n) }
}

fn discard(n: u64) -> Bio {
    Bio { op: Op::Discard, data: DataRef::NONE, ..write(n) }
}

const DIRECT: OpFlags = OpFlags::SYNC.union(OpFlags::IDLE);

/// A slow disk that serves one request after the other; one submitter floods it with write-back, another reads, one I/O
/// at a time. Returns the latencies of the reads after the first second, and the writes per second.
fn flood(wbt: &str, scheduler: &str) -> (Vec<u64>, u64) {
    let service = Service::Ssd { units: 1, read_ns: 100 * US, write_ns: 500 * US };
    let behaviour = Behaviour { service, record: false, ..Behaviour::default() };
    let c = QueueConfig { scheduler: Some(scheduler.into()), ..config(wbt) };
    let mut harness = Harness::new(3, behaviour, c, &[0, 1]);
    let (start, mut n, mut writes) = (harness.now, 0, 0);
    let (mut latencies, mut submitted) = (Vec::new(), 0);
    while harness.now < start + 5 * SEC {
        while harness.subs[0].outstanding() < 200 {
            harness.submit(0, write(n));
            n += 1;
        }
        if harness.subs[1].outstanding() == 0 {
            submitted = harness.now;
            harness.submit(1, read(n * 7));
        }
        assert!(harness.step(), "stuck\n{}", harness.describe());
        let late = harness.now > start + SEC;
        writes += harness.take_done(0).len() as u64 * u64::from(late);
        if !harness.take_done(1).is_empty() && late {
            latencies.push(harness.now - submitted);
        }
    }
    harness.run_dry(10_000);
    harness.check_idle();
    assert_eq!(harness.q.wbt().inflight, [0, 0]);
    latencies.sort_unstable();
    (latencies, writes / 4)
}

/// Changes to single-queue mode, which has no throttling.
fn to_sq(c: &mut QueueConfig) -> Result<(), SettingError> {
    c.set("wbt_lat_usec", "0")?;
    (c.mode, c.nr_hw_queues) = (Mode::Sq, None);
    Ok(())
}

#[test]
fn wbt_keeps_read_latency_under_a_flood_of_writes() {
    let median = |l: &[u64]| l[l.len() / 2];
    let (without, writes_without) = flood("0", "none");
    assert!(median(&without) > 25 * MS, "{} us without", median(&without) / US);
    let (with, writes_with) = flood("2000", "none");
    // The shortest read of a window is judged, so half of the reads may take a little longer.
    assert!(with[0] < 2 * MS && median(&with) < 2500 * US, "{} us with", median(&with) / US);
    assert!(with.last() < Some(&(5 * MS)), "{:?} ns at worst", with.last());
    assert!(writes_with * 2 > writes_without, "{writes_with} of {writes_without} writes per second are left");
    let (default, _) = flood("-1", "none");
    assert_eq!(default, with, "2 ms is the default of a disk that does not rotate");
}

#[test]
fn wbt_default_is_off_with_bfq_and_a_set_target_stays() {
    let target = |wbt: &str, scheduler: &str, rotational: bool| {
        let mut b = manual();
        b.limits.rotational = rotational;
        let c = QueueConfig { scheduler: Some(scheduler.into()), ..config(wbt) };
        Harness::new(1, b, c, &[0]).q.wbt_lat_usec()
    };
    assert_eq!([target("-1", "none", false), target("-1", "none", true)], [2_000, 75_000]);
    assert_eq!([target("-1", "bfq", false), target("300", "bfq", false)], [0, 300]);
    assert_eq!(target("0", "none", true), 0);
    let mut harness = Harness::new(1, manual(), config("-1"), &[0]);
    harness.rebuild(|c| c.set("scheduler", "bfq")).expect("a rebuild");
    assert_eq!((harness.q.wbt_lat_usec(), harness.q.wbt().enabled), (0, false));
    harness.rebuild(|c| c.set("scheduler", "kyber")).expect("a rebuild");
    assert_eq!((harness.q.wbt_lat_usec(), harness.q.wbt().enabled), (2_000, true));
    let e = Harness::try_new(
        1,
        manual(),
        QueueConfig { mode: Mode::Sq, nr_hw_queues: None, scheduler: None, ..config("5") },
        &[0],
    );
    assert!(e.err().expect("refused").0.contains("mode=sq has no write-back throttling"));
}

#[test]
fn write_back_is_kept_to_its_depth_and_nothing_else_is() {
    let mut harness = Harness::new(1, manual(), config("1000"), &[0, 1]);
    (0..20).for_each(|n| harness.submit(0, write(n)));
    assert_eq!((harness.disk.in_flight(), harness.subs[0].held()), (8, 12));
    (0..20).for_each(|n| harness.submit(0, discard(100 + n)));
    assert_eq!((harness.disk.in_flight(), harness.subs[0].held()), (12, 28), "discards are counted apart");
    // Neither reads nor direct writes of the same submitter wait behind them.
    (0..10).for_each(|n| harness.submit(0, read(200 + n)));
    (0..10).for_each(|n| harness.submit(0, write(300 + n).with_flags(DIRECT)));
    harness.submit(0, Bio::flush());
    assert_eq!((harness.disk.in_flight(), harness.subs[0].held()), (32, 28));
    // One that must not wait fails.
    harness.submit(0, write(400).with_flags(OpFlags::NOWAIT));
    let ended: Vec<_> = harness.take_done(0).iter().map(|d| (d.user_data, d.status)).collect();
    assert_eq!(ended, [(0, BlkStatus::Ok), (400, BlkStatus::Again)], "and the flush, for there is no cache");
    let wbt = harness.q.wbt();
    assert_eq!((wbt.inflight, wbt.wb_normal, wbt.wb_background, wbt.max_depth), ([8, 4], 8, 4, 16));
    let files = harness.q.debugfs();
    let of_wbt = files.iter().filter_map(|f| Some((f.path.strip_prefix("rqos/wbt/")?, f.text.as_str())));
    let expected = [
        ("curr_win_nsec", "100000000\n"),
        ("enabled", "2\n"),
        ("id", "0\n"),
        ("inflight", "0: inflight 8\n1: inflight 0\n2: inflight 4\n"),
        ("min_lat_nsec", "1000000\n"),
        ("unknown_cnt", "0\n"),
        ("wb_background", "4\n"),
        ("wb_normal", "8\n"),
    ];
    assert_eq!(of_wbt.collect::<Vec<_>>(), expected);
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += MS;
    harness.run_dry(10_000);
    let order: Vec<u64> = harness
        .disk
        .issues()
        .iter()
        .filter(|i| i.op == Op::Write && i.flags == OpFlags::NONE)
        .map(|i| i.sector)
        .collect();
    assert_eq!(order, (0..20).map(|n| n * 16).collect::<Vec<_>>(), "first come, first served");
    harness.check_idle();
    assert_eq!(harness.q.wbt().inflight, [0, 0]);
}

#[test]
fn a_write_that_merges_needs_no_token() {
    let mut harness = Harness::new(1, manual(), config("1000"), &[0]);
    harness.plug(0, 0);
    (0..8).for_each(|n| harness.submit(0, write(n)));
    // Before and after the last one, in the plug.
    harness.submit(0, Bio::write(Sector(7 * 16 + 8), 8, DataRef::new(0, 0)));
    harness.submit(0, Bio::write(Sector(7 * 16 - 8), 8, DataRef::new(0, 0)));
    assert_eq!((harness.subs[0].held(), harness.q.wbt().inflight), (0, [8, 0]));
    harness.submit(0, write(100));
    assert_eq!((harness.subs[0].held(), harness.disk.in_flight()), (1, 8), "a waiting submitter flushes its plug");
    harness.unplug(0);
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += MS;
    harness.run_dry(1000);
    harness.check_idle();
    assert_eq!(harness.q.wbt().inflight, [0, 0]);
}

#[test]
fn alone_write_back_gets_three_quarters_of_the_disk() {
    let service = Service::Ideal { ns: MS };
    let mut harness =
        Harness::new(1, Behaviour { service, record: false, ..Behaviour::default() }, config("2000"), &[0]);
    let (start, mut n, mut most) = (harness.now, 0, 0);
    while harness.now < start + SEC {
        while harness.subs[0].outstanding() < 100 {
            harness.submit(0, write(n));
            n += 1;
        }
        assert!(harness.step(), "stuck\n{}", harness.describe());
        harness.take_done(0);
        most = most.max(harness.disk.in_flight());
    }
    assert_eq!((most, harness.q.wbt().scale_step), (48 / 2, -2), "{:?}", harness.q.wbt());
    harness.run_dry(10_000);
    // Five windows without a verdict for each step, and then there is no reason for further wake-ups.
    let end = harness.now;
    harness.run(100);
    assert_eq!(harness.q.wbt().scale_step, 0);
    assert!(harness.now - end <= 10 * 100 * MS, "{} ms", (harness.now - end) / MS);
}

#[test]
fn throttled_bios_resume_when_wbt_is_off_and_survive_a_freeze() {
    for how in 0..3 {
        let mut harness = Harness::new(1, manual(), config("1000"), &[0, 1]);
        (0..30).for_each(|n| harness.submit((n % 2) as usize, write(n)));
        (0..10).for_each(|n| harness.submit(1, discard(100 + n)));
        assert_eq!(harness.disk.in_flight(), 12);
        match how {
            0 => {
                harness.q.set_live(&[("wbt_lat_usec", "0")]).expect("live");
                while harness.step_now() {}
                assert_eq!(harness.disk.in_flight(), 40);
            }
            1 => {
                harness.disk.release_all();
                harness.rebuild(|c| c.set("queue_depth", "2")).expect("a rebuild");
                assert!(harness.subs[0].held() + harness.subs[1].held() >= 20);
            }
            _ => {
                harness.disk.release_all();
                harness.rebuild(to_sq).expect("a rebuild");
            }
        }
        harness.disk.behave(|b| b.manual = false);
        harness.disk.release_all();
        harness.now += MS;
        harness.run_dry(10_000);
        harness.check_idle();
        assert_eq!(harness.q.wbt().inflight, [0, 0], "way {how}");
    }
}

#[test]
fn a_token_that_waits_for_a_tag_is_not_lost_with_the_mode() {
    let mut harness = Harness::new(1, manual(), QueueConfig { queue_depth: 8, ..config("1000") }, &[0]);
    (0..8).for_each(|n| harness.submit(0, read(n)));
    (0..4).for_each(|n| harness.submit(0, write(100 + n)));
    assert_eq!((harness.subs[0].waiting(), harness.q.wbt().inflight), (4, [1, 0]));
    harness.disk.release_all();
    harness.rebuild(to_sq).expect("a rebuild");
    harness.disk.behave(|b| b.manual = false);
    harness.run_dry(1000);
    harness.check_idle();
    assert_eq!(harness.q.wbt().inflight, [0, 0]);
}

#[test]
fn a_large_write_is_cut_and_each_piece_needs_a_token() {
    let mut b = manual();
    (b.limits.max_hw_sectors, b.limits.max_sectors) = (8, 8);
    let mut harness = Harness::new(1, b, config("1000"), &[0]);
    harness.submit(0, Bio::write(Sector(0), 8 * 20, DataRef::new(0, 0)));
    assert_eq!((harness.disk.in_flight(), harness.subs[0].held()), (8, 1));
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += MS;
    harness.run_dry(1000);
    assert_eq!((harness.disk.issues().len(), harness.take_done(0).len()), (20, 1));
    harness.check_idle();
    assert_eq!(harness.q.wbt().inflight, [0, 0]);
}

#[test]
fn random_stacks_lose_no_bio_and_no_token() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let (mut harness, cpus) = random_harness(seed, &mut rng);
        let (mut submitted, mut ended) = (0u64, 0u64);
        while submitted < 600 {
            let s = rng.below(cpus as u64) as usize;
            let plugged = rng.below(3) == 0;
            if plugged {
                harness.plug(s, 0);
            }
            for _ in 0..1 + rng.below(30) {
                submitted += u64::from(harness.try_submit(s, random_bio(&mut rng)).is_ok());
            }
            if plugged {
                harness.unplug(s);
            }
            for _ in 0..rng.below(12) {
                harness.step();
            }
            ended += (0..cpus).map(|s| harness.take_done(s).len() as u64).sum::<u64>();
            disturb(seed, &mut rng, &mut harness);
        }
        // Windows continue as long as a token is in use, so a lost token would keep the harness busy for ever.
        let hung = harness.now + 10 * SEC;
        while harness.subs.iter().any(|s| s.outstanding() > 0) {
            assert!(
                harness.step() && harness.now < hung,
                "seed {seed}: bios are stuck, {:?}\n{}",
                harness.q.wbt(),
                harness.describe()
            );
            ended += (0..cpus).map(|s| harness.take_done(s).len() as u64).sum::<u64>();
        }
        assert_eq!(submitted, ended, "seed {seed}");
        harness.check_idle();
        assert_eq!(harness.q.wbt().inflight, [0, 0], "seed {seed}");
    }
}

fn random_harness(seed: u64, rng: &mut Rng) -> (Harness, usize) {
    let mut c = config(rng.pick(&["20", "500", "-1"]));
    c.scheduler = Some(rng.pick(&crate::DRAWN).into());
    c.queue_depth = rng.pick(&[1, 2, 3, 16, 64]);
    c.topology = CpuTopology::uniform(4);
    c.nr_hw_queues = Some(1 + rng.below(4) as u16);
    c.rq_affinity = rng.below(3) as u8;
    if rng.below(3) == 0 {
        c.set("iops_write", "30000").expect("in range");
    }
    let mut behaviour = Behaviour {
        at_once: rng.pick(&[0, 0, 300]),
        resource: rng.pick(&[0, 0, 50]),
        dev_resource: rng.pick(&[0, 0, 50]),
        give_back: rng.pick(&[0, 0, 20]),
        issue_error: rng.pick(&[0, 0, 20]),
        complete_error: rng.pick(&[0, 20]),
        service: Service::Any { max_ns: 200_000 },
        record: false,
        ..Behaviour::default()
    };
    behaviour.limits.write_cache = rng.below(2) == 0;
    if rng.below(3) == 0 {
        (behaviour.limits.max_hw_sectors, behaviour.limits.max_sectors) = (16, 16);
    }
    let cpus: Vec<u16> = (0..1 + rng.below(5)).map(|_| rng.below(4) as u16).collect();
    (Harness::new(seed, behaviour, c, &cpus), cpus.len())
}

/// Settings and CPUs change.
fn disturb(seed: u64, rng: &mut Rng, harness: &mut Harness) {
    match rng.below(60) {
        0 => harness.q.set_live(&[("wbt_lat_usec", rng.pick(&["0", "100", "-1"]))]).expect("live"),
        1 => {
            let depth = rng.pick(&["1", "4", "32"]);
            harness.rebuild(|c| c.set("queue_depth", depth)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        2 => {
            let name = rng.pick(&["none", "kyber", "bfq"]);
            harness.rebuild(|c| c.set("scheduler", name)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        3 => {
            let cpu = CpuId::new(rng.below(4) as u32);
            if harness.q.begin_offline(cpu).is_ok() {
                harness.until_offline(cpu);
            }
        }
        4 => (0..4).for_each(|cpu| harness.q.online(CpuId::new(cpu))),
        _ => {}
    }
}

fn random_bio(rng: &mut Rng) -> Bio {
    let sector = rng.below(1 << 9) * 8;
    let bio = Bio::write(Sector(sector), 8 * (1 + rng.below(4) as u32), DataRef::new(0, sector << 9));
    let flags = rng.pick(&[
        OpFlags::NONE,
        OpFlags::NONE,
        OpFlags::BACKGROUND,
        OpFlags::SYNC,
        DIRECT,
        OpFlags::META,
        OpFlags::FUA,
        OpFlags::PREFLUSH,
        OpFlags::NOWAIT,
    ]);
    match rng.below(8) {
        0 | 1 => Bio { op: Op::Read, ..bio },
        2 => Bio { op: Op::Discard, data: DataRef::NONE, ..bio },
        3 if rng.below(4) == 0 => Bio::flush(),
        _ => bio.with_flags(flags),
    }
}
