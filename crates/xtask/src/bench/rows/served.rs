// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of a client and several servers, ours and its peers.
//!
//! The clients that the goals name, blkio and fio, use more time per request than a good server does. So some rows come a second time
//! with a client that needs almost no CPU time, and with the same goal.
//! Guarantees and form: see [`super`].

use super::row::{By, Client, Disk, Goal, Metric, Need, Program, Row, Served, Side, shown};

/// In the order of a full run.
pub const ROWS: &[Row] = &[
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
    vhost(
        "vhost-qd32-lean",
        "vhost-user-blk, null disk, 1 IOThread, depth 32, a driver that costs next to nothing, sleeps",
        &pair(lean(32, false)),
        VHOST_GOAL,
    ),
    vhost("vhost-qd128-lean", "the same at depth 128", &pair(lean(128, false)), VHOST_GOAL),
    vhost("vhost-qd32-lean-spin", "the same at depth 32, the driver spins", &pair(lean(32, true)), VHOST_SHOWN),
    vhost("vhost-qd128-lean-spin", "the same at depth 128, the driver spins", &pair(lean(128, true)), VHOST_SHOWN),
    Row {
        name: "vhost-scaling",
        title: "vhost-user-blk, null disk, depth 32: two virtqueues on two IOThreads against one on one",
        cpus: 2,
        sides: &SCALING,
        turns: false,
        // With two queues, four threads are busy. On fewer CPUs the server is not the only limit, so the next two rows are judged.
        goals: &[shown("mqblk-2", "mqblk-1"), shown("qsd-2", "qsd-1")],
    },
    Row {
        name: "vhost-scaling-4",
        title: "the same where there is a CPU for each of the four threads",
        cpus: 4,
        sides: &SCALING,
        turns: false,
        goals: SCALING_GOAL,
    },
    Row {
        name: "vhost-scaling-cpu",
        title: "the same with one CPU for a virtqueue's client and its IOThread: two CPUs against one",
        cpus: 2,
        sides: &[pinned(SCALING[0]), pinned(SCALING[1]), pinned(SCALING[2]), pinned(SCALING[3])],
        turns: false,
        goals: SCALING_GOAL,
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
            served("mqblk", By::Mqblk, Disk::Null, 1, NBD_QD32),
            served("qsd", By::Qsd, Disk::Null, 1, NBD_QD32),
            served("nbdkit", By::Nbdkit, Disk::Null, 1, NBD_QD32),
        ],
        turns: false,
        goals: NBD_GOAL,
    },
    Row {
        name: "nbd-qd32-lean",
        title: "the same with a client that receives and sends as much as it can by one call",
        cpus: 2,
        sides: &[
            served("mqblk", By::Mqblk, Disk::Null, 1, lean_nbd(1)),
            served("qsd", By::Qsd, Disk::Null, 1, lean_nbd(1)),
            served("nbdkit", By::Nbdkit, Disk::Null, 1, lean_nbd(1)),
        ],
        turns: false,
        goals: NBD_GOAL,
    },
    Row {
        name: "nbd-threads",
        title: "the same with a file in the page cache, without io_uring (aio=threads)",
        cpus: 2,
        sides: &[
            served("mqblk", By::Mqblk, Disk::CachedByThreads, 1, lean_nbd(1)),
            served("qsd", By::Qsd, Disk::CachedByThreads, 1, lean_nbd(1)),
            served("nbdkit", By::Nbdkit, Disk::CachedByThreads, 1, lean_nbd(1)),
        ],
        turns: false,
        goals: &[
            Goal { metric: Metric::Iops, of: "mqblk", to: Some("nbdkit"), need: Need::AtLeast(1.0) },
            Goal { metric: Metric::CpuPerIo, of: "mqblk", to: Some("nbdkit"), need: Need::Shown },
            to_qsd(Metric::Iops, Need::Shown),
            to_qsd(Metric::CpuPerIo, Need::Shown),
        ],
    },
    Row {
        name: "nbd-scaling",
        title: "NBD over a Unix socket, null disk, fio's nbd engine, depth 32: four connections against one",
        cpus: 2,
        sides: &[
            served("mqblk-1", By::Mqblk, Disk::Null, 2, NBD_QD32),
            served("mqblk-4", By::Mqblk, Disk::Null, 2, NBD_QD32_X4),
            served("nbdkit-1", By::Nbdkit, Disk::Null, 1, NBD_QD32),
            served("nbdkit-4", By::Nbdkit, Disk::Null, 1, NBD_QD32_X4),
        ],
        turns: false,
        goals: &[shown("mqblk-4", "mqblk-1"), shown("nbdkit-4", "nbdkit-1")],
    },
    Row {
        name: "nbd-scaling-lean",
        title: "the same with a client that receives and sends as much as it can by one call",
        cpus: 2,
        sides: &[
            served("mqblk-1", By::Mqblk, Disk::Null, 2, lean_nbd(1)),
            served("mqblk-4", By::Mqblk, Disk::Null, 2, lean_nbd(4)),
            served("nbdkit-1", By::Nbdkit, Disk::Null, 1, lean_nbd(1)),
            served("nbdkit-4", By::Nbdkit, Disk::Null, 1, lean_nbd(4)),
        ],
        turns: false,
        goals: &[shown("mqblk-4", "mqblk-1"), shown("nbdkit-4", "nbdkit-1")],
    },
    vhost(
        "fuse-qd1",
        "FUSE, a file past the page cache, fio on the export's file by io_uring, depth 1",
        &file_pair(Client::FioFuse { iodepth: 1 }),
        VHOST_SHOWN,
    ),
    vhost("fuse-qd32", "the same at depth 32", &file_pair(Client::FioFuse { iodepth: 32 }), VHOST_SHOWN),
    Row {
        name: "serve-idle",
        title: "64 disks without clients, a vhost-user-blk export of two virtqueues each",
        cpus: 1,
        sides: &[served("mqblk", By::Mqblk, Disk::File, 2, Client::Idle { disks: 64 })],
        turns: false,
        goals: &[
            Goal { metric: Metric::IdleCpu, of: "mqblk", to: None, need: Need::AtMost(0.1) },
            Goal { metric: Metric::Resident, of: "mqblk", to: None, need: Need::AtMost(200.0) },
        ],
    },
];

