// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case of two to five disks on one tag set: each with its own elevator, device, faults and load, in one virtual time.
//! Disks fall idle, leave, join, are frozen and quiesced; fair sharing is switched; depth and queues of the set change.
//!
//! Checked, in addition to the checks of one disk (`load`): a tag of the set is at one disk at a time ([`TagLedger`]). No
//! disk takes a tag beyond its share while others are active and fair sharing is on. A waiter for a tag that another disk has
//! is notified (submitters sleep, see [`SetHarness`]). No disk starves beside others ([`Progress`]). A change of the set
//! takes effect for all disks or for none.
//!
//! Phases: safety, as in the case of one disk; liveness, in which all bios complete; then a second load without faults, for which the disks
//! compete until all of its bios have completed.

use super::limits::Limits;
use super::load::Load;
use super::progress::Progress;
use super::report::{MOST_LIVENESS_NS, MOST_STEPS, Phases, Report};
use super::stack;
use crate::describe;
use crate::disk::ledger::TagLedger;
use crate::fault::Plant;
use crate::liveness::WATCHED;
use crate::rng::Rng;
use crate::set_harness::SetHarness;
use crate::trace::Trace;
use blk::cpumap::CpuTopology;
use blk::elevator::MqElevator;
use blk::id::{CpuId, HctxId};
use blk::queue::HotplugError;
use blk::settings::QueueConfig;
use std::sync::Arc;

const SCHEDULERS: [&str; 5] = MqElevator::names_without(&[]);
/// Maximum number of disks at a time.
const MOST_DISKS: usize = 5;
/// Idle time after which a disk no longer counts in the sharing of tags.
const LONG_IDLE_NS: u64 = 7_000_000_000;

/// The case's state of a disk, in addition to that of [`SetHarness`].
struct OneDisk {
    /// Its permanent number: as [`number`](crate::set_harness::Member::number).
    number: usize,
    load: Load,
    /// How often it gets new bios, compared with other disks; 0 = never.
    weight: u64,
    frozen: bool,
    quiesced: bool,
}

/// Sums over disks that have left.
#[derive(Default)]
struct Sums {
    bios: u64,
    errors: u64,
    requests: u64,
}

/// See the module's text.
pub(super) struct SetCase {
    seed: u64,
    rng: Rng,
    plant: Option<Plant>,
    trace: Trace,
    base: QueueConfig,
    w: SetHarness,
    disks: Vec<OneDisk>,
    ledger: Arc<TagLedger>,
    /// Whether fair sharing is on.
    fair: bool,
    faults: bool,
    joined: usize,
    left: Sums,
}

impl SetCase {
    /// Draws the case of a seed.
    pub(super) fn new(seed: u64, plant: Option<Plant>, trace: Trace) -> SetCase {
        let mut rng = Rng::new(seed ^ 0x5e7_d15c);
        let base = draw_base(&mut rng);
        let faults = rng.below(3) == 0;
        let mut w = SetHarness::new(seed, &base);
        w.patience_ns = u64::MAX;
        let ledger = TagLedger::new(base.host_tagset, base.reserved_tags);
        let fair = rng.below(4) > 0;
        w.set.set_fair_sharing(fair && plant != Some(Plant::ShareExceeded));
        let shape = w.set.config();
        trace.summed_up(0, 'X', format_args!("{shape:?}"), || describe::tag_set(&shape));
        let disks = 2 + rng.below(3);
        let (joined, left) = (0, Sums::default());
        let mut case =
            SetCase { seed, rng, plant, trace, base, w, disks: Vec::new(), ledger, fair, faults, joined, left };
        (0..disks).for_each(|_| case.join());
        if plant == Some(Plant::DiskNeverWoken) {
            case.w.deaf = Some(1);
        }
        case
    }

