// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses a target's bytes into messages, in whatever pieces the bytes arrive.
//!
//! Guarantees: any bytes are accepted as input; data segments are bounded by the declared maximum. Digests are checked before a header is
//! used, and before the end of data is reported. Apart from the pieces of [`PduEvent::Data`], events do not depend on how the bytes were
//! split. Data of reads is passed through, or the caller receives it directly into its memory ([`Reader::payload_left`]).
//! Source: RFC 7143, 11 and 13.1 (digests).

use super::pdu::{BHS_BYTES, DIGEST_BYTES, DataIn, Pdu, Received, Violation, padding};

/// Maximum number of bytes that are kept of a data segment that is not read data; the rest is dropped.
pub const MAX_KEPT: usize = 64 << 10;
/// [`Reader::next`] leaves fewer bytes than these.
pub const MOST_LEFT: usize = BHS_BYTES + DIGEST_BYTES;

/// An event in a target's bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum PduEvent<'a> {
    /// No event: more bytes are needed.
    NeedMore,
    /// Data begins.
    Begin(DataIn),
    /// A piece of the data.
    Data {
        /// Tag of the task.
        tag: u32,
        /// Offset in the task's data.
        at: u32,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The data is complete.
    End(DataIn, Received),
    /// Another message; its data is [`Reader::kept`].
    Pdu(Received),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Header,
    /// Bytes of data (`left`), and of padding and digest (`tail`), that follow.
    Body {
        read: Received,
        left: u32,
        tail: usize,
    },
}

/// See the module's text.
#[derive(Debug)]
pub struct Reader {
    header_digest: bool,
    data_digest: bool,
    max_data: u32,
    phase: Phase,
    kept: Vec<u8>,
    crc: u32,
}

impl Reader {
    /// Makes a reader for data segments of up to `max_data` bytes.
    pub fn new(header_digest: bool, data_digest: bool, max_data: u32) -> Reader {
        Reader { header_digest, data_digest, max_data, phase: Phase::Header, kept: Vec::new(), crc: 0 }
    }

    /// Returns the data of the last message.
    pub fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Returns which data of a read comes next, for a direct receive: tag, offset, bytes. `None` with data digests.
    pub fn payload_left(&self) -> Option<(u32, u32, u32)> {
        match self.phase {
            Phase::Body { read: Received { pdu: Pdu::DataIn(data), .. }, left, .. }
                if left > 0 && !self.data_digest =>
            {
                Some((data.tag, data.offset.wrapping_add(data.len - left), left))
            }
            _ => None,
        }
    }

    /// Reports that `n` bytes of [`Reader::payload_left`] were received directly.
    pub fn payload_received(&mut self, n: u32) {
        match &mut self.phase {
            Phase::Body { left, .. } if n <= *left => *left -= n,
            _ => panic!("{n} bytes of data were received that were not to come"),
        }
    }

