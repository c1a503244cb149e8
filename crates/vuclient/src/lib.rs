// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user-blk client without a virtual machine, for tests and benches.
//!
//! | module | what it is for |
//! |---|---|
//! | [`disk`] | one connection through blkio; what the device tells |
//! | [`bench`](mod@bench) | closed-loop load, made cheap so that the server is what is measured |
//! | [`lean`](mod@lean) | the same load by a driver of our own that costs next to nothing |
//! | [`verify`](mod@verify) | data written, zeroed, discarded and compared, several queues at once |
//! | [`nbd`](mod@nbd) | closed-loop load on an NBD server, as cheap as sockets allow |
//! | [`raw`] | one protocol step at a time, right or wrong: feature bits, memory, descriptors, rings |
//!
//! Guarantees: no call waits for ever on a server that stopped answering; a server's wrong answer is
//! an [`Error`], never a panic. Needs a vhost-user server at a Unix socket, and for [`disk`] one with
//! the protocol features CONFIG, REPLY_ACK and CONFIGURE_MEM_SLOTS, which blkio insists on.
//! Does not reconnect by itself, and is no driver for real use: its peer is under test.
//! Source: virtio 1.2 sections 2.7, 2.8 and 5.2; QEMU's `docs/interop/vhost-user.rst`.

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
pub use lean::{LeanOptions, lean};
pub use nbd::{NbdOptions, NbdReport, nbd};
pub use phases::{BenchReport, Latencies, QueueReport};
pub use verify::{Verifier, VerifyOptions, VerifyReport, verify};

/// Why a connection, a bench or a verification ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client library refused, or reported the server's refusal.
    #[error("{what}: {source}")]
    Blkio {
        /// What was tried, with the socket or the setting.
        what: String,
        /// blkio's own words.
        source: blkio::Error,
    },
    /// A system call of this process failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A setting breaks its rule; the text has rule, value and remedy.
    #[error("{0}")]
    Usage(String),
    /// The server ended a request with an error, or not at all.
    #[error("{0}")]
    Server(String),
    /// What was read is not what was written; the text begins with the seed.
    #[error("{0}")]
    Difference(String),
}

impl Error {
    fn blkio(what: impl Into<String>) -> impl FnOnce(blkio::Error) -> Error {
        let what = what.into();
        move |source| Error::Blkio { what, source }
    }

    fn io<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source: source.into() }
    }
}
