// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answer to `stats`, as far as `mqblk top` shows it. Fields that only a later daemon has are ignored.

use serde::Deserialize;

/// Counters of a daemon since it began; times in nanoseconds.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Sample {
    /// Time since the daemon began.
    pub uptime_ns: u64,
    /// Disks.
    pub disks: Vec<Disk>,
    /// IOThreads.
    pub iothreads: Vec<IoThread>,
}

/// A disk.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its hardware queues.
    pub hctx: Vec<Hctx>,
    /// By operation.
    pub ops: Ops,
    /// Where the time went.
    pub stages: Stages,
    /// Bios in flight.
    pub in_flight: u64,
    /// Time with any bio in flight.
    pub io_ticks_ns: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Counters by operation.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "operations")]
pub struct Ops {
    pub read: Op,
    pub write: Op,
    pub discard: Op,
    pub flush: Op,
    pub write_zeroes: Op,
}

/// Counters of an operation.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "as of blk::stat::OpStats")]
pub struct Op {
    pub ios: u64,
    pub sectors: u64,
    pub time_ns: u64,
}

/// Times of requests by stage.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "as of blk::stat::StageStats")]
pub struct Stages {
    pub requests: u64,
    pub tag_wait_ns: u64,
    pub ctx_ns: u64,
    pub scheduler_ns: u64,
    pub dispatch_ns: u64,
    pub device_ns: u64,
}

/// Counters of a hardware queue.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "as of blk::stat::HctxStats")]
pub struct Hctx {
    pub dispatched: u64,
    pub batches: u64,
    pub requeues: u64,
    pub timeouts: u64,
}

/// An IOThread.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "as of host::serve::ThreadReport")]
pub struct IoThread {
    pub name: String,
    pub alive_ns: u64,
    pub busy_ns: u64,
    pub cpu_ns: u64,
    pub sleeps: u64,
    pub sources: Vec<Source>,
}

/// A virtqueue or connection.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(missing_docs, reason = "as of host::serve::SourceReport")]
pub struct Source {
    pub number: u64,
    pub disk: String,
    pub export: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub index: u32,
    pub served: u64,
    pub in_flight: u64,
    pub latency_ns: Vec<(u64, u64)>,
}
