// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver of a disk with several paths.

use super::activate::AluaHandler;
use super::changes::PathChanges;
use super::groups::{self, Member};
use super::hctx_waits::HctxWaits;
use super::options::{HardwareHandler, MultipathOptions, NoPathRetry, PathChecker, Prioritizer};
use super::path::{self, Common, PathDriver};
use super::path_list::PathList;
use super::watch::{self, WatchSignals, Watcher};
use crate::clock;
use crate::driver::aio::Aio;
use crate::driver::failures::FailureReport;
use crate::driver::host_driver::HostDriver;
use crate::driver::path::{CommandOutcome, Connections, DevicePath, DiskNames, PathCommand};
use crate::driver::path_log::PathMessage;
use crate::driver::per_hctx::PerHctx;
use crate::driver::space::Space;
use crate::driver::target::TargetWarning;
use crate::driver::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use crate::image_lock::SharedLocks;
use crate::mem::Regions;
use crate::topology as machine;
use blk::driver::{Completions, Driver, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{
    Features, Handler, MAX_GROUPS, Multipath as Paths, NewGroup, NewPath, PathArgs, PathId, Selector, Status,
};
use blk::scsi::alua::Access;
use blk::status::QueueRqStatus;
use blk::time::{Duration, Instant};
use parking_lot::{Mutex, RawMutex};
use std::collections::BTreeMap;
use std::ops::Add;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Makes a path's driver; called again if the path could not be reached.
pub type Opener = Box<dyn Fn() -> Result<Arc<dyn HostDriver>> + Send + Sync>;

/// Makes another driver for a path, with data in these regions, for its checker alone.
pub type Prober = Box<dyn Fn(Arc<Regions>) -> Result<Arc<dyn HostDriver>> + Send + Sync>;

/// Where openers put warnings that a path differs from what was asked for. `None`: nothing reads them any more, because the paths that
/// could be opened are, or have been added.
pub(super) type Warnings = Arc<Mutex<Option<Vec<TargetWarning>>>>;

/// Makes a path of a disk from its name, the text of its target and its priority.
pub(super) type PathMaker = Box<dyn Fn(&str, &str, u32, &Warnings) -> Result<Path> + Send + Sync>;

/// A path of a disk that is to be opened.
pub struct Path {
    /// Its name in messages.
    pub name: String,
    /// Its priority, the higher the better.
    pub prio: u32,
    /// For io-affinity and service-time.
    pub args: PathArgs,
    /// Makes its driver.
    pub open: Opener,
    /// Makes the driver for the checker `directio`; `None`: there is none.
    pub probe: Option<Prober>,
    /// How it is checked; [`PathChecker::Auto`] is not a separate checker here.
    pub checker: PathChecker,
    /// The files and block devices that it leads to, which [`DevicePath::share_locks`] locks.
    pub images: Vec<PathBuf>,
}

/// The multipath driver: a disk with several paths.
pub struct Multipath {
    pub(super) core: Arc<Core>,
    changes: Mutex<PathChanges>,
    /// Makes paths that are added; `None`: none can be.
    pub(super) maker: Option<PathMaker>,
    // The watcher's threads use the other fields; dropping the watcher ends the threads.
    pub(super) watcher: Watcher,
}

/// A path's state; with [`Multipath::status`] it has what `multipath -ll` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathHealth {
    /// Its number in [`Multipath::status`].
    pub id: PathId,
    /// Its name in messages.
    pub name: String,
    /// Its priority.
    pub prio: u32,
    /// How it is checked.
    pub checker: PathChecker,
    /// Checks that it has passed.
    pub passes: u64,
    /// Why it is not used, or why the last check did not pass.
    pub trouble: Option<String>,
}

