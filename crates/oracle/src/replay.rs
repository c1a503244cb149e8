// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world driven by a recorded trace.
//!
//! The trace gives what the block layer does not decide: when the process submitted each I/O and when the device finished each
//! request. It also gives the order in which interrupt, worker and woken process then came, which the kernel's CPU scheduler
//! decides. So completions are reported at their recorded times, and a worker or process runs when the kernel's did something.
//! A run that did nothing left no event in the trace. All else is ours. A decision of ours that differs shows as a difference
//! of events and does not stop the replay: the next ones tell whether it was one or many.
//!
//! The clock: the kernel's elevators count in jiffies, and the trace does not tell where these began. So a case that is equal
//! under some phase of the tick is equal; see [`Unknown`].

use crate::event::{Event, Extent, Kind};
use crate::rules::Rules;
use crate::script::Script;
use crate::settings::Settings;
use crate::world::{Next, Unknown, World};
use blk::settings::MAX_SCHED_RQ;
use std::collections::{BTreeMap, BTreeSet};

/// What a replay gave.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Our events.
    pub events: Vec<Event>,
    /// Where ours had issued less than the kernel when the outside next did something: index into the kernel's events,
    /// and how many requests were missing.
    pub late: Option<(usize, usize)>,
    /// The trace submits what the script does not: index into the kernel's events.
    pub astray: Option<usize>,
}

/// Number of events of each kind.
#[derive(Default)]
struct Count(BTreeMap<char, usize>);

impl Count {
    fn add(&mut self, kind: Kind) -> usize {
        let n = self.0.entry(kind.letter()).or_default();
        *n += 1;
        *n
    }

    fn of(&self, kind: Kind) -> usize {
        self.0.get(&kind.letter()).copied().unwrap_or(0)
    }
}

struct Replay<'a> {
    world: World,
    theirs: &'a [Event],
    /// How many of our events are counted.
    counted: usize,
    ours: Count,
    seen: Count,
    late: Option<(usize, usize)>,
    astray: Option<usize>,
    /// What is left of an I/O that the kernel submitted as several bios.
    rest: Option<Extent>,
    /// What is left of an I/O that the kernel splits, and the piece that comes next if it is not all of that.
    split: Option<(Extent, Option<Extent>)>,
    rules: Rules,
    /// The kernel's process sleeps for a tag.
    held: bool,
    /// Microseconds of the last completion that ours has not been polled for.
    done: Option<u64>,
    /// Completions to come that ours has been told of: indices into the kernel's events.
    early: BTreeSet<usize>,
}

/// After so many microseconds a completion's queue run has been, whether it found something to issue or not.
const RUN_IS_OVER_US: u64 = 1000;

/// Runs `script` under `settings` as the trace `theirs` says the outside went.
///
/// # Errors
/// Settings that the stack refuses.
pub fn replay(
    script: &Script,
    settings: &Settings,
    cpus: u16,
    theirs: &[Event],
    unknown: Unknown,
    rules: &Rules,
) -> Result<Replayed, String> {
    let mut script = script.clone();
    if rules.one_priority {
        script.give_one_priority();
    }
    let mut settings = settings.clone();
    if rules.tags_told && settings.scheduler != "none" {
        // Then ours never waits for one.
        settings.nr_requests = settings.nr_requests.map(|nr| (4 * nr).min(MAX_SCHED_RQ));
    }
    let world = World::new(&script, &settings, cpus, None, unknown)?;
    let mut r = Replay {
        world,
        theirs,
        counted: 0,
        ours: Count::default(),
        seen: Count::default(),
        late: None,
        astray: None,
        rest: None,
        split: None,
        rules: *rules,
        held: false,
        done: None,
        early: BTreeSet::new(),
    };
    for at in 0..theirs.len() {
        r.step(at);
        if r.astray.is_some() {
            break;
        }
    }
    if let Some(last) = theirs.last() {
        // No submitter has to continue after the last completions, so nothing has polled for them.
        r.poll(last.us);
    }
    let (late, astray) = (r.late, r.astray);
    let told = r.world.events().len();
    let mut events = r.world.drain();
    if !rules.may_be_late {
        // What comes after the trace has nothing to be compared with.
        events.truncate(told);
    }
    Ok(Replayed { events, late, astray })
}

