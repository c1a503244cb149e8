// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux block devices whose driver is this process: `/dev/ublkbN`, by the kernel's `ublk_drv`.
//!
//! | module | holds |
//! |---|---|
//! | `wire` | numbers and layouts of the kernel's interface |
//! | `control` | commands to `/dev/ublk-control` |
//! | `device` | `/dev/ublkcN`: requests' descriptors and data |
//! | `queue` | one hardware queue, served by an IOThread: [`Queue`] |
//! | `same` | which disk may serve a waiting device |
//! | [`spec`] | the export's configuration: its keys, checks and commands |
//! | `export` | a device from adding to deleting: [`UblkExport`] |
//!
//! The kernel hands a request over by completing an io_uring command that waited for the request's tag. The next command for the tag does
//! two things: it answers the request and waits for the next one. Data is copied by pread and pwrite on `/dev/ublkcN`
//! (`UBLK_F_USER_COPY`), so a buffer is needed only while a request is served. A queue belongs to the thread that first waited for its
//! tags, so it stays on its IOThread. With recovery a device outlives the process. The kernel hands requests in flight to the next
//! process, which executes them, maybe a second time. No acknowledged request is lost. An existing device can be resized from Linux 6.16
//! on.
//!
//! Not used: zero copy (Linux 6.15), zones, unprivileged devices.
//! Needs Linux 6.3 or later, and root.
//!
//! Source: include/uapi/linux/ublk_cmd.h, Documentation/block/ublk.rst (Linux 6.12).

mod control;
mod device;
mod export;
mod queue;
mod same;
pub mod spec;
mod wire;

pub use export::{UblkExport, UblkOptions};
pub use queue::Queue;
