// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `multipath:[OPTION=VALUE,...:]TARGET+TARGET...`: a disk of several paths as a target.
//!
//! Guarantees: the text becomes a value, or an error with the reason; nothing is opened before [`MultipathTarget::open`]. A
//! `+` separates two targets only if a kind with its `:`, a `/` or a `.` follows; so `nbd+unix://` stays whole. A list of
//! targets needs no such rule ([`MultipathTarget::new`]). Messages name paths by their text, without passwords. Does not
//! read a `conf`: `settle` does.

use super::options::{
    MAX_PG_INIT_DELAY_MS, MAX_PG_INIT_RETRIES, MAX_PRIO, MAX_SECONDS, MustBe, no_prioritizer, seconds,
};
use super::page_cache;
use crate::driver::host_driver::HostDriver;
use crate::driver::iscsi::{Iscsi, IscsiTarget};
use crate::driver::multipath::disk::{Multipath, Opener, Path, PathMaker, Prober, Warnings};
use crate::driver::multipath::options::{
    HardwareHandler, MultipathOptions, PathChecker, PathGroupingPolicy, Prioritizer, selector,
};
use crate::driver::rbd::{Rbd, RbdTarget};
use crate::driver::target::{DriverTarget, Needs, OpenTarget, TargetWarning, add_new};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::secrets::{Unmasked, without_secrets};
use crate::target::{TargetSpec, has_kind};
use blk::driver::Driver;
use blk::id::{MAX_CPUS, SECTOR_SHIFT};
use blk::multipath::{MAX_PATHS, PathArgs, Selector, parse_cpu_mask};
use blk::suggest::did_you_mean;
use blk::time::Duration;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// Options by name.
const OPTIONS: [&str; 18] = [
    "conf",
    "path_selector",
    "path_cpus",
    "path_grouping_policy",
    "prio",
    "prio_args",
    "detect_prio",
    "hardware_handler",
    "pg_init_retries",
    "pg_init_delay_msecs",
    "failback",
    "no_path_retry",
    "path_checker",
    "polling_interval",
    "max_polling_interval",
    "checker_timeout",
    "fast_io_fail_tmo",
    "allow_stale_writes",
];

/// A path as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTarget {
    /// The target that leads to the disk.
    pub spec: TargetSpec,
    /// Its name in messages.
    pub name: String,
    /// Its priority, the higher the better; 1 unless set.
    pub prio: u32,
    /// CPUs that use this path, with `path_selector=io-affinity`.
    pub cpus: Vec<u16>,
    /// The target as it was typed.
    pub text: Unmasked,
}

impl PathTarget {
    /// Parses a path's target; its name is the target without secrets.
    ///
    /// # Errors
    /// Usage, with the rule.
    pub(super) fn new(text: &str) -> Result<PathTarget> {
        let spec = TargetSpec::parse(text)?;
        let name = match &spec {
            TargetSpec::Iscsi(target) => target.to_string(),
            _ => without_secrets(text),
        };
        Ok(PathTarget { spec, name, prio: 1, cpus: Vec::new(), text: Unmasked::new(text) })
    }
}

/// A multipath disk as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathTarget {
    /// The options given in the target's text; the others have their defaults.
    pub options: MultipathOptions,
    /// Its paths, at least one.
    pub paths: Vec<PathTarget>,
    /// `conf`: a file in the syntax of multipath.conf(5) for options that are not given here. Read when the disk is opened.
    pub conf: Option<PathBuf>,
    /// `detect_prio`: whether a disk is asked for its port groups (ALUA). `None`: as `conf` says; without a `conf` it is not
    /// asked.
    pub detect_prio: Option<bool>,
    /// `allow_stale_writes`: whether the disk may be written although its paths cannot fence a late write. Default: no.
    pub allow_stale_writes: bool,
    /// The options that were given, by name, with the text of their values.
    pub(super) given: Vec<(&'static str, String)>,
}

/// An option that conflicts with others, and why.
pub(super) struct Conflict {
    pub(super) option: &'static str,
    pub(super) text: String,
}

/// Returns the names of all options.
pub fn option_names() -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter()
}

/// Parses what follows `multipath:`.
///
/// # Errors
/// Usage, with the rule.
pub fn parse(rest: &str) -> Result<MultipathTarget> {
    let (options, targets) = match rest.split_once(':') {
        Some((options, targets)) if options.is_empty() || options.contains('=') && !options.starts_with(['/', '.']) => {
            (options, targets)
        }
        _ => ("", rest),
    };
    let set = options.split(',').filter(|item| !item.is_empty());
    let set: Vec<(&str, &str)> = set.map(|item| item.split_once('=').unwrap_or((item, ""))).collect();
    MultipathTarget::new(&set, &split(targets))
}

