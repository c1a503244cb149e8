// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The distribution's fio with our engine: what fio writes, verifies, shares, rejects and prints.
//!
//! fio and the library are the real ones, and fio itself verifies.

use crate::common::{Dir, engine};
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn what_is_written_reads_back_on_every_kind_of_target() {
    let dir = Dir::new("verify");
    let common = ["--name=v", "--rw=randrw", "--bs=4k", "--size=16m", "--iodepth=32", "--verify=crc32c"];
    let settings = "nr_hw_queues=1,scheduler=mq-deadline";
    for (target, more) in [
        ("ram\\:size=16m", &["--thread=1"][..]),
        ("ram\\:size=16m", &["--iodepth_batch_submit=8", "--iodepth_batch_complete_max=16"]),
        ("model\\:size=16m,lat_us=50,jitter_pct=50,iops=100000,over=ram", &["--iodepth_batch_submit=4"]),
        ("disk", &["--direct=1"]),
        ("disk", &["--direct=0", "--thread=1", "--bsrange=512-64k", "--norandommap=0"]),
        ("disk", &["--direct=1", "--iodepth_batch_submit=16", "--mem=mmap"]),
    ] {
        let filename = format!("--filename={target}");
        let args = [&common[..], &[&filename], more].concat();
        dir.fio(&args).well().says("err= 0").says("ioengine=mqblk");
        dir.fio_with(&[("MQBLK_SET", settings)], &args).well().says("err= 0");
    }
}

/// Two threads have one disk: one job reads what another has written to memory.
#[test]
fn threads_share_a_ram_disk_and_forked_jobs_are_warned() {
    let dir = Dir::new("share");
    let write = ["--size=8m", "--bs=4k", "--verify=crc32c", "--filename=ram\\:size=16m", "--iodepth=8"];
    let jobs = ["--name=w", "--rw=write", "--do_verify=0", "--name=r", "--stonewall", "--rw=read", "--verify_only=1"];
    dir.fio(&[&["--thread=1"], &write[..], &jobs[..]].concat()).well().says("r: (groupid=1, jobs=1): err= 0");
    let forked = dir.fio(&[&write[..], &jobs[..]].concat());
    assert!(!forked.ok, "{forked:?}");
    forked.says("fio has forked: each job has its own disk (thread=1 makes them share it)").says("err=84");
}

#[test]
fn several_jobs_write_one_file_as_threads_and_as_processes() {
    let dir = Dir::new("several");
    let job = ["--name=j", "--numjobs=4", "--size=4m", "--offset_increment=4m", "--rw=randwrite", "--bs=4k"];
    let more = ["--iodepth=16", "--verify=xxhash", "--direct=1", "--filename=disk", "--group_reporting"];
    for settings in ["nr_hw_queues=1", "nr_hw_queues=2", "nr_hw_queues=1,scheduler=bfq", "mode=sq"] {
        for thread in ["--thread=1", "--thread=0"] {
            let done = dir.fio_with(&[("MQBLK_SET", settings)], &[&[thread], &job[..], &more[..]].concat());
            done.well().says("jobs=4): err= 0");
        }
    }
}

/// Another program's lock on the image, as `mqblk serve` and QEMU hold it.
#[test]
fn an_image_that_another_program_has_is_not_written() {
    let dir = Dir::new("locked");
    fs::File::create(dir.path("disk")).unwrap().set_len(8 << 20).unwrap();
    let job =
        |rw: &'static str| ["--name=j", rw, "--size=8m", "--io_size=1m", "--bs=4k", "--filename=disk", "--numjobs=2"];
    let lock = host::image_lock::ImageLock::take(&dir.path("disk"), true).unwrap();
    for rw in ["--rw=randwrite", "--rw=trim"] {
        let refused = dir.fio(&job(rw));
        assert!(!refused.ok, "{refused:?}");
        refused.says("image 'disk' is in use: another program");
    }
    dir.fio(&job("--rw=randread")).well();
    drop(lock);
    dir.fio(&job("--rw=randwrite")).well();
}

/// The same job, including its random numbers, leaves the same file with fio's own engine and with ours.
#[test]
fn contents_are_those_that_fio_writes_by_itself() {
    let dir = Dir::new("same");
    let job = ["--name=s", "--size=8m", "--rw=randwrite", "--bssplit=4k/60:16k/40", "--iodepth=32", "--direct=1"];
    let exact = ["--randseed=4711", "--refill_buffers", "--norandommap=1", "--serialize_overlap=1", "--io_size=6m"];
    let args = [&job[..], &exact[..]].concat();
    dir.program("fio", &[], &[&["--ioengine=io_uring", "--filename=theirs"], &args[..]].concat()).well();
    dir.fio(&[&["--filename=ours"], &args[..]].concat()).well();
    let (theirs, ours) = (fs::read(dir.path("theirs")).unwrap(), fs::read(dir.path("ours")).unwrap());
    assert!(theirs == ours && theirs.len() == 8 << 20, "contents differ, of {} and {} bytes", theirs.len(), ours.len());
    assert!(theirs.chunks(4096).filter(|b| b.iter().any(|b| *b != 0)).count() > 1000);
}

