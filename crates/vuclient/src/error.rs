// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of connections, benches and verifications.

/// Why a connection, a bench or a verification ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client library refused, or reported the server's refusal.
    #[error("{what}: {source}")]
    Blkio {
        /// The operation, with its socket or setting.
        what: String,
        /// The error that blkio returned.
        source: blkio::Error,
    },
    /// A system call of this process failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A setting breaks its rule; the text has rule, value and remedy.
    #[error("{0}")]
    Usage(String),
    /// The server failed a request, did not complete one in time, or broke the protocol.
    #[error("{0}")]
    Server(String),
    /// The data read differs from the data written; the text begins with the seed.
    #[error("{0}")]
    Difference(String),
}

impl Error {
    pub(crate) fn blkio(what: impl Into<String>) -> impl FnOnce(blkio::Error) -> Error {
        let what = what.into();
        move |source| Error::Blkio { what, source }
    }

    pub(crate) fn io<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source: source.into() }
    }
}
