// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directed tests of the locks; `crates/blk/tests/it/core_rmw.rs` has random ones over a whole disk.

use super::*;
use std::sync::atomic::AtomicBool;

/// A thread that was woken or not.
#[derive(Clone, Default)]
struct Thread(Arc<AtomicBool>);

impl Wake for Thread {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Raw = parking_lot::RawMutex;
type Locks = BlockLocks<Raw, Thread>;
type Entry = Arc<Writes<Raw, Thread>>;

impl Writes<Raw, Thread> {
    /// Returns whether the thread was woken since the last call.
    fn is_woken(&self) -> bool {
        self.waker.0.swap(false, Ordering::Relaxed)
    }

    /// Returns the locks that its thread was told of since the last call.
    fn told(&self) -> Vec<LockId> {
        let mut all = Vec::new();
        self.take_changed(&mut all);
        all
    }
}

/// Locks that are in use, with `N` entries.
fn used<const N: usize>() -> (Locks, [Entry; N]) {
    let locks = Locks::default();
    locks.begin_use();
    let entries = [(); N].map(|()| locks.add_entry(Thread::default()).0);
    (locks, entries)
}

#[test]
fn locks_do_not_overlap_and_waiters_are_woken() {
    let (locks, [a, b]) = used();
    let (first, second) = (locks.lock(8..16, &a).unwrap(), locks.lock(16..64, &a).unwrap());
    for (range, lock) in [(0..9, first), (15..17, first), (10..12, first), (0..128, first), (20..22, second)] {
        assert_eq!(locks.lock(range, &b), Err(lock));
    }
    assert!(!b.is_woken());
    locks.unlock(first);
    assert!(b.is_woken() && !a.is_woken());
    assert_eq!(b.told(), [first], "the other lock is held");
    assert!(locks.lock(0..16, &b).is_ok());
}

#[test]
fn closed_locks_give_no_lock_until_they_open() {
    let (locks, [a, b]) = used();
    assert!(locks.is_free());
    let lock = locks.lock(8..16, &a).unwrap();
    locks.close();
    assert!(!locks.is_free(), "the present lock stays");
    let closed = locks.lock(100..108, &b).unwrap_err();
    assert_eq!(locks.lock(8..16, &b), Err(lock));
    locks.unlock(lock);
    assert!(locks.is_free() && b.is_woken() && b.told() == [lock]);
    assert_eq!(locks.lock(8..16, &b), Err(closed));
    locks.open();
    assert!(b.is_woken() && b.told() == [closed]);
    let lock = locks.lock(100..108, &b).unwrap();
    locks.unlock(lock);
    assert!(locks.is_unused());
}

#[test]
fn a_write_waits_for_a_lock_of_its_blocks_and_for_no_other() {
    let (locks, [a, b]) = used();
    let (lock, other) = (locks.lock(8..16, &a).unwrap(), locks.lock(64..72, &a).unwrap());
    assert!(locks.is_clear(&(8..16)));
    assert_eq!(locks.enter(&b, 1, 0..9), Err(lock));
    assert!(locks.enter(&b, 2, 0..8).is_ok() && locks.enter(&b, 3, 16..24).is_ok());
    locks.unlock(other);
    assert!(!b.is_woken(), "nothing waits for it");
    locks.unlock(lock);
    assert!(b.is_woken());
    assert_eq!(b.told(), [lock]);
    assert!(locks.enter(&b, 1, 0..9).is_ok());
}

/// `lock` keeps new writes out of its range at once, while its owner waits for the writes that already are in the range.
#[test]
fn a_lock_waits_for_the_writes_that_came_before_it() {
    let (locks, [a, b, owner]) = used();
    // An I/O of two bios, and one elsewhere.
    assert!(locks.enter(&a, 1, 0..8).is_ok() && locks.enter(&a, 1, 8..12).is_ok());
    assert!(locks.enter(&b, 1, 100..104).is_ok());
    let lock = locks.lock(8..16, &owner).unwrap();
    assert!(!locks.is_clear(&(8..16)));
    assert!(locks.enter(&b, 2, 12..16).is_err(), "the owner would wait for ever under load");
    assert!(locks.leave(&b, 1) && !owner.is_woken());
    assert!(locks.leave(&a, 1) && !owner.is_woken() && !locks.is_clear(&(8..16)));
    assert!(locks.leave(&a, 1) && owner.is_woken() && locks.is_clear(&(8..16)));
    assert_eq!(owner.told(), [lock]);
    assert!(!locks.leave(&a, 1), "another entry's");
}

/// Entries from before the first lock follow in their own time, and the bios of an I/O that entered before and after may complete in any
/// order.
#[test]
fn a_lock_waits_for_writes_that_were_not_recorded() {
    let locks = Locks::default();
    let (a, asks) = locks.add_entry(Thread::default());
    let (owner, _) = locks.add_entry(Thread::default());
    assert!(!asks);
    locks.begin_use();
    locks.follow(&owner, 0);
    let lock = locks.lock(8..16, &owner).unwrap();
    assert!(!locks.is_clear(&(8..16)) && a.is_woken());
    owner.is_woken();
    locks.follow(&a, 2);
    assert!(owner.is_woken(), "it asks again");
    assert!(locks.enter(&a, 1, 100..104).is_ok());
    assert!(!locks.is_clear(&(8..16)) && !locks.is_unused());
    assert!(locks.leave(&a, 7) && locks.leave(&a, 1) && !owner.is_woken() && !locks.is_clear(&(8..16)));
    assert!(locks.leave(&a, 1) && owner.is_woken() && locks.is_clear(&(8..16)));
    assert!(!locks.leave(&a, 1), "the owner's own write");
    locks.unlock(lock);
    assert!(locks.is_unused());
}

#[test]
fn an_entry_that_goes_is_not_waited_for() {
    let locks = Locks::default();
    let (gone, _) = locks.add_entry(Thread::default());
    locks.begin_use();
    let (owner, asks) = locks.add_entry(Thread::default());
    assert!(asks && locks.lock(8..16, &owner).is_ok() && !locks.is_clear(&(8..16)));
    locks.remove_entry(&gone);
    assert!(owner.is_woken() && locks.is_clear(&(8..16)));
}

/// Compares with a list that is searched linearly.
#[test]
fn ios_are_found_by_the_halves_of_their_number() {
    let mut random = 20_261_122u64;
    println!("seed {random}");
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let user_data = |source: u64, own: u64| (if source == 0 { u64::from(u32::MAX) } else { source }) << 32 | own;
    let (mut inside, mut list) = (Inside { follows: true, ..Inside::default() }, Vec::<(u64, u64)>::new());
    for step in 0..20_000u64 {
        // Filled and emptied in turn.
        let fills = step / 500 % 2 == 0;
        if below(10) < if fills { 8 } else { 2 } {
            let (user_data, at) = (user_data(below(3), below(64)), below(1000));
            if !list.iter().any(|(u, _)| *u == user_data) {
                inside.add(user_data, at..at + 1);
                list.push((user_data, at));
            }
        } else if !list.is_empty() {
            let (user_data, at) = list.swap_remove(below(list.len() as u64) as usize);
            assert_eq!(inside.remove(user_data), Ok(Some(at..at + 1)), "step {step}");
        }
        assert_eq!(inside.known.len(), list.len());
        let at = below(1000);
        assert_eq!(inside.may_overlap(&(at..at + 1)), list.iter().any(|(_, a)| *a == at), "step {step}");
        let user_data = user_data(below(4), below(80));
        if !list.iter().any(|(u, _)| *u == user_data) {
            assert_eq!(inside.remove(user_data), Err(()), "step {step}");
        }
    }
}
