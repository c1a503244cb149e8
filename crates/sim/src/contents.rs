// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a disk may contain, derived only from what was submitted and how it completed.
//!
//! Needs: no two bios in flight overlap unless both read ([`Contents::lock`]). A failed write may or may not have happened,
//! but does not happen later: once a read has seen old or new content, that content stays. A crash must keep everything that
//! was acknowledged before the submission of a flush that succeeded, and every FUA write that succeeded. Later writes may
//! survive or not.

use blk::bio::Op;

/// Sequence number of contents that were never acknowledged.
const UNACKED: u64 = u64::MAX;

#[derive(Clone, Default)]
struct Cell {
    /// Contents a read may return.
    possible: Vec<u64>,
    /// Contents since the last one known to be durable, each with the number of its acknowledgement, oldest first.
    history: Vec<(u64, u64)>,
    readers: u16,
    writer: bool,
}

/// The data checker.
pub struct Contents {
    cells: Vec<Cell>,
    acks: u64,
    volatile: bool,
}

/// A range that is reserved while a bio on it is in flight.
#[derive(Debug)]
#[must_use]
pub struct Held {
    sector: u64,
    nr: u32,
    write: bool,
}

impl Contents {
    /// A zeroed disk; `volatile`: it has a write cache.
    pub fn new(capacity: u64, volatile: bool) -> Contents {
        let cell = Cell { possible: vec![0], history: vec![(0, 0)], ..Cell::default() };
        Contents { cells: vec![cell; capacity as usize], acks: 0, volatile }
    }

    fn range(&mut self, sector: u64, nr: u32) -> &mut [Cell] {
        &mut self.cells[sector as usize..sector as usize + nr as usize]
    }

    /// Reserves a range for a bio; `None` when it conflicts with one in flight.
    pub fn lock(&mut self, op: Op, sector: u64, nr: u32) -> Option<Held> {
        let write = op.is_write();
        let cells = self.range(sector, nr);
        if cells.iter().any(|c| c.writer || write && c.readers > 0) {
            return None;
        }
        for c in cells {
            if write { c.writer = true } else { c.readers += 1 }
        }
        Some(Held { sector, nr, write })
    }

    fn unlock(&mut self, held: &Held) {
        for c in self.range(held.sector, held.nr) {
            if held.write { c.writer = false } else { c.readers -= 1 }
        }
    }

    /// Releases the range of a bio that was refused and changed nothing.
    pub fn nothing_happened(&mut self, held: Held) {
        self.unlock(&held);
    }

    /// Checks what a successful read returned. The sector keeps that content from now on.
    pub fn was_read(&mut self, held: Held, content: impl Fn(u64) -> u64) {
        self.unlock(&held);
        let sector = held.sector;
        for (i, c) in self.range(sector, held.nr).iter_mut().enumerate() {
            let got = content(i as u64);
            assert!(
                c.possible.contains(&got),
                "sector {}: read {got:#x}, not one of {:x?}",
                sector + i as u64,
                c.possible
            );
            c.possible.clear();
            c.possible.push(got);
        }
    }

    /// Records a successful write.
    pub fn was_written(&mut self, held: Held, durable: bool, content: impl Fn(u64) -> u64) {
        self.unlock(&held);
        self.acks += 1;
        let (ack, durable) = (self.acks, durable || !self.volatile);
        for (i, c) in self.range(held.sector, held.nr).iter_mut().enumerate() {
            let v = content(i as u64);
            c.possible = vec![v];
            if durable {
                c.history.clear();
            }
            c.history.push((v, ack));
        }
    }

    /// Records a failed write: each of its sectors may be old or new.
    pub fn write_failed(&mut self, held: Held, content: impl Fn(u64) -> u64) {
        self.unlock(&held);
        for (i, c) in self.range(held.sector, held.nr).iter_mut().enumerate() {
            let v = content(i as u64);
            c.possible.push(v);
            c.history.push((v, UNACKED));
        }
    }

    /// Records a successful flush; `since` is the [`Contents::flush_point`] at its submission.
    pub fn was_flushed(&mut self, since: u64) {
        for c in &mut self.cells {
            if let Some(floor) = c.history.iter().rposition(|(_, ack)| *ack <= since) {
                c.history.drain(..floor);
            }
        }
    }

    /// Returns the point that a flush covers. To be called when the flush is submitted.
    pub fn flush_point(&self) -> u64 {
        self.acks
    }

    /// Whether no range is reserved.
    pub fn is_idle(&self) -> bool {
        self.cells.iter().all(|c| !c.writer && c.readers == 0)
    }

    /// Checks the present contents of all sectors.
    pub fn check_contents(&self, content: impl Fn(u64) -> u64) {
        for (s, c) in self.cells.iter().enumerate() {
            let got = content(s as u64);
            assert!(c.possible.contains(&got), "sector {s} holds {got:#x}, not one of {:x?}", c.possible);
        }
    }

    /// Checks contents after a crash. `in_flight` is what an unfinished write would have put into a sector. Each sector may
    /// have either.
    pub fn check_survivors(&self, content: impl Fn(u64) -> u64, in_flight: impl Fn(u64) -> Option<u64>) {
        for (s, c) in self.cells.iter().enumerate() {
            let got = content(s as u64);
            let ok = c.history.iter().any(|(v, _)| *v == got) || in_flight(s as u64) == Some(got);
            assert!(ok, "sector {s} holds {got:#x} after the crash; durable and later were {:x?}", c.history);
        }
    }
}
