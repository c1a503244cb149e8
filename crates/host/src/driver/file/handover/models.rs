// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Models of threads at one ring, for all interleavings with up to three preemptions (loom). A list stands for the ring.
//!
//! The models use the real hand-over, and the real table of waiting threads in front of it. The list behaves like the kernel
//! (io_uring/io_uring.c of Linux 6.x). Requests complete when they are submitted, and entries may stay in the submission ring. A sleep for
//! n completions ends when the completion ring's tail is n past where its head was when the sleep began. In a ring with an owner,
//! completions are posted when that thread enters. No sleep ends by time, so a lost wake-up is a deadlock; only a thread that may not
//! enter a ring polls again and again.
//!
//! In addition, a thread that enters the kernel sees the effects of earlier entries, as in a kernel with a lock.

use super::*;
use crate::disk::{WakeTable, Waker};
use crate::driver::host_driver::HostDriver;
use blk::driver::{Completions, Driver, RqBatch};
use blk::id::{HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::queue::Notify;
use blk::status::QueueRqStatus;
use blk::time::Instant;
use loom::sync::atomic::AtomicBool;
use loom::sync::{Condvar, Mutex as LoomMutex};
use loom::thread::{self, ThreadId, yield_now};
use std::collections::VecDeque;
use std::sync::Arc;

/// A completion of no request.
const MARK: u32 = u32::MAX;
const LONG: Option<Duration> = Some(Duration::from_secs(3600));

/// Both rings.
#[derive(Default)]
struct Rings {
    submitted: VecDeque<u32>,
    completed: VecDeque<u32>,
    /// Completions taken so far, and posted so far.
    head: usize,
    tail: usize,
    /// Completions in a ring with an owner that are not posted yet.
    put_off: VecDeque<u32>,
    /// If set, requests are slow: submitted requests stay here.
    running: Option<Vec<u32>>,
}

impl Rings {
    /// Makes the kernel take all entries; in a ring with an owner only the owner calls this.
    fn enter(&mut self) {
        self.post_put_off();
        while let Some(tag) = self.submitted.pop_front() {
            match &mut self.running {
                Some(running) if tag != MARK => running.push(tag),
                _ => self.post(tag),
            }
        }
    }

    /// A sleeping owner is woken for this as well; it takes no more entries then.
    fn post_put_off(&mut self) {
        while let Some(tag) = self.put_off.pop_front() {
            self.post(tag);
        }
    }

    fn post(&mut self, tag: u32) {
        self.completed.push_back(tag);
        self.tail += 1;
    }
}

/// The kernel's side: a list.
struct List {
    rings: LoomMutex<Rings>,
    /// Signalled when a completion was posted.
    posted: Condvar,
    owner: Option<ThreadId>,
    wake_ring: LoomMutex<()>,
}

/// The user's side.
#[derive(Default)]
struct UserState {
    in_flight: u32,
    lazy_below: usize,
}

impl Kernel for List {
    type State = UserState;
    /// Tags.
    type Done = Vec<u32>;

    fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    fn may_enter(&self) -> bool {
        self.owner.is_none_or(|owner| owner == thread::current().id())
    }

    fn submit(&self) {
        assert!(self.may_enter(), "a system call on another thread's ring");
        self.rings.lock().unwrap().enter();
        self.posted.notify_all();
    }

    fn sleep_for(&self, want: usize, _timeout: Option<Duration>) {
        assert!(self.may_enter(), "a system call on another thread's ring");
        self.rings.lock().unwrap().enter();
        self.posted.notify_all();
        // From here on it takes no more entries. Another thread may take what is posted now before the sleeper checks (io_cqring_wait).
        self.rings.lock().unwrap().post_put_off();
        let mut rings = self.rings.lock().unwrap();
        let until = rings.head + want;
        loop {
            rings.post_put_off();
            if rings.tail >= until {
                return;
            }
            rings = self.posted.wait(rings).unwrap();
        }
    }

    fn sleep_outside(&self, _timeout: Option<Duration>) {
        yield_now();
    }

    fn wake_owner(&self, marks: impl FnOnce() -> u32) {
        let _one = self.wake_ring.lock().unwrap();
        let marks = marks();
        if marks > 0 {
            self.rings.lock().unwrap().put_off.extend((0..marks).map(|_| MARK));
            self.posted.notify_all();
        }
    }

    fn push_mark(&self, _: &mut UserState) {
        self.rings.lock().unwrap().submitted.push_back(MARK);
    }

    fn reap(&self, state: &mut UserState, done: &mut Vec<u32>) -> Reaped {
        let mut rings = self.rings.lock().unwrap();
        let mut reaped = Reaped::default();
        while let Some(tag) = rings.completed.pop_front() {
            rings.head += 1;
            reaped.found = true;
            if tag == MARK {
                reaped.woke = true;
            } else {
                state.in_flight -= 1;
                done.push(tag);
                reaped.gave = true;
            }
        }
        reaped.unsubmitted = !rings.submitted.is_empty();
        reaped.put_off = !reaped.found && !reaped.unsubmitted && !rings.put_off.is_empty();
        reaped
    }

    fn in_flight(&self, state: &UserState) -> u32 {
        state.in_flight
    }

    fn ready(&self, _: &UserState) -> usize {
        self.rings.lock().unwrap().completed.len()
    }

    fn has_work(&self, _: &UserState) -> bool {
        false
    }
}

/// One hardware queue on a list.
struct ModelRing(Handover<List>);

impl ModelRing {
    fn new(owner: Option<ThreadId>, lazy_below: usize) -> Arc<ModelRing> {
        let list = List {
            rings: LoomMutex::new(Rings::default()),
            posted: Condvar::new(),
            owner,
            wake_ring: LoomMutex::new(()),
        };
        Arc::new(ModelRing(Handover::new(list, UserState { in_flight: 0, lazy_below })))
    }

    fn queue(&self, tags: &[u32]) {
        self.0.queue(|list, state| {
            let mut rings = list.rings.lock().unwrap();
            rings.submitted.extend(tags);
            state.in_flight += tags.len() as u32;
            Pushed { answer: (), lazy: rings.submitted.len() < state.lazy_below }
        });
    }

    fn poll(&self) -> Vec<u32> {
        let mut done = Vec::new();
        self.0.poll(&mut done);
        done
    }

    /// Sleeps unless nothing can come.
    fn sleep_once(&self) {
        self.0.wait(self.0.wakes(), 1, None);
        yield_now();
    }

    /// Makes requests complete only at [`ModelRing::finish_slow`].
    fn slow_down(&self) {
        self.0.kernel().rings.lock().unwrap().running = Some(Vec::new());
    }

    /// Completes the slow requests; the ring has an owner.
    fn finish_slow(&self) {
        let mut rings = self.0.kernel().rings.lock().unwrap();
        let running = rings.running.take().expect("slow");
        rings.put_off.extend(running);
        self.0.kernel().posted.notify_all();
    }

    /// Completes one slow request; the ring has no owner.
    fn finish(&self, tag: u32) {
        let mut rings = self.0.kernel().rings.lock().unwrap();
        let running = rings.running.as_mut().expect("slow");
        running.retain(|other| *other != tag);
        rings.post(tag);
        self.0.kernel().posted.notify_all();
    }
}

impl Driver for ModelRing {
    fn name(&self) -> &'static str {
        "bed"
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn capacity(&self) -> Sector {
        Sector(8)
    }
    fn start(&self, _: u16, _: u32) -> Result<(), String> {
        Ok(())
    }
    fn queue_rqs(&self, _: &mut RqBatch<'_>, _: Instant) -> QueueRqStatus {
        QueueRqStatus::Queued
    }
    fn poll(&self, _: HctxId, _: &mut Completions, _: Instant) {}
}

impl HostDriver for ModelRing {
    fn wait_since(&self, seen: u64, _: HctxId, min: u32, timeout: Option<Duration>) {
        self.0.wait(seen, min, timeout);
    }

    fn wakes(&self, _: HctxId) -> u64 {
        self.0.wakes()
    }

    fn wake(&self, _: HctxId) {
        self.0.wake();
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_preempted(3, model);
}

/// With up to this many preemptions, for models of three threads.
fn explore_preempted(times: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(times));
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Which of the requests 0 and 1 have completed.
#[derive(Default)]
struct Ended([AtomicBool; 2]);

impl Ended {
    fn note(&self, tags: &[u32]) {
        for tag in tags {
            assert!(!self.0[*tag as usize].swap(true, Ordering::Relaxed), "ended twice");
        }
    }

    fn has(&self, tag: u32) -> bool {
        self.0[tag as usize].load(Ordering::Relaxed)
    }

    fn has_all(&self) -> bool {
        self.has(0) && self.has(1)
    }
}

/// Polls and sleeps until both requests have completed, whichever thread takes them; no thread is notified.
fn until_all_ended(bed: &ModelRing, ended: &Ended) {
    loop {
        ended.note(&bed.poll());
        if ended.has_all() {
            return;
        }
        bed.sleep_once();
    }
}

/// Two threads queue a request each, and take completions until both requests have completed. Catches: a sleep for a completion that
/// another thread has taken, if it was the last; an entry that is never submitted.
#[test]
fn the_last_completion_taken_by_another_ends_the_sleep() {
    for lazy_below in [0, 2] {
        explore(move || {
            let (bed, ended) = (ModelRing::new(None, lazy_below), Arc::new(Ended::default()));
            let other = {
                let (bed, ended) = (bed.clone(), ended.clone());
                thread::spawn(move || {
                    bed.queue(&[1]);
                    until_all_ended(&bed, &ended);
                })
            };
            bed.queue(&[0]);
            until_all_ended(&bed, &ended);
            other.join().unwrap();
        });
    }
}

/// Submitters, each with a request whose tag is its own number; a submitter that takes another's completion notifies it.
struct World {
    bed: Arc<ModelRing>,
    ended: Ended,
    table: Arc<WakeTable>,
}

impl World {
    fn new(owner: Option<ThreadId>) -> Arc<World> {
        let bed = ModelRing::new(owner, 0);
        Arc::new(World { bed: bed.clone(), ended: Ended::default(), table: Arc::new(WakeTable::new(bed)) })
    }

    /// One poll.
    fn poll(&self, me: u32) {
        let tags = self.bed.poll();
        self.ended.note(&tags);
        tags.iter().filter(|tag| **tag != me).for_each(|tag| self.tell(*tag));
    }

    fn tell(&self, submitter: u32) {
        Waker(self.table.clone()).notify(SubmitterId::new(submitter));
    }

    /// Polls and sleeps until `enough`, and once more, as a thread with other work does.
    fn work(&self, me: u32, enough: impl Fn(&Ended) -> bool) {
        self.work_by(me, enough, || self.table.wait(SubmitterId::new(me), HctxId::new(0), 1, LONG));
    }

    /// As [`World::work`], but only one thread sleeps at the ring.
    fn work_or_follow(&self, me: u32) {
        let long = LONG.unwrap();
        let wait = || self.table.wait_or_follow(SubmitterId::new(me), HctxId::new(0), long, long);
        self.work_by(me, |ended| ended.has(me), wait);
    }

    fn work_by(&self, me: u32, enough: impl Fn(&Ended) -> bool, wait: impl Fn()) {
        loop {
            self.poll(me);
            if enough(&self.ended) {
                return self.poll(me);
            }
            wait();
        }
    }
}

/// A slow request is in flight all the time, so that no completion is the last. Catches: a wake-up that is lost because another thread
/// takes its mark.
#[test]
fn a_mark_taken_by_another_wakes_its_owner() {
    explore(|| {
        let world = World::new(None);
        world.bed.0.with_state(|_, state| state.in_flight += 1);
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                world.bed.queue(&[1]);
                world.work(1, |ended| ended.has(1));
            })
        };
        world.bed.queue(&[0]);
        world.work(0, |ended| ended.has(0));
        other.join().unwrap();
    });
}

