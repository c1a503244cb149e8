// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD protocol: what the driver and the export share.

pub mod wire;
