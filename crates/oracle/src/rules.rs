// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the definition of an elevator fixes, so what must be equal, event by event.
//!
//! Everything is fixed for a single CPU unless a line here says why not. That one number is not: on which CPU an event was.

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
    /// For requests ended: as many and the same as were issued.
    pub complete: Rule,
    /// Whether the issue of a request may come later than the kernel's.
    pub may_be_late: bool,
    /// Whether it is the trace that says how long a process sleeps for a tag; as it may sleep between two pieces of a
    /// large I/O, then the trace also says what the pieces are.
    pub tags_told: bool,
    /// Whether the trace says so of any I/O.
    pub pieces_told: bool,
    /// Whether all I/Os are given the priority of the process; their own then only keeps apart what must not merge.
    pub one_priority: bool,
    /// Why something is not compared, for people.
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

/// What is compared of a case with this elevator: the first rules under which all is equal count.
pub fn rules(scheduler: &str, theirs: &[Event]) -> Vec<Rules> {
    let splits = theirs.iter().any(|e| e.kind == Kind::Split);
    let several_cpus = theirs.iter().any(|e| e.cpu != 0);
    // bfq holds a process back by what its group's queues have allocated; there are no groups here.
    let bfq =
        Rules { tags_told: true, pieces_told: splits, because: Some("how long a process waits for a tag"), ..ALL };
    let mut rules = match scheduler {
        // A process that runs out of tags inside a plug sleeps, and the kernel flushes the sleeper's plug by way of the
        // software queue; without sleep it goes to the driver directly. Here nothing sleeps.
        "none" => {
            vec![Rules { insert: Rule::Free, because: Some("which requests pass through a software queue"), ..ALL }]
        }
        // The kernel's bfq goes by the priority of the process, ours by each bio's.
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
