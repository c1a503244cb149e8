// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbered entries that threads look up without a lock.
//!
//! Guarantees: a number means the same entry from [`Table::add`] to [`Table::remove`]. [`Table::each`] shows only entries that stay for the
//! time of the call. Needs from callers: [`Table::get`] is for entries in use, which no thread removes.

use crate::sync::{AtomicPtr, Mutex, Ordering};
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// Each entry owns one reference.
    entries: Box<[AtomicPtr<T>]>,
    /// Held while an entry is added or removed, and while all are shown.
    change: Mutex<()>,
}

impl<T> Table<T> {
    /// Makes an empty table with room for `size` entries.
    pub(super) fn new(size: usize) -> Table<T> {
        let entry = |_| AtomicPtr::new(std::ptr::null_mut());
        Table { entries: (0..size).map(entry).collect(), change: Mutex::new(()) }
    }

    /// Adds an entry. Returns its number; `None` if the table is full.
    pub(super) fn add(&self, entry: Arc<T>) -> Option<u16> {
        let _change = self.change.lock();
        let number = self.entries.iter().position(|e| e.load(Ordering::Relaxed).is_null())?;
        // Pairs with: Table::get
        self.entries[number].store(Arc::into_raw(entry).cast_mut(), Ordering::Release);
        Some(number as u16)
    }

    /// Removes an entry; its number may mean another one from now on.
    ///
    /// # Panics
    /// There is no such entry.
    ///
    /// # Safety
    /// No thread uses what [`Table::get`] gave for this number, and none calls `get` with it until it means another entry.
    pub(super) unsafe fn remove(&self, number: u16) -> Arc<T> {
        let _change = self.change.lock();
        // Pairs with: Table::add
        let entry = self.entries[usize::from(number)].swap(std::ptr::null_mut(), Ordering::AcqRel);
        assert!(!entry.is_null(), "memory region {number} taken out twice");
        // SAFETY: it came from `Arc::into_raw` in `add`, and the entry that owned it is gone. By the caller's promise no thread uses it
        // through `get`, and `each` holds the lock.
        unsafe { Arc::from_raw(entry) }
    }

    /// Calls `f` for each entry. Entries are neither added nor removed meanwhile, so `f` must do neither.
    pub(super) fn each(&self, mut f: impl FnMut(u16, &T)) {
        let _change = self.change.lock();
        for (number, entry) in self.entries.iter().enumerate() {
            // Pairs with: Table::add
            let entry = entry.load(Ordering::Acquire);
            // SAFETY: the entry owns a reference, and it cannot be removed while the lock is held.
            if let Some(entry) = unsafe { entry.as_ref() } {
                f(number as u16, entry);
            }
        }
    }

    /// Returns the entry with this number. It must stay until the last use of the reference (see [`Table::remove`]).
    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&T> {
        // Pairs with: Table::add
        let entry = self.entries.get(usize::from(number))?.load(Ordering::Acquire);
        // SAFETY: the entry owns a reference, and the thread that removes it has promised that this one is not in use.
        unsafe { entry.as_ref() }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for entry in &self.entries {
            let entry = entry.load(Ordering::Relaxed);
            if !entry.is_null() {
                // SAFETY: it came from `Arc::into_raw` in `add`, and no other thread has the table any more.
                drop(unsafe { Arc::from_raw(entry) });
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models;
