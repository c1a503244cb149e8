// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD driver under load in tests: opened alone, or as the target of verifying jobs while servers are killed and restarted.

#![allow(dead_code, reason = "each test program uses a part")]

use super::common::peers::Peer;
use super::common::{DriverFixture, until};
use host::disk::Disk;
use host::driver::nbd::{self, Nbd};
use host::mem::Regions;
use host::run::{Prepared, RunOutcome, RunPlan, prepare};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::job::{JobFile, ParseContext};

/// Opens a driver of a target. Returns it and its memory regions.
pub fn open(target: &str) -> (Arc<Nbd>, Arc<Regions>) {
    let regions = Arc::new(Regions::new());
    let (nbd, warning) = Nbd::open(&nbd::parse(target).unwrap(), true, regions.clone()).unwrap();
    assert_eq!(warning, None);
    (Arc::new(nbd), regions)
}

/// Makes a disk with one hardware queue and a short `io_timeout`. It is polled, because a single thread that sleeps in a driver does not
/// check for timeouts.
pub fn fixture(target: &str) -> (DriverFixture, Arc<Nbd>) {
    let (nbd, regions) = open(target);
    let mut fixture = DriverFixture::on(nbd.clone(), regions, |c| {
        c.set("nr_cpus", "1").unwrap();
        c.set("io_timeout", "50").unwrap();
    });
    fixture.may_wait = false;
    (fixture, nbd)
}

pub fn is_connected(nbd: &Nbd) -> bool {
    nbd.status().0.iter().all(|q| q.connected)
}

/// A saturating writer that verifies what it wrote, and one that reads.
pub const JOBS: &str = "[global]\nioengine=io_uring\nbs=4k\ntime_based\nruntime=100\n\
    [w]\nrw=randwrite\nsize=1m\niodepth=16\niodepth_batch_submit=4\nverify=crc32c\nverify_backlog=64\nfsync=32\n\
    [r]\nrw=randread\noffset=1m\nsize=1m\niodepth=4\n";

pub fn prepared(jobs: &str, target: &str, stop: &Arc<AtomicBool>) -> Prepared {
    let jobs = JobFile::parse_str(jobs, &ParseContext::bare("test"), &[]).expect("the test's job is right").jobs;
    let plan = RunPlan {
        target: Some(target),
        settings: &[],
        laying_out: &mut |_, _, _| ControlFlow::Continue(()),
        stop: Arc::clone(stop),
        entropy: 1,
        force: false,
        aux_dir: std::path::Path::new(""),
    };
    prepare(&jobs, plan).expect("can be prepared")
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the jobs on a thread, and `meanwhile` on this one. The run is stopped when `meanwhile` returns.
pub fn run_while(target: &str, meanwhile: impl FnOnce(&Disk)) -> RunOutcome {
    let stop = Arc::default();
    let run = prepared(JOBS, target, &stop);
    let disk = Arc::clone(&run.disks[0].1);
    std::thread::scope(|s| {
        let outcome = s.spawn(|| run.run(&mut |_| {}).expect("runs"));
        // The run is stopped also if this panics; otherwise it would continue for ever.
        let at_end = StopOnDrop(&stop);
        meanwhile(&disk);
        drop(at_end);
        outcome.join().expect("runs")
    })
}

/// Waits until I/O that was submitted after this call has completed.
pub fn goes_on(disk: &Disk) {
    let ended = || disk.queue.stats().ops.iter().map(|op| op.ios).sum::<u64>();
    let before = ended();
    // The sum of the jobs' depths limits how many completions can be of earlier I/O.
    until("40 more I/Os have ended", || ended() >= before + 40);
}

#[track_caller]
pub fn check_clean(outcome: &RunOutcome) {
    for (i, t) in outcome.threads.iter().enumerate() {
        let t = t.as_ref().expect("it ran");
        assert_eq!((t.stats.first_error, t.stats.verify_errors), (0, 0), "thread {i}");
        assert!(t.stats.total_ios() > 0, "thread {i} did nothing");
    }
}

/// Kills a server under load and restarts it, several times. No client may notice.
pub fn survives_kills(mut peer: Peer, end: impl Fn(&mut Peer)) {
    let target = peer.target("&reconnect_delay=60");
    let outcome = run_while(&target, |disk| {
        for _ in 0..3 {
            goes_on(disk);
            end(&mut peer);
            peer.start();
        }
        goes_on(disk);
    });
    check_clean(&outcome);
}
