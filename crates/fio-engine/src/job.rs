// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job of fio: its files, mapped to disks, its submitted I/O, and its completed I/O.
//!
//! Guarantees: [`Job::event`] returns each accepted I/O once, with its errno, after one [`Job::reap`]. I/O that completes during
//! submission is reported at once. Gathered I/O (`iodepth_batch_submit` above 1) goes to the disk as one batch at [`Job::commit`]. Needs
//! from callers: all calls come from one thread; an I/O's buffer was lent ([`Job::lend`]) before.

use crate::disks::{self, JobPlace, OpenDisk};
use crate::layout::JobOptions;
use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
use blk::id::Sector;
use blk::submitter::Done;
use blk::time::{Duration, Instant};
use host::clock;
use host::error::Result;
use host::mem::ForeignBuffers;
use host::run::IoChannel;
use std::sync::Arc;

/// How long one wait on a disk lasts when a job has I/O on several disks.
const TURN: Duration = Duration::from_us(50);

/// How often a job polls although it does not need to.
const LOOK_AROUND: Duration = Duration::from_ms(5);

/// An I/O of fio. Its number is returned when it has completed.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    pub id: u64,
    /// The file it is for, as given to [`Job::open`].
    pub file: usize,
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    /// Address of its data.
    pub buf: usize,
    /// Priority in the form of ioprio_set(2).
    pub prio: u16,
}

/// The result of queuing an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// The I/O has completed, with this errno.
    Ended(i32),
    /// The I/O is in flight.
    Taken,
    /// There is no room: commit and reap first.
    Full,
    /// Its buffer was not lent: lend it ([`Job::lend_once`]) first.
    NotLent,
}

struct OpenFile {
    file: usize,
    lane: IoChannel,
    open: Arc<OpenDisk>,
    /// A plug is open.
    plugged: bool,
}

/// See the module's text.
pub struct Job {
    place: JobPlace,
    options: JobOptions,
    files: Vec<OpenFile>,
    /// The file used last.
    last: usize,
    buffers: Option<ForeignBuffers>,
    /// Buffers of single I/Os, outside of the job's buffers.
    strays: Vec<(u64, ForeignBuffers)>,
    /// I/O that completed while another was submitted.
    early: Vec<(u64, i32)>,
    /// The I/Os that the last [`Job::reap`] took.
    events: Vec<(u64, i32)>,
    look_again: Instant,
}

impl Job {
    pub fn new(place: JobPlace, options: JobOptions) -> Job {
        let events = Vec::with_capacity(options.iodepth as usize);
        Job {
            place,
            options,
            files: Vec::new(),
            last: 0,
            buffers: None,
            strays: Vec::new(),
            early: Vec::new(),
            events,
            look_again: Instant::ZERO,
        }
    }

    /// Opens the disk of a file. Files with the same name share a disk.
    ///
    /// # Errors
    /// The disk cannot be opened, or accepts no more submitters.
    pub fn open(&mut self, file: usize, text: &str) -> Result<()> {
        if self.files.iter().any(|w| w.file == file) {
            return Ok(());
        }
        let JobOptions { writes, direct, iodepth, batch, .. } = self.options;
        let open = disks::open(text, writes, direct, iodepth)?;
        let nr_cpus = u32::from(open.disk.queue.config().topology.nr_cpus);
        let cpu = match host::process::allowed_cpus()[..] {
            [one] => one,
            _ => self.place.number,
        };
        // If the other jobs are not known, they may be on any CPU.
        let others = self.place.others.clone().unwrap_or_else(|| (0..nr_cpus).collect());
        // At depth 1, fio waits immediately after it has submitted.
        let lazily = if iodepth == 1 { 2 } else { batch };
        let lane = IoChannel::new(&open.disk, cpu, &others, lazily)?;
        self.files.push(OpenFile { file, lane, open, plugged: false });
        Ok(())
    }

    /// Lends buffers that all I/O may use from now on.
    pub fn lend(&mut self, buffers: ForeignBuffers) {
        self.buffers = Some(buffers);
    }

    /// Lends buffers to the I/O `id` until it has completed.
    pub fn lend_once(&mut self, id: u64, buffers: ForeignBuffers) {
        self.strays.push((id, buffers));
    }

    fn data(&self, io: &Io) -> Option<DataRef> {
        if !io.op.has_data() {
            return Some(DataRef::NONE);
        }
        let stray = || self.strays.iter().find(|(id, _)| *id == io.id).map(|(_, b)| b);
        let len = io.len as usize;
        let found = self.buffers.as_ref().and_then(|b| b.data(io.buf, len));
        found.or_else(|| stray()?.data(io.buf, len))
    }

    /// Submits an I/O, or gathers it with others.
    #[inline]
    pub fn queue(&mut self, io: &Io) -> Queued {
        let bio = match self.bio(io) {
            Ok(bio) => bio,
            Err(refused) => return self.refuse(io, refused),
        };
        if self.files.get(self.last).is_none_or(|w| w.file != io.file) {
            match self.files.iter().position(|w| w.file == io.file) {
                Some(at) => self.last = at,
                None => return self.refuse(io, Queued::Ended(libc::EBADF)),
            }
        }
        let file = &mut self.files[self.last];
        let now = clock::now();
        if now >= self.look_again {
            // An I/O that completes during its submission needs no poll, but other I/O may depend on a poll.
            self.look_again = now + LOOK_AROUND;
            file.lane.sub.poll(now);
        }
        if self.options.batch > 1 && !file.plugged {
            file.lane.sub.start_plug(self.options.batch);
            file.plugged = true;
        }
        let first = file.lane.sub.ready() == 0;
        if file.lane.sub.submit(&bio, now).is_err() {
            return Queued::Full;
        }
        // No completion was ready before, so this one can be that of the I/O just submitted.
        if first
            && file.lane.sub.ready() == 1
            && let Some(done) = file.lane.sub.reap_one()
        {
            let errno = Self::ended(file, &mut self.strays, done);
            if done.user_data == io.id {
                return Queued::Ended(errno);
            }
            self.early.push((done.user_data, errno));
        }
        Queued::Taken
    }

