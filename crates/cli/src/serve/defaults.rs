// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Defaults of a plan for what neither the configuration nor a flag sets.

use super::args::ServeArgs;
use host::serve::check::HostFacts;
use host::serve::plan::VHOST_QUEUES_MAX;
use std::path::PathBuf;

/// Defaults for what a plan does not set.
pub struct Defaults {
    /// Virtqueues of an export.
    pub num_queues: u16,
    /// Directory of sockets whose path is not absolute.
    pub socket_dir: Option<PathBuf>,
}

impl Defaults {
    /// Takes the defaults from the arguments, or else from this machine.
    pub fn new(args: &ServeArgs, host: &HostFacts) -> Defaults {
        let queues = args.num_queues.unwrap_or(host.cpus.len() as u64).clamp(1, VHOST_QUEUES_MAX.into());
        Defaults { num_queues: queues as u16, socket_dir: args.socket_dir.clone() }
    }

    /// The path of a socket of this name.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.socket_dir.as_deref().map_or_else(|| name.into(), |dir| dir.join(name))
    }
}
