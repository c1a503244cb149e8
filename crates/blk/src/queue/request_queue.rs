// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request_queue of one disk: driver, settings, tags, hardware queues and elevator, wired together.
//!
//! Everything that can be changed while the disk is in use is in a `QueueState` behind an `Arc`. A change freezes the queue
//! (no submitter inside, no tag in use), builds a new state and swaps it in. Submitters notice a new generation number.
//! There is no thread here: the thread that freezes polls [`RequestQueue::is_drained`] until it is true. For work that the
//! kernel gives to a worker thread, a mark is set here, and the next poll by any submitter does the work.

use crate::bio::BioPools;
use crate::cpumap::QueueMap;
use crate::driver::Driver;
use crate::elevator::interface::Tunable;
use crate::id::{CpuId, MAX_SUBMITTERS, Sector, SubmitterId};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::qos::state::Qos;
use crate::queue::build::build;
use crate::queue::delayed::FirstDue;
use crate::queue::flush_latch::FlushLatch;
use crate::queue::hctx::state;
use crate::queue::online::OnlineMask;
use crate::queue::state::QueueState;
use crate::queue::timer::Timer;
use crate::settings::{QueueConfig, SettingError};
use crate::stat::{DiskStats, HctxStats};
use crate::status::BlkStatus;
use crate::submitter::shared::SubmitterShared;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::tags::tag_set::Member;
use crate::time::Instant;
use std::sync::{Arc, OnceLock};

/// Wakes the thread of a submitter that has to poll: a bio of it completed on another thread, a tag was freed, or the
/// queue is being frozen or was unfrozen.
pub trait Notify: Send + Sync {
    /// Notes that `submitter` has to poll soon, because others may wait for the result. May be called for a submitter
    /// that is not waiting, from any thread, and with a lock of the core held, so it must not call back.
    fn notify(&self, submitter: SubmitterId);
}

/// Ignores notifications, for stacks whose submitters poll anyway.
pub struct NoNotify;

impl Notify for NoNotify {
    fn notify(&self, _submitter: SubmitterId) {}
}

/// Settings that take effect at once, without a freeze: as [`RequestQueue::apply_live`] last set them.
#[derive(Default)]
pub(crate) struct LiveSettings {
    pub(crate) nomerges: AtomicU8,
    pub(crate) rq_affinity: AtomicU8,
    pub(crate) io_timeout_ms: AtomicU32,
    pub(crate) iostats: AtomicBool,
    pub(crate) hold_on_enospc: AtomicBool,
}

/// Number of disks made so far, modulo 2^16: two disks have the same number only if 65 535 others were made in between.
static NEXT_SERIAL: core::sync::atomic::AtomicU16 = core::sync::atomic::AtomicU16::new(0);

/// One disk.
pub struct RequestQueue<L: Lock> {
    /// Distinguishes this disk's requests from those of another disk that its driver may also serve. Only compared.
    pub(crate) serial: u16,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) limits: Limits,
    capacity: AtomicU64,
    pub(crate) bios: BioPools,
    pub(crate) live: LiveSettings,
    pub(crate) timer: Timer,
    pub(crate) qos: Qos<L>,
    pub(crate) config: Mutex<L, QueueConfig>,
    pub(super) state: Mutex<L, Arc<QueueState<L>>>,
    generation: AtomicU64,
    /// Number of freezes, number of CPUs that are leaving, and whether the queue is sealed; the bits are in `freeze`.
    pub(super) gate: AtomicU32,
    /// Held while a thread checks whether the queue is drained or a CPU is offline.
    pub(crate) sealing: Mutex<L, ()>,
    pub(crate) online: OnlineMask,
    pub(super) quiesce_depth: AtomicU32,
    submitters: Box<[OnceLock<Arc<SubmitterShared<L>>>]>,
    pub(crate) notify: Box<dyn Notify>,
    /// Some hctx has RUN_PENDING set.
    pub(crate) work_pending: AtomicBool,
    /// When the first delayed run of an hctx is due.
    pub(crate) delayed: FirstDue,
    /// An hctx has requests that the driver refused with DEV_RESOURCE: the next completion of any hctx runs it.
    device_busy: AtomicBool,
    pub(crate) flush_latch: FlushLatch,
    pub(crate) held_on_enospc: AtomicU64,
    /// The hctx that is first in the round robin over hctxs with pending runs.
    pub(crate) first_to_run: AtomicU32,
    io_ticks_ns: AtomicU64,
    io_stamp: AtomicU64,
    /// The tag set that the disk has joined.
    pub(crate) member: Option<Member<L>>,
}

