// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From events to lifetimes. A bio lives from submission to completion, a request from its issue to the device to its completion.
//!
//! A completion has the extent of a request, which may cover several merged bios, or a piece of a bio that was split. A bio
//! completes when all of its bytes have completed. Guarantees: memory and time are proportional to the events, whatever
//! extents a file claims. An event that the tracer has lost changes the figures of its own I/O, not of later ones. A
//! request without a completion does not count as at the device for ever. If a sector is submitted again much later, a
//! completion belongs to the later submission.

use super::{Act, Class, Trace};
use std::collections::{BTreeMap, VecDeque};

/// A completed bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bio {
    /// The thread that submitted it.
    pub pid: u32,
    /// The operation.
    pub class: Class,
    /// The first sector.
    pub sector: u64,
    /// The length in bytes.
    pub bytes: u32,
    /// When it was submitted.
    pub queued_ns: u64,
    /// When it completed.
    pub done_ns: u64,
}

/// A request at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub class: Class,
    /// The length in bytes.
    pub bytes: u32,
    /// How long it was at the device.
    pub device_ns: u64,
    /// Requests at the device when this one was issued, itself included.
    pub depth: u32,
}

/// The bios and requests of a trace.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    /// Completed bios, in the order of submission.
    pub bios: Vec<Bio>,
    /// Completed requests, in the order of completion.
    pub requests: Vec<Request>,
    /// Submissions that were in flight at the end of the trace.
    pub unfinished: u64,
    /// Submissions whose completion was lost.
    pub lost_bios: u64,
    /// Requests whose completion was lost.
    pub lost_requests: u64,
    /// Completions of bios that were submitted before the trace began.
    pub unknown: u64,
}

/// Maximum number of bios of one class that count as in flight. No disk has more.
const OUT_MAX: usize = 1 << 18;
/// Longest time that a bio is in flight. Drivers give up on a request by then (blk_mq_init_allocated_queue: 30 s).
const AGE_MAX_NS: u64 = 30_000_000_000;
/// After this multiple of the mean time, a bio or request counts as lost if its sector is submitted again.
const AGAIN: u64 = 16;

/// A bio in flight.
struct Piece {
    bio: usize,
    since: u64,
    sectors: u64,
    /// Sectors that have not completed.
    left: u64,
}

/// Bios of one class in flight, by first sector. Among bios with the same first sector the oldest is first.
#[derive(Default)]
struct OutstandingBios {
    at: BTreeMap<u64, Vec<Piece>>,
    /// Submission time, first sector and number of each bio in the order of submission. The first one is in flight.
    order: VecDeque<(u64, u64, usize)>,
    nr: usize,
    /// The longest bio so far, in sectors. A bio that contains a sector begins at most that far before it.
    longest: u64,
    /// Total time and number of completed bios.
    done: (u64, u64),
    lost: u64,
}

impl OutstandingBios {
    fn begin(&mut self, now: u64, sector: u64, sectors: u64, bio: usize) {
        while let Some((since, at, first)) = self.order.front().copied() {
            if self.is_out(at, first) {
                if now - since <= AGE_MAX_NS && self.nr < OUT_MAX {
                    break;
                }
                self.lose(at, &mut |p| p.bio == first);
            }
            self.order.pop_front();
        }
        let limit = too_long(self.done);
        self.lose(sector, &mut |p| now - p.since > limit);
        self.nr += 1;
        self.longest = self.longest.max(sectors);
        self.at.entry(sector).or_default().push(Piece { bio, since: now, sectors, left: sectors });
        self.order.push_back((now, sector, bio));
    }

    fn is_out(&self, sector: u64, bio: usize) -> bool {
        self.at.get(&sector).is_some_and(|pieces| pieces.iter().any(|p| p.bio == bio))
    }

    /// Counts bios at a sector as lost if `is` is true for them.
    fn lose(&mut self, sector: u64, is: &mut dyn FnMut(&Piece) -> bool) {
        let Some(pieces) = self.at.get_mut(&sector) else { return };
        let before = pieces.len();
        pieces.retain(|p| !is(p));
        let gone = before - pieces.len();
        if pieces.is_empty() {
            self.at.remove(&sector);
        }
        self.nr -= gone;
        self.lost += gone as u64;
    }

