// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `file`: a regular file or block device, through io_uring, or by threads where that is not available.
//!
//! Synopsis: `file:PATH`, or just a path
//! Example: `/var/tmp/disk.img`, `file:/dev/nvme0n1`
//! What becomes of a request: read and write become the same io_uring operations, with registered buffers if the data's region could be
//! registered. Flush becomes fdatasync; FUA becomes `RWF_DSYNC`, or without O_DIRECT a write and a flush; discard punches a hole.
//! Write zeroes punches a hole (with `NOUNMAP` it zeroes the range), or writes zeroes if the file system cannot do that. One system call submits several requests; `poll` makes no system
//! call when there are completions.
//! Without io_uring, threads make the system calls of the same meaning (preadv2, pwritev2, fdatasync, fallocate), with the same statuses.
//! Limits: on a block device a discard is the kernel's unmapping write-zeroes: the range then reads as zeroes, and need not be freed. A
//! device without that command has no discard here. I/O uses O_DIRECT if the file supports it, otherwise the page cache, with a
//! [`FileWarning`]. The file's size is read once, rounded down to logical blocks (`mqblk serve` does not round);
//! if the file is truncated later, I/O fails. Only requests
//! write to the file; it is neither created nor extended here (see `crate::create`). A disk may be a part of its file ([`FilePart`]).
//! With [`FileOptions::any_size`] a disk that ends within a sector keeps its size, and has no direct I/O: O_DIRECT writes whole blocks, so
//! it would make the file longer. A second, buffered descriptor for the last block would mix both kinds of I/O in one page of the
//! file, which open(2) advises against.
//! Since: 0.1.

mod engine;
mod handover;
pub(crate) mod identity;
#[allow(unsafe_code, reason = "system calls")]
mod open;
#[allow(unsafe_code, reason = "io_uring")]
mod owner;
mod part;
mod pool;
#[allow(unsafe_code, reason = "addresses for the kernel")]
mod requests;
#[allow(unsafe_code, reason = "io_uring")]
mod ring;
#[allow(unsafe_code, reason = "iovec lists")]
mod slot;
mod sqe;
mod survey;
#[allow(unsafe_code, reason = "system calls")]
mod syscalls;
#[allow(unsafe_code, reason = "addresses for the kernel")]
mod workers;

pub(crate) use open::whole_blocks;
pub use open::{FileOptions, FileWarning};
pub use part::FilePart;

use crate::clock;
use crate::driver::aio::{Aio, Choice};
use crate::driver::host_driver::HostDriver;
use crate::driver::issuer::Issuer;
use crate::driver::path::DevicePath;
use crate::driver::per_hctx::PerHctx;
use crate::driver::space::{Allocation, Space, Stretch};
use crate::driver::target::{DriverTarget, Needs, OpenTarget, TargetWarning, same_path};
use crate::error::{Error, Result};
use crate::mem::Regions;
use blk::driver::{Completions, Driver, RqBatch};
use blk::id::{BLK_MQ_MAX_DEPTH, HctxId, Sector};
use blk::limits::Limits;
use blk::status::QueueRqStatus;
use blk::time::{Duration, Instant};
use engine::Engine;
use open::Opened;
use ring::Ring;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// How long an IOThread waits before it submits entries again that the kernel refused, because it had no memory for them.
const REFUSED_WAIT: Duration = Duration::from_ms(1);

/// The file driver: a disk in a regular file, or a block device.
pub struct File {
    opened: Arc<Opened>,
    regions: Arc<Regions>,
    aio: Choice,
    engines: PerHctx<EngineSet>,
}

/// The engines of one hctx: one per size with which it was ever started, and the ring of the thread that claimed it. One of them is in use;
/// it is found without a lock.
struct EngineSet {
    /// By binary logarithm of the depth, then the claimed one.
    engines: [OnceLock<Engine>; CLAIMED + 1],
    current: AtomicUsize,
    /// Binary logarithm of the depth of the engine that is used while the hctx is not claimed.
    depth_log2: AtomicUsize,
}

const MAX_DEPTH_LOG2: usize = BLK_MQ_MAX_DEPTH.next_power_of_two().ilog2() as usize;
const CLAIMED: usize = MAX_DEPTH_LOG2 + 1;

