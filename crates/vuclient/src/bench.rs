// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closed-loop load on a vhost-user-blk server, with so little overhead that the result measures the server.
//!
//! Guarantees: each queue keeps `iodepth` requests in flight; the warm-up is not counted; a failed request or a missing completion ends the
//! bench with an error. In the loop nothing is allocated, requests and completions go in batches, and no clock is read. With `latency` one
//! clock reading per batch is added: it is the completion time of the batch and the start time of the next requests. Without it only the
//! mean is known, by Little's law.
//! Needs one CPU per client thread plus those of the server; with fewer it measures the scheduler. At depth 1 without `poll` it measures
//! how fast this machine wakes a thread, not the server: compare servers there with `poll`.

use std::time::{Duration, Instant};

use blkio::{Blkioq, ReqFlags};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::completion::Queue;
use crate::disk::Info;
use crate::disk::{Disk, MAX_RING, Settings};
use crate::error::Error;
use crate::phases::BenchReport;
use crate::phases::{self, Pace};
use crate::random::Random;

/// Maximum number of requests per queue: each takes three descriptors of a ring.
pub const MAX_IODEPTH: u32 = MAX_RING / 3;

/// Longest request.
const MAX_BLOCK: u64 = 16 << 20;

/// Maximum number of virtqueues; vhost-user numbers them with a byte.
const MAX_QUEUES: u32 = 256;

/// Maximum number of bytes of memory shared with the server. The bench touches every page of it before it measures.
const MAX_MEMORY: u64 = 1 << 30;

/// Upper bound of the latency histogram.
const MAX_LATENCY: u64 = 60_000_000_000;

/// The access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads, each queue in its own part of the disk.
    Read,
    /// Sequential writes, each queue in its own part of the disk.
    Write,
    /// Random reads over the whole disk.
    RandRead,
    /// Random writes over the whole disk.
    RandWrite,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Virtqueues.
    pub queues: u32,
    /// Requests in flight per queue, up to [`MAX_IODEPTH`].
    pub iodepth: u32,
    /// Measured time.
    pub runtime: Duration,
    /// Time before that, not counted.
    pub warm_up: Duration,
    /// Bytes of a request: a multiple of the device's block.
    pub block: u64,
    /// The access pattern.
    pub pattern: Pattern,
    /// Spin on the used ring instead of waiting for calls.
    pub poll: bool,
    /// All queues from one thread, which then has to poll.
    pub one_thread: bool,
    /// Measure each request's latency.
    pub latency: bool,
    /// Timeout: the longest wait for a completion from the server.
    pub patience: Duration,
    /// CPUs to which the queues' threads are pinned, round robin; empty: the scheduler places them.
    pub cpus: Vec<usize>,
}

impl Default for BenchOptions {
    fn default() -> BenchOptions {
        BenchOptions {
            queues: 1,
            iodepth: 32,
            runtime: Duration::from_secs(2),
            warm_up: Duration::from_millis(300),
            block: 4096,
            pattern: Pattern::RandRead,
            poll: false,
            one_thread: false,
            latency: false,
            patience: Duration::from_secs(10),
            cpus: Vec::new(),
        }
    }
}

/// Runs `options` on the server at `socket`.
///
/// # Errors
/// If an option is out of range, or the server refuses a step of the handshake, fails a request or stops answering.
pub fn bench(socket: &str, options: &BenchOptions) -> Result<BenchReport, Error> {
    check(options)?;
    let ring = (3 * options.iodepth).next_power_of_two().max(128);
    let read_only = matches!(options.pattern, Pattern::Read | Pattern::RandRead);
    let per_queue = options.iodepth as usize * options.block as usize;
    let memory = per_queue * options.queues as usize;
    let BenchOptions { queues, poll, patience, .. } = *options;
    let mut disk = Disk::open(socket, &Settings { queues, ring, poll, read_only, memory, patience })?;
    check_device(options, &disk.info)?;
    let memory = disk.memory.clone();
    // Touch every page before the measurement, so that the client's page faults are not part of it.
    for offset in (0..memory.len()).step_by(4096) {
        memory.slice(offset, 8).copy_from(&[0x5au8; 8]);
    }
    let queues = std::mem::take(&mut disk.queues);
    let workers: Vec<Worker> = queues
        .into_iter()
        .enumerate()
        .map(|(i, queue)| Worker::new(i, queue, memory.address() + i * per_queue, options, &disk.info))
        .collect();
    let groups: Vec<Vec<Worker>> =
        if options.one_thread { vec![workers] } else { workers.into_iter().map(|worker| vec![worker]).collect() };
    let BenchOptions { runtime, warm_up, .. } = *options;
    let tallies = phases::run(groups, &Pace { runtime, warm_up, poll, patience, cpus: options.cpus.clone() })?;
    Ok(phases::report(tallies, f64::from(options.queues * options.iodepth)))
}

fn check(options: &BenchOptions) -> Result<(), Error> {
    let BenchOptions { iodepth, runtime, .. } = *options;
    if iodepth == 0 || iodepth > MAX_IODEPTH {
        let rule = format!("iodepth={iodepth}: must be 1..={MAX_IODEPTH}");
        return Err(Error::Usage(format!("{rule}: each request takes three of a ring's {MAX_RING} descriptors")));
    }
    if options.block == 0 || options.block > MAX_BLOCK {
        return Err(Error::Usage(format!("bs={}: must be 1..={MAX_BLOCK}", options.block)));
    }
    if options.queues == 0 || options.queues > MAX_QUEUES {
        return Err(Error::Usage(format!("queues={}: must be 1..={MAX_QUEUES}", options.queues)));
    }
    let memory = u64::from(iodepth) * u64::from(options.queues) * options.block;
    if memory > MAX_MEMORY {
        let rule = format!("bs * iodepth * queues = {memory}: must be at most {MAX_MEMORY}");
        return Err(Error::Usage(format!("{rule} bytes of shared memory")));
    }
    if runtime.is_zero() {
        return Err(Error::Usage("runtime=0: must be more than 0 seconds".into()));
    }
    if options.one_thread && !options.poll {
        return Err(Error::Usage("one-thread: a thread cannot wait for several queues' calls; add poll".into()));
    }
    Ok(())
}