/// Splits targets that are joined by `+`.
fn split(targets: &str) -> Vec<&str> {
    let (mut all, mut from) = (Vec::new(), 0);
    for (at, _) in targets.match_indices('+') {
        let behind = &targets[at + 1..];
        if has_kind(behind) || behind.starts_with(['/', '.']) {
            all.push(&targets[from..at]);
            from = at + 1;
        }
    }
    all.push(&targets[from..]);
    all
}

impl MultipathTarget {
    /// Makes a target from options by name and the texts of its paths.
    ///
    /// # Errors
    /// Usage, with the rule.
    pub fn new(options: &[(&str, &str)], targets: &[&str]) -> Result<MultipathTarget> {
        let refused = |text: String| Err(Error::usage(format!("target 'multipath:': {text}")));
        if targets.len() > MAX_PATHS || targets.iter().any(|t| t.is_empty()) {
            return refused(format!(
                "{} paths, {} of them empty: must be 1..={MAX_PATHS} targets, as in multipath:iscsi://A/IQN/1+iscsi://B/IQN/1",
                targets.len(),
                targets.iter().filter(|t| t.is_empty()).count()
            ));
        }
        let mut paths: Vec<PathTarget> = Vec::new();
        for text in targets {
            let path = PathTarget::new(text).map_err(|e| e.within("target 'multipath:'"))?;
            let (mut number, mut unique) = (1, path.name.clone());
            while paths.iter().any(|p| p.name == unique) {
                number += 1;
                unique = format!("{}#{number}", path.name);
            }
            paths.push(PathTarget { name: unique, ..path });
        }
        let said = MultipathOptions::default();
        let (conf, detect_prio, given) = (None, None, Vec::new());
        let mut made = MultipathTarget { options: said, paths, conf, detect_prio, allow_stale_writes: false, given };
        for (name, value) in options {
            let Some(name) = OPTIONS.into_iter().find(|known| known == name) else {
                let all: Vec<_> = option_names().collect();
                let hint = did_you_mean(name, option_names());
                return refused(format!("there is no option '{name}'; {hint}Options: {}", all.join(", ")));
            };
            if let Err(rule) = made.set(name, value) {
                return refused(format!("{name}={value}: {rule}"));
            }
            made.given.push((name, (*value).to_owned()));
        }
        if let Some(name) = made.without_effect(options.iter().map(|(name, _)| *name)) {
            return refused(format!(
                "{name} applies to iSCSI sessions and has no effect on path {}; leave it out (an NBD target has its \
                 own timeout and reconnect_delay)",
                made.paths[0].name
            ));
        }
        match made.check() {
            Ok(()) => Ok(made),
            Err(conflict) => refused(conflict.text),
        }
    }

    /// Whether an option was given here.
    pub(super) fn is_given(&self, option: &str) -> bool {
        self.given.iter().any(|(name, _)| *name == option)
    }

