// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `write_iolog` and `read_iolog` of `mqblk fio`, compared with those of fio 3.33 for the same job.

use crate::common;

use common::Dir;
use std::fs;

/// The lines of a log without their times.
fn without_times(dir: &Dir, name: &str) -> Vec<String> {
    let text = fs::read_to_string(dir.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let rest = |line: &str| line.split_once(' ').map_or(line, |(_, rest)| rest).to_owned();
    text.lines().map(rest).collect()
}

/// Runs a job file in directories of their own, with fio and with mqblk. `files` are in both.
fn both(job: &str, files: &[(&str, &str)]) -> [Dir; 2] {
    ["fio", "mqblk"].map(|program| {
        let dir = Dir::new("fio-iolog");
        dir.file("j.fio", job);
        files.iter().for_each(|(name, text)| fs::write(dir.path(name), text).unwrap());
        match program {
            "fio" => dir.program("fio", &["j.fio"]).exits(0),
            _ => dir.mqblk(&["fio", "j.fio"]).exits(0),
        };
        dir
    })
}

/// Jobs whose order of I/Os is the same in every run: each has a log of the job's name.
const JOBS: &str = "
[global]
size=64k
bs=4k
thread
ioengine=psync
[mixed]
rw=randrw
loops=2
write_iolog=mixed.log
end_fsync=1
[flushes]
rw=write
fsync=3
fdatasync=5
loops=2
end_fsync=1
write_iolog=flushes.log
[back]
rw=write
verify=crc32c
fdatasync=5
loops=2
ioengine=libaio
write_iolog=back.log
[backlog]
rw=randwrite
verify=crc32c
verify_backlog=4
ioengine=libaio
write_iolog=backlog.log
[files]
nrfiles=3
openfiles=2
rw=randwrite
size=48k
end_fsync=1
write_iolog=files.log
[in_turn]
nrfiles=4
file_service_type=sequential
rw=randread
loops=2
write_iolog=in_turn.log
[zipf]
nrfiles=4
openfiles=2
file_service_type=zipf:1.2
number_ios=60
rw=randread
write_iolog=zipf.log
[trims]
rw=trimwrite
ioengine=null
loops=2
write_iolog=trims.log
[ramp]
rw=randread
rate_iops=200
ramp_time=40ms
write_iolog=ramp.log
[only_files]
create_only=1
nrfiles=2
write_iolog=only_files.log
";

#[test]
fn a_job_s_log_has_the_lines_that_fio_writes() {
    let [fios, ours] = both(JOBS, &[]);
    for job in JOBS.split("\n[").skip(2).map(|section| section.split(']').next().unwrap()) {
        let name = format!("{job}.log");
        let expected = without_times(&fios, &name);
        assert_eq!(without_times(&ours, &name), expected, "{job}");
        assert!(expected.len() >= 3, "{job}: {expected:?}");
    }
    let text = fs::read_to_string(ours.path("mixed.log")).unwrap();
    let times: Vec<u64> = text.lines().skip(1).map(|l| l.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(text.starts_with("fio version 3 iolog\n") && times.is_sorted(), "{text}");
}

const V3: &str = "fio version 3 iolog
10 da add
12 db add
20 da open
25 db open
30 da read 0 4096
20000 da write 8192 8192
20010 db write 4096 4096
20020 da sync 0 0
20030 db read 4096 1024
40000 da read 4096 12288
40005 da datasync 0 0
40010 db write 65536 65536
50000 da close
50001 db close
";
const V2: &str = "fio version 2 iolog
da add
db add
da open
da read 0 4096
da wait 60 0
db open
da write 8192 8192
da wait 20 0
db write 4096 512
da read 20480 8192
da close
db close
";

/// Direction, size and offset of each I/O, from a log of each I/O.
fn ios(dir: &Dir, job: &str, number: usize) -> Vec<String> {
    let name = format!("{job}_bw.{number}.log");
    let text = fs::read_to_string(dir.path(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    text.lines().map(|line| line.splitn(3, ", ").nth(2).unwrap().to_owned()).collect()
}

#[test]
fn replays_have_the_ios_of_fio_s() {
    let zeroes = "\0".repeat(200_000);
    let files = [("v3", V3), ("v2", V2), ("da", &zeroes), ("db", &zeroes), ("dc", &zeroes)];
    let jobs = "[global]\nwrite_bw_log\nlog_offset=1\nioengine=psync\n[plain]\nread_iolog=v3\n[older]\nstonewall\nread_iolog=v2\n\
                [scaled]\nstonewall\nread_iolog=v3\nreplay_scale=3\nreplay_align=512\nreplay_time_scale=200\n\
                [fast]\nstonewall\nread_iolog=v3:v2\nnumjobs=3\nreplay_no_stall=1\nrw=randread\nsize=64k\nnumber_ios=2\n\
                [redirected]\nstonewall\nread_iolog=v3\nreplay_redirect=dc\nread_iolog_chunked=1\n";
    let [fios, ours] = both(jobs, &files);
    for (number, job) in ["plain", "older", "scaled", "fast", "fast", "fast", "redirected"].into_iter().enumerate() {
        let expected = ios(&fios, job, number + 1);
        assert_eq!(ios(&ours, job, number + 1), expected, "{job}");
        assert!(expected.len() >= 4, "{job}: {expected:?}");
    }
}

#[test]
fn a_recorded_trace_is_replayed_as_by_fio() {
    let dir = Dir::new("fio-iolog");
    fs::write(dir.path("data"), vec![1; 1 << 20]).unwrap();
    let record = "run --name=t --filename=data --size=128k --rw=randrw --ioengine=psync --fsync=5 --trace=t";
    dir.mqblk(&record.split(' ').collect::<Vec<_>>()).exits(0);
    let job = "[global]\nwrite_bw_log\nlog_offset=1\nioengine=psync\nread_iolog=t.blktrace.0\nreplay_redirect=data\n\
               [all]\n[part]\nstonewall\nreplay_skip=write,sync\nreplay_align=8192\nreplay_no_stall=1\n";
    dir.file("j.fio", job);
    let mut both = ["fio", "mqblk"].map(|program| {
        match program {
            "fio" => dir.program("fio", &["j.fio"]).exits(0),
            _ => dir.mqblk(&["fio", "j.fio", "--job-set=read_iolog=t"]).exits(0),
        };
        [ios(&dir, "all", 1), ios(&dir, "part", 2)]
    });
    let ours = std::mem::take(&mut both[1]);
    assert_eq!(ours, both[0]);
    assert!(ours[0].len() == 32 && (4..32).contains(&ours[1].len()), "{ours:?}");
}

/// In virtual time each I/O is issued when the trace says.
#[test]
fn a_simulated_machine_replays_at_the_times_of_the_trace() {
    let dir = Dir::new("fio-iolog");
    dir.file("v3", V3);
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/azure-p80.toml");
    let target = format!("--target=sim:{machine}");
    let job = ["fio", "--name=s", "--read_iolog=v3", "--ioengine=libaio", "--iodepth=8", "--write_iolog=log", &target];
    dir.mqblk(&job).exits(0);
    let text = fs::read_to_string(dir.path("log")).unwrap();
    let ios = |text: &str| -> Vec<(u64, String)> {
        let lines = text.lines().filter(|l| l.split(' ').count() == 5 && !l.contains("sync"));
        lines.map(|l| l.split_once(' ').unwrap()).map(|(at, io)| (at.parse().unwrap(), io.to_owned())).collect()
    };
    let (recorded, replayed) = (ios(V3), ios(&text));
    assert_eq!(replayed.len(), 6);
    for ((at, io), (then, same)) in recorded.iter().zip(&replayed) {
        // The first line is at 10 us.
        assert!(io == same && (at - 10).abs_diff(*then) <= 40, "{text}");
    }
}

#[test]
fn a_replay_that_cannot_be_made_is_refused() {
    let dir = Dir::new("fio-iolog");
    dir.file("reads", "fio version 3 iolog\n0 gone add\n0 gone open\n5 gone read 0 4096\n");
    dir.file("bad", "fio version 3 iolog\n0 gone add\n5 gone read 0 4096\n");
    dir.file("far", "fio version 3 iolog\n0 disk add\n0 disk open\n5 disk read 1048576 4096\n");
    dir.file("odd", "fio version 3 iolog\n0 disk add\n0 disk open\n5 disk read 4096 1020\n");
    fs::write(dir.path("disk"), vec![1; 1 << 20]).unwrap();
    for (options, says) in [
        (&["--read_iolog=no"][..], "read_iolog=no: 'no': No such file or directory"),
        (&["--read_iolog=bad"], "'bad', line 3: '5 gone read 0 4096': the file is not open"),
        (&["--read_iolog=reads"], "the trace reads 'gone', which does not exist; make it, or set replay_redirect"),
        (
            &["--read_iolog=far"],
            "read_iolog=1052672: is where the I/O of the trace ends, and the target has 1048576 bytes",
        ),
        (
            &["--read_iolog=odd", "--direct=1"],
            "length of I/O in the trace=4 (job 'a'): must be a multiple of the target's logical block size",
        ),
        (&["--read_iolog=reads", "--workload=oltp"], "read_iolog=reads: has no effect with workload=oltp"),
    ] {
        let run = dir.mqblk(&[&["fio", "--name=a"], options].concat()).exits(2);
        assert!(run.err.contains(says), "{options:?}: {}", run.err);
    }
    assert!(!dir.path("gone").exists());
    assert_eq!(fs::metadata(dir.path("disk")).unwrap().len(), 1 << 20);
}
