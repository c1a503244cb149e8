// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SCSI midlayer, between requests of the block layer and a transport that carries commands.
//!
//! The modules are listed in the order in which a request passes through them.
//!
//! Source: drivers/scsi of Linux 6.19; SAM-5, SPC-5 and SBC-4.

// Down: a request becomes a command, which is sent if device and host can take it.
pub mod disk;
pub mod cdb;
pub mod device;
pub mod host;
pub mod transport;
pub mod debug;

// Up: the answers of a device, and the decisions about them.
pub mod sense;
mod sense_text;
pub mod inquiry;
pub mod wwid;
pub mod alua;
pub mod disposition;
pub mod failure;

// Error handling: commands that do not complete by themselves.
pub mod eh;
mod recovery;
