// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O of a connection's socket: receives into buffers and sends replies, in plain text or under TLS.
//!
//! Guarantees: without TLS bytes are not copied, and TLS costs only the check for it. Replies are sent in the order of `out`; under TLS
//! short ones share a record.

use super::{Connection, ConnectionState, SLOTS, Slot};
use crate::mem::Span;
use crate::net::tls::{RECORD_BYTES, Received};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Maximum number of replies that one call sends; each has a head and perhaps data.
const BATCH: usize = 64;
/// Maximum number of turns of encrypting and sending in one round, so that the other sources of the IOThread get their turn.
const TLS_TURNS: usize = 8;

impl Connection {
    /// Receives the rest of a write's data into its buffer, and what follows into the input, which must be empty. Returns `None` if there
    /// was nothing, otherwise whether there may be more.
    pub(super) fn receive(&mut self) -> Option<bool> {
        if self.tls.is_some() {
            return self.receive_tls();
        }
        let payload = self.payload_place();
        let left = payload.map_or(0, Span::len);
        let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let mut count = 0;
        let mut asked = self.input.len();
        if let Some(span) = payload {
            list[0] = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
            asked += span.len();
            count = 1;
        }
        list[count] = libc::iovec { iov_base: self.input.as_mut_ptr().cast(), iov_len: self.input.len() };
        // SAFETY: the entries name the input, which is this connection's own, and part of a region. The region lives as long as
        // its table, and no reference to its bytes exists.
        let n = unsafe { libc::readv(self.socket.as_raw_fd(), list.as_ptr(), count as i32 + 1) };
        if n < 0 {
            match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return None,
                _ => self.kill(),
            }
            return Some(false);
        }
        if n == 0 {
            self.close();
            return Some(false);
        }
        let n = n as usize;
        let to_payload = if count > 0 { n.min(left) } else { 0 };
        if to_payload > 0 {
            self.session.payload_received(to_payload as u32);
        }
        (self.at, self.end) = (0, n - to_payload);
        Some(n == asked)
    }

    /// Returns where the rest of a write's data goes.
    fn payload_place(&self) -> Option<Span<'_>> {
        let left = self.session.payload_left() as usize;
        let slot = self.writing.filter(|_| left > 0)?;
        let Slot { request, buffer, .. } = &self.slots[usize::from(slot)];
        let from = request.as_ref()?.length as usize - left;
        Some(self.buffers.span((*buffer)?, from, left))
    }

    /// As [`Connection::receive`], for a connection under TLS.
    fn receive_tls(&mut self) -> Option<bool> {
        let mut tls = self.tls.take()?;
        let mut input = std::mem::take(&mut self.input);
        let payload = self.payload_place();
        let (mut to_payload, mut end) = (0, 0);
        let received = tls.receive(self.socket.as_fd(), |piece| {
            let left = payload.map_or(0, |span| span.len() - to_payload);
            let (data, rest) = piece.split_at(left.min(piece.len()));
            if let Some(span) = payload.filter(|_| !data.is_empty()) {
                span.part(to_payload, data.len()).copy_from(data);
                to_payload += data.len();
            }
            let room = input.get_mut(end..).unwrap_or_default();
            let n = rest.len().min(room.len());
            room.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            end += n;
            data.len() + n
        });
        let more = tls.has_more();
        (self.input, self.tls) = (input, Some(tls));
        match received {
            Ok(Received::Data) => {}
            Ok(Received::Nothing) => return None,
            Ok(Received::End) => {
                self.close();
                return Some(false);
            }
            Err(_) => {
                self.kill();
                return Some(false);
            }
        }
        if to_payload > 0 {
            self.session.payload_received(to_payload as u32);
        }
        (self.at, self.end) = (0, end);
        Some(more)
    }

    /// Whether ciphertext waits to be sent.
    #[inline]
    pub(super) fn tls_wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Encrypts replies as far as there is room, and sends them. Returns whether there is more to do now.
    fn send_tls(&mut self) -> io::Result<bool> {
        let Some(mut tls) = self.tls.take() else { return Ok(false) };
        let mut done = Ok(false);
        while !self.out.is_empty() {
            self.gather();
            match tls.write(&self.record) {
                Ok(n) => {
                    self.forget_sent(n);
                    if n < self.record.len() {
                        break;
                    }
                }
                Err(e) => {
                    done = Err(e);
                    break;
                }
            }
        }
        if done.is_ok() {
            done = tls.flush(self.socket.as_fd()).map(|all| all && !self.out.is_empty());
        }
        self.tls = Some(tls);
        done
    }

    /// Gathers as much of the replies as fits into a record.
    fn gather(&mut self) {
        self.record.clear();
        self.record.reserve_exact(RECORD_BYTES);
        let mut skip = self.sent;
        for slot in &self.out {
            let s = &self.slots[usize::from(*slot)];
            let room = RECORD_BYTES - self.record.len();
            let head = s.head.get(skip..s.head_bytes).unwrap_or_default();
            let head = head.get(..room).unwrap_or(head);
            self.record.extend_from_slice(head);
            let from = skip.saturating_sub(s.head_bytes);
            let n = (s.data_bytes - from).min(RECORD_BYTES - self.record.len());
            if let Some(buffer) = s.buffer.filter(|_| n > 0) {
                let at = self.record.len();
                self.record.resize(at + n, 0);
                self.buffers.span(buffer, from, n).copy_to_slice(&mut self.record[at..]);
            }
            if self.record.len() == RECORD_BYTES {
                return;
            }
            skip = 0;
        }
    }

    /// Sends the replies that are ready.
    #[inline]
    pub(super) fn send_ready(&mut self) {
        if self.tls.is_some() {
            self.send_ready_tls();
            return;
        }
        while !self.out.is_empty() && self.send() {}
    }

    fn send_ready_tls(&mut self) {
        let mut turns = TLS_TURNS;
        while turns > 0 && self.state != ConnectionState::Dead && (!self.out.is_empty() || self.tls_wants_write()) {
            turns -= 1;
            match self.send_tls() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.kill(),
            }
        }
        if self.state == ConnectionState::Closing && self.free.len() == SLOTS {
            self.say_goodbye();
        }
    }

    /// Sends a close_notify, once, when everything is answered.
    #[cold]
    fn say_goodbye(&mut self) {
        let Some(tls) = self.tls.as_mut().filter(|_| !self.said_goodbye) else { return };
        self.said_goodbye = true;
        tls.close();
        if tls.flush(self.socket.as_fd()).is_err() {
            self.kill();
        }
    }

    /// Sends a batch of replies. Returns whether all of it was sent.
    fn send(&mut self) -> bool {
        let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2 * BATCH];
        let (mut count, mut asked, mut skip) = (0, 0, self.sent);
        for slot in self.out.iter().take(BATCH) {
            let s = &self.slots[usize::from(*slot)];
            if let Some(head) = s.head.get(skip..s.head_bytes).filter(|h| !h.is_empty()) {
                list[count] = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
                (count, asked) = (count + 1, asked + head.len());
            }
            if let Some(buffer) = s.buffer.filter(|_| s.data_bytes > 0) {
                let from = skip.saturating_sub(s.head_bytes);
                let span = self.buffers.span(buffer, from, s.data_bytes - from);
                list[count] = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
                (count, asked) = (count + 1, asked + span.len());
            }
            skip = 0;
        }
        // SAFETY: all zeroes is an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), count as _);
        // SAFETY: the entries point to headers and to parts of regions. The headers belong to this connection and are only read.
        // The regions live as long as their table.
        let n = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if n < 0 {
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => return true,
                io::ErrorKind::WouldBlock => {}
                _ => self.kill(),
            }
            return false;
        }
        self.forget_sent(n as usize);
        n as usize == asked
    }

    fn forget_sent(&mut self, mut n: usize) {
        while let Some(slot) = self.out.front().copied() {
            let s = &self.slots[usize::from(slot)];
            let left = s.head_bytes + s.data_bytes - self.sent;
            if n < left {
                self.sent += n;
                return;
            }
            (n, self.sent) = (n - left, 0);
            self.out.pop_front();
            self.free_slot(slot);
        }
    }
}
