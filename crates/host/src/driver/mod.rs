// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers that run on this machine, and what the host needs of them beyond `blk::driver::Driver`: a way to wait.
//!
//! A driver is one file; `null` is the template. Its state per hardware queue lives in a `PerHctx`.

pub mod null;
pub mod ram;
pub mod model;
pub mod file;
pub mod nbd;
pub mod rbd;
pub mod iscsi;
pub mod multipath;
mod pieces;
mod keeper;
mod waits;

pub use file::File;
pub use iscsi::Iscsi;
pub use model::Model;
pub use multipath::Multipath;
pub use nbd::Nbd;
pub use null::Null;
pub use ram::Ram;
pub use rbd::Rbd;

use crate::clock;
use crate::driver::iscsi::{RawAnswer, RawCommand};
use crate::error::{Error, Result};
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering};
use blk::driver::Driver;
use blk::id::{HctxId, MAX_CPUS, Sector};
use blk::scsi::alua::Access;
use blk::time::{Duration, Instant};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::OnceLock;

/// What a driver knows of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Nothing: all may be data.
    Data,
    /// All is a hole, always.
    Hole,
    /// [`HostDriver::survey`] tells.
    Survey,
}

/// Sectors in a row of which the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many; at least one.
    pub nr_sectors: u64,
    /// Nothing is stored, and they read as zeroes.
    pub is_hole: bool,
}

/// What became of a driver's connections to its device, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// How many there are to be.
    pub wanted: u64,
    /// How many there are.
    pub up: u64,
    /// How often one was lost.
    pub losses: u64,
    /// Requests that were sent again on the next one.
    pub replayed: u64,
}

/// What a check brought that also asked how the target serves the unit by this way.
#[derive(Debug)]
pub struct Checked {
    /// That; `None`: it has no port groups.
    pub access: Option<Access>,
    /// Whether it is the one that was opened and, if it is served there at all, ready.
    pub ready: Result<()>,
}

/// Who is told of something from inside I/O, and may not call back from there.
pub type Tell = Box<dyn Fn() + Send + Sync>;

/// What bounds the commands of a logical unit: `nr_hw_queues` multiplies tags, which the device need not have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiDepth {
    /// Commands of a hardware queue (of all, with `host_tagset`).
    pub can_queue: u32,
    /// Commands the unit may have at first.
    pub cmd_per_lun: u32,
    /// Commands it may have now.
    pub queue_depth: u32,
    /// Hardware queues.
    pub nr_hw_queues: u16,
    /// Commands that the target takes over all its sessions together before it has answered any, as far as is known.
    pub window: Option<u64>,
}

/// A driver whose completions a thread can wait for without spinning.
pub trait HostDriver: Driver {
    /// Most hardware queues that [`Driver::start`] may be asked for: what a disk has that names no number, and no CPU for each.
    fn max_hw_queues(&self) -> u16 {
        u16::MAX
    }

    /// Blocks until `min` requests of `hctx` that were in flight at the call may have finished (at least one), `timeout`
    /// has passed, or [`HostDriver::wake`] was called since the moment `seen` was read from [`HostDriver::wakes`]; may
    /// return early for no reason. Poll afterwards. Other threads may queue, poll and wait on the same hctx meanwhile,
    /// and what they queue counts; then `min` must be 1, for a wake-up may count as one completion only. Returns at once
    /// when nothing is in flight and there is no `timeout`.
    ///
    /// A driver whose requests are finished when they are issued has nothing to wait for: the default returns.
    fn wait_since(&self, _seen: u64, _hctx: HctxId, _min: u32, _timeout: Option<Duration>) {}

    /// [`HostDriver::wait_since`] now: wake-ups before the call do not count.
    fn wait(&self, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_since(self.wakes(hctx), hctx, min, timeout);
    }

    /// How often [`HostDriver::wake`] was called for `hctx`, or more. Whoever reads it, then makes known that it is going
    /// to wait, then waits since this number, misses no wake-up by those who know.
    fn wakes(&self, _hctx: HctxId) -> u64 {
        0
    }

    /// Makes all threads return that are in a wait for `hctx`, or come to it with an older [`HostDriver::wakes`].
    fn wake(&self, _hctx: HctxId) {}

    /// When the first request of `hctx` will be finished, for a driver that completes by time.
    fn next_due(&self, _hctx: HctxId) -> Option<Instant> {
        None
    }

    /// `queue_rqs` for `hctx` may leave it to the next [`HostDriver::wait`] or `poll` to make the device see its requests
    /// as long as there are fewer than `fewer_than`: one system call instead of two for a thread that waits right after
    /// it has submitted what is left of a batch. 0 and 1 leave nothing. Whoever sets more must call one of the two
    /// soon after every submission.
    fn set_lazy_commit(&self, _hctx: HctxId, _fewer_than: u32) {}

