// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters: totals as in diskstats, and the time that requests spend in each stage.
//!
//! Each submitter has its own counters, which only it writes (plain stores). A reader adds up the counters of all
//! submitters, so a total that is read while I/O runs may mix moments a few batches apart. Sources:
//! Documentation/admin-guide/iostats.rst.

use crate::bio::Op;
use crate::relaxed::FieldU64;
use crate::request::Request;

const NS_PER_MS: u64 = 1_000_000;

/// Totals of one operation (`/proc/diskstats` columns, times in nanoseconds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Requests completed.
    pub ios: u64,
    /// Bios merged into an existing request.
    pub merges: u64,
    /// Sectors transferred.
    pub sectors: u64,
    /// Nanoseconds from submission to completion, summed over requests.
    pub time_ns: u64,
}

/// Where completed requests spent their time; every field is a sum over `requests`, in nanoseconds.
///
/// The stages follow each other without a gap: their sum is the time from submission to completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageStats {
    /// Requests counted.
    pub requests: u64,
    /// Held back by a limit or by write-back throttling; waiting for a tag (with an elevator: a scheduler tag) or, in
    /// single-queue mode, for a request.
    pub tag_wait_ns: u64,
    /// In the plug and the software queue.
    pub ctx_ns: u64,
    /// In the elevator.
    pub scheduler_ns: u64,
    /// Between the elevator and the driver's acceptance: driver tag, dispatch list, busy driver.
    pub dispatch_ns: u64,
    /// At the driver, until a poll returned the completion.
    pub device_ns: u64,
}

/// Sum of all submitters' counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Per operation, indexed by `Op as usize`.
    pub ops: [OpStats; Op::COUNT],
    /// Stage times.
    pub stages: StageStats,
    /// Bios submitted and not yet completed.
    pub in_flight: u64,
    /// Nanoseconds (in steps of one millisecond) during which I/O was in flight.
    pub io_ticks_ns: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl DiskStats {
    /// Returns the 17 fields of `/sys/block/DISK/stat`, in that file's units: milliseconds, sectors of 512 bytes.
    /// `in_progress` is the ninth field. Write zeroes count as writes.
    pub fn fields(&self, in_progress: u64) -> [u64; 17] {
        let mut write = *self.op(Op::Write);
        let zeroes = self.op(Op::WriteZeroes);
        write.ios += zeroes.ios;
        write.merges += zeroes.merges;
        write.sectors += zeroes.sectors;
        write.time_ns += zeroes.time_ns;
        let four = |o: &OpStats| [o.ios, o.merges, o.sectors, o.time_ns / NS_PER_MS];
        let [read, write, discard] = [self.op(Op::Read), &write, self.op(Op::Discard)].map(four);
        let flush = self.op(Op::Flush);
        let flush = [flush.ios, flush.time_ns / NS_PER_MS];
        let queued = read[3] + write[3] + discard[3] + flush[1];
        let mut fields = [0; 17];
        fields[..4].copy_from_slice(&read);
        fields[4..8].copy_from_slice(&write);
        fields[8..11].copy_from_slice(&[in_progress, self.io_ticks_ns / NS_PER_MS, queued]);
        fields[11..15].copy_from_slice(&discard);
        fields[15..].copy_from_slice(&flush);
        fields
    }

    /// Totals of one operation.
    pub fn op(&self, op: Op) -> &OpStats {
        &self.ops[op as usize]
    }

    /// Merges over all operations.
    pub fn merges(&self) -> u64 {
        self.ops.iter().map(|o| o.merges).sum()
    }

    /// Adds the counters of another disk, for disks that make one together. Takes the longer one of the two `io_ticks_ns`,
    /// because their overlap is not known.
    pub fn add(&mut self, other: &DiskStats) {
        for (o, e) in self.ops.iter_mut().zip(&other.ops) {
            o.ios += e.ios;
            o.merges += e.merges;
            o.sectors += e.sectors;
            o.time_ns += e.time_ns;
        }
        self.stages.requests += other.stages.requests;
        self.stages.tag_wait_ns += other.stages.tag_wait_ns;
        self.stages.ctx_ns += other.stages.ctx_ns;
        self.stages.scheduler_ns += other.stages.scheduler_ns;
        self.stages.dispatch_ns += other.stages.dispatch_ns;
        self.stages.device_ns += other.stages.device_ns;
        self.in_flight += other.in_flight;
        self.io_ticks_ns = self.io_ticks_ns.max(other.io_ticks_ns);
        self.errors += other.errors;
    }

    /// Returns what was counted since `earlier` (gauges keep their present value).
    pub fn since(&self, earlier: &DiskStats) -> DiskStats {
        let mut d = *self;
        for (o, e) in d.ops.iter_mut().zip(&earlier.ops) {
            o.ios -= e.ios;
            o.merges -= e.merges;
            o.sectors -= e.sectors;
            o.time_ns -= e.time_ns;
        }
        d.stages.requests -= earlier.stages.requests;
        d.stages.tag_wait_ns -= earlier.stages.tag_wait_ns;
        d.stages.ctx_ns -= earlier.stages.ctx_ns;
        d.stages.scheduler_ns -= earlier.stages.scheduler_ns;
        d.stages.dispatch_ns -= earlier.stages.dispatch_ns;
        d.stages.device_ns -= earlier.stages.device_ns;
        d.io_ticks_ns -= earlier.io_ticks_ns;
        d.errors -= earlier.errors;
        d
    }
}

