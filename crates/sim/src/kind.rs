// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of cases, and for which seeds each kind is due.

use crate::rng::Rng;

/// One seed in so many has its elevator put under pressure after its disk case. Another one in so many is due for
/// [`Kind::Pressure`].
const PRESSED: u64 = 4;
/// One seed in so many is due for [`Kind::Set`].
const SETS: u64 = 4;
/// One seed in so many is due for [`Kind::Multipath`].
const MULTIPATHS: u64 = 32;

/// What a case is made of. A seed has one of each kind; they share nothing but the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A disk with tags of its own, under faults; for some seeds an elevator under pressure after that.
    Disk,
    /// Two to five disks on one tag set.
    Set,
    /// An endless load against a guarantee: elevators, hardware queues, limits.
    Pressure,
    /// A disk with several paths, which fail and recover.
    Multipath,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Disk, Kind::Set, Kind::Pressure, Kind::Multipath];

    /// One-word name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Disk => "disk",
            Kind::Set => "set",
            Kind::Pressure => "pressure",
            Kind::Multipath => "multipath",
        }
    }

    /// One line of help about its cases.
    pub const fn help(self) -> &'static str {
        match self {
            Kind::Disk => "A disk under faults; for some seeds an elevator under pressure after that",
            Kind::Set => "Several disks on one tag set, under faults",
            Kind::Pressure => "Elevators, hardware queues and limits under endless load",
            Kind::Multipath => "A disk with several paths that fail, recover, are slow, and lose requests in flight",
        }
    }

    /// One seed in so many is due for it.
    pub const fn one_seed_in(self) -> u64 {
        match self {
            Kind::Disk => 1,
            Kind::Set => SETS,
            Kind::Pressure => PRESSED,
            Kind::Multipath => MULTIPATHS,
        }
    }

    /// Whether this kind runs for a seed when no kind is requested. [`Kind::Disk`] always runs; a separate random stream
    /// selects one seed in so many for each of the others.
    pub fn is_due(self, seed: u64) -> bool {
        match self {
            Kind::Disk => true,
            Kind::Set => Rng::new(seed ^ 0x5e7).below(self.one_seed_in()) == 0,
            Kind::Pressure => Rng::new(seed ^ 0x9e).below(self.one_seed_in()) == 1,
            Kind::Multipath => Rng::new(seed ^ 0x3a7).below(self.one_seed_in()) == 0,
        }
    }
}

/// Whether the disk case of a seed is followed by an elevator under pressure.
pub(crate) fn is_pressed_as_well(seed: u64) -> bool {
    Rng::new(seed ^ 0x9e).below(PRESSED) == 0
}
