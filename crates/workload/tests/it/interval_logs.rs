// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Per-interval logs of jobs in virtual time, where every line is known exactly.

use blk::bio::Op;
use blk::status::BlkStatus;
use blk::time::Instant;
use std::collections::BTreeMap;
use workload::engine::{JobThread, Next, ThreadId};
use workload::job::{JobFile, LogKind, ParseContext};
use workload::logs::LogFormat;

const MS: u64 = 1_000_000;

/// The logs of a job, by the names of the files.
type Logs = BTreeMap<String, String>;

/// Runs the only job of a text as thread number 3, on a device that takes `submit_ns` per batch and `latency_ns` for each I/O.
/// The log is taken every `take_every` completions.
fn run(text: &str, submit_ns: u64, latency_ns: impl Fn(Op) -> u64, take_every: usize) -> (JobThread, Logs) {
    let text = format!("[j]\nsize=64k\n{text}");
    let job =
        JobFile::parse_str(&text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}")).jobs.remove(0);
    let mut thread = JobThread::new(&job, ThreadId { instance: 0, number: 3, entropy: 0 }, 1 << 20).unwrap();
    thread.keep_logs();
    let mut bufs = vec![vec![0u8; thread.max_io_bytes() as usize]; thread.depth() as usize];
    bufs.iter_mut().for_each(|b| thread.fill_first(b));
    let (format, files) = (LogFormat::new(&job), job.log_files(3));
    let mut logs: Logs = files.iter().map(|(_, name)| (name.clone(), String::new())).collect();
    let mut take = |thread: &mut JobThread, all: bool| {
        let Some(chunk) = thread.take_log(all) else { return };
        files.iter().for_each(|(kind, name)| format.write(*kind, &chunk, 0, logs.get_mut(name).unwrap()));
    };
    // In the order of completion; all have the same latency, or are alone.
    let (mut now, mut out, mut queued) = (5 * MS + 123, Vec::new(), Vec::new());
    let (mut data, mut completed) = (vec![0u8; 1 << 20], 0);
    loop {
        let next = thread.next(Instant::from_ns(now));
        if let Next::Io(io) = next {
            if io.fill {
                thread.fill(io.slot, &mut bufs[io.slot as usize][..io.len_bytes as usize]);
            }
            queued.push(io);
            if !io.commit {
                continue;
            }
        }
        if !queued.is_empty() {
            now += submit_ns;
            thread.submitted(Instant::from_ns(now));
            out.extend(queued.drain(..).map(|io| (now + latency_ns(io.op), io)));
        }
        match next {
            Next::Io(_) => {}
            Next::Reap { min, .. } => {
                for _ in 0..min {
                    let (at, io) = out.remove(0);
                    now = now.max(at);
                    let range = io.offset_bytes as usize..(io.offset_bytes + u64::from(io.len_bytes)) as usize;
                    let buf = &mut bufs[io.slot as usize][..io.len_bytes as usize];
                    match io.op {
                        Op::Read => buf.copy_from_slice(&data[range]),
                        Op::Write => data[range].copy_from_slice(buf),
                        _ => {}
                    }
                    let done = thread.complete(io.slot, BlkStatus::Ok, Instant::from_ns(now));
                    thread.reaped(1);
                    if done.needs_verify {
                        thread.verify(io.slot, buf).unwrap();
                    }
                    completed += 1;
                    if completed % take_every == 0 {
                        take(&mut thread, false);
                    }
                }
            }
            Next::Wait(t) | Next::Spin(t) => now = t.as_ns(),
            Next::Done => break,
        }
    }
    take(&mut thread, true);
    assert!(thread.take_log(true).is_none_or(|chunk| chunk.is_empty()));
    (thread, logs)
}

