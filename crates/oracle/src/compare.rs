// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's events and ours, kind by kind, under the [`Rules`] of the case.

use crate::event::{Event, Kind};
use crate::rules::{Rule, Rules};

/// The columns of the verdict.
pub const COLUMNS: [(&str, &[char]); 5] = [
    ("bios", &['Q', 'X', 'G', 'U']),
    ("inserts", &['I']),
    ("merges", &['M', 'F']),
    ("issues", &['D', 'R']),
    ("completions", &['C']),
];

/// One column: how many of the kernel's events have an equal event here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name, as in [`COLUMNS`].
    pub name: &'static str,
    /// Events that are equal (in order, or as a set).
    pub equal: usize,
    /// Number of the kernel's events.
    pub theirs: usize,
    /// Number of our events.
    pub ours: usize,
    /// Not compared.
    pub free: bool,
    /// The first event that differs, in words.
    pub first: Option<Difference>,
}

/// Where two lists of events first differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Time in microseconds in the kernel's trace, or in ours if the kernel's has ended.
    pub us: u64,
    /// In words.
    pub text: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {} us: {}", self.us, self.text)
    }
}

impl Column {
    /// Whether nothing differs.
    pub fn is_equal(&self) -> bool {
        self.free || self.first.is_none()
    }
}

/// Compares kind by kind.
pub fn compare(theirs: &[Event], ours: &[Event], rules: &Rules) -> Vec<Column> {
    // A recording may be without the event for splits.
    let with_splits = theirs.iter().any(|e| e.kind == Kind::Split);
    COLUMNS
        .iter()
        .map(|(name, letters)| {
            let mut column = Column { name, equal: 0, theirs: 0, ours: 0, free: true, first: None };
            for letter in letters.iter().filter(|l| **l != 'X' || with_splits) {
                compare_kind(&mut column, *letter, theirs, ours, rules);
            }
            column
        })
        .collect()
}

fn compare_kind(column: &mut Column, letter: char, theirs: &[Event], ours: &[Event], rules: &Rules) {
    let of = |events: &[Event]| -> Vec<Event> {
        let kept = events.iter().filter(|e| e.kind.letter() == letter && rules.of(e.kind) != Rule::Free);
        kept.copied().collect()
    };
    let (mut theirs, mut ours) = (of(theirs), of(ours));
    let Some(rule) = theirs.first().or(ours.first()).map(|e| rules.of(e.kind)) else { return };
    column.free = false;
    if rule == Rule::Set {
        theirs.sort_by_key(|e| (e.kind, e.extent));
        ours.sort_by_key(|e| (e.kind, e.extent));
    }
    let same = |a: &Event, b: &Event| (a.kind, a.extent) == (b.kind, b.extent);
    column.theirs += theirs.len();
    column.ours += ours.len();
    column.equal += theirs.iter().zip(&ours).filter(|(a, b)| same(a, b)).count();
    let parted = theirs.iter().zip(&ours).position(|(a, b)| !same(a, b));
    let at = parted.or_else(|| (theirs.len() != ours.len()).then(|| theirs.len().min(ours.len())));
    let Some(at) = at else { return };
    let text = |e: Option<&Event>| e.map_or_else(|| "nothing".to_owned(), Event::to_string);
    let us = theirs.get(at).or(ours.get(at)).map_or(0, |e| e.us);
    let text = format!("{letter} number {at}: kernel {}, here {}", text(theirs.get(at)), text(ours.get(at)));
    let earlier = column.first.as_ref().is_none_or(|d| us < d.us);
    if earlier {
        column.first = Some(Difference { us, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Extent;

    fn issue(sector: u64) -> Event {
        Event { us: 7, kind: Kind::Issue, extent: Extent { write: false, sector, len: 8 }, cpu: 0, by_worker: false }
    }

    /// Compares issues under the loosest rules that apply.
    fn issues(theirs: &[u64], ours: &[u64], cpu: u16) -> Column {
        let mut theirs: Vec<Event> = theirs.iter().map(|s| issue(*s)).collect();
        let ours: Vec<Event> = ours.iter().map(|s| issue(*s)).collect();
        theirs.iter_mut().for_each(|e| e.cpu = cpu);
        let rules = crate::rules::rules("mq-deadline", &theirs);
        compare(&theirs, &ours, rules.last().unwrap()).into_iter().find(|c| c.name == "issues").unwrap()
    }

    #[test]
    fn order_counts_on_one_cpu_and_not_on_several() {
        let c = issues(&[0, 8, 16], &[0, 16, 8], 0);
        assert_eq!((c.equal, c.theirs, c.is_equal()), (1, 3, false));
        assert_eq!(c.first.unwrap().text, "D number 1: kernel D R 8+8, here D R 16+8");
        assert!(issues(&[0, 8, 16], &[0, 16, 8], 1).is_equal());
        assert!(!issues(&[0, 8, 16], &[0, 16, 24], 1).is_equal());
    }

    #[test]
    fn what_is_missing_or_too_much_is_a_difference() {
        let c = issues(&[0, 8], &[0], 0);
        assert_eq!(c.first.unwrap().text, "D number 1: kernel D R 8+8, here nothing");
        assert!(!issues(&[0], &[0, 8], 0).is_equal());
        assert!(issues(&[], &[], 0).is_equal());
    }
}
