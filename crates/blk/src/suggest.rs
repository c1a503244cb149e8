// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the known name nearest to a mistyped one: settings, tunables, targets, job file options.
//!
//! Guarantees: the result is deterministic (the first of equally near names in the given order), with bounded work per
//! name; case and the difference between `-` and `_` are ignored. Does not do: suggest a name that is not near, because
//! a wrong suggestion is worse than none.

/// Longer words are not compared, because all known names are much shorter.
const LENGTH_MAX: usize = 64;

/// Returns the known name nearest to `typed`, if it is near: at most a third of the letters differ, or one contains the
/// other.
pub fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if typed.is_empty() || typed.len() > LENGTH_MAX {
        return None;
    }
    let plain = |s: &str| s.to_ascii_lowercase().replace('-', "_");
    let typed = plain(typed);
    let near = known.filter(|name| name.len() <= LENGTH_MAX).filter_map(|name| {
        let other = plain(name);
        let contained = typed.len() >= 4 && (other.contains(&typed) || (other.len() >= 4 && typed.contains(&other)));
        let limit = if contained { LENGTH_MAX } else { typed.len().max(3) / 3 };
        let distance = strsim::osa_distance(&typed, &other);
        (distance <= limit).then_some((distance, name))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns `did you mean 'x'? ` for a message, or an empty text when no name is near.
pub fn did_you_mean<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(typed, known).map_or_else(String::new, |name| format!("did you mean '{name}'? "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = ["bs", "rw", "iodepth", "iodepth_low", "runtime", "ramp_time", "mq-deadline"];

    fn near(typed: &str) -> Option<&'static str> {
        nearest(typed, NAMES.into_iter())
    }

    #[test]
    fn typing_errors_find_their_name() {
        for (typed, name) in [
            ("iodept", "iodepth"),
            ("iodpeth", "iodepth"),
            ("IODEPTH", "iodepth"),
            ("run_time", "runtime"),
            ("ramptime", "ramp_time"),
            ("bz", "bs"),
            ("depth", "iodepth"),
            ("mq_deadline", "mq-deadline"),
            ("deadline", "mq-deadline"),
        ] {
            assert_eq!(near(typed), Some(name), "{typed}");
        }
    }

    #[test]
    fn nothing_near_suggests_nothing() {
        assert_eq!(near("colour"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"x".repeat(10_000)), None);
        assert_eq!(did_you_mean("colour", NAMES.into_iter()), "");
    }
}
