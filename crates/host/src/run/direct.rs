// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job thread whose I/O goes to devices of the kernel, through an io_uring of its own and nothing of ours.
//!
//! Guarantees: as of [`super::worker`]: every I/O that was handed out is completed before the thread ends, or left behind with its memory
//! when the run is to stop and the device does not end it; a short transfer is continued. What the job submits together the
//! kernel is handed in one call, as fio does it, for that is what it plugs and merges; only a depth of one shares its call with
//! the wait. Does not do: polled I/O (`hipri`), discards without waiting (BLKDISCARD, as fio's engine).
//!
//! Guarantees to the kernel: the buffers that entries point to are the pools', which outlive the ring, or are forgotten with it.

use super::checkpoint::{Checkpoint, Live, ThreadEnd, VERIFY_REPORTS};
use super::waiter::STOP_CHECK;
use crate::clock;
use crate::error::{Error, Result};
use crate::mem::{BufferPool, Regions};
use crate::process;
use blk::bio::{Op, OpFlags};
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{IoReq, JobThread, Next};
use workload::load::Load;
use workload::verify::VerifyError;

/// Most entries of a submission ring (IORING_MAX_ENTRIES).
const MAX_SQ_ENTRIES: u32 = 32768;
/// Times an I/O is tried again after EAGAIN or EINTR before the job is told.
const MAX_RETRIES: u8 = 8;
/// How long a device may take to end what is out when the run is to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel registers no larger buffer.
const MAX_REGISTERED_BYTES: usize = 1 << 30;

/// One of the places its I/O goes to.
pub(super) struct DirectVolume {
    pub(super) device: Arc<OwnedFd>,
    pub(super) buffers: BufferPool,
}

/// What a thread does.
pub(super) enum DirectLoad {
    /// A fio job's.
    Job(Box<JobThread>),
    /// A transaction loop's.
    Other(Box<dyn Load + Send>),
}

/// A thread that is ready to run.
pub(super) struct Direct {
    pub(super) load: DirectLoad,
    pub(super) volumes: Vec<DirectVolume>,
    pub(super) regions: Arc<Regions>,
    pub(super) pin: Option<Vec<u32>>,
    pub(super) live: Arc<Live>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) batch: u32,
    /// Bytes it moves if nothing ends it earlier.
    pub(super) planned_bytes: Option<u64>,
}

/// An I/O that is out.
#[derive(Clone, Copy)]
struct Slot {
    op: Op,
    flags: OpFlags,
    ioprio: u16,
    offset: u64,
    left: u32,
    /// Of its buffer.
    base: *mut u8,
    /// Where the rest of its data is: behind `base` after a short transfer.
    addr: *mut u8,
    retries: u8,
}

struct Volume {
    device: Arc<OwnedFd>,
    buffers: BufferPool,
    /// Its slots begin here, counted through all volumes.
    first_slot: u32,
    /// Its buffers' number among those that are registered with the ring.
    registered: Option<u16>,
}

struct Loop<L: Load + ?Sized> {
    // Dropped first: the kernel has released the buffers when it is.
    ring: IoUring,
    load: Box<L>,
    volumes: Vec<Volume>,
    /// By number through all volumes: where its buffer is, and what it is doing.
    slots: Vec<Slot>,
    /// I/Os the kernel has, or that are in the submission ring.
    out: u32,
    /// I/Os in the submission ring that the load was not told to be submitted.
    queued: u32,
    /// I/Os that ended without the ring.
    ended: VecDeque<(u32, BlkStatus)>,
    verify_errors: Vec<VerifyError>,
    checkpoint: Checkpoint,
    live: Arc<Live>,
    /// Since when the run is to stop.
    stopping: Option<Instant>,
    now: Instant,
}

