// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multi-queue block layer without a clock, a thread or a system call: the Linux blk-mq design as a library.
//!
//! Modules in the order a request meets them.
#![forbid(unsafe_code)]

pub mod time;
pub mod id;
pub mod status;
mod relaxed;
pub mod bio;
pub mod limits;
pub mod request;
mod split;
mod merge;
pub mod elevator;
pub mod driver;
pub mod cpumap;
pub mod sbitmap_queue;
pub mod sbitmap;
mod sync;
