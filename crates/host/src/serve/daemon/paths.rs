// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of a reload that the plan does not show: paths that no longer name what is open, and mounts that are gone.
//!
//! Guarantees: a socket whose path no longer names it is made anew, and its clients stay connected. Does not: open another image, because
//! clients would get other data without a warning, mount a file again, or touch what a path names now.

use super::{Daemon, END_TIME};
use crate::error::Result;
use crate::served_path::ServedPath;
use std::sync::Arc;

impl Daemon {
    /// Checks another path from now on, as long as it has an owner. A problem is logged.
    pub fn watch_path(&self, path: &Arc<ServedPath>) {
        self.paths.add(path);
    }

    /// Checks the paths of images and sockets, and listens again where a socket was removed or replaced. Returns a line for each problem
    /// and each new socket. Call [`Daemon::view`] afterwards.
    pub fn check_paths(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.paths.look_now(END_TIME) {
            let text = "failed: the paths of images and sockets could not be checked within";
            lines.push(format!("{text} {} s; check the file systems that they are on", END_TIME.as_secs()));
        }
        for disk in self.plan.disks() {
            let images = self.disks.get(&disk.name).into_iter().flat_map(|open| &open.images);
            lines.extend(images.filter_map(|image| Some(format!("disk '{}': {}", disk.name, image.trouble()?))));
        }
        for server in &mut self.servers {
            let Some(socket) = server.nbd.socket().cloned() else { continue };
            let Some(why) = socket.trouble() else { continue };
            let listened = socket.can_listen_again().then(|| server.nbd.listen_again());
            if let (Some(Ok(())), Some(new)) = (&listened, server.nbd.socket()) {
                self.paths.add(new);
            }
            lines.push(line(&format!("NBD server at {}", server.listen), &socket, why, listened));
        }
        for export in self.plan.exports() {
            let name = &export.plan.name;
            let Some(running) = self.exports.get_mut(name) else { continue };
            let Some(why) = running.gone().and_then(|check| check()) else { continue };
            let Some(socket) = running.socket().cloned() else {
                lines.push(format!("export '{name}': {why}"));
                continue;
            };
            let listened = socket.can_listen_again().then(|| running.listen_again());
            if let (Some(Ok(())), Some(new)) = (&listened, running.socket()) {
                self.paths.add(new);
            }
            lines.push(line(&format!("export '{name}'"), &socket, why, listened));
        }
        lines
    }
}

/// Describes what became of a socket. `None`: the socket cannot be made again.
fn line(of: &str, socket: &ServedPath, why: String, listened: Option<Result<()>>) -> String {
    match listened {
        None => format!("{of}: {why}"),
        Some(Err(e)) => format!("failed: {of}: {e}"),
        Some(Ok(())) => {
            format!("{of} listens again at '{}', which no longer named its socket", socket.path().display())
        }
    }
}