impl EngineSet {
    fn new() -> EngineSet {
        EngineSet {
            engines: [const { OnceLock::new() }; CLAIMED + 1],
            current: AtomicUsize::new(0),
            depth_log2: AtomicUsize::new(0),
        }
    }

    /// Switches to the engine of this size without an owner.
    fn use_shared(&self, depth_log2: usize) {
        self.depth_log2.store(depth_log2, Ordering::Relaxed);
        self.current.store(depth_log2, Ordering::Relaxed);
        if let Some(ring) = self.current().ring() {
            ring.set_lazy_commit(0);
        }
    }

    #[inline]
    fn current(&self) -> &Engine {
        // Relaxed: OnceLock orders the engine itself, and all users of the hctx use it only after `start`.
        self.engines[self.current.load(Ordering::Relaxed)]
            .get()
            .expect("hctx used before the driver was started for it")
    }

    /// Returns the ring of the thread that claimed the hctx, if one ever did.
    fn claimed(&self) -> Option<&Ring> {
        self.engines[CLAIMED].get().and_then(Engine::ring)
    }
}

impl File {
    /// Opens `path`; the data of requests is in `regions`. The warnings say what differs from the options or is slower than possible.
    ///
    /// # Errors
    /// Denied: also if the options ask for io_uring, which is not available.
    pub fn open(path: &Path, options: &FileOptions, regions: Arc<Regions>) -> Result<(File, Vec<FileWarning>)> {
        let (opened, mut warnings) = Opened::open(path, options)?;
        let (aio, refused) = Choice::new(options.aio)?;
        warnings.extend(refused.map(|why| FileWarning::NoIoUring { why }));
        Ok((File { opened: Arc::new(opened), regions, aio, engines: PerHctx::new() }, warnings))
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.opened.direct
    }

    #[inline]
    fn engine(&self, hctx: HctxId) -> &Engine {
        self.engines.get(hctx).current()
    }
}

impl Driver for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn limits(&self) -> Limits {
        self.opened.limits
    }

    fn capacity(&self) -> Sector {
        self.opened.capacity()
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        let log2 = queue_depth.max(1).next_power_of_two().ilog2() as usize;
        assert!(log2 <= MAX_DEPTH_LOG2, "queue_depth {queue_depth} beyond BLK_MQ_MAX_DEPTH");
        for i in 0..nr_hw_queues {
            let set = self.engines.get_or_init(i, EngineSet::new);
            if set.engines[log2].get().is_none() {
                let engine = Engine::new(1 << log2, &self.aio, &self.opened, &self.regions)
                    .map_err(|e| format!("hctx {i} of {nr_hw_queues}, depth {queue_depth}: {e}"))?;
                assert!(set.engines[log2].set(engine).is_ok(), "hctx {i} started by two threads at once");
            }
            set.use_shared(log2);
        }
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        self.engine(batch.hctx()).queue_rqs(batch)
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        self.engine(hctx).poll(done);
    }
}

impl HostDriver for File {
    fn wait_since(&self, seen: u64, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.engine(hctx).wait(seen, min, timeout);
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.engine(hctx).wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.engine(hctx).wake();
    }

    /// Entries that the kernel refused are submitted by a poll, and nothing makes the ring's descriptor readable for that.
    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.engine(hctx).has_unsubmitted().then(|| clock::now() + REFUSED_WAIT)
    }

    fn ring_fd(&self, hctx: HctxId) -> Option<RawFd> {
        Some(self.engine(hctx).fd())
    }

    fn aio(&self) -> Option<Aio> {
        Some(self.aio.now())
    }

    fn is_direct(&self) -> Option<bool> {
        Some(File::is_direct(self))
    }

    fn space(&self) -> &dyn Space {
        self
    }

    fn path(&self) -> &dyn DevicePath {
        self
    }

    fn issuer(&self) -> &dyn Issuer {
        self
    }
}

impl Space for File {
    fn resize(&self, bytes: Option<u64>, shrink: bool) -> Option<Result<u64>> {
        Some(self.opened.resize(bytes, shrink))
    }

