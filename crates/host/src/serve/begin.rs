// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what a plan says of a disk, an IOThread or an export to the thing itself.
//!
//! Guarantees: what a plan may ask for and nobody does is refused with a remedy. Does not do: keep what it makes.

use super::check::{CheckedPlan, Export, NbdServer};
use super::lock::ImageLock;
use super::plan::{
    DiskPlan, ExportKind, FusePlan, IoThreadPlan, NbdListen, OnEnospc, SERIAL_MAX, UblkPlan, VhostUserPlan, WriteCache,
};
use super::{IoThreads, Polling, ServedDisk, ThreadOptions};
use crate::error::{Error, Result};
use crate::export::fuse::FuseOptions;
use crate::export::nbd::{Address, NbdDisk, NbdExport, NbdOptions, Tls};
use crate::export::ublk::UblkOptions;
use crate::export::vhost::ExportOptions;
use crate::mem::Regions;
use crate::target::{Needs, TargetWarning};
use blk::settings::QueueConfig;
use blk::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

/// A disk that is served.
pub(super) struct OpenDisk {
    pub(super) served: Arc<ServedDisk>,
    /// Those it was given.
    pub(super) settings: Vec<(String, String)>,
    _lock: Option<ImageLock>,
}

impl OpenDisk {
    /// Locks and opens it.
    pub(super) fn open(threads: &IoThreads, plan: &DiskPlan) -> Result<(OpenDisk, Vec<TargetWarning>)> {
        let lock = plan.path().map(|path| ImageLock::take(path, !plan.read_only)).transpose()?;
        let mut config = QueueConfig::default();
        for (name, value) in &plan.settings {
            config.set(name, value).map_err(|e| Error::usage(e.to_string()))?;
        }
        let needs = Needs {
            write: !plan.read_only,
            direct: plan.direct,
            min_bytes: 0,
            in_use: plan.allow_mounted_write,
            read_ahead_kb: config.read_ahead_kb,
        };
        let regions = Arc::new(Regions::new());
        let target = plan.target.open(&needs, Arc::clone(&regions))?;
        if plan.on_enospc == OnEnospc::Stop && !target.driver.set_hold_on_enospc(true) {
            let text = format!("on_enospc=stop: target '{}' cannot run out of space; leave it out", plan.target_text);
            return Err(Error::usage(text));
        }
        let served = threads.disk(&plan.name, target.driver, regions, config)?;
        Ok((OpenDisk { served, settings: plan.settings.clone(), _lock: lock }, target.warnings))
    }

    /// Has other settings from now on; how long no I/O could begin.
    pub(super) fn reset(&mut self, settings: Vec<(String, String)>) -> Result<Option<Duration>> {
        let gone = self.settings.iter().any(|(old, _)| settings.iter().all(|(new, _)| new != old));
        let froze = if gone {
            Some(self.served.replace_settings(&settings)?)
        } else {
            let other: Vec<_> = settings.iter().filter(|s| !self.settings.contains(s)).cloned().collect();
            self.served.change(&other)?
        };
        self.settings = settings;
        Ok(froze)
    }
}

pub(super) fn thread_options(plan: &IoThreadPlan) -> ThreadOptions {
    let polling = Polling { max: Duration::from_ns(plan.poll.max_ns), grow: plan.poll.grow, shrink: plan.poll.shrink };
    ThreadOptions { name: plan.name.clone(), cpus: plan.cpus.clone(), polling }
}

pub(super) fn vhost_options(
    disk: &DiskPlan,
    export: &Export<'_>,
    vhost: &VhostUserPlan,
    mapping: Vec<usize>,
) -> ExportOptions {
    let serial = disk.serial.clone().unwrap_or_else(|| disk.name.chars().take(SERIAL_MAX).collect());
    ExportOptions {
        name: export.plan.name.clone(),
        socket: vhost.socket.clone(),
        socket_mode: vhost.socket_mode,
        mapping,
        read_only: export.read_only,
        write_through: disk.write_cache == WriteCache::Through,
        discard: disk.discard,
        serial,
    }
}

