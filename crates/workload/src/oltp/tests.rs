// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state machine on a device of known speed, in virtual time.

use super::*;
use crate::job::{Extent, OltpJob};
use crate::rng::Taus88;
use blk::bio::Op;
use std::collections::BTreeMap;

const US: u64 = 1_000;
const MIB: u64 = 1 << 20;
const BS: u64 = 4096;

/// An I/O as the device saw it, in nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    io: IoReq,
    began: u64,
    ended: u64,
}

/// Drives an instance to its end. `latency_ns` gives the latency of each I/O, and whether it fails.
struct Harness<'a> {
    load: Oltp,
    now: u64,
    latency: &'a mut dyn FnMut(&IoReq) -> (u64, bool),
    new: Vec<IoReq>,
    out: Vec<(u64, bool, usize)>,
    seen: Vec<Seen>,
}

const EPOCH: u64 = 7_000_000_000;

impl Harness<'_> {
    fn run(load: Oltp, latency: &mut dyn FnMut(&IoReq) -> (u64, bool)) -> (Vec<Seen>, Oltp) {
        let mut harness = Harness { load, now: EPOCH, latency, new: Vec::new(), out: Vec::new(), seen: Vec::new() };
        while harness.step() {}
        assert!(harness.out.is_empty() && harness.load.in_flight == 0, "done with I/Os out");
        (harness.seen, harness.load)
    }

    fn step(&mut self) -> bool {
        let next = self.load.next(Instant::from_ns(self.now));
        if let Next::Io(io) = next {
            assert!(self.new.iter().all(|o| o.slot != io.slot), "slot {} is out", io.slot);
            assert!(self.out.iter().all(|o| self.seen[o.2].io.slot != io.slot), "slot {} is out", io.slot);
            if io.fill {
                self.load.fill(io.slot, &mut vec![0; io.len_bytes as usize]);
            }
            self.new.push(io);
            if io.commit {
                self.submit();
            }
            return true;
        }
        self.submit();
        let first = self.out.iter().map(|o| o.0).min();
        match next {
            Next::Reap { min: 1, max } => {
                assert!(max as usize == self.out.len() && max > 0);
                self.complete_at(first.expect("something is out"));
            }
            Next::Wait(until) => {
                assert!(until.as_ns() > self.now, "it waits for the past");
                match first.filter(|at| *at <= until.as_ns()) {
                    Some(at) => self.complete_at(at),
                    None => self.now = until.as_ns(),
                }
            }
            Next::Done => return false,
            other => panic!("{other:?}"),
        }
        true
    }

    fn submit(&mut self) {
        self.load.submitted(Instant::from_ns(self.now));
        for io in self.new.drain(..) {
            let (took, fails) = (self.latency)(&io);
            self.out.push((self.now + took, fails, self.seen.len()));
            self.seen.push(Seen { io, began: self.now - EPOCH, ended: self.now + took - EPOCH });
        }
    }

    fn complete_at(&mut self, at: u64) {
        self.now = at;
        let (ended, out) = self.out.iter().partition::<Vec<_>, _>(|o| o.0 <= at);
        self.out = out;
        for (_, fails, index) in &ended {
            let status = if *fails { BlkStatus::IoErr } else { BlkStatus::Ok };
            let done = self.load.complete(self.seen[*index].io.slot, status, Instant::from_ns(at));
            assert!(!done.needs_verify);
        }
        self.load.reaped(ended.len() as u32);
    }
}

fn job(oltp: OltpJob) -> Job {
    let mut job = Job::new("db");
    job.oltp = Some(oltp);
    job
}

fn instance(job: &Job) -> Oltp {
    Oltp::new(job, ThreadId { instance: 0, number: 1, entropy: 0 }, 64 * MIB, Some(16 * MIB)).expect("it fits")
}

/// Reads take 10 us, redo writes 50 us, block writes 30 us.
fn steady(io: &IoReq) -> (u64, bool) {
    let took = match (io.op, io.flags.contains(OpFlags::FUA)) {
        (Op::Read, _) => 10,
        (_, true) => 50,
        _ => 30,
    };
    (took * US, false)
}

