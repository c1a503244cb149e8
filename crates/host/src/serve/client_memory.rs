// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory the buffers of all clients of this process may have together.
//!
//! Guarantees: no client gets buffers beyond the limit; it is refused them, and others are served. The clients of one owner (user or
//! address) get at most half of the memory that others leave, or the first buffers of one client. So one owner cannot keep all memory from
//! the others. What a client had is free again when it has left.
//! Counts what buffers may grow to, not what they use now. An NBD client has 8 MiB, from its first request over 64 KiB on 32 MiB more, and
//! 64 MiB more while it has requests over 32 MiB. FUSE mounts and ublk devices count, too, and have no owner. Does not count: memory of
//! guests, and the buffers of IOThreads for guests' odd requests.

use crate::error::{Error, ErrorKind, Result};
use crate::net::owner::Owner;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be taken, and that are taken.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static TAKEN: Mutex<Taken> = Mutex::new(Taken::NOTHING);

/// Sets the limit in bytes. What is taken already stays.
pub fn set_limit(bytes: u64) {
    // Relaxed: no other data depends on it.
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Returns the bytes that are taken, and the limit.
pub fn usage() -> (u64, u64) {
    (TAKEN.lock().total, LIMIT.load(Ordering::Relaxed))
}

/// Returns the default limit: half of the memory that this process may have, by its cgroups and the machine.
pub fn default_limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let directory = Path::new("/sys/fs/cgroup").join(own);
        let limit = |dir: &Path| fs::read_to_string(dir.join("memory.max")).ok()?.trim().parse::<u64>().ok();
        directory.ancestors().filter_map(limit).min()
    });
    machine.into_iter().chain(cgroup).min().map_or(u64::MAX, |bytes| bytes / 2)
}

/// Returns the machine's memory in bytes, from `/proc/meminfo`.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Takes `bytes` for a client of `owner`; [`give_back`] gives them back. Without an owner, only the limit applies.
///
/// # Errors
/// Resource: they would go beyond the limit, or beyond the owner's part of it.
pub(super) fn take(bytes: usize, owner: Option<Owner>) -> Result<()> {
    TAKEN.lock().take(bytes as u64, owner, LIMIT.load(Ordering::Relaxed))
}

/// Gives back what [`take`] took for the same owner.
pub(super) fn give_back(bytes: usize, owner: Option<Owner>) {
    TAKEN.lock().give_back(bytes as u64, owner);
}

/// Bytes that are taken.
struct Taken {
    total: u64,
    /// The part of each owner that has any.
    by_owner: BTreeMap<Owner, u64>,
}

impl Taken {
    const NOTHING: Taken = Taken { total: 0, by_owner: BTreeMap::new() };

    fn take(&mut self, bytes: u64, owner: Option<Owner>, limit: u64) -> Result<()> {
        let refused = |why: &str| {
            let text =
                format!("buffers of {bytes} bytes: {why}; disconnect some clients, or raise --max-client-memory");
            Err(Error::new(ErrorKind::Resource, text))
        };
        let Some(total) = self.total.checked_add(bytes).filter(|total| *total <= limit) else {
            return refused(&format!("clients have {} of {limit}", self.total));
        };
        if let Some(owner) = owner {
            let before = self.by_owner.get(&owner).copied().unwrap_or(0);
            let own = before + bytes;
            // An owner may have at most as much as then stays free, which is half of the memory that others leave.
            if before > 0 && own > limit - total {
                let rule = "one user or address may have at most half of what others leave free";
                return refused(&format!("clients of {owner} have {before} of {limit}, and {rule}"));
            }
            self.by_owner.insert(owner, own);
        }
        self.total = total;
        Ok(())
    }

    fn give_back(&mut self, bytes: u64, owner: Option<Owner>) {
        self.total -= bytes;
        let Some(owner) = owner else { return };
        if let Entry::Occupied(mut own) = self.by_owner.entry(owner) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!((1 << 20..u64::MAX).contains(&default_limit()));
    }

    #[test]
    fn one_owner_leaves_memory_to_others() {
        let (mut taken, limit) = (Taken::NOTHING, 100);
        let [a, b, c] = [1, 2, 3].map(|uid| Some(Owner::User(uid)));
        let mut most = |owner| (0..limit).take_while(|_| taken.take(1, owner, limit).is_ok()).count();
        // Half, half of the rest, and so on. Without an owner it is all.
        assert_eq!([a, b, c, a, None].map(&mut most), [50, 25, 12, 0, 13]);
        for (owner, bytes) in [(None, 13), (a, 50), (c, 12)] {
            taken.give_back(bytes, owner);
        }
        assert_eq!((taken.total, taken.by_owner.len()), (25, 1));
        let e = taken.take(30, b, limit).unwrap_err().to_string();
        assert!(e.contains("buffers of 30 bytes: clients of uid 2 have 25 of 100, and one user or address"), "{e}");
        let e = taken.take(76, b, limit).unwrap_err().to_string();
        assert!(e.contains("buffers of 76 bytes: clients have 25 of 100; disconnect some"), "{e}");
        taken.give_back(25, b);
        assert!(taken.total == 0 && taken.by_owner.is_empty());
    }

    #[test]
    fn an_owner_without_memory_gets_what_fits_the_limit() {
        let mut taken = Taken::NOTHING;
        let [a, b] = [1, 2].map(|uid| Some(Owner::User(uid)));
        taken.take(40, a, 100).unwrap();
        taken.take(60, b, 100).unwrap();
        assert!(taken.take(1, Some(Owner::Unknown), 100).is_err());
        // The limit was lowered below the sum that is taken.
        assert!(taken.take(1, a, 50).is_err());
    }
}
