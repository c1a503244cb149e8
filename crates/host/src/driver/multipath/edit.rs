// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target with other paths: what a path that is added or removed makes of it, and how the paths of two targets differ.
//!
//! Guarantees: an edited target is the one that its options and paths would be parsed into, so a configuration that names the same paths in
//! the same order does not differ from it. Names of paths that stay are kept. Does not do: open anything (`add_remove` does).

use super::options::{MAX_PRIO, Prioritizer};
use super::target::{MultipathTarget, PathTarget};
use crate::error::{Error, Result};
use crate::kernel;
use crate::secrets::Masked;
use crate::target::TargetSpec;
use blk::multipath::{MAX_PATHS, Selector};

/// How the paths of a target differ from those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathDifference {
    /// Paths that only the other target has.
    pub added: Vec<PathTarget>,
    /// Names of the paths that the other target does not have.
    pub removed: Vec<String>,
}

fn refused<T>(text: String) -> Result<T> {
    Err(Error::usage(text))
}

/// Finds a path in a list of names, by its name or its number, counted from 1.
///
/// # Errors
/// Usage: there is no such path.
pub(super) fn position(names: &[&str], path: &str) -> Result<usize> {
    let n = names.len();
    let by_number = || path.parse::<usize>().ok().and_then(|n| n.checked_sub(1)).filter(|at| *at < n);
    let rule = "must be a path's name, or its number among the targets";
    let none = || Error::usage(format!("path '{path}': {rule}, 1..={n}"));
    names.iter().position(|name| *name == path).or_else(by_number).ok_or_else(none)
}

/// Returns the error for the removal of a disk's only path.
pub(super) fn only_path(name: &str) -> Error {
    Error::usage(format!("path '{name}' is the only one of its disk; add another path first, or remove the disk"))
}

/// Whether two paths are the same, however their targets were typed.
fn is_same(a: &PathTarget, b: &PathTarget) -> bool {
    (&a.spec, &a.name, a.prio, &a.cpus) == (&b.spec, &b.name, b.prio, &b.cpus)
}

/// Returns the number of the block device that a target names; `None`: it names none. Regular files have none, because the names of one
/// file may be different paths.
fn device(spec: &TargetSpec) -> Option<u64> {
    let TargetSpec::File(path) = spec else { return None };
    kernel::device_number(path)
}

impl MultipathTarget {
    /// Returns this target with a further path, as the last. `prio`: its priority, 1 unless given.
    ///
    /// # Errors
    /// Usage, with the rule: the disk cannot have such a path.
    pub fn with_path(&self, text: &str, prio: Option<u32>) -> Result<MultipathTarget> {
        let new = PathTarget::new(text)?;
        let name = &new.name;
        if self.paths.iter().any(|p| p.name == *name) {
            return refused(format!("path {name}: is a path of this disk already"));
        }
        if self.paths.len() >= MAX_PATHS {
            return refused(format!("path {name}: the disk has {MAX_PATHS} paths already, which is the maximum"));
        }
        self.check_selector(name)?;
        if let Some(prio) = prio {
            self.check_prio(prio)?;
        }
        let mut made = self.clone();
        made.paths.push(PathTarget { prio: prio.unwrap_or(1), ..new });
        made.check().map_err(|conflict| Error::usage(conflict.text))?;
        made.note_prios();
        Ok(made)
    }

    /// Rejects io-affinity, because an open disk cannot change which CPUs use which path.
    fn check_selector(&self, path: &str) -> Result<()> {
        if self.options.path_selector == Selector::IoAffinity {
            return refused(format!(
                "path {path}: path_selector=io-affinity takes the CPUs of its paths only when the disk is opened; change the configuration"
            ));
        }
        Ok(())
    }

