// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured: every row as data, with the goal it is held to.
//!
//! Guarantees: both sides of a comparison get the same job; what only one of them understands
//! stands in its `extra` lines or `args`. Job texts are fio job files with four blanks that
//! [`super::job`] fills. Latencies are recorded on both sides, as is fio's default.

/// A group of runs that are compared with each other.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How many CPUs it needs.
    pub cpus: usize,
    /// What runs, interleaved.
    pub sides: &'static [Side],
    /// The sides run by turns of a few hundredths of a second instead of one after the other: for a device that drifts.
    pub turns: bool,
    /// What is asked of the figures.
    pub goals: &'static [Goal],
}

/// One program with one job.
pub struct Side {
    /// Its name in the row.
    pub name: &'static str,
    /// Who runs it.
    pub program: Program,
    /// The job file, with blanks.
    pub job: &'static str,
    /// Lines of `[global]` that only this side gets.
    pub extra: &'static str,
    /// Arguments that only this side gets.
    pub args: &'static [&'static str],
}

/// The programs that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Ours, `mqblk run`.
    Mqblk,
    /// The yardstick.
    Fio,
}

/// What is read from a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// I/Os per second over all jobs.
    Iops,
    /// User and system time per I/O in microseconds, as the program itself reports it.
    CpuPerIo,
}

/// A figure asked of a row.
pub struct Goal {
    /// What is compared.
    pub metric: Metric,
    /// The side it is asked of.
    pub of: &'static str,
    /// The side it is divided by; `None` means the figure itself.
    pub to: Option<&'static str>,
    /// What it must be.
    pub need: Need,
}

/// What a figure must be.
#[derive(Clone, Copy)]
pub enum Need {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// At least this, or what the peer's own pair (first divided by second) reaches if lower.
    AtLeastOrPeer(f64, &'static str, &'static str),
    /// Anything: printed for honesty.
    Shown,
}

const NULL_QD32: &str = "\
[global]
ioengine=null
rw=randread
bs=4k
size=64g
norandommap
iodepth=32
{limit}
{extra}
[j0]
cpus_allowed={cpu0}
";

const NULL_QD32_BATCHED: &str = "\
[global]
ioengine=null
rw=randread
bs=4k
size=64g
norandommap
iodepth=32
iodepth_batch_submit=32
iodepth_batch_complete_min=32
{limit}
{extra}
[j0]
cpus_allowed={cpu0}
";

const NULL_QD1: &str = "\
[global]
ioengine=null
rw=randread
bs=4k
size=64g
norandommap
iodepth=1
{limit}
{extra}
[j0]
cpus_allowed={cpu0}
";

const NULL_TWO_JOBS: &str = "\
[global]
ioengine=null
rw=randread
bs=4k
size=64g
norandommap
iodepth=32
{limit}
{extra}
[j0]
cpus_allowed={cpu0}
[j1]
cpus_allowed={cpu1}
";

const FILE_QD32: &str = "\
[global]
ioengine=io_uring
filename={file}
direct=1
rw=randread
bs=4k
size={size}
norandommap
iodepth=32
iodepth_batch_submit=8
iodepth_batch_complete_min=1
iodepth_batch_complete_max=32
{limit}
{extra}
[j0]
";

const FILE_QD1: &str = "\
[global]
ioengine=io_uring
filename={file}
direct=1
rw=randread
bs=4k
size={size}
norandommap
iodepth=1
{limit}
{extra}
[j0]
";

/// What fio's io_uring engine needs to be at its best; ours registers by itself.
const REGISTERED: &str = "registerfiles=1\nfixedbufs=1";

const NULL_TARGET: &[&str] = &["--target", "null:size=64g"];
const FILE_TARGET: &[&str] = &["--target", "file:{file}"];

