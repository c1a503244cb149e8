// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fault model: what goes wrong in the simulated world, what the block layer guarantees meanwhile, and where each fault
//! is injected. The tables below are the contract that the tests check; the code is in the modules that they name.
//!
//! # Faults
//!
//! | fault | what it does | what the block layer still guarantees | where |
//! |---|---|---|---|
//! | latency spike | one completion in sixteen takes up to 50 times as long | other requests overtake it; nothing else changes | [`Service::Any`](crate::disk::service::Service) |
//! | RESOURCE | the driver rejects a request for lack of a host resource | the core retries by itself, after 3 ms at most; the order of dispatch is kept | `resource` |
//! | DEV_RESOURCE | the driver rejects a request until a request of the device completes | the core retries at that completion; the order of dispatch is kept | `dev_resource`, `device_cap` |
//! | given back | an accepted request is returned unfinished, to be retried at once or later | it is issued again before requests that are queued behind it, and counted once | `give_back` |
//! | transient error | a request is refused at issue, or accepted and failed; the next one succeeds | the bio fails with that status; each of its sectors is old or new | `issue_error`, `complete_error` |
//! | medium error | the same with status `Medium`, which another path would not avoid | the same | `issue_error` |
//! | lost completion | a request never completes by itself | the core reports the timeout to the driver after `io_timeout` (at most 5 s late), again as often as the driver requests more time; the bio completes once | `lost` |
//! | timeout | on the timeout of a lost request, the driver aborts it, finds its completion or requests more time | after an abort the request has no further effect | `SimDisk::timeout` |
//! | duplicate completion | the device reports the completion of a tag a second time, perhaps when the tag is in use again | the driver finds no request to complete and drops the report: the request that has the tag now does not complete | `duplicate` |
//! | path loss | for up to 50 ms every request fails with `Transport`, at issue or later; each request in flight is lost or fails | every bio completes, with `Transport` or after its timeout; I/O continues when the path has recovered | `path_loss` |
//! | torn write at power loss | each sector of an unfinished write is written or not; each sector of the volatile cache survives in any version since the last flush | data that was acknowledged as durable survives | [`SimDisk::crash`], [`SimDisk::if_power_were_cut`] |
//! | completed at once | a request completes before the issuing call returns | as with any completion; the driver is not called recursively | `at_once` |
//! | a path breaks | for up to 300 ms, or until it is repaired, one of several paths refuses requests, fails them at once or later, or does not answer; each of its requests at the disk is lost or fails, and may have taken effect | another path retries them: no bio fails while a path is left or requests may wait for one; requests wait for the time of `no_path_retry` | `paths`, [`Kind::Multipath`] |
//! | a path is slow, busy, removed, added; groups switch | happens under load | nothing else changes | `swarm::multipath` |
//! | a CPU goes offline | its submitters move, its hardware queues drain | no request is lost or issued on a queue without a CPU | `Case::hotplug` |
//! | other disks | disks on one tag set are idle, loaded, slow, joining, leaving, frozen, quiesced, or get another depth | all of this table for each disk; tags are shared according to the settings | [`Kind::Set`] |
//! | settings change under load | mode, queues, depth, elevator are replaced | waiting bios use the new settings; a refused change has no effect | `Case::change` |
//! | limits change under load | rates, bursts and the target of write-back throttling, without a freeze | held bios continue under the new limits; a refused change has no effect | `Case::change_limits` |
//!
//! The names in the last column are fields of [`Behaviour`](crate::disk::Behaviour), per thousand requests, or functions of
//! this crate. A seed decides for each fault whether it is on, so that each is off in most cases. Three cases of four have no
//! fault that fails I/O, and there all counters must be exact.
//!
//! Left out, because the block layer guarantees nothing about it: a medium that changes by itself (the layer keeps no
//! checksums), and a disk that reports a flush as complete when it is not. Both are planted as bugs to check that they are
//! noticed.
//!
//! # Phases
//! A case begins with the *safety phase*: work under all its faults; nothing forbidden may happen. Then all faults stop
//! ([`SimDisk::heal`]) and no new work comes: the *liveness phase*. In it everything that was accepted has to complete and no
//! tag may be left in use. The contents are compared sector by sector. A property of the device is no fault: a small
//! `device_cap` or a slow head stays. Disks on one tag set then *compete*, still without faults. Each keeps its load for the
//! whole phase, and then all bios have to complete once more.
//!
//! # What is checked, and what was planted to show it
//!
//! | check | by | planted |
//! |---|---|---|
//! | no bio is lost | all bios complete in the liveness phase | [`Plant::LostCompletion`], [`Plant::LostWakeUp`] |
//! | no bio completes twice | [`swarm`](crate::swarm), per bio | [`Plant::EndedTwice`] |
//! | a tag has one owner | the disk, at each request it is given | [`Plant::SameTagTwice`] |
//! | no tag is left in use | the queue is drained and checked when all bios have completed | [`Plant::TagLeak`] |
//! | data is right | [`contents`](crate::contents) | [`Plant::LostWrite`], [`Plant::Misplaced`], [`Plant::Corrupt`], [`Plant::DuplicateBelieved`] |
//! | no failed write takes effect later | [`contents`](crate::contents): content that a read returned stays | [`Plant::LateWrite`] |
//! | flush and FUA are durable, in order | a power cut at random moments and at the end | [`Plant::LyingFlush`], [`Plant::LyingFua`], [`Plant::ReorderedFlush`] |
//! | no request starves; shares follow the weights | [`pressure`](crate::pressure) | [`Unfair::Starves`], [`Unfair::WrongWeights`], [`Unfair::LongBatches`] |
//! | no elevator starves a request in any case | `liveness`, for each request that an elevator has | [`Plant::Starves`] |
//! | no hardware queue waits for another | [`pressure`](crate::pressure) | [`Unfair::DeviceWideCap`] |
//! | no limit is exceeded | `swarm::limits`, over every window of time; [`pressure`](crate::pressure) | [`Plant::LimitIgnored`], [`Unfair::GrantsTooMuch`] |
//! | a limit admits its full rate | [`pressure`](crate::pressure), over every window in which bios wait | [`Unfair::GrantsTooLittle`] |
//! | every token of write-back throttling is returned | when all bios have completed | [`Plant::LostToken`] |
//! | one disk at a time has a tag of a set | `disk::ledger`, at each request | [`Plant::TagOfTwoDisks`] |
//! | no disk exceeds its share of a set | `swarm::set`, at each step | [`Plant::ShareExceeded`] |
//! | no disk starves beside others | `swarm::set`, as long as they compete | [`Plant::DiskNeverWoken`] |
//! | no write of a failed path takes effect later | [`contents`](crate::contents) | [`Plant::LatePath`] |
//! | no bio fails with a path's error while another path is left | `swarm::multipath` | [`Plant::WrongError`] |
//! | a frozen queue drains | [`Harness::drain`](crate::harness::Harness::drain), a bounded number of steps | [`Plant::NeverDrained`] |
//! | the driver contract, both sides | assertions of [`disk`](crate::disk) and of the core | `tests/it/broken_drivers.rs` |
//!
//! [`Kind::Set`]: crate::kind::Kind::Set
//! [`Kind::Multipath`]: crate::kind::Kind::Multipath
//! [`Unfair::Starves`]: crate::pressure::Unfair::Starves
//! [`Unfair::WrongWeights`]: crate::pressure::Unfair::WrongWeights
//! [`Unfair::LongBatches`]: crate::pressure::Unfair::LongBatches
//! [`Unfair::DeviceWideCap`]: crate::pressure::Unfair::DeviceWideCap
//! [`Unfair::GrantsTooMuch`]: crate::pressure::Unfair::GrantsTooMuch
//! [`Unfair::GrantsTooLittle`]: crate::pressure::Unfair::GrantsTooLittle
//! [`SimDisk::crash`]: crate::disk::SimDisk::crash
//! [`SimDisk::if_power_were_cut`]: crate::disk::SimDisk::if_power_were_cut
//! [`SimDisk::heal`]: crate::disk::SimDisk::heal

