// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks of a disk that are being rewritten (read, changed in part, written back), and the writes that wait for the rewrites.
//!
//! Guarantees: a rewrite owns its blocks exclusively from the moment when it may read ([`Rewrites::hold`] and then [`Rewrites::is_clear`])
//! until it releases them. Meanwhile no other rewrite and no write, discard or write of zeroes to these blocks is inside the block layer,
//! whichever export it comes from. Such writes wait at their [`Port`](super::Port), whose thread sleeps and is woken. For writes that were
//! inside when the first rewrite was announced, only their number is known. They may go to any block, so no rewrite reads before they have
//! completed. On a disk without rewrites ([`Rewrites::expect`]) all this costs one load per round; otherwise a write takes a lock that
//! usually only its IOThread uses.
//!
//! Needs from callers: a hold waits for its own I/O only, and its owner waits for no other hold. Reads are not held back: one that
//! overlaps a write may see old or new data, as on any disk.

use super::disk::Waker;
use super::port::SourceId;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The rewrites of a disk. Ranges are sectors.
#[derive(Default)]
pub(crate) struct Rewrites {
    /// Number of exports that may rewrite.
    expected: AtomicUsize,
    /// Number of held ranges; changed under the lock of `state`.
    held: AtomicUsize,
    state: Mutex<RewriteState>,
    ports: Mutex<Vec<Arc<Writes>>>,
}

#[derive(Default)]
struct RewriteState {
    held: Vec<Hold>,
    /// Threads that wait until a range is released.
    waiting: Vec<Waker>,
}

struct Hold {
    range: Range<u64>,
    waker: Waker,
}

/// The writes of a port that have entered the block layer. Locked before [`Rewrites::state`].
#[derive(Default)]
pub(super) struct Writes(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    known: Vec<Write>,
    /// Index of a request in `known`, by the number of its source and then its own; or [`NOWHERE`].
    places: Vec<Vec<u32>>,
    /// Bios that entered before they had to ask [`Rewrites::enter`].
    unknown: usize,
}

const NOWHERE: u32 = u32::MAX;

struct Write {
    user_data: u64,
    /// Range that covers all of its bios.
    range: Range<u64>,
    bios: u32,
}

impl Inside {
    fn may_overlap(&self, range: &Range<u64>) -> bool {
        self.unknown > 0 || self.known.iter().any(|w| overlap(&w.range, range))
    }

    /// Sources number their requests in flight from 0, so this needs memory for the most that were ever in flight at once.
    #[inline]
    fn place(&mut self, user_data: u64) -> &mut u32 {
        let (source, own) = SourceId::of(user_data);
        if self.places.len() <= source {
            self.places.resize_with(source + 1, Vec::new);
        }
        let places = &mut self.places[source];
        if places.len() <= own as usize {
            places.resize(own as usize + 1, NOWHERE);
        }
        &mut places[own as usize]
    }

    /// Records one more bio of a request.
    #[inline]
    fn add(&mut self, user_data: u64, range: Range<u64>) {
        let next = self.known.len() as u32;
        let place = self.place(user_data);
        if *place == NOWHERE {
            *place = next;
            self.known.push(Write { user_data, range, bios: 1 });
            return;
        }
        let at = *place as usize;
        let write = &mut self.known[at];
        write.range = write.range.start.min(range.start)..write.range.end.max(range.end);
        write.bios += 1;
    }