    /// As how many requests, at least, [`HostDriver::set_lazy_commit`] is best told by who waits soon after it has submitted:
    /// 0 if nothing is gained by more than a batch.
    fn lazy_hint(&self) -> u32 {
        0
    }

    /// The calling thread is from now on the one that submits to `hctx`, polls it and waits for it, until it calls
    /// [`HostDriver::release`]; a driver may be faster for it. Others still may do all of that, slower: what they queue
    /// may have to wait until this thread submits, polls or waits, so it goes on doing so while they have anything in
    /// flight. Nobody else may be in a call for this hctx, or have a request there, while this call or `release` runs: what
    /// they queued could be lost. Refused when something is in flight already. Says whether it makes a difference.
    /// A thread that ends without `release` ends the I/O of all others on the hctx.
    fn claim(&self, _hctx: HctxId) -> bool {
        false
    }

    /// Ends a [`HostDriver::claim`]; by the thread that made it, with nothing in flight.
    fn release(&self, _hctx: HctxId) {}

    /// Undoes all claims and what [`HostDriver::set_lazy_commit`] has set: every thread may use every hctx like any other from
    /// now on. Nothing is in flight, and nobody is in a call that queues or polls, or comes to one meanwhile. Who had
    /// claimed an hctx still calls [`HostDriver::release`].
    fn unclaim(&self) {}

    /// Gives the device `bytes`, or with `None` finds out what size it has now; what that is in sectors. What lay beyond
    /// a smaller size is gone.
    ///
    /// # Errors
    /// Usage: it cannot be resized, or not to this size. Others: the system refused.
    fn resize(&self, _bytes: Option<u64>) -> Result<Sector> {
        Err(Error::usage(format!("a disk of driver '{}' keeps the size it was made with", self.name())))
    }

    /// How it can be found out what of the disk is stored.
    fn allocation(&self) -> Allocation {
        Allocation::Data
    }

    /// What of the range is stored, from its beginning on: up to `most` stretches that lie within it one behind the other, at least
    /// one, of whole logical blocks. What was written by requests that had ended before the call is data; what is told as a hole reads
    /// as zeroes until it is written. May wait for the device, so not on a thread that serves others. Only for
    /// [`Allocation::Survey`].
    fn survey(&self, _sector: Sector, nr_sectors: u64, _most: usize) -> Vec<Stretch> {
        vec![Stretch { nr_sectors, is_hole: false }]
    }

    /// Bytes that are set aside for what is stored, as far as the system has them at hand: it does not wait. Only for
    /// [`Allocation::Survey`].
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether [`HostDriver::prefetch`] does anything.
    fn caches(&self) -> bool {
        false
    }

    /// The range, or as much of it as is reasonable, will be read soon. May wait, as [`HostDriver::survey`].
    fn prefetch(&self, _sector: Sector, _nr_sectors: u64) {}

    /// Whether writes that find no space are tried again once a second instead of failed. False: it has no such mode.
    fn set_hold_on_enospc(&self, _hold: bool) -> bool {
        false
    }

    /// How often a write found no space and was kept to be tried again.
    fn held_on_enospc(&self) -> u64 {
        0
    }

    /// What has happened at the device since it was opened that the ends of requests do not tell, in sentences for people.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// While it is to give up, what is in flight or comes ends with an error instead of waiting for a device that is away, or that
    /// has not answered it for a second: somebody wants to be rid of it. What a device answers sooner is not touched; when it is taken
    /// back, what waits may wait as long as if nothing had been. May be called again to look for what has become late
    /// meanwhile. False: the driver can do no such thing.
    fn set_give_up(&self, _give_up: bool) -> bool {
        false
    }