    /// Parses bytes from the front of `input`. Call this until it returns [`PduEvent::NeedMore`].
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<PduEvent<'a>, Violation> {
        let Phase::Body { read, left, tail } = &mut self.phase else { return self.header(input) };
        if *left > 0 {
            let n = input.len().min(*left as usize);
            if n == 0 {
                return Ok(PduEvent::NeedMore);
            }
            let (now, rest) = input.split_at(n);
            *input = rest;
            if self.data_digest {
                self.crc = crc32c::crc32c_append(self.crc, now);
            }
            let before = *left;
            *left -= n as u32;
            if let Pdu::DataIn(data) = read.pdu {
                let at = data.offset.wrapping_add(data.len - before);
                return Ok(PduEvent::Data { tag: data.tag, at, bytes: now });
            }
            let room = MAX_KEPT - self.kept.len();
            self.kept.extend_from_slice(&now[..n.min(room)]);
            if *left > 0 {
                return Ok(PduEvent::NeedMore);
            }
        }
        let Some((end, rest)) = input.split_at_checked(*tail) else { return Ok(PduEvent::NeedMore) };
        *input = rest;
        let read = *read;
        self.phase = Phase::Header;
        self.check_data(end)?;
        Ok(match read.pdu {
            Pdu::DataIn(data) => PduEvent::End(data, read),
            _ => PduEvent::Pdu(read),
        })
    }

    /// Checks padding and digest after data.
    fn check_data(&self, end: &[u8]) -> Result<(), Violation> {
        if !self.data_digest {
            return Ok(());
        }
        let Some((padding, digest)) = end.split_last_chunk::<DIGEST_BYTES>() else { return Ok(()) };
        if crc32c::crc32c_append(self.crc, padding) == u32::from_le_bytes(*digest) {
            return Ok(());
        }
        Err(Violation("data digest mismatch: the data is corrupt".into()))
    }

    fn header<'a>(&mut self, input: &mut &'a [u8]) -> Result<PduEvent<'a>, Violation> {
        let with_digest = BHS_BYTES + if self.header_digest { DIGEST_BYTES } else { 0 };
        let Some((header, rest)) = input.split_at_checked(with_digest) else { return Ok(PduEvent::NeedMore) };
        let Some((bytes, digest)) = header.split_first_chunk::<BHS_BYTES>() else { return Ok(PduEvent::NeedMore) };
        *input = rest;
        if let Some(digest) = digest.first_chunk()
            && crc32c::crc32c(bytes) != u32::from_le_bytes(*digest)
        {
            return Err(Violation("header digest mismatch: the header is corrupt".into()));
        }
        let read = Received::parse(bytes)?;
        if read.data_len > self.max_data {
            let (len, most) = (read.data_len, self.max_data);
            return Err(Violation(format!("a data segment has {len} bytes, above the declared maximum of {most}")));
        }
        self.kept.clear();
        self.crc = 0;
        // An empty data segment has no digest.
        let digest = if self.data_digest && read.data_len > 0 { DIGEST_BYTES } else { 0 };
        let tail = padding(read.data_len) + digest;
        if let Pdu::DataIn(data) = read.pdu {
            self.phase = Phase::Body { read, left: read.data_len, tail };
            return Ok(PduEvent::Begin(data));
        }
        if read.data_len == 0 {
            return Ok(PduEvent::Pdu(read));
        }
        self.phase = Phase::Body { read, left: read.data_len, tail };
        self.next(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message of a target, with a digest of each part if `digests`.
    fn message(opcode: u8, tag: u32, data: &[u8], digests: bool) -> Vec<u8> {
        let mut header = [0; BHS_BYTES];
        header[0] = opcode;
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        let mut all = header.to_vec();
        if digests {
            all.extend(crc32c::crc32c(&header).to_le_bytes());
        }
        let padded = [data, &[0; 3][..padding(data.len() as u32)]].concat();
        all.extend(&padded);
        if digests && !data.is_empty() {
            all.extend(crc32c::crc32c(&padded).to_le_bytes());
        }
        all
    }

    fn read_all(bytes: &[u8], piece: usize, digests: bool) -> (Vec<u8>, Vec<u32>, Result<(), Violation>) {
        let mut reader = Reader::new(digests, digests, 4096);
        let (mut held, mut data, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for now in bytes.chunks(piece) {
            held.extend_from_slice(now);
            let mut input = &held[..];
            loop {
                match reader.next(&mut input) {
                    Ok(PduEvent::NeedMore) => break,
                    Ok(PduEvent::Begin(_)) => {}
                    Ok(PduEvent::Data { bytes, .. }) => data.extend(bytes),
                    Ok(PduEvent::End(d, _)) => ends.push(d.tag),
                    Ok(PduEvent::Pdu(_)) => data.extend(reader.kept()),
                    Err(e) => return (data, ends, Err(e)),
                }
            }
            held = input.to_vec();
            assert!(held.len() < MOST_LEFT);
        }
        (data, ends, Ok(()))
    }

    #[test]
    fn the_cuts_do_not_matter() {
        for digests in [false, true] {
            let all = [
                message(0x25, 1, b"hello", digests),
                message(0x20, 2, b"", digests),
                message(0x21, 3, b"sense", digests),
                message(0x25, 4, b"", digests),
                message(0x25, 5, b"worlds", digests),
            ]
            .concat();
            for piece in 1..all.len() {
                let (data, ends, how) = read_all(&all, piece, digests);
                assert_eq!((&data[..], &ends[..], how), (&b"hellosenseworlds"[..], &[1, 4, 5][..], Ok(())), "{piece}");
            }
        }
    }

    #[test]
    fn damage_is_noticed_by_digests() {
        let good = message(0x25, 1, b"hello", true);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(read_all(&bad, bad.len(), true).2.is_err(), "byte {at}");
        }
    }

    #[test]
    fn data_beyond_what_was_declared_is_refused() {
        let long = message(0x25, 1, &[0; 4097], false);
        assert!(
            read_all(&long, long.len(), false)
                .2
                .unwrap_err()
                .to_string()
                .contains("4097 bytes, above the declared maximum of 4096")
        );
    }
}
