// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scaling studies: how I/O rates change as a machine, a disk or its queues grow, as tables of simulated points.
//!
//! A study is a list of [`Cell`]s in series; each cell is a machine, settings and a load, and gives a [`Point`]. Guarantees:
//! the same study of the same machine gives the same points to the last digit, in any order of simulation. A cell runs until
//! it has as many I/Os as its [`Effort`] says, however fast or slow it is. So the cost of a table is proportional to its
//! cells. Needs from callers: nothing. Does not do: measure. A caller that wants measured figures beside the points runs
//! [`Cell::job`] with [`Cell::set`] itself.
//!
//! | module | what it is |
//! |---|---|
//! | [`base`](mod@base) | the default machines of studies |
//! | [`cells`] | which cells a study has |
//! | [`point`] | a cell simulated |
//! | [`reason`] | why a series has its shape, in a sentence |

pub mod base;
pub mod cells;
pub mod point;
pub mod reason;

pub use cells::{Cell, Load};
pub use point::{Effort, Point, simulate};

use serde::Serialize;

/// The quantity that a study scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Study {
    /// CPUs that do I/O, single-queue against multi-queue.
    Cpus,
    /// Sockets, all of whose CPUs do I/O, single-queue against multi-queue.
    Sockets,
    /// Hardware queues of a disk that all CPUs use.
    HwQueues,
    /// I/Os in flight per thread.
    Depth,
    /// CPUs that do I/O, with each elevator.
    Elevators,
    /// IOThreads that serve a virtual machine's disk.
    Iothreads,
}

impl Study {
    /// All studies.
    pub const ALL: [Study; 6] =
        [Study::Cpus, Study::Sockets, Study::HwQueues, Study::Depth, Study::Elevators, Study::Iothreads];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Study::Cpus => "cpus",
            Study::Sockets => "sockets",
            Study::HwQueues => "hw-queues",
            Study::Depth => "depth",
            Study::Elevators => "elevators",
            Study::Iothreads => "iothreads",
        }
    }

    /// The unit of the numbers of a series.
    pub fn unit(self) -> &'static str {
        match self {
            Study::Cpus | Study::Elevators => "CPUs",
            Study::Sockets => "sockets",
            Study::HwQueues => "queues",
            Study::Depth => "depth",
            Study::Iothreads => "IOThreads",
        }
    }

    /// One line about the study.
    pub fn title(self) -> &'static str {
        match self {
            Study::Cpus => "single-queue against multi-queue, by CPUs that do I/O",
            Study::Sockets => "single-queue against multi-queue, by CPU sockets; all CPUs of a socket do I/O",
            Study::HwQueues => "hardware queues of a disk that all CPUs use",
            Study::Depth => "I/Os in flight per thread",
            Study::Elevators => "elevators, by CPUs that do I/O",
            Study::Iothreads => "IOThreads that serve the disk of one virtual machine",
        }
    }
}

/// Returns the I/Os per second of each CPU at `p`, relative to the first point of the same series in `points`.
///
/// # Panics
/// `p` belongs to no series of `points`.
pub fn efficiency(points: &[Point], p: &Point) -> f64 {
    let first = points.iter().find(|f| f.series == p.series).expect("it is one of them");
    let of = |p: &Point| p.iops / f64::from(p.cpus);
    of(p) / of(first)
}

/// Groups items by the series that `name` returns. Series and items keep their order.
pub fn by_series<'a, T>(items: &'a [T], name: impl Fn(&'a T) -> &'a str) -> Vec<(&'a str, Vec<&'a T>)> {
    let mut all: Vec<(&str, Vec<&T>)> = Vec::new();
    for item in items {
        match all.iter_mut().find(|(series, _)| *series == name(item)) {
            Some((_, of_it)) => of_it.push(item),
            None => all.push((name(item), vec![item])),
        }
    }
    all
}
