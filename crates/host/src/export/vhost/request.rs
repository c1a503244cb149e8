// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request that a chain of descriptors describes.
//!
//! Guarantees: header, data and status may be split into descriptors in any way. A request without a byte for the status cannot be
//! answered, so the queue stops. Every other error is answered with a status.
//!
//! Source: virtio 1.3, section 5.2.6 (device operation), 2.7.4 (framing).

use super::descriptor::{Desc, View};
use blk::bio::DataRef;

/// `VIRTIO_BLK_T_IN`
const T_IN: u32 = 0;
/// `VIRTIO_BLK_T_OUT`
const T_OUT: u32 = 1;
/// `VIRTIO_BLK_T_FLUSH`
const T_FLUSH: u32 = 4;
/// `VIRTIO_BLK_T_GET_ID`
const T_GET_ID: u32 = 8;
/// `VIRTIO_BLK_T_DISCARD`
const T_DISCARD: u32 = 11;
/// `VIRTIO_BLK_T_WRITE_ZEROES`
const T_WRITE_ZEROES: u32 = 13;
/// Bytes of the header: type, priority, sector.
const HEADER_BYTES: u32 = 16;
/// Bytes of one range of discard and write zeroes.
pub(super) const RANGE_BYTES: usize = 16;

/// Status byte: success.
pub const S_OK: u8 = 0;
/// Status byte: failed.
pub const S_IOERR: u8 = 1;
/// Status byte: unsupported request.
pub const S_UNSUPP: u8 = 2;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read into the data segments, from the sector on.
    In,
    /// Write the data segments.
    Out,
    /// Make completed writes stable.
    Flush,
    /// Return the serial number.
    GetId,
    /// Discard the ranges.
    Discard,
    /// Zero the ranges.
    WriteZeroes,
    /// Something else.
    Unknown,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub kind: Kind,
    /// First sector of a read or write.
    pub sector: u64,
    /// Address of the status byte.
    pub status: DataRef,
    /// The same as a guest address.
    pub status_at: u64,
    /// Bytes of data, which are in the segments.
    pub bytes: u64,
    /// Bytes that the device may write, including the status.
    pub writable: u64,
}

/// Why a chain is not a request, so that the queue must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BadChain {
    #[error("a request has {bytes} device-readable bytes: must be at least 16, the header")]
    ShortHeader { bytes: u64 },
    #[error("a request without a byte for its status")]
    NoStatus,
    #[error("a device-readable descriptor follows a device-writable one")]
    Order,
    #[error("the address {addr:#x} of a request is not in the guest's memory")]
    Outside { addr: u64 },
}

/// Parses the request in `chain`. Replaces the content of `segments` by the request's data segments.
#[inline]
pub fn parse(
    view: &View,
    chain: &[Desc],
    segments: &mut Vec<(u64, u32)>,
    hint: &mut usize,
) -> Result<Request, BadChain> {
    segments.clear();
    let (first, last) = match chain {
        [first, .., last] if !first.write && last.write => (first, last),
        _ => return Err(no_request(chain)),
    };
    let status_at = last.addr.checked_add(u64::from(last.len)).ok_or(BadChain::Outside { addr: last.addr })?;
    if last.len == 0 {
        return Err(BadChain::NoStatus);
    }
    let (status, _) = view.memory.translate(status_at - 1, 1, hint).ok_or(BadChain::Outside { addr: status_at - 1 })?;
    let (words, head_descs, head_bytes) = match header_in_one(view, first, hint) {
        Some(words) => (words, 0, HEADER_BYTES),
        None => header_in_pieces(view, chain, hint)?,
    };
    let kind = match words[0] as u32 {
        T_IN => Kind::In,
        T_OUT => Kind::Out,
        T_FLUSH => Kind::Flush,
        T_GET_ID => Kind::GetId,
        T_DISCARD => Kind::Discard,
        T_WRITE_ZEROES => Kind::WriteZeroes,
        _ => Kind::Unknown,
    };
    let is_written = matches!(kind, Kind::In | Kind::GetId);
    let (mut bytes, mut writable, mut writes) = (0, 0, false);
    for (i, d) in chain.iter().enumerate().skip(head_descs) {
        if writes && !d.write {
            return Err(BadChain::Order);
        }
        writes = d.write;
        if d.write {
            writable += u64::from(d.len);
        }
        let front = if i == head_descs { head_bytes } else { 0 };
        let back = u32::from(i == chain.len() - 1);
        let len = d.len - front - back;
        if d.write == is_written && len > 0 {
            bytes += u64::from(len);
            // The segment's end is checked when the address is translated.
            segments.push((d.addr.wrapping_add(u64::from(front)), len));
        }
    }
    Ok(Request { kind, sector: words[1], status, status_at: status_at - 1, bytes, writable })
}

/// Reads the header in the usual case: the first descriptor holds it, in one slot of memory.
#[inline]
fn header_in_one(view: &View, first: &Desc, hint: &mut usize) -> Option<[u64; 2]> {
    if first.len < HEADER_BYTES {
        return None;
    }
    let (at, here) = view.memory.translate(first.addr, HEADER_BYTES, hint)?;
    let region = view.regions.get(at.region()).filter(|_| here == HEADER_BYTES)?;
    let offset = at.offset() as usize;
    Some([region.read_u64(offset), region.read_u64(offset + 8)])
}

/// Reads the header byte by byte. Also returns the index of the descriptor that it ends in, and how many bytes of that descriptor it
/// takes.
#[cold]
fn header_in_pieces(view: &View, chain: &[Desc], hint: &mut usize) -> Result<([u64; 2], usize, u32), BadChain> {
    let mut header = [0; HEADER_BYTES as usize];
    let readable: u64 = chain.iter().take_while(|d| !d.write).map(|d| u64::from(d.len)).sum();
    if readable < u64::from(HEADER_BYTES) {
        return Err(BadChain::ShortHeader { bytes: readable });
    }
    let (mut desc, mut used) = (0, 0);
    for byte in &mut header {
        while used == chain[desc].len {
            (desc, used) = (desc + 1, 0);
        }
        let addr = chain[desc].addr.wrapping_add(u64::from(used));
        *byte = read_byte(view, addr, hint).ok_or(BadChain::Outside { addr })?;
        used += 1;
    }
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    Ok(([word(0), word(8)], desc, used))
}

/// Reads one byte of the guest's memory.
pub(super) fn read_byte(view: &View, addr: u64, hint: &mut usize) -> Option<u8> {
    let (at, _) = view.memory.translate(addr, 1, hint)?;
    let region = view.regions.get(at.region())?;
    Some(region.load_u8(at.offset() as usize, std::sync::atomic::Ordering::Relaxed))
}

/// Writes one byte to the guest's memory.
pub(super) fn write_byte(view: &View, addr: u64, value: u8, hint: &mut usize) -> Option<()> {
    let (at, _) = view.memory.translate(addr, 1, hint)?;
    let region = view.regions.get(at.region())?;
    region.store_u8(at.offset() as usize, value, std::sync::atomic::Ordering::Relaxed);
    Some(())
}

#[cold]
fn no_request(chain: &[Desc]) -> BadChain {
    match (chain.first(), chain.last()) {
        (Some(first), _) if first.write => BadChain::ShortHeader { bytes: 0 },
        (_, Some(last)) if last.write => BadChain::Order,
        _ => BadChain::NoStatus,
    }
}
