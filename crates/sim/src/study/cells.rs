// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cells of a study: its series, and the quantity that grows along each series.
//!
//! Guarantees: numbers double and end with the whole machine. Does not do: simulate.

use super::Study;
use crate::machine::costs::Shape;
use crate::scenario::file::{Attach, Scenario};
use blk::elevator::MqElevator;

/// The load of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Random reads of 4 KiB by threads, one thread per CPU.
    Reads {
        /// Number of threads, on the CPUs from 0 on.
        threads: u32,
        /// I/Os in flight per thread.
        depth: u32,
    },
    /// Users of the machine's virtual machine.
    Users {
        /// Number of users.
        users: u32,
        /// IOThreads that serve its disk; 0 = the main loop does.
        iothreads: u32,
    },
}

/// Settings by their names.
pub type Set = Vec<(&'static str, String)>;

/// One point of a study, before it is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Its series: `sq`, `mq`, an elevator.
    pub series: String,
    /// The value of the quantity that the study scales.
    pub x: u32,
    /// The machine's CPUs in this cell.
    pub shape: Shape,
    /// The load.
    pub load: Load,
    /// Settings that override the machine's own.
    pub set: Set,
}

impl Cell {
    /// Returns the job file of a cell of reads, with these ramp and run times.
    pub fn job(&self, ramp_us: u64, run_us: u64) -> Option<String> {
        let Load::Reads { threads, depth } = self.load else { return None };
        Some(format!(
            "[study]\nrw=randread\nbs=4k\nioengine=libaio\ndirect=1\niodepth={depth}\nnumjobs={threads}\nsize=1g\nnorandommap\n\
             time_based\nramp_time={ramp_us}us\nruntime={run_us}us\ngroup_reporting\n"
        ))
    }
}

/// I/Os in flight per thread in studies of other quantities.
const DEPTH: u32 = 32;

/// Threads in a study of depths.
const DEPTH_THREADS: u32 = 8;

/// Largest number of requests that a disk accepts as a setting.
const REQUESTS_MAX: u32 = 10_240;

/// The elevators in a study of elevators.
const ELEVATORS: [&str; 5] = MqElevator::names_without(&[]);

/// Returns the cells of a study on a machine, series by series. No cell has more than `most` CPUs.
pub fn of(study: Study, machine: &Scenario, most: u32) -> Vec<Cell> {
    let shape = machine.machine;
    let all = shape.cpus().min(most).max(1);
    let reads = |series: &str, x, threads, depth, set| Cell {
        series: series.into(),
        x,
        shape,
        load: Load::Reads { threads, depth },
        set,
    };
    let sq_mq = |make: &dyn Fn(&str, Set) -> Vec<Cell>| {
        let sq = make("sq", single_queue(machine, all));
        sq.into_iter().chain(make("mq", multi_queue("none"))).collect()
    };
    match study {
        Study::Cpus => {
            sq_mq(&|series, set| doubling(1, all).map(|n| reads(series, n, n, DEPTH, set.clone())).collect())
        }
        Study::Sockets => sq_mq(&|series, set| {
            let per_socket = u32::from(shape.cores) * u32::from(shape.threads);
            let sockets = (all / per_socket).max(1).min(u32::from(shape.sockets));
            let cell = |s: u32| {
                let of = Shape { sockets: s as u16, ..shape };
                Cell { shape: of, ..reads(series, s, of.cpus().min(all), DEPTH, set.clone()) }
            };
            doubling(1, sockets).map(cell).collect()
        }),
        Study::HwQueues => {
            let cell = |scheduler: &'static str, n: u32| {
                let mut set = multi_queue(scheduler);
                set.push(("nr_hw_queues", n.to_string()));
                reads(scheduler, n, all, DEPTH, set)
            };
            ["none", "mq-deadline"].iter().flat_map(|s| doubling(1, all).map(|n| cell(s, n))).collect()
        }
        Study::Depth => {
            let threads = all.min(DEPTH_THREADS);
            sq_mq(&|series, set| doubling(1, 256).map(|d| reads(series, d, threads, d, set.clone())).collect())
        }
        Study::Elevators => {
            let cell = |e: &'static str, n: u32| reads(e, n, n, DEPTH, multi_queue(e));
            ELEVATORS.iter().flat_map(|e| doubling(1, all.min(64)).map(|n| cell(e, n))).collect()
        }
        Study::Iothreads => {
            let users = machine.guests.as_ref().map_or(&[][..], |g| &g.users);
            let cell = |users: u32, x: u32| Cell {
                series: format!("{users} users"),
                x,
                shape,
                load: Load::Users { users, iothreads: x },
                set: Vec::new(),
            };
            users.iter().flat_map(|u| std::iter::once(0).chain(doubling(1, 16)).map(|x| cell(*u, x))).collect()
        }
    }
}

/// A single queue with room for all I/Os of the threads, and without sorting.
fn single_queue(machine: &Scenario, threads: u32) -> Set {
    let requests = (threads * DEPTH).clamp(128, REQUESTS_MAX).to_string();
    let mut set = vec![("mode", "sq".to_owned()), ("scheduler", "noop".to_owned()), ("nr_requests", requests.clone())];
    if matches!(machine.disk.attach, Attach::Direct | Attach::Model) {
        set.push(("queue_depth", requests));
    }
    set
}

/// A hardware queue for each CPU, with the machine's depth.
fn multi_queue(scheduler: &str) -> Set {
    vec![("mode", "mq".to_owned()), ("scheduler", scheduler.to_owned())]
}

/// Yields `from`, then doubles while below `to`, then yields `to`.
fn doubling(from: u32, to: u32) -> impl Iterator<Item = u32> {
    let below = std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(move |n| *n < to);
    below.chain(std::iter::once(to.max(from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::base;

    #[test]
    fn the_guide_names_the_elevators_of_the_study() {
        let guide = include_str!("../../../../docs/scenarios.md");
        let row = guide.lines().find(|l| l.starts_with("| `elevators` |")).expect("a row");
        assert!(row.contains(&ELEVATORS.join(", ")), "{row}");
    }

    #[test]
    fn numbers_double_and_end_with_all_there_are() {
        assert_eq!(doubling(1, 1).collect::<Vec<_>>(), [1]);
        assert_eq!(doubling(1, 8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(doubling(1, 80).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 80]);
    }

    #[test]
    fn a_study_stops_at_its_machine_or_the_requested_limit() {
        let x_of = |study, most| {
            let cells = of(study, &base::default_of(study), most);
            cells.iter().map(|c| c.x).max().unwrap()
        };
        assert_eq!(x_of(Study::Cpus, u32::MAX), 256);
        assert_eq!(x_of(Study::Cpus, 2), 2);
        assert_eq!(x_of(Study::Sockets, u32::MAX), 8);
        assert_eq!(x_of(Study::HwQueues, u32::MAX), 64);
        assert_eq!(x_of(Study::Iothreads, u32::MAX), 16);
    }
}