    /// How its connections are, if it reaches its device over such.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// What its disk is known by, if the disk says such a thing of itself: two with the same name are one.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Asks the disk, on a way of its own and beside the requests, whether it is there, ready, and the one that was opened. Takes at most
    /// about `limit`, less when `stop` becomes readable. `None`: it has no such way.
    fn check(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<()>> {
        None
    }

    /// How its target served it by this way when it was opened. `None`: that was not asked, or the target has no port groups.
    fn access(&self) -> Option<Access> {
        None
    }

    /// As [`HostDriver::check`], and how its target serves it by this way. `None`: it has no such way.
    fn check_access(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<Checked>> {
        None
    }

    /// Has `tell` called, from inside I/O, when the device says that it may be served otherwise now. The first who asks for it is
    /// told.
    fn on_access_change(&self, _tell: Tell) {}

    /// Sends a command past the block layer and waits for its end. `None`: it is no SCSI device.
    fn scsi_command(&self, _hctx: HctxId, _command: &RawCommand<'_>) -> Option<Result<RawAnswer>> {
        None
    }

    /// Its paths, if it has several to one disk.
    fn topology(&self) -> Option<multipath::Topology> {
        None
    }

    /// How many commands can be out, of a driver that sends SCSI commands.
    fn scsi_depth(&self) -> Option<ScsiDepth> {
        None
    }

    /// A descriptor that polls readable when `hctx` has completions, if the driver has such a thing.
    fn ring_fd(&self, _hctx: HctxId) -> Option<RawFd> {
        None
    }
}

/// One `T` per hardware queue, each on cache lines of its own, found without a lock and made when first needed.
pub(crate) struct PerHctx<T> {
    slots: Box<[OnceLock<Box<Padded<T>>>]>,
}

/// 128 bytes: two lines, because the prefetcher of common CPUs fetches pairs.
#[repr(align(128))]
struct Padded<T>(T);

impl<T> PerHctx<T> {
    pub(crate) fn new() -> PerHctx<T> {
        PerHctx { slots: (0..MAX_CPUS).map(|_| OnceLock::new()).collect() }
    }

    /// The state of hardware queue `index`, made by `make` if it is the first time.
    pub(crate) fn get_or_init(&self, index: u16, make: impl FnOnce() -> T) -> &T {
        &self.slots[usize::from(index)].get_or_init(|| Box::new(Padded(make()))).0
    }

    /// Those that were ever needed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| Some(&slot.get()?.0))
    }

    /// The state of `hctx`, which `start` must have made.
    #[inline]
    pub(crate) fn get(&self, hctx: HctxId) -> &T {
        &self.slots[hctx.index()].get().expect("hctx used before the driver was started for it").0
    }
}

/// Where threads sleep until a moment or a wake-up: [`HostDriver::wait_since`] of drivers that complete by time.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// Wake-ups so far; changed under the lock, so that no sleeper misses one between its look and its sleep.
    wakes: AtomicU64,
    /// Threads in [`Sleeper::sleep_until_due`].
    sleepers: AtomicU32,
    lock: Mutex<()>,
    condvar: Condvar,
}

impl Sleeper {
    /// Sleeps until a request is due (`next_due` tells the first one), at most for `timeout` if there is one; not at all
    /// when there is neither, or when there were wake-ups after `seen`.
    pub(crate) fn sleep_until_due(
        &self,
        seen: u64,
        timeout: Option<Duration>,
        next_due: impl FnOnce() -> Option<Instant>,
    ) {
        // Counted before the look at the requests: see `wake_sleepers`.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let due_in = next_due().map(|due| due.since(clock::now()));
        if let Some(sleep) = due_in.into_iter().chain(timeout).min()
            && sleep > Duration::ZERO
        {
            self.sleep(seen, sleep);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn sleep(&self, seen: u64, at_most: Duration) {
        let until = std::time::Instant::now().checked_add(std::time::Duration::from_nanos(at_most.as_ns()));
        clock::sleep_precisely();
        let mut lock = self.lock.lock();
        // Relaxed: the lock orders it.
        while self.wakes.load(Ordering::Relaxed) == seen {
            match until {
                None => self.condvar.wait(&mut lock),
                Some(until) if self.condvar.wait_until(&mut lock, until).timed_out() => break,
                Some(_) => {}
            }
        }
    }

    /// Wake-ups so far.
    pub(crate) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has said that it is going to wait. Pairs with: Sleeper::wake
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends the sleep of all threads, and of those on their way to it.
    pub(crate) fn wake(&self) {
        let lock = self.lock.lock();
        // Pairs with: Sleeper::wakes
        self.wakes.fetch_add(1, Ordering::Release);
        drop(lock);
        self.condvar.notify_all();
    }

    /// Wakes who sleeps, for the first due time has moved ahead: sleepers look again. Call after the request was added
    /// under the lock that `next_due` of a sleeper takes: who looked before that is counted here, who looks later sees it.
    #[inline]
    pub(crate) fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(3600));

    #[test]
    fn a_wake_up_before_the_sleep_is_not_lost_to_another_sleeper() {
        let sleeper = Sleeper::default();
        let seen = sleeper.wakes();
        sleeper.wake();
        // Two threads were on their way: both return, whichever comes first.
        sleeper.sleep_until_due(seen, LONG, || None);
        sleeper.sleep_until_due(seen, LONG, || None);
    }

    #[test]
    fn one_wake_up_ends_all_sleeps() {
        let sleeper = Sleeper::default();
        let seen = sleeper.wakes();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| sleeper.sleep_until_due(seen, LONG, || None));
            }
            sleeper.wake();
        });
        assert_eq!(sleeper.sleepers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_request_added_by_another_thread_ends_the_sleep() {
        let (sleeper, first_due) = (Sleeper::default(), Mutex::new(None));
        std::thread::scope(|s| {
            s.spawn(|| {
                while first_due.lock().is_none() {
                    sleeper.sleep_until_due(sleeper.wakes(), LONG, || *first_due.lock());
                }
            });
            *first_due.lock() = Some(Instant::ZERO);
            sleeper.wake_sleepers();
        });
    }

    #[test]
    fn nothing_due_and_no_timeout_is_no_sleep() {
        let sleeper = Sleeper::default();
        sleeper.sleep_until_due(sleeper.wakes(), None, || None);
    }
}
