// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole machine in virtual time: CPUs that run job threads and interrupts, disks behind the real block layer, and the
//! costs of all of it.
//!
//! The block layer and its locks are those of the product, and the job threads are those of `workload`. Only time is
//! simulated. A CPU does one thing at a time, and all its work takes time. The [`costs`] give the time for work that the
//! simulation cannot measure in the block layer. The locks of the block layer account for waits while another CPU holds
//! them (`meter`).
//!
//! | module | what it is |
//! |---|---|
//! | [`kernel`] | the kernel's locks, where it takes them |
//! | [`costs`] | what a lock, a cache line, an interrupt, a wake-up, a request cost |
//! | `meter` | the clock of the CPU that runs, and the lock that moves it |
//! | `event` | what happens next |
//! | `few` | a queue that mostly holds one |
//! | [`service`] | how long a device takes |
//! | `station` | where requests are while a device works on them |
//! | [`device`] | a device as a driver of the block layer |
//! | [`scsi`] | the same behind the SCSI midlayer |
//! | [`dm`] | device-mapper multipath above it |
//! | `task` | a job thread that runs, sleeps and is woken |
//! | [`world`] | the loop: whose turn it is on which CPU |
//! | [`jobs`] | a job file on a machine with a disk |
//! | [`guest`] | virtual machines with databases, served by a main loop or by IOThreads |
//! | `guest_host` | what they share: sleeping cores, a database's lock, the log on the host's storage |
//! | [`guest_times`] | where their transactions' time goes, and which IOThread serves which virtqueue |
//!
//! # Guarantees
//! The same machine, jobs and seed give the same figures to the last digit. Nothing happens before its cause. The number of
//! events, and so the time a simulation takes, is proportional to the number of I/Os.
//!
//! # Does not do
//! Caches by address, power management beside the way out of sleep. Threads of a core slow each other down by one factor, as
//! [`costs::PathCosts::sibling_pct`] says, and locks are not held longer for it. A critical section is as long as its costs
//! say, whatever the block layer's code does inside it.

pub mod costs;
mod meter;
pub mod kernel;
mod event;
mod few;
pub mod service;
mod station;
pub mod device;
pub mod dm;
pub mod scsi;
mod task;
pub mod world;
pub mod jobs;
pub mod guest;
pub(crate) mod guest_host;
pub mod guest_times;
