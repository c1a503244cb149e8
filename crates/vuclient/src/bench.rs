// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closed-loop load on a vhost-user-blk server, cheap enough that the server is what is measured.
//!
//! Guarantees: each queue keeps `iodepth` requests with the server; the warm-up is not counted; a
//! failed or missing answer ends the bench with an error. In the loop nothing is allocated, requests
//! and completions go in batches, and no clock is read: a thread looks at one shared word, and reads
//! its clocks when that changes. With `latency` one clock reading per batch is added, which
//! ends its requests and begins their successors. Without it only the mean is known, by Little's law.
//! Needs as many CPUs as threads plus the server's, or it measures the scheduler. At depth 1 without `poll` it
//! measures how fast this machine wakes a thread, not the server: compare servers there with `poll`.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use blkio::{Blkioq, ReqFlags};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::completion::Queue;
use crate::disk::{Disk, MAX_RING, Settings};
use crate::random::Random;
use crate::{Error, Info};

/// Most requests per queue: each takes three descriptors of a ring.
pub const MAX_IODEPTH: u32 = MAX_RING / 3;

/// Longest request.
const MAX_BLOCK: u64 = 16 << 20;

/// Most virtqueues; vhost-user numbers them with a byte.
const MAX_QUEUES: u32 = 256;

/// Most memory shared with the server: all of it is touched.
const MAX_MEMORY: u64 = 1 << 30;

/// Longest latency that is told apart.
const MAX_LATENCY: u64 = 60_000_000_000;

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// What is done to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Reads in order, each queue in its own part of the disk.
    Read,
    /// Writes in order, each queue in its own part of the disk.
    Write,
    /// Reads anywhere.
    RandRead,
    /// Writes anywhere.
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
    /// What is done.
    pub pattern: Pattern,
    /// Spin on the used ring instead of waiting for calls.
    pub poll: bool,
    /// All queues from one thread, which then has to poll.
    pub one_thread: bool,
    /// Measure each request's latency.
    pub latency: bool,
    /// Longest time the server may take to end something.
    pub patience: Duration,
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
        }
    }
}

/// One queue's part of the result.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReport {
    /// Requests ended in the measured time.
    pub requests: u64,
    /// Those per second.
    pub iops: f64,
}

/// Latencies in nanoseconds, as measured.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Arithmetic mean.
    pub mean: f64,
    /// 50th, 90th, 99th and 99.9th percentile.
    pub percentiles: [u64; 4],
    /// The longest.
    pub max: u64,
}

/// The result of a bench.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// By queue.
    pub queues: Vec<QueueReport>,
    /// All queues together, per second.
    pub iops: f64,
    /// Mean latency by Little's law: requests in flight over rate, nanoseconds.
    pub little_mean_ns: f64,
    /// As measured, when asked for.
    pub latency: Option<Latencies>,
    /// Seconds of CPU this client's threads used in the measured time.
    pub client_cpu_seconds: f64,
    /// The same per request, in nanoseconds.
    pub client_cpu_ns_per_request: f64,
    /// Batches the completions came in: requests per batch tells how cheap a batch was.
    pub batches: u64,
}

/// Runs `options` on the server at `socket`.
///
/// # Errors
/// Options out of range, a server that refuses, fails a request or stops answering.
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
    // Touched before the clock runs: page faults are not the server's cost.
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
    let tallies = run(groups, options)?;
    Ok(report(tallies, options))
}

fn check(options: &BenchOptions) -> Result<(), Error> {
    let BenchOptions { iodepth, runtime, .. } = *options;
    if iodepth == 0 || iodepth > MAX_IODEPTH {
        let rule = format!("iodepth={iodepth}: must be 1..={MAX_IODEPTH}");
        return Err(Error::Usage(format!("{rule}, three descriptors each of a ring of {MAX_RING}")));
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
        return Err(Error::Usage(format!("bs={block}: the disk's {capacity} bytes must hold one per queue")));
    }
    Ok(())
}

/// Clocks of one thread at one moment.
struct Moment {
    wall: Instant,
    cpu: Duration,
}

impl Moment {
    fn now() -> Moment {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Moment { wall: Instant::now(), cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32) }
    }
}

/// What one thread measured.
struct Tally {
    queues: Vec<u64>,
    batches: u64,
    wall: Duration,
    cpu: Duration,
    histogram: Option<Histogram<u64>>,
}

