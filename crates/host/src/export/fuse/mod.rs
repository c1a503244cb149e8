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
//! Guarantees of the first two: no I/O, no thread, no `unsafe`; no panic whatever bytes come. Each IOThread has a descriptor of its own
//! (`FUSE_DEV_IOC_CLONE`), so requests are taken, submitted and answered without a lock or cache line shared between threads. The kernel
//! sends buffered writes at once, so the writer gets the error of a full disk. It writes mapped pages back later, as those of any file.
//! fsync, fdatasync, O_DSYNC and the last close reach the driver as a flush or FUA. Holes are those of the disk (SEEK_DATA, SEEK_HOLE).
//! If the disk does not know them, the kernel reports that all is data. Mapped pages that are not written back may be reported as a hole.
//!
//! Not served: another size of the file (EPERM), locks (the kernel's own), extended attributes, fuse-over-io_uring, splice.
//!
//! Source: Linux include/uapi/linux/fuse.h, Documentation/filesystems/fuse.rst.

pub mod channel;
mod export;
mod memory;
pub(crate) mod mount;
pub mod session;
pub mod spec;
#[allow(clippy::disallowed_methods, reason = "the kernel speaks the byte order of its machine")]
pub mod wire;

pub use channel::Channel;
pub use export::{FuseExport, FuseOptions};

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "as wire")]
mod channel_tests;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "as wire")]
mod wire_tests;
