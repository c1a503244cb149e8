// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `mqblk serve`: IOThreads, disks, and the exports through which clients reach the disks.
//!
//! Guarantees: none; these are the requested values, from any source (a file, a configuration, a libvirt domain).
//! [`ServePlan::check`](super::check) makes a [`CheckedPlan`](super::check::CheckedPlan) from a plan. Two plans can be compared, which is
//! how a reload finds what was added and removed. Does not do: read a file, open a device, start a thread.

use super::geometry::Geometry;
use super::mapping::Mapping;
use crate::driver::Aio;
use crate::driver::file::FilePart;
use crate::secrets::Masked;
use crate::target::TargetSpec;
use std::path::Path;

pub use crate::export::fuse::spec::FusePlan;
pub use crate::export::nbd::spec::{NBD_CONNECTIONS, NbdListen, NbdPlan};
pub use crate::export::registry::{EXPORT_TYPES, ExportKind, serves_connections};
pub use crate::export::ublk::spec::UblkPlan;
pub use crate::export::vhost::spec::{QUEUE_SIZE, VHOST_QUEUES_MAX, VhostUserPlan};

/// The complete plan of one daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServePlan {
    /// Reactor threads; empty = as many as there are virtqueues, up to the host's CPUs ([`DEFAULT_IOTHREAD_NAME`]0, ...).
    pub iothreads: Vec<IoThreadPlan>,
    /// Disks.
    pub disks: Vec<DiskPlan>,
    /// Exports: the ways in which clients reach the disks.
    pub exports: Vec<ExportPlan>,
}

/// Default name of IOThreads, followed by a number from 0.
pub const DEFAULT_IOTHREAD_NAME: &str = "iothread";
/// Default of `chunk`, bytes. Source: lvm.conf(5), `stripesize`.
pub const STRIPE_CHUNK: u64 = 64 << 10;
/// Longest serial, bytes. Source: virtio 1.2, 5.2.6, `VIRTIO_BLK_T_GET_ID`.
pub const SERIAL_MAX: usize = 20;

/// A reactor thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoThreadPlan {
    /// Unique among IOThreads.
    pub name: String,
    /// CPUs that it may run on, in ascending order; empty = all that the daemon may use.
    pub cpus: Vec<u32>,
    /// How it polls before it sleeps.
    pub poll: PollPlan,
}

impl IoThreadPlan {
    /// Makes an IOThread with default polling that may run on all CPUs.
    pub fn new(name: impl Into<String>) -> IoThreadPlan {
        IoThreadPlan { name: name.into(), cpus: Vec::new(), poll: PollPlan::default() }
    }
}

/// Adaptive polling: an IOThread that finds nothing polls for a time that grows when polling would have caught the next
/// event and shrinks when it would not. Source: QEMU util/aio-posix.c, iothread.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollPlan {
    /// Longest time in nanoseconds; 0 = never polls, `None` = the best value from 16,384 to 131,072, found by trial.
    pub max_ns: Option<u64>,
    /// The time is multiplied by this when it grows; 0 = by 2.
    pub grow: u32,
    /// The time is divided by this when it shrinks; 0 = the time becomes 0.
    pub shrink: u32,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Unique among disks.
    pub name: String,
    /// Where its data is: one target, or those that it is striped over, in order.
    pub targets: Vec<TargetPlan>,
    /// How its data is striped over several targets; `None` = there is one target.
    pub stripe: Option<StripePlan>,
    /// Settings of its queues, as for `--set`; later ones override earlier ones. Each target has its own queues, with these settings.
    pub settings: Vec<(String, String)>,
    /// The disk is opened read-only; its exports are then read-only, too.
    pub read_only: bool,
    /// The disk's serial number for guests, at most [`SERIAL_MAX`] printable characters; `None` = the disk's name, cut to that length.
    pub serial: Option<String>,
    /// The part of its file or block device that is the disk (`offset`, `size`); other targets are used as a whole.
    pub part: FilePart,
    /// Block sizes that clients see.
    pub geometry: Geometry,
    /// Images may begin as those of another format do (`format = "raw"`). Otherwise such images are refused.
    pub is_raw: bool,
    /// Files are opened with O_DIRECT, which bypasses the page cache (`direct=1`).
    pub direct: bool,
    /// How the I/O of files is issued; `None` = by io_uring if possible, otherwise by threads.
    pub aio: Option<Aio>,
    /// Whether clients see a volatile write cache.
    pub write_cache: WriteCache,
    /// Clients may discard.
    pub discard: bool,
    /// What happens when the image's file system is full.
    pub on_enospc: OnEnospc,
    /// A block device may be written although it is mounted or part of another device (`allow_mounted_write=1`).
    pub allow_mounted_write: bool,
}

