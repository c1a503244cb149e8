// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings are changed under load, on real drivers and threads: whatever changes and however often, every block reads back as it
//! was written, no I/O fails, and the run ends.

use crate::waiting::{LONG, POLL};

use host::disk::Disk;
use host::run::{Prepared, RunOutcome, RunPlan, prepare};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::job::{JobFile, ParseContext};

/// A saturating writer that verifies what it wrote, one that reads with a depth of one, and one that sleeps between I/Os.
const JOBS: &str = "[global]\nioengine=io_uring\nbs=4k\ntime_based\nruntime=100\n\
    [w]\nrw=randwrite\nsize=1m\niodepth=16\niodepth_batch_submit=4\nverify=crc32c\nverify_backlog=64\n\
    [r]\nrw=randread\noffset=1m\nsize=1m\n\
    [t]\nrw=randread\noffset=1m\nsize=1m\niodepth=4\nthinktime=200us\n";

/// The settings that are applied in turn, again and again.
const CHANGES: [&[(&str, &str)]; 13] = [
    &[("nr_hw_queues", "1")],
    &[("scheduler", "mq-deadline")],
    &[("queue_depth", "3")],
    &[("iosched.fifo_batch", "1")],
    &[("nr_hw_queues", "4"), ("scheduler", "kyber")],
    &[("nr_requests", "8")],
    &[("mode", "sq")],
    &[("mode", "mq"), ("nr_hw_queues", "2"), ("scheduler", "none")],
    &[("nr_read_queues", "1"), ("queue_depth", "32")],
    &[("scheduler", "bfq"), ("nr_read_queues", "0")],
    &[("nomerges", "2")],
    &[("nr_hw_queues", "4"), ("scheduler", "none"), ("queue_depth", "64")],
    &[("host_tagset", "1"), ("nomerges", "0")],
];

fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn prepared(jobs: &str, target: &str, settings: &[(&str, &str)], stop: &Arc<AtomicBool>) -> Prepared {
    let jobs = JobFile::parse_str(jobs, &ParseContext::bare("test"), &[]).expect("the test's job is right").jobs;
    let plan = RunPlan {
        target: Some(target),
        settings: &owned(settings),
        laying_out: &mut |_, _, _| ControlFlow::Continue(()),
        stop: Arc::clone(stop),
        entropy: 1,
        force: false,
        aux_dir: std::path::Path::new(""),
    };
    prepare(&jobs, plan).expect("can be prepared")
}

