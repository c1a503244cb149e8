// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets, waits and TLS, for drivers that connect and exports that listen.
//!
//! Does not know any protocol above them.

pub mod certificates;
pub mod client_names;
pub mod listen;
pub(crate) mod owner;
pub mod socket;
pub(crate) mod tls;
#[allow(unsafe_code, reason = "sendmsg and recvmsg with the memory of requests")]
pub(crate) mod vectored;