impl Direct {
    /// Runs the load to its end.
    pub(super) fn run(self) -> Result<ThreadEnd> {
        if let Some(cpus) = &self.pin {
            process::pin_thread(cpus)?;
        }
        clock::sleep_precisely();
        let (volumes, regions, batch) = (self.volumes, self.regions, self.batch);
        let (live, stop) = (self.live, self.stop);
        match self.load {
            DirectLoad::Job(job) => run(job, volumes, &regions, batch, live, stop),
            DirectLoad::Other(load) => run(load, volumes, &regions, batch, live, stop),
        }
    }
}

fn run<L: Load + ?Sized>(
    mut load: Box<L>,
    volumes: Vec<DirectVolume>,
    regions: &Arc<Regions>,
    batch: u32,
    live: Arc<Live>,
    stop: Arc<AtomicBool>,
) -> Result<ThreadEnd> {
    let all: u32 = volumes.iter().map(|v| v.buffers.slots()).sum();
    let ring = build(all, batch)
        .map_err(|e| Error::os(e, format!("cannot make an io_uring for {all} I/Os; lower iodepth")))?;
    let devices: Vec<_> = volumes.iter().map(|v| v.device.as_raw_fd()).collect();
    ring.submitter().register_files(&devices).map_err(|e| Error::os(e, "cannot register a device with io_uring"))?;
    let (mut ready, mut slots, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    for DirectVolume { device, buffers: mut pool } in volumes {
        let first_slot = slots.len() as u32;
        let mut region = None;
        for slot in 0..pool.slots() {
            pool.with_slot(slot, |buf| load.fill_first(buf));
            let data = pool.lend(slot);
            let span = regions.resolve(data, pool.slot_bytes());
            let addr = span.map_err(|_| Error::usage("a buffer of a job is not in its region"))?.as_ptr();
            // SAFETY: nothing was submitted with it.
            unsafe { pool.give_back(slot) };
            slots.push(Slot::new(addr));
            region = regions.get(data.region());
        }
        let region = region.filter(|r| r.len() <= MAX_REGISTERED_BYTES);
        let registered = region.map(|region| {
            buffers.push(libc::iovec { iov_base: region.base().cast(), iov_len: region.len() });
            buffers.len() as u16 - 1
        });
        ready.push(Volume { device, buffers: pool, first_slot, registered });
    }
    // SAFETY: the regions live as long as their table, which this function's caller keeps beyond the ring, or for ever.
    let known = buffers.is_empty() || unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
    if !known {
        ready.iter_mut().for_each(|v| v.registered = None);
    }
    let mut l = Loop {
        ring,
        load,
        volumes: ready,
        slots,
        out: 0,
        queued: 0,
        ended: VecDeque::new(),
        verify_errors: Vec::new(),
        now: clock::now(),
        checkpoint: Checkpoint::new(stop, Arc::clone(&live)),
        live,
        stopping: None,
    };
    l.run();
    l.checkpoint.end(l.load.as_mut(), l.now);
    let verify_errors = std::mem::take(&mut l.verify_errors);
    let end = ThreadEnd { stats: l.load.stats().clone(), verify_errors, traces: Vec::new() };
    if l.checkpoint.leaves() {
        // The kernel may still write to its buffers.
        std::mem::forget((l, Arc::clone(regions)));
    }
    Ok(end)
}

/// A ring that the calling thread alone uses, with the flags that help as far as the kernel knows them (SINGLE_ISSUER is of Linux
/// 6.0, DEFER_TASKRUN of 6.1).
fn build(depth: u32, batch: u32) -> io::Result<IoUring> {
    let entries = batch.clamp(8, depth.max(8)).next_power_of_two().min(MAX_SQ_ENTRIES);
    let attempt = |owned: bool| {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(depth.max(entries).next_power_of_two());
        if owned {
            builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        }
        builder.build(entries)
    };
    attempt(true).or_else(|_| attempt(false))
}

impl<L: Load + ?Sized> Loop<L> {
    fn run(&mut self) {
        loop {
            match self.load.next(self.now) {
                Next::Io(io) => {
                    self.queue(io);
                    continue;
                }
                Next::Reap { min, max } => self.reap(min, max),
                Next::Wait(until) => {
                    self.commit();
                    self.wait_until(until);
                }
                Next::Spin(until) => {
                    self.commit();
                    while self.now < until {
                        std::hint::spin_loop();
                        self.now = clock::now();
                    }
                }
                Next::Done => break,
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
        }
        assert!(self.out == 0 && self.ended.is_empty(), "the load ended with I/O outstanding");
        self.live.in_flight.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn look_around(&mut self) {
        if self.checkpoint.is_due(self.now) {
            let (out, now, stopping) = (self.out, self.now, &mut self.stopping);
            let is_left = || out > 0 && now.since(*stopping.get_or_insert(now)) > PATIENCE;
            self.checkpoint.look(self.load.as_mut(), now, is_left);
        }
    }

    /// The volume that a slot belongs to; there are one or two.
    #[inline]
    fn volume_of(&self, slot: u32) -> usize {
        self.volumes.iter().rposition(|v| v.first_slot <= slot).expect("the first slot of the first volume is 0")
    }

    #[inline]
    fn queue(&mut self, io: IoReq) {
        let number = self.volume_of(io.slot);
        let volume = &mut self.volumes[number];
        let own = io.slot - volume.first_slot;
        if io.fill {
            let load = &mut self.load;
            volume.buffers.with_slot(own, |buf| load.fill(io.slot, &mut buf[..io.len_bytes as usize]));
        }
        if io.op.has_data() {
            // Marks it as the kernel's; where it is was looked up once.
            let _ = volume.buffers.lend(own);
        }
        self.queued += 1;
        self.slots[io.slot as usize].begin(&io);
        let (op, offset, left) = (io.op, io.offset_bytes, io.len_bytes);
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            // What comes before it in its batch is not to wait for it.
            self.enter(0, None);
            self.ended.push_back((io.slot, zap(&self.volumes[number].device, op, offset, u64::from(left))));
        } else {
            self.out += 1;
            self.push(io.slot, number);
        }
        // Alone, it goes with the wait that follows.
        if io.commit && self.slots.len() > 1 {
            self.commit();
        }
    }

    fn push(&mut self, slot: u32, number: usize) {
        let entry = self.slots[slot as usize].entry(types::Fixed(number as u32), self.volumes[number].registered);
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: what the entry points to is a buffer that is lent until its completion is taken (module's text).
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0, None);
        }
    }

    /// Hands the kernel what is queued; its I/Os count as submitted from here.
    #[inline]
    fn commit(&mut self) {
        if self.queued > 0 {
            self.enter(0, None);
            self.tell_submitted();
        }
    }

    #[inline]
    fn tell_submitted(&mut self) {
        self.queued = 0;
        self.live.in_flight.store(u64::from(self.out), Ordering::Relaxed);
        self.now = clock::now();
        self.load.submitted(self.now);
    }

    /// Submits what is in the ring, and waits for `want` completions, at most until `timeout`. Whatever is refused for the moment is
    /// tried again by the next call.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        let submitter = self.ring.submitter();
        let _ = match timeout {
            Some(limit) if want > 0 => {
                let limit = types::Timespec::from(std::time::Duration::from_nanos(limit.as_ns()));
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&limit))
            }
            _ => submitter.submit_and_wait(want),
        };
    }

    /// Completes `min` to `max` I/Os, waiting for them.
    fn reap(&mut self, min: u32, max: u32) {
        // Alone, it is submitted in one call with the wait, whose time is the I/O's: nothing else can be there to be taken.
        if self.queued > 0 && self.slots.len() == 1 && min > 0 {
            self.tell_submitted();
        } else {
            self.commit();
        }
        let mut got = self.take(max);
        if min == 0 && got == 0 {
            // Has the kernel post what has ended meanwhile.
            self.enter(0, None);
            got = self.take(max);
        }
        while got < min {
            self.enter((min - got) as usize, Some(STOP_CHECK));
            got += self.take(max - got);
            if got < min {
                self.now = clock::now();
                self.look_around();
                if self.checkpoint.leaves() {
                    return;
                }
            }
        }
    }

    /// Hands up to `max` I/Os that have ended to the load; how many there were.
    fn take(&mut self, max: u32) -> u32 {
        let mut n = 0;
        if !self.ended.is_empty() || !self.ring.completion().is_empty() {
            self.now = clock::now();
        }
        while n < max
            && let Some((slot, status)) = self.ended.pop_front()
        {
            self.hand_back(slot, status);
            n += 1;
        }
        while n < max {
            let Some(entry) = self.ring.completion().next() else { break };
            let slot = entry.user_data() as u32;
            match self.slots[slot as usize].answer(entry.result()) {
                Some(status) => {
                    self.out -= 1;
                    self.hand_back(slot, status);
                    n += 1;
                }
                None => self.push(slot, self.volume_of(slot)),
            }
        }
        if n > 0 {
            // A slow disk that gets on is none that has to be given up.
            self.stopping = self.stopping.map(|_| self.now);
            self.live.in_flight.store(u64::from(self.out), Ordering::Relaxed);
            self.load.reaped(n);
        }
        n
    }

    #[inline]
    fn hand_back(&mut self, slot: u32, status: BlkStatus) {
        let number = self.volume_of(slot);
        let volume = &mut self.volumes[number];
        let own = slot - volume.first_slot;
        if self.slots[slot as usize].op.has_data() {
            // SAFETY: the kernel has answered, and a further request gets a new entry.
            unsafe { volume.buffers.give_back(own) };
        }
        let load = &mut self.load;
        if load.complete(slot, status, self.now).needs_verify
            && let Err(e) = volume.buffers.with_slot(own, |buf| load.verify(slot, buf))
            && self.verify_errors.len() < VERIFY_REPORTS
        {
            self.verify_errors.push(e);
        }
    }

    /// Nothing may be issued before `until`; what ends meanwhile is completed.
    fn wait_until(&mut self, until: Instant) {
        if self.take(u32::MAX) > 0 {
            return;
        }
        self.now = clock::now();
        let left = until.since(self.now).min(STOP_CHECK);
        if self.out > 0 {
            self.enter(1, Some(left));
            self.take(u32::MAX);
        } else {
            std::thread::sleep(std::time::Duration::from_nanos(left.as_ns()));
        }
        self.now = clock::now();
    }
}

