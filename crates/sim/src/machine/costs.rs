// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs of operations on a machine, in nanoseconds of the CPU that does them.
//!
//! Guarantees: every constant has a physical meaning and can be measured on a real host. The defaults describe a two-socket
//! server of about 2014 to 2020, and each names its source.

use serde::{Deserialize, Serialize};

/// Sockets, cores and threads, numbered as [`blk::cpumap::CpuTopology::symmetric`] numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// Sockets, each a NUMA node with one last-level cache.
    pub sockets: u16,
    /// Cores of a socket.
    pub cores: u16,
    /// Hardware threads of a core.
    pub threads: u16,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { sockets: 1, cores: 1, threads: 1 }
    }
}

/// How far two CPUs are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// It is the same CPU.
    Same,
    /// Threads of one core.
    Core,
    /// Cores of one socket.
    Socket,
    /// Another socket.
    Remote,
}

impl Shape {
    /// All hardware threads.
    pub const fn cpus(&self) -> u32 {
        self.sockets as u32 * self.cores as u32 * self.threads as u32
    }

    /// The socket of a CPU.
    pub const fn socket_of(&self, cpu: u32) -> u32 {
        self.core_of(cpu) / self.cores as u32
    }

    /// Returns the other CPUs of a CPU's socket, in ascending order from that CPU on, wrapping round.
    #[inline]
    pub fn near(&self, cpu: u32) -> impl Iterator<Item = u32> + use<> {
        // For each thread index, a socket's CPUs have consecutive numbers.
        let (cores, all) = (u32::from(self.cores), u32::from(self.sockets) * u32::from(self.cores));
        let (thread, place) = (cpu / all, cpu % cores);
        let first = (cpu % all) - place;
        let rows = u32::from(self.threads);
        let row = move |n: u32| (thread + n) % rows * all + first;
        let rest = (place + 1..cores).map(move |i| row(0) + i);
        let others = (1..rows).flat_map(move |n| (0..cores).map(move |i| row(n) + i));
        rest.chain(others).chain((0..place).map(move |i| row(0) + i))
    }

    /// The other hardware threads of a CPU's core.
    #[inline]
    pub fn siblings(&self, cpu: u32) -> impl Iterator<Item = u32> + use<> {
        let (cores, cpus) = (u32::from(self.sockets) * u32::from(self.cores), self.cpus());
        (1..u32::from(self.threads)).map(move |n| (cpu + n * cores) % cpus)
    }

    const fn core_of(&self, cpu: u32) -> u32 {
        cpu % (self.sockets as u32 * self.cores as u32)
    }

    /// How far `a` is from `b`.
    #[inline]
    pub const fn distance(&self, a: u32, b: u32) -> Distance {
        if a == b {
            Distance::Same
        } else if self.core_of(a) == self.core_of(b) {
            Distance::Core
        } else if self.socket_of(a) == self.socket_of(b) {
            Distance::Socket
        } else {
            Distance::Remote
        }
    }
}

/// How CPUs wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// All check one word, so each hand-over costs a line transfer for every one of them (ticket locks, Linux to 4.1).
    Ticket,
    /// Each checks its own word (queued locks, Linux from 4.2).
    #[default]
    Queued,
}

/// Costs of locks and cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineCosts {
    /// An atomic operation on a line in the CPU's own cache.
    pub atomic_ns: u32,
    /// Fetching a line that a sibling thread has.
    pub core_ns: u32,
    /// Fetching a line that another core of the socket has.
    pub socket_ns: u32,
    /// Fetching a line that another socket has.
    pub remote_ns: u32,
    /// Lines that the holder of a lock writes, and the next holder has to fetch: the lock's own and those of what it guards.
    pub lines: u32,
    /// How CPUs wait.
    pub waiting: Waiting,
}

impl Default for LineCosts {
    /// David, Guerraoui and Trigonakis, "Everything You Always Wanted to Know about Synchronization but Were Afraid to Ask"
    /// (SOSP 2013), tables 2 and 3: two-socket Xeon, 2.1 GHz: 44 cycles in the last-level cache of the same socket, 109 to 112 of the
    /// other core, 289 to 312 of the other socket.
    fn default() -> LineCosts {
        LineCosts { atomic_ns: 8, core_ns: 15, socket_ns: 50, remote_ns: 140, lines: 3, waiting: Waiting::Queued }
    }
}

impl LineCosts {
    /// Returns the cost of fetching one line from that distance.
    #[inline]
    pub const fn line_ns(&self, from: Distance) -> u64 {
        match from {
            Distance::Same => 0,
            Distance::Core => self.core_ns as u64,
            Distance::Socket => self.socket_ns as u64,
            Distance::Remote => self.remote_ns as u64,
        }
    }
}

