// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks once a second, on a thread of its own, whether the paths of images and sockets still name what is open.
//!
//! Guarantees: no other thread waits for a file system, except a caller of [`PathWatch::look_now`] for a limited time. The watch keeps
//! no path alive. A file system that does not answer delays the checks of the other paths, and nothing else; the end of the daemon does
//! not wait for it.

use crate::error::{Error, Result};
use crate::served_path::ServedPath;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// See the module's text.
pub(super) struct PathWatch {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    paths: Vec<Weak<ServedPath>>,
    /// Number of checks that callers have asked for.
    asked: u64,
    /// The value of `asked` when the last finished check began.
    done: u64,
    over: bool,
}

impl PathWatch {
    pub(super) fn start() -> Result<PathWatch> {
        let shared = Arc::<Shared>::default();
        let watch = Arc::clone(&shared);
        // Not joined, because it may wait for a file system for ever.
        std::thread::Builder::new()
            .name("mqblk-paths".into())
            .spawn(move || watch.run())
            .map_err(|e| Error::os(e, "cannot start the thread that checks paths"))?;
        Ok(PathWatch { shared })
    }

    /// Checks another path, as long as it has an owner.
    pub(super) fn add(&self, path: &Arc<ServedPath>) {
        self.shared.state.lock().paths.push(Arc::downgrade(path));
        self.shared.changed.notify_all();
    }

    /// Checks all paths now. Returns whether that has ended within `limit`.
    pub(super) fn look_now(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        state.asked += 1;
        let wanted = state.asked;
        self.shared.changed.notify_all();
        while state.done < wanted {
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return state.done >= wanted;
            }
        }
        true
    }
}

impl Drop for PathWatch {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.over {
            let is_due = match (state.asked > state.done, state.paths.is_empty()) {
                (true, _) => true,
                (false, true) => {
                    self.changed.wait(&mut state);
                    false
                }
                (false, false) => self.changed.wait_for(&mut state, INTERVAL).timed_out(),
            };
            if !is_due {
                continue;
            }
            let asked = state.asked;
            state.paths.retain(|path| path.strong_count() > 0);
            let paths = state.paths.clone();
            MutexGuard::unlocked(&mut state, || {
                paths.iter().filter_map(Weak::upgrade).for_each(|path| path.look());
            });
            state.done = asked;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket::listen;

    #[test]
    fn a_path_is_checked_when_asked_and_once_a_second() {
        let at = std::env::temp_dir().join(format!("mqblk-path-watch-{}", std::process::id()));
        let watch = PathWatch::start().unwrap();
        assert!(watch.look_now(Duration::from_secs(60)), "without a path");
        let (_listener, file) = listen(&at, None).unwrap();
        let socket = file.served().unwrap();
        watch.add(socket);
        assert!(watch.look_now(Duration::from_secs(60)) && socket.trouble().is_none());
        std::fs::remove_file(&at).unwrap();
        assert!(watch.look_now(Duration::from_secs(60)) && socket.trouble().is_some());
        std::fs::write(&at, "").unwrap();
        crate::waiting::until("the path is checked", || socket.trouble().unwrap().contains("has replaced"));
        drop(file);
        assert!(watch.look_now(Duration::from_secs(60)));
        assert!(watch.shared.state.lock().paths.is_empty(), "a path without an owner is dropped");
        std::fs::remove_file(&at).unwrap();
    }
}
