// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submission step by step: rejected bios and their status, splitting, the plug, merging.

use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::submitter::SubmitError;
use sim::disk::{Behaviour, Issue};
use sim::harness::Harness;

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

fn with_limits(f: impl FnOnce(&mut Limits)) -> Behaviour {
    let mut b = manual();
    f(&mut b.limits);
    b
}

fn config(scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: 128,
        scheduler: Some(scheduler.into()),
        ..QueueConfig::default()
    }
}

fn write(sector: u64, nr: u32) -> Bio {
    Bio::write(Sector(sector), nr, DataRef::new(0, (sector % (1 << 16)) << 9)).with_user_data(sector)
}

fn read(sector: u64, nr: u32) -> Bio {
    Bio { op: Op::Read, ..write(sector, nr) }
}

fn discard(sector: u64, nr: u32) -> Bio {
    Bio { op: Op::Discard, data: DataRef::NONE, ..write(sector, nr) }
}

fn zeroes(sector: u64, nr: u32) -> Bio {
    Bio { op: Op::WriteZeroes, data: DataRef::NONE, ..write(sector, nr) }
}

/// Returns the status of a bio that never reaches the driver.
fn refusal(harness: &mut Harness, bio: Bio) -> BlkStatus {
    harness.submit(0, bio);
    let done = harness.take_done(0);
    assert_eq!((done.len(), harness.disk.issues().len()), (1, 0), "{bio:?} was not refused at once");
    assert_eq!((done[0].user_data, harness.subs[0].outstanding()), (bio.user_data, 0));
    done[0].status
}

fn ranges(issues: &[Issue]) -> Vec<(u64, u32)> {
    issues.iter().map(|i| (i.sector, i.nr_sectors)).collect()
}

fn finish(harness: &mut Harness) {
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(10_000);
    harness.check_idle();
}

#[test]
fn what_the_disk_cannot_do_is_refused_with_the_kernels_status() {
    let mut harness = Harness::new(
        1,
        with_limits(|l| (l.logical_block_size, l.physical_block_size) = (4096, 4096)),
        config("none"),
        &[0],
    );
    let end = harness.q.capacity().0;
    assert_eq!(refusal(&mut harness, read(4, 8)), BlkStatus::IoErr, "address inside a block");
    assert_eq!(refusal(&mut harness, read(8, 12)), BlkStatus::IoErr, "length inside a block");
    assert_eq!(refusal(&mut harness, read(0, 0)), BlkStatus::IoErr, "nothing");
    assert_eq!(refusal(&mut harness, read(end - 8, 16)), BlkStatus::IoErr, "past the end");
    assert_eq!(refusal(&mut harness, read(end, 8)), BlkStatus::IoErr, "behind the end");
    let wraps = Bio::read(Sector(u64::MAX - 7), 8, DataRef::new(0, 0));
    assert_eq!(refusal(&mut harness, wraps), BlkStatus::IoErr, "the end wraps to 0");
    let wraps = Bio::read(Sector(u64::MAX - 7), 16, DataRef::new(0, 0));
    assert_eq!(refusal(&mut harness, wraps), BlkStatus::IoErr, "the end wraps past 0");
    assert_eq!(refusal(&mut harness, Bio { nr_sectors: 8, ..Bio::flush() }), BlkStatus::Inval);
    assert_eq!(refusal(&mut harness, read(0, 8).with_flags(OpFlags::POLLED)), BlkStatus::NotSupp, "no poll queue");
    assert_eq!(refusal(&mut harness, read(0, 8).with_flags(OpFlags::RESERVED)), BlkStatus::Inval, "no reserved tags");
    assert_eq!(refusal(&mut harness, Bio::flush().with_flags(OpFlags::RESERVED)), BlkStatus::Inval);
    for flag in [OpFlags::FUA, OpFlags::PREFLUSH] {
        assert_eq!(
            refusal(&mut harness, read(0, 8).with_flags(flag)),
            BlkStatus::IoErr,
            "only writes are made durable"
        );
        assert_eq!(refusal(&mut harness, discard(0, 8).with_flags(flag)), BlkStatus::IoErr);
    }
    let past = Bio::read(Sector(0), 16, DataRef::new(0, DataRef::MAX_OFFSET - 4095));
    assert_eq!(refusal(&mut harness, past), BlkStatus::Inval, "the data runs out of its region");
    let s = harness.q.stats();
    assert_eq!((s.in_flight, s.op(Op::Read).ios, s.op(Op::Read).sectors), (0, 0, 0));
    harness.submit(0, read(end - 8, 8));
    assert_eq!(ranges(&harness.disk.issues()), [(end - 8, 8)], "the last block is there");
    finish(&mut harness);
}

