// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Known, damaged and arbitrary traces and results, and a run of a known job that is traced and profiled.

use super::shape::Arrival;
use super::*;
use crate::run::{RunSpec, Unobserved};
use crate::trace::{TraceFormat, write as write_trace};
use crate::world::execute;
use proptest::prelude::*;
use sim::rng::Rng;
use std::sync::Arc;
use workload::job::{JobFile, ParseContext};

mod rough;

/// One record of blktrace.
fn record(time_ns: u64, sector: u64, bytes: u32, action: u32, pid: u32, payload: &[u8]) -> Vec<u8> {
    let mut r = Vec::new();
    r.extend(0x6561_7407u32.to_le_bytes());
    r.extend(1u32.to_le_bytes());
    r.extend(time_ns.to_le_bytes());
    r.extend(sector.to_le_bytes());
    for word in [bytes, action, pid, 259 << 20, 0] {
        r.extend(word.to_le_bytes());
    }
    r.extend(0u16.to_le_bytes());
    r.extend((payload.len() as u16).to_le_bytes());
    r.extend(payload);
    r
}

const Q_READ: u32 = 1 | (1 << 4 | 1) << 16;
const D_READ: u32 = 7 | (1 << 6 | 1) << 16;
const R_READ: u32 = 6 | (1 << 5 | 1) << 16;
const C_READ: u32 = 8 | (1 << 7 | 1) << 16;
const NAME: u32 = (1 << 10) << 16;

/// `n` sequential reads of 8 sectors, one at a time: 50 us to the device, 100 us there, then a pause.
fn one_at_a_time(n: u64, pause_us: u64) -> Vec<u8> {
    let mut bytes = record(0, 0, 0, NAME, 7, b"reader\0\0");
    for i in 0..n {
        let at = i * (150 + pause_us) * 1000;
        bytes.extend(record(at, i * 8, 4096, Q_READ, 7, &[]));
        bytes.extend(record(at + 50_000, i * 8, 4096, D_READ, 7, &[]));
        // The completion has the process that happens to run on that CPU.
        bytes.extend(record(at + 150_000, i * 8, 4096, C_READ, 0, &[]));
    }
    bytes
}

fn binary(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let mut trace = Trace::default();
    records::read("t", bytes, &mut trace)?;
    of_trace("t", trace, None)
}

fn lines(text: &str) -> Result<Profile, ProfileError> {
    let mut trace = Trace::default();
    text::read("t", text.as_bytes(), &mut trace)?;
    of_trace("t", trace, None)
}

#[test]
fn records_become_a_job_and_the_times_of_its_disk() {
    let p = binary(&one_at_a_time(200, 0)).unwrap();
    let j = &p.jobs[0];
    let read = j.read.as_ref().unwrap();
    assert_eq!((j.name.as_str(), j.numjobs, j.iodepth, read.ios, j.arrival), ("reader", 1, 1, 200, Arrival::Closed));
    assert_eq!((read.sequential, read.sizes.as_slice(), read.lat_us), (1.0, [(4096, 1.0)].as_slice(), 150.0));
    assert!((read.iops - 1e6 / 150.0).abs() < 1.0);
    assert_eq!((j.offset_bytes, j.size_bytes), (0, 200 * 4096));
    let d = &p.disk;
    assert_eq!((d.read_us.unwrap().value, d.depth), (100.0, 1));
    assert_eq!((d.parallel.unwrap().low, d.parallel.unwrap().high), (1.0, 65_536.0));
    let job = write::job_file(&p);
    let file = JobFile::parse_str(&job, &ParseContext::bare("j"), &[]).unwrap_or_else(|e| panic!("{e}\n{job}"));
    assert_eq!((file.jobs[0].name.as_str(), file.jobs[0].iodepth), ("reader", 1));
    let pause = binary(&one_at_a_time(200, 850)).unwrap();
    let Arrival::Think { us } = pause.jobs[0].arrival else { panic!("{pause:?}") };
    assert!((us - 850.0).abs() < 10.0, "{us}");
}

