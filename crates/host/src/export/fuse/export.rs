// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk as a file: mounted, served by a channel on each IOThread, unmounted at the end.
//!
//! Guarantees: the export starts completely or not at all. If the file is not open when the export is dropped, it is unmounted first,
//! which writes back the page cache. Otherwise the received requests are answered, then the mount is detached, and the kernel fails all
//! other requests. Detach a loop device on the file before you remove the export; otherwise its I/O fails.

use super::channel::{Channel, SLOTS, Shared};
use super::mount::{self, Mount, MountOptions};
use super::session::{self, FileAttrs};
use super::wire::{self, Malformed, OUT_HEADER, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::serve::running::{Clients, ExportPlace, HealthCheck, RunningExport};
use crate::serve::{IoThreads, ServedDisk, Source, SourceHandle};
use blk::time::Duration;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest wait for the kernel's first message, in seconds.
const INIT_SECONDS: i64 = 10;

/// Options of a FUSE export.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// The export's name in reports.
    pub name: String,
    /// An existing regular file. The disk's file gets its owner and permissions.
    pub mountpoint: PathBuf,
    /// Users other than the daemon's may open the file, as its permissions allow.
    pub allow_other: bool,
    /// The file is read-only.
    pub read_only: bool,
    /// Punched holes release their space; otherwise they keep it.
    pub discard: bool,
    /// Each write is stable when it completes.
    pub write_through: bool,
    /// IOThreads that serve the export, each with its own descriptor; at least one.
    pub iothreads: Vec<usize>,
}

/// A FUSE export. It ends when it is dropped.
pub struct FuseExport {
    threads: Arc<IoThreads>,
    shared: Arc<Shared>,
    mount: Option<Mount>,
    fds: Vec<Arc<OwnedFd>>,
    channels: Vec<SourceHandle>,
}

impl FuseExport {
    /// Mounts and serves a disk.
    ///
    /// # Errors
    /// Usage errors: the mountpoint is not a regular file or another program serves it; the disk's blocks are too large. Other errors: the
    /// mount fails; the kernel is older than 5.4.
    pub fn start(threads: &Arc<IoThreads>, disk: &Arc<ServedDisk>, options: FuseOptions) -> Result<FuseExport> {
        let FuseOptions { name, mountpoint, allow_other, read_only, discard, write_through, mut iothreads } = options;
        iothreads.sort_unstable();
        iothreads.dedup();
        if iothreads.is_empty() || !iothreads.iter().all(|t| threads.contains(*t)) {
            return Err(Error::usage("a FUSE export needs one or more IOThreads, all of them existing"));
        }
        let limits = disk.limits();
        let read_only = read_only || limits.read_only;
        let source = disk.name.clone();
        let (mount, fd, below) = mount::mount(&MountOptions { at: mountpoint, source, read_only, allow_other })?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (mode, uid, gid) = (below.mode(), below.uid(), below.gid());
        let attrs = FileAttrs { read_only, discard, write_through, ..FileAttrs::new(mode, uid, gid, now) };
        let (gone, ends) = (OnceLock::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { name, disk: Arc::clone(disk), attrs, gone, ends });
        let mut export = FuseExport {
            threads: Arc::clone(threads),
            shared,
            mount: Some(mount),
            fds: vec![Arc::new(fd)],
            channels: Vec::new(),
        };
        export.shake_hands(iothreads.len())?;
        for (number, thread) in iothreads.into_iter().enumerate() {
            if number > 0 {
                let first = &export.fds[0];
                let other = mount::clone_device(first).map_or_else(|| Arc::clone(first), Arc::new);
                export.fds.push(other);
            }
            let channel = Channel::new(Arc::clone(&export.fds[number]), number as u32, &export.shared)?;
            export.channels.push(threads.add(thread, disk, channel)?);
        }
        Ok(export)
    }

    /// Returns the number of channels, each with a descriptor of the mount.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Returns the number of requests answered so far, by channel.
    pub fn served(&self) -> Vec<u64> {
        let served = |channel: &mut Channel| channel.served();
        self.channels.iter().filter_map(|handle| self.threads.visit(handle, served)).collect()
    }

