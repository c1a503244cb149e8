// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks of blocks that are rewritten (read, changed in part, written back), for all threads of a disk.
//!
//! Guarantees: from the moment when a locked range is clear ([`BlockLocks::lock`], then [`BlockLocks::is_clear`]) until it is
//! unlocked, no other write, discard or write of zeroes to it is inside the disk, and no other lock overlaps it. Such I/O
//! waits at its entry, whose thread is woken. Without locks all this costs one load per round. With the first lock, each entry
//! counts its writes inside, and records later ones. Only the number of the former is known, so nothing is clear before they
//! have completed.
//!
//! Needs from callers: the owner of a lock waits for no other lock. Reads are not held back: one that overlaps a write may see
//! old or new data, as on any disk.

use crate::lock::Lock;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// Wakes a thread, so that it begins a round of its entries.
pub trait Wake {
    /// Wakes it. What it has to see is stored already.
    fn wake(&self);
}

/// The locks of a disk. Ranges are sectors.
pub struct BlockLocks<L: Lock, W> {
    /// There was a lock, so entries record their writes.
    used: AtomicBool,
    /// Number of locks; changed under the lock of `state`.
    held: AtomicU32,
    /// Number of changes after which an attempt that failed may succeed.
    events: AtomicU64,
    state: Mutex<L, LockState<L, W>>,
    entries: Mutex<L, Vec<Arc<Writes<L, W>>>>,
}

struct LockState<L: Lock, W> {
    held: Vec<Held<L, W>>,
    /// No range can be locked.
    is_closed: bool,
    /// Entries that wait until a range can be locked.
    waiting: Vec<Arc<Writes<L, W>>>,
}

struct Held<L: Lock, W> {
    range: Range<u64>,
    owner: Arc<Writes<L, W>>,
}

/// The writes of an entry that are inside the disk. Locked before [`BlockLocks::state`].
pub(super) struct Writes<L: Lock, W> {
    waker: W,
    inside: Mutex<L, Inside>,
}

