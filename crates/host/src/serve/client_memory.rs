// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory the buffers of all clients of this process may have together.
//!
//! Guarantees: no client gets buffers beyond the limit; it is refused them, and others are served. What a client had is free again when it
//! has left. Counts what buffers may grow to, not what they use now. An NBD client has 8 MiB, from its first request over 64 KiB on 32 MiB
//! more, and 64 MiB more while it has requests over 32 MiB. ublk devices count as clients. Does not count: memory of guests, and the
//! buffers of IOThreads for guests' odd requests.

use crate::error::{Error, ErrorKind, Result};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be taken, and that are taken.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Sets the limit in bytes. What is taken already stays.
pub fn set_limit(bytes: u64) {
    // Relaxed: no other data depends on it.
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Returns the bytes that are taken, and the limit.
pub fn usage() -> (u64, u64) {
    (TAKEN.load(Ordering::Relaxed), LIMIT.load(Ordering::Relaxed))
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

/// Takes `bytes`, which [`give_back`] gives back.
///
/// # Errors
/// Resource: they would go beyond the limit.
pub(super) fn take(bytes: usize) -> Result<()> {
    let (bytes, limit) = (bytes as u64, LIMIT.load(Ordering::Relaxed));
    let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
    // Relaxed: only the sum matters.
    let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    taken.map(drop).map_err(|taken| {
        let text = format!(
            "buffers of {bytes} bytes: clients have {taken} of {limit}; disconnect some, or raise --max-client-memory"
        );
        Error::new(ErrorKind::Resource, text)
    })
}

/// Gives back what [`take`] took.
pub(super) fn give_back(bytes: usize) {
    TAKEN.fetch_sub(bytes as u64, Ordering::Relaxed);
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
}
