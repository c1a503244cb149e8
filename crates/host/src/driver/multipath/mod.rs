// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `multipath:`: one disk that is reached over several paths of any kind of target.
//!
//! Synopsis: `multipath:[OPTION=VALUE,...:]TARGET+TARGET...`
//! Options: those of multipath.conf ([`MultipathOptions`]); `prio=N+N...`, a priority for each path, of which the highest is the best;
//! `conf=FILE`, a multipath.conf for all other options ([`MultipathTarget::settle`]). `docs/multipath.md` lists all options.
//! Example: `multipath:failback=immediate,no_path_retry=queue:iscsi://10.0.0.5/iqn.2026-11.com.example:d/1+iscsi://10.0.1.5/iqn.2026-11.com.example:d/1`
//! What becomes of a request: it is sent over one path of the group in use; after a path error it is retried on another path.
//! `blk::multipath` makes these decisions. This module adds what depends on the machine: waiting for all paths at once, a checker for each
//! path, opening paths later, failback after a time, paths that are added and removed.
//! Limits: a checker needs one more descriptor, connection or session per path. The size is read once, and by a resize.
//! Since: 0.1.

mod activate;
mod add_remove;
mod apart;
mod changes;
mod check;
mod disk;
mod edit;
mod groups;
mod manual;
mod options;
mod page_cache;
mod path;
mod path_list;
mod prio;
mod probe;
mod resize;
#[allow(unsafe_code, reason = "descriptors that are known by number only")]
mod hctx_waits;
mod settle;
pub(crate) mod target;
mod topology;
mod watch;
mod waits;

pub use disk::{Multipath, Opener, Path, PathHealth, Prober};
pub use edit::PathDifference;
pub use options::{
    Failback, HardwareHandler, MAX_PG_INIT_DELAY_MS, MAX_PG_INIT_RETRIES, MAX_PRIO, MAX_RETRIES, MAX_SECONDS,
    MultipathOptions, MustBe, NoPathRetry, PathChecker, PathGroupingPolicy, Prioritizer, selector,
};
pub use target::{MultipathTarget, PathTarget, option_names, parse};