/// Counters of one hardware queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HctxStats {
    /// Requests queued to it.
    pub queued: u64,
    /// Times its dispatch loop ran.
    pub run: u64,
    /// Requests the driver accepted.
    pub dispatched: u64,
    /// Calls of the driver: on average, `dispatched / batches` requests shared one doorbell write.
    pub batches: u64,
    /// Requests the driver gave back because it was busy.
    pub requeues: u64,
    /// Requests for which the driver's timeout function was called.
    pub timeouts: u64,
}

impl HctxStats {
    /// Returns what was counted since `earlier`.
    pub fn since(&self, earlier: &HctxStats) -> HctxStats {
        HctxStats {
            queued: self.queued - earlier.queued,
            run: self.run - earlier.run,
            dispatched: self.dispatched - earlier.dispatched,
            batches: self.batches - earlier.batches,
            requeues: self.requeues - earlier.requeues,
            timeouts: self.timeouts - earlier.timeouts,
        }
    }

    /// Adds the counters of another disk, for disks that make one together.
    pub fn add(&mut self, other: &HctxStats) {
        self.queued += other.queued;
        self.run += other.run;
        self.dispatched += other.dispatched;
        self.batches += other.batches;
        self.requeues += other.requeues;
        self.timeouts += other.timeouts;
    }
}

/// One submitter's share of an hctx's counters.
#[derive(Debug, Default)]
pub(crate) struct HctxCounters {
    pub(crate) queued: FieldU64,
    pub(crate) run: FieldU64,
    pub(crate) dispatched: FieldU64,
    pub(crate) batches: FieldU64,
    pub(crate) requeues: FieldU64,
    pub(crate) timeouts: FieldU64,
}

impl HctxCounters {
    pub(crate) fn add_to(&self, total: &mut HctxStats) {
        total.queued += self.queued.get();
        total.run += self.run.get();
        total.dispatched += self.dispatched.get();
        total.batches += self.batches.get();
        total.requeues += self.requeues.get();
        total.timeouts += self.timeouts.get();
    }
}

#[derive(Debug, Default)]
struct OpCounters {
    ios: FieldU64,
    merges: FieldU64,
    sectors: FieldU64,
    time_ns: FieldU64,
}

/// One submitter's counters. Only that submitter writes them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    ops: [OpCounters; Op::COUNT],
    tag_wait_ns: FieldU64,
    ctx_ns: FieldU64,
    scheduler_ns: FieldU64,
    dispatch_ns: FieldU64,
    device_ns: FieldU64,
    errors: FieldU64,
    /// Bios submitted and not yet completed.
    pub(crate) in_flight: FieldU64,
}

impl Counters {
    #[inline]
    pub(crate) fn account_done(&self, rq: &Request, now_ns: u64, ok: bool) {
        let o = &self.ops[rq.op.get() as usize];
        let (start, issue) = (rq.start_ns.get(), rq.issue_ns.get());
        o.ios.add(1);
        o.sectors.add(u64::from(rq.nr_sectors.get()));
        o.time_ns.add(now_ns.saturating_sub(start));
        self.device_ns.add(now_ns.saturating_sub(issue));
        if issue != start {
            self.account_stages(rq, start, issue);
        }
        if !ok {
            self.errors.add(1);
        }
    }

    /// Adds the times of the stages before the driver. All are zero for a request whose submit and issue times are
    /// equal.
    #[inline]
    fn account_stages(&self, rq: &Request, start: u64, issue: u64) {
        let (alloc, insert, dispatch) = (rq.alloc_ns.get(), rq.insert_ns.get(), rq.dispatch_ns.get());
        self.tag_wait_ns.add(alloc.saturating_sub(start));
        self.ctx_ns.add(insert.saturating_sub(alloc));
        self.scheduler_ns.add(dispatch.saturating_sub(insert));
        self.dispatch_ns.add(issue.saturating_sub(dispatch));
    }

    #[inline]
    pub(crate) fn account_merge(&self, op: Op) {
        self.ops[op as usize].merges.add(1);
    }

    pub(crate) fn add_to(&self, total: &mut DiskStats) {
        for (t, o) in total.ops.iter_mut().zip(&self.ops) {
            t.ios += o.ios.get();
            t.merges += o.merges.get();
            t.sectors += o.sectors.get();
            t.time_ns += o.time_ns.get();
            total.stages.requests += o.ios.get();
        }
        let s = &mut total.stages;
        s.tag_wait_ns += self.tag_wait_ns.get();
        s.ctx_ns += self.ctx_ns.get();
        s.scheduler_ns += self.scheduler_ns.get();
        s.dispatch_ns += self.dispatch_ns.get();
        s.device_ns += self.device_ns.get();
        total.errors += self.errors.get();
        total.in_flight += self.in_flight.get();
    }
}