    /// Adds a disk.
    fn join(&mut self) {
        let rng = &mut self.rng;
        let faults = self.faults && rng.below(2) == 0;
        let mut behaviour = stack::draw_behaviour(rng, faults);
        stack::add_faults(rng, &mut behaviour, faults);
        let volatile = behaviour.limits.write_cache;
        let scheduler = rng.pick(&SCHEDULERS);
        let bios_per_submitter = rng.pick(&[3, 8, 32, 128]);
        let config = QueueConfig { scheduler: Some(scheduler.into()), bios_per_submitter, ..self.base.clone() };
        let cpus = u64::from(config.topology.nr_cpus);
        let subs: Vec<u16> = (0..1 + rng.below(3)).map(|_| rng.below(cpus) as u16).collect();
        let weight = rng.pick(&[1, 1, 4, 16]);
        let number = self.joined;
        self.joined += 1;
        let trace = self.trace.labelled(&format!("disk {number} "));
        let all = format_args!("joins {config:?} {behaviour:?} submitters on {subs:?}");
        trace.summed_up(self.w.now, 'X', all, || "joins\n".to_string() + &describe::disk(&config, &behaviour, &subs));
        let config = QueueConfig { custom_elevators: WATCHED, ..config };
        if self.plant == Some(Plant::TagOfTwoDisks) && number == 1 {
            self.w.join_beside(behaviour, config, &subs);
        } else {
            self.w.join(behaviour, config, &subs);
        }
        let harness = &mut self.w.disks.last_mut().expect("just joined").harness;
        harness.patience_ns = u64::MAX;
        harness.disk.trace_to(trace.clone());
        harness.disk.share_tags(&self.ledger, number);
        let limits = Limits::new(self.seed ^ (number as u64 + 1) << 40, false);
        let load = Load::new(limits, volatile, faults, None, trace);
        self.disks.push(OneDisk { number, load, weight, frozen: false, quiesced: false });
    }

    /// Removes a disk without bios, after checking it.
    fn leave(&mut self, d: usize) {
        self.trace.event(self.w.now, 'X', format_args!("disk {} leaves", self.disks[d].number));
        self.check_disk(d);
        let (harness, disk) = (self.w.disks.remove(d), self.disks.remove(d));
        self.left.bios += disk.load.accepted;
        self.left.errors += disk.load.errors;
        self.left.requests += harness.disk.issued() as u64;
    }

    fn maps(&self) -> usize {
        let c = self.w.set.config();
        let all = c.nr_hw_queues + c.nr_read_queues + c.nr_poll_queues;
        if c.host_tagset { 1 } else { usize::from(all) }
    }

    /// Returns, for each map, how many disks count as active on it, and how many normal tags each disk has.
    fn usage(&self, maps: usize) -> Vec<(u32, Vec<usize>)> {
        let of_map = |map: usize| {
            let hctx = HctxId::new(map as u32);
            let tags = self.w.disks.iter().map(|d| d.q.active_tags(hctx) as usize).collect();
            (self.w.set.active_disks(hctx), tags)
        };
        (0..maps).map(of_map).collect()
    }

    /// Runs `f` and checks that no disk has taken more than its share by it.
    fn watched<R>(&mut self, f: impl FnOnce(&mut SetCase) -> R) -> R {
        let maps = self.maps();
        let before = self.usage(maps);
        let r = f(self);
        let (c, after) = (self.w.set.config(), self.usage(maps));
        let depth = (c.queue_depth - c.reserved_tags) as usize;
        for (map, ((users_before, before), (users_after, after))) in before.iter().zip(&after).enumerate() {
            let total: usize = after.iter().sum();
            assert!(total <= depth, "{total} of {depth} tags\n{}", self.w.describe());
            let users = (*users_before).min(*users_after).max(1) as usize;
            let share = if depth == 1 { 1 } else { depth.div_ceil(users).max(4) };
            for ((before, after), disk) in before.iter().zip(after).zip(&self.disks) {
                let number = disk.number;
                assert!(
                    !self.fair || after <= before || *after <= share,
                    "disk {number} went from {before} to {after} tags of map {map}, its share is {share} ({users_before} \
                     disks active, then {users_after})\n{}",
                    self.w.describe()
                );
                let at_device = self.ledger.held_by(number, map, c.reserved_tags);
                assert!(
                    at_device <= *after || !self.w.set.is_shared(),
                    "disk {number} has {at_device} tags at its device, and {after} are counted\n{}",
                    self.w.describe()
                );
            }
        }
        r
    }

