// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bios of one disk in a case: drawn, submitted, and checked when they complete.
//!
//! Checked: each bio completes exactly once, at the submitter it came from, with a status that is allowed for this bio.
//! Data and counters are right. Data that was acknowledged as durable survives a power cut. Needs from callers:
//! [`Load::collect`] after any call that may complete bios. Callers also pass the random numbers, so that a case of one
//! disk and a case of several disks each draw from a stream of their own. Does not do: polling, time, settings.

use super::limits::{self, LimitEpochs, Limits};
use super::report::CAPACITY;
use crate::contents::{Contents, Held};
use crate::describe;
use crate::fault::Plant;
use crate::harness::{Harness, MEM_SECTORS};
use crate::liveness::AtDriver;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
use blk::id::Sector;
use blk::status::BlkStatus;
use blk::submitter::{Done, SubmitError};

/// Sectors of the largest bio.
const MAX_BIO: u64 = 512;
/// Bios in flight per disk: each has its own piece of memory.
const AREAS: usize = MEM_SECTORS / MAX_BIO as usize;

/// A bio that has not completed.
struct OutstandingBio {
    bio: Bio,
    held: Option<Held>,
    /// Number of acknowledgements when it was submitted.
    since: u64,
    submitter: usize,
    /// When it was submitted, and under which limits.
    at: u64,
    under: LimitEpochs,
}

/// See the module's text.
pub(super) struct Load {
    pub(super) limits: Limits,
    /// Settings that decide what the disk supports have changed.
    pub(super) rebuilt: bool,
    pub(super) accepted: u64,
    pub(super) ended: u64,
    pub(super) errors: u64,
    plant: Option<Plant>,
    trace: Trace,
    model: Contents,
    out: Vec<Option<OutstandingBio>>,
    free: Vec<usize>,
    next_sector: u64,
    stamp: u64,
    /// Requests may be sent to the disk more than once, so its counters cannot be checked against the requests it has seen.
    pub(super) may_retry: bool,
    /// When there was last no usable path while requests did not wait for one.
    pub(super) hopeless_at: Option<u64>,
    /// The disk has faults that fail I/O.
    faults: bool,
    /// A rebuild refused bios after the previous stack may have issued parts of them.
    refused: bool,
    /// What `none` and the legacy elevators owe each request.
    at_driver: AtDriver,
    /// When a flush was first reported as failed by the device.
    flush_lost_at: Option<u64>,
    /// Sectors of bios that completed without error, per operation; only meaningful without faults.
    sectors: [u64; Op::COUNT],
}

impl Load {
    /// For a zeroed disk; `volatile`: it has a write cache. `faults`: it may fail I/O.
    pub(super) fn new(limits: Limits, volatile: bool, faults: bool, plant: Option<Plant>, trace: Trace) -> Load {
        Load {
            limits,
            plant,
            trace,
            faults,
            may_retry: false,
            hopeless_at: None,
            model: Contents::new(CAPACITY, volatile),
            out: (0..AREAS).map(|_| None).collect(),
            free: (0..AREAS).rev().collect(),
            next_sector: 0,
            stamp: 1,
            rebuilt: false,
            refused: false,
            sectors: [0; Op::COUNT],
            accepted: 0,
            ended: 0,
            errors: 0,
            at_driver: AtDriver::new(plant.and_then(Plant::told)),
            flush_lost_at: None,
        }
    }

    /// Draws a bio that fits the disk, mostly adjacent to the last one.
    fn draw_bio(&mut self, rng: &mut Rng, harness: &Harness, area: usize) -> Bio {
        let lb = u64::from(harness.q.limits().logical_block_sectors());
        let op = rng.pick(&[
            Op::Read,
            Op::Read,
            Op::Read,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
        ]);
        let data = DataRef::new(0, (area as u64 * MAX_BIO) << 9);
        if op == Op::Flush {
            let mut bio = Bio::flush().with_user_data(area as u64);
            bio.flags = bio.flags.union(draw_flags(rng, op));
            return bio;
        }
        let blocks = match rng.below(8) {
            0 => 1 + rng.below(MAX_BIO / lb),
            1..4 => 1 + rng.below(8),
            _ => 1 + rng.below(3),
        };
        let nr = (blocks * lb).min(MAX_BIO / lb * lb);
        let fits = (CAPACITY - nr) / lb + 1;
        let sector = match rng.below(8) {
            0..4 => self.next_sector,
            4..6 => self.next_sector.wrapping_sub(2 * nr),
            _ => rng.below(fits) * lb,
        };
        let sector = if sector > CAPACITY - nr || sector % lb != 0 { rng.below(fits) * lb } else { sector };
        let mut bio = Bio::write(Sector(sector), nr as u32, data).with_user_data(area as u64);
        bio.op = op;
        if !op.has_data() {
            bio.data = DataRef::NONE;
        }
        bio.flags = draw_flags(rng, op);
        self.limits.add_flags(&mut bio);
        if rng.below(6) == 0 {
            bio.prio = IoPrio::new(rng.pick(&[IoPrioClass::Rt, IoPrioClass::Be, IoPrioClass::Idle]), 3);
        }
        bio
    }

