// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a row is made of: sides with a program and a job, and goals.

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
#[derive(Clone, Copy)]
pub struct Side {
    /// Its name in the row.
    pub name: &'static str,
    /// The programs that run it.
    pub program: Program,
    /// The job file, with blanks. Where `{nbd}` is named, in it, in `extra` or in `args`, nbdkit serves a disk there that does
    /// nothing, while the side runs; `{iscsi}` is a logical unit of a tgtd, `{ceph}` the directory of a cluster.
    pub job: &'static str,
    /// Lines of `[global]` that only this side gets.
    pub extra: &'static str,
    /// Arguments that only this side gets; of fio, variables of its environment.
    pub args: &'static [&'static str],
}

/// The programs that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Ours, `mqblk run`.
    Mqblk,
    /// The yardstick.
    Fio,
    /// libiscsi's, which knows no job: 4 KiB random reads.
    IscsiPerf,
    /// A bench of `blk`, `scsi_multipath`, which knows no job.
    Layers,
    /// fio with our engine, `libmqblk_fio.so`, which `{engine}` names.
    Engine,
    /// A server, with a client that is the same for all of a row.
    Served(Served),
    /// Ours over paths of unequal speed.
    Unequal(Unequal),
    /// Ours with a path that is pulled, which knows no job: fio writes and verifies.
    Pull(Pull),
    /// Ours in real or in virtual time, which knows its own jobs.
    Agrees(Agrees),
}

/// In which time the jobs of the storvsc patch run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Agrees {
    /// In virtual time.
    pub is_simulated: bool,
    /// `nr_hw_queues`.
    pub queues: u16,
}

/// Paths to one disk, of which the last is slow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unequal {
    /// `path_selector`.
    pub selector: &'static str,
    /// How many, two to four.
    pub paths: u8,
}

/// What happens to one of two paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// What.
    pub what: Pulled,
    /// Both are in one group, and in use; else the pulled one is.
    pub is_multibus: bool,
    /// Silence is noticed after 1 and 1 instead of 5 and 5 seconds.
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

/// A server and what is asked of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The server.
    pub by: By,
    /// What: `true` a file past the page cache, `false` a disk that does nothing.
    pub file: bool,
    /// IOThreads, where the server has a choice.
    pub iothreads: u16,
    /// The client.
    pub client: Client,
    /// IOThread and client of each virtqueue share one CPU, that of its number.
    pub pinned: bool,
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
    /// The same by `vuclient lean`, a driver that costs next to nothing: fixed chains, headers and buffers.
    Lean {
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
    /// The same by `vuclient nbd`, which receives and sends as much as it can by one call.
    LeanNbd {
        /// Connections, a thread each.
        connections: u16,
        /// Requests in flight of each.
        iodepth: u16,
    },
    /// fio on the one file of a FUSE export, 4 KiB random reads past the page cache by io_uring.
    FioFuse {
        /// Requests in flight.
        iodepth: u16,
    },
    /// No client: so many disks, each with a vhost-user-blk export of two virtqueues, do nothing.
    Idle {
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
    /// The same of the whole process, start-up included, as the kernel counts.
    ProcessCpuPerIo,
    /// Nanoseconds per I/O that layers of `blk` add, one I/O at a time.
    AddedNs,
    /// The same in batches of 32.
    AddedNs32,
    /// What two threads do on a disk each, in terms of one alone.
    Scaling,
    /// The same without the layers.
    PlainScaling,
    /// Percent of a CPU that a server without clients uses.
    IdleCpu,
    /// Memory resident in a server without clients, MB.
    Resident,
    /// Latency in microseconds that half of the I/Os keep.
    P50,
    /// The same, 99 of 100.
    P99,
    /// Percent of the I/Os that this path carried, the first is 0.
    Share(u8),
    /// Bandwidth of reads, MB/s.
    ReadMb,
    /// Writes per second.
    WriteIops,
    /// Longest time without the end of an I/O before a path was pulled, milliseconds.
    GapBefore,
    /// The same from then on.
    Gap,
    /// The same from when the path was back.
    GapBack,
    /// The longest I/O from when the path was pulled, milliseconds.
    Longest,
    /// I/O errors, and blocks that were not what was written last.
    Errors,
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
    /// From 1 less this to 1 and this.
    Within(f64),
    /// Anything: printed for honesty.
    Shown,
}

impl Row {
    /// Whether no program can do it in our place.
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

    /// Whether it needs the clients that are ours.
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

/// Rates of two sides, printed for honesty.
pub const fn shown(of: &'static str, to: &'static str) -> Goal {
    Goal { metric: Metric::Iops, of, to: Some(to), need: Need::Shown }
}
