// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs with several files: which file the next I/O goes to (`file_service_type`), and when a file is done.
//!
//! Guarantees: the order of files is fio's. Each file has its own positions and random map; random numbers, directions and
//! sizes belong to the thread. A file is done when no further offset can be chosen in it, and the pass is over when all files
//! are. With a skewed choice of files, a file that is done starts over instead. No more than `openfiles` files are open:
//! only those get I/O, and a file that is done makes room for another one when its I/Os in flight have completed.
//!
//! Open and closed are states of the choice only. Whether a file has a descriptor is up to the driver.
//!
//! Does not do: jobs with one file, which never come here.

use super::issue::Chosen;
use super::{FileTarget, JobThread, Next, Phase, ThreadId};
use crate::error::SetupError;
use crate::job::{Extent, FileService, Job};
use crate::offsets::skewed::Skewed;
use crate::offsets::{FileOffsets, Offsets, Region};
use crate::rng::{FioRng, Purpose};
use blk::time::Instant;
use std::ops::Range;

/// fio draws files by ranges of this many numbers.
const RANGE_BITS: u32 = 10;

#[derive(Clone, Debug)]
enum Service {
    RoundRobin,
    Sequential,
    Random(FioRng),
    Skewed(Box<Skewed>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OpenState {
    #[default]
    Closed,
    Open,
    /// Closed as soon as its I/Os in flight have completed.
    Closing,
}

#[derive(Clone, Copy, Debug, Default)]
struct FileState {
    open: OpenState,
    done: bool,
}

/// What [`Files::take_turn`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// I/O goes to this file.
    File(usize),
    /// The file whose turn it is cannot be opened.
    Busy,
    /// All files are done.
    Over,
}

/// The files of a job thread that has more than one.
#[derive(Clone, Debug)]
pub(super) struct Files {
    service: Service,
    /// The service before the first draw.
    first_service: Service,
    /// I/Os before the next file.
    ios: u32,
    /// I/Os that the current file still gets.
    left: u32,
    current: Option<usize>,
    /// The next file by round robin.
    next: usize,
    open_max: usize,
    nr_open: usize,
    nr_done: usize,
    nr_closing: usize,
    /// A file that is done starts over.
    restarts: bool,
    /// Closing depends on the I/Os in flight.
    waits_to_close: bool,
    states: Vec<FileState>,
    /// Of all files but the loaded one.
    parked: Vec<FileOffsets>,
    /// The file whose state [`Offsets`] holds.
    loaded: usize,
    /// `loaded` was chosen, and its I/O is not issued yet.
    is_chosen: bool,
    /// Where each file begins if all lie one after the other.
    starts: Vec<u64>,
    /// Files that were closed since the last I/O.
    barren: usize,
    /// The files are parts of one target.
    share_target: bool,
    /// File of the I/O in each slot.
    of_slot: Vec<u32>,
    /// Files that are still to be flushed between the parts of a job.
    to_flush: Range<usize>,
}

impl Files {
    fn new(job: &Job, id: ThreadId, targets: &[FileTarget], parked: Vec<FileOffsets>) -> Files {
        let n = targets.len();
        let seeds = job.seeds(id.entropy, id.number);
        let service = match &job.file_service {
            FileService::RoundRobin => Service::RoundRobin,
            FileService::Sequential => Service::Sequential,
            FileService::Random => Service::Random(seeds.rng(Purpose::NextFile)),
            FileService::Skewed(distribution) => {
                let seed = seeds.of(Purpose::NextFile) as u32;
                let skewed = Skewed::new(distribution, (n as u64) << RANGE_BITS, seed);
                Service::Skewed(Box::new(skewed.expect("the distribution is a skewed one")))
            }
        };
        let open_max = if job.openfiles == 0 { n } else { n.min(job.openfiles as usize) };
        let restarts = job.file_service.restarts_files();
        let starts = targets.iter().scan(0u64, |end, t| Some(std::mem::replace(end, end.saturating_add(t.bytes))));
        Files {
            first_service: service.clone(),
            service,
            ios: job.file_service_ios,
            left: 0,
            current: None,
            next: 0,
            open_max,
            nr_open: 0,
            nr_done: 0,
            nr_closing: 0,
            restarts,
            waits_to_close: restarts || open_max < n,
            states: vec![FileState::default(); n],
            parked,
            loaded: 0,
            is_chosen: false,
            starts: starts.collect(),
            barren: 0,
            share_target: false,
            of_slot: vec![0; job.iodepth as usize],
            to_flush: 0..0,
        }
    }

