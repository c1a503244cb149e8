// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection in the transmission phase under TLS: as without it, with a buffer of ours between the socket and requests' memory.
//!
//! Guarantees: memory is bounded: that of [`TlsStream`], one record of plaintext that is gathered, and the beginning of a reply.
//! Data is copied once between requests' memory and TLS. All that was received is decrypted and taken before a call returns, but
//! for a record that has not arrived as a whole: what is left to be received is in the socket, and the socket tells of it. What TLS
//! has to say (ciphertext that did not fit, answers to changed keys) goes out with the next call of either kind, and so do requests
//! that wait for it: as long as the socket was full and something of either is left, it is watched until it is writable. The
//! end of the stream is a lost connection, whether the server has declared it or it was cut.
//! A write whose memory has gone while it was copied is not sent: none of what is found in its place.

use super::{Link, Lost, MOST_LEFT, take};
use crate::driver::nbd::requests::Requests;
use crate::driver::remote::stream::{Ends, MAX_RECEIVES, SEND_BATCH, Stream};
use crate::mem::Regions;
use crate::nbd::wire::{REQUEST_BYTES, RequestHeader, command};
use crate::net::tls::{RECORD_BYTES, Received, TlsStream};
use crate::net::vectored::is_later;
use rustls::ClientConnection;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What a connection has more under TLS.
pub(super) struct Sealed {
    stream: Box<TlsStream<ClientConnection>>,
    /// Plaintext of one record.
    record: Box<[u8]>,
}

/// What was put into a record.
struct Gathered {
    bytes: usize,
    /// Where in it requests end.
    ends: Ends,
    /// The memory of the request behind them has gone.
    gone: bool,
}

impl Sealed {
    pub(super) fn new(stream: Box<TlsStream<ClientConnection>>) -> Sealed {
        Sealed { stream, record: vec![0; RECORD_BYTES].into() }
    }

    /// As much of the unsent requests as a record takes, without the first bytes of the oldest one, which were sent.
    fn gather(&mut self, sent: usize, requests: &Requests, regions: &Regions) -> Gathered {
        let mut all = Gathered { bytes: 0, ends: Ends::new(), gone: false };
        let mut skip = sent;
        for i in 0..requests.unsent().min(SEND_BATCH) {
            let (start, header, payload) = (all.bytes, requests.header(i), requests.payload_to_send(i));
            let header = header.get(skip..).unwrap_or_default();
            let (room, from) = (RECORD_BYTES - start, skip.saturating_sub(REQUEST_BYTES));
            let n = header.len().min(room);
            let m = (payload - from).min(room - n);
            self.record[start..start + n].copy_from_slice(&header[..n]);
            let data = &mut self.record[start + n..start + n + m];
            if m > 0 && !requests.copy_payload(i, from, regions, data) {
                all.gone = true;
                break;
            }
            all.bytes += n + m;
            if n < header.len() || from + m < payload {
                break;
            }
            all.ends.push(all.bytes);
            skip = 0;
        }
        all
    }

    /// Sends what waits; whether all of it.
    fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Lost> {
        match self.stream.flush(socket.as_fd()) {
            Ok(all) => Ok(all),
            Err(e) if is_later(&e) => Ok(false),
            Err(e) => Err(Lost::Broken(format!("sending failed: {e}"))),
        }
    }
}

impl Link {
    /// As [`Link::transmit`].
    pub(super) fn transmit_tls(
        &mut self,
        requests: &mut Requests,
        regions: &Regions,
        set: &OwnedFd,
    ) -> Result<(), Lost> {
        let Link { stream, tls: Some(tls), .. } = self else { return Ok(()) };
        let mut full = !tls.flush(&stream.socket)?;
        while requests.unsent() > 0 && !full {
            // Encrypted as far as there is room, sent as far as the socket takes it.
            while requests.unsent() > 0 {
                let all = tls.gather(stream.sent, requests, regions);
                let record = tls.record.get(..all.bytes).unwrap_or_default();
                let n = tls.stream.write(record).map_err(|e| Lost::Broken(format!("sending failed: {e}")))?;
                let (whole, end) = all.ends.within(n);
                stream.sent = if whole > 0 { n - end } else { stream.sent + n };
                requests.went_out(whole);
                if n < all.bytes {
                    // There is no more room; the rest is gathered once more.
                    break;
                }
                if all.gone {
                    requests.fail_unsent();
                    if stream.sent > 0 {
                        return Err(Lost::HalfSent);
                    }
                }
            }
            full = !tls.flush(&stream.socket)?;
        }
        stream.watch_writable(full, set);
        Ok(())
    }

    /// As [`Link::receive`].
    pub(super) fn receive_tls(
        &mut self,
        requests: &mut Requests,
        regions: &Regions,
        keep_on_shutdown: bool,
        set: &OwnedFd,
    ) -> Result<(), Lost> {
        let Link { stream, tls: Some(tls), replies } = self else { return Ok(()) };
        let Stream { socket, input, filled, .. } = stream;
        let mut lost = None;
        for _ in 0..MAX_RECEIVES {
            let received = tls.stream.receive(socket.as_fd(), |piece| {
                let mut left = piece;
                while !left.is_empty() && lost.is_none() {
                    // A reply's beginning that was left is made whole first; the rest is taken from where it lies.
                    let held = *filled;
                    let n = if held > 0 { left.len().min(MOST_LEFT) } else { 0 };
                    let (now, behind) = left.split_at(n);
                    input[held..held + n].copy_from_slice(now);
                    let bytes = if held > 0 { &input[..held + n] } else { left };
                    let taken = match take(replies, bytes, requests, regions, keep_on_shutdown) {
                        Ok(taken) => taken,
                        Err(why) => {
                            lost = Some(why);
                            break;
                        }
                    };
                    *filled = bytes.len() - taken;
                    if held > 0 {
                        input.copy_within(taken..held + n, 0);
                        left = behind;
                    } else {
                        input[..*filled].copy_from_slice(&left[taken..]);
                        left = &[];
                    }
                }
                piece.len()
            });
            if let Some(lost) = lost {
                return Err(lost);
            }
            match received.map_err(|e| broken(&e))? {
                Received::End => return Err(Lost::broken("the server has closed the connection")),
                Received::Nothing | Received::Data if !tls.stream.has_more() => break,
                Received::Nothing | Received::Data => {}
            }
        }
        // Changed keys are answered, and what did not fit before may now: all of it, also what is not encrypted yet. A
        // partial flush here would lose the socket's edge, though requests wait for room.
        if stream.full || tls.stream.wants_write() {
            return self.transmit_tls(requests, regions, set);
        }
        Ok(())
    }

    /// As [`Link::disconnect`].
    pub(super) fn disconnect_tls(mut self) {
        let Link { stream, tls: Some(tls), .. } = &mut self else { return };
        let bye = RequestHeader { flags: 0, kind: command::DISC, cookie: 0, offset: 0, length: 0 };
        if stream.sent == 0
            && let Some(bye) = bye.to_compact()
            && tls.stream.write(&bye).is_ok_and(|n| n == bye.len())
        {
            tls.stream.close();
            let _ = tls.flush(&stream.socket);
        }
    }
}

fn broken(e: &io::Error) -> Lost {
    match e.kind() {
        io::ErrorKind::InvalidData => Lost::Broken(format!("the server, or a relay on the way to it, breaks TLS: {e}")),
        _ => Lost::Broken(format!("receiving failed: {e}")),
    }
}
