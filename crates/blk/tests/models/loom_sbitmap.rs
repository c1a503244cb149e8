// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving with up to three preemptions of the tag allocator's races.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p mqblk-blk --test models loom_sbitmap::`; without that flag there is nothing
//! here. `LOOM_MAX_PREEMPTIONS` overrides the bound. The comment above each model says what it catches; each of these faults was
//! inserted once to see the model fail.

use blk::tags::sbitmap::{Sbitmap, TagAllocHint, TagBatch};
use blk::tags::sbitmap_queue::{SbitmapQueue, WaiterId};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

type Queue = SbitmapQueue<parking_lot::RawMutex>;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

/// One payload per bit, written and read with `Relaxed` only: if the bitmap did not order one owner after the other, loom
/// would show the new owner an old value.
struct Slots(Vec<AtomicU32>);

impl Slots {
    fn new(n: u32) -> Slots {
        Slots((0..n).map(|_| AtomicU32::new(0)).collect())
    }

    fn enter(&self, bit: u32) {
        let slot = &self.0[bit as usize];
        assert_eq!(slot.load(Relaxed), 0, "bit {bit} has two owners, or its last owner's work is not seen");
        slot.store(1, Relaxed);
    }

    fn leave(&self, bit: u32) {
        assert_eq!(self.0[bit as usize].load(Relaxed), 1);
        self.0[bit as usize].store(0, Relaxed);
    }
}

fn hint() -> TagAllocHint {
    TagAllocHint::new(0)
}

/// Makes a map whose bits are all taken, and writes the slots.
fn full(depth: u32, shift: u32, slots: &Slots) -> Sbitmap {
    let sb = Sbitmap::with_shift(depth, shift, false);
    while let Some(bit) = sb.get(&mut hint()) {
        slots.enter(bit);
    }
    sb
}

fn put(sb: &Sbitmap, slots: &Slots, bit: u32) {
    slots.leave(bit);
    sb.clear_deferred(bit);
}

fn try_get(sb: &Sbitmap, slots: &Slots) -> Option<u32> {
    let bit = sb.get(&mut hint());
    bit.inspect(|bit| slots.enter(*bit))
}

/// All bits are either in `held` or can be taken now.
fn assert_none_lost(sb: &Sbitmap, held: u32) {
    let mut free = 0;
    while sb.get(&mut hint()).is_some() {
        free += 1;
    }
    assert_eq!(free + held, sb.depth(), "a bit was lost");
}

/// Catches: a mover that returns bits to `word` which are not its own; an acquire or release left out.
#[test]
fn two_takers_collect_what_two_givers_clear() {
    explore(|| {
        let slots = Arc::new(Slots::new(2));
        let sb = Arc::new(full(2, 1, &slots));
        let run = |bit: u32| {
            let (sb, slots) = (sb.clone(), slots.clone());
            move || {
                put(&sb, &slots, bit);
                try_get(&sb, &slots)
            }
        };
        let other = thread::spawn(run(0));
        let mine = run(1)();
        let theirs = other.join().unwrap();
        let held = u32::from(mine.is_some()) + u32::from(theirs.is_some());
        assert!(held >= 1, "the later of the two finds a bit");
        assert_none_lost(&sb, held);
    });
}

/// Catches: a mover that frees a bit another thread took between the mover's exchange and and-not (three cleared bits, so
/// that there is a surplus). Also a put that meets the transfer of its own bit.
#[test]
fn a_bit_goes_round_while_another_taker_moves() {
    explore(|| {
        let slots = Arc::new(Slots::new(3));
        let sb = Arc::new(full(3, 2, &slots));
        for bit in 0..3 {
            put(&sb, &slots, bit);
        }
        let run = || {
            let (sb, slots) = (sb.clone(), slots.clone());
            move || {
                for _ in 0..2 {
                    if let Some(bit) = try_get(&sb, &slots) {
                        put(&sb, &slots, bit);
                    }
                }
            }
        };
        let other = thread::spawn(run());
        run()();
        other.join().unwrap();
        assert_none_lost(&sb, 0);
    });
}