use crate::kind::Kind;
use blk::elevator::{LEGACY_NAMES, NAMES, NONE};

/// A planted bug that the checks have to find. Each is in the simulated world: none needs a switch in the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One request in fifty never completes, and the driver reports at each timeout that it is still in progress.
    LostCompletion,
    /// One notification in ten is lost.
    LostWakeUp,
    /// The completion of one bio in fifty is reported to its client twice.
    EndedTwice,
    /// The driver completes one request in fifty although the device still has its tag.
    SameTagTwice,
    /// A submitter dies with a tag that it kept.
    TagLeak,
    /// One write in fifty is acknowledged and not done.
    LostWrite,
    /// One write in fifty changes another sector than it should.
    Misplaced,
    /// One read in fifty returns a sector with a bit flipped.
    Corrupt,
    /// The driver accepts the second completion of a tag, whichever request has the tag now.
    DuplicateBelieved,
    /// A write that was reported failed happens later.
    LateWrite,
    /// A flush is acknowledged and does nothing.
    LyingFlush,
    /// A flush overtakes the writes that completed just before it.
    ReorderedFlush,
    /// A write with FUA is acknowledged from the cache.
    LyingFua,
    /// Limits admit eight times as much as they are set to.
    LimitIgnored,
    /// A submitter dies while one of its writes holds a token of write-back throttling and waits for a tag.
    LostToken,
    /// A disk of a set has tags of its own, with the same numbers.
    TagOfTwoDisks,
    /// Fair sharing of a set's tags is off while it should be on.
    ShareExceeded,
    /// A disk of a set is never notified of other disks' actions, so it waits for tags that they returned long ago.
    DiskNeverWoken,
    /// A path reports a write as failed, but the disk carries it out after another path has completed it.
    LatePath,
    /// A broken path reports a medium error.
    WrongError,
    /// An elevator of this name keeps one request in forty until nothing else is left, or has other rules than its own.
    Starves(&'static str),
    /// While a queue is frozen the driver loses its requests, and reports at each timeout that they are still in progress.
    NeverDrained,
}

