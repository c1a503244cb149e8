// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits in the core: exact and even over a virtual minute, fair among submitters, live, and no bio is forgotten. The
//! harness polls only submitters with a reason, so it stops if no submitter waits for the next turn.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector, SubmitterId};
use blk::qos::rates::{IoLimits, LIMIT_NAMES, Rate};
use blk::queue::{Notify, RequestQueue};
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::time::Instant;
use sim::Lock;
use sim::disk::service::Service;
use sim::disk::{Behaviour, SimDisk};
use sim::harness::{Harness, MEM_SECTORS, START_NS};
use sim::mem::Mem;
use sim::rng::Rng;
use std::sync::{Arc, Mutex};

const MS: u64 = 1_000_000;
const SEC: u64 = 1000 * MS;

fn config(settings: &[(&str, u64)]) -> QueueConfig {
    let mut c = QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(2),
        scheduler: Some("none".into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    for (name, value) in settings {
        c.set(name, &value.to_string()).expect("a setting");
    }
    c
}

/// The behaviour of a disk that is always faster than its limit.
fn fast() -> Behaviour {
    Behaviour { service: Service::Ideal { ns: 1 }, ..Behaviour::default() }
}

fn harness(settings: &[(&str, u64)], cpus: &[u16]) -> Harness {
    let mut harness = Harness::new(1, fast(), config(settings), cpus);
    harness.patience_ns = 100 * SEC;
    harness
}

fn read(n: u64, nr: u32) -> Bio {
    Bio::read(Sector(n * 64 % (1 << 19)), nr, DataRef::new(0, (n % 64) << 16)).with_user_data(n)
}

fn write(n: u64, nr: u32) -> Bio {
    Bio { op: Op::Write, ..read(n, nr) }
}

/// Keeps submitter `s` at a depth of `depths[s]` for `ns`. Returns how many I/Os of each completed.
fn load(harness: &mut Harness, depths: &[u32], ns: u64, bio: impl Fn(usize, u64) -> Bio) -> Vec<u64> {
    let until = harness.now + ns;
    let (mut n, mut ended) = (0, vec![0; depths.len()]);
    loop {
        for (s, depth) in depths.iter().enumerate() {
            ended[s] += harness.take_done(s).iter().filter(|d| d.status == BlkStatus::Ok).count() as u64;
            while harness.subs[s].outstanding() < *depth {
                harness.submit(s, bio(s, n));
                n += 1;
            }
        }
        if harness.q.next_timer().is_some_and(|t| t.as_ns() > until) && harness.disk.in_flight() == 0 {
            harness.now = until;
            return ended;
        }
        assert!(harness.step(), "bios are stuck\n{}", harness.describe());
    }
}

fn issue_times(harness: &Harness, op: Op) -> Vec<u64> {
    harness.disk.issues().iter().filter(|i| i.op == op).map(|i| i.now).collect()
}

#[test]
fn rates_are_exact_over_a_virtual_minute() {
    for (rate, seconds) in [(3, 60), (999, 60), (1000, 60), (50_000, 4), (1_000_000, 1)] {
        let mut harness = harness(&[("iops_total", rate)], &[0, 1]);
        harness.disk.behave(|b| b.record = false);
        let ended = load(&mut harness, &[16, 3], seconds * SEC, |_, n| read(n, 8));
        let all = ended.iter().sum::<u64>();
        assert!(all.abs_diff(rate * seconds) <= 1, "{all} I/Os in {seconds} s at {rate} per second");
        harness.run_dry(1000);
        harness.check_idle();
    }
}

#[test]
fn bandwidth_is_exact_at_odd_rates() {
    for (rate, nr) in [(1_000_003, 8), (123_457, 1), (77_777_777, 128)] {
        let mut harness = harness(&[("bps_read", rate)], &[0]);
        harness.disk.behave(|b| b.record = false);
        let ended = load(&mut harness, &[8], 60 * SEC, |_, n| read(n, nr))[0];
        let bytes = ended * u64::from(nr) * 512;
        assert!(bytes.abs_diff(rate * 60) <= u64::from(nr) * 512, "{bytes} bytes in a minute at {rate} per second");
        harness.run_dry(1000);
    }
}

#[test]
fn ios_are_evenly_spaced() {
    let mut harness = harness(&[("iops_total", 100)], &[0, 1, 1]);
    load(&mut harness, &[1, 5, 64], 3 * SEC, |_, n| write(n, 8));
    let t = issue_times(&harness, Op::Write);
    assert!(t.len() >= 300 && t.windows(2).all(|w| w[1] - w[0] == 10 * MS), "{t:?}");
    harness.run_dry(1000);
}

#[test]
fn a_burst_goes_at_once_and_the_rate_holds_after() {
    let mut harness = harness(&[("iops_write", 1000), ("iops_write_burst", 40)], &[0]);
    (0..100).for_each(|n| harness.submit(0, write(n, 8)));
    harness.run_dry(1000);
    let t = issue_times(&harness, Op::Write);
    assert_eq!(t.iter().filter(|t| **t == START_NS).count(), 40);
    assert_eq!(t[99] - START_NS, 60 * MS);
    harness.now += SEC;
    let again = harness.now;
    (0..50).for_each(|n| harness.submit(0, write(n, 8)));
    harness.run_dry(1000);
    assert_eq!(issue_times(&harness, Op::Write).iter().filter(|t| **t == again).count(), 40, "saved up again");
}

#[test]
fn submitters_of_different_depths_have_equal_shares() {
    for nr in 2..=8 {
        let depths: Vec<u32> = (0..nr).map(|s| [4, 64, 2, 200, 16, 3, 32, 7][s]).collect();
        let cpus: Vec<u16> = (0..nr as u16).map(|s| s % 2).collect();
        for limits in [&[("iops_total", 10_000)][..], &[("bps_total", 40_960_000)], &[("iops_read", 10_000)]] {
            let mut harness = harness(limits, &cpus);
            harness.disk.behave(|b| b.record = false);
            let ended = load(&mut harness, &depths, SEC, |_, n| read(n, 8));
            let (least, most) = (*ended.iter().min().expect("some"), *ended.iter().max().expect("some"));
            assert!(most - least <= 2 && ended.iter().sum::<u64>().abs_diff(10_000) <= 1, "{limits:?}: {ended:?}");
            harness.run_dry(10_000);
        }
    }
}

#[test]
fn depth_one_submitter_waits_one_turn_of_each_other() {
    let mut harness = harness(&[("iops_total", 1000)], &[0, 1, 1]);
    load(&mut harness, &[128, 128, 0], 10 * MS, |_, n| read(n, 8));
    for n in 0..50 {
        let start = harness.now;
        harness.submit(2, read(n, 8));
        while harness.take_done(2).is_empty() {
            for s in 0..2 {
                harness.take_done(s);
                harness.submit(s, read(1000 + n, 8));
            }
            assert!(harness.step(), "stuck\n{}", harness.describe());
        }
        assert!(harness.now - start <= 3 * MS + 1, "{} ns", harness.now - start);
    }
    harness.run_dry(10_000);
}

#[test]
fn a_held_write_holds_back_no_read_of_the_same_submitter() {
    let mut harness = harness(&[("iops_write", 10)], &[0]);
    (0..5).for_each(|n| harness.submit(0, write(n, 8)));
    assert_eq!((harness.subs[0].held(), harness.subs[0].waiting()), (4, 0));
    for n in 0..100 {
        harness.submit(0, read(n, 8));
    }
    assert_eq!(
        issue_times(&harness, Op::Read).iter().filter(|t| **t == START_NS).count(),
        63,
        "all the tags that are left"
    );
    harness.run_dry(1000);
    assert!(issue_times(&harness, Op::Read).iter().all(|t| *t < START_NS + MS));
    assert_eq!(issue_times(&harness, Op::Write), [0, 1, 2, 3, 4].map(|n| START_NS + n * 100 * MS));
    harness.check_idle();
}

#[test]
fn under_a_common_limit_a_submitters_ios_keep_their_order() {
    let mut harness = harness(&[("iops_total", 1000)], &[0]);
    let mut rng = Rng::new(5);
    let bios: Vec<Bio> = (0..60).map(|n| if rng.below(2) == 0 { read(n, 8) } else { write(n, 8) }).collect();
    bios.iter().for_each(|b| harness.submit(0, *b));
    harness.run_dry(1000);
    let sectors: Vec<u64> = harness.disk.issues().iter().map(|i| i.sector).collect();
    assert_eq!(sectors, bios.iter().map(|b| b.sector.0).collect::<Vec<_>>());
}

#[test]
fn flushes_are_unlimited_and_discards_are_writes_of_no_bytes() {
    let mut harness = harness(&[("iops_write", 10), ("bps_write", 4096)], &[0]);
    let discard = |n| Bio { op: Op::Discard, data: DataRef::NONE, ..write(n, 1024) };
    harness.submit(0, write(1, 8));
    (2..5).for_each(|n| harness.submit(0, discard(n)));
    (0..5).for_each(|_| harness.submit(0, Bio::flush()));
    assert_eq!(harness.subs[0].held(), 3);
    harness.run_dry(1000);
    assert_eq!(issue_times(&harness, Op::Discard), [1, 2, 3].map(|n| START_NS + n * 100 * MS));
}

#[test]
fn one_that_must_not_wait_fails_instead() {
    let mut harness = harness(&[("iops_total", 100)], &[0, 1]);
    let nowait = |n| read(n, 8).with_flags(OpFlags::NOWAIT);
    harness.submit(0, nowait(0));
    harness.submit(0, nowait(1));
    let ended: Vec<_> = harness.take_done(0).iter().map(|d| (d.user_data, d.status)).collect();
    assert_eq!(ended, [(1, BlkStatus::Again)]);
    harness.submit(1, read(2, 8));
    harness.now += 10 * MS;
    harness.submit(0, nowait(3));
    harness.run_dry(100);
    let again = harness.take_done(0).iter().filter(|d| d.status == BlkStatus::Again).count();
    assert_eq!(again, 1, "not past earlier ones");
    harness.check_idle();
}

#[test]
fn a_split_io_counts_once() {
    let mut b = fast();
    (b.limits.max_hw_sectors, b.limits.max_sectors) = (8, 8);
    let mut harness = Harness::new(1, b, config(&[("iops_total", 10), ("bps_total", 1 << 30)]), &[0]);
    harness.submit(0, read(0, 64));
    harness.submit(0, read(1, 64));
    harness.run_dry(1000);
    assert_eq!(issue_times(&harness, Op::Read).iter().filter(|t| **t == START_NS).count(), 8);
    assert_eq!(issue_times(&harness, Op::Read).len(), 16);
    assert_eq!(issue_times(&harness, Op::Read)[15], START_NS + 100 * MS);
}

#[test]
fn limits_change_live_and_apply_to_waiters() {
    let mut harness = harness(&[("iops_total", 1)], &[0, 1]);
    (0..100).for_each(|n| harness.submit((n % 2) as usize, read(n, 8)));
    assert_eq!(harness.subs[0].held() + harness.subs[1].held(), 99);
    harness.q.set_live(&[("iops_total", "1000")]).expect("live");
    // A submitter that sleeps until the second that was its turn before.
    assert!(harness.subs.iter().all(|s| harness.notifications.is_pending(s.id())));
    assert_eq!(harness.next_timer(), Some(Instant::ZERO));
    harness.run_dry(1000);
    let t = issue_times(&harness, Op::Read);
    assert_eq!(t[99] - t[1], 98 * MS);
    // Off: everything at once.
    harness.q.set_live(&[("iops_total", "1")]).expect("live");
    (0..50).for_each(|n| harness.submit((n % 2) as usize, write(n, 8)));
    harness.q.set_live(&[("iops_total", "0")]).expect("live");
    let now = harness.now;
    harness.run_dry(1000);
    assert!(issue_times(&harness, Op::Write).iter().all(|t| *t == now), "{:?}", issue_times(&harness, Op::Write));
    // On again, with one direction only.
    harness.q.set_live(&[("iops_write", "100"), ("iops_write_burst", "5")]).expect("live");
    (0..20).for_each(|n| harness.submit(0, write(n, 8)));
    assert_eq!(harness.subs[0].held(), 15);
    harness.run_dry(1000);
    harness.check_idle();
    for (settings, text) in [
        (&[("iops_total", "2000000000")][..], "0..=1000000000"),
        (&[("bps_read_burst", "4096")], "set bps_read as well"),
        (&[("queue_depth", "8")], "needs a queue freeze"),
        (&[("iops_write", "7"), ("iops_whole", "8")], "did you mean"),
    ] {
        let e = harness.q.set_live(settings).expect_err("refused").0;
        assert!(e.contains(text), "{e}");
    }
    assert_eq!(harness.q.config().io_limits.get("iops_write"), Some(100), "nothing of what was refused took effect");
}

#[test]
fn freeze_ignores_held_bios_and_they_survive_a_rebuild() {
    let mut harness = harness(&[("iops_total", 10)], &[0, 1]);
    (0..20).for_each(|n| harness.submit((n % 2) as usize, read(n, 8)));
    harness.rebuild(|c| c.set("scheduler", "mq-deadline")).expect("a rebuild");
    assert!(harness.subs[0].held() + harness.subs[1].held() >= 18);
    let c = harness.q.config();
    assert_eq!(c.io_limits.get("iops_total"), Some(10));
    harness.run_dry(1000);
    let t = issue_times(&harness, Op::Read);
    assert_eq!(t[19] - t[0], 19 * 100 * MS, "the rate is the same");
    // A change under freeze counts as well.
    (0..20).for_each(|n| harness.submit((n % 2) as usize, read(n, 8)));
    harness.rebuild(|c| c.set("iops_total", "0")).expect("a rebuild");
    let now = harness.now;
    harness.run_dry(1000);
    assert!(issue_times(&harness, Op::Read)[20..].iter().filter(|t| **t == now).count() >= 18);
    harness.check_idle();
}

/// Ends a freeze when it is notified, like another thread that does so at the worst moment.
#[derive(Clone, Default)]
struct Unfreezer(Arc<Mutex<Option<Arc<RequestQueue<Lock>>>>>);

impl Notify for Unfreezer {
    fn notify(&self, _submitter: SubmitterId) {
        let queue = self.0.lock().expect("no test panics here").take();
        if let Some(q) = queue {
            q.unfreeze();
        }
    }
}

#[test]
fn an_io_that_passes_the_limits_as_a_freeze_ends_is_sent() {
    for scheduler in ["none", "mq-deadline"] {
        let disk = SimDisk::new(Behaviour { manual: true, ..fast() }, Arc::new(Mem::new(MEM_SECTORS)), 1);
        let mut c = config(&[("iops_total", 1000), ("iops_total_burst", 4)]);
        c.scheduler = Some(scheduler.into());
        let unfreezer = Unfreezer::default();
        let q = RequestQueue::<Lock>::new(disk.clone(), c, Box::new(unfreezer.clone())).expect("good settings");
        let mut subs = [0, 1].map(|cpu| q.submitter(CpuId::new(cpu)).expect("a free submitter"));
        let t = |ms: u64| Instant::from_ns(START_NS + ms * MS);
        (0..5).for_each(|n| subs[0].submit(&read(n, 8), t(0)).expect("a free slot"));
        assert_eq!((subs[0].held(), disk.in_flight()), (1, 4), "{scheduler}");
        q.begin_freeze();
        *unfreezer.0.lock().expect("no test panics here") = Some(q.clone());
        // Gives the first submitter's I/O its turn, which ends the freeze, and finds that this I/O may go, too.
        subs[1].submit(&read(9, 8), t(10)).expect("a free slot");
        assert!(unfreezer.0.lock().expect("no test panics here").is_none(), "{scheduler}: the freeze is over");
        assert_eq!((subs[1].held(), subs[1].waiting(), disk.in_flight()), (0, 0, 5), "{scheduler}");
        disk.behave(|b| b.manual = false);
        disk.release_all();
        for sub in &mut subs {
            sub.poll(t(20));
            sub.poll(t(21));
            sub.reap(|d| assert_eq!(d.status, BlkStatus::Ok));
            assert_eq!(sub.outstanding(), 0, "{scheduler}");
        }
    }
}

#[test]
fn single_queue_mode_has_the_same_limits() {
    let c = QueueConfig { mode: Mode::Sq, nr_hw_queues: None, scheduler: None, ..config(&[("iops_read", 1000)]) };
    let mut harness = Harness::new(1, fast(), c, &[0, 1]);
    let ended = load(&mut harness, &[8, 8], SEC, |_, n| read(n, 8));
    assert!(ended[0].abs_diff(500) <= 1 && ended[1].abs_diff(500) <= 1, "{ended:?}");
    harness.run_dry(1000);
}

/// Checks that no window has more units than the rate and burst allow, except for units that a freeze held up.
fn check_never_above(seed: u64, what: &str, Rate { per_sec: rate, burst }: Rate, frozen_ns: u64, went: &[(u64, u64)]) {
    // With debt(i) = units before i - rate * time of i, the window from i to j holds too much if the debt grows by more than the
    // burst.
    let (mut least, mut before) = (i128::MAX, 0i128);
    for (t, units) in went {
        let paid = i128::from(*t) * i128::from(rate);
        let most = i128::from(burst.max(*units)) * i128::from(SEC) + i128::from(frozen_ns) * i128::from(rate);
        least = least.min(before * i128::from(SEC) - paid);
        before += i128::from(*units);
        let over = before * i128::from(SEC) - paid - least;
        assert!(over <= most + i128::from(rate), "seed {seed}: {what}={rate} burst {burst}: {over} of {most} at {t}");
    }
}

#[test]
fn random_stacks_lose_nothing_and_never_exceed_a_limit() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut c = config(&[]);
        c.scheduler = Some(rng.pick(&crate::DRAWN).into());
        c.queue_depth = rng.pick(&[1, 4, 64]);
        c.topology = CpuTopology::uniform(4);
        c.nr_hw_queues = Some(1 + rng.below(4) as u16);
        if rng.below(4) == 0 {
            (c.mode, c.nr_hw_queues, c.scheduler) = (Mode::Sq, None, None);
        }
        for name in LIMIT_NAMES.iter().filter(|n| !n.ends_with("_burst")) {
            if rng.below(3) == 0 {
                let (low, high) = if name.starts_with("iops") { (50, 20_000) } else { (200_000, 400_000_000) };
                c.set(name, &(low + rng.below(high)).to_string()).expect("in range");
                if rng.below(2) == 0 {
                    c.set(&format!("{name}_burst"), &rng.below(high / 10).to_string()).expect("in range");
                }
            }
        }
        let behaviour = Behaviour {
            at_once: rng.pick(&[0, 0, 300]),
            resource: rng.pick(&[0, 0, 50]),
            give_back: rng.pick(&[0, 0, 20]),
            service: Service::Any { max_ns: 20_000 },
            record: false,
            ..Behaviour::default()
        };
        let cpus: Vec<u16> = (0..1 + rng.below(5)).map(|_| rng.below(4) as u16).collect();
        let limits = c.io_limits;
        let mut harness = Harness::new(seed, behaviour, c, &cpus);
        harness.patience_ns = 100 * SEC;
        random_run(seed, &mut harness, &mut rng, &limits);
    }
}

