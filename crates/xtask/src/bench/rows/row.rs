// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of a row: sides with a program and a job, and goals.

/// A group of runs that are compared with each other.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How many CPUs it needs.
    pub cpus: usize,
    /// The sides, which run in turn.
    pub sides: &'static [Side],
    /// The sides run by turns of a few hundredths of a second instead of one after the other, because the device's speed drifts.
    pub turns: bool,
    /// Goals for the figures.
    pub goals: &'static [Goal],
}

/// One program with one job.
#[derive(Clone, Copy)]
pub struct Side {
    /// Its name in the row.
    pub name: &'static str,
    /// The program that runs the job.
    pub program: Program,
    /// The job file, with blanks. If the job, `extra` or `args` contain `{nbd}`, nbdkit serves a disk that does nothing at that socket
    /// while the side runs. `{iscsi}` is a logical unit of a tgtd, `{ceph}` the directory of a cluster.
    pub job: &'static str,
    /// Lines of `[global]` that only this side gets.
    pub extra: &'static str,
    /// Arguments that only this side gets. For fio, these are environment variables.
    pub args: &'static [&'static str],
}

/// The programs that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Ours, `mqblk run`.
    Mqblk,
    /// The yardstick.
    Fio,
    /// libiscsi's iscsi-perf. It reads no job file: it does 4 KiB random reads.
    IscsiPerf,
    /// The bench `scsi_multipath` of `blk`, which reads no job file.
    Layers,
    /// fio with our engine, `libmqblk_fio.so`, which `{engine}` names.
    Engine,
    /// A server, with a client that is the same for all sides of a row.
    Served(Served),
    /// Ours over paths of unequal speed.
    Unequal(Unequal),
    /// Ours with a path that is pulled. This reads no job file: fio writes and verifies.
    Pull(Pull),
    /// Ours in real or in virtual time, with jobs of its own.
    Agrees(Agrees),
}

/// How the jobs of the storvsc patch run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Agrees {
    /// Run in virtual time; else in real time.
    pub is_simulated: bool,
    /// `nr_hw_queues`.
    pub queues: u16,
}

/// Paths to one disk, of which the last is slow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unequal {
    /// `path_selector`.
    pub selector: &'static str,
    /// Number of paths, two to four.
    pub paths: u8,
}

/// What happens to one of two paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// How the path is pulled.
    pub what: Pulled,
    /// Both paths are in one group, and in use; else only the pulled path is in use.
    pub is_multibus: bool,
    /// `noop_interval` and `noop_timeout` are 1 second each instead of 5.
    pub is_quick: bool,
}

/// How a path is pulled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pulled {
    /// kill -9 of its target.
    Killed,
    /// SIGSTOP of its target.
    Stopped,
    /// Its target ends the session.
    Dropped,
}

/// A server, its configuration and its client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The server.
    pub by: By,
    /// Its disk.
    pub disk: Disk,
    /// IOThreads, if the server lets them be set.
    pub iothreads: u16,
    /// The client.
    pub client: Client,
    /// IOThread and client of each virtqueue share one CPU, whose number is the virtqueue's.
    pub pinned: bool,
}

