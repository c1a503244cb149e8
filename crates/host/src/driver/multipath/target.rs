// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `multipath:[OPTION=VALUE,...:]TARGET+TARGET...`: a disk of several paths as a target.
//!
//! Guarantees: text in, a value or a reason out; nothing is opened before [`MultipathTarget::open`]. A `+` begins another target only
//! where one can begin: before a kind with its `:`, `/` or `.`; so `nbd+unix://` stays whole. A list of targets needs no such rule
//! ([`MultipathTarget::new`]). Paths are called by their texts, without passwords.

use super::options::{MAX_PG_INIT_DELAY_MS, MAX_PG_INIT_RETRIES, MAX_PRIO, no_prioritizer, seconds};
use super::{Multipath, MultipathOptions, Opener, Path, PathChecker, Prioritizer, Prober, selector};
use crate::driver::HostDriver;
use crate::driver::iscsi::{Iscsi, IscsiTarget};
use crate::driver::model::ModelOver;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::target::{Needs, OpenTarget, TargetSpec, TargetWarning, has_kind};
use blk::driver::Driver;
use blk::id::SECTOR_SHIFT;
use blk::multipath::{MAX_PATHS, PathArgs, Selector};
use blk::suggest::did_you_mean;
use blk::time::Duration;
use parking_lot::Mutex;
use std::sync::Arc;

/// Options by name, and what they must be.
const OPTIONS: [(&str, &str); 14] = [
    ("path_selector", "round-robin, queue-length, service-time or historical-service-time, each with its arguments"),
    ("path_grouping_policy", "failover, multibus or group_by_prio"),
    ("prio", "const, alua or one number for each path, each 0..=1000000"),
    ("prio_args", "exclusive_pref_bit"),
    ("hardware_handler", "0 for none or '1 alua'"),
    ("pg_init_retries", "a number, 0..=50"),
    ("pg_init_delay_msecs", "milliseconds, 0..=60000"),
    ("failback", "manual, immediate, followover or seconds, 0..=86400"),
    ("no_path_retry", "fail, queue or a number of checks, 0..=1000000"),
    ("path_checker", "auto, tur, directio or none"),
    ("polling_interval", "seconds, 1..=86400"),
    ("max_polling_interval", "seconds, 1..=86400"),
    ("checker_timeout", "seconds, 1..=86400"),
    ("fast_io_fail_tmo", "off or seconds, 0..=86400"),
];

/// A path as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTarget {
    /// What reaches the disk.
    pub spec: TargetSpec,
    /// As messages call it.
    pub name: String,
    /// The higher the better; 1 unless said.
    pub prio: u32,
}

/// A disk of several paths as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathTarget {
    /// What it is told.
    pub options: MultipathOptions,
    /// Its paths, at least one.
    pub paths: Vec<PathTarget>,
}

/// Names of all options.
pub fn option_names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

/// Reads what stands behind `multipath:`.
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

