// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Block devices of the kernel, used by a job thread through an io_uring of its own, without our block layer.
//!
//! Guarantees: a short transfer is continued. What the job submits together goes to the kernel in one call, as with fio, because the
//! kernel plugs and merges per call. Only at a depth of one does the submission share its call with the wait. A device that does not
//! complete its I/O when the run is to stop counts as stuck. Does not do: polled I/O (`hipri`), discards without waiting (BLKDISCARD, as
//! fio's engine).
//!
//! Guarantees to the kernel: the buffers that entries point to belong to the pools. The pools outlive the ring, or are leaked together
//! with it.

use super::checkpoint::Live;
use super::job_loop::JobDevice;
use super::waiter::STOP_CHECK;
use crate::clock;
use crate::error::{Error, Result};
use crate::mem::{BufferPool, Regions};
use blk::bio::{Bio, Op, OpFlags};
use blk::status::BlkStatus;
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of entries of a submission ring (IORING_MAX_ENTRIES).
const MAX_SQ_ENTRIES: u32 = 32768;
/// Retries of an I/O after EAGAIN or EINTR before the job gets the error.
const MAX_RETRIES: u8 = 8;
/// How long a device may take to complete the I/O in flight when the run is to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel registers no larger buffer.
const MAX_REGISTERED_BYTES: usize = 1 << 30;

/// The devices of a thread that is ready to run.
pub(super) struct DirectDevices {
    /// One device for each target of the load.
    pub(super) devices: Vec<Arc<OwnedFd>>,
    pub(super) regions: Arc<Regions>,
}

/// The I/O of a slot.
#[derive(Clone, Copy)]
struct Slot {
    op: Op,
    flags: OpFlags,
    ioprio: u16,
    offset: u64,
    left: u32,
    /// Number of its device.
    device: u32,
    /// Index of its buffers among those that are registered with the ring.
    registered: Option<u16>,
    /// Start of the slot's buffer.
    base: *mut u8,
    /// Where the rest of the data is: behind `base` after a short transfer.
    addr: *mut u8,
    retries: u8,
}

/// The devices of a job thread and its io_uring: see the module's text.
pub(super) struct Direct {
    ring: IoUring,
    devices: Vec<Arc<OwnedFd>>,
    /// Indexed by the slot's number through all volumes: the slot's buffer and its I/O.
    slots: Vec<Slot>,
    /// I/Os in flight at the kernel, or in the submission ring.
    out: u32,
    /// The submission ring holds entries that were not submitted yet.
    is_unsubmitted: bool,
    /// A wait has already made the kernel post its completions.
    is_polled: bool,
    /// I/Os that completed without the ring.
    ended: VecDeque<(u32, BlkStatus)>,
    live: Arc<Live>,
    /// Start of the patience when the run is to stop: the first check for stuck I/O, or the last completion after it.
    stopping: Option<Instant>,
    /// Time of the last poll.
    now: Instant,
    /// Keeps the buffers mapped that the kernel knows.
    _regions: Arc<Regions>,
}

impl DirectDevices {
    /// Opens the devices for the calling thread, with its buffers in these pools, one for each volume of the load.
    pub(super) fn open(self, pools: &mut [BufferPool], batch: u32, live: Arc<Live>) -> Result<Direct> {
        clock::sleep_precisely();
        let all: u32 = pools.iter().map(BufferPool::slots).sum();
        let ring = build(all, batch)
            .map_err(|e| Error::os(e, format!("cannot make an io_uring for {all} I/Os; lower iodepth")))?;
        let devices: Vec<_> = self.devices.iter().map(AsRawFd::as_raw_fd).collect();
        ring.submitter()
            .register_files(&devices)
            .map_err(|e| Error::os(e, "cannot register a device with io_uring"))?;
        let (mut slots, mut buffers) = (Vec::new(), Vec::new());
        for pool in pools {
            let mut region = None;
            let first_slot = slots.len();
            for slot in 0..pool.slots() {
                let data = pool.lend(slot);
                let span = self.regions.resolve(data, pool.slot_bytes());
                let addr = span.map_err(|_| Error::usage("a buffer of a job is not in its region"))?.as_ptr();
                // SAFETY: nothing was submitted with it.
                unsafe { pool.give_back(slot) };
                slots.push(Slot::new(addr));
                region = self.regions.get(data.region());
            }
            if let Some(region) = region.filter(|r| r.len() <= MAX_REGISTERED_BYTES) {
                slots[first_slot..].iter_mut().for_each(|s| s.registered = Some(buffers.len() as u16));
                buffers.push(libc::iovec { iov_base: region.base().cast(), iov_len: region.len() });
            }
        }
        // SAFETY: the regions live as long as their table, which is dropped after the ring, or never.
        let known = buffers.is_empty() || unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        if !known {
            slots.iter_mut().for_each(|s| s.registered = None);
        }
        Ok(Direct {
            ring,
            devices: self.devices,
            slots,
            out: 0,
            is_unsubmitted: false,
            is_polled: false,
            ended: VecDeque::new(),
            live,
            stopping: None,
            now: Instant::ZERO,
            _regions: self.regions,
        })
    }
}

/// Makes a ring that only the calling thread uses. Sets the flags that make it faster if the kernel knows them: SINGLE_ISSUER (Linux 6.0)
/// and DEFER_TASKRUN (6.1).
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