#[test]
fn a_largest_request_the_disk_cannot_have_is_refused() {
    for (kb, text) in [(3, "4..=512"), (513, "4..=512"), (8, "16..=512")] {
        let lbs = if kb == 8 { 16384 } else { 512 };
        let b = with_limits(|l| (l.logical_block_size, l.physical_block_size) = (lbs, lbs));
        let c = QueueConfig { max_sectors_kb: Some(kb), ..config("none") };
        let e = Harness::try_new(1, b, c, &[0]).err().expect("refused").to_string();
        assert!(e.contains(&format!("max_sectors_kb={kb}")) && e.contains(text), "{e}");
    }
}

#[test]
fn unsupported_operations_and_read_only_writes_are_rejected() {
    let mut harness = Harness::new(
        2,
        with_limits(|l| {
            (l.max_discard_sectors, l.max_write_zeroes_sectors, l.read_only) = (0, 0, true);
        }),
        config("none"),
        &[0],
    );
    assert_eq!(refusal(&mut harness, discard(0, 8)), BlkStatus::NotSupp);
    assert_eq!(refusal(&mut harness, zeroes(0, 8)), BlkStatus::NotSupp);
    assert_eq!(refusal(&mut harness, write(0, 8)), BlkStatus::IoErr);
    harness.submit(0, read(0, 8));
    finish(&mut harness);
}

#[test]
fn polled_reads_use_poll_queues_and_plain_ones_read_queues() {
    let c = QueueConfig { nr_read_queues: 1, nr_poll_queues: 1, ..config("none") };
    let mut harness = Harness::new(3, manual(), c, &[1]);
    harness.submit(0, write(0, 8));
    harness.submit(0, read(100, 8));
    harness.submit(0, read(200, 8).with_flags(OpFlags::POLLED));
    harness.submit(0, write(300, 8).with_flags(OpFlags::POLLED));
    assert_eq!(harness.disk.issues().iter().map(|i| i.hctx).collect::<Vec<_>>(), [0, 1, 2, 2]);
    assert_eq!(harness.subs[0].hctxs().count(), 3);
    finish(&mut harness);
}

#[test]
fn a_large_bio_is_cut_and_ends_once_when_its_last_piece_does() {
    let mut harness =
        Harness::new(4, with_limits(|l| (l.max_hw_sectors, l.max_sectors) = (64, 64)), config("none"), &[0]);
    harness.submit(0, read(32, 200));
    let pieces = harness.disk.issues();
    assert_eq!(ranges(&pieces), [(32, 64), (96, 64), (160, 64), (224, 8)]);
    for keep in [96, 224, 32, 160] {
        assert_eq!(harness.take_done(0).len(), 0);
        harness.disk.release(|i| i.sector == keep);
        harness.poll(0);
    }
    let done = harness.take_done(0);
    assert_eq!((done.len(), done[0].user_data, done[0].status), (1, 32, BlkStatus::Ok));
    assert_eq!((harness.q.stats().op(Op::Read).ios, harness.q.stats().op(Op::Read).sectors), (4, 200));
    finish(&mut harness);
}

#[test]
fn a_failed_piece_fails_the_bio_and_only_at_the_end() {
    use blk::status::QueueRqStatus;
    use sim::disk::Answer;
    for flags in [OpFlags::NONE, OpFlags::FUA] {
        let b = with_limits(|l| {
            (l.max_hw_sectors, l.max_sectors, l.write_cache) = (64, 64, true);
        });
        let mut harness = Harness::new(5, b, config("none"), &[0]);
        harness.disk.script([Answer::Refuse(QueueRqStatus::Error(BlkStatus::Medium))]);
        harness.submit(0, write(0, 150).with_flags(flags));
        assert_eq!(harness.take_done(0).len(), 0, "{flags:?}: the first piece failed, two are under way");
        finish(&mut harness);
        assert_eq!(
            harness.done[0].iter().map(|d| (d.user_data, d.status)).collect::<Vec<_>>(),
            [(0, BlkStatus::Medium)]
        );
    }
}