impl<L: Lock> RequestQueue<L> {
    /// Makes a disk on `driver` with these settings and starts the driver's hardware queues. The error names the
    /// setting that is wrong, or what the driver does not support.
    pub fn new(
        driver: Arc<dyn Driver>,
        config: QueueConfig,
        notify: Box<dyn Notify>,
    ) -> Result<Arc<Self>, SettingError> {
        Self::make(driver, config, notify, None)
    }

    pub(crate) fn make(
        driver: Arc<dyn Driver>,
        mut config: QueueConfig,
        notify: Box<dyn Notify>,
        member: Option<Member<L>>,
    ) -> Result<Arc<Self>, SettingError> {
        let mut limits = driver.limits();
        limits.check().map_err(|e| SettingError(format!("driver '{}': {e}", driver.name())))?;
        if let Some(kb) = config.max_sectors_kb {
            let hw_kb = limits.max_hw_sectors / 2;
            let least_kb = (limits.logical_block_size / 1024).max(4);
            if !(least_kb..=hw_kb).contains(&kb) {
                let text = format!("max_sectors_kb={kb}: must be {least_kb}..={hw_kb} (the driver's limits)");
                return Err(SettingError(text));
            }
            limits.max_sectors = kb * 2;
        }
        let state = build(&config, member.as_ref())?;
        // A default is chosen once: more hardware queues later do not remove the elevator.
        config.scheduler = Some(state.scheduler().to_string());
        start(driver.as_ref(), state.driver_shape())?;
        let online = OnlineMask::new(&config.topology);
        let settings = config.clone();
        let queue = Arc::new(RequestQueue {
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            capacity: AtomicU64::new(driver.capacity().0),
            limits,
            bios: BioPools::new(config.bios_per_submitter),
            live: LiveSettings::default(),
            timer: Timer::new(),
            qos: Qos::new(),
            config: Mutex::new(config),
            state: Mutex::new(Arc::new(state)),
            generation: AtomicU64::new(0),
            gate: AtomicU32::new(0),
            sealing: Mutex::new(()),
            online,
            quiesce_depth: AtomicU32::new(0),
            submitters: (0..MAX_SUBMITTERS).map(|_| OnceLock::new()).collect(),
            notify,
            work_pending: AtomicBool::new(false),
            delayed: FirstDue::new(),
            device_busy: AtomicBool::new(false),
            flush_latch: FlushLatch::new(),
            held_on_enospc: AtomicU64::new(0),
            first_to_run: AtomicU32::new(0),
            io_ticks_ns: AtomicU64::new(0),
            io_stamp: AtomicU64::new(0),
            member,
            driver,
        });
        queue.apply_live(&settings);
        Ok(queue)
    }

    /// The disk's limits as the block layer applies them.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Size of the disk.
    #[inline]
    pub fn capacity(&self) -> Sector {
        // Relaxed: a thread that must see a change is notified, and the notification orders the accesses.
        Sector(self.capacity.load(Ordering::Relaxed))
    }

    /// Changes the size of the disk. Later bios beyond the end are rejected; bios that were accepted before are issued
    /// to the driver, which decides. Source: `set_capacity`.
    pub fn set_capacity(&self, capacity: Sector) {
        self.capacity.store(capacity.0, Ordering::Relaxed);
    }

    /// Returns the status of the first flush that the device failed. From then on every flush, and every write with FUA or PREFLUSH,
    /// fails with this status, because data that was acknowledged may be lost. A new disk over a newly opened device starts
    /// without.
    pub fn failed_flush(&self) -> Option<BlkStatus> {
        self.flush_latch.failed()
    }

    /// The driver underneath.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// A copy of the present settings.
    pub fn config(&self) -> QueueConfig {
        self.config.lock().clone()
    }

