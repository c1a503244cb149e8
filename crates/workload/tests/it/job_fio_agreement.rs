// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same jobs for fio and for this parser: both accept, both reject, or the difference is listed with its reason.
//!
//! fio 3.33 is needed (Debian package `fio`); the tests fail without it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use workload::job::*;

fn fio(name: &str, text: &str, arguments: &[&str]) -> Output {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).expect("the target directory is writable");
    let output = Command::new("fio").args(arguments).arg(&path).output();
    output.expect("fio 3.33 is needed to compare with: apt-get install fio")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Makes a section from job lines that are separated by `|`.
fn section(name: &str, lines: &str) -> String {
    format!("[{name}]\nsize=1g\n{}\n", lines.replace('|', "\n"))
}

/// Returns which cases fio accepts. fio stops at the first job it rejects, so a single run is enough only if it rejects none.
fn accepted_by_fio(file: &str, cases: &[&str]) -> Vec<bool> {
    let accepts = |text: &str| {
        let output = fio(file, text, &["--parse-only"]);
        output.status.success() && !said(&output).contains(" dropped")
    };
    let all: String = cases.iter().enumerate().map(|(n, lines)| section(&format!("case{n}"), lines)).collect();
    if accepts(&all) {
        return vec![true; cases.len()];
    }
    cases.iter().map(|lines| accepts(&section("case", lines))).collect()
}

fn ours(lines: &str) -> Result<JobFile, JobErrors> {
    let context = ParseContext { ncpus: 64, ..ParseContext::bare("t.fio") };
    JobFile::parse_str(&section("a", lines), &context, &[])
}

