// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The back end's own channel to its front end: `VHOST_USER_SET_BACKEND_REQ_FD`, and the message sent over it.
//!
//! Crate `vhost` turns the message's descriptor into an object that can send everything except the one message that a disk needs. So this
//! module receives the message instead. Guarantees: only a message that has arrived completely is taken. Sending never blocks: a front end
//! that does not read the channel misses the message.
//!
//! Source: vhost-user protocol, "Back-end message types", `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recv, recvmsg, send,
    sockopt,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Bytes of a message's header: request, flags, bytes that follow.
const HEADER_BYTES: usize = 12;
/// `VHOST_USER_SET_BACKEND_REQ_FD`
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`
const CONFIG_CHANGE_MSG: u32 = 2;
/// The protocol's version, in the flags of a message.
const VERSION: u32 = 1;
/// The message is an answer.
const REPLY: u32 = 1 << 2;
/// An answer is wanted.
const NEED_REPLY: u32 = 1 << 3;

fn header(request: u32, flags: u32, len: u32) -> [u8; HEADER_BYTES] {
    let words = [request, flags | VERSION, len].map(u32::to_le_bytes);
    std::array::from_fn(|i| words[i / 4][i % 4])
}

/// Whether the next message on the stream is `SET_BACKEND_REQ_FD`.
pub(super) fn is_next(stream: &UnixStream) -> bool {
    let mut bytes = [0; HEADER_BYTES];
    match recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, HEADER_BYTES)) => bytes[..4] == SET_BACKEND_REQ_FD.to_le_bytes(),
        _ => false,
    }
}

/// Receives that message and returns the channel. Answers the message if it asks for an answer and `answers` were negotiated.
pub(super) fn take(stream: &UnixStream, answers: bool) -> Result<OwnedFd, &'static str> {
    let mut bytes = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); 64];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(stream, &mut parts, &mut control, flags).map_err(|_| "a message cannot be read")?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let flags = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if got.bytes != HEADER_BYTES || bytes[8..] != [0; 4] || flags & 3 != VERSION || flags & REPLY != 0 {
        return Err("SET_BACKEND_REQ_FD with a payload or wrong flags");
    }
    let (Some(fd), true) = (fds.pop(), fds.is_empty()) else {
        return Err("SET_BACKEND_REQ_FD must come with one descriptor");
    };
    let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
    if !is_stream || sockopt::socket_domain(&fd) != Ok(AddressFamily::UNIX) {
        return Err("SET_BACKEND_REQ_FD must come with a Unix stream socket");
    }
    if answers && flags & NEED_REPLY != 0 {
        let answer = [&header(SET_BACKEND_REQ_FD, REPLY, 8)[..], &0u64.to_le_bytes()].concat();
        send(stream, &answer, SendFlags::NOSIGNAL).map_err(|_| "a message cannot be answered")?;
    }
    Ok(fd)
}

/// Notifies the front end that the configuration space has changed. Returns whether the message was sent.
pub(super) fn say_changed(channel: &OwnedFd) -> bool {
    let message = header(CONFIG_CHANGE_MSG, 0, 0);
    // The message is short, so it is sent completely or not at all.
    send(channel, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) == Ok(HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};

    fn tell(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_channel_is_taken_and_spoken_over() {
        let (mut front, back) = UnixStream::pair().unwrap();
        assert!(!is_next(&back), "nothing has come");
        front.write_all(&header(SET_BACKEND_REQ_FD, 0, 0)[..6]).unwrap();
        assert!(!is_next(&back), "half a header");
        let (mut front, back) = UnixStream::pair().unwrap();
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        tell(&front, &header(SET_BACKEND_REQ_FD, NEED_REPLY, 0), &[ours.as_fd()]);
        assert!(is_next(&back) && is_next(&back), "it is looked at only");
        let channel = take(&back, true).unwrap();
        let mut answer = [0; 20];
        front.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..12], header(SET_BACKEND_REQ_FD, REPLY, 8));
        drop(ours);
        assert!(say_changed(&channel));
        let mut said = [0; HEADER_BYTES];
        theirs.read_exact(&mut said).unwrap();
        assert_eq!(said, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        // A channel that is never read does not block.
        assert!((0..100_000).any(|_| !say_changed(&channel)), "it is never full");
        drop(theirs);
        assert!(!say_changed(&channel), "none is there");
    }

    #[test]
    fn what_is_no_channel_is_refused() {
        let (front, back) = UnixStream::pair().unwrap();
        let file = rustix::fs::memfd_create("no socket", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let good = header(SET_BACKEND_REQ_FD, 0, 0);
        for (bytes, fds) in [
            (good, vec![]),
            (good, vec![file.as_fd()]),
            (good, vec![datagrams.as_fd()]),
            (good, vec![front.as_fd(), front.as_fd()]),
            (header(SET_BACKEND_REQ_FD, REPLY, 0), vec![front.as_fd()]),
            (header(SET_BACKEND_REQ_FD, 0, 8), vec![front.as_fd()]),
        ] {
            tell(&front, &bytes, &fds);
            assert!(is_next(&back) && take(&back, true).is_err(), "{bytes:?} with {}", fds.len());
        }
    }
}
