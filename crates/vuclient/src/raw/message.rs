// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vhost-user messages, sent exactly as given, valid or invalid.
//!
//! Guarantees: [`Channel::send`] puts exactly the given request, flags, payload and descriptors on the socket, in one message. Every wait
//! ends after [`Channel::patience`]. A reply is bounded by [`MAX_PAYLOAD`]. Does not use the `vhost` crate's Frontend, because that refuses
//! to send invalid messages, waits for ever on a silent server, and shares its definitions with servers built on the same crate. For
//! little-endian machines. Source: QEMU's `docs/interop/vhost-user.rst`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::error::Error;

/// Longest payload that is accepted from a server.
pub const MAX_PAYLOAD: usize = 4096;

/// Maximum number of descriptors of one message ("ancillary data", 8 in the specification).
pub const MAX_FDS: usize = 8;

/// The version bits of `flags`.
pub const VERSION: u32 = 1;
/// `flags`: marks a reply of the server.
pub const REPLY: u32 = 1 << 2;
/// `flags`: asks for an acknowledgement of a request that has no reply of its own (protocol feature REPLY_ACK).
pub const NEED_REPLY: u32 = 1 << 3;

/// Payload bit of SET_VRING_KICK, CALL and ERR: there is no descriptor.
pub const NOFD: u64 = 1 << 8;

/// Virtio feature bit: the protocol features exist.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Request numbers ("Front-end message types").
#[allow(missing_docs, reason = "the specification's names")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Feature bits of the device, of the rings and of vhost. Source: virtio 1.2, sections 5.2.3 and 6; `VHOST_F_LOG_ALL`.
#[allow(missing_docs, reason = "the specification's names")]
pub mod feature {
    pub const BLK_FLUSH: u64 = 1 << 9;
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    pub const BLK_MQ: u64 = 1 << 12;
    pub const BLK_DISCARD: u64 = 1 << 13;
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    pub const LOG_ALL: u64 = 1 << 26;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Protocol feature bits ("Protocol features").
#[allow(missing_docs, reason = "the specification's names")]
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Its request number.
    pub request: u32,
    /// Its flags.
    pub flags: u32,
    /// All bytes after the header.
    pub payload: Vec<u8>,
    /// File descriptors received with the message.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Returns the payload as one 64-bit number.
    ///
    /// # Errors
    /// If the payload is not 8 bytes long.
    pub fn number(&self) -> Result<u64, Error> {
        let bytes = <[u8; 8]>::try_from(&self.payload[..]);
        let len = self.payload.len();
        bytes
            .map(u64::from_le_bytes)
            .map_err(|_| Error::Server(format!("reply to request {} has {len} bytes: must be 8", self.request)))
    }
}

/// A connection of messages.
pub struct Channel {
    stream: UnixStream,
    /// Longest wait for an answer.
    pub patience: Duration,
}

