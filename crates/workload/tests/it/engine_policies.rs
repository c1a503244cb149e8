// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends or pauses a job beside its amounts, in virtual time; and the priorities of single I/Os, beside fio 3.33.

use crate::common;

use blk::bio::Op;
use common::{Harness, MIB, fio_is_3_33};
use std::process::Command;
use workload::job::{Job, JobFile, ParseContext};
use workload::stats::EndedBy;

fn job(lines: &str) -> Job {
    let text = format!("[a]\nsize=4m\n{lines}\n");
    JobFile::parse_str(&text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}")).jobs.remove(0)
}

/// Runs a job whose I/Os take up to so long.
fn run(lines: &str, latency_ns: u64) -> Harness {
    let mut harness = Harness::new(&job(lines), 8 * MIB, 1);
    harness.latency_ns = latency_ns;
    harness.run();
    harness
}

/// Seconds from the first I/O to the end.
fn seconds(h: &Harness) -> f64 {
    (h.now.as_ns() - h.trace[0].at.as_ns()) as f64 / 1e9
}

#[test]
fn a_job_below_its_minimum_rate_ends_after_the_first_cycle() {
    let h = run("rw=randread\nrate_iops_min=400\ntime_based\nruntime=60", 10_000_000);
    let stats = h.thread.stats();
    assert!((3.0..3.1).contains(&seconds(&h)), "two seconds are not checked, then a cycle: {}", seconds(&h));
    let Some(EndedBy::RateIopsMin { want: 400, got }) = stats.ended_by else { panic!("{:?}", stats.ended_by) };
    assert!((150..250).contains(&got) && stats.first_error == 5, "{got}");
    let h = run("rw=randread\nrate_iops_min=100\nrate_cycle=250\ntime_based\nruntime=6", 10_000_000);
    assert_eq!((h.thread.stats().ended_by.clone(), h.thread.stats().first_error), (None, 0), "it is fast enough");
}

#[test]
fn a_minimum_of_bytes_counts_alone_and_after_the_ramp() {
    let lines = "rw=randread\nrate_min=10m\nrate_iops_min=1\nramp_time=5\ntime_based\nruntime=60\nrate_cycle=500";
    let h = run(lines, 10_000_000);
    assert!(matches!(h.thread.stats().ended_by, Some(EndedBy::RateMin { want: 10_485_760, .. })));
    assert!((7.5..7.6).contains(&seconds(&h)), "{}", seconds(&h));
}

#[test]
fn an_io_above_its_limit_ends_the_job() {
    let h = run("ioengine=libaio\niodepth=8\nrw=randrw\nmax_latency=1s,5ms", 10_000_000);
    let stats = h.thread.stats();
    let Some(EndedBy::MaxLatency { dir, latency_ns, max_ns, .. }) = stats.ended_by else {
        panic!("{:?}", stats.ended_by)
    };
    assert_eq!((dir.name(), max_ns, stats.first_error), ("write", 5_000_000, 110));
    assert!(latency_ns > 5_000_000);
    assert_eq!(stats.total_ios(), h.trace.len() as u64, "all that was in flight is waited for and counted");
}

#[test]
fn pauses_follow_a_time_of_io() {
    // Nothing else is as long as the pause.
    let pauses = |lines: &str| {
        let h = run(&format!("rw=randread\nnumber_ios=1000\nthinktime=20ms\n{lines}"), 1_000_000);
        h.trace.windows(2).filter(|w| w[1].at.as_ns() - w[0].at.as_ns() >= 20_000_000).count()
    };
    assert_eq!(pauses("thinktime_blocks=100"), 9);
    let by_time = pauses("thinktime_iotime=50ms");
    assert!((8..=12).contains(&by_time), "about half a second of I/O: {by_time}");
    let by_both = pauses("thinktime_iotime=50ms\nthinktime_blocks=50");
    assert!((19..=22).contains(&by_both), "50 blocks take half of 50 ms: {by_both}");
}

