// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Knobs in a target's text instead of in its settings. For `multipath:` these are the path selector, the grouping of paths,
//! and their number.
//!
//! Guarantees: a point edits the text as a user would, so errors are the target's own messages. `paths` keeps the first paths
//! in the list. Does not: know the defaults of a `conf` file. Such a target's default behaviour is one more value.

use host::target::{TargetSpec, has_kind};

use super::point::{Knob, Point};

const SELECTOR: &str = "path_selector";
/// A list of CPUs that belongs to the selector of the target, so it is removed with that selector.
const CPUS: &str = "path_cpus";
const GROUPING: &str = "path_grouping_policy";
/// The knob for the number of paths.
pub const PATHS: &str = "paths";
const MULTIPATH: &str = "multipath:";
/// The default behaviour of a target with a `conf` file.
const BY_CONF: &str = "as-conf-says";

/// Whether a knob belongs to the target's text.
pub fn is_of_target(name: &str) -> bool {
    [SELECTOR, GROUPING, PATHS].contains(&name)
}

/// The knobs of a target's text.
pub fn knobs(target: Option<&str>) -> Vec<Knob> {
    let Some(Ok(TargetSpec::Multipath(spec))) = target.map(TargetSpec::parse) else { return Vec::new() };
    let paths = spec.paths.len();
    if paths < 2 {
        return Vec::new();
    }
    let options = target.and_then(|t| t.strip_prefix(MULTIPATH)).map(|rest| parts(rest).0).unwrap_or_default();
    let said = |name: &str| options.iter().rev().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let default = |name: &str, own: &str| {
        said(name).unwrap_or_else(|| if spec.conf.is_some() { BY_CONF } else { own }.to_owned())
    };
    vec![
        Knob::new(GROUPING, default(GROUPING, "failover"), ["failover", "multibus"]),
        Knob::new(
            SELECTOR,
            default(SELECTOR, "service-time"),
            ["round-robin", "queue-length", "service-time", "historical-service-time"],
        ),
        Knob::new(PATHS, paths, 1..paths),
    ]
}

/// The target's text at a point.
pub fn target(target: &str, point: &Point) -> String {
    let Some(rest) = target.strip_prefix(MULTIPATH).filter(|_| point.iter().any(|(name, _)| is_of_target(name))) else {
        return target.to_owned();
    };
    let (options, mut paths) = parts(rest);
    let mut options: Vec<(&str, &str)> = options;
    for (name, value) in point.iter() {
        match name {
            PATHS => paths.truncate(value.parse().unwrap_or(paths.len()).max(1)),
            SELECTOR | GROUPING => {
                options.retain(|(key, _)| *key != name && (*key != CPUS || name != SELECTOR));
                options.push((name, value));
            }
            _ => {}
        }
    }
    let options: Vec<String> = options.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{MULTIPATH}{}:{}", options.join(","), paths.join("+"))
}

/// Splits the text after `multipath:` into options and paths, as `host` reads them (a test checks that both agree).
fn parts(rest: &str) -> (Vec<(&str, &str)>, Vec<&str>) {
    let is_options = |text: &str| text.is_empty() || text.contains('=') && !text.starts_with(['/', '.']);
    let (options, targets) = rest.split_once(':').filter(|(o, _)| is_options(o)).unwrap_or(("", rest));
    let options = options.split(',').filter(|item| !item.is_empty());
    let (mut paths, mut from) = (Vec::new(), 0);
    for (at, _) in targets.match_indices('+') {
        let behind = &targets[at + 1..];
        if has_kind(behind) || behind.starts_with(['/', '.']) {
            paths.push(&targets[from..at]);
            from = at + 1;
        }
    }
    paths.push(&targets[from..]);
    (options.map(|item| item.split_once('=').unwrap_or((item, ""))).collect(), paths)
}

/// Returns the settings of a point, without the target's knobs.
pub fn settings(point: &Point) -> impl Iterator<Item = (&str, &str)> {
    point.iter().filter(|(name, _)| !is_of_target(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_as_host_does() {
        for (text, said) in [
            ("multipath:/a+/b", 0),
            ("multipath:no_path_retry=queue,prio=const:./x+y+/z+./w", 2),
            ("multipath:nbd://h:1/e+nbd+unix:///e?socket=/s", 0),
            ("multipath::null:size=1g+null:size=1g", 0),
        ] {
            let TargetSpec::Multipath(spec) = TargetSpec::parse(text).unwrap() else { panic!("{text}") };
            let (options, paths) = parts(text.strip_prefix(MULTIPATH).unwrap());
            let own: Vec<TargetSpec> = paths.iter().map(|p| TargetSpec::parse(p).unwrap()).collect();
            assert_eq!(own, spec.paths.iter().map(|p| p.spec.clone()).collect::<Vec<_>>(), "{text}");
            assert_eq!(options.len(), said, "{text}");
        }
    }

    #[test]
    fn a_point_changes_the_text_of_the_target() {
        let text = "multipath:no_path_retry=queue:null:size=1g+null:size=1g+null:size=1g";
        let all = knobs(Some(text));
        let names: Vec<String> = all.iter().map(|k| format!("{}={}", k.name, k.default)).collect();
        assert_eq!(names, ["path_grouping_policy=failover", "path_selector=service-time", "paths=3"]);
        assert_eq!(all[2].values, ["1", "2"]);
        assert_eq!(target(text, &Point::of(&[("nomerges", "2")])), text);
        let point =
            Point::of(&[("path_grouping_policy", "multibus"), ("path_selector", "queue-length"), ("paths", "2")]);
        let changed = target(text, &point);
        assert_eq!(
            changed,
            "multipath:no_path_retry=queue,path_grouping_policy=multibus,path_selector=queue-length:null:size=1g+null:size=1g"
        );
        TargetSpec::parse(&changed).unwrap();
        let plain = target("multipath:/a+/b", &Point::of(&[("path_selector", "round-robin")]));
        assert_eq!(plain, "multipath:path_selector=round-robin:/a+/b");
        assert_eq!((knobs(Some("null")), knobs(None), knobs(Some("multipath:/a"))), (vec![], vec![], vec![]));
        let by_file = knobs(Some("multipath:conf=/etc/multipath.conf:/a+/b"));
        assert_eq!(by_file[1].default, BY_CONF);
    }
}