    /// Removes one bio, of a known request or of the unknown ones. Returns the range of the request if this was its last bio. The last
    /// unknown bio returns the whole disk. `Err` if no such bio is recorded.
    #[inline]
    fn remove(&mut self, user_data: u64) -> Result<Option<Range<u64>>, ()> {
        let (source, own) = SourceId::of(user_data);
        let place = self.places.get(source).and_then(|s| s.get(own as usize)).filter(|place| **place != NOWHERE);
        // A request may have bios of both kinds. Their order does not matter, because nothing is clear before both have completed.
        let Some(at) = place.map(|place| *place as usize) else {
            self.unknown = self.unknown.checked_sub(1).ok_or(())?;
            return Ok((self.unknown == 0).then_some(0..u64::MAX));
        };
        self.known[at].bios -= 1;
        if self.known[at].bios > 0 {
            return Ok(None);
        }
        let range = self.known.swap_remove(at).range;
        if let Some(moved) = self.known.get(at).map(|w| w.user_data) {
            *self.place(moved) = at as u32;
        }
        *self.place(user_data) = NOWHERE;
        Ok(Some(range))
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl RewriteState {
    fn wait(&mut self, waker: Waker) {
        if !self.waiting.contains(&waker) {
            self.waiting.push(waker);
        }
    }
}

impl Rewrites {
    /// Announces an export that may rewrite. It begins when each port has reported its writes in flight ([`Rewrites::enter_unknown`]).
    pub(super) fn expect(&self) {
        // Relaxed: IOThreads see it before they answer the caller.
        self.expected.fetch_add(1, Ordering::Relaxed);
    }

    /// Revokes [`Rewrites::expect`] when the export is gone.
    pub(super) fn unexpect(&self) {
        self.expected.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether writes must ask [`Rewrites::enter`].
    #[inline]
    pub(super) fn are_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed) > 0
    }

    /// Adds the record of a port's writes.
    pub(super) fn add_port(&self) -> Arc<Writes> {
        let writes = Arc::new(Writes::default());
        self.ports.lock().push(Arc::clone(&writes));
        writes
    }

    pub(super) fn remove_port(&self, writes: &Arc<Writes>) {
        self.ports.lock().retain(|w| !Arc::ptr_eq(w, writes));
    }

    /// Takes hold of the range, so that no other write to it can enter; [`Rewrites::is_clear`] then tells whether writes are still inside.
    /// Returns false if another rewrite holds a part of the range; then the thread of `waker` is woken when it may retry.
    pub(crate) fn hold(&self, range: Range<u64>, waker: Waker) -> bool {
        let mut state = self.state.lock();
        if state.held.iter().any(|h| overlap(&h.range, &range)) {
            state.wait(waker);
            return false;
        }
        state.held.push(Hold { range, waker });
        // Pairs with: Rewrites::held_now, by the lock of each port's writes that is_clear takes after this.
        self.held.store(state.held.len(), Ordering::Release);
        true
    }

    /// Whether no write to the range, which the caller holds, is inside the block layer. If not, the holder's thread is woken when one of
    /// these writes completes.
    pub(crate) fn is_clear(&self, range: &Range<u64>) -> bool {
        let clear = |writes: &Arc<Writes>| !writes.0.lock().may_overlap(range);
        self.ports.lock().iter().all(clear)
    }

    /// Ends a hold, and wakes waiting threads.
    pub(crate) fn give_back(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let at = state.held.iter().position(|h| h.range == *range).expect("a range is given back that is held");
        state.held.swap_remove(at);
        // Pairs with: Rewrites::held_now
        self.held.store(state.held.len(), Ordering::Release);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(Waker::wake);
    }

    /// Whether there is no hold, no waiter and no write.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        let idle = state.held.is_empty() && state.waiting.is_empty();
        drop(state);
        idle && self.ports.lock().iter().map(|w| w.0.lock()).all(|w| w.known.is_empty() && w.unknown == 0)
    }

    /// Returns how many threads wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Called with the lock of a port's writes held. If a rewrite has already checked these writes, its hold is seen here; otherwise the
    /// rewrite will check them.
    fn held_now(&self) -> bool {
        // Pairs with: Rewrites::hold
        self.held.load(Ordering::Acquire) > 0
    }

    /// Counts bios that write and entered the block layer without asking; [`Rewrites::leave`] is called for each when it completes.
    pub(super) fn enter_unknown(&self, writes: &Writes, bios: usize) {
        writes.0.lock().unknown += bios;
    }

    /// Records a bio that is about to enter the block layer and write, until [`Rewrites::leave`]. Returns false if the bio must not enter,
    /// because its blocks are being rewritten. The thread of `waker` is woken when it may retry.
    pub(super) fn enter(
        &self,
        writes: &Writes,
        user_data: u64,
        range: Range<u64>,
        waker: impl FnOnce() -> Waker,
    ) -> bool {
        let mut inside = writes.0.lock();
        if self.held_now() {
            let mut state = self.state.lock();
            if state.held.iter().any(|h| overlap(&h.range, &range)) {
                state.wait(waker());
                return false;
            }
        }
        inside.add(user_data, range);
        true
    }

