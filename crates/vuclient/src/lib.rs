// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user-blk client without a virtual machine, for tests and benches.
//!
//! | module | what it is for |
//! |---|---|
//! | [`disk`] | one connection through blkio; the device's properties |
//! | [`bench`](mod@bench) | closed-loop load with little overhead, so that the result measures the server |
//! | [`lean`](mod@lean) | the same load from a driver of this crate with almost no overhead |
//! | [`verify`](mod@verify) | data written, zeroed, discarded and compared, several queues at once |
//! | [`nbd`](mod@nbd) | closed-loop load on an NBD server, with as little overhead as sockets allow |
//! | [`raw`] | one protocol step at a time, right or wrong: feature bits, memory, descriptors, rings |
//!
//! Guarantees: no call waits for ever on a server that stopped answering; a server's wrong answer is
//! an [`Error`], never a panic. Needs a vhost-user server at a Unix socket, and for [`disk`] one with
//! the protocol features CONFIG, REPLY_ACK and CONFIGURE_MEM_SLOTS, which blkio insists on.
//! Does not reconnect by itself, and is no driver for real use: its peer is under test.
//! Source: virtio 1.2 sections 2.7, 2.8 and 5.2; QEMU's `docs/interop/vhost-user.rst`.

mod error;
pub mod disk;
mod completion;
mod memory;
mod random;
mod phases;
pub mod bench;
pub mod lean;
pub mod verify;
pub mod nbd;
pub mod raw;

pub use bench::{BenchOptions, bench};
pub use disk::Info;
pub use error::Error;
pub use lean::{LeanOptions, lean};
pub use nbd::{NbdOptions, NbdReport, nbd};
pub use phases::{BenchReport, Latencies, QueueReport};
pub use verify::{Verifier, VerifyOptions, VerifyReport, verify};

// `cargo test --doc` compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
