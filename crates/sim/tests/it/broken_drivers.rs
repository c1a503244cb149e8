// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers that break the contract: each is stopped at the call that breaks it, by a message that says which driver, which
//! hardware queue, which tag and which rule. None may end a request that is not its own to end.
//!
//! Some breaches do not compile: to complete a request twice, copy the duty to complete it, or make up a duty from a number,
//! in range or not. The `compile_fail` examples at `blk::driver::InFlight` test those.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{Features, Multipath, NewGroup, NewPath, PathArgs, Selector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::{Mode, QueueConfig};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::Submitter;
use blk::time::Instant;
use sim::Lock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaks {
    /// Takes nothing and says that it took all.
    LeavesBehind,
    /// Takes the first of several and says that it took all.
    LeavesSome,
    /// Takes all and says that there was one it could not take.
    RefusesNobody(QueueRqStatus),
    /// Takes more than it was given.
    TakesTooMany,
    /// Ends more than it was given.
    EndsTooMany,
    /// Reports what is finished on another hardware queue than it was given on.
    WrongQueue,
    /// Gives back on another hardware queue.
    GivesBackWrongQueue,
    /// Ends a late request of another hardware queue.
    TimesOutWrongQueue,
    /// Reports more than there is room for.
    TooManyAtOnce,
    /// Forgets a request.
    Drops,
    /// Puts what it has where another disk finds it.
    OtherDisk,
}

/// Takes everything, keeps it per hardware queue, completes it when polled; apart from what it breaks.
struct Broken {
    breaks: Option<Breaks>,
    held: Arc<Mutex<Vec<(HctxId, InFlight)>>>,
}

impl Broken {
    fn held(&self) -> std::sync::MutexGuard<'_, Vec<(HctxId, InFlight)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 20)
    }

    fn start(&self, _nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let n = match self.breaks {
            Some(Breaks::LeavesBehind) => 0,
            Some(Breaks::LeavesSome) => 1,
            _ => batch.remaining(),
        };
        let mut held = self.held();
        held.extend((0..n).map(|_| (batch.hctx(), batch.accept())));
        match self.breaks {
            Some(Breaks::RefusesNobody(status)) => return status,
            Some(Breaks::TakesTooMany) => held.push((batch.hctx(), batch.accept())),
            Some(Breaks::EndsTooMany) => batch.end(BlkStatus::Ok),
            Some(Breaks::Drops) => drop(held.pop()),
            _ => {}
        }
        QueueRqStatus::Queued
    }

    fn timeout(&self, hctx: HctxId, _late: TimedOut, done: &mut Completions, _now: Instant) -> TimeoutAnswer {
        let mut held = self.held();
        if self.breaks == Some(Breaks::TimesOutWrongQueue)
            && let Some(at) = held.iter().position(|(h, _)| *h != hctx)
        {
            done.push(held.remove(at).1, BlkStatus::Timeout);
            return TimeoutAnswer::Done;
        }
        TimeoutAnswer::ResetTimer
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut held = self.held();
        let mine = |(h, _): &mut (HctxId, InFlight)| *h == hctx;
        let other = |(h, _): &mut (HctxId, InFlight)| *h != hctx;
        match self.breaks {
            Some(Breaks::TimesOutWrongQueue) => {}
            Some(Breaks::WrongQueue) => held.extract_if(.., other).for_each(|(_, rq)| done.push(rq, BlkStatus::Ok)),
            Some(Breaks::GivesBackWrongQueue) => held.extract_if(.., other).for_each(|(_, rq)| done.requeue(rq, None)),
            Some(Breaks::TooManyAtOnce) => held.extract_if(.., mine).for_each(|(_, rq)| done.push(rq, BlkStatus::Ok)),
            // A disk that finds what another one was given.
            Some(Breaks::OtherDisk) => held.drain(..).for_each(|(_, rq)| done.push(rq, BlkStatus::Ok)),
            _ => {
                let room = done.room();
                held.extract_if(.., mine).take(room).for_each(|(_, rq)| done.push(rq, BlkStatus::Ok));
            }
        }
    }
}

struct Stack {
    q: Arc<RequestQueue<Lock>>,
    subs: Vec<Submitter<Lock>>,
}

impl Stack {
    fn new(driver: Broken, mode: Mode, scheduler: &str, depth: u32) -> Stack {
        Stack::over(Arc::new(driver), mode, scheduler, depth)
    }

    /// The driver as the only path of a multipath disk, which lends it what it gets.
    fn below(driver: Broken, mode: Mode, scheduler: &str, depth: u32) -> Stack {
        let path = NewPath { name: "p".into(), driver: Arc::new(driver), args: PathArgs::default() };
        let groups = vec![NewGroup { selector: Selector::RoundRobin, paths: vec![path] }];
        let disk = Multipath::<Lock>::new(groups, Features::default(), None, &[], Box::new(|_| {})).expect("one path");
        Stack::over(Arc::new(disk), mode, scheduler, depth)
    }

    fn over(driver: Arc<dyn Driver>, mode: Mode, scheduler: &str, depth: u32) -> Stack {
        let config = QueueConfig {
            mode,
            topology: CpuTopology::uniform(2),
            queue_depth: depth,
            scheduler: Some(scheduler.into()),
            io_timeout_ms: 10,
            ..QueueConfig::default()
        };
        let q = RequestQueue::<Lock>::new(driver, config, Box::new(NoNotify)).expect("good settings");
        let subs = (0..2).map(|cpu| q.submitter(CpuId::new(cpu)).expect("a free submitter")).collect();
        Stack { q, subs }
    }

