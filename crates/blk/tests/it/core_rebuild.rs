// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Freeze, rebuild and unfreeze: the effects of a change of settings on a disk in use, and of a change that fails.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::elevator::{CustomElevator, Elevator, ElvCx};
use blk::id::{CpuId, HctxId, Sector};
use blk::request::Rq;
use blk::settings::{Mode, QueueConfig, SETTINGS, SettingChange};
use blk::status::BlkStatus;
use sim::disk::Behaviour;
use sim::harness::Harness;

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

fn config(cpus: u16, hw: u16) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(hw),
        queue_depth: 8,
        scheduler: Some("none".into()),
        nomerges: 2,
        ..QueueConfig::default()
    }
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

#[test]
fn freeze_waits_for_requests_in_flight_and_holds_new_bios() {
    let mut harness = Harness::new(1, manual(), config(2, 2), &[0, 1]);
    harness.submit(0, read(0));
    harness.q.begin_freeze();
    harness.submit(0, read(1));
    harness.submit(1, read(2));
    harness.run(20);
    assert!(!harness.q.is_drained(), "one is at the driver");
    assert_eq!((harness.disk.issues().len(), harness.subs[0].waiting(), harness.subs[1].waiting()), (1, 1, 1));
    harness.disk.release_all();
    harness.run(20);
    assert!(harness.q.is_drained());
    // A drained queue stays drained under any poll; the driver is not polled, because it may be in a restart.
    let polls = harness.disk.polls();
    (0..2).for_each(|s| harness.poll(s));
    assert_eq!((harness.q.is_drained(), harness.disk.polls()), (true, polls));
    harness.q.unfreeze();
    harness.poll(0);
    assert!(harness.disk.polls() > polls);
    harness.run(20);
    assert_eq!(harness.disk.issues().len(), 3);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn freeze_notifies_submitters_and_idle_ones_leave_on_poll() {
    for rests in [false, true] {
        let mut harness = Harness::new(14, manual(), config(1, 1), &[0]);
        harness.submit(0, read(0));
        harness.disk.release_all();
        harness.poll(0);
        assert_eq!(harness.take_done(0).len(), 1);
        if rests {
            harness.subs[0].rest();
        }
        harness.q.begin_freeze();
        assert!(harness.notifications.is_pending(harness.subs[0].id()), "it may be asleep");
        assert_eq!(harness.q.is_drained(), rests, "inside until it says otherwise");
        harness.poll(0);
        assert!(harness.q.is_drained());
        harness.q.unfreeze();
        harness.check_idle();
    }
}

#[test]
fn a_misnamed_custom_elevator_leaves_the_old_one_in_effect() {
    struct Own;
    impl Elevator for Own {
        fn name(&self) -> &'static str {
            "own"
        }
        fn insert(&self, _: &ElvCx<'_>, _: &mut Vec<Rq>, _: bool, _: &mut Vec<Rq>) {}
        fn dispatch(&self, _: &ElvCx<'_>, _: HctxId, _: usize, _: &mut Vec<Rq>) {}
        fn has_work(&self, _: HctxId) -> bool {
            false
        }
    }
    const OTHER: CustomElevator = CustomElevator { name: "other", make: |_| Box::new(Own) };
    let config = QueueConfig { custom_elevators: &[OTHER], scheduler: Some("kyber".into()), ..config(1, 1) };
    let mut harness = Harness::new(1, Behaviour::default(), config, &[0]);
    let refused = harness.rebuild(|c| c.set("scheduler", "other")).expect_err("it is named 'own'");
    assert!(refused.0.contains("'other' makes an elevator named 'own'"), "{refused}");
    assert_eq!(harness.q.config().scheduler.as_deref(), Some("kyber"));
    harness.submit(0, read(0));
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn freezes_nest() {
    let mut harness = Harness::new(2, manual(), config(1, 1), &[0]);
    harness.q.begin_freeze();
    harness.q.begin_freeze();
    assert!(harness.q.is_drained());
    harness.q.unfreeze();
    harness.submit(0, read(0));
    harness.run(20);
    assert_eq!((harness.disk.issues().len(), harness.q.is_drained()), (0, true));
    harness.q.unfreeze();
    harness.run(20);
    harness.disk.release_all();
    harness.run_dry(20);
}

#[test]
fn an_open_plug_keeps_a_freeze_waiting_until_it_is_finished() {
    let mut harness = Harness::new(3, manual(), config(1, 1), &[0]);
    harness.plug(0, 4);
    harness.submit(0, read(0));
    harness.q.begin_freeze();
    harness.poll(0);
    assert!(!harness.q.is_drained());
    harness.unplug(0);
    harness.disk.release_all();
    harness.run(20);
    assert!(harness.q.is_drained(), "{}", harness.describe());
    harness.q.unfreeze();
    harness.run_dry(20);
}

#[test]
fn submitters_follow_a_changed_map_even_if_they_only_poll() {
    let mut harness = Harness::new(4, manual(), config(4, 4), &[0, 1, 2, 3]);
    (0..4).for_each(|s| harness.submit(s, read(s as u64)));
    harness.disk.release_all();
    harness.run_dry(20);
    harness
        .rebuild(|c| {
            c.nr_hw_queues = Some(1);
            Ok(())
        })
        .expect("fewer queues");
    // Only 0 submits; 3, whose hardware queue is gone, polls the completion.
    harness.submit(0, read(9));
    assert_eq!(harness.disk.issues().last().expect("issued").hctx, 0);
    harness.disk.release_all();
    harness.poll(3);
    harness.run_dry(20);
    assert_eq!((harness.done[0].len(), harness.q.map().nr_hw_queues(), harness.disk.starts()), (2, 1, (2, 1, 8)));
    harness.check_idle();
}

#[test]
fn elevator_and_mode_change_with_bios_waiting() {
    let mut harness = Harness::new(5, Behaviour::default(), QueueConfig { queue_depth: 1, ..config(2, 1) }, &[0, 1]);
    let steps: [(Mode, &str); 8] = [
        (Mode::Mq, "mq-deadline"),
        (Mode::Mq, "kyber"),
        (Mode::Mq, "mq-deadline"),
        (Mode::Sq, "deadline"),
        (Mode::Sq, "noop"),
        (Mode::Mq, "none"),
        (Mode::Sq, "deadline"),
        (Mode::Mq, "mq-deadline"),
    ];
    let mut n = 0;
    for (mode, scheduler) in steps {
        for s in [0, 1, 0, 1, 0, 1] {
            harness.submit(s, read(n));
            n += 1;
        }
        harness
            .rebuild(|c| {
                (c.mode, c.scheduler) = (mode, Some(scheduler.into()));
                Ok(())
            })
            .expect("good settings");
        assert_eq!(harness.q.scheduler(), scheduler);
    }
    harness.run_dry(1000);
    assert_eq!(harness.done.iter().map(Vec::len).sum::<usize>(), n as usize);
    assert_eq!(harness.q.stats().op(Op::Read).ios, n);
    harness.check_idle();
}

#[test]
fn bios_that_wait_for_something_the_new_stack_lacks_are_refused() {
    let c = QueueConfig { reserved_tags: 1, nr_poll_queues: 1, ..config(1, 1) };
    let mut harness = Harness::new(6, manual(), c, &[0]);
    harness.q.begin_freeze();
    harness.submit(0, read(1).with_flags(OpFlags::RESERVED));
    harness.submit(0, read(2).with_flags(OpFlags::POLLED));
    harness.submit(0, read(3));
    harness.drain();
    harness
        .q
        .rebuild(|c| {
            (c.reserved_tags, c.nr_poll_queues) = (0, 0);
            Ok(())
        })
        .expect("good settings");
    harness.q.unfreeze();
    harness.run(20);
    let ended: Vec<_> = harness.take_done(0).iter().map(|d| (d.user_data, d.status)).collect();
    assert_eq!(ended, [(1, BlkStatus::Inval), (2, BlkStatus::NotSupp)]);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut harness = Harness::new(7, manual(), config(2, 2), &[0, 1]);
    let starts = harness.disk.starts();
    type Change = fn(&mut QueueConfig);
    let bad: [(Change, &str); 9] = [
        (|c| c.scheduler = Some("cfq".into()), "cfq"),
        (|c| c.nr_hw_queues = Some(3), "nr_hw_queues=3"),
        (|c| (c.nr_hw_queues, c.nr_requests) = (Some(1), Some(9)), "nr_requests=9"),
        (|c| (c.nr_hw_queues, c.reserved_tags) = (Some(1), 8), "reserved_tags=8"),
        (|c| c.iosched = vec![("fifo_batch".into(), 1)], "iosched.fifo_batch"),
        (|c| c.topology = CpuTopology::uniform(4), "nr_cpus"),
        (|c| c.max_sectors_kb = Some(64), "max_sectors_kb"),
        (|c| c.bios_per_submitter = 7, "bios_per_submitter"),
        (|c| (c.nr_hw_queues, c.queue_depth) = (Some(1), 0), "queue_depth"),
    ];
    for (change, names) in bad {
        let e = harness.rebuild(|c| {
            change(c);
            Ok(())
        });
        let text = e.expect_err(names).to_string();
        assert!(text.contains(names), "{text}");
    }
    assert_eq!(harness.disk.starts(), starts, "the driver was not touched");
    assert_eq!((harness.q.map().nr_hw_queues(), harness.q.config().nr_hw_queues), (2, Some(2)));
    (0..2).for_each(|s| harness.submit(s, read(s as u64)));
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn driver_that_cannot_start_new_queues_gets_the_old_back() {
    let mut harness = Harness::new(8, manual(), config(2, 1), &[0, 1]);
    harness.disk.refuse_starts(1);
    let to_two = |c: &mut QueueConfig| {
        c.nr_hw_queues = Some(2);
        Ok(())
    };
    let text = harness.rebuild(to_two).expect_err("refused").to_string();
    assert_eq!(text, "driver 'sim' could not start 2 queues of depth 8: no vectors left");
    assert_eq!((harness.disk.starts(), harness.q.map().nr_hw_queues()), ((2, 1, 8), 1));
    harness.submit(1, read(1));
    harness.disk.release_all();
    harness.run_dry(20);
    // Both starts fail: the error says so, and there is no other damage.
    harness.q.begin_freeze();
    harness.drain();
    harness.disk.refuse_starts(2);
    let text = harness.q.rebuild(to_two).expect_err("refused").to_string();
    assert!(text.contains("2 queues") && text.contains("rollback failed") && text.contains("1 queues"), "{text}");
    harness.q.rebuild(to_two).expect("it recovers");
    harness.q.unfreeze();
    harness.check_idle();
}

#[test]
fn the_driver_is_started_anew_only_when_its_queues_change() {
    let mut harness = Harness::new(9, manual(), config(2, 2), &[0]);
    let mut change = |f: fn(&mut QueueConfig)| {
        harness
            .rebuild(|c| {
                f(c);
                Ok(())
            })
            .expect("good settings");
        harness.disk.starts().0
    };
    assert_eq!(change(|c| c.scheduler = Some("mq-deadline".into())), 1);
    assert_eq!(change(|c| c.nr_requests = Some(64)), 1);
    assert_eq!(change(|c| c.nr_hw_queues = Some(1)), 2);
    assert_eq!(change(|c| c.queue_depth = 16), 3);
}

#[test]
fn nr_requests_follows_the_kernels_rules() {
    let mut harness = Harness::new(10, manual(), QueueConfig { queue_depth: 200, ..config(2, 2) }, &[0]);
    let mut set = |f: fn(&mut QueueConfig)| {
        harness
            .rebuild(|c| {
                f(c);
                Ok(())
            })
            .map(|()| harness.q.nr_requests())
            .map_err(|e| e.to_string())
    };
    assert_eq!(set(|_| ()), Ok(200), "none: the depth");
    assert_eq!(set(|c| c.nr_requests = Some(20)), Ok(20));
    assert_eq!(set(|c| c.scheduler = Some("mq-deadline".into())), Ok(256), "twice the depth, counted to 128");
    assert_eq!(set(|c| c.nr_requests = Some(2048)), Ok(2048));
    assert!(set(|c| c.nr_requests = Some(2049)).expect_err("too many").contains("4..=2048"));
    assert_eq!(set(|c| c.nr_hw_queues = Some(1)), Ok(256), "a new number of queues: back to the default");
    assert_eq!(set(|c| c.scheduler = Some("none".into())), Ok(200));
    assert!(set(|c| c.nr_requests = Some(201)).expect_err("too many").contains("queue_depth=200"));
    assert_eq!(set(|c| (c.mode, c.scheduler) = (Mode::Sq, None)), Ok(128));
}

#[test]
fn nr_requests_without_elevator_bounds_the_driver_tags() {
    let mut harness = Harness::new(11, manual(), QueueConfig { nr_requests: Some(4), ..config(1, 1) }, &[0]);
    (0..8).for_each(|n| harness.submit(0, read(n)));
    assert_eq!((harness.disk.issues().len(), harness.subs[0].waiting()), (4, 4));
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(100);
    harness.check_idle();
}

#[test]
fn async_depth_is_kept_and_never_hangs() {
    let mut harness =
        Harness::new(12, manual(), QueueConfig { scheduler: Some("mq-deadline".into()), ..config(1, 1) }, &[0]);
    assert_eq!(harness.q.nr_requests(), 16);
    harness.q.set_iosched("async_depth", 4).expect("a tunable of mq-deadline");
    let write = |n: u64| Bio { op: Op::Write, ..read(n) };
    (0..10).for_each(|n| harness.submit(0, write(n)));
    assert!(harness.subs[0].waiting() >= 6, "{}", harness.describe());
    let mut reader = harness.q.submitter(CpuId::new(0)).expect("a free place");
    (20..30).for_each(|n| reader.submit(&read(n), harness.t()).expect("a slot"));
    assert_eq!(reader.waiting(), 0, "reads may use all");
    harness.subs.push(reader);
    harness.done.push(Vec::new());
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(1000);
    harness.check_idle();
}

#[test]
fn elevator_and_tunables_survive_other_changes_together() {
    let value = |harness: &Harness| harness.q.iosched().iter().find(|t| t.name == "fifo_batch").map(|t| t.value);
    let mut harness = Harness::new(14, Behaviour::default(), QueueConfig { scheduler: None, ..config(2, 1) }, &[0]);
    assert_eq!(harness.q.scheduler(), "mq-deadline", "the default for one hardware queue");
    harness.q.set_iosched("fifo_batch", 3).expect("a tunable of mq-deadline");
    let change = |harness: &mut Harness, f: fn(&mut QueueConfig)| {
        harness
            .rebuild(|c| {
                f(c);
                Ok(())
            })
            .expect("good settings");
    };
    change(&mut harness, |c| c.nr_hw_queues = Some(2));
    assert_eq!((harness.q.scheduler().as_str(), value(&harness)), ("mq-deadline", Some(3)));
    change(&mut harness, |c| c.scheduler = Some("none".into()));
    assert!(harness.q.config().iosched.is_empty());
    change(&mut harness, |c| c.scheduler = Some("mq-deadline".into()));
    assert_eq!(value(&harness), Some(16), "the default again");
    change(&mut harness, |c| (c.mode, c.nr_hw_queues) = (Mode::Sq, None));
    assert_eq!(harness.q.scheduler(), "deadline", "the default of the other mode");
    harness.check_idle();
}

#[test]
fn absurd_amounts_of_memory_are_rejected() {
    let settings =
        QueueConfig { topology: CpuTopology::uniform(4096), nr_hw_queues: None, queue_depth: 10240, ..config(1, 1) };
    let e = Harness::try_new(15, Behaviour::default(), settings, &[0]).err().expect("gigabytes").0;
    assert!(e.starts_with("queue_depth=10240") && e.contains("at most 1024 MiB") && e.contains("lower"), "{e}");
}

#[test]
fn a_submitter_made_between_two_rebuilds_knows_the_last_state() {
    let mut harness = Harness::new(13, manual(), config(2, 2), &[0]);
    harness
        .rebuild(|c| {
            c.nr_hw_queues = Some(1);
            Ok(())
        })
        .expect("good settings");
    harness.subs.push(harness.q.submitter(CpuId::new(1)).expect("a free place"));
    harness.done.push(Vec::new());
    harness.submit(1, read(1));
    assert_eq!(harness.disk.issues()[0].hctx, 0);
    harness.disk.release_all();
    harness.run_dry(10);
    harness.check_idle();
}

/// Returns a value that differs from the default.
fn other_value(name: &str) -> &'static str {
    match name {
        "mode" => "sq",
        "scheduler" => "kyber",
        "nr_hw_queues" | "nr_read_queues" | "nr_poll_queues" | "reserved_tags" | "host_tagset" | "rq_affinity" => "1",
        "nr_cpus" | "nomerges" => "2",
        "nr_requests" => "4",
        "queue_depth" | "max_sectors_kb" | "read_ahead_kb" => "16",
        "io_timeout" | "wbt_lat_usec" => "1000",
        "iostats" => "0",
        limit if limit.ends_with("_burst") => "0",
        limit if limit.starts_with("iops_") || limit.starts_with("bps_") => "100000",
        _ => panic!("{name}: choose a value here"),
    }
}

#[test]
fn each_setting_changes_when_its_row_says() {
    for s in SETTINGS {
        // Without a number of queues, so that a change to single-queue mode is possible.
        let harness = Harness::new(1, manual(), QueueConfig { nr_hw_queues: None, ..config(4, 4) }, &[0]);
        let value = other_value(s.name);
        let live = harness.q.set_live(&[(s.name, value)]).is_ok();
        harness.q.begin_freeze();
        assert!(harness.q.is_drained());
        let frozen = harness.q.rebuild(|c| c.set(s.name, value)).is_ok();
        let expected = match s.change {
            SettingChange::Live => (true, true),
            SettingChange::Frozen => (false, true),
            SettingChange::Fixed => (false, false),
        };
        assert_eq!((live, frozen), expected, "{}={value}", s.name);
    }
}
