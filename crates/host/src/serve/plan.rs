// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `mqblk serve` is to do: IOThreads, disks, and the exports through which clients reach them.
//!
//! Guarantees: nothing; these are values as they were asked for, from any reader (a file, a configuration, a libvirt
//! domain). [`ServePlan::check`](super::check) makes a [`CheckedPlan`](super::check::CheckedPlan) of one. Two plans can be
//! compared, which is how a reload finds what was added and removed. Does not do: read a file, open a device, start a thread.

use super::mapping::Mapping;
use crate::target::TargetSpec;
use std::path::Path;

pub use crate::export::fuse::spec::FusePlan;
pub use crate::export::nbd::spec::{NBD_CONNECTIONS, NbdListen, NbdPlan};
pub use crate::export::registry::{EXPORT_TYPES, ExportKind, serves_connections};
pub use crate::export::ublk::spec::UblkPlan;
pub use crate::export::vhost::spec::{QUEUE_SIZE, VHOST_QUEUES_MAX, VhostUserPlan};

/// All that one daemon serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServePlan {
    /// Reactor threads; empty = as many as there are virtqueues, up to the host's CPUs ([`DEFAULT_IOTHREAD_NAME`]0, ...).
    pub iothreads: Vec<IoThreadPlan>,
    /// Disks.
    pub disks: Vec<DiskPlan>,
    /// Ways to reach them.
    pub exports: Vec<ExportPlan>,
}

/// IOThreads without a given name are called so, with a number from 0.
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
    /// CPUs it may run on, rising; empty = all that the daemon may use.
    pub cpus: Vec<u32>,
    /// How it polls before it sleeps.
    pub poll: PollPlan,
}

impl IoThreadPlan {
    /// One that polls as QEMU's do and may run anywhere.
    pub fn new(name: impl Into<String>) -> IoThreadPlan {
        IoThreadPlan { name: name.into(), cpus: Vec::new(), poll: PollPlan::default() }
    }
}

/// Adaptive polling: an IOThread that finds nothing polls for a time that grows when polling would have caught the next
/// event and shrinks when it would not. Source: QEMU util/aio-posix.c, iothread.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollPlan {
    /// Longest time, nanoseconds; 0 = never polls, `None` = what turns out best, 16,384 to 131,072.
    pub max_ns: Option<u64>,
    /// The time is multiplied by this when it grows; 0 = by 2.
    pub grow: u32,
    /// The time is divided by this when it shrinks; 0 = becomes 0.
    pub shrink: u32,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Unique among disks.
    pub name: String,
    /// Where its data is: one target, or those that it is striped over, in their order.
    pub targets: Vec<TargetPlan>,
    /// How its data lies on several targets; `None` = there is one.
    pub stripe: Option<StripePlan>,
    /// Settings of its queues, as of `--set`; later ones over earlier ones. Each target has queues of its own, and these settings.
    pub settings: Vec<(String, String)>,
    /// Opened so that it cannot be written; its exports are then read-only.
    pub read_only: bool,
    /// What the guest reads as the disk's serial, at most [`SERIAL_MAX`] printable characters; `None` = the disk's name,
    /// cut to that.
    pub serial: Option<String>,
    /// A file past the page cache (`direct=1`).
    pub direct: bool,
    /// What clients see of a volatile write cache.
    pub write_cache: WriteCache,
    /// Clients may discard.
    pub discard: bool,
    /// What happens when the image's file system is full.
    pub on_enospc: OnEnospc,
    /// A block device that is mounted or part of another one is written to all the same (`allow_mounted_write=1`).
    pub allow_mounted_write: bool,
}

impl DiskPlan {
    /// A disk with the defaults: direct, write back, discard, errors reported.
    pub fn new(name: impl Into<String>, target: TargetSpec, target_text: impl Into<String>) -> DiskPlan {
        DiskPlan {
            name: name.into(),
            targets: vec![TargetPlan { spec: target, text: target_text.into() }],
            stripe: None,
            settings: Vec::new(),
            read_only: false,
            serial: None,
            direct: true,
            write_cache: WriteCache::Back,
            discard: true,
            on_enospc: OnEnospc::Report,
            allow_mounted_write: false,
        }
    }

    /// The same over several targets in chunks of so many bytes.
    pub fn striped(self, chunk_bytes: u64, targets: Vec<TargetPlan>) -> DiskPlan {
        DiskPlan { targets, stripe: Some(StripePlan { chunk_bytes }), ..self }
    }

    /// Images: files and block devices that its targets are, or that are paths of them.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.targets.iter().flat_map(TargetPlan::paths)
    }
}

/// Where data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPlan {
    /// As read.
    pub spec: TargetSpec,
    /// As typed, for messages.
    pub text: String,
}

impl TargetPlan {
    /// Images: the file or block device that it is, or those that are its paths, which may be one under several names.
    pub fn paths(&self) -> Vec<&Path> {
        self.spec.files()
    }
}

/// Chunks dealt over targets in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePlan {
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
}

impl StripePlan {
    /// The chunk as one types it.
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
    /// The kernel's word.
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
    /// Writes that find no space are held and tried again each second until there is some; clients see slow writes. They keep
    /// their tags, so in the end no other I/O makes progress either.
    Stop,
}

impl OnEnospc {
    /// As typed.
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
    /// Which IOThreads serve it; without entries: all of them, dealt on from where the export before it ended.
    pub mapping: Mapping,
    /// How.
    pub kind: ExportKind,
}

impl ExportPlan {
    /// As an NBD export: the daemon has these on servers, which they share. Exports of all other types begin by themselves.
    pub(super) fn nbd(&self) -> Option<&NbdPlan> {
        if let ExportKind::Nbd(nbd) = &self.kind { Some(nbd) } else { None }
    }
}