pub(super) fn fuse_options(
    disk: &DiskPlan,
    export: &Export<'_>,
    fuse: &FusePlan,
    iothreads: Vec<usize>,
) -> FuseOptions {
    FuseOptions {
        name: export.plan.name.clone(),
        mountpoint: fuse.mountpoint.clone(),
        allow_other: fuse.allow_other,
        read_only: export.read_only,
        discard: disk.discard,
        write_through: disk.write_cache == WriteCache::Through,
        iothreads,
    }
}

pub(super) fn ublk_options(
    disk: &DiskPlan,
    export: &Export<'_>,
    ublk: &UblkPlan,
    mapping: Vec<usize>,
) -> Result<UblkOptions> {
    if disk.write_cache == WriteCache::Through {
        let name = &disk.name;
        let text = format!("its disk '{name}' has write_cache=\"write through\": over ublk not served yet");
        return Err(Error::usage(text));
    }
    Ok(UblkOptions {
        name: export.plan.name.clone(),
        id: ublk.id,
        queue_depth: ublk.queue_depth,
        mapping,
        read_only: export.read_only,
        discard: disk.discard,
        recovery: ublk.recovery,
    })
}

/// Whether it is an NBD export of this server.
pub(super) fn listens_at(export: &Export<'_>, listen: &NbdListen) -> bool {
    matches!(&export.plan.kind, ExportKind::Nbd(nbd) if nbd.listen == *listen)
}

/// Clients of a server: as few as any of its exports says.
pub(super) fn most_connections(plan: &CheckedPlan, listen: &NbdListen) -> usize {
    let here = plan.exports().filter(|e| listens_at(e, listen));
    let most = here.filter_map(|e| match &e.plan.kind {
        ExportKind::Nbd(nbd) => Some(nbd.max_connections as usize),
        _ => None,
    });
    most.min().unwrap_or(usize::MAX)
}

/// Panics when it is no NBD export, or its disk is not open.
pub(super) fn nbd_disk(
    plan: &CheckedPlan,
    export: &Export<'_>,
    disks: &HashMap<String, OpenDisk>,
    iothreads: Vec<usize>,
) -> NbdDisk {
    let ExportKind::Nbd(nbd) = &export.plan.kind else { unreachable!("only NBD exports are on NBD servers") };
    NbdDisk {
        disk: Arc::clone(&disks[&export.plan.disk].served),
        name: nbd.name.clone(),
        description: format!("disk {} of mqblk", export.plan.disk),
        read_only: export.read_only,
        discard: plan.disks()[export.disk].discard,
        write_through: plan.disks()[export.disk].write_cache == WriteCache::Through,
        iothreads,
    }
}

/// A server with these disks; the first of them is also what a client gets who gives no name.
pub(super) fn nbd_server(
    threads: &Arc<IoThreads>,
    plan: &CheckedPlan,
    server: &NbdServer<'_>,
    disks: Vec<NbdDisk>,
) -> Result<NbdExport> {
    let exports: Vec<_> = server.exports.iter().filter_map(|i| plan.exports().nth(*i)).collect();
    let address = match server.listen {
        NbdListen::Unix(path) => Address::Unix(path.clone()),
        NbdListen::Tcp(at) => Address::Tcp(*at),
    };
    let socket_mode = exports.iter().find_map(|e| match &e.plan.kind {
        ExportKind::Nbd(nbd) => nbd.socket_mode,
        _ => None,
    });
    let files = exports.iter().find_map(|e| match &e.plan.kind {
        ExportKind::Nbd(nbd) => nbd.tls.as_ref(),
        _ => None,
    });
    let tls = files.map(Tls::load).transpose()?;
    let default = disks.first().map(|d| d.name.clone());
    let max_connections = most_connections(plan, server.listen);
    NbdExport::start(threads, NbdOptions { address, disks, default, socket_mode, max_connections, tls })
}
