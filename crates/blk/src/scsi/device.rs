// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One logical unit: its state, its queue depth, and how the depth follows what the device can hold.
//!
//! Guarantees: at most `queue_depth` commands are in flight at the device, counted over all hardware queues. A
//! request that is rejected gets a status that says what runs it again. The count is kept per hardware queue. If the
//! host has no more tags than the depth, admission reads no other queue's count. Source: drivers/scsi/scsi_lib.c
//! (`scsi_dev_queue_ready`, budgets), scsi_error.c (`scsi_handle_queue_full`, `scsi_handle_queue_ramp_up`), scsi.c
//! (`scsi_track_queue_full`) of Linux 6.19.

use crate::id::HctxId;
use crate::status::{BlkStatus, QueueRqStatus};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;

/// `SCSI_DEFAULT_DEVICE_BLOCKED`: while no command of a busy device is in flight, this many attempts end its busy
/// state; the last one is sent.
const DEVICE_BLOCKED: u32 = 3;
/// QUEUE FULL events inside one such window count once: 16 ticks at 250 Hz.
const FULL_WINDOW: Duration = Duration::from_ms(64);
/// QUEUE FULL events at one depth after which the depth is lowered.
const FULL_TIMES: u32 = 10;
/// `SCSI_DEFAULT_RAMP_UP_PERIOD`.
pub(crate) const RAMP_UP_PERIOD: Duration = Duration::from_secs(120);
/// Minimum number of hardware queues that a device has counters for, even if it starts with fewer.
const PLACES: u16 = 64;
/// Largest `queue_depth` of a device.
pub const MAX_QUEUE_DEPTH: u32 = 4096;

/// State of a logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceState {
    /// It takes commands.
    #[default]
    Running,
    /// Its transport reconnects: commands wait.
    Blocked,
    /// Recovery failed: commands fail.
    Offline,
    /// Its transport has lost it: commands fail with a path error.
    TransportOffline,
    /// It was removed or replaced by another device: commands fail from then on.
    Gone,
}

const STATES: [DeviceState; 5] = [
    DeviceState::Running,
    DeviceState::Blocked,
    DeviceState::Offline,
    DeviceState::TransportOffline,
    DeviceState::Gone,
];