/// The part of the driver that the checkers share.
pub(super) struct Core {
    pub(super) options: MultipathOptions,
    pub(super) disk: Paths<RawMutex>,
    pub(super) paths: PathList<Watched>,
    pub(super) hctx_waits: Arc<PerHctx<HctxWaits>>,
    pub(super) signals: Arc<WatchSignals>,
    /// Held while paths and disk change between giving up and not, so that changes do not overlap.
    pub(super) giving_up: Mutex<()>,
    /// Held during an operator's command, so that commands do not overlap.
    pub(super) commanding: Mutex<()>,
    /// Held while paths are regrouped.
    pub(super) sorting: Mutex<()>,
    /// Held while `disk` and `paths` may differ.
    pub(super) listing: Mutex<()>,
    /// Held while a target activates a port group, by the group's number.
    pub(super) orders: Mutex<BTreeMap<u16, Arc<Mutex<()>>>>,
    /// Where paths lock their images; empty: they do not.
    pub(super) locks: Arc<OnceLock<Arc<SharedLocks>>>,
}

/// A path, and how it is checked.
pub(super) struct Watched {
    pub(super) id: PathId,
    pub(super) prio: AtomicU32,
    /// The path's ALUA state, as far as it was asked.
    pub(super) access: Mutex<Option<Access>>,
    /// Whether its last check has asked for the ALUA state.
    pub(super) was_asked: AtomicBool,
    pub(super) driver: Arc<PathDriver>,
    pub(super) open: Arc<Opener>,
    pub(super) probe: Option<Arc<Prober>>,
    pub(super) checker: PathChecker,
    /// It was failed by hand, so no check reinstates it. Held while the path is reinstated.
    pub(super) is_held: Mutex<bool>,
    /// It is being removed. Set under `is_held`; from then on its number may be another path's.
    pub(super) leaving: AtomicBool,
    /// It was removed, and has no driver any more.
    pub(super) closed: AtomicBool,
    /// Readable when the path is being removed, or its disk ends: a check in progress returns.
    pub(super) stop: OwnedFd,
}

