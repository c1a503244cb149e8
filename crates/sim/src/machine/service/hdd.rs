// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hard disk: one arm over rotating platters, a queue of commands that the drive reorders, and a buffer.
//!
//! The time of a command follows from the place of its sectors: seek, rotation until the first sector is under the head,
//! transfer at the rate of the zone. The drive chooses the next command when the arm becomes free.
//!
//! - **Command queue** (NCQ, TCQ): the drive chooses among the oldest [`HddSpec::ncq`] commands the one with the shortest
//!   positioning time. A command's wait counts as an advantage of 1/`AGEING` of it, so no command starves (D. M.
//!   Jacobson and J. Wilkes, "Disk scheduling algorithms based on rotational position", HPL-CSP-91-7, 1991: aged
//!   shortest access time first).
//! - **Read-ahead**: after a read, the head reads on into a segment of the buffer until another command needs the arm.
//! - **Write cache**: a write completes once it is in the buffer. The drive writes cached blocks while no other command
//!   waits, and before other commands if the buffer is full or a flush waits.
//!
//! Does not do: shingled recording (SMR), whose rewriting of zones no data sheet describes; reads of cached writes from the
//! buffer; defects, thermal recalibration, power states.

mod geometry;

use super::{Job, Service};
use blk::bio::Op;
use blk::time::Instant;
use geometry::Geometry;
use serde::Deserialize;
use std::collections::VecDeque;

/// Positioning time that a command must save to go before one that has waited this many times longer.
const AGEING: u64 = 64;
/// Parts of the buffer that hold read-ahead, one for each sequential stream.
const SEGMENTS: u64 = 16;
/// Most cached writes that do not continue each other; half of the buffer is for them. Data sheets do not say how many a
/// drive sorts.
const CACHED_WRITES: usize = 64;
/// Bytes per second between drive and host: SATA and SAS at 6 Gbit/s.
const BUS_BYTES_PER_SEC: u64 = 600_000_000;

/// A hard disk as its data sheet describes it. The defaults are those of a nearline drive with 4 TB.
///
/// Sources of the defaults: HGST Ultrastar 7K4000 specification, version 1.8, table 6 (average seek 8.2 ms, typical);
/// Seagate Constellation ES.3 SAS product manual, rev. C, section 4.1 (7200 rpm, 83 to 175 MB/s, 10 heads). Neither lists
/// the other two seek times; they have the ratio to the average that the Hitachi 5K320 specification lists (1.0, 12 and
/// 20 ms). The time of a command follows from 100 MB/s in blocks of 4 KiB (X-bit labs, round-up of 1 TB drives).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HddSpec {
    /// Revolutions per minute.
    pub rpm: u32,
    /// Seek to the next track, microseconds.
    pub seek_track_us: f64,
    /// Average of random seeks, microseconds.
    pub seek_avg_us: f64,
    /// Seek over all tracks, microseconds.
    pub seek_full_us: f64,
    /// Time by which a seek before a write is longer, microseconds.
    pub write_settle_us: f64,
    /// Sustained transfer rate of the outermost zone (the first sectors), millions of bytes per second.
    pub outer_mb: f64,
    /// Sustained transfer rate of the innermost zone, millions of bytes per second.
    pub inner_mb: f64,
    /// Heads.
    pub heads: u32,
    /// Buffer, millions of bytes.
    pub cache_mb: u64,
    /// Writes complete in the buffer.
    pub write_cache: bool,
    /// Commands that the drive chooses among.
    pub ncq: u32,
    /// The controller's time for a command, microseconds.
    pub overhead_us: f64,
}

impl Default for HddSpec {
    fn default() -> HddSpec {
        HddSpec {
            rpm: 7200,
            seek_track_us: 700.0,
            seek_avg_us: 8200.0,
            seek_full_us: 13_700.0,
            write_settle_us: 0.0,
            outer_mb: 175.0,
            inner_mb: 83.0,
            heads: 10,
            cache_mb: 64,
            write_cache: true,
            ncq: 32,
            overhead_us: 40.0,
        }
    }
}

