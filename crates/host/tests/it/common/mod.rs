// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver under a real request queue with one submitter and a pool of buffers, for tests.
#![allow(dead_code, reason = "each test crate uses its part")]

pub mod ceph;
pub mod commands;
pub mod iscsi;
pub mod istgt;
pub mod initiator;
pub mod lio;
pub mod iscsi_proxy;
pub mod paths;
pub mod peers;
pub mod proxy;
pub mod scripted;
pub mod stopping;
use crate::waiting::POLL;

pub use crate::waiting::until;
use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::id::{CpuId, HctxId, Sector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::submitter::Submitter;
use ceph::CephImage;
use host::clock::now;
use host::driver::Aio;
use host::driver::HostDriver;
use host::driver::Iscsi;
use host::driver::Nbd;
use host::driver::Rbd;
use host::driver::file::{File, FileOptions};
use host::mem::{BufferPool, Regions};
use host::target::{Needs, TargetSpec};
use iscsi::Tgt;
use istgt::Istgt;
use parking_lot::RawMutex;
use peers::Peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a loopback address that no other server of any test has, in this process or another, also while its server is down.
/// Ports of 127.0.0.1 are not enough, because the kernel reassigns them as soon as they are closed.
pub fn own_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // 127.128.0.0/9: 13 bits for the process, 10 for its servers.
    let host = 1 << 23 | (std::process::id() & 0x1fff) << 10 | NEXT.fetch_add(1, Ordering::Relaxed) & 0x3ff;
    (Ipv4Addr::from_bits(0x7f00_0000 | host), 3261).into()
}