impl Watched {
    pub(super) fn new(
        (id, prio, access): (PathId, u32, Option<Access>),
        driver: Arc<PathDriver>,
        open: Opener,
        probe: Option<Prober>,
        checker: PathChecker,
        stop: OwnedFd,
    ) -> Watched {
        Watched {
            id,
            prio: AtomicU32::new(prio),
            was_asked: AtomicBool::new(access.is_some()),
            access: Mutex::new(access),
            driver,
            open: Arc::new(open),
            probe: probe.map(Arc::new),
            checker,
            is_held: Mutex::new(false),
            leaving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            stop,
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        // Pairs with: Core::close_when_idle
        self.closed.load(Ordering::Acquire)
    }
}

impl Multipath {
    /// Opens all paths at once, and makes a disk of them. The checkers retry paths that cannot be reached now. Also returns
    /// the problems of those paths.
    ///
    /// # Errors
    /// Usage: no path, or too many. Others: no path can be opened, a path is refused because it does not fit its request, or
    /// the paths lead to different disks.
    pub fn open(options: MultipathOptions, paths: Vec<Path>) -> Result<(Multipath, Vec<String>)> {
        if options.prio == Prioritizer::Alua && options.path_selector == Selector::IoAffinity {
            let text = "path_selector=io-affinity: needs fixed path groups, but prio=alua regroups paths; use \
                        service-time or another selector";
            return Err(Error::usage(text));
        }
        let opened: Vec<Result<Arc<dyn HostDriver>>> = std::thread::scope(|s| {
            let all: Vec<_> = paths.iter().map(|p| s.spawn(|| (p.open)())).collect();
            all.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let Some(first) = opened.iter().find_map(|o| o.as_ref().ok()) else {
            let failed = paths.iter().zip(opened).filter_map(|(path, o)| Some((path.name.as_str(), o.err()?)));
            return Err(none_opened(failed.collect()));
        };
        // Some of the paths may not show yet that the logical unit has grown.
        let capacity = opened.iter().flatten().map(|d| d.capacity()).min().unwrap_or_default();
        let limits = path::strictest(opened.iter().flatten());
        let common = Common { limits, capacity, ..Common::of(first.as_ref()) };
        if common.identity.as_deref() == Some("") {
            let text =
                "the disk has no identity (no VPD page 0x83 or 0x80): it is unknown whether its paths lead to one disk";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let (mut drivers, mut troubles) = (Vec::new(), Vec::new());
        for (path, opened) in paths.iter().zip(opened) {
            let driver = match opened {
                Ok(driver) => {
                    let within = |why| Error::new(ErrorKind::Denied, format!("path {}: {why}", path.name));
                    common.admit(driver.as_ref()).map_err(within)?;
                    let trouble = port_groups(&options, &path.name, driver.as_ref())?;
                    troubles.extend(trouble.map(|text| (drivers.len(), text)));
                    Some(driver)
                }
                Err(e) if watch::is_for_good(&e) => return Err(e.within(&format!("path {}", path.name))),
                Err(e) => {
                    troubles.push((drivers.len(), format!("path {} cannot be used now: {e}", path.name)));
                    None
                }
            };
            drivers.push(driver);
        }
        let core = Arc::new(Core::new(options, paths, drivers, &common)?);
        for (i, text) in &troubles {
            if let Some(path) = core.paths.present().iter().find(|p| p.driver.number == *i) {
                path.driver.set_trouble(Some(text.clone()));
            }
        }
        let watcher = Watcher::start(&core)?;
        let disk = Multipath { core, changes: Mutex::default(), maker: None, watcher };
        *disk.changes.lock() = PathChanges::new(&disk.states());
        Ok((disk, troubles.into_iter().map(|(_, text)| text).collect()))
    }

    /// Returns the status of the disk's paths and groups.
    pub fn status(&self) -> Status {
        self.core.disk.status()
    }

    /// Returns the health of its paths, by number.
    pub fn health(&self) -> Vec<PathHealth> {
        let of = |p: &Arc<Watched>| PathHealth {
            id: p.id,
            name: p.driver.name.clone(),
            prio: p.prio.load(Ordering::Relaxed),
            checker: p.checker,
            passes: p.driver.passes.load(Ordering::Relaxed),
            trouble: p.driver.trouble(),
        };
        let mut all: Vec<PathHealth> = self.core.paths.present().iter().map(of).collect();
        all.sort_by_key(|p| p.id);
        all
    }

    /// Returns the core of the disk, to fail or reinstate a path or to switch groups manually.
    pub fn paths(&self) -> &Paths<RawMutex> {
        &self.core.disk
    }

    /// Returns the options that it was opened with.
    pub fn options(&self) -> &MultipathOptions {
        &self.core.options
    }
}

/// Returns the error for a disk none of whose paths can be opened: all reasons by path, or only a permanent one.
pub(super) fn none_opened(mut failed: Vec<(&str, Error)>) -> Error {
    if let Some(i) = failed.iter().position(|(_, e)| watch::is_for_good(e)) {
        let (path, e) = failed.swap_remove(i);
        return e.within(&format!("path {path}"));
    }
    match failed.first() {
        None => Error::usage("a multipath disk has no path: give it one or more targets"),
        Some((_, first)) => {
            // Some errors begin with the path's name already.
            let told = |path: &str, e: String| if e.starts_with(path) { e } else { format!("{path}: {e}") };
            let all: Vec<String> = failed.iter().map(|(path, e)| told(path, e.to_string())).collect();
            Error::new(first.kind(), format!("no path can be used: {}", all.join("; ")))
        }
    }
}

/// Returns what is wrong with a path whose target reports no port groups, if the options need them.
///
/// # Errors
/// Denied: the hardware handler needs them.
pub(super) fn port_groups(options: &MultipathOptions, name: &str, driver: &dyn HostDriver) -> Result<Option<String>> {
    let Some(why) = options.without_port_groups(driver.scsi().access().is_some()) else { return Ok(None) };
    let text = format!("path {name}: {why}");
    match options.hardware_handler {
        HardwareHandler::Alua => Err(Error::new(ErrorKind::Denied, text)),
        HardwareHandler::None => Ok(Some(text)),
    }
}

/// Returns the priority of a path when it is opened; `configured` is its fixed one.
pub(super) fn first_prio(options: &MultipathOptions, configured: u32, access: Option<&Access>) -> u32 {
    match options.prio {
        Prioritizer::Const => configured,
        Prioritizer::Alua => access.map_or(0, |a| a.group.priority(options.exclusive_pref_bit)),
    }
}

fn features(options: &MultipathOptions) -> Features {
    let no_path_timeout = match options.no_path_retry {
        NoPathRetry::Retries(n) => Duration::from_ns(options.polling_interval.as_ns().saturating_mul(n.into())),
        NoPathRetry::Fail | NoPathRetry::Queue => Duration::ZERO,
    };
    Features {
        queue_if_no_path: options.no_path_retry != NoPathRetry::Fail,
        no_path_timeout,
        pg_init_retries: options.pg_init_retries,
        pg_init_delay: options.pg_init_delay,
    }
}

fn first_groups(
    options: &MultipathOptions,
    prios: &[u32],
    access: &[Option<Access>],
    is_open: &[bool],
) -> Vec<Vec<usize>> {
    let member = |number: usize| Member {
        prio: prios[number],
        tpg: access[number].as_ref().map(|a| a.group.group),
        is_used: is_open[number],
    };
    let members: Vec<Member> = (0..prios.len()).map(member).collect();
    groups::grouped(options.path_grouping_policy, &members)
}

impl Core {
    pub(super) fn new(
        options: MultipathOptions,
        paths: Vec<Path>,
        drivers: Vec<Option<Arc<dyn HostDriver>>>,
        common: &Common,
    ) -> Result<Core> {
        let hctx_waits: Arc<PerHctx<HctxWaits>> = Arc::new(PerHctx::new());
        let signals = Arc::new(WatchSignals::new()?);
        let access: Vec<Option<Access>> = drivers.iter().map(|d| d.as_ref().and_then(|d| d.scsi().access())).collect();
        let is_open: Vec<bool> = drivers.iter().map(Option::is_some).collect();
        let prio = |(path, access): (&Path, &Option<Access>)| first_prio(&options, path.prio, access.as_ref());
        let prios: Vec<u32> = paths.iter().zip(&access).map(prio).collect();
        let groups = first_groups(&options, &prios, &access, &is_open);
        let mut paths: Vec<_> = paths.into_iter().zip(drivers).map(Some).collect();
        let (mut watched, mut new_groups) = (Vec::new(), Vec::new());
        for members in &groups {
            let mut new = NewGroup { selector: options.path_selector, paths: Vec::new() };
            for number in members {
                let Some((path, inner)) = paths[*number].take() else { continue };
                let Path { name, prio: _, args, open, probe, checker, images } = path;
                let (common, waits) = (common.clone(), Arc::clone(&hctx_waits));
                let driver = Arc::new(PathDriver::new(*number, name.clone(), images, inner, common, waits));
                new.paths.push(NewPath { name, driver: driver.clone(), args });
                watched.push((*number, driver, open, probe, checker));
            }
            new_groups.push(new);
        }
        if options.path_selector != Selector::IoAffinity {
            // Reserve as many groups as regrouping, or paths that are added, may ever need.
            new_groups.resize_with(MAX_GROUPS, || NewGroup { selector: options.path_selector, paths: Vec::new() });
        }
        let handler: Option<Box<dyn Handler>> = match options.hardware_handler {
            HardwareHandler::None => None,
            HardwareHandler::Alua => Some(Box::new(AluaHandler { signals: Arc::clone(&signals) })),
        };
        let told = Arc::clone(&signals);
        let machine = machine::read(std::path::Path::new(machine::SYSTEM), crate::process::nr_cpus());
        let nodes = machine.map(|cpus| cpus.node_of).unwrap_or_default();
        let disk = Paths::new(new_groups, features(&options), handler, &nodes, Box::new(move |event| told.hear(event)));
        let disk = disk.map_err(|e| Error::usage(e.to_string()))?;
        let watched = watched.into_iter().map(|(number, driver, open, probe, checker)| {
            let id = disk.path(&driver.name).ok_or_else(|| Error::usage("a path was removed"))?;
            let about = (id, prios[number], access[number].clone());
            Ok(Watched::new(about, driver, open, probe, checker, event::new()?))
        });
        let mut watched: Vec<Watched> = watched.collect::<Result<_>>()?;
        watched.sort_by_key(|w| w.id);
        Ok(Core {
            options,
            disk,
            paths: PathList::new(watched),
            hctx_waits,
            signals,
            giving_up: Mutex::new(()),
            commanding: Mutex::new(()),
            sorting: Mutex::new(()),
            listing: Mutex::new(()),
            orders: Mutex::default(),
            locks: Arc::default(),
        })
    }

    /// Returns the paths that have a driver, without those that are being removed.
    pub(super) fn inners(&self) -> impl Iterator<Item = (Arc<PathDriver>, Arc<dyn HostDriver>)> + use<> {
        with_drivers(self.paths.present())
    }

    /// Returns how many hardware queues each of the present paths can have.
    fn max_hw_queues(&self) -> u16 {
        self.inners().map(|(_, driver)| driver.max_hw_queues()).min().unwrap_or(u16::MAX)
    }

    /// Lets requests wait for a path again; called while a path works. Queueing is off from the end of its time limit until
    /// then.
    pub(super) fn allow_queueing(&self) {
        if self.options.no_path_retry != NoPathRetry::Fail {
            self.disk.queue_if_no_path(clock::now());
        }
    }
}

fn with_drivers(paths: Vec<Arc<Watched>>) -> impl Iterator<Item = (Arc<PathDriver>, Arc<dyn HostDriver>)> {
    paths.into_iter().filter_map(|p| Some((Arc::clone(&p.driver), p.driver.inner()?)))
}

impl Driver for Multipath {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn limits(&self) -> Limits {
        self.core.disk.limits()
    }

    fn capacity(&self) -> Sector {
        self.core.disk.capacity()
    }

    /// Starts the paths that can be started; the others have failed.
    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        let core = &self.core;
        let most = core.max_hw_queues();
        if nr_hw_queues > most {
            return Err(format!(
                "{nr_hw_queues} hardware queues: one of the paths has at most {most}; set nr_hw_queues={most}, or give each path more"
            ));
        }
        for i in 0..nr_hw_queues {
            let fresh = HctxWaits::new().map_err(|e| e.to_string())?;
            core.hctx_waits.get_or_init(i, || fresh);
        }
        core.disk.start(nr_hw_queues, queue_depth)?;
        let paths = core.paths.present();
        let unusable: Vec<&Arc<Watched>> = paths.iter().filter(|p| !p.driver.is_usable()).collect();
        if unusable.len() == paths.len() {
            let why = |p: &&Arc<Watched>| format!("path {}: {}", p.driver.name, p.driver.trouble().unwrap_or_default());
            return Err(unusable.iter().map(why).collect::<Vec<_>>().join("; "));
        }
        let now = clock::now();
        unusable.iter().for_each(|p| core.disk.fail_path(p.id, now));
        Ok(())
    }

    #[inline]
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let hctx = batch.hctx();
        let status = self.core.disk.queue_rqs(batch, now);
        self.core.queued(hctx);
        status
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        self.core.disk.timeout(hctx, late, done, now)
    }

    #[inline]
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let before = done.room();
        self.core.disk.poll(hctx, done, now);
        self.core.polled(hctx, before - done.room());
    }
}

impl HostDriver for Multipath {
    fn max_hw_queues(&self) -> u16 {
        self.core.max_hw_queues()
    }

    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        self.core.wait(seen, hctx, timeout);
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.core.hctx_waits.get(hctx).wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.core.hctx_waits.get(hctx).wake();
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.core.next_due(hctx)
    }