#[test]
fn nowait_is_refused_where_a_split_would_be_needed() {
    let mut harness = Harness::new(6, with_limits(|l| l.chunk_sectors = 64), config("none"), &[0]);
    assert_eq!(refusal(&mut harness, read(60, 8).with_flags(OpFlags::NOWAIT)), BlkStatus::Again);
    harness.submit(0, read(56, 8).with_flags(OpFlags::NOWAIT));
    assert_eq!(ranges(&harness.disk.issues()), [(56, 8)]);
    finish(&mut harness);
}

#[test]
fn bios_that_fill_all_slots_and_want_to_be_split_still_end() {
    for nr_bios in [1, 2, 5] {
        let c = QueueConfig { bios_per_submitter: nr_bios, ..config("none") };
        let mut harness = Harness::new(7, with_limits(|l| (l.max_hw_sectors, l.max_sectors) = (8, 8)), c, &[0]);
        harness.disk.behave(|b| b.manual = false);
        // Frozen, so that all slots are taken before the first piece is made.
        harness.q.begin_freeze();
        for n in 0..u64::from(nr_bios) {
            harness.submit(0, read(n * 1000, 400));
        }
        assert_eq!(harness.try_submit(0, read(0, 8)), Err(SubmitError::NoBio));
        harness.q.unfreeze();
        harness.run_dry(10_000);
        assert_eq!(harness.done[0].len(), nr_bios as usize);
        assert_eq!(harness.disk.issues().len(), 50 * nr_bios as usize);
        harness.check_idle();
    }
}

#[test]
fn split_pieces_in_an_open_plug_are_sent_when_slots_run_out() {
    let c = QueueConfig { bios_per_submitter: 1, ..config("none") };
    let mut harness = Harness::new(8, with_limits(|l| (l.max_hw_sectors, l.max_sectors) = (8, 8)), c, &[0]);
    harness.plug(0, 0);
    harness.submit(0, read(0, 400));
    harness.disk.behave(|b| b.manual = false);
    // The plug stays open; only completions of the pieces can free slots. The last few pieces stay in the plug.
    harness.run(10_000);
    assert!(harness.disk.issues().len() > 40 && harness.subs[0].waiting() == 0, "{}", harness.describe());
    harness.unplug(0);
    harness.run_dry(100);
    harness.check_idle();
}

#[test]
fn a_plug_keeps_order_and_goes_out_as_one_batch() {
    let mut harness = Harness::new(9, manual(), config("none"), &[0]);
    harness.plug(0, 16);
    let order = [700, 100, 900, 300, 500];
    order.iter().for_each(|s| harness.submit(0, read(*s, 8)));
    assert_eq!(harness.disk.issues().len(), 0, "held back");
    harness.unplug(0);
    let issues = harness.disk.issues();
    assert_eq!(issues.iter().map(|i| i.sector).collect::<Vec<_>>(), order);
    assert!(issues.iter().all(|i| i.batch == issues[0].batch), "one call of the driver");
    finish(&mut harness);
}

#[test]
fn nested_plugs_open_and_close_once() {
    let mut harness = Harness::new(10, manual(), config("none"), &[0]);
    harness.plug(0, 0);
    harness.plug(0, 0);
    harness.submit(0, read(0, 8));
    harness.unplug(0);
    assert_eq!(harness.disk.issues().len(), 0);
    harness.unplug(0);
    assert_eq!(harness.disk.issues().len(), 1);
    finish(&mut harness);
}

#[test]
fn a_plug_is_flushed_at_32_requests_and_after_128_kib() {
    let mut harness = Harness::new(11, manual(), config("none"), &[0]);
    harness.plug(0, 40);
    for n in 0..32 {
        harness.submit(0, read(n * 100, 8));
        assert_eq!(harness.disk.issues().len(), 0);
    }
    harness.submit(0, read(3200, 8));
    assert_eq!(harness.disk.issues().len(), 32);
    harness.submit(0, read(4000, 256));
    assert_eq!(harness.disk.issues().len(), 32, "a large request is still held");
    harness.submit(0, read(8000, 8));
    assert_eq!(harness.disk.issues().len(), 34, "but the next one sends it on its way");
    harness.unplug(0);
    assert_eq!(harness.disk.issues().len(), 35);
    finish(&mut harness);
    // Unless nothing is merged anyway.
    let mut harness = Harness::new(12, manual(), QueueConfig { nomerges: 2, ..config("none") }, &[0]);
    harness.plug(0, 4);
    (0..3).for_each(|n| harness.submit(0, read(n * 1000, 256)));
    assert_eq!(harness.disk.issues().len(), 0);
    harness.unplug(0);
    finish(&mut harness);
}