impl Direct {
    fn push(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].entry().user_data(u64::from(slot));
        // SAFETY: what the entry points to is a buffer that is lent until its completion is taken (module's text).
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0, None);
        }
        self.is_unsubmitted = true;
    }

    /// Submits what is in the ring, and waits for `want` completions, but not longer than `timeout`. Entries that the kernel does not
    /// take now are submitted by the next call.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        let submitter = self.ring.submitter();
        let _ = match timeout {
            Some(limit) if want > 0 => {
                let limit = types::Timespec::from(std::time::Duration::from_nanos(limit.as_ns()));
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&limit))
            }
            _ => submitter.submit_and_wait(want),
        };
        self.is_unsubmitted = !self.ring.submission().is_empty();
    }

    fn tell_in_flight(&self) {
        self.live.in_flight.store(u64::from(self.out), Ordering::Relaxed);
    }

    #[inline]
    fn ended(&self, slot: u32, status: BlkStatus) -> Done {
        Done { user_data: u64::from(slot), op: self.slots[slot as usize].op, status }
    }
}

impl JobDevice for Direct {
    const ENDS_IN_SUBMIT: bool = false;
    const PLUGS_SINGLE: bool = true;

    fn plug(&mut self, _target: usize, _is_first: bool, _nr_ios: u32) {}

    #[inline]
    fn submit(&mut self, target: usize, bio: &Bio, _now: Instant) -> std::result::Result<(), SubmitError> {
        let number = bio.user_data as u32;
        let slot = &mut self.slots[number as usize];
        slot.begin(bio, target as u32);
        if matches!(bio.op, Op::Discard | Op::WriteZeroes) {
            let (offset, len) = (slot.offset, u64::from(slot.left));
            // Earlier I/Os of the batch must not wait for this one.
            self.enter(0, None);
            self.ended.push_back((number, zap(&self.devices[target], bio.op, offset, len)));
        } else {
            self.out += 1;
            self.push(number);
        }
        Ok(())
    }

    fn flush_plug(&mut self, _now: Instant) {
        self.enter(0, None);
    }

    #[inline]
    fn finish_plug(&mut self, _now: Instant) {
        // At a depth of one, the wait that follows submits the I/O.
        if self.slots.len() > 1 {
            self.enter(0, None);
        }
        self.tell_in_flight();
    }

    #[inline]
    fn poll(&mut self, now: Instant) {
        if self.is_unsubmitted || !self.is_polled {
            self.enter(0, None);
        }
        (self.is_polled, self.now) = (false, now);
    }

    /// Does not look for completions: that would take the kernel's time, which is measured here.
    fn spin(&mut self, now: Instant) {
        if self.is_unsubmitted {
            self.poll(now);
        }
        std::hint::spin_loop();
    }

    #[inline]
    fn reap_one(&mut self) -> Option<Done> {
        if let Some((slot, status)) = self.ended.pop_front() {
            return Some(self.ended(slot, status));
        }
        loop {
            let entry = self.ring.completion().next()?;
            let slot = entry.user_data() as u32;
            if let Some(status) = self.slots[slot as usize].answer(entry.result()) {
                self.out -= 1;
                // A slow disk that makes progress is not given up.
                self.stopping = self.stopping.map(|_| self.now);
                self.tell_in_flight();
                return Some(self.ended(slot, status));
            }
            self.push(slot);
        }
    }

    #[inline]
    fn is_ready(&mut self) -> bool {
        !self.ended.is_empty() || !self.ring.completion().is_empty()
    }

    fn outstanding(&self) -> u32 {
        self.out + self.ended.len() as u32
    }

    fn waits_first(&self) -> bool {
        true
    }

    #[inline]
    fn wait(&mut self, min: u32, timeout: Option<Duration>) {
        let timeout = timeout.unwrap_or(STOP_CHECK);
        if self.out > 0 {
            self.enter(min as usize, Some(timeout));
            self.is_polled = true;
        } else {
            std::thread::sleep(std::time::Duration::from_nanos(timeout.as_ns()));
        }
    }

    fn is_stuck(&mut self, now: Instant) -> bool {
        self.out > 0 && now.since(*self.stopping.get_or_insert(now)) > PATIENCE
    }
}

impl Slot {
    /// Makes a slot with its buffer at `base`.
    fn new(base: *mut u8) -> Slot {
        let (op, flags) = (Op::Flush, OpFlags::NONE);
        Slot { op, flags, ioprio: 0, offset: 0, left: 0, device: 0, registered: None, base, addr: base, retries: 0 }
    }

    /// Begins another I/O in the slot, on a device.
    #[inline]
    fn begin(&mut self, bio: &Bio, device: u32) {
        let ioprio = bio.prio.value();
        let std::ops::Range { start: offset, end } = bio.bytes();
        let (left, addr, retries) = ((end - offset) as u32, self.base, 0);
        *self = Slot { op: bio.op, flags: bio.flags, ioprio, offset, left, device, addr, retries, ..*self };
    }

    /// Returns the submission entry for the rest of the I/O.
    #[inline]
    fn entry(&self) -> squeue::Entry {
        let (offset, len, prio) = (self.offset, self.left, self.ioprio);
        let device = types::Fixed(self.device);
        match (self.op, self.registered) {
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
            // The I/O reaches beyond the end of the device, whose size the job knows.
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
    use blk::bio::DataRef;
    use blk::id::Sector;

    fn slot(op: Op) -> Slot {
        Slot { op, offset: 512, left: 4096, ..Slot::new(std::ptr::without_provenance_mut(4096)) }
    }

    /// The address that a short transfer had moved stayed with the slot: the next I/O reached into the buffer behind its own.
    #[test]
    fn io_after_a_short_transfer_uses_its_whole_buffer() {
        let mut s = slot(Op::Read);
        assert_eq!((s.answer(1024), s.answer(3072)), (None, Some(BlkStatus::Ok)));
        s.begin(&Bio::read(Sector(0), 8, DataRef::NONE), 0);
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
