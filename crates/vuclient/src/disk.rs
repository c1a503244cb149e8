// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection to a vhost-user-blk server through blkio.
//!
//! Guarantees: [`Disk::open`] leaves all queues started; memory given out by [`Disk::memory`] stays
//! mapped as long as the disk; the connection ends when the disk is dropped.
//! Needs a server with CONFIG, REPLY_ACK and CONFIGURE_MEM_SLOTS. Does not negotiate indirect
//! descriptors or the packed ring (blkio has neither): [`crate::raw`] is for those.

use blkio::Blkio;
use serde::Serialize;

use crate::Error;
use crate::completion::Queue;
use crate::memory::Memory;

/// Descriptors of a ring that every server is expected to take.
pub const MAX_RING: u32 = 1024;

/// What blkio tells of a device. Lengths are bytes; 0 stands for "not told".
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Info {
    /// Bytes of the disk.
    pub capacity: u64,
    /// Virtqueues the server offers.
    pub max_queues: u32,
    /// Data segments of one request (SEG_MAX).
    pub max_segments: u32,
    /// Length of one segment (SIZE_MAX).
    pub max_segment_len: u64,
    /// Logical block (BLK_SIZE, else 512).
    pub block_size: u64,
    /// Physical block (TOPOLOGY, else the logical one).
    pub physical_block: u64,
    /// Preferred length of a request (TOPOLOGY).
    pub optimal_io_size: u64,
    /// Longest DISCARD; 0 without the feature.
    pub max_discard_len: u64,
    /// What a DISCARD should be aligned to.
    pub discard_alignment: u64,
    /// Longest WRITE_ZEROES; 0 without the feature.
    pub max_write_zeroes_len: u64,
    /// Whether the server caches writes, so that FLUSH means something.
    pub write_cache: bool,
    /// Memory regions the server takes.
    pub max_mem_regions: u64,
}

/// How to open a disk.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Virtqueues to start, from 1 to [`Info::max_queues`].
    pub queues: u32,
    /// Descriptors of each ring: a power of two up to [`MAX_RING`].
    pub ring: u32,
    /// Busy-poll the used ring and ask for no calls.
    pub poll: bool,
    /// Never write; needed for a read-only device.
    pub read_only: bool,
}

/// An open disk.
pub struct Disk {
    /// Its virtqueues; may be moved out, one per thread, but not beyond the disk's life.
    pub queues: Vec<Queue>,
    info: Info,
    blkio: Blkio,
    memories: Vec<Memory>,
}

/// Connects, asks, and disconnects.
///
/// # Errors
/// When nobody listens at `socket` or the server lacks a protocol feature.
pub fn info(socket: &str) -> Result<Info, Error> {
    ask(socket, &connect(socket, true)?)
}

fn connect(socket: &str, read_only: bool) -> Result<Blkio, Error> {
    let what = || format!("cannot connect to {socket}");
    let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(Error::blkio(what()))?;
    blkio.set_str("path", socket).map_err(Error::blkio(what()))?;
    blkio.set_bool("read-only", read_only).map_err(Error::blkio(what()))?;
    blkio.connect().map_err(Error::blkio(what()))?;
    Ok(blkio)
}

fn ask(socket: &str, blkio: &Blkio) -> Result<Info, Error> {
    let wide = |name: &str| blkio.get_u64(name).map_err(Error::blkio(format!("{socket}: {name}")));
    let narrow = |name: &str| {
        let value = blkio.get_i32(name).map_err(Error::blkio(format!("{socket}: {name}")))?;
        u32::try_from(value).map_err(|_| Error::Server(format!("{socket}: {name}={value}: must not be negative")))
    };
    Ok(Info {
        capacity: wide("capacity")?,
        max_queues: narrow("max-queues")?,
        max_segments: narrow("max-segments")?,
        max_segment_len: u64::from(narrow("max-segment-len")?),
        block_size: u64::from(narrow("request-alignment")?),
        physical_block: u64::from(narrow("optimal-io-alignment")?),
        optimal_io_size: u64::from(narrow("optimal-io-size")?),
        max_discard_len: wide("max-discard-len")?,
        discard_alignment: u64::from(narrow("discard-alignment")?),
        max_write_zeroes_len: wide("max-write-zeroes-len")?,
        write_cache: blkio.get_bool("flush-needed").map_err(Error::blkio(format!("{socket}: flush-needed")))?,
        max_mem_regions: wide("max-mem-regions")?,
    })
}

impl Disk {
    /// Connects to `socket` and starts the queues.
    ///
    /// # Errors
    /// Settings out of range, nobody there, or a server that refuses.
    pub fn open(socket: &str, settings: &Settings) -> Result<Disk, Error> {
        let Settings { queues, ring, .. } = *settings;
        if !ring.is_power_of_two() || ring > MAX_RING {
            return Err(Error::Usage(format!("ring={ring}: must be a power of two up to {MAX_RING}")));
        }
        let mut blkio = connect(socket, settings.read_only)?;
        let info = ask(socket, &blkio)?;
        if queues == 0 || queues > info.max_queues {
            let most = info.max_queues;
            return Err(Error::Usage(format!("queues={queues}: must be 1..={most}, which {socket} offers")));
        }
        let (wait, poll) = if settings.poll { (0, queues) } else { (queues, 0) };
        for (name, value) in [("num-queues", wait), ("num-poll-queues", poll), ("queue-size", ring)] {
            blkio.set_i32(name, value as i32).map_err(Error::blkio(format!("{socket}: {name}={value}")))?;
        }
        let started = blkio.start().map_err(Error::blkio(format!("{socket}: cannot start {queues} queues")))?;
        let queues = started.queues.into_iter().chain(started.poll_queues).map(Queue::new).collect();
        Ok(Disk { queues, info, blkio, memories: Vec::new() })
    }

    /// What the device tells.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// New memory of at least `len` bytes that the server has been told of.
    ///
    /// # Errors
    /// When the system has none, or the server refuses the region.
    pub fn memory(&mut self, len: usize) -> Result<Memory, Error> {
        let memory = Memory::new(len)?;
        let what = format!("the server refuses a memory region of {} bytes", memory.len());
        self.blkio.map_mem_region(&memory.region()).map_err(Error::blkio(what))?;
        self.memories.push(memory.clone());
        Ok(memory)
    }
}
