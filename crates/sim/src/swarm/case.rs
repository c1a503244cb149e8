// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One case: bios of all kinds from several submitters on a stack drawn from the seed, while settings change.
//!
//! Checked: each accepted bio completes exactly once, at the submitter it came from; data and counters are right;
//! acknowledged durable data survives a crash; no bio waits for ever. A violation is a panic with a message; the runner of
//! the case turns it into a failure with its seed (see `swarm`).

use super::limits::{self, Limits};
use super::load::Load;
use super::report::{MOST_LIVENESS_NS, MOST_STEPS, Phases, Report};
use super::stack;
use crate::describe;
use crate::fault::Plant;
use crate::harness::Harness;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::id::CpuId;
use blk::queue::HotplugError;

/// See the module's text.
pub(super) struct Case {
    seed: u64,
    rng: Rng,
    /// Draws for choices that were added later, so that `rng` still draws the same for a kept seed.
    more: Rng,
    plant: Option<Plant>,
    load: Load,
    harness: Harness,
    /// How many requests of the disk `check_dead_hctxs` has seen.
    issues_seen: usize,
    trace: Trace,
}

impl Case {
    /// Draws the case of a seed.
    pub(super) fn new(seed: u64, plant: Option<Plant>, trace: Trace) -> Case {
        let mut rng = Rng::new(seed);
        let faults = rng.below(4) == 0;
        let mut more = Rng::new(seed ^ 0xfa17);
        let mut behaviour = stack::draw_behaviour(&mut rng, faults);
        stack::add_faults(&mut more, &mut behaviour, faults);
        behaviour.plant = plant;
        if plant == Some(Plant::DuplicateBelieved) {
            behaviour.duplicate = 200;
        }
        let mut config = stack::draw_config(&mut rng);
        stack::plant(&mut config, plant);
        let nr = config.topology.nr_cpus;
        let cpus: Vec<u16> = (0..1 + rng.below(6)).map(|_| rng.below(u64::from(nr)) as u16).collect();
        let volatile = behaviour.limits.write_cache;
        let all = format_args!("{config:?} {behaviour:?} submitters on {cpus:?}");
        trace.summed_up(0, 'X', all, || describe::disk(&config, &behaviour, &cpus));
        config.custom_elevators = stack::checked(plant);
        let mut harness = Harness::new(seed, behaviour, config, &cpus);
        harness.patience_ns = u64::MAX;
        harness.disk.trace_to(trace.clone());
        if plant == Some(Plant::LostWakeUp) {
            harness.notifications.lose_every(10);
        }
        let limits = Limits::new(seed, plant == Some(Plant::LimitIgnored));
        let load = Load::new(limits, volatile, faults, plant, trace.clone());
        Case { seed, rng, more, plant, load, harness, issues_seen: 0, trace }
    }

    fn submit_one(&mut self, s: usize) {
        self.load.submit_one(&mut self.rng, &mut self.harness, s);
    }

    fn collect(&mut self) {
        self.load.collect(&mut self.harness);
    }

    fn some_io(&mut self) {
        self.load.burst(&mut self.rng, &mut self.harness);
        self.harness.now += self.rng.below(200);
        for _ in 0..self.rng.below(8) {
            if !self.harness.step_now() {
                break;
            }
        }
        self.collect();
    }

    /// Changes settings while bios wait.
    fn change(&mut self) {
        self.check_dead_hctxs();
        self.load.rebuilt = true;
        self.harness.q.begin_freeze();
        let s = self.rng.below(self.harness.subs.len() as u64) as usize;
        self.submit_one(s);
        if self.plant == Some(Plant::NeverDrained) {
            self.harness.disk.forget();
        }
        self.harness.drain();
        self.load.look(&self.harness);
        self.submit_one(s);
        let mut new = stack::draw_config(&mut self.rng);
        stack::plant(&mut new, self.plant);
        self.trace.summed_up(self.harness.now, 'X', format_args!("{new:?}"), || describe::settings(&new));
        let mut rng = self.rng.clone();
        let r = self.harness.q.rebuild(|c| {
            let cpus = c.topology.nr_cpus;
            c.nr_hw_queues = new.nr_hw_queues.map(|n| n.min(cpus));
            c.nr_read_queues = new.nr_read_queues.min(cpus);
            c.nr_poll_queues = new.nr_poll_queues.min(cpus);
            c.mode = new.mode;
            limits::fit(c);
            c.scheduler = new.scheduler;
            if matches!(self.plant, Some(Plant::Starves(_))) {
                c.iosched = new.iosched;
            }
            c.nr_requests = new.nr_requests;
            c.queue_depth = new.queue_depth;
            c.reserved_tags = new.reserved_tags;
            c.host_tagset = new.host_tagset;
            c.nomerges = new.nomerges;
            c.rq_affinity = new.rq_affinity;
            // Sometimes the change is invalid; then nothing may have changed.
            if rng.below(5) == 0 {
                c.scheduler = Some("cfq".into());
            }
            Ok(())
        });
        if let Err(e) = r {
            assert!(e.to_string().contains("cfq"), "seed {}: {e}", self.seed);
        }
        self.issues_seen = self.harness.disk.issues().len();
        self.harness.q.unfreeze();
    }

    fn change_limits(&mut self) {
        self.load.change_limits(&self.harness);
    }

