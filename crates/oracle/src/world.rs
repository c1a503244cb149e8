// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that runs a script, on the whole stack over [`NullDisk`], and the events it leaves.
//!
//! Guarantees: the process does what `guest/ioscript.c` does under the kernel: it submits in order, and while a bio of
//! it waits for a tag it does nothing (the kernel sleeps in `io_submit()`). Each call takes the time at which it
//! happens. Needs from callers: times that do not go back. The callers are [`replay`](crate::replay) and
//! [`free`](crate::free).

use crate::Lock;
use crate::disk::NullDisk;
use crate::event::{Event, Extent, Kind};
use crate::script::{Action, Io, Script};
use crate::settings::Settings;
use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::id::{CpuId, Sector};
use blk::queue::{NoNotify, RequestQueue};
use blk::submitter::Submitter;
use blk::time::Instant;
use blk::trace::EventKind;
use std::sync::Arc;

/// The CPU the script is bound to.
const SCRIPT_CPU: u32 = 0;

/// Number of requests for which a plug of `io_submit()` allocates tags ahead: `blk_start_plug` does not take the number
/// of I/Os.
const PLUGGED_AHEAD: u32 = 1;

/// Events kept until the trace is drained; far more than one call makes.
const TRACE_CAPACITY: usize = 1 << 16;

/// How the stack's clock is derived from the time of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// As it is.
    Exact,
    /// The length of the kernel's jiffies in microseconds, in which time advances. The first one ended at `phase_us`.
    Ticks {
        /// Length of a tick.
        tick_us: u64,
        /// Where in the trace's time ticks begin, below `tick_us`.
        phase_us: u64,
    },
}

/// Choices that the kernel makes once per boot or disk and that no trace shows. A case counts as equal if it is equal
/// under one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// When the kernel's ticks began.
    pub clock: Clock,
    /// Where the first search for a free tag began. The kernel takes a random number (`sbitmap_init_node`), this stack
    /// the number of the submitter.
    pub hint: u16,
}

impl Unknown {
    /// No ticks, and the first submitter.
    pub const NONE: Unknown = Unknown { clock: Clock::Exact, hint: 0 };
}

impl Clock {
    fn read(self, us: u64) -> Instant {
        let us = match self {
            Clock::Exact => us,
            Clock::Ticks { tick_us, phase_us } => (us + tick_us - phase_us) / tick_us * tick_us,
        };
        Instant::from_ns(us * 1000)
    }

    /// Returns the first time at which this clock shows `at` or later.
    fn shows(self, at: Instant) -> u64 {
        let us = at.as_ns().div_ceil(1000);
        match self {
            Clock::Exact => us,
            Clock::Ticks { tick_us, phase_us } => (us.div_ceil(tick_us) * tick_us + phase_us).saturating_sub(tick_us),
        }
    }
}

/// What the process is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Submit this.
    Io(Io),
    /// Sleep for so many microseconds.
    Sleep(u64),
    /// Wait until nothing is outstanding.
    Wait,
    /// Wake up in the last submission of a batch, whose plug is still open.
    Asleep,
    /// Nothing: the script is over.
    End,
}

/// See the module's text.
pub struct World {
    /// The disk below the stack.
    pub disk: Arc<NullDisk>,
    queue: Arc<RequestQueue<Lock>>,
    submitter: Submitter<Lock>,
    script: Script,
    at: usize,
    /// Whether the script has a plug open. Plugs that the stack opens by itself are no events of the process.
    plugged: bool,
    clock: Clock,
    last: u64,
    events: Vec<Event>,
}

