// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows whose sides run the same job: with `mqblk run` and with fio, or with our engine in fio.
//!
//! Guarantees and form: see [`super`].

use super::row::{Goal, Metric, Need, Program, Row, Side, shown};

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

const FILE_MANY_JOBS: &str = "\
[global]
ioengine=io_uring
filename={file}
direct=1
rw=randread
bs=4k
size={size}
norandommap=1
iodepth=32
iodepth_batch_complete_min=1
iodepth_batch_complete_max=32
group_reporting=1
numjobs=48
{limit}
{extra}
[j0]
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

const KERNEL_QD32: &str = "\
[global]
ioengine=io_uring
filename={loop}
direct=1
rw=randread
bs=4k
norandommap
iodepth=32
iodepth_batch_submit=8
iodepth_batch_complete_min=1
iodepth_batch_complete_max=32
{limit}
{extra}
[j0]
";

const KERNEL_QD1: &str = "\
[global]
ioengine=io_uring
filename={loop}
direct=1
rw=randread
bs=4k
norandommap
iodepth=1
{limit}
{extra}
[j0]
";

/// Options for fio's io_uring engine to reach its best rate. Our driver registers files and buffers by itself.
const REGISTERED: &str = "registerfiles=1\nfixedbufs=1";

const NULL_TARGET: &[&str] = &["--target", "null:size=64g"];
const FILE_TARGET: &[&str] = &["--target", "file:{file}"];
const KERNEL_TARGET: &[&str] = &["--target", "kernel:{loop}"];

/// A job for drivers that need only a queue depth. `{extra}` has the lines with which fio reaches the same disk.
const NBD_QD1: &str = "\
[global]
ioengine=libaio
rw=randread
bs=4k
size=1g
norandommap
iodepth=1
{limit}
{extra}
[j0]
";

const NBD_QD32: &str = "\
[global]
ioengine=libaio
rw=randread
bs=4k
size=1g
norandommap
iodepth=32
{limit}
{extra}
[j0]
";

const NBD_TARGET: &[&str] = &["--target", "nbd+unix:///?socket={nbd}&connections=1"];
const NBD_ENGINE: &str = "ioengine=nbd\nuri=nbd+unix:///?socket={nbd}";

/// These lines follow the job's own `ioengine`. Of two such lines, fio uses the later one.
const OUR_ENGINE: &str = "ioengine={engine}\nfilename=null\\:size=64g";

/// In the order of a full run.
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
        name: "file-many-jobs",
        title: "a file through io_uring, O_DIRECT, 48 jobs of depth 32 on 2 CPUs; fio: threads, as mqblk's are",
        cpus: 2,
        sides: &[mqblk("mqblk", FILE_MANY_JOBS, FILE_TARGET), fio("fio", FILE_MANY_JOBS, "thread")],
        turns: true,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::Shown)],
    },
    Row {
        name: "file-qd1",
        title: "a file through io_uring, O_DIRECT, depth 1",
        cpus: 1,
        sides: &[mqblk("mqblk", FILE_QD1, FILE_TARGET), fio("fio", FILE_QD1, REGISTERED)],
        turns: true,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::AtMost(1.0))],
    },
    Row {
        name: "kernel-qd32",
        title: "a loop device of the kernel, without our block layer, O_DIRECT, depth 32, batches of 8",
        cpus: 1,
        sides: &[mqblk("mqblk", KERNEL_QD32, KERNEL_TARGET), fio("fio", KERNEL_QD32, REGISTERED)],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::AtMost(1.0))],
    },
    Row {
        name: "kernel-qd1",
        title: "a loop device of the kernel, without our block layer, O_DIRECT, depth 1",
        cpus: 1,
        sides: &[mqblk("mqblk", KERNEL_QD1, KERNEL_TARGET), fio("fio", KERNEL_QD1, REGISTERED)],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::AtLeast(0.97)), ratio(Metric::CpuPerIo, Need::AtMost(1.0))],
    },
    Row {
        name: "engine-qd1",
        title: "fio with libmqblk_fio.so on our null driver against fio's null engine, one CPU, depth 1",
        cpus: 1,
        sides: &[engine("mqblk", NULL_QD1), fio("fio", NULL_QD1, "")],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::Shown)],
    },
    Row {
        name: "engine-qd32",
        title: "the same at depth 32",
        cpus: 1,
        sides: &[engine("mqblk", NULL_QD32), fio("fio", NULL_QD32, "")],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::Shown)],
    },
    Row {
        name: "nbd-driver-qd1",
        title: "the NBD driver against fio's nbd engine: nbdkit's null disk over a Unix socket, one connection, depth 1",
        cpus: 2,
        sides: &[mqblk("mqblk", NBD_QD1, NBD_TARGET), fio("fio", NBD_QD1, NBD_ENGINE)],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::Shown), ratio(Metric::CpuPerIo, Need::Shown)],
    },
    Row {
        name: "nbd-driver-qd32",
        title: "the same at depth 32",
        cpus: 2,
        sides: &[mqblk("mqblk", NBD_QD32, NBD_TARGET), fio("fio", NBD_QD32, NBD_ENGINE)],
        turns: false,
        goals: &[ratio(Metric::Iops, Need::Shown), ratio(Metric::CpuPerIo, Need::Shown)],
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

/// The most common goal: our figure divided by fio's.
const fn ratio(metric: Metric, need: Need) -> Goal {
    Goal { metric, of: "mqblk", to: Some("fio"), need }
}

const fn engine(name: &'static str, job: &'static str) -> Side {
    Side { name, program: Program::Engine, job, extra: OUR_ENGINE, args: &[] }
}
