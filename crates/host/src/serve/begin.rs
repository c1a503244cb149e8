// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens disks and begins IOThreads and exports as a plan describes them.
//!
//! Guarantees: a plan that cannot be carried out is rejected with a remedy. Does not keep what it makes: the caller owns it.

use super::check::{CheckedPlan, Export, NbdServer};
use super::disk::Parts;
use super::ending::END_TIME;
use super::export_spec::ExportSetup;
use super::format;
use super::geometry::Geometry;
use super::plan::{DiskPlan, IoThreadPlan, NbdListen, OnEnospc, SERIAL_MAX, StripePlan, TargetPlan, WriteCache};
use super::preflight::shows_all;
use super::running::RunningExport;
use super::{IoThreads, Polling, ServedDisk, ThreadOptions};
use crate::driver::HostDriver;
use crate::error::{Error, ErrorKind, Result};
use crate::export::nbd::{Address, NbdDisk, NbdExport, NbdOptions};
use crate::image_lock::SharedLocks;
use crate::mem::Regions;
use crate::net::certificates::Tls;
use crate::served_path::ServedPath;
use crate::target::{Needs, TargetWarning, add_new, stripe_map};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE};
use blk::settings::QueueConfig;
use blk::stripe::StripeMap;
use blk::time::Duration;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// An open disk. When it is dropped it is closed, as by [`OpenDisk::close`].
pub(super) struct OpenDisk {
    pub(super) served: Arc<ServedDisk>,
    /// The settings that it was given.
    pub(super) settings: Vec<(String, String)>,
    /// The paths of its images.
    pub(super) images: Vec<Arc<ServedPath>>,
    /// Declared, and so dropped, after `served`.
    closing: Closing,
}

/// Waits on drop until a disk is gone, for [`END_TIME`] at most.
struct Closing(Mutex<Option<Receiver<()>>>);