    /// Two requests per submitter, then time passes and all poll.
    fn work(&mut self, per_submitter: u64) {
        let start = Instant::from_ns(1_000_000);
        for (s, sub) in self.subs.iter_mut().enumerate() {
            sub.start_plug(0);
            for i in 0..per_submitter {
                let sector = Sector(s as u64 * 4096 + i * 64);
                sub.submit(&Bio::read(sector, 8, DataRef::new(0, 0)), start).expect("a free bio slot");
            }
            sub.finish_plug(start);
        }
        for ms in [1u64, 2, 12, 30] {
            self.subs.iter_mut().for_each(|s| s.poll(Instant::from_ns(1_000_000 + ms * 1_000_000)));
        }
    }
}

fn text_of(f: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(f)).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).expect("a panic with a text"))
}

/// In every mode, with tags given at allocation and at dispatch, the rule that is broken is named.
#[test]
fn each_broken_rule_is_named() {
    let left = "left behind as number";
    let cases = [
        (Breaks::LeavesBehind, ", tag ", left),
        (Breaks::LeavesSome, ", tag ", left),
        (
            Breaks::RefusesNobody(QueueRqStatus::Error(BlkStatus::IoErr)),
            "hctx 0: ",
            "took all 2 requests and answered Error(IoErr); only Queued is true",
        ),
        (Breaks::RefusesNobody(QueueRqStatus::Resource), "hctx 0: ", "answered Resource; only Queued is true"),
        (Breaks::RefusesNobody(QueueRqStatus::DevResource), "hctx 0: ", "answered DevResource; only Queued is true"),
        (Breaks::TakesTooMany, "hctx 0: ", "took one request more than the 2 of its batch"),
        (Breaks::EndsTooMany, "hctx 0: ", "took one request more than the 2 of its batch"),
        (Breaks::WrongQueue, "hctx 0, tag ", "completed here, but it was given to hctx 1"),
        (Breaks::GivesBackWrongQueue, "hctx 0, tag ", "completed here, but it was given to hctx 1"),
        (Breaks::TimesOutWrongQueue, "hctx 0, tag ", "completed here, but it was given to hctx 1"),
    ];
    for (mode, scheduler) in [(Mode::Mq, "none"), (Mode::Mq, "mq-deadline"), (Mode::Mq, "kyber"), (Mode::Sq, "noop")] {
        for (breaks, place, rule) in cases {
            if mode == Mode::Sq && rule.contains("hctx 1") {
                // It has one hardware queue.
                continue;
            }
            // Called by the core, and by a driver over it.
            for make in [Stack::new, Stack::below] {
                let driver = Broken { breaks: Some(breaks), held: Arc::default() };
                let mut stack = make(driver, mode, scheduler, 16);
                let text =
                    text_of(|| stack.work(2)).unwrap_or_else(|| panic!("{breaks:?} with {scheduler}: not noticed"));
                assert!(
                    text.starts_with("driver 'broken', hctx") && text.contains(place) && text.contains(rule),
                    "{breaks:?} with {scheduler}: {text}"
                );
                std::mem::forget(stack);
            }
        }
    }
}

#[test]
fn more_completions_than_there_is_room_for() {
    let driver = Broken { breaks: Some(Breaks::TooManyAtOnce), held: Arc::default() };
    let mut stack = Stack::new(driver, Mode::Mq, "none", 128);
    let text = text_of(|| stack.work(100)).expect("noticed");
    assert!(text.starts_with("driver 'broken', hctx 0, tag ") && text.contains("without room for it"), "{text}");
    std::mem::forget(stack);
}

#[test]
#[cfg(debug_assertions)]
fn a_request_that_is_dropped() {
    let driver = Broken { breaks: Some(Breaks::Drops), held: Arc::default() };
    let mut stack = Stack::new(driver, Mode::Mq, "none", 16);
    let text = text_of(|| stack.work(2)).expect("noticed");
    assert!(text.contains("dropped the request with tag") && text.contains("of hctx 0"), "{text}");
    std::mem::forget(stack);
}

/// Two disks with the same tags in flight: a request of one must not end at the other, whose data would be taken for read.
#[test]
fn a_request_of_another_disk() {
    let held = Arc::default();
    let mut given = Stack::new(Broken { breaks: None, held: Arc::clone(&held) }, Mode::Mq, "none", 16);
    let other = Broken { breaks: Some(Breaks::OtherDisk), held };
    let mut other = Stack::new(other, Mode::Mq, "none", 16);
    let now = Instant::from_ns(1);
    for stack in [&mut given, &mut other] {
        stack.subs[0].submit(&Bio::read(Sector(0), 8, DataRef::new(0, 0)), now).expect("a free bio slot");
    }
    let text = text_of(|| other.subs[0].poll(Instant::from_ns(2))).expect("noticed");
    assert!(text.starts_with("driver 'broken', hctx 0, tag "), "{text}");
    assert!(text.ends_with("completed here, but it was given to another disk"), "{text}");
    std::mem::forget((given, other));
}

/// The same driver with nothing broken: the tests above fail for what they say, not for how they are made.
#[test]
fn the_same_driver_unbroken_completes_everything() {
    for (mode, scheduler) in [(Mode::Mq, "none"), (Mode::Mq, "mq-deadline"), (Mode::Mq, "bfq"), (Mode::Sq, "noop")] {
        for make in [Stack::new, Stack::below] {
            let mut stack = make(Broken { breaks: None, held: Arc::default() }, mode, scheduler, 16);
            stack.work(2);
            let mut ended = Vec::new();
            stack.subs.iter_mut().for_each(|s| s.reap(|d| ended.push(d.status)));
            assert_eq!(ended, [BlkStatus::Ok; 4], "{scheduler}");
            assert_eq!(stack.q.stats().in_flight, 0);
        }
    }
}
