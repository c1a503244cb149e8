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
    fn told(&self) -> Vec<TicketId> {
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
    let (first, second) = (locks.lock(8..16, &a, None).unwrap(), locks.lock(16..64, &a, None).unwrap());
    for (range, lock) in [(0..9, first), (15..17, second), (10..12, first), (0..128, second), (20..22, second)] {
        let wait = locks.lock(range, &b, None).unwrap_err();
        assert_eq!(wait.until, lock);
        locks.release(wait.ticket);
    }
    assert!(!b.is_woken());
    locks.release(first);
    assert!(b.is_woken() && !a.is_woken());
    assert_eq!(b.told(), [first], "the other lock is held");
    assert!(locks.lock(0..16, &b, None).is_ok());
}

#[test]
fn closed_locks_give_no_lock_until_they_open() {
    let (locks, [a, b]) = used();
    assert!(locks.is_free());
    let lock = locks.lock(8..16, &a, None).unwrap();
    locks.close();
    assert!(!locks.is_free(), "the present lock stays");
    let Wait { ticket, until: closed } = locks.lock(100..108, &b, None).unwrap_err();
    let other = locks.lock(8..16, &b, None).unwrap_err();
    assert_eq!(other.until, lock);
    locks.release(lock);
    assert!(locks.is_free() && b.is_woken() && b.told() == [lock]);
    assert_eq!(locks.lock(8..16, &b, Some(other.ticket)), Err(Wait { until: closed, ..other }));
    assert!(locks.enter(&a, 1, 8..16, None).is_ok(), "a lock that is only wanted delays no write");
    assert!(locks.leave(&a, 1) && locks.is_free());
    locks.open();
    assert!(b.is_woken() && b.told() == [closed]);
    for (range, ticket) in [(100..108, ticket), (8..16, other.ticket)] {
        assert_eq!(locks.lock(range, &b, Some(ticket)), Ok(ticket));
        locks.release(ticket);
    }
    assert!(locks.is_unused());
}

#[test]
fn a_write_waits_for_a_lock_of_its_blocks_and_for_no_other() {
    let (locks, [a, b]) = used();
    let (lock, other) = (locks.lock(8..16, &a, None).unwrap(), locks.lock(64..72, &a, None).unwrap());
    assert!(locks.is_clear(&(8..16)));
    let Wait { ticket, until } = locks.enter(&b, 1, 0..9, None).unwrap_err();
    assert_eq!(until, lock);
    assert!(locks.enter(&b, 2, 0..8, None).is_ok() && locks.enter(&b, 3, 16..24, None).is_ok());
    locks.release(other);
    assert!(!b.is_woken(), "nothing waits for it");
    locks.release(lock);
    assert!(b.is_woken());
    assert_eq!(b.told(), [lock]);
    assert!(locks.enter(&b, 1, 0..9, Some(ticket)).is_ok());
}

#[test]
fn an_older_ticket_goes_first() {
    let (locks, [a, b, c]) = used();
    let first = locks.lock(8..16, &a, None).unwrap();
    let write = locks.enter(&b, 1, 0..16, None).unwrap_err();
    assert_eq!(write.until, first);
    // Locks of both halves of the write, of which one is free.
    let (second, third) = (locks.lock(8..16, &a, None).unwrap_err(), locks.lock(0..8, &c, None).unwrap_err());
    assert_eq!((second.until, third.until), (write.ticket, write.ticket));
    locks.release(first);
    assert_eq!(b.told(), [first]);
    assert!(!a.is_woken() && !c.is_woken());
    assert_eq!(locks.lock(8..16, &a, Some(second.ticket)), Err(second), "the write waits longer");
    // It stays first while it has no slot.
    assert!(locks.enter(&b, 1, 0..16, Some(write.ticket)).is_ok() && locks.leave(&b, 1));
    assert_eq!(locks.lock(0..8, &c, Some(third.ticket)), Err(third));
    assert!(locks.enter(&b, 1, 0..16, Some(write.ticket)).is_ok());
    locks.release(write.ticket);
    assert!(a.told() == [write.ticket] && c.told() == [write.ticket]);
    assert_eq!(locks.lock(8..16, &a, Some(second.ticket)), Ok(second.ticket));
    assert_eq!(locks.lock(0..8, &c, Some(third.ticket)), Ok(third.ticket));
    assert!(!locks.is_clear(&(8..16)) && locks.leave(&b, 1) && locks.is_clear(&(8..16)));
}

#[test]
fn what_gives_up_delays_no_other() {
    let (locks, [a, b, c]) = used();
    let first = locks.lock(8..16, &a, None).unwrap();
    let gone = locks.enter(&b, 1, 8..16, None).unwrap_err();
    let kept = locks.lock(64..72, &b, None).unwrap();
    let wait = locks.lock(8..16, &c, None).unwrap_err();
    assert_eq!(wait.until, gone.ticket);
    locks.give_up(&b);
    assert!(c.is_woken() && c.told() == [gone.ticket]);
    assert_eq!(locks.lock(8..16, &c, Some(wait.ticket)), Err(Wait { until: first, ..wait }));
    assert_eq!(locks.lock(64..72, &c, None).unwrap_err().until, kept, "its owner may still write");
}

/// `lock` keeps new writes out of its range at once, while its owner waits for the writes that already are in the range.
#[test]
fn a_lock_waits_for_the_writes_that_came_before_it() {
    let (locks, [a, b, owner]) = used();
    // An I/O of two bios, and one elsewhere.
    assert!(locks.enter(&a, 1, 0..8, None).is_ok() && locks.enter(&a, 1, 8..12, None).is_ok());
    assert!(locks.enter(&b, 1, 100..104, None).is_ok());
    let lock = locks.lock(8..16, &owner, None).unwrap();
    assert!(!locks.is_clear(&(8..16)));
    assert!(locks.enter(&b, 2, 12..16, None).is_err(), "the owner would wait for ever under load");
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
    let lock = locks.lock(8..16, &owner, None).unwrap();
    assert!(!locks.is_clear(&(8..16)) && a.is_woken());
    owner.is_woken();
    locks.follow(&a, 2);
    assert!(owner.is_woken(), "it asks again");
    assert!(locks.enter(&a, 1, 100..104, None).is_ok());
    assert!(!locks.is_clear(&(8..16)) && !locks.is_unused());
    assert!(locks.leave(&a, 7) && locks.leave(&a, 1) && !owner.is_woken() && !locks.is_clear(&(8..16)));
    assert!(locks.leave(&a, 1) && owner.is_woken() && locks.is_clear(&(8..16)));
    assert!(!locks.leave(&a, 1), "the owner's own write");
    locks.release(lock);
    assert!(locks.is_unused());
}

#[test]
fn an_entry_that_goes_is_not_waited_for() {
    let locks = Locks::default();
    let (gone, _) = locks.add_entry(Thread::default());
    locks.begin_use();
    let (owner, asks) = locks.add_entry(Thread::default());
    assert!(asks && locks.lock(8..16, &owner, None).is_ok() && !locks.is_clear(&(8..16)));
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
