// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `rbd:`: an image of a Ceph cluster, through librbd, which is loaded when the first one is opened.
//!
//! Synopsis: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:NAME=VALUE...]`, as in QEMU; a backslash takes the meaning from a `:`, `@`, `/`, `=`
//! Options: `conf`, Ceph's configuration file; default: as Ceph's own programs (`CEPH_CONF`, `/etc/ceph/ceph.conf`), and none if it is not
//! there. `id`, the user without `client.`; default `admin`. `cluster`, its name; default `ceph`. `images`, 1..=64: how
//! often the image is opened, each time for one hardware queue; default 1. `exclusive=1`: the disk takes the exclusive lock
//! for as long as it is open; opening fails if another client has the lock. Any other name is an option of Ceph's
//! configuration: `mon_host`, `keyring`, `client_mount_timeout` (30 s unless set), `rados_osd_op_timeout` (seconds after
//! which a request fails; 0 = it waits for its OSD for ever), `rbd_cache` (false unless set).
//! Example: `rbd:rbd/disk0`, `rbd:vms/tenant1/disk0:id=vm:conf=/etc/ceph/ceph.conf:exclusive=1`, `rbd:rbd/disk0@monday`
//! What becomes of a request: read, write, flush, discard, and write zeroes, which makes holes unless the range must keep
//! its space. Reads and writes use the requests' memory segments directly. librbd copies a write once, unless
//! `rbd_disable_zero_copy_writes=false`, which is only for memory that does not change during the write. An eventfd signals
//! completions, without a callback thread in between.
//! Caches: without librbd's cache a write completes when the OSDs have it, and there is no cache to flush. With the cache
//! (`rbd_cache=true`, or set for the image) the disk reports a write cache, and a flush calls librbd's flush. FUA is a write
//! and a flush, because only librbd's calls for a single memory segment take a FUA flag.
//! Several images: two handles of one image are two clients to Ceph. So `images` must be 1 with a cache, and for an image
//! with the feature exclusive-lock that is opened for writing.
//! Lock: for an image with the feature exclusive-lock, librbd takes the lock by itself at the first write. It releases the lock
//! when another client asks for it. With `exclusive=1` the disk takes the lock when it is opened and never releases it. A
//! client that died keeps the lock until its watch times out, after 30 s. Then the next client takes the lock, and the dead
//! one can write no more (it is blocklisted).
//! Size: a resize of the disk resizes the image, or adopts its new size after `rbd resize` elsewhere.
//! Limits: a snapshot is read-only, and so is an image that is opened for reading. Discards work in units of
//! `rbd_discard_granularity_bytes`. A read that hangs cannot be given up, because librbd still uses its memory: set `rados_osd_op_timeout`
//! to make it fail. The same holds for a path of a multipath disk: without that option its requests wait for their OSDs, whatever other
//! paths there are. For an image with stripes over several objects (STRIPINGV2) the driver cannot tell which blocks are allocated, so all
//! of it counts as data. When the image is shrunk, requests beyond its end fail. For a write across the end, librbd writes the first part
//! and reports success. Ceph's libraries stay loaded once an image was opened; their threads last as long as a disk is open.
//! Source: librbd.h and librados.h (Ceph 16), qemu-block-drivers(7).
//! Since: 0.1.

#[allow(unsafe_code, reason = "C functions of librados and librbd")]
mod image;
#[allow(unsafe_code, reason = "loading of librados and librbd")]
mod library;
mod name;
mod queue;

pub use name::{MAX_IMAGES, RbdTarget, parse};

