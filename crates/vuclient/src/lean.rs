// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closed-loop load from a driver with the least overhead that a correct driver can have, so that the result measures the server.
//!
//! [`bench`](mod@crate::bench) uses blkio, which costs some 200 ns a request: more than a good server takes. Here each of `iodepth`
//! requests per queue keeps its chain, header and buffer ([`crate::raw::fixed_queue`]). It reads or writes the same sectors every time.
//! With `rewrite` the driver writes header and status of each request, as a guest's driver does, and the sectors are random. That is
//! slower, and meant for disks other than null. Guarantees and phases are those of `bench`. Needs a server with the protocol features MQ
//! and CONFIG. With REPLY_ACK the driver learns at once that the server refuses a message.
//! Source: virtio 1.2, 2.7, 2.8 and 5.2.

use std::time::Duration;

use crate::error::Error;
use crate::phases::{self, BenchReport, Load, Pace};
use crate::random::Random;
use crate::raw::block::{self, BlockRequest, LINE};
use crate::raw::fixed_queue::FixedQueue;
use crate::raw::message::{feature, protocol};
use crate::raw::{Format, Notify, Raw, Ring};
use hdrhistogram::Histogram;

/// Maximum number of descriptors of a ring (virtio 1.2, 2.7).
const MAX_RING: u32 = 1 << 15;

/// Maximum number of bytes of memory shared with the server.
const MAX_MEMORY: u64 = 1 << 30;

/// Guest address of the shared memory.
const BASE: u64 = 0x10_0000;

/// What to run.
#[derive(Clone, Debug)]
pub struct LeanOptions {
    /// Virtqueues, one thread each.
    pub queues: u16,
    /// Requests in flight per queue.
    pub iodepth: u32,
    /// Measured time.
    pub runtime: Duration,
    /// Time before that, not counted.
    pub warm_up: Duration,
    /// Bytes of a request: a multiple of 512.
    pub block: u32,
    /// Whether to write instead of read.
    pub write: bool,
    /// Spin on the used ring instead of waiting for calls.
    pub poll: bool,
    /// Whether the rings are packed.
    pub packed: bool,
    /// Whether each chain is in an indirect table of its own.
    pub indirect: bool,
    /// Whether kicks and calls are controlled by EVENT_IDX; otherwise by the ring's flags.
    pub event_idx: bool,
    /// Whether header and status are written for each request.
    pub rewrite: bool,
    /// Timeout: the longest wait for a completion from the server.
    pub patience: Duration,
}

impl Default for LeanOptions {
    fn default() -> LeanOptions {
        LeanOptions {
            queues: 1,
            iodepth: 32,
            runtime: Duration::from_secs(2),
            warm_up: Duration::from_millis(300),
            block: 4096,
            write: false,
            poll: false,
            packed: false,
            indirect: false,
            event_idx: true,
            rewrite: false,
            patience: Duration::from_secs(10),
        }
    }
}

/// Runs `options` on the server at `socket`.
///
/// # Errors
/// If an option is out of range or not supported by the server. Also if the server refuses a message, fails a request, completes one that
/// is not in flight, or stops answering.
pub fn lean(socket: &str, options: &LeanOptions) -> Result<BenchReport, Error> {
    let (ring, memory) = check(options)?;
    let mut raw = connect(socket, options, memory)?;
    let blocks = blocks(&mut raw, socket, options)?;
    let format = if options.packed { Format::Packed } else { Format::Split };
    let base = if options.packed { 0x8000_8000 } else { 0 };
    let kind = if options.write { block::OUT } else { block::IN };
    let per_block = u64::from(options.block) / 512;
    let mut all = Vec::new();
    for queue in 0..options.queues {
        // Scattered sectors: the server would merge adjacent ones into few large requests.
        let sector = |slot: usize| Random::new(slot as u64, u64::from(queue)).below(blocks) * per_block;
        let parts = Ring::apart(&mut raw.guest, format, ring, LINE)?;
        raw.start_ring(queue, parts, base, Notify::Both)?;
        let count = options.iodepth as usize;
        let requests = BlockRequest::apart(&mut raw.guest, kind, count, options.block, sector)?;
        // Touch every page before the measurement, so that the client's page faults are not part of it.
        requests.iter().try_for_each(|r| raw.guest.write(r.data, &vec![0x5a; options.block as usize]))?;
        all.push(raw.lay(queue, requests, options.indirect)?);
    }
    let groups: Result<Vec<Vec<Worker<'_>>>, Error> = (0..options.queues)
        .zip(&all)
        .map(|(queue, slots)| {
            let places = options.rewrite.then(|| Random::new(0x6d71, u64::from(queue)));
            let fixed = raw.fixed_queue(queue, slots)?;
            Ok(vec![Worker {
                fixed,
                iodepth: options.iodepth as usize,
                places,
                blocks,
                per_block,
                ended: 0,
                batches: 0,
            }])
        })
        .collect();
    let LeanOptions { runtime, warm_up, poll, patience, .. } = *options;
    let tallies = phases::run(groups?, &Pace { runtime, warm_up, poll, patience, cpus: Vec::new() })?;
    Ok(phases::report(tallies, f64::from(u32::from(options.queues) * options.iodepth)))
}