impl World {
    /// Makes a new disk with these settings and a process before its first action.
    ///
    /// # Errors
    /// Settings that the stack refuses; the text is the stack's.
    pub fn new(
        script: &Script,
        settings: &Settings,
        cpus: u16,
        service_ns: Option<u64>,
        unknown: Unknown,
    ) -> Result<World, String> {
        let disk = NullDisk::new(settings, service_ns);
        let largest = settings.max_sectors();
        let pieces = script.ios.iter().map(|io| io.extent.len.div_ceil(largest) as usize).sum();
        let config = settings.config(cpus, pieces);
        let queue = RequestQueue::<Lock>::new(disk.clone(), config, Box::new(NoNotify)).map_err(|e| e.to_string())?;
        // The first hint of a submitter follows from its number.
        let others: Vec<_> = (0..unknown.hint).map_while(|_| queue.submitter(CpuId::new(SCRIPT_CPU))).collect();
        let mut submitter = queue.submitter(CpuId::new(SCRIPT_CPU)).ok_or("no free submitter")?;
        drop(others);
        submitter.start_trace(TRACE_CAPACITY);
        Ok(World {
            disk,
            queue,
            submitter,
            script: script.clone(),
            at: 0,
            plugged: false,
            clock: unknown.clock,
            last: 0,
            events: Vec::new(),
        })
    }

    /// All events so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns what the process does next, once it can. Opens a plug that comes before that.
    pub fn upcoming(&mut self) -> Next {
        loop {
            match self.script.actions.get(self.at) {
                Some(Action::Plug) => {
                    self.plugged = true;
                    self.submitter.start_plug(PLUGGED_AHEAD);
                }
                Some(Action::Submit(i)) => return Next::Io(self.script.ios[*i]),
                Some(Action::Sleep(us)) => return Next::Sleep(*us),
                Some(Action::Wait) => return Next::Wait,
                Some(Action::Unplug) => return Next::Asleep,
                None => return Next::End,
            }
            self.at += 1;
        }
    }

    /// Skips a sleep or a wait.
    pub fn pass(&mut self) {
        assert!(!matches!(self.upcoming(), Next::Io(_)), "an I/O is submitted, not passed");
        self.at += 1;
    }

    /// Submits the next I/O at `us`.
    pub fn submit(&mut self, us: u64) {
        let Next::Io(io) = self.upcoming() else { panic!("the script has no I/O here") };
        self.submit_piece(io.extent, true, us);
    }

    /// Submits a piece of the next I/O at `us`. `is_last`: no more pieces follow.
    pub fn submit_piece(&mut self, piece: Extent, is_last: bool, us: u64) {
        let Next::Io(io) = self.upcoming() else { panic!("the script has no I/O here") };
        let now = self.now(us);
        let Extent { write, sector, len } = piece;
        let data = DataRef::new(0, sector << 9);
        let mut bio = match write {
            // Direct writes are synchronous ones.
            true => Bio::write(Sector(sector), len, data).with_flags(OpFlags::SYNC),
            false => Bio::read(Sector(sector), len, data),
        };
        bio.prio = io.prio;
        self.submitter.submit(&bio, now).expect("there are as many bio slots as pieces of I/Os");
        self.at += usize::from(is_last);
        self.collect(us);
        self.finish_batch(us);
    }

    /// Closes the plug at the end of a batch, in the same system call, unless the process sleeps in that call.
    fn finish_batch(&mut self, us: u64) {
        if !self.is_blocked() && self.script.actions.get(self.at) == Some(&Action::Unplug) {
            self.at += 1;
            let now = self.now(us);
            self.submitter.finish_plug(now);
            self.collect(us);
            self.plugged = false;
        }
    }

    /// The process sleeps in the middle of a submission: its plug is flushed.
    pub fn sleep(&mut self, us: u64) {
        let now = self.now(us);
        self.submitter.flush_plug(now);
        self.collect(us);
    }

    /// Collects completions, and continues waiting bios and processes that can continue.
    pub fn poll(&mut self, us: u64) {
        let now = self.now(us);
        self.submitter.poll(now);
        self.submitter.reap(|d| assert!(d.status.is_ok(), "{d:?}"));
        self.collect(us);
        self.finish_batch(us);
    }

    /// As [`World::poll`], but a process that sleeps keeps sleeping.
    pub fn run(&mut self, us: u64) {
        if !self.is_blocked() {
            return self.poll(us);
        }
        let now = self.now(us);
        self.submitter.poll_asleep(now);
        self.submitter.reap(|d| assert!(d.status.is_ok(), "{d:?}"));
        self.collect(us);
    }