    /// # Errors
    /// What the value must be.
    pub(super) fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let must = |rule: MustBe| rule.to_string();
        let time = |min: u64| seconds(value, min).ok_or_else(|| format!("must be seconds, {min}..={MAX_SECONDS}"));
        let number = |max: u64, what: &str| {
            let read = value.parse().ok().filter(|n| *n <= max);
            read.ok_or_else(|| format!("must be {what}, 0..={max}"))
        };
        let o = &mut self.options;
        match name {
            // A ':' would begin the paths, a ',' the next option.
            "conf" if value.is_empty() || value.contains([':', ',']) => {
                return Err("must be the name of a file in the syntax of multipath.conf(5), without ':' and ','".into());
            }
            "conf" => self.conf = Some(value.into()),
            "path_selector" => o.path_selector = selector(value).map_err(must)?,
            "path_cpus" => {
                let masks: Option<Vec<_>> = value.split('+').map(cpus_of_mask).collect();
                let masks = masks.filter(|all| all.len() == self.paths.len()).ok_or_else(|| {
                    format!(
                        "must be a mask of CPUs below {MAX_CPUS}, 0x and hexadecimal, for each path, such as 0x3+0xc; in TOML \
                         [\"0x3\", \"0xc\"]"
                    )
                })?;
                self.paths.iter_mut().zip(masks).for_each(|(path, cpus)| path.cpus = cpus);
            }
            "path_grouping_policy" => o.path_grouping_policy = value.parse().map_err(must)?,
            "failback" => o.failback = value.parse().map_err(must)?,
            "no_path_retry" => o.no_path_retry = value.parse().map_err(must)?,
            "path_checker" => o.path_checker = value.parse().map_err(must)?,
            "polling_interval" => o.polling_interval = time(1)?,
            "max_polling_interval" => o.max_polling_interval = Some(time(1)?),
            "checker_timeout" => o.checker_timeout = time(1)?,
            "fast_io_fail_tmo" if value == "off" => o.fast_io_fail_tmo = None,
            "fast_io_fail_tmo" => o.fast_io_fail_tmo = Some(time(0).map_err(|rule| format!("{rule}, or off"))?),
            "prio_args" if value == "exclusive_pref_bit" => o.exclusive_pref_bit = true,
            "prio_args" => return Err("must be exclusive_pref_bit".into()),
            "detect_prio" => self.detect_prio = Some(yes_or_no(value)?),
            "allow_stale_writes" => self.allow_stale_writes = yes_or_no(value)?,
            "hardware_handler" => o.hardware_handler = value.parse().map_err(must)?,
            "pg_init_retries" => o.pg_init_retries = number(u64::from(MAX_PG_INIT_RETRIES), "a number")? as u32,
            "pg_init_delay_msecs" => {
                o.pg_init_delay = Some(Duration::from_ms(number(MAX_PG_INIT_DELAY_MS, "milliseconds")?));
            }
            "prio" => {
                o.prio = value.parse().unwrap_or_default();
                if value.parse::<Prioritizer>().is_err() {
                    let prios: Option<Vec<u32>> = value.split('+').map(|n| n.parse().ok()).collect();
                    let fits = |all: &Vec<u32>| all.len() == self.paths.len() && all.iter().all(|n| *n <= MAX_PRIO);
                    let prios = prios.filter(fits).ok_or_else(|| no_prioritizer(value))?;
                    self.paths.iter_mut().zip(prios).for_each(|(path, prio)| path.prio = prio);
                }
            }
            _ => return Err(format!("must be one of {}", OPTIONS.join(", "))),
        }
        Ok(())
    }

    /// Returns the first given option that has no effect with this kind of paths.
    fn without_effect<'a>(&self, mut given: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let is_scsi = is_scsi(&self.paths.first()?.spec);
        given.find(|name| *name == "fast_io_fail_tmo" && !is_scsi)
    }

    /// Checks that `io-affinity` has its CPUs, and that no other selector has any.
    fn check_cpus(&self) -> std::result::Result<(), Conflict> {
        let o = &self.options;
        let by_cpu = o.path_selector == Selector::IoAffinity;
        if by_cpu && self.paths.iter().all(|path| path.cpus.is_empty()) {
            let text = "path_selector=io-affinity: needs the CPUs of each path: add path_cpus, a mask for each, such \
                        as path_cpus=0x3+0xc";
            return conflict("path_selector", text.into());
        }
        if by_cpu
            && o.path_grouping_policy == PathGroupingPolicy::Failover
            && self.conf.is_none()
            && self.paths.len() > 1
        {
            let text = "path_selector=io-affinity: selects among the paths of a group, but \
                        path_grouping_policy=failover puts each path in its own group; set \
                        path_grouping_policy=multibus or another policy";
            return conflict("path_selector", text.into());
        }
        // A file may still name the selector.
        if !by_cpu && self.conf.is_none() && self.is_given("path_cpus") {
            let text = "path_cpus: needs path_selector=io-affinity; add that, or leave path_cpus out";
            return conflict("path_cpus", text.into());
        }
        Ok(())
    }

    /// Refuses options that conflict.
    pub(super) fn check(&self) -> std::result::Result<(), Conflict> {
        let o = &self.options;
        self.check_cpus()?;
        // ALUA may still come from the `conf` or from detection.
        let may_be_alua = self.conf.is_some() || self.detect_prio == Some(true);
        if o.path_grouping_policy == PathGroupingPolicy::GroupByTpg && o.prio != Prioritizer::Alua && !may_be_alua {
            let text = "path_grouping_policy=group_by_tpg: needs the target port groups of the paths: add prio=alua, \
                        or use group_by_prio with priorities of your own";
            return conflict("path_grouping_policy", text.into());
        }
        for PathTarget { spec, name, .. } in &self.paths {
            if spec.is_memory() {
                return conflict(
                    "",
                    format!("path {name}: a memory disk is private to its path, not shared with other paths"),
                );
            }
            if matches!(spec, TargetSpec::Multipath(_)) {
                return conflict("", format!("path {name}: is a multipath target itself; list all its paths here"));
            }
            if is_scsi(spec) {
                continue;
            }
            let asks = [
                ("prio", "prio=alua", o.prio == Prioritizer::Alua),
                ("hardware_handler", "hardware_handler=1 alua", o.hardware_handler == HardwareHandler::Alua),
                ("detect_prio", "detect_prio=yes", self.detect_prio == Some(true)),
            ];
            if let Some((option, what, _)) = asks.into_iter().find(|(.., is_so)| *is_so) {
                let text =
                    format!("{what}: path {name} is no SCSI device and has no port groups; leave the option out");
                return conflict(option, text);
            }
            if o.path_checker == PathChecker::Tur {
                let text =
                    format!("path_checker=tur: path {name} does not support TEST UNIT READY; use directio or auto");
                return conflict("path_checker", text);
            }
        }
        let kind = |p: &PathTarget| std::mem::discriminant(&p.spec);
        match self.paths.iter().find(|p| kind(p) != kind(&self.paths[0])) {
            Some(other) => conflict(
                "",
                format!(
                    "path {} is of another kind than path {}: it is unknown whether they lead to one disk",
                    other.name, self.paths[0].name
                ),
            ),
            None => Ok(()),
        }
    }

    /// Returns a warning about what is not checked, for kinds of paths that have no identity.
    fn on_your_word(&self, write: bool) -> Option<String> {
        let [first, _, ..] = self.paths.as_slice() else { return None };
        let kind = match &first.spec {
            TargetSpec::Nbd(_) => "NBD exports",
            TargetSpec::Rbd(_) => "RBD images",
            _ => return None,
        };
        let late = match write {
            true => {
                "; late writes are not fenced: a silent server may run an old write after a newer one on another path"
            }
            false => "",
        };
        let waits = |p: &PathTarget| matches!(&p.spec, TargetSpec::Rbd(target) if !limits_time(target));
        let hangs = match self.paths.iter().any(waits) {
            true => {
                "; requests that the cluster does not answer are not retried on another path unless \
                 rados_osd_op_timeout is set in the target"
            }
            false => "",
        };
        Some(format!(
            "the paths are {kind}, which have no identity: only their sizes are compared; make sure that they lead to \
             one disk{late}{hangs} (docs/multipath.md)"
        ))
    }

    /// Checks that a write that was retried on another path cannot be carried out later by the first one, unless
    /// `allow_stale_writes` accepts that.
    ///
    /// # Errors
    /// Usage: several paths that cannot fence a late write, for writing.
    pub fn check_stale_writes(&self, write: bool) -> Result<()> {
        let unfenced = self.paths.iter().find_map(|path| match &path.spec {
            TargetSpec::Nbd(_) => Some("NBD"),
            // Without the time limit, the request stays on its path.
            TargetSpec::Rbd(target) if limits_time(target) => Some("RBD (with rados_osd_op_timeout)"),
            _ => None,
        });
        let (Some(kind), true) = (unfenced, write && !self.allow_stale_writes && self.paths.len() > 1) else {
            return Ok(());
        };
        Err(Error::usage(format!(
            "allow_stale_writes=no: a disk of {} paths over {kind} must not be written: a server that was cut off may later carry out \
             an old write, over newer data that was acknowledged; open the disk read-only, use one path, or set allow_stale_writes=yes if \
             a failed server is always fenced or really gone (docs/multipath.md)",
            self.paths.len()
        )))
    }

    /// Returns its paths, ready to be opened, with the options given here and without those of a `conf`. Data comes from and
    /// goes to `regions`.
    ///
    /// # Errors
    /// The errors of [`MultipathTarget::check_stale_writes`].
    pub fn paths_to_open(&self, needs: &Needs, regions: &Arc<Regions>) -> Result<Vec<Path>> {
        self.warning_paths(needs, regions, &Arc::default())
    }

    fn warning_paths(&self, needs: &Needs, regions: &Arc<Regions>, warnings: &Warnings) -> Result<Vec<Path>> {
        self.check_stale_writes(needs.write)?;
        let path = |path: &PathTarget| {
            let open: Opener = {
                let (mut path, options, needs) = (path.clone(), self.options.clone(), *needs);
                if let TargetSpec::Nbd(target) = &mut path.spec {
                    // Another path may be added later. The servers' caches differ, and a flush empties only one.
                    target.write_through = needs.write && self.allow_stale_writes;
                }
                let (regions, warnings) = (Arc::clone(regions), Arc::clone(warnings));
                let is_alone = self.paths.len() == 1;
                Box::new(move || open_path(&path.spec, &options, &needs, Arc::clone(&regions), &warnings, is_alone))
            };
            let needs = Needs { write: false, min_bytes: 0, read_ahead_kb: None, ..*needs };
            Path {
                name: path.name.clone(),
                prio: path.prio,
                args: PathArgs { cpus: path.cpus.clone(), ..PathArgs::default() },
                open,
                probe: Some(prober(path.spec.clone(), needs)),
                checker: checker(self.options.path_checker, &path.spec),
                images: path.spec.files().into_iter().map(std::path::Path::to_path_buf).collect(),
            }
        };
        Ok(self.paths.iter().map(path).collect())
    }

    /// Returns what opens a path that is added to the disk, which was opened from this target.
    fn maker(&self, needs: &Needs, regions: &Arc<Regions>) -> PathMaker {
        let (opened, needs, regions) = (self.clone(), *needs, Arc::clone(regions));
        Box::new(move |name: &str, target: &str, prio: u32, warnings: &Warnings| {
            let refused = |text: String| Err(Error::usage(format!("path {name}: {text}")));
            let new = PathTarget { name: name.to_owned(), prio, ..PathTarget::new(target)? };
            if opened.paths.len() == 1 && matches!(new.spec, TargetSpec::Rbd(_)) {
                return refused(
                    "the disk was opened with a single RBD path, which may use a cache or an exclusive lock, and several paths must \
                     not; add the path to the configuration and reopen the disk"
                        .into(),
                );
            }
            // One path stands for all, because they are of one kind.
            let paths = opened.paths.first().cloned().into_iter().chain([new]).collect();
            let both = MultipathTarget { paths, ..opened.clone() };
            if let Err(conflict) = both.check() {
                return refused(conflict.text);
            }
            let made = both.warning_paths(&needs, &regions, warnings)?.pop();
            note(warnings, both.on_your_word(needs.write).map(TargetWarning::new));
            made.ok_or_else(|| Error::usage("a path was removed"))
        })
    }
}

