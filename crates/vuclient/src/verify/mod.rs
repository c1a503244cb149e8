// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes, reads back, zeroes, discards, flushes and compares data, on several queues at once.
//!
//! Guarantees: every block that was written or zeroed is compared at least once, at the end. Memory that a read must not touch (the gaps
//! between its segments) is compared, too. Requests of one queue that are in flight together never overlap, so the expected content is
//! always known. The requests depend on the seed only, their timing on the server. [`Verifier`] keeps the expected content across
//! connections. After a server crash, writes that were in flight may or may not be on the disk. Acknowledged writes must be, if the
//! server's cache survived or a flush followed them.
//!
//! Needs the area to itself: no other client may write to it. Does not test reads beyond the end.
//! Source: virtio 1.2, 5.2.6.1 and 5.2.6.2 (after DISCARD: the old data or zeroes, as all servers we know of; after
//! WRITE_ZEROES: zeroes).

pub mod pattern;
pub mod plan;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::disk::Info;
use crate::disk::{Disk, MAX_RING, Settings};
use crate::error::Error;
use pattern::BlockState;
use plan::Limits;
use queue::{Runner, Setup};

/// Maximum number of requests in flight per queue: their segments have to fit into a ring.
pub const MAX_IODEPTH: u32 = 15;

/// Maximum number of virtqueues: each needs memory for its requests.
const MAX_QUEUES: u32 = 64;

/// What to verify.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Virtqueues, each with its own part of the disk.
    pub queues: u32,
    /// Bytes of the disk to use, from its beginning; 0: all.
    pub size: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Requests in flight per queue, up to [`MAX_IODEPTH`].
    pub iodepth: u32,
    /// Requests per queue.
    pub requests: u64,
    /// Duration, instead of a number of requests.
    pub time: Option<Duration>,
    /// While this is true, the load continues beyond `requests`, so that it lasts as long as another operation of the caller.
    pub keep_going: Option<Arc<AtomicBool>>,
    /// Spin on the used ring instead of waiting for calls.
    pub poll: bool,
    /// Timeout: the longest wait for a completion from the server.
    pub patience: Duration,
}

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            queues: 1,
            size: 0,
            seed: 1,
            iodepth: 8,
            requests: 1000,
            time: None,
            keep_going: None,
            poll: false,
            patience: Duration::from_secs(30),
        }
    }
}

/// Requests and bytes of a verification.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct VerifyReport {
    /// Reads, including those of the final comparison.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Writes of zeroes.
    pub write_zeroes: u64,
    /// Discards.
    pub discards: u64,
    /// Flushes, without those after FUA writes.
    pub flushes: u64,
    /// Bytes compared with their expected content; blocks of unknown content are not counted.
    pub compared: u64,
}

impl VerifyReport {
    fn add(&mut self, other: &VerifyReport) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.write_zeroes += other.write_zeroes;
        self.discards += other.discards;
        self.flushes += other.flushes;
        self.compared += other.compared;
    }
}

/// Runs one verification from beginning to end.
///
/// # Errors
/// [`Error::Difference`] (with the seed) when data is wrong, others when the server refuses, fails a
/// request or stops answering.
pub fn verify(socket: &str, options: &VerifyOptions) -> Result<VerifyReport, Error> {
    Verifier::new(options.clone())?.run(socket)
}

/// A queue's part of the disk and its expected content.
pub(crate) struct Area {
    /// Number of its first block on the disk.
    first: u64,
    states: Vec<BlockState>,
    /// Generation of the last write.
    generation: pattern::Generation,
}

/// Verifies a disk over any number of connections; keeps the expected content between them.
pub struct Verifier {
    options: VerifyOptions,
    areas: Vec<Area>,
    block: u64,
    runs: u64,
}

/// What a run does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Everything,
    OnlyCompare,
}

impl Verifier {
    /// Makes a verifier to which all content is still unknown.
    ///
    /// # Errors
    /// Options out of range.
    pub fn new(options: VerifyOptions) -> Result<Verifier, Error> {
        let VerifyOptions { queues, iodepth, .. } = options;
        if queues == 0 || queues > MAX_QUEUES {
            return Err(Error::Usage(format!("queues={queues}: must be 1..={MAX_QUEUES}")));
        }
        if iodepth == 0 || iodepth > MAX_IODEPTH {
            return Err(Error::Usage(format!("iodepth={iodepth}: must be 1..={MAX_IODEPTH}")));
        }
        Ok(Verifier { options, areas: Vec::new(), block: 0, runs: 0 })
    }