    /// Advances time: held bios need more time than the work alone takes.
    fn pass_time(&mut self) {
        for _ in 0..self.load.limits.below(60) {
            if !self.harness.step() {
                break;
            }
        }
        self.collect();
    }

    /// Takes a CPU offline under load, or back online.
    fn hotplug(&mut self) {
        self.check_dead_hctxs();
        let cpus = u64::from(self.harness.q.config().topology.nr_cpus);
        let cpu = CpuId::new(self.rng.below(cpus) as u32);
        self.trace.event(self.harness.now, 'H', format_args!("{cpu} online {}", self.harness.q.is_online(cpu)));
        if !self.harness.q.is_online(cpu) {
            return self.harness.q.online(cpu);
        }
        if let Err(e) = self.harness.q.begin_offline(cpu) {
            return assert_eq!(e, HotplugError::LastOne(cpu.index()), "seed {}", self.seed);
        }
        if self.rng.below(3) > 0 {
            self.some_io();
        }
        self.harness.until_offline(cpu);
        self.collect();
        self.issues_seen = self.harness.disk.issues().len();
    }

    /// Checks that no hardware queue without an online CPU was given a request since CPUs or the map last changed.
    fn check_dead_hctxs(&mut self) {
        let (q, issues) = (&self.harness.q, self.harness.disk.issues());
        let map = q.map();
        let dead = |h: usize| !map.cpus_of(h as u16).iter().any(|c| q.is_online(CpuId::new(u32::from(*c))));
        let wrong = issues[self.issues_seen..].iter().find(|i| dead(i.hctx));
        assert!(wrong.is_none(), "seed {}: {wrong:?} on a hardware queue without online CPUs", self.seed);
        self.issues_seen = issues.len();
    }

    fn pause(&mut self) {
        self.harness.q.quiesce();
        let before = self.harness.disk.issues().len();
        for _ in 0..3 {
            self.some_io();
        }
        assert_eq!(self.harness.disk.issues().len(), before, "a quiesced disk was given requests");
        self.harness.q.unquiesce();
    }

    /// Planted: a submitter dies just after it has kept a freed tag.
    fn leak_tag(&mut self) {
        if self.harness.subs.len() > 1 && self.harness.subs.last().is_some_and(|s| s.outstanding() == 0) {
            let s = self.harness.subs.len() - 1;
            self.submit_one(s);
            while self.harness.subs[s].outstanding() > 0 && self.harness.step() {}
            self.submit_one(s);
            self.collect();
            if self.harness.subs[s].outstanding() == 0 && self.harness.subs[s].ready() == 0 {
                std::mem::forget(self.harness.subs.pop());
            }
        }
    }

    /// Planted: a submitter dies just when one of its writes has a token and found no tag.
    fn lose_token(&mut self) {
        let s = self.harness.subs.len() - 1;
        if s == 0 || self.harness.subs[s].outstanding() > 0 {
            return;
        }
        // The other submitters take the tags.
        (0..s).for_each(|other| (0..4).for_each(|_| self.submit_one(other)));
        let before = self.harness.q.wbt().inflight;
        self.submit_one(s);
        let sub = &self.harness.subs[s];
        let has_token = self.harness.q.wbt().inflight.iter().sum::<u32>() > before.iter().sum();
        if has_token && (sub.outstanding(), sub.waiting(), sub.held()) == (1, 1, 0) {
            std::mem::forget(self.harness.subs.pop());
            self.load.forget(&self.harness, s);
        }
    }

    /// Works under all faults of the case: nothing forbidden may happen.
    fn safety_phase(&mut self) {
        let rounds = 30 + self.rng.below(60);
        if self.load.limits.is_on() {
            self.change_limits();
        }
        for _ in 0..rounds {
            match self.rng.below(40) {
                0 => self.change(),
                1 => self.pause(),
                2 => self.hotplug(),
                _ => self.some_io(),
            }
            if self.more.below(40) == 0 {
                self.load.power_cut(&mut self.more, &self.harness);
            }
            if self.load.limits.one_in(12) {
                self.change_limits();
            }
            if self.load.limits.one_in(3) {
                self.pass_time();
            }
            if self.plant == Some(Plant::TagLeak) && self.load.ended > 100 {
                self.leak_tag();
            }
            if self.plant == Some(Plant::LostToken) {
                self.lose_token();
            }
        }
    }

    /// Ends a case with write-back throttling. Its windows tick while a token is in use, and some depths never settle, as
    /// in the kernel. So there is always a next event, and all bios have to complete within [`MOST_LIVENESS_NS`]. Then
    /// throttling is switched off.
    fn end_throttled(&mut self) {
        let until = self.harness.now + MOST_LIVENESS_NS;
        while self.load.ended < self.load.accepted && self.harness.now < until && self.harness.step() {
            self.collect();
        }
        self.collect();
        self.load.check_ended(&self.harness);
        self.load.check_tokens(&self.harness);
        let off = self.harness.q.set_live(&[("wbt_lat_usec", "0")]);
        off.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
    }

    /// Runs without new faults and new work: every waiting bio has to complete, and nothing may be left.
    fn liveness_phase(&mut self) {
        self.harness.disk.heal();
        if self.load.limits.has_wbt() {
            self.end_throttled();
        }
        self.harness.run(MOST_STEPS);
        self.check_dead_hctxs();
        self.collect();
        self.load.check_ended(&self.harness);
        self.harness.check_idle();
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
