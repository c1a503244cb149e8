// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One case: bios of all kinds from several submitters on a stack drawn from the seed, with settings changing on the way.
//!
//! Checked: everything accepted ends exactly once, at the submitter it came from; data and counters are right; what was
//! acknowledged as durable survives a crash; nobody waits for ever. A violation is a panic that says which; whoever runs
//! the case turns it into a failure with its seed (see `swarm`).

use super::limits::{self, Limits, Under};
use super::{CAPACITY, Report, stack};
use crate::contents::{Contents, Held};
use crate::fault::Plant;
use crate::rig::{MEM_SECTORS, Rig};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, Op, OpFlags};
use blk::hotplug::HotplugError;
use blk::id::{CpuId, Sector};
use blk::status::BlkStatus;
use blk::submitter::{Done, SubmitError};

/// Sectors of the largest bio.
const MAX_BIO: u64 = 512;
/// Bios in flight per case: each has its own piece of memory.
const AREAS: usize = MEM_SECTORS / MAX_BIO as usize;

/// Wake-ups in which a case must come to its end once there are no new faults. A lost request of a high class takes up to
/// a minute to be noticed, in which mq-deadline has each hctx with work look every 3 ms.
const MOST_STEPS: usize = 1_000_000;

/// Virtual time in which everything has to end where windows of write-back throttling go on by themselves. The slowest
/// limit lets the at most 64 MiB in flight go in 67 s; a lost request is asked about every 30 s, and each time one answer
/// in two is that it will be waited for on.
const MOST_LIVENESS_NS: u64 = 3600 * 1_000_000_000;

struct Op1 {
    bio: Bio,
    held: Option<Held>,
    /// Acknowledgements when it was submitted.
    since: u64,
    submitter: usize,
    /// When it was submitted, and under which limits.
    at: u64,
    under: Under,
}

