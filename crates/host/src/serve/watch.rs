// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the counters of served disks once a second, and logs problems for the operator: failed requests, the SCSI commands behind
//! them, injected faults, writes that wait for space, lost connections to a server, and a failed flush. It also logs when all connections
//! are up again, or when there is space again.
//!
//! Guarantees: at most one line of each kind per disk and second, however many requests fail, and one line a minute for lost connections.
//! Failed SCSI commands get one line for each kind of failure in [`FAILURE_LOOKS`] seconds, with the number of the others like it. The
//! I/O path is not involved. The watch does not keep a disk open.

use super::disk::ServedDisk;
use crate::driver::{Connections, FailureReport, PathMessage};
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// After this many checks without a write that failed for lack of space, there is space again: a driver retries once a second.
const QUIET_LOOKS: u32 = 3;
/// Number of checks after which lost connections are reported again.
const REPEAT_LOOKS: u32 = 60;
/// Minimum number of checks between two reports of failed commands: five seconds, as in the kernel's rate limit of messages.
const FAILURE_LOOKS: u32 = 5;

/// See the module's text.
pub(super) struct DiskWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    disks: Vec<(Weak<ServedDisk>, Watched)>,
    over: bool,
}

/// What the watch knows of a disk.
#[derive(Debug, Default)]
struct Watched {
    seen: Seen,
    links: Links,
    failures: FailurePace,
    /// Number of injected faults at the last check.
    injected: u64,
}

/// Limits the rate of reports of failed commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FailurePace {
    /// Number of checks since the last report.
    quiet: Option<u32>,
}

impl FailurePace {
    /// Returns the failures that are to be reported now. `take` returns those since its last call.
    fn look<T>(&mut self, take: impl FnOnce() -> Vec<T>) -> Vec<T> {
        self.quiet = self.quiet.map(|looks| looks.saturating_add(1));
        if self.quiet.is_some_and(|looks| looks < FAILURE_LOOKS) {
            return Vec::new();
        }
        let failures = take();
        if !failures.is_empty() {
            self.quiet = Some(0);
        }
        failures
    }
}

/// Counters of a disk at the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    errors: u64,
    held: u64,
    /// Number of checks since a write was last held, while writes are reported as held.
    holding: Option<u32>,
}

/// What was reported of a disk's connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Links {
    /// Number of losses that were reported.
    told: u64,
    /// Number of checks since the last report.
    quiet: Option<u32>,
    /// A loss was reported, but not yet the return of all connections.
    down: bool,
}

impl Links {
    fn look(&mut self, now: Connections) -> Option<Finding> {
        self.quiet = self.quiet.map(|looks| looks.saturating_add(1));
        if now.losses > self.told && self.quiet.is_none_or(|looks| looks >= REPEAT_LOOKS) {
            *self = Links { told: now.losses, quiet: Some(0), down: true };
            return Some(Finding::Lost);
        }
        let back = self.down && now.up >= now.wanted;
        self.down &= !back;
        back.then_some(Finding::Connected)
    }
}

/// A problem, or the end of one, that must be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Failed(u64),
    HoldBegins,
    HoldEnds,
    Lost,
    Connected,
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

    /// Watches another disk, as long as it has an owner.
    pub(super) fn add(&self, disk: &Arc<ServedDisk>) {
        self.shared.state.lock().disks.push((Arc::downgrade(disk), Watched::default()));
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
                let mut disks = std::mem::take(&mut state.disks);
                // The check may be the last owner of a disk and so close it, which may take long. A thread that adds a disk must not wait
                // for that.
                MutexGuard::unlocked(&mut state, || {
                    disks.retain_mut(|(disk, watched)| match disk.upgrade() {
                        Some(disk) => {
                            look(&disk, watched);
                            true
                        }
                        None => false,
                    });
                });
                // Disks that were added in the meantime follow the others.
                disks.append(&mut state.disks);
                state.disks = disks;
            }
        }
    }
}

fn look(disk: &ServedDisk, watched: &mut Watched) {
    disk.log_failed_flush();
    let name = disk.name.as_str();
    let Watched { seen, links, failures, injected } = watched;
    let hits = disk.injection().hits();
    let new = hits - std::mem::replace(injected, hits);
    if new > 0 {
        log::warn!(disk = name, faults = new; "{new} requests got an injected fault");
    }
    for (member, messages) in disk.take_messages() {
        let disk = member.as_str();
        for PathMessage { path, level, text } in messages {
            match path {
                Some(path) => log::log!(level, disk, path = path.as_str(); "{text}"),
                None => log::log!(level, disk; "{text}"),
            }
        }
    }
    for FailureReport { path, text } in failures.look(|| disk.take_failures()) {
        log::warn!(disk = name, path = path.as_str(); "{text}");
    }
    let found = seen.look(disk.stats().errors, disk.held_on_enospc());
    let link = disk.connections().and_then(|now| links.look(now));
    for finding in found.into_iter().chain([link]).flatten() {
        match finding {
            // In one line, because the number of lines is limited.
            Finding::Lost => log::warn!(disk = name; "{}", disk.troubles().join("; ")),
            Finding::Connected => log::info!(disk = name; "all its connections are up again"),
            Finding::Failed(n) => log::warn!(disk = name, errors = n; "{n} requests failed"),
            Finding::HoldBegins => {
                log::warn!(disk = name; "no space (ENOSPC): writes are held and retried once a second; free space");
            }
            Finding::HoldEnds => log::info!(disk = name; "space is available again: no writes are held"),
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
        // A write that is retried once a second may be missed between two checks.
        assert_eq!([look(6, 2), look(6, 3), look(6, 3), look(6, 3)], [[]; 4]);
        assert_eq!(look(6, 3), [Finding::HoldEnds]);
        assert_eq!([look(6, 3), look(6, 3), look(6, 3)], [[]; 3]);
        assert_eq!(look(6, 4), [Finding::HoldBegins], "and it may come again");
    }

    #[test]
    fn failures_are_reported_at_once_and_then_every_five_seconds() {
        let mut pace = FailurePace::default();
        let mut pending = Vec::new();
        let mut look = |new: &[u32]| {
            pending.extend_from_slice(new);
            pace.look(|| std::mem::take(&mut pending))
        };
        assert_eq!([look(&[]), look(&[1]), look(&[2]), look(&[3])], [vec![], vec![1], vec![], vec![]]);
        assert_eq!([look(&[]), look(&[]), look(&[4])], [vec![], vec![], vec![2, 3, 4]]);
        assert!(look(&[5]).is_empty(), "and again");
    }

    #[test]
    fn lost_connections_are_said_at_once_and_then_once_a_minute() {
        let mut links = Links::default();
        let mut look = |losses, up| links.look(Connections { wanted: 2, up, losses, replayed: 0 });
        assert_eq!(look(0, 2), None);
        assert_eq!(look(1, 1), Some(Finding::Lost));
        assert_eq!(look(2, 0), None, "more of the same");
        assert_eq!(look(2, 2), Some(Finding::Connected));
        let said: Vec<_> = (3..200).filter_map(|losses| look(losses, 2 * (losses % 2))).collect();
        let lost = said.iter().filter(|f| **f == Finding::Lost).count();
        assert_eq!((lost, said.len() - lost), (3, 3), "however often it comes and goes: {said:?}");
    }
}
