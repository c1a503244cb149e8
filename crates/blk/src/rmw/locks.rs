// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks of blocks that are rewritten (read, changed in part, written back), for all threads of a disk.
//!
//! Guarantees: a locked range ([`BlockLocks::lock`]) is clear once [`BlockLocks::is_clear`] returns true. From then until the lock
//! is released, no other write, discard or write of zeroes to it is inside the disk, and no other lock overlaps it. Such I/O
//! waits at its entry.
//!
//! Each lock has a ticket, from the first attempt to lock the range until the release. A write that has to wait takes one too. A
//! range is not locked while an older ticket overlaps it. So an I/O waits at most once for each ticket that is older than its
//! own, and for no younger one. Tickets wait only for older ones, so they never wait for each other in a circle. An I/O waits
//! for one ticket at a time: the release of that ticket wakes the thread of the I/O's entry, and no other release does.
//!
//! Without locks all this costs one load per round. With the first lock, each entry counts its writes inside, and records later
//! ones. Only the number of the former is known, so nothing is clear before they have completed.
//!
//! Needs from callers: the owner of a lock waits for no other ticket. A ticket is released when its write has entered, or when
//! its I/O gives up. Reads are not held back: one that overlaps a write may see old or new data, as on any disk.

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
    /// Number of tickets; changed under the lock of `state`.
    tickets: AtomicU32,
    state: Mutex<L, LockState<L, W>>,
    entries: Mutex<L, Vec<Arc<Writes<L, W>>>>,
}

/// Names a ticket, and its lock. Numbers rise; each is used once.
pub(super) type TicketId = u64;

/// An I/O has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// Its ticket, for the next attempt.
    pub(super) ticket: TicketId,
    /// What it waits for: its entry is told when this is released.
    pub(super) until: TicketId,
}

struct LockState<L: Lock, W> {
    /// Oldest first.
    tickets: Vec<Ticket<L, W>>,
    next: TicketId,
    /// No range can be locked.
    closed: Option<Closed<L, W>>,
}

struct Closed<L: Lock, W> {
    /// What waits for the locks to open waits for this number.
    id: TicketId,
    waiting: Vec<Arc<Writes<L, W>>>,
}

/// What a ticket is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A lock that waits for older tickets.
    Wanted,
    /// A lock that its owner has.
    Held,
    /// A write that waits until no lock of its range is held.
    Write,
}

struct Ticket<L: Lock, W> {
    id: TicketId,
    range: Range<u64>,
    purpose: Purpose,
    owner: Arc<Writes<L, W>>,
    /// Entries with I/O that waits for its release.
    waiting: Vec<Arc<Writes<L, W>>>,
}

impl<L: Lock, W: Wake> Ticket<L, W> {
    /// Tells the entries that wait for its release.
    fn tell(&self) {
        self.waiting.iter().for_each(|w| w.tell(self.id));
    }
}

/// The writes of an entry that are inside the disk, and what its thread is told.
pub(super) struct Writes<L: Lock, W> {
    waker: W,
    /// Locked before [`BlockLocks::state`].
    inside: Mutex<L, Inside>,
    /// Tickets that were released, and own locks that may be clear. Locked after all other locks.
    changed: Mutex<L, Vec<TicketId>>,
}

impl<L: Lock, W: Wake> Writes<L, W> {
    /// Takes what the entry was told since the last call: tickets whose release it waited for, and own locks that may be clear
    /// now. Each is worth a retry of what waits for it. The entry's thread was woken.
    pub(super) fn take_changed(&self, into: &mut Vec<TicketId>) {
        into.append(&mut self.changed.lock());
    }