#[derive(Default)]
struct Inside {
    /// The entry records its writes.
    follows: bool,
    known: Vec<Write>,
    /// Index of an I/O in `known`, by the halves of its `user_data`; or [`NOWHERE`].
    places: Vec<Vec<u32>>,
    /// Bios that entered before they had to ask [`BlockLocks::enter`].
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
        !self.follows || self.unknown > 0 || self.known.iter().any(|w| overlap(&w.range, range))
    }

    /// Both halves count from 0, so this needs memory for the most that were ever in flight at once.
    #[inline]
    fn place(&mut self, user_data: u64) -> &mut u32 {
        let (source, own) = halves(user_data);
        if self.places.len() <= source {
            self.places.resize_with(source + 1, Vec::new);
        }
        let places = &mut self.places[source];
        if places.len() <= own {
            places.resize(own + 1, NOWHERE);
        }
        &mut places[own]
    }

    /// Records one more bio of an I/O.
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

    /// Removes one bio, of a known I/O or of the unknown ones. Returns the range of the I/O if this was its last bio, and the
    /// whole disk for the last unknown bio. `Err` if no such bio is recorded.
    #[inline]
    fn remove(&mut self, user_data: u64) -> Result<Option<Range<u64>>, ()> {
        let (source, own) = halves(user_data);
        let place = self.places.get(source).and_then(|s| s.get(own)).filter(|place| **place != NOWHERE);
        // An I/O may have bios of both kinds. Their order does not matter, because nothing is clear before both have completed.
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

/// Returns the halves of a bio's `user_data`.
#[inline]
fn halves(user_data: u64) -> (usize, usize) {
    // Own bios are few and come from no source: they get a place before all sources.
    let source = ((user_data >> 32) as u32).wrapping_add(1);
    (source as usize, user_data as u32 as usize)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<L: Lock, W: Wake> LockState<L, W> {
    fn wait(&mut self, entry: &Arc<Writes<L, W>>) {
        if !self.waiting.iter().any(|w| Arc::ptr_eq(w, entry)) {
            self.waiting.push(Arc::clone(entry));
        }
    }
}

impl<L: Lock, W: Wake> Default for BlockLocks<L, W> {
    fn default() -> Self {
        BlockLocks {
            used: AtomicBool::new(false),
            held: AtomicU32::new(0),
            events: AtomicU64::new(0),
            state: Mutex::new(LockState { held: Vec::new(), is_closed: false, waiting: Vec::new() }),
            entries: Mutex::new(Vec::new()),
        }
    }
}

impl<L: Lock, W: Wake> BlockLocks<L, W> {
    /// Whether writes must ask [`BlockLocks::enter`].
    #[inline]
    pub(super) fn are_used(&self) -> bool {
        // Relaxed: an entry that sees it late is waited for.
        self.used.load(Ordering::Relaxed)
    }

    /// Has all entries record their writes. Nothing is clear until they do.
    pub(super) fn begin_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Returns the number of events so far. An attempt that failed after this call may succeed when the number has changed;
    /// the thread of its entry is woken then.
    pub(super) fn events(&self) -> u64 {
        // Pairs with: BlockLocks::happened
        self.events.load(Ordering::Acquire)
    }

    fn happened(&self) {
        // Pairs with: BlockLocks::events
        self.events.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds an entry. Also returns whether its writes must ask.
    pub(super) fn add_entry(&self, waker: W) -> (Arc<Writes<L, W>>, bool) {
        let mut entries = self.entries.lock();
        let follows = self.are_used();
        let writes = Arc::new(Writes { waker, inside: Mutex::new(Inside { follows, ..Inside::default() }) });
        entries.push(Arc::clone(&writes));
        (writes, follows)
    }

    /// Removes an entry without I/O.
    pub(super) fn remove_entry(&self, writes: &Arc<Writes<L, W>>) {
        self.entries.lock().retain(|w| !Arc::ptr_eq(w, writes));
        self.state.lock().waiting.retain(|w| !Arc::ptr_eq(w, writes));
        self.wake_owners(&(0..u64::MAX));
    }

    /// The entry records its writes from now on, and has `unknown` inside; [`BlockLocks::leave`] is called for each.
    pub(super) fn follow(&self, writes: &Writes<L, W>, unknown: usize) {
        let mut inside = writes.inside.lock();
        inside.follows = true;
        inside.unknown += unknown;
        drop(inside);
        self.wake_owners(&(0..u64::MAX));
    }

    /// Locks the range, so that no other write to it can enter; [`BlockLocks::is_clear`] then tells whether writes are still
    /// inside. Returns false if a part of the range is locked, or the locks are closed: the entry's thread is woken when it may try
    /// again.
    pub(super) fn lock(&self, range: Range<u64>, entry: &Arc<Writes<L, W>>) -> bool {
        let mut state = self.state.lock();
        if state.is_closed || state.held.iter().any(|h| overlap(&h.range, &range)) {
            state.wait(entry);
            return false;
        }
        state.held.push(Held { range, owner: Arc::clone(entry) });
        // Pairs with: BlockLocks::any_held, by the lock of each entry's writes that is_clear takes after this.
        self.held.store(state.held.len() as u32, Ordering::Release);
        true
    }

    /// Whether no write to the range, which the caller has locked, is inside. If not, the thread of the lock's owner is woken
    /// when that may have changed.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        let entries = self.entries.lock();
        let mut clear = true;
        for writes in entries.iter() {
            let inside = writes.inside.lock();
            let follows = inside.follows;
            clear &= !inside.may_overlap(range);
            drop(inside);
            if !follows {
                writes.waker.wake();
            }
        }
        clear
    }

    /// Unlocks a range, and wakes waiting threads.
    pub(super) fn unlock(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let at = state.held.iter().position(|h| h.range == *range).expect("a range is unlocked that is locked");
        state.held.swap_remove(at);
        // Pairs with: BlockLocks::any_held
        self.held.store(state.held.len() as u32, Ordering::Release);
        self.happened();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(|w| w.waker.wake());
    }

    /// Lets no more blocks be locked until [`BlockLocks::open`]. Those that are locked are still rewritten; other writes of parts of
    /// blocks wait.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Ends [`BlockLocks::close`], and wakes waiting threads.
    pub fn open(&self) {
        let mut state = self.state.lock();
        state.is_closed = false;
        self.happened();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(|w| w.waker.wake());
    }

    /// Whether no block is locked, so none is between its read and its write.
    pub fn is_free(&self) -> bool {
        self.state.lock().held.is_empty()
    }

    /// Called with the lock of an entry's writes held. If a lock's owner has already checked these writes, the lock is seen
    /// here; otherwise the owner will check them.
    fn any_held(&self) -> bool {
        // Pairs with: BlockLocks::lock
        self.held.load(Ordering::Acquire) > 0
    }

    fn wake_owners(&self, range: &Range<u64>) {
        self.happened();
        let state = self.state.lock();
        state.held.iter().filter(|h| overlap(&h.range, range)).for_each(|h| h.owner.waker.wake());
    }

    /// Records a bio that is about to enter and write, until [`BlockLocks::leave`]. Returns false if its blocks are locked: the
    /// entry's thread is woken when it may try again.
    pub(super) fn enter(&self, entry: &Arc<Writes<L, W>>, user_data: u64, range: Range<u64>) -> bool {
        let mut inside = entry.inside.lock();
        if self.any_held() {
            let mut state = self.state.lock();
            if state.held.iter().any(|h| overlap(&h.range, &range)) {
                state.wait(entry);
                return false;
            }
        }
        inside.add(user_data, range);
        true
    }

    /// Removes a bio that writes, when it has completed or could not enter after all. Returns whether it was recorded by
    /// [`BlockLocks::enter`] or counted by [`BlockLocks::follow`].
    pub(super) fn leave(&self, entry: &Writes<L, W>, user_data: u64) -> bool {
        let mut inside = entry.inside.lock();
        let Ok(gone) = inside.remove(user_data) else { return false };
        let wakes = gone.filter(|_| self.any_held());
        drop(inside);
        if let Some(range) = wakes {
            self.wake_owners(&range);
        }
        true
    }

    /// Whether there is no lock, no waiter and no write.
    pub fn is_unused(&self) -> bool {
        let state = self.state.lock();
        let idle = state.held.is_empty() && state.waiting.is_empty();
        drop(state);
        let is_empty = |inside: &Inside| inside.known.is_empty() && inside.unknown == 0;
        idle && self.entries.lock().iter().all(|w| is_empty(&w.inside.lock()))
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