#[test]
fn tags_an_abandoned_plug_had_in_store_come_back() {
    let mut harness = Harness::new(13, manual(), config("none"), &[0, 1]);
    harness.plug(0, 32);
    harness.submit(0, read(0, 8));
    let t = harness.t();
    harness.subs[0].flush_plug(t);
    harness.disk.release_all();
    harness.poll(0);
    // Dropped with the plug open.
    drop(harness.subs.remove(0));
    harness.check_idle();
}

#[test]
fn neighbours_merge_in_the_plug_up_to_the_limits() {
    let mut harness =
        Harness::new(14, with_limits(|l| (l.max_hw_sectors, l.max_sectors) = (32, 32)), config("none"), &[0]);
    harness.plug(0, 0);
    // Back, front, and one that would be too long.
    [100, 108, 92, 116, 124].iter().for_each(|s| harness.submit(0, write(*s, 8)));
    harness.unplug(0);
    assert_eq!(ranges(&harness.disk.issues()), [(92, 32), (124, 8)]);
    assert_eq!(harness.q.stats().op(Op::Write).merges, 3);
    finish(&mut harness);
    assert_eq!(harness.done[0].len(), 5, "each bio ends by itself");
}

#[test]
fn what_must_not_merge_does_not() {
    let rt = IoPrio::new(IoPrioClass::Rt, 0);
    let b = with_limits(|l| (l.write_cache, l.fua) = (true, true));
    let other = [
        read(108, 8),
        write(108, 8).with_flags(OpFlags::NOMERGE),
        write(108, 8).with_flags(OpFlags::FUA),
        write(108, 8).with_flags(OpFlags::PREFLUSH),
        Bio { prio: rt, ..write(108, 8) },
        write(109, 8),
        zeroes(108, 8),
        discard(108, 8),
    ];
    for bio in other {
        let mut harness = Harness::new(15, b.clone(), config("none"), &[0]);
        harness.plug(0, 0);
        harness.submit(0, write(100, 8));
        harness.submit(0, bio);
        harness.unplug(0);
        finish(&mut harness);
        let data: Vec<_> = harness.disk.issues().into_iter().filter(|i| i.op != Op::Flush).collect();
        assert_eq!(data.len(), 2, "{bio:?}");
    }
    // Only the last request of the plug is checked, and nothing with nomerges=2.
    for (nomerges, middle, expect) in [(0, 500, 3), (2, 108, 3), (1, 108, 1)] {
        let mut harness = Harness::new(16, manual(), QueueConfig { nomerges, ..config("none") }, &[0]);
        harness.plug(0, 0);
        harness.submit(0, write(100, 8));
        harness.submit(0, write(middle, 8));
        harness.submit(0, write(if middle == 108 { 116 } else { 108 }, 8));
        harness.unplug(0);
        assert_eq!(harness.disk.issues().len(), expect, "nomerges={nomerges}");
        finish(&mut harness);
    }
}

#[test]
fn reserved_io_shares_no_request_and_asks_for_no_flush() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let config = QueueConfig { reserved_tags: 2, ..config(scheduler) };
        let mut harness = Harness::new(17, with_limits(|l| (l.write_cache, l.fua) = (true, true)), config, &[0]);
        for flag in [OpFlags::FUA, OpFlags::PREFLUSH] {
            let both = flag.union(OpFlags::RESERVED);
            assert_eq!(refusal(&mut harness, write(0, 8).with_flags(both)), BlkStatus::Inval);
        }
        harness.plug(0, 0);
        harness.submit(0, write(100, 8));
        harness.submit(0, write(108, 8).with_flags(OpFlags::RESERVED));
        harness.submit(0, write(108, 8));
        harness.unplug(0);
        let mut seen = ranges(&harness.disk.issues());
        seen.sort_unstable();
        assert_eq!(seen, [(100, 16), (108, 8)], "{scheduler}");
        finish(&mut harness);
    }
}

#[test]
fn single_queue_mode_looks_through_the_whole_plug() {
    let config = QueueConfig { mode: Mode::Sq, nr_hw_queues: None, ..config("noop") };
    let mut harness = Harness::new(18, manual(), config, &[0]);
    harness.plug(0, 0);
    for sector in [100, 500, 900, 108, 492] {
        harness.submit(0, write(sector, 8));
    }
    harness.unplug(0);
    assert_eq!(ranges(&harness.disk.issues()), [(100, 16), (492, 16), (900, 8)]);
    finish(&mut harness);
}

