// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kyber in the core: a hardware queue that found no token is run when a token is freed. It does not wait for the core's
//! own retry, 3 ms later. Write zeroes are the domain with the fewest tokens, 16 for the whole disk.

use blk::bio::{Bio, DataRef, Op};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::QueueConfig;
use sim::disk::service::Service;
use sim::disk::{Answer, Behaviour};
use sim::harness::Harness;
use sim::rng::Rng;

const TOKENS: usize = 16;
const MS: u64 = 1_000_000;

fn config(cpus: u16, hw: u16) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(hw),
        queue_depth: 64,
        scheduler: Some("kyber".into()),
        ..QueueConfig::default()
    }
}

/// Bios that adjoin nothing.
fn write_zeroes(n: u64) -> Bio {
    let zeroes = Bio::write(Sector(n * 16), 8, DataRef::NONE).with_user_data(n);
    Bio { op: Op::WriteZeroes, ..zeroes }
}

#[test]
fn a_token_put_by_one_hardware_queue_runs_another_at_once() {
    let behaviour = Behaviour { manual: true, ..Behaviour::default() };
    let mut harness = Harness::new(1, behaviour, config(4, 4), &[0, 1, 2, 3]);
    for s in 0..4 {
        (0..20).for_each(|i| harness.submit(s, write_zeroes(s as u64 * 100 + i)));
    }
    assert_eq!(harness.disk.in_flight(), TOKENS);
    assert!(harness.disk.issues().iter().all(|i| i.hctx == 0), "the first submitter had them all");
    // Reads have tokens of their own.
    harness.submit(3, Bio::read(Sector(1 << 16), 8, DataRef::new(0, 0)).with_user_data(999));
    assert_eq!(harness.disk.in_flight(), TOKENS + 1);
    harness.disk.release(|i| i.op == Op::Read);
    while harness.step_now() {}
    let start = harness.now;
    for ended in 1..=80 {
        let oldest = ended - 1;
        let mut zeroes = harness.disk.issues();
        zeroes.retain(|i| i.op == Op::WriteZeroes);
        harness.disk.release(|i| i.n == zeroes[oldest].n);
        while harness.step_now() {}
        assert_eq!(harness.disk.in_flight(), TOKENS.min(80 - ended), "after {ended}\n{}", harness.describe());
    }
    assert_eq!(harness.now, start, "no time passed");
    let of_hctx = |h| harness.disk.issues().iter().filter(|i| i.hctx == h && i.op == Op::WriteZeroes).count();
    assert_eq!([0, 1, 2, 3].map(of_hctx), [20; 4]);
    // Fair: when the last hardware queue got its first token, no other had got more than a few beyond its own 16.
    let order: Vec<usize> = harness.disk.issues().iter().filter(|i| i.op == Op::WriteZeroes).map(|i| i.hctx).collect();
    let first_of_all = (1..4).map(|h| order.iter().position(|x| *x == h).expect("served")).max();
    assert!(first_of_all <= Some(TOKENS + 4), "{order:?}");
    harness.run_dry(100);
    harness.check_idle();
}

#[test]
fn token_put_during_issue_is_used_before_the_call_returns() {
    let behaviour = Behaviour { manual: true, ..Behaviour::default() };
    let mut harness = Harness::new(2, behaviour, config(2, 2), &[0, 1]);
    (0..TOKENS as u64).for_each(|n| harness.submit(0, write_zeroes(n)));
    // Both hardware queues wait; the second one is first in the wait queue.
    harness.submit(1, write_zeroes(100));
    harness.submit(0, write_zeroes(200));
    harness.disk.behave(|b| b.at_once = 1000);
    harness.disk.release(|i| i.n == 0);
    // The token goes to the second queue, whose request completes while it is issued, and then to the first queue.
    harness.poll(0);
    let last: Vec<usize> = harness.disk.issues()[TOKENS..].iter().map(|i| i.hctx).collect();
    assert_eq!(last, [1, 0]);
    harness.disk.release_all();
    harness.run_dry(100);
    harness.check_idle();
}

#[test]
fn token_of_a_requeued_request_is_free_while_it_waits() {
    let behaviour = Behaviour { manual: true, ..Behaviour::default() };
    let mut harness = Harness::new(3, behaviour, config(1, 1), &[0]);
    harness.disk.script([Answer::GiveBack(Some(5 * MS))]);
    (0..=TOKENS as u64).for_each(|n| harness.submit(0, write_zeroes(n)));
    assert_eq!(harness.disk.in_flight(), TOKENS);
    harness.disk.release(|i| i.n == 0);
    harness.poll(0);
    assert_eq!(harness.disk.in_flight(), TOKENS, "the last one has its token\n{}", harness.describe());
    harness.now += 5 * MS;
    harness.poll(0);
    assert_eq!(harness.disk.in_flight(), TOKENS, "none is free for it now");
    harness.disk.release(|i| i.n == 1);
    harness.poll(0);
    assert_eq!(harness.disk.issues().iter().filter(|i| i.sector == 0).count(), 2, "{}", harness.describe());
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.run_dry(100);
    harness.check_idle();
}