    /// Polls a submitter that has a reason to be polled. If none has and `wait` is set, time first advances to the next due time.
    fn step(&mut self, wait: bool) -> bool {
        let stepped = self.watched(|c| if wait { c.w.step() } else { c.w.step_now().is_some() });
        self.collect();
        stepped
    }

    fn collect(&mut self) {
        for (member, disk) in self.w.disks.iter_mut().zip(&mut self.disks) {
            disk.load.collect(&mut member.harness);
        }
    }

    /// Steps until `done` is true. Panics if it never is.
    fn until(&mut self, what: &str, done: impl Fn(&SetCase) -> bool) {
        for _ in 0..MOST_STEPS {
            if done(self) {
                return;
            }
            let goes_on = self.step(true) || done(self);
            assert!(goes_on, "{what} does not come\n{}", self.w.describe());
        }
        panic!("{what} does not come in {MOST_STEPS} steps\n{}", self.w.describe());
    }

    fn some_io(&mut self) {
        let all: u64 = self.disks.iter().map(|d| d.weight).sum();
        if all > 0 {
            let mut at = self.rng.below(all);
            let chosen = self.disks.iter().position(|d| {
                let here = at < d.weight;
                at = at.saturating_sub(d.weight);
                here
            });
            let d = chosen.expect("below the sum");
            self.watched(|c| c.w.with(d, |harness| c.disks[d].load.burst(&mut c.rng, harness)));
        }
        self.w.now += self.rng.below(200);
        for _ in 0..self.rng.below(12) {
            if !self.step(false) {
                break;
            }
        }
        self.collect();
    }

    /// Disturbs the set or a disk.
    fn disturb(&mut self) {
        let d = self.rng.below(self.disks.len() as u64) as usize;
        let number = self.disks[d].number;
        let tell = |c: &SetCase, what: &str| c.trace.event(c.w.now, 'X', format_args!("disk {number} {what}"));
        match self.rng.below(14) {
            0 | 1 => self.switch(),
            2 | 3 if !self.disks[d].frozen => {
                tell(self, "frozen");
                self.w.disks[d].q.begin_freeze();
                self.disks[d].frozen = true;
            }
            2..5 => self.thaw(d),
            5 if !self.disks[d].quiesced => {
                tell(self, "quiesced");
                self.w.disks[d].q.quiesce();
                self.disks[d].quiesced = true;
            }
            5 | 6 => self.unquiesce(d),
            7 => {
                self.disks[d].weight = self.rng.pick(&[0, 0, 1, 16]);
                tell(self, if self.disks[d].weight == 0 { "falls idle" } else { "goes on" });
            }
            8 => self.rebuild(d),
            9 | 10 => self.leave_or_join(d),
            11 => self.resize(),
            12 => self.hotplug(d),
            _ => {
                let long = if self.rng.below(4) == 0 { LONG_IDLE_NS } else { 0 };
                self.w.now += long;
                for _ in 0..self.rng.below(60) {
                    self.step(true);
                }
            }
        }
    }

    fn switch(&mut self) {
        self.fair = self.rng.below(4) > 0;
        self.trace.event(self.w.now, 'X', format_args!("fair_tag_sharing={}", self.fair));
        self.w.set.set_fair_sharing(self.fair && self.plant != Some(Plant::ShareExceeded));
    }

    fn leave_or_join(&mut self, d: usize) {
        let is_idle = self.disks[d].load.accepted == self.disks[d].load.ended;
        if self.disks.len() > 1 && is_idle && !self.disks[d].frozen && self.w.deaf.is_none() {
            self.leave(d);
        } else if self.disks.len() < MOST_DISKS {
            self.join();
        }
    }

    fn thaw(&mut self, d: usize) {
        if std::mem::take(&mut self.disks[d].frozen) {
            self.w.disks[d].q.unfreeze();
        }
    }

    fn unquiesce(&mut self, d: usize) {
        if std::mem::take(&mut self.disks[d].quiesced) {
            self.w.disks[d].q.unquiesce();
        }
    }