    fn ring_fd(&self, hctx: HctxId) -> Option<RawFd> {
        Some(self.core.hctx_waits.get(hctx).fd())
    }

    fn aio(&self) -> Option<Aio> {
        Aio::of_all(self.core.inners().filter_map(|(_, d)| d.aio()))
    }

    fn is_direct(&self) -> Option<bool> {
        self.core.inners().filter_map(|(_, d)| d.is_direct()).reduce(|all, is| all && is)
    }

    fn space(&self) -> &dyn Space {
        self
    }

    fn path(&self) -> &dyn DevicePath {
        self
    }
}

impl Space for Multipath {
    fn resize(&self, bytes: Option<u64>, shrink: bool) -> Option<Result<u64>> {
        self.core.resize(bytes, shrink)
    }

    fn adopt(&self, bytes: u64) {
        self.core.adopt(bytes);
    }
}

impl DevicePath for Multipath {
    fn connections(&self) -> Option<Connections> {
        self.core.inners().filter_map(|(_, d)| d.path().connections()).reduce(Add::add)
    }

    fn troubles(&self) -> Vec<String> {
        let mut all = Vec::new();
        let by_status = self.core.by_status();
        if by_status.iter().all(|(_, status)| !status.is_active) {
            let queues = self.core.disk.status().features.queue_if_no_path;
            let how = if queues { "are queued" } else { "fail" };
            all.push(format!("no path is left: requests {how} (no_path_retry={})", self.core.options.no_path_retry));
        }
        for (path, status) in by_status {
            let name = &path.driver.name;
            if !status.is_active {
                let why = path.driver.trouble().map_or_else(String::new, |why| format!(": {why}"));
                all.push(format!("path {name} is not used now{why}"));
            } else if let Some(why) = path.driver.trouble() {
                all.push(format!("path {name} is used, but its check does not pass: {why}"));
            } else if status.fail_count > 0 {
                all.push(format!("path {name} has failed {} times, and is used again", status.fail_count));
            }
        }
        for path in self.core.paths.leaving() {
            let name = &path.driver.name;
            all.push(format!("path {name} is being removed: it is closed once its requests in flight have completed"));
        }
        for (path, driver) in self.core.inners() {
            all.extend(driver.path().troubles().into_iter().map(|text| format!("path {}: {text}", path.name)));
        }
        all
    }