    fn tell(&self, ticket: TicketId) {
        let mut changed = self.changed.lock();
        if changed.last() != Some(&ticket) {
            changed.push(ticket);
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
    /// Returns what a lock of the range waits for, whose ticket is `own`: an older ticket, or the end of [`Closed`]. The entry is
    /// told when that is released. It is the youngest of the older tickets, so that a release wakes few waiters.
    fn delays_lock(&mut self, range: &Range<u64>, own: TicketId, entry: &Arc<Writes<L, W>>) -> Option<TicketId> {
        let mut older = self.tickets.iter_mut().rev().skip_while(|t| t.id >= own);
        let (id, waiting) = match older.find(|t| overlap(&t.range, range)) {
            Some(ticket) => (ticket.id, &mut ticket.waiting),
            None => self.closed.as_mut().map(|c| (c.id, &mut c.waiting))?,
        };
        add(waiting, entry);
        Some(id)
    }

    /// Returns a held lock that a write to the range waits for. The entry is told when it is released. A lock that is only wanted
    /// delays no write, so that writes go on while the locks are closed.
    fn delays_write(&mut self, range: &Range<u64>, entry: &Arc<Writes<L, W>>) -> Option<TicketId> {
        let is_held = |t: &&mut Ticket<L, W>| t.purpose == Purpose::Held && overlap(&t.range, range);
        let held = self.tickets.iter_mut().rev().find(is_held)?;
        add(&mut held.waiting, entry);
        Some(held.id)
    }

    fn new_ticket(&mut self, range: Range<u64>, purpose: Purpose, owner: &Arc<Writes<L, W>>) -> TicketId {
        let id = self.new_id();
        self.tickets.push(Ticket { id, range, purpose, owner: Arc::clone(owner), waiting: Vec::new() });
        id
    }

    /// Returns the place of a ticket.
    fn place(&self, id: TicketId) -> usize {
        self.tickets.binary_search_by_key(&id, |t| t.id).expect("a ticket is used that is not released")
    }

    fn held(&self) -> impl Iterator<Item = &Ticket<L, W>> {
        self.tickets.iter().filter(|t| t.purpose == Purpose::Held)
    }

    fn new_id(&mut self) -> TicketId {
        self.next += 1;
        self.next - 1
    }
}

impl<L: Lock, W: Wake> Default for BlockLocks<L, W> {
    fn default() -> Self {
        BlockLocks {
            used: AtomicBool::new(false),
            tickets: AtomicU32::new(0),
            state: Mutex::new(LockState { tickets: Vec::new(), next: 0, closed: None }),
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
        state.tickets.iter_mut().for_each(|t| t.waiting.retain(|w| !Arc::ptr_eq(w, writes)));
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
    /// inside. `own` is the ticket of an earlier attempt. [`BlockLocks::release`] is called for the lock.
    ///
    /// # Errors
    /// An older ticket overlaps the range, or the locks are closed: the entry is told when it may try again.
    pub(super) fn lock(
        &self,
        range: Range<u64>,
        entry: &Arc<Writes<L, W>>,
        own: Option<TicketId>,
    ) -> Result<TicketId, Wait> {
        let mut state = self.state.lock();
        let ticket = own.unwrap_or_else(|| state.new_ticket(range.clone(), Purpose::Wanted, entry));
        self.count(&state);
        if let Some(until) = state.delays_lock(&range, ticket, entry) {
            return Err(Wait { ticket, until });
        }
        let at = state.place(ticket);
        state.tickets[at].purpose = Purpose::Held;
        Ok(ticket)
    }

    /// Publishes the number of tickets.
    fn count(&self, state: &LockState<L, W>) {
        // Pairs with: BlockLocks::has_tickets, by the lock of each entry's writes that is_clear takes after this.
        self.tickets.store(state.tickets.len() as u32, Ordering::Release);
    }

    /// Whether no write to the range, which the caller has locked, is inside. If one is, the owner is told the number of its own
    /// lock when the range may be clear, and asks again.
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

    /// Ends a ticket, and its lock if that is held. Tells the entries that wait for it.
    pub(super) fn release(&self, id: TicketId) {
        let mut state = self.state.lock();
        let at = state.place(id);
        let gone = state.tickets.remove(at);
        self.count(&state);
        drop(state);
        gone.tell();
    }

    /// Releases all tickets of an entry but its locks: its I/O that waits gives up.
    pub(super) fn give_up(&self, entry: &Arc<Writes<L, W>>) {
        let mut state = self.state.lock();
        let waits = |t: &mut Ticket<L, W>| t.purpose != Purpose::Held && Arc::ptr_eq(&t.owner, entry);
        let gone: Vec<_> = state.tickets.extract_if(.., waits).collect();
        self.count(&state);
        drop(state);
        gone.iter().for_each(Ticket::tell);
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
        self.state.lock().held().next().is_none()
    }

    /// Called with the lock of an entry's writes held. If a lock's owner has already checked these writes, its ticket is seen
    /// here; otherwise the owner will check them.
    fn has_tickets(&self) -> bool {
        // Pairs with: BlockLocks::count
        self.tickets.load(Ordering::Acquire) > 0
    }

    fn wake_owners(&self, range: &Range<u64>) {
        let state = self.state.lock();
        state.held().filter(|t| overlap(&t.range, range)).for_each(|t| t.owner.tell(t.id));
    }

    /// Records a bio that is about to enter and write, until [`BlockLocks::leave`]. `own` is the ticket of an earlier attempt. It
    /// stays until [`BlockLocks::release`], so that a bio that finds no slot keeps its turn.
    ///
    /// # Errors
    /// A part of its range is locked: the entry is told when it may try again.
    pub(super) fn enter(
        &self,
        entry: &Arc<Writes<L, W>>,
        user_data: u64,
        range: Range<u64>,
        own: Option<TicketId>,
    ) -> Result<(), Wait> {
        let mut inside = entry.inside.lock();
        if self.has_tickets() {
            let mut state = self.state.lock();
            if let Some(until) = state.delays_write(&range, entry) {
                let ticket = own.unwrap_or_else(|| state.new_ticket(range, Purpose::Write, entry));
                self.count(&state);
                return Err(Wait { ticket, until });
            }
        }
        inside.add(user_data, range);
        Ok(())
    }

    /// Removes a bio that writes, when it has completed or could not enter after all. Returns whether it was recorded by
    /// [`BlockLocks::enter`] or counted by [`BlockLocks::follow`].
    pub(super) fn leave(&self, entry: &Writes<L, W>, user_data: u64) -> bool {
        let mut inside = entry.inside.lock();
        let Ok(gone) = inside.remove(user_data) else { return false };
        let wakes = gone.filter(|_| self.has_tickets());
        drop(inside);
        if let Some(range) = wakes {
            self.wake_owners(&range);
        }
        true
    }

    /// Whether there is no lock, no waiter and no write.
    pub fn is_unused(&self) -> bool {
        let idle = self.state.lock().tickets.is_empty();
        let is_empty = |inside: &Inside| inside.known.is_empty() && inside.unknown == 0;
        idle && self.entries.lock().iter().all(|w| is_empty(&w.inside.lock()))
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
