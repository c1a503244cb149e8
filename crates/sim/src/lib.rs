// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deterministic simulation: the same block layer runs in virtual time, under faults that a seed chooses.
//!
//! Nothing here reads a clock, starts a thread or asks the host for anything: time is a number that jumps from event to
//! event, and every choice comes from [`rng`]. So the same seed is the same run, byte for byte of its trace, and a
//! failure is replayed by its number.
//!
//! | module | what it is |
//! |---|---|
//! | [`rng`], [`mem`] | random numbers; memory that bios point into |
//! | [`kind`] | the kinds of cases, and which seeds have which |
//! | [`fault`] | the fault model in prose, and the bugs that are planted |
//! | [`disk`] | the simulated disk: service times, volatile cache, crash, faults |
//! | [`harness`] | submitters on virtual CPUs that run only when they were notified or something is due |
//! | `paths` | several paths to one disk, each of which can break, and the multipath disk over them |
//! | [`set_harness`] | several disks on one tag set, in one virtual time |
//! | [`contents`] | the data checker: derives what a disk may contain only from what was submitted and how it completed |
//! | [`trace`] | what happened, one line per event |
//! | [`swarm`] | a whole case drawn from a seed, run and checked |
//! | [`pressure`] | elevators under load: no request starves, shares follow the weights |
//! | `liveness` | in all other cases: no elevator starves a request |
//! | [`machine`] | whole machines: CPUs, job threads, interrupts, devices, and what it all costs |
//! | [`scenario`] | published tests as files: a machine, a workload, rows with their figures |
//! | [`whatif`] | what would change on a different machine, over the uncertainty of its constants |
//! | [`study`] | scaling studies: tables of what grows with CPUs, sockets, queues, depth, IOThreads |

pub mod rng;
pub mod mem;
pub mod kind;
pub mod fault;
pub mod disk;
mod paths;
pub mod harness;
pub mod set_harness;
pub mod contents;
pub mod trace;
mod describe;
mod wrapped;
pub mod pressure;
mod liveness;
pub mod machine;
pub mod scenario;
pub mod whatif;
pub mod study;
pub mod swarm;

// Its types are in every signature here.
pub use blk;

// The names that most tests on a simulated disk need.
pub use disk::Behaviour;
pub use disk::service::Service;
pub use harness::Harness;
pub use trace::Trace;

/// The lock that the block layer uses here. One thread runs a simulation, so the lock is never contended.
pub type Lock = parking_lot::RawMutex;