#[test]
fn lines_of_blkparse_say_the_same_as_records() {
    let mut text = String::new();
    for i in 0..200u64 {
        let t = |us: u64| format!("{}.{:09}", (i * 150 + us) / 1_000_000, (i * 150 + us) % 1_000_000 * 1000);
        text += &format!("259,0    0  {i}  {}     7  Q   R {} + 8 [reader]\n", t(0), i * 8);
        text += &format!("259,0    0  {i}  {}     7  G   R {} + 8 [reader]\n", t(10), i * 8);
        text += &format!("259,0    0  {i}  {}     7  D   R {} + 8 [reader]\n", t(50), i * 8);
        text += &format!("259,0    0  {i}  {}     0  C   R {} + 8 [0]\n", t(150), i * 8);
    }
    text += "CPU0 (t):\n Reads Queued:         200,      800KiB\n";
    let (a, b) = (lines(&text).unwrap(), binary(&one_at_a_time(200, 0)).unwrap());
    assert_eq!((&a.jobs, &a.disk), (&b.jobs, &b.disk));
}

/// A journal's process flushes for the writes of others. Its flushes were dropped, with the cost of making the writes durable.
#[test]
fn flushes_of_a_process_that_only_flushes_count_for_the_writer() {
    let trace = |with_writes: bool| {
        let (mut text, mut at) = (String::new(), 0u64);
        let mut line = |pid: u32, act: char, rwbs: &str, extent: &str, name: &str| {
            at += 20_000;
            let time = format!("{}.{:09}", at / 1_000_000_000, at % 1_000_000_000);
            text += &format!("259,0 0 1 {time} {pid} {act} {rwbs} {extent}[{name}]\n");
        };
        for i in 0..400u64 {
            let (op, extent) = (if with_writes && i % 4 > 0 { "WS" } else { "R" }, format!("{} + 8 ", i * 64));
            ['Q', 'D', 'C'].into_iter().for_each(|act| line(7, act, op, &extent, "postgres"));
            if i % 8 == 0 {
                ['Q', 'D', 'C'].into_iter().for_each(|act| line(9, act, "FN", "", "jbd2/vda1-8"));
            }
        }
        lines(&text).unwrap()
    };
    let p = trace(true);
    assert_eq!((p.jobs.len(), p.jobs[0].fsync), (1, Some(6)), "300 writes, 50 flushes: {p:?}");
    let note = "50 flushes of jbd2_vda1-8, which has no other I/O, count for 'postgres', which writes most";
    assert!(p.notes.iter().any(|n| n == note), "{:?}", p.notes);
    let p = trace(false);
    assert_eq!((p.jobs.len(), p.jobs[0].fsync), (1, None));
    assert!(p.notes.iter().any(|n| n == "50 flushes of jbd2_vda1-8 are left out: no process writes"), "{:?}", p.notes);
}

/// Part of what blktrace recorded of a virtio disk under Linux 6.1, from a moment with nothing in flight. fio read and
/// wrote the disk and flushed its cache. In it a flush completes twice: as a FLUSH, and for its submitter as a write
/// without data.
#[test]
fn flushes_of_a_kernel_end_once() {
    let mut trace = Trace::default();
    records::read("t", &include_bytes!("tests/linux-6.1.blktrace")[..], &mut trace).unwrap();
    let is = |act: Act, class: Class| trace.events.iter().filter(|e| e.act == act && e.class == class).count();
    let flushes = is(Act::Queue, Class::Flush);
    let empty = trace.events.iter().filter(|e| e.act == Act::Complete && e.class == Class::Write && e.bytes == 0);
    assert!(flushes > 3 && empty.count() == flushes);
    let lives = lives::of(&trace, trace.events[0].device);
    let ended = lives.bios.iter().filter(|b| b.class == Class::Flush).count();
    assert_eq!((ended, lives.lost_bios, lives.unknown), (flushes, 0, 0), "{:?}", lives.notes());
}

#[test]
fn merged_split_and_overlapping_bios_end_once() {
    let q = |time, sector, sectors: u32| record(time, sector, sectors << 9, Q_READ, 1, &[]);
    let c = |time, sector, sectors: u32| record(time, sector, sectors << 9, C_READ, 0, &[]);
    // Two bios that are merged; one that is split in two, with the second half completing first; two at the same sector.
    let all = [
        q(0, 0, 8),
        q(1, 8, 8),
        c(100, 0, 16),
        q(200, 100, 16),
        c(300, 108, 8),
        c(400, 100, 8),
        q(500, 0, 8),
        q(501, 0, 8),
    ];
    let bytes = [all.concat(), [c(600, 0, 8), c(700, 0, 8)].concat()].concat();
    let mut trace = Trace::default();
    records::read("t", bytes.as_slice(), &mut trace).unwrap();
    let lives = lives::of(&trace, 259 << 20);
    let done: Vec<u64> = lives.bios.iter().map(|b| b.done_ns).collect();
    assert_eq!((done, lives.unfinished, lives.unknown), (vec![100, 100, 400, 600, 700], 0, 0));
}