impl Slot {
    /// With its buffer here.
    fn new(base: *mut u8) -> Slot {
        Slot { op: Op::Flush, flags: OpFlags::NONE, ioprio: 0, offset: 0, left: 0, base, addr: base, retries: 0 }
    }

    /// Another I/O begins in it.
    #[inline]
    fn begin(&mut self, io: &IoReq) {
        let ioprio = (io.prio.class() as u16) << 13 | u16::from(io.prio.level());
        let (op, flags, offset, left, base) = (io.op, io.flags, io.offset_bytes, io.len_bytes, self.base);
        *self = Slot { op, flags, ioprio, offset, left, base, addr: base, retries: 0 };
    }

    /// The submission entry for what is left.
    #[inline]
    fn entry(&self, device: types::Fixed, registered: Option<u16>) -> squeue::Entry {
        let (offset, len, prio) = (self.offset, self.left, self.ioprio);
        match (self.op, registered) {
            (Op::Read, Some(buffer)) => {
                opcode::ReadFixed::new(device, self.addr, len, buffer).offset(offset).ioprio(prio).build()
            }
            (Op::Read, None) => opcode::Read::new(device, self.addr, len).offset(offset).ioprio(prio).build(),
            (Op::Write, registered) => {
                let flags = if self.flags.contains(OpFlags::FUA) { libc::RWF_DSYNC } else { 0 };
                match registered {
                    Some(buffer) => {
                        let write = opcode::WriteFixed::new(device, self.addr, len, buffer);
                        write.offset(offset).rw_flags(flags).ioprio(prio).build()
                    }
                    None => {
                        let write = opcode::Write::new(device, self.addr, len);
                        write.offset(offset).rw_flags(flags).ioprio(prio).build()
                    }
                }
            }
            // The others do not get here.
            (Op::Flush | Op::Discard | Op::WriteZeroes, _) => {
                opcode::Fsync::new(device).flags(types::FsyncFlags::DATASYNC).build()
            }
        }
    }

