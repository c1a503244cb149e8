// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces and results as real machines produce them: many threads, lost events, foreign commands, times of one nanosecond,
//! unknown figures.

use super::*;

/// blktrace's pid is that of the thread. A database with many threads is one job, whatever the share of each thread.
#[test]
fn threads_of_one_name_make_one_job_and_omissions_are_reported() {
    let mut bytes = Vec::new();
    for pid in 1..=600 {
        bytes.extend(record(0, 0, 0, NAME, pid, b"db\0"));
    }
    bytes.extend(record(0, 0, 0, NAME, 601, b"cron\0"));
    let mut at = 0;
    for round in 0..3u64 {
        for pid in 1..=600u32 {
            at += 10_000;
            let sector = (round * 600 + u64::from(pid)) * 800;
            bytes.extend(record(at, sector, 4096, Q_READ, pid, &[]));
            bytes.extend(record(at + 5_000, sector, 4096, C_READ, 0, &[]));
        }
    }
    bytes.extend(record(at + 10_000, 0, 4096, Q_READ, 601, &[]));
    bytes.extend(record(at + 15_000, 0, 4096, C_READ, 0, &[]));
    let mut trace = Trace::default();
    records::read("t", bytes.as_slice(), &mut trace).unwrap();
    let p = of_trace("t", trace.clone(), None).unwrap();
    let ios = |p: &Profile| p.jobs.iter().map(|j| j.read.as_ref().unwrap().ios).sum::<u64>();
    assert_eq!((p.jobs.len(), p.jobs[0].name.as_str(), p.jobs[0].numjobs, ios(&p)), (1, "db", 600, 1800));
    assert!(p.notes.iter().any(|n| n.starts_with("1 processes") && n.contains("0.06 % of all I/Os")), "{:?}", p.notes);
    // Without names each thread is a job of its own, and most of the jobs have to stay.
    trace.names.clear();
    let p = of_trace("t", trace, None).unwrap();
    assert!(ios(&p) >= 1700, "{} of 1801 I/Os are left", ios(&p));
}

/// A request whose completion was lost no longer counts as at the device.
#[test]
fn a_lost_end_makes_no_later_depth_greater() {
    let mut bytes = record(0, 8_000_000, 4096, Q_READ, 7, &[]);
    bytes.extend(record(1, 8_000_000, 4096, D_READ, 7, &[]));
    bytes.extend(one_at_a_time(400, 0));
    let p = binary(&bytes).unwrap();
    assert_eq!(p.disk.depth, 1, "{:?}", p.disk);
    assert!(p.notes.iter().any(|n| n.contains("1 requests at the device without a completion")), "{:?}", p.notes);
    // Requests that were requeued, or at the device at the end of the trace, count as at the device.
    let mut bytes = one_at_a_time(400, 0);
    for (at, sector, action) in [(0, 8, D_READ), (1, 16, D_READ), (2, 8, R_READ), (3, 24, D_READ), (50_000, 24, C_READ)]
    {
        bytes.extend(record(70_000_000 + at, sector, 4096, action, 7, &[]));
    }
    let p = binary(&bytes).unwrap();
    assert_eq!(p.disk.depth, 2, "{:?}", p.disk);
    assert!(!p.notes.iter().any(|n| n.contains("at the device without a completion")), "{:?}", p.notes);
}

/// A sector is read repeatedly, and its first completion is lost. Later completions still belong to their own reads.
#[test]
fn a_lost_end_shifts_no_later_ones() {
    let mut bytes = one_at_a_time(100, 0);
    for i in 0..50u64 {
        let at = 20_000_000 + i * 10_000_000;
        bytes.extend(record(at, 0, 4096, Q_READ, 7, &[]));
        bytes.extend(record(at + 50_000, 0, 4096, D_READ, 7, &[]));
        if i > 0 {
            bytes.extend(record(at + 150_000, 0, 4096, C_READ, 0, &[]));
        }
    }
    let p = binary(&bytes).unwrap();
    let read = p.jobs[0].read.as_ref().unwrap();
    assert_eq!((read.ios, read.lat_us, p.disk.depth), (149, 150.0, 1), "{:?}", p.notes);
    assert!((p.disk.read_us.unwrap().value - 100.0).abs() < 0.1);
    assert!(
        p.notes.iter().any(|n| n.contains("1 I/Os and 1 requests at the device without a completion")),
        "{:?}",
        p.notes
    );
    // Neither the same sector twice at once nor I/O in flight at the end of the trace is a loss.
    let mut bytes = one_at_a_time(100, 0);
    for (at, action) in [(0, Q_READ), (1, Q_READ), (150_000, C_READ), (150_001, C_READ), (150_002, Q_READ)] {
        bytes.extend(record(20_000_000 + at, 0, 4096, action, 7, &[]));
    }
    let mut trace = Trace::default();
    records::read("t", bytes.as_slice(), &mut trace).unwrap();
    let lives = lives::of(&trace, 259 << 20);
    assert_eq!((lives.bios.len(), lives.unfinished, lives.lost_bios, lives.unknown), (102, 1, 0, 0));
}