/// Checks the options. Returns the descriptors of a ring and the bytes of memory.
fn check(options: &LeanOptions) -> Result<(u16, usize), Error> {
    let LeanOptions { queues, iodepth, block, .. } = *options;
    let per_chain = if options.indirect { 1 } else { 3 };
    let most = MAX_RING / per_chain;
    if iodepth == 0 || iodepth > most {
        let rule = format!("iodepth={iodepth}: must be 1..={most}");
        return Err(Error::Usage(format!("{rule}: each request takes {per_chain} of a ring's {MAX_RING} descriptors")));
    }
    if block == 0 || !block.is_multiple_of(512) {
        return Err(Error::Usage(format!("bs={block}: must be a multiple of 512 bytes, a sector")));
    }
    if queues == 0 || queues > 256 {
        return Err(Error::Usage(format!("queues={queues}: must be 1..=256")));
    }
    if options.runtime.is_zero() {
        return Err(Error::Usage("runtime=0: must be more than 0 seconds".into()));
    }
    let data = u64::from(queues) * u64::from(iodepth) * u64::from(block);
    if data > MAX_MEMORY {
        let rule = format!("bs * iodepth * queues = {data}: must be at most {MAX_MEMORY}");
        return Err(Error::Usage(format!("{rule} bytes of shared memory")));
    }
    let ring = (per_chain * iodepth).next_power_of_two().max(2);
    // Descriptors and rings, headers, tables, statuses, and padding.
    let rest = u64::from(queues) * (26 * u64::from(ring) + 72 * u64::from(iodepth) + 4 * LINE as u64 + 8192);
    Ok((ring as u16, (data + rest) as usize))
}

fn connect(socket: &str, options: &LeanOptions, memory: usize) -> Result<Raw, Error> {
    let wanted = [
        (true, feature::VERSION_1, "VERSION_1"),
        (options.queues > 1, feature::BLK_MQ, "MQ"),
        (options.packed, feature::RING_PACKED, "RING_PACKED"),
        (options.indirect, feature::INDIRECT_DESC, "INDIRECT_DESC"),
        (options.event_idx, feature::EVENT_IDX, "EVENT_IDX"),
    ];
    let features = wanted.iter().filter(|(is_on, ..)| *is_on).fold(0, |all, (_, bit, _)| all | bit);
    let wished = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;
    let raw = Raw::ready_with(socket, features, wished, (BASE, memory))?;
    match wanted.iter().find(|(is_on, bit, _)| *is_on && raw.agreed() & bit == 0) {
        Some((_, _, name)) => Err(Error::Usage(format!("{socket}: the server does not offer {name}"))),
        None => Ok(raw),
    }
}

/// Returns the number of blocks of the disk. Fails if the device has fewer queues than `options` ask for.
fn blocks(raw: &mut Raw, socket: &str, options: &LeanOptions) -> Result<u64, Error> {
    let most = raw.queue_num()?;
    if u64::from(options.queues) > most {
        let queues = options.queues;
        return Err(Error::Usage(format!("queues={queues}: must be 1..={most}, which {socket} offers")));
    }
    let capacity = raw.config(0, 8)?;
    let sectors = u64::from_le_bytes(capacity.try_into().map_err(|_| Error::Server("no capacity".into()))?);
    match sectors / (u64::from(options.block) / 512) {
        0 => Err(Error::Usage(format!("bs={}: the disk has {sectors} sectors of 512 bytes", options.block))),
        blocks => Ok(blocks),
    }
}

/// One queue and its load.
struct Worker<'g> {
    fixed: FixedQueue<'g>,
    iodepth: usize,
    /// With `rewrite`: source of random blocks.
    places: Option<Random>,
    blocks: u64,
    per_block: u64,
    ended: u64,
    batches: u64,
}

impl Worker<'_> {
    #[inline]
    fn reap(&mut self, again: bool) -> Result<usize, Error> {
        let (places, blocks, per_block) = (&mut self.places, self.blocks, self.per_block);
        let count = self.fixed.take_all(|fixed, slot| {
            if again {
                if let Some(random) = places {
                    fixed.rewrite(slot, random.below(blocks) * per_block);
                }
                fixed.put(slot);
            }
        })?;
        self.fixed.show()?;
        self.ended += count as u64;
        self.batches += u64::from(count > 0);
        Ok(count)
    }
}

impl Load for Worker<'_> {
    fn fill(&mut self) -> Result<(), Error> {
        (0..self.iodepth).for_each(|slot| self.fixed.put(slot));
        self.fixed.show()
    }

    fn start_counting(&mut self) {
        self.ended = 0;
        self.batches = 0;
    }

    fn turn(&mut self) -> Result<usize, Error> {
        self.reap(true)
    }

    fn wait(&mut self, patience: Duration) -> Result<usize, Error> {
        self.fixed.wait(patience)?;
        self.reap(true)
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        loop {
            self.reap(false)?;
            if self.fixed.in_flight() == 0 {
                return Ok(());
            }
            self.fixed.wait(patience)?;
        }
    }

    fn counted(&self) -> (u64, u64) {
        (self.ended, self.batches)
    }

    fn latencies(&mut self) -> Option<Histogram<u64>> {
        None
    }
}
