// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case of one disk with one to eight paths. While bios of all kinds are in flight, paths break, recover, are slow or busy,
//! are removed and added. Groups are switched and bypassed. A checker reinstates working paths, as multipathd does.
//!
//! Checked, beside all that holds for one disk (`load`):
//!
//! - a bio fails with a path's error only if at some time since its submission no path was left and requests were not to
//!   wait;
//! - requests do not fail before the time of `no_path_retry` has passed;
//! - a write that was retried on another path does not land late from the first;
//! - no request stays at a path.
//!
//! Phases: safety as in the main case; liveness: all paths work, and everything ends.

use super::limits::Limits;
use super::load::Load;
use super::report::{MOST_STEPS, Phases, Report};
use super::stack;
use crate::describe;
use crate::fault::Plant;
use crate::harness::Harness;
use crate::liveness::WATCHED;
use crate::paths::Paths;
use crate::pressure::LEGACY;
use crate::rng::Rng;
use crate::trace::{Trace, time};
use blk::elevator::MqElevator;
use blk::multipath::{Features, Selector};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::time::Duration;
use std::sync::Arc;

/// Elevators that a rebuild draws from.
const SCHEDULERS: [&str; 4] = MqElevator::names_without(&[(
    MqElevator::K2,
    "added later, and older seeds must keep their cases; cases of a set of disks use it",
)]);
const SELECTORS: [Selector; 5] = [
    Selector::RoundRobin,
    Selector::QueueLength,
    Selector::ServiceTime,
    Selector::HistoricalServiceTime { base_weight: 972, threshold_multiplier: 2 },
    Selector::IoAffinity,
];

/// See the module's text.
pub(super) struct PathsCase {
    seed: u64,
    rng: Rng,
    trace: Trace,
    load: Load,
    harness: Harness,
    paths: Arc<Paths>,
    nr_groups: usize,
    features: Features,
    /// Paths from this number on may break. With 1, path 0 never breaks and no bio may fail.
    first: usize,
    /// Since when there has been no path.
    no_path_since: Option<u64>,
    /// Whether requests waited for a path at the last check.
    was_queueing: bool,
    frozen: bool,
}

impl PathsCase {
    /// Draws the case of a seed.
    pub(super) fn new(seed: u64, plant: Option<Plant>, trace: Trace) -> PathsCase {
        let mut rng = Rng::new(seed ^ 0x3a7_9a75);
        let mut behaviour = stack::draw_behaviour(&mut rng, false);
        behaviour.give_back = rng.pick(&[0, 0, 100]);
        behaviour.duplicate = rng.pick(&[0, 0, 0, 200]);
        behaviour.plant = plant;
        let config = stack::draw_config(&mut rng);
        let features = draw_features(&mut rng);
        // If requests do not wait for a path, one path stays up, or else bios fail now and then.
        let first = usize::from(!features.queue_if_no_path && rng.below(2) == 0);
        behaviour.lost = if first == 0 { rng.pick(&[0, 0, 20]) } else { 0 };
        let groups: Vec<(Selector, usize)> =
            (0..1 + rng.below(3)).map(|_| (rng.pick(&SELECTORS), 1 + rng.below(3) as usize)).collect();
        let nr = config.topology.nr_cpus;
        let cpus: Vec<u16> = (0..1 + rng.below(6)).map(|_| rng.below(u64::from(nr)) as u16).collect();
        let all = format_args!("{config:?} {behaviour:?} submitters on {cpus:?} {groups:?} {features:?} {first}");
        trace.summed_up(0, 'X', all, || {
            let paths = describe::paths(&groups, &features, first);
            describe::disk(&config, &behaviour, &cpus) + &paths
        });
        let volatile = behaviour.limits.write_cache;
        let error = if plant == Some(Plant::WrongError) { BlkStatus::Medium } else { BlkStatus::Transport };
        let make = |disk: &Arc<_>| Paths::new(seed, disk, &groups, features, error);
        let config = QueueConfig { custom_elevators: WATCHED, ..config };
        let mut harness = Harness::over_paths(seed, behaviour, make, config, &cpus);
        harness.patience_ns = u64::MAX;
        harness.disk.trace_to(trace.clone());
        let paths = harness.paths.clone().expect("made over paths");
        paths.trace_to(&trace);
        let mut load = Load::new(Limits::new(seed ^ 0x3a7, false), volatile, false, plant, trace.clone());
        load.may_retry = true;
        let (nr_groups, was_queueing) = (groups.len(), features.queue_if_no_path);
        let (no_path_since, frozen) = (None, false);
        PathsCase {
            seed,
            rng,
            trace,
            load,
            harness,
            paths,
            nr_groups,
            features,
            first,
            no_path_since,
            was_queueing,
            frozen,
        }
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.trace.event(self.harness.now, 'X', what);
    }

