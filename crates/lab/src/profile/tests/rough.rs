// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces and results as machines have them: many threads, lost events, foreign commands, times of one nanosecond, what is not known.

use super::*;

/// blktrace's pid is the thread's: a database of many threads is one job, whatever the share of each.
#[test]
fn many_threads_of_one_name_are_one_job_and_what_is_left_out_is_said() {
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
    // Without names each is a job of its own, and most of them have to stay.
    trace.names.clear();
    let p = of_trace("t", trace, None).unwrap();
    assert!(ios(&p) >= 1700, "{} of 1801 I/Os are left", ios(&p));
}

/// SG_IO, as smartctl sends it, is no workload of the disk's.
#[test]
fn commands_past_the_block_layer_are_passed_over() {
    let good = "8,0 0 1 0.000000000 7 Q R 0 + 8 [x]\n8,0 0 3 0.000100000 0 C R 0 + 8 [0]\n";
    let smart = "8,0 0 2 0.000050000 9 D R 36 (12 00 00 00 24 00) [smartctl]\n8,0 0 2 0.000050000 9 D R 0 [smartctl]\n\
                 8,0 0 2 0.000060000 9 C R (12 00 00 00 24 00) [0]\n8,0 0 2 0.000060000 9 C R [0]\n";
    let (a, b) = (lines(&format!("{good}{smart}")).unwrap(), lines(good).unwrap());
    assert_eq!((a.jobs, a.disk), (b.jobs, b.disk));
}

/// What was not seen is no line of a machine file.
#[test]
fn a_spread_that_is_not_known_is_not_written() {
    let few = binary(&one_at_a_time(3, 0)).unwrap();
    // The name is 56 bytes; of each three records the second is the issue.
    let all = one_at_a_time(200, 0);
    let without: Vec<u8> =
        all[56..].chunks(48).enumerate().filter(|(i, _)| i % 3 != 1).flat_map(|(_, r)| r.to_vec()).collect();
    for p in [&few, &binary(&without).unwrap(), &results::read("r.json", RUN).unwrap()] {
        assert!(!write::machine_lines(p).iter().any(|l| l.1 == "jitter_pct"), "{p:?}");
    }
    let known = write::edit("", &write::machine_lines(&binary(&all).unwrap()));
    assert!(known.contains("\njitter_pct = 0 # from the profile\n"), "{known}");
}

/// Writes that come only when the device is full wait in it.
#[test]
fn writes_seen_only_behind_others_have_a_range_and_a_note() {
    let request = |class, us: u64, depth| lives::Request { class, bytes: 4096, device_ns: us * 1000, depth };
    let mut all = vec![request(Class::Read, 100, 1); 200];
    all.extend(vec![request(Class::Read, 800, 16); 100]);
    all.extend(vec![request(Class::Write, 800, 16); 100]);
    let mut notes = Vec::new();
    let write = service::of(&all, &mut notes).write_us.unwrap();
    assert!(notes.iter().any(|n| n.contains("no writes were seen") && n.contains("waiting")), "{notes:?}");
    assert!(write.low <= 100.0 && write.high >= 800.0, "{write:?}");
}

/// A simulated machine has no data to check, and refuses to.
#[test]
fn verify_is_left_out_of_the_job_of_a_run() {
    let more = "\"bs\": \"8k\", \"verify\": \"crc32c\", \"do_verify\": \"0\", \"verify_fatal\": \"1\"";
    let p = results::read("r.json", &RUN.replace("\"bs\": \"8k\"", more)).unwrap();
    let job = write::job_file(&p);
    assert!(job.lines().all(|l| l.starts_with('#') || !l.contains("verify")), "{job}");
    assert!(job.contains("# note: verify is left out"), "{job}");
    assert!(!results::read("r.json", RUN).unwrap().notes.iter().any(|n| n.contains("verify")));
}