    #[cold]
    fn refuse(&mut self, io: &Io, refused: Queued) -> Queued {
        self.strays.retain(|(id, _)| *id != io.id);
        refused
    }

    /// Returns the bio of an I/O, or the reason why there is none.
    #[inline]
    fn bio(&self, io: &Io) -> std::result::Result<Bio, Queued> {
        if io.op == Op::Flush {
            return Ok(Bio::flush().with_user_data(io.id));
        }
        if io.len == 0
            || !io.offset.is_multiple_of(512)
            || !io.len.is_multiple_of(512)
            || io.len >> 9 > u64::from(u32::MAX)
        {
            disks::say(&format!("{} bytes at {}: a disk takes multiples of 512 (bs, ba, offset)", io.len, io.offset));
            return Err(Queued::Ended(libc::EINVAL));
        }
        let data = self.data(io).ok_or(Queued::NotLent)?;
        let flags = match io.op {
            Op::Write => self.write_flags(),
            _ => OpFlags::NONE,
        };
        let prio = prio(io.prio);
        let (sector, nr_sectors) = (Sector(io.offset >> 9), (io.len >> 9) as u32);
        Ok(Bio { op: io.op, prio, user_data: io.id, ..Bio::read(sector, nr_sectors, data) }.with_flags(flags))
    }

    fn write_flags(&self) -> OpFlags {
        let durable = if self.options.sync { OpFlags::FUA } else { OpFlags::NONE };
        // A thread waits for a direct write, so it is synchronous and exempt from write-back throttling.
        let direct = if self.options.direct { OpFlags::SYNC.union(OpFlags::IDLE) } else { OpFlags::SYNC };
        durable.union(direct)
    }

    /// Submits the gathered I/O to the disks.
    #[inline]
    pub fn commit(&mut self) {
        for file in self.files.iter_mut().filter(|w| w.plugged) {
            file.plugged = false;
            file.lane.sub.finish_plug(clock::now());
        }
    }

    /// Waits until `min` I/Os have completed, and takes up to `max`, which [`Job::event`] returns. Returns how many it took.
    pub fn reap(&mut self, min: usize, max: usize) -> usize {
        self.events.clear();
        let early = self.early.len().min(max);
        self.events.extend(self.early.drain(..early));
        self.take(max);
        while self.events.len() < min && self.out() > 0 {
            self.wait(min - self.events.len());
            self.take(max);
        }
        if min == 0 && self.events.is_empty() {
            self.poll();
            self.take(max);
        }
        self.events.len()
    }

    /// Returns number and errno of the `n`-th I/O that was reaped.
    #[inline]
    pub fn event(&self, n: usize) -> Option<(u64, i32)> {
        self.events.get(n).copied()
    }

    fn out(&self) -> u32 {
        self.files.iter().map(|w| w.lane.sub.outstanding()).sum()
    }

    fn take(&mut self, max: usize) {
        for file in &mut self.files {
            while self.events.len() < max
                && let Some(done) = file.lane.sub.reap_one()
            {
                let errno = Self::ended(file, &mut self.strays, done);
                self.events.push((done.user_data, errno));
            }
        }
    }

    fn poll(&mut self) {
        let now = clock::now();
        self.files.iter_mut().filter(|w| w.lane.sub.outstanding() > 0).for_each(|w| w.lane.sub.poll(now));
    }

    /// Waits for completions and polls for them.
    fn wait(&mut self, min: usize) {
        let busy = self.files.iter().filter(|w| w.lane.sub.outstanding() > 0).count();
        let several = busy > 1;
        for OpenFile { lane, .. } in self.files.iter_mut().filter(|w| w.lane.sub.outstanding() > 0) {
            if !lane.waits_first() {
                lane.sub.poll(clock::now());
                if lane.sub.ready() > 0 {
                    return;
                }
            }
            let (min, limit) = if several { (1, Some(TURN)) } else { (min as u32, None) };
            lane.wait(min, limit);
            lane.sub.poll(clock::now());
            if lane.sub.ready() > 0 {
                return;
            }
        }
    }

    #[inline]
    fn ended(file: &OpenFile, strays: &mut Vec<(u64, ForeignBuffers)>, done: Done) -> i32 {
        if !strays.is_empty() {
            strays.retain(|(id, _)| *id != done.user_data);
        }
        if done.status.is_ok() { 0 } else { Self::failed(file, done) }
    }

    #[cold]
    fn failed(file: &OpenFile, done: Done) -> i32 {
        if let Some(why) = file.open.read_only.as_ref().filter(|_| done.op.is_write()) {
            disks::say(&format!("'{}' is open read-only: {why}", file.open.named.text));
            return libc::EROFS;
        }
        done.status.errno()
    }

    /// Waits for all I/O in flight. These completions are not reported.
    pub fn drain(&mut self) {
        self.commit();
        while self.out() > 0 {
            self.wait(1);
            self.events.clear();
            self.take(usize::MAX);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.drain();
    }
}

/// Converts a priority of ioprio_set(2).
fn prio(bits: u16) -> IoPrio {
    let class = match bits >> 13 {
        1 => IoPrioClass::Rt,
        2 => IoPrioClass::Be,
        3 => IoPrioClass::Idle,
        _ => return IoPrio::default(),
    };
    IoPrio::new(class, (bits & 7) as u8).with_hint(bits >> 3 & IoPrio::MAX_HINT)
}
