// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of disks over a network, on loopback: iSCSI against libiscsi's own iscsi-perf, and RBD against fio's rbd engine. Also the rows
//! of the layers above such disks.
//!
//! Guarantees and form: see [`super`]. The CPU time is that of the whole process, because librbd's threads do most of an RBD image's work.

use super::row::{Goal, Metric, Need, Program, Row, Side};

const ISCSI: &str = "\
[global]
ioengine=libaio
rw=randread
bs=4k
size=256m
norandommap
{limit}
[j0]
";

/// Without a scheduler, because iscsi-perf has none. Another side shows the cost of the one that a session gets by default.
const ISCSI_QD1: &[&str] = &["--target", "{iscsi}?sessions=1", "--set", "scheduler=none", "--job-set", "iodepth=1"];
const ISCSI_QD32: &[&str] = &["--target", "{iscsi}?sessions=1", "--set", "scheduler=none", "--job-set", "iodepth=32"];
const ISCSI_QD1_DEFAULT: &[&str] = &["--target", "{iscsi}?sessions=1", "--job-set", "iodepth=1"];
const ISCSI_QD32_DEFAULT: &[&str] = &["--target", "{iscsi}?sessions=1", "--job-set", "iodepth=32"];

const RBD_READ: &str = "\
[global]
ioengine=libaio
rw=randread
bs=4k
size=512m
norandommap
iodepth=16
{limit}
{extra}
[j0]
";

const RBD_WRITE: &str = "\
[global]
ioengine=libaio
rw=randwrite
bs=4k
size=512m
norandommap
iodepth=16
{limit}
{extra}
[j0]
";

/// Without a scheduler, because fio's engine has none.
const RBD: &[&str] = &["--target", "rbd:rbd/disk0:conf={ceph}/ceph.conf", "--set", "scheduler=none"];
const RBD_CACHED: &[&str] = &[
    "--target",
    "rbd:rbd/disk0:conf={ceph}/ceph.conf:rbd_cache=true:rbd_cache_writethrough_until_flush=false",
    "--set",
    "scheduler=none",
];
/// These lines follow the job's own `ioengine`. Of two such lines, fio uses the later one.
const FIO_RBD: &str = "ioengine=rbd\nclientname=admin\npool=rbd\nrbdname=disk0";
const UNCACHED_CONF: &[&str] = &["CEPH_CONF={ceph}/nocache.conf"];
const CACHED_CONF: &[&str] = &["CEPH_CONF={ceph}/ceph.conf"];

const ISCSI_GOALS: &[Goal] = &[
    to("mqblk", "iscsi-perf", Metric::Iops, AT_LEAST),
    to("mqblk", "iscsi-perf", CPU, AT_MOST),
    to("mqblk-deadline", "iscsi-perf", Metric::Iops, Need::Shown),
    to("mqblk-deadline", "iscsi-perf", CPU, Need::Shown),
];

/// In the order of a full run.
pub const ROWS: &[Row] = &[
    Row {
        name: "scsi-multipath",
        title: "the SCSI midlayer and multipath together, two paths, over a transport that does nothing",
        cpus: 2,
        sides: &[Side { name: "layers", program: Program::Layers, job: "", extra: "", args: &[] }],
        turns: false,
        goals: &[
            figure(Metric::AddedNs, Need::AtMost(150.0)),
            figure(Metric::AddedNs32, Need::AtMost(150.0)),
            figure(Metric::Scaling, Need::AtLeast(1.9)),
            figure(Metric::PlainScaling, Need::Shown),
        ],
    },
    Row {
        name: "iscsi-qd1",
        title: "the iSCSI driver against libiscsi's iscsi-perf: tgtd with a file in memory, one session, depth 1",
        cpus: 2,
        sides: &[
            mqblk("mqblk", ISCSI, ISCSI_QD1),
            mqblk("mqblk-deadline", ISCSI, ISCSI_QD1_DEFAULT),
            perf("iscsi-perf", &["-m", "1"]),
        ],
        turns: false,
        goals: ISCSI_GOALS,
    },
    Row {
        name: "iscsi-qd32",
        title: "the same at depth 32",
        cpus: 2,
        sides: &[
            mqblk("mqblk", ISCSI, ISCSI_QD32),
            mqblk("mqblk-deadline", ISCSI, ISCSI_QD32_DEFAULT),
            perf("iscsi-perf", &["-m", "32"]),
        ],
        turns: false,
        goals: ISCSI_GOALS,
    },
    Row {
        name: "rbd-read-qd16",
        title: "the RBD driver against fio's rbd engine: one OSD, the same image, depth 16, each without and with librbd's cache",
        cpus: 2,
        sides: &rbd(RBD_READ),
        turns: false,
        goals: RBD_GOALS,
    },
    Row {
        name: "rbd-write-qd16",
        title: "the same, writes; with the cache a write ends in memory until there is no room",
        cpus: 2,
        sides: &rbd(RBD_WRITE),
        turns: false,
        goals: RBD_GOALS,
    },
];

const CPU: Metric = Metric::ProcessCpuPerIo;
const AT_LEAST: Need = Need::AtLeast(1.0);
const AT_MOST: Need = Need::AtMost(1.0);
const RBD_GOALS: &[Goal] = &[
    to("mqblk", "fio", Metric::Iops, AT_LEAST),
    to("mqblk", "fio", CPU, AT_MOST),
    to("mqblk-cached", "fio-cached", Metric::Iops, Need::Shown),
    to("mqblk-cached", "fio-cached", CPU, Need::Shown),
];

const fn rbd(job: &'static str) -> [Side; 4] {
    [
        mqblk("mqblk", job, RBD),
        Side { name: "fio", program: Program::Fio, job, extra: FIO_RBD, args: UNCACHED_CONF },
        mqblk("mqblk-cached", job, RBD_CACHED),
        Side { name: "fio-cached", program: Program::Fio, job, extra: FIO_RBD, args: CACHED_CONF },
    ]
}

const fn mqblk(name: &'static str, job: &'static str, args: &'static [&'static str]) -> Side {
    Side { name, program: Program::Mqblk, job, extra: "", args }
}

const fn figure(metric: Metric, need: Need) -> Goal {
    Goal { metric, of: "layers", to: None, need }
}

/// A side of iscsi-perf, which reads no job.
const fn perf(name: &'static str, args: &'static [&'static str]) -> Side {
    Side { name, program: Program::IscsiPerf, job: "", extra: "", args }
}

const fn to(of: &'static str, to: &'static str, metric: Metric, need: Need) -> Goal {
    Goal { metric, of, to: Some(to), need }
}