impl DriverTarget for Box<MultipathTarget> {
    const KIND: &'static str = "multipath";
    const HELP: &'static str = "
  multipath:[OPTIONS:]TARGET+TARGET...
                       one disk by several paths; conf=/etc/multipath.conf, or its options one by one:
                       path_grouping_policy, prio, detect_prio, failback, no_path_retry ... (docs/multipath.md)";

    fn parse(_text: &str, rest: &str) -> Result<Box<MultipathTarget>> {
        parse(rest).map(Box::new)
    }

    /// See [`MultipathTarget::settle`] and [`Multipath::open`].
    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        // Before a path is opened to settle the options.
        self.check_stale_writes(needs.write).map_err(|e| e.within("target 'multipath:'"))?;
        let (settled, notes) = self.settle()?;
        let warnings: Warnings = Arc::new(Mutex::new(Some(Vec::new())));
        let paths = settled.warning_paths(needs, &regions, &warnings)?;
        let (mut disk, troubles) = Multipath::open(settled.options.clone(), paths)?;
        disk.maker = Some(settled.maker(needs, &regions));
        let of_paths = warnings.lock().take().unwrap_or_default();
        let mut warnings = Vec::new();
        add_new(&mut warnings, of_paths);
        warnings.extend(notes.into_iter().map(TargetWarning::new));
        warnings.extend(troubles.into_iter().map(TargetWarning::new));
        warnings.extend(self.on_your_word(needs.write).map(TargetWarning::new));
        Ok(OpenTarget { driver: Arc::new(disk), warnings })
    }

    fn is_same_data(&self, other: &Self) -> bool {
        self.paths.iter().any(|a| other.paths.iter().any(|b| a.spec.is_same_data(&b.spec)))
    }

    fn size_bytes(&self) -> Option<u64> {
        self.paths.first().and_then(|path| path.spec.size_bytes())
    }

    fn files(&self) -> Vec<&std::path::Path> {
        self.paths.iter().flat_map(|path| path.spec.files()).collect()
    }
}