pub const SLOT_BYTES: usize = 32 << 10;
pub const SLOT_SECTORS: u32 = (SLOT_BYTES >> 9) as u32;
const SLOTS: u32 = 96;
const DISK_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The disk that this target text describes: of [`DISK_BYTES`], and it keeps its data.
    Keeps(&'static str),
    /// The same for a disk that does not keep its data.
    Forgets(&'static str),
    FileDirect,
    FileBuffered,
    /// The same through threads instead of io_uring.
    FileDirectThreads,
    FileBufferedThreads,
    /// The block device that the environment names.
    Device,
    /// nbdkit's memory, over several connections.
    NbdMemory,
    /// A file served by qemu-nbd.
    NbdQemu,
    /// nbdkit's memory, over several connections under TLS.
    NbdTls,
    /// An image of the Ceph cluster that the environment names, opened several times.
    Rbd,
    /// An image that is opened once, through librbd's cache.
    RbdCached,
    /// Debian's iSCSI target, over several sessions.
    IscsiTgt,
    /// The same with digests of headers and data.
    IscsiDigests,
    /// The target istgt, over several sessions.
    IscsiIstgt,
    /// The same with digests and without immediate data.
    IscsiIstgtSolicited,
    /// Two descriptors of a file, as paths in round robin.
    MultipathFiles,
    /// Two paths to Debian's iSCSI target.
    MultipathIscsi,
}

impl Kind {
    /// The kinds of one file, with and without the page cache, with each engine.
    pub const FILES: [Kind; 4] =
        [Kind::FileDirect, Kind::FileBuffered, Kind::FileDirectThreads, Kind::FileBufferedThreads];

    /// Those without the page cache.
    pub const DIRECT_FILES: [Kind; 2] = [Kind::FileDirect, Kind::FileDirectThreads];

    pub fn keeps_data(self) -> bool {
        !matches!(self, Kind::Forgets(_))
    }

    /// Whether the driver notices a bad data reference.
    pub fn touches_data(self) -> bool {
        self.keeps_data()
    }

    pub fn discard_zeroes(self) -> bool {
        // librbd ignores discards that are smaller than its unit, and istgt has no discard.
        self.keeps_data() && !self.is_rbd() && !matches!(self, Kind::IscsiIstgt | Kind::IscsiIstgtSolicited)
    }

    fn is_rbd(self) -> bool {
        matches!(self, Kind::Rbd | Kind::RbdCached)
    }

    fn istgt(self) -> Option<Istgt> {
        let immediate_data = match self {
            Kind::IscsiIstgt => "Yes",
            Kind::IscsiIstgtSolicited => "No",
            _ => return None,
        };
        Some(Istgt::new(istgt::Options { immediate_data, auth: "None" }))
    }

    fn ceph(self) -> Option<CephImage> {
        let features = if self == Kind::Rbd { "layering" } else { "layering,exclusive-lock" };
        self.is_rbd().then(|| CephImage::new(DISK_BYTES, features))
    }

    fn peer(self) -> Option<Peer> {
        match self {
            Kind::NbdMemory => Some(Peer::nbdkit(&["memory", "8M"])),
            Kind::NbdQemu => Some(Peer::qemu(&[])),
            Kind::NbdTls => Some(Peer::with_certificates(&["memory", "8M"])),
            _ => None,
        }
    }

    /// Makes a disk of two paths in round robin.
    fn multipath(target: &str, regions: &Arc<Regions>) -> Arc<dyn HostDriver> {
        Kind::open(
            &format!("multipath:path_grouping_policy=multibus,path_selector=round-robin:{target}+{target}"),
            regions,
        )
    }

    fn open(target: &str, regions: &Arc<Regions>) -> Arc<dyn HostDriver> {
        let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let open = TargetSpec::parse(target).unwrap().open(&needs, regions.clone()).unwrap();
        assert!(open.warnings.is_empty(), "{:?}", open.warnings);
        open.driver
    }

    fn driver(
        self,
        regions: &Arc<Regions>,
        path: &Option<TempFile>,
        peer: &Option<Peer>,
        tgt: &Option<Tgt>,
    ) -> Arc<dyn HostDriver> {
        if let Some(peer) = peer {
            let target = host::driver::nbd::parse(&peer.target("")).unwrap();
            let (nbd, warning) = Nbd::open(&target, true, regions.clone()).unwrap();
            assert_eq!(warning, None);
            return Arc::new(nbd);
        }
        if let (Kind::MultipathIscsi, Some(target)) = (self, tgt) {
            return Kind::multipath(&target.url(""), regions);
        }
        if let Some(target) = tgt {
            let digests = if self == Kind::IscsiDigests { "?header_digest=crc32c&data_digest=crc32c" } else { "" };
            let target = host::driver::iscsi::parse(&target.url(digests)).unwrap();
            return Arc::new(Iscsi::open(&target, true, regions.clone()).unwrap());
        }
        let file = |direct, aio| {
            let options = FileOptions { direct, aio: Some(aio), ..FileOptions::default() };
            let path = &path.as_ref().expect("a file driver has a file").0;
            let (file, warnings) = File::open(path, &options, regions.clone()).unwrap();
            assert!(warnings.is_empty() && file.is_direct() == direct, "{warnings:?}");
            assert_eq!(file.aio(), Some(aio));
            file
        };
        match self {
            Kind::Keeps(target) | Kind::Forgets(target) => Kind::open(target, regions),
            Kind::FileDirect => Arc::new(file(true, Aio::IoUring)),
            Kind::FileBuffered => Arc::new(file(false, Aio::IoUring)),
            Kind::FileDirectThreads => Arc::new(file(true, Aio::Threads)),
            Kind::FileBufferedThreads => Arc::new(file(false, Aio::Threads)),
            Kind::Device => {
                let path = device().expect("asked for before");
                Arc::new(File::open(&path, &FileOptions::default(), regions.clone()).unwrap().0)
            }
            Kind::MultipathFiles => {
                let path = &path.as_ref().expect("a file driver has a file").0;
                Kind::multipath(path.to_str().unwrap(), regions)
            }
            Kind::Rbd | Kind::RbdCached => unreachable!("they have an image"),
            Kind::IscsiIstgt | Kind::IscsiIstgtSolicited => unreachable!("they have a target"),
            Kind::NbdMemory
            | Kind::NbdQemu
            | Kind::NbdTls
            | Kind::IscsiTgt
            | Kind::IscsiDigests
            | Kind::MultipathIscsi => {
                unreachable!("they have a peer")
            }
        }
    }
}

/// Returns the block device that `MQBLK_TEST_DEVICE` names, which tests may overwrite. Without one, prints the reason.
pub fn device() -> Option<PathBuf> {
    let device = std::env::var_os("MQBLK_TEST_DEVICE").map(PathBuf::from);
    if device.is_none() {
        eprintln!("skipped: MQBLK_TEST_DEVICE names no block device that may be overwritten");
    }
    device
}

/// A file of [`DISK_BYTES`] in the build's scratch directory (a real file system, unlike /tmp on some machines).
pub struct TempFile(pub PathBuf);

impl TempFile {
    pub fn new() -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::File::create(&path).unwrap().set_len(DISK_BYTES).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub struct DriverFixture {
    pub driver: Arc<dyn HostDriver>,
    pub disk: Arc<RequestQueue<RawMutex>>,
    submitter: Submitter<RawMutex>,
    pub pool: BufferPool,
    regions: Arc<Regions>,
    /// Sleep in the driver for completions, rather than spin.
    pub may_wait: bool,
    file: Option<TempFile>,
    pub peer: Option<Peer>,
    /// After the driver, so that the driver is dropped first.
    pub ceph: Option<CephImage>,
    pub tgt: Option<Tgt>,
    pub istgt: Option<Istgt>,
}

impl DriverFixture {
    pub fn new(kind: Kind) -> DriverFixture {
        DriverFixture::with(kind, |_| ())
    }

    pub fn with(kind: Kind, settings: impl FnOnce(&mut QueueConfig)) -> DriverFixture {
        let regions = Arc::new(Regions::new());
        let file = (Kind::FILES.contains(&kind) || kind == Kind::MultipathFiles).then(TempFile::new);
        let peer = kind.peer();
        if let Some(image) = kind.ceph() {
            let options = if kind == Kind::Rbd { ":images=4" } else { ":rbd_cache=true" };
            let target = host::driver::rbd::parse(&image.target(options)).unwrap();
            let driver = Arc::new(Rbd::open(&target, true, regions.clone()).unwrap());
            return DriverFixture { ceph: Some(image), ..DriverFixture::on(driver, regions, settings) };
        }
        if let Some(istgt) = kind.istgt() {
            let solicited = kind == Kind::IscsiIstgtSolicited;
            let digests = if solicited { "?header_digest=crc32c&data_digest=crc32c" } else { "" };
            let target = host::driver::iscsi::parse(&istgt.url_as("", digests)).unwrap();
            let driver = Arc::new(Iscsi::open(&target, true, regions.clone()).unwrap());
            return DriverFixture { istgt: Some(istgt), ..DriverFixture::on(driver, regions, settings) };
        }
        let tgt = matches!(kind, Kind::IscsiTgt | Kind::IscsiDigests | Kind::MultipathIscsi).then(Tgt::new);
        let driver = kind.driver(&regions, &file, &peer, &tgt);
        DriverFixture { file, peer, tgt, ..DriverFixture::on(driver, regions, settings) }
    }

    /// Makes a fixture on a driver whose data is in `regions`.
    pub fn on(
        driver: Arc<dyn HostDriver>,
        regions: Arc<Regions>,
        settings: impl FnOnce(&mut QueueConfig),
    ) -> DriverFixture {
        let mut config = QueueConfig::default();
        settings(&mut config);
        let most = driver.max_hw_queues();
        if config.hw_queues() > most {
            config.nr_hw_queues = Some(most);
        }
        let disk = RequestQueue::new(driver.clone(), config, Box::new(NoNotify)).unwrap();
        let submitter = disk.submitter(CpuId::new(0)).unwrap();
        let pool = BufferPool::new(&regions, SLOTS, SLOT_BYTES, false).unwrap();
        let (file, peer, ceph, tgt, istgt) = (None, None, None, None, None);
        DriverFixture { driver, disk, submitter, pool, regions, may_wait: true, file, peer, ceph, tgt, istgt }
    }

    /// Returns this fixture, and one with a submitter on CPU 1 and a separate pool.
    pub fn split_in_two(self) -> (DriverFixture, DriverFixture) {
        self.split_in_two_on_cpu(1)
    }

    /// Returns this fixture, and one with a submitter on `cpu` and a separate pool.
    pub fn split_in_two_on_cpu(self, cpu: u32) -> (DriverFixture, DriverFixture) {
        let other = DriverFixture {
            driver: self.driver.clone(),
            disk: self.disk.clone(),
            submitter: self.disk.submitter(CpuId::new(cpu)).unwrap(),
            pool: BufferPool::new(&self.regions, SLOTS, SLOT_BYTES, false).unwrap(),
            regions: self.regions.clone(),
            may_wait: true,
            file: None,
            peer: None,
            ceph: None,
            tgt: None,
            istgt: None,
        };
        (self, other)
    }

    /// Reaps completed I/O, of this submitter or another.
    pub fn poll(&mut self) {
        self.submitter.poll(now());
    }

    /// Whether a thread that sleeps on the first hardware queue's descriptor would wake at once.
    pub fn is_readable(&self) -> bool {
        let fd = self.driver.ring_fd(HctxId::new(0)).expect("a driver with a descriptor");
        // SAFETY: it is the driver's own, which lives as long as the fixture.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    /// Returns the path of the backing file.
    pub fn path(&self) -> &Path {
        &self.file.as_ref().expect("a file driver has a file").0
    }

    pub fn block_sectors(&self) -> u32 {
        self.disk.limits().logical_block_sectors()
    }

    pub fn pool_region(&mut self) -> u16 {
        let data = self.pool.lend(0);
        // SAFETY: no I/O was submitted with it.
        unsafe { self.pool.give_back(0) };
        data.region()
    }

    /// Submits the bios as one plugged batch, each with its slot lent. Returns their statuses in that order.
    pub fn io_batch(&mut self, bios: Vec<(u32, Bio)>) -> Vec<BlkStatus> {
        let mut statuses = vec![None; bios.len()];
        self.submitter.start_plug(bios.len() as u32);
        for (i, (slot, bio)) in bios.iter().enumerate() {
            let bio = Bio { data: self.pool.lend(*slot), ..*bio };
            self.submitter.submit(&bio.with_user_data(i as u64), now()).unwrap();
        }
        self.submitter.finish_plug(now());
        self.collect(&mut statuses);
        // A test may not poll for a while, and a freeze must not wait for that.
        self.submitter.rest();
        for (slot, _) in &bios {
            // SAFETY: every bio has ended.
            unsafe { self.pool.give_back(*slot) };
        }
        statuses.into_iter().map(|s| s.expect("collected")).collect()
    }

    fn collect(&mut self, statuses: &mut [Option<BlkStatus>]) {
        // A driver that has sent nothing, because no path is left, returns from its wait at once. After some such returns, sleep
        // instead.
        let mut in_vain = 0;
        while statuses.iter().any(Option::is_none) {
            self.submitter.poll(now());
            let before = self.submitter.ready();
            in_vain = if before == 0 { in_vain + 1 } else { 0 };
            self.submitter.reap(|done| {
                let status = &mut statuses[done.user_data as usize];
                assert_eq!(*status, None, "bio {} ended twice", done.user_data);
                *status = Some(done.status);
            });
            if before == 0 && self.may_wait && in_vain < 10 {
                let hctxs: Vec<_> = self.submitter.hctxs().collect();
                hctxs.into_iter().for_each(|h| self.driver.wait(h, 1, None));
            } else if before == 0 {
                std::thread::sleep(POLL);
            }
        }
        assert_eq!(self.submitter.outstanding(), 0);
        // There is no poll until the next I/O, and a freeze in between must not wait for one.
        self.submitter.rest();
    }

    /// Submits a bio unchanged and waits for it. Returns its status.
    pub fn io(&mut self, bio: Bio) -> BlkStatus {
        self.begin(bio);
        self.finish()
    }

    /// Submits a bio and does not poll.
    pub fn begin(&mut self, bio: Bio) {
        self.submitter.submit(&bio.with_user_data(0), now()).unwrap();
    }

    /// Waits for that bio. Returns its status.
    pub fn finish(&mut self) -> BlkStatus {
        let mut status = [None];
        self.collect(&mut status);
        status[0].expect("collected")
    }

    pub fn io_with_slot(&mut self, slot: u32, bio: Bio) -> BlkStatus {
        self.io_batch(vec![(slot, bio)])[0]
    }

    pub fn write(&mut self, sector: u64, fill: &[u8], flags: OpFlags) -> BlkStatus {
        self.pool.with_slot(0, |b| b[..fill.len()].copy_from_slice(fill));
        let bio = Bio::write(Sector(sector), (fill.len() >> 9) as u32, DataRef::NONE).with_flags(flags);
        self.io_with_slot(0, bio)
    }

    pub fn read(&mut self, sector: u64, len: usize) -> (BlkStatus, Vec<u8>) {
        self.pool.with_slot(1, |b| b.fill(0xee));
        let status = self.io_with_slot(1, Bio::read(Sector(sector), (len >> 9) as u32, DataRef::NONE));
        (status, self.pool.with_slot(1, |b| b[..len].to_vec()))
    }

    pub fn write_zeroes_all(&mut self, sectors: u32) {
        let bio = Bio { op: Op::WriteZeroes, ..Bio::read(Sector(0), sectors, DataRef::NONE) };
        assert_eq!(self.io(bio), BlkStatus::Ok);
    }
}

/// Returns a buffer to the pool after its I/O has completed.
pub fn give_back(pool: &mut BufferPool, slot: u32) {
    // SAFETY: its bio has ended, says the caller.
    unsafe { pool.give_back(slot) };
}
