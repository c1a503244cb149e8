// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk as one file of a FUSE file system, mounted over an existing regular file; `losetup` makes a block device of it.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | messages of `/dev/fuse`: numbers, layouts, reading and making them |
//! | [`session`] | what is to be done for a request, given the disk |
//! | [`channel`] | a descriptor of `/dev/fuse` on an IOThread: [`Channel`] |
//! | `mount` | mounting, unmounting, mounts of daemons that were killed |
//! | `export` | all of it as one: [`FuseExport`] |
//! | [`spec`] | the export as it is asked for: its keys, checks and commands |
//! | `memory` | memory for data |
//!
//! Guarantees of [`wire`] and [`session`]: no I/O, no thread, no `unsafe`; no panic, whatever bytes arrive. Each IOThread has a descriptor
//! of its own (`FUSE_DEV_IOC_CLONE`), so requests are taken, submitted and answered without a lock or cache line shared between threads.
//! The kernel sends a buffered write before write(2) returns, so the writer gets the error of a full disk. It writes mapped pages back
//! later, as for any file. fsync, fdatasync, O_DSYNC and the last close reach the driver as a flush or FUA. SEEK_DATA and SEEK_HOLE find
//! the holes of the disk. If the disk does not know its holes, the kernel reports the whole file as data. Mapped pages that are not yet
//! written back may be reported as a hole.
//!
//! Not served: a change of the file's size (EPERM), locks (the kernel handles them itself), extended attributes, fuse-over-io_uring,
//! splice.
//!
//! Source: Linux include/uapi/linux/fuse.h, Documentation/filesystems/fuse.rst.

pub mod channel;
mod export;
mod memory;
pub(crate) mod mount;
pub mod session;
pub mod spec;
#[allow(clippy::disallowed_methods, reason = "FUSE messages have the machine's byte order")]
pub mod wire;

pub use channel::Channel;
pub use export::{FuseExport, FuseOptions};

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "as wire")]
mod channel_tests;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "as wire")]
mod wire_tests;
