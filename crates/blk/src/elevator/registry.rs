// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elevators that exist, by name.
//!
//! Guarantees: a name in the lists makes the elevator of that name; for an unknown name the error lists the known
//! ones.

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

/// The disk that an elevator is made for.
#[derive(Clone, Copy, Debug)]
pub struct DiskShape<'a> {
    /// Number of requests of all hardware queues; every [`RequestId`](crate::request::RequestId) is below this number.
    pub nr_slab_requests: usize,
    /// Which CPU uses which hardware queue.
    pub map: &'a QueueMap,
    /// Scheduler tags per hardware queue.
    pub nr_requests: u32,
}

/// An elevator from outside this crate, which a multi-queue disk offers beside [`MqElevator::ALL`]: see
/// [`QueueConfig::custom_elevators`](crate::settings::QueueConfig::custom_elevators). With the name of a built-in elevator it
/// takes that one's place. Such an elevator wraps the one that [`for_map`] makes, to observe or check it.
///
/// A custom elevator cannot merge bios into queued requests, because the merging code is private to this crate. So its
/// [`Elevator::bio_merge`] returns [`BioMerge::No`](super::BioMerge::No). Bios of one plug are merged before they reach
/// the elevator.
#[derive(Clone, Copy, Debug)]
pub struct CustomElevator {
    /// The name in `queue/scheduler`: what [`Elevator::name`] returns.
    pub name: &'static str,
    /// Makes the elevator of a disk: when the disk is created, and whenever its settings change under a queue freeze.
    pub make: fn(&DiskShape<'_>) -> Box<dyn Elevator>,
}

/// What consumers need to know of an elevator beside its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElevatorFacts {
    /// Linux has it, too.
    pub in_kernel: bool,
    /// debugfs shows `SQ_SCHED` of a disk with it.
    pub is_sq_sched: bool,
    /// With this elevator writeback throttling (`wbt_lat_usec`) is off by default.
    pub turns_wbt_off: bool,
    /// The elevator may keep the disk idle while it waits for a submitter's next request.
    pub idles: bool,
}

impl ElevatorFacts {
    /// An elevator of Linux to which none of the other facts applies.
    const KERNEL: ElevatorFacts =
        ElevatorFacts { in_kernel: true, is_sq_sched: false, turns_wbt_off: false, idles: false };
}