    fn adopt(&self, bytes: u64) {
        self.opened.adopt(bytes);
    }

    fn exact_bytes(&self) -> Option<u64> {
        self.opened.any_size.then(|| self.opened.bytes())
    }

    fn allocation(&self) -> Allocation {
        if self.opened.is_device { Allocation::Data } else { Allocation::Survey }
    }

    fn survey(&self, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Stretch> {
        survey::stretches(&self.opened, sector, nr_sectors, most)
    }

    fn stored_bytes(&self) -> Option<u64> {
        survey::stored_bytes(&self.opened)
    }

    fn caches(&self) -> bool {
        !self.opened.direct
    }

    fn prefetch(&self, sector: Sector, nr_sectors: u64) {
        survey::prefetch(&self.opened, sector, nr_sectors);
    }
}

impl DevicePath for File {
    fn identity(&self) -> Option<String> {
        Some(self.opened.identity.clone())
    }
}

impl Issuer for File {
    fn set_lazy_commit(&self, hctx: HctxId, fewer_than: u32) {
        if let Some(ring) = self.engine(hctx).ring() {
            ring.set_lazy_commit(fewer_than);
        }
    }

    fn claim(&self, hctx: HctxId) -> bool {
        let set = self.engines.get(hctx);
        let depth_log2 = set.depth_log2.load(Ordering::Relaxed);
        // Threads serve all submitters alike.
        let Some(current) = set.current().ring() else { return false };
        // A claim is bound to a thread, and the ring of an earlier claim cannot change its owner.
        if set.claimed().is_some() || !current.is_idle() {
            return false;
        }
        current.unregister_buffers();
        let Ok(ring) = Ring::owned(1 << depth_log2, Arc::clone(&self.opened), Arc::clone(&self.regions)) else {
            // Linux before 6.1.
            return false;
        };
        let claimed = set.engines[CLAIMED].set(Engine::Ring(ring)).is_ok();
        if claimed {
            set.current.store(CLAIMED, Ordering::Relaxed);
        }
        claimed
    }

    fn release(&self, hctx: HctxId) {
        let set = self.engines.get(hctx);
        if let Some(ring) = set.claimed()
            && ring.is_idle()
        {
            ring.retire();
            // If the queues were rebuilt in the meantime, the claimed ring is not in use, and the exchange fails.
            let shared = set.depth_log2.load(Ordering::Relaxed);
            let _ = set.current.compare_exchange(CLAIMED, shared, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn unclaim(&self) {
        for set in self.engines.iter() {
            let depth_log2 = set.depth_log2.load(Ordering::Relaxed);
            // An engine that could not be made is missing, and not in use.
            if set.engines[depth_log2].get().is_some() {
                set.use_shared(depth_log2);
            }
        }
    }
}

impl DriverTarget for PathBuf {
    const KIND: &'static str = "file";
    const HELP: &'static str = "
  PATH, file:PATH      a regular file (created if the job gives a size) or a block device";
    const IS_WORD: bool = true;

    fn parse(_text: &str, rest: &str) -> Result<PathBuf> {
        if rest.is_empty() {
            return Err(Error::usage("target 'file:' needs a path, such as file:/var/tmp/disk.img"));
        }
        Ok(rest.into())
    }

    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        open_part(self, FilePart::default(), false, needs, regions)
    }

    fn is_same_data(&self, other: &Self) -> bool {
        same_path(self, other)
    }

    fn files(&self) -> Vec<&Path> {
        vec![self]
    }
}

/// As [`DriverTarget::open`] of a path, for a part of the file, with [`FileOptions::any_size`].
pub(crate) fn open_part(
    path: &Path,
    part: FilePart,
    any_size: bool,
    needs: &Needs,
    regions: Arc<Regions>,
) -> Result<OpenTarget> {
    let Needs { write, direct, min_bytes, in_use, read_ahead_kb, aio } = *needs;
    let options = FileOptions { write, direct, min_bytes, in_use, read_ahead_kb, aio, part, any_size };
    let (file, warnings) = File::open(path, &options, regions)?;
    Ok(OpenTarget { driver: Arc::new(file), warnings: warnings.iter().map(TargetWarning::new).collect() })
}
