// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world driven by a recorded trace.
//!
//! From the trace comes what the block layer does not decide: when the process submitted each I/O, when the device was
//! done with each request, and whether the queue was run before the process went on (which is the kernel's CPU scheduler's
//! business). All else is ours. A decision of ours that differs shows as a difference of events and does not stop the
//! replay: the next ones tell whether it was one or many.
//!
//! The clock: the kernel's elevators count in jiffies, and where these began the trace does not say. So a case that
//! is equal under some phase of the tick is equal; see [`Unknown`].

use crate::event::{Event, Extent, Kind};
use crate::rules::Rules;
use crate::script::Script;
use crate::settings::Settings;
use crate::world::{Next, Unknown, World};
use blk::settings::MAX_SCHED_RQ;
use std::collections::BTreeMap;

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
    rules: Rules,
    /// The kernel's process sleeps for a tag.
    held: bool,
    /// Microseconds of the last completion that ours has not been polled for.
    done: Option<u64>,
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
        let first = script.ios[0].prio;
        script.ios.iter_mut().for_each(|io| io.prio = first);
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
        rules: *rules,
        held: false,
        done: None,
    };
    for at in 0..theirs.len() {
        r.step(at);
        if r.astray.is_some() {
            break;
        }
    }
    if let Some(last) = theirs.last() {
        // Nobody has to go on after the last completions, so nothing has polled for them.
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

    /// Delayed runs that the stack asked for and that come before the next event. Each asks the elevator again, which may
    /// change what it answers later.
    fn serve_timers(&mut self, us: u64) {
        while let Some(at) = self.world.next_timer().filter(|at| *at < us) {
            self.poll(at);
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
            Kind::Queue if self.rules.tags_told && self.sleeps(at) => {
                self.held = true;
                self.world.sleep(e.us);
                self.count();
            }
            Kind::Queue => self.queue(at, e),
            Kind::GetRq if std::mem::take(&mut self.held) => {
                self.poll(e.us);
                self.queue(at, e);
            }
            Kind::Complete => {
                self.check_late(at);
                if !self.world.disk.finish(e.extent) && self.rules.may_be_late {
                    // With an order of its own ours has others in flight: one of them.
                    self.world.disk.finish_oldest();
                }
                self.done = Some(e.us);
            }
            // What the kernel did here ours does when it is called; whether it has been, the numbers tell.
            Kind::GetRq | Kind::Issue | Kind::Insert if self.ours.of(e.kind) < nth => self.poll(e.us),
            _ => {}
        }
    }

    /// Whether the bio that the kernel queued here had to wait: the device did something before it was a request.
    fn sleeps(&self, at: usize) -> bool {
        let next =
            self.theirs[at + 1..].iter().find(|e| !matches!(e.kind, Kind::Insert | Kind::Issue | Kind::Unplug(_)));
        next.is_some_and(|e| e.kind == Kind::Complete)
    }

    /// Whether the kernel's queue run after the last completions is over and had no say in what follows: long ago, or with
    /// nothing to issue. Otherwise it may come only after what the process does now, which the next issue will tell.
    fn run_is_over(&self, us: u64) -> bool {
        let nothing_waits = self.seen.of(Kind::GetRq) == self.seen.of(Kind::Issue);
        self.done.is_some_and(|done| nothing_waits || us > done + RUN_IS_OVER_US)
    }

    /// Everything the kernel had issued by now, ours must have issued too: it had the same reasons.
    fn check_late(&mut self, at: usize) {
        let missing = self.seen.of(Kind::Issue).saturating_sub(self.ours.of(Kind::Issue));
        if missing > 0 && self.late.is_none() {
            self.late = Some((at, missing));
        }
    }

    fn queue(&mut self, at: usize, e: Event) {
        if let Some(rest) = self.rest.take() {
            self.piece(at, rest, e.extent);
            return;
        }
        self.check_late(at);
        if self.world.is_blocked() || self.world.upcoming() == Next::Wait || self.run_is_over(e.us) {
            self.poll(e.us);
        }
        while matches!(self.world.upcoming(), Next::Sleep(_) | Next::Wait) {
            self.world.pass();
        }
        match self.world.upcoming() {
            // Ours sleeps for a tag where the kernel's process went on: said by what is missing from then on.
            _ if self.world.is_blocked() => self.astray = Some(at),
            Next::Io(io) if io.extent == e.extent => {}
            Next::Io(io) => self.piece(at, io.extent, e.extent),
            _ => self.astray = Some(at),
        }
        if self.astray.is_none() {
            self.world.submit(e.us);
            self.count();
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