    /// Submits a bio through submitter `s`, unless no memory area or bio slot is free, or the range of the bio is in use.
    pub(super) fn submit_one(&mut self, rng: &mut Rng, harness: &mut Harness, s: usize) {
        let Some(area) = self.free.pop() else { return };
        let bio = self.draw_bio(rng, harness, area);
        let held = if bio.op == Op::Flush {
            None
        } else {
            let Some(h) = self.model.lock(bio.op, bio.sector.0, bio.nr_sectors) else {
                // The range is in use: begin elsewhere next time.
                self.next_sector = rng.below(CAPACITY / 8) * 8;
                return self.free.push(area);
            };
            Some(h)
        };
        if bio.op == Op::Write {
            for i in 0..u64::from(bio.nr_sectors) {
                harness.mem.set(area as u64 * MAX_BIO + i, self.stamp << 16 | i);
            }
            self.stamp += 1;
        }
        let (at, under) = (harness.now, self.limits.under());
        match harness.try_submit(s, bio) {
            Ok(()) => {
                self.accepted += 1;
                let Bio { op, sector, nr_sectors, flags, .. } = bio;
                let what = format_args!("submitter {s} #{area} {op:?} {}+{nr_sectors} {flags:?}", sector.0);
                self.trace.summed_up(harness.now, 'Q', what, || {
                    format!("submitter {s} #{area} {op:?} {}+{nr_sectors}{}", sector.0, describe::flags(flags))
                });
                self.next_sector = bio.sector.0 + u64::from(bio.nr_sectors);
                let since = self.model.flush_point();
                self.out[area] = Some(OutstandingBio { bio, held, since, submitter: s, at, under });
            }
            Err(SubmitError::NoBio) => {
                if let Some(h) = held {
                    self.model.nothing_happened(h);
                }
                self.free.push(area);
            }
        }
    }

    /// Submits some bios one after the other through one submitter, with or without a plug.
    pub(super) fn burst(&mut self, rng: &mut Rng, harness: &mut Harness) {
        let s = rng.below(harness.subs.len() as u64) as usize;
        let n = 1 + rng.below(12);
        let plug = rng.below(2) == 0;
        if plug {
            let nr = rng.pick(&[0, n as u32, 40]);
            harness.plug(s, nr);
        }
        for _ in 0..n {
            self.submit_one(rng, harness, s);
        }
        if plug {
            harness.unplug(s);
        }
    }

    /// Checks that no request starved. To be called before the elevator changes.
    pub(super) fn look(&mut self, harness: &Harness) {
        self.at_driver.look(harness);
    }

    /// Checks the bios that have completed, and the requests that the driver was offered.
    pub(super) fn collect(&mut self, harness: &mut Harness) {
        self.look(harness);
        for s in 0..harness.subs.len() {
            for d in harness.take_done(s) {
                self.check_done(harness, s, d);
                if self.plant == Some(Plant::EndedTwice) && self.ended % 50 == 49 {
                    self.check_done(harness, s, d);
                }
            }
        }
    }

