// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom models of a lock and a write to its range: from before the first lock on, and with a lock that is taken again and again.

use super::*;
use loom::sync::Notify;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

struct Thread(Arc<Notify>);

impl Wake for Thread {
    fn wake(&self) {
        self.0.notify();
    }
}

type Locks = BlockLocks<parking_lot::RawMutex, Thread>;
type Entry = Arc<Writes<parking_lot::RawMutex, Thread>>;

/// What a write of a thread does.
#[derive(Default)]
struct Progress {
    waits: AtomicUsize,
    entered: AtomicUsize,
}

/// Lets a write enter, after the tickets that are older than its own.
fn enter(locks: &Locks, entry: &Entry, woken: &Notify, progress: &Progress) {
    let mut ticket = None;
    while let Err(wait) = locks.enter(entry, 1, 8..16, ticket) {
        ticket = Some(wait.ticket);
        progress.waits.store(1, Ordering::Relaxed);
        woken.wait();
    }
    progress.entered.store(1, Ordering::Relaxed);
    if let Some(ticket) = ticket {
        locks.release(ticket);
    }
}

/// Has the lock until no write is inside, and releases it.
fn rewrite(locks: &Locks, lock: TicketId, woken: &Notify, inside: &AtomicUsize) {
    while !locks.is_clear(&(8..16)) {
        woken.wait();
    }
    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "a write is inside a range that is clear");
    inside.fetch_sub(1, Ordering::Relaxed);
    locks.release(lock);
}

/// A thread writes once, recorded or not, and then serves rounds until it records.
fn write(locks: &Locks, entry: &Entry, woken: &Notify, inside: &AtomicUsize) {
    let mut asks = false;
    let mut recorded = false;
    if locks.are_used() {
        asks = true;
        locks.follow(entry, 0);
        enter(locks, entry, woken, &Progress::default());
        recorded = true;
    }
    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "a write and the owner of a lock are inside");
    if !asks && locks.are_used() {
        locks.follow(entry, 1);
        (asks, recorded) = (true, true);
    }
    inside.fetch_sub(1, Ordering::Relaxed);
    if recorded {
        assert!(locks.leave(entry, 1));
    }
    if !asks {
        woken.wait();
        locks.follow(entry, 0);
    }
}

#[test]
fn a_lock_and_a_write_exclude_each_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let locks = Arc::new(Locks::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let (mine, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let owner = locks.add_entry(Thread(mine.clone())).0;
        let writer = locks.add_entry(Thread(other.clone())).0;
        let thread = {
            let (locks, inside) = (locks.clone(), inside.clone());
            thread::spawn(move || write(&locks, &writer, &other, &inside))
        };
        locks.begin_use();
        locks.follow(&owner, 0);
        let lock = locks.lock(8..16, &owner, None).unwrap();
        rewrite(&locks, lock, &mine, &inside);
        thread.join().unwrap();
        assert!(locks.is_unused());
    });
}

/// The owner of a lock asks for it again at once. A write that waits already enters first.
#[test]
fn a_write_that_waits_gets_its_turn() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let locks = Arc::new(Locks::default());
        locks.begin_use();
        let (inside, progress) = (Arc::new(AtomicUsize::new(0)), Arc::new(Progress::default()));
        let (mine, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let owner = locks.add_entry(Thread(mine.clone())).0;
        let writer = locks.add_entry(Thread(other.clone())).0;
        let first = locks.lock(8..16, &owner, None).unwrap();
        let thread = {
            let (locks, inside, progress) = (locks.clone(), inside.clone(), progress.clone());
            thread::spawn(move || {
                enter(&locks, &writer, &other, &progress);
                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "a write and the owner of a lock are inside");
                inside.fetch_sub(1, Ordering::Relaxed);
                assert!(locks.leave(&writer, 1));
            })
        };
        rewrite(&locks, first, &mine, &inside);
        let waited = progress.waits.load(Ordering::Relaxed) > 0;
        let mut ticket = None;
        let second = loop {
            match locks.lock(8..16, &owner, ticket) {
                Ok(lock) => break lock,
                Err(wait) => {
                    ticket = Some(wait.ticket);
                    mine.wait();
                }
            }
        };
        assert!(!waited || progress.entered.load(Ordering::Relaxed) > 0, "a younger lock passed a write that waits");
        rewrite(&locks, second, &mine, &inside);
        thread.join().unwrap();
        assert!(locks.is_unused());
    });
}