    /// Changes the elevator and the number of requests of one disk, if it is frozen and drained.
    fn rebuild(&mut self, d: usize) {
        if !self.disks[d].frozen || !self.w.disks[d].q.is_drained() {
            return;
        }
        let scheduler = self.rng.pick(&SCHEDULERS);
        let nr_requests = (scheduler != "none").then(|| 4 + self.rng.below(40) as u32);
        let nr_requests = nr_requests.filter(|n| *n > self.base.reserved_tags && self.rng.below(2) == 0);
        let what = format!("scheduler={scheduler} nr_requests={nr_requests:?}");
        self.trace.event(self.w.now, 'X', format_args!("disk {} {what}", self.disks[d].number));
        let r = self.w.disks[d].q.rebuild(|c| {
            c.scheduler = Some(scheduler.into());
            c.nr_requests = nr_requests;
            Ok(())
        });
        r.unwrap_or_else(|e| panic!("{what}: {e}"));
    }

    /// Changes the depth and the number of queues of all disks.
    fn resize(&mut self) {
        if self.plant == Some(Plant::TagOfTwoDisks) {
            return;
        }
        (0..self.disks.len()).for_each(|d| self.unquiesce(d));
        let before = self.w.set.config();
        self.w.set.begin_freeze();
        self.until("the completion of all requests of the frozen set", |c| c.w.set.is_drained());
        let hw = 1 + self.rng.below(u64::from(self.base.topology.nr_cpus)) as u16;
        let depth = self.rng.pick(&[1, 2, 4, 8, 16, 31]).max(before.reserved_tags + 1);
        let wrong = self.rng.below(6) == 0;
        self.trace.event(self.w.now, 'X', format_args!("nr_hw_queues={hw} queue_depth={depth} for all"));
        let r = self.w.set.update(|c| {
            c.nr_hw_queues = if wrong { self.base.topology.nr_cpus + 1 } else { hw };
            c.queue_depth = depth;
            Ok(())
        });
        match r {
            Ok(()) => (self.base.nr_hw_queues, self.base.queue_depth) = (Some(hw), depth),
            Err(e) => {
                let refused = if wrong { "nr_hw_queues" } else { "nr_requests" };
                assert!(e.to_string().contains(refused), "{e}");
                assert_eq!(self.w.set.config(), before, "a refused change changed the set");
            }
        }
        self.w.set.unfreeze();
    }

    /// Takes a CPU of one disk offline, or brings all back online.
    fn hotplug(&mut self, d: usize) {
        (0..self.disks.len()).for_each(|d| self.unquiesce(d));
        let q = self.w.disks[d].q.clone();
        let cpu = CpuId::new(self.rng.below(u64::from(self.base.topology.nr_cpus)) as u32);
        let number = self.disks[d].number;
        self.trace.event(self.w.now, 'H', format_args!("disk {number} {cpu} online {}", q.is_online(cpu)));
        if !q.is_online(cpu) {
            return q.online(cpu);
        }
        match q.begin_offline(cpu) {
            Err(e) => assert_eq!(e, HotplugError::LastOne(cpu.index())),
            Ok(()) => self.until("the end of what a CPU that goes away has", |_| q.is_offline(cpu)),
        }
    }

    /// Works under all faults of the case: nothing forbidden may happen.
    fn safety_phase(&mut self) {
        for d in 0..self.disks.len() {
            if self.disks[d].load.limits.is_on() {
                self.disks[d].load.change_limits(&self.w.disks[d]);
            }
        }
        let disturbed = self.rng.below(4) > 0;
        for _ in 0..40 + self.rng.below(80) {
            self.some_io();
            if disturbed && self.rng.below(6) == 0 {
                self.disturb();
            }
            let d = self.rng.below(self.disks.len() as u64) as usize;
            let (load, harness) = (&mut self.disks[d].load, &self.w.disks[d].harness);
            if self.rng.below(40) == 0 {
                load.power_cut(&mut self.rng, harness);
            }
            if load.limits.one_in(12) {
                load.change_limits(harness);
            }
        }
    }

    /// Runs without new faults and new work: every waiting bio has to complete.
    fn liveness_phase(&mut self) {
        for d in 0..self.disks.len() {
            self.thaw(d);
            self.unquiesce(d);
            self.w.disks[d].disk.heal();
        }
        self.end_all();
        // Otherwise, windows of write-back throttling would follow each other for ever.
        for (member, disk) in self.w.disks.iter().zip(&mut self.disks) {
            disk.load.check_tokens(member);
            disk.load.lift_limits(member);
        }
        self.w.run(MOST_STEPS);
        self.collect();
    }

