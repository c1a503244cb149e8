// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-modify-write: I/O of any bytes on a disk that takes whole blocks only.
//!
//! - `locks`: the blocks that are being rewritten, for all threads of a disk ([`BlockLocks`])
//! - `entry`: a thread's way into a disk, past these locks ([`Entry`])
//! - `partial`: the steps of one I/O that is not whole blocks
//!
//! It lies above submitters and stripes, so a thread without such I/O pays one comparison per bio, and one load per round.
//!
//! Source: QEMU block/io.c (`bdrv_pad_request`, serialising requests).

mod entry;
mod locks;
mod partial;

pub use entry::Entry;
pub use locks::{BlockLocks, Wake};
pub use partial::ByteIo;

use crate::bio::{Bio, DataRef};
use crate::lock::Lock;
use crate::stripe::Striped;
use crate::submitter::{SubmitError, Submitter};
use crate::time::Instant;

/// What bios are passed on to: a submitter, or the submitter of a striped disk.
pub trait Below {
    /// As [`Submitter::submit`](crate::submitter::Submitter::submit).
    ///
    /// # Errors
    /// There is no slot.
    fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError>;
}

impl<L: Lock> Below for Submitter<L> {
    #[inline]
    fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError> {
        Submitter::submit(self, bio, now)
    }
}

impl<L: Lock> Below for Striped<L> {
    #[inline]
    fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError> {
        Striped::submit(self, bio, now)
    }
}

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBuffer {
    /// All are in use: one will come back.
    Busy,
    /// There is no memory for any.
    NoMemory,
}

/// The memory that bios point into, and buffers in it for blocks that are rewritten. This crate never touches data itself.
pub trait Memory {
    /// Returns a buffer of [`BUFFER_BYTES`], aligned to the largest block, with its number.
    ///
    /// # Errors
    /// There is none.
    fn take(&mut self) -> Result<(u32, DataRef), NoBuffer>;

    /// Takes a buffer back. No I/O uses it.
    fn give_back(&mut self, buffer: u32);

    /// Copies `bytes` bytes. Returns false if one of the places is gone.
    fn copy(&mut self, from: DataRef, to: DataRef, bytes: u64) -> bool;

    /// Zeroes `bytes` bytes of a buffer.
    fn zero(&mut self, to: DataRef, bytes: u64);
}

/// Bytes of a buffer: the maximum that one step of an unaligned I/O moves.
pub const BUFFER_BYTES: u64 = 1 << 20;
