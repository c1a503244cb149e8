// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--metrics`: the counters of a daemon, for Prometheus. `page` makes the text, [`http`] serves it.

mod http;
mod page;

pub use http::{Listen, Server};
pub use page::page;

/// `FileDescriptorName=` of a socket for metrics that is handed over.
pub const NAME: &str = "metrics";

/// Returns where the page is served: at `configured`, or else at the socket that the service manager handed over, if any.
pub fn at(configured: Option<&Listen>) -> Option<Listen> {
    configured.cloned().or_else(handed_over)
}

fn handed_over() -> Option<Listen> {
    let socket = host::handed::all().iter().find(|s| s.name == NAME)?;
    Some(Listen(socket.at.clone()))
}
