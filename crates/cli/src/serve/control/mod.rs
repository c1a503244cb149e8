// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon spoken to while it serves: `mqblk ctl`, or any program that writes JSON to a Unix socket.
//!
//! A client sends [`Question`]s, one JSON object per line, and gets one [`Answer`] per line, in order. [`server`] has the
//! socket, [`operator`] does what is asked, [`stats`] and [`topology`] are what can be seen of a daemon, [`client`] asks,
//! for [`ctl`] and others.

pub mod client;
pub mod ctl;
mod message;
mod operator;
mod server;
mod stats;
pub mod topology;

pub use message::{Answer, Question};
pub use operator::Operator;
pub use server::{NAME, Server};
