// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the names, references, ranges, settings and mappings of a plan, and makes a consistent plan from it.
//!
//! Guarantees: all errors of a plan are reported at once, each with the item and key at fault, so that a configuration reader can add the
//! line. A [`CheckedPlan`] has at least one IOThread, disk and export; every export has its disk, every virtqueue its IOThread. Needs from
//! callers: [`HostFacts`] of the machine that will serve. Does not do: open a file, bind a socket, or check that they exist (see
//! `super::preflight`).

use super::cpus;
use super::disk::limit_of_stripe;
use super::geometry::{Geometry, LOGICAL_BLOCK_SIZES};
use super::mapping::Mapping;
use super::plan::{
    DEFAULT_IOTHREAD_NAME, DiskPlan, ExportKind, ExportPlan, IoThreadPlan, NbdListen, SERIAL_MAX, ServePlan,
    StripePlan, TargetPlan,
};
use crate::driver::file::FilePart;
use crate::driver::target::same_path;
use crate::run::{RUN_SETTINGS, check_settings};
use crate::secrets::without_secrets;
use crate::target::TargetSpec;
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::settings::QueueConfig;
use blk::stripe::{MAX_STRIPES, Stripe, StripeError, StripeMap};
use blk::suggest::did_you_mean;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display};
use std::path::Path;

/// Facts about the host that a plan is checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// CPUs that the daemon may use, in ascending order; never empty.
    pub cpus: Vec<u32>,
}

impl HostFacts {
    /// Reads the facts for this process.
    pub fn read() -> HostFacts {
        HostFacts { cpus: crate::process::allowed_cpus() }
    }
}

/// The item that an error is about; numbers count from 0 in the plan's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanItem {
    /// The plan as a whole.
    Plan,
    /// An IOThread.
    IoThread(usize),
    /// A disk.
    Disk(usize),
    /// An export.
    Export(usize),
}

/// One error of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The item at fault.
    pub place: PlanItem,
    /// The key at fault: a field's name, `queue.NAME` for a setting; empty = the item as a whole.
    pub key: String,
    /// Rule, value, remedy.
    pub text: String,
    /// Name of the item, for messages: `disk 'a'`; empty for the plan.
    pub of: String,
}

impl Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.text))?;
        if self.of.is_empty() { Ok(()) } else { write!(f, " ({})", self.of) }
    }
}

/// All errors of a plan; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors(pub Vec<PlanError>);

impl Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(PlanError::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for PlanErrors {}

/// Maximum number of IOThreads, disks or exports of one daemon.
const ITEMS_MAX: usize = 4096;
/// Longest name.
const NAME_MAX: usize = 64;
/// Longest path of a Unix socket: `sun_path` without its terminator. Source: unix(7).
const SOCKET_PATH_MAX: usize = 107;
const POLL_NS_MAX: u64 = 1_000_000_000;
const POLL_FACTOR_MAX: u32 = 1024;

/// A plan that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPlan {
    plan: ServePlan,
    exports: Vec<Resolved>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Resolved {
    disk: usize,
    iothreads: Vec<usize>,
}

/// An export and what it refers to.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The export as requested.
    pub plan: &'a ExportPlan,
    /// Index of its disk.
    pub disk: usize,
    /// Indices of IOThreads: one per virtqueue, or, for an export without virtqueues, those that serve its connections round robin.
    pub iothreads: &'a [usize],
    /// Clients may not write.
    pub read_only: bool,
}

/// Exports that share a listening socket.
#[derive(Clone, Debug)]
pub struct NbdServer<'a> {
    /// Where they listen.
    pub listen: &'a NbdListen,
    /// Indices of exports in the plan's order; the first is also the default export (empty name).
    pub exports: Vec<usize>,
}

impl CheckedPlan {
    /// Returns the IOThreads; never empty.
    pub fn iothreads(&self) -> &[IoThreadPlan] {
        &self.plan.iothreads
    }

    /// Returns the disks; never empty, except in the plan of a running daemon.
    pub fn disks(&self) -> &[DiskPlan] {
        &self.plan.disks
    }

    /// Returns the plan as requested, with default IOThreads if none were named.
    pub fn plan(&self) -> &ServePlan {
        &self.plan
    }