#[test]
fn what_is_no_trace_is_refused_with_its_place() {
    let good = one_at_a_time(3, 0);
    let e = |bytes: &[u8]| binary(bytes).unwrap_err().to_string();
    let n = good.len();
    assert!(
        e(&good[..n - 1]).starts_with(&format!("t at byte {}: incomplete last record", n - 48)),
        "{}",
        e(&good[..n - 1])
    );
    let mut bad = good.clone();
    bad[n - 48] = 9;
    assert!(e(&bad).contains("version 9: must be 7"), "{}", e(&bad));
    bad[n - 46] = 0;
    assert!(e(&bad).contains("not a blktrace record"), "{}", e(&bad));
    let big: Vec<u8> = 0x6561_7407u32.to_be_bytes().into_iter().chain([0; 44]).collect();
    assert!(e(&big).contains("big-endian"), "{}", e(&big));
    assert!(e(&[]).contains("no submissions (Q)"), "{}", e(&[]));
    assert!(e(&record(0, 1 << 60, 512, Q_READ, 1, &[])).contains("beyond any disk"));
    let [late, later] =
        [(1 << 63, Q_READ), ((1 << 63) + 9, C_READ)].map(|(at, what)| record(at, 0, 4096, what, 7, &[]));
    assert!(e(&[good.clone(), late, later].concat()).contains("must be at most a year"));
    assert!(e(&record(0, 0, 512, Q_READ, 1, &[])).contains("both submitted (Q) and completed (C)"));
    for (line, says) in [
        ("259,0 0 1 0.5 7 Q R 0 + 8 [x]", "t:1: time '0.5': must be seconds with nine decimals"),
        ("259,0 0 1 0.500000000 7 Q R 0 8 [x]", "without 'SECTOR + LENGTH'"),
        ("259,0 0 1 0.500000000 many Q R 0 + 8 [x]", "process 'many': must be a number"),
        ("259,0 0", "sequence is missing"),
    ] {
        let e = lines(line).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
    let mut two = Trace::default();
    for (device, at) in [(1, 0), (2, 10)] {
        for act in [Act::Queue, Act::Complete] {
            let (sector, bytes, pid, class) = (0, 4096, 1, Class::Read);
            two.push(TraceEvent { time_ns: at, sector, bytes, pid, device, act, class }).unwrap();
        }
    }
    let e = of_trace("t", two.clone(), None).unwrap_err().to_string();
    assert!(
        e.contains("2 devices in one trace: choose one with --device; the trace has 0,1 (1 I/Os), 0,2 (1 I/Os)"),
        "{e}"
    );
    assert!(of_trace("t", two.clone(), Some(2)).is_ok() && of_trace("t", two, Some(9)).is_err());
    assert_eq!(
        (device_of("259,3"), device_of("8:16"), device_of("sda"), device_of("9999,1")),
        (Some(259 << 20 | 3), Some(8 << 20 | 16), None, None)
    );
}

/// Found by fuzzing: job files have smaller blocks than discards may be.
#[test]
fn a_size_beyond_that_of_job_files_is_the_largest_of_them() {
    let all = [(0, 1 << 31, Q_READ), (9, 1 << 31, C_READ), (20, 4096, Q_READ), (30, 4096, C_READ)];
    let bytes: Vec<u8> = all.into_iter().flat_map(|(at, bytes, what)| record(at, 0, bytes, what, 7, &[])).collect();
    let job = write::job_file(&binary(&bytes).unwrap());
    assert!(job.contains("\nbssplit=4096/50:1073741824/50\n"), "{job}");
    JobFile::parse_str(&job, &ParseContext::bare("j"), &[]).unwrap_or_else(|e| panic!("{e}\n{job}"));
}

/// Found by another seed of the test below.
#[test]
fn io_of_less_than_a_sector_becomes_a_block_of_its_file() {
    let all = [(0, Q_READ), (9, C_READ)];
    let bytes: Vec<u8> = all.into_iter().flat_map(|(at, what)| record(at, 7, 1, what, 7, &[])).collect();
    let job = write::job_file(&binary(&bytes).unwrap());
    assert!(job.contains("\nbs=4096\n") && job.contains("\nsize=4096\n"), "{job}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_profile_or_an_error(
        ops in prop::collection::vec((0u64..2000, 0u64..64, 0u32..5000, 0u32..16, any::<u16>(), 0u32..4), 0..300),
        tail in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = Vec::new();
        for (time, sector, len, act, category, pid) in ops {
            bytes.extend(record(time, sector, len, act | u32::from(category) << 16, pid, &[]));
        }
        let whole = binary(&bytes);
        if let Ok(p) = &whole {
            let job = write::job_file(p);
            prop_assert!(JobFile::parse_str(&job, &ParseContext::bare("j"), &[]).is_ok(), "{job}");
        }
        bytes.extend(&tail);
        let _ = binary(&bytes);
        let _ = lines(&String::from_utf8_lossy(&bytes));
        let _ = results::read("r", &String::from_utf8_lossy(&tail));
    }
}

const RUN: &str = r#"fio: a warning
{"global options": {"ioengine": "libaio", "direct": "1", "runtime": "10"},
 "jobs": [
  {"jobname": "db", "job options": {"rw": "randrw", "bs": "8k", "iodepth": "16", "numjobs": "2", "filename": "/dev/x"},
   "read": {"total_ios": 70000, "io_bytes": 573440000, "runtime": 10000, "clat_ns": {"mean": 900000.0}},
   "write": {"total_ios": 30000, "io_bytes": 245760000, "runtime": 10000, "clat_ns": {"mean": 1200000.0}}},
  {"jobname": "db", "job options": {"rw": "randrw", "bs": "8k", "iodepth": "16", "numjobs": "2"},
   "read": {"total_ios": 70000, "io_bytes": 573440000, "runtime": 10000, "clat_ns": {"mean": 900000.0}},
   "write": {"total_ios": 30000, "io_bytes": 245760000, "runtime": 10000, "clat_ns": {"mean": 1200000.0}}}]}"#;

#[test]
fn results_of_fio_become_its_jobs() {
    let text = RUN;
    let p = results::read("r.json", text).unwrap();
    assert_eq!((p.jobs.len(), p.jobs[0].numjobs, p.jobs[0].iodepth), (1, 2, 16));
    assert!((p.jobs[0].iops() - 20_000.0).abs() < 0.1 && (p.jobs[0].lat_us() - 990.0).abs() < 0.1);
    // I/Os of both threads were in flight: 20000 per second of 990 us each.
    assert!((p.jobs[0].in_flight - 9.9).abs() < 0.01 && p.disk.depth == 20, "{:?} {:?}", p.jobs[0], p.disk);
    let read = p.disk.read_us.unwrap();
    assert!(read.low < 300.0 && read.high == 900.0, "waiting is in fio's latencies: {read:?}");
    let job = write::job_file(&p);
    assert!(!job.contains("filename") && job.contains("\n[db]\nbs=8k\n"), "{job}");
    let odd = results::read("r.json", &text.replace("\"db\"", "\"d\\\"=b\"")).unwrap();
    let machine = write::edit("", &write::machine_lines(&odd));
    assert!(machine.contains("\n\"d\\\"=b.iops\" = 20000.00\n"), "{machine}");
    assert_eq!(write::edit(&machine, &write::machine_lines(&odd)), machine);
    let e = |text: &str| results::read("r.json", text).unwrap_err().to_string();
    assert!(e("{\n\"jobs\": [,]}").starts_with("r.json:2: "), "{}", e("{\n\"jobs\": [,]}"));
    assert!(e("{}").contains("there is no list 'jobs'"));
    assert!(e(&text.replace("\"db\"", "\"d]\\nexec=x\"")).contains("without a 'jobname' of one line"));
    assert!(e(&text.replace("8k", "8k\\nexec_prerun=x")).contains("option 'bs': name and value must be one line"));
}

#[test]
fn a_machine_file_keeps_what_a_profile_does_not_know() {
    let old = "# mine\n[disk] # a disk\nsize_gib = 5 # large\nread_us = 1 # a guess\n\n# about costs\n[costs.path]\nirq_ns = 5\n";
    let p = binary(&one_at_a_time(200, 0)).unwrap();
    let new = write::edit(old, &write::machine_lines(&p));
    let start = "# mine\n[disk] # a disk\nsize_gib = 5 # large\nread_us = 100.0 # from the profile\nwrite_us = 100.0 # from the profile\n";
    assert!(new.starts_with(start), "{new}");
    assert!(new.contains("\n# about costs\n[costs.path]\nirq_ns = 5\n"), "{new}");
    assert!(
        new.contains("\n[uncertain]\n\"disk.read_us\" = [97.0, 103.0]\n")
            && new.contains("\"reader.lat_us\" = 150.00\n"),
        "{new}"
    );
    assert_eq!(write::edit(&new, &write::machine_lines(&p)), new, "twice is once");
}

/// Reads that a clock triggers, and that take a while, are no closed loop.
#[test]
fn a_rate_is_told_from_a_depth() {
    let mut rng = Rng::new(1);
    let mut events: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut at = 0;
    for i in 0..2000u64 {
        at += (-1e6 * ((rng.next() >> 11) as f64 / (1u64 << 53) as f64).max(1e-9).ln()) as u64;
        events.push((at, record(at, i * 800, 4096, Q_READ, 3, &[])));
        events.push((at + 2_500_000, record(at + 2_500_000, i * 800, 4096, C_READ, 0, &[])));
    }
    events.sort_by_key(|e| e.0);
    let p = binary(&events.into_iter().flat_map(|e| e.1).collect::<Vec<u8>>()).unwrap();
    let j = &p.jobs[0];
    assert_eq!(j.arrival, Arrival::Open { poisson: true });
    assert!((j.in_flight - 2.5).abs() < 0.3 && j.iodepth >= 6, "{j:?}");
    let job = write::job_file(&p);
    assert!(job.contains("\nrate_process=poisson\n") && job.contains("\n[pid3]\nrw=randread\nbs=4096\n"), "{job}");
}

/// The profile has the mix, sizes, order and depth of the job.
#[test]
fn a_traced_run_is_profiled_as_the_job_that_it_was() {
    let job = "[global]\nioengine=io_uring\ndirect=1\ntime_based\nruntime=1\nsize=256m\nnorandommap\n\
               [mixed]\nrw=randrw\nrwmixread=70\nbssplit=4k/75:16k/25\niodepth=8\n[scan]\nrw=write\nbs=64k\niodepth=2\n";
    let file = JobFile::parse_str(job, &ParseContext::bare("test"), &[]).unwrap();
    let spec = RunSpec {
        file: &file,
        target: Some("model:size=1g,lat_read_us=1000,lat_write_us=2000,parallel=64"),
        settings: &[("scheduler".into(), "none".into())],
        entropy: 1,
        stop: Arc::default(),
        trace_events: 1 << 18,
        force: false,
        slices: false,
        files: None,
    };
    let run = execute(&spec, &mut Unobserved).unwrap();
    let dir = std::env::temp_dir().join(format!("mqblk-profile-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let written = write_trace(&run, &dir.join("t"), TraceFormat::Blktrace).unwrap();
    let mut trace = Trace::default();
    for f in &written.files {
        records::read("t", std::fs::File::open(f).unwrap(), &mut trace).unwrap();
    }
    std::fs::remove_dir_all(&dir).unwrap();
    let p = of_trace("t", trace, None).unwrap();
    let of = |name: &str| p.jobs.iter().find(|j| j.name == name).unwrap_or_else(|| panic!("{name}: {p:#?}"));
    let (mixed, scan) = (of("mixed"), of("scan"));
    let (r, w) = (mixed.read.as_ref().unwrap(), mixed.write.as_ref().unwrap());
    let share = r.ios as f64 / (r.ios + w.ios) as f64;
    assert!((share - 0.7).abs() < 0.05, "{share}");
    let small = r.sizes.iter().find(|(s, _)| *s == 4096).unwrap().1;
    assert!((small - 0.75).abs() < 0.05 && r.sizes.len() == 2, "{:?}", r.sizes);
    assert!(r.sequential < 0.05 && scan.write.as_ref().unwrap().sequential > 0.95, "{p:#?}");
    assert_eq!((mixed.iodepth, scan.iodepth, mixed.numjobs), (8, 2, 1));
    assert_eq!((mixed.arrival, scan.arrival), (Arrival::Closed, Arrival::Closed));
    // The device takes the configured time, and more on a busy host.
    let [read, write] = [p.disk.read_us, p.disk.write_us].map(|t| t.unwrap().value);
    assert!(read >= 990.0 && write >= 1990.0 && read < write, "{read} {write}");
}
