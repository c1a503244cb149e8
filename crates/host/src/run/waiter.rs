// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a job thread waits for its I/O, and by which of the ways a driver has for that.
//!
//! Guarantees: a thread that has a hardware queue for itself submits to it and waits in it the cheap way; as soon as a
//! change of the disk's settings gives it another one, or company, it does not. Needs from callers: no thread waits but by
//! [`Waiter::wait`]. Does not: claim a hardware queue after a change, when requests may be on it already; the cheaper wait of a
//! claimed queue is lost until the next run.

use crate::clock;
use crate::disk::{Disk, Queue, Submitter};
use blk::cpumap::HctxType;
use blk::id::{CpuId, HctxId};
use blk::settings::Mode;
use blk::time::Duration;
use std::sync::Arc;

/// How often a sleeping thread checks whether it is to stop.
pub(super) const STOP_CHECK: Duration = Duration::from_ms(50);

/// What a waiter depends on, besides the disk's settings.
pub(super) struct WaiterSetup {
    pub(super) cpu: CpuId,
    /// CPUs of the run's other threads on the disk.
    pub(super) others: Arc<[CpuId]>,
    /// It polls and does not wait.
    pub(super) polled: bool,
    /// I/Os it submits before it waits; that many may be left to the wait to submit.
    pub(super) batch: u32,
}

pub(super) struct Waiter {
    setup: WaiterSetup,
    /// Where completions of the thread's I/O appear, its own first.
    hctxs: Vec<HctxId>,
    /// What to poll for completions of them; nothing when one of them has no descriptor.
    fds: Vec<libc::pollfd>,
    /// The driver can be waited for in a system call that also submits: wait first, then poll.
    pub(super) wait_first: bool,
    /// No other thread issues this one's requests or takes its completions: submission may be left to the wait that
    /// follows it, and it may sleep for several completions at once.
    alone: bool,
    claimed: Option<HctxId>,
    /// Of the driver.
    lazy_hint: u32,
    /// Of the submitter, when the waiter was made.
    generation: u64,
}

impl Waiter {
    /// The waiter of a thread that has no I/O out yet. The caller holds the disk's `waiter_lock`, so that no settings change.
    pub(super) fn take(disk: &Disk, sub: &Submitter, setup: WaiterSetup) -> Waiter {
        let mut waiter = Waiter::of(disk, sub, setup);
        let first = waiter.hctxs[0];
        waiter.claimed = (waiter.has_cheap_wait() && disk.driver.issuer().claim(first)).then_some(first);
        disk.driver.issuer().set_lazy_commit(first, waiter.lazy());
        waiter
    }

    fn of(disk: &Disk, sub: &Submitter, setup: WaiterSetup) -> Waiter {
        let hctxs: Vec<HctxId> = sub.hctxs().collect();
        assert!(!hctxs.is_empty(), "a submitter has an hctx");
        let of = |h: &HctxId| Some(libc::pollfd { fd: disk.driver.ring_fd(*h)?, events: libc::POLLIN, revents: 0 });
        let fds: Vec<_> = hctxs.iter().map(of).collect::<Option<_>>().unwrap_or_default();
        Waiter {
            wait_first: hctxs.len() == 1 && !setup.polled && fds.len() == 1,
            alone: is_alone(&disk.queue, setup.cpu, &setup.others),
            generation: sub.state_generation(),
            claimed: None,
            lazy_hint: disk.driver.issuer().lazy_hint(),
            setup,
            hctxs,
            fds,
        }
    }

    fn has_cheap_wait(&self) -> bool {
        self.alone && self.wait_first
    }

    fn lazy(&self) -> u32 {
        if self.has_cheap_wait() { self.setup.batch.max(self.lazy_hint) } else { 0 }
    }

    /// Finds its hardware queues again if the submitter has found other settings since.
    #[inline]
    fn follow(&mut self, disk: &Disk, sub: &Submitter) {
        if sub.state_generation() != self.generation {
            self.move_to(disk, sub);
        }
    }

