// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver interface: what a driver guarantees the block layer, and what the block layer guarantees a driver.
//!
//! - The core passes a batch ([`RqBatch`]) to a driver. The driver [`accept`](RqBatch::accept)s requests from its front
//!   and gets an [`InFlight`] for each, which it must complete once. Requests that it does not accept stay with the
//!   core.
//! - Completions are *polled*: [`Driver::poll`] moves completed requests into a [`Completions`]. If another thread
//!   notifies a driver of completions, the driver keeps them until it is polled. Only a request that completes while it
//!   is being issued may be [`end`](RqBatch::end)ed at once.
//! - `queue_rqs` and `poll` may be called by several threads at once, also for one hctx; the driver does its own
//!   locking. It never calls back into the core.
//! - A driver may be stacked on others and lend them its requests: [`RqBatch::lend`], [`Completions::poll_below`].
//! - A request's data (its [`Segment`](crate::request::Segment)s) stays valid until the request is completed.

mod lend;
pub mod model;
pub mod readahead;

pub use lend::{Lent, Verdict};

use crate::bio::{BioPools, Op, OpFlags};
use crate::id::{CpuId, HctxId, SECTOR_SHIFT, Sector, Tag};
use crate::limits::Limits;
use crate::request::{Request, RequestId, RequestSlab, RqState, Segments, rqf};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::time::{Duration, Instant};
use std::ops::Range;

/// An accepted request, which the driver must complete. It is made by [`RqBatch::accept`], and consumed by
/// [`Completions::push`], or by [`Completions::requeue`], which gives the request back.
///
/// It is neither `Clone` nor `Copy`, so a driver cannot complete a request twice. Dropping it loses the request: a
/// panic in builds with debug assertions (tests, simulation). In release builds only the driver can notice, when its
/// timeout function is called after `io_timeout`. An `InFlight` has the request's disk and hardware queue: completing
/// it elsewhere causes a panic that names the driver, instead of completing an unrelated request.
///
/// A request that was completed is gone:
///
/// ```compile_fail,E0382
/// # use mqblk_blk::{driver::{Completions, InFlight}, status::BlkStatus};
/// fn twice(rq: InFlight, done: &mut Completions) {
///     done.push(rq, BlkStatus::Ok);
///     done.push(rq, BlkStatus::Ok);
/// }
/// ```
///
/// It cannot be copied to be completed later:
///
/// ```compile_fail,E0599
/// # use mqblk_blk::{driver::{Completions, InFlight}, status::BlkStatus};
/// fn copied(rq: InFlight, done: &mut Completions) {
///     done.push(rq.clone(), BlkStatus::Ok);
///     done.push(rq, BlkStatus::Ok);
/// }
/// ```
///
/// It cannot be made from a tag that the core did not pass to the driver, in range or not:
///
/// ```compile_fail,E0451
/// # use mqblk_blk::{driver::InFlight, id::Tag};
/// let forged = InFlight { tag: Tag::new(7), place: Default::default() };
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an accepted request must be completed"]
pub struct InFlight {
    tag: Tag,
    place: DiskHctx,
}

/// The scope in which a tag identifies a request: a disk and one of its hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskHctx {
    /// [`RequestQueue::serial`](crate::queue::RequestQueue).
    pub(crate) disk: u16,
    pub(crate) hctx: HctxId,
}

impl InFlight {
    /// Returns the tag, unique within the hctx until the request is completed; it can be an index for the driver's own
    /// tables.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.tag
    }
}

#[cfg(debug_assertions)]
impl Drop for InFlight {
    fn drop(&mut self) {
        let (tag, hctx) = (self.tag, self.place.hctx);
        assert!(
            std::thread::panicking(),
            "a driver dropped the request with tag {tag} of hctx {hctx} without completing it"
        );
    }
}

/// The driver's view of a request.
#[derive(Clone, Copy)]
pub struct RqRef<'a> {
    rq: &'a Request,
    bios: &'a BioPools,
}