fn yes_or_no(value: &str) -> std::result::Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("must be yes or no".into()),
    }
}

fn conflict(option: &'static str, text: String) -> std::result::Result<(), Conflict> {
    Err(Conflict { option, text })
}

/// Returns the CPUs of a mask: `0x` and hexadecimal digits, with at least one bit set. The digits have no separators,
/// because a ',' ends an option.
fn cpus_of_mask(text: &str) -> Option<Vec<u16>> {
    let digits = text.strip_prefix("0x")?.as_bytes();
    let groups: Option<Vec<_>> = digits.rchunks(8).rev().map(|group| str::from_utf8(group).ok()).collect();
    parse_cpu_mask(&groups?.join(",")).filter(|cpus| !cpus.is_empty())
}

/// Adds warnings to the list, if something still reads it.
fn note(warnings: &Warnings, more: impl IntoIterator<Item = TargetWarning>) {
    if let Some(all) = &mut *warnings.lock() {
        all.extend(more);
    }
}

/// Whether paths of this kind take SCSI commands.
fn is_scsi(spec: &TargetSpec) -> bool {
    matches!(spec, TargetSpec::Iscsi(_))
}

/// Returns the checker; `auto` is resolved by the kind of path.
fn checker(asked: PathChecker, spec: &TargetSpec) -> PathChecker {
    if asked != PathChecker::Auto {
        return asked;
    }
    match spec {
        TargetSpec::Iscsi(_) => PathChecker::Tur,
        TargetSpec::File(_) | TargetSpec::Nbd(_) | TargetSpec::Rbd(_) => PathChecker::Directio,
        _ => PathChecker::None,
    }
}