/// Requests of two threads end one after the other, while one thread leads and the other may follow. One is also notified of something else. Catches: a completion that no thread takes, because the leader has left, and the other was not promoted, or
/// has forgotten that.
#[test]
fn a_leader_and_its_follower_are_both_served() {
    explore_preempted(2, || {
        let world = World::new(None);
        world.bed.slow_down();
        world.bed.queue(&[0, 1]);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.work_or_follow(1))
        };
        let device = {
            let world = world.clone();
            thread::spawn(move || {
                world.tell(1);
                world.bed.finish(0);
                world.bed.finish(1);
            })
        };
        world.work_or_follow(0);
        device.join().unwrap();
        other.join().unwrap();
    });
}

/// Catches: a poll that does not submit what another thread has queued lazily, or does not fetch deferred completions, because it relies
/// on a sleep that never comes.
#[test]
fn a_poll_alone_submits_and_posts_what_there_is() {
    explore(|| {
        let bed = ModelRing::new(None, 2);
        let ended = Ended::default();
        let queuer = {
            let bed = bed.clone();
            thread::spawn(move || bed.queue(&[0]))
        };
        while !ended.has(0) {
            ended.note(&bed.poll());
            yield_now();
        }
        queuer.join().unwrap();
    });
    explore(|| {
        let bed = ModelRing::new(Some(thread::current().id()), 0);
        let ended = Ended::default();
        bed.slow_down();
        bed.queue(&[0]);
        let device = {
            let bed = bed.clone();
            thread::spawn(move || bed.finish_slow())
        };
        while !ended.has(0) {
            ended.note(&bed.poll());
            yield_now();
        }
        device.join().unwrap();
    });
}

