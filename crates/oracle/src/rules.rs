// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the definition of an elevator determines, so what must be equal, event by event.
//!
//! On a single CPU everything is determined, unless a comment here says why not. The CPU number of an event is never
//! compared.

use crate::event::{Event, Kind};

/// How the events of a kind are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// One by one, in order.
    Order,
    /// The same events, in any order.
    Set,
    /// Not at all.
    Free,
}

/// The rules of one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// For requests put into the elevator or a software queue.
    pub insert: Rule,
    /// For requests handed to the driver.
    pub issue: Rule,
    /// For completed requests, which are the same as were issued.
    pub complete: Rule,
    /// Whether the issue of a request may come later than the kernel's.
    pub may_be_late: bool,
    /// Whether the trace decides how long a process sleeps for a tag. Because the process may sleep between two pieces
    /// of a large I/O, the trace then also decides what the pieces are.
    pub tags_told: bool,
    /// Whether the trace decides the pieces of every I/O that the kernel splits.
    pub pieces_told: bool,
    /// Whether all I/Os are given the priority of the process; their own priorities then only keep apart what must not
    /// merge.
    pub one_priority: bool,
    /// Why something is not compared, for the report.
    pub because: Option<&'static str>,
}

const ALL: Rules = Rules {
    insert: Rule::Order,
    issue: Rule::Order,
    complete: Rule::Order,
    may_be_late: false,
    tags_told: false,
    pieces_told: false,
    one_priority: false,
    because: None,
};

const SET: Rules = Rules { issue: Rule::Set, complete: Rule::Set, may_be_late: true, tags_told: true, ..ALL };

/// Returns the rules for a case with this elevator, the strictest first. The first rules under which everything is
/// equal count.
pub fn rules(scheduler: &str, theirs: &[Event]) -> Vec<Rules> {
    let splits = theirs.iter().any(|e| e.kind == Kind::Split);
    let several_cpus = theirs.iter().any(|e| e.cpu != 0);
    // The kernel's bfq delays a process by what its group's queues have allocated; there are no groups here.
    let bfq =
        Rules { tags_told: true, pieces_told: splits, because: Some("how long a process waits for a tag"), ..ALL };
    let mut rules = match scheduler {
        // A process that runs out of tags inside a plug sleeps, and the kernel flushes the sleeper's plug by way of the
        // software queue; without sleep the plug goes to the driver directly. Here nothing sleeps.
        "none" => {
            vec![Rules { insert: Rule::Free, because: Some("which requests pass through a software queue"), ..ALL }]
        }
        // The kernel's bfq uses the priority of the process, ours that of each bio.
        "bfq" => vec![Rules { one_priority: true, ..bfq }],
        _ => vec![ALL],
    };
    if several_cpus {
        let insert = rules[0].insert;
        let because = Some("order of issue: several CPUs ran the queue at once");
        rules.push(Rules { insert, pieces_told: splits, because, ..SET });
    }
    rules
}

impl Rules {
    /// How events of this kind are compared.
    pub fn of(&self, kind: Kind) -> Rule {
        match kind {
            Kind::Insert => self.insert,
            Kind::Issue => self.issue,
            Kind::Complete => self.complete,
            // A single bio has a plug of its own in the kernel (for its cached time) and none here.
            Kind::Unplug(n) if n < 2 => Rule::Free,
            Kind::Queue | Kind::Split if self.pieces_told => Rule::Free,
            _ => Rule::Order,
        }
    }
}
