// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers that break the contract. Each is stopped at the call that breaks it, by a message that names the driver, the
//! hardware queue, the tag and the rule. None may complete a request that is not its own.
//!
//! Some breaches do not compile: completing a request twice, copying the duty to complete it, or making up a duty from a
//! number, in range or not. The `compile_fail` examples at `blk::driver::InFlight` test those.

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
    /// Takes nothing and reports that it took all.
    LeavesBehind,
    /// Takes the first of several and reports that it took all.
    LeavesSome,
    /// Takes all and reports that there was one it could not take.
    RefusesNobody(QueueRqStatus),
    /// Takes more than it was given.
    TakesTooMany,
    /// Completes more than it was given.
    EndsTooMany,
    /// Reports a completion on another hardware queue than the one of the request.
    WrongQueue,
    /// Gives back on another hardware queue.
    GivesBackWrongQueue,
    /// Completes a timed-out request of another hardware queue.
    TimesOutWrongQueue,
    /// Reports more completions than there is room for.
    TooManyAtOnce,
    /// Forgets a request.
    Drops,
    /// Leaves its requests where another disk finds and completes them.
    OtherDisk,
}

/// Takes every request, keeps it per hardware queue, and completes it when polled, except for what it breaks.
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
            // Completes what another disk was given.
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

    /// Puts the driver below a multipath disk as its only path; the multipath disk lends it the requests.
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

    /// Submits requests from each submitter, then advances time and polls all of them.
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

/// In every mode, with tags assigned at allocation and at dispatch, the message names the broken rule.
#[test]
fn each_broken_rule_is_named() {
    let left = "without accepting this request, number";
    let cases = [
        (Breaks::LeavesBehind, ", tag ", left),
        (Breaks::LeavesSome, ", tag ", left),
        (
            Breaks::RefusesNobody(QueueRqStatus::Error(BlkStatus::IoErr)),
            "hctx 0: ",
            "accepted all 2 requests and returned Error(IoErr); must return Queued",
        ),
        (Breaks::RefusesNobody(QueueRqStatus::Resource), "hctx 0: ", "returned Resource; must return Queued"),
        (Breaks::RefusesNobody(QueueRqStatus::DevResource), "hctx 0: ", "returned DevResource; must return Queued"),
        (Breaks::TakesTooMany, "hctx 0: ", "took more requests than the 2 of its batch"),
        (Breaks::EndsTooMany, "hctx 0: ", "took more requests than the 2 of its batch"),
        (Breaks::WrongQueue, "hctx 0, tag ", "completed here, but it was issued to hctx 1"),
        (Breaks::GivesBackWrongQueue, "hctx 0, tag ", "completed here, but it was issued to hctx 1"),
        (Breaks::TimesOutWrongQueue, "hctx 0, tag ", "completed here, but it was issued to hctx 1"),
    ];
    for (mode, scheduler) in [(Mode::Mq, "none"), (Mode::Mq, "mq-deadline"), (Mode::Mq, "kyber"), (Mode::Sq, "noop")] {
        for (breaks, place, rule) in cases {
            if mode == Mode::Sq && rule.contains("hctx 1") {
                // This stack has only one hardware queue.
                continue;
            }
            // Called by the core, and by another driver over it.
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
    assert!(
        text.starts_with("driver 'broken', hctx 0, tag ") && text.contains("more requests than room() allows"),
        "{text}"
    );
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

/// Two disks with the same tags in flight: a request of one must not complete at the other, because the client would take
/// its data as read.
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
    assert!(text.ends_with("completed here, but it was issued to another disk"), "{text}");
    std::mem::forget((given, other));
}

/// The same driver with nothing broken. So the tests above fail for the broken rule, not because of their setup.
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