fn tx(load: &Oltp) -> &TxStats {
    load.stats().tx.as_ref().expect("a transaction loop")
}

const SMALL: OltpJob = OltpJob {
    users: 1,
    threads_per_user: 1,
    reads_per_tx: 2,
    update_pct: 100,
    writes_per_tx: Some(1),
    hot_pct: 0,
    hot_size: Extent::Percent(10),
    redo_filename: None,
    redo_size: None,
    redo_bytes: 600,
    redo_block_bytes: 512,
    group_commit_ns: 0,
    dirty_max: 8,
    writer_batch: 2,
    transactions: Some(1),
};

#[test]
fn a_transaction_is_acknowledged_when_its_redo_is_written() {
    let (seen, load) = Harness::run(instance(&job(SMALL)), &mut steady);
    let what: Vec<_> = seen.iter().map(|s| (s.io.op, s.io.slot, s.io.len_bytes, s.began / US, s.ended / US)).collect();
    // The database writer has two slots, used from the first on. The log writer's slot is the last.
    let expected = [
        (Op::Read, 0, 4096, 0, 10),
        (Op::Read, 0, 4096, 10, 20),
        (Op::Write, 3, 1024, 20, 70),
        (Op::Write, 1, 4096, 70, 100),
    ];
    assert_eq!(what, expected);
    assert_eq!(seen[3].io.offset_bytes, seen[0].io.offset_bytes, "the first block read is the one changed");
    assert!(seen[2].io.flags.contains(OpFlags::FUA) && !seen[3].io.flags.contains(OpFlags::FUA));
    let t = tx(&load);
    assert_eq!((t.transactions, t.commits, t.reads, t.redo_writes, t.redo_bytes), (1, 1, 2, 1, 1024));
    let means = [&t.lat, &t.read, &t.commit, &t.redo_lat].map(|l| l.run.mean() / US as f64);
    assert_eq!(means, [70.0, 20.0, 50.0, 50.0]);
    assert_eq!((t.block_writes, t.rewritten, t.buffer_waits), (1, 0, 0));
    let dirs = [Dir::Read, Dir::Write].map(|d| load.stats().dir(d).ios);
    assert_eq!((dirs, load.stats().runtime_ns), ([2, 2], 100 * US));
}

#[test]
fn a_read_only_session_waits_for_no_commit() {
    let oltp = OltpJob { update_pct: 0, transactions: Some(3), ..SMALL };
    let (seen, load) = Harness::run(instance(&job(oltp)), &mut steady);
    let t = tx(&load);
    assert_eq!((seen.len(), t.transactions, t.commits, t.lat.run.mean()), (6, 3, 0, 20.0 * US as f64));
}

/// Four sessions whose reads complete one microsecond after the other.
fn four(group_commit_us: u64) -> (Vec<u64>, f64, u64) {
    let oltp = OltpJob { users: 4, reads_per_tx: 1, transactions: Some(4), ..SMALL };
    let oltp = OltpJob { group_commit_ns: group_commit_us * US, ..oltp };
    let mut latency = |io: &IoReq| match io.op {
        Op::Read => ((10 + u64::from(io.slot)) * US, false),
        _ => steady(io),
    };
    let (seen, load) = Harness::run(instance(&job(oltp)), &mut latency);
    let redo = seen.iter().filter(|s| s.io.flags.contains(OpFlags::FUA));
    let t = tx(&load);
    (redo.map(|s| s.began / US).collect(), t.commits_per_redo_write(), t.commit.run.max() / US)
}

#[test]
fn commits_that_come_while_redo_is_written_share_the_next_write() {
    // The first commit is written alone, and three wait for it. The longest waits from 11 to 60 us, and 50 us more for its write.
    assert_eq!(four(0), (vec![10, 60], 2.0, 99));
}

#[test]
fn a_group_waits_for_company_as_long_as_it_was_told() {
    // The write begins 100 us after the first commit, when all have arrived: 110 to 160 us.
    assert_eq!(four(100), (vec![110], 4.0, 150));
    assert_eq!(four(2), (vec![12, 62], 2.0, 99), "13 came too late");
}

