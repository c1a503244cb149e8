// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which CPU submits to which hardware queue.
//!
//! Guarantees: every CPU is in exactly one group of `group_cpus_evenly`, and so has exactly one hardware queue per type;
//! no group is empty as long as there are no more groups than CPUs; the same topology gives the same map.
//!
//! Needs from callers: a [`CpuTopology`], real or invented; this module does not query the operating system.
//!
//! Does not do: interrupt affinity, CPU hotplug (make a new map), CPUs isolated from running queues.
//!
//! Unlike Linux, which uses an unstable sort, this module defines the order of two NUMA nodes with equally many CPUs: the
//! one with the lower number gets its groups first.
//!
//! Source: Linux lib/group_cpus.c, block/blk-mq-cpumap.c, block/blk-mq.c (blk_mq_map_swqueue).

mod queue_map;
mod spread;
mod topology;

pub use queue_map::{HctxType, MapError, QueueMap};
pub use topology::{CpuTopology, TopologyError};