fn check_device(options: &BenchOptions, info: &Info) -> Result<(), Error> {
    let BenchOptions { block, queues, .. } = *options;
    if !block.is_multiple_of(info.block_size.max(512)) {
        let unit = info.block_size.max(512);
        return Err(Error::Usage(format!("bs={block}: must be a multiple of {unit}, the device's block")));
    }
    if info.max_segment_len != 0 && block > info.max_segment_len {
        let most = info.max_segment_len;
        return Err(Error::Usage(format!("bs={block}: must be at most {most}, the device's longest segment")));
    }
    if info.capacity / block < u64::from(queues) {
        let capacity = info.capacity;
        return Err(Error::Usage(format!("bs={block}: the disk's {capacity} bytes must hold a block per queue")));
    }
    Ok(())
}

/// One queue and its load.
struct Worker {
    queue: Queue,
    load: Load,
    ended: u64,
    batches: u64,
    in_flight: usize,
    iodepth: usize,
}

/// Where the next request goes.
struct Load {
    pattern: Pattern,
    base: usize,
    block: u64,
    /// First block of this queue's part and its length; the whole disk for random patterns.
    first: u64,
    blocks: u64,
    next: u64,
    random: Random,
    clock: Option<Clock>,
}

/// Latencies of one queue.
struct Clock {
    begun: Vec<Instant>,
    now: Instant,
    histogram: Histogram<u64>,
}

impl Worker {
    fn new(index: usize, queue: Queue, base: usize, options: &BenchOptions, info: &Info) -> Worker {
        let all = info.capacity / options.block;
        let part = all / u64::from(options.queues);
        let is_random = matches!(options.pattern, Pattern::RandRead | Pattern::RandWrite);
        let (first, blocks) = if is_random { (0, all) } else { (part * index as u64, part) };
        let iodepth = options.iodepth as usize;
        let clock = options.latency.then(|| {
            let histogram = Histogram::new_with_bounds(1, MAX_LATENCY, 3).expect("constant bounds");
            let now = Instant::now();
            Clock { begun: vec![now; iodepth], now, histogram }
        });
        let load = Load {
            pattern: options.pattern,
            base,
            block: options.block,
            first,
            blocks,
            next: 0,
            random: Random::new(0x6d71, index as u64),
            clock,
        };
        Worker { queue, load, ended: 0, batches: 0, in_flight: 0, iodepth }
    }

    fn reap(&mut self, min: usize, patience: Option<Duration>, again: bool) -> Result<usize, Error> {
        let load = &mut self.load;
        let mut failed = None;
        let mut is_first = true;
        let count = self.queue.reap(min, patience, |ring, slot, status| {
            if status != 0 {
                failed = Some(status);
            }
            if let Some(clock) = &mut load.clock {
                if is_first {
                    clock.now = Instant::now();
                    is_first = false;
                }
                let took = clock.now.duration_since(clock.begun[slot]).as_nanos() as u64;
                clock.histogram.saturating_record(took.max(1));
            }
            if again {
                load.submit(ring, slot);
            }
        })?;
        self.ended += count as u64;
        self.batches += u64::from(count > 0);
        if !again {
            self.in_flight -= count;
        }
        match failed {
            None => Ok(count),
            Some(status) => Err(Error::Server(format!("a request ended with status {status}"))),
        }
    }
}

impl phases::Load for Worker {
    fn fill(&mut self) -> Result<(), Error> {
        for slot in 0..self.iodepth {
            self.load.submit(self.queue.ring(), slot);
        }
        self.in_flight = self.iodepth;
        Ok(())
    }

    fn start_counting(&mut self) {
        self.ended = 0;
        self.batches = 0;
        if let Some(clock) = &mut self.load.clock {
            clock.histogram.reset();
        }
    }

    fn turn(&mut self) -> Result<usize, Error> {
        self.reap(0, None, true)
    }

    fn wait(&mut self, patience: Duration) -> Result<usize, Error> {
        self.reap(1, Some(patience), true)
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        while self.in_flight > 0 {
            self.reap(1, Some(patience), false)?;
        }
        Ok(())
    }

    fn counted(&self) -> (u64, u64) {
        (self.ended, self.batches)
    }

    fn latencies(&mut self) -> Option<Histogram<u64>> {
        self.load.clock.take().map(|clock| clock.histogram)
    }
}

impl Load {
    #[inline]
    fn submit(&mut self, ring: &mut Blkioq, slot: usize) {
        let block = match self.pattern {
            Pattern::RandRead | Pattern::RandWrite => self.random.below(self.blocks),
            Pattern::Read | Pattern::Write => {
                let at = self.next;
                self.next = if at + 1 == self.blocks { 0 } else { at + 1 };
                at
            }
        };
        let start = (self.first + block) * self.block;
        let buffer = (self.base + slot * self.block as usize) as *mut u8;
        if let Some(clock) = &mut self.clock {
            clock.begun[slot] = clock.now;
        }
        match self.pattern {
            Pattern::Read | Pattern::RandRead => {
                ring.read(start, buffer, self.block as usize, slot, ReqFlags::empty());
            }
            Pattern::Write | Pattern::RandWrite => {
                ring.write(start, buffer, self.block as usize, slot, ReqFlags::empty());
            }
        }
    }
}