/// Targets that are joined by `+`.
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
    /// Of options by name, and targets.
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
            let spec = TargetSpec::parse(text).map_err(|e| e.within("target 'multipath:'"))?;
            let name = match &spec {
                TargetSpec::Iscsi(target) => target.to_string(),
                _ => (*text).to_owned(),
            };
            let numbered = format!("{name} #");
            let same = paths.iter().filter(|p| p.name == name || p.name.starts_with(&numbered)).count();
            let name = if same > 0 { format!("{name} #{}", same + 1) } else { name };
            paths.push(PathTarget { spec, name, prio: 1 });
        }
        let mut made = MultipathTarget { options: MultipathOptions::default(), paths };
        for (name, value) in options {
            let Some((_, rule)) = OPTIONS.iter().find(|(known, _)| known == name) else {
                let all: Vec<_> = option_names().collect();
                let hint = did_you_mean(name, option_names());
                return refused(format!("there is no option '{name}'; {hint}Options: {}", all.join(", ")));
            };
            if made.set(name, value).is_none() {
                return refused(match *name {
                    "prio" => format!("prio={value}: {}", no_prioritizer(value)),
                    _ => format!("{name}={value}: must be {rule}"),
                });
            }
        }
        if let Some(name) = made.without_effect(options.iter().map(|(name, _)| *name)) {
            return refused(format!(
                "{name} is about sessions of iSCSI and does nothing for path {}; leave it out (an NBD target has timeout and \
                 reconnect_delay of its own)",
                made.paths[0].name
            ));
        }
        made.check().map_err(|why| Error::usage(format!("target 'multipath:': {why}")))?;
        Ok(made)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let o = &mut self.options;
        match name {
            "path_selector" => o.path_selector = selector(value).ok()?,
            "path_grouping_policy" => o.path_grouping_policy = value.parse().ok()?,
            "failback" => o.failback = value.parse().ok()?,
            "no_path_retry" => o.no_path_retry = value.parse().ok()?,
            "path_checker" => o.path_checker = value.parse().ok()?,
            "polling_interval" => o.polling_interval = seconds(value, 1)?,
            "max_polling_interval" => o.max_polling_interval = Some(seconds(value, 1)?),
            "checker_timeout" => o.checker_timeout = seconds(value, 1)?,
            "fast_io_fail_tmo" => o.fast_io_fail_tmo = if value == "off" { None } else { Some(seconds(value, 0)?) },
            "prio_args" => o.exclusive_pref_bit = (value == "exclusive_pref_bit").then_some(true)?,
            "hardware_handler" => o.hardware_handler = value.parse().ok()?,
            "pg_init_retries" => {
                o.pg_init_retries = value.parse().ok().filter(|n| *n <= MAX_PG_INIT_RETRIES)?;
            }
            "pg_init_delay_msecs" => {
                let ms = value.parse().ok().filter(|ms| *ms <= MAX_PG_INIT_DELAY_MS)?;
                o.pg_init_delay = Some(Duration::from_ms(ms));
            }
            "prio" if value.parse::<Prioritizer>().is_ok() => o.prio = value.parse().ok()?,
            "prio" => {
                o.prio = Prioritizer::Const;
                let prios: Vec<u32> = value.split('+').map(|n| n.parse().ok()).collect::<Option<_>>()?;
                if prios.len() != self.paths.len() || prios.iter().any(|n| *n > MAX_PRIO) {
                    return None;
                }
                self.paths.iter_mut().zip(prios).for_each(|(path, prio)| path.prio = prio);
            }
            _ => return None,
        }
        Some(())
    }

    /// An option that nothing looks at for this kind of paths.
    fn without_effect<'a>(&self, mut given: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let is_iscsi = matches!(self.paths.first()?.spec, TargetSpec::Iscsi(_));
        given.find(|name| *name == "fast_io_fail_tmo" && !is_iscsi)
    }

    /// What does not go together.
    fn check(&self) -> std::result::Result<(), String> {
        if self.options.path_selector == Selector::IoAffinity {
            let text = "path_selector=io-affinity: needs to know which CPUs each path is for, and a target cannot say so yet; use \
                        service-time or another";
            return Err(text.into());
        }
        for PathTarget { spec, name, .. } in &self.paths {
            let in_memory = match spec {
                TargetSpec::Ram(_) => true,
                TargetSpec::Model(model) => model.over == ModelOver::Ram,
                _ => false,
            };
            if in_memory {
                return Err(format!("path {name}: memory of its own is not the same disk as another path's"));
            }
            if matches!(spec, TargetSpec::Multipath(_)) {
                return Err(format!("path {name}: has paths itself; name them all here"));
            }
            if self.options.asks_access() && !matches!(spec, TargetSpec::Iscsi(_)) {
                let what = if self.options.prio == Prioritizer::Alua { "prio=alua" } else { "hardware_handler=1 alua" };
                return Err(format!("{what}: path {name} is no SCSI device and has no port groups; leave it out"));
            }
            if self.options.path_checker == PathChecker::Tur && !matches!(spec, TargetSpec::Iscsi(_)) {
                return Err(format!("path_checker=tur: path {name} knows no TEST UNIT READY; use directio or auto"));
            }
        }
        let kind = |p: &PathTarget| std::mem::discriminant(&p.spec);
        match self.paths.iter().find(|p| kind(p) != kind(&self.paths[0])) {
            Some(other) => Err(format!(
                "path {} is of another kind than path {}: nobody can tell whether they lead to one disk",
                other.name, self.paths[0].name
            )),
            None => Ok(()),
        }
    }

    /// What nobody checks, of kinds of paths that cannot say who they are.
    fn on_your_word(&self, write: bool) -> Option<String> {
        let [first, _, ..] = self.paths.as_slice() else { return None };
        let kind = match &first.spec {
            TargetSpec::Nbd(_) => "NBD exports",
            TargetSpec::Rbd(_) => "RBD images",
            _ => return None,
        };
        let late = match write {
            true => {
                "; nor are late writes fenced: a server that was silent may carry out a write after a newer one went down another path"
            }
            false => "",
        };
        Some(format!(
            "the paths are {kind}, which do not say who they are: only their sizes are compared, and that they lead to one disk is \
             your word{late} (docs/multipath.md)"
        ))
    }

    /// Its paths, ready to be opened. Data comes from and goes to `regions`.
    pub fn paths_to_open(&self, needs: &Needs, regions: &Arc<Regions>) -> Vec<Path> {
        self.warning_paths(needs, regions, &Arc::default())
    }

    fn warning_paths(&self, needs: &Needs, regions: &Arc<Regions>, warnings: &Warnings) -> Vec<Path> {
        let path = |path: &PathTarget| {
            let open: Opener = {
                let (path, options, needs) = (path.clone(), self.options.clone(), *needs);
                let (regions, warnings) = (Arc::clone(regions), Arc::clone(warnings));
                Box::new(move || open_path(&path.spec, &options, &needs, Arc::clone(&regions), &warnings))
            };
            let needs = Needs { write: false, min_bytes: 0, read_ahead_kb: None, ..*needs };
            Path {
                name: path.name.clone(),
                prio: path.prio,
                args: PathArgs::default(),
                open,
                probe: Some(prober(path.spec.clone(), needs)),
                checker: checker(self.options.path_checker, &path.spec),
            }
        };
        self.paths.iter().map(path).collect()
    }

    /// Makes the driver. Data comes from and goes to `regions`.
    ///
    /// # Errors
    /// As of [`Multipath::open`].
    pub fn open(&self, needs: &Needs, regions: &Arc<Regions>) -> Result<OpenTarget> {
        let warnings = Warnings::default();
        let paths = self.warning_paths(needs, regions, &warnings);
        let (disk, troubles) = Multipath::open(self.options.clone(), paths)?;
        let mut warnings = std::mem::take(&mut *warnings.lock());
        warnings.dedup();
        warnings.extend(troubles.into_iter().map(TargetWarning::Multipath));
        warnings.extend(self.on_your_word(needs.write).map(TargetWarning::Multipath));
        Ok(OpenTarget { driver: Arc::new(disk), warnings })
    }
}