    /// Returns the exports in the plan's order; never empty, except in the plan of a running daemon.
    pub fn exports(&self) -> impl ExactSizeIterator<Item = Export<'_>> {
        self.plan.exports.iter().zip(&self.exports).map(|(plan, r)| Export {
            plan,
            disk: r.disk,
            iothreads: &r.iothreads,
            read_only: plan.read_only || self.plan.disks[r.disk].read_only,
        })
    }

    /// Gives an export without a requested mapping the IOThreads that it has in `old`, if it has as many queues there and all these
    /// IOThreads still exist.
    pub(super) fn keep_dealt(&mut self, old: &CheckedPlan) {
        let index: HashMap<&str, usize> =
            self.plan.iothreads.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        let dealt: HashMap<&str, Export<'_>> = old.exports().map(|e| (e.plan.name.as_str(), e)).collect();
        for (export, resolved) in self.plan.exports.iter().zip(&mut self.exports) {
            let Some(before) = dealt.get(export.name.as_str()) else { continue };
            let alike = export.kind.num_queues() == before.plan.kind.num_queues();
            if export.mapping != before.plan.mapping || !alike {
                continue;
            }
            let here = before.iothreads.iter().map(|i| index.get(old.plan.iothreads[*i].name.as_str()).copied());
            if let Some(all) = here.collect::<Option<Vec<usize>>>() {
                resolved.iothreads = all;
            }
        }
    }

    /// Removes disks and exports that could not be opened or begun.
    pub(super) fn remove(&mut self, disks: &HashSet<String>, exports: &HashSet<String>) {
        let lost = |e: &ExportPlan| disks.contains(&e.disk) || exports.contains(&e.name);
        let kept: Vec<_> = (0..self.exports.len()).filter(|i| !lost(&self.plan.exports[*i])).collect();
        self.exports = kept.iter().map(|i| self.exports[*i].clone()).collect();
        self.plan.exports.retain(|e| !lost(e));
        self.plan.disks.retain(|d| !disks.contains(&d.name));
        let places: HashMap<&str, usize> =
            self.plan.disks.iter().enumerate().map(|(i, d)| (d.name.as_str(), i)).collect();
        for (export, resolved) in self.plan.exports.iter().zip(&mut self.exports) {
            resolved.disk = places[export.disk.as_str()];
        }
    }

    /// Replaces the settings of a disk by those that remained in force.
    pub(super) fn keep_settings(&mut self, disk: usize, settings: Vec<(String, String)>) {
        self.plan.disks[disk].settings = settings;
    }

    /// Replaces the targets of a disk by those with the paths that it actually has.
    pub(super) fn keep_targets(&mut self, disk: usize, targets: Vec<TargetPlan>) {
        self.plan.disks[disk].targets = targets;
    }

    /// Replaces the IOThreads of an export by those that actually serve it.
    pub(super) fn keep_mapping(&mut self, export: usize, iothreads: Vec<usize>) {
        self.exports[export].iothreads = iothreads;
    }

    /// Returns the NBD servers, in the order of their first exports.
    pub fn nbd_servers(&self) -> Vec<NbdServer<'_>> {
        let mut servers: Vec<NbdServer<'_>> = Vec::new();
        for (index, export) in self.plan.exports.iter().enumerate() {
            let Some(nbd) = export.nbd() else { continue };
            match servers.iter_mut().find(|s| s.listen.is_same(&nbd.listen)) {
                Some(server) => server.exports.push(index),
                None => servers.push(NbdServer { listen: &nbd.listen, exports: vec![index] }),
            }
        }
        servers
    }
}

impl ServePlan {
    /// Checks everything that can be checked without access to files.
    ///
    /// # Errors
    /// All errors, in the order IOThreads, disks, exports.
    pub fn check(self, host: &HostFacts) -> Result<CheckedPlan, PlanErrors> {
        let mut errors = Errors(Vec::new());
        if self.disks.is_empty() {
            errors.add(PlanItem::Plan, "", "", "no disk is configured; add a [[disk]]");
        } else if self.exports.is_empty() {
            errors.add(
                PlanItem::Plan,
                "",
                "",
                "no export is configured: clients cannot reach any disk; add an \
                                                [[export]]",
            );
        }
        if errors.0.is_empty() { self.check_running(host) } else { Err(PlanErrors(errors.0)) }
    }

