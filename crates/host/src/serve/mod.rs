// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving disks: threads that carry what clients ask for into the block layer and answers back.
//!
//! An [`IoThread`] serves sources (virtqueues, connections), each on a [`Port`] into its disk. It looks at all of them in
//! rounds, polls for a while when there is nothing to do (`adaptive`), then sleeps until a kick, a completion, a timer or
//! its `bell`. What is to be served where is data: a source is handed to another IOThread while it runs.

mod adaptive;
mod bell;
mod disk;
mod iothread;
mod port;

pub use adaptive::Polling;
pub use disk::ServedDisk;
pub use iothread::{IoThread, IoThreads, Source, SourceHandle, ThreadOptions};
pub use port::{BUFFER_BYTES, Port, SourceId};