impl Closing {
    /// Waits, the first time it is called. Returns whether the disk is gone.
    fn wait(&mut self) -> bool {
        self.0.get_mut().take().is_none_or(|gone| gone.recv_timeout(END_TIME) == Err(RecvTimeoutError::Disconnected))
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Returns the paths of a target's images. All of them lead to one file or device.
pub(super) fn images_of(disk: &str, target: &TargetPlan, driver: &dyn HostDriver) -> Vec<Arc<ServedPath>> {
    let Some(identity) = driver.path().identity() else { return Vec::new() };
    target.paths().into_iter().map(|path| Arc::new(ServedPath::image(disk, path, identity.clone()))).collect()
}

impl OpenDisk {
    /// Locks and opens a disk.
    pub(super) fn open(threads: &IoThreads, plan: &DiskPlan) -> Result<(OpenDisk, Vec<TargetWarning>)> {
        let lock = |target: &TargetPlan| -> Result<_> {
            let shared = Arc::new(SharedLocks::new(!plan.read_only));
            let taken = shared.lock_present(&target.paths())?;
            Ok((shared, taken))
        };
        let locks = plan.targets.iter().map(lock).collect::<Result<Vec<_>>>()?;
        if let Some(text) = plan.targets.iter().find_map(|target| format::of_target(plan, target)) {
            return Err(Error::usage(text));
        }
        for path in plan.paths() {
            let Ok(meta) = std::fs::metadata(path) else { continue };
            if meta.is_file() {
                let refused = |why| Error::usage(format!("image '{}' {why}", path.display()));
                shows_all(path, &meta, plan, plan.is_one_file()).map_err(refused)?;
            }
        }
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
            aio: plan.aio,
        };
        // One table for all targets, so that a region has the same number for each.
        let regions = Arc::new(Regions::new());
        let (mut drivers, mut images, mut warnings, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (target, (shared, taken)) in plan.targets.iter().zip(locks) {
            let open = target.spec.open_part(plan.part, plan.is_one_file(), &needs, Arc::clone(&regions))?;
            if !open.driver.path().share_locks(&shared)? {
                kept.extend(taken);
            }
            images.extend(images_of(&plan.name, target, open.driver.as_ref()));
            drivers.push(open.driver);
            add_new(&mut warnings, open.warnings);
        }
        let geometry = Geometry { logical: format::logical_block_size(plan), ..plan.geometry };
        let open = |parts| threads.disk_of(&plan.name, parts, regions, config, geometry);
        let served = match plan.stripe {
            None => open(Parts::Plain(drivers.remove(0)))?,
            Some(stripe) => {
                let map = stripe_map(stripe.chunk_bytes, &drivers).map_err(|e| Error::usage(plan.refused(&e).1))?;
                warnings.extend(unused(plan, &map, stripe, &drivers));
                open(Parts::Striped(Arc::new(map), drivers))?
            }
        };
        served.set_hold_on_enospc(plan.on_enospc == OnEnospc::Stop);
        let closing = Closing(Mutex::new(Some(served.keep(kept))));
        Ok((OpenDisk { served, settings: plan.settings.clone(), images, closing }, warnings))
    }

    /// Closes the disk, and waits until no reader (a scrape, a report) keeps it open. After that, other programs may open its images.
    ///
    /// # Errors
    /// Io: the disk is still in use after 10 s. It is closed when the last user is done.
    pub(super) fn close(self) -> Result<()> {
        let OpenDisk { served, mut closing, .. } = self;
        let name = served.name.clone();
        drop(served);
        if closing.wait() {
            return Ok(());
        }
        let text = format!(
            "disk '{name}' has nothing in flight, but is still referenced after {} s (list, stats or metrics); it \
             closes, and unlocks its image, when the reference ends",
            END_TIME.as_secs()
        );
        Err(Error::new(ErrorKind::Io, text))
    }

    /// Changes the settings. Returns how long no I/O could begin.
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

/// Returns a warning if a part of the targets is not used by the disk.
fn unused(
    plan: &DiskPlan,
    map: &StripeMap,
    stripe: StripePlan,
    drivers: &[Arc<dyn HostDriver>],
) -> Option<TargetWarning> {
    let rest: u64 = drivers.iter().map(|d| d.capacity().0.saturating_sub(map.used_sectors())).sum();
    let used = map.used_sectors() << SECTOR_SHIFT;
    let text = || {
        format!(
            "disk '{}' uses {used} bytes of each target, the whole chunks of {} that fit on the smallest; {} bytes in \
             total are not used",
            plan.name,
            stripe.chunk_text(),
            rest << SECTOR_SHIFT
        )
    };
    (rest > 0).then(|| TargetWarning::new(text()))
}

pub(super) fn thread_options(plan: &IoThreadPlan) -> ThreadOptions {
    let polling =
        Polling { max: plan.poll.max_ns.map(Duration::from_ns), grow: plan.poll.grow, shrink: plan.poll.shrink };
    ThreadOptions { name: plan.name.clone(), cpus: plan.cpus.clone(), polling }
}

/// Begins an export. Returns `None` if the server that it shares with others serves it.
///
/// # Errors
/// Usage: the export needs whole sectors, and the disk need not have them. Others: those of the export.
pub(super) fn begin(
    threads: &Arc<IoThreads>,
    disk: &OpenDisk,
    plan: &CheckedPlan,
    export: &Export<'_>,
    iothreads: Vec<usize>,
) -> Result<Option<Box<dyn RunningExport>>> {
    let of_disk = &plan.disks()[export.disk];
    if disk.served.has_any_size() && !export.plan.kind.serves_any_size() {
        return Err(Error::usage(format!(
            "type={}: needs a disk of whole sectors of {SECTOR_SIZE} bytes, but disk '{}' ended within one when it was opened: pad its \
             image, then remove the disk and add it again; or serve it over NBD or FUSE",
            export.plan.kind.name(),
            of_disk.name
        )));
    }
    export.plan.kind.begin(ExportSetup {
        threads,
        disk: &disk.served,
        name: export.plan.name.clone(),
        serial: of_disk.serial.clone().unwrap_or_else(|| of_disk.name.chars().take(SERIAL_MAX).collect()),
        iothreads,
        read_only: export.read_only,
        geometry: export.plan.geometry,
        discard: of_disk.discard,
        write_through: of_disk.write_cache == WriteCache::Through,
    })
}

/// Whether an export is an NBD export of the server that listens there.
pub(super) fn listens_at(export: &Export<'_>, listen: &NbdListen) -> bool {
    export.plan.nbd().is_some_and(|nbd| nbd.listen.is_same(listen))
}

/// Returns the client limit of a server: the smallest `max_connections` of its exports.
pub(super) fn most_connections(plan: &CheckedPlan, listen: &NbdListen) -> usize {
    let here = plan.exports().filter(|e| listens_at(e, listen));
    here.filter_map(|e| Some(e.plan.nbd()?.max_connections as usize)).min().unwrap_or(usize::MAX)
}

/// Returns an NBD export for its server. Panics if the export is not NBD, or its disk is not open.
pub(super) fn nbd_disk(
    plan: &CheckedPlan,
    export: &Export<'_>,
    disks: &HashMap<String, OpenDisk>,
    iothreads: Vec<usize>,
) -> NbdDisk {
    let nbd = export.plan.nbd().expect("only NBD exports are on NBD servers");
    NbdDisk {
        disk: Arc::clone(&disks[&export.plan.disk].served),
        name: nbd.name.clone(),
        label: export.plan.name.clone(),
        description: format!("disk {} of mqblk", export.plan.disk),
        read_only: export.read_only,
        discard: plan.disks()[export.disk].discard,
        write_through: plan.disks()[export.disk].write_cache == WriteCache::Through,
        geometry: export.plan.geometry,
        iothreads,
    }
}

/// Starts a server with these disks; a client that gives no name gets the first of them.
pub(super) fn nbd_server(
    threads: &Arc<IoThreads>,
    plan: &CheckedPlan,
    server: &NbdServer<'_>,
    disks: Vec<NbdDisk>,
) -> Result<NbdExport> {
    let exports: Vec<_> = server.exports.iter().filter_map(|i| plan.exports().nth(*i)).collect();
    let (address, more): (Address, &[SocketAddr]) = match server.listen {
        NbdListen::Unix(path) => (Address::Unix(path.clone()), &[]),
        NbdListen::Tcp(listen) => (Address::Tcp(listen.first()), listen.more()),
    };
    let socket_mode = exports.iter().find_map(|e| e.plan.nbd()?.socket_mode);
    let files = exports.iter().find_map(|e| e.plan.nbd()?.tls.as_ref());
    let tls = files.map(Tls::load).transpose()?;
    let default = disks.first().map(|d| d.name.clone());
    let max_connections = most_connections(plan, server.listen);
    let options = NbdOptions { address, disks, default, socket_mode, max_connections, tls };
    NbdExport::start_at_several(threads, options, more)
}
