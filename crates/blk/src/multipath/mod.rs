// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath: one disk that can be reached by several paths, each of them a driver.
//!
//! [`Multipath`] is a driver over drivers. A [`RequestQueue`](crate::queue::RequestQueue) above it merges and schedules.
//! Each request itself is issued to one path, under its own tag ([`RqBatch::lend`](crate::driver::RqBatch::lend)), while
//! the kernel's request-based device mapper issues a clone. Path errors are retried on another path.
//!
//! Guarantees: no request fails with a path's error while another path is usable, or while `queue_if_no_path` is on. The
//! exception is a disk that is [to give up](Multipath::set_give_up). Each request is in flight at one path at a time. A
//! busy path is skipped while another is not busy; if all are busy, the disk is busy. Per request, one load returns the
//! usable paths; a lock is taken only when a path or group changes.
//!
//! Needs from callers: paths that lead to the same disk (equal capacity and blocks are checked, identity is not). The caller
//! acts on events as [`PathEvent`] says; checkers call [`Multipath::fail_path`] and [`Multipath::reinstate_path`]. When a
//! driver fails a request because its path failed, it must first make sure that the target does not execute the request any
//! more. Does not do: check paths, sort them into groups, access hardware. Source: drivers/md/dm-mpath.c, dm-rq.c.
//!
//! - `disk`: [`Multipath`], its paths and groups; `config`: path numbers, limits and settings; `group`: which group is
//!   current, and its activation.
//! - `io`, `hctx`: the path of a request; `selector`: which path of a group it takes, one file per selector.
//! - `table`: the table of the kernel's device mapper, with `cpu_mask`; `status`: its status line.

mod config;
mod cpu_mask;
mod disk;
mod group;
mod hctx;
mod io;
mod selector;
mod status;
mod table;

pub use config::{Features, MAX_GROUPS, MAX_PATHS, PathId, PgInit};
pub use cpu_mask::parse_cpu_mask;
pub use disk::{Handler, Listener, Multipath, MultipathError, NewGroup, NewPath, PathEvent};
pub use selector::{BASE_WEIGHT, MAX_THROUGHPUT, MAX_WEIGHT, PathArgs, Selector};
pub use status::{GroupState, GroupStatus, PathStatus, Status};
pub use table::{GroupTable, PathTable, Table, TableError};
