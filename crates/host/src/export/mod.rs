// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports: the protocols by which clients outside this process reach a disk.

pub mod fuse;
pub mod nbd;
pub mod registry;
pub mod ublk;
pub mod vhost;
