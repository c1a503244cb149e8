// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a closed loop on several threads in phases (warm-up, measured time, drain) and counts the requests.
//!
//! Guarantees: the warm-up is not counted; all requests are waited for before a thread ends; if a thread fails, the run
//! stops early and returns the error. In the loop no clock is read: a thread checks one shared word, and reads its
//! clocks when that changes. Does not know rings: each client implements [`Load`].

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::error::Error;

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// One queue of a client.
pub trait Load {
    /// Puts the first requests on the ring.
    ///
    /// # Errors
    /// The error of the ring.
    fn fill(&mut self) -> Result<(), Error>;

    /// Resets the counters, because the measured time begins.
    fn start_counting(&mut self);

    /// Takes completed requests and submits a new one for each. Returns how many completed.
    ///
    /// # Errors
    /// If the server failed a request or broke the protocol.
    fn turn(&mut self) -> Result<usize, Error>;

    /// As [`Self::turn`], after waiting for at least one completion.
    ///
    /// # Errors
    /// As [`Self::turn`], and if no request completes within `patience`.
    fn wait(&mut self, patience: Duration) -> Result<usize, Error>;

    /// Waits for all requests in flight, without submitting new ones.
    ///
    /// # Errors
    /// As [`Self::wait`].
    fn drain(&mut self, patience: Duration) -> Result<(), Error>;

    /// Returns the requests completed since [`Self::start_counting`], and the number of batches they completed in.
    fn counted(&self) -> (u64, u64);

    /// Returns the latencies, if they are measured.
    fn latencies(&mut self) -> Option<Histogram<u64>>;
}

/// Durations, timeout and CPUs of a run.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Measured time.
    pub runtime: Duration,
    /// Time before that, not counted.
    pub warm_up: Duration,
    /// Spin instead of waiting.
    pub poll: bool,
    /// Timeout: the longest wait for a completion from the server.
    pub patience: Duration,
    /// CPUs to which the threads are pinned, round robin; empty: the scheduler places them.
    pub cpus: Vec<usize>,
}

/// One queue's part of the result.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReport {
    /// Requests completed in the measured time.
    pub requests: u64,
    /// Requests per second.
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
    /// One entry per queue.
    pub queues: Vec<QueueReport>,
    /// Requests per second of all queues together.
    pub iops: f64,
    /// Mean latency by Little's law: requests in flight over rate, nanoseconds.
    pub little_mean_ns: f64,
    /// Measured latencies; `None` unless they were asked for.
    pub latency: Option<Latencies>,
    /// Seconds of CPU this client's threads used in the measured time.
    pub client_cpu_seconds: f64,
    /// The same per request, in nanoseconds.
    pub client_cpu_ns_per_request: f64,
    /// Batches of completions; requests per batch is the mean batch size.
    pub batches: u64,
    /// Requests completed in the warm-up. No other figure includes them, but the server has processed them, too.
    pub warm_up_requests: u64,
}

/// Clocks of one thread at one moment.
struct ClockReading {
    wall: Instant,
    cpu: Duration,
}

impl ClockReading {
    fn now() -> ClockReading {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        ClockReading { wall: Instant::now(), cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32) }
    }
}

/// What one thread measured.
pub struct Tally {
    queues: Vec<u64>,
    batches: u64,
    warm_up: u64,
    wall: Duration,
    cpu: Duration,
    histogram: Option<Histogram<u64>>,
}