    /// As [`ServePlan::check`], for a running daemon, which may temporarily have nothing to serve.
    ///
    /// # Errors
    /// The errors of [`ServePlan::check`].
    pub fn check_running(mut self, host: &HostFacts) -> Result<CheckedPlan, PlanErrors> {
        let mut errors = Errors(Vec::new());
        errors.sizes(&self);
        if !errors.0.is_empty() {
            return Err(PlanErrors(errors.0));
        }
        if self.iothreads.is_empty() {
            self.iothreads = default_iothreads(&self.exports, host);
        }
        errors.iothreads(&self.iothreads, host);
        errors.disks(&self.disks);
        let exports = errors.exports(&self);
        if errors.0.is_empty() { Ok(CheckedPlan { plan: self, exports }) } else { Err(PlanErrors(errors.0)) }
    }
}

/// Returns one IOThread per virtqueue, up to the number of the host's CPUs. An export without virtqueues counts as many as there are CPUs.
fn default_iothreads(exports: &[ExportPlan], host: &HostFacts) -> Vec<IoThreadPlan> {
    let cpus = host.cpus.len().max(1);
    let wanted: usize = exports.iter().map(|e| e.kind.num_queues().map_or(cpus, usize::from)).sum();
    (0..wanted.clamp(1, cpus)).map(|n| IoThreadPlan::new(format!("{DEFAULT_IOTHREAD_NAME}{n}"))).collect()
}

/// Returns why a name is invalid; `None` if it is valid.
fn bad_name(name: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_MAX && name.chars().all(good) {
        return None;
    }
    let shown: String = name.chars().take(NAME_MAX).flat_map(char::escape_debug).collect();
    Some(format!(
        "name='{shown}': must be 1 to {NAME_MAX} characters from a-z A-Z 0-9 . _ -, the first one a letter or digit"
    ))
}

impl DiskPlan {
    /// Returns the key that names its targets.
    pub(super) fn targets_key(&self) -> &'static str {
        if self.stripe.is_some() { "targets" } else { "target" }
    }

    /// Whether its only target is one file or block device.
    pub(super) fn is_one_file(&self) -> bool {
        matches!(&self.targets[..], [TargetPlan { spec: TargetSpec::File(_), .. }])
    }

    /// Checks that the disk is a part of something that has parts. The error is the key, and the rule.
    fn check_part(&self) -> Result<(), (&'static str, String)> {
        let FilePart { offset, size } = self.part;
        if self.part.is_whole() || self.is_one_file() {
            return self.part.check();
        }
        let (key, value) = if offset > 0 { ("offset", offset) } else { ("size", size.unwrap_or(0)) };
        Err((key, format!("{key}={value}: needs one file or block device as the target; leave {key} out")))
    }

    /// Returns why its targets cannot be striped, with the key at fault.
    pub(super) fn refused(&self, e: &StripeError) -> (&'static str, String) {
        let text = |stripe: usize| self.targets.get(stripe).map_or("?", |t| t.text.as_str());
        let chunk = self.stripe.map_or_else(String::new, StripePlan::chunk_text);
        match e {
            StripeError::Chunk(..) => ("chunk", e.to_string()),
            StripeError::Small { stripe, has, .. } => {
                let what = format!("'{}' has {has} bytes: must be at least one chunk ({chunk})", text(*stripe));
                ("targets", format!("targets: {what}; make it larger or the chunk smaller"))
            }
            StripeError::Stripes(n) => ("targets", format!("targets: {n} given; a stripe must have 2..={MAX_STRIPES}")),
            StripeError::Large(_) => ("targets", format!("targets: {e}")),
        }
    }
}

impl ExportPlan {
    /// Checks its block sizes, with those that are set for its disk. The error is the key, and the rule.
    fn check_geometry(&self, disk: Option<&DiskPlan>) -> Result<(), (&'static str, String)> {
        let Geometry { logical, physical } = self.geometry;
        let set = [("logical_block_size", logical), ("physical_block_size", physical)];
        let first = set.into_iter().find_map(|(key, size)| Some((key, size?)));
        if let Some((key, size)) = first
            && !self.kind.has_blocks()
        {
            let kind = self.kind.name();
            let text = format!("{key}={size}: an export of type={kind} has no block size; leave it out");
            return Err((key, text));
        }
        // An invalid size of the disk is reported there.
        let of_disk = disk.and_then(|disk| disk.geometry.logical).filter(|size| LOGICAL_BLOCK_SIZES.contains(size));
        Geometry { logical: logical.or(of_disk), physical }.check()
    }
}