#[test]
fn a_commit_whose_redo_failed_is_not_acknowledged() {
    let mut fails = |io: &IoReq| (steady(io).0, io.flags.contains(OpFlags::FUA));
    let (seen, load) = Harness::run(instance(&job(OltpJob { transactions: Some(9), ..SMALL })), &mut fails);
    let t = tx(&load);
    assert_eq!((t.commits, t.transactions, t.redo_writes), (0, 0, 0));
    assert_eq!((load.stats().first_error, load.stats().total_errors), (BlkStatus::IoErr.errno(), 1));
    assert_eq!(seen.len(), 3, "and nothing was written back or begun after that");
}

/// The run was stopped before the log's device failed.
#[test]
fn nothing_is_written_behind_redo_that_failed() {
    let mut load = instance(&job(OltpJob { users: 3, reads_per_tx: 1, transactions: None, ..SMALL }));
    let at = |us: u64| Instant::from_ns(EPOCH + us * US);
    let out = |load: &mut Oltp, us| match load.next(at(us)) {
        Next::Io(io) => io,
        other => panic!("{other:?}"),
    };
    let reads = [0; 3].map(|us| out(&mut load, us).slot);
    load.submitted(at(0));
    let _ = load.complete(reads[0], BlkStatus::Ok, at(10));
    let redo = out(&mut load, 10);
    assert!(redo.flags.contains(OpFlags::FUA));
    load.submitted(at(10));
    // These append records after that write.
    reads[1..].iter().for_each(|slot| _ = load.complete(*slot, BlkStatus::Ok, at(11)));
    load.stop(StopReason::Asked);
    assert_eq!(load.next(at(12)), Next::Reap { min: 1, max: 1 });
    let _ = load.complete(redo.slot, BlkStatus::IoErr, at(20));
    assert_eq!((load.next(at(20)), tx(&load).commits), (Next::Done, 0), "a log with a hole");
}

#[test]
fn an_abandoned_job_has_measured_until_then() {
    let mut load = instance(&job(OltpJob { users: 2, transactions: None, ..SMALL }));
    let at = |us: u64| Instant::from_ns(EPOCH + us * US);
    for _ in 0..2 {
        assert!(matches!(load.next(at(0)), Next::Io(_)));
    }
    load.submitted(at(0));
    let _ = load.complete(0, BlkStatus::Ok, at(10));
    load.abandon(at(500));
    assert_eq!(load.next(at(501)), Next::Done);
    let stats = load.stats();
    assert_eq!((stats.dir(Dir::Read).ios, stats.dir(Dir::Read).runtime_ns, stats.first_error), (1, 500 * US, 0));
}

#[test]
fn reads_go_to_the_hot_part_as_often_as_told() {
    for pct in [0, 6, 60, 100] {
        let oltp = OltpJob { hot_pct: pct, reads_per_tx: 50, update_pct: 0, transactions: Some(400), ..SMALL };
        let (seen, load) = Harness::run(instance(&job(oltp)), &mut steady);
        let blocks = 64 * MIB / BS;
        // A tenth of the data, in whole blocks.
        let hot = seen.iter().filter(|s| s.io.offset_bytes / BS < blocks / 10).count() as u64;
        let t = tx(&load);
        assert_eq!(t.reads, 20_000);
        let share = 100.0 * hot as f64 / t.reads as f64;
        // Within four deviations of a binomial draw. Without a hot part, a tenth of the uniform reads hit it.
        let expected = if pct == 0 { 10.0 } else { f64::from(pct) };
        let most = 4.0 * (expected * (100.0 - expected) / t.reads as f64).sqrt();
        assert!((share - expected).abs() <= most, "hot_pct={pct}: {share}");
        assert_eq!(t.hot_reads, if pct == 0 { 0 } else { hot }, "it counts what it does");
    }
}

/// The blocks each session reads, in order.
fn blocks_of(seen: &[Seen]) -> BTreeMap<u32, Vec<u64>> {
    let mut of: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for s in seen.iter().filter(|s| s.io.op == Op::Read) {
        of.entry(s.io.slot).or_default().push(s.io.offset_bytes);
    }
    of
}

