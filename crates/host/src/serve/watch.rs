// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the counters of served disks once a second, and logs what an operator has to know of: requests that failed, writes
//! that wait for space, and their end.
//!
//! Guarantees: one line per disk and second at most, however many requests fail; nothing on the I/O path knows of it. A disk
//! ends when its owner lets go of it. Does not do: say which request failed.

use super::disk::ServedDisk;
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks without a write that found no space, after which there is space again: a driver tries once a second.
const QUIET_LOOKS: u32 = 3;

/// See the module's text.
pub(super) struct DiskWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    disks: Vec<(Weak<ServedDisk>, Seen)>,
    over: bool,
}

/// What was seen of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    errors: u64,
    held: u64,
    /// Looks since a write was last held, while it is said that they are.
    holding: Option<u32>,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Failed(u64),
    HoldBegins,
    HoldEnds,
}

impl Seen {
    fn look(&mut self, errors: u64, held: u64) -> [Option<Finding>; 2] {
        let failed = errors.saturating_sub(self.errors);
        let more_held = held > self.held;
        (self.errors, self.held) = (errors, held);
        let hold = match self.holding {
            None if more_held => Some(Finding::HoldBegins),
            Some(looks) if !more_held && looks + 1 >= QUIET_LOOKS => Some(Finding::HoldEnds),
            _ => None,
        };
        self.holding = match (hold, self.holding) {
            (Some(Finding::HoldEnds), _) | (None, None) => None,
            (_, looks) => Some(if more_held { 0 } else { looks.unwrap_or(0) + 1 }),
        };
        [(failed > 0).then_some(Finding::Failed(failed)), hold]
    }
}

impl DiskWatch {
    pub(super) fn start() -> Result<DiskWatch> {
        let shared = Arc::<Shared>::default();
        let watch = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mqblk-watch".into())
            .spawn(move || watch.run())
            .map_err(|e| Error::os(e, "cannot start the thread that watches disks"))?;
        Ok(DiskWatch { shared, thread: Some(thread) })
    }

    /// Looks at a disk too, as long as somebody else has it.
    pub(super) fn add(&self, disk: &Arc<ServedDisk>) {
        self.shared.state.lock().disks.push((Arc::downgrade(disk), Seen::default()));
        self.shared.changed.notify_all();
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.over {
            if state.disks.is_empty() {
                self.changed.wait(&mut state);
            } else if self.changed.wait_for(&mut state, INTERVAL).timed_out() {
                state.disks.retain_mut(|(disk, seen)| match disk.upgrade() {
                    Some(disk) => {
                        look(&disk, seen);
                        true
                    }
                    None => false,
                });
            }
        }
    }
}

fn look(disk: &ServedDisk, seen: &mut Seen) {
    let name = disk.name.as_str();
    let found = seen.look(disk.queue.stats().errors, disk.driver.held_on_enospc());
    for finding in found.into_iter().flatten() {
        match finding {
            Finding::Failed(n) => log::warn!(disk = name, errors = n; "{n} requests failed"),
            Finding::HoldBegins => {
                log::warn!(disk = name; "no space: writes are held and tried again once a second; make room");
            }
            Finding::HoldEnds => log::info!(disk = name; "no write is held for want of space any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_said_once_and_so_is_its_end() {
        let mut seen = Seen::default();
        let mut look = |errors, held| seen.look(errors, held).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(look(0, 0), []);
        assert_eq!(look(5, 0), [Finding::Failed(5)]);
        assert_eq!(look(5, 0), []);
        assert_eq!(look(6, 2), [Finding::Failed(1), Finding::HoldBegins]);
        // A write that is tried once a second may fall between two looks.
        assert_eq!([look(6, 2), look(6, 3), look(6, 3), look(6, 3)], [[]; 4]);
        assert_eq!(look(6, 3), [Finding::HoldEnds]);
        assert_eq!([look(6, 3), look(6, 3), look(6, 3)], [[]; 3]);
        assert_eq!(look(6, 4), [Finding::HoldBegins], "and it may come again");
    }
}
