// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plan carried out: IOThreads run, disks are open and locked, exports listen.
//!
//! Guarantees: it starts as a whole or not at all; images stay locked as long as it runs; when it is dropped clients are let
//! go first, then what is in flight ends, then disks are closed, so nothing that was acknowledged is lost.
//! Does not do: change while it runs.

use super::check::{CheckedPlan, Export, NbdServer};
use super::lock::ImageLock;
use super::plan::{
    DiskPlan, ExportKind, FusePlan, IoThreadPlan, NbdListen, NbdPlan, OnEnospc, SERIAL_MAX, VhostUserPlan, WriteCache,
};
use super::{IoThreads, Polling, ServedDisk, ThreadOptions};
use crate::driver::file::FileWarning;
use crate::error::{Error, Result};
use crate::export::fuse::{FuseExport, FuseOptions};
use crate::export::nbd::{Address, NbdDisk, NbdExport, NbdOptions};
use crate::export::vhost::{ExportOptions, VhostExport};
use crate::mem::Regions;
use crate::target::Needs;
use blk::settings::QueueConfig;
use blk::time::Duration;
use std::sync::Arc;

/// See the module's text. Fields are dropped in this order.
pub struct Daemon {
    vhost: Vec<VhostExport>,
    nbd: Vec<NbdExport>,
    fuse: Vec<FuseExport>,
    disks: Vec<Arc<ServedDisk>>,
    _threads: Arc<IoThreads>,
    _locks: Vec<ImageLock>,
    /// What is not as asked, to be said aloud.
    pub warnings: Vec<FileWarning>,
}

impl Daemon {
    /// Starts all of a plan.
    pub fn start(plan: &CheckedPlan) -> Result<Daemon> {
        plan.exports().try_for_each(|e| check_served(plan, &e))?;
        let options: Vec<_> = plan.iothreads().iter().map(thread_options).collect();
        let threads = Arc::new(IoThreads::start(&options)?);
        let (mut locks, mut warnings, mut disks) = (Vec::new(), Vec::new(), Vec::new());
        for disk in plan.disks() {
            let within = |e: Error| e.within(&format!("disk '{}'", disk.name));
            if let Some(path) = disk.path() {
                locks.push(ImageLock::take(path, !disk.read_only).map_err(within)?);
            }
            let (served, said) = open(&threads, disk).map_err(within)?;
            warnings.extend(said);
            disks.push(served);
        }
        let (mut vhost, mut fuse) = (Vec::new(), Vec::new());
        for export in plan.exports() {
            let disk = &plan.disks()[export.disk];
            let within = |e: Error| e.within(&format!("export '{}'", export.plan.name));
            let served = &disks[export.disk];
            match &export.plan.kind {
                ExportKind::VhostUserBlk(plan) => {
                    let options = vhost_options(disk, &export, plan);
                    vhost.push(VhostExport::start(&threads, served, options).map_err(within)?);
                }
                ExportKind::Fuse(plan) => {
                    let options = fuse_options(disk, &export, plan);
                    fuse.push(FuseExport::start(&threads, served, options).map_err(within)?);
                }
                ExportKind::Nbd(_) | ExportKind::Ublk(_) => {}
            }
        }
        let servers = plan.nbd_servers();
        let nbd: Result<_> = servers.iter().map(|s| NbdExport::start(&threads, nbd_options(plan, s, &disks))).collect();
        Ok(Daemon { vhost, nbd: nbd?, fuse, disks, _threads: threads, _locks: locks, warnings })
    }

    /// The disks, in the plan's order.
    pub fn disks(&self) -> &[Arc<ServedDisk>] {
        &self.disks
    }

    /// How many sockets are listened on.
    pub fn listeners(&self) -> usize {
        self.vhost.len() + self.nbd.len()
    }

    /// How many files are mounted.
    pub fn mounts(&self) -> usize {
        self.fuse.len()
    }
}