/// Runs jobs, and calls `change` meanwhile. The run is stopped when `change` returns.
fn run_while(run: Prepared, stop: &AtomicBool, change: impl FnOnce(&[(String, Arc<Disk>)]) + Send) -> RunOutcome {
    let disks = run.disks.clone();
    std::thread::scope(|s| {
        s.spawn(|| {
            // The run is stopped also if this panics; otherwise it would continue for ever.
            let _stop = StopOnDrop(stop);
            change(&disks);
        });
        run.run(&mut |_| {}).expect("runs")
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn check(outcome: &RunOutcome) {
    for (i, t) in outcome.threads.iter().enumerate() {
        let t = t.as_ref().expect("it ran");
        assert_eq!((t.stats.first_error, t.stats.verify_errors), (0, 0), "thread {i}");
        assert!(t.stats.total_ios() > 0, "thread {i} did nothing");
    }
}

/// Waits until I/O that was submitted after this call has completed.
fn goes_on(disk: &Disk) {
    let ended = || disk.queue.stats().ops.iter().map(|op| op.ios).sum::<u64>();
    let (before, began) = (ended(), std::time::Instant::now());
    // The sum of the jobs' depths limits how many completions can be of earlier I/O.
    while ended() < before + 40 {
        assert!(began.elapsed() < LONG, "no I/O ends any more\n{:#?}", disk.queue.debugfs());
        std::thread::sleep(POLL);
    }
}

fn changes_on(target: &str) {
    let stop = Arc::default();
    let run = prepared(JOBS, target, &[("nr_cpus", "4")], &stop);
    let outcome = run_while(run, &stop, |disks| {
        let disk = &disks[0].1;
        for (i, change) in CHANGES.iter().cycle().take(4 * CHANGES.len()).enumerate() {
            goes_on(disk);
            let froze = disk.change(&owned(change)).unwrap_or_else(|e| panic!("change {i}, {change:?}: {e}"));
            let live = matches!(change[0].0, "nomerges" | "iosched.fifo_batch");
            assert_eq!(froze.is_none(), live, "{change:?}");
        }
        goes_on(disk);
    });
    check(&outcome);
    assert!(outcome.stopped);
    assert!(outcome.disks[0].hctxs.len() >= 4, "what queues did that are gone is told as well");
}

#[test]
fn memory_takes_every_change_under_load() {
    changes_on("ram:size=2m");
}

#[test]
fn a_disk_with_latency_takes_every_change_under_load() {
    changes_on("model:size=2m,over=ram,lat_us=50,jitter_pct=50,parallel=4");
}

#[test]
fn a_file_takes_every_change_under_load() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("changes-{}", std::process::id()));
    changes_on(path.to_str().expect("a path of text"));
    std::fs::remove_file(path).expect("it was made");
}

/// A polled job needs a poll queue as long as it runs.
#[test]
fn a_polled_job_keeps_its_queue() {
    let stop = Arc::default();
    let job = "[p]\nioengine=io_uring\nrw=randread\nbs=4k\nhipri=1\ntime_based\nruntime=100\n";
    let run = prepared(job, "ram:size=2m", &[("nr_cpus", "2"), ("nr_poll_queues", "1")], &stop);
    let outcome = run_while(run, &stop, |disks| {
        let disk = &disks[0].1;
        for change in [("mode", "sq"), ("nr_poll_queues", "0")] {
            goes_on(disk);
            let e = disk.change(&owned(&[change])).expect_err("refused").to_string();
            assert!(e.contains("a job of the run polls (hipri)"), "{e}");
        }
        assert!(disk.change(&owned(&[("nr_poll_queues", "2")])).expect("fits").is_some());
        goes_on(disk);
    });
    check(&outcome);
}

#[test]
fn disks_that_share_tags_change_together() {
    let job = |name: &str, size: &str| {
        format!(
            "[{name}]\nioengine=io_uring\nfilename=model\\:size={size},lat_us=20\nrw=randread\nbs=4k\niodepth=8\n\
                 time_based\nruntime=100\n"
        )
    };
    let stop = Arc::default();
    let jobs =
        JobFile::parse_str(&(job("a", "2m") + &job("b", "4m")), &ParseContext::bare("test"), &[]).expect("right");
    let plan = RunPlan {
        target: None,
        settings: &owned(&[("nr_cpus", "2"), ("queue_depth", "8"), ("shared_tags", "1")]),
        laying_out: &mut |_, _, _| ControlFlow::Continue(()),
        stop: Arc::clone(&stop),
        entropy: 1,
        force: false,
        aux_dir: std::path::Path::new(""),
    };
    let run = prepare(&jobs.jobs, plan).expect("can be prepared");
    let outcome = run_while(run, &stop, |disks| {
        let (a, b) = (&disks[0].1, &disks[1].1);
        for depth in ["4", "16", "1", "8"].iter().cycle().take(40) {
            goes_on(a);
            goes_on(b);
            assert!(a.change(&owned(&[("queue_depth", depth)])).expect("fits").is_some());
            assert_eq!(b.queue.config().queue_depth.to_string(), *depth, "the other one's, too");
            assert_eq!(b.change(&owned(&[("fair_tag_sharing", "0")])).expect("fits"), None);
            assert!(b.change(&owned(&[("scheduler", "kyber")])).expect("fits").is_some());
            assert_eq!(a.queue.scheduler(), "none", "an elevator is a disk's own");
            let both = a.change(&owned(&[("queue_depth", "2"), ("nomerges", "1")])).expect_err("refused").to_string();
            assert!(both.contains("change nomerges separately"), "{both}");
            assert_eq!(a.change(&owned(&[("fair_tag_sharing", "1")])).expect("fits"), None);
        }
    });
    check(&outcome);
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let stop = Arc::default();
    let run = prepared(JOBS, "ram:size=2m", &[("nr_cpus", "4"), ("scheduler", "kyber")], &stop);
    let outcome = run_while(run, &stop, |disks| {
        let disk = &disks[0].1;
        let refused: [(&[(&str, &str)], &str); 9] = [
            (&[("shared_tags", "1")], "shared_tags=1: tag sharing cannot change during a run"),
            (&[("mode", "sq"), ("nr_hw_queues", "2")], "nr_hw_queues=2: mode=sq has one driver queue"),
            (&[("queue_depth", "0")], "queue_depth=0: must be 1..=10240"),
            (&[("queue_depth", "8"), ("nr_hw_queues", "9")], "nr_hw_queues=9: must be at most the stack's 4 CPUs"),
            (&[("nomerges", "1"), ("iops_read_burst", "9")], "iops_read_burst=9: a burst needs its rate"),
            (&[("iosched.fifo_batch", "1")], "fifo_batch"),
            (&[("scheduler", "cfq")], "cfq"),
            (&[("max_sectors_kb", "64")], "max_sectors_kb: cannot be changed on an existing disk"),
            (&[("queue_dept", "4")], "did you mean 'queue_depth'?"),
        ];
        for (settings, says) in refused {
            let e = disk.change(&owned(settings)).expect_err("refused").to_string();
            assert!(e.contains(says), "{e}");
            let c = disk.queue.config();
            assert_eq!((c.queue_depth, c.nomerges, disk.queue.scheduler().as_str()), (64, 0, "kyber"), "{settings:?}");
            goes_on(disk);
        }
    });
    check(&outcome);
}