/// Values that both accept.
const GOOD: &[&str] = &[
    "bs=4k",
    "bs=4K",
    "bs=4096",
    "bs=4096b",
    "bs=4kb",
    "bs=0x1000",
    "bs=+4k",
    "bs=8k,32k",
    "bs=8k,32k,",
    "bs=,8k",
    "bs=,8k,",
    "bs=1k,2k,4k",
    "blocksize=1m",
    "bsrange=4k-8k",
    "bsrange=4k:8k",
    "bsrange=8k-4k",
    "bsrange=,4k-8k",
    "bsrange=1k-2k/4k-8k",
    "blocksize_range=1k-4k,2k-8k",
    "bssplit=4k/10:64k/50:32k/40",
    "bssplit=4k/50:1k/:32k/",
    "bssplit=4k/60:8k/50",
    "bssplit=4k/10:8k/10",
    "bssplit=2k/50:4k/50,4k/90:8k/10",
    "bssplit=4k",
    "ba=512",
    "blockalign=4k,8k",
    "blocksize_unaligned=0",
    "rw=read",
    "rw=write",
    "rw=trim",
    "rw=randread",
    "rw=randwrite",
    "rw=randtrim",
    "rw=rw",
    "rw=readwrite",
    "rw=randrw",
    "rw=trimwrite",
    "rw=randtrimwrite",
    "readwrite=read",
    "rw=read:8k",
    "rw=read:-8k",
    "rw=randread:8",
    "rw=randread:0",
    "rw_sequencer=identical",
    "rwmixread=0",
    "rwmixwrite=100",
    "io_size=2g",
    "io_limit=1k",
    "size=50%",
    "offset=20%",
    "offset=1m",
    "fileoffset=1m",
    "offset_increment=1g",
    "offset_increment=1%",
    "offset_align=4k",
    "filesize=2g",
    "filesize=4k-4k",
    "iodepth=32",
    "iodepth=4k",
    "iodepth_batch=0",
    "iodepth_batch_submit=8",
    "iodepth_batch_complete=8",
    "iodepth_batch_complete_min=0|iodepth_batch_complete_max=4",
    "iodepth_low=5|iodepth=2",
    "numjobs=16",
    "loops=3",
    "number_ios=100",
    "number_ios=1k",
    "ioengine=libaio",
    "ioengine=io_uring|hipri",
    "ioengine=sync",
    "ioengine=psync",
    "ioengine=vsync",
    "ioengine=pvsync",
    "ioengine=pvsync2|hipri=1",
    "ioengine=null",
    "ioengine=posixaio",
    "direct=0",
    "direct=1",
    "buffered=0",
    "direct=1|buffered=1",
    "sync=none",
    "sync=0",
    "sync=sync",
    "sync=1",
    "sync=dsync",
    "fsync=32",
    "fdatasync=1",
    "end_fsync=1",
    "overwrite=1",
    "invalidate=0",
    "runtime=10",
    "runtime=10m",
    "runtime=1d",
    "timeout=300ms",
    "runtime=1SEC",
    "runtime=300usec",
    "runtime=0",
    "time_based|runtime=5",
    "time_based=1|runtime=5",
    "ramp_time=5s",
    "startdelay=4",
    "startdelay=1-5",
    "startdelay=100ms:200ms",
    "rate=1m",
    "rate=1m,500k",
    "rate=,500k",
    "rate=500k,",
    "rate=0",
    "rate_iops=1000",
    "rate_iops=1,2,3",
    "rate_process=poisson|rate_iops=50",
    "thinktime=5",
    "thinktime=1ms|thinktime_spin=2ms",
    "thinktime=1|thinktime_blocks=8|thinktime_blocks_type=issue",
    "random_distribution=random",
    "random_distribution=zipf",
    "random_distribution=zipf:1.2",
    "random_distribution=zipf:1.2:0.25",
    "random_distribution=pareto:0.3",
    "random_distribution=normal:20",
    "random_distribution=zoned:60/10:30/20:8/30:2/40",
    "random_distribution=zoned:50/5:30/15:20/",
    "random_distribution=zoned_abs:60/20g:40/1g",
    "percentage_random=50",
    "percentage_random=50,60,70",
    "norandommap",
    "norandommap=0",
    "randseed=42",
    "randrepeat=0",
    "allrandrepeat=1",
    "verify=crc32c",
    "verify=crc32c-intel",
    "verify=md5",
    "verify=sha256",
    "verify=xxhash",
    "verify=0",
    "verify=pattern|verify_pattern=0xff%o\"abcd\"-12",
    "verify=pattern|verify_pattern=%o",
    "verify=md5|verify_pattern=300",
    "verify=md5|verify_backlog=16|verify_backlog_batch=4",
    "do_verify=0",
    "verify_fatal=1",
    "buffer_pattern=0x12345",
    "buffer_pattern=\"ab\"0x01",
    "buffer_pattern=-12",
    "zero_buffers",
    "refill_buffers=1",
    "scramble_buffers=0",
    "group_reporting",
    "new_group=1",
    "stonewall",
    "wait_for_previous=0",
    "thread",
    "threads=1",
    "prio=0",
    "prio=7",
    "prioclass=0",
    "prioclass=3",
    "percentile_list=50:99:99.9",
    "clat_percentiles=0",
    "lat_percentiles=1",
    "slat_percentiles=1",
    "kb_base=1000|bs=4kib",
    "directory=/tmp",
    "directory=/tmp:/var/tmp",
    "filename=x",
    "filename=a\\:b",
    "filename_format=x.$jobnum",
    "description=any text = more",
    "name=other",
    "nrfiles=1",
    "nrfiles=4",
    "nr_files=0",
    "filename=a:b\\:c::d",
    "filename=:a",
    "openfiles=2",
    "filesize=1m-2m",
    "file_service_type=roundrobin",
    "file_service_type=random:8",
    "file_service_type=sequential",
    "file_service_type=zipf",
    "file_service_type=zipf:1.2:0.5",
    "file_service_type=pareto:0.3",
    "file_service_type=normal",
    "file_service_type=gauss:10:0.1",
    "fallocate=none",
    "write_lat_log=x",
    "write_bw_log",
    "log_avg_msec=100",
    "gtod_reduce=1",
    "zonemode=strided|zonesize=1m",
    "zonesize=1m|zonerange=2m|zoneskip=4k",
    "flow=2|flow_id=1|flow_sleep=100",
    "exitall|exit_what=stonewall",
    "exitall_on_error",
    "exec_prerun=true",
    "rate_min=1m|rate_cycle=500",
    "rate_iops_min=10,20",
    "max_latency=10ms,1s",
    "thinktime=1|thinktime_iotime=1s",
    "latency_target=1ms|latency_window=1s|latency_percentile=99.9|latency_run=1",
    "ss=iops:1%|ss_dur=10|ss_ramp=1s",
    "steadystate=bw_slope:1m|steadystate_duration=5",
    "ioengine=libaio|cmdprio_percentage=10,20|cmdprio_class=2|cmdprio=7",
    "ioengine=libaio|cmdprio_bssplit=4k/10/1/0:8k/20,16k/100",
    "disable_lat=1|disable_clat=1|disable_slat=1",
    "unlink=1",
    "bs=$pagesize",
    "iodepth=8*$ncpus",
    "iodepth=(2+3)*$ncpus",
    "mem=mmap",
    "iomem_align=4k",
    "continue_on_error=none",
    "unified_rw_reporting=0",
    "rw =read",
];

