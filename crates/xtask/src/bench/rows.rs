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
    /// A server, with a client that is the same for all of a row.
    Served(Served),
}

/// A server and what is asked of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Who serves.
    pub by: By,
    /// What: `true` a file past the page cache, `false` a disk that does nothing.
    pub file: bool,
    /// IOThreads, where the server has a choice.
    pub iothreads: u16,
    /// Who asks.
    pub client: Client,
}

/// The servers that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// `mqblk serve`.
    Mqblk,
    /// qemu-storage-daemon.
    Qsd,
    /// nbdkit.
    Nbdkit,
}

/// The clients of servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// blkio (by `vuclient bench`), 4 KiB random reads on so many virtqueues at this depth; it sleeps or spins for completions.
    Blkio {
        /// Virtqueues, a thread each.
        queues: u16,
        /// Requests in flight of each.
        iodepth: u16,
        /// Spins.
        spins: bool,
    },
    /// fio's nbd engine, 4 KiB random reads over a Unix socket.
    FioNbd {
        /// Jobs, a connection each.
        connections: u16,
        /// Requests in flight of each.
        iodepth: u16,
    },
    /// Nobody: so many disks, each with a vhost-user-blk export of two virtqueues, do nothing.
    Nobody {
        /// Disks.
        disks: u16,
    },
}

/// What is read from a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// I/Os per second over all jobs.
    Iops,
    /// User and system time per I/O in microseconds: of the program as it reports it itself, of a server as the kernel does.
    CpuPerIo,
    /// Percent of a CPU that a server without clients uses.
    IdleCpu,
    /// Memory resident in a server without clients, MB.
    Resident,
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
    vhost(
        "vhost-qd1",
        "vhost-user-blk, null disk, 1 IOThread, depth 1, client sleeps",
        &pair(depth(1)),
        VHOST_GOAL_QD1,
    ),
    vhost("vhost-qd32", "the same at depth 32", &pair(depth(32)), VHOST_GOAL),
    vhost("vhost-qd128", "the same at depth 128", &pair(depth(128)), VHOST_GOAL),
    vhost("vhost-qd1-spin", "the same at depth 1, client spins", &pair(spinning(1)), VHOST_SHOWN),
    vhost("vhost-qd32-spin", "the same at depth 32, client spins", &pair(spinning(32)), VHOST_SHOWN),
    Row {
        name: "vhost-scaling",
        title: "vhost-user-blk, null disk, depth 32: two virtqueues on two IOThreads against one on one",
        cpus: 2,
        sides: &[
            blkio("mqblk-1", By::Mqblk, false, 1, depth(32)),
            blkio("mqblk-2", By::Mqblk, false, 2, Client::Blkio { queues: 2, iodepth: 32, spins: false }),
            blkio("qsd-1", By::Qsd, false, 1, depth(32)),
            blkio("qsd-2", By::Qsd, false, 1, Client::Blkio { queues: 2, iodepth: 32, spins: false }),
        ],
        turns: false,
        goals: &[
            Goal { metric: Metric::Iops, of: "mqblk-2", to: Some("mqblk-1"), need: Need::AtLeast(1.8) },
            shown("qsd-2", "qsd-1"),
        ],
    },
    vhost(
        "vhost-file-qd1",
        "vhost-user-blk, a file past the page cache, depth 1",
        &file_pair(depth(1)),
        VHOST_FILE_GOAL,
    ),
    vhost("vhost-file-qd32", "the same at depth 32", &file_pair(depth(32)), VHOST_FILE_GOAL),
    Row {
        name: "nbd-qd32",
        title: "NBD over a Unix socket, null disk, fio's nbd engine, one connection, depth 32",
        cpus: 2,
        sides: &[
            blkio("mqblk", By::Mqblk, false, 1, NBD_QD32),
            blkio("qsd", By::Qsd, false, 1, NBD_QD32),
            blkio("nbdkit", By::Nbdkit, false, 1, NBD_QD32),
        ],
        turns: false,
        goals: &[
            to_qsd(Metric::Iops, Need::AtLeast(2.0)),
            Goal { metric: Metric::Iops, of: "mqblk", to: Some("nbdkit"), need: Need::AtLeast(2.0) },
            to_qsd(Metric::CpuPerIo, Need::Shown),
            Goal { metric: Metric::CpuPerIo, of: "mqblk", to: Some("nbdkit"), need: Need::Shown },
        ],
    },
    Row {
        name: "nbd-scaling",
        title: "the same with four connections against one",
        cpus: 2,
        sides: &[
            blkio("mqblk-1", By::Mqblk, false, 2, NBD_QD32),
            blkio("mqblk-4", By::Mqblk, false, 2, NBD_QD32_X4),
            blkio("nbdkit-1", By::Nbdkit, false, 1, NBD_QD32),
            blkio("nbdkit-4", By::Nbdkit, false, 1, NBD_QD32_X4),
        ],
        turns: false,
        goals: &[shown("mqblk-4", "mqblk-1"), shown("nbdkit-4", "nbdkit-1")],
    },
    Row {
        name: "serve-idle",
        title: "64 disks without clients, a vhost-user-blk export of two virtqueues each",
        cpus: 1,
        sides: &[blkio("mqblk", By::Mqblk, true, 2, Client::Nobody { disks: 64 })],
        turns: false,
        goals: &[
            Goal { metric: Metric::IdleCpu, of: "mqblk", to: None, need: Need::AtMost(0.1) },
            Goal { metric: Metric::Resident, of: "mqblk", to: None, need: Need::AtMost(200.0) },
        ],
    },
];

const fn blkio(name: &'static str, by: By, file: bool, iothreads: u16, client: Client) -> Side {
    Side { name, program: Program::Served(Served { by, file, iothreads, client }), job: "", extra: "", args: &[] }
}

const fn depth(iodepth: u16) -> Client {
    Client::Blkio { queues: 1, iodepth, spins: false }
}

const fn spinning(iodepth: u16) -> Client {
    Client::Blkio { queues: 1, iodepth, spins: true }
}

/// Ours and qemu-storage-daemon under one client, asked for this ratio.
const fn vhost(name: &'static str, title: &'static str, sides: &'static [Side], goals: &'static [Goal]) -> Row {
    Row { name, title, cpus: 2, sides, turns: false, goals }
}

const fn pair(client: Client) -> [Side; 2] {
    [blkio("mqblk", By::Mqblk, false, 1, client), blkio("qsd", By::Qsd, false, 1, client)]
}

const fn file_pair(client: Client) -> [Side; 2] {
    [blkio("mqblk", By::Mqblk, true, 1, client), blkio("qsd", By::Qsd, true, 1, client)]
}

const fn to_qsd(metric: Metric, need: Need) -> Goal {
    Goal { metric, of: "mqblk", to: Some("qsd"), need }
}

const VHOST_GOAL_QD1: &[Goal] = &[to_qsd(Metric::Iops, Need::AtLeast(1.5)), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_GOAL: &[Goal] = &[to_qsd(Metric::Iops, Need::AtLeast(2.5)), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_SHOWN: &[Goal] = &[to_qsd(Metric::Iops, Need::Shown), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_FILE_GOAL: &[Goal] =
    &[to_qsd(Metric::Iops, Need::AtLeast(1.0)), to_qsd(Metric::CpuPerIo, Need::AtMost(1.0))];
const NBD_QD32: Client = Client::FioNbd { connections: 1, iodepth: 32 };
const NBD_QD32_X4: Client = Client::FioNbd { connections: 4, iodepth: 32 };

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