/// More I/Os at once than any disk has: the oldest are dropped, and the count continues.
#[test]
fn a_trace_full_of_lost_ends_is_counted_to_its_end() {
    let mut trace = Trace::default();
    let mut push = |time_ns, sector, act| {
        let (bytes, pid, device, class) = (4096, 1, 1, Class::Read);
        trace.push(TraceEvent { time_ns, sector, bytes, pid, device, act, class }).unwrap();
    };
    for i in 0..(1u64 << 18) + 10 {
        push(i, i * 8, Act::Queue);
    }
    for i in 0..100u64 {
        push(1_000_000 + i * 100, 1 << 30, Act::Queue);
        push(1_000_050 + i * 100, 1 << 30, Act::Complete);
    }
    // Half a minute later the remaining ones are lost as well.
    push(31_000_000_000, 1 << 30, Act::Queue);
    push(31_000_000_050, 1 << 30, Act::Complete);
    let lives = lives::of(&trace, 1);
    assert_eq!((lives.bios.len(), lives.unknown, lives.lost_bios, lives.unfinished), (101, 0, (1 << 18) + 10, 0));
}

#[test]
fn an_end_in_the_nanosecond_of_its_submission_comes_after_it() {
    let mut text = String::new();
    for (act, who) in [("Q", "x"), ("C", "0")] {
        for sector in [0, 8, 16] {
            text += &format!("8,0 0 1 0.000000000 7 {act} R {sector} + 8 [{who}]\n");
        }
    }
    let p = lines(&text).unwrap();
    // The depth is the 99th percentile of depths 1, 2 and 3 at submission.
    assert_eq!((p.jobs[0].iodepth, p.jobs[0].read.as_ref().unwrap().ios), (2, 3));
    assert!(p.jobs[0].in_flight <= 3.0, "{}", p.jobs[0].in_flight);
    let late = text.replace("0.000000000", "18446744073.709551615");
    assert!(lines(&late).unwrap().jobs[0].iodepth <= 3);
}

/// SG_IO commands, as smartctl sends them, are no workload of the disk.
#[test]
fn commands_past_the_block_layer_are_passed_over() {
    let good = "8,0 0 1 0.000000000 7 Q R 0 + 8 [x]\n8,0 0 3 0.000100000 0 C R 0 + 8 [0]\n";
    let smart = "8,0 0 2 0.000050000 9 D R 36 (12 00 00 00 24 00) [smartctl]\n8,0 0 2 0.000050000 9 D R 0 [smartctl]\n\
                 8,0 0 2 0.000060000 9 C R (12 00 00 00 24 00) [0]\n8,0 0 2 0.000060000 9 C R [0]\n";
    let (a, b) = (lines(&format!("{good}{smart}")).unwrap(), lines(good).unwrap());
    assert_eq!((a.jobs, a.disk), (b.jobs, b.disk));
}

/// A figure that was not seen is not written to the machine file.
#[test]
fn a_spread_that_is_not_known_is_not_written() {
    let few = binary(&one_at_a_time(3, 0)).unwrap();
    // The record with the name has 56 bytes. Of each three records the second is the issue.
    let all = one_at_a_time(200, 0);
    let without: Vec<u8> =
        all[56..].chunks(48).enumerate().filter(|(i, _)| i % 3 != 1).flat_map(|(_, r)| r.to_vec()).collect();
    for p in [&few, &binary(&without).unwrap(), &results::read("r.json", RUN).unwrap()] {
        assert!(!write::machine_lines(p).iter().any(|l| l.1 == "jitter_pct"), "{p:?}");
    }
    let known = write::edit("", &write::machine_lines(&binary(&all).unwrap()));
    assert!(known.contains("\njitter_pct = 0 # from the profile\n"), "{known}");
}

/// Writes that arrive only when the device is full wait inside it.
#[test]
fn writes_seen_only_behind_others_have_a_range_and_a_note() {
    let request = |class, us: u64, depth| lives::Request { class, bytes: 4096, device_ns: us * 1000, depth };
    let mut all = vec![request(Class::Read, 100, 1); 200];
    all.extend(vec![request(Class::Read, 800, 16); 100]);
    all.extend(vec![request(Class::Write, 800, 16); 100]);
    let mut notes = Vec::new();
    let write = service::of(&all, &mut notes).write_us.unwrap();
    assert!(notes.iter().any(|n| n.contains("no writes reached an idle") && n.contains("queueing")), "{notes:?}");
    assert!(write.low <= 100.0 && write.high >= 800.0, "{write:?}");
}

/// A simulated machine has no data to verify, and rejects such a job.
#[test]
fn verify_is_left_out_of_the_job_of_a_run() {
    let more = "\"bs\": \"8k\", \"verify\": \"crc32c\", \"do_verify\": \"0\", \"verify_fatal\": \"1\"";
    let p = results::read("r.json", &RUN.replace("\"bs\": \"8k\"", more)).unwrap();
    let job = write::job_file(&p);
    assert!(job.lines().all(|l| l.starts_with('#') || !l.contains("verify")), "{job}");
    assert!(job.contains("# note: verify and its options are left out"), "{job}");
    assert!(!results::read("r.json", RUN).unwrap().notes.iter().any(|n| n.contains("verify")));
}
