// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nearest known name to one that was mistyped.
//!
//! Guarantees: deterministic (the first of equally near names in the given order), bounded work per name. Does not do:
//! guess when nothing is near: a wrong suggestion costs the reader more than none.

/// Longer words are not compared; no option name comes close.
const LENGTH_MAX: usize = 64;

/// The known name nearest to `typed`, if it is near: at most a third of the letters differ, or one contains the other.
pub(super) fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_ascii_lowercase();
    if typed.is_empty() || typed.len() > LENGTH_MAX {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for name in known {
        let contained = typed.len() >= 4 && (name.contains(&typed) || (name.len() >= 4 && typed.contains(name)));
        let limit = if contained { LENGTH_MAX } else { typed.len().max(3) / 3 };
        if name.len() > LENGTH_MAX || name.len().abs_diff(typed.len()) > limit {
            continue;
        }
        let distance = distance(typed.as_bytes(), name.as_bytes());
        if distance <= limit && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`; both at most [`LENGTH_MAX`] bytes.
fn distance(a: &[u8], b: &[u8]) -> usize {
    assert!(a.len() <= LENGTH_MAX && b.len() <= LENGTH_MAX);
    let mut before = [0; LENGTH_MAX + 1];
    let mut above: [usize; LENGTH_MAX + 1] = std::array::from_fn(|j| j);
    for i in 1..=a.len() {
        let mut row = [i; LENGTH_MAX + 1];
        for j in 1..=b.len() {
            let replace = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = above;
        above = row;
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 6] = ["bs", "rw", "iodepth", "iodepth_low", "runtime", "ramp_time"];

    fn near(typed: &str) -> Option<&'static str> {
        nearest(typed, NAMES.into_iter())
    }

    #[test]
    fn typing_errors_find_their_option() {
        assert_eq!(near("iodept"), Some("iodepth"));
        assert_eq!(near("iodpeth"), Some("iodepth"));
        assert_eq!(near("IODEPTH"), Some("iodepth"));
        assert_eq!(near("run_time"), Some("runtime"));
        assert_eq!(near("ramptime"), Some("ramp_time"));
        assert_eq!(near("bz"), Some("bs"));
        assert_eq!(near("depth"), Some("iodepth"));
    }

    #[test]
    fn nothing_near_suggests_nothing() {
        assert_eq!(near("colour"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"x".repeat(10_000)), None);
    }

    proptest! {
        #[test]
        fn distance_is_a_metric_on_its_ends(a in "[a-c]{0,8}", b in "[a-c]{0,8}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            prop_assert_eq!(distance(a, b), distance(b, a));
            prop_assert_eq!(distance(a, b) == 0, a == b);
            prop_assert!(distance(a, b) <= a.len().max(b.len()));
            prop_assert!(distance(a, b) >= a.len().abs_diff(b.len()));
        }
    }
}