impl HddSpec {
    /// Checks the figures. The error is the name of the field that breaks a rule, and the rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let whole = [
            ("rpm", u64::from(self.rpm), 1000..=30_000),
            ("heads", u64::from(self.heads), 1..=64),
            ("cache_mb", self.cache_mb, 1..=65_536),
            ("ncq", u64::from(self.ncq), 1..=4096),
        ];
        for (name, value, range) in whole {
            if !range.contains(&value) {
                return Err((name, format!("{name} = {value}: must be {}..={}", range.start(), range.end())));
            }
        }
        let fractions = [
            ("seek_track_us", self.seek_track_us, 0.0, 1e6),
            ("seek_avg_us", self.seek_avg_us, 0.0, 1e6),
            ("seek_full_us", self.seek_full_us, 0.0, 1e6),
            ("write_settle_us", self.write_settle_us, 0.0, 1e6),
            ("outer_mb", self.outer_mb, 1.0, 1e4),
            ("inner_mb", self.inner_mb, 1.0, self.outer_mb),
            ("overhead_us", self.overhead_us, 0.0, 1e6),
        ];
        for (name, value, low, high) in fractions {
            if !(low..=high).contains(&value) {
                return Err((name, format!("{name} = {value}: must be {low}..={high}")));
            }
        }
        let HddSpec { seek_track_us: track, seek_avg_us: avg, seek_full_us: full, .. } = *self;
        let (low, high) = ((2.0 * track + full) / 3.0, (4.0 * track + 11.0 * full) / 15.0);
        if !(low..=high).contains(&avg) {
            let text = format!(
                "seek_avg_us = {avg}: must be {low:.0}..={high:.0} with seek_track_us = {track} and seek_full_us = {full}; \
                 take all three from one data sheet"
            );
            return Err(("seek_avg_us", text));
        }
        Ok(())
    }
}

/// A command in the drive.
#[derive(Clone, Copy, Debug)]
struct Command {
    job: Job,
    arrived_ns: u64,
    /// From when on the arm can serve it.
    ready_ns: u64,
}

/// Sectors in the buffer.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: u64,
    to: u64,
}

/// The head while it reads on after a read, into the newest segment.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// When it was at the end of the segment.
    since_ns: u64,
    /// Where it stops.
    limit: u64,
}

/// What the arm does next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// A command of the host, by its place in the queue.
    Host(usize),
    /// A cached write.
    Cached(usize),
}

/// See the module's text.
pub struct Hdd {
    spec: HddSpec,
    geometry: Geometry,
    /// Sectors that a segment keeps before the end of the last read, and as many that the head reads on.
    segment: u64,
    /// When the controller has decoded all commands so far, and sent all data from the buffer.
    controller_ns: u64,
    /// When the arm is free.
    free_ns: u64,
    /// The sector after the last one that passed under the head.
    next_sector: u64,
    ahead: Option<Ahead>,
    /// The newest one last.
    segments: VecDeque<Segment>,
    waiting: VecDeque<Command>,
    cached: VecDeque<Command>,
    /// Writes for which the buffer has no room.
    held_back: VecDeque<Command>,
    flushes: VecDeque<Command>,
    /// I/Os that were chosen, and of which the machine does not know yet.
    chosen: VecDeque<(Job, Instant)>,
    /// No I/O of the host completes when the arm becomes free.
    is_silent: bool,
    /// When the last cached write is on the medium, of those that the arm has begun.
    written_ns: u64,
}