fn random(seed: u32) -> impl FnMut(&IoReq) -> (u64, bool) {
    let mut rng = Taus88::new(seed);
    move |_| (u64::from(rng.between(1, 200)) * US, false)
}

#[test]
fn the_seed_alone_says_what_each_session_does() {
    let oltp = OltpJob { users: 3, threads_per_user: 2, hot_pct: 30, update_pct: 25, reads_per_tx: 5, ..SMALL };
    let mut job = job(OltpJob { transactions: Some(120), dirty_max: 64, ..oltp });
    let runs = [1, 1, 2].map(|seed| Harness::run(instance(&job), &mut random(seed)));
    assert_eq!(runs[0].0, runs[1].0, "the same run");
    assert_eq!(runs[0].1.stats(), runs[1].1.stats());
    let (a, b) = (blocks_of(&runs[0].0), blocks_of(&runs[2].0));
    assert_ne!(runs[0].0, runs[2].0, "another device");
    for (session, blocks) in &a {
        let same = blocks.iter().zip(&b[session]).all(|(x, y)| x == y);
        assert!(same, "session {session} reads other blocks because the device is another one");
    }
    assert_ne!(a[&0], a[&1], "sessions differ");
    job.randseed = Some(1);
    assert_ne!(blocks_of(&Harness::run(instance(&job), &mut random(1)).0), a, "another seed");
}

/// There are few blocks, so that they change again before and during their writes, and few buffers, so that sessions wait for them.
#[test]
fn every_change_is_written_back_once_and_after_its_redo() {
    for seed in 0..30 {
        let mut rng = Taus88::new(seed);
        let mut draw = |lo, hi| rng.between(lo, hi);
        let reads = draw(1, 6);
        let changes = draw(1, reads);
        let dirty_max = draw(changes, 24);
        let oltp = OltpJob {
            users: draw(1, 12),
            reads_per_tx: reads,
            writes_per_tx: Some(changes),
            update_pct: 100,
            dirty_max,
            writer_batch: draw(1, 8),
            group_commit_ns: u64::from(draw(0, 2)) * 60 * US,
            transactions: Some(300),
            ..SMALL
        };
        let mut job = job(oltp);
        job.size = Some(Extent::Bytes(u64::from(draw(1, 40)) * BS));
        job.thinktime_ns = u64::from(draw(0, 1)) * 90 * US;
        let (seen, load) = Harness::run(instance(&job), &mut random(seed));
        let t = tx(&load);
        assert_eq!((t.transactions, t.commits), (300, 300), "seed {seed}");
        assert_eq!(t.block_writes + t.rewritten, 300 * u64::from(changes), "seed {seed}");
        // Each block is written one write after the other. The last write of a block follows the last redo write that may
        // contain its change.
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let first_redo = seen.iter().find(|s| s.io.flags.contains(OpFlags::FUA)).map(|s| s.ended);
        for s in seen.iter().filter(|s| s.io.op == Op::Write && !s.io.flags.contains(OpFlags::FUA)) {
            assert!(Some(s.began) >= first_redo, "seed {seed}: written before any redo was");
            let before = last.insert(s.io.offset_bytes, s.ended);
            assert!(before.is_none_or(|ended| ended <= s.began), "seed {seed}: twice at a time");
        }
        assert!(load.dirty.has_room(dirty_max) && load.dirty.in_line() == 0 && load.log.is_quiet());
    }
}

#[test]
fn full_buffers_make_sessions_wait_and_not_stand_still() {
    let oltp = OltpJob { users: 6, dirty_max: 2, writer_batch: 4, transactions: Some(60), ..SMALL };
    let mut slow = |io: &IoReq| match io.flags.contains(OpFlags::FUA) || io.op == Op::Read {
        true => steady(io),
        false => (500 * US, false),
    };
    let (_, load) = Harness::run(instance(&job(oltp)), &mut slow);
    let t = tx(&load);
    assert_eq!((t.transactions, t.block_writes), (60, 60));
    assert!(t.buffer_waits > 20, "{}", t.buffer_waits);
}