    /// As [`World::poll`], but without a run of the queue: the process wakes up before the worker has run. Without an
    /// elevator the queue is run, because the woken process issues.
    pub fn wake(&mut self, us: u64) {
        let has_elevator = self.queue.scheduler() != "none";
        if has_elevator {
            self.queue.quiesce();
        }
        self.poll(us);
        if has_elevator {
            self.queue.unquiesce();
        }
    }

    /// Collects completions and does nothing else.
    pub fn interrupt(&mut self, us: u64) {
        let now = self.now(us);
        self.submitter.poll_interrupt(now);
        self.submitter.reap(|d| assert!(d.status.is_ok(), "{d:?}"));
        self.collect(us);
    }

    /// Makes a delayed run of the queue now, because the trace does not show when the kernel's ticks are.
    pub fn run_delayed(&mut self, us: u64) {
        if self.next_timer().is_some() {
            self.queue.quiesce();
            self.queue.unquiesce();
            self.run(us);
        }
    }

    /// Returns when the stack next wants to be polled for a delayed run of the queue.
    pub fn next_timer(&self) -> Option<u64> {
        Some(self.clock.shows(self.queue.next_timer()?).max(self.last))
    }

    /// Whether the process sleeps in the middle of a submission, because there is no tag.
    pub fn is_blocked(&self) -> bool {
        self.submitter.waiting() > 0
    }

    /// I/Os submitted and not completed.
    pub fn outstanding(&self) -> u32 {
        self.submitter.outstanding()
    }

    fn now(&mut self, us: u64) -> Instant {
        self.last = self.last.max(us);
        self.clock.read(self.last)
    }

    fn collect(&mut self, us: u64) {
        let cpu = SCRIPT_CPU as u16;
        let (events, plugged) = (&mut self.events, self.plugged);
        let lost = self.submitter.drain_trace(|e| {
            let kind = match e.kind {
                EventKind::Queue => Kind::Queue,
                EventKind::GetRq => Kind::GetRq,
                EventKind::Insert => Kind::Insert,
                EventKind::Issue => Kind::Issue,
                EventKind::Complete => Kind::Complete,
                EventKind::BackMerge => Kind::BackMerge,
                EventKind::FrontMerge => Kind::FrontMerge,
                EventKind::Requeue => Kind::Requeue,
                EventKind::Split => Kind::Split,
                EventKind::Unplug if plugged => Kind::Unplug(e.count()),
                EventKind::Unplug | EventKind::Plug | EventKind::Timeout => return,
            };
            let extent = Extent { write: e.op() == Op::Write, sector: e.sector().0, len: e.nr_sectors() };
            events.push(Event { us, kind, extent, cpu, by_worker: false });
        });
        assert_eq!(lost, 0, "more events in one call than are kept");
    }

    /// Completes all I/O, at arbitrary times, so that the world can be dropped. Returns all its events.
    pub fn drain(mut self) -> Vec<Event> {
        self.at = self.script.actions.len();
        let us = self.last;
        for step in 0..1_000_000u64 {
            if self.outstanding() == 0 {
                break;
            }
            self.disk.finish_all();
            self.poll(us + 1000 * step);
            // The replay may have ended inside a batch.
            let now = self.now(us + 1000 * step);
            self.submitter.flush_plug(now);
        }
        assert_eq!(self.outstanding(), 0, "requests are stuck in the stack");
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_in_ticks_shows_a_time_at_the_tick_that_reaches_it() {
        let clock = Clock::Ticks { tick_us: 4000, phase_us: 500 };
        let us = |us: u64| clock.read(us).as_ns() / 1000;
        assert_eq!((us(499), us(500), us(4499), us(4500)), (0, 4000, 4000, 8000));
        for at in [4000, 5000, 8000, 8001] {
            let at = Instant::from_ns(at * 1000);
            let first = clock.shows(at);
            assert!(clock.read(first) >= at && clock.read(first - 1) < at, "{at:?}");
        }
        assert_eq!(Clock::Exact.shows(Instant::from_ns(1001)), 2);
    }
}