/// Catches: an acquire or release left out on the way of a bit through `word`: given back at once by `clear_batch`, taken by
/// a single get or by a batch.
#[test]
fn the_next_owner_sees_what_the_last_one_did() {
    for batch_get in [false, true] {
        explore(move || {
            let slots = Arc::new(Slots::new(2));
            let sb = Arc::new(full(2, 1, &slots));
            let giver = {
                let (sb, slots) = (sb.clone(), slots.clone());
                thread::spawn(move || {
                    slots.leave(0);
                    slots.leave(1);
                    sb.clear_batch(0, 0b11);
                })
            };
            match batch_get {
                true => sb.get_batch(&mut hint(), 2).for_each(|bit| slots.enter(bit)),
                false => assert!(try_get(&sb, &slots) != Some(1), "lowest first"),
            }
            giver.join().unwrap();
        });
    }
}

/// Catches: a mover that returns surplus bits to `word` without ordering the last owner's accesses before the next
/// owner's.
#[test]
fn a_mover_hands_on_what_the_last_owner_did() {
    explore(|| {
        let slots = Arc::new(Slots::new(2));
        let sb = Arc::new(full(2, 1, &slots));
        let taker = || {
            let (sb, slots) = (sb.clone(), slots.clone());
            move || try_get(&sb, &slots)
        };
        let (first, second) = (thread::spawn(taker()), thread::spawn(taker()));
        put(&sb, &slots, 0);
        put(&sb, &slots, 1);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// Catches: a batch that sets its bits one by one (or all at once with an or) and forgets them when it meets a taken one;
/// a batch that shares a bit with a single get. Starts with two bits free in `word` and two in `cleared`.
#[test]
fn a_batch_meets_single_gets() {
    explore(|| {
        let slots = Arc::new(Slots::new(4));
        let sb = Arc::new(Sbitmap::with_shift(4, 2, false));
        for _ in 0..2 {
            let bit = try_get(&sb, &slots).unwrap();
            put(&sb, &slots, bit);
        }
        let other = {
            let (sb, slots) = (sb.clone(), slots.clone());
            thread::spawn(move || {
                let got = try_get(&sb, &slots);
                if let Some(bit) = got {
                    put(&sb, &slots, bit);
                }
                u32::from(try_get(&sb, &slots).is_some())
            })
        };
        let TagBatch { base, mask } = sb.get_batch(&mut hint(), 3);
        assert!(mask.count_ones() <= 3);
        TagBatch { base, mask }.for_each(|bit| slots.enter(bit));
        let theirs = other.join().unwrap();
        assert_none_lost(&sb, mask.count_ones() + theirs);
        TagBatch { base, mask }.for_each(|bit| slots.leave(bit));
        sb.clear_batch(base, mask);
        assert_none_lost(&sb, sb.depth() - mask.count_ones());
    });
}

/// What the waiting side of a model did. Sleeping is not modelled: a waiter that would sleep ends, and the model checks
/// afterwards whether it would have been woken.
enum Outcome {
    Got(u32),
    Asleep,
}

/// The wait protocol up to the sleep.
fn get_or_sleep(queue: &Queue, id: WaiterId) -> Outcome {
    if let Some(tag) = queue.get(&mut hint()) {
        return Outcome::Got(tag);
    }
    queue.add_waiter(id);
    match queue.get(&mut hint()) {
        Some(tag) => {
            queue.remove_waiter(id);
            Outcome::Got(tag)
        }
        None => Outcome::Asleep,
    }
}

/// Waiters that a wake callback named, one bit each.
#[derive(Clone)]
struct Woken(Arc<AtomicU32>);

impl Woken {
    fn new() -> Woken {
        Woken(Arc::new(AtomicU32::new(0)))
    }

    fn note(&self, waiter: WaiterId) {
        assert_eq!(self.0.fetch_or(1 << waiter.0, Relaxed) >> waiter.0 & 1, 0, "{waiter:?} was woken twice");
    }

    fn contains(&self, waiter: WaiterId) -> bool {
        self.0.load(Relaxed) >> waiter.0 & 1 == 1
    }
}

/// Catches: the fence of `add_waiter`, or the order between a put's clear and its check of the waiters, left out.
#[test]
fn a_put_wakes_or_is_seen() {
    for batch_put in [false, true] {
        explore(move || {
            let queue = Arc::new(Queue::new(1, false));
            let woken = Woken::new();
            assert_eq!(queue.get(&mut hint()), Some(0));
            let putter = {
                let (queue, woken) = (queue.clone(), woken.clone());
                thread::spawn(move || match batch_put {
                    true => queue.put_batch(0, 1, &mut |w| woken.note(w)),
                    false => queue.put(0, None, &mut |w| woken.note(w)),
                })
            };
            let me = WaiterId(0);
            let outcome = get_or_sleep(&queue, me);
            putter.join().unwrap();
            match outcome {
                Outcome::Got(tag) => assert_eq!(tag, 0),
                Outcome::Asleep => assert!(woken.contains(me), "asleep for ever with a free tag"),
            }
            assert_eq!(queue.waiters_active(), 0);
        });
    }
}

/// Catches: a taker that returns surplus bits to `word` without counting completions for them. All 16 tags are free, but
/// in `cleared`; while the other thread moves them, the waiter may see none. The wake batch is 2, so that the put of the
/// one tag that the other thread keeps is not enough by itself. (Linux reintroduced its swap lock because of this hang.)
#[test]
fn a_sleeper_that_looked_during_a_transfer_is_woken() {
    explore(|| {
        let queue = Arc::new(Queue::with_shift(16, 4, false));
        let woken = Woken::new();
        assert_eq!(queue.wake_batch(), 2);
        for _ in 0..16 {
            let tag = queue.get(&mut hint()).unwrap();
            queue.put(tag, None, &mut |_| unreachable!());
        }
        let mover = {
            let (queue, woken) = (queue.clone(), woken.clone());
            thread::spawn(move || {
                if let Outcome::Got(tag) = get_or_sleep(&queue, WaiterId(1)) {
                    queue.put(tag, None, &mut |w| woken.note(w));
                    return false;
                }
                true
            })
        };
        let me = WaiterId(0);
        let outcome = get_or_sleep(&queue, me);
        if let Outcome::Got(tag) = outcome {
            queue.put(tag, None, &mut |w| woken.note(w));
        }
        let other_asleep = mover.join().unwrap();
        let asleep = matches!(outcome, Outcome::Asleep);
        assert!(!(asleep && other_asleep), "no thread holds a tag and none got one");
        assert!(!asleep || woken.contains(me), "asleep for ever with 16 free tags");
        assert!(!other_asleep || woken.contains(WaiterId(1)), "the mover sleeps for ever with 16 free tags");
    });
}

/// Catches: a wake-up that is lost because its waiter leaves without a tag at the same time.
#[test]
fn a_waiter_that_turns_away_passes_its_wake_up_on() {
    explore(|| {
        let queue = Arc::new(Queue::new(1, false));
        let woken = Woken::new();
        let (fickle, asleep) = (WaiterId(0), WaiterId(1));
        assert_eq!(queue.get(&mut hint()), Some(0));
        // Seven registrations later the sleeper is in the last wait queue, and the other one will be in the first.
        for _ in 0..7 {
            queue.add_waiter(asleep);
            assert!(queue.remove_waiter(asleep));
        }
        queue.add_waiter(asleep);
        assert_eq!(queue.get(&mut hint()), None);
        let putter = {
            let (queue, woken) = (queue.clone(), woken.clone());
            thread::spawn(move || queue.put(0, None, &mut |w| woken.note(w)))
        };
        queue.add_waiter(fickle);
        if !queue.remove_waiter(fickle) {
            queue.wake_one(&mut |w| woken.note(w));
        }
        putter.join().unwrap();
        assert!(woken.contains(asleep), "asleep for ever with a free tag");
        assert_eq!(queue.waiters_active(), 0);
    });
}

/// Catches a lost wake-up in two cases: the counts of two simultaneous puts do not add up to a batch, and a put comes while a
/// waiter is being registered. The wake batch is 2, and there are two puts.
#[test]
fn two_puts_at_once_make_a_batch() {
    explore(|| {
        let queue = Arc::new(Queue::with_shift(16, 4, false));
        let woken = Woken::new();
        while queue.get(&mut hint()).is_some() {}
        queue.add_waiter(WaiterId(0));
        let put = |tag: u32| {
            let (queue, woken) = (queue.clone(), woken.clone());
            move || queue.put(tag, None, &mut |w| woken.note(w))
        };
        let other = thread::spawn(put(3));
        put(5)();
        let mine = get_or_sleep(&queue, WaiterId(1));
        other.join().unwrap();
        assert!(woken.contains(WaiterId(0)), "asleep for ever with a free tag");
        assert!(matches!(mine, Outcome::Got(_)), "one of two free tags, and no other thread took one");
    });
}
