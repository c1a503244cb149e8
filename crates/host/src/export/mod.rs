// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The upper edge: what clients outside this process speak to reach a disk.

pub mod fuse;
pub mod nbd;
pub mod registry;
pub mod ublk;
pub mod vhost;