impl Channel {
    /// Connects to `socket`.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(socket: &str, patience: Duration) -> Result<Channel, Error> {
        let stream = UnixStream::connect(socket).map_err(Error::io(format!("cannot connect to {socket}")))?;
        Ok(Channel { stream, patience })
    }

    /// Makes a channel over an existing socket, such as that of a back-end channel.
    pub fn over(stream: UnixStream, patience: Duration) -> Channel {
        Channel { stream, patience }
    }

    /// Sends header and payload; the header's length is the payload's.
    ///
    /// # Errors
    /// If the server has closed the connection, or does not read within [`Self::patience`].
    pub fn send(&self, request: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(12 + payload.len());
        for word in [request, flags, payload.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        self.send_bytes(&bytes, fds)
    }

    /// Sends bytes that need not be a message at all.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut space = [MaybeUninit::uninit(); 256];
        let mut rest = bytes;
        let mut fds = fds;
        while !rest.is_empty() {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Error::Usage(format!("{} descriptors do not fit into one message", fds.len())));
            }
            self.wait_for(PollFlags::OUT, "accept a message")?;
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, flags);
            rest = &rest[sent.map_err(Error::io("cannot send to the server"))?..];
            fds = &[];
        }
        Ok(())
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// If the server closed the connection, sent a partial or too long message, or sent nothing within [`Self::patience`].
    pub fn receive(&self) -> Result<Message, Error> {
        let mut fds = Vec::new();
        let mut header = [0u8; 12];
        self.fill(&mut header, &mut fds)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (request, flags, len) = (word(0), word(4), word(8) as usize);
        if len > MAX_PAYLOAD {
            return Err(Error::Server(format!("a reply of {len} bytes: must be at most {MAX_PAYLOAD}")));
        }
        let mut payload = vec![0u8; len];
        self.fill(&mut payload, &mut fds)?;
        Ok(Message { request, flags, payload, fds })
    }

    fn fill(&self, mut rest: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(), Error> {
        while !rest.is_empty() {
            self.wait_for(PollFlags::IN, "answer")?;
            let count = self.take(rest, fds)?;
            if count == 0 {
                return Err(Error::Server("the server closed the connection".into()));
            }
            rest = &mut rest[count..];
        }
        Ok(())
    }

    fn take(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Error> {
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = rustix::net::recvmsg(&self.stream, &mut [IoSliceMut::new(buffer)], &mut control, flags);
        let got = got.map_err(Error::io("cannot receive from the server"))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(Error::Server(format!("a message with more than {MAX_FDS} descriptors")));
        }
        Ok(got.bytes)
    }

    fn wait_for(&self, what: PollFlags, verb: &str) -> Result<(), Error> {
        let patience = self.patience;
        let mut fds = [PollFd::new(&self.stream, what)];
        match poll(&mut fds, Some(&timespec(patience))) {
            Ok(0) => Err(Error::Server(format!("the server did not {verb} within {patience:?}"))),
            Ok(_) => Ok(()),
            Err(e) => Err(Error::Io { what: "poll".into(), source: e.into() }),
        }
    }

    /// Waits until the server has closed the connection, and discards what it still sends. Returns false if the connection is still open
    /// after `patience`.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn is_closed(&self, patience: Duration) -> Result<bool, Error> {
        let end = Instant::now() + patience;
        let mut buffer = [0u8; 256];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&timespec(left))).map_err(Error::io("poll"))?;
            if ready == 0 {
                return Ok(false);
            }
            // A reset counts as closed, as an end of file does.
            if matches!(self.take(&mut buffer, &mut Vec::new()), Ok(0) | Err(Error::Io { .. })) {
                return Ok(true);
            }
        }
    }
}

/// Converts a duration for system calls.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::over(ours, Duration::from_millis(200)), theirs)
    }

    #[test]
    fn a_message_is_header_and_payload_in_little_endian() {
        let (channel, mut theirs) = pair();
        channel.send(12, VERSION | NEED_REPLY, &5u64.to_le_bytes(), &[]).unwrap();
        let mut bytes = [0; 20];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [12, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptors_arrive_with_the_message() {
        let (channel, theirs) = pair();
        let back = Channel::over(theirs, Duration::from_millis(200));
        let file = crate::memory::memfd("passed", 7).unwrap();
        channel.send(37, VERSION, b"abc", &[file.as_fd(), file.as_fd()]).unwrap();
        let mut message = back.receive().unwrap();
        assert_eq!((message.request, &message.payload[..], message.fds.len()), (37, &b"abc"[..], 2));
        let passed = std::fs::File::from(message.fds.remove(0));
        assert_eq!(passed.metadata().unwrap().len(), 7);
    }

    #[test]
    fn silence_a_half_message_a_long_one_and_an_end_are_errors() {
        let (channel, mut theirs) = pair();
        assert!(channel.receive().unwrap_err().to_string().contains("did not answer"));
        theirs.write_all(&[1, 0, 0, 0]).unwrap();
        assert!(channel.receive().unwrap_err().to_string().contains("did not answer"));
        let (channel, mut theirs) = pair();
        theirs.write_all(&[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        assert!(channel.receive().unwrap_err().to_string().contains("a reply of 16777216 bytes"));
        assert!(!channel.is_closed(Duration::ZERO).unwrap());
        drop(theirs);
        assert!(channel.is_closed(Duration::from_secs(5)).unwrap());
        assert!(channel.receive().unwrap_err().to_string().contains("closed"));
    }
}
