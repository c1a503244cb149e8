// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random stacks on one tag set: several disks, submitters and elevators, faults, and changes while they run.
//!
//! Checked: every bio ends once; no disk takes a tag beyond its share; nobody waits for ever, whichever disk has what it
//! waits for; each disk drains by itself. `MQBLK_SEED=n` runs that seed alone, `MQBLK_SEEDS=n` so many from 0.

mod multi;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::settings::QueueConfig;
use multi::World;
use sim::disk::Behaviour;
use sim::disk::service::Service;
use sim::rng::Rng;
use std::collections::BTreeSet;

const SCHEDULERS: [&str; 5] = ["none", "mq-deadline", "kyber", "bfq", "k2"];

struct Case {
    w: World,
    rng: Rng,
    base: QueueConfig,
    /// Bios handed in and not reaped, by disk.
    out: Vec<BTreeSet<u64>>,
    /// What [`World::disks`] has of each: levels of freeze and quiesce.
    frozen: Vec<u32>,
    quiesced: Vec<u32>,
    next: u64,
    faults: bool,
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed ^ 0x7a65);
        let cpus = 1 + rng.below(4) as u16;
        let base = QueueConfig {
            topology: CpuTopology::uniform(cpus),
            nr_hw_queues: Some(1 + rng.below(u64::from(cpus)) as u16),
            queue_depth: rng.pick(&[1, 2, 3, 4, 8, 9, 16, 31]),
            host_tagset: rng.below(2) == 0,
            nomerges: rng.pick(&[0, 2]),
            rq_affinity: rng.below(3) as u8,
            io_timeout_ms: rng.pick(&[20, 200]),
            bios_per_submitter: 64,
            ..QueueConfig::default()
        };
        let base = QueueConfig { reserved_tags: if rng.below(4) == 0 { base.queue_depth / 4 } else { 0 }, ..base };
        let w = World::new(seed, &base);
        let faults = rng.below(2) == 0;
        let mut case =
            Case { w, rng, base, out: Vec::new(), frozen: Vec::new(), quiesced: Vec::new(), next: 0, faults };
        for _ in 0..1 + case.rng.below(5) {
            case.join();
        }
        case
    }

    fn behaviour(&mut self) -> Behaviour {
        let (rng, on) = (&mut self.rng, u32::from(self.faults));
        Behaviour {
            limits: Limits { write_cache: rng.below(2) == 0, ..Behaviour::default().limits },
            resource: on * rng.pick(&[0, 0, 50]),
            dev_resource: on * rng.pick(&[0, 0, 200]),
            issue_error: on * rng.pick(&[0, 0, 30]),
            complete_error: on * rng.pick(&[0, 30]),
            give_back: on * rng.pick(&[0, 0, 50]),
            lost: on * rng.pick(&[0, 0, 20]),
            at_once: rng.pick(&[0, 0, 300, 1000]),
            device_cap: rng.pick(&[usize::MAX, usize::MAX, 2]),
            service: Service::Any { max_ns: rng.pick(&[1000, 100_000]) },
            ..Behaviour::default()
        }
    }

    /// One more disk, with an elevator and submitters of its own.
    fn join(&mut self) {
        let behaviour = self.behaviour();
        let scheduler = self.rng.pick(&SCHEDULERS);
        let cpus = u64::from(self.base.topology.nr_cpus);
        let subs: Vec<u16> = (0..1 + self.rng.below(3)).map(|_| self.rng.below(cpus) as u16).collect();
        let iosched = if scheduler == "bfq" { vec![("slice_idle".into(), 0)] } else { Vec::new() };
        let config = QueueConfig { scheduler: Some(scheduler.into()), iosched, ..self.base.clone() };
        self.w.join(behaviour, config, &subs);
        self.out.push(BTreeSet::new());
        self.frozen.push(0);
        self.quiesced.push(0);
    }

    fn bio(&mut self, d: usize) -> Bio {
        let rng = &mut self.rng;
        self.next += 1;
        let sector = Sector(rng.below(2000) * 8);
        let data = DataRef::new(0, rng.below(1000) << 12);
        let write_cache = self.w.disks[d].q.limits().write_cache;
        let mut bio = if rng.below(2) == 0 { Bio::read(sector, 8, data) } else { Bio::write(sector, 8, data) };
        if write_cache && rng.below(12) == 0 {
            bio = Bio { op: Op::Flush, sector: Sector(0), nr_sectors: 0, ..Bio::read(Sector(0), 8, DataRef::NONE) };
        } else if bio.op == Op::Write && rng.below(8) == 0 {
            bio = bio.with_flags(OpFlags::FUA);
        } else if self.base.reserved_tags > 0 && rng.below(6) == 0 {
            bio = bio.with_flags(OpFlags::RESERVED);
        } else if rng.below(20) == 0 {
            bio = bio.with_flags(OpFlags::NOWAIT);
        }
        bio.with_user_data(self.next)
    }

    fn submit(&mut self) {
        let d = self.rng.below(self.w.disks.len() as u64) as usize;
        let s = self.rng.below(self.w.disks[d].subs.len() as u64) as usize;
        let plug = self.rng.below(3) == 0;
        let t = self.w.t();
        if plug {
            self.w.disks[d].subs[s].start_plug(8);
        }
        for _ in 0..1 + self.rng.below(10) {
            let bio = self.bio(d);
            if self.w.try_submit(d, s, bio).is_ok() {
                self.out[d].insert(bio.user_data);
            }
        }
        if plug {
            self.w.disks[d].subs[s].finish_plug(t);
            self.w.disks[d].doze();
        }
        self.reap();
    }

    fn reap(&mut self) {
        self.w.reap();
        for (d, disk) in self.w.disks.iter_mut().enumerate() {
            for done in disk.done.iter_mut().flat_map(|d| d.drain(..)) {
                assert!(self.out[d].remove(&done.user_data), "bio {} ended twice", done.user_data);
            }
        }
    }

    /// One hardware queue for each map of tags.
    fn maps(&self) -> impl Iterator<Item = HctxId> {
        let n = if self.base.host_tagset { 1 } else { u32::from(self.w.set.config().nr_hw_queues) };
        (0..n).map(HctxId::new)
    }

    /// Per disk and map: normal tags it has. What is at the disks is found among them, and in all no more than there are.
    fn usage(&self) -> Vec<Vec<usize>> {
        let of = |disk: &multi::Disk| -> Vec<usize> {
            let tags: Vec<usize> = self.maps().map(|h| disk.q.active_tags(h) as usize).collect();
            let at_disk = disk.disk.pending();
            let at_disk = at_disk.iter().filter(|i| !i.flags.contains(OpFlags::RESERVED)).count();
            let known = !self.w.set.is_shared() || at_disk <= tags.iter().sum();
            assert!(known, "{at_disk} at the disk, tags {tags:?}\n{}", self.w.describe());
            tags
        };
        self.w.disks.iter().map(of).collect()
    }

    fn users(&self) -> Vec<u32> {
        self.maps().map(|h| self.w.set.active_disks(h)).collect()
    }

    /// Does something and looks whether a disk has taken more than its share thereby.
    fn watched<R>(&mut self, f: impl FnOnce(&mut Case) -> R) -> R {
        let (before, users) = (self.usage(), self.users());
        let r = f(self);
        let c = self.w.set.config();
        let depth = (c.queue_depth - c.reserved_tags) as usize;
        let after = self.usage();
        for map in 0..users.len() {
            let total: usize = after.iter().map(|of| of[map]).sum();
            assert!(total <= depth, "{total} of {depth} tags\n{}", self.w.describe());
            if !c.fair_tag_sharing || !self.w.set.is_shared() {
                continue;
            }
            let (users_before, users_after) = (users[map], self.users()[map]);
            let users = users_before.min(users_after).max(1) as usize;
            let share = if depth == 1 { 1 } else { depth.div_ceil(users).max(4) };
            for (d, (before, after)) in before.iter().zip(&after).enumerate() {
                let (before, after) = (before[map], after[map]);
                assert!(
                    after <= before || after <= share,
                    "disk {d} went from {before} to {after} of map {map}, its share is {share} (users {users_before:?}, then {users_after:?})\n{}",
                    self.w.describe()
                );
            }
        }
        r
    }

    fn step(&mut self) -> bool {
        let stepped = self.watched(|c| c.w.step());
        self.reap();
        stepped
    }

    /// Something that a run may meet.
    fn disturb(&mut self) {
        let d = self.rng.below(self.w.disks.len() as u64) as usize;
        match self.rng.below(12) {
            0 => self.w.set.set_fair_sharing(false),
            1 | 2 => self.w.set.set_fair_sharing(true),
            3 | 4 if self.frozen[d] == 0 => {
                self.w.disks[d].q.begin_freeze();
                self.frozen[d] += 1;
            }
            5 | 6 => self.thaw(d),
            7 if self.quiesced[d] == 0 => {
                self.w.disks[d].q.quiesce();
                self.quiesced[d] += 1;
            }
            8 => self.unquiesce(d),
            9 if self.frozen[d] > 0 && self.w.disks[d].q.is_drained() => {
                let scheduler = self.rng.pick(&SCHEDULERS);
                self.w.disks[d]
                    .q
                    .rebuild(|c| {
                        c.scheduler = Some(scheduler.into());
                        Ok(())
                    })
                    .expect("good settings");
            }
            10 if self.w.disks.len() > 1 && self.out[d].is_empty() && self.frozen[d] == 0 => {
                // It goes, and perhaps another comes.
                drop(self.w.disks.remove(d));
                self.out.remove(d);
                self.frozen.remove(d);
                self.quiesced.remove(d);
                if self.rng.below(2) == 0 && self.w.set.is_shared() {
                    self.join();
                }
            }
            11 => self.resize(),
            _ => {}
        }
    }

    fn thaw(&mut self, d: usize) {
        if self.frozen[d] > 0 {
            self.w.disks[d].q.unfreeze();
            self.frozen[d] -= 1;
        }
    }

    fn unquiesce(&mut self, d: usize) {
        if self.quiesced[d] > 0 {
            self.w.disks[d].q.unquiesce();
            self.quiesced[d] -= 1;
        }
    }

    /// Another depth and number of queues for all.
    fn resize(&mut self) {
        (0..self.w.disks.len()).for_each(|d| self.unquiesce(d));
        self.w.set.begin_freeze();
        for _ in 0..100_000 {
            if self.w.set.is_drained() {
                break;
            }
            assert!(self.step() || self.w.set.is_drained(), "the frozen set does not drain\n{}", self.w.describe());
        }
        let hw = 1 + self.rng.below(u64::from(self.base.topology.nr_cpus)) as u16;
        let depth = self.rng.pick(&[1, 2, 4, 8, 16, 31]);
        self.w
            .set
            .update(|c| {
                c.nr_hw_queues = hw;
                c.queue_depth = depth.max(c.reserved_tags + 1);
                Ok(())
            })
            .expect("good settings");
        let shape = self.w.set.config();
        (self.base.nr_hw_queues, self.base.queue_depth) = (Some(hw), shape.queue_depth);
        self.w.set.unfreeze();
    }

    fn run(&mut self) {
        let disturbed = self.rng.below(3) > 0;
        for _ in 0..60 {
            self.watched(Case::submit);
            for _ in 0..self.rng.below(30) {
                self.step();
            }
            if disturbed && self.rng.below(4) == 0 {
                self.disturb();
            }
        }
        for d in 0..self.w.disks.len() {
            self.thaw(d);
            self.unquiesce(d);
        }
        for _ in 0..200_000 {
            if !self.step() {
                break;
            }
        }
        self.reap();
        assert_eq!(self.w.outstanding(), 0, "bios are stuck\n{}", self.w.describe());
        assert!(self.out.iter().all(BTreeSet::is_empty));
        self.w.check_idle();
    }
}

#[test]
fn random_disks_on_one_tag_set() {
    let seeds = match env("MQBLK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("MQBLK_SEEDS").unwrap_or(150),
    };
    for seed in seeds {
        let r = std::panic::catch_unwind(|| Case::new(seed).run());
        if let Err(e) = r {
            eprintln!("MQBLK_SEED={seed}");
            std::panic::resume_unwind(e);
        }
    }
}