    /// Where `offset` of the loaded file is if all files lie one after the other.
    pub fn address(&self, offset: u64) -> u64 {
        self.starts[self.loaded] + offset
    }

    /// The file and offset of an address.
    pub fn locate(&self, address: u64) -> (usize, u64) {
        let file = self.starts.partition_point(|&start| start <= address) - 1;
        (file, address - self.starts[file])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// The file of the I/O that is chosen now.
    pub fn current(&self) -> u32 {
        self.loaded as u32
    }

    /// The file of the I/O in a slot.
    pub fn of(&self, slot: u32) -> u32 {
        self.of_slot[slot as usize]
    }

    /// Begins another pass: all files closed, none done. The round robin continues.
    pub fn start_pass(&mut self, reseed: bool) {
        self.states.fill(FileState::default());
        (self.nr_open, self.nr_done, self.nr_closing, self.barren) = (0, 0, 0, 0);
        self.is_chosen = false;
        if reseed {
            self.service = self.first_service.clone();
        }
    }

    fn take_turn(&mut self) -> Turn {
        // fio never ends if no file that starts over has room for an I/O.
        let is_hopeless = self.restarts && self.barren > 1000 + 64 * self.states.len();
        if self.nr_done == self.states.len() || is_hopeless {
            return Turn::Over;
        }
        if let Some(file) = self.current.filter(|&f| self.states[f].open == OpenState::Open) {
            if matches!(self.service, Service::Sequential) {
                return Turn::File(file);
            }
            if self.left > 0 {
                self.left -= 1;
                return Turn::File(file);
            }
        }
        let turn = match self.service {
            Service::RoundRobin | Service::Sequential => self.next_in_turn(),
            _ => self.draw(),
        };
        if let Turn::File(file) = turn {
            self.current = Some(file);
            // 0 I/Os per turn never end.
            self.left = self.ios.wrapping_sub(1);
        }
        turn
    }

    fn next_in_turn(&mut self) -> Turn {
        for _ in 0..self.states.len() {
            let file = self.next;
            self.next = (file + 1) % self.states.len();
            let FileState { open, done } = self.states[file];
            match open {
                _ if done => {}
                OpenState::Open => return Turn::File(file),
                OpenState::Closed => return if self.has_room() { Turn::File(file) } else { Turn::Busy },
                OpenState::Closing => {}
            }
        }
        Turn::Over
    }

    fn draw(&mut self) -> Turn {
        loop {
            let file = match &mut self.service {
                Service::Random(rng) => rng.below(self.states.len() as u64),
                Service::Skewed(skewed) => skewed.next_unscattered() >> RANGE_BITS,
                Service::RoundRobin | Service::Sequential => unreachable!("files in turn are not drawn"),
            } as usize;
            let FileState { open, done } = self.states[file];
            match open {
                _ if done => {}
                OpenState::Open => return Turn::File(file),
                OpenState::Closed if self.has_room() => return Turn::File(file),
                // fio draws again from a closing file, and hangs if it is the only one that is ever drawn.
                OpenState::Closed | OpenState::Closing => return Turn::Busy,
            }
        }
    }

    fn has_room(&self) -> bool {
        self.nr_open < self.open_max
    }

    /// Makes `offsets` those of `file`, which is opened if it is closed. An opened file starts over.
    fn load(&mut self, file: usize, offsets: &mut Offsets) {
        if file != self.loaded {
            std::mem::swap(offsets.file_mut(), &mut self.parked[self.loaded]);
            std::mem::swap(offsets.file_mut(), &mut self.parked[file]);
            self.loaded = file;
        }
        let state = &mut self.states[file];
        if state.open == OpenState::Closed {
            state.open = OpenState::Open;
            self.nr_open += 1;
            offsets.start_pass();
        }
    }

    /// The loaded file has no further offset. `is_busy`: it has I/Os in flight.
    fn close(&mut self, offsets: &mut Offsets, is_busy: bool) {
        self.barren += 1;
        let state = &mut self.states[self.loaded];
        if is_busy && self.waits_to_close {
            state.open = OpenState::Closing;
            self.nr_closing += 1;
        } else {
            state.open = OpenState::Closed;
            self.nr_open -= 1;
        }
        if self.restarts {
            offsets.start_pass();
        } else {
            state.done = true;
            self.nr_done += 1;
        }
    }
}

fn trace_too_long(job: &Job, reach: u64, target_bytes: u64) -> SetupError {
    let rule = format!("is where the I/O of the trace ends, and the target has {target_bytes} bytes");
    let remedy = "set replay_scale, or replay onto a larger target (replay_redirect)";
    SetupError::new(&job.name, "read_iolog", reach, rule, remedy)
}

impl JobThread {
    /// Makes the thread `id` of `job` on its files, of which there are as many as [`Job::nr_files`].
    ///
    /// # Panics
    /// When there is no target.
    pub fn with_files(job: &Job, id: ThreadId, targets: &[FileTarget]) -> Result<JobThread, SetupError> {
        let seeds = job.seeds(id.entropy, id.number);
        let mut parked = Vec::with_capacity(targets.len());
        for (file, target) in targets.iter().enumerate() {
            if let Some(Extent::Bytes(reach)) = target.share.size.filter(|_| job.replay.is_some())
                && reach > target.bytes
            {
                return Err(trace_too_long(job, reach, target.bytes));
            }
            let region = Region::resolve(job, target.share, id.instance, target.bytes)?;
            let name = job.file_name(id.instance, file, &|_| false);
            parked.push(FileOffsets::new(job, region, (&name, target.bytes), seeds)?);
        }
        let first = std::mem::replace(&mut parked[0], FileOffsets::nothing());
        let files = (targets.len() > 1).then(|| Box::new(Files::new(job, id, targets, Vec::new())));
        let mut thread = JobThread::on(job, id, first, &parked[1..], files)?;
        if let Some(files) = &mut thread.files {
            files.parked = parked;
        }
        Ok(thread)
    }

