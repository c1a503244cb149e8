// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--metrics`: the counters of a daemon, for Prometheus. `page` makes the text, [`http`] serves it.

mod http;
mod page;

pub use http::{Listen, Server};
pub use page::page;

/// `FileDescriptorName=` of a socket for metrics that is handed over.
pub const NAME: &str = "metrics";

/// Returns the socket for metrics that the service manager handed over, if any.
pub fn handed_over() -> Option<Listen> {
    let socket = host::handed::all().iter().find(|s| s.name == NAME)?;
    Some(Listen(socket.at.clone()))
}