/// Values that both reject.
const BAD: &[&str] = &[
    "bs=0",
    "bs=",
    "bs",
    "bs=x",
    "bs=1z",
    "bs=\"4k\"",
    "bsrange=8k",
    "bsrange=4k",
    "ba=0",
    "rw=foo",
    "rw=READ",
    "rw=rand",
    "rw=readx",
    "rw=",
    "rw_sequencer=foo",
    "rwmixread=101",
    "rwmixread=",
    "iodepth=0",
    "iodepth=",
    "iodepth",
    "iodepth=${UNSET_VARIABLE}",
    "size=99999999999999999999",
    "size=",
    "size=x",
    "filesize=0",
    "numjobs=x",
    "number_ios=abc",
    "direct=2",
    "direct=x",
    "direct",
    "overwrite=2",
    "sync=2",
    "sync",
    "runtime=x",
    "thread=",
    "time_based=x",
    "norandommap=x",
    "group_reporting=yes",
    "rate_process=x",
    "thinktime_blocks_type=x",
    "thinktime_blocks=abc",
    "percentage_random=101",
    "random_distribution=zipf:1",
    "random_distribution=pareto:1",
    "random_distribution=pareto:1.2",
    "random_distribution=foo",
    "random_distribution=normal:101",
    "random_distribution=zipf:1.2:2",
    "random_distribution=zoned:60/10:30/20",
    "random_distribution=zoned:50/50",
    "random_distribution=zoned",
    "randseed=abc",
    "verify=foo",
    "verify=md5x",
    "verify_pattern=99999999999",
    "buffer_pattern=deadbeef",
    "buffer_pattern=0x",
    "buffer_pattern=\"a",
    "buffer_pattern=%o",
    "verify_fatal",
    "verify_interval=10",
    "prio=8",
    "prioclass=4",
    "cpus_allowed_policy=x",
    "kb_base=1001",
    "percentile_list=101",
    "exit_what=foo",
    "zonemode=foo",
    "ss=iops|ss_dur=2",
    "ss=foo:1%|ss_dur=2",
    "name=",
    "description=",
    "wait_for=",
    "invalidate",
    "random_generator=foo",
    "iodept=4",
    "BS=4k",
    "nosuch=1",
    "size : 1m",
    "hread=1",
    "threadsx=1",
    "random_seed=3",
    "odirect=1",
    "gtod_offload=1",
    "mem=x",
    "fallocate=x",
];