use crate::driver::host_driver::HostDriver;
use crate::driver::path::{Connections, DevicePath};
use crate::driver::per_hctx::PerHctx;
use crate::driver::space::{Allocation, Space, Stretch, check_shrink};
use crate::driver::target::{DriverTarget, Needs, OpenTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use blk::driver::{Completions, Driver, RqBatch};
use blk::id::{HctxId, SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::limits::Limits;
use blk::status::QueueRqStatus;
use blk::time::{Duration, Instant};
use image::{Cluster, FEATURE_EXCLUSIVE_LOCK, FEATURE_STRIPINGV2, Image, ImageName};
use parking_lot::Mutex;
use queue::Queue;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of bytes of one read or write.
const MAX_BYTES: u32 = 16 << 20;
/// Maximum number of bytes of one discard or write zeroes: each object of the image is a message.
const MAX_RANGE: u32 = 1 << 30;
/// Maximum number of bytes that one survey asks for.
const SURVEY_BYTES: u64 = 4 << 30;
/// `client_mount_timeout` if none is set; Ceph's default is five minutes.
const MOUNT_TIMEOUT: &str = "30";
const CEPHS_MOUNT_TIMEOUT: &str = "300";

/// The RBD driver: an image of a Ceph cluster.
pub struct Rbd {
    target: RbdTarget,
    read_only: bool,
    limits: Limits,
    /// The image's data is striped over several objects.
    is_striped: bool,
    object_bytes: u64,
    regions: Arc<Regions>,
    queues: PerHctx<Queue>,
    cluster: Arc<Cluster>,
    /// The first handle: it reports the size, and holds the lock if `exclusive` is set.
    first: Arc<Image>,
    /// Whether a hardware queue uses the first handle.
    first_is_used: Mutex<bool>,
    sectors: AtomicU64,
    /// Number of requests that could not be given up, because librbd uses their memory.
    stayed: AtomicUsize,
}

impl Rbd {
    /// Opens the image; the data of requests is in `regions`. Without `write` the image is opened read-only.
    ///
    /// # Errors
    /// Resource: Ceph's libraries are not installed. Denied: the image is read-only, or another client has its lock. Usage:
    /// options that conflict. Others: the cluster refused, or cannot be reached.
    pub fn open(target: &RbdTarget, write: bool, regions: Arc<Regions>) -> Result<Rbd> {
        let within = |e: Error| e.within(&format!("RBD image {target}"));
        if write && target.snapshot.is_some() {
            let text =
                format!("RBD image {target} is a snapshot, which is read-only: use the image or a clone for writes");
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let cluster = Arc::new(connect(target).map_err(within)?);
        let read_only = !write;
        let first = Arc::new(Image::open(&cluster, &place(target, read_only))?);
        let caches = caches(&first);
        check_images(target, &first, caches, read_only)?;
        if target.exclusive {
            lock(target, &first, read_only).map_err(within)?;
        }
        let limits = limits(&first, caches, read_only).map_err(within)?;
        let bytes = first.size().map_err(within)?;
        if let Some(fault) = fault_of_size(bytes) {
            let text = format!("RBD image {target} {fault}: give it a size of whole sectors with rbd resize");
            return Err(Error::usage(text));
        }
        Ok(Rbd {
            target: target.clone(),
            read_only,
            limits,
            is_striped: first.features().map_err(within)? & FEATURE_STRIPINGV2 != 0,
            object_bytes: first.object_bytes().map_err(within)?.max(1),
            regions,
            queues: PerHctx::new(),
            cluster,
            first,
            first_is_used: Mutex::new(false),
            sectors: AtomicU64::new(bytes >> SECTOR_SHIFT),
            stayed: AtomicUsize::new(0),
        })
    }

    /// Whether only one client at a time can write to the image.
    pub(in crate::driver) fn is_of_one_writer(&self) -> Result<bool> {
        Ok(!self.read_only && self.first.features()? & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    #[inline]
    fn queue(&self, hctx: HctxId) -> &Queue {
        self.queues.get(hctx)
    }

    /// Makes a hardware queue that did not exist before.
    fn make_queue(&self) -> Result<Queue> {
        if !std::mem::replace(&mut *self.first_is_used.lock(), true) {
            return Queue::new(Arc::clone(&self.first));
        }
        Queue::new(Arc::new(Image::open(&self.cluster, &place(&self.target, self.read_only))?))
    }

    fn resize_image(&self, bytes: Option<u64>, shrink: bool) -> Result<u64> {
        let within = |e: Error| e.within(&format!("RBD image {}", self.target));
        if let Some(bytes) = bytes {
            if self.read_only {
                return Err(Error::usage(format!(
                    "RBD image {} is opened for reading only and keeps its size",
                    self.target
                )));
            }
            let block = u64::from(self.limits.logical_block_size);
            if bytes == 0 || bytes % block != 0 {
                return Err(Error::usage(format!("size={bytes}: must be a multiple of {block} bytes, and not 0")));
            }
            // The image may have grown since.
            let has = self.first.size().map_err(within)?;
            check_shrink(has.max(self.capacity().0 << SECTOR_SHIFT), bytes, shrink)?;
            self.first.resize(bytes).map_err(within)?;
        }
        let bytes = self.first.size().map_err(within)?;
        if let Some(fault) = fault_of_size(bytes) {
            return Err(within(Error::usage(format!("it now {fault}: the disk keeps its size"))));
        }
        check_shrink(self.capacity().0 << SECTOR_SHIFT, bytes, shrink)?;
        Ok(bytes)
    }
}

/// Says why an image of this size cannot be a disk, if it cannot. A part of a sector is not left out, because it may hold data.
fn fault_of_size(bytes: u64) -> Option<String> {
    match bytes {
        0 => Some("is empty".into()),
        _ if !bytes.is_multiple_of(u64::from(SECTOR_SIZE)) => {
            Some(format!("has {bytes} bytes, which is not whole sectors of {SECTOR_SIZE}"))
        }
        _ => None,
    }
}

fn place(target: &RbdTarget, read_only: bool) -> ImageName<'_> {
    let RbdTarget { pool, namespace, image, snapshot, .. } = target;
    ImageName { pool, namespace, image, snapshot: snapshot.as_deref(), read_only }
}

fn connect(target: &RbdTarget) -> Result<Cluster> {
    let cluster = Cluster::new(target.cluster.as_deref(), target.user.as_deref(), target.conf.as_deref())?;
    // Data is cached above, where a cache is configured.
    cluster.set("rbd_cache", "false")?;
    if cluster.option("client_mount_timeout").as_deref() == Some(CEPHS_MOUNT_TIMEOUT) {
        cluster.set("client_mount_timeout", MOUNT_TIMEOUT)?;
    }
    target.options.0.iter().try_for_each(|(name, value)| cluster.set(name, value))?;
    cluster.connect()?;
    Ok(cluster)
}

/// Whether written data may be only in a cache of this host or process.
fn caches(image: &Image) -> bool {
    let is = |name: &str, off: &[&str]| image.option(name).is_some_and(|v| !off.contains(&v.as_str()));
    is("rbd_cache", &["false"]) || is("rbd_persistent_cache_mode", &["disabled", ""])
}

/// Checks that several handles of the image may serve as one disk.
fn check_images(target: &RbdTarget, image: &Image, caches: bool, read_only: bool) -> Result<()> {
    let n = target.images;
    if n > 1 && caches {
        return Err(Error::usage(format!(
            "images={n}: RBD image {target} is used with librbd's cache (rbd_cache=true, here or in the image's configuration), and each \
             handle would have a separate cache: set images=1, or rbd_cache=false"
        )));
    }
    if n > 1 && !read_only && image.features()? & FEATURE_EXCLUSIVE_LOCK != 0 {
        return Err(Error::usage(format!(
            "images={n}: RBD image {target} has the feature exclusive-lock, which only one handle can have at a time: set images=1, or \
             switch it off with rbd feature disable {target} exclusive-lock"
        )));
    }
    Ok(())
}

/// Takes the lock, unless another live client has it.
fn lock(target: &RbdTarget, image: &Image, read_only: bool) -> Result<()> {
    if read_only {
        return Err(Error::usage("exclusive=1: a disk opened read-only cannot hold the lock; leave it out"));
    }
    if image.features()? & FEATURE_EXCLUSIVE_LOCK == 0 {
        return Err(Error::usage(format!(
            "exclusive=1: the image has no feature exclusive-lock; switch it on with rbd feature enable {target} exclusive-lock"
        )));
    }
    let taken = |owners: &[String]| {
        let text = format!(
            "exclusive=1: {} has the exclusive lock; stop using the image there (a dead client keeps it for 30 s more)",
            owners.join(", ")
        );
        Error::new(ErrorKind::Denied, text)
    };
    let owners = image.lock_owners()?;
    let watchers = image.watchers()?;
    let is_alive = |owner: &String| watchers.iter().any(|(address, _)| address == owner);
    // The lock is not taken from a live client, even if the client would release it on request, because its writes would then fail.
    if !image.owns_lock() && owners.iter().any(is_alive) {
        return Err(taken(&owners));
    }
    image.acquire_lock().map_err(|e| match image.lock_owners() {
        Ok(owners) if e.kind() == ErrorKind::Denied && !owners.is_empty() => taken(&owners),
        _ => e,
    })
}

fn limits(image: &Image, caches: bool, read_only: bool) -> Result<Limits> {
    let unit = image.option("rbd_discard_granularity_bytes").and_then(|v| v.parse::<u32>().ok());
    let object = u32::try_from(image.object_bytes()?).unwrap_or(u32::MAX);
    // A power of two, as Ceph requires, and at most the size of an object.
    let granularity = unit.filter(|u| u.is_power_of_two()).unwrap_or(1 << 16).clamp(512, object.max(512));
    let limits = Limits {
        logical_block_size: 512,
        physical_block_size: 4096,
        max_segment_size: u32::MAX,
        max_discard_sectors: if read_only { 0 } else { MAX_RANGE >> SECTOR_SHIFT },
        discard_granularity: if read_only { 0 } else { granularity },
        max_write_zeroes_sectors: if read_only || !image.writes_zeroes() { 0 } else { MAX_RANGE >> SECTOR_SHIFT },
        write_cache: caches,
        fua: false,
        read_only,
        ..Limits::with_max_hw_sectors(MAX_BYTES >> SECTOR_SHIFT)
    };
    limits.check().map_err(|text| Error::new(ErrorKind::Io, text))?;
    Ok(limits)
}

impl Driver for Rbd {
    fn name(&self) -> &'static str {
        "rbd"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        // Relaxed: a number by itself.
        Sector(self.sectors.load(Ordering::Relaxed))
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        let most = self.target.images;
        if nr_hw_queues > most {
            return Err(format!(
                "{nr_hw_queues} hardware queues: RBD image {} is opened at most {most} times; set nr_hw_queues={most}, or \
                 images={nr_hw_queues} in the target",
                self.target
            ));
        }
        for i in 0..nr_hw_queues {
            // Made before other threads can see it.
            if self.queues.iter().count() <= usize::from(i) {
                let fresh = self.make_queue().map_err(|e| format!("image {} of {nr_hw_queues}: {e}", i + 1))?;
                self.queues.get_or_init(i, || fresh);
            }
            self.queue(HctxId::new(i.into())).start(queue_depth);
        }
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        self.queue(batch.hctx()).queue_rqs(batch, &self.regions, now)
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        self.queue(hctx).poll(done);
    }
}

impl HostDriver for Rbd {
    fn max_hw_queues(&self) -> u16 {
        self.target.images
    }

    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        self.queue(hctx).wait(seen, timeout);
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.queue(hctx).wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.queue(hctx).wake();
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.queue(hctx).next_due()
    }

    fn ring_fd(&self, hctx: HctxId) -> Option<RawFd> {
        Some(self.queue(hctx).ring_fd())
    }

    fn space(&self) -> &dyn Space {
        self
    }

    fn path(&self) -> &dyn DevicePath {
        self
    }
}

impl Space for Rbd {
    fn resize(&self, bytes: Option<u64>, shrink: bool) -> Option<Result<u64>> {
        Some(self.resize_image(bytes, shrink))
    }

    fn adopt(&self, bytes: u64) {
        // Relaxed: a number by itself.
        self.sectors.store(bytes >> SECTOR_SHIFT, Ordering::Relaxed);
    }

    fn allocation(&self) -> Allocation {
        if self.is_striped { Allocation::Data } else { Allocation::Survey }
    }

    fn survey(&self, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Stretch> {
        let (offset, bytes) = (sector.0 << SECTOR_SHIFT, (nr_sectors << SECTOR_SHIFT).min(SURVEY_BYTES));
        match self.first.extents(self.object_bytes, offset, offset.saturating_add(bytes), most.max(1)) {
            Ok((extents, known)) => stretches(offset, known, u64::from(self.limits.logical_block_size), &extents, most),
            // Report data: reading it will show the error.
            Err(_) => vec![Stretch { nr_sectors, is_hole: false }],
        }
    }
}

impl DevicePath for Rbd {
    fn connections(&self) -> Option<Connections> {
        // librados reconnects by itself, unless this client is blocklisted.
        let [wanted, out] =
            [|_: &&Queue| true, |q: &&Queue| q.is_shut_out()].map(|is| self.queues.iter().filter(is).count() as u64);
        (out > 0).then(|| Connections { wanted, up: wanted - out, ..Connections::default() })
    }

    fn troubles(&self) -> Vec<String> {
        if self.queues.iter().any(Queue::is_shut_out) {
            return vec![format!(
                "RBD image {}: the cluster blocklisted this client, as when another host takes over: reopen the disk",
                self.target
            )];
        }
        // Relaxed: a number for messages.
        match self.stayed.load(Ordering::Relaxed) {
            0 => Vec::new(),
            n => vec![format!(
                "RBD image {}: {n} requests without an answer from the cluster could not be given up, because librbd still \
                 uses their memory; set rados_osd_op_timeout=SECONDS in the target to make such requests fail",
                self.target
            )],
        }
    }

    fn set_give_up(&self, give_up: bool) -> bool {
        let stayed = self.queues.iter().map(|q| q.set_give_up(give_up)).sum();
        self.stayed.store(stayed, Ordering::Relaxed);
        true
    }
}

/// Returns the stretches between `start` and `end`, in whole blocks. Extents are in order and do not overlap; all between
/// them are holes.
fn stretches(start: u64, end: u64, block: u64, extents: &[(u64, u64)], most: usize) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    let mut put = |bytes: u64, is_hole: bool| match found.last_mut() {
        _ if bytes == 0 => {}
        Some(last) if last.is_hole == is_hole => last.nr_sectors += bytes >> SECTOR_SHIFT,
        _ => found.push(Stretch { nr_sectors: bytes >> SECTOR_SHIFT, is_hole }),
    };
    let mut at = start;
    for (offset, len) in extents {
        let from = (offset / block * block).clamp(at, end);
        let to = offset.saturating_add(*len).next_multiple_of(block).clamp(at, end);
        put(from - at, true);
        put(to - from, false);
        at = to;
    }
    put(end - at, true);
    found.truncate(most.max(1));
    found
}

impl DriverTarget for RbdTarget {
    const KIND: &'static str = "rbd";
    const HELP: &'static str = "
  rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:NAME=VALUE...]
                       an image of a Ceph cluster, named as in QEMU; conf=FILE, id=USER, images=N, exclusive=1,
                       and options of Ceph's configuration";

    fn parse(text: &str, _rest: &str) -> Result<RbdTarget> {
        parse(text)
    }

    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        let rbd = Rbd::open(self, needs.write, regions)?;
        OpenTarget::sized(rbd, needs, format_args!("RBD image {self}"), ", or enlarge the image with rbd resize")
    }

    fn is_same_data(&self, other: &Self) -> bool {
        // The target's text contains pool, namespace, image and snapshot.
        (&self.cluster, &self.conf, self.to_string()) == (&other.cluster, &other.conf, other.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_a_hole_and_blocks_are_whole() {
        let told = |extents: &[(u64, u64)], most| {
            let all = stretches(4096, 65536, 512, extents, most);
            all.iter().map(|s| (s.nr_sectors, s.is_hole)).collect::<Vec<_>>()
        };
        assert_eq!(told(&[], 9), [(120, true)]);
        assert_eq!(told(&[(4096, 61440)], 9), [(120, false)]);
        assert_eq!(told(&[(8192, 512), (8704, 100)], 9), [(8, true), (2, false), (110, true)]);
        assert_eq!(told(&[(8192 + 100, 200), (65000, 4096)], 9), [(8, true), (1, false), (109, true), (2, false)]);
        assert_eq!(told(&[(0, 8192)], 9), [(8, false), (112, true)]);
        assert_eq!(told(&[(8192, 512), (16384, 512)], 2), [(8, true), (1, false)]);
    }

    #[test]
    fn a_snapshot_is_not_written_to() {
        let target = parse("rbd:p/i@s").unwrap();
        let e = Rbd::open(&target, true, Arc::new(Regions::new())).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().contains("p/i@s is a snapshot"), "{e}");
    }
}