    /// What an answer of the kernel means; `None`: there is more to do.
    #[inline]
    fn answer(&mut self, result: i32) -> Option<BlkStatus> {
        if result < 0 {
            let again = matches!(-result, libc::EAGAIN | libc::EINTR) && self.retries < MAX_RETRIES;
            self.retries += u8::from(again);
            return (!again).then(|| BlkStatus::from_errno(-result));
        }
        if !self.op.has_data() || result as u32 >= self.left {
            return Some(BlkStatus::Ok);
        }
        if result == 0 {
            // The end of the device, which the job was told of.
            return Some(BlkStatus::IoErr);
        }
        let part = result as u32;
        self.offset += u64::from(part);
        self.left -= part;
        self.addr = self.addr.wrapping_add(part as usize);
        None
    }
}

// SAFETY: the address in a slot is for the kernel; it is not followed here.
unsafe impl Send for Slot {}

const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKZEROOUT: libc::c_ulong = 0x127f;

/// Discards or zeroes a range, and waits for it.
fn zap(device: &OwnedFd, op: Op, offset: u64, len: u64) -> BlkStatus {
    let request = if op == Op::Discard { BLKDISCARD } else { BLKZEROOUT };
    let range = [offset, len];
    // SAFETY: both requests read two u64 from the address.
    match unsafe { libc::ioctl(device.as_raw_fd(), request as _, range.as_ptr()) } {
        0 => BlkStatus::Ok,
        _ => BlkStatus::from_errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::bio::IoPrio;

    fn slot(op: Op) -> Slot {
        Slot { op, offset: 512, left: 4096, ..Slot::new(std::ptr::without_provenance_mut(4096)) }
    }

    /// The address that a short transfer had moved stayed with the slot: the next I/O reached into the buffer behind its own.
    #[test]
    fn io_after_a_short_transfer_uses_its_whole_buffer() {
        let mut s = slot(Op::Read);
        assert_eq!((s.answer(1024), s.answer(3072)), (None, Some(BlkStatus::Ok)));
        let prio = IoPrio::default();
        let io = IoReq {
            slot: 0,
            len_bytes: 4096,
            offset_bytes: 0,
            op: Op::Read,
            fill: false,
            commit: true,
            flags: OpFlags::NONE,
            prio,
        };
        s.begin(&io);
        assert_eq!((s.addr.addr(), s.left), (4096, 4096));
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() {
        let mut s = slot(Op::Write);
        assert_eq!(s.answer(1024), None);
        assert_eq!((s.offset, s.left, s.addr.addr()), (1536, 3072, 5120));
        assert_eq!(s.answer(3072), Some(BlkStatus::Ok));
        assert_eq!(slot(Op::Read).answer(0), Some(BlkStatus::IoErr), "the device ends before its size");
    }

    #[test]
    fn what_is_refused_for_the_moment_is_tried_again_so_many_times() {
        let mut s = slot(Op::Read);
        for _ in 0..MAX_RETRIES {
            assert_eq!(s.answer(-libc::EAGAIN), None);
        }
        assert!(matches!(s.answer(-libc::EAGAIN), Some(status) if status != BlkStatus::Ok));
        assert_eq!(slot(Op::Read).answer(-libc::EIO), Some(BlkStatus::IoErr));
        assert_eq!(slot(Op::Flush).answer(0), Some(BlkStatus::Ok));
    }
}