/// Ceph's time limit of a request; Ceph has none unless this is set.
const OP_TIMEOUT: &str = "rados_osd_op_timeout";

/// Whether requests of this image fail after a time limit, so that another path can retry them.
fn limits_time(target: &RbdTarget) -> bool {
    target.options.0.iter().any(|(name, _)| name == OP_TIMEOUT)
}

/// How long an NBD server may be silent before its requests are retried on another path, unless its target sets `timeout`.
/// The value is that of the kernel's SCSI commands (`SD_TIMEOUT`, drivers/scsi/sd.h). Checked every `io_timeout`.
const NBD_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes a target one path of several: its requests fail after a time limit, so that another path can retry them.
fn as_path(spec: TargetSpec, options: &MultipathOptions) -> TargetSpec {
    match spec {
        TargetSpec::Iscsi(mut target) => {
            target.recovery_timeout = options.fast_io_fail_tmo.unwrap_or(target.recovery_timeout);
            TargetSpec::Iscsi(target)
        }
        TargetSpec::Nbd(mut target) => {
            target.timeout.get_or_insert(NBD_TIMEOUT);
            TargetSpec::Nbd(target)
        }
        other => other,
    }
}

/// Opens an image as a path, alone or one of several. `is_read`: its checker reads the image.
fn open_rbd(target: &RbdTarget, needs: &Needs, regions: Arc<Regions>, is_alone: bool, is_read: bool) -> Result<Rbd> {
    let rbd = Rbd::open(target, needs.write, regions)?;
    let refused = |text: &str| Err(Error::usage(format!("RBD image {target} {text}")));
    if rbd.limits().write_cache && (!is_alone || is_read) {
        return refused(
            "is used with librbd's cache (rbd_cache=true, here or in the image's configuration): each path would have a separate cache, \
             which would answer path_checker=directio in place of the cluster; set rbd_cache=false, or path_checker=none for a single path",
        );
    }
    if !is_alone && rbd.is_of_one_writer()? {
        return refused(
            "has the feature exclusive-lock, which only one client can have at a time, and each path is a client: use a single path, or \
             switch it off with rbd feature disable",
        );
    }
    Ok(rbd)
}