/// Every row, in the order of a full run.
pub const ROWS: &[Row] = &[
    Row {
        name: "null-qd32",
        title: "null driver, one CPU, depth 32, fio's default batching",
        cpus: 1,
        sides: &[mqblk("mqblk", NULL_QD32, NULL_TARGET), fio("fio", NULL_QD32, "")],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::AtLeast(3.4))],
    },
    Row {
        name: "null-qd32-batch",
        title: "the same with batches of 32 in both, fio's best case",
        cpus: 1,
        sides: &[mqblk("mqblk", NULL_QD32_BATCHED, NULL_TARGET), fio("fio", NULL_QD32_BATCHED, "")],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::Shown)],
    },
    Row {
        name: "null-qd1",
        title: "null driver, one CPU, depth 1",
        cpus: 1,
        sides: &[mqblk("mqblk", NULL_QD1, NULL_TARGET), fio("fio", NULL_QD1, "")],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::AtLeast(2.0))],
    },
    Row {
        name: "scaling",
        title: "two CPUs against one: multi-queue, single-queue and fio's two processes",
        cpus: 2,
        sides: &[
            mqblk("mq-1", NULL_QD32, NULL_MQ),
            mqblk("mq-2", NULL_TWO_JOBS, NULL_MQ),
            mqblk("sq-1", NULL_QD32, NULL_SQ),
            mqblk("sq-2", NULL_TWO_JOBS, NULL_SQ),
            fio("fio-1", NULL_QD32, ""),
            fio("fio-2", NULL_TWO_JOBS, ""),
        ],
        turns: false,
        goals: &[
            Goal {
                metric: Metric::Iops,
                of: "mq-2",
                to: Some("mq-1"),
                need: Need::AtLeastOrPeer(1.9, "fio-2", "fio-1"),
            },
            shown("sq-2", "sq-1"),
            shown("mq-2", "sq-2"),
            shown("fio-2", "fio-1"),
        ],
    },
    Row {
        name: "mq-deadline",
        title: "null driver behind mq-deadline, one CPU, depth 32",
        cpus: 1,
        sides: &[mqblk("mqblk", NULL_QD32, NULL_DEADLINE), fio("fio", NULL_QD32, "")],
        turns: false,
        goals: &[
            Goal { metric: Metric::Iops, of: "mqblk", to: None, need: Need::AtLeast(2.5e6) },
            ratio(Metric::Iops, Need::Shown),
        ],
    },
    Row {
        name: "file-qd32",
        title: "a file through io_uring, O_DIRECT, depth 32, batches of 8",
        cpus: 1,
        sides: &[mqblk("mqblk", FILE_QD32, FILE_TARGET), fio("fio", FILE_QD32, REGISTERED)],
        turns: true,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::AtMost(1.0))],
    },
    Row {
        name: "file-qd1",
        title: "a file through io_uring, O_DIRECT, depth 1",
        cpus: 1,
        sides: &[mqblk("mqblk", FILE_QD1, FILE_TARGET), fio("fio", FILE_QD1, REGISTERED)],
        turns: true,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::AtMost(1.0))],
    },
];

const NULL_MQ: &[&str] = &["--target", "null:size=64g", "--set", "nr_hw_queues=2"];
const NULL_SQ: &[&str] = &["--target", "null:size=64g", "--set", "mode=sq"];
const NULL_DEADLINE: &[&str] = &["--target", "null:size=64g", "--set", "scheduler=mq-deadline"];

const fn mqblk(name: &'static str, job: &'static str, args: &'static [&'static str]) -> Side {
    Side { name, program: Program::Mqblk, job, extra: "", args }
}

const fn fio(name: &'static str, job: &'static str, extra: &'static str) -> Side {
    Side { name, program: Program::Fio, job, extra, args: &[] }
}

/// The usual question: our figure divided by fio's.
const fn ratio(metric: Metric, need: Need) -> Goal {
    Goal { metric, of: "mqblk", to: Some("fio"), need }
}

const fn shown(of: &'static str, to: &'static str) -> Goal {
    Goal { metric: Metric::Iops, of, to: Some(to), need: Need::Shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_speak_of_sides_their_row_has() {
        for row in ROWS {
            let has = |name: &str| row.sides.iter().any(|side| side.name == name);
            for goal in row.goals {
                assert!(has(goal.of), "{}: {}", row.name, goal.of);
                assert!(goal.to.is_none_or(has), "{}: {:?}", row.name, goal.to);
                if let Need::AtLeastOrPeer(_, of, to) = goal.need {
                    assert!(has(of) && has(to), "{}: {of}/{to}", row.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name));
            for (index, side) in row.sides.iter().enumerate() {
                let earlier = &row.sides[..index];
                assert!(earlier.iter().all(|other| other.name != side.name));
            }
        }
    }
}
