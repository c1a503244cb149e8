// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of an I/O ([`BlkStatus`]), and the status that a driver returns for a batch of requests
//! ([`QueueRqStatus`]).
//!
//! Source: include/linux/blk_types.h and block/blk-core.c of Linux 6.19.

/// Outcome of a bio or request. The names and errno values are the kernel's `BLK_STS_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlkStatus {
    /// Success.
    #[default]
    Ok = 0,
    /// The operation is not supported by this disk.
    NotSupp,
    /// The driver did not answer in time.
    Timeout,
    /// No space left on the device or file.
    NoSpc,
    /// The connection to the device failed; another path may work.
    Transport,
    /// The device itself failed; another path would fail in the same way.
    Target,
    /// A reservation of another host forbids the I/O.
    ResvConflict,
    /// Unrecoverable medium error.
    Medium,
    /// Integrity check failed.
    Protection,
    /// Out of memory or of another resource of the host.
    Resource,
    /// Anything else that failed.
    IoErr,
    /// The I/O would have to wait, and has [`OpFlags::NOWAIT`](crate::bio::OpFlags::NOWAIT).
    Again,
    /// The device is busy.
    DevResource,
    /// The device is gone.
    Offline,
    /// The command exceeded its duration limit.
    DurationLimit,
    /// The request breaks a limit of the disk.
    Inval,
}

const ALL: [BlkStatus; 16] = [
    BlkStatus::Ok,
    BlkStatus::NotSupp,
    BlkStatus::Timeout,
    BlkStatus::NoSpc,
    BlkStatus::Transport,
    BlkStatus::Target,
    BlkStatus::ResvConflict,
    BlkStatus::Medium,
    BlkStatus::Protection,
    BlkStatus::Resource,
    BlkStatus::IoErr,
    BlkStatus::Again,
    BlkStatus::DevResource,
    BlkStatus::Offline,
    BlkStatus::DurationLimit,
    BlkStatus::Inval,
];

impl BlkStatus {
    /// True for [`BlkStatus::Ok`].
    #[inline]
    pub const fn is_ok(self) -> bool {
        matches!(self, BlkStatus::Ok)
    }

    /// Every status but [`BlkStatus::Ok`].
    pub const ERRORS: [BlkStatus; ALL.len() - 1] = {
        let [_, errors @ ..] = ALL;
        errors
    };

    /// Returns the kernel's word for this status: `BLK_STS_*` without the prefix, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            BlkStatus::Ok => "ok",
            BlkStatus::NotSupp => "notsupp",
            BlkStatus::Timeout => "timeout",
            BlkStatus::NoSpc => "nospc",
            BlkStatus::Transport => "transport",
            BlkStatus::Target => "target",
            BlkStatus::ResvConflict => "resv_conflict",
            BlkStatus::Medium => "medium",
            BlkStatus::Protection => "protection",
            BlkStatus::Resource => "resource",
            BlkStatus::IoErr => "ioerr",
            BlkStatus::Again => "again",
            BlkStatus::DevResource => "dev_resource",
            BlkStatus::Offline => "offline",
            BlkStatus::DurationLimit => "duration_limit",
            BlkStatus::Inval => "inval",
        }
    }

    /// Returns the Linux errno for this status (0 for Ok).
    pub const fn errno(self) -> i32 {
        match self {
            BlkStatus::Ok => 0,
            BlkStatus::NotSupp => 95,
            BlkStatus::Timeout => 110,
            BlkStatus::NoSpc => 28,
            BlkStatus::Transport => 67,
            BlkStatus::Target => 121,
            BlkStatus::ResvConflict => 52,
            BlkStatus::Medium => 61,
            BlkStatus::Protection => 84,
            BlkStatus::Resource => 12,
            BlkStatus::IoErr => 5,
            BlkStatus::Again => 11,
            BlkStatus::DevResource => 16,
            BlkStatus::Offline => 19,
            BlkStatus::DurationLimit => 62,
            BlkStatus::Inval => 22,
        }
    }

    /// Returns the status for a system call's errno; [`BlkStatus::IoErr`] for unknown numbers.
    pub fn from_errno(errno: i32) -> BlkStatus {
        ALL.into_iter().find(|s| s.errno() == errno).unwrap_or(BlkStatus::IoErr)
    }

    /// Whether the same I/O may succeed on another path to the same disk (`blk_path_error`). Unlike the kernel, this
    /// leaves out [`BlkStatus::Inval`]. Here that status is about the request itself (its range, its memory), so one
    /// client's bad request would fail all paths for the others.
    pub const fn is_path_error(self) -> bool {
        !matches!(
            self,
            BlkStatus::Ok
                | BlkStatus::NotSupp
                | BlkStatus::NoSpc
                | BlkStatus::Target
                | BlkStatus::ResvConflict
                | BlkStatus::Medium
                | BlkStatus::Protection
                | BlkStatus::Inval
        )
    }

    pub(crate) const fn as_u8(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_u8(n: u8) -> BlkStatus {
        ALL[n as usize]
    }
}

