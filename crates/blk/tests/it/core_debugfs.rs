// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The debugfs files of a disk in use, and the 17 fields of `stat` for a run in which all times are known.

use blk::bio::{Bio, DataRef, Op};
use blk::cpumap::CpuTopology;
use blk::debugfs::DebugFile;
use blk::id::{CpuId, Sector};
use blk::settings::QueueConfig;
use sim::disk::Behaviour;
use sim::harness::Harness;

const MS: u64 = 1_000_000;

fn manual() -> Behaviour {
    let mut b = Behaviour { manual: true, ..Behaviour::default() };
    (b.limits.max_discard_sectors, b.limits.max_write_zeroes_sectors) = (64, 64);
    b
}

fn config(scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: 2,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        ..QueueConfig::default()
    }
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

fn file<'a>(files: &'a [DebugFile], path: &str) -> &'a str {
    &files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("no {path} in {files:#?}")).text
}

/// Completes requests at the disk until none is left.
fn end_all(harness: &mut Harness) {
    harness.disk.release_all();
    while harness.step() {
        harness.disk.release_all();
    }
    harness.run_dry(40);
}

#[test]
fn requests_are_shown_where_they_are() {
    let mut harness = Harness::new(1, manual(), config("mq-deadline"), &[0, 1]);
    (0..5).for_each(|n| harness.submit(0, read(n)));
    let f = harness.q.debugfs();
    assert_eq!(file(&f, "state"), "NOMERGES|SAME_COMP|INIT_DONE|REGISTERED|SQ_SCHED\n");
    assert_eq!(file(&f, "inflight"), "       2        0\n");
    assert_eq!(file(&f, "hctx0/active"), "2\n");
    let busy = file(&f, "hctx0/busy");
    let first = "{.op=READ, .cmd_flags=, .rq_flags=SCHED_TAGS|USE_SCHED|IO_STAT, .state=in_flight, .tag=";
    assert!(busy.lines().all(|l| l.contains(first) && l.ends_with("00, .nr_sectors=8}") || l.contains(".sector=0,")));
    assert_eq!(busy.lines().count(), 2);
    // The third request was dispatched and found no driver tag; the elevator has the others.
    let parked = file(&f, "hctx0/dispatch");
    assert!(parked.contains(".state=idle, .tag=-1") && parked.contains(".sector=200,"), "{parked}");
    let sectors: Vec<_> = file(&f, "sched/read1_fifo_list").lines().map(|l| l.split(".sector=").nth(1)).collect();
    assert_eq!(sectors, [Some("300, .nr_sectors=8}")], "four scheduler tags");
    assert!(file(&f, "sched/read1_next_rq").contains(".sector=300,"));
    assert_eq!(file(&f, "sched/queued"), "0 4 0\n");
    assert_eq!(file(&f, "sched/owned_by_driver"), "0 3 0\n");
    assert_eq!(file(&f, "hctx0/state"), "SCHED_RESTART\n");
    assert_eq!(file(&f, "hctx0/type"), "default\n");
    let tags = file(&f, "hctx0/tags");
    assert!(
        tags.starts_with(
            "nr_tags=2\nnr_reserved_tags=0\nactive_queues=0\n\nbitmap_tags:\ndepth=2\nbusy=2\ncleared=0\n"
        ),
        "{tags}"
    );
    assert_eq!(file(&f, "hctx0/tags_bitmap"), "00000000: 03\n");
    assert!(file(&f, "hctx0/sched_tags").contains("depth=4\nbusy=4\n"), "the fifth bio waits for a scheduler tag");
    end_all(&mut harness);
    harness.subs.iter_mut().for_each(blk::submitter::Submitter::rest);
    let f = harness.q.debugfs();
    assert_eq!((file(&f, "hctx0/busy"), file(&f, "hctx0/tags_bitmap")), ("", "00000000: 00\n"));
    assert_eq!(file(&f, "sched/queued"), "0 0 0\n");
}

