// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Path numbers, limits on paths and groups, and the settings of a multipath disk.

use crate::time::Duration;

/// Maximum number of paths of a disk at a time.
pub const MAX_PATHS: usize = 64;
/// Maximum number of priority groups of a disk (`MAX_GROUPS` of multipath-tools), which is more than any array has.
pub const MAX_GROUPS: usize = 64;

/// Number of a path. It is small, and is reused after the path was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub(super) u8);

impl PathId {
    /// Returns the number as an index, below [`MAX_PATHS`].
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// Settings of a disk, under the kernel's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Requests wait while there is no path; otherwise they fail.
    pub queue_if_no_path: bool,
    /// After this long without a path `queue_if_no_path` is turned off; zero = never.
    pub no_path_timeout: Duration,
    /// Maximum number of retries of an activation, 0..=50.
    pub pg_init_retries: u32,
    /// Delay of those retries, at most a minute; 2 s unless given.
    pub pg_init_delay: Option<Duration>,
}

/// Result of a path's activation ([`Handler::activate`](crate::multipath::disk::Handler::activate)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PgInit {
    /// The path is active.
    Done,
    /// The controller is busy for now (`SCSI_DH_DEV_TEMP_BUSY`): the disk bypasses this path's group and chooses
    /// another.
    Busy,
    /// Try again after `pg_init_delay`.
    Retry,
    /// Try again at once.
    RetryNow,
    /// Activation failed, so the path fails.
    Failed,
}
