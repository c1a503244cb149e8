// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection to a vhost-user-blk server through blkio.
//!
//! Guarantees: `Disk::open` starts all queues and registers the memory with the server. Both stay valid until the disk
//! is dropped, which closes the connection. If the server is silent during the handshake, the call fails after
//! `patience`. blkio itself would wait for ever, so the handshake runs on a thread of its own, which keeps waiting
//! after the error.
//! Needs a server with CONFIG, REPLY_ACK and CONFIGURE_MEM_SLOTS. Does not negotiate indirect
//! descriptors or the packed ring (blkio has neither): [`crate::raw`] is for those.

use std::sync::mpsc;
use std::time::Duration;

use blkio::Blkio;
use serde::Serialize;

use crate::completion::Queue;
use crate::error::Error;
use crate::memory::Memory;

/// Maximum number of descriptors of a ring; every server is expected to support as many.
pub(crate) const MAX_RING: u32 = 1024;

/// Longest handshake of [`info`].
const PATIENCE: Duration = Duration::from_secs(10);

/// Properties of a device as blkio reports them. Lengths are in bytes; 0 means "not reported".
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Info {
    /// Bytes of the disk.
    pub capacity: u64,
    /// Virtqueues the server offers.
    pub max_queues: u32,
    /// Maximum number of data segments of one request (SEG_MAX).
    pub max_segments: u32,
    /// Longest segment (SIZE_MAX).
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
    /// Maximum number of memory regions that the server accepts.
    pub max_mem_regions: u64,
}

/// How to open a disk.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Virtqueues to start, from 1 to [`Info::max_queues`].
    pub queues: u32,
    /// Descriptors of each ring: a power of two up to [`MAX_RING`].
    pub ring: u32,
    /// Busy-poll the used ring and ask for no calls.
    pub poll: bool,
    /// Never write; needed for a read-only device.
    pub read_only: bool,
    /// Bytes of shared memory.
    pub memory: usize,
    /// Longest handshake.
    pub patience: Duration,
}

/// An open disk.
pub(crate) struct Disk {
    /// The virtqueues. They may move to other threads, but must not outlive the disk: blkio's queues point into the
    /// connection's rings.
    pub queues: Vec<Queue>,
    /// Properties of the device.
    pub info: Info,
    /// Memory shared with the server.
    pub memory: Memory,
    /// Keeps the connection open.
    _blkio: Blkio,
}

/// Connects, reads the device's properties, and disconnects.
///
/// # Errors
/// When no server listens at `socket` or the server lacks a protocol feature.
pub fn info(socket: &str) -> Result<Info, Error> {
    let path = socket.to_owned();
    within(PATIENCE, socket, move || ask(&path, &connect(&path, true)?))
}

/// Runs a handshake with a timeout.
fn within<T: Send + 'static>(
    patience: Duration,
    socket: &str,
    handshake: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = mpsc::channel();
    // After a timeout the receiver is gone. Then the send fails, and the result is dropped together with its
    // connection.
    let thread = std::thread::spawn(move || drop(sender.send(handshake())));
    match receiver.recv_timeout(patience) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let text = "the handshake did not complete; is the server hung, or another client connected?";
            Err(Error::Server(format!("{socket}: {text} (waited {patience:?})")))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread sends before it ends"),
        },
    }
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
    /// Connects to `socket`, starts the queues and shares the memory.
    ///
    /// # Errors
    /// Settings out of range, no server, or a server that refuses or is silent.
    pub fn open(socket: &str, settings: &Settings) -> Result<Disk, Error> {
        let (path, settings) = (socket.to_owned(), settings.clone());
        within(settings.patience, socket, move || Disk::open_now(&path, &settings))
    }

    fn open_now(socket: &str, settings: &Settings) -> Result<Disk, Error> {
        let Settings { queues, ring, .. } = *settings;
        assert!(ring.is_power_of_two() && ring <= MAX_RING, "a ring of {ring}");
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
        let memory = Memory::new(settings.memory)?;
        let what = format!("{socket}: the server refuses a memory region of {} bytes", memory.len());
        blkio.map_mem_region(&memory.region()).map_err(Error::blkio(what))?;
        Ok(Disk { queues, info, memory, _blkio: blkio })
    }
}
