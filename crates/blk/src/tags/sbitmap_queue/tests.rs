// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting and waking: batch sizes and order one by one, then random histories and threads that must all be served.

use super::*;
use parking_lot::RawMutex;
use proptest::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Queue = SbitmapQueue<RawMutex>;

fn no_waiter(waiter: WaiterId) {
    panic!("woke {waiter:?}");
}

fn full(depth: u32) -> Queue {
    let queue = Queue::new(depth, false);
    let mut hint = TagAllocHint::new(0);
    while queue.get(&mut hint).is_some() {}
    queue
}

#[test]
fn wake_batch_is_an_eighth_until_a_waiter_is_limited() {
    for (depth, batch) in [(1, 1), (8, 1), (16, 2), (63, 7), (64, 8), (1024, 8)] {
        assert_eq!(Queue::new(depth, false).wake_batch(), batch, "depth {depth}");
    }
    let limited = Queue::new(64, false);
    limited.get_shallow(&mut TagAllocHint::new(0), 60);
    let told = Queue::new(64, false);
    told.wake_singly();
    assert_eq!((limited.wake_batch(), told.wake_batch()), (1, 1));
}

#[test]
fn a_full_batch_of_completions_wakes_a_batch_of_waiters() {
    let queue = full(64);
    queue.put(63, None, &mut no_waiter);
    assert_eq!(queue.get(&mut TagAllocHint::new(63)), Some(63), "there was no waiter, so that put does not count");
    for id in 0..10 {
        queue.add_waiter(WaiterId(id));
    }
    assert_eq!(queue.waiters_active(), 10);
    for tag in 0..7 {
        queue.put(tag, None, &mut no_waiter);
    }
    let mut woken = Vec::new();
    queue.put(7, None, &mut |w| woken.push(w.0));
    assert_eq!(woken, [0, 8, 1, 9, 2, 3, 4, 5], "each wait queue in the order of arrival, the queues in turn");
    assert_eq!(queue.waiters_active(), 2);
}

#[test]
fn a_batch_put_wakes_for_every_full_batch_in_it() {
    let queue = full(256);
    for id in 0..20 {
        queue.add_waiter(WaiterId(id));
    }
    let mut woken = 0;
    queue.put_batch(64, (1 << 31) - 1, &mut |_| woken += 1);
    assert_eq!(woken, 20, "31 completions are due for 24 wake-ups");
    queue.add_waiter(WaiterId(20));
    queue.put_batch(128, 1, &mut |_| woken += 1);
    assert_eq!(woken, 21, "the 7 completions left over count on");
}

#[test]
fn the_wake_queues_take_turns() {
    let queue = full(8);
    for id in 0..4 {
        queue.add_waiter(WaiterId(id));
    }
    let mut woken = Vec::new();
    queue.put(0, None, &mut |w| woken.push(w.0));
    queue.add_waiter(WaiterId(4));
    queue.put(1, None, &mut |w| woken.push(w.0));
    queue.wake_one(&mut |w| woken.push(w.0));
    assert_eq!(woken, [0, 1, 2]);
    queue.wake_all(&mut |w| woken.push(w.0));
    assert_eq!(woken, [0, 1, 2, 3, 4]);
    assert_eq!(queue.waiters_active(), 0);
}

#[test]
fn a_waiter_can_leave_once() {
    let queue = full(8);
    for id in 0..9 {
        queue.add_waiter(WaiterId(id));
    }
    assert!(queue.remove_waiter(WaiterId(0)));
    assert!(!queue.remove_waiter(WaiterId(0)));
    let mut woken = Vec::new();
    queue.put(3, None, &mut |w| woken.push(w));
    assert_eq!(woken, [WaiterId(8)], "was behind the one that left");
    assert!(!queue.remove_waiter(WaiterId(8)), "woken already");
    assert_eq!(queue.waiters_active(), 7);
}

#[test]
fn waiter_that_reregisters_does_not_hold_up_the_waker() {
    let queue = full(8);
    queue.add_waiter(WaiterId(7));
    let mut woken = 0;
    queue.wake_all(&mut |w| {
        woken += 1;
        assert!(woken <= WAIT_QUEUES, "wakes what it registers for ever");
        queue.add_waiter(w);
    });
    assert_eq!(queue.waiters_active(), 1);
    assert!(queue.remove_waiter(WaiterId(7)));
}

#[test]
fn the_freed_tag_becomes_the_hint_unless_round_robin() {
    for (round_robin, next) in [(false, Some(32)), (true, Some(2))] {
        let queue = Queue::new(64, round_robin);
        let mut hint = TagAllocHint::new(0);
        assert_eq!((queue.get(&mut hint), queue.get(&mut hint)), (Some(0), Some(1)));
        let tag = queue.get(&mut TagAllocHint::new(40)).unwrap();
        queue.put(tag, Some(&mut hint), &mut no_waiter);
        let again = queue.get(&mut hint).map(|bit| if round_robin { bit } else { queue.sb().word_of(bit).0 });
        assert_eq!(again, next);
    }
}