impl DiskPlan {
    /// Makes a disk with the defaults: direct, write back, discard, errors reported.
    pub fn new(name: impl Into<String>, target: TargetSpec, target_text: impl AsRef<str>) -> DiskPlan {
        DiskPlan {
            name: name.into(),
            targets: vec![TargetPlan { spec: target, text: Masked::new(target_text.as_ref()) }],
            stripe: None,
            settings: Vec::new(),
            read_only: false,
            serial: None,
            part: FilePart::default(),
            geometry: Geometry::default(),
            is_raw: false,
            direct: true,
            aio: None,
            write_cache: WriteCache::Back,
            discard: true,
            on_enospc: OnEnospc::Report,
            allow_mounted_write: false,
        }
    }

    /// Returns the disk, striped over several targets in chunks of `chunk_bytes`.
    pub fn striped(self, chunk_bytes: u64, targets: Vec<TargetPlan>) -> DiskPlan {
        DiskPlan { targets, stripe: Some(StripePlan { chunk_bytes }), ..self }
    }

    /// Returns its images: the files and block devices of its targets, or of their paths.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.targets.iter().flat_map(TargetPlan::paths)
    }
}

/// A target that holds data of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPlan {
    /// The parsed target.
    pub spec: TargetSpec,
    /// The target as typed, for messages, without its secrets.
    pub text: Masked,
}

impl TargetPlan {
    /// Returns its images: its file or block device, or those of its paths, which may be several names of one image.
    pub fn paths(&self) -> Vec<&Path> {
        self.spec.files()
    }
}

/// Chunks are distributed over the targets round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePlan {
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
}

impl StripePlan {
    /// Returns the chunk size as typed in a configuration.
    pub fn chunk_text(self) -> String {
        match self.chunk_bytes {
            n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}m", n >> 20),
            n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
            n => n.to_string(),
        }
    }
}

/// `write_cache`, in the words of `/sys/block/X/queue/write_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// A write is stable after a flush; the client flushes.
    Back,
    /// A write is stable when it is acknowledged; the client need not flush.
    Through,
}

impl WriteCache {
    /// Returns the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            WriteCache::Back => "write back",
            WriteCache::Through => "write through",
        }
    }
}

/// `on_enospc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEnospc {
    /// The client gets the protocol's error.
    Report,
    /// Writes that fail for lack of space are held and retried each second until there is space; clients see slow writes. Held writes keep
    /// their tags, so eventually no other I/O makes progress either.
    Stop,
}

impl OnEnospc {
    /// Returns the word as typed in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            OnEnospc::Report => "report",
            OnEnospc::Stop => "stop",
        }
    }
}

/// One way to reach a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    /// Unique among exports.
    pub name: String,
    /// Name of its disk.
    pub disk: String,
    /// Clients may not write, whatever the disk allows.
    pub read_only: bool,
    /// Block sizes that its clients see instead of the disk's.
    pub geometry: Geometry,
    /// Which IOThreads serve it. Without entries: all of them, round robin, continuing after the last IOThread of the previous export.
    pub mapping: Mapping,
    /// Type and settings of the export.
    pub kind: ExportKind,
}

impl ExportPlan {
    /// Returns the NBD settings, if it is an NBD export. NBD exports share servers; exports of all other types are begun individually.
    pub(super) fn nbd(&self) -> Option<&NbdPlan> {
        if let ExportKind::Nbd(nbd) = &self.kind { Some(nbd) } else { None }
    }
}