impl<'a> RqRef<'a> {
    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.rq.op()
    }

    /// Returns the modifiers of the operation ([`OpFlags::FUA`] is set only if the driver's limits support it).
    #[inline]
    pub fn flags(&self) -> OpFlags {
        self.rq.flags()
    }

    /// Returns the tag, which is the same as [`InFlight::tag`] of the accepted request.
    #[inline]
    pub fn tag(&self) -> Tag {
        Tag::new(u32::from(self.rq.driver_tag.get()))
    }

    /// Returns the CPU on which the request was submitted.
    #[inline]
    pub fn cpu(&self) -> CpuId {
        self.rq.cpu()
    }

    /// First sector.
    #[inline]
    pub fn sector(&self) -> Sector {
        self.rq.sector()
    }

    /// Length in sectors.
    #[inline]
    pub fn nr_sectors(&self) -> u32 {
        self.rq.nr_sectors()
    }

    /// Returns the bytes of the disk that the request covers: its sectors, unless it has [`OpFlags::BYTES`].
    #[inline]
    pub fn bytes(&self) -> Range<u64> {
        let (start, end) = (self.rq.sector().0 << SECTOR_SHIFT, self.rq.end_sector().0 << SECTOR_SHIFT);
        if !self.rq.flags().contains(OpFlags::BYTES) {
            return start..end;
        }
        // Such a bio is alone in its request.
        let margins = self.bios.bio(self.rq.bio_head()).margins();
        start + u64::from(margins.head())..end - u64::from(margins.tail())
    }

    /// Returns an upper bound for the number of segments of [`RqRef::segments`].
    #[inline]
    pub fn nr_segments(&self) -> u16 {
        self.rq.nr_segments()
    }

    /// When it was passed to an elevator or software queue, and when it left that. Both are the time of issue for a request
    /// that was issued at once. Requests that bypass both have no valid times, such as those of a flush sequence.
    #[inline]
    pub fn queued_times(&self) -> (Instant, Instant) {
        (Instant::from_ns(self.rq.insert_ns.get()), Instant::from_ns(self.rq.dispatch_ns.get()))
    }

    /// Returns how often the driver has requested a retry ([`Completions::retry`]), at most 255.
    #[inline]
    pub fn retries(&self) -> u8 {
        self.rq.retries.get()
    }

    /// Returns when the request was made from its first bio.
    #[inline]
    pub fn made(&self) -> Instant {
        Instant::from_ns(self.rq.alloc_ns.get())
    }

    /// Returns when the driver accepted the request for the first time; `None` in the first try. Before that time the
    /// request waited elsewhere: in an elevator, or for a path to the device.
    #[inline]
    pub fn first_issued(&self) -> Option<Instant> {
        self.rq.has_rqf(rqf::TRIED).then(|| Instant::from_ns(self.rq.first_issue_ns.get()))
    }

    /// Returns the data segments in sector order; empty for operations without data.
    #[inline]
    pub fn segments(&self) -> Segments<'a> {
        let next = if self.rq.op().has_data() { self.rq.bio_head() } else { crate::bio::BioId::NONE };
        Segments { bios: self.bios, next }
    }
}

/// Requests of one hctx on their way to the driver, oldest first.
pub struct RqBatch<'a> {
    /// The driver that gets the batch. If it breaks a rule, the panic names it.
    pub(crate) driver: &'a dyn Driver,
    pub(crate) place: DiskHctx,
    pub(crate) ids: &'a [RequestId],
    pub(crate) slab: &'a RequestSlab,
    pub(crate) bios: &'a BioPools,
    pub(crate) accepted: usize,
    pub(crate) ended: &'a mut Vec<Ended>,
}

/// A completed request: its tag and status.
pub(crate) type Ended = (Tag, BlkStatus);

impl<'a> RqBatch<'a> {
    /// Returns the hardware queue of the requests.
    #[inline]
    pub fn hctx(&self) -> HctxId {
        self.place.hctx
    }

    /// Returns how many requests are not yet accepted.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.ids.len() - self.accepted
    }

    /// Returns the oldest request that is not yet accepted.
    #[inline]
    pub fn front(&self) -> Option<RqRef<'a>> {
        let id = self.ids.get(self.accepted)?;
        Some(RqRef { rq: self.slab.get(*id), bios: self.bios })
    }

    /// Accepts the front request. Panics when none remains.
    #[inline]
    pub fn accept(&mut self) -> InFlight {
        let Some(id) = self.ids.get(self.accepted) else { self.has_no_more() };
        self.accepted += 1;
        let rq = self.slab.get(*id);
        assert!(rq.state.get() == RqState::Idle as u8, "request {} issued twice", id.index());
        rq.state.set(RqState::InFlight as u8);
        InFlight { tag: Tag::new(u32::from(rq.driver_tag.get())), place: self.place }
    }

    #[cold]
    fn has_no_more(&self) -> ! {
        let (name, hctx, n) = (self.driver.name(), self.place.hctx, self.ids.len());
        panic!("driver '{name}', hctx {hctx}: took more requests than the {n} of its batch")
    }

    /// Completes the front request at once, for a request that took the device no time. The core completes it with
    /// the clock reading of this call, so work that takes time (copying data) does not belong here. Panics when none
    /// remains.
    #[inline]
    pub fn end(&mut self, status: BlkStatus) {
        let rq = self.accept();
        self.ended.push((rq.tag, status));
        core::mem::forget(rq);
    }
}

/// The completed requests that a driver's [`poll`](Driver::poll) returns; a list of bounded length that the core
/// empties.
#[derive(Debug)]
pub struct Completions {
    /// The driver that is polled. If it breaks a rule, the panic names it.
    driver: &'static str,
    /// The disk and hardware queue that is polled.
    pub(crate) place: DiskHctx,
    pub(crate) items: Vec<Ended>,
    pub(crate) requeues: Vec<Requeued>,
}

/// A request that is given back unfinished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requeued {
    pub(crate) tag: Tag,
    pub(crate) delay: Option<Duration>,
    pub(crate) tries: Tries,
}

/// How the number of retries changes when a request is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tries {
    /// The number stays.
    Same,
    /// The number is incremented.
    OneMore,
    /// The number starts again at 0.
    Afresh,
}