/// Costs of an I/O's path through the kernel, in addition to those of locks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathCosts {
    /// The program's own work per I/O.
    pub app_ns: u32,
    /// A system call, once per batch of submissions and once per batch of completions.
    pub syscall_ns: u32,
    /// From the system call to the block layer: page pinning, bio.
    pub submit_ns: u32,
    /// Time inside a lock of the block layer, each time it is taken.
    pub hold_ns: u32,
    /// The driver's work per request: command, DMA mapping.
    pub dispatch_ns: u32,
    /// The doorbell, once per batch.
    pub doorbell_ns: u32,
    /// An interrupt, entry to exit.
    pub irq_ns: u32,
    /// Completing a request, back to the program's completion ring.
    pub complete_ns: u32,
    /// Making a sleeping thread runnable.
    pub wakeup_ns: u32,
    /// An inter-processor interrupt that makes another CPU run the thread, until that CPU acts.
    pub ipi_ns: u32,
    /// A context switch from one thread to another.
    pub switch_ns: u32,
    /// Delay until an idle CPU starts its work: the exit from a sleep state, or from a halt under a hypervisor. It is a
    /// delay, not CPU work.
    pub idle_ns: u32,
    /// Uniform spread of `idle_ns` either way.
    pub idle_spread_ns: u32,
    /// Speed of a CPU while another thread of its core is busy, in percent of its speed otherwise, 1 to 100; 100: no
    /// slowdown. Lock hold times do not get longer; all computing of a program does, `thinktime_spin` too.
    pub sibling_pct: u32,
}

impl Default for PathCosts {
    /// One core of a server of about 2020, where io_uring with interrupts spends about 2 us on an I/O.
    fn default() -> PathCosts {
        PathCosts {
            app_ns: 250,
            syscall_ns: 150,
            submit_ns: 500,
            hold_ns: 60,
            dispatch_ns: 250,
            doorbell_ns: 100,
            irq_ns: 500,
            complete_ns: 300,
            wakeup_ns: 400,
            ipi_ns: 700,
            switch_ns: 900,
            idle_ns: 0,
            idle_spread_ns: 0,
            sibling_pct: 100,
        }
    }
}

/// The kernel's code inside its locks, relative to the table of [`sites`](super::kernel::sites), in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelCosts {
    /// Time inside the locks.
    pub hold_pct: u32,
    /// Cache lines that they move.
    pub lines_pct: u32,
}

impl Default for KernelCosts {
    fn default() -> KernelCosts {
        KernelCosts { hold_pct: 100, lines_pct: 100 }
    }
}

/// All costs of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// Locks and cache lines.
    pub line: LineCosts,
    /// The path of an I/O.
    pub path: PathCosts,
    /// The kernel's locks, where the machine has a kernel's block layer.
    pub kernel: KernelCosts,
}

impl Costs {
    /// Returns a cost by its path in a machine file, such as `costs.path.app_ns`.
    pub(crate) fn field(mut self, name: &str) -> Option<u32> {
        self.field_mut(name).copied()
    }

    /// As [`Costs::field`], to change it.
    pub(crate) fn field_mut(&mut self, name: &str) -> Option<&mut u32> {
        let (p, l, k) = (&mut self.path, &mut self.line, &mut self.kernel);
        Some(match name {
            "costs.path.app_ns" => &mut p.app_ns,
            "costs.path.syscall_ns" => &mut p.syscall_ns,
            "costs.path.submit_ns" => &mut p.submit_ns,
            "costs.path.hold_ns" => &mut p.hold_ns,
            "costs.path.dispatch_ns" => &mut p.dispatch_ns,
            "costs.path.doorbell_ns" => &mut p.doorbell_ns,
            "costs.path.irq_ns" => &mut p.irq_ns,
            "costs.path.complete_ns" => &mut p.complete_ns,
            "costs.path.wakeup_ns" => &mut p.wakeup_ns,
            "costs.path.ipi_ns" => &mut p.ipi_ns,
            "costs.path.switch_ns" => &mut p.switch_ns,
            "costs.line.atomic_ns" => &mut l.atomic_ns,
            "costs.line.core_ns" => &mut l.core_ns,
            "costs.line.socket_ns" => &mut l.socket_ns,
            "costs.line.remote_ns" => &mut l.remote_ns,
            "costs.line.lines" => &mut l.lines,
            "costs.kernel.hold_pct" => &mut k.hold_pct,
            "costs.kernel.lines_pct" => &mut k.lines_pct,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::cpumap::CpuTopology;

    #[test]
    fn those_near_are_the_others_of_the_socket_from_the_next_one_on() {
        for (sockets, cores, threads) in [(1, 1, 1), (1, 4, 1), (2, 3, 2), (3, 2, 3), (1, 2, 2)] {
            let shape = Shape { sockets, cores, threads };
            let n = shape.cpus();
            for cpu in 0..n {
                let all = (1..n).map(|i| (cpu + i) % n).filter(|c| shape.socket_of(*c) == shape.socket_of(cpu));
                assert_eq!(shape.near(cpu).collect::<Vec<_>>(), all.collect::<Vec<_>>(), "{shape:?} {cpu}");
            }
        }
    }

    #[test]
    fn a_shape_numbers_cpus_as_the_block_layer_does() {
        let shape = Shape { sockets: 2, cores: 3, threads: 2 };
        let topology = CpuTopology::symmetric(2, 3, 2);
        for a in 0..shape.cpus() {
            assert_eq!(shape.socket_of(a), u32::from(topology.node_of[a as usize]), "{a}");
            for b in 0..shape.cpus() {
                let (ca, cb) = (topology.core_of[a as usize], topology.core_of[b as usize]);
                let (na, nb) = (topology.node_of[a as usize], topology.node_of[b as usize]);
                let expected = match (a == b, ca == cb, na == nb) {
                    (true, ..) => Distance::Same,
                    (_, true, _) => Distance::Core,
                    (_, _, true) => Distance::Socket,
                    _ => Distance::Remote,
                };
                assert_eq!(shape.distance(a, b), expected, "{a} {b}");
            }
        }
    }
}