impl Hdd {
    /// An idle disk of this many sectors. The figures have been checked.
    pub fn new(spec: &HddSpec, sectors: u64) -> Hdd {
        Hdd {
            spec: *spec,
            geometry: Geometry::new(spec, sectors),
            segment: spec.cache_mb * 1_000_000 / 512 / SEGMENTS / 2,
            controller_ns: 0,
            free_ns: 0,
            next_sector: 0,
            ahead: None,
            segments: VecDeque::new(),
            waiting: VecDeque::new(),
            cached: VecDeque::new(),
            held_back: VecDeque::new(),
            flushes: VecDeque::new(),
            chosen: VecDeque::new(),
            is_silent: false,
            written_ns: 0,
        }
    }

    /// Takes a command into the controller.
    fn command(&mut self, job: &Job, now_ns: u64) -> Command {
        self.controller_ns = self.controller_ns.max(now_ns) + (self.spec.overhead_us * 1e3) as u64;
        Command { job: *job, arrived_ns: now_ns, ready_ns: self.controller_ns }
    }

    /// Moves data between host and buffer. Returns when it is done.
    fn transfer(&mut self, sectors: u32) -> u64 {
        self.controller_ns += bus_ns(sectors);
        self.controller_ns
    }

    /// Lets the arm work until `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        while let Some((choice, start_ns)) = self.choose(now_ns) {
            match choice {
                Choice::Host(i) => {
                    let command = self.waiting.remove(i).expect("it was chosen");
                    let done_ns = self.serve(&command, start_ns);
                    self.chosen.push_back((command.job, Instant::from_ns(done_ns)));
                    self.is_silent = false;
                }
                Choice::Cached(i) => self.write_cached(i, start_ns),
            }
        }
    }

    /// Returns what the arm does when it is free, and from when on; `None` if that is after `now_ns`.
    fn choose(&self, now_ns: u64) -> Option<(Choice, u64)> {
        let host = || self.waiting.iter().take(self.spec.ncq as usize).enumerate().map(|(i, c)| (Choice::Host(i), c));
        let cached = || self.cached.iter().enumerate().map(|(i, c)| (Choice::Cached(i), c));
        let must_write = !self.held_back.is_empty() || !self.flushes.is_empty();
        let first = |all: &mut dyn Iterator<Item = u64>| all.min().map_or(u64::MAX, |at| at.max(self.free_ns));
        let host_at = first(&mut host().map(|(_, c)| c.arrived_ns));
        let cached_at = first(&mut cached().map(|(_, c)| c.arrived_ns));
        let at_ns = host_at.min(cached_at);
        if at_ns > now_ns {
            return None;
        }
        let with_host = host_at == at_ns;
        let with_cached = !with_host || must_write;
        let all = host().filter(|_| with_host).chain(cached().filter(|_| with_cached));
        let best = all.filter(|(_, c)| c.arrived_ns <= at_ns).min_by_key(|(_, c)| self.cost(c, at_ns));
        best.map(|(choice, c)| (choice, at_ns.max(c.ready_ns)))
    }

    /// Returns the time until the first sector of a command is under the head, less an advantage for its wait.
    fn cost(&self, c: &Command, at_ns: u64) -> i64 {
        let start_ns = at_ns.max(c.ready_ns);
        let position = if self.is_read_on(&c.job, start_ns) { 0 } else { self.position_ns(&c.job, start_ns) };
        (start_ns - at_ns + position) as i64 - ((at_ns - c.arrived_ns) / AGEING) as i64
    }

    /// Returns the sector that follows the last one under the head at `at_ns`.
    fn head_at(&self, at_ns: u64) -> u64 {
        let Some(ahead) = self.ahead else { return self.next_sector };
        let ns = at_ns.saturating_sub(ahead.since_ns);
        (self.next_sector + self.geometry.passed(self.next_sector, ns)).min(ahead.limit)
    }

    /// Whether the head only has to read on for a command, because the buffer has the sectors before.
    fn is_read_on(&self, job: &Job, at_ns: u64) -> bool {
        let newest = self.segments.back().filter(|_| job.op == Op::Read && self.ahead.is_some());
        newest.is_some_and(|s| (s.from..=self.head_at(at_ns)).contains(&job.sector))
    }

    /// Returns the time from `at_ns` until the first sector of `job` is under the head.
    fn position_ns(&self, job: &Job, at_ns: u64) -> u64 {
        let head = self.head_at(at_ns);
        let to = self.geometry.spot(job.sector);
        let mut seek_ns = 0;
        if head != job.sector {
            seek_ns = self.geometry.seek_ns(self.geometry.spot(head).cylinder, to.cylinder);
            seek_ns += if job.op.is_write() { (self.spec.write_settle_us * 1e3) as u64 } else { 0 };
        }
        seek_ns + self.geometry.turn_ns(at_ns + seek_ns, to.angle_ns)
    }

    /// Whether the buffer has all sectors of a read.
    fn is_buffered(&self, job: &Job, at_ns: u64) -> bool {
        let wanted = (job.sector, job.sector + u64::from(job.nr_sectors));
        let newest = self.segments.len().wrapping_sub(1);
        self.segments.iter().enumerate().any(|(i, s)| {
            // While the head reads on, it is at the end of the newest segment. Before that it fills the segment.
            let grows = i == newest && self.ahead.is_some();
            let to = if grows { self.head_at(at_ns) } else { s.to };
            (!grows || self.free_ns <= at_ns) && s.from <= wanted.0 && wanted.1 <= to
        })
    }

    /// Moves the arm for a command from `start_ns` on. Returns when the command completes.
    fn serve(&mut self, c: &Command, start_ns: u64) -> u64 {
        let job = &c.job;
        let end = job.sector + u64::from(job.nr_sectors);
        if job.op == Op::Read && self.is_buffered(job, start_ns) {
            self.read_further(job, start_ns);
            return start_ns + bus_ns(job.nr_sectors);
        }
        let (from_ns, from) = if self.is_read_on(job, start_ns) {
            self.read_further(job, start_ns);
            (self.ahead.expect("it reads on").since_ns, self.next_sector)
        } else {
            self.stop_reading(start_ns);
            (start_ns + self.position_ns(job, start_ns), job.sector)
        };
        let done_ns = start_ns.max(from_ns + self.geometry.transfer_ns(from, end - from));
        if job.op == Op::Read {
            if from == job.sector {
                self.segments.push_back(Segment { from, to: end });
                self.segments.drain(..self.segments.len().saturating_sub(SEGMENTS as usize));
            }
            let newest = self.segments.back_mut().expect("a read has one");
            newest.to = end;
            newest.from = newest.from.max(end.saturating_sub(self.segment));
            self.ahead = Some(Ahead { since_ns: done_ns, limit: end + self.segment });
        } else {
            self.segments.retain(|s| s.to <= job.sector || end <= s.from);
        }
        (self.free_ns, self.next_sector) = (done_ns, end);
        done_ns
    }

    /// Lets the head read on beyond `job`, if it is in the newest segment. A head that had stopped waits for its sector.
    fn read_further(&mut self, job: &Job, at_ns: u64) {
        let limit = job.sector + u64::from(job.nr_sectors) + self.segment;
        let (head, is_in_newest) = (self.head_at(at_ns), self.is_read_on(job, at_ns));
        let Some(ahead) = self.ahead.as_mut().filter(|a| is_in_newest && a.limit < limit) else { return };
        if head == ahead.limit {
            ahead.since_ns = at_ns + self.geometry.turn_ns(at_ns, self.geometry.spot(head).angle_ns);
            self.next_sector = head;
        }
        ahead.limit = limit;
    }

    /// Ends the read-ahead, because another command needs the arm.
    fn stop_reading(&mut self, at_ns: u64) {
        self.next_sector = self.head_at(at_ns);
        if self.ahead.take().is_some()
            && let Some(newest) = self.segments.back_mut()
        {
            newest.to = self.next_sector;
        }
    }

    /// Writes a cached block to the medium, which makes room for a write that was held back.
    fn write_cached(&mut self, i: usize, start_ns: u64) {
        let command = self.cached.remove(i).expect("it was chosen");
        let free_ns = self.serve(&command, start_ns);
        self.is_silent = true;
        self.written_ns = free_ns;
        while let Some(held) = self.held_back.front().copied() {
            let done_ns = free_ns + bus_ns(held.job.nr_sectors);
            if !self.cache(&held.job, done_ns) {
                break;
            }
            self.held_back.pop_front();
            self.tell(held.job, done_ns);
        }
        while let Some(flush) = self.flushes.front().copied().filter(|f| !self.has_cached_before(f.arrived_ns)) {
            self.flushes.pop_front();
            self.tell(flush.job, free_ns.max(flush.ready_ns));
        }
    }

    /// Takes a write into the buffer at `at_ns`. Returns whether there is room. A write that continues a cached one joins it.
    fn cache(&mut self, job: &Job, at_ns: u64) -> bool {
        let used: u64 = self.cached.iter().map(|c| u64::from(c.job.nr_sectors)).sum();
        if used > 0 && used + u64::from(job.nr_sectors) > self.segment * SEGMENTS {
            return false;
        }
        let ends_there = |c: &&mut Command| c.job.sector + u64::from(c.job.nr_sectors) == job.sector;
        if let Some(before) = self.cached.iter_mut().find(ends_there) {
            before.job.nr_sectors += job.nr_sectors;
            before.ready_ns = at_ns;
        } else if self.cached.len() < CACHED_WRITES {
            self.cached.push_back(Command { job: *job, arrived_ns: at_ns, ready_ns: at_ns });
        } else {
            return false;
        }
        true
    }

    fn tell(&mut self, job: Job, done_ns: u64) {
        self.chosen.push_back((job, Instant::from_ns(done_ns)));
        self.is_silent = false;
    }

    fn has_cached_before(&self, ns: u64) -> bool {
        self.cached.iter().any(|c| c.arrived_ns <= ns)
    }
}