/// Defines [`MqElevator`] and everything that depends on it, from one row per elevator.
macro_rules! mq_elevators {
    ($($(#[$doc:meta])* $elevator:ident { name: $name:expr, facts: $facts:expr, make: $make:expr })+) => {
        /// The elevators of multi-queue disks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum MqElevator {
            $($(#[$doc])* $elevator,)+
        }

        impl MqElevator {
            /// All elevators. Add a new one at the end, and leave it out of every list that seeds draw from: a longer list
            /// changes what old seeds pick.
            pub const ALL: &'static [MqElevator] = &[$(MqElevator::$elevator),+];

            /// The name in `queue/scheduler`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(MqElevator::$elevator => $name,)+
                }
            }

            /// What consumers need to know of it.
            pub const fn facts(self) -> ElevatorFacts {
                match self {
                    $(MqElevator::$elevator => $facts,)+
                }
            }

            /// Makes the elevator for a disk; `None` for [`MqElevator::None`]. The rows below refer to the lock type
            /// `L`.
            fn make<L>(self, disk: &DiskShape<'_>) -> Option<Box<dyn Elevator>>
            where
                L: RawMutex + Send + Sync + 'static,
            {
                let make: fn(&DiskShape<'_>) -> Option<Box<dyn Elevator>> = match self {
                    $(MqElevator::$elevator => $make,)+
                };
                make(disk)
            }
        }

        /// What can be written to `queue/scheduler` of a multi-queue disk.
        pub const NAMES: [&str; MqElevator::ALL.len()] = [$($name),+];
    };
}

mq_elevators! {
    /// No elevator: requests go from the software queues to the driver.
    None {
        name: NONE,
        facts: ElevatorFacts::KERNEL,
        make: |_| None
    }
    /// See [`mq_deadline`].
    MqDeadline {
        name: mq_deadline::NAME,
        facts: ElevatorFacts { is_sq_sched: true, ..ElevatorFacts::KERNEL },
        make: |disk| Some(Box::new(MqDeadline::<L>::new(disk.nr_slab_requests, disk.nr_requests)))
    }
    /// See [`kyber`].
    Kyber {
        name: kyber::NAME,
        facts: ElevatorFacts::KERNEL,
        make: |disk| Some(Box::new(Kyber::<L>::new(disk.nr_slab_requests, disk.map, disk.nr_requests)))
    }
    /// See [`bfq`].
    Bfq {
        name: bfq::NAME,
        facts: ElevatorFacts { is_sq_sched: true, turns_wbt_off: true, idles: true, ..ElevatorFacts::KERNEL },
        make: |disk| Some(Box::new(Bfq::<L>::new(disk.nr_slab_requests, disk.nr_requests)))
    }
    /// See [`k2`].
    K2 {
        name: k2::NAME,
        facts: ElevatorFacts { in_kernel: false, ..ElevatorFacts::KERNEL },
        make: |disk| Some(Box::new(K2::<L>::new(disk.nr_slab_requests, disk.nr_requests)))
    }
}

/// An elevator that a consumer does without, and why.
pub type LeftOut = (MqElevator, &'static str);

impl MqElevator {
    /// The elevator called `name`.
    pub fn named(name: &str) -> Option<MqElevator> {
        MqElevator::ALL.iter().copied().find(|e| e.name() == name)
    }

    /// The names of all elevators but those left out, in the order of [`MqElevator::ALL`].
    ///
    /// `N` is the number of elevators that the consumer supports. After an elevator is added, the consumer does not
    /// compile until it raises `N` by one or leaves the new elevator out with a reason.
    ///
    /// ```
    /// use mqblk_blk::elevator::MqElevator;
    /// const OF_LINUX: [&str; 4] = MqElevator::names_without(&[(MqElevator::K2, "Linux does not have it")]);
    /// assert_eq!(OF_LINUX, ["none", "mq-deadline", "kyber", "bfq"]);
    /// ```
    ///
    /// # Panics
    /// If the number of elevators that are not left out is not `N`, or if a reason is empty. In a constant this is a
    /// compile error.
    pub const fn names_without<const N: usize>(left_out: &[LeftOut]) -> [&'static str; N] {
        let mut names = [""; N];
        let (mut at, mut taken) = (0, 0);
        while at < MqElevator::ALL.len() {
            let elevator = MqElevator::ALL[at];
            if !elevator.is_in(left_out) {
                assert!(taken < N, "an elevator is neither among the names nor left out with a reason");
                names[taken] = elevator.name();
                taken += 1;
            }
            at += 1;
        }
        assert!(taken == N, "more names than elevators");
        names
    }

    /// Whether `taken`, in any order, and `left_out` together contain all elevators. Consumers that have an order or
    /// weights of their own check this in a constant assertion.
    pub const fn are_all(taken: &[MqElevator], left_out: &[LeftOut]) -> bool {
        let mut at = 0;
        while at < MqElevator::ALL.len() {
            let elevator = MqElevator::ALL[at];
            let mut found = elevator.is_in(left_out);
            let mut i = 0;
            while i < taken.len() {
                found |= taken[i] as usize == elevator as usize;
                i += 1;
            }
            if !found {
                return false;
            }
            at += 1;
        }
        true
    }

    const fn is_in(self, left_out: &[LeftOut]) -> bool {
        let mut i = 0;
        while i < left_out.len() {
            assert!(!left_out[i].1.is_empty(), "leaving an elevator out needs a reason");
            if left_out[i].0 as usize == self as usize {
                return true;
            }
            i += 1;
        }
        false
    }
}

/// Why there is no elevator of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElevatorError {
    /// No elevator has this name.
    #[error("scheduler={name}: must be one of {valid}{remedy}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        valid: String,
        /// `; did you mean 'x'?` when a name is near.
        remedy: String,
    },
    /// A custom elevator has another name than the one it is offered under.
    #[error("custom_elevators: the entry '{offered}' makes an elevator named '{made}'; name the entry '{made}'")]
    OtherName {
        /// [`CustomElevator::name`].
        offered: &'static str,
        /// What [`Elevator::name`] returns.
        made: &'static str,
    },
}

fn unknown(name: &str, names: &[&'static str]) -> ElevatorError {
    let remedy =
        nearest(name, names.iter().copied()).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    ElevatorError::Unknown { name: name.to_owned(), valid: names.join(", "), remedy }
}

/// Makes the elevator called `name` for a multi-queue disk with the hardware queues of `map`, `nr_slab_requests`
/// requests in all and `nr_requests` scheduler tags per hardware queue. Returns `None` for [`NONE`]. `L` is the lock
/// type of elevators that use a lock.
pub fn for_map<L>(
    name: &str,
    nr_slab_requests: usize,
    map: &QueueMap,
    nr_requests: u32,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    make::<L>(name, &[], &DiskShape { nr_slab_requests, map, nr_requests })
}

/// As [`for_map`], for a disk that also offers `custom` elevators.
pub(crate) fn make<L>(
    name: &str,
    custom: &[CustomElevator],
    disk: &DiskShape<'_>,
) -> Result<Option<Box<dyn Elevator>>, ElevatorError>
where
    L: RawMutex + Send + Sync + 'static,
{
    let Some(offered) = custom.iter().find(|e| e.name == name) else {
        let known = MqElevator::named(name).ok_or_else(|| {
            let own = custom.iter().map(|e| e.name).filter(|own| MqElevator::named(own).is_none());
            unknown(name, &NAMES.into_iter().chain(own).collect::<Vec<_>>())
        })?;
        return Ok(known.make::<L>(disk));
    };
    let elevator = (offered.make)(disk);
    if elevator.name() != name {
        return Err(ElevatorError::OtherName { offered: offered.name, made: elevator.name() });
    }
    Ok(Some(elevator))
}

/// As [`for_map`], for a disk with `nr_hw_queues` hardware queues of one CPU each. Tests and benches of elevators use
/// this shape; see [`testbed`](super::testbed).
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

/// The default elevator of a multi-queue disk. It is mq-deadline with one hardware queue or with tags shared by the
/// whole host, because all requests meet in one place anyway. Otherwise it is none.
pub const fn default_name(nr_hw_queues: u16, host_shared_tags: bool) -> &'static str {
    if nr_hw_queues == 1 || host_shared_tags { mq_deadline::NAME } else { NONE }
}

/// Makes a legacy elevator for the given number of requests.
type MakeLegacy = fn(usize) -> Box<dyn LegacyElevator>;

/// The elevators of the single-queue mode, the default first.
const LEGACY: [(&str, MakeLegacy); 2] = [
    (deadline::NAME, |nr_requests| Box::new(Legacy::<deadline::Deadline>::new(nr_requests))),
    (noop::NAME, |nr_requests| Box::new(Legacy::<noop::Noop>::new(nr_requests))),
];

/// What can be written to `queue/scheduler` of a single-queue disk, the default first.
pub const LEGACY_NAMES: [&str; LEGACY.len()] = {
    let mut names = [""; LEGACY.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = LEGACY[i].0;
        i += 1;
    }
    names
};

/// The legacy elevator called `name`, for a disk with `nr_requests` requests.
pub(crate) fn legacy_by_name(name: &str, nr_requests: usize) -> Result<Box<dyn LegacyElevator>, ElevatorError> {
    let (_, make) = LEGACY.iter().find(|(known, _)| *known == name).ok_or_else(|| unknown(name, &LEGACY_NAMES))?;
    Ok(make(nr_requests))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::interface::ElvCx;
    use crate::id::HctxId;
    use crate::request::Rq;

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
    fn custom_elevators_are_found_and_named_beside_the_built_in() {
        const OWN: CustomElevator =
            CustomElevator { name: "own", make: |disk| Box::new(Own(disk.nr_slab_requests, disk.nr_requests)) };
        const OTHER: CustomElevator = CustomElevator { name: "other", ..OWN };
        struct Own(usize, u32);
        impl Elevator for Own {
            fn name(&self) -> &'static str {
                "own"
            }
            fn insert(&self, _: &ElvCx<'_>, _: &mut Vec<Rq>, _: bool, _: &mut Vec<Rq>) {}
            fn dispatch(&self, _: &ElvCx<'_>, _: HctxId, _: usize, _: &mut Vec<Rq>) {}
            fn has_work(&self, _: HctxId) -> bool {
                (self.0, self.1) == (16, 8)
            }
        }
        let map = QueueMap::new(&CpuTopology::uniform(1), 1, 0, 0).unwrap();
        let shape = DiskShape { nr_slab_requests: 16, map: &map, nr_requests: 8 };
        let own = make::<Lock>("own", &[OWN], &shape).unwrap().expect("an elevator");
        assert!(own.has_work(HctxId::new(0)), "it was made for another disk");
        assert_eq!(own.set_tunable("x", 1), Err("x: own has no tunables".to_owned()));
        assert_eq!(make::<Lock>("bfq", &[OWN], &shape).unwrap().map(|e| e.name()), Some("bfq"));
        const INSTEAD: CustomElevator = CustomElevator { name: "bfq", ..OWN };
        let made = make::<Lock>("bfq", &[INSTEAD], &shape).err().expect("it is made by the other").to_string();
        assert!(made.contains("the entry 'bfq' makes an elevator named 'own'"), "{made}");
        let text = make::<Lock>("on", &[OWN], &shape).err().expect("not offered").to_string();
        assert_eq!(text, "scheduler=on: must be one of none, mq-deadline, kyber, bfq, k2, own; did you mean 'own'?");
        let text = make::<Lock>("other", &[OTHER], &shape).err().expect("another name").to_string();
        assert_eq!(text, "custom_elevators: the entry 'other' makes an elevator named 'own'; name the entry 'own'");
    }

    #[test]
    fn the_default_follows_the_number_of_queues() {
        assert_eq!(default_name(1, false), "mq-deadline");
        assert_eq!(default_name(4, false), "none");
        assert_eq!(default_name(4, true), "mq-deadline");
    }
}
