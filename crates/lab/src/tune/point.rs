// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A point of the search, which is a set of differences from the default, and the knobs.
//!
//! Guarantees: a point holds only differences from the default and is ordered by name, so two equal choices are one point
//! with one label. Knobs are a table: a target with more knobs (IOThreads, paths) adds rows. Does not: know which points a
//! target accepts. The target rejects invalid points ([`super::bench::Bench::check`]).

use std::collections::BTreeMap;
use std::fmt;

use blk::suggest::did_you_mean;
use serde::{Deserialize, Serialize};

/// Knobs, and rules of thumb with their points.
pub type Knobs = (Vec<Knob>, Vec<(String, Point)>);

/// Settings that differ from the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(BTreeMap<String, String>);

impl Point {
    /// Makes a point from pairs; a later pair overrides an earlier one.
    pub fn of(pairs: &[(&str, &str)]) -> Point {
        Point(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    /// The value of a knob, if it is not the default.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the point with one knob at another value; `knob.default` removes the knob.
    #[must_use]
    pub fn with(&self, knob: &Knob, value: &str) -> Point {
        let mut next = self.clone();
        if value == knob.default {
            next.0.remove(&knob.name);
        } else {
            next.0.insert(knob.name.clone(), value.to_owned());
        }
        next
    }

    /// Returns the point with one knob at its default.
    #[must_use]
    pub fn without(&self, name: &str) -> Point {
        let mut next = self.clone();
        next.0.remove(name);
        next
    }

    /// Combines both points; `other` takes precedence.
    #[must_use]
    pub fn and(&self, other: &Point) -> Point {
        let mut next = self.clone();
        next.0.extend(other.0.clone());
        next
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Number of knobs that are not at their defaults.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the point is the default.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("default");
        }
        for (i, (k, v)) in self.0.iter().enumerate() {
            write!(f, "{}{k}={v}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A setting that may be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    /// The kernel's name; `iodepth`, `numjobs` or `JOB.iodepth` for the load itself.
    pub name: String,
    /// Its value if it is not set.
    pub default: String,
    /// Values worth trying, with or without the default.
    pub values: Vec<String>,
    /// The ends of what the disk can do, if the search may also try values between those of `values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(u64, u64)>,
    /// The name and value of another knob, if this one exists only with it (a tunable of an elevator).
    pub when: Option<(String, String)>,
}

impl Knob {
    /// Makes a knob that always exists.
    pub fn new(name: &str, default: impl ToString, values: impl IntoIterator<Item = impl ToString>) -> Knob {
        let values = values.into_iter().map(|v| v.to_string()).collect();
        Knob { name: name.to_owned(), default: default.to_string(), values, range: None, when: None }
    }

    /// Makes a knob whose values are numbers from `low` to `high`: both ends, the powers of four between, and the
    /// default with its half and its double. [`Knob::steps`] fills the gaps.
    pub fn number(name: &str, default: &str, low: u64, high: u64) -> Knob {
        let mut values: Vec<u64> = (0..32).map(|i| 1u64 << (2 * i)).filter(|v| (low..=high).contains(v)).collect();
        values.extend([low, high]);
        let mut knob = Knob::new(name, default, Vec::<u64>::new()).within(low, high);
        values.extend(knob.steps(default));
        values.extend(default.parse::<u64>().ok());
        values.sort_unstable();
        values.dedup();
        knob.values = values.iter().map(u64::to_string).collect();
        knob
    }

    /// Lets the search also try values between those of the list, from `low` to `high`.
    #[must_use]
    pub fn within(mut self, low: u64, high: u64) -> Knob {
        self.range = Some((low, high));
        self
    }

    /// Half and twice a value, within the range.
    pub fn steps(&self, value: &str) -> Vec<u64> {
        let (Some((low, high)), Ok(now)) = (self.range, value.parse::<u64>()) else { return Vec::new() };
        [now / 2, now.saturating_mul(2)].map(|v| v.clamp(low, high)).into_iter().filter(|v| *v != now).collect()
    }

    /// Makes the knob exist only while `name` is `value`.
    #[must_use]
    pub fn only_when(mut self, name: &str, value: &str) -> Knob {
        self.when = Some((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns its value at a point.
    pub fn at<'a>(&'a self, point: &'a Point) -> &'a str {
        point.get(&self.name).unwrap_or(&self.default)
    }

    /// Whether it exists at a point. `knobs` are all knobs.
    pub fn exists_at(&self, point: &Point, knobs: &[Knob]) -> bool {
        let Some((name, value)) = &self.when else { return true };
        point.get(name).or(knobs.iter().find(|k| k.name == *name).map(|k| k.default.as_str())) == Some(value)
    }
}

/// Removes knobs that no longer exist from a point (the tunables of the previous elevator).
#[must_use]
pub fn tidy(point: &Point, knobs: &[Knob]) -> Point {
    let gone = knobs.iter().filter(|k| point.get(&k.name).is_some() && !k.exists_at(point, knobs));
    gone.fold(point.clone(), |p, k| p.without(&k.name))
}

/// Parses values: `a,b,c`, or `LOW..HIGH` for both ends and the powers of two between them.
pub fn parse_values(flag: &str, name: &str, text: &str) -> Result<Vec<String>, String> {
    let rule = || {
        format!(
            "{flag} {name}={text}: must be values (1,8,64) or a range of whole numbers (1..256: its ends and the powers of two between)"
        )
    };
    if let Some((low, high)) = text.split_once("..") {
        let high = high.strip_prefix('=').unwrap_or(high);
        let (Ok(low), Ok(high)) = (low.trim().parse::<u64>(), high.trim().parse::<u64>()) else { return Err(rule()) };
        if low > high {
            return Err(format!("{flag} {name}={text}: the range ends before it begins; write {high}..{low}"));
        }
        let mut values = vec![low];
        values.extend((0..63).map(|i| 1u64 << i).filter(|v| (low + 1..high).contains(v)));
        values.extend((high > low).then_some(high));
        return Ok(values.iter().map(u64::to_string).collect());
    }
    let values: Vec<String> = text.split(',').map(|v| v.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) { Err(rule()) } else { Ok(values) }
}

/// Returns the knobs of a search. These are the knobs of `known` that `only` names, with the values given there (an empty
/// list keeps the known values). If `only` is empty, they are all knobs. Knobs in `fixed` are left out.
pub fn narrow(
    known: Vec<Knob>,
    only: &[(String, Vec<String>)],
    fixed: &[(String, String)],
) -> Result<Vec<Knob>, String> {
    let names: Vec<String> = known.iter().map(|k| k.name.clone()).collect();
    for (name, _) in only {
        if !names.contains(name) {
            let near = did_you_mean(name, names.iter().map(String::as_str));
            return Err(format!("--knob {name}: this target has no such knob; {near}knobs: {}", names.join(", ")));
        }
        if fixed.iter().any(|(key, _)| key == name) {
            return Err(format!("--knob {name}: is fixed by --fix; leave one of them out"));
        }
    }
    for (name, values) in only {
        let range = known.iter().find(|k| k.name == *name).and_then(|k| k.range);
        let outside = |v: &&String| match (range, v.parse::<u64>()) {
            (Some((low, high)), Ok(v)) => !(low..=high).contains(&v),
            _ => false,
        };
        if let (Some(value), Some((low, high))) = (values.iter().find(outside), range) {
            return Err(format!("--knob {name}={value}: this disk can have {low}..={high}; name values in that range"));
        }
    }
    let values = |name: &str| only.iter().find(|(other, _)| other == name).map(|(_, values)| values);
    let is_chosen =
        |name: &str| !fixed.iter().any(|(key, _)| key == name) && (only.is_empty() || values(name).is_some());
    let in_effect = |name: &str| {
        let set = fixed.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
        set.or(known.iter().find(|k| k.name == name).map(|k| &k.default))
    };
    let mut chosen: Vec<Knob> = known.iter().filter(|k| is_chosen(&k.name)).cloned().collect();
    // A tunable of an elevator that is not searched exists with it, or never.
    chosen.retain(|k| k.when.as_ref().is_none_or(|(name, value)| is_chosen(name) || in_effect(name) == Some(value)));
    for knob in &mut chosen {
        knob.when = knob.when.take().filter(|(name, _)| is_chosen(name));
        if let Some(values) = values(&knob.name).filter(|values| !values.is_empty()) {
            knob.values.clone_from(values);
            knob.range = None;
        }
    }
    if let Some((name, _)) = only.iter().find(|(name, _)| chosen.iter().all(|k| k.name != *name)) {
        return Err(format!(
            "--knob {name}: belongs to an elevator that is not searched; add --knob scheduler or --fix it"
        ));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_hold_differences_only() {
        let depth = Knob::new("queue_depth", 64, [32, 64, 128]);
        let p = Point::default().with(&depth, "128");
        assert_eq!((p.to_string().as_str(), p.with(&depth, "64").to_string().as_str()), ("queue_depth=128", "default"));
        assert_eq!((depth.at(&p), depth.at(&Point::default())), ("128", "64"));
        let both = p.and(&Point::of(&[("scheduler", "bfq"), ("mode", "mq")]));
        assert_eq!(both.to_string(), "mode=mq,queue_depth=128,scheduler=bfq");
        assert_eq!(serde_json::to_string(&both).unwrap(), r#"{"mode":"mq","queue_depth":"128","scheduler":"bfq"}"#);
    }

    #[test]
    fn numbers_reach_both_ends_of_their_range() {
        let all = |default, low, high| Knob::number("queue_depth", default, low, high).values.join(" ");
        assert_eq!(all("31", 1, 31), "1 4 15 16 31");
        assert_eq!(all("64", 1, 1023), "1 4 16 32 64 128 256 1023");
        assert_eq!(all("512", 4, 1024), "4 16 64 256 512 1024");
        assert_eq!(all("1", 1, 1), "1");
        let knob = Knob::number("max_sectors_kb", "512", 4, 1280);
        assert_eq!((knob.steps("1024"), knob.steps("4"), knob.steps("1280")), (vec![512, 1280], vec![8], vec![640]));
        assert!(Knob::new("nomerges", 0, [0, 1, 2]).steps("1").is_empty(), "no range");
    }

    #[test]
    fn tunables_go_with_their_elevator() {
        let knobs = [
            Knob::new("scheduler", "none", ["none", "mq-deadline"]),
            Knob::new("iosched.read_expire", 500, [125, 2000]).only_when("scheduler", "mq-deadline"),
        ];
        let p = Point::of(&[("scheduler", "mq-deadline"), ("iosched.read_expire", "125")]);
        assert!(knobs[1].exists_at(&p, &knobs) && !knobs[1].exists_at(&Point::default(), &knobs));
        assert_eq!(tidy(&p.without("scheduler"), &knobs), Point::default());
        assert_eq!(tidy(&p, &knobs), p);
    }

    #[test]
    fn values_are_lists_or_ranges() {
        let values = |text| parse_values("--free", "iodepth", text);
        assert_eq!(values("1..16").unwrap(), ["1", "2", "4", "8", "16"]);
        assert_eq!(values("3..=17").unwrap(), ["3", "4", "8", "16", "17"]);
        assert_eq!(values("8..8").unwrap(), ["8"]);
        assert_eq!(values("none, kyber").unwrap(), ["none", "kyber"]);
        assert!(values("9..3").unwrap_err().ends_with("write 3..9"));
        assert!(values("1,,2").unwrap_err().contains("must be values") && values("a..b").is_err());
    }

    #[test]
    fn tables_are_narrowed_by_name() {
        let known = || vec![Knob::new("queue_depth", 64, [32, 128]), Knob::new("nomerges", 0, [0, 1, 2])];
        let only =
            |name: &str, values: &[&str]| vec![(name.to_owned(), values.iter().map(|v| (*v).to_owned()).collect())];
        assert_eq!(narrow(known(), &only("nomerges", &[]), &[]).unwrap(), [Knob::new("nomerges", 0, [0, 1, 2])]);
        assert_eq!(narrow(known(), &only("queue_depth", &["8"]), &[]).unwrap()[0].values, ["8"]);
        let beyond = narrow(vec![Knob::number("queue_depth", "31", 1, 32)], &only("queue_depth", &["8", "64"]), &[]);
        let text = "--knob queue_depth=64: this disk can have 1..=32; name values in that range";
        assert_eq!(beyond.unwrap_err(), text);
        let fixed = [("nomerges".to_owned(), "2".to_owned())];
        assert_eq!(narrow(known(), &[], &fixed).unwrap().len(), 1);
        let expire = Knob::new("iosched.read_expire", 500, [125]).only_when("scheduler", "mq-deadline");
        let with = || vec![Knob::new("scheduler", "none", ["none", "mq-deadline"]), expire.clone()];
        let fixed = |value: &str| [("scheduler".to_owned(), value.to_owned())];
        assert_eq!(narrow(with(), &[], &fixed("mq-deadline")).unwrap(), [Knob { when: None, ..expire.clone() }]);
        assert_eq!(narrow(with(), &[], &fixed("none")).unwrap(), []);
        assert!(narrow(with(), &only("iosched.read_expire", &[]), &[]).unwrap_err().contains("add --knob scheduler"));
        let fixed = [("nomerges".to_owned(), "2".to_owned())];
        assert!(narrow(known(), &only("nomerge", &[]), &[]).unwrap_err().contains("did you mean 'nomerges'?"));
        assert!(narrow(known(), &only("nomerges", &[]), &fixed).unwrap_err().contains("is fixed"));
    }
}
