// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Code that the drivers of network devices share: one connection per hardware queue, with reconnect.
//!
//! | module | holds |
//! |---|---|
//! | `dial` | a socket that is connected in bounded time, and sent to and received from in turn, for handshakes |
//! | `handshake` | that socket during the handshake, which may begin TLS |
//! | `credentials` | what TLS with a server needs: trusted authorities, the expected name, a certificate of our own |
//! | `stream` | the socket afterwards: batches out, replies in, as much as goes without waiting |
//! | `tls` | the same under TLS |
//! | `keep_alive` | when a silent peer is asked whether it is there |
//! | `queue` | a hardware queue: its connection, its requests, and the threads that wait for it |
//! | `reconnect` | the thread that makes lost connections again |
//!
//! A protocol has its own messages, its own handshake, and its own rule for what becomes of requests when a connection is lost.

pub(crate) mod credentials;
pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod keep_alive;
pub(crate) mod queue;
pub(crate) mod reconnect;
pub(crate) mod stream;
mod tls;