impl Plant {
    /// All planted bugs.
    pub const ALL: [Plant; 28] = [
        Plant::LostCompletion,
        Plant::LostWakeUp,
        Plant::EndedTwice,
        Plant::SameTagTwice,
        Plant::TagLeak,
        Plant::LostWrite,
        Plant::Misplaced,
        Plant::Corrupt,
        Plant::DuplicateBelieved,
        Plant::LateWrite,
        Plant::LyingFlush,
        Plant::ReorderedFlush,
        Plant::LyingFua,
        Plant::LimitIgnored,
        Plant::LostToken,
        Plant::NeverDrained,
        Plant::TagOfTwoDisks,
        Plant::ShareExceeded,
        Plant::DiskNeverWoken,
        Plant::LatePath,
        Plant::WrongError,
        Plant::Starves(NAMES[0]),
        Plant::Starves(NAMES[1]),
        Plant::Starves(NAMES[2]),
        Plant::Starves(NAMES[3]),
        Plant::Starves(NAMES[4]),
        Plant::Starves(LEGACY_NAMES[0]),
        Plant::Starves(LEGACY_NAMES[1]),
    ];

    /// The elevator whose rules are checked at the driver, whatever elevator the disk has.
    pub(crate) fn told(self) -> Option<&'static str> {
        match self {
            Plant::Starves(name) if name == NONE || LEGACY_NAMES.contains(&name) => Some(name),
            _ => None,
        }
    }

    /// The kind of case that the bug is planted in.
    pub const fn kind(self) -> Kind {
        match self {
            Plant::TagOfTwoDisks | Plant::ShareExceeded | Plant::DiskNeverWoken => Kind::Set,
            Plant::LatePath | Plant::WrongError => Kind::Multipath,
            _ => Kind::Disk,
        }
    }

    /// Returns what the message of the resulting violation contains.
    pub const fn sign(self) -> &'static str {
        match self {
            Plant::LostCompletion => "no rest after",
            Plant::LostWakeUp => "bios are stuck",
            Plant::EndedTwice => "ended twice",
            Plant::SameTagTwice => "given to the driver twice",
            Plant::TagLeak => "in use without an owner",
            Plant::LostWrite
            | Plant::Misplaced
            | Plant::Corrupt
            | Plant::DuplicateBelieved
            | Plant::LateWrite
            | Plant::LatePath => "not one of",
            Plant::WrongError => "ended with Medium",
            Plant::LyingFlush | Plant::ReorderedFlush | Plant::LyingFua => "after the crash",
            Plant::LimitIgnored => "above the limit",
            Plant::LostToken => "write-back throttling: tokens were not released",
            Plant::DiskNeverWoken => "starves: it waits for a tag and was not woken",
            Plant::TagOfTwoDisks => "of the set was given to disk",
            Plant::ShareExceeded => "its share is",
            Plant::Starves(_) => " starves",
            Plant::NeverDrained => "the frozen queue does not drain",
        }
    }
}