fn open_path(
    spec: &TargetSpec,
    options: &MultipathOptions,
    needs: &Needs,
    regions: Arc<Regions>,
    warnings: &Warnings,
    is_alone: bool,
) -> Result<Arc<dyn HostDriver>> {
    let (name, disk): (_, Arc<dyn HostDriver>) = match as_path(spec.clone(), options) {
        TargetSpec::Iscsi(target) => {
            let disk = Iscsi::open_path(&target, needs.write, regions, options.asks_access())?;
            (target.to_string(), Arc::new(disk))
        }
        TargetSpec::Rbd(target) => {
            let is_read = checker(options.path_checker, spec) == PathChecker::Directio;
            (format!("RBD image {target}"), Arc::new(open_rbd(&target, needs, regions, is_alone, is_read)?))
        }
        spec => {
            let open = spec.open(needs, regions)?;
            if needs.write && !is_alone {
                spec.files().into_iter().try_for_each(|file| page_cache::check(file, open.driver.is_direct()))?;
            }
            note(warnings, open.warnings);
            return Ok(open.driver);
        }
    };
    let (size, need) = (disk.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
    if size < need {
        let text = format!("{name} has {size} bytes, the job needs {need}: give the job a smaller size");
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(disk)
}

/// Makes the checker's own driver for a path, with as few resources as possible.
fn prober(spec: TargetSpec, needs: Needs) -> Prober {
    let narrow = match spec {
        TargetSpec::Iscsi(target) => {
            TargetSpec::Iscsi(IscsiTarget { sessions: Some(1), recovery_timeout: Duration::ZERO, ..target })
        }
        TargetSpec::Nbd(mut target) => {
            (target.connections, target.reconnect_delay) = (Some(1), Duration::ZERO);
            TargetSpec::Nbd(target)
        }
        TargetSpec::Rbd(mut target) => {
            (target.images, target.exclusive) = (1, false);
            target.options.0.push(("rbd_cache".into(), "false".into()));
            TargetSpec::Rbd(target)
        }
        other => other,
    };
    Box::new(move |regions| Ok(narrow.open(&needs, regions)?.driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::multipath::options::{Failback, NoPathRetry};

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn options_and_paths_are_read() {
        let read = parse("failback=immediate,no_path_retry=queue,prio=50+10:null:size=1g+null:size=1g,blocksize=512");
        let read = read.unwrap();
        assert_eq!((read.options.failback, read.options.no_path_retry), (Failback::Immediate, NoPathRetry::Queue));
        let paths: Vec<_> = read.paths.iter().map(|p| (p.name.as_str(), p.prio)).collect();
        assert_eq!(paths, [("null:size=1g", 50), ("null:size=1g,blocksize=512", 10)]);
        let read = parse("path_grouping_policy=multibus:nbd+unix:///a?socket=/x+y+nbd+unix:///a?socket=/z").unwrap();
        assert_eq!(read.options.path_grouping_policy, PathGroupingPolicy::Multibus);
        assert_eq!(read.paths.len(), 2);
        let read = parse("iscsi://u%secret@a/iqn.2026-11.x:y/1+iscsi://u%secret@b/iqn.2026-11.x:y/1").unwrap();
        assert!(read.paths.len() == 2 && read.paths.iter().all(|p| !p.name.contains("secret")));
        let read = parse(
            "prio=alua,prio_args=exclusive_pref_bit,hardware_handler=1 alua,pg_init_retries=3:iscsi://a/iqn.2026-11.x:y/1",
        );
        let options = read.unwrap().options;
        assert_eq!((options.prio, options.hardware_handler), (Prioritizer::Alua, HardwareHandler::Alua));
        assert!(options.exclusive_pref_bit && options.asks_access() && options.pg_init_retries == 3);
        let read = parse("conf=/etc/multipath.conf,detect_prio=no,path_grouping_policy=group_by_tpg:/a+/b").unwrap();
        assert_eq!((read.conf, read.detect_prio), (Some("/etc/multipath.conf".into()), Some(false)));
        let names = |text| parse(text).unwrap().paths.into_iter().map(|p| p.name).collect::<Vec<_>>();
        assert_eq!(names("/a+/b+./c"), ["/a", "/b", "./c"]);
        assert_eq!(names(":null+null:"), ["null", "null:"]);
        assert_eq!(names("null:+null:"), ["null:", "null:#2"]);
        assert_eq!(names("/a+/a#2+/a+/a"), ["/a", "/a#2", "/a#3", "/a#4"]);
        assert_eq!(names("/a#2+/a+/a+/a#2"), ["/a#2", "/a", "/a#3", "/a#2#2"]);
        let twice = names("iscsi://u%secret@a/iqn.2026-11.x:y/1+iscsi://a/iqn.2026-11.x:y/1?sessions=2");
        assert_eq!(twice, ["iscsi://a:3260/iqn.2026-11.x:y/1", "iscsi://a:3260/iqn.2026-11.x:y/1#2"]);
    }

    #[test]
    fn mistakes_are_refused_with_the_rule() {
        for (text, rule) in [
            ("", "1 of them empty"),
            ("failbak=manual:/a", "did you mean 'failback'"),
            ("failback=later:/a", "failback=later: must be manual"),
            ("prio=1:/a+/b", "prio=1: must be const, alua or one number for each path"),
            ("prio=aula:/a+/b", "prio=aula: did you mean 'alua'"),
            (
                "prio=emc:/a+/b",
                "prio=emc: is a prioritizer of multipath-tools that mqblk does not have; must be const, \
                                alua",
            ),
            ("prio=alua:/a+/b", "prio=alua: path /a is no SCSI device"),
            ("hardware_handler=1 alua:/a+/b", "hardware_handler=1 alua: path /a is no SCSI device"),
            ("hardware_handler=1 emc:/a+/b", "hardware_handler=1 emc: must be 0 for none or '1 alua'"),
            ("detect_prio=yes:/a", "detect_prio=yes: path /a is no SCSI device"),
            ("detect_prio=maybe:/a", "detect_prio=maybe: must be yes or no"),
            ("conf=:/a", "conf=: must be the name of a file"),
            (
                "path_grouping_policy=group_by_tpg:/a",
                "group_by_tpg: needs the target port groups of the paths: add prio=alua",
            ),
            ("fast_io_fail_tmo=x:/a", "fast_io_fail_tmo=x: must be seconds, 0..=86400, or off"),
            ("prio_args=x:/a", "prio_args=x: must be exclusive_pref_bit"),
            ("pg_init_retries=51:/a", "pg_init_retries=51: must be a number, 0..=50"),
            ("polling_interval=0:/a", "polling_interval=0: must be seconds, 1..=86400"),
            ("path_checker=tur:/a", "path /a does not support TEST UNIT READY"),
            ("ram:size=1m+ram:size=1m", "is private to its path"),
            ("/a+nbd://h/e", "is of another kind"),
            ("fast_io_fail_tmo=5:nbd://a/e+nbd://b/e", "has no effect on path nbd://a/e"),
            ("path_selector=io-affinity:/a", "path_selector=io-affinity: needs the CPUs"),
            ("path_selector=io-affinity,path_cpus=0x1:/a+/b", "path_cpus=0x1: must be a mask of CPUs below 4096"),
            ("path_selector=io-affinity,path_cpus=1+2:/a+/b", "path_cpus=1+2: must be a mask"),
            ("path_selector=io-affinity,path_cpus=0x1+0x:/a+/b", "path_cpus=0x1+0x: must be a mask"),
            ("path_cpus=0x1+0x2:/a+/b", "path_cpus: needs path_selector=io-affinity"),
            ("path_selector=io-affinity,path_cpus=0x1+0x2:/a+/b", "set path_grouping_policy=multibus"),
            ("multipath:/a", "is a multipath target itself"),
            (":nul:size=1", "did you mean"),
        ] {
            let said = refused(text);
            assert!(said.contains(rule), "{text}: {said}");
        }
    }

    /// A disk of two NBD paths used to be writable without a word of the risk but in the documentation.
    #[test]
    fn paths_without_fencing_are_written_only_by_permission() {
        let limited = ":rados_osd_op_timeout=30";
        for (text, is_refused) in [
            ("nbd://a/e+nbd://b/e".to_owned(), true),
            ("allow_stale_writes=no:nbd://a/e+nbd+unix:///e?socket=/s".to_owned(), true),
            ("allow_stale_writes=yes:nbd://a/e+nbd://b/e".to_owned(), false),
            ("nbd://a/e".to_owned(), false),
            ("iscsi://a/iqn.2026-11.x:y/1+iscsi://b/iqn.2026-11.x:y/1".to_owned(), false),
            ("/a+/b".to_owned(), false),
            (format!("rbd:p/i{limited}+rbd:p/i{limited}"), true),
            ("rbd:p/i+rbd:p/i".to_owned(), false),
        ] {
            let target = parse(&text).unwrap();
            assert!(target.check_stale_writes(false).is_ok(), "{text}");
            let said = target.check_stale_writes(true).map_err(|e| e.to_string());
            assert_eq!(said.is_err(), is_refused, "{text}: {said:?}");
            assert!(said.err().is_none_or(|e| e.starts_with("allow_stale_writes=no: a disk of 2 paths")), "{text}");
        }
        // Nothing is opened: there is no server of this name.
        let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let target =
            TargetSpec::parse("multipath:nbd+unix:///e?socket=/nonexistent+nbd+unix:///e?socket=/none").unwrap();
        let said = target.open(&needs, Arc::default()).err().unwrap().to_string();
        assert!(said.starts_with("target 'multipath:': allow_stale_writes=no"), "{said}");
    }

    #[test]
    fn a_path_gives_its_requests_back_in_time() {
        let options = MultipathOptions::default();
        let timeout = |url: &str| match as_path(TargetSpec::parse(url).unwrap(), &options) {
            TargetSpec::Nbd(target) => target.timeout,
            other => panic!("{other:?}"),
        };
        assert_eq!(timeout("nbd://h/e"), Some(NBD_TIMEOUT));
        assert_eq!(timeout("nbd://h/e?timeout=600"), Some(Duration::from_secs(600)));
    }

    #[test]
    fn every_option_has_a_rule_and_refuses_nonsense() {
        // Other texts are valid for `conf`, because they may be a file's name.
        let nonsense = |name| if name == "conf" { "non,sense" } else { "nonsense" };
        for name in OPTIONS {
            let rule = parse(":null").unwrap().set(name, nonsense(name)).unwrap_err();
            assert!(rule.contains("must be"), "{name}: {rule}");
        }
    }
}