/// Counts down one attempt of a blocked device, target or host. Returns how many attempts were left before.
pub(super) fn sit_out(left: &AtomicU32) -> u32 {
    let mut before = left.load(Ordering::Relaxed);
    while before > 0 {
        match left.compare_exchange_weak(before, before - 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    before
}

/// See the module's text.
#[derive(Debug)]
pub struct Device {
    state: AtomicU8,
    /// Commands in flight at the device, by hardware queue. It has at least [`PLACES`] entries.
    in_flight: Box<[CachePadded<AtomicU32>]>,
    /// Number of hardware queues in use; changes only with nothing in flight.
    queues: AtomicU32,
    depth: AtomicU32,
    /// Tags of all hardware queues together: with a depth of at least this many nothing has to be checked.
    tags: AtomicU32,
    blocked: AtomicU32,
    /// The depth is below `max_depth`, so a command that succeeds may raise it.
    is_lowered: AtomicBool,
    /// The depth that ramp-up returns to after QUEUE FULL. `None`: QUEUE FULL does not change the depth.
    max_depth: Option<u32>,
    full: Full,
}

/// What QUEUE FULL has shown about a device's own limit. Times are in nanoseconds, 0 = never. Events that two CPUs note
/// at the same time may count once.
#[derive(Debug, Default)]
struct Full {
    depth: AtomicU32,
    times: AtomicU32,
    last_full: AtomicU64,
    last_ramp: AtomicU64,
}

impl Device {
    /// Makes a device with this `queue_depth`, on `nr_hw_queues` hardware queues that have `tags` tags in all. With
    /// `track_queue_depth` the depth follows what the device can hold.
    pub fn new(queue_depth: u32, nr_hw_queues: u16, tags: u32, track_queue_depth: bool) -> Device {
        let depth = queue_depth.clamp(1, MAX_QUEUE_DEPTH);
        Device {
            state: AtomicU8::new(DeviceState::Running as u8),
            in_flight: (0..nr_hw_queues.max(PLACES)).map(|_| CachePadded::new(AtomicU32::new(0))).collect(),
            queues: AtomicU32::new(u32::from(nr_hw_queues)),
            depth: AtomicU32::new(depth),
            tags: AtomicU32::new(tags),
            blocked: AtomicU32::new(0),
            is_lowered: AtomicBool::new(false),
            max_depth: track_queue_depth.then_some(depth),
            full: Full::default(),
        }
    }

    /// Returns the state of the device.
    #[inline]
    pub fn state(&self) -> DeviceState {
        STATES[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Changes the state. A device that is [gone](DeviceState::Gone) stays gone.
    pub fn set_state(&self, state: DeviceState) {
        let mut now = self.state.load(Ordering::Relaxed);
        while now != DeviceState::Gone as u8 {
            match self.state.compare_exchange_weak(now, state as u8, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Returns the number of commands that the device may have in flight.
    pub fn queue_depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Sets the depth, 1..=[`MAX_QUEUE_DEPTH`]. Commands above a lower depth stay in flight.
    pub fn set_queue_depth(&self, depth: u32) {
        self.depth.store(depth.clamp(1, MAX_QUEUE_DEPTH), Ordering::Relaxed);
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> u32 {
        // SeqCst: see `admit`. Pairs with: Device::admit
        let queues = self.queues.load(Ordering::Relaxed) as usize;
        self.in_flight.iter().take(queues).map(|n| n.load(Ordering::SeqCst)).sum()
    }

    /// Returns how many more commands the device may take now.
    #[inline]
    pub(super) fn budget(&self) -> u32 {
        let depth = self.depth.load(Ordering::Relaxed);
        if depth >= self.tags.load(Ordering::Relaxed) { u32::MAX } else { depth.saturating_sub(self.in_flight()) }
    }

    /// Changes the number of hardware queues and tags, while no command is in flight.
    pub(super) fn use_queues(&self, nr_hw_queues: u16, tags: u32) -> Result<(), String> {
        let most = self.in_flight.len();
        if usize::from(nr_hw_queues) > most {
            return Err(format!("nr_hw_queues={nr_hw_queues}: must be at most {most} for a LUN that is attached"));
        }
        assert_eq!(self.in_flight(), 0, "hardware queues of a device change with commands in flight");
        self.queues.store(u32::from(nr_hw_queues), Ordering::Relaxed);
        self.tags.store(tags, Ordering::Relaxed);
        Ok(())
    }

    /// Admits one more command, or returns the status for its request.
    #[inline]
    pub(super) fn admit(&self, hctx: HctxId) -> Result<(), QueueRqStatus> {
        if self.state.load(Ordering::Relaxed) != DeviceState::Running as u8 || self.blocked.load(Ordering::Relaxed) > 0
        {
            self.pass()?;
        }
        // SeqCst: of two concurrent calls at least one sees the other's count, so the depth is never exceeded. Both
        // may be rejected.
        // Pairs with: Device::in_flight
        self.in_flight[hctx.index()].fetch_add(1, Ordering::SeqCst);
        let depth = self.depth.load(Ordering::Relaxed);
        if depth < self.tags.load(Ordering::Relaxed) && self.in_flight() > depth {
            self.release(hctx);
            return Err(self.busy_status());
        }
        Ok(())
    }

    /// Removes a command that has completed or was not accepted from the count.
    #[inline]
    pub(super) fn release(&self, hctx: HctxId) {
        // SeqCst: the count is lowered, then the waiters' mark is checked; a waiter sets the mark, then checks for
        // room.
        // Pairs with: Device::in_flight
        let before = self.in_flight[hctx.index()].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "hctx {hctx}: a command of a device ended that was not with it");
    }

    /// Checks whether a device that is blocked or not running takes a command.
    #[cold]
    fn pass(&self) -> Result<(), QueueRqStatus> {
        match self.state() {
            DeviceState::Running => {}
            DeviceState::Blocked => return Err(self.busy_status()),
            DeviceState::TransportOffline => return Err(QueueRqStatus::Error(BlkStatus::Transport)),
            DeviceState::Offline => return Err(QueueRqStatus::Error(BlkStatus::IoErr)),
            DeviceState::Gone => return Err(QueueRqStatus::Error(BlkStatus::Offline)),
        }
        if self.blocked.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        if self.in_flight() > 0 {
            return Err(QueueRqStatus::DevResource);
        }
        // Nothing is in flight whose completion would unblock the device: each attempt counts, and the last one is
        // sent.
        if sit_out(&self.blocked) > 1 { Err(QueueRqStatus::Resource) } else { Ok(()) }
    }

    /// Returns the status for a request that has to wait; it says what runs the request again.
    pub(super) fn busy_status(&self) -> QueueRqStatus {
        if self.in_flight() > 0 { QueueRqStatus::DevResource } else { QueueRqStatus::Resource }
    }

    /// Like [`Device::busy_status`], if only a completion on this hardware queue makes room.
    #[cold]
    pub(super) fn busy_status_at(&self, hctx: HctxId) -> QueueRqStatus {
        // Pairs with: Device::admit
        let out = self.in_flight[hctx.index()].load(Ordering::SeqCst);
        if out > 0 { QueueRqStatus::DevResource } else { QueueRqStatus::Resource }
    }

    /// Notes that the transport found the device busy. Returns the status for the request.
    #[cold]
    pub(super) fn was_busy(&self) -> QueueRqStatus {
        self.blocked.store(DEVICE_BLOCKED, Ordering::Relaxed);
        self.busy_status()
    }

    /// Unblocks the device, because a command of it has completed with any outcome.
    #[inline]
    pub(super) fn unblock(&self) {
        if self.blocked.load(Ordering::Relaxed) > 0 {
            self.blocked.store(0, Ordering::Relaxed);
        }
    }

    /// Notes a QUEUE FULL: the device holds as many commands as it can.
    #[cold]
    pub(super) fn queue_full(&self, now: Instant) {
        if self.max_depth.is_none() {
            return;
        }
        let full = &self.full;
        let window = |ns: u64| ns / FULL_WINDOW.as_ns();
        let last = full.last_full.swap(now.as_ns().max(1), Ordering::Relaxed);
        if last > 0 && window(last) == window(now.as_ns()) {
            return;
        }
        let holds = self.queue_depth().saturating_sub(1).max(1);
        if full.depth.swap(holds, Ordering::Relaxed) != holds {
            full.times.store(0, Ordering::Relaxed);
        }
        if full.times.fetch_add(1, Ordering::Relaxed) >= FULL_TIMES {
            self.depth.store(holds, Ordering::Relaxed);
            self.is_lowered.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a command that succeeded. Raises a lowered depth by one if the last QUEUE FULL and the last raise are at
    /// least [`RAMP_UP_PERIOD`] ago.
    #[inline]
    pub(super) fn went_well(&self, now: Instant) {
        if self.is_lowered.load(Ordering::Relaxed) {
            self.ramp_up(now);
        }
    }

    #[cold]
    fn ramp_up(&self, now: Instant) {
        let Some(max_depth) = self.max_depth else { return };
        let full = &self.full;
        let is_due = |at: u64| at == 0 || now.since(Instant::from_ns(at)) >= RAMP_UP_PERIOD;
        let last = full.last_ramp.load(Ordering::Relaxed);
        if !is_due(full.last_full.load(Ordering::Relaxed)) || !is_due(last) {
            return;
        }
        let is_first = full.last_ramp.compare_exchange(last, now.as_ns().max(1), Ordering::Relaxed, Ordering::Relaxed);
        if is_first.is_ok() {
            let depth = (self.queue_depth() + 1).min(max_depth);
            self.depth.store(depth, Ordering::Relaxed);
            self.is_lowered.store(depth < max_depth, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const Q0: HctxId = HctxId::new(0);
    const Q1: HctxId = HctxId::new(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    #[test]
    fn the_depth_counts_over_all_hardware_queues() {
        let device = Device::new(3, 2, 64, false);
        assert_eq!([Q0, Q1, Q0].map(|q| device.admit(q)), [Ok(()); 3]);
        assert_eq!(device.admit(Q1), Err(QueueRqStatus::DevResource));
        assert_eq!(device.in_flight(), 3);
        device.release(Q0);
        assert_eq!(device.admit(Q1), Ok(()));
    }

    #[test]
    fn busy_device_waits_for_an_end_or_three_attempts() {
        let device = Device::new(8, 1, 8, false);
        device.admit(Q0).unwrap();
        assert_eq!(device.was_busy(), QueueRqStatus::DevResource);
        assert_eq!(device.admit(Q0), Err(QueueRqStatus::DevResource));
        device.release(Q0);
        device.unblock();
        assert_eq!(device.admit(Q0), Ok(()));
        device.release(Q0);
        assert_eq!(device.was_busy(), QueueRqStatus::Resource);
        assert_eq!([(); 2].map(|()| device.admit(Q0)), [Err(QueueRqStatus::Resource); 2]);
        assert_eq!(device.admit(Q0), Ok(()));
    }

    #[test]
    fn states_say_what_becomes_of_requests() {
        let device = Device::new(8, 1, 8, false);
        for (state, status) in [
            (DeviceState::Blocked, QueueRqStatus::Resource),
            (DeviceState::Offline, QueueRqStatus::Error(BlkStatus::IoErr)),
            (DeviceState::TransportOffline, QueueRqStatus::Error(BlkStatus::Transport)),
            (DeviceState::Gone, QueueRqStatus::Error(BlkStatus::Offline)),
        ] {
            device.set_state(state);
            assert_eq!(device.admit(Q0), Err(status), "{state:?}");
        }
        device.set_state(DeviceState::Running);
        assert_eq!(device.state(), DeviceState::Gone);
    }

    #[test]
    fn eleventh_queue_full_lowers_the_depth_for_two_minutes() {
        let device = Device::new(32, 1, 64, true);
        for i in 0..10 {
            device.queue_full(at(100 * i));
            // The same window again counts once.
            device.queue_full(at(100 * i));
        }
        assert_eq!(device.queue_depth(), 32);
        device.queue_full(at(1000));
        assert_eq!(device.queue_depth(), 31);
        device.went_well(at(1000 + 119_999));
        assert_eq!(device.queue_depth(), 31);
        device.went_well(at(1000 + 120_000));
        assert_eq!(device.queue_depth(), 32);
        device.went_well(at(1000 + 300_000));
        assert_eq!(device.queue_depth(), 32, "not above where it began");
    }

    #[test]
    fn hardware_queues_and_tags_change_while_nothing_is_out() {
        let device = Device::new(4, 1, 8, false);
        device.use_queues(3, 300).unwrap();
        (0..4).for_each(|i| device.admit(HctxId::new(i % 3)).unwrap());
        assert!(device.admit(HctxId::new(2)).is_err(), "counted over all queues");
        (0..4).for_each(|i| device.release(HctxId::new(i % 3)));
        device.use_queues(2, 4).unwrap();
        (0..5).for_each(|_| device.admit(HctxId::new(1)).unwrap());
        assert!(Device::new(4, 1, 8, false).use_queues(65, 8).unwrap_err().contains("at most 64"));
    }

    #[test]
    fn a_depth_that_is_not_tracked_stays() {
        let device = Device::new(32, 1, 64, false);
        (0..50).for_each(|i| device.queue_full(at(100 * i)));
        assert_eq!(device.queue_depth(), 32);
    }

    #[test]
    fn each_depth_begins_its_own_count() {
        let device = Device::new(32, 1, 64, true);
        (0..8).for_each(|i| device.queue_full(at(100 * i)));
        device.set_queue_depth(16);
        (8..18).for_each(|i| device.queue_full(at(100 * i)));
        assert_eq!(device.queue_depth(), 16);
        device.queue_full(at(1800));
        assert_eq!(device.queue_depth(), 15);
    }
}