/// The disks of servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Does nothing.
    Null,
    /// A file without the page cache.
    File,
    /// A file in the page cache, by a pool of threads.
    CachedByThreads,
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
    /// blkio (by `vuclient bench`), 4 KiB random reads. It sleeps or polls until requests complete.
    Blkio {
        /// Virtqueues, a thread each.
        queues: u16,
        /// Requests in flight on each.
        iodepth: u16,
        /// Polls for completions instead of sleeping.
        spins: bool,
    },
    /// The same by `vuclient lean`, a driver that needs almost no CPU time: its chains, headers and buffers are fixed.
    Lean {
        /// Virtqueues, a thread each.
        queues: u16,
        /// Requests in flight on each.
        iodepth: u16,
        /// Polls for completions instead of sleeping.
        spins: bool,
    },
    /// fio's nbd engine, 4 KiB random reads over a Unix socket.
    FioNbd {
        /// Jobs, a connection each.
        connections: u16,
        /// Requests in flight on each.
        iodepth: u16,
    },
    /// The same by `vuclient nbd`, which receives and sends as much as possible per system call.
    LeanNbd {
        /// Connections, a thread each.
        connections: u16,
        /// Requests in flight on each.
        iodepth: u16,
    },
    /// fio on the one file of a FUSE export, 4 KiB random reads by io_uring without the page cache.
    FioFuse {
        /// Requests in flight.
        iodepth: u16,
    },
    /// No client. Several disks, each with a vhost-user-blk export of two virtqueues, do nothing.
    Idle {
        /// Disks.
        disks: u16,
    },
}

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// I/Os per second over all jobs.
    Iops,
    /// User and system time per I/O in microseconds. A program reports its own; of a server, the kernel's figure is read.
    CpuPerIo,
    /// User and system time of the whole process per I/O, start-up included, as the kernel counts.
    ProcessCpuPerIo,
    /// Nanoseconds per I/O that layers of `blk` add, one I/O at a time.
    AddedNs,
    /// The same in batches of 32.
    AddedNs32,
    /// Rate of two threads with a disk each, divided by the rate of one thread.
    Scaling,
    /// The same without the layers.
    PlainScaling,
    /// Percent of a CPU that a server without clients uses.
    IdleCpu,
    /// Memory resident in a server without clients, MB.
    Resident,
    /// Median latency in microseconds.
    P50,
    /// 99th percentile of the latency in microseconds.
    P99,
    /// Percent of the I/Os that this path carried. The first path is 0.
    Share(u8),
    /// Bandwidth of reads, MB/s.
    ReadMb,
    /// Writes per second.
    WriteIops,
    /// Longest time without a completion before a path was pulled, milliseconds.
    GapBefore,
    /// The same from then until the path was back.
    Gap,
    /// The same after the path was back.
    GapBack,
    /// Longest latency of an I/O after the path was pulled, milliseconds.
    Longest,
    /// I/O errors, and blocks that do not hold what was written last.
    Errors,
}

/// A figure of a row, and what it must be.
pub struct Goal {
    /// The metric.
    pub metric: Metric,
    /// The side whose figure this is.
    pub of: &'static str,
    /// The side whose figure divides it; `None` means no division.
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
    /// At least this, or at least the ratio of two other sides (the first divided by the second), whichever is lower.
    AtLeastOrPeer(f64, &'static str, &'static str),
    /// Within this distance of 1.
    Within(f64),
    /// Anything. The figure is only shown.
    Shown,
}

impl Row {
    /// Whether only mqblk can run this row, so that `--control` omits it.
    pub fn is_ours_alone(&self) -> bool {
        self.sides
            .iter()
            .any(|side| matches!(side.program, Program::Unequal(_) | Program::Pull(_) | Program::Agrees(_)))
    }
}

impl Side {
    /// Whether it needs an NBD server beside it.
    pub fn needs_nbd(&self) -> bool {
        self.names("{nbd}")
    }

    /// Whether it needs a tgtd.
    pub fn needs_iscsi(&self) -> bool {
        matches!(self.program, Program::IscsiPerf | Program::Unequal(_)) || self.names("{iscsi}")
    }

    /// Whether it needs a loop device.
    pub fn needs_loop(&self) -> bool {
        self.names("{loop}")
    }

    /// Whether it needs the file of the file rows.
    pub fn needs_file(&self) -> bool {
        matches!(self.program, Program::Served(_)) || self.names("{file}") || self.names("{size}")
    }

    /// Whether it needs `mqblk-vuclient`, our client.
    pub fn needs_vuclient(&self) -> bool {
        matches!(self.program, Program::Served(_))
    }

    /// Whether it needs a Ceph cluster.
    pub fn needs_ceph(&self) -> bool {
        self.names("{ceph}")
    }

    fn names(&self, blank: &str) -> bool {
        self.args.iter().chain([&self.job, &self.extra]).any(|text| text.contains(blank))
    }
}

/// The ratio of two sides' rates, which is only shown.
pub const fn shown(of: &'static str, to: &'static str) -> Goal {
    Goal { metric: Metric::Iops, of, to: Some(to), need: Need::Shown }
}
