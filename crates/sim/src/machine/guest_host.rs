// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State that virtual machines and the users of a database share, as arithmetic on times. It covers the deep sleep of the
//! host's cores, the most contended lock of a database, and the log that has to be durable before a transaction ends.
//!
//! Guarantees: the same calls give the same answers; queued requests are served in the order of the calls. Does not: stop a
//! vCPU that waits for a lock (it spins), or model a lock holder that is preempted.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How busy the host is.
#[derive(Debug)]
pub(super) struct HostLoad {
    cores: u32,
    /// Idle time after which a core enters deep sleep; 0: at once.
    deep_after_ns: u64,
    since_ns: u64,
    /// vCPUs that compute.
    computing: AtomicU32,
    /// How often an idle core was woken, by a vCPU that computes or by a thread of the hypervisor.
    woken: AtomicU64,
}

impl HostLoad {
    /// Makes the load of a host with so many cores. Wake-ups are counted from `since_ns` on.
    pub(super) fn new(cores: u32, deep_after_ns: u64, since_ns: u64) -> HostLoad {
        HostLoad { cores, deep_after_ns, since_ns, computing: AtomicU32::new(0), woken: AtomicU64::new(0) }
    }

    /// A vCPU begins to compute, or continues with something else.
    pub(super) fn begin(&self) {
        self.computing.fetch_add(1, Ordering::Relaxed);
    }

    /// A vCPU has finished that computation.
    pub(super) fn end(&self) {
        self.computing.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a wake-up of a sleeping core.
    pub(super) fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }

    /// vCPUs that compute.
    pub(super) fn computing(&self) -> u32 {
        self.computing.load(Ordering::Relaxed)
    }

    /// Cores of the host.
    pub(super) fn cores(&self) -> u32 {
        self.cores
    }

    /// Returns the share of idle cores that are in deep sleep. Wake-ups hit cores at random, so idle times are taken as
    /// exponentially distributed.
    pub(super) fn deep_share(&self, now_ns: u64) -> f64 {
        let idle = f64::from(self.cores.saturating_sub(self.computing()));
        let woken = self.woken.load(Ordering::Relaxed);
        if self.deep_after_ns == 0 || woken == 0 {
            return 1.0;
        }
        let mean_idle_ns = idle * now_ns.saturating_sub(self.since_ns) as f64 / woken as f64;
        if mean_idle_ns > 0.0 { (-(self.deep_after_ns as f64) / mean_idle_ns).exp() } else { 0.0 }
    }
}

/// What makes the log of a database durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSpec {
    /// Time of a flush of the host's storage; flushes of all virtual machines wait in one queue.
    pub flush_ns: u64,
    /// Time to write the log of one transaction at the speed of the storage.
    pub commit_ns: u64,
}

/// The logs of all virtual machines on one storage of the host. Each virtual machine has at most one flush in progress.
/// Commits that arrive meanwhile share the next flush (group commit). Flushes of several virtual machines wait for each
/// other.
#[derive(Debug)]
pub(super) struct Logs {
    spec: LogSpec,
    state: Mutex<LogState>,
}

#[derive(Debug)]
struct LogState {
    free_at: u64,
    /// The last flush of each virtual machine: begin and end.
    last: Vec<(u64, u64)>,
}

impl Logs {
    /// Makes the logs of `vms` virtual machines.
    pub(super) fn new(spec: LogSpec, vms: u32) -> Logs {
        Logs { spec, state: Mutex::new(LogState { free_at: 0, last: vec![(0, 0); vms as usize] }) }
    }

    /// Returns when a transaction of `vm` is durable. Its log reaches the host at `now`.
    pub(super) fn commit(&self, vm: u32, now: u64) -> u64 {
        let state = &mut *self.state.lock();
        let (begin, end) = &mut state.last[vm as usize];
        if *begin <= now {
            *begin = now.max(*end).max(state.free_at);
            *end = *begin + self.spec.flush_ns;
            state.free_at = *end;
        }
        // A flush that has not begun includes this commit, and the next flush begins later. Flushes whose times are already set keep these
        // times. So a queue of several flushes is too short, by up to one commit for each flush.
        *end += self.spec.commit_ns;
        state.free_at += self.spec.commit_ns;
        *end
    }
}