/// Clients that follow the protocol of the module header, run one step at a time.
struct Clients {
    queue: Queue,
    shallow: Vec<Option<u32>>,
    hints: Vec<TagAllocHint>,
    held: Vec<(usize, u32)>,
    asleep: Vec<bool>,
    runnable: Vec<usize>,
}

impl Clients {
    fn get(&mut self, client: usize) -> bool {
        let hint = &mut self.hints[client];
        let got = match self.shallow[client] {
            Some(depth) => self.queue.get_shallow(hint, depth),
            None => self.queue.get(hint),
        };
        self.held.extend(got.map(|tag| (client, tag)));
        got.is_some()
    }

    fn want(&mut self, client: usize) {
        if self.asleep[client] || self.get(client) {
            return;
        }
        let id = WaiterId(client as u32);
        self.queue.add_waiter(id);
        if self.get(client) {
            assert!(self.queue.remove_waiter(id), "nothing can have happened in between");
        } else {
            self.asleep[client] = true;
        }
    }

    fn put(&mut self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let (client, tag) = self.held.swap_remove(at % self.held.len());
        let (asleep, runnable) = (&mut self.asleep, &mut self.runnable);
        self.queue.put(tag, Some(&mut self.hints[client]), &mut |w| {
            assert!(std::mem::take(&mut asleep[w.0 as usize]), "woke a waiter that did not sleep");
            runnable.push(w.0 as usize);
        });
    }
}

proptest! {
    #[test]
    fn every_sleeper_is_served_in_the_end(
        depth in 1u32..80,
        round_robin: bool,
        limits in prop::collection::vec(prop::option::of(1u32..80), 1..20),
        steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>()), 0..400),
    ) {
        let n = limits.len();
        let queue = Queue::new(depth, round_robin);
        if limits.iter().any(Option::is_some) {
            // A waiter with a limit may not have tried yet when others wait.
            queue.wake_singly();
        }
        let hints = (0..n as u32).map(TagAllocHint::new).collect();
        let mut clients =
            Clients { queue, shallow: limits, hints, held: vec![], asleep: vec![false; n], runnable: vec![] };
        for (what, index) in steps {
            match what {
                0..=2 => clients.want(index.index(n)),
                3 => clients.put(index.index(1 << 16)),
                _ => if let Some(client) = clients.runnable.pop() { clients.want(client) },
            }
        }
        // No new requests: tags are put and woken clients run, until no client can run.
        while !clients.held.is_empty() || !clients.runnable.is_empty() {
            clients.put(0);
            while let Some(client) = clients.runnable.pop() {
                clients.want(client);
            }
        }
        prop_assert_eq!(clients.asleep.iter().filter(|a| **a).count(), 0);
        prop_assert_eq!(clients.queue.waiters_active(), 0);
        prop_assert_eq!(clients.queue.sb().weight(), 0);
    }
}

/// Threads compete for fewer tags than there are threads: each tag has one owner, and all threads finish.
#[test]
fn threads_own_tags_alone_and_none_sleeps_for_ever() {
    const ROUNDS: u32 = 3_000;
    const THREADS: usize = 4;
    for (depth, shift) in [(1, 0), (2, 1), (3, 6), (16, 4)] {
        let queue = Queue::with_shift(depth, shift, false);
        let owned: Vec<AtomicBool> = (0..depth).map(|_| AtomicBool::new(false)).collect();
        let handles: [OnceLock<thread::Thread>; THREADS] = Default::default();
        let woken: [AtomicBool; THREADS] = Default::default();
        let wake = |w: WaiterId| {
            woken[w.0 as usize].store(true, Ordering::Release);
            handles[w.0 as usize].get().expect("registers after it has started").unpark();
        };
        let run = |me: usize| {
            let mut wake = wake;
            let id = WaiterId(me as u32);
            handles[me].set(thread::current()).expect("set once");
            let mut hint = TagAllocHint::new(me as u32);
            for round in 0..ROUNDS {
                // Every other thread takes up to four tags at a time, so that the 16 tags run out as well.
                let mut tags = vec![];
                while tags.len() < (1 + round as usize % 4).min(depth as usize / THREADS).max(1) {
                    tags.push(wait_for_tag(&queue, &mut hint, id, &woken[me]));
                }
                for tag in &tags {
                    assert!(!owned[*tag as usize].swap(true, Ordering::Relaxed), "tag {tag} has two owners");
                }
                for tag in tags {
                    owned[tag as usize].store(false, Ordering::Relaxed);
                    queue.put(tag, Some(&mut hint), &mut wake);
                }
            }
        };
        thread::scope(|scope| {
            for me in 0..THREADS {
                let run = &run;
                scope.spawn(move || run(me));
            }
        });
        assert_eq!((queue.sb().weight(), queue.waiters_active()), (0, 0));
    }
}

fn wait_for_tag(queue: &Queue, hint: &mut TagAllocHint, id: WaiterId, woken: &AtomicBool) -> u32 {
    loop {
        if let Some(tag) = queue.get(hint) {
            return tag;
        }
        woken.store(false, Ordering::Relaxed);
        queue.add_waiter(id);
        if let Some(tag) = queue.get(hint) {
            queue.remove_waiter(id);
            return tag;
        }
        while !woken.load(Ordering::Acquire) {
            thread::park();
        }
    }
}