#[test]
fn software_queues_requeued_requests_and_marks_are_shown() {
    let mut harness = Harness::new(2, manual(), config("none"), &[0, 1]);
    harness.q.quiesce();
    harness.submit(1, read(0));
    harness.q.begin_offline(CpuId::new(0)).unwrap();
    let f = harness.q.debugfs();
    assert_eq!(file(&f, "state"), "NOMERGES|SAME_COMP|INIT_DONE|REGISTERED|QUIESCED\n");
    assert!(
        file(&f, "hctx0/cpu1/default_rq_list").contains(".op=READ")
            && file(&f, "hctx0/cpu0/default_rq_list").is_empty()
    );
    assert_eq!(file(&f, "hctx0/ctx_map"), "00000000: 02\n");
    assert_eq!(file(&f, "hctx0/queued"), "1\n");
    harness.q.unquiesce();
    harness.run(20);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.q.begin_freeze();
    harness.drain();
    let f = harness.q.debugfs();
    assert_eq!(f.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["state"], "about to be rebuilt");
}

#[test]
fn kyber_shows_its_tokens_and_lists() {
    let mut harness = Harness::new(3, manual(), config("kyber"), &[0]);
    (0..4).for_each(|n| harness.submit(0, read(n)));
    let f = harness.q.debugfs();
    assert!(file(&f, "sched/read_tokens").starts_with("depth=256\nbusy="), "{}", file(&f, "sched/read_tokens"));
    assert_eq!(file(&f, "hctx0/sched/cur_domain"), "read\n");
    end_all(&mut harness);
    let f = harness.q.debugfs();
    assert_eq!(file(&f, "sched/read_tokens"), "depth=256\nbusy=0\n");
}

/// One request of each kind, one after the other, each at the disk for another number of milliseconds.
#[test]
fn the_stat_fields_are_what_the_kernel_documents() {
    let mut c = config("none");
    c.nomerges = 0;
    let mut harness = Harness::new(4, manual(), c, &[0]);
    let one = |harness: &mut Harness, op: Op, sectors: u32, ms: u64| {
        let mut bio = Bio::write(Sector(800), sectors, DataRef::new(0, 0));
        bio.op = op;
        harness.submit(0, bio);
        assert_eq!(harness.q.stats().fields(harness.q.in_progress())[8], 1, "one in progress");
        harness.now += ms * MS;
        harness.disk.release_all();
        harness.run_dry(20);
    };
    one(&mut harness, Op::Read, 8, 3);
    one(&mut harness, Op::Write, 16, 5);
    one(&mut harness, Op::WriteZeroes, 32, 7);
    one(&mut harness, Op::Discard, 64, 11);
    harness.plug(0, 2);
    harness.submit(0, Bio::read(Sector(0), 8, DataRef::new(0, 0)));
    harness.submit(0, Bio::read(Sector(8), 8, DataRef::new(0, 4096)));
    harness.unplug(0);
    harness.now += 2 * MS;
    harness.disk.release_all();
    harness.run_dry(20);
    harness.subs[0].rest();
    let f = harness.q.stats().fields(harness.q.in_progress());
    assert_eq!(f[..4], [2, 1, 24, 5], "reads: requests, merges, sectors, ms");
    assert_eq!(f[4..8], [2, 0, 48, 12], "writes, zeroes among them");
    assert_eq!(f[8..11], [0, 28, 28], "in progress, io_ticks, time in queue");
    assert_eq!(f[11..15], [1, 0, 64, 11], "discards");
    assert_eq!(f[15..], [0, 0], "flushes");
}

#[test]
fn iostats_off_counts_nothing() {
    let mut c = config("none");
    c.set("iostats", "0").unwrap();
    c.nomerges = 0;
    let mut harness = Harness::new(5, manual(), c, &[0]);
    for _ in 0..2 {
        harness.plug(0, 2);
        harness.submit(0, Bio::read(Sector(0), 8, DataRef::new(0, 0)));
        harness.submit(0, Bio::read(Sector(8), 8, DataRef::new(0, 4096)));
        harness.unplug(0);
        harness.now += 2 * MS;
        harness.disk.release_all();
        harness.run_dry(20);
        harness.subs[0].rest();
        let on = harness.q.config().iostats;
        let expected = if on { [1, 1, 16, 2] } else { [0; 4] };
        let f = harness.q.stats().fields(harness.q.in_progress());
        assert_eq!((&f[..4], f[9]), (&expected[..], if on { 2 } else { 0 }));
        harness.rebuild(|c| c.set("iostats", "1")).unwrap();
    }
}
