// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request-based device-mapper multipath, between a LUN's block layer and the host adapters of its paths: the locks that a
//! request takes there, and the threads that it passes through.
//!
//! The simulated disk is the multipath device. Each of its paths is a SCSI disk with a queue of its own below it. On its
//! way a request takes these locks and hand-overs:
//!
//! | | legacy, Linux 2.6.32 | legacy, Linux 4.1 | multi-queue |
//! |---|---|---|---|
//! | down: to the worker thread that maps (`kdmwork`) | - | one hand-over | - |
//! | choosing a path | `m->lock` | `m->lock` | `m->lock` |
//! | `queue_lock` of the path | 2 | 2 | - |
//! | `host_lock` around the checks, and around the driver | 2 | - | - |
//! | the driver's own lock | in `host_lock` | 1 | 1 |
//! | up: the driver's own lock | 1 | 1 | 1 |
//! | `host_lock`, the host is less busy | 1 | - | - |
//! | `queue_lock` of the path | 2 | 2 | - |
//! | another softirq, for the multipath request | 1 | 1 | - |
//! | to the worker thread that runs the queue again (`kblockd`) | - | one hand-over | - |
//!
//! Sources: drivers/md/dm.c (`dm_request_fn`, `map_request`, `rq_completed`, `dm_softirq_done`), dm-mpath.c
//! (`__multipath_map`), block/blk-core.c (`blk_insert_cloned_request`, `blk_run_queue_async`), drivers/scsi/scsi_lib.c
//! (`scsi_request_fn`, `scsi_device_unbusy`), scsi.c (`scsi_dispatch_cmd`) of 2.6.32 and 4.1; drivers/scsi/qla2xxx/qla_iocb.c
//! (`hardware_lock`) for the driver's own lock, of which an adapter has one for all LUNs.
//!
//! Guarantees: paths are used by round robin, so that adapters get equal shares. Does not do: a worker thread with its own
//! CPU time. A hand-over costs the CPU that makes it a wake-up and two switches instead. From about 60,000 requests a second
//! for one LUN, its one thread could be the bottleneck.

use super::costs::PathCosts;
use super::meter::{self, Calendar};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel version of the legacy path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// Linux 2.6.32 (RHEL 6).
    #[serde(rename = "2.6.32")]
    V2_6_32,
    /// Linux 4.1.
    #[default]
    #[serde(rename = "4.1")]
    V4_1,
}

/// Costs of multipath beside its locks, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DmCosts {
    /// Cloning a request with its bios, and ending the clone.
    pub map_ns: u32,
    /// Time that the host adapter's driver holds its lock: once per command and once per response.
    pub driver_ns: u32,
    /// A softirq that completes a request.
    pub softirq_ns: u32,
}

impl Default for DmCosts {
    /// Two allocations and a few lines; the posted write to an adapter's doorbell; entry and exit of a softirq. Each value
    /// is plausible within a factor of two. None was fitted to a published figure.
    fn default() -> DmCosts {
        DmCosts { map_ns: 600, driver_ns: 400, softirq_ns: 700 }
    }
}

/// How a LUN is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmSpec {
    /// Paths of each LUN.
    pub paths: u16,
    /// Host adapters that the paths are distributed over.
    pub hosts: u16,
    /// The legacy path of that kernel; `None`: multi-queue.
    pub legacy: Option<Kernel>,
    /// Costs beside the locks.
    pub costs: DmCosts,
}

/// The host adapters of a machine, one lock each.
pub(crate) struct Adapters(Vec<Calendar>);

impl Adapters {
    /// Makes `hosts` adapters, at least one.
    pub fn new(hosts: u16) -> Arc<Adapters> {
        Arc::new(Adapters((0..hosts.max(1)).map(|_| Calendar::default()).collect()))
    }
}

/// The paths of one LUN.
pub(crate) struct Paths {
    spec: DmSpec,
    path: PathCosts,
    map: Calendar,
    queues: Vec<Calendar>,
    adapters: Arc<Adapters>,
    next: AtomicU32,
}

impl Paths {
    /// Makes the paths of LUN number `lun` of its machine. LUNs begin with different paths.
    pub fn new(spec: DmSpec, path: PathCosts, adapters: Arc<Adapters>, lun: u16) -> Paths {
        let queues = (0..spec.paths.max(1)).map(|_| Calendar::default()).collect();
        Paths { spec, path, map: Calendar::default(), queues, adapters, next: AtomicU32::new(lun.into()) }
    }