    /// Checks whether there is a path, and whether requests wait if there is none. To be called after whatever may
    /// change that.
    fn look(&mut self) {
        let (now, status) = (self.harness.now, self.paths.mp.status());
        let active = status.groups.iter().flat_map(|g| &g.paths).filter(|p| p.is_active).count();
        let queueing = status.features.queue_if_no_path;
        if active > 0 {
            self.no_path_since = None;
        } else {
            let since = *self.no_path_since.get_or_insert(now);
            if !queueing {
                self.load.hopeless_at = Some(now);
            }
            if self.was_queueing && !queueing {
                let (waited, least) = (now - since, self.features.no_path_timeout.as_ns());
                assert!(
                    least > 0 && waited >= least,
                    "requests were given up after {waited} ns without a path, no_path_retry is {least} ns\n{}",
                    self.harness.describe()
                );
            }
        }
        self.was_queueing = queueing;
    }

    fn step(&mut self, wait: bool) -> bool {
        let stepped = if wait { self.harness.step() } else { self.harness.step_now() };
        self.look();
        self.load.collect(&mut self.harness);
        stepped
    }

    fn some_io(&mut self) {
        self.load.burst(&mut self.rng, &mut self.harness);
        self.look();
        self.harness.now += self.rng.below(200);
        for _ in 0..self.rng.below(8) {
            if !self.step(false) {
                break;
            }
        }
        self.load.collect(&mut self.harness);
    }

    /// Reinstates working paths that are not in use, one in `one_in`.
    fn check_paths(&mut self, one_in: u64) {
        for n in 0..self.paths.count() {
            let Some(id) = self.paths.id(n) else { continue };
            let status = self.paths.mp.status();
            let is_active = status.groups.iter().flat_map(|g| &g.paths).any(|p| p.id == id && p.is_active);
            if is_active || self.paths.is_down(n, self.harness.now) || self.rng.below(one_in) > 0 {
                continue;
            }
            self.tell(format_args!("path {n} is checked and used again"));
            self.paths.mp.reinstate_path(id);
            if self.features.queue_if_no_path {
                self.paths.mp.queue_if_no_path(self.harness.t());
            }
            self.look();
        }
    }

    /// Disturbs a path or a group.
    fn disturb(&mut self) {
        let (now, t) = (self.harness.now, self.harness.t());
        let group = self.rng.below(self.nr_groups as u64) as usize;
        match self.rng.below(10) {
            0 => {
                self.tell(format_args!("switch to group {group}"));
                self.paths.mp.switch_group(group).expect("it is there");
            }
            1 if self.rng.below(2) == 0 => {
                self.tell(format_args!("group {group} disabled"));
                self.paths.mp.disable_group(group).expect("it is there");
            }
            1 => {
                self.tell(format_args!("group {group} enabled"));
                self.paths.mp.enable_group(group).expect("it is there");
            }
            _ if self.paths.count() == self.first => {}
            which => {
                let n = self.first + self.rng.below((self.paths.count() - self.first) as u64) as usize;
                match (which, self.paths.id(n)) {
                    (2, Some(id)) => {
                        self.tell(format_args!("path {n} failed by hand"));
                        self.paths.mp.fail_path(id, t);
                    }
                    (3, Some(id)) => {
                        self.tell(format_args!("path {n} removed"));
                        self.paths.mp.remove_path(id, t).expect("it is there");
                    }
                    (3, None) => {
                        self.tell(format_args!("path {n} added to group {group}"));
                        self.paths.add(n, group);
                    }
                    (4, _) => {
                        let ns = self.rng.pick(&[0, 50_000, 20_000_000]);
                        self.tell(format_args!("path {n} takes {ns} ns more"));
                        self.paths.slow_down(n, ns);
                    }
                    (5, _) => {
                        let busy = self.rng.pick(&[0, 100, 500]);
                        self.tell(format_args!("path {n} refuses {busy} of 1000 for now"));
                        self.paths.make_busy(n, busy);
                    }
                    (6, _) => {
                        self.tell(format_args!("path {n} repaired"));
                        self.paths.repair(n);
                    }
                    _ => {
                        let ns = 1 + self.rng.pick(&[100_000, 5_000_000, 300_000_000]);
                        self.tell(format_args!("path {n} is down for {}", time(ns)));
                        self.paths.take_down(n, now, now + ns);
                    }
                }
            }
        }
        self.look();
    }