impl core::fmt::Display for BlkStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = match self {
            BlkStatus::Ok => "ok",
            BlkStatus::NotSupp => "operation not supported",
            BlkStatus::Timeout => "timeout",
            BlkStatus::NoSpc => "no space left",
            BlkStatus::Transport => "recoverable transport error",
            BlkStatus::Target => "critical target error",
            BlkStatus::ResvConflict => "reservation conflict",
            BlkStatus::Medium => "critical medium error",
            BlkStatus::Protection => "protection error",
            BlkStatus::Resource => "out of resources",
            BlkStatus::IoErr => "I/O error",
            BlkStatus::Again => "would block",
            BlkStatus::DevResource => "device busy",
            BlkStatus::Offline => "device offline",
            BlkStatus::DurationLimit => "command duration limit exceeded",
            BlkStatus::Inval => "invalid argument",
        };
        f.write_str(text)
    }
}

/// A driver's status for the first request that it did *not* accept
/// ([`Driver::queue_rqs`](crate::driver::Driver::queue_rqs)).
///
/// The status determines what runs the hctx again:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum QueueRqStatus {
    /// Everything was accepted; no re-run is needed.
    Queued,
    /// A resource that does not belong to this device is missing (memory, a host slot). The *core* runs the hctx again
    /// after `BLK_MQ_RESOURCE_DELAY` (3 ms).
    Resource,
    /// The device itself is busy. The driver promises that a request of this device is in flight; the core runs the
    /// hctx again at its *completion*.
    DevResource,
    /// Nothing can be sent before an external change (no path to the disk is left). The *core* runs the hctx again
    /// after this many milliseconds, or at [`RequestQueue::unquiesce`](crate::queue::RequestQueue::unquiesce).
    DelayMs(u16),
    /// The request fails with this status, and dispatch continues with the next one.
    Error(BlkStatus),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips_and_unknown_is_io_error() {
        for s in ALL {
            assert_eq!(BlkStatus::from_errno(s.errno()), s, "{s:?}");
            assert_eq!(BlkStatus::from_u8(s.as_u8()), s);
        }
        assert_eq!(BlkStatus::from_errno(1), BlkStatus::IoErr);
    }

    #[test]
    fn every_error_has_a_word_of_its_own() {
        let mut words = BlkStatus::ERRORS.map(BlkStatus::name).to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), ALL.len() - 1);
        assert!(!words.contains(&BlkStatus::Ok.name()));
    }

    #[test]
    fn path_errors_are_the_kernels_but_for_bad_requests() {
        assert!(!BlkStatus::Inval.is_path_error());
        assert!(BlkStatus::Transport.is_path_error());
        assert!(BlkStatus::IoErr.is_path_error());
        assert!(!BlkStatus::Medium.is_path_error());
        assert!(!BlkStatus::Ok.is_path_error());
    }
}
