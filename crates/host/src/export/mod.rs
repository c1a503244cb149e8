// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Upper edges: how others reach a disk through the block layer.

pub mod vhost;
