// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elevators that exist, by name.
//!
//! Guarantees: a name in the lists makes the elevator of that name; an unknown one is answered with those there are.

use super::bfq::{self, Bfq};
use super::interface::Elevator;
use super::k2::{self, K2};
use super::kyber::{self, Kyber};
use super::legacy::{Legacy, LegacyElevator};
use super::mq_deadline::{self, MqDeadline};
use super::{deadline, noop};
use crate::cpumap::{CpuTopology, QueueMap};
use crate::suggest::nearest;
use lock_api::RawMutex;

/// The name that stands for "no elevator": requests go from the ctx lists to the driver.
pub const NONE: &str = "none";

/// What can be written to `queue/scheduler` of a multi-queue disk.
pub const NAMES: [&str; 5] = [NONE, mq_deadline::NAME, kyber::NAME, bfq::NAME, k2::NAME];

/// Why there is no elevator of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElevatorError {
    /// The name is none of the elevators'.
    #[error("scheduler={name}: must be one of {valid}{remedy}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        valid: String,
        /// `; did you mean 'x'?` when a name is near.
        remedy: String,
    },
}

fn unknown(name: &str, names: &'static [&'static str]) -> ElevatorError {
    let remedy =
        nearest(name, names.iter().copied()).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    ElevatorError::Unknown { name: name.to_owned(), valid: names.join(", "), remedy }
}

/// The elevator called `name` for a multi-queue disk with the hardware queues of `map`, `nr_slab_requests` requests in
/// all and `nr_requests` scheduler tags per hardware queue; `None` for [`NONE`]. `L` is the lock of elevators that have
/// one.
pub fn for_map<L>(
    name: &str,
    nr_slab_requests: usize,
    map: &QueueMap,
    nr_requests: u32,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    match name {
        NONE => Ok(None),
        mq_deadline::NAME => Ok(Some(Box::new(MqDeadline::<L>::new(nr_slab_requests, nr_requests)))),
        kyber::NAME => Ok(Some(Box::new(Kyber::<L>::new(nr_slab_requests, map, nr_requests)))),
        bfq::NAME => Ok(Some(Box::new(Bfq::<L>::new(nr_slab_requests, nr_requests)))),
        k2::NAME => Ok(Some(Box::new(K2::<L>::new(nr_slab_requests, nr_requests)))),
        _ => Err(unknown(name, &NAMES)),
    }
}

/// As [`for_map`], for a disk with `nr_hw_queues` hardware queues of one CPU each: what tests and benches of elevators
/// have, see [`testbed`](super::testbed).
///
/// # Panics
/// If `nr_hw_queues` is 0 or above [`MAX_CPUS`](crate::id::MAX_CPUS).
pub fn by_name<L>(
    name: &str,
    nr_slab_requests: usize,
    nr_hw_queues: u16,
    nr_requests: u32,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    let map = QueueMap::new(&CpuTopology::uniform(nr_hw_queues), nr_hw_queues, 0, 0).expect("a CPU for each queue");
    for_map::<L>(name, nr_slab_requests, &map, nr_requests)
}

/// The elevator a multi-queue disk starts with: mq-deadline where requests meet in one place anyway (one hardware queue,
/// or tags shared by the whole host), none otherwise.
pub const fn default_name(nr_hw_queues: u16, host_shared_tags: bool) -> &'static str {
    if nr_hw_queues == 1 || host_shared_tags { mq_deadline::NAME } else { NONE }
}

/// Names of the legacy elevators, the default first.
pub const LEGACY_NAMES: [&str; 2] = [deadline::NAME, noop::NAME];

/// The legacy elevator called `name`, for a disk with `nr_requests` requests.
pub(crate) fn legacy_by_name(name: &str, nr_requests: usize) -> Result<Box<dyn LegacyElevator>, ElevatorError> {
    match name {
        noop::NAME => Ok(Box::new(Legacy::<noop::Noop>::new(nr_requests))),
        deadline::NAME => Ok(Box::new(Legacy::<deadline::Deadline>::new(nr_requests))),
        _ => Err(unknown(name, &LEGACY_NAMES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lock = parking_lot::RawMutex;

    #[test]
    fn every_name_makes_the_elevator_of_that_name() {
        for name in NAMES {
            let e = by_name::<Lock>(name, 16, 1, 8).expect("listed");
            assert_eq!(e.map_or(NONE, |e| e.name()), name);
        }
        for name in LEGACY_NAMES {
            assert_eq!(legacy_by_name(name, 16).expect("listed").name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let e = by_name::<Lock>("mq_deadline", 16, 1, 8).err().expect("underscore");
        let text = e.to_string();
        assert!(text.starts_with("scheduler=mq_deadline: must be one of none, mq-deadline, kyber, bfq, k2"), "{text}");
        assert!(text.contains("did you mean 'mq-deadline'?"), "{text}");
        let e = legacy_by_name("cfq", 16).err().expect("not built");
        assert_eq!(e.to_string(), "scheduler=cfq: must be one of deadline, noop");
    }

    #[test]
    fn the_default_follows_the_number_of_queues() {
        assert_eq!(default_name(1, false), "mq-deadline");
        assert_eq!(default_name(4, false), "none");
        assert_eq!(default_name(4, true), "mq-deadline");
    }
}