/// The owner works until nothing is in flight; the other thread may only queue and take completions. Catches: an entry that is queued
/// while the owner is about to sleep and is not submitted; a wake-up before its reason is visible.
#[test]
fn an_owner_submits_what_others_queue() {
    explore(|| {
        let world = World::new(Some(thread::current().id()));
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                world.bed.queue(&[1]);
                world.work(1, |ended| ended.has(1));
                world.tell(0);
            })
        };
        world.bed.queue(&[0]);
        world.work(0, Ended::has_all);
        other.join().unwrap();
    });
}

/// Catches: only the first of two threads sends a wake-up, and its entry was not yet visible.
#[test]
fn an_owner_is_woken_by_two_at_once() {
    explore(|| {
        let world = World::new(Some(thread::current().id()));
        let others = [0, 1].map(|tag| {
            let world = world.clone();
            thread::spawn(move || world.bed.queue(&[tag]))
        });
        world.work(0, Ended::has_all);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// The owner sleeps for two requests that are slow. Catches: a notification that counts as one completion only.
#[test]
fn a_wake_up_ends_a_sleep_for_several_completions() {
    explore(|| {
        let world = World::new(Some(thread::current().id()));
        world.bed.slow_down();
        world.bed.queue(&[0, 1]);
        let told = Arc::new(AtomicBool::new(false));
        let teller = {
            let (world, told) = (world.clone(), told.clone());
            thread::spawn(move || {
                told.store(true, Ordering::Relaxed);
                world.tell(0);
            })
        };
        while !told.load(Ordering::Relaxed) {
            world.table.wait(SubmitterId::new(0), HctxId::new(0), 2, LONG);
            world.poll(0);
        }
        teller.join().unwrap();
        world.bed.finish_slow();
        world.work(0, Ended::has_all);
    });
}