/// Records which bios passed the limits and when, from the outside: a submitter holds one bio less. Each submitter has
/// one kind of bio, so that the bios can be distinguished.
struct Watch {
    kinds: Vec<(Op, u32)>,
    handed_in: Vec<u64>,
    past: Vec<u64>,
    /// Reads, writes: time and bytes.
    went: [Vec<(u64, u64)>; 2],
    /// Longest freeze: turns that come while the queue is frozen are taken after the freeze, all at once.
    frozen_ns: u64,
}

impl Watch {
    fn note(&mut self, harness: &Harness) {
        for (s, (op, sectors)) in self.kinds.iter().enumerate() {
            let past = self.handed_in[s] - harness.subs[s].held() as u64;
            for _ in self.past[s]..past {
                self.went[usize::from(*op == Op::Write)].push((harness.now, u64::from(*sectors) << 9));
            }
            self.past[s] = past;
        }
    }
}

/// Submits at random until 400 bios were accepted and have completed.
fn random_run(seed: u64, harness: &mut Harness, rng: &mut Rng, limits: &IoLimits) {
    let nr = harness.subs.len();
    let kinds = (0..nr).map(|_| (rng.pick(&[Op::Read, Op::Write]), 1 + rng.below(64) as u32)).collect();
    let zero = vec![0u64; nr];
    let mut watch = Watch { kinds, handed_in: zero.clone(), past: zero, went: Default::default(), frozen_ns: 0 };
    let (mut submitted, mut ended) = (0u64, 0u64);
    while submitted < 400 {
        let s = rng.below(nr as u64) as usize;
        for _ in 0..1 + rng.below(20) {
            let (op, sectors) = watch.kinds[s];
            let accepted = harness.try_submit(s, Bio { op, ..read(submitted, sectors) }).is_ok();
            submitted += u64::from(accepted);
            watch.handed_in[s] += u64::from(accepted);
        }
        for _ in 0..rng.below(12) {
            watch.note(harness);
            harness.step();
        }
        watch.note(harness);
        ended += (0..nr).map(|s| harness.take_done(s).len() as u64).sum::<u64>();
        if rng.below(40) == 0 {
            let (to, start) = (rng.pick(&["4", "32", "64"]), harness.now);
            harness.rebuild(|c| c.set("queue_depth", to)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            watch.frozen_ns += harness.now - start;
            watch.note(harness);
        }
    }
    while harness.subs.iter().any(|s| s.outstanding() > 0) {
        assert!(harness.step(), "seed {seed}: bios are stuck\n{}", harness.describe());
        watch.note(harness);
        ended += (0..nr).map(|s| harness.take_done(s).len() as u64).sum::<u64>();
    }
    assert_eq!(submitted, ended, "seed {seed}");
    harness.check_idle();
    let went = &watch.went;
    let mut all: Vec<(u64, u64)> = went.concat();
    all.sort_unstable_by_key(|w| w.0);
    let ones = |w: &[(u64, u64)]| w.iter().map(|(t, _)| (*t, 1)).collect::<Vec<_>>();
    for (what, rate, list) in [
        ("iops_total", limits.iops.total, ones(&all)),
        ("iops_read", limits.iops.read, ones(&went[0])),
        ("iops_write", limits.iops.write, ones(&went[1])),
        ("bps_total", limits.bps.total, all.clone()),
        ("bps_read", limits.bps.read, went[0].clone()),
        ("bps_write", limits.bps.write, went[1].clone()),
    ] {
        if rate.per_sec > 0 {
            check_never_above(seed, what, rate, watch.frozen_ns, &list);
        }
    }
}