#[test]
fn the_poll_after_three_milliseconds_is_never_needed() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let hw = 2 + rng.below(6) as u16;
        let cpus: Vec<u16> = (0..2 + rng.below(5)).map(|_| rng.below(8) as u16).collect();
        let behaviour = Behaviour {
            at_once: rng.pick(&[0, 0, 200, 800]),
            service: Service::Any { max_ns: 1000 },
            ..Behaviour::default()
        };
        let mut harness =
            Harness::new(seed, behaviour, QueueConfig { rq_affinity: (seed % 3) as u8, ..config(8, hw) }, &cpus);
        let start = harness.now;
        let (mut submitted, mut most) = (0, 0);
        while submitted < 300 {
            let s = rng.below(cpus.len() as u64) as usize;
            for _ in 0..1 + rng.below(12) {
                // All bio slots in use: the next round.
                submitted += u64::from(harness.try_submit(s, write_zeroes(submitted)).is_ok());
            }
            most = harness.disk.in_flight().max(most);
            for _ in 0..rng.below(4) {
                harness.step();
            }
            (0..cpus.len()).for_each(|s| drop(harness.take_done(s)));
        }
        while harness.subs.iter().any(|s| s.outstanding() > 0) {
            assert!(harness.step(), "seed {seed}: bios are stuck\n{}", harness.describe());
            (0..cpus.len()).for_each(|s| drop(harness.take_done(s)));
        }
        assert!(most <= TOKENS, "seed {seed}: {most} at the disk");
        assert!(harness.now - start < 3 * MS, "seed {seed}: took {} ns", harness.now - start);
        harness.run_dry(10_000);
        harness.check_idle();
    }
}

/// Keeps 12 bios of its kind in flight for each submitter until the time `until`. Returns the most reads and the most
/// writes that were at the disk at once.
fn load(harness: &mut Harness, rng: &mut Rng, until: u64) -> [usize; 2] {
    let mut most = [0; 2];
    while harness.now < until {
        for (s, op) in [Op::Read, Op::Write, Op::Read, Op::Write].into_iter().enumerate() {
            harness.take_done(s);
            while harness.subs[s].outstanding() < 12 {
                let sector = Sector(rng.below(1 << 16) * 16);
                harness.submit(s, Bio { op, ..Bio::read(sector, 8, DataRef::new(0, (s as u64) << 12)) });
            }
        }
        assert!(harness.step(), "bios are stuck\n{}", harness.describe());
        let at_disk = harness.disk.pending();
        for (most, op) in most.iter_mut().zip([Op::Read, Op::Write]) {
            *most = at_disk.iter().filter(|i| i.op == op).count().max(*most);
        }
    }
    most
}

#[test]
fn a_domain_within_its_target_makes_room_for_others() {
    let mut rng = Rng::new(4);
    let behaviour = Behaviour { service: Service::Any { max_ns: MS }, record: false, ..Behaviour::default() };
    let mut harness = Harness::new(4, behaviour, config(2, 2), &[0, 0, 1, 1]);
    let targets = |harness: &Harness, read: u64, write: u64| {
        for (name, ns) in [("read_lat_nsec", read), ("write_lat_nsec", write)] {
            harness.q.set_iosched(name, ns).expect("a tunable of kyber");
        }
    };
    let (hopeless, easy, start) = (1, 1_000_000 * MS, harness.now);
    targets(&harness, easy, easy);
    assert_eq!(load(&mut harness, &mut rng, start + 1000 * MS), [24, 24], "all that there is");
    targets(&harness, easy, hopeless);
    // Four checks divide 256 by 4 each time. A check needs 500 reads, which take a while one at a time.
    load(&mut harness, &mut rng, start + 3000 * MS);
    assert_eq!(load(&mut harness, &mut rng, start + 3200 * MS), [1, 24]);
    targets(&harness, hopeless, easy);
    load(&mut harness, &mut rng, start + 8000 * MS);
    assert_eq!(load(&mut harness, &mut rng, start + 8200 * MS), [24, 1]);
    harness.run_dry(10_000);
    harness.check_idle();
}