/// Starts a thread per group, leads them through the phases, and collects.
fn run(groups: Vec<Vec<Worker>>, options: &BenchOptions) -> Result<Vec<Tally>, Error> {
    let phase = AtomicU8::new(WARM_UP);
    std::thread::scope(|scope| {
        let handles: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| drive(group, &phase, options))).collect();
        let wait = |time: Duration| {
            let end = Instant::now() + time;
            // A thread that failed early ends the wait: its error is the result.
            while Instant::now() < end && !handles.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
        };
        wait(options.warm_up);
        phase.store(MEASURE, Ordering::Relaxed);
        wait(options.runtime);
        phase.store(STOP, Ordering::Relaxed);
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// One thread: its queues from the first request to the last answer.
fn drive(mut group: Vec<Worker>, phase: &AtomicU8, options: &BenchOptions) -> Result<Tally, Error> {
    for worker in &mut group {
        worker.fill();
    }
    let mut begin = None;
    let mut seen = WARM_UP;
    let mut idle_since: Option<Instant> = None;
    let mut idle_turns = 0u32;
    loop {
        let now = phase.load(Ordering::Relaxed);
        if now != seen {
            if begin.is_none() {
                begin = Some(Moment::now());
                group.iter_mut().for_each(Worker::start_counting);
            }
            seen = now;
            if now == STOP {
                break;
            }
        }
        let mut ended = 0;
        for worker in &mut group {
            ended += worker.turn(true)?;
        }
        if ended > 0 {
            idle_turns = 0;
            idle_since = None;
        } else if options.poll {
            std::hint::spin_loop();
            idle_turns += 1;
            // The clock is looked at only when thousands of looks found nothing.
            if idle_turns >= 1 << 14 {
                idle_turns = 0;
                if idle_since.get_or_insert_with(Instant::now).elapsed() > options.patience {
                    let patience = options.patience;
                    return Err(Error::Server(format!("the server ended no request within {patience:?}")));
                }
            }
        } else {
            group[0].wait(options.patience)?;
        }
    }
    let end = Moment::now();
    let begin = begin.unwrap_or(Moment { wall: end.wall, cpu: end.cpu });
    let queues = group.iter().map(|worker| worker.ended).collect();
    let batches = group.iter().map(|worker| worker.batches).sum();
    let mut histogram: Option<Histogram<u64>> = None;
    for worker in &mut group {
        worker.drain(options.patience)?;
        if let Some(clock) = worker.load.clock.take() {
            match &mut histogram {
                // All have the same bounds, so adding cannot fail.
                Some(all) => all.add(&clock.histogram).map_err(|e| Error::Usage(e.to_string()))?,
                None => histogram = Some(clock.histogram),
            }
        }
    }
    Ok(Tally { queues, batches, wall: end.wall - begin.wall, cpu: end.cpu - begin.cpu, histogram })
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

    fn fill(&mut self) {
        for slot in 0..self.iodepth {
            self.load.submit(self.queue.ring(), slot);
        }
        self.in_flight = self.iodepth;
    }

    fn start_counting(&mut self) {
        self.ended = 0;
        self.batches = 0;
        if let Some(clock) = &mut self.load.clock {
            clock.histogram.reset();
        }
    }

    /// Shows what is new, takes what ended, and with `again` puts successors on the ring.
    fn turn(&mut self, again: bool) -> Result<usize, Error> {
        self.reap(0, None, again)
    }

    /// As [`Self::turn`], after waiting for at least one.
    fn wait(&mut self, patience: Duration) -> Result<usize, Error> {
        self.reap(1, Some(patience), true)
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        while self.in_flight > 0 {
            self.reap(1, Some(patience), false)?;
        }
        Ok(())
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

fn report(tallies: Vec<Tally>, options: &BenchOptions) -> BenchReport {
    let mut queues = Vec::new();
    let mut cpu = Duration::ZERO;
    let mut batches = 0;
    let mut histogram: Option<Histogram<u64>> = None;
    for tally in tallies {
        let seconds = tally.wall.as_secs_f64().max(1e-9);
        queues.extend(tally.queues.iter().map(|&n| QueueReport { requests: n, iops: n as f64 / seconds }));
        cpu += tally.cpu;
        batches += tally.batches;
        if let Some(part) = tally.histogram {
            match &mut histogram {
                Some(all) => all.add(part).expect("the same bounds"),
                None => histogram = Some(part),
            }
        }
    }
    let iops: f64 = queues.iter().map(|queue| queue.iops).sum();
    let requests: u64 = queues.iter().map(|queue| queue.requests).sum();
    let in_flight = f64::from(options.queues * options.iodepth);
    let latency = histogram.map(|h| Latencies {
        mean: h.mean(),
        percentiles: [50.0, 90.0, 99.0, 99.9].map(|p| h.value_at_percentile(p)),
        max: h.max(),
    });
    BenchReport {
        queues,
        iops,
        little_mean_ns: in_flight * 1e9 / iops.max(1e-9),
        latency,
        client_cpu_seconds: cpu.as_secs_f64(),
        client_cpu_ns_per_request: cpu.as_nanos() as f64 / requests.max(1) as f64,
        batches,
    }
}