/// What a plan may ask for and nobody does.
fn check_served(plan: &CheckedPlan, export: &Export<'_>) -> Result<()> {
    let (name, disk) = (&export.plan.name, &plan.disks()[export.disk]);
    let refuse = |what: String| Err(Error::usage(format!("export '{name}': {what}")));
    match &export.plan.kind {
        ExportKind::VhostUserBlk(_) | ExportKind::Fuse(_) => {}
        ExportKind::Nbd(NbdPlan { tls: Some(_), .. }) => {
            return refuse("tls: not served yet; leave it out, and use a Unix socket or a network you trust".into());
        }
        ExportKind::Nbd(_) if disk.write_cache == WriteCache::Through => {
            return refuse(format!(
                "its disk '{}' has write_cache=\"write through\": over NBD not served yet",
                disk.name
            ));
        }
        ExportKind::Nbd(_) => {}
        kind => return refuse(format!("type={}: not served yet; use vhost-user-blk, nbd or fuse", kind.name())),
    }
    if disk.on_enospc == OnEnospc::Stop {
        return refuse(format!("its disk '{}' has on_enospc=stop: not served yet; use report", disk.name));
    }
    Ok(())
}

fn thread_options(plan: &IoThreadPlan) -> ThreadOptions {
    let polling = Polling { max: Duration::from_ns(plan.poll.max_ns), grow: plan.poll.grow, shrink: plan.poll.shrink };
    ThreadOptions { name: plan.name.clone(), cpus: plan.cpus.clone(), polling }
}

fn open(threads: &IoThreads, disk: &DiskPlan) -> Result<(Arc<ServedDisk>, Vec<FileWarning>)> {
    let mut config = QueueConfig::default();
    for (name, value) in &disk.settings {
        config.set(name, value).map_err(|e| Error::usage(e.to_string()))?;
    }
    let needs = Needs {
        write: !disk.read_only,
        direct: disk.direct,
        min_bytes: 0,
        in_use: disk.allow_mounted_write,
        read_ahead_kb: config.read_ahead_kb,
    };
    let regions = Arc::new(Regions::new());
    let target = disk.target.open(&needs, Arc::clone(&regions))?;
    let served = threads.disk(&disk.name, target.driver, regions, config)?;
    Ok((served, target.warnings))
}

fn vhost_options(disk: &DiskPlan, export: &Export<'_>, vhost: &VhostUserPlan) -> ExportOptions {
    let serial = disk.serial.clone().unwrap_or_else(|| disk.name.chars().take(SERIAL_MAX).collect());
    ExportOptions {
        name: export.plan.name.clone(),
        socket: vhost.socket.clone(),
        socket_mode: vhost.socket_mode,
        mapping: export.iothreads.to_vec(),
        read_only: export.read_only,
        write_through: disk.write_cache == WriteCache::Through,
        discard: disk.discard,
        serial,
    }
}

fn fuse_options(disk: &DiskPlan, export: &Export<'_>, fuse: &FusePlan) -> FuseOptions {
    FuseOptions {
        name: export.plan.name.clone(),
        mountpoint: fuse.mountpoint.clone(),
        allow_other: fuse.allow_other,
        read_only: export.read_only,
        discard: disk.discard,
        write_through: disk.write_cache == WriteCache::Through,
        iothreads: export.iothreads.to_vec(),
    }
}

/// Exports that share a socket; the first of them is also what a client gets who gives no name.
fn nbd_options(plan: &CheckedPlan, server: &NbdServer<'_>, disks: &[Arc<ServedDisk>]) -> NbdOptions {
    let address = match server.listen {
        NbdListen::Unix(path) => Address::Unix(path.clone()),
        NbdListen::Tcp(at) => Address::Tcp(*at),
    };
    let mut options =
        NbdOptions { address, disks: Vec::new(), default: None, socket_mode: None, max_connections: usize::MAX };
    for export in server.exports.iter().filter_map(|i| plan.exports().nth(*i)) {
        let ExportKind::Nbd(nbd) = &export.plan.kind else { continue };
        options.default.get_or_insert_with(|| nbd.name.clone());
        options.socket_mode = options.socket_mode.or(nbd.socket_mode);
        options.max_connections = options.max_connections.min(nbd.max_connections as usize);
        options.disks.push(NbdDisk {
            disk: Arc::clone(&disks[export.disk]),
            name: nbd.name.clone(),
            description: format!("disk {} of mqblk", plan.disks()[export.disk].name),
            read_only: export.read_only,
            discard: plan.disks()[export.disk].discard,
            iothreads: export.iothreads.to_vec(),
        });
    }
    options
}