/// The lock of a database that its users wait for most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LockSpec {
    /// How long a transaction holds it in total; 0: there is no such lock.
    pub hold_ns: u64,
    /// How much longer the lock is held for each user that spins for it meanwhile, because spinning users take its cache lines.
    pub waiter_ns: u64,
}

/// The users of the lock, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Lock {
    /// When each user releases the lock.
    ends: VecDeque<u64>,
}

impl Lock {
    /// A user arrives at `now`. Returns when that user releases the lock.
    pub(super) fn take(&mut self, spec: LockSpec, now: u64) -> u64 {
        while self.ends.front().is_some_and(|end| *end <= now) {
            self.ends.pop_front();
        }
        let waiting = self.ends.len() as u64;
        let end = self.ends.back().map_or(now, |end| *end) + spec.hold_ns + waiting * spec.waiter_ns;
        self.ends.push_back(end);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_sleep_deep_only_where_little_wakes_them() {
        let host = HostLoad::new(4, 200, 0);
        assert_eq!(host.deep_share(1000), 1.0, "nothing has been woken");
        (0..2).for_each(|_| host.begin());
        assert_eq!(host.deep_share(1000), 1.0, "computing alone wakes nothing");
        (0..2).for_each(|_| host.wake());
        host.end();
        // Three idle cores, two wake-ups in 1000 ns: 1500 ns of idle time each.
        assert!((host.deep_share(1000) - (-200.0f64 / 1500.0).exp()).abs() < 1e-12);
        (0..98).for_each(|_| host.wake());
        assert!(host.deep_share(1000) < 0.01);
        (0..3).for_each(|_| host.begin());
        assert_eq!((host.computing(), host.deep_share(1000)), (4, 0.0), "no core is idle");
        assert_eq!(HostLoad::new(4, 0, 0).deep_share(1), 1.0);
    }

    #[test]
    fn commits_that_come_during_a_flush_share_the_next_one() {
        let logs = Logs::new(LogSpec { flush_ns: 100, commit_ns: 1 }, 1);
        assert_eq!(logs.commit(0, 1000), 1101);
        assert_eq!([1010, 1050].map(|at| logs.commit(0, at)), [1202, 1203], "the next flush begins at 1101");
        assert_eq!(logs.commit(0, 1150), 1304, "it has begun");
        assert_eq!(logs.commit(0, 5000), 5101);
    }

    #[test]
    fn flushes_of_several_databases_wait_for_each_other() {
        let logs = Logs::new(LogSpec { flush_ns: 100, commit_ns: 0 }, 3);
        assert_eq!([0, 1, 2].map(|vm| logs.commit(vm, 1000)), [1100, 1200, 1300]);
        assert_eq!(logs.commit(2, 1150), 1300, "not begun yet");
        assert_eq!(logs.commit(0, 1150), 1400);
        let logs = Logs::new(LogSpec { flush_ns: 100, commit_ns: 10 }, 3);
        assert_eq!([0, 1, 2].map(|vm| logs.commit(vm, 1000)), [1110, 1220, 1330]);
        assert_eq!(logs.commit(1, 1050), 1230, "taken along");
        assert_eq!(logs.commit(0, 1120), 1450, "behind all of them, and what was taken along");
    }

    #[test]
    fn spinning_slows_a_lock_for_earlier_waiters() {
        let (mut lock, spec) = (Lock::default(), LockSpec { hold_ns: 100, waiter_ns: 10 });
        assert_eq!([0, 0, 0].map(|at| lock.take(spec, at)), [100, 210, 330]);
        assert_eq!(lock.take(spec, 329), 440, "one has it");
        assert_eq!(lock.take(spec, 1000), 1100);
    }
}
