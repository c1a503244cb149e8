// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks of blocks that are rewritten (read, changed in part, written back), for all threads of a disk.
//!
//! Guarantees: from the moment when a locked range is clear ([`BlockLocks::lock`], then [`BlockLocks::is_clear`]) until it is
//! unlocked, no other write, discard or write of zeroes to it is inside the disk, and no other lock overlaps it. Such I/O
//! waits at its entry, whose thread is woken when the lock that it waits for changes, and for no other. Without locks all this
//! costs one load per round. With the first lock, each entry counts its writes inside, and records later ones. Only the number
//! of the former is known, so nothing is clear before they have completed.
//!
//! Needs from callers: the owner of a lock waits for no other lock. Reads are not held back: one that overlaps a write may see
//! old or new data, as on any disk.

use crate::lock::Lock;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
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
    state: Mutex<L, LockState<L, W>>,
    entries: Mutex<L, Vec<Arc<Writes<L, W>>>>,
}

/// Names a lock that is held. A number is used once.
pub(super) type LockId = u64;

struct LockState<L: Lock, W> {
    held: Vec<Held<L, W>>,
    next: LockId,
    /// No range can be locked.
    closed: Option<Closed<L, W>>,
}

struct Closed<L: Lock, W> {
    /// What waits for the locks to open waits for this number.
    id: LockId,
    waiting: Vec<Arc<Writes<L, W>>>,
}

struct Held<L: Lock, W> {
    id: LockId,
    range: Range<u64>,
    owner: Arc<Writes<L, W>>,
    /// Entries with I/O that waits until the range is unlocked.
    waiting: Vec<Arc<Writes<L, W>>>,
}

/// The writes of an entry that are inside the disk, and what its thread is told.
pub(super) struct Writes<L: Lock, W> {
    waker: W,
    /// Locked before [`BlockLocks::state`].
    inside: Mutex<L, Inside>,
    /// Locks that have changed, so that what waits for them may go on. Locked after all other locks.
    changed: Mutex<L, Vec<LockId>>,
}

impl<L: Lock, W: Wake> Writes<L, W> {
    /// Takes the locks that have changed since the last call. An attempt that failed is worth a retry when the lock that it
    /// waits for has changed; the entry's thread is woken then.
    pub(super) fn take_changed(&self, into: &mut Vec<LockId>) {
        into.append(&mut self.changed.lock());
    }

    fn tell(&self, lock: LockId) {
        let mut changed = self.changed.lock();
        if changed.last() != Some(&lock) {
            changed.push(lock);
        }
        drop(changed);
        self.waker.wake();
    }
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

fn add<L: Lock, W>(waiting: &mut Vec<Arc<Writes<L, W>>>, entry: &Arc<Writes<L, W>>) {
    if !waiting.iter().any(|w| Arc::ptr_eq(w, entry)) {
        waiting.push(Arc::clone(entry));
    }
}

impl<L: Lock, W: Wake> LockState<L, W> {
    /// Returns a lock that overlaps the range, if there is one. The entry is told when it is unlocked.
    fn wait(&mut self, range: &Range<u64>, entry: &Arc<Writes<L, W>>) -> Option<LockId> {
        let held = self.held.iter_mut().find(|h| overlap(&h.range, range))?;
        add(&mut held.waiting, entry);
        Some(held.id)
    }

