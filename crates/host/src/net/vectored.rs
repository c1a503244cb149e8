// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends headers and request memory together with one system call, and receives them with one.
//!
//! Guarantees: no copy, no wait (`MSG_DONTWAIT`), no signal; a list borrows what it points to for as long as it lives. A request's memory
//! may change at any time, so it is handed to the kernel and never accessed as a slice.

use crate::mem::{Span, copy_racy};
use libc::iovec;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of pieces of one call.
pub(crate) const MAX_PIECES: usize = 192;

/// Addresses and lengths, in order.
struct List {
    pieces: [iovec; MAX_PIECES],
    first: usize,
    end: usize,
}

impl List {
    fn new() -> List {
        List { pieces: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PIECES], first: 0, end: 0 }
    }

    fn capacity(&self) -> usize {
        MAX_PIECES - self.end
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        assert!(self.capacity() > 0, "more pieces than there is room for");
        self.pieces[self.end] = iovec { iov_base: base.cast(), iov_len: len };
        self.end += 1;
    }

    /// Removes the first `bytes` bytes, or all if there are fewer.
    fn skip(&mut self, mut bytes: usize) {
        while bytes > 0 && self.first < self.end {
            let piece = &mut self.pieces[self.first];
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                piece.iov_len -= bytes;
                return;
            }
            bytes -= piece.iov_len;
            self.first += 1;
        }
    }

    fn bytes(&self) -> usize {
        self.pieces[self.first..self.end].iter().map(|p| p.iov_len).sum()
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeroes is an empty message: no address, no pieces, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces[self.first..self.end].as_mut_ptr();
        message.msg_iovlen = (self.end - self.first) as _;
        message
    }
}

/// A list of pieces to send.
pub(crate) struct Outgoing<'a>(List, PhantomData<&'a [u8]>);

impl<'a> Outgoing<'a> {
    pub(crate) fn new() -> Outgoing<'a> {
        Outgoing(List::new(), PhantomData)
    }

    /// Returns how many more pieces fit.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(crate) fn push(&mut self, bytes: &'a [u8]) {
        self.0.push(bytes.as_ptr().cast_mut(), bytes.len());
    }

    pub(crate) fn push_span(&mut self, span: Span<'a>) {
        self.0.push(span.as_ptr(), span.len());
    }

    /// Removes the first bytes, because they were already sent.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.0.skip(bytes);
    }

    /// Copies as much as fits into `into`. Returns how many bytes.
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> usize {
        let (pieces, mut filled) = (&self.0.pieces[self.0.first..self.0.end], 0);
        for piece in pieces {
            let n = piece.iov_len.min(into.len() - filled);
            // SAFETY: the piece is readable: a slice or a span that this value borrows.
            unsafe { copy_racy(piece.iov_base.cast(), &mut into[filled..filled + n]) };
            filled += n;
        }
        filled
    }

    /// Sends as much as the socket accepts now. Returns how many bytes.
    pub(crate) fn send(mut self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let message = self.0.message();
        // SAFETY: the message's pieces are readable: slices and spans that this value borrows. The kernel writes nothing.
        let n = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// A list of pieces to receive into.
pub(crate) struct Incoming<'a>(List, PhantomData<&'a mut [u8]>);

impl<'a> Incoming<'a> {
    pub(crate) fn new() -> Incoming<'a> {
        Incoming(List::new(), PhantomData)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn push(&mut self, bytes: &'a mut [u8]) {
        self.0.push(bytes.as_mut_ptr(), bytes.len());
    }

    pub(crate) fn push_span(&mut self, span: Span<'a>) {
        self.0.push(span.as_ptr(), span.len());
    }

    /// Receives what has arrived. Returns how many bytes; 0 when the peer has closed the connection.
    pub(crate) fn receive(mut self, from: BorrowedFd<'_>) -> io::Result<usize> {
        let mut message = self.0.message();
        // SAFETY: the message's pieces are writable: slices borrowed for writing, and spans, which any thread may write
        // at any time. There is no room for an address or control data.
        let n = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// Prepares a connection to be abandoned: closing it discards unsent data (RST). So none of that data arrives after its requests were sent
/// over another connection.
pub(crate) fn abandon(socket: BorrowedFd<'_>) {
    // A Unix socket does not support this, but does not delay unsent data either.
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}

/// Whether an error means that the call should be retried later.
pub(crate) fn is_later(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || e.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether an error means that memory is not accessible.
pub(crate) fn is_fault(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pieces_go_through_a_socket_in_order_and_partial_sends_go_on() {
        let (a, b) = UnixStream::pair().unwrap();
        let region = Region::new(4096, false).unwrap();
        let span = region.span(0, 4096).unwrap();
        span.part(0, 3).copy_from(b"def");
        let gather = |skip| {
            let mut out = Outgoing::new();
            out.push(b"abc");
            out.push_span(span.part(0, 3));
            out.push(b"ghi");
            out.skip(skip);
            out
        };
        assert_eq!(gather(4).bytes(), 5);
        assert_eq!(gather(4).send(a.as_fd()).unwrap(), 5);
        assert_eq!(gather(0).send(a.as_fd()).unwrap(), 9);
        let mut copy = [0; 12];
        assert_eq!((gather(4).copy_to(&mut copy[..4]), gather(1).copy_to(&mut copy[4..])), (4, 8));
        assert_eq!(&copy, b"efghbcdefghi");
        let mut head = [0; 5];
        let mut rest = [0; 100];
        let mut incoming = Incoming::new();
        incoming.push(&mut head);
        incoming.push_span(span.part(10, 2));
        incoming.push(&mut rest);
        assert_eq!(incoming.receive(b.as_fd()).unwrap(), 14);
        assert_eq!((&head, &rest[..7]), (b"efghi", &b"cdefghi"[..]));
        let mut incoming = Incoming::new();
        incoming.push(&mut head);
        assert_eq!(incoming.receive(b.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        let mut incoming = Incoming::new();
        incoming.push(&mut head);
        assert_eq!(incoming.receive(b.as_fd()).unwrap(), 0);
    }
}