/// Maximum number of completions of one [`Driver::poll`]; they share one clock reading and one bitmap update.
pub const POLL_BATCH: usize = 64;

impl Completions {
    pub(crate) fn new(driver: &'static str, disk: u16) -> Completions {
        let place = DiskHctx { disk, hctx: HctxId::new(0) };
        Completions { driver, place, items: Vec::with_capacity(POLL_BATCH), requeues: Vec::new() }
    }

    /// Returns how many more completions fit.
    #[inline]
    pub fn room(&self) -> usize {
        POLL_BATCH - self.items.len()
    }

    /// Completes a request. Panics when there is no room (check [`Completions::room`] first), and when it is not a
    /// request of the hardware queue that was polled.
    #[inline]
    pub fn push(&mut self, rq: InFlight, status: BlkStatus) {
        if rq.place != self.place || self.room() == 0 {
            self.refuse(&rq);
        }
        self.items.push((rq.tag, status));
        core::mem::forget(rq);
    }

    /// Panics with a message about the rule that the driver broke.
    #[cold]
    fn refuse(&self, rq: &InFlight) -> ! {
        let (name, DiskHctx { disk, hctx }, tag) = (self.driver, self.place, rq.tag);
        if rq.place == self.place {
            panic!("driver '{name}', hctx {hctx}, tag {tag}: completed more requests than room() allows");
        } else if rq.place.disk == disk {
            panic!(
                "driver '{name}', hctx {hctx}, tag {tag}: completed here, but it was issued to hctx {}",
                rq.place.hctx
            );
        }
        panic!("driver '{name}', hctx {hctx}, tag {tag}: completed here, but it was issued to another disk")
    }

    /// Gives a request back unfinished. The request is issued again, before requests that are queued, at once or after
    /// `delay`. Another request may get its tag from now on. A requeue does not count towards [`Completions::room`],
    /// but costs as much as an insertion. Panics when it is not a request of the hardware queue that was polled.
    pub fn requeue(&mut self, rq: InFlight, delay: Option<Duration>) {
        self.give_back(rq, delay, Tries::Same);
    }

    /// Like [`Completions::requeue`], and increments [`RqRef::retries`]: for a driver that gives up after a number of
    /// retries.
    pub fn retry(&mut self, rq: InFlight, delay: Option<Duration>) {
        self.give_back(rq, delay, Tries::OneMore);
    }

    fn give_back(&mut self, rq: InFlight, delay: Option<Duration>, tries: Tries) {
        if rq.place != self.place {
            self.refuse(&rq);
        }
        self.requeues.push(Requeued { tag: rq.tag, delay, tries });
        core::mem::forget(rq);
    }
}

/// A request that has been at the driver for longer than `io_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut {
    /// Tag of the request.
    pub tag: Tag,
    /// When the request was issued: the time of its [`Driver::queue_rqs`]. The tag may now belong to a request that was
    /// issued later; the timeout does not apply to that request.
    pub issued: Instant,
}

/// The result of a driver's timeout function for a late request (`BLK_EH_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutAnswer {
    /// The request has completed, or will complete without another call: it is in the completions of this call, or a
    /// later poll returns it.
    Done,
    /// The request is still in progress: call again after another `io_timeout`.
    ResetTimer,
}

/// A block driver. See the module's text for the rules.
pub trait Driver: Send + Sync {
    /// Short name of its kind: "null", "ram", "file".
    fn name(&self) -> &'static str;

    /// Limits and features; constant while the driver lives.
    fn limits(&self) -> Limits;

    /// Size of the disk in sectors. The core calls this once; if the size changes later, call
    /// [`RequestQueue::set_capacity`](crate::queue::RequestQueue::set_capacity).
    fn capacity(&self) -> Sector;

    /// Prepares `nr_hw_queues` hardware queues of `queue_depth` tags each. Called before the first request and again,
    /// with nothing in flight, when the numbers change. The error text names what was not available.
    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String>;

    /// Starts requests of one hctx, in order, until the batch is empty or the driver can take no more; then notifies
    /// the device (the kernel's `commit_rqs` is part of this call). Returns the status of the first request that was
    /// not accepted: [`QueueRqStatus::Queued`] exactly when all were accepted. A wrong status causes a panic that names
    /// the driver.
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus;

    /// Returns how many requests the device could take now, over all its hardware queues (the kernel's `get_budget`).
    /// The core calls this before it takes a request from a list where the request could still be merged or overtaken;
    /// it may issue more requests nevertheless. A driver returns 0 only while a request of the device is in flight or
    /// being offered, because the core calls again when that request completes or is rejected.
    fn budget(&self, _hctx: HctxId) -> u32 {
        u32::MAX
    }

    /// Handles a late request. The driver may complete it now through `done`, which has room for it, or give it more
    /// time, as the default does. If another thread has polled its completion meanwhile, the driver returns `Done`.
    fn timeout(&self, _hctx: HctxId, _late: TimedOut, _done: &mut Completions, _now: Instant) -> TimeoutAnswer {
        TimeoutAnswer::ResetTimer
    }

    /// Moves completed requests of `hctx` to `done`, as many as fit, without waiting.
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant);
}