    fn check_done(&mut self, harness: &Harness, s: usize, d: Done) {
        let area = d.user_data as usize;
        let op = self.out[area].take().unwrap_or_else(|| panic!("{d:?} ended twice"));
        assert_eq!((op.submitter, op.bio.op), (s, d.op), "{d:?} came back to the wrong submitter");
        self.ended += 1;
        self.errors += u64::from(!d.status.is_ok());
        self.trace.event(harness.now, 'E', format_args!("submitter {s} #{area} {:?}", d.status));
        self.free.push(area);
        let bio = op.bio;
        let base = area as u64 * MAX_BIO;
        let mem = harness.mem.clone();
        let value = |i: u64| if bio.op == Op::Write { mem.get(base + i) } else { 0 };
        if d.status.is_ok() {
            self.limits.ended(&bio, &op.under, op.at, harness.now);
            self.sectors[bio.op as usize] += u64::from(bio.nr_sectors);
            let durable = bio.flags.intersects(OpFlags::PREFLUSH.union(OpFlags::FUA));
            let forgot = (bio.op == Op::Flush || durable) && self.flush_lost_at.is_some_and(|at| at < op.at);
            assert!(!forgot, "{bio:?} succeeded after a flush had failed");
            if bio.op == Op::Flush || bio.flags.contains(OpFlags::PREFLUSH) {
                self.model.was_flushed(op.since);
            }
            match (bio.op, op.held) {
                (Op::Read, Some(h)) => self.model.was_read(h, |i| mem.get(base + i)),
                (_, Some(h)) => self.model.was_written(h, bio.flags.contains(OpFlags::FUA), value),
                (_, None) => {}
            }
            return;
        }
        assert!(self.may_end(harness, &bio, op.at, d.status), "{bio:?} ended with {:?}", d.status);
        if bio.op == Op::Flush && matches!(d.status, BlkStatus::Medium | BlkStatus::Target) {
            self.flush_lost_at.get_or_insert(harness.now);
        }
        self.refused |= self.rebuilt && d.status != BlkStatus::Again;
        match op.held {
            None => {}
            Some(h) if bio.op == Op::Read || d.status == BlkStatus::Again => self.model.nothing_happened(h),
            Some(h) => {
                // A write that a rebuild has made impossible may have issued parts before.
                self.model.write_failed(h, value);
            }
        }
    }

    fn may_end(&self, harness: &Harness, bio: &Bio, submitted: u64, status: BlkStatus) -> bool {
        let limits = harness.q.limits();
        let was_hopeless = self.hopeless_at.is_some_and(|at| at >= submitted);
        match status {
            BlkStatus::Again => bio.flags.contains(OpFlags::NOWAIT),
            BlkStatus::NotSupp => {
                bio.flags.contains(OpFlags::POLLED)
                    || bio.op == Op::Discard && limits.max_discard_sectors == 0
                    || bio.op == Op::WriteZeroes && limits.max_write_zeroes_sectors == 0
            }
            BlkStatus::Inval => bio.flags.contains(OpFlags::RESERVED),
            BlkStatus::Timeout | BlkStatus::Transport => self.faults || was_hopeless,
            BlkStatus::IoErr => was_hopeless,
            BlkStatus::Medium | BlkStatus::Target => self.faults,
            _ => false,
        }
    }

    /// Checks what would survive if power were cut now, with all bios that are in flight.
    pub(super) fn power_cut(&self, rng: &mut Rng, harness: &Harness) {
        let mut in_flight = vec![None; CAPACITY as usize];
        for (area, op) in self.out.iter().enumerate() {
            let Some(bio) = op.as_ref().map(|o| o.bio).filter(|b| b.op.is_write()) else { continue };
            let mem = |i: u64| harness.mem.get(area as u64 * MAX_BIO + i);
            for i in 0..u64::from(bio.nr_sectors) {
                in_flight[(bio.sector.0 + i) as usize] = Some(if bio.op == Op::Write { mem(i) } else { 0 });
            }
        }
        let left = harness.disk.if_power_were_cut(rng.next());
        self.model.check_survivors(|s| left.content(s), |s| in_flight[s as usize]);
    }

    /// Changes limits while bios are held, without a freeze.
    pub(super) fn change_limits(&mut self, harness: &Harness) {
        let mode = harness.q.config().mode;
        let new = self.limits.draw(mode);
        self.trace.summed_up(harness.now, 'X', format_args!("{new:?}"), || describe::limits(&new));
        let told = self.limits.told(&new);
        let settings: Vec<(&str, &str)> = told.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        if self.limits.one_in(5) {
            // An invalid change: nothing may have changed after it.
            let wrong = [&settings[..], &[("queue_depth", "7")]].concat();
            let e = harness.q.set_live(&wrong).expect_err("the depth is not to be changed so");
            assert!(e.to_string().contains("needs a queue freeze"), "{e}");
        } else {
            harness.q.set_live(&settings).unwrap_or_else(|e| panic!("{e}"));
            self.limits.changed(&new);
        }
        self.limits.check_settings(&harness.q.config().io_limits);
    }

    /// Removes all limits and throttling.
    pub(super) fn lift_limits(&mut self, harness: &Harness) {
        let none = self.limits.none();
        let settings: Vec<(&str, &str)> = none.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        harness.q.set_live(&settings).unwrap_or_else(|e| panic!("{e}"));
        self.limits.changed(&none);
    }