    fn new_id(&mut self) -> LockId {
        self.next += 1;
        self.next - 1
    }
}

impl<L: Lock, W: Wake> Default for BlockLocks<L, W> {
    fn default() -> Self {
        BlockLocks {
            used: AtomicBool::new(false),
            held: AtomicU32::new(0),
            state: Mutex::new(LockState { held: Vec::new(), next: 0, closed: None }),
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

    /// Adds an entry. Also returns whether its writes must ask.
    pub(super) fn add_entry(&self, waker: W) -> (Arc<Writes<L, W>>, bool) {
        let mut entries = self.entries.lock();
        let follows = self.are_used();
        let inside = Mutex::new(Inside { follows, ..Inside::default() });
        let writes = Arc::new(Writes { waker, inside, changed: Mutex::new(Vec::new()) });
        entries.push(Arc::clone(&writes));
        (writes, follows)
    }

    /// Removes an entry without I/O.
    pub(super) fn remove_entry(&self, writes: &Arc<Writes<L, W>>) {
        self.entries.lock().retain(|w| !Arc::ptr_eq(w, writes));
        let mut state = self.state.lock();
        state.held.iter_mut().for_each(|h| h.waiting.retain(|w| !Arc::ptr_eq(w, writes)));
        if let Some(closed) = &mut state.closed {
            closed.waiting.retain(|w| !Arc::ptr_eq(w, writes));
        }
        drop(state);
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
    /// inside.
    ///
    /// # Errors
    /// A part of the range has this lock, or the locks are closed: the entry is told when it may try again.
    pub(super) fn lock(&self, range: Range<u64>, entry: &Arc<Writes<L, W>>) -> Result<LockId, LockId> {
        let mut state = self.state.lock();
        if let Some(other) = state.wait(&range, entry) {
            return Err(other);
        }
        if let Some(closed) = &mut state.closed {
            add(&mut closed.waiting, entry);
            return Err(closed.id);
        }
        let id = state.new_id();
        state.held.push(Held { id, range, owner: Arc::clone(entry), waiting: Vec::new() });
        // Pairs with: BlockLocks::any_held, by the lock of each entry's writes that is_clear takes after this.
        self.held.store(state.held.len() as u32, Ordering::Release);
        Ok(id)
    }

    /// Whether no write to the range, which the caller has locked, is inside. If not, the lock's owner is told of its own lock
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

    /// Unlocks a range, and tells the entries that wait for that.
    pub(super) fn unlock(&self, id: LockId) {
        let mut state = self.state.lock();
        let at = state.held.iter().position(|h| h.id == id).expect("a lock is unlocked that is held");
        let gone = state.held.swap_remove(at);
        // Pairs with: BlockLocks::any_held
        self.held.store(state.held.len() as u32, Ordering::Release);
        drop(state);
        gone.waiting.iter().for_each(|w| w.tell(id));
    }

    /// Lets no more blocks be locked until [`BlockLocks::open`]. Those that are locked are still rewritten; other writes of parts of
    /// blocks wait.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let id = state.new_id();
        assert!(state.closed.is_none(), "locks are closed once");
        state.closed = Some(Closed { id, waiting: Vec::new() });
    }

    /// Ends [`BlockLocks::close`], and tells the entries that wait for that.
    pub fn open(&self) {
        let gone = self.state.lock().closed.take();
        if let Some(Closed { id, waiting }) = gone {
            waiting.iter().for_each(|w| w.tell(id));
        }
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
        let state = self.state.lock();
        state.held.iter().filter(|h| overlap(&h.range, range)).for_each(|h| h.owner.tell(h.id));
    }

    /// Records a bio that is about to enter and write, until [`BlockLocks::leave`].
    ///
    /// # Errors
    /// A part of its range has this lock: the entry is told when it is unlocked.
    pub(super) fn enter(&self, entry: &Arc<Writes<L, W>>, user_data: u64, range: Range<u64>) -> Result<(), LockId> {
        let mut inside = entry.inside.lock();
        if self.any_held()
            && let Some(lock) = self.state.lock().wait(&range, entry)
        {
            return Err(lock);
        }
        inside.add(user_data, range);
        Ok(())
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

    /// Whether there is no lock, and so no waiter, and no write.
    pub fn is_unused(&self) -> bool {
        let idle = self.state.lock().held.is_empty();
        let is_empty = |inside: &Inside| inside.known.is_empty() && inside.unknown == 0;
        idle && self.entries.lock().iter().all(|w| is_empty(&w.inside.lock()))
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
