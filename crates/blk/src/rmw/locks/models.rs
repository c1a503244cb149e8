// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom model of a lock and a write to its range, from before the first lock on.

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

/// A thread writes once, recorded or not, and then serves rounds until it records.
fn write(locks: &Locks, entry: &Arc<Writes<parking_lot::RawMutex, Thread>>, woken: &Notify, inside: &AtomicUsize) {
    let mut asks = false;
    let mut recorded = false;
    if locks.are_used() {
        asks = true;
        locks.follow(entry, 0);
        while locks.enter(entry, 1, 8..16).is_err() {
            woken.wait();
        }
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
        let lock = locks.lock(8..16, &owner).unwrap();
        while !locks.is_clear(&(8..16)) {
            mine.wait();
        }
        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "a write is inside a range that is clear");
        inside.fetch_sub(1, Ordering::Relaxed);
        locks.unlock(lock);
        thread.join().unwrap();
        assert!(locks.is_unused());
    });
}
