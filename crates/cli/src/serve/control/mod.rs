// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control of a running daemon, by `mqblk ctl` or by any program that writes JSON to a Unix socket.
//!
//! A client sends [`Question`]s, one JSON object per line, and gets one [`Answer`] per line, in order. [`server`] has
//! the socket, [`operator`] executes commands, [`stats`] and [`topology`] report the state of a daemon, [`client`]
//! sends commands for [`ctl`] and others. [`inject`] has the rules of fault injection.

pub mod client;
pub mod ctl;
mod inject;
mod message;
mod operator;
mod server;
mod stats;
pub mod topology;

pub use message::{Answer, Question};
pub use operator::Operator;
pub use server::{NAME, Server, Socket};