    /// Checks the priority of a path that is added.
    fn check_prio(&self, prio: u32) -> Result<()> {
        if prio > MAX_PRIO {
            return refused(format!("prio={prio}: must be 0..={MAX_PRIO}"));
        }
        let by = match self.options.prio {
            Prioritizer::Alua => "prio=alua",
            Prioritizer::Const if self.is_given("prio") => return Ok(()),
            // Once priorities are written into the target, it is not asked for them when it is opened again.
            Prioritizer::Const if self.conf.is_some() => "conf",
            Prioritizer::Const if self.detect_prio == Some(true) => "detect_prio=yes",
            Prioritizer::Const => return Ok(()),
        };
        refused(format!(
            "prio={prio}: is not possible with {by}, because the target may then report the priorities of all paths; leave prio out, or \
             configure prio as a number for each path"
        ))
    }

    /// Returns this target without a path, which is named, or numbered from 1.
    ///
    /// # Errors
    /// Usage: there is no such path, it is the only one, or its CPUs cannot be changed.
    pub fn without_path(&self, path: &str) -> Result<MultipathTarget> {
        let names: Vec<&str> = self.paths.iter().map(|p| p.name.as_str()).collect();
        let at = position(&names, path)?;
        if names.len() < 2 {
            return Err(only_path(names[at]));
        }
        self.check_selector(names[at])?;
        let mut made = self.clone();
        made.paths.remove(at);
        made.note_prios();
        Ok(made)
    }

    /// Returns this target with exactly these paths, in this order.
    pub(crate) fn with_paths(&self, paths: Vec<PathTarget>) -> MultipathTarget {
        let mut made = MultipathTarget { paths, ..self.clone() };
        made.note_prios();
        made
    }

    /// Whether its paths are these, in this order, however their targets were typed.
    pub(crate) fn has_paths(&self, paths: &[PathTarget]) -> bool {
        self.paths.len() == paths.len() && self.paths.iter().zip(paths).all(|(a, b)| is_same(a, b))
    }

    /// Writes the paths' priorities into the option `prio`, if they are given there.
    fn note_prios(&mut self) {
        let are_default = self.paths.iter().all(|p| p.prio == 1);
        let list: Vec<String> = self.paths.iter().map(|p| p.prio.to_string()).collect();
        match self.given.iter_mut().find(|(name, _)| *name == "prio") {
            Some((_, value)) if !are_default || value.parse::<Prioritizer>().is_err() => *value = list.join("+"),
            Some(_) => {}
            None if !are_default => self.given.push(("prio", list.join("+"))),
            None => {}
        }
    }

    /// Returns the target as it is written, without secrets.
    pub fn masked(&self) -> Masked {
        let options: Vec<String> = self.given.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let paths: Vec<&str> = self.paths.iter().map(|p| p.text.reveal()).collect();
        Masked::new(&format!("multipath:{}:{}", options.join(","), paths.join("+")))
    }

    /// Returns how the paths of `new` differ from those of this target, in whatever order. A block device may have another of its names.
    /// `None`: the targets differ in other respects, or have no path in common.
    pub fn path_difference(&self, new: &MultipathTarget) -> Option<PathDifference> {
        self.difference(new, device)
    }

