// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--metrics`: what a daemon has done, for Prometheus. `page` is the text, [`http`] serves it.

mod http;
mod page;

pub use http::{Listen, Server};
pub use page::page;

/// `FileDescriptorName=` of a socket for metrics that is handed over.
pub const NAME: &str = "metrics";

/// The socket that the service manager has made for it.
pub fn handed_over() -> Option<Listen> {
    let socket = host::handed::all().iter().find(|s| s.name == NAME)?;
    Some(Listen(socket.at.clone()))
}