#[test]
fn time_ends_it_the_ramp_is_not_measured_and_sessions_think() {
    let mut job = job(OltpJob { update_pct: 0, transactions: None, ..SMALL });
    (job.runtime_ns, job.ramp_time_ns, job.thinktime_ns) = (Some(1000 * US), 500 * US, 80 * US);
    let (seen, load) = Harness::run(instance(&job), &mut steady);
    // 20 us of reads and 80 us of think time: five transactions in the ramp, ten after it.
    assert_eq!((tx(&load).transactions, load.stats().dir(Dir::Read).ios, seen.len()), (10, 20, 30));
    assert_eq!(load.stats().runtime_ns, 1000 * US);
    assert!(!load.is_ramping());
}

#[test]
fn stop_finishes_logged_transactions_and_starts_none() {
    let mut load = instance(&job(OltpJob { users: 2, transactions: None, ..SMALL }));
    let at = |us: u64| Instant::from_ns(EPOCH + us * US);
    for slot in 0..2 {
        assert!(matches!(load.next(at(0)), Next::Io(io) if io.slot == slot));
    }
    load.submitted(at(0));
    load.stop(StopReason::Asked);
    assert_eq!(load.next(at(1)), Next::Reap { min: 1, max: 2 });
    for slot in 0..2 {
        let _ = load.complete(slot, BlkStatus::Ok, at(10));
    }
    assert_eq!(load.next(at(10)), Next::Done);
    assert_eq!((tx(&load).transactions, load.stats().first_error), (0, 0));
}

#[test]
fn instances_share_data_and_have_logs_of_their_own() {
    let mut job = job(SMALL);
    job.numjobs = 4;
    let ranges = |redo: Option<u64>| {
        let of = |instance| {
            let id = ThreadId { instance, number: instance + 1, entropy: 0 };
            Oltp::new(&job, id, 64 * MIB, redo).unwrap().plan
        };
        (0..4).map(of).map(|p| (p.start, p.blocks, p.log.start, p.log.len)).collect::<Vec<_>>()
    };
    let own = ranges(Some(16 * MIB));
    assert_eq!(own, (0..4).map(|i| (0, 64 * MIB / BS, i * 4 * MIB, 4 * MIB)).collect::<Vec<_>>());
    // A sixteenth of the region in total, after the data.
    let behind = ranges(None);
    assert_eq!(behind, (0..4).map(|i| (0, 60 * MIB / BS, 60 * MIB + i * MIB, MIB)).collect::<Vec<_>>());
}

#[test]
fn what_does_not_fit_its_target_is_refused_with_a_remedy() {
    let refused = |change: &dyn Fn(&mut Job, &mut OltpJob), redo: Option<u64>| {
        let (mut job, mut oltp) = (Job::new("db"), SMALL);
        change(&mut job, &mut oltp);
        job.oltp = Some(oltp);
        let id = ThreadId { instance: 0, number: 1, entropy: 0 };
        Oltp::new(&job, id, MIB, redo).expect_err("refused").to_string()
    };
    let hot = refused(&|_, o| (o.hot_pct, o.hot_size) = (60, Extent::Bytes(100)), Some(MIB));
    assert!(hot.starts_with("hot_size=Bytes(100): is 0 of 256 blocks: with hot_pct=60 neither"), "{hot}");
    let log = refused(&|_, o| o.redo_bytes = 8192, Some(4096));
    assert!(log.starts_with("redo_size=4096: the redo log of an instance must hold a record of 8192 bytes"), "{log}");
    let many = refused(&|j, o| (j.numjobs, o.redo_size) = (3, Some(Extent::Percent(50))), None);
    assert!(many.starts_with("redo_size=524288: 3 of them do not fit into the region of 1048576"), "{many}");
    let small = refused(&|_, o| o.redo_size = Some(Extent::Percent(100)), None);
    assert!(small.starts_with("size=1048576: must hold a block of 4096 bytes beside the redo logs"), "{small}");
    assert!([hot, log, many, small].iter().all(|m| m.contains("; ") && m.ends_with("(job 'db')")));
}