    /// Stops waiting for a submitter's bios. Parts of them may have reached the disk; no more parts will.
    pub(super) fn forget(&mut self, harness: &Harness, submitter: usize) {
        for (area, slot) in self.out.iter_mut().enumerate() {
            let Some(out) = slot.take_if(|o| o.submitter == submitter) else { continue };
            self.accepted -= 1;
            let value = |i: u64| harness.mem.get(area as u64 * MAX_BIO + i);
            let is_write = out.bio.op == Op::Write;
            out.held.into_iter().for_each(|h| self.model.write_failed(h, |i| if is_write { value(i) } else { 0 }));
        }
    }

    /// Asserts that all bios have completed.
    pub(super) fn check_ended(&self, harness: &Harness) {
        assert_eq!(self.ended, self.accepted, "bios are stuck\n{}", harness.describe());
    }

    /// Asserts that every token of write-back throttling was returned.
    pub(super) fn check_tokens(&self, harness: &Harness) {
        assert_eq!(harness.q.wbt().inflight, [0, 0], "write-back throttling: tokens were not released");
    }

    /// Checks an idle disk after all bios have completed: limits, contents and counters are right, and durable data survives
    /// a crash.
    pub(super) fn check_all(&self, harness: &Harness) {
        assert!(self.model.is_idle());
        self.limits.check();
        self.check_tokens(harness);
        let disk = &harness.disk;
        self.model.check_contents(|s| disk.content(s));
        self.check_counters(harness);
        disk.crash();
        self.model.check_survivors(|s| disk.content(s), |_| None);
    }

    fn check_counters(&self, harness: &Harness) {
        if self.may_retry {
            return;
        }
        let (stats, issues) = (harness.q.stats(), harness.disk.issues());
        let hctx: u64 = harness.q.hctx_stats().iter().map(|h| h.dispatched).sum();
        // There are fewer hardware queues now than before, and the counters of removed ones are not listed.
        assert!(hctx <= issues.len() as u64, "dispatched {hctx} of {}", issues.len());
        if self.faults {
            return;
        }
        for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
            let seen: Vec<_> = issues.iter().filter(|i| i.op == op).collect();
            let s = stats.op(op);
            assert_eq!(s.ios, seen.len() as u64, "{op:?} ios");
            if !self.refused {
                assert_eq!(s.sectors, self.sectors[op as usize], "{op:?} sectors counted and submitted");
            }
            assert_eq!(s.sectors, seen.iter().map(|i| u64::from(i.nr_sectors)).sum::<u64>(), "{op:?} sectors");
            if op.has_data() {
                let merged: usize = seen.iter().map(|i| i.nr_bios - 1).sum();
                assert_eq!(s.merges, merged as u64, "{op:?} merges");
            }
        }
        assert_eq!(stats.op(Op::Flush).ios, issues.iter().filter(|i| i.op == Op::Flush).count() as u64);
        assert_eq!(stats.errors, 0);
    }
}

/// Modifiers in the order of their draws: one bio in how many has it, and whether only writes draw it. Kept seeds depend on
/// the order.
const DRAWN: [(OpFlags, (u64, bool)); 7] = [
    (OpFlags::NOWAIT, (12, false)),
    (OpFlags::NOMERGE, (12, false)),
    (OpFlags::POLLED, (12, false)),
    (OpFlags::RESERVED, (16, false)),
    (OpFlags::SYNC, (4, false)),
    (OpFlags::FUA, (6, true)),
    (OpFlags::PREFLUSH, (8, true)),
];
/// Hints that only some elevators use, and modifiers that only drivers use. The simulated disk stores whole sectors.
const NOT_DRAWN: [OpFlags; 5] = [OpFlags::RAHEAD, OpFlags::META, OpFlags::NOUNMAP, OpFlags::NOFALLBACK, OpFlags::BYTES];
const _: () = assert!(OpFlags::are_all(&[&OpFlags::of_table(&DRAWN), &limits::FLAGS, &NOT_DRAWN]));

/// Draws the modifiers of a bio from [`DRAWN`]. Limits add theirs.
fn draw_flags(rng: &mut Rng, op: Op) -> OpFlags {
    let mut flags = OpFlags::NONE;
    for (flag, (one_in, only_writes)) in DRAWN {
        if (!only_writes || op == Op::Write) && rng.below(one_in) == 0 {
            flags = flags.union(flag);
        }
    }
    flags
}