impl Replay<'_> {
    fn count(&mut self) {
        for e in &self.world.events()[self.counted..] {
            self.ours.add(e.kind);
        }
        self.counted = self.world.events().len();
    }

    fn poll(&mut self, us: u64) {
        self.done = None;
        self.world.poll(us);
        self.count();
    }

    fn run(&mut self, us: u64) {
        self.done = None;
        self.world.run(us);
        self.count();
    }

    /// Delayed runs that the stack asked for and that come before the next event. Each asks the elevator again, which may
    /// change what it answers later.
    fn serve_timers(&mut self, us: u64) {
        match self.done {
            // The worker has not been; what the stack owes is its to do.
            Some(done) if us <= done + RUN_IS_OVER_US => return,
            Some(done) => self.run(done),
            None => {}
        }
        while let Some(at) = self.world.next_timer().filter(|at| *at < us) {
            self.run(at);
            if self.world.next_timer().is_none_or(|next| next <= at) {
                break;
            }
        }
    }

    fn step(&mut self, at: usize) {
        let e = self.theirs[at];
        self.serve_timers(e.us);
        let nth = self.seen.add(e.kind);
        match e.kind {
            Kind::Queue if self.rules.pieces_told && self.is_split(at) => {
                self.go_on(at, e);
                self.split = Some((e.extent, None));
            }
            Kind::Split if self.split.is_some() => {
                self.split = self.split.map(|(left, _)| (left, Some(e.extent)));
            }
            Kind::Unplug(_) if self.split.is_some() && self.is_asleep(at) => {
                self.world.sleep(e.us);
                self.count();
            }
            Kind::GetRq | Kind::BackMerge | Kind::FrontMerge if self.is_next_piece(e.extent) => self.next_piece(at, e),
            Kind::Queue if self.rules.tags_told && self.sleeps(at) => {
                self.held = true;
                self.world.sleep(e.us);
                self.count();
            }
            Kind::Queue => self.queue(at, e),
            Kind::GetRq if std::mem::take(&mut self.held) => self.queue(at, e),
            Kind::Complete if self.early.remove(&at) => self.done = Some(e.us),
            Kind::Complete => self.complete(at, e),
            // What the kernel did here ours does when it is called; whether it has been, the numbers tell.
            Kind::GetRq if self.ours.of(e.kind) < nth => self.wake(at, e.us),
            Kind::Issue | Kind::Insert if self.ours.of(e.kind) < nth => self.run_as(e, nth),
            _ => {}
        }
    }

    /// The device has finished a request: its tag comes free and the elevator is told; the queue is run when the kernel's is.
    fn complete(&mut self, at: usize, e: Event) {
        self.check_late(at);
        if !self.world.disk.finish(e.extent) && self.rules.may_be_late {
            // With an order of its own ours has others in flight: one of them.
            self.world.disk.finish_oldest();
        }
        self.done = Some(e.us);
        self.world.interrupt(e.us);
        self.count();
    }

    /// The process that slept for a tag has got one. The worker may still be to come.
    fn wake(&mut self, at: usize, us: u64) {
        if self.issues_after_insertion(at) {
            self.world.wake(us);
        } else {
            self.world.poll(us);
        }
        self.count();
    }

    /// The kernel's `nth` issue or insertion, by a worker or by a process, which runs the queue when it wakes up.
    fn run_as(&mut self, e: Event, nth: usize) {
        if e.by_worker {
            self.run(e.us);
        } else {
            self.poll(e.us);
        }
        if e.kind == Kind::Issue && self.ours.of(e.kind) < nth {
            self.world.run_delayed(e.us);
            self.count();
        }
    }

    /// A woken process runs the queue, submits more, and runs the queue again. Whether the first run issued nothing and
    /// the second did.
    fn issues_after_insertion(&self, at: usize) -> bool {
        let before = self.theirs[..at].iter().rev().find(|e| matches!(e.kind, Kind::Issue | Kind::Complete));
        let mut after = self.theirs[at + 1..].iter().skip_while(|e| matches!(e.kind, Kind::Insert | Kind::Unplug(_)));
        before.is_some_and(|e| e.kind == Kind::Complete) && after.next().is_some_and(|e| e.kind == Kind::Issue)
    }

    /// Whether the bio that the kernel queued here had to wait: the device did something before it was a request, and the
    /// plug, if it held something, was emptied.
    fn sleeps(&self, at: usize) -> bool {
        let holds = self.holds_requests(at);
        let mut next = self.theirs[at + 1..].iter().filter(|e| !matches!(e.kind, Kind::Insert | Kind::Issue));
        match next.next().map(|e| e.kind) {
            Some(Kind::Unplug(_)) => next.next().is_some_and(|e| e.kind == Kind::Complete),
            other => !holds && other == Some(Kind::Complete),
        }
    }

    /// Whether the kernel's queue run after the last completions is over and had no say in what follows: long ago, or with
    /// nothing to issue. Otherwise it may come only after what the process does now, which the next issue will tell.
    fn run_is_over(&self, us: u64) -> bool {
        self.done.is_some_and(|done| self.nothing_waits() || us > done + RUN_IS_OVER_US)
    }

    /// The kernel had issued all requests.
    fn nothing_waits(&self) -> bool {
        self.seen.of(Kind::GetRq) == self.seen.of(Kind::Issue)
    }

    /// Everything the kernel had issued by now, ours must have issued too: it had the same reasons.
    fn check_late(&mut self, at: usize) {
        let missing = self.seen.of(Kind::Issue).saturating_sub(self.ours.of(Kind::Issue));
        if missing > 0 && self.late.is_none() {
            self.late = Some((at, missing));
        }
    }

    /// Whether the bio that the kernel queued here is too large.
    fn is_split(&self, at: usize) -> bool {
        let (queued, next) = (self.theirs[at], self.theirs.get(at + 1));
        next.is_some_and(|e| e.kind == Kind::Split && e.extent.sector == queued.extent.sector)
    }

    /// Whether the plug was emptied here because the process fell asleep.
    fn is_asleep(&self, at: usize) -> bool {
        let mut next = self.theirs[at + 1..].iter().filter(|e| !matches!(e.kind, Kind::Insert | Kind::Issue));
        next.next().is_some_and(|e| e.kind == Kind::Complete)
    }

    fn is_next_piece(&self, extent: Extent) -> bool {
        self.split.is_some_and(|(left, piece)| piece.unwrap_or(left) == extent)
    }

    fn next_piece(&mut self, at: usize, e: Event) {
        let (left, piece) = self.split.take().expect("looked at");
        let Next::Io(_) = self.world.upcoming() else {
            self.astray = Some(at);
            return;
        };
        self.world.submit_piece(e.extent, piece.is_none(), e.us);
        self.count();
        if let Some(piece) = piece {
            let left = Extent { sector: left.sector + u64::from(piece.len), len: left.len - piece.len, ..left };
            self.split = Some((left, None));
        }
    }

    fn queue(&mut self, at: usize, e: Event) {
        if let Some(rest) = self.rest.take() {
            self.piece(at, rest, e.extent);
            return;
        }
        self.go_on(at, e);
        if self.astray.is_none() {
            self.finish_before_allocation(at);
            self.world.submit(e.us);
            self.count();
        }
    }

    /// The device finished something between the submission of a bio and the allocation of its request, for which the
    /// process did not sleep: here the two are one moment, so it comes before.
    fn finish_before_allocation(&mut self, at: usize) {
        let queued = self.theirs[at];
        let next = self.theirs[at + 1..].iter().take_while(|e| e.kind == Kind::Complete).count();
        let awake = self.theirs.get(at + 1 + next).is_some_and(|e| (e.kind, e.extent) == (Kind::GetRq, queued.extent));
        if next == 0 || !awake || !self.holds_requests(at) {
            return;
        }
        for i in at + 1..=at + next {
            if self.world.disk.finish(self.theirs[i].extent) {
                self.early.insert(i);
            }
        }
        self.world.interrupt(queued.us);
        self.count();
    }

    /// Whether the plug held something before this event, so that it would have been emptied by sleeping.
    fn holds_requests(&self, at: usize) -> bool {
        let decides = |e: &&Event| matches!(e.kind, Kind::GetRq | Kind::Unplug(_));
        self.theirs[..at].iter().rev().find(decides).is_some_and(|e| e.kind == Kind::GetRq)
    }

    /// The process comes to its next I/O.
    fn go_on(&mut self, at: usize, e: Event) {
        self.check_late(at);
        if self.world.is_blocked() || self.world.upcoming() == Next::Wait || self.run_is_over(e.us) {
            self.poll(e.us);
        }
        while matches!(self.world.upcoming(), Next::Sleep(_) | Next::Wait) {
            self.world.pass();
        }
        match self.world.upcoming() {
            // Ours sleeps for a tag where the kernel's process continued: the events that are missing from here on show it.
            _ if self.world.is_blocked() => self.astray = Some(at),
            Next::Io(io) if io.extent == e.extent => {}
            Next::Io(io) => self.piece(at, io.extent, e.extent),
            _ => self.astray = Some(at),
        }
    }

    /// The kernel made several bios of a large I/O; here it is one, which is split where theirs are not larger.
    fn piece(&mut self, at: usize, whole: Extent, piece: Extent) {
        if whole.write != piece.write || whole.sector != piece.sector || piece.len > whole.len {
            self.astray = Some(at);
        } else if piece.len < whole.len {
            let sector = whole.sector + u64::from(piece.len);
            self.rest = Some(Extent { sector, len: whole.len - piece.len, ..whole });
        }
    }
}
