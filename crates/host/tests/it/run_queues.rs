// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole runs on queue layouts in which a thread's completions appear in several places, or other threads issue its requests.
//! All I/Os complete without errors. A lost wake-up would show as a run that hangs or panics.

use host::run::{RunOutcome, RunPlan, prepare};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::job::{JobFile, ParseContext};

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> TempFile {
        TempFile(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}-{name}", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(job: &str, target: &str, settings: &[(&str, &str)], stop: bool) -> RunOutcome {
    let text = format!("[j]\nioengine=io_uring\n{job}");
    let jobs = JobFile::parse_str(&text, &ParseContext::bare("test"), &[]).expect("the test's job is right").jobs;
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let plan = RunPlan {
        target: Some(target),
        settings: &settings,
        laying_out: &mut |_, _, _| ControlFlow::Continue(()),
        stop: Arc::new(AtomicBool::new(false)),
        entropy: 1,
        force: false,
        aux_dir: std::path::Path::new(""),
    };
    let stop_flag = Arc::clone(&plan.stop);
    let prepared = prepare(&jobs, plan).expect("can be prepared");
    let outcome = prepared.run(&mut |progress| {
        // Only when the thread is known to run.
        if stop && progress.elapsed > blk::time::Duration::from_ms(1) {
            stop_flag.store(true, Ordering::Relaxed);
        }
    });
    outcome.expect("runs")
}

fn check(outcome: &RunOutcome, threads: usize, ios: u64) {
    assert_eq!(outcome.threads.len(), threads);
    for t in &outcome.threads {
        let stats = &t.as_ref().expect("it ran").stats;
        assert_eq!((stats.total_ios(), stats.first_error), (ios, 0));
    }
}

const MIXED: &str = "rw=randrw\nbs=4k\nsize=2m\niodepth=8\n";

#[test]
fn reads_and_writes_of_a_file_complete_on_rings_of_their_own() {
    let file = TempFile::new("read-queues");
    let path = file.0.to_str().unwrap();
    let set = [("nr_cpus", "2"), ("nr_hw_queues", "1"), ("nr_read_queues", "1")];
    check(&run(&format!("{MIXED}numjobs=2"), path, &set, false), 2, 512);
}

#[test]
fn polled_io_of_a_file_is_polled_for() {
    let file = TempFile::new("poll-queues");
    let set = [("nr_cpus", "1"), ("nr_poll_queues", "1")];
    check(&run(&format!("{MIXED}hipri=1"), file.0.to_str().unwrap(), &set, false), 1, 512);
}

/// bfq shares a device that serves one request at a time. Each job keeps 51 ms of work queued in the scheduler, so a thread that waits
/// for a CPU does not lose its share.
#[test]
fn a_job_with_more_weight_gets_more_of_a_disk_under_bfq() {
    let job = "rw=randread\nbs=4k\niodepth=256\nruntime=1\ntime_based\n";
    let jobs = format!("{job}weight=100\n[heavy]\nioengine=io_uring\n{job}cgroup_weight=1000\n");
    let device = [("nr_cpus", "2"), ("queue_depth", "1"), ("scheduler", "bfq"), ("nr_requests", "512")];
    let set = [&device[..], &[("iosched.low_latency", "0"), ("iosched.max_budget", "64")]].concat();
    let outcome = run(&jobs, "model:size=1g,lat_us=200,parallel=1", &set, false);
    // The last 256 I/Os of each job are served when no more are queued, so they are in no proportion.
    let ios: Vec<_> = outcome.threads.iter().map(|t| t.as_ref().expect("it ran").stats.total_ios() - 256).collect();
    assert!(ios[1] > 2 * ios[0], "{ios:?} for weights of 100 and 1000");
}

#[test]
fn drivers_that_complete_by_time_have_read_queues_too() {
    let set = [("nr_cpus", "2"), ("nr_hw_queues", "1"), ("nr_read_queues", "1")];
    for target in ["null:size=1g,completion_nsec=20000", "model:size=1g,lat_us=20"] {
        check(&run(&format!("{MIXED}numjobs=2"), target, &set, false), 2, 512);
    }
}

#[test]
fn threads_of_an_elevator_issue_for_each_other() {
    let file = TempFile::new("elevator");
    let set = [("nr_cpus", "2"), ("nr_hw_queues", "2"), ("scheduler", "mq-deadline"), ("queue_depth", "4")];
    for target in [file.0.to_str().unwrap(), "null:size=1g,completion_nsec=20000", "model:size=1g,lat_us=20"] {
        check(&run(&format!("{MIXED}numjobs=2"), target, &set, false), 2, 512);
    }
}

#[test]
fn large_ios_that_need_all_bio_slots_are_split_in_turn() {
    let job = "rw=read\nbs=1m\nsize=64m\niodepth=40";
    let set = [("scheduler", "none"), ("queue_depth", "10240"), ("max_sectors_kb", "6")];
    check(&run(job, "ram:size=1g", &set, false), 1, 64);
}

/// A thread that is told to stop issues no more I/O. It waits for those of its last 64 I/Os that are still in flight, and counts
/// them. The disk serves one at a time.
#[test]
fn a_stopped_run_ends_with_what_is_in_flight() {
    let job = "rw=randread\nbs=4k\nsize=1g\niodepth=64\niodepth_batch_complete_min=64\ntime_based\nruntime=1h";
    let outcome = run(job, "model:size=1g,lat_us=1000,parallel=1", &[], true);
    assert!(outcome.stopped);
    let stats = &outcome.threads[0].as_ref().expect("it ran").stats;
    assert!(stats.first_error == 0 && stats.total_ios().is_multiple_of(64) && stats.total_ios() > 0);
}

#[test]
fn holes_in_a_file_that_is_read_are_told() {
    let file = TempFile::new("holes");
    std::fs::File::create(&file.0).unwrap().set_len(4 << 20).unwrap();
    let warnings = |rw: &str| {
        let job = format!("[j]\nioengine=io_uring\nrw={rw}\nbs=4k\nsize=4m\n");
        let jobs = JobFile::parse_str(&job, &ParseContext::bare("test"), &[]).expect("the test's job is right").jobs;
        let plan = RunPlan {
            target: file.0.to_str(),
            settings: &[],
            laying_out: &mut |_, _, _| ControlFlow::Continue(()),
            stop: Arc::new(AtomicBool::new(false)),
            entropy: 1,
            force: false,
            aux_dir: std::path::Path::new(""),
        };
        prepare(&jobs, plan).expect("can be prepared").warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warnings("write").is_empty());
    assert!(warnings("randread").iter().any(|w| w.contains("has holes")));
}
