// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath: one disk that can be reached by several paths, each of them a driver.
//!
//! [`Multipath`] is a driver over drivers. A [`RequestQueue`](crate::queue::RequestQueue) above it merges and schedules.
//! Each request goes down one path, itself and under its own tag ([`RqBatch::lend`](crate::driver::RqBatch::lend)); the
//! kernel's request-based device mapper sends a clone. Path errors are retried on another path.
//!
//! Guarantees: no request ends with a path's error while another path is left, or while `queue_if_no_path` holds. The
//! exception is a disk that is [to give up](Multipath::set_give_up). Each request is at one path at a time. A busy path is
//! passed over while another is not busy; if all are busy, so is the disk. Per request one load tells the usable paths; a
//! lock is taken only when a path or group changes.
//!
//! Needs from callers: paths that lead to the same disk (equal capacity and blocks are checked, identity is not). The caller
//! acts on events as [`PathEvent`] says; checkers call [`Multipath::fail_path`] and [`Multipath::reinstate_path`]. A driver
//! whose path failed may still have a request in execution: it must stop that before it ends the request with an error. Does
//! not do: check paths, sort them into groups, speak to hardware. Source: drivers/md/dm-mpath.c, dm-rq.c.
//!
//! - `disk`: [`Multipath`], its paths and groups; `config`: what names and bounds them; `group`: which group is current, and
//!   its activation.
//! - `io`, `hctx`: the way of a request; `selector`: which path of a group it takes, one rule a file.
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