/// Values that fio accepts and this parser rejects, because fio parses only a part of the value, or runs something other
/// than what was typed.
const STRICTER: &[(&str, &str)] = &[
    ("bs=1.5k", "fio reads 1 byte"),
    ("bs=1x", "fio reads 1 byte"),
    ("bs=4 k", "fio reads 4 bytes"),
    ("size=1mm", "fio reads 1m"),
    ("iodepth=8*2", "fio reads 8"),
    ("bs=1k,2k,4k,8k", "fio drops the fourth"),
    ("bs=8p", "no such buffer"),
    ("iodepth=100000", "requests are allocated at start"),
    ("numjobs=5000", "fio fails at run time"),
    ("numjobs=0", "fio fails at run time"),
    ("loops=0", "no run at all"),
    ("size=101%", "more than all"),
    ("size=50.5%", "fio reads 50 bytes"),
    ("size=-1", "fio reads 16 EiB"),
    ("size=1z", "zones need zonemode"),
    ("size=2k", "fio fails at run time"),
    ("offset=-4k", "fio reads 16 EiB"),
    ("runtime=1.5", "fio reads no runtime"),
    ("runtime=10x", "fio reads no runtime"),
    ("runtime=-1", "a time is not negative"),
    ("thinktime=-1", "a time is not negative"),
    ("time_based", "fio warns and runs once"),
    ("bssplit=4k/150", "more than all"),
    ("bssplit=4k/x", "not a number"),
    ("bssplit=0/100", "empty blocks"),
    ("bsrange=0-4k", "empty blocks"),
    ("random_distribution=zipf:0", "fio's zipf needs theta above 0"),
    ("random_distribution=zipf:-1", "fio's zipf needs theta above 0"),
    ("random_distribution=normal", "no deviation"),
    ("verify=pattern", "fio fills with random data"),
    ("verify=md5:4", "fio drops ':4'"),
    ("rw=randread,4", "fio drops ',4'"),
    ("percentile_list=50:x", "fio drops the bad one"),
    ("cpus_allowed=x", "fio reads no CPU"),
    ("cpus_allowed=1-0", "fio reads no CPU"),
    ("ioengine=nope", "fio fails at run time"),
    ("cpumask=0", "no CPU"),
    ("rate=1m|rate_iops=100", "fio fails at run time"),
    ("direct=1x", "fio reads 1"),
    ("zonemode=strided", "fio fails at run time"),
    ("rate=1m|rate_min=2m", "fio fails at run time"),
    ("norandommap=2", "neither 0 nor 1"),
    ("wait_for=b", "fio fails at run time: no such job above"),
    ("buffer_pattern='/etc/hostname'", "the parser reads no files"),
];

/// Values that fio rejects and this parser accepts.
const WIDER: &[(&str, &str)] = &[
    ("size=(4*1024)", "the manual has it; Debian's fio is built without"),
    ("hipri", "here polling does not depend on the engine"),
    ("rw= read", "space around a value means nothing"),
];

/// Compares acceptance of `cases` with the expectation, and reports every difference.
fn check(file: &str, cases: &[(&str, &str)], fio_accepts: bool, we_accept: bool) {
    let lines: Vec<&str> = cases.iter().map(|c| c.0).collect();
    let mut wrong = Vec::new();
    for ((lines, reason), fio) in cases.iter().zip(accepted_by_fio(file, &lines)) {
        let ours = ours(lines);
        if (fio, ours.is_ok()) != (fio_accepts, we_accept) {
            let ours = ours.map_or_else(|e| e.to_string(), |_| "accepted".to_owned());
            wrong.push(format!("'{lines}' ({reason}): fio accepts: {fio}; here: {ours}"));
        }
    }
    assert!(wrong.is_empty(), "fio should accept: {fio_accepts}, we: {we_accept}\n{}", wrong.join("\n"));
}

fn plain(cases: &'static [&'static str]) -> Vec<(&'static str, &'static str)> {
    cases.iter().map(|lines| (*lines, "")).collect()
}

#[test]
fn both_accept() {
    check("good.fio", &plain(GOOD), true, true);
}

#[test]
fn both_refuse() {
    check("bad.fio", &plain(BAD), false, false);
}