    /// The elevator in effect: "none", "mq-deadline", ...
    pub fn scheduler(&self) -> String {
        self.state().scheduler().to_string()
    }

    /// The elevator's tunables with their present values.
    pub fn iosched(&self) -> Vec<Tunable> {
        let st = self.state();
        match (&st.sq, &st.elevator) {
            (Some(sq), _) => sq.tunables(),
            (None, Some(e)) => e.tunables(),
            (None, None) => Vec::new(),
        }
    }

    /// `nr_requests` in effect.
    pub fn nr_requests(&self) -> u32 {
        self.state().nr_requests
    }

    /// Hardware queues and which CPUs use them.
    pub fn map(&self) -> QueueMap {
        self.state().map.clone()
    }

    pub(crate) fn state(&self) -> Arc<QueueState<L>> {
        self.state.lock().clone()
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        // Pairs with: RequestQueue::rebuild
        self.generation.load(Ordering::Acquire)
    }

    /// Makes every submitter update its view of the queue when it next enters.
    pub(crate) fn renew_generation(&self) {
        // Pairs with: RequestQueue::generation
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Sets an elevator tunable of the running queue. It is part of [`RequestQueue::config`] from then on.
    pub fn set_iosched(&self, name: &str, value: u64) -> Result<(), SettingError> {
        // Held throughout, so that a rebuild comes before or after as a whole.
        let mut config = self.config.lock();
        let st = self.state();
        match (&st.sq, &st.elevator) {
            (Some(sq), _) => sq.set_tunable(name, value),
            (None, Some(e)) => e.set_tunable(name, value),
            (None, None) => Err(format!("iosched.{name}: scheduler 'none' has no tunables; choose another scheduler")),
        }
        .map_err(SettingError)?;
        config.iosched.retain(|(k, _)| k != name);
        config.iosched.push((name.to_string(), value));
        Ok(())
    }

    /// Sum of all submitters' counters.
    pub fn stats(&self) -> DiskStats {
        let mut total = DiskStats { io_ticks_ns: self.io_ticks_ns.load(Ordering::Relaxed), ..DiskStats::default() };
        self.each_submitter(|s| {
            s.counters.add_to(&mut total);
            true
        });
        total
    }

    /// Returns counters per hardware queue, also of queues that the disk had before and has no more.
    pub fn hctx_stats(&self) -> Vec<HctxStats> {
        let mut all = Vec::new();
        self.each_submitter(|s| {
            all.resize(all.len().max(s.hctxs.len()), HctxStats::default());
            all.iter_mut().zip(s.hctxs.iter()).for_each(|(t, h)| h.add_to(t));
            true
        });
        let used = all.iter().rposition(|h| *h != HctxStats::default()).map_or(0, |last| last + 1);
        all.resize(used.max(self.state().hctxs.len()), HctxStats::default());
        all
    }

    /// Returns when delayed work is due, for the thread that decides how long to sleep.
    ///
    /// [`Instant::ZERO`]: a run is due already. The last thread that goes to sleep has to call this, because work that
    /// is left to the next poll is reported nowhere else.
    pub fn next_timer(&self) -> Option<Instant> {
        if self.is_sealed() {
            return None;
        }
        let timer = self.timer.due().into_iter().chain(self.qos.next_due()).chain(self.delayed.get()).min();
        // Pairs with: RequestQueue::owe_work. The mark stays set until pending runs are served.
        if self.work_pending.load(Ordering::Acquire)
            && self.state().hctxs.iter().any(|h| h.has_flag(state::RUN_PENDING))
        {
            return Some(Instant::ZERO);
        }
        timer
    }

    /// Whether requests wait for a pending or delayed run of their hardware queue. The driver does not have these
    /// requests, so a thread that waits only in the driver would miss them.
    #[inline]
    pub fn has_delayed_work(&self) -> bool {
        // Pairs with: RequestQueue::owe_work
        self.delayed.get().is_some() || self.work_pending.load(Ordering::Acquire)
    }

    /// Takes a free submitter number and its shared state; `None` when all [`MAX_SUBMITTERS`] are in use.
    pub(crate) fn take_submitter(&self, cpu: CpuId) -> Option<(SubmitterId, Arc<SubmitterShared<L>>)> {
        let cpus = self.config.lock().topology.nr_cpus;
        for (i, slot) in self.submitters.iter().enumerate() {
            let shared = slot.get_or_init(|| Arc::new(SubmitterShared::new(self.bios_capacity(), cpus)));
            if shared.take(cpu) {
                return Some((SubmitterId::new(i as u32), shared.clone()));
            }
        }
        None
    }

    fn bios_capacity(&self) -> u32 {
        self.config.lock().bios_per_submitter
    }

    #[inline]
    pub(crate) fn submitter_shared(&self, index: usize) -> &SubmitterShared<L> {
        self.submitters[index].get().expect("a bio's submitter exists")
    }

    /// Calls `f` for all submitters that ever existed until `f` returns false. True if `f` returned true for all.
    pub(crate) fn each_submitter(&self, mut f: impl FnMut(&SubmitterShared<L>) -> bool) -> bool {
        self.submitters.iter().map_while(OnceLock::get).all(|s| f(s))
    }

    pub(crate) fn notify_all(&self) {
        for (i, _) in self.submitters.iter().map_while(OnceLock::get).enumerate() {
            self.notify.notify(SubmitterId::new(i as u32));
        }
    }

    pub(crate) fn owe_work(&self) {
        // Pairs with: Submitter::poll
        self.work_pending.store(true, Ordering::Release);
    }

    /// Whether a run of an hctx is pending or due now.
    #[inline]
    pub(crate) fn has_work(&self, now: Instant) -> bool {
        // Pairs with: RequestQueue::owe_work
        self.work_pending.load(Ordering::Acquire) || self.delayed.is_due(now)
    }

    /// Marks that requests wait for a completion of the device. Returns whether the mark was set already. If not, the
    /// caller has to try the driver once more; if so, a completion will take the mark.
    pub(crate) fn mark_device_busy(&self) -> bool {
        self.device_busy.swap(true, Ordering::SeqCst) // Pairs with: RequestQueue::take_device_busy
    }

    /// Takes the mark. Returns true to the one caller that took it.
    #[inline]
    pub(crate) fn take_device_busy(&self) -> bool {
        // Pairs with: RequestQueue::mark_device_busy
        self.device_busy.load(Ordering::SeqCst) && self.device_busy.swap(false, Ordering::SeqCst)
    }

    /// The kernel's io_ticks: adds the milliseconds since the last update if something was in flight. When requests start,
    /// the `starting` new bios do not count as in flight. Returns when to update next.
    #[cold]
    pub(crate) fn update_io_ticks(&self, now: Instant, starting: u64) -> Instant {
        let tick = ticks_until(now);
        let stamp = self.io_stamp.load(Ordering::Relaxed);
        if tick > stamp
            && self.io_stamp.compare_exchange(stamp, tick, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && stamp != 0
            && (starting == 0 || self.stats().in_flight > starting)
            && self.live.iostats.load(Ordering::Relaxed)
        {
            self.io_ticks_ns.fetch_add((tick - stamp) * TICK_NS, Ordering::Relaxed);
        }
        tick_at(tick)
    }
}

/// Resolution of io_ticks.
const TICK_NS: u64 = 1_000_000;

/// Number of ticks until `now`.
fn ticks_until(now: Instant) -> u64 {
    let ms = now.as_ns() / TICK_NS;
    ms + u64::from(tick_at(ms) <= now)
}

/// Returns the moment at which io_ticks samples millisecond `ms`: a different one in each, so that a load in step with the
/// clock (a rate of 1000 I/Os per second, in virtual time) is not sampled in the same phase every time.
fn tick_at(ms: u64) -> Instant {
    // The finaliser of splitmix64.
    let mut x = ms.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Instant::from_ns(ms * TICK_NS + (x ^ (x >> 31)) % TICK_NS)
}

pub(super) fn start(driver: &dyn Driver, (nr, depth): (u16, u32)) -> Result<(), SettingError> {
    let text = |e| format!("driver '{}' could not start {nr} queues of depth {depth}: {e}", driver.name());
    driver.start(nr, depth).map_err(|e| SettingError(text(e)))
}
