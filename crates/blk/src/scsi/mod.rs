// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SCSI midlayer, between requests of the block layer and a transport that carries commands.
//!
//! Modules in the order a request meets them.
//!
//! Source: drivers/scsi of Linux 6.19; SAM-5, SPC-5 and SBC-4.

// Down: a request becomes a command, and goes if device and host may take it.
pub mod disk;
pub mod cdb;
pub mod device;
pub mod host;
pub mod transport;
pub mod debug;

// Up: what a device says, and what that means.
pub mod sense;
pub mod inquiry;
pub mod wwid;
pub mod alua;
pub mod disposition;

// What does not come up by itself.
pub mod eh;
mod recovery;
