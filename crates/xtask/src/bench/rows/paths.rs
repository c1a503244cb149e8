// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of a disk with several paths, to tgtd on loopback: how path selectors spread load over unequal paths, and for how long I/O
//! stalls when a path is pulled.
//!
//! Guarantees and form: see [`super`]. All sides are ours. A selector is compared with round-robin in the same run. Gaps are shown but
//! not judged, because they follow from settings (docs/multipath.md). Errors are judged.

use super::row::{Goal, Metric, Need, Program, Pull, Pulled, Row, Side, Unequal};

const READS: &str = "\
[global]
ioengine=libaio
rw=randread
bs=4k
size=256m
norandommap
iodepth=16
{limit}
[j0]
";

/// In the order of a full run.
pub const ROWS: &[Row] = &[
    Row {
        name: "multipath-unequal",
        title: "two paths to a LUN of tgtd, one answer each 0.4 ms and each 4 ms, depth 16: what selectors make of them",
        cpus: 2,
        sides: &selectors(2),
        turns: false,
        goals: SELECTORS,
    },
    Row {
        name: "multipath-unequal-4",
        title: "four paths, one answer each 0.4 ms, of the last each 4 ms, depth 16",
        cpus: 2,
        sides: &selectors(4),
        turns: false,
        goals: SELECTORS,
    },
    Row {
        name: "multipath-stall",
        title: "one of two paths fails and recovers while fio writes and verifies at depth 16; fast_io_fail_tmo=5 s, NOP-Out interval and timeout 5 s + 5 s, in the quick variant 1 s + 1 s",
        cpus: 2,
        sides: &[
            pull("kill-9", Pulled::Killed, false, false),
            pull("kill-9-multibus", Pulled::Killed, true, false),
            pull("sigstop", Pulled::Stopped, false, false),
            pull("sigstop-quick", Pulled::Stopped, false, true),
            pull("drop", Pulled::Dropped, false, false),
        ],
        turns: false,
        goals: &[
            errors("kill-9"),
            errors("kill-9-multibus"),
            errors("sigstop"),
            errors("sigstop-quick"),
            errors("drop"),
        ],
    },
];

const ROUND_ROBIN: &str = "round-robin";
const QUEUE_LENGTH: &str = "queue-length";
const SERVICE_TIME: &str = "service-time";
const HISTORICAL: &str = "historical-service-time";

/// A selector that considers the I/O in flight must not be worse than one that does not.
const SELECTORS: &[Goal] = &[
    beside(QUEUE_LENGTH, Metric::Iops, Need::AtLeast(1.0)),
    beside(SERVICE_TIME, Metric::Iops, Need::AtLeast(1.0)),
    beside(HISTORICAL, Metric::Iops, Need::AtLeast(1.0)),
    beside(QUEUE_LENGTH, Metric::P99, Need::Shown),
    beside(SERVICE_TIME, Metric::P99, Need::Shown),
    beside(HISTORICAL, Metric::P99, Need::Shown),
];

const fn selectors(paths: u8) -> [Side; 4] {
    [
        selector(ROUND_ROBIN, paths),
        selector(QUEUE_LENGTH, paths),
        selector(SERVICE_TIME, paths),
        selector(HISTORICAL, paths),
    ]
}

const fn selector(selector: &'static str, paths: u8) -> Side {
    let program = Program::Unequal(Unequal { selector, paths });
    Side { name: selector, program, job: READS, extra: "", args: &[] }
}

const fn beside(of: &'static str, metric: Metric, need: Need) -> Goal {
    Goal { metric, of, to: Some(ROUND_ROBIN), need }
}

const fn pull(name: &'static str, what: Pulled, is_multibus: bool, is_quick: bool) -> Side {
    let program = Program::Pull(Pull { what, is_multibus, is_quick });
    Side { name, program, job: "", extra: "", args: &[] }
}

const fn errors(of: &'static str) -> Goal {
    Goal { metric: Metric::Errors, of, to: None, need: Need::AtMost(0.0) }
}
