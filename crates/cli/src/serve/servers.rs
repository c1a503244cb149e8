// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's own sockets: control commands and metrics.
//!
//! Guarantees: if the path of one no longer names it, the log says so, and [`Servers::listen_again`] makes the socket anew. Clients that
//! are connected stay. Does not: make a socket anew that the service manager handed over.

use super::args::ServeArgs;
use super::control::{Operator, Server, Socket};
use super::metrics;
use crate::status::Failure;
use host::served_path::ServedPath;
use std::path::Path;
use std::sync::Arc;

/// See the module's text.
pub struct Servers {
    operator: Arc<Operator>,
    control: Server,
    metrics: Option<metrics::Server>,
}

impl Servers {
    /// Answers clients of `control`, and listens for those of the metrics where `args` say.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub fn start(operator: &Arc<Operator>, args: &ServeArgs, socket: Socket) -> Result<Servers, Failure> {
        let control = control(operator, socket)?;
        let metrics = metrics::at(args.metrics.as_ref());
        let metrics = metrics.map(|at| page(operator, &at)).transpose()?;
        if let Some(at) = metrics.as_ref().map(metrics::Server::at) {
            ::log::info!("metrics at {at}");
        }
        Ok(Servers { operator: Arc::clone(operator), control, metrics })
    }

    /// Returns where the control socket is.
    pub fn control(&self) -> &Path {
        self.control.path()
    }

    /// Returns the Unix sockets.
    pub fn paths(&self) -> Vec<&Path> {
        [Some(self.control.path()), self.metrics.as_ref().and_then(metrics::Server::path)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Makes sockets anew whose paths no longer name them. Logs what it did, and failures.
    pub fn listen_again(&mut self) {
        if is_gone(self.control.served()) {
            let socket = Socket::bind(Some(self.control.path()), None);
            let new = socket.and_then(|socket| control(&self.operator, socket));
            replace(&mut self.control, new, |server| server.path().display().to_string());
        }
        if let Some(metrics) = self.metrics.as_mut().filter(|metrics| is_gone(metrics.served())) {
            let new = page(&self.operator, metrics.at());
            replace(metrics, new, |server| server.at().to_string());
        }
    }
}

/// Whether a socket is to be made anew, by the last check.
fn is_gone(socket: Option<&Arc<ServedPath>>) -> bool {
    socket.is_some_and(|socket| socket.can_listen_again() && socket.trouble().is_some())
}

fn replace<T>(old: &mut T, new: Result<T, Failure>, at: impl FnOnce(&T) -> String) {
    match new {
        Ok(new) => {
            *old = new;
            ::log::info!("listens again at {}", at(old));
        }
        Err(e) => ::log::error!("{e}"),
    }
}

fn control(operator: &Arc<Operator>, socket: Socket) -> Result<Server, Failure> {
    let server = Server::start(operator, socket)?;
    operator.watch_path(server.served());
    Ok(server)
}

fn page(operator: &Arc<Operator>, at: &metrics::Listen) -> Result<metrics::Server, Failure> {
    let asked = Arc::clone(operator);
    let server = metrics::Server::start(at, move || asked.metrics())?;
    operator.watch_path(server.served());
    Ok(server)
}
