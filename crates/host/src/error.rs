// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one error type of this crate: what class of failure ([`ErrorKind`]), the sentence for a person (rule, value,
//! remedy), and the operating system's error below it, if there is one.
//!
//! Guarantees: what is printed has no password or key of a target ([`without_secrets`]).
//!
//! Errors of single I/Os are not here: those are `blk::status::BlkStatus`.

use crate::secrets::without_secrets;
use std::fmt;
use std::io;

/// What class of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What the user asked for is malformed, unknown or out of range.
    Usage,
    /// The file or device does not exist.
    NotFound,
    /// The file or device is there but may not be used so (permission, read-only, directory).
    Denied,
    /// The file system or device is too small or too full.
    NoSpace,
    /// The host lacks memory, descriptors or a kernel feature.
    Resource,
    /// The user broke it off.
    Interrupted,
    /// The kernel does not take a value of a setting.
    Refused,
    /// Any other failure of a system call.
    Io,
}

/// A failure of the host side: its class, its sentence, its cause.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    ctx: String,
    #[source]
    source: Option<io::Error>,
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.ctx))?;
        match &self.source {
            Some(source) => write!(f, ": {}", without_secrets(&source.to_string())),
            None => Ok(()),
        }
    }
}

impl Error {
    /// A failure without an operating system error below it. `ctx` is the whole sentence: rule, value, remedy.
    pub fn new(kind: ErrorKind, ctx: impl Into<String>) -> Error {
        Error { kind, ctx: ctx.into(), source: None }
    }

    /// A usage error: see [`Error::new`].
    pub fn usage(ctx: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, ctx)
    }

    /// A failed system call; its class follows from the errno.
    pub fn os(source: io::Error, ctx: impl Into<String>) -> Error {
        let kind = match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => ErrorKind::NotFound,
            Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::EISDIR | libc::ETXTBSY) => ErrorKind::Denied,
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => ErrorKind::NoSpace,
            Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSYS | libc::EAGAIN) => ErrorKind::Resource,
            _ => ErrorKind::Io,
        };
        let mut ctx = ctx.into();
        if source.raw_os_error() == Some(libc::EMFILE) {
            ctx += " (raise the limit of open files: LimitNOFILE=, ulimit -n)";
        }
        Error { kind, ctx, source: Some(source) }
    }

    /// The failure of the system call made last on this thread.
    pub(crate) fn last_os(ctx: impl Into<String>) -> Error {
        Error::os(io::Error::last_os_error(), ctx)
    }

    /// Its class.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `what` in front of its sentence.
    pub fn within(mut self, what: &str) -> Error {
        self.ctx = format!("{what}: {}", self.ctx);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_os_error_keeps_class_sentence_and_cause() {
        let e = Error::os(io::Error::from_raw_os_error(libc::EROFS), "open 'a' for writing").within("target");
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().starts_with("target: open 'a' for writing: Read-only file system"), "{e}");
        assert_eq!(Error::os(io::Error::from_raw_os_error(libc::EIO), "x").kind(), ErrorKind::Io);
    }
}
