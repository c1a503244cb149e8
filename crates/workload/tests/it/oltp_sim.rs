// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A transaction loop over the block layer in simulation: virtual time, and a disk that is full now and then.

use blk::bio::{Bio, DataRef};
use blk::id::Sector;
use blk::settings::QueueConfig;
use blk::time::Instant;
use sim::disk::Behaviour;
use sim::disk::service::Service;
use sim::harness::Harness;
use workload::engine::{IoReq, Next, ThreadId};
use workload::job::{Extent, Job, OltpJob};
use workload::load::Load;
use workload::oltp::Oltp;
use workload::stats::JobStats;

/// Sectors of memory per slot; the redo writes below fit.
const SLOT_SECTORS: u64 = 64;

struct World {
    harness: Harness,
    load: Oltp,
    queued: u32,
}

impl World {
    fn take(&mut self, io: IoReq) {
        if self.queued == 0 {
            self.harness.plug(0, 0);
        }
        self.queued += 1;
        let sectors = u64::from(io.len_bytes >> 9);
        assert!(sectors <= SLOT_SECTORS);
        let data = DataRef::new(0, (u64::from(io.slot) * SLOT_SECTORS) << 9);
        let user_data = u64::from(io.slot);
        let (op, flags, prio) = (io.op, io.flags, io.prio);
        let (sector, nr_sectors) = (Sector(io.offset_bytes >> 9), sectors as u32);
        self.harness.submit(0, Bio { op, flags, prio, user_data, ..Bio::read(sector, nr_sectors, data) });
        if io.commit {
            self.commit();
        }
    }

    fn commit(&mut self) {
        if self.queued > 0 {
            self.queued = 0;
            self.harness.unplug(0);
            self.load.submitted(self.harness.t());
        }
    }

    /// Passes completed I/Os to the load.
    fn complete(&mut self) -> bool {
        let (done, now) = (self.harness.take_done(0), self.harness.t());
        for d in &done {
            let _ = self.load.complete(d.user_data as u32, d.status, now);
        }
        self.load.reaped(done.len() as u32);
        !done.is_empty()
    }

    fn run(mut self) -> (JobStats, u64) {
        loop {
            match self.load.next(self.harness.t()) {
                Next::Io(io) => self.take(io),
                Next::Reap { .. } => {
                    self.commit();
                    while !self.complete() {
                        assert!(self.harness.step(), "it stands still\n{}", self.harness.describe());
                    }
                }
                Next::Wait(until) => {
                    self.commit();
                    while !self.complete() && self.harness.t() < until {
                        if !self.harness.step() || self.harness.t() > until {
                            self.harness.now = self.harness.now.max(until.as_ns());
                        }
                    }
                }
                Next::Spin(_) => unreachable!("a session does not spin"),
                Next::Done => break,
            }
        }
        self.harness.run_dry(1000);
        self.harness.check_idle();
        (self.load.stats().clone(), self.harness.now)
    }
}

fn run(seed: u64, settings: &[(&str, &str)], think_us: u64) -> (JobStats, u64) {
    let mut job = Job::new("db");
    job.size = Some(Extent::Bytes(64 << 20));
    job.thinktime_ns = think_us * 1000;
    job.oltp = Some(OltpJob {
        users: 24,
        reads_per_tx: 6,
        writes_per_tx: Some(3),
        redo_bytes: 500,
        // Group commits of at most 24 records.
        group_commit_ns: 20_000,
        dirty_max: 48,
        writer_batch: 8,
        transactions: Some(1500),
        ..OltpJob::default()
    });
    let id = ThreadId { instance: 0, number: 1, entropy: 0 };
    let load = Oltp::new(&job, id, 512 << 20, None).expect("it fits");
    assert!(u64::from(load.volumes()[0].slots + 1) * SLOT_SECTORS <= sim::harness::MEM_SECTORS as u64);
    let service = Service::Any { max_ns: 200_000 };
    let behaviour = Behaviour { resource: 30, dev_resource: 50, device_cap: 20, service, ..Behaviour::default() };
    let mut config = QueueConfig::default();
    settings.iter().for_each(|(k, v)| config.set(k, v).expect("a setting"));
    World { harness: Harness::new(seed, behaviour, config, &[0]), load, queued: 0 }.run()
}

#[test]
fn a_seed_repeats_the_run_and_any_stack_does_the_same_work() {
    let mq = run(1, &[("queue_depth", "16")], 0);
    assert_eq!(mq, run(1, &[("queue_depth", "16")], 0), "seed 1");
    assert!(mq.1 > Instant::ZERO.as_ns());
    let work = |s: &JobStats| {
        let tx = s.tx.clone().expect("a transaction loop");
        (tx.transactions, tx.reads)
    };
    for (seed, settings, think) in [
        (2, &[("mode", "sq"), ("scheduler", "deadline")][..], 0),
        (3, &[("scheduler", "mq-deadline"), ("queue_depth", "4")], 0),
        (4, &[("scheduler", "kyber")], 300),
        (5, &[], 1000),
    ] {
        let (stats, _) = run(seed, settings, think);
        let tx = stats.tx.as_deref().expect("a transaction loop");
        assert_eq!(work(&stats), (1500, 9000), "{settings:?}");
        assert_eq!(tx.block_writes + tx.rewritten, 3 * tx.commits, "{settings:?}");
        // A quarter of the transactions, within five deviations of a binomial draw.
        assert!(tx.commits.abs_diff(375) < 85, "{} commits of 1500", tx.commits);
        assert!(tx.redo_writes <= tx.commits && stats.total_errors == 0, "{settings:?}");
    }
}
