// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace: which events a bio causes, their order and their content.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::trace::{Event, EventKind};
use sim::disk::Behaviour;
use sim::harness::Harness;

fn config(scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: 4,
        scheduler: Some(scheduler.into()),
        ..QueueConfig::default()
    }
}

/// A traced disk with one submitter: with two, either may find the other's completions.
fn harness(config: QueueConfig, change: impl FnOnce(&mut Behaviour)) -> Harness {
    harness_of(7, config, change, &[0])
}

fn harness_of(seed: u64, config: QueueConfig, change: impl FnOnce(&mut Behaviour), cpus: &[u16]) -> Harness {
    let mut behaviour = Behaviour::default();
    change(&mut behaviour);
    let mut harness = Harness::new(seed, behaviour, config, cpus);
    harness.subs.iter_mut().for_each(|s| s.start_trace(10_000));
    harness
}

fn write(sector: u64, nr: u32) -> Bio {
    Bio::write(Sector(sector), nr, DataRef::new(0, sector << 9)).with_user_data(sector)
}

/// Returns the events that submitter `s` has traced since the last call.
fn take(harness: &mut Harness, s: usize) -> Vec<Event> {
    let mut events = Vec::new();
    assert_eq!(harness.subs[s].drain_trace(|e| events.push(*e)), 0, "no event is dropped");
    events
}