    /// Makes the thread `id` of `job`. Its files are parts of one target of `target_bytes`, one after the other.
    pub fn on_one_target(job: &Job, id: ThreadId, target_bytes: u64) -> Result<JobThread, SetupError> {
        let shares = job.file_shares(id.entropy, id.number, |_| 0);
        if let [share] = shares[..] {
            return JobThread::with_files(job, id, &[FileTarget { bytes: target_bytes, share }]);
        }
        let even = (target_bytes / shares.len() as u64) & !511;
        // Each begins at a block of its own.
        let bytes = |share| job.reach(share, id.instance).map_or(even, |end| end.saturating_add(4095) & !4095);
        let targets: Vec<FileTarget> = shares.iter().map(|&share| FileTarget { bytes: bytes(share), share }).collect();
        let all = targets.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
        if all > target_bytes && job.replay.is_some() {
            return Err(trace_too_long(job, all, target_bytes));
        }
        if all > target_bytes {
            let rule = format!("{} files need {all} bytes, and the target has {target_bytes}", shares.len());
            return Err(SetupError::new(&job.name, "nrfiles", shares.len() as u64, rule, "lower size or nrfiles"));
        }
        let mut thread = JobThread::with_files(job, id, &targets)?;
        if let Some(files) = &mut thread.files {
            files.share_target = true;
        }
        Ok(thread)
    }

    /// The next step inside a pass of a job with several files, if no pause and no limit stands in the way. `None`: ask again.
    #[inline(never)]
    pub(super) fn next_of_files(&mut self, now: Instant) -> Option<Next> {
        if let Some(held) = self.issuing.held.take() {
            return Some(self.issue_to_file(held, now));
        }
        loop {
            if let Err(busy) = self.choose_file(now)? {
                return Some(busy);
            }
            if std::mem::take(&mut self.issuing.flush_due) {
                let file = self.files_mut().loaded;
                self.files_mut().is_chosen = false;
                return Some(self.flush_file(file, now));
            }
            let (dir, due_ns) = match self.choose_dir(now) {
                Ok(chosen) => chosen,
                Err(wait) => return Some(wait),
            };
            if let Some((pick, len)) = self.choose_place(dir) {
                let len = self.offsets.issued(dir, pick, len) as u32;
                let files = self.files_mut();
                (files.is_chosen, files.barren) = (false, 0);
                let chosen = Chosen { dir, offset: pick.offset, len, due_ns };
                if self.plan.dry_run {
                    return self.skip(chosen, now);
                }
                if !self.holds_data(&chosen) {
                    return None;
                }
                return Some(self.issue_to_file(chosen, now));
            }
            let file = self.files_mut().loaded;
            let is_busy = self.has_io_at(file);
            let files = self.files.as_mut().expect("a job with several files");
            files.is_chosen = false;
            files.close(&mut self.offsets, is_busy);
            self.log_open(file, false, now);
        }
    }