    /// Passes a request down, at the cost of the running CPU. Returns the path.
    pub fn down(&self) -> u16 {
        let DmCosts { map_ns, driver_ns, .. } = self.spec.costs;
        if self.spec.legacy == Some(Kernel::V4_1) {
            self.hand_over();
        }
        meter::charge(map_ns);
        self.map.take_for(0);
        let path = (self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len() as u32) as u16;
        if self.spec.legacy.is_some() {
            // One hold inserts the request and takes it out; another follows after the command was sent.
            self.queue(path).take_for(0);
        }
        if self.spec.legacy == Some(Kernel::V2_6_32) {
            self.adapter(path).take_for(0);
        }
        self.adapter(path).take_for(driver_ns);
        if self.spec.legacy.is_some() {
            self.queue(path).take_for(0);
        }
        path
    }

    /// Passes a completion up from this path.
    pub fn up(&self, path: u16) {
        let DmCosts { driver_ns, softirq_ns, .. } = self.spec.costs;
        self.adapter(path).take_for(driver_ns);
        let Some(kernel) = self.spec.legacy else { return };
        if kernel == Kernel::V2_6_32 {
            self.adapter(path).take_for(0);
        }
        // Ends the clone, then checks for more requests to send.
        self.queue(path).take_for(0);
        self.queue(path).take_for(0);
        meter::charge(softirq_ns);
        if kernel == Kernel::V4_1 {
            self.hand_over();
        }
    }

    fn hand_over(&self) {
        meter::charge(self.path.wakeup_ns + 2 * self.path.switch_ns);
    }

    fn queue(&self, path: u16) -> &Calendar {
        &self.queues[usize::from(path)]
    }

    fn adapter(&self, path: u16) -> &Calendar {
        &self.adapters.0[usize::from(path) % self.adapters.0.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::costs::{KernelCosts, LineCosts, Shape};

    const HOLD: u32 = 100;

    fn cost(legacy: Option<Kernel>) -> u64 {
        let shape = Shape { sockets: 1, cores: 4, threads: 1 };
        meter::configure(shape, LineCosts { atomic_ns: 1, ..LineCosts::default() }, KernelCosts::default());
        let costs = DmCosts { map_ns: 1_000, driver_ns: 10_000, softirq_ns: 100_000 };
        let path = PathCosts { wakeup_ns: 1_000_000, switch_ns: 2_000_000, ..PathCosts::default() };
        let paths = Paths::new(DmSpec { paths: 4, hosts: 2, legacy, costs }, path, Adapters::new(2), 0);
        meter::run(0, 0, HOLD, || {
            let path = paths.down();
            paths.up(path);
        })
        .end_ns
    }

    #[test]
    fn a_request_takes_the_locks_of_the_table() {
        let locks = |n: u64| n * u64::from(HOLD + 1);
        assert_eq!(cost(None), 21_000 + locks(3));
        assert_eq!(cost(Some(Kernel::V2_6_32)), 121_000 + locks(9));
        assert_eq!(cost(Some(Kernel::V4_1)), 10_121_000 + locks(7));
    }

    #[test]
    fn adapters_are_shared_by_luns_and_taken_in_turn() {
        meter::configure(Shape { sockets: 1, cores: 4, threads: 1 }, LineCosts::default(), KernelCosts::default());
        let spec = DmSpec { paths: 4, hosts: 2, legacy: None, costs: DmCosts::default() };
        let adapters = Adapters::new(spec.hosts);
        let luns = [0, 1].map(|lun| Paths::new(spec, PathCosts::default(), adapters.clone(), lun));
        let taken: Vec<u16> = (0..5).map(|_| luns[0].down()).collect();
        assert_eq!((taken, luns[1].down()), (vec![0, 1, 2, 3, 0], 1));
        let spun = |path, at| {
            meter::run(0, at, HOLD, || luns[0].up(path));
            meter::run(1, at, HOLD, || luns[1].up(2)).spun_ns
        };
        assert!(spun(0, 1_000_000) > 0, "the other LUN's command holds the adapter");
        assert_eq!(spun(1, 2_000_000), 0, "the other adapter");
    }
}
