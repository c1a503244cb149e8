// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `mqblk serve` is to do: IOThreads, disks, and the exports through which clients reach them.
//!
//! Guarantees: nothing; these are values as they were asked for, from any reader (a file, a configuration, a libvirt
//! domain). [`ServePlan::check`](super::check) makes a [`CheckedPlan`](super::check::CheckedPlan) of one. Two plans can be
//! compared, which is how a reload finds what was added and removed. Does not do: read a file, open a device, start a thread.

use super::mapping::Mapping;
use crate::net::certificates::NbdTls;
use crate::target::TargetSpec;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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
/// Most `num_queues` of a vhost-user device: a vring's index has eight bits in `VHOST_USER_SET_VRING_KICK`.
/// Source: vhost-user specification, "Front-end message types".
pub const VHOST_QUEUES_MAX: u16 = 256;
/// Most `num_queues` of a ublk device: as the driver's `UBLK_MAX_NR_QUEUES`.
pub const UBLK_QUEUES_MAX: u16 = 4096;
/// Default of `queue_size`: entries of a ring. Source: QEMU hw/block/virtio-blk.c, `queue-size`.
pub const QUEUE_SIZE: u16 = 256;
/// Largest `queue_size`. Source: QEMU include/hw/virtio/virtio.h, `VIRTQUEUE_MAX_SIZE`.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Default of `chunk`, bytes. Source: lvm.conf(5), `stripesize`.
pub const STRIPE_CHUNK: u64 = 64 << 10;
/// Default of `max_connections`.
pub const NBD_CONNECTIONS: u32 = 64;
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
    /// their tags, so that in the end nothing else continues either.
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

/// The protocol of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// A virtio-blk device for a VM (QEMU, cloud-hypervisor, libblkio).
    VhostUserBlk(VhostUserPlan),
    /// A network block device.
    Nbd(NbdPlan),
    /// A file that is the disk.
    Fuse(FusePlan),
    /// A block device of this host's kernel.
    Ublk(UblkPlan),
}

impl ExportKind {
    /// As typed in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            ExportKind::VhostUserBlk(_) => "vhost-user-blk",
            ExportKind::Nbd(_) => "nbd",
            ExportKind::Fuse(_) => "fuse",
            ExportKind::Ublk(_) => "ublk",
        }
    }

    /// Queues that a mapping distributes; `None` for exports whose connections are dealt round robin as they come.
    pub fn num_queues(&self) -> Option<u16> {
        match self {
            ExportKind::VhostUserBlk(v) => Some(v.num_queues),
            ExportKind::Ublk(u) => Some(u.num_queues),
            ExportKind::Nbd(_) | ExportKind::Fuse(_) => None,
        }
    }

    /// The Unix socket it listens on.
    pub fn unix_socket(&self) -> Option<&Path> {
        match self {
            ExportKind::VhostUserBlk(v) => Some(&v.socket),
            ExportKind::Nbd(NbdPlan { listen: NbdListen::Unix(path), .. }) => Some(path),
            _ => None,
        }
    }
}

/// A vhost-user-blk device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserPlan {
    /// Unix socket; one client at a time.
    pub socket: PathBuf,
    /// Permissions of the socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Virtqueues offered, `1..=`[`VHOST_QUEUES_MAX`]; the client may use fewer.
    pub num_queues: u16,
    /// Size of rings that the printed commands ask for, a power of two in `2..=`[`QUEUE_SIZE_MAX`]; the client chooses.
    pub queue_size: u16,
}

/// An NBD export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdPlan {
    /// Where the server listens. Exports that listen on the same place are one server; the first of them is also what a
    /// client gets that asks for the empty name.
    pub listen: NbdListen,
    /// Permissions of a Unix socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Export name, unique among those of one server; at most 4096 bytes.
    pub name: String,
    /// Encryption.
    pub tls: Option<NbdTls>,
    /// Most clients at once on this server.
    pub max_connections: u32,
}

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NbdListen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::fmt::Display for NbdListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "{}", path.display()),
            NbdListen::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// One file, mounted over an existing one, whose content is the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusePlan {
    /// An existing regular file.
    pub mountpoint: PathBuf,
    /// Other users may open it.
    pub allow_other: bool,
}

/// A block device `/dev/ublkbID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkPlan {
    /// Its number; `None` = the kernel's choice.
    pub id: Option<u32>,
    /// Hardware queues, `1..=`[`UBLK_QUEUES_MAX`].
    pub num_queues: u16,
    /// Tags of each, `1..=4096`.
    pub queue_depth: u16,
    /// The device outlives the daemon and waits for its next start.
    pub recovery: bool,
}