    /// Completes a range. Calls `f` with each bio that is then complete. Returns whether the range belonged to a known bio.
    fn end(&mut self, now: u64, sector: u64, sectors: u64, f: &mut dyn FnMut(usize)) -> bool {
        // A bio with exactly this extent takes precedence over others that overlap it.
        if let Some(pieces) = self.at.get_mut(&sector)
            && let Some(n) = pieces.iter().position(|p| p.sectors == sectors && p.left == sectors)
        {
            let piece = pieces.remove(n);
            f(piece.bio);
            self.nr -= 1;
            add(&mut self.done, now - piece.since);
            if pieces.is_empty() {
                self.at.remove(&sector);
            }
            return true;
        }
        let end = sector + sectors.max(1);
        let mut empty = Vec::new();
        let mut any = false;
        for (start, pieces) in self.at.range_mut(sector.saturating_sub(self.longest)..end) {
            // Among bios at the same sector, the oldest takes precedence.
            let Some(piece) = pieces.first_mut() else { continue };
            let reach = end.min(*start + piece.sectors.max(1));
            if reach <= sector {
                continue;
            }
            any = true;
            // Pieces of a bio may complete in any order, so their sum counts.
            piece.left = piece.left.saturating_sub(reach - sector.max(*start));
            if piece.left == 0 {
                f(piece.bio);
                self.nr -= 1;
                add(&mut self.done, now - piece.since);
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

/// Adds a value to a sum and its count.
fn add(sum: &mut (u64, u64), ns: u64) {
    *sum = (sum.0.saturating_add(ns), sum.1 + 1);
}

/// Returns the time after which a bio or request counts as lost if its sector is submitted again. Two at one sector at once
/// are not rare, but it is rare that the first takes many times as long as others.
fn too_long((ns, n): (u64, u64)) -> u64 {
    ns.checked_div(n).map_or(AGE_MAX_NS, |usual| usual.max(1).saturating_mul(AGAIN).min(AGE_MAX_NS))
}

/// Requests at the device, by operation and first sector.
///
/// The depth at each issue is computed at the end, because only then is it known which requests completed.
#[derive(Default)]
struct Issued {
    at: BTreeMap<(Class, u64), VecDeque<(u64, usize)>>,
    /// For each issue and each departure: the event, whether it is an issue, and the number of the request if it completed.
    steps: Vec<(usize, bool, Option<usize>)>,
    /// The longest time that a request was at the device.
    longest_ns: u64,
    /// Total time and number of requests that left the device.
    done: (u64, u64),
    lost: u64,
}

impl Issued {
    fn issue(&mut self, key: (Class, u64), now: u64, event: usize) {
        let all = self.at.entry(key).or_default();
        let limit = too_long(self.done);
        while all.front().is_some_and(|(since, _)| now - since > limit) {
            all.pop_front();
            self.lost += 1;
        }
        all.push_back((now, event));
    }

    /// A request has left the device; `ended` is its number if it completed. Returns how long it was there. Returns `None`
    /// if that is too long, because the event then belongs to another request.
    fn leave(&mut self, key: (Class, u64), now: u64, event: usize, ended: Option<usize>) -> Option<u64> {
        let all = self.at.get_mut(&key)?;
        let (since, came) = all.pop_front()?;
        if all.is_empty() {
            self.at.remove(&key);
        }
        if now - since > AGE_MAX_NS {
            self.lost += 1;
            return None;
        }
        self.steps.extend([(came, true, ended), (event, false, None)]);
        self.longest_ns = self.longest_ns.max(now - since);
        add(&mut self.done, now - since);
        Some(now - since)
    }

    /// Fills in the depths; `last` is the end of the trace. Returns how many requests were lost.
    fn depths(mut self, requests: &mut [Request], last: u64) -> u64 {
        for (since, came) in self.at.into_values().flatten() {
            // It may still be at the device if it is no older than other requests became.
            if last - since <= self.longest_ns {
                self.steps.push((came, true, None));
            } else {
                self.lost += 1;
            }
        }
        self.steps.sort_unstable();
        let mut depth = 0;
        for (_, came, ended) in self.steps {
            depth = if came { depth + 1 } else { depth - 1 };
            if let Some(n) = ended {
                requests[n].depth = depth;
            }
        }
        self.lost
    }
}

/// Computes the lives on one device; the trace has to be sorted.
pub fn of(trace: &Trace, device: u32) -> Lives {
    let mut lives = Lives::default();
    let mut out: BTreeMap<Class, OutstandingBios> = BTreeMap::new();
    let mut issued = Issued::default();
    let mut last = 0;
    let mut bios: Vec<(Bio, bool)> = Vec::new();
    for (event, e) in trace.events.iter().enumerate().filter(|(_, e)| e.device == device) {
        last = e.time_ns;
        let key = (e.class, e.sector);
        let sectors = u64::from(e.bytes >> 9);
        match e.act {
            Act::Queue => {
                out.entry(e.class).or_default().begin(e.time_ns, e.sector, sectors, bios.len());
                let (class, sector) = (e.class, e.sector);
                let bio = Bio { pid: e.pid, class, sector, bytes: e.bytes, queued_ns: e.time_ns, done_ns: u64::MAX };
                bios.push((bio, false));
            }
            Act::Issue => {
                // Flushes come from the block layer itself, and take as long as the cache needs.
                if e.class != Class::Flush {
                    issued.issue(key, e.time_ns, event);
                }
            }
            Act::Requeue => {
                issued.leave(key, e.time_ns, event, None);
            }
            // The end of a flush for its submitter: a write without data, after the end of the FLUSH itself.
            Act::Complete if e.class == Class::Write && e.bytes == 0 => {}
            Act::Complete => {
                let ended = Some(lives.requests.len());
                if let Some(device_ns) = issued.leave(key, e.time_ns, event, ended) {
                    lives.requests.push(Request { class: e.class, bytes: e.bytes, device_ns, depth: 0 });
                }
                let known = out.entry(e.class).or_default().end(e.time_ns, e.sector, sectors, &mut |bio| {
                    // No I/O takes zero time, even if the tracer's clock shows that. So completion is later than submission.
                    let queued_ns = bios[bio].0.queued_ns;
                    bios[bio].0.done_ns = e.time_ns.max(queued_ns.saturating_add(1));
                    bios[bio].1 = true;
                });
                lives.unknown += u64::from(!known);
            }
        }
    }
    lives.lost_requests = issued.depths(&mut lives.requests, last);
    lives.lost_bios = out.values().map(|o| o.lost).sum();
    lives.unfinished = bios.iter().filter(|(_, done)| !done).count() as u64 - lives.lost_bios;
    lives.bios = bios.into_iter().filter(|(_, done)| *done).map(|(bio, _)| bio).collect();
    lives
}

impl Lives {
    /// The first submission and the last completion.
    pub fn span(&self) -> (u64, u64) {
        let first = self.bios.iter().map(|b| b.queued_ns).min().unwrap_or(0);
        let last = self.bios.iter().map(|b| b.done_ns).max().unwrap_or(0);
        (first, last)
    }

    /// Describes what was left out.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.unfinished > 0 {
            notes.push(format!("left out: {} I/Os that were in flight at the end of the trace", self.unfinished));
        }
        if self.lost_bios + self.lost_requests > 0 {
            notes.push(format!(
                "left out: {} I/Os and {} requests at the device without a completion in the trace (lost by the tracer, or unusually slow); \
                 trace with more buffers (blktrace -n)",
                self.lost_bios, self.lost_requests
            ));
        }
        if self.unknown > 0 {
            notes.push(format!(
                "{} completions are left out: their I/Os were issued before the trace began, or the tracer lost the issue events",
                self.unknown
            ));
        }
        if self.requests.is_empty() {
            notes.push("no request is both issued (D) and completed (C): the device's service time is unknown".into());
        }
        notes
    }
}