fn lines(logs: &Logs, name: &str) -> Vec<String> {
    let text = logs.get(name).unwrap_or_else(|| panic!("no {name} among {:?}", logs.keys()));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_io_has_a_line_in_each_log() {
    let (_, logs) = run(
        "rw=read\nbs=16k\nwrite_bw_log\nwrite_iops_log=rate\nwrite_lat_log=dir/x\nlog_offset=1\nioengine=libaio",
        250_000,
        |_| 2 * MS,
        1,
    );
    let names: Vec<&str> = logs.keys().map(String::as_str).collect();
    assert_eq!(names, ["dir/x_clat.3.log", "dir/x_lat.3.log", "dir/x_slat.3.log", "j_bw.3.log", "rate_iops.3.log"]);
    let want = |first: &[&str]| first.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
    // An I/O every 2.25 ms.
    let clat = ["2, 2000000, 0, 16384, 0, 0", "4, 2000000, 0, 16384, 16384, 0", "6, 2000000, 0, 16384, 32768, 0"];
    assert_eq!(lines(&logs, "dir/x_clat.3.log")[..3], want(&clat));
    assert_eq!(lines(&logs, "dir/x_clat.3.log").len(), 4);
    assert_eq!(lines(&logs, "dir/x_lat.3.log")[3], "9, 2250000, 0, 16384, 49152, 0");
    assert_eq!(
        lines(&logs, "dir/x_slat.3.log")[2..],
        ["4, 250000, 0, 16384, 32768, 0", "7, 250000, 0, 16384, 49152, 0"]
    );
    // 16384 bytes in 2 ms.
    assert_eq!(lines(&logs, "j_bw.3.log")[0], "2, 8192, 0, 16384, 0, 0");
    assert_eq!(lines(&logs, "rate_iops.3.log")[1], "4, 1, 0, 16384, 16384, 0");
}

/// As in fio, the I/O after a window still belongs to it, and the next window ends at a multiple of `log_avg_msec`.
#[test]
fn latencies_are_averaged_as_in_fio() {
    let job = "rw=rw\nbs=4k,8k\nwrite_lat_log\nlog_avg_msec=10\nioengine=libaio\nlog_offset=1";
    let latency = |op| if op == Op::Read { 3 * MS } else { 5 * MS };
    let (thread, logs) = run(job, 0, latency, 1);
    let (mut now, mut since, mut sums, mut want) = (0, [0u64; 2], [(0u64, 0u64); 2], Vec::new());
    // Which directions it chose is known from a log of each I/O.
    let (_, each) = run(&job.replace("log_avg_msec=10\n", ""), 0, latency, 1);
    for line in lines(&each, "j_clat.3.log") {
        let fields: Vec<u64> = line.split(", ").map(|f| f.parse().unwrap()).collect();
        let d = fields[2] as usize;
        now += if d == 0 { 3 } else { 5 };
        assert_eq!((fields[0], fields[1]), (now, if d == 0 { 3 * MS } else { 5 * MS }));
        sums[d] = (sums[d].0 + 1, sums[d].1 + fields[1]);
        if now - since[d] >= 10 {
            want.push(format!("{now}, {}, {d}, 0, 0, 0", sums[d].1 / sums[d].0));
            (since[d], sums[d]) = (now / 10 * 10, (0, 0));
        }
    }
    for (d, (n, sum)) in sums.into_iter().enumerate().filter(|(_, s)| s.0 > 0) {
        want.push(format!("{now}, {}, {d}, 0, 0, 0", sum / n));
    }
    assert!(want.len() > 6 && thread.stats().total_ios() > 10, "{want:?}");
    assert_eq!(lines(&logs, "j_clat.3.log"), want);
    assert_eq!(logs["j_lat.3.log"], logs["j_clat.3.log"], "submission takes no time");
}

#[test]
fn a_window_may_have_its_maximum() {
    let job = "rw=trimwrite\nbs=4k\nsize=16k\nwrite_lat_log\nlog_avg_msec=100\nlog_max_value=1\nioengine=libaio";
    let (_, logs) = run(job, 1, |op| if op == Op::Write { 7 * MS } else { 2 * MS }, 1);
    assert_eq!(lines(&logs, "j_lat.3.log"), ["36, 7000001, 1, 0, 0", "36, 2000001, 2, 0, 0"]);
    let (_, logs) = run(&job.replace("log_max_value=1", "disable_clat=1\ndisable_slat=1"), 1, |_| 2 * MS, 1);
    assert_eq!(logs.keys().collect::<Vec<_>>(), ["j_lat.3.log"]);
}

#[test]
fn rates_are_exact_in_exact_windows() {
    // 400 I/Os of 4 KiB per second; the windows end between I/Os.
    let job = "rw=randread\ntime_based\nruntime=1\nwrite_bw_log\nwrite_iops_log\nlog_avg_msec=200\nioengine=libaio";
    let (thread, logs) = run(job, 500_000, |_| 2 * MS, 7);
    let want = |v: u64| (1..=5).map(|n| format!("{}, {v}, 0, 0, 0", n * 200)).collect::<Vec<_>>();
    let bw = lines(&logs, "j_bw.3.log");
    // Completions at 2.5, 5, ... ms: those at 200, 400, ... ms belong to the next window.
    assert_eq!(bw[0], "200, 1580, 0, 0, 0", "79 I/Os");
    assert_eq!(bw[1..], want(1600)[1..]);
    assert_eq!(lines(&logs, "j_iops.3.log")[0], "200, 395, 0, 0, 0");
    assert_eq!(lines(&logs, "j_iops.3.log")[1..], want(400)[1..]);
    let read = &thread.stats().dirs[0];
    assert_eq!((read.iops.samples, read.iops.min, read.iops.max, read.bw_kib.min), (5, 395, 400, 1580));
}

#[test]
fn bwavgtime_and_iopsavgtime_replace_the_window() {
    let job = "rw=read\ntime_based\nruntime=1\nwrite_bw_log\nwrite_iops_log\nlog_avg_msec=200\nbwavgtime=100\niopsavgtime=400";
    let (thread, logs) = run(job, 0, |_| 2 * MS, 1);
    let times = |name: &str| -> Vec<String> {
        lines(&logs, name).iter().map(|l| l.split(',').next().unwrap().to_owned()).collect()
    };
    assert_eq!(times("j_bw.3.log"), ["100", "200", "300", "400", "500", "600", "700", "800", "900", "1000"]);
    assert_eq!(times("j_iops.3.log"), ["400", "800"]);
    let read = &thread.stats().dirs[0];
    assert_eq!((read.bw_kib.samples, read.iops.samples), (10, 2));
    // Without log_avg_msec the logs have a line for each I/O, whatever the window of the samples.
    let (thread, logs) = run(&job.replace("log_avg_msec=200\n", ""), 0, |_| 2 * MS, 1);
    assert_eq!(
        (lines(&logs, "j_bw.3.log").len() as u64, thread.stats().dirs[0].iops.samples),
        (thread.stats().dirs[0].ios, 2)
    );
}

#[test]
fn windows_without_io_have_no_line() {
    let job = "rw=read\nsize=16k\nwrite_iops_log\nlog_avg_msec=100\nthinktime=350ms\nthinktime_blocks=1";
    let (_, logs) = run(job, 0, |_| 10 * MS, 1);
    assert_eq!(
        lines(&logs, "j_iops.3.log"),
        ["100, 10, 0, 0, 0", "400, 10, 0, 0, 0", "800, 10, 0, 0, 0", "1100, 10, 0, 0, 0"]
    );
}

#[test]
fn times_count_from_the_end_of_the_ramp() {
    let job = "rw=read\ntime_based\nramp_time=1\nruntime=1\nwrite_lat_log\nwrite_iops_log\nioengine=libaio";
    let (thread, logs) = run(job, 0, |_| 100 * MS, 1);
    // The I/O at the end of the ramp is the last one of it.
    let times: Vec<String> = (1..=10).map(|n| format!("{}, 100000000, 0, 4096, 0", n * 100)).collect();
    assert_eq!(lines(&logs, "j_lat.3.log"), times);
    assert_eq!(lines(&logs, "j_slat.3.log").len(), 10);
    assert_eq!((lines(&logs, "j_iops.3.log").len() as u64, thread.stats().total_ios()), (10, 10));
}

#[test]
fn flushes_have_no_lines_and_reading_back_has_as_reads() {
    let job = "rw=write\nbs=16k\nfsync=1\nend_fsync=1\nverify=crc32c\nloops=2\nwrite_lat_log\nwrite_bw_log\nwrite_iops_log\nlog_avg_msec=1000";
    let each = job.replace("log_avg_msec=1000", "ioengine=libaio");
    let (thread, logs) = run(&each, 1000, |_| MS, 2);
    let dirs: String = lines(&logs, "j_lat.3.log").iter().map(|l| l.split(", ").nth(2).unwrap().to_owned()).collect();
    assert_eq!(dirs, "1111000011110000");
    for name in ["j_slat.3.log", "j_clat.3.log", "j_bw.3.log", "j_iops.3.log"] {
        assert_eq!(lines(&logs, name).len() as u64, thread.stats().total_ios(), "{name}");
    }
    let (_, logs) = run(job, 0, |_| 100 * MS, 1);
    let iops: Vec<String> = lines(&logs, "j_iops.3.log");
    // 4 writes and 4 flushes end at 800 ms, then the job reads back. The second pass writes at 1400 ms and later.
    assert!(iops.iter().all(|l| l.split(", ").nth(2) == Some("1")), "windows count no reading back: {iops:?}");
}

#[test]
fn priorities_are_the_kernel_s_numbers() {
    for (options, want) in [
        ("log_prio=1", "0x0000"),
        ("log_prio=1\nprio=4", "0x4004"),
        ("log_prio=1\nprio=1\nprioclass=3", "0x6001"),
        ("prioclass=1", "1"),
        ("prio=4", "0"),
    ] {
        let (_, logs) = run(&format!("rw=read\nbs=64k\nwrite_bw_log\n{options}"), 0, |_| MS, 1);
        assert_eq!(lines(&logs, "j_bw.3.log"), [format!("1, 65536, 0, 65536, {want}")], "{options}");
    }
}

#[test]
fn histograms_are_those_between_two_lines() {
    let job = "rw=read\nbs=4k\ntime_based\nruntime=1\nwrite_hist_log\nlog_hist_msec=100\nlog_hist_coarseness=6";
    let (_, logs) = run(job, 0, |_| 9 * MS, 3);
    let hist = lines(&logs, "j_clat_hist.3.log");
    // The first interval begins at the first completion, at 9 ms; lines are due at 109, 209, ... ms.
    let times: Vec<&str> = hist.iter().map(|l| l.split(", ").next().unwrap()).collect();
    assert_eq!(times, ["117", "216", "315", "414", "513", "612", "711", "810", "909"]);
    for (n, line) in hist.iter().enumerate() {
        let fields: Vec<u64> = line.split(", ").map(|f| f.parse().unwrap()).collect();
        assert_eq!((fields.len(), fields[1], fields[2]), (3 + 29, 0, 4096));
        // 9 ms are between 2^23 and 2^24 ns: the group 23 - 5.
        assert_eq!((fields[3 + 18], fields[3..].iter().sum::<u64>()), if n == 0 { (13, 13) } else { (11, 11) });
    }
    let (_, logs) = run(&job.replace("log_hist_coarseness=6", "log_hist_coarseness=0"), 0, |_| 9 * MS, 3);
    assert_eq!(lines(&logs, "j_clat_hist.3.log")[0].split(", ").count(), 3 + 1856);
    let (_, logs) = run(&job.replace("log_hist_msec=100\n", ""), 0, |_| 9 * MS, 3);
    assert_eq!(logs["j_clat_hist.3.log"], "", "without an interval there is no line, as in fio");
}

#[test]
fn a_job_that_is_not_asked_keeps_nothing() {
    let job =
        JobFile::parse_str("[j]\nsize=64k\nwrite_bw_log\n", &ParseContext::bare("t.fio"), &[]).unwrap().jobs.remove(0);
    let mut thread = JobThread::new(&job, ThreadId { instance: 0, number: 1, entropy: 0 }, 1 << 20).unwrap();
    assert!(thread.take_log(true).is_none());
    assert_eq!(job.log_files(12), [(LogKind::Bw, "j_bw.12.log".to_owned())]);
}