    /// Steps until all bios have ended.
    fn end_all(&mut self) {
        let until = self.w.now + MOST_LIVENESS_NS;
        let is_over = |c: &SetCase| c.disks.iter().all(|d| d.load.ended == d.load.accepted);
        for _ in 0..MOST_STEPS {
            if is_over(self) || self.w.now >= until || !self.step(true) {
                break;
            }
        }
        self.w.disks.iter_mut().for_each(|d| d.harness.reap());
        self.collect();
        assert!(is_over(self), "bios are stuck\n{}", self.w.describe());
    }

    /// Lets the disks compete. Each disk with load keeps its load, and none has a fault: no disk may starve.
    fn competition(&mut self) {
        let depths: Vec<u64> = self.disks.iter().map(|_| self.rng.pick(&[0, 1, 4, 16, 64])).collect();
        self.trace.event(self.w.now, 'S', format_args!("competition: no faults, bios in flight {depths:?}"));
        let mut progress = Progress::new(&self.w, &self.ledger, self.maps());
        for _ in 0..300 {
            for (d, depth) in depths.iter().enumerate() {
                let missing = depth.saturating_sub(u64::from(self.w.disks[d].outstanding()));
                for _ in 0..missing.min(8) {
                    let s = self.rng.below(self.w.disks[d].subs.len() as u64) as usize;
                    self.watched(|c| c.w.with(d, |harness| c.disks[d].load.submit_one(&mut c.rng, harness, s)));
                    progress.look(&self.w, &self.ledger);
                }
            }
            self.step(true);
            progress.look(&self.w, &self.ledger);
        }
        self.end_all();
    }

    /// Checks a disk whose bios have all completed: nothing of them is left, and everything is right.
    fn check_disk(&mut self, d: usize) {
        let now = self.w.now;
        let harness = &mut self.w.disks[d].harness;
        harness.now = now;
        self.disks[d].load.check_ended(harness);
        harness.check_idle();
        self.disks[d].load.check_all(harness);
    }

    /// Runs all phases.
    pub(super) fn run(mut self) -> Report {
        let mut phases = Phases::begin(&self.trace, self.w.now);
        self.safety_phase();
        phases.switch(self.w.now, self.disks.iter().map(|d| d.load.accepted - d.load.ended).sum());
        self.liveness_phase();
        let ended = self.w.now;
        self.competition();
        self.w.run(MOST_STEPS);
        self.collect();
        self.w.check_idle();
        (0..self.disks.len()).for_each(|d| self.check_disk(d));
        let sum = |of: fn(&Load) -> u64| self.disks.iter().map(|d| of(&d.load)).sum::<u64>();
        let requests: u64 = self.w.disks.iter().map(|d| d.disk.issued() as u64).sum();
        let counted = Report {
            bios: self.left.bios + sum(|l| l.accepted),
            requests: self.left.requests + requests,
            errors: self.left.errors + sum(|l| l.errors),
            ..Report::of(self.seed)
        };
        phases.end(ended, self.w.now, counted)
    }
}

/// Settings of the set, and of all its disks.
fn draw_base(rng: &mut Rng) -> QueueConfig {
    let cpus = rng.pick(&[1u16, 2, 3, 4, 4, 8]);
    let queue_depth = rng.pick(&[1, 2, 3, 4, 8, 9, 16, 31, 64]);
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(1 + rng.below(u64::from(cpus)) as u16),
        nr_read_queues: if rng.below(4) == 0 { 1 } else { 0 },
        nr_poll_queues: if rng.below(4) == 0 { 1 } else { 0 },
        queue_depth,
        host_tagset: rng.below(2) == 0,
        reserved_tags: if rng.below(4) == 0 { queue_depth / 4 } else { 0 },
        nomerges: rng.pick(&[0, 1, 2]),
        rq_affinity: rng.below(3) as u8,
        io_timeout_ms: rng.pick(&[20, 200, 30_000]),
        ..QueueConfig::default()
    }
}