    #[cold]
    fn move_to(&mut self, disk: &Disk, sub: &Submitter) {
        self.release(disk);
        let setup = WaiterSetup { others: Arc::clone(&self.setup.others), ..self.setup };
        let waiter_lock = disk.waiter_lock.try_lock();
        let before = self.generation;
        *self = Waiter::of(disk, sub, setup);
        if waiter_lock.is_some() {
            disk.driver.issuer().set_lazy_commit(self.hctxs[0], self.lazy());
        } else {
            // Settings are being changed again, and that change waits for this thread. So this wait is as in other threads. The
            // next one checks again.
            (self.alone, self.generation) = (false, before);
        }
    }

    /// Waits for completions in the driver, at most until `timeout` or delayed work of the disk is due. Not for a polling thread.
    pub(super) fn wait(&mut self, disk: &Disk, sub: &mut Submitter, min: u32, timeout: Option<Duration>) {
        sub.rest();
        self.follow(disk, sub);
        let Waiter { hctxs, fds, wait_first, alone, .. } = self;
        let first = hctxs[0];
        let at_device = sub.waiting() + sub.held() == 0 && !disk.queue.has_delayed_work();
        if *alone && *wait_first && timeout.is_none() && at_device {
            // This thread can only wait for its own I/O at a real device, and that I/O ends. So no timer has to be
            // armed, and a freeze can wait for the I/O.
            return disk.driver.wait(first, min, None);
        }
        let now = clock::now();
        let several = hctxs.len() > 1;
        let timer = disk.queue.next_timer().map(|t| t.since(now));
        let due = hctxs.iter().skip(1).filter_map(|h| disk.driver.next_due(*h)).min().map(|t| t.since(now));
        // The thread can wait in the first of its hardware queues only, or a bio waits for another submitter's tag. So the wait
        // is short: nothing is missed that another queue or submitter brings.
        let blind = several && fds.is_empty() || sub.waiting() > 0;
        let short = blind.then_some(Duration::from_us(100));
        let timeout = timeout.into_iter().chain(timer).chain(due).fold(STOP_CHECK, Duration::min);
        let in_driver = short.map_or(timeout, |short| short.min(timeout));
        let submitter = sub.id();
        if several && !fds.is_empty() {
            return disk.waker.wait_any(submitter, first, fds, in_driver);
        }
        match *alone {
            true => disk.waker.wait(submitter, first, min, Some(in_driver)),
            // The leader takes what comes for its followers.
            false if !several => disk.waker.wait_or_follow(submitter, first, in_driver, timeout),
            false => disk.waker.wait_or_follow(submitter, first, in_driver, in_driver),
        }
    }

    fn release(&mut self, disk: &Disk) {
        if let Some(hctx) = self.claimed.take() {
            disk.driver.issuer().release(hctx);
        }
    }

    /// The thread has nothing out and ends.
    pub(super) fn leave(&mut self, disk: &Disk) {
        if self.lazy() > 0 {
            disk.driver.issuer().set_lazy_commit(self.hctxs[0], 0);
        }
        self.release(disk);
    }
}

/// Whether a thread is alone on its one hardware queue, and no other issues its requests. With an elevator a thread that runs a
/// hardware queue may find another one's requests there. In a set a tag that one disk frees may be what another one's hardware
/// queue waits for.
fn is_alone(queue: &Queue, cpu: CpuId, others: &[CpuId]) -> bool {
    let map = queue.map();
    let home = |cpu: CpuId| {
        let types = [HctxType::Default, HctxType::Read, HctxType::Poll];
        types.map(|t| map.hctx(cpu.index() as u16, t))
    };
    let mine = home(cpu);
    let issued_by_others = queue.scheduler() != "none" || queue.config().mode != Mode::Mq;
    let shares = |other: &CpuId| issued_by_others || home(*other).contains(&mine[0]);
    // A thread with its CPU gone is somewhere else.
    let all_home = (0..queue.config().topology.nr_cpus).all(|c| queue.is_online(CpuId::new(u32::from(c))));
    all_home && mine[0] == mine[1] && mine[0] == mine[2] && queue.tag_set().is_none() && !others.iter().any(shares)
}