    /// Loads the file of the next I/O. `None`: the pass is over. `Err`: no file can be opened now.
    fn choose_file(&mut self, now: Instant) -> Option<Result<(), Next>> {
        if self.files_mut().is_chosen {
            return Some(Ok(()));
        }
        loop {
            self.finish_closing();
            match self.files_mut().take_turn() {
                Turn::File(file) => {
                    let files = self.files.as_mut().expect("a job with several files");
                    files.load(file, &mut self.offsets);
                    files.is_chosen = true;
                    self.log_open(file, true, now);
                    return Some(Ok(()));
                }
                Turn::Busy if self.in_flight > 0 => {
                    let min = self.plan.reap_min.clamp(1, self.in_flight);
                    return Some(Err(Next::Reap { min, max: self.plan.reap_max.max(min) }));
                }
                Turn::Busy => {}
                Turn::Over => {
                    self.phase = Phase::EndOfIo;
                    return None;
                }
            }
        }
    }

    fn files_mut(&mut self) -> &mut Files {
        self.files.as_mut().expect("a job with several files")
    }

    /// Closes the files whose last I/O has completed.
    fn finish_closing(&mut self) {
        let files = self.files_mut();
        if files.nr_closing == 0 {
            return;
        }
        let is_closing = |file: &usize| files.states[*file].open == OpenState::Closing;
        let closing: Vec<usize> = (0..files.states.len()).filter(is_closing).collect();
        for file in closing.into_iter().filter(|&f| !self.has_io_at(f)).collect::<Vec<_>>() {
            let files = self.files_mut();
            files.states[file].open = OpenState::Closed;
            files.nr_closing -= 1;
            files.nr_open -= 1;
        }
    }

    /// Whether an I/O to this file is in flight.
    fn has_io_at(&self, file: usize) -> bool {
        let of_slot = self.files.as_ref().map_or(&[][..], |f| &f.of_slot);
        let mut slots = self.slots.iter().zip(of_slot);
        self.in_flight > 0 && slots.any(|(slot, &of)| of as usize == file && slot.is_in_use())
    }

    fn issue_to_file(&mut self, chosen: Chosen, now: Instant) -> Next {
        let next = self.issue(chosen, now);
        let file = self.files_mut().loaded;
        self.direct(next, file)
    }

    fn flush_file(&mut self, file: usize, now: Instant) -> Next {
        let next = self.hand_out_flush(now);
        self.direct(next, file)
    }

    /// Flushes the first of all files; [`JobThread::flush_next`] flushes the others.
    pub(super) fn flush_all(&mut self, now: Instant) -> Next {
        let Some(files) = &mut self.files else { return self.hand_out_flush(now) };
        files.to_flush = 0..if files.share_target { 1 } else { files.states.len() };
        self.flush_next(now).expect("there are files")
    }

    /// Flushes the next file; `None` after the last.
    pub(super) fn flush_next(&mut self, now: Instant) -> Option<Next> {
        let file = self.files.as_mut()?.to_flush.next()?;
        Some(self.flush_file(file, now))
    }

    /// Directs an I/O to a file.
    pub(super) fn direct(&mut self, next: Next, file: usize) -> Next {
        let Next::Io(mut io) = next else { return next };
        let files = self.files_mut();
        files.of_slot[io.slot as usize] = file as u32;
        if files.share_target {
            io.offset_bytes += files.starts[file];
        } else {
            io.target = file as u32;
        }
        Next::Io(io)
    }
}