struct Errors(Vec<PlanError>);

impl Errors {
    fn add(&mut self, place: PlanItem, of: &str, key: impl Into<String>, text: impl Into<String>) {
        self.0.push(PlanError { place, key: key.into(), text: text.into(), of: of.to_owned() });
    }

    fn sizes(&mut self, plan: &ServePlan) {
        for (n, what) in
            [(plan.iothreads.len(), "IOThreads"), (plan.disks.len(), "disks"), (plan.exports.len(), "exports")]
        {
            if n > ITEMS_MAX {
                self.add(PlanItem::Plan, "", "", format!("{n} {what}: at most {ITEMS_MAX}; use several daemons"));
            }
        }
    }

    /// Checks that the names of one kind of item are valid and unique. Returns the index of each name.
    fn names<'a>(
        &mut self,
        what: &str,
        names: impl Iterator<Item = &'a str>,
        place: fn(usize) -> PlanItem,
    ) -> HashMap<&'a str, usize> {
        let mut seen = HashMap::new();
        for (index, name) in names.enumerate() {
            let of = format!("{what} '{}'", name.escape_debug());
            if let Some(text) = bad_name(name) {
                self.add(place(index), what, "name", text);
            } else if seen.contains_key(name) {
                self.add(
                    place(index),
                    &of,
                    "name",
                    format!("name={name}: another {what} has this name; choose a new one"),
                );
            } else {
                seen.insert(name, index);
            }
        }
        seen
    }

    fn iothreads(&mut self, iothreads: &[IoThreadPlan], host: &HostFacts) {
        self.names("IOThread", iothreads.iter().map(|t| t.name.as_str()), PlanItem::IoThread);
        for (index, thread) in iothreads.iter().enumerate() {
            let (place, of) = (PlanItem::IoThread(index), format!("IOThread '{}'", thread.name));
            let missing: Vec<u32> = thread.cpus.iter().copied().filter(|c| !host.cpus.contains(c)).collect();
            if !missing.is_empty() {
                let (is, missing, has) = (cpus::list(&thread.cpus), cpus::list(&missing), cpus::list(&host.cpus));
                let text = format!("cpus={is}: this daemon may not use CPU {missing}; it may use {has}");
                self.add(place, &of, "cpus", text);
            }
            let mut range = |key: &str, value: u64, max: u64| {
                if value > max {
                    self.add(place, &of, key, format!("{key}={value}: must be 0..={max}"));
                }
            };
            range("poll_max_ns", thread.poll.max_ns.unwrap_or(0), POLL_NS_MAX);
            range("poll_grow", thread.poll.grow.into(), POLL_FACTOR_MAX.into());
            range("poll_shrink", thread.poll.shrink.into(), POLL_FACTOR_MAX.into());
        }
    }

    fn disks(&mut self, disks: &[DiskPlan]) {
        self.names("disk", disks.iter().map(|d| d.name.as_str()), PlanItem::Disk);
        for (index, disk) in disks.iter().enumerate() {
            let (place, of) = (PlanItem::Disk(index), format!("disk '{}'", disk.name));
            self.settings(place, &of, &disk.settings);
            if let (Some(_), Some(text)) = (disk.stripe, limit_of_stripe(&disk.settings)) {
                self.add(place, &of, "queue", text);
            }
            if let Some(serial) = &disk.serial {
                let printable = serial.chars().all(|c| c.is_ascii_graphic() || c == ' ');
                if serial.is_empty() || serial.len() > SERIAL_MAX || !printable {
                    let shown: String = serial.chars().take(NAME_MAX).flat_map(char::escape_debug).collect();
                    let text = format!("serial='{shown}': must be 1..={SERIAL_MAX} printable ASCII characters");
                    self.add(place, &of, "serial", text);
                }
            }
            for (key, text) in [disk.check_part().err(), disk.geometry.check().err()].into_iter().flatten() {
                self.add(place, &of, key, text);
            }
            self.stripe(place, &of, disk);
            for target in &disk.targets {
                if let TargetSpec::Multipath(several) = &target.spec
                    && let Err(e) = several.check_stale_writes(!disk.read_only)
                {
                    self.add(place, &of, disk.targets_key(), e.to_string());
                }
                let paths = target.paths();
                let has_one = |other: &DiskPlan| other.paths().any(|a| paths.iter().any(|b| same_path(a, b)));
                let twin = disks[..index].iter().find(|o| has_one(o) && !(o.read_only && disk.read_only));
                if let Some(other) = twin {
                    let text = format!(
                        "target={}: disk '{}' has this image, too, and only one disk may write to it; give that disk \
                         two exports instead, or make both disks read_only",
                        target.text, other.name
                    );
                    self.add(place, &of, disk.targets_key(), text);
                }
            }
        }
    }

    /// Checks the targets of a striped disk, as far as is known before they are opened.
    fn stripe(&mut self, place: PlanItem, of: &str, disk: &DiskPlan) {
        let Some(stripe) = disk.stripe else { return };
        // A target of unknown size counts as one chunk.
        let size = |t: &TargetPlan| t.spec.size_bytes().unwrap_or(stripe.chunk_bytes) >> SECTOR_SHIFT;
        let sizes = disk.targets.iter().map(|t| Stripe { start: Sector(0), nr_sectors: size(t) });
        if let Err(e) = StripeMap::new(stripe.chunk_bytes, SECTOR_SIZE, &sizes.collect::<Vec<_>>()) {
            let (key, text) = disk.refused(&e);
            self.add(place, of, key, text);
        }
        for (index, target) in disk.targets.iter().enumerate() {
            if disk.targets[..index].iter().any(|other| other.spec.is_same_data(&target.spec)) {
                let text = format!("targets: '{}' is listed twice; each must be different", target.text);
                self.add(place, of, "targets", text);
            }
        }
    }

    fn settings(&mut self, place: PlanItem, of: &str, settings: &[(String, String)]) {
        let before = self.0.len();
        for (key, value) in settings {
            if let Some(run) = RUN_SETTINGS.iter().find(|s| s.name == key) {
                let text = format!(
                    "{}={value}: is for the disks of a run (mqblk run), not for one disk; leave it out",
                    run.name
                );
                self.add(place, of, format!("queue.{key}"), text);
            } else if let Err(e) = QueueConfig::default().set(key, value) {
                self.add(place, of, format!("queue.{key}"), e.to_string());
            }
        }
        if self.0.len() == before
            && let Err(e) = check_settings(settings)
        {
            let text = e.to_string();
            // The message begins with the setting at fault; an elevator's message names its tunable without `iosched.`.
            let begins = |key: &str| text.strip_prefix(key).is_some_and(|rest| rest.starts_with(['=', ':']));
            let keys = || settings.iter().map(|(key, _)| key);
            let tunable = |key: &&String| key.strip_prefix("iosched.").is_some_and(begins);
            let key = keys().find(|key| begins(key)).or_else(|| keys().find(tunable));
            self.add(place, of, key.map_or("queue".to_owned(), |key| format!("queue.{key}")), text);
        }
    }

    fn exports(&mut self, plan: &ServePlan) -> Vec<Resolved> {
        self.names("export", plan.exports.iter().map(|e| e.name.as_str()), PlanItem::Export);
        let disks: HashMap<&str, usize> = plan.disks.iter().enumerate().map(|(i, d)| (d.name.as_str(), i)).collect();
        let iothreads: Vec<&str> = plan.iothreads.iter().map(|t| t.name.as_str()).collect();
        let mut dealt = 0;
        let mut resolved = Vec::with_capacity(plan.exports.len());
        for (index, export) in plan.exports.iter().enumerate() {
            let (place, of) = (PlanItem::Export(index), format!("export '{}'", export.name));
            let disk = disks.get(export.disk.as_str()).copied();
            if disk.is_none() {
                let hint = did_you_mean(&export.disk, plan.disks.iter().map(|d| d.name.as_str()));
                let text = format!("disk={}: there is no such disk; {hint}add a [[disk]] of that name", export.disk);
                self.add(place, &of, "disk", text);
            }
            let before = self.0.len();
            if let Err((key, text)) = export.check_geometry(disk.map(|index| &plan.disks[index])) {
                self.add(place, &of, key, text);
            }
            self.kind(place, &of, &export.kind);
            self.place_taken(index, plan);
            let queues =
                if self.0.len() == before { self.mapped(place, &of, export, &iothreads, &mut dealt) } else { None };
            resolved.push(Resolved { disk: disk.unwrap_or(0), iothreads: queues.unwrap_or_default() });
        }
        resolved
    }

    /// Returns the IOThreads of an export.
    fn mapped(
        &mut self,
        place: PlanItem,
        of: &str,
        export: &ExportPlan,
        iothreads: &[&str],
        dealt: &mut usize,
    ) -> Option<Vec<usize>> {
        let num_queues = export.kind.num_queues();
        if export.mapping.entries.is_empty() {
            let n = num_queues.map_or(iothreads.len(), usize::from);
            let dealing = (*dealt..*dealt + n).map(|i| i % iothreads.len()).collect();
            *dealt += num_queues.map_or(1, usize::from);
            return Some(dealing);
        }
        if num_queues.is_none() && export.mapping.entries.iter().any(|e| e.vqs.is_some()) {
            let kind = export.kind.name();
            let text = format!("iothreads: type={kind} has no virtqueues to list; name only the IOThreads");
            self.add(place, of, "iothreads", text);
            return None;
        }
        let n = num_queues.map_or(export.mapping.entries.len(), usize::from);
        let mapping: &Mapping = &export.mapping;
        // At most ITEMS_MAX IOThreads can be named once each, so `n` fits whenever it resolves.
        match mapping.resolve(u16::try_from(n).unwrap_or(u16::MAX), iothreads) {
            Ok(of_vq) => Some(of_vq),
            Err(e) => {
                self.add(place, of, "iothreads", format!("iothreads: {e}"));
                None
            }
        }
    }

    fn kind(&mut self, place: PlanItem, of: &str, kind: &ExportKind) {
        if let Some(path) = kind.unix_socket() {
            self.socket_path(place, of, path);
        }
        kind.check(&mut |key, text| self.add(place, of, key, text));
    }

    fn socket_path(&mut self, place: PlanItem, of: &str, path: &Path) {
        let length = path.as_os_str().len();
        if length == 0 || path.as_os_str().as_encoded_bytes().contains(&0) {
            self.add(place, of, "socket", "socket='': must be a path");
        } else if length > SOCKET_PATH_MAX {
            let path = path.display();
            let text = format!(
                "socket={path}: has {length} bytes, Unix sockets take {SOCKET_PATH_MAX}; choose a shorter path (or \
                 --socket-dir)"
            );
            self.add(place, of, "socket", text);
        }
    }

    /// Reports an export that listens at the same address as an earlier one, unless both are exports of one NBD server.
    fn place_taken(&mut self, index: usize, plan: &ServePlan) {
        let export = &plan.exports[index];
        let (place, of) = (PlanItem::Export(index), format!("export '{}'", export.name));
        for other in &plan.exports[..index] {
            let (a, b) = (&export.kind, &other.kind);
            let sockets = a.unix_socket().zip(b.unix_socket()).filter(|_| !a.shares_server(b));
            let text = match sockets.filter(|(x, y)| same_path(x, y)) {
                Some((path, _)) => {
                    let (path, name) = (path.display(), &other.name);
                    Some(("socket", format!("socket={path}: export '{name}' listens there; choose another path")))
                }
                None => a.clash(b, &other.name),
            };
            if let Some((key, text)) = text {
                self.add(place, &of, key, text);
                return;
            }
        }
    }
}

/// Names that are taken.
#[derive(Debug, Default)]
pub struct FreshNames(HashSet<String>);

impl FreshNames {
    /// Returns a free name made from `wanted`: invalid characters are replaced by `_`, a long name is cut, and a taken name gets a number.
    pub fn take(&mut self, wanted: &str) -> String {
        let good = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let mut base: String = wanted.chars().map(good).take(NAME_MAX - 8).collect();
        if !base.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            base.insert(0, 'd');
        }
        let mut name = base.clone();
        let mut n = 1u32;
        while !self.0.insert(name.clone()) {
            n += 1;
            name = format!("{base}-{n}");
        }
        name
    }
}

#[cfg(test)]
mod tests;