#[test]
fn trims_free_blocks_and_syncs_are_counted() {
    let dir = Dir::new("trim");
    fs::write(dir.path("disk"), vec![1; 16 << 20]).unwrap();
    let blocks = || fs::metadata(dir.path("disk")).unwrap().blocks();
    let before = blocks();
    let trim = ["--name=t", "--filename=disk", "--rw=trim", "--bs=64k", "--size=16m", "--io_size=8m", "--iodepth=4"];
    dir.fio(&trim).well().says("issued rwts: total=0,0,128,0");
    assert!(blocks() * 512 <= before * 512 - (8 << 20) + 65536, "{before} blocks before, {} after", blocks());
    let sync = ["--name=s", "--filename=disk", "--rw=write", "--bs=4k", "--size=1m", "--iodepth=4"];
    dir.fio(&[&sync[..], &["--fsync=16"]].concat()).well().says("issued rwts: total=0,256,0,").says("fsync/fdatasync");
    dir.fio(&[&sync[..], &["--fdatasync=32", "--sync=dsync", "--direct=1", "--end_fsync=1"]].concat()).well();
    let ram = ["--name=m", "--filename=ram\\:size=1m", "--rw=trimwrite", "--bs=4k", "--size=1m", "--verify=crc32c"];
    dir.fio(&ram).well();
}

/// Returns how often fio makes a system call with these options.
fn calls(dir: &Dir, call: &str, args: &[&str]) -> usize {
    let engine = format!("--ioengine={}", engine());
    let trace = [&["-f", "-e", call, "-o", "trace", "fio", engine.as_str()], args].concat();
    dir.program("strace", &[], &trace).well();
    fs::read_to_string(dir.path("trace"))
        .unwrap()
        .lines()
        .filter(|l| l.contains("disk\"") && l.contains("O_DIRECT"))
        .count()
}

#[test]
fn direct_is_the_jobs_own_unless_the_settings_say_otherwise() {
    let dir = Dir::new("direct");
    fs::write(dir.path("disk"), vec![1; 1 << 20]).unwrap();
    let args = |filename: &'static str, direct: &'static str| ["--name=d", "--rw=read", "--bs=4k", filename, direct];
    let opens = |filename, direct| calls(&dir, "openat", &args(filename, direct));
    assert_eq!(opens("--filename=disk", "--direct=0"), 0);
    assert!(opens("--filename=disk", "--direct=1") > 0);
    assert!(opens("--filename=disk?direct=1", "--direct=0") > 0);
    assert_eq!(opens("--filename=disk?direct=0", "--direct=1"), 0);
}

#[test]
fn errors_of_the_disk_are_the_jobs() {
    let dir = Dir::new("errors");
    let common = ["--name=e", "--rw=read", "--size=1m"];
    let past_end = ["--filename=disk", "--bs=64k", "--exec_prerun=truncate -s 512k disk"];
    fs::write(dir.path("disk"), vec![1; 1 << 20]).unwrap();
    let done = dir.fio(&[&common[..], &past_end[..]].concat());
    assert!(!done.ok, "{done:?}");
    done.says("err= 5");
    let odd = dir.fio(&[&common[..], &["--filename=null\\:size=1m", "--bs=777"]].concat());
    assert!(!odd.ok, "{odd:?}");
    odd.says("mqblk: 777 bytes at 0: a disk takes multiples of 512").says("err=22");
    // With `continue_on_error` fio continues.
    let on = ["--filename=disk", "--bs=64k", "--exec_prerun=truncate -s 512k disk", "--continue_on_error=io"];
    fs::write(dir.path("disk"), vec![1; 1 << 20]).unwrap();
    dir.fio(&[&common[..], &on[..]].concat()).says("errors    : total=8, first_error=5/<Input/output error>");
}