#[test]
fn single_queue_plug_merges_with_the_elevator_when_flushed() {
    // Two plugs hold adjacent requests that could not be merged there; the driver takes none, so the first stays
    // queued.
    let config = QueueConfig { mode: Mode::Sq, nr_hw_queues: None, queue_depth: 1, ..config("deadline") };
    let mut harness = Harness::new(19, manual(), config, &[0, 1]);
    harness.submit(0, write(900, 8));
    (0..2).for_each(|s| harness.plug(s, 0));
    harness.submit(0, write(100, 8));
    harness.submit(1, write(108, 8));
    (0..2).for_each(|s| harness.unplug(s));
    harness.disk.release_all();
    harness.poll(0);
    assert_eq!(ranges(&harness.disk.issues()), [(900, 8), (100, 16)]);
    finish(&mut harness);
}

#[test]
fn pieces_of_a_split_bio_are_not_merged_but_its_rest_is() {
    let mut harness =
        Harness::new(17, with_limits(|l| (l.max_hw_sectors, l.max_sectors) = (64, 64)), config("none"), &[0]);
    harness.plug(0, 0);
    harness.submit(0, write(0, 100));
    harness.submit(0, write(100, 8));
    harness.unplug(0);
    assert_eq!(ranges(&harness.disk.issues()), [(0, 64), (64, 44)]);
    finish(&mut harness);
}

#[test]
fn a_bio_looks_eight_requests_back_in_its_ctx_list() {
    // Quiesced, requests collect in the submitting CPU's list.
    for (between, merged) in [(7, true), (8, false)] {
        let mut harness = Harness::new(18, manual(), config("none"), &[0, 1]);
        harness.q.quiesce();
        harness.submit(0, write(100, 8));
        (0..between).for_each(|n| harness.submit(0, write(1000 + n * 100, 8)));
        harness.submit(0, write(108, 8));
        // Another CPU's list is not checked.
        harness.submit(1, write(116, 8));
        let merges = harness.q.stats().op(Op::Write).merges;
        assert_eq!(merges, u64::from(merged), "{between} between");
        harness.q.unquiesce();
        harness.run(10);
        finish(&mut harness);
    }
}

#[test]
fn elevators_merge_bios_of_different_submitters_and_close_gaps() {
    for (scheduler, mode) in [("mq-deadline", Mode::Mq), ("deadline", Mode::Sq)] {
        let mut harness = Harness::new(19, manual(), QueueConfig { mode, ..config(scheduler) }, &[0, 1]);
        harness.q.quiesce();
        harness.submit(0, write(100, 8));
        harness.submit(1, write(116, 8));
        // Fills the gap: the bio is merged into one neighbour, and that one into the other.
        harness.submit(0, write(108, 8));
        assert_eq!(harness.q.stats().op(Op::Write).merges, 2, "{scheduler}: of the bio, and of the request");
        harness.q.unquiesce();
        harness.run(10);
        assert_eq!(ranges(&harness.disk.issues()), [(100, 24)], "{scheduler}");
        finish(&mut harness);
        assert_eq!((harness.done[0].len(), harness.done[1].len()), (2, 1), "{scheduler}: each to its submitter");
    }
}

#[test]
fn stage_times_add_up_to_the_total() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut harness =
            Harness::new(20, manual(), QueueConfig { queue_depth: 1, nomerges: 2, ..config(scheduler) }, &[0]);
        for n in 0..6 {
            harness.plug(0, 0);
            harness.submit(0, read(n * 100, 8));
            harness.now += 10;
            harness.unplug(0);
            harness.now += 7;
        }
        for _ in 0..6 {
            harness.now += 1000;
            harness.disk.release_all();
            harness.run(20);
        }
        let s = harness.q.stats();
        let st = s.stages;
        let sum = st.tag_wait_ns + st.ctx_ns + st.scheduler_ns + st.dispatch_ns + st.device_ns;
        assert_eq!((sum, st.requests), (s.op(Op::Read).time_ns, 6), "{scheduler}: {st:?}");
        assert!(st.device_ns >= 6000, "{scheduler}: {st:?}");
        finish(&mut harness);
    }
}
