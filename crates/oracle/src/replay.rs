// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drives the [`World`] with a recorded trace.
//!
//! The trace gives what the block layer does not decide: when the process submitted each I/O, and when the device
//! finished each request. It also gives the order in which the interrupt, the worker and the woken process ran, which
//! the kernel's CPU scheduler decides. So completions are reported at their recorded times, and our worker or process
//! runs when the kernel's did something. A run that did nothing left no event in the trace. All other decisions are
//! made here. A decision that differs shows as a different event and does not stop the replay: later events tell
//! whether it is one difference or many.
//!
//! The clock: the kernel's elevators count in jiffies, and the trace does not tell when these began. So a case counts
//! as equal if it is equal under some phase of the tick; see [`Unknown`].

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
    /// Where we had issued fewer requests than the kernel when the process or the device next did something: index into
    /// the kernel's events, and the number of requests missing.
    pub late: Option<(usize, usize)>,
    /// Where our process cannot submit what the trace submits: index into the kernel's events.
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
    /// Number of our events that are counted in `ours`.
    counted: usize,
    ours: Count,
    seen: Count,
    late: Option<(usize, usize)>,
    astray: Option<usize>,
    /// What is left of an I/O that the kernel submitted as several bios.
    rest: Option<Extent>,
    /// What is left of an I/O that the kernel splits, and the next piece if that is not all that is left.
    split: Option<(Extent, Option<Extent>)>,
    rules: Rules,
    /// The kernel's process sleeps for a tag.
    held: bool,
    /// Time in microseconds of the last completion that our stack has not been polled for.
    done: Option<u64>,
    /// Completions that were reported here before their event: indices into the kernel's events.
    early: BTreeSet<usize>,
}

/// So many microseconds after a completion its queue run is over, whether or not it found something to issue.
const RUN_IS_OVER_US: u64 = 1000;

/// Runs `script` under `settings`, with process and device acting as in the trace `theirs`.
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
        // Then our process never waits for a tag.
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
        // Events after the end of the trace have no counterpart to be compared with.
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

    /// Makes the delayed runs that the stack asked for and that are due before the next event. Each run asks the
    /// elevator again, which may change what the elevator answers later.
    fn serve_timers(&mut self, us: u64) {
        match self.done {
            // The worker has not run yet and will make these runs.
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
            // Our stack does this only when it is called. The counts tell whether it already did.
            Kind::GetRq if self.ours.of(e.kind) < nth => self.wake(at, e.us),
            Kind::Issue | Kind::Insert if self.ours.of(e.kind) < nth => self.run_as(e, nth),
            _ => {}
        }
    }

    /// The device has finished a request. Its tag is freed and the elevator is notified; the queue is run when the
    /// kernel's queue is.
    fn complete(&mut self, at: usize, e: Event) {
        self.check_late(at);
        if !self.world.disk.finish(e.extent) && self.rules.may_be_late {
            // Our stack issued in another order and has other requests in flight: one of them is finished.
            self.world.disk.finish_oldest();
        }
        self.done = Some(e.us);
        self.world.interrupt(e.us);
        self.count();
    }

    /// The process that slept for a tag has got one. The worker may not have run yet.
    fn wake(&mut self, at: usize, us: u64) {
        if self.issues_after_insertion(at) {
            self.world.wake(us);
        } else {
            self.world.poll(us);
        }
        self.count();
    }

    /// Follows the kernel's `nth` issue or insertion, by a worker, or by a process that runs the queue when it wakes
    /// up.
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

    /// A woken process runs the queue, submits more, and runs the queue again. Returns whether the first run issued
    /// nothing and the second run did.
    fn issues_after_insertion(&self, at: usize) -> bool {
        let before = self.theirs[..at].iter().rev().find(|e| matches!(e.kind, Kind::Issue | Kind::Complete));
        let mut after = self.theirs[at + 1..].iter().skip_while(|e| matches!(e.kind, Kind::Insert | Kind::Unplug(_)));
        before.is_some_and(|e| e.kind == Kind::Complete) && after.next().is_some_and(|e| e.kind == Kind::Issue)
    }

    /// Whether the bio that the kernel queued here had to wait for a tag. In that case, a
    /// completion precedes the bio's request, and a plug with requests is flushed.
    fn sleeps(&self, at: usize) -> bool {
        let holds = self.holds_requests(at);
        let mut next = self.theirs[at + 1..].iter().filter(|e| !matches!(e.kind, Kind::Insert | Kind::Issue));
        match next.next().map(|e| e.kind) {
            Some(Kind::Unplug(_)) => next.next().is_some_and(|e| e.kind == Kind::Complete),
            other => !holds && other == Some(Kind::Complete),
        }
    }

    /// Whether the kernel's queue run after the last completions is over: it is long ago, or had nothing to issue.
    /// Otherwise the run may come only after what the process does now, which the next issue will tell.
    fn run_is_over(&self, us: u64) -> bool {
        self.done.is_some_and(|done| self.nothing_waits() || us > done + RUN_IS_OVER_US)
    }

    /// Whether the kernel had issued all requests.
    fn nothing_waits(&self) -> bool {
        self.seen.of(Kind::GetRq) == self.seen.of(Kind::Issue)
    }

    /// Records if we have issued fewer requests than the kernel by now. Both had the same reasons to issue.
    fn check_late(&mut self, at: usize) {
        let missing = self.seen.of(Kind::Issue).saturating_sub(self.ours.of(Kind::Issue));
        if missing > 0 && self.late.is_none() {
            self.late = Some((at, missing));
        }
    }

    /// Whether the kernel split the bio that it queued here.
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

    /// Reports completions between the submission of a bio and the allocation of its request, if the process did not
    /// sleep. Here submission and allocation are one step, so these completions are reported before it.
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

    /// Whether the plug held requests before this event. If so, a process that sleeps empties it.
    fn holds_requests(&self, at: usize) -> bool {
        let decides = |e: &&Event| matches!(e.kind, Kind::GetRq | Kind::Unplug(_));
        self.theirs[..at].iter().rev().find(decides).is_some_and(|e| e.kind == Kind::GetRq)
    }

    /// Brings our process to its next I/O.
    fn go_on(&mut self, at: usize, e: Event) {
        self.check_late(at);
        if self.world.is_blocked() || self.world.upcoming() == Next::Wait || self.run_is_over(e.us) {
            self.poll(e.us);
        }
        while matches!(self.world.upcoming(), Next::Sleep(_) | Next::Wait) {
            self.world.pass();
        }
        match self.world.upcoming() {
            // Our process sleeps for a tag where the kernel's process continued. The events that are missing from here
            // on show this.
            _ if self.world.is_blocked() => self.astray = Some(at),
            Next::Io(io) if io.extent == e.extent => {}
            Next::Io(io) => self.piece(at, io.extent, e.extent),
            _ => self.astray = Some(at),
        }
    }

    /// The kernel made several bios of a large I/O. Here the I/O is submitted as one bio, and each bio of the kernel is
    /// only compared with what is left of it.
    fn piece(&mut self, at: usize, whole: Extent, piece: Extent) {
        if whole.write != piece.write || whole.sector != piece.sector || piece.len > whole.len {
            self.astray = Some(at);
        } else if piece.len < whole.len {
            let sector = whole.sector + u64::from(piece.len);
            self.rest = Some(Extent { sector, len: whole.len - piece.len, ..whole });
        }
    }
}