/// What is not as asked of any path.
type Warnings = Arc<Mutex<Vec<TargetWarning>>>;

/// What `auto` means for a kind of path.
fn checker(asked: PathChecker, spec: &TargetSpec) -> PathChecker {
    match (asked, spec) {
        (PathChecker::Auto, TargetSpec::Iscsi(_)) => PathChecker::Tur,
        (PathChecker::Auto, TargetSpec::File(_) | TargetSpec::Nbd(_) | TargetSpec::Rbd(_)) => PathChecker::Directio,
        (PathChecker::Auto, _) => PathChecker::None,
        (asked, _) => asked,
    }
}

/// How long an NBD server may be silent before its requests go down another path, unless its target says so. As the kernel's SCSI
/// commands (`SD_TIMEOUT`, drivers/scsi/sd.h). Looked at every `io_timeout`.
const NBD_TIMEOUT: Duration = Duration::from_secs(30);

/// A target that is not the only way: it gives its requests back instead of waiting for as long as it takes.
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

fn open_path(
    spec: &TargetSpec,
    options: &MultipathOptions,
    needs: &Needs,
    regions: Arc<Regions>,
    warnings: &Mutex<Vec<TargetWarning>>,
) -> Result<Arc<dyn HostDriver>> {
    let spec = as_path(spec.clone(), options);
    let TargetSpec::Iscsi(target) = &spec else {
        let open = spec.open(needs, regions)?;
        warnings.lock().extend(open.warnings);
        return Ok(open.driver);
    };
    let disk = Iscsi::open_path(target, needs.write, regions, options.asks_access())?;
    let (size, need) = (disk.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
    if size < need {
        let text = format!("{target} has {size} bytes, the job needs {need}: give the job a smaller size");
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(Arc::new(disk))
}

/// A second way along a path, as narrow as it can be.
fn prober(spec: TargetSpec, needs: Needs) -> Prober {
    let narrow = match spec {
        TargetSpec::Iscsi(target) => {
            TargetSpec::Iscsi(IscsiTarget { sessions: Some(1), recovery_timeout: Duration::ZERO, ..target })
        }
        TargetSpec::Nbd(mut target) => {
            (target.connections, target.reconnect_delay) = (Some(1), Duration::ZERO);
            TargetSpec::Nbd(target)
        }
        other => other,
    };
    Box::new(move |regions| Ok(narrow.open(&needs, regions)?.driver))
}

#[cfg(test)]
mod tests {
    use super::super::{Failback, HardwareHandler, NoPathRetry, PathGroupingPolicy};
    use super::*;

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
        let names = |text| parse(text).unwrap().paths.into_iter().map(|p| p.name).collect::<Vec<_>>();
        assert_eq!(names("/a+/b+./c"), ["/a", "/b", "./c"]);
        assert_eq!(names(":null+null:"), ["null", "null:"]);
        assert_eq!(names("null:+null:"), ["null:", "null: #2"]);
    }

    #[test]
    fn mistakes_are_refused_with_the_rule() {
        for (text, rule) in [
            ("", "1 of them empty"),
            ("failbak=manual:/a", "did you mean 'failback'"),
            ("failback=later:/a", "failback=later: must be manual"),
            ("prio=1:/a+/b", "prio=1: must be const, alua or one number for each path"),
            ("prio=aula:/a+/b", "prio=aula: did you mean 'alua'"),
            ("prio=emc:/a+/b", "prio=emc: is a prioritizer of multipath-tools that is not here; must be const, alua"),
            ("prio=alua:/a+/b", "prio=alua: path /a is no SCSI device"),
            ("hardware_handler=1 alua:/a+/b", "hardware_handler=1 alua: path /a is no SCSI device"),
            ("hardware_handler=1 emc:/a+/b", "hardware_handler=1 emc: must be 0 for none or '1 alua'"),
            ("prio_args=x:/a", "prio_args=x: must be exclusive_pref_bit"),
            ("pg_init_retries=51:/a", "pg_init_retries=51: must be a number, 0..=50"),
            ("polling_interval=0:/a", "polling_interval=0: must be seconds, 1..=86400"),
            ("path_checker=tur:/a", "path /a knows no TEST UNIT READY"),
            ("ram:size=1m+ram:size=1m", "memory of its own"),
            ("/a+nbd://h/e", "is of another kind"),
            ("fast_io_fail_tmo=5:nbd://a/e+nbd://b/e", "does nothing for path nbd://a/e"),
            ("path_selector=io-affinity:/a", "path_selector=io-affinity: needs to know which CPUs"),
            ("multipath:/a", "has paths itself"),
            (":nul:size=1", "did you mean"),
        ] {
            let said = refused(text);
            assert!(said.contains(rule), "{text}: {said}");
        }
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
        for (name, _) in OPTIONS {
            assert!(parse(":null").unwrap().set(name, "nonsense").is_none(), "{name}");
        }
    }
}