/// Starts a thread per group, takes the threads through the phases, and returns what each measured.
///
/// # Errors
/// The error of the first group whose thread failed.
pub fn run<L: Load + Send>(groups: Vec<Vec<L>>, pace: &Pace) -> Result<Vec<Tally>, Error> {
    let phase = AtomicU8::new(WARM_UP);
    std::thread::scope(|scope| {
        let phase = &phase;
        let start = |(index, group)| scope.spawn(move || drive(index, group, phase, pace));
        let handles: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        let wait = |time: Duration| {
            let end = Instant::now() + time;
            // If a thread fails early, stop waiting: its error is the result.
            while Instant::now() < end && !handles.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
        };
        wait(pace.warm_up);
        phase.store(MEASURE, Ordering::Relaxed);
        wait(pace.runtime);
        phase.store(STOP, Ordering::Relaxed);
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// Runs in one thread: drives its queues from the first request to the last completion.
fn drive<L: Load>(index: usize, mut group: Vec<L>, phase: &AtomicU8, pace: &Pace) -> Result<Tally, Error> {
    if !pace.cpus.is_empty() {
        stay_on(pace.cpus[index % pace.cpus.len()])?;
    }
    for load in &mut group {
        load.fill()?;
    }
    let mut begin = None;
    let mut warm_up = 0;
    let mut seen = WARM_UP;
    let mut idle_since: Option<Instant> = None;
    let mut idle_turns = 0u32;
    loop {
        let now = phase.load(Ordering::Relaxed);
        if now != seen {
            if begin.is_none() {
                begin = Some(ClockReading::now());
                warm_up = group.iter().map(|load| load.counted().0).sum();
                group.iter_mut().for_each(Load::start_counting);
            }
            seen = now;
            if now == STOP {
                break;
            }
        }
        let mut ended = 0;
        for load in &mut group {
            ended += load.turn()?;
        }
        if ended > 0 {
            idle_turns = 0;
            idle_since = None;
        } else if pace.poll {
            std::hint::spin_loop();
            idle_turns += 1;
            // The clock is read only when thousands of polls found nothing.
            if idle_turns >= 1 << 14 {
                idle_turns = 0;
                if idle_since.get_or_insert_with(Instant::now).elapsed() > pace.patience {
                    return Err(silent(pace.patience));
                }
            }
        } else {
            group[0].wait(pace.patience)?;
        }
    }
    let end = ClockReading::now();
    let begin = begin.unwrap_or(ClockReading { wall: end.wall, cpu: end.cpu });
    let queues = group.iter().map(|load| load.counted().0).collect();
    let batches = group.iter().map(|load| load.counted().1).sum();
    let mut histogram: Option<Histogram<u64>> = None;
    for load in &mut group {
        load.drain(pace.patience)?;
        let Some(one) = load.latencies() else { continue };
        match &mut histogram {
            // All have the same bounds, so adding cannot fail.
            Some(all) => all.add(&one).map_err(|e| Error::Usage(e.to_string()))?,
            None => histogram = Some(one),
        }
    }
    Ok(Tally { queues, batches, warm_up, wall: end.wall - begin.wall, cpu: end.cpu - begin.cpu, histogram })
}

/// Pins this thread to one CPU.
fn stay_on(cpu: usize) -> Result<(), Error> {
    let refused = |why: &str| Error::Usage(format!("cpus={cpu}: {why}; name CPUs that this process may use"));
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(&format!("must be less than {}", CpuSet::MAX_CPU)));
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| refused(&e.to_string()))
}

/// Makes the error for a server that completed no request within `patience`.
pub fn silent(patience: Duration) -> Error {
    Error::Server(format!("the server completed no request within {patience:?}"))
}

/// Combines the measurements of all threads; `in_flight` is the constant number of requests in flight.
pub fn report(tallies: Vec<Tally>, in_flight: f64) -> BenchReport {
    let mut queues = Vec::new();
    let mut cpu = Duration::ZERO;
    let (mut batches, mut warm_up_requests) = (0, 0);
    let mut histogram: Option<Histogram<u64>> = None;
    for tally in tallies {
        let seconds = tally.wall.as_secs_f64().max(1e-9);
        queues.extend(tally.queues.iter().map(|&n| QueueReport { requests: n, iops: n as f64 / seconds }));
        cpu += tally.cpu;
        batches += tally.batches;
        warm_up_requests += tally.warm_up;
        if let Some(part) = tally.histogram {
            match &mut histogram {
                Some(all) => all.add(part).expect("the same bounds"),
                None => histogram = Some(part),
            }
        }
    }
    let iops: f64 = queues.iter().map(|queue| queue.iops).sum();
    let requests: u64 = queues.iter().map(|queue| queue.requests).sum();
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
        warm_up_requests,
    }
}