    /// Connects, runs the requests, compares all known content, and disconnects. The next run makes other requests from the same seed.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn run(&mut self, socket: &str) -> Result<VerifyReport, Error> {
        self.connect(socket, Part::Everything)
    }

    /// Connects and compares all known content.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn compare(&mut self, socket: &str) -> Result<VerifyReport, Error> {
        self.connect(socket, Part::OnlyCompare)
    }

    fn connect(&mut self, socket: &str, part: Part) -> Result<VerifyReport, Error> {
        let VerifyOptions { queues, poll, seed, patience, .. } = self.options;
        let each = Limits::SLOT * self.options.iodepth as usize;
        let memory = each * queues as usize;
        let settings = Settings { queues, ring: MAX_RING, poll, read_only: false, memory, patience };
        let mut disk = Disk::open(socket, &settings)?;
        self.lay_out(&disk.info)?;
        let queues = std::mem::take(&mut disk.queues);
        let mut setups = Vec::new();
        for (index, (queue, area)) in queues.into_iter().zip(&mut self.areas).enumerate() {
            let limits = Limits::of(&disk.info, area.states.len() as u64);
            let (memory, base) = (disk.memory.clone(), index * each);
            let (iodepth, stream) = (self.options.iodepth, self.runs << 16 | index as u64);
            setups.push(Setup { index, queue, memory, base, area, limits, seed, stream, iodepth, patience });
        }
        self.runs += 1;
        // A failure on one queue stops the others, so that the first difference is reported.
        let stop = AtomicBool::new(false);
        let options = &self.options;
        let results: Vec<Result<VerifyReport, Error>> = std::thread::scope(|scope| {
            let stop = &stop;
            let handles: Vec<_> =
                setups.into_iter().map(|setup| scope.spawn(move || drive(setup, options, part, stop))).collect();
            handles.into_iter().map(|h| h.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let mut sum = VerifyReport::default();
        for result in results {
            sum.add(&result?);
        }
        Ok(sum)
    }

    /// Divides the disk between the queues at the first connection; later ones must fit.
    fn lay_out(&mut self, info: &Info) -> Result<(), Error> {
        let block = info.block_size.max(512);
        let size = if self.options.size == 0 { info.capacity } else { self.options.size };
        if size > info.capacity {
            let capacity = info.capacity;
            return Err(Error::Usage(format!("size={size}: must be at most {capacity}, the disk's capacity")));
        }
        if !self.areas.is_empty() {
            let is_same = self.block == block;
            return is_same.then_some(()).ok_or_else(|| Error::Server("the disk's block size changed".into()));
        }
        let each = size / block / u64::from(self.options.queues);
        if each == 0 {
            let queues = self.options.queues;
            return Err(Error::Usage(format!("size={size}: must hold a block of {block} for each of {queues} queues")));
        }
        self.block = block;
        let areas = (0..u64::from(self.options.queues)).map(|i| Area {
            first: i * each,
            states: vec![BlockState::UNKNOWN; each as usize],
            generation: pattern::FIRST - 1,
        });
        self.areas.extend(areas);
        Ok(())
    }
}

/// One queue's thread.
fn drive(setup: Setup<'_>, options: &VerifyOptions, part: Part, stop: &AtomicBool) -> Result<VerifyReport, Error> {
    let mut runner = Runner::new(setup);
    let end = options.time.map(|time| Instant::now() + time);
    let mut done = 0;
    let is_wanted = |done: u64| {
        let is_time = match end {
            Some(end) => Instant::now() < end,
            None => done < options.requests || options.keep_going.as_ref().is_some_and(|go| go.load(Ordering::Relaxed)),
        };
        part == Part::Everything && is_time && !stop.load(Ordering::Relaxed)
    };
    let mut result = Ok(());
    while result.is_ok() && is_wanted(done) {
        result = runner.step();
        done += 1;
    }
    let result = result.and_then(|()| runner.drain());
    let result = if stop.load(Ordering::Relaxed) { result } else { result.and_then(|()| runner.compare_all()) };
    if result.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    result.map(|()| runner.report())
}