const fn served(name: &'static str, by: By, disk: Disk, iothreads: u16, client: Client) -> Side {
    Side {
        name,
        program: Program::Served(Served { by, disk, iothreads, client, pinned: false }),
        job: "",
        extra: "",
        args: &[],
    }
}

/// Returns the side with its threads pinned as in [`Served::pinned`].
const fn pinned(side: Side) -> Side {
    match side.program {
        Program::Served(served) => Side { program: Program::Served(Served { pinned: true, ..served }), ..side },
        _ => side,
    }
}

const fn depth(iodepth: u16) -> Client {
    Client::Blkio { queues: 1, iodepth, spins: false }
}

const fn spinning(iodepth: u16) -> Client {
    Client::Blkio { queues: 1, iodepth, spins: true }
}

const fn lean(iodepth: u16, spins: bool) -> Client {
    Client::Lean { queues: 1, iodepth, spins }
}

const fn lean_nbd(connections: u16) -> Client {
    Client::LeanNbd { connections, iodepth: 32 }
}

/// A row of our server and qemu-storage-daemon under one client, with goals for their ratio.
const fn vhost(name: &'static str, title: &'static str, sides: &'static [Side], goals: &'static [Goal]) -> Row {
    Row { name, title, cpus: 2, sides, turns: false, goals }
}

const fn pair(client: Client) -> [Side; 2] {
    [served("mqblk", By::Mqblk, Disk::Null, 1, client), served("qsd", By::Qsd, Disk::Null, 1, client)]
}

const fn file_pair(client: Client) -> [Side; 2] {
    [served("mqblk", By::Mqblk, Disk::File, 1, client), served("qsd", By::Qsd, Disk::File, 1, client)]
}

const fn to_qsd(metric: Metric, need: Need) -> Goal {
    Goal { metric, of: "mqblk", to: Some("qsd"), need }
}

const TWO_QUEUES: Client = Client::Blkio { queues: 2, iodepth: 32, spins: false };
const SCALING: [Side; 4] = [
    served("mqblk-1", By::Mqblk, Disk::Null, 1, depth(32)),
    served("mqblk-2", By::Mqblk, Disk::Null, 2, TWO_QUEUES),
    served("qsd-1", By::Qsd, Disk::Null, 1, depth(32)),
    served("qsd-2", By::Qsd, Disk::Null, 1, TWO_QUEUES),
];
const SCALING_GOAL: &[Goal] = &[
    Goal { metric: Metric::Iops, of: "mqblk-2", to: Some("mqblk-1"), need: Need::AtLeast(1.8) },
    shown("qsd-2", "qsd-1"),
];
const VHOST_GOAL_QD1: &[Goal] = &[to_qsd(Metric::Iops, Need::AtLeast(1.5)), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_GOAL: &[Goal] = &[to_qsd(Metric::Iops, Need::AtLeast(2.5)), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_SHOWN: &[Goal] = &[to_qsd(Metric::Iops, Need::Shown), to_qsd(Metric::CpuPerIo, Need::Shown)];
const VHOST_FILE_GOAL: &[Goal] =
    &[to_qsd(Metric::Iops, Need::AtLeast(1.0)), to_qsd(Metric::CpuPerIo, Need::AtMost(1.0))];
const NBD_QD32: Client = Client::FioNbd { connections: 1, iodepth: 32 };
const NBD_QD32_X4: Client = Client::FioNbd { connections: 4, iodepth: 32 };
const NBD_GOAL: &[Goal] = &[
    to_qsd(Metric::Iops, Need::AtLeast(2.0)),
    Goal { metric: Metric::Iops, of: "mqblk", to: Some("nbdkit"), need: Need::AtLeast(2.0) },
    to_qsd(Metric::CpuPerIo, Need::Shown),
    Goal { metric: Metric::CpuPerIo, of: "mqblk", to: Some("nbdkit"), need: Need::Shown },
];