/// See the module's text.
pub(super) struct Case {
    seed: u64,
    rng: Rng,
    /// Choices that were added later: what `rng` draws for a kept seed stays the same.
    more: Rng,
    plant: Option<Plant>,
    limits: Limits,
    rig: Rig,
    model: Contents,
    ops: Vec<Option<Op1>>,
    free: Vec<usize>,
    next_sector: u64,
    stamp: u64,
    faults: bool,
    rebuilt: bool,
    /// Bios were refused that the stack before a rebuild may have begun with.
    refused: bool,
    /// Requests of the disk that were looked at by `check_dead_hctxs`.
    issues_seen: usize,
    /// Sectors of bios that ended well, per operation; only meaningful without faults.
    sectors: [u64; Op::COUNT],
    ended: u64,
    accepted: u64,
    errors: u64,
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
        let config = stack::draw_config(&mut rng);
        let nr = config.topology.nr_cpus;
        let cpus: Vec<u16> = (0..1 + rng.below(6)).map(|_| rng.below(u64::from(nr)) as u16).collect();
        let volatile = behaviour.limits.write_cache;
        trace.event(0, 'X', format_args!("{config:?} {behaviour:?} submitters on {cpus:?}"));
        let mut rig = Rig::new(seed, behaviour, config, &cpus);
        rig.patience_ns = u64::MAX;
        rig.disk.trace_to(trace.clone());
        if plant == Some(Plant::LostWakeUp) {
            rig.bell.lose_every(10);
        }
        Case {
            seed,
            more,
            limits: Limits::new(seed, plant == Some(Plant::LimitIgnored)),
            plant,
            rig,
            trace,
            errors: 0,
            model: Contents::new(CAPACITY, volatile),
            ops: (0..AREAS).map(|_| None).collect(),
            free: (0..AREAS).rev().collect(),
            next_sector: 0,
            stamp: 1,
            faults,
            rebuilt: false,
            refused: false,
            issues_seen: 0,
            sectors: [0; Op::COUNT],
            ended: 0,
            accepted: 0,
            rng,
        }
    }

    fn draw_flags(&mut self, op: Op) -> OpFlags {
        let mut f = OpFlags::NONE;
        let mut add = |on: bool, flag: OpFlags| {
            if on {
                f = f.union(flag);
            }
        };
        let rng = &mut self.rng;
        add(rng.below(12) == 0, OpFlags::NOWAIT);
        add(rng.below(12) == 0, OpFlags::NOMERGE);
        add(rng.below(12) == 0, OpFlags::POLLED);
        add(rng.below(16) == 0, OpFlags::RESERVED);
        add(rng.below(4) == 0, OpFlags::SYNC);
        if op == Op::Write {
            add(rng.below(6) == 0, OpFlags::FUA);
            add(rng.below(8) == 0, OpFlags::PREFLUSH);
        }
        f
    }

    /// A bio that fits the disk, next to the last one more often than not.
    fn draw_bio(&mut self, area: usize) -> Bio {
        let lb = u64::from(self.rig.q.limits().logical_block_sectors());
        let op = self.rng.pick(&[
            Op::Read,
            Op::Read,
            Op::Read,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
        ]);
        let data = DataRef::new(0, (area as u64 * MAX_BIO) << 9);
        if op == Op::Flush {
            let mut bio = Bio::flush().with_user_data(area as u64);
            bio.flags = bio.flags.union(self.draw_flags(op));
            return bio;
        }
        let blocks = match self.rng.below(8) {
            0 => 1 + self.rng.below(MAX_BIO / lb),
            1..4 => 1 + self.rng.below(8),
            _ => 1 + self.rng.below(3),
        };
        let nr = (blocks * lb).min(MAX_BIO / lb * lb);
        let fits = (CAPACITY - nr) / lb + 1;
        let sector = match self.rng.below(8) {
            0..4 => self.next_sector,
            4..6 => self.next_sector.wrapping_sub(2 * nr),
            _ => self.rng.below(fits) * lb,
        };
        let sector = if sector > CAPACITY - nr || sector % lb != 0 { self.rng.below(fits) * lb } else { sector };
        let mut bio = Bio::write(Sector(sector), nr as u32, data).with_user_data(area as u64);
        bio.op = op;
        if !op.has_data() {
            bio.data = DataRef::NONE;
        }
        bio.flags = self.draw_flags(op);
        self.limits.add_flags(&mut bio);
        if self.rng.below(6) == 0 {
            bio.prio = IoPrio::new(self.rng.pick(&[IoPrioClass::Rt, IoPrioClass::Be, IoPrioClass::Idle]), 3);
        }
        bio
    }

    fn submit_one(&mut self, s: usize) {
        let Some(area) = self.free.pop() else { return };
        let bio = self.draw_bio(area);
        let held = if bio.op == Op::Flush {
            None
        } else {
            let Some(h) = self.model.lock(bio.op, bio.sector.0, bio.nr_sectors) else {
                // Somebody is there: begin elsewhere next time.
                self.next_sector = self.rng.below(CAPACITY / 8) * 8;
                return self.free.push(area);
            };
            Some(h)
        };
        if bio.op == Op::Write {
            for i in 0..u64::from(bio.nr_sectors) {
                self.rig.mem.set(area as u64 * MAX_BIO + i, self.stamp << 16 | i);
            }
            self.stamp += 1;
        }
        let (at, under) = (self.rig.now, self.limits.under());
        match self.rig.try_submit(s, bio) {
            Ok(()) => {
                self.accepted += 1;
                let Bio { op, sector, nr_sectors, flags, .. } = bio;
                let what = format_args!("submitter {s} #{area} {op:?} {}+{nr_sectors} {flags:?}", sector.0);
                self.trace.event(self.rig.now, 'Q', what);
                self.next_sector = bio.sector.0 + u64::from(bio.nr_sectors);
                let since = self.model.flush_point();
                self.ops[area] = Some(Op1 { bio, held, since, submitter: s, at, under });
            }
            Err(SubmitError::NoBio) => {
                if let Some(h) = held {
                    self.model.nothing_happened(h);
                }
                self.free.push(area);
            }
        }
    }

    /// Looks at what has ended.
    fn collect(&mut self) {
        for s in 0..self.rig.subs.len() {
            for d in self.rig.take_done(s) {
                self.check_done(s, d);
                if self.plant == Some(Plant::EndedTwice) && self.ended % 50 == 49 {
                    self.check_done(s, d);
                }
            }
        }
    }

    fn check_done(&mut self, s: usize, d: Done) {
        let area = d.user_data as usize;
        let op = self.ops[area].take().unwrap_or_else(|| panic!("{d:?} ended twice"));
        assert_eq!((op.submitter, op.bio.op), (s, d.op), "{d:?} came back to the wrong submitter");
        self.ended += 1;
        self.errors += u64::from(!d.status.is_ok());
        self.trace.event(self.rig.now, 'E', format_args!("submitter {s} #{area} {:?}", d.status));
        self.free.push(area);
        let (seed, bio) = (self.seed, op.bio);
        let base = area as u64 * MAX_BIO;
        let mem = self.rig.mem.clone();
        let value = |i: u64| if bio.op == Op::Write { mem.get(base + i) } else { 0 };
        if d.status.is_ok() {
            self.limits.ended(&bio, &op.under, op.at, self.rig.now);
            self.sectors[bio.op as usize] += u64::from(bio.nr_sectors);
            if bio.op == Op::Flush || bio.flags.contains(OpFlags::PREFLUSH) {
                self.model.was_flushed(op.since);
            }
            match (bio.op, op.held) {
                (Op::Read, Some(h)) => self.model.was_read(h, |i| mem.get(base + i)),
                (_, Some(h)) => self.model.was_written(h, bio.flags.contains(OpFlags::FUA), value),
                (_, None) => {}
            }
            return;
        }
        let expected = self.may_end(&bio, d.status);
        assert!(expected, "seed {seed}: {bio:?} ended with {:?}", d.status);
        self.refused |= self.rebuilt && d.status != BlkStatus::Again;
        match op.held {
            None => {}
            Some(h) if bio.op == Op::Read || d.status == BlkStatus::Again => self.model.nothing_happened(h),
            Some(h) => {
                // Even a write whose kind a rebuild has made impossible may have sent pieces before.
                self.model.write_failed(h, value);
            }
        }
    }

    fn may_end(&self, bio: &Bio, status: BlkStatus) -> bool {
        let limits = self.rig.q.limits();
        match status {
            BlkStatus::Again => bio.flags.contains(OpFlags::NOWAIT),
            BlkStatus::NotSupp => {
                bio.flags.contains(OpFlags::POLLED)
                    || bio.op == Op::Discard && limits.max_discard_sectors == 0
                    || bio.op == Op::WriteZeroes && limits.max_write_zeroes_sectors == 0
            }
            BlkStatus::Inval => bio.flags.contains(OpFlags::RESERVED),
            BlkStatus::Medium | BlkStatus::Target | BlkStatus::Timeout | BlkStatus::Transport => self.faults,
            _ => false,
        }
    }

    fn some_io(&mut self) {
        let s = self.rng.below(self.rig.subs.len() as u64) as usize;
        let n = 1 + self.rng.below(12);
        let plug = self.rng.below(2) == 0;
        if plug {
            let nr = self.rng.pick(&[0, n as u32, 40]);
            self.rig.plug(s, nr);
        }
        for _ in 0..n {
            self.submit_one(s);
        }
        if plug {
            self.rig.unplug(s);
        }
        self.rig.now += self.rng.below(200);
        for _ in 0..self.rng.below(8) {
            if !self.rig.step_now() {
                break;
            }
        }
        self.collect();
    }

    /// Settings change while bios wait.
    fn change(&mut self) {
        self.check_dead_hctxs();
        self.rebuilt = true;
        self.rig.q.begin_freeze();
        let s = self.rng.below(self.rig.subs.len() as u64) as usize;
        self.submit_one(s);
        if self.plant == Some(Plant::NeverDrained) {
            self.rig.disk.forget();
        }
        self.rig.drain();
        self.submit_one(s);
        let new = stack::draw_config(&mut self.rng);
        self.trace.event(self.rig.now, 'X', format_args!("{new:?}"));
        let mut rng = self.rng.clone();
        let r = self.rig.q.rebuild(|c| {
            let cpus = c.topology.nr_cpus;
            c.nr_hw_queues = new.nr_hw_queues.map(|n| n.min(cpus));
            c.nr_read_queues = new.nr_read_queues.min(cpus);
            c.nr_poll_queues = new.nr_poll_queues.min(cpus);
            c.mode = new.mode;
            limits::fit(c);
            c.scheduler = new.scheduler;
            c.nr_requests = new.nr_requests;
            c.queue_depth = new.queue_depth;
            c.reserved_tags = new.reserved_tags;
            c.host_tagset = new.host_tagset;
            c.nomerges = new.nomerges;
            c.rq_affinity = new.rq_affinity;
            // Sometimes wrong: then nothing may have changed.
            if rng.below(5) == 0 {
                c.scheduler = Some("cfq".into());
            }
            Ok(())
        });
        if let Err(e) = r {
            assert!(e.to_string().contains("cfq"), "seed {}: {e}", self.seed);
        }
        self.issues_seen = self.rig.disk.issues().len();
        self.rig.q.unfreeze();
    }

    /// Limits change while bios are held, without a freeze.
    fn change_limits(&mut self) {
        let mode = self.rig.q.config().mode;
        let new = self.limits.draw(mode);
        self.trace.event(self.rig.now, 'X', format_args!("{new:?}"));
        let told = self.limits.told(&new);
        let settings: Vec<(&str, &str)> = told.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        if self.limits.one_in(5) {
            // One that is wrong: then nothing may have changed.
            let wrong = [&settings[..], &[("queue_depth", "7")]].concat();
            let e = self.rig.q.set_live(&wrong).expect_err("the depth is not to be changed so");
            assert!(e.to_string().contains("needs a freeze"), "seed {}: {e}", self.seed);
        } else {
            self.rig.q.set_live(&settings).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
            self.limits.changed(&new);
        }
        self.limits.check_settings(&self.rig.q.config().io_limits);
    }

    /// Held bios need time to go on, more than work alone takes.
    fn pass_time(&mut self) {
        for _ in 0..self.limits.below(60) {
            if !self.rig.step() {
                break;
            }
        }
        self.collect();
    }

    /// A CPU goes away under load, or comes back.
    fn hotplug(&mut self) {
        self.check_dead_hctxs();
        let cpus = u64::from(self.rig.q.config().topology.nr_cpus);
        let cpu = CpuId::new(self.rng.below(cpus) as u32);
        self.trace.event(self.rig.now, 'H', format_args!("{cpu} online {}", self.rig.q.is_online(cpu)));
        if !self.rig.q.is_online(cpu) {
            return self.rig.q.online(cpu);
        }
        if let Err(e) = self.rig.q.begin_offline(cpu) {
            return assert_eq!(e, HotplugError::LastOne(cpu.index()), "seed {}", self.seed);
        }
        if self.rng.below(3) > 0 {
            self.some_io();
        }
        for _ in 0..MOST_STEPS {
            if self.rig.q.is_offline(cpu) {
                break;
            }
            // A step that finds nobody with a reason to poll has let everybody rest: what was kept is given back.
            let goes_on = self.rig.step() || self.rig.q.is_offline(cpu);
            assert!(goes_on, "seed {}: {cpu} is not drained\n{}", self.seed, self.rig.describe());
        }
        assert!(self.rig.q.is_offline(cpu), "seed {}: {cpu} is not drained\n{}", self.seed, self.rig.describe());
        self.collect();
        self.issues_seen = self.rig.disk.issues().len();
    }

    /// Since CPUs or the map last changed, no hardware queue without an online CPU was given a request.
    fn check_dead_hctxs(&mut self) {
        let (q, issues) = (&self.rig.q, self.rig.disk.issues());
        let map = q.map();
        let dead = |h: usize| !map.cpus_of(h as u16).iter().any(|c| q.is_online(CpuId::new(u32::from(*c))));
        let wrong = issues[self.issues_seen..].iter().find(|i| dead(i.hctx));
        assert!(wrong.is_none(), "seed {}: {wrong:?} on a hardware queue whose CPUs are gone", self.seed);
        self.issues_seen = issues.len();
    }

    fn pause(&mut self) {
        self.rig.q.quiesce();
        let before = self.rig.disk.issues().len();
        for _ in 0..3 {
            self.some_io();
        }
        assert_eq!(self.rig.disk.issues().len(), before, "a quiesced disk was given requests");
        self.rig.q.unquiesce();
    }

    /// What if power were cut now, with all that is in flight?
    fn power_cut(&mut self) {
        let mut in_flight = vec![None; CAPACITY as usize];
        for (area, op) in self.ops.iter().enumerate() {
            let Some(bio) = op.as_ref().map(|o| o.bio).filter(|b| b.op.is_write()) else { continue };
            let mem = |i: u64| self.rig.mem.get(area as u64 * MAX_BIO + i);
            for i in 0..u64::from(bio.nr_sectors) {
                in_flight[(bio.sector.0 + i) as usize] = Some(if bio.op == Op::Write { mem(i) } else { 0 });
            }
        }
        let left = self.rig.disk.if_power_were_cut(self.more.next());
        self.model.check_survivors(|s| left.content(s), |s| in_flight[s as usize]);
    }

    /// Planted: a submitter dies just when it has kept the tag that came free.
    fn leak_tag(&mut self) {
        if self.rig.subs.len() > 1 && self.rig.subs.last().is_some_and(|s| s.outstanding() == 0) {
            let s = self.rig.subs.len() - 1;
            self.submit_one(s);
            while self.rig.subs[s].outstanding() > 0 && self.rig.step() {}
            self.submit_one(s);
            self.collect();
            if self.rig.subs[s].outstanding() == 0 && self.rig.subs[s].ready() == 0 {
                std::mem::forget(self.rig.subs.pop());
            }
        }
    }

    /// Work, under all faults of the case: nothing forbidden may happen.
    fn safety_phase(&mut self) {
        let rounds = 30 + self.rng.below(60);
        if self.limits.is_on() {
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
                self.power_cut();
            }
            if self.limits.one_in(12) {
                self.change_limits();
            }
            if self.limits.one_in(3) {
                self.pass_time();
            }
            if self.plant == Some(Plant::TagLeak) && self.ended > 100 {
                self.leak_tag();
            }
        }
    }

    /// Windows of write-back throttling tick while a token is out, and some depths never come to rest (as in the kernel), so
    /// there is always a next event: all has to end within [`MOST_LIVENESS_NS`]. Then throttling is switched off.
    fn end_throttled(&mut self) {
        let until = self.rig.now + MOST_LIVENESS_NS;
        while self.ended < self.accepted && self.rig.now < until && self.rig.step() {
            self.collect();
        }
        self.collect();
        assert_eq!(self.ended, self.accepted, "bios are stuck\n{}", self.rig.describe());
        assert_eq!(self.rig.q.wbt().inflight, [0, 0], "tokens of write-back throttling are not back");
        let off = self.rig.q.set_live(&[("wbt_lat_usec", "0")]);
        off.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
    }

    /// No new fault and no new work: everything that waits has to end, and nothing may be left.
    fn liveness_phase(&mut self) {
        self.rig.disk.heal();
        if self.limits.has_wbt() {
            self.end_throttled();
        }
        self.rig.run(MOST_STEPS);
        self.check_dead_hctxs();
        self.collect();
        assert_eq!(self.ended, self.accepted, "bios are stuck\n{}", self.rig.describe());
        self.rig.check_idle();
        assert!(self.model.is_idle());
        self.limits.check();
        assert_eq!(self.rig.q.wbt().inflight, [0, 0], "tokens of write-back throttling are not back");
        let disk = self.rig.disk.clone();
        self.model.check_contents(|s| disk.content(s));
        self.check_counters();
        disk.crash();
        self.model.check_survivors(|s| disk.content(s), |_| None);
    }

    /// Both phases.
    pub(super) fn run(mut self) -> Report {
        self.trace.event(self.rig.now, 'S', format_args!("safety phase: work under faults"));
        self.safety_phase();
        let (switched, outstanding) = (self.rig.now, self.accepted - self.ended);
        self.trace.event(switched, 'S', format_args!("liveness phase: no more faults, {outstanding} bios to end"));
        self.liveness_phase();
        self.trace.event(self.rig.now, 'S', format_args!("all ended, no tag in use, contents right"));
        Report {
            seed: self.seed,
            bios: self.accepted,
            requests: self.rig.disk.issues().len() as u64,
            errors: self.errors,
            safety_ns: switched - crate::rig::START_NS,
            outstanding,
            liveness_ns: self.rig.now - switched,
            pressed: 0,
            events: self.trace.events(),
            hash: self.trace.hash(),
        }
    }

    fn check_counters(&self) {
        let (stats, issues) = (self.rig.q.stats(), self.rig.disk.issues());
        let hctx: u64 = self.rig.q.hctx_stats().iter().map(|h| h.dispatched).sum();
        // Fewer hardware queues now than some time before: those gone are not listed.
        assert!(hctx <= issues.len() as u64, "dispatched {hctx} of {}", issues.len());
        if self.faults {
            return;
        }
        for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
            let seen: Vec<_> = issues.iter().filter(|i| i.op == op).collect();
            let s = stats.op(op);
            assert_eq!(s.ios, seen.len() as u64, "{op:?} ios");
            if !self.refused {
                assert_eq!(s.sectors, self.sectors[op as usize], "{op:?} sectors counted and submitted");
            }
            assert_eq!(s.sectors, seen.iter().map(|i| u64::from(i.nr_sectors)).sum::<u64>(), "{op:?} sectors");
            if op.has_data() {
                let merged: usize = seen.iter().map(|i| i.nr_bios - 1).sum();
                assert_eq!(s.merges, merged as u64, "{op:?} merges");
            }
        }
        assert_eq!(stats.op(Op::Flush).ios, issues.iter().filter(|i| i.op == Op::Flush).count() as u64);
        assert_eq!(stats.errors, 0);
    }
}
