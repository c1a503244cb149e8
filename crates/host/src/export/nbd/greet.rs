// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's handshake, with TLS if both sides want it, on a thread that may block.
//!
//! Guarantees: the handshake ends at its time limit or when the server stops, whatever the client does. Bytes that a client sent in plain
//! text after `NBD_OPT_STARTTLS` go to TLS and never to the handshake. Bytes received beyond the handshake are passed to the connection.
//! A client that is not admitted to its export gets an error in place of the confirmation, and may choose another.
//! Needs from callers: a non-blocking socket.
//!
//! Source: the NBD protocol, sections "Newstyle negotiation", "TLS support".

use super::export::{Export, ExportTable};
use super::handshake::{Handshake, Negotiated, Step, TlsMode, greeting};
use crate::nbd::wire::BytesIn;
use crate::net::certificates::Tls;
use crate::net::client_names::is_unnamed;
use crate::net::socket;
use crate::net::tls::{Received, TlsStream};
use rustix::event::PollFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of bytes that one call receives.
const INPUT_BYTES: usize = 4096;
/// Time limit of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Time limit until the first byte.
const FIRST_BYTE_TIME: Duration = Duration::from_secs(3);

/// A client's socket during the handshake, with the time limit and TLS.
pub(super) struct Line<'a> {
    socket: &'a OwnedFd,
    stop: &'a OwnedFd,
    begun: Instant,
    has_spoken: &'a AtomicBool,
    tls: Option<Box<TlsStream>>,
}

/// The result of a handshake.
pub(super) struct Greeted<T> {
    pub(super) negotiated: Negotiated,
    /// Bytes that the client sent after the handshake.
    pub(super) rest: Vec<u8>,
    pub(super) tls: Option<Box<TlsStream>>,
    /// What the client was admitted with.
    pub(super) admitted: T,
}

impl<'a> Line<'a> {
    /// Makes one whose waits fail at the time limits, or once `stop` is readable. `has_spoken` is set when the client has sent something.
    pub(super) fn new(socket: &'a OwnedFd, stop: &'a OwnedFd, has_spoken: &'a AtomicBool) -> Line<'a> {
        Line { socket, stop, begun: Instant::now(), has_spoken, tls: None }
    }

    /// Does the handshake. `admit` decides about the client before its export is confirmed, and returns why it is refused. `None`: the
    /// client must be dropped.
    pub(super) fn shake_hands<T>(
        mut self,
        table: &Arc<ExportTable>,
        tls: Option<&Tls>,
        mut admit: impl FnMut(&Export) -> Result<T, &'static str>,
    ) -> Option<Greeted<T>> {
        let mode = match tls {
            None => TlsMode::Off,
            Some(tls) if tls.is_required() => TlsMode::Required,
            Some(_) => TlsMode::Optional,
        };
        let mut handshake = Handshake::new(Arc::clone(table), mode);
        self.send(&greeting())?;
        let (mut received, mut out) = (Vec::with_capacity(INPUT_BYTES), Vec::new());
        loop {
            received.clear();
            self.receive(&mut received)?;
            let mut input = BytesIn::new(&received);
            loop {
                let step = handshake.feed(&mut input, &mut out);
                let mut admitted = None;
                if let Step::Transmission(negotiated) = &step {
                    match admit(&negotiated.export) {
                        Ok(with) => admitted = Some(with),
                        Err(why) => handshake.refuse_entry(why, &mut out)?,
                    }
                }
                self.send(&out)?;
                out.clear();
                match (step, admitted) {
                    (Step::Transmission(negotiated), Some(admitted)) => {
                        return Some(Greeted { negotiated, rest: input.rest().to_vec(), tls: self.tls, admitted });
                    }
                    (Step::NeedMore, _) => break,
                    (Step::Replied | Step::Transmission(_), _) => {}
                    (Step::StartTls, _) => {
                        self.start_tls(tls?, input.rest())?;
                        handshake.tls_started();
                        break;
                    }
                    (Step::Close(_), _) => {
                        self.close();
                        return None;
                    }
                }
            }
        }
    }

    /// Does the TLS handshake; `first` was already received.
    fn start_tls(&mut self, tls: &Tls, first: &[u8]) -> Option<()> {
        let mut stream = Box::new(TlsStream::new(&tls.config(), first).ok()?);
        while stream.is_handshaking() {
            let received = stream.receive(self.socket.as_fd(), |_| 0);
            if received.as_ref().is_err_and(is_unnamed) {
                let client = socket::peer(self.socket);
                log::warn!(client; "a client is refused: its certificate has none of the names in tls_client_names");
            }
            let received = received.ok()?;
            self.flush(&mut stream)?;
            match received {
                Received::End => return None,
                Received::Nothing if stream.is_handshaking() && !stream.has_more() => self.wait(PollFlags::IN)?,
                Received::Nothing | Received::Data => {}
            }
        }
        self.tls = Some(stream);
        Some(())
    }

    /// Waits for bytes and receives them.
    fn receive(&mut self, into: &mut Vec<u8>) -> Option<()> {
        loop {
            if let Some(mut tls) = self.tls.take() {
                let received = tls.receive(self.socket.as_fd(), |piece| {
                    let n = piece.len().min(INPUT_BYTES - into.len());
                    into.extend(piece.iter().take(n));
                    n
                });
                let received = received.ok()?;
                self.flush(&mut tls)?;
                let more = tls.has_more();
                self.tls = Some(tls);
                match received {
                    Received::Data => return Some(()),
                    Received::End => return None,
                    Received::Nothing if more => continue,
                    Received::Nothing => {}
                }
            } else {
                let mut bytes = [0; INPUT_BYTES];
                match rustix::io::read(self.socket, &mut bytes) {
                    Ok(0) => return None,
                    Ok(n) => {
                        // Relaxed: a hint, read under a lock.
                        self.has_spoken.store(true, Ordering::Relaxed);
                        into.extend_from_slice(bytes.get(..n)?);
                        return Some(());
                    }
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(_) => return None,
                }
            }
            self.wait(PollFlags::IN)?;
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Option<()> {
        if let Some(mut tls) = self.tls.take() {
            while !bytes.is_empty() {
                let n = tls.write(bytes).ok()?;
                bytes = bytes.get(n..)?;
                self.flush(&mut tls)?;
            }
            self.tls = Some(tls);
            return Some(());
        }
        while !bytes.is_empty() {
            match rustix::net::send(self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(n) => bytes = bytes.get(n..)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// Sends all that TLS has to send.
    fn flush(&self, tls: &mut TlsStream) -> Option<()> {
        while !tls.flush(self.socket.as_fd()).ok()? {
            self.wait(PollFlags::OUT)?;
        }
        Some(())
    }

    /// Sends a close_notify, if the connection is under TLS.
    fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
            let _ = tls.flush(self.socket.as_fd());
        }
    }

    fn wait(&self, what: PollFlags) -> Option<()> {
        let limit = if self.has_spoken.load(Ordering::Relaxed) { HANDSHAKE_TIME } else { FIRST_BYTE_TIME };
        socket::wait(self.socket, what, self.stop, Some(self.begun + limit)).then_some(())
    }
}