#[test]
fn stricter_where_listed() {
    check("stricter.fio", STRICTER, true, false);
}

#[test]
fn wider_where_listed() {
    check("wider.fio", WIDER, false, true);
}

/// Parses a size as fio prints it: `4096B`, `32.0KiB`, `1024KiB`. The cases below use sizes that fio prints without rounding.
fn printed_bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let unit = match &text[end..] {
        "B" => 1.0,
        "KiB" => 1024.0,
        "kB" => 1000.0,
        "MiB" => 1_048_576.0,
        _ => return None,
    };
    text[..end].parse::<f64>().ok().map(|n| (n * unit) as u64)
}

/// Compares the direction, block sizes and depth that fio prints for each job with those that this parser resolved.
#[test]
fn values_are_the_same() {
    let cases = [
        "bs=4k",
        "bs=4kb",
        "bs=512",
        "bs=0x400",
        "bs=1m",
        "bs=8k,32k",
        "bs=8k,32k,",
        "bs=,8k",
        "bs=,8k,",
        "bs=1k,2k,4k",
        "bs=4ki",
        "kb_base=1000|bs=4kib",
        "kb_base=1000|bs=4096",
        "bsrange=4k-8k",
        "bsrange=8k-4k,1k-2k",
        "bs=64k|bsrange=4k-8k",
        "bsrange=4k-8k|bs=64k",
        "bssplit=4k/50:16k/",
        "bssplit=4k/50:16k/,8k",
        "rw=randrw",
        "rw=readwrite",
        "rw=trimwrite",
        "rw=randwrite:8",
        "iodepth=7",
        "iodepth=0x10",
        "iodepth=2*$pagesize/1024",
        "bs=$pagesize/2",
    ];
    let text: String = cases
        .iter()
        .enumerate()
        .map(|(n, lines)| section(&format!("case{n}"), &format!("ioengine=null|number_ios=1|{lines}")))
        .collect();
    let said = said(&fio("values.fio", &text, &[]));
    let context = ParseContext::bare("t.fio");
    for (n, lines) in cases.iter().enumerate() {
        let line = said.lines().find(|l| l.starts_with(&format!("case{n}: (g=")));
        let line = line.unwrap_or_else(|| panic!("fio did not run '{lines}':\n{said}"));
        let job = JobFile::parse_str(&section("a", &format!("ioengine=null|{lines}")), &context, &[]);
        let job = job.unwrap_or_else(|e| panic!("{e}")).jobs.remove(0);
        let word = |before: &str, after: &str| {
            let rest = line.split_once(before).unwrap_or_else(|| panic!("no {before} in {line}")).1;
            rest.split(after).next().unwrap_or(rest).to_owned()
        };
        assert_eq!(job.rw.to_string(), word("rw=", ","), "{lines}");
        assert_eq!(job.iodepth.to_string(), word("iodepth=", " "), "{lines}");
        for (dir, mark) in [(Dir::Read, "(R) "), (Dir::Write, "(W) "), (Dir::Trim, "(T) ")] {
            let range = word(mark, ",");
            let (min, max) = range.split_once('-').expect("a range");
            let sizes = &job.block_sizes[dir];
            let printed = (printed_bytes(min), printed_bytes(max));
            assert_eq!((Some(sizes.min_bytes()), Some(sizes.max_bytes())), printed, "{dir} of '{lines}'");
        }
    }
}

/// Rules between options that fio checks when it builds a job, after parsing.
#[test]
fn both_refuse_to_run() {
    for lines in ["rate=1m|rate_iops=10", "bs=4k|size=2k", "wait_for=nobody"] {
        let text = section("a", &format!("ioengine=null|number_ios=1|{lines}"));
        let output = fio("run.fio", &text, &[]);
        assert!(!output.status.success(), "fio runs '{lines}':\n{}", said(&output));
        assert!(ours(lines).is_err(), "'{lines}' is accepted");
    }
}