    /// `device` returns the number of the block device that a target names.
    fn difference(&self, new: &MultipathTarget, device: impl Fn(&TargetSpec) -> Option<u64>) -> Option<PathDifference> {
        // Without `prio=N+N`, which is compared path by path below.
        let others = |target: &MultipathTarget| -> Vec<(&'static str, String)> {
            let is_other = |(name, value): &&(&'static str, String)| {
                *name != "prio" || value.parse::<Prioritizer>().is_ok_and(|prio| prio != Prioritizer::Const)
            };
            target.given.iter().filter(is_other).cloned().collect()
        };
        let is_same_otherwise = self.options == new.options
            && self.conf == new.conf
            && self.detect_prio == new.detect_prio
            && self.allow_stale_writes == new.allow_stale_writes
            && others(self) == others(new);
        if !is_same_otherwise || self.options.path_selector == Selector::IoAffinity {
            return None;
        }
        let missing = |from: &MultipathTarget, path: &PathTarget| !from.paths.iter().any(|p| is_same(p, path));
        let mut added: Vec<&PathTarget> = new.paths.iter().filter(|path| missing(self, path)).collect();
        let mut removed: Vec<&PathTarget> = self.paths.iter().filter(|path| missing(new, path)).collect();
        let is_device = |of: Option<u64>, path: &PathTarget| of.is_some() && device(&path.spec) == of;
        added.retain(|path| {
            let of = device(&path.spec);
            let is_it = |old: &&PathTarget| old.prio == path.prio && old.cpus == path.cpus && is_device(of, old);
            let same = removed.iter().position(is_it);
            same.map(|at| removed.remove(at)).is_none()
        });
        let has_kept = removed.len() < self.paths.len();
        // A path whose priority or options change keeps its name, and two paths cannot have one name. Nor is a device opened twice.
        let is_changed = |path: &&PathTarget| {
            let of = device(&path.spec);
            self.paths.iter().any(|old| old.name == path.name) || removed.iter().any(|old| is_device(of, old))
        };
        (has_kept && !added.iter().any(is_changed)).then(|| PathDifference {
            added: added.iter().copied().cloned().collect(),
            removed: removed.iter().map(|path| path.name.clone()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::multipath::parse;

    fn names(target: &MultipathTarget) -> Vec<(&str, u32)> {
        target.paths.iter().map(|p| (p.name.as_str(), p.prio)).collect()
    }

    fn told(difference: PathDifference) -> (String, String) {
        let added: Vec<String> = difference.added.into_iter().map(|p| p.name).collect();
        (added.join(" "), difference.removed.join(" "))
    }

    #[test]
    fn edited_target_is_the_one_that_would_be_parsed() {
        let two = parse("no_path_retry=queue,prio=50+10:/a+/b").unwrap();
        let three = two.with_path("/c", Some(20)).unwrap();
        assert_eq!(names(&three), [("/a", 50), ("/b", 10), ("/c", 20)]);
        assert_eq!(three, parse("no_path_retry=queue,prio=50+10+20:/a+/b+/c").unwrap());
        assert_eq!(three.masked().as_str(), "multipath:no_path_retry=queue,prio=50+10+20:/a+/b+/c");
        for path in ["/b", "2"] {
            assert_eq!(three.without_path(path).unwrap(), parse("no_path_retry=queue,prio=50+20:/a+/c").unwrap());
        }
        let plain = parse("/a").unwrap();
        assert_eq!(plain.with_path("/b", None).unwrap(), parse("/a+/b").unwrap());
        assert_eq!(plain.with_path("/b", Some(7)).unwrap(), parse("prio=1+7:/a+/b").unwrap());
        let secret = parse("nbd://a/e").unwrap().with_path("iscsi://u%pw@a/iqn.2026-11.x:y/1", None).unwrap_err();
        assert!(secret.to_string().contains("is of another kind"), "{secret}");
        let secret = parse("iscsi://b/iqn.2026-11.x:y/1").unwrap();
        let secret = secret.with_path("iscsi://u%pw@a/iqn.2026-11.x:y/1", None).unwrap();
        assert!(!format!("{:?} {}", secret.paths[1].text, secret.masked()).contains("pw"));
    }

    #[test]
    fn paths_that_cannot_be_are_refused() {
        let two = parse("/a+/b").unwrap();
        let said = |made: Result<MultipathTarget>| made.unwrap_err().to_string();
        assert!(said(two.with_path("/a", None)).contains("path /a: is a path of this disk already"));
        assert!(said(two.with_path("/c", Some(MAX_PRIO + 1))).contains("must be 0..="));
        assert!(said(two.without_path("/c")).contains("1..=2"));
        assert!(said(two.without_path("0")).contains("1..=2"));
        assert!(said(parse("/a").unwrap().without_path("1")).contains("is the only one"));
        let affine = parse("path_selector=io-affinity,path_grouping_policy=multibus,path_cpus=0x1+0x2:/a+/b").unwrap();
        for made in [affine.with_path("/c", None), affine.without_path("/b")] {
            assert!(said(made).contains("takes the CPUs of its paths only when the disk is opened"));
        }
        let alua = parse("prio=alua:iscsi://a/iqn.2026-11.x:y/1").unwrap();
        assert!(said(alua.with_path("iscsi://b/iqn.2026-11.x:y/1", Some(5))).contains("prio=alua"));
        // Cause: these priorities were written into the target. Effect: ALUA was off when the disk was opened again. Fix: a refusal.
        for (by, named) in [("conf=/x", "conf"), ("detect_prio=yes", "detect_prio=yes")] {
            let add = |options: &str, prio: Option<u32>| {
                let one = parse(&format!("{options}:iscsi://a/iqn.2026-11.x:y/1")).unwrap();
                one.with_path("iscsi://b/iqn.2026-11.x:y/1", prio)
            };
            assert!(said(add(by, Some(5))).contains(&format!("prio=5: is not possible with {named}, ")));
            assert!(!add(by, None).unwrap().is_given("prio"));
            let fixed = add(&format!("prio=7,{by}"), Some(5)).unwrap();
            assert_eq!(fixed.paths.iter().map(|p| p.prio).collect::<Vec<_>>(), [7, 5]);
        }
    }

    #[test]
    fn difference_is_of_paths_only() {
        let of = |old: &str, new: &str| parse(old).unwrap().path_difference(&parse(new).unwrap()).map(told);
        let some = |added: &str, removed: &str| Some((added.to_owned(), removed.to_owned()));
        assert_eq!(of("/a+/b", "/a+/b"), some("", ""));
        assert_eq!(of("prio=2+1:/a+/b", "prio=2+1+3:/a+/b+/c"), some("/c", ""));
        assert_eq!(of("/a+/b+/c", "/b+/d+/e"), some("/d /e", "/a /c"));
        assert_eq!(of("prio=const:/a+/b", "/a"), some("", "/b"));
        assert_eq!(of("/a+/b", "/c+/b+/a"), some("/c", ""));
        // Typed in another way.
        let [a, b] = ["iscsi://a/iqn.2026-11.x:y/1", "iscsi://b:3260/iqn.2026-11.x:y/1"];
        assert_eq!(of(&format!("{a}+{b}"), &format!("{b}+{a}").replace("a/iqn", "a:3260/iqn")), some("", ""));
        for (old, new) in [
            ("/a+/b", "/c+/d"),
            ("prio=2+1:/a+/b", "prio=2+3:/a+/b"),
            ("failback=immediate:/a+/b", "/a+/b+/c"),
            ("conf=/x:/a+/b", "/a+/b+/c"),
            ("prio=alua:iscsi://a/iqn.2026-11.x:y/1", "iscsi://a/iqn.2026-11.x:y/1"),
        ] {
            assert_eq!(of(old, new), None, "{old} {new}");
        }
    }

    /// Cause: a device was opened again under the name of the configuration, while it was still open. Effect: each reload failed. Fix: the
    /// running path is kept.
    #[test]
    fn device_under_another_name_is_the_same_path() {
        // The letter is the device.
        let device = |spec: &TargetSpec| match spec {
            TargetSpec::File(path) => path.to_str()?.strip_prefix("/dev/")?.bytes().next().map(u64::from),
            _ => None,
        };
        let of = |old: &str, new: &str| parse(old).unwrap().difference(&parse(new).unwrap(), device).map(told);
        let some = |added: &str, removed: &str| Some((added.to_owned(), removed.to_owned()));
        assert_eq!(of("/dev/a+/dev/b", "/dev/a+/dev/b-link"), some("", ""));
        assert_eq!(of("/dev/a+/dev/b", "/dev/b-link+/dev/c"), some("/dev/c", "/dev/a"));
        assert_eq!(of("/dev/a", "/dev/a+/dev/a-link"), some("/dev/a-link", ""), "a name is one path");
        assert_eq!(of("prio=2+1:/dev/a+/dev/b", "prio=2+3:/dev/a+/dev/b-link"), None);
        assert_eq!(of("/a+/b", "/a+/c"), some("/c", "/b"));
    }
}