    /// Changes the elevator, if the present queue drains; it may not drain while there is no path.
    fn change(&mut self) {
        if !self.frozen {
            self.tell(format_args!("frozen"));
            self.harness.q.begin_freeze();
            self.frozen = true;
        }
        for _ in 0..50 {
            if self.harness.q.is_drained() || !self.step(true) {
                break;
            }
        }
        let has_path = (0..self.paths.count()).any(|n| self.paths.id(n).is_some());
        if self.harness.q.is_drained() && has_path {
            let mode = self.harness.q.config().mode;
            let scheduler = match mode {
                blk::settings::Mode::Sq => self.rng.pick(&LEGACY),
                blk::settings::Mode::Mq => self.rng.pick(&SCHEDULERS),
            };
            self.tell(format_args!("scheduler={scheduler}"));
            let r = self.harness.q.rebuild(|c| {
                c.scheduler = Some(scheduler.into());
                c.nr_requests = None;
                c.iosched.clear();
                Ok(())
            });
            r.unwrap_or_else(|e| panic!("seed {}: scheduler={scheduler}: {e}", self.seed));
            self.thaw();
        }
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            self.tell(format_args!("goes on"));
            self.harness.q.unfreeze();
        }
    }

    /// Works while paths break, recover and change: nothing forbidden may happen.
    fn safety_phase(&mut self) {
        for _ in 0..60 + self.rng.below(90) {
            match self.rng.below(30) {
                0 => self.change(),
                1 => self.thaw(),
                2..5 => {
                    for _ in 0..self.rng.below(60) {
                        self.step(true);
                    }
                }
                5..12 => self.disturb(),
                _ => self.some_io(),
            }
            if self.rng.below(3) == 0 {
                self.check_paths(2);
            }
            if self.rng.below(40) == 0 {
                self.load.power_cut(&mut self.rng, &self.harness);
            }
        }
    }

    /// Restores all paths: every waiting bio has to complete, and nothing may be left.
    fn liveness_phase(&mut self) {
        self.thaw();
        self.harness.disk.heal();
        for n in 0..self.paths.count() {
            self.paths.repair(n);
            if self.paths.id(n).is_none() {
                self.paths.add(n, 0);
            }
        }
        self.look();
        let mut steps = 0;
        loop {
            // A request that was lost before fails its path when its timeout is found.
            self.check_paths(1);
            if !self.step(true) {
                break;
            }
            steps += 1;
            assert!(steps < MOST_STEPS, "no rest after {steps} steps\n{}", self.harness.describe());
        }
        self.harness.reap();
        self.load.collect(&mut self.harness);
        self.load.check_ended(&self.harness);
        self.harness.check_idle();
        self.paths.check_idle();
        self.load.check_all(&self.harness);
    }

    /// Runs both phases.
    pub(super) fn run(mut self) -> Report {
        let mut phases = Phases::begin(&self.trace, self.harness.now);
        self.safety_phase();
        phases.switch(self.harness.now, self.load.accepted - self.load.ended);
        self.liveness_phase();
        let (bios, errors, requests) = (self.load.accepted, self.load.errors, self.harness.disk.issued() as u64);
        let counted = Report { bios, errors, requests, ..Report::of(self.seed) };
        phases.end(self.harness.now, self.harness.now, counted)
    }
}

/// Draws whether requests wait for a path, and how long.
fn draw_features(rng: &mut Rng) -> Features {
    let queue = rng.below(3) > 0;
    let ms = rng.pick(&[0, 0, 5, 300]);
    Features {
        queue_if_no_path: queue,
        no_path_timeout: Duration::from_ms(if queue { ms } else { 0 }),
        ..Features::default()
    }
}