    /// Answers the kernel's first message.
    fn shake_hands(&self, channels: usize) -> Result<()> {
        let fd = &*self.fds[0];
        let broken =
            |what: &str| Error::new(ErrorKind::Io, format!("the kernel's first message of a FUSE mount {what}"));
        // The buffer has room for the longest write: the kernel delivers no request to a smaller one.
        let mut message = vec![0; wire::WRITE_HEAD + wire::MAX_DATA];
        loop {
            if !mount::wait_readable(fd, INIT_SECONDS) {
                return Err(broken("has not arrived"));
            }
            let n = match rustix::io::read(fd, &mut message[..]) {
                Ok(n) => n,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                Err(e) => return Err(Error::os(e.into(), "cannot read the kernel's INIT message of a FUSE mount")),
            };
            let head = message.get(..n.min(wire::MAX_HEAD)).unwrap_or_default();
            let (header, request) = wire::parse(head, n).map_err(|e| match e {
                Malformed::NoHeader => broken("has no header"),
                Malformed::Body(_) => broken("is truncated"),
            })?;
            let Request::Init(offered) = request else { return Err(broken("is not INIT")) };
            let too_old = |(major, minor)| {
                let oldest = wire::OLDEST_MINOR;
                let ctx = format!("the kernel speaks FUSE {major}.{minor}; 7.{oldest} is needed (Linux 5.4 or later)");
                Error::new(ErrorKind::Resource, ctx)
            };
            let answer = session::init(&offered, 2 * SLOTS * channels).map_err(too_old)?;
            let body = match &answer {
                Some(init) => init.body(),
                None => {
                    wire::InitOut { minor: wire::NEWEST_MINOR, max_readahead: 0, flags: 0, max_background: 0 }.body()
                }
            };
            let mut reply = [0; OUT_HEADER + wire::MAX_BODY];
            let len = OUT_HEADER + body.as_bytes().len();
            reply[..OUT_HEADER].copy_from_slice(&wire::out_header(header.unique, 0, body.as_bytes().len()));
            reply[OUT_HEADER..len].copy_from_slice(body.as_bytes());
            rustix::io::write(fd, &reply[..len])
                .map_err(|e| Error::os(e.into(), "cannot answer the kernel's INIT message of a FUSE mount"))?;
            if answer.is_some() {
                return Ok(());
            }
        }
    }
}

impl RunningExport for FuseExport {
    fn place(&self) -> ExportPlace {
        ExportPlace::Mount
    }

    /// Counts the kernel as the only client, as long as the file is mounted.
    fn clients(&self) -> Clients {
        let shared = Arc::downgrade(&self.shared);
        Box::new(move || usize::from(shared.upgrade().is_none_or(|shared| shared.gone.get().is_none())))
    }

    /// Reports why the disk is no longer reachable, if the file was unmounted from outside. The export does not mount it again.
    fn gone(&self) -> Option<HealthCheck> {
        let shared = Arc::downgrade(&self.shared);
        Some(Box::new(move || shared.upgrade()?.gone.get().cloned()))
    }

    /// Makes the kernel fetch the size before it uses the old one again. A loop device on the file does not notice: run `losetup
    /// --set-capacity`.
    fn resized(&self, _sectors: u64) -> Result<()> {
        // The write fails when the file is unmounted or was not read yet.
        let _ = rustix::io::write(&*self.fds[0], &wire::notify_attr());
        Ok(())
    }

    /// Distributes the channels over these IOThreads, round robin. The number of channels stays that of the IOThreads at the start.
    ///
    /// # Errors
    /// Usage error: there is no such IOThread. Some channels may have been moved by then.
    fn remap(&self, iothreads: &[usize]) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for (handle, thread) in self.channels.iter().zip(iothreads.iter().cycle()) {
            longest = longest.max(self.threads.move_to(handle, *thread)?);
        }
        Ok(longest)
    }
}

impl Drop for FuseExport {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.mount = match self.mount.take() {
            Some(mount) if mount::is_unmounted(&self.fds[0]) && !mount.is_stale() => {
                mount.forget();
                None
            }
            mount => mount.and_then(Mount::undo_if_idle),
        };
        for handle in self.channels.drain(..) {
            drop(self.threads.remove(&handle));
        }
        self.mount = None;
    }
}