    fn take_messages(&self) -> Vec<PathMessage> {
        let named = |path: &PathDriver, message| PathMessage { path: Some(path.name.clone()), ..message };
        let of = |(path, driver): (Arc<PathDriver>, Arc<dyn HostDriver>)| {
            driver.path().take_messages().into_iter().map(move |message| named(&path, message))
        };
        let changes = self.changes.lock().report(self.states(), &self.core.options.no_path_retry.to_string());
        self.core.inners().flat_map(of).chain(changes).collect()
    }

    fn take_failures(&self) -> Vec<FailureReport> {
        let named = |path: &PathDriver, report| FailureReport { path: path.name.clone(), ..report };
        let of = |(path, driver): (Arc<PathDriver>, Arc<dyn HostDriver>)| {
            driver.path().take_failures().into_iter().map(move |report| named(&path, report))
        };
        self.core.inners().flat_map(of).collect()
    }

    /// While set, requests also fail instead of waiting for a path, and a failed request is not retried on another path: a
    /// path that gives up does not know what its device still carries out.
    fn set_give_up(&self, give_up: bool) -> bool {
        let core = &self.core;
        let _one = core.giving_up.lock();
        if give_up {
            core.disk.set_give_up(true, clock::now());
        }
        // Requests of paths that are being removed fail, too.
        let all = core.inners().chain(with_drivers(core.paths.leaving()));
        let can = all.fold(false, |can, (_, driver)| driver.path().set_give_up(give_up) || can);
        if !give_up {
            core.disk.set_give_up(false, clock::now());
        }
        can || core.options.no_path_retry != NoPathRetry::Fail
    }