    /// Removes a bio that writes, when it has completed or could not enter after all. Returns whether it was recorded by
    /// [`Rewrites::enter`] or counted by [`Rewrites::enter_unknown`].
    pub(super) fn leave(&self, writes: &Writes, user_data: u64) -> bool {
        let mut inside = writes.0.lock();
        let Ok(gone) = inside.remove(user_data) else { return false };
        if let Some(range) = gone
            && self.held_now()
        {
            let state = self.state.lock();
            state.held.iter().filter(|h| overlap(&h.range, &range)).for_each(|h| h.waker.wake());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::wakeup::Wakeups;
    use super::*;

    fn wakers() -> (Arc<Wakeups>, impl Fn(u16) -> Waker) {
        let wakeups = Arc::new(Wakeups::new());
        (0..3).for_each(|t| wakeups.make(t).unwrap());
        (Arc::clone(&wakeups), move |thread| Waker::new(&wakeups, thread))
    }

    /// Returns whether the thread was woken since the last call.
    fn is_rung(wakeups: &Wakeups, thread: u16) -> bool {
        let dozes = wakeups.get(thread).doze();
        wakeups.get(thread).wake_up();
        !dozes
    }

    #[test]
    fn holds_do_not_overlap_and_waiters_are_woken() {
        let (wakeups, waker) = wakers();
        let r = Rewrites::default();
        assert!(r.hold(8..16, waker(0)) && r.hold(16..64, waker(0)));
        for range in [0..9, 15..17, 10..12, 0..128] {
            assert!(!r.hold(range, waker(1)));
        }
        assert!(!is_rung(&wakeups, 1));
        r.give_back(&(8..16));
        assert!(is_rung(&wakeups, 1) && !is_rung(&wakeups, 0));
        assert!(r.hold(0..16, waker(1)));
    }

    #[test]
    fn a_write_waits_for_a_rewrite_of_its_blocks_and_for_no_other() {
        let (wakeups, waker) = wakers();
        let r = Rewrites::default();
        let port = r.add_port();
        assert!(r.hold(8..16, waker(0)) && r.is_clear(&(8..16)));
        assert!(!r.enter(&port, 1, 0..9, || waker(2)));
        assert!(r.enter(&port, 2, 0..8, || waker(2)) && r.enter(&port, 3, 16..24, || waker(2)));
        r.give_back(&(8..16));
        assert!(is_rung(&wakeups, 2));
        assert!(r.enter(&port, 1, 0..9, || waker(2)));
    }

    /// `hold` keeps new writes out of its range at once, while it waits for the writes that already are in the range.
    #[test]
    fn a_rewrite_waits_for_the_writes_that_came_before_it() {
        let (wakeups, waker) = wakers();
        let r = Rewrites::default();
        let (port, other) = (r.add_port(), r.add_port());
        // A request of two bios, and one elsewhere.
        assert!(r.enter(&port, 1, 0..8, || waker(2)) && r.enter(&port, 1, 8..12, || waker(2)));
        assert!(r.enter(&other, 1, 100..104, || waker(2)));
        assert!(r.hold(8..16, waker(0)) && !r.is_clear(&(8..16)));
        assert!(!r.enter(&other, 2, 12..16, || waker(2)), "it would wait for ever under load");
        assert!(r.leave(&other, 1) && !is_rung(&wakeups, 0));
        assert!(r.leave(&port, 1) && !is_rung(&wakeups, 0) && !r.is_clear(&(8..16)));
        assert!(r.leave(&port, 1) && is_rung(&wakeups, 0) && r.is_clear(&(8..16)));
        assert!(!r.leave(&port, 1), "another's");
        r.remove_port(&other);
        assert_eq!(r.ports.lock().len(), 1);
    }

    /// The bios of a request that entered before and after the announcement may complete in any order.
    #[test]
    fn a_rewrite_waits_for_unknown_writes() {
        let (wakeups, waker) = wakers();
        let r = Rewrites::default();
        let port = r.add_port();
        r.enter_unknown(&port, 2);
        assert!(r.enter(&port, 1, 100..104, || waker(2)));
        assert!(r.hold(8..16, waker(0)) && !r.is_clear(&(8..16)) && !r.is_unused());
        assert!(r.leave(&port, 7) && r.leave(&port, 1) && !is_rung(&wakeups, 0) && !r.is_clear(&(8..16)));
        assert!(r.leave(&port, 1) && is_rung(&wakeups, 0) && r.is_clear(&(8..16)));
        assert!(!r.leave(&port, 1), "the rewrite itself");
        r.give_back(&(8..16));
        assert!(r.is_unused());
    }

    /// Compares with a list that is searched linearly.
    #[test]
    fn requests_are_found_by_their_source_and_number() {
        let mut random = 20_261_122u64;
        println!("seed {random}");
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let (mut inside, mut list) = (Inside::default(), Vec::<(u64, u64)>::new());
        for step in 0..20_000u64 {
            // Filled and emptied in turn.
            let fills = step / 500 % 2 == 0;
            if below(10) < if fills { 8 } else { 2 } {
                let (user_data, at) = (SourceId(below(3) as u32).tagged(below(64) as u32), below(1000));
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
            let user_data = SourceId(below(4) as u32).tagged(below(80) as u32);
            if !list.iter().any(|(u, _)| *u == user_data) {
                assert_eq!(inside.remove(user_data), Err(()), "step {step}");
            }
        }
    }
}