/// Operation and priority (as the kernel writes it) of each I/O of a job by fio, one at a time.
fn fio_prios(lines: &str) -> Vec<(u32, u16)> {
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("prios-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!("[a]\nfilename=f\nsize=4m\n{lines}\nwrite_lat_log=l\nlog_prio=1\n");
    std::fs::write(dir.join("job.fio"), text).unwrap();
    let run =
        Command::new("timeout").current_dir(&dir).args(["60", "fio", "--output=out", "job.fio"]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let log = std::fs::read_to_string(dir.join("l_clat.1.log")).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let fields = |line: &str| {
        let mut words = line.split(',').map(str::trim);
        let dir = words.nth(2)?.parse().ok()?;
        let prio = words.next_back()?.strip_prefix("0x")?;
        Some((dir, u16::from_str_radix(prio, 16).ok()?))
    };
    log.lines().filter_map(fields).collect()
}

#[test]
fn priorities_of_single_ios_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    for lines in [
        "rw=randrw\ncmdprio_percentage=20,70\ncmdprio_class=2,3\ncmdprio=5",
        "rw=randread\nprio=2\nprioclass=3\ncmdprio_percentage=50\nnumber_ios=700",
        "rw=randrw\nbssplit=4k/40:8k/40:16k/20\nnumber_ios=500\n\
         cmdprio_bssplit=8k/20:4k/30/1/0:16k/10/2/7:4k/30/2/1,16k/100\ncmdprio=3",
        "rw=randwrite\ncmdprio_percentage=30\nrandseed=99\nrandrepeat=0",
        "rw=write\nverify=crc32c\nsize=1m\ncmdprio_percentage=30\nverify_backlog=16",
    ] {
        let lines = format!("ioengine=libaio\n{lines}");
        let h = run(&lines, 1_000);
        let dir = |op| u32::from(op != Op::Read);
        let ios = h.trace.iter().filter(|i| i.io.op != Op::Flush);
        let ours: Vec<(u32, u16)> = ios.map(|i| (dir(i.io.op), i.io.prio.value())).collect();
        let mut theirs = fio_prios(&lines);
        if lines.contains("verify") {
            // fio logs the priority of the last write for a read back, which has none.
            assert!(ours.iter().all(|io| *io != (0, 1 << 13)));
            theirs.iter_mut().filter(|io| io.0 == 0).for_each(|io| io.1 = 0);
        }
        assert!(theirs.len() > 200, "{lines}: fio logged {}", theirs.len());
        assert_eq!(ours, theirs, "{lines}");
    }
}

/// Runs a job on a device that serves one I/O after the other, each for so long, and returns the depths of its last I/Os.
fn run_serially(lines: &str, service_ns: u64) -> (workload::engine::JobThread, Vec<u32>) {
    use blk::time::{Duration, Instant};
    use workload::engine::{JobThread, Next, ThreadId};
    let id = ThreadId { instance: 0, number: 1, entropy: 0 };
    let mut thread = JobThread::new(&job(lines), id, 8 * MIB).unwrap();
    let (mut now, mut out) = (Instant::from_ns(7), std::collections::VecDeque::new());
    let mut depths = Vec::new();
    loop {
        let next = thread.next(now);
        if let Next::Io(io) = next {
            out.push_back(io.slot);
            depths.push(thread.in_flight());
            continue;
        }
        thread.submitted(now);
        let min = match next {
            Next::Reap { min, .. } => min,
            Next::Wait(until) => {
                now = until;
                0
            }
            _ => return (thread, depths),
        };
        for _ in 0..min {
            now = now + Duration::from_ns(service_ns);
            let _ = thread.complete(out.pop_front().unwrap(), blk::status::BlkStatus::Ok, now);
            thread.reaped(1);
        }
    }
}

#[test]
fn the_search_finds_the_largest_depth_that_is_fast_enough() {
    let lines = "ioengine=libaio\niodepth=32\nrw=randread\ntime_based\nruntime=60\nlatency_window=100ms\n";
    for (goal, depth) in [("latency_target=850us\nlatency_percentile=90", 8), ("latency_target=1350us", 13)] {
        let (thread, depths) = run_serially(&format!("{lines}{goal}"), 100_000);
        let stats = thread.stats();
        assert_eq!((stats.latency_depth, depths.last(), stats.first_error), (Some(depth), Some(&depth), 0), "{goal}");
        assert!(depths.contains(&16), "it had to find that this is too deep");
        let measured = stats.total_ios();
        assert!((990..1020).contains(&measured), "the last window alone is measured: {measured}");
    }
    let (thread, depths) = run_serially(&format!("{lines}latency_target=850us\nlatency_run=1\nruntime=3"), 100_000);
    assert!(depths.len() > 20_000 && thread.stats().first_error == 0, "it runs on");
    let (thread, _) = run_serially(&format!("{lines}latency_target=50us"), 100_000);
    assert!(matches!(thread.stats().ended_by, Some(EndedBy::LatencyTarget { target_ns: 50_000, .. })));
    assert_eq!((thread.stats().total_ios(), thread.stats().first_error), (1, 110), "one I/O alone is too slow");
}