/// Returns how long data takes between host and buffer.
fn bus_ns(sectors: u32) -> u64 {
    u64::from(sectors) * 512 * 1_000_000_000 / BUS_BYTES_PER_SEC
}

impl Service for Hdd {
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant> {
        let now_ns = now.as_ns();
        self.advance(now_ns);
        let command = self.command(io, now_ns);
        let done_ns = match io.op {
            Op::Read if self.is_buffered(io, command.ready_ns) => {
                self.read_further(io, command.ready_ns);
                self.transfer(io.nr_sectors)
            }
            Op::Write if self.spec.write_cache => {
                if !self.held_back.is_empty() || !self.cache(io, command.ready_ns + bus_ns(io.nr_sectors)) {
                    self.held_back.push_back(command);
                    return None;
                }
                self.transfer(io.nr_sectors)
            }
            Op::Read | Op::Write if self.waiting.is_empty() && self.free_ns <= now_ns => {
                self.is_silent = false;
                self.serve(&command, command.ready_ns)
            }
            Op::Read | Op::Write => {
                self.waiting.push_back(command);
                return None;
            }
            _ if self.has_cached_before(now_ns) => {
                self.flushes.push_back(command);
                return None;
            }
            _ => command.ready_ns.max(self.written_ns),
        };
        Some(Instant::from_ns(done_ns))
    }

    fn chosen(&mut self, now: Instant) -> Option<(Job, Instant)> {
        self.advance(now.as_ns());
        self.chosen.pop_front()
    }

    fn next_choice(&self) -> Option<(u16, Instant)> {
        let undecided = self.waiting.front().or(self.held_back.front()).or(self.flushes.front())?;
        self.is_silent.then(|| (undecided.job.hctx, Instant::from_ns(self.free_ns)))
    }
}

#[cfg(test)]
mod tests;
