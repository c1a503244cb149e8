// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From events to lives: a bio from its submission to its completion, a request from the device's getting it to its end.
//!
//! A completion has the extent of a request, which may be several bios that were merged, or a piece of one that was split: a bio is done when
//! all of its bytes are. Guarantees: memory and time are those of what is in flight, whatever extents a file claims.

use super::{Act, Class, Trace};
use std::collections::BTreeMap;

/// A bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bio {
    /// Who submitted it.
    pub pid: u32,
    /// What it does.
    pub class: Class,
    /// Where.
    pub sector: u64,
    /// How much.
    pub bytes: u32,
    /// When it was submitted.
    pub queued_ns: u64,
    /// When it was done.
    pub done_ns: u64,
}

/// A request at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub class: Class,
    /// How much.
    pub bytes: u32,
    /// How long the device had it.
    pub device_ns: u64,
    /// Requests at the device when it came, itself among them.
    pub depth: u32,
}

/// What became of a trace's events.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    /// In the order of their submission.
    pub bios: Vec<Bio>,
    /// In the order of their ends.
    pub requests: Vec<Request>,
    /// Submissions without an end in the trace.
    pub unfinished: u64,
    /// Completions of what was submitted before it.
    pub unknown: u64,
}

/// Most bios of one class that are taken for in flight: what a file has beyond, no disk has.
const OUT_MAX: usize = 1 << 18;

/// A bio that is out.
struct Piece {
    bio: usize,
    sectors: u64,
    /// Sectors that have not ended.
    left: u64,
}

/// Bios of one class that are out, by their first sector; of those that begin at the same, the oldest first.
#[derive(Default)]
struct Out {
    at: BTreeMap<u64, Vec<Piece>>,
    nr: usize,
    /// The longest one so far, sectors: how far back one may begin that reaches a sector.
    longest: u64,
}

impl Out {
    fn begin(&mut self, sector: u64, sectors: u64, bio: usize) {
        if self.nr < OUT_MAX {
            self.nr += 1;
            self.longest = self.longest.max(sectors);
            self.at.entry(sector).or_default().push(Piece { bio, sectors, left: sectors });
        }
    }

    /// What is there is done; calls `f` with the bios that are so altogether. Says whether there was one.
    fn end(&mut self, sector: u64, sectors: u64, f: &mut dyn FnMut(usize)) -> bool {
        // One that is exactly this is meant before others that overlap it.
        if let Some(pieces) = self.at.get_mut(&sector)
            && let Some(n) = pieces.iter().position(|p| p.sectors == sectors && p.left == sectors)
        {
            f(pieces.remove(n).bio);
            self.nr -= 1;
            if pieces.is_empty() {
                self.at.remove(&sector);
            }
            return true;
        }
        let end = sector + sectors.max(1);
        let mut empty = Vec::new();
        let mut any = false;
        for (start, pieces) in self.at.range_mut(sector.saturating_sub(self.longest)..end) {
            // Of bios of the same place the first one is meant.
            let Some(piece) = pieces.first_mut() else { continue };
            let reach = end.min(*start + piece.sectors.max(1));
            if reach <= sector {
                continue;
            }
            any = true;
            // Pieces of a bio may end in any order: their sum counts.
            piece.left = piece.left.saturating_sub(reach - sector.max(*start));
            if piece.left == 0 {
                f(piece.bio);
                self.nr -= 1;
                pieces.remove(0);
                if pieces.is_empty() {
                    empty.push(*start);
                }
            }
        }
        empty.iter().for_each(|start| {
            self.at.remove(start);
        });
        any
    }
}

/// The lives on one device; the trace is sorted.
pub fn of(trace: &Trace, device: u32) -> Lives {
    let mut lives = Lives::default();
    let mut out: BTreeMap<Class, Out> = BTreeMap::new();
    let mut issued: BTreeMap<(Class, u64), (u64, u32)> = BTreeMap::new();
    let mut bios: Vec<(Bio, bool)> = Vec::new();
    for e in trace.events.iter().filter(|e| e.device == device) {
        let sectors = u64::from(e.bytes >> 9);
        match e.act {
            Act::Queue => {
                out.entry(e.class).or_default().begin(e.sector, sectors, bios.len());
                let (class, sector) = (e.class, e.sector);
                let bio = Bio { pid: e.pid, class, sector, bytes: e.bytes, queued_ns: e.time_ns, done_ns: u64::MAX };
                bios.push((bio, false));
            }
            Act::Issue => {
                // Flushes are the core's, and take what the cache takes.
                if e.class != Class::Flush {
                    let depth = issued.len() as u32 + 1;
                    issued.insert((e.class, e.sector), (e.time_ns, depth));
                }
            }
            Act::Requeue => {
                issued.remove(&(e.class, e.sector));
            }
            Act::Complete => {
                if let Some((at, depth)) = issued.remove(&(e.class, e.sector)) {
                    let device_ns = e.time_ns - at;
                    lives.requests.push(Request { class: e.class, bytes: e.bytes, device_ns, depth });
                }
                let known = out.entry(e.class).or_default().end(e.sector, sectors, &mut |bio| {
                    bios[bio].0.done_ns = e.time_ns;
                    bios[bio].1 = true;
                });
                lives.unknown += u64::from(!known);
            }
        }
    }
    lives.unfinished = bios.iter().filter(|(_, done)| !done).count() as u64;
    lives.bios = bios.into_iter().filter(|(_, done)| *done).map(|(bio, _)| bio).collect();
    lives
}

impl Lives {
    /// The first submission and the last end.
    pub fn span(&self) -> (u64, u64) {
        let first = self.bios.iter().map(|b| b.queued_ns).min().unwrap_or(0);
        let last = self.bios.iter().map(|b| b.done_ns).max().unwrap_or(0);
        (first, last)
    }

    /// What was left out.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.unfinished > 0 {
            notes.push(format!("{} I/Os had not ended when the trace did, and are left out", self.unfinished));
        }
        if self.unknown > 0 {
            notes.push(format!("{} completions are of I/Os from before the trace, and are left out", self.unknown));
        }
        if self.requests.is_empty() {
            notes.push("no request is both issued (D) and completed (C): the device's times are not known".into());
        }
        notes
    }
}
