// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a socket that is ready for requests: connect and handshake, TLS included, in bounded time, and
//! until a stop request.
//!
//! Guarantees: if TLS is required, it begins or the call fails. Returns within [`DIAL_TIME`], plus what looking up the host's name takes,
//! and soon after `stop` is readable. Each address of a host gets a share of [`DIAL_TIME`]. The socket does not block, and small messages
//! are sent at once.

use super::handshake::{Handshake, Served};
use super::uri::{NbdAddress, NbdTarget};
use crate::driver::remote::credentials::Credentials;
use crate::driver::remote::dial::{Deadline, failed};
use crate::driver::remote::handshake::HandshakeSocket;
use crate::error::{Error, Result};
use crate::nbd::wire::ReplyStyle;
use crate::net::tls::TlsStream;
use rustix::net::{AddressFamily, SocketAddrUnix};
use rustls::ClientConnection;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Time limit of connecting and the handshake together.
pub(super) const DIAL_TIME: Duration = Duration::from_secs(10);

/// A connection that may carry requests.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) socket: OwnedFd,
    pub(super) tls: Option<Box<TlsStream<ClientConnection>>>,
    pub(super) served: Served,
    pub(super) style: ReplyStyle,
}

/// Connects to the server and chooses the export; under TLS where there are credentials for it.
pub(super) fn dial(target: &NbdTarget, credentials: Option<&Credentials>, stop: &OwnedFd) -> Result<Dialed> {
    let deadline = Deadline::new(DIAL_TIME, stop);
    let within = |e: Error| e.within(&format!("NBD server at {}", target.address));
    let socket = connect(&target.address, deadline).map_err(within)?;
    let mut line = HandshakeSocket::new(socket, deadline, credentials);
    let handshake = Handshake::new(&target.export, credentials.is_some());
    let (served, style) = shake_hands(&mut line, handshake).map_err(within)?;
    let (socket, tls) = line.into_parts();
    Ok(Dialed { socket, tls, served, style })
}

fn connect(address: &NbdAddress, deadline: Deadline<'_>) -> Result<OwnedFd> {
    match address {
        NbdAddress::Unix(path) => {
            let address = SocketAddrUnix::new(path.as_path()).map_err(|e| failed(e, "cannot connect"))?;
            deadline.connect(AddressFamily::UNIX, |s| rustix::net::connect(s, &address))
        }
        NbdAddress::Tcp(host, port) => deadline.connect_host(host, *port),
    }
}

fn shake_hands(line: &mut HandshakeSocket<'_>, mut handshake: Handshake) -> Result<(Served, ReplyStyle)> {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    loop {
        if handshake.wants_tls() {
            line.start_tls()?;
        }
        input.resize(handshake.want(), 0);
        line.receive(&mut input)?;
        let agreed = handshake.feed(&input, &mut out)?;
        line.send(&out)?;
        out.clear();
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
    }
}