#[test]
fn a_wrong_name_or_setting_ends_fio_with_a_sentence() {
    let dir = Dir::new("names");
    let refused = |name: &str, set: &str| {
        let filename = format!("--filename={name}");
        let done = dir.fio_with(&[("MQBLK_SET", set)], &["--name=n", "--rw=read", "--size=1m", &filename]);
        assert!(!done.ok, "{done:?}");
        done
    };
    refused("nul\\:size=1g", "").says("mqblk: there is no target 'nul:'; did you mean 'null:'?");
    refused("null\\:sise=1g", "").says("did you mean 'size'");
    refused("null?schedular=none", "").says("did you mean 'scheduler'");
    refused("null", "queue_depth=0").says("queue_depth=0: must be");
    refused("missing?queue_depth=8", "").says("create it (truncate, fallocate), or give the settings in MQBLK_SET");
    assert!(fs::read_dir(&dir.0).unwrap().next().is_none(), "nothing is made of a name that is refused");
}

/// Another version has other internal structures, so it must not use the engine, whatever interface version it reports.
#[test]
fn a_fio_that_is_not_known_is_told_so() {
    let dir = Dir::new("version");
    let which = dir.program("sh", &[], &["-c", "readlink -f $(command -v fio)"]).well();
    let mut fio = fs::read(which.out.trim()).unwrap();
    let version = dir.program("fio", &[], &["--version"]).well().out.trim().to_owned();
    let other = format!("{}9", &version[..version.len() - 1]).replace("fio-3.39", "fio-3.38");
    let mut replaced = 0;
    for at in 0..fio.len() - version.len() {
        if fio[at..].starts_with(version.as_bytes()) {
            fio[at..at + version.len()].copy_from_slice(b"fio-3.37");
            replaced += 1;
        }
    }
    assert!(replaced > 0 && other.len() == "fio-3.37".len(), "{version} is not in {}", which.out);
    fs::write(dir.path("changed"), fio).unwrap();
    // `install` writes the program, because this process must not have it open for writing: a child of another test could inherit that
    // file for a moment, and the kernel would not run the program.
    let path = dir.path("fio");
    dir.program("install", &[], &["-m755", "changed", "fio"]).well();
    let engine = format!("--ioengine={}", engine());
    let done = dir.program(path.to_str().unwrap(), &[], &["--name=x", &engine, "--filename=null"]);
    assert!(!done.ok, "{done:?}");
    done.says("mqblk: libmqblk_fio.so supports fio-3.33, fio-3.39, fio-3.41 and fio-3.42, not fio-3.37")
        .says("bad ioops version 0");
}

/// Runs a job file of ours with only the engine and the file changed.
#[test]
fn a_job_file_runs_with_two_lines_changed() {
    let dir = Dir::new("oltp");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/oltp.fio");
    let text = fs::read_to_string(examples).unwrap();
    let ours = |line: &str| match line.split_once('=') {
        Some(("ioengine", _)) => format!("ioengine={}\n", engine()),
        Some(("filename", _)) => "filename=model\\:size=1g,iops=18000,lat_us=500,over=ram?scheduler=kyber\n".to_owned(),
        Some(("runtime", _)) => "runtime=300ms\nthread\n".to_owned(),
        _ => format!("{line}\n"),
    };
    fs::write(dir.path("oltp.fio"), text.lines().map(ours).collect::<String>()).unwrap();
    dir.fio(&["oltp.fio"])
        .well()
        .says("sessions: (groupid=0, jobs=2): err= 0")
        .says("log: (groupid=0, jobs=1): err= 0");
}

#[test]
fn the_commands_of_the_guide_run() {
    let dir = Dir::new("guide");
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmark.md")).unwrap();
    let ours = |line: &&str| line.starts_with("fio ") && line.contains("libmqblk_fio.so");
    let mut commands = 0;
    for command in text.lines().filter(ours) {
        let command = command.replace("external:target/release/libmqblk_fio.so", &engine());
        dir.program("sh", &[], &["-c", &command]).well().says("ioengine=mqblk").says("err= 0");
        commands += 1;
    }
    assert!(commands >= 2, "docs/benchmark.md shows {commands} commands of fio");
}

/// fio ends a job with I/O in flight (a time limit, an error). Nothing hangs, and buffers are not freed while a driver uses them.
#[test]
fn a_job_that_is_ended_early_waits_for_what_is_out() {
    let dir = Dir::new("early");
    let slow = ["--name=e", "--filename=model\\:size=64m,lat_us=20000,over=ram", "--rw=randread", "--bs=4k"];
    dir.fio(&[&slow[..], &["--iodepth=64", "--time_based", "--runtime=100ms", "--numjobs=3", "--thread=1"]].concat())
        .well();
    let two = ["--name=t", "--filename=ram\\:size=8m:disk", "--size=16m", "--rw=randrw", "--bs=4k", "--iodepth=16"];
    fs::write(dir.path("disk"), vec![1; 8 << 20]).unwrap();
    dir.fio(&[&two[..], &["--verify=crc32c", "--nrfiles=2"]].concat()).well().says("err= 0");
}
