// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several ways to one disk, on this machine: `blk::multipath` over drivers of the host.

mod options;

pub use options::{
    Failback, MAX_PRIO, MAX_RETRIES, MAX_SECONDS, MultipathOptions, MustBe, NoPathRetry, PathChecker,
    PathGroupingPolicy, selector,
};