/// `Q100+8 G100+8 U2`: what blkparse shows, without times.
fn text(events: &[Event]) -> String {
    let one = |e: &Event| match e.kind {
        EventKind::Plug => "P".to_owned(),
        EventKind::Unplug => format!("U{}", e.count()),
        kind => format!("{}{}+{}", kind.letter(), e.sector().0, e.nr_sectors()),
    };
    events.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn traced(harness: &mut Harness) -> String {
    harness.run_dry(10_000);
    text(&take(harness, 0))
}

#[test]
fn trace_without_elevator_goes_from_getrq_to_issue() {
    let mut harness = harness(config("none"), |_| {});
    harness.submit(0, write(100, 8).with_flags(OpFlags::SYNC));
    harness.run_dry(100);
    let events = take(&mut harness, 0);
    assert_eq!(text(&events), "Q100+8 G100+8 D100+8 C100+8");
    let [q, _, d, c] = events[..] else { unreachable!("four events") };
    assert_eq!((q.cpu().index(), q.hctx(), q.tag(), q.op(), q.flags()), (0, None, None, Op::Write, OpFlags::SYNC));
    assert_eq!((d.hctx().map(blk::id::HctxId::index), d.tag(), c.tag()), (Some(0), c.tag(), d.tag()));
    assert!(d.tag().is_some() && q.time == d.time && d.time < c.time && c.status() == BlkStatus::Ok);
}

#[test]
fn a_plug_merges_in_front_and_behind_and_is_emptied_once() {
    for scheduler in ["none", "mq-deadline"] {
        let mut harness = harness(config(scheduler), |_| {});
        harness.plug(0, 0);
        [write(100, 8), write(108, 4), write(92, 8), write(500, 8)].into_iter().for_each(|b| harness.submit(0, b));
        harness.unplug(0);
        let inserted = if scheduler == "none" { "" } else { "I92+20 I500+8 " };
        let way = "Q100+8 G100+8 P Q108+4 M108+4 Q92+8 F92+8 Q500+8 G500+8 U2 ";
        let all = traced(&mut harness);
        let rest = all.strip_prefix(&format!("{way}{inserted}D92+20 D500+8 C")).unwrap_or_else(|| panic!("{all}"));
        assert!(rest == "92+20 C500+8" || rest == "500+8 C92+20", "{all}");
    }
}

#[test]
fn elevator_merges_are_traced_per_bio_and_per_request() {
    let mut harness = harness(config("mq-deadline"), |_| {});
    harness.q.quiesce();
    // The second is a front merge found by the elevator; the third closes the gap to the fourth.
    for bio in [write(100, 8), write(96, 4), write(116, 8), write(108, 8)] {
        harness.submit(0, bio);
    }
    // Joined during its insertion: it is merged, not inserted.
    harness.plug(0, 0);
    harness.submit(0, write(400, 8));
    harness.submit(0, write(200, 8));
    harness.submit(0, write(408, 8));
    harness.unplug(0);
    harness.q.unquiesce();
    let all = traced(&mut harness);
    assert!(
        all.starts_with(
            "Q100+8 G100+8 I100+8 Q96+4 F96+4 Q116+8 G116+8 I116+8 Q108+8 M108+8 M116+8 \
             Q400+8 G400+8 P Q200+8 G200+8 Q408+8 G408+8 U3 I400+8 I200+8 M408+8 D96+28 "
        ),
        "{all}"
    );
    assert!(all.contains(" D200+8 D400+16 "), "{all}");
}

#[test]
fn a_bio_that_is_cut_has_one_q_and_an_x_for_each_cut() {
    let mut harness = harness(config("none"), |b| (b.limits.max_sectors, b.limits.max_hw_sectors) = (16, 16));
    harness.submit(0, write(0, 40));
    let all = traced(&mut harness);
    assert!(all.starts_with("Q0+40 X0+16 G0+16 P X16+16 G16+16 G32+8 U3 D0+16 D16+16 D32+8 C"), "{all}");
    assert_eq!(all.matches('C').count(), 3, "{all}");
}

#[test]
fn a_busy_driver_and_one_that_gives_back_are_requeues() {
    let mut rig1 = harness(config("none"), |b| b.device_cap = 1);
    rig1.plug(0, 0);
    [0, 100, 200].into_iter().for_each(|s| rig1.submit(0, write(s, 8)));
    rig1.unplug(0);
    let events = take(&mut rig1, 0);
    assert!(text(&events).contains("U3 D0+8 D100+8 R100+8"), "{}", text(&events));
    rig1.run_dry(10_000);
    let rest = take(&mut rig1, 0);
    for sector in [0, 100, 200] {
        let of = |kind| events.iter().chain(&rest).filter(|e| e.kind == kind && e.sector().0 == sector).count();
        assert_eq!((of(EventKind::Issue), of(EventKind::Complete)), (1 + of(EventKind::Requeue), 1), "sector {sector}");
    }
    let mut rig2 = harness(config("none"), |b| b.give_back = 1000);
    rig2.submit(0, write(0, 8));
    rig2.step();
    rig2.disk.behave(|b| b.give_back = 0);
    let all = traced(&mut rig2);
    assert!(all.starts_with("Q0+8 G0+8 D0+8 R0+8 D0+8") && all.ends_with(" C0+8"), "{all}");
}

#[test]
fn errors_are_in_the_completion() {
    let mut failing = harness(config("none"), |b| b.complete_error = 1000);
    failing.submit(0, write(0, 8));
    failing.run_dry(100);
    let events = take(&mut failing, 0);
    let last = events.last().unwrap();
    assert_eq!(text(&events), "Q0+8 G0+8 D0+8 C0+8");
    assert_eq!(last.status(), failing.take_done(0)[0].status);
    assert_ne!(last.status(), BlkStatus::Ok);
    let mut refusing = harness(config("none"), |b| b.issue_error = 1000);
    refusing.submit(0, write(0, 8));
    assert_eq!(traced(&mut refusing), "Q0+8 G0+8 D0+8 C0+8", "the driver refused it at once");
    // Rejected before a submitter has it: no event, as in the kernel.
    refusing.submit(0, write(0, 0));
    assert_eq!(traced(&mut refusing), "");
}

#[test]
fn a_flush_sequence_shows_the_flush_the_data_and_the_end() {
    let mut harness = harness(config("none"), |b| (b.limits.write_cache, b.limits.fua) = (true, false));
    harness.submit(0, write(8, 8).with_flags(OpFlags::PREFLUSH.union(OpFlags::FUA)));
    assert_eq!(traced(&mut harness), "Q8+8 G8+8 D0+0 C0+0 D8+8 C8+8 D0+0 C0+0 C8+0");
    harness.submit(0, Bio::flush());
    assert_eq!(traced(&mut harness), "Q0+0 G0+0 D0+0 C0+0 C0+0");
}

#[test]
fn a_full_log_keeps_what_it_has_and_counts_the_rest() {
    let mut harness = harness(config("none"), |_| {});
    harness.subs[0].start_trace(5);
    for _ in 0..3 {
        harness.submit(0, write(0, 8));
        harness.run_dry(100);
    }
    let mut events = Vec::new();
    assert_eq!(harness.subs[0].drain_trace(|e| events.push(*e)), 7);
    assert_eq!(text(&events), "Q0+8 G0+8 D0+8 C0+8 Q0+8");
    harness.submit(0, write(0, 8));
    harness.run_dry(100);
    let log = harness.subs[0].stop_trace();
    assert_eq!((text(&log.events).as_str(), log.dropped), ("Q0+8 G0+8 D0+8 C0+8", 0), "drained, there is room again");
    harness.submit(0, write(0, 8));
    harness.run_dry(100);
    assert_eq!(harness.subs[0].stop_trace().events, [], "off");
}

/// Random I/O of two submitters on every kind of stack, with a driver that refuses and gives back: over both logs every
/// accepted bio is queued once, and the events of requests balance.
#[test]
fn over_all_submitters_the_books_balance() {
    let stacks = [("none", Mode::Mq), ("mq-deadline", Mode::Mq), ("deadline", Mode::Sq), ("noop", Mode::Sq)];
    for (seed, (scheduler, mode)) in (0..20).flat_map(|seed| stacks.map(|s| (seed, s))) {
        let c = QueueConfig { mode, ..config(scheduler) };
        let faults = |b: &mut Behaviour| (b.resource, b.dev_resource, b.give_back, b.at_once) = (100, 100, 100, 300);
        let mut harness = harness_of(seed, c, faults, &[0, 1]);
        let mut x: u64 = seed * 2 + 1;
        for i in 0..400 {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (s, sector) = ((x >> 60) as usize & 1, (x >> 33) % 64 * 8);
            if i % 9 == 0 {
                harness.plug(s, 0);
            }
            if harness.try_submit(s, write(sector, 8)).is_err() {
                harness.run(100_000);
                harness.submit(s, write(sector, 8));
            }
            if i % 9 == 0 {
                harness.unplug(s);
            }
        }
        harness.run_dry(1_000_000);
        let logs = [take(&mut harness, 0), take(&mut harness, 1)];
        assert!(logs.iter().all(|l| l.is_sorted_by_key(|e| e.time)), "seed {seed} {scheduler}: times ascend");
        let n = |kind| logs.iter().flatten().filter(|e| e.kind == kind).count();
        let merged = n(EventKind::BackMerge) + n(EventKind::FrontMerge);
        let issued = n(EventKind::Issue) - n(EventKind::Requeue);
        let note = format!("seed {seed} {scheduler}");
        assert_eq!((n(EventKind::Queue), issued + merged), (400, 400), "{note}: a bio is issued or merged");
        assert_eq!(n(EventKind::Complete), issued, "{note}: what is issued completes");
        let stats = harness.q.stats();
        let s = stats.op(Op::Write);
        assert_eq!((s.ios, s.merges), (issued as u64, merged as u64), "{note}: as in the statistics");
    }
}