    fn identity(&self) -> Option<String> {
        self.core.inners().find_map(|(_, d)| d.path().identity())
    }

    fn names(&self) -> Option<DiskNames> {
        self.core.inners().find_map(|(_, d)| d.path().names())
    }

    fn share_locks(&self, locks: &Arc<SharedLocks>) -> Result<bool> {
        // First: a path that appears during this call either finds them, or existed before and is locked below.
        self.core.locks.get_or_init(|| Arc::clone(locks));
        for path in self.core.paths.present() {
            match path.driver.lock_images(locks) {
                Err(e) if e.kind() == ErrorKind::NotFound && path.driver.inner().is_none() => {}
                locked => locked?,
            }
        }
        Ok(true)
    }

    fn command(&self, command: &PathCommand) -> Result<CommandOutcome> {
        let _one = self.core.commanding.lock();
        let done = match command {
            PathCommand::FailPath(path) => self.core.fail_by_hand(path),
            PathCommand::ReinstatePath(path) => self.core.reinstate_by_hand(path),
            PathCommand::SwitchGroup(number) => self.core.switch_by_hand(*number),
            PathCommand::AddPath { name, target, prio } => return self.add_path(name, target.reveal(), *prio),
            PathCommand::RemovePath { path, force } => self.core.remove_path(path, *force),
        };
        done.map(CommandOutcome::from)
    }

    fn topology(&self) -> Option<Topology> {
        Some(self.describe())
    }
}
