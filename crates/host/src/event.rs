// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Event descriptors (`eventfd`): making one, making it readable, emptying it.

use crate::error::{Error, Result};
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, OwnedFd};

/// A new one that does not block.
pub(crate) fn new() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(|e| Error::os(e.into(), "cannot make an eventfd"))
}

/// Makes it readable. A full one is that already; one that is no eventfd is its owner's concern.
#[inline]
pub(crate) fn signal(fd: impl AsFd) {
    let _ = rustix::io::write(fd, &1u64.to_le_bytes());
}

/// Empties it, if there is anything in it. It must not block.
#[inline]
pub(crate) fn drain(fd: impl AsFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
