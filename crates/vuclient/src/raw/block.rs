// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Block requests in guest memory: header, data, status.
//!
//! Guarantees: each request has memory of its own; the status byte holds [`NO_STATUS`] until the device writes it.
//! Source: virtio 1.2, 5.2.6.

use super::guest::Guest;
use super::ring::Segment;
use crate::error::Error;

/// Request type: read.
pub const IN: u32 = 0;
/// Request type: write.
pub const OUT: u32 = 1;
/// Request type: flush.
pub const FLUSH: u32 = 4;
/// Request type: the serial, 20 bytes.
pub const GET_ID: u32 = 8;
/// Request type: discard; the data is ranges of 16 bytes.
pub const DISCARD: u32 = 11;
/// Request type: zero; the data is ranges of 16 bytes.
pub const WRITE_ZEROES: u32 = 13;

/// Status: success.
pub const OK: u8 = 0;
/// Status: failed.
pub const IOERR: u8 = 1;
/// Status: not supported.
pub const UNSUPP: u8 = 2;
/// Value of the status byte before completion; it is no status of the specification.
pub const NO_STATUS: u8 = 0xee;

/// Bytes of two cache lines, because some CPUs also fetch the adjacent line.
pub const LINE: usize = 128;

/// A request's memory.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest {
    /// Request type.
    pub kind: u32,
    /// Guest address of the 16 bytes of the header.
    pub header: u64,
    /// Guest address of the data.
    pub data: u64,
    /// Bytes of data.
    pub len: u32,
    /// Guest address of the status byte.
    pub status: u64,
}

/// Encodes one range of a discard or write of zeroes (5.2.6, `struct virtio_blk_discard_write_zeroes`).
pub fn range(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

impl BlockRequest {
    /// Takes memory for a request of `len` bytes of data.
    ///
    /// # Errors
    /// When the guest has no room.
    pub fn new(guest: &mut Guest, kind: u32, sector: u64, len: u32) -> Result<BlockRequest, Error> {
        let header = guest.take(16, 8)?;
        let data = guest.take(len as usize, 1)?;
        let status = guest.take(1, 1)?;
        BlockRequest { kind, header, data, len, status }.written(guest, sector)
    }

    /// Takes memory for `count` requests of `len` bytes each. Headers, statuses and data lie in separate areas, so that
    /// the driver and the device never write to the same cache line.
    ///
    /// # Errors
    /// When the guest has no room.
    pub fn apart(
        guest: &mut Guest,
        kind: u32,
        count: usize,
        len: u32,
        sector: impl Fn(usize) -> u64,
    ) -> Result<Vec<BlockRequest>, Error> {
        let headers = guest.take(16 * count, LINE)?;
        let status = guest.take(count, LINE)?;
        let data = guest.take(len as usize * count, 4096)?;
        let requests = (0..count).map(|i| {
            let n = i as u64;
            let (header, status, data) = (headers + 16 * n, status + n, data + u64::from(len) * n);
            BlockRequest { kind, header, data, len, status }.written(guest, sector(i))
        });
        requests.collect()
    }

    /// Writes the header to guest memory, resets the status byte, and returns the request.
    fn written(self, guest: &Guest, sector: u64) -> Result<BlockRequest, Error> {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        guest.write(self.header, &bytes)?;
        guest.write(self.status, &[NO_STATUS])?;
        Ok(self)
    }

    /// Whether the device writes the data.
    pub fn is_from_device(&self) -> bool {
        matches!(self.kind, IN | GET_ID)
    }

    /// Returns the valid chain: header, data if any, status.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments = vec![Segment { addr: self.header, len: 16, write: false }];
        if self.len > 0 {
            segments.push(Segment { addr: self.data, len: self.len, write: self.is_from_device() });
        }
        segments.push(Segment { addr: self.status, len: 1, write: true });
        segments
    }

    /// Returns the status byte that the device wrote.
    ///
    /// # Errors
    /// If the memory region was removed.
    pub fn status(&self, guest: &Guest) -> Result<u8, Error> {
        guest.load(self.status)
    }
}
