// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server side of the NBD protocol. The protocol itself has no sockets: bytes in, bytes and checked requests out. The connections on
//! top of it are served by IOThreads.
//!
//! | module | holds |
//! |---|---|
//! | [`export`] | what is offered: [`Export`], [`ExportTable`] |
//! | [`handshake`] | fixed newstyle negotiation: [`Handshake`] |
//! | [`session`] | requests: [`Session`] |
//! | [`reply`] | replies |
//! | [`connection`] | a socket after the handshake, served by an IOThread: [`Connection`] |
//! | [`listener`] | the socket of a server, its clients: [`NbdExport`] |
//! | `greet` | handshakes of clients |
//! | `places` | how many handshakes go on at once, and which client has to leave |
//! | [`spec`] | the export's configuration: its keys, checks and commands |
//!
//! Guarantees of [`export`], [`handshake`], [`session`], [`reply`] and [`crate::nbd::wire`]: no thread, clock, socket or `unsafe`; no
//! panic and no unbounded memory, whatever a client sends. The outcome does not depend on how the bytes were split into pieces. In the
//! transmission phase nothing is allocated and no payload is copied. Served: structured and extended replies, block status of
//! `base:allocation`, FUA, flush, trim, cache, write zeroes with NO_HOLE and FAST_ZERO, DF, block size constraints, STARTTLS. Not served:
//! oldstyle, and block status filters by payload. Connected clients are not notified of a new size, because no client has the experimental
//! extension for that; clients that connect later see it.
//! Needs from callers: the sockets, TLS, time limits, and a limit on requests in flight.
//!
//! The example follows a connection from its first byte to its last. Here the disk is a vector and every request completes at once. A
//! real caller keeps the [`Request`], and sends each reply when its I/O completes, in any order. It stops calling [`Session::next_event`]
//! while it has too many requests.
//!
//! ```
//! use mqblk_host::export::nbd::{Command, Event, Export, ExportTable, Handshake, Negotiated, Session, Step, TlsMode};
//! use mqblk_host::export::nbd::{error_of, greeting};
//! use mqblk_host::export::nbd::reply::HEAD_BYTES;
//! use mqblk_host::nbd::wire::BytesIn;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let export = Export { name: "disk0".into(), size_bytes: 1 << 20, flush: true, ..Export::default() };
//! let table = Arc::new(ExportTable::new(vec![export], Some("disk0"))?);
//!
//! // 1. Handshake. Send the greeting, then feed what arrives; send `out` after every step.
//! let mut out = greeting().to_vec();
//! let mut handshake = Handshake::new(table, TlsMode::Off);
//! # let mut received = vec![0, 0, 0, 3];
//! # received.extend(mqblk_host::nbd::wire::option_header(1, 0));
//! let mut input = BytesIn::new(&received); // what was received
//! let negotiated: Negotiated = loop {
//!     match handshake.feed(&mut input, &mut out) {
//!         Step::NeedMore => panic!("receive more, then feed again"),
//!         Step::Replied => continue,
//!         Step::StartTls => panic!("send `out`, start TLS, call handshake.tls_started(), feed decrypted bytes"),
//!         Step::Transmission(negotiated) => break negotiated,
//!         Step::Close(reason) => panic!("send `out`, close: {reason}"),
//!     }
//! };
//!
//! // 2. Requests, beginning with the rest of the input.
//! let mut session = Session::new(&negotiated);
//! let style = session.style();
//! let mut disk = vec![0u8; negotiated.export.size_bytes as usize];
//! let mut head = [0; HEAD_BYTES];
//! # let mut received = Vec::new();
//! # use mqblk_host::nbd::wire::RequestHeader;
//! # for (kind, length) in [(1, 512), (0, 512), (9, 0), (2, 0)] {
//! #     received.extend(RequestHeader { flags: 0, kind, cookie: 7, offset: 512, length }.to_compact().unwrap());
//! #     received.extend(vec![0x5a; if kind == 1 { 512 } else { 0 }]);
//! # }
//! let mut input = BytesIn::new(&received);
//! let mut writing = None; // the write whose payload is on its way, and where the next byte goes
//! loop {
//!     match session.next_event(&mut input) {
//!         Ok(Event::Request(request)) => match request.command {
//!             Command::Write => writing = Some((request, request.offset as usize)),
//!             Command::Read => {
//!                 let at = request.offset as usize;
//!                 let bytes = request.length as usize;
//!                 let n = style.data(request.reply_to(), request.offset, bytes as u32, true, &mut head);
//!                 out.extend_from_slice(&head[..n]); // one writev of head and data in a real server
//!                 out.extend_from_slice(&disk[at..at + bytes]);
//!             }
//!             _ => {
//!                 let n = match error_of(blk::status::BlkStatus::Ok, &request) {
//!                     None => style.success(request.reply_to(), &mut head),
//!                     Some(error) => style.error(request.reply_to(), error, &mut head),
//!                 };
//!                 out.extend_from_slice(&head[..n]);
//!             }
//!         },
//!         // In place; or read `session.payload_left()` bytes past the input and tell `payload_received`.
//!         Ok(Event::Payload { bytes, left, .. }) => {
//!             let (request, at) = writing.as_mut().expect("payload follows its write");
//!             disk[*at..*at + bytes.len()].copy_from_slice(bytes);
//!             *at += bytes.len();
//!             if left == 0 {
//!                 let n = style.success(request.reply_to(), &mut head);
//!                 out.extend_from_slice(&head[..n]);
//!             }
//!         }
//!         Ok(Event::Refused(refusal)) => {
//!             let n = style.error(refusal.reply_to, refusal.error, &mut head);
//!             out.extend_from_slice(&head[..n]);
//!         }
//!         Ok(Event::NeedMore) => panic!("the input is used up: receive more"),
//!         Ok(Event::Disconnect) => break, // answer what is in flight, then close
//!         Err(violation) => panic!("close: {violation}"),
//!     }
//! }
//! assert_eq!(disk[512..1024], [0x5a; 512]);
//! # assert_eq!(out.len(), 18 + 10 + 16 + 16 + 512 + 16);
//! # Ok(())
//! # }
//! ```
//!
//! Source: the NBD protocol, doc/proto.md of the reference implementation, with its extended headers.

pub(super) mod buffers;
pub mod connection;
pub mod export;
mod greet;
mod hints;
pub mod handshake;
pub mod listener;
mod places;
pub mod reply;
pub mod session;
pub mod spec;

pub use connection::Connection;
pub use export::{BlockSizes, Export, ExportTable, FastZero};
pub use handshake::{CloseReason, Handshake, Negotiated, Step, TlsMode, greeting};
pub use listener::{Address, ClientDrain, NbdDisk, NbdExport, NbdOptions};
pub use reply::{Extent, ReplyTo, error_of};
pub use session::{Command, Event, Refusal, Request, Session, Violation};

/// Byte streams of real and misbehaving clients, and properties that hold for all of them.
#[cfg(test)]
mod streams;
