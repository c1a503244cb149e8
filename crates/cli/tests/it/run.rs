// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk run` from the outside: targets, layouts, exit status, verification, interruption.

use crate::common;

use common::{Dir, Done, number};
use serde_json::Value;
use std::fs;

const JOB: &str = "[a]\nrw=randrw\nsize=1m\nbs=4k\nioengine=libaio\niodepth=8\n";

fn keys(v: &Value) -> Vec<&str> {
    v.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn every_target_moves_the_bytes_of_the_job() {
    let dir = Dir::new("run");
    dir.file("j.fio", JOB);
    for target in ["null:size=1g", "ram:size=2m", "model:size=2m,over=ram,lat_us=10", "file:data", "data"] {
        for mode in ["mode=mq", "mode=sq"] {
            let v = dir.mqblk(&["run", "j.fio", "--target", target, "--set", mode, "--json"]).exits(0).json();
            let moved = |d: &str| number(&v, &format!("/jobs/0/{d}/io_bytes"));
            assert_eq!(moved("read") + moved("write"), 1048576.0, "{target} {mode}");
            assert_eq!(number(&v, "/jobs/0/error"), 0.0);
        }
    }
    assert_eq!(dir.list(), ["data", "j.fio"], "only the file that was named");
    assert_eq!(fs::metadata(dir.path("data")).unwrap().len(), 1 << 20);
}

#[test]
fn the_text_has_fio_s_lines_and_then_ours() {
    let dir = Dir::new("run");
    dir.file("j.fio", JOB);
    let done = dir.mqblk(&["run", "j.fio", "--target", "ram:size=2m", "--set", "scheduler=mq-deadline"]).exits(0);
    done.prints(&[
        "a: (g=0): rw=randrw, bs=(R) 4096B-4096B, (W) 4096B-4096B, (T) 4096B-4096B, ioengine=libaio, iodepth=8\n",
        "Starting 1 thread\n",
        "a: (groupid=0, jobs=1): err= 0: pid=",
        // The unit is nanoseconds or microseconds.
        "    clat percentiles (",
        "     issued rwts: total=",
        "Run status group 0 (all jobs):\n",
        "Disk stats (read/write):\n  ram:size=2m: ios=",
        "\nInside the block layer:\nram:size=2m: mode=mq, nr_hw_queues=",
        "     scheduler : ",
        "  merges       : ",
        "  hctx 0       : queued=256, ",
        "  cost         : cpu=",
    ]);
    assert_eq!(done.err, "");
}

#[test]
fn json_has_fio_s_keys_and_one_of_ours() {
    let dir = Dir::new("run");
    dir.file("j.fio", &format!("[global]\nrandseed=7\n{JOB}[b]\nrw=write\nsize=64k\n"));
    let args = ["run", "j.fio", "--target", "null:size=1g", "--job-set", "norandommap", "--job-set", "bs=8k"];
    let v = dir.mqblk(&[&args[..], &["--json"]].concat()).exits(0).json();
    assert_eq!(
        keys(&v),
        ["disk_util", "fio version", "global options", "jobs", "mqblk", "time", "timestamp", "timestamp_ms"]
    );
    assert_eq!(v["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(v["global options"]["bs"], "8k");
    assert_eq!(v["jobs"][0]["job options"]["iodepth"], "8");
    assert_eq!(number(&v, "/jobs/1/write/total_ios"), 8.0, "--job-set acts on every job");
    let settings: Vec<&str> = v["mqblk"]["settings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(settings.contains(&"target=null:size=1g") && settings.contains(&"mode=mq"), "{settings:?}");
    assert_eq!(number(&v, "/mqblk/stages/ios"), 136.0);
    assert!(v["mqblk"]["command"].as_str().unwrap().starts_with("mqblk run j.fio --target null:size=1g"));
    assert!(v["jobs"][1]["write"]["clat_ns"].get("bins").is_none());

    let plus = dir.mqblk(&[&args[..], &["--json+"]].concat()).exits(0).json();
    let bins = plus["jobs"][1]["write"]["clat_ns"]["bins"].as_object().unwrap();
    assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), 8);

    let both = dir.mqblk(&[&args[..], &["--output-format", "normal,json"]].concat()).exits(0);
    let at = both.out.find("\n{\n").expect("JSON after the text");
    assert!(both.out[..at].contains("Run status group 0"));
    assert!(serde_json::from_str::<Value>(&both.out[at..]).is_ok());
}

#[test]
fn results_go_to_a_file_when_one_is_named() {
    let dir = Dir::new("run");
    dir.file("j.fio", JOB).file("out", &"old ".repeat(100_000));
    let done = dir.mqblk(&["run", "j.fio", "--target", "null", "--json", "--output", "out"]).exits(0);
    assert_eq!(done.out, "");
    let v: Value =
        serde_json::from_str(&fs::read_to_string(dir.path("out")).unwrap()).expect("nothing of the old file");
    assert_eq!(v["jobs"][0]["jobname"], "a");
}

#[test]
fn jobs_come_from_standard_input_and_sections_are_chosen() {
    let dir = Dir::new("run");
    let job = "[a]\nsize=64k\nrw=write\n[b]\nsize=8k\n[c]\nsize=4k\n";
    let args = ["run", "-", "--target", "null", "--json", "--section", "c", "--section", "a"];
    let v = dir.mqblk_with_input(&args, job).exits(0).json();
    let names: Vec<_> = v["jobs"].as_array().unwrap().iter().map(|j| j["jobname"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "c"]);
    dir.mqblk_with_input(&["run", "-"], "[a]\niodepth=0\n").exits(2).says(&["stdin:2: iodepth=0"]);
}

#[test]
fn warnings_are_said_and_change_nothing() {
    let dir = Dir::new("run");
    dir.file("j.fio", "[a]\nsize=64k\niodepth=4\n");
    let done = dir.mqblk(&["run", "j.fio", "--target", "null"]).exits(0);
    done.says(&["warning: j.fio:3: iodepth=4:", "use ioengine=libaio"]);
    done.prints(&["total=16,0,0,0"]);
}

#[test]
fn verified_data_is_found_and_a_changed_block_is_a_violation() {
    let dir = Dir::new("run");
    dir.file("w.fio", "[a]\nfilename=data\nrw=randwrite\nsize=1m\nbs=4k\nioengine=libaio\niodepth=16\nverify=crc32c\n");
    for set in ["mode=sq", "scheduler=mq-deadline", "max_sectors_kb=4"] {
        let v = dir.mqblk(&["run", "w.fio", "--set", set, "--json"]).exits(0).json();
        assert_eq!((number(&v, "/jobs/0/write/total_ios"), number(&v, "/jobs/0/read/total_ios")), (256.0, 256.0));
    }
    let read = "[check]\nfilename=data\nrw=read\nsize=1m\nbs=4k\nverify=crc32c\n";
    dir.file("r.fio", read);
    dir.mqblk(&["run", "r.fio"]).exits(0);
    let mut bytes = fs::read(dir.path("data")).unwrap();
    bytes[40960 + 1000] ^= 1;
    fs::write(dir.path("data"), bytes).unwrap();
    let done = dir.mqblk(&["run", "r.fio"]).exits(1);
    done.says(&["job 'check': ", "40960", "1 blocks do not hold what was written", "to repeat: mqblk run r.fio"]);
    done.prints(&["err=84"]);
}

#[test]
fn ctrl_c_ends_a_run_with_what_it_has() {
    let dir = Dir::new("run");
    let target = "filename=model:size=1g,iops=1000";
    dir.file(
        "j.fio",
        &format!("[a]\n{target}\nrw=randread\nruntime=600\ntime_based\nnorandommap\n[b]\n{target}\nstonewall\n"),
    );
    for name in ["INT", "TERM"] {
        let args = ["run", "j.fio", "--eta=always", "--json"];
        // The first line of progress may be printed before the first I/O.
        let run = dir.start(&args, "IOPS]");
        run.signal(name);
        let done = run.ends().exits(130);
        done.says(&["interrupted; results cover the time until then"]);
        let v = done.json();
        assert_eq!(v["jobs"].as_array().unwrap().len(), 2);
        assert_eq!(
            number(&v, "/jobs/1/read/total_ios"),
            0.0,
            "as with fio, a job that never started has results of zero"
        );
        assert!(number(&v, "/jobs/0/read/total_ios") > 0.0 && number(&v, "/jobs/0/error") == 0.0);
    }
    assert_eq!(dir.list(), ["j.fio"]);
}

#[test]
fn ctrl_c_while_a_file_is_made_takes_it_away_again() {
    let dir = Dir::new("run");
    dir.file("j.fio", "[a]\nfilename=data\nrw=read\nsize=2g\n");
    let run = dir.start(&["run", "j.fio", "--eta=always"], "Laying out IO file 'data' (2048MiB): [");
    run.signal("INT");
    run.ends().exits(130).says(&["creation of 'data' was interrupted; its previous state was restored"]);
    assert_eq!(dir.list(), ["j.fio"]);
}

#[test]
fn i_o_errors_are_a_violation_with_the_results_so_far() {
    let dir = Dir::new("run");
    dir.file("j.fio", "[a]\nfilename=data\nrw=randread\nsize=1m\nruntime=600\ntime_based\nrate_iops=500\n");
    let args = ["run", "j.fio", "--eta=always", "--set", "queue_depth=8"];
    let run = dir.start(&args, "IOPS]");
    // Beyond the end of a file there is nothing to read.
    fs::File::options().write(true).open(dir.path("data")).unwrap().set_len(0).unwrap();
    let done = run.ends().exits(1);
    done.says(&["1 I/Os failed; to repeat: mqblk run j.fio --eta=always --set queue_depth=8"]);
    done.prints(&["err= 5 (Input/output error)", "Inside the block layer:"]);
}

#[test]
fn progress_is_fio_s_line() {
    let dir = Dir::new("run");
    dir.file("j.fio", "[a]\nrw=randread\nruntime=1500ms\ntime_based\nnorandommap\nnumjobs=2\nsize=1m\n");
    let done = dir.mqblk(&["run", "j.fio", "--target", "null", "--eta=always"]).exits(0);
    let line = done.err.lines().nth(1).unwrap_or_else(|| panic!("{done:?}"));
    assert!(
        line.starts_with("Jobs: 2 (f=2): [r(2)][") && line.contains("%][r=") && line.contains("[eta 00m:0"),
        "{line}"
    );
    let done = dir.mqblk(&["run", "j.fio", "--target", "null"]).exits(0);
    assert_eq!(done.err, "", "a pipe is no terminal");
}

#[test]
fn an_argument_that_is_not_text_does_not_lose_the_results() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new("run");
    let name = std::ffi::OsStr::from_bytes(b"j\xff.fio");
    fs::write(dir.as_path().join(name), "[a]\nsize=64k\n").unwrap();
    let output = dir.command(&["run", "--target", "null"]).arg(name).output().unwrap();
    Done::of(output, &["run"]).exits(0).prints(&["Inside the block layer"]);
}

/// Returns how many KiB of a file are in the page cache, as util-linux's fincore counts them.
fn cached_kib(dir: &Dir, file: &str) -> u64 {
    let done = dir.program("fincore", &["--bytes", "--noheadings", "--output", "RES", file]).exits(0);
    done.out.trim().parse::<u64>().unwrap_or_else(|e| panic!("{e}: {}", done.out)) / 1024
}

#[test]
fn a_buffered_file_is_read_ahead_as_far_as_asked() {
    let dir = Dir::new("readahead");
    // Reads the first 64 KiB of 32 MiB sequentially, after the file is dropped from the page cache (invalidate=1).
    let job = "[a]\nfilename=disk\nfilesize=32m\nrw=read\nbs=4k\ndirect=0\nio_size=64k\nioengine=io_uring\n\
        thinktime=1ms\nthinktime_blocks=1\n";
    dir.file("job.fio", job);
    let run = |kb: &str| {
        dir.mqblk(&["run", "job.fio", "--set", &format!("read_ahead_kb={kb}")]).exits(0);
        cached_kib(&dir, "disk")
    };
    run("0"); // Lays the file out.
    assert_eq!(run("0"), 64, "what was read, and nothing else");
    // Read-ahead windows are 16 KiB (including 4 of the first read), 64 and 128 KiB. The read after 80 KiB would start the next one.
    // The kernel's workers fetch windows asynchronously, and drop those that they have not begun when the requesting thread ends.
    let fetched: Vec<u64> = std::iter::repeat_with(|| run("512")).take(20).take_while(|kib| *kib != 208).collect();
    assert!(fetched.len() < 20, "{fetched:?} KiB in the cache, not once 16 + 64 + 128");
    assert_eq!(run("0"), 64);
    let job = job.replace("rw=read", "rw=randread\nrandseed=3");
    dir.file("job.fio", &job);
    dir.mqblk(&["run", "job.fio", "--set", "read_ahead_kb=512"]).exits(0);
    assert_eq!(cached_kib(&dir, "disk"), 64, "random reads cause none");
}

#[test]
fn a_disk_gets_no_more_than_its_share_of_the_tags() {
    // Two busy disks share 16 tags and each request takes 8 ms: one per millisecond for each. The light disk is busy throughout.
    let job = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/shared-tags.fio")).unwrap();
    let dir = Dir::new("run");
    dir.file("j.fio", &job.replace("lat_us=1000", "lat_us=8000"));
    let set = ["--set", "nr_hw_queues=1", "--set", "queue_depth=16", "--set", "scheduler=none"];
    let rates = |more: &[&str]| {
        let v = dir.mqblk(&[&["run", "j.fio", "--json"], &set[..], more].concat()).exits(0).json();
        let rate = |job: usize| {
            let of = |key: &str| number(&v, &format!("/jobs/{job}/{key}"));
            of("read/total_ios") / of("job_runtime")
        };
        let settings = v.pointer("/mqblk/settings").unwrap().as_array().unwrap();
        let sharing = settings.iter().filter(|s| *s == "shared_tags=1").count();
        assert_eq!(sharing, if more.is_empty() { 0 } else { 2 }, "both disks say so");
        rate(0)
    };
    let (fair, own) = (rates(&["--set", "shared_tags=1"]), rates(&[]));
    // Until the light disk's first request, the other has all 16 tags: some of 2000 milliseconds, more on a busy machine.
    assert!(fair < 1.5 && fair < own, "{fair} I/Os a millisecond, {own} with tags of its own");
    for bad in ["shared_tags=yes", "fair_tag_sharing=1"] {
        dir.mqblk(&[&["run", "j.fio", "--set", bad], &set[..]].concat()).exits(2).says(&[bad]);
    }
}

/// A job that writes to an image that a daemon serves would destroy what its clients have.
#[test]
fn a_served_image_is_not_written() {
    let dir = Dir::new("run-locked");
    std::fs::File::create(dir.path("a.img")).unwrap().set_len(16 << 20).unwrap();
    let daemon = dir.start(&["serve", "a.img"], "serving on");
    let job = |rw: &str, more: &str| format!("[j]\nrw={rw}\nbs=4k\nsize=16m\nio_size=64k\n{more}\n");
    dir.file("w.fio", &job("randwrite", "")).file("r.fio", &job("randread", "")).file("trim.fio", &job("randtrim", ""));
    dir.file("any.fio", &job("randwrite", "allow_mounted_write=1"));
    let why = "image './a.img' is in use: another program";
    for target in ["./a.img", "stripe:chunk=64k:./a.img+b.img"] {
        std::fs::File::create(dir.path("b.img")).unwrap().set_len(16 << 20).unwrap();
        for command in [&["run", "w.fio"][..], &["run", "trim.fio"], &["compare", "w.fio", "--b", "mode=sq"]] {
            let refused = dir.mqblk(&[command, &["--target", target]].concat()).exits(2);
            refused.says(&[why, "or set allow_mounted_write=1 if its content may be destroyed"]);
        }
    }
    dir.mqblk(&["run", "r.fio", "--target", "a.img"]).exits(0);
    dir.mqblk(&["run", "any.fio", "--target", "a.img"]).exits(0);
    daemon.signal("TERM");
    daemon.ends().exits(0);
    // Several jobs, names and threads of one run share its lock.
    let names = "[a]\nfilename=a.img\n[b]\nfilename=./a.img\nnumjobs=2\n";
    dir.file("w2.fio", &(job("randwrite", "").replace("[j]", "[global]") + names));
    dir.mqblk(&["run", "w2.fio"]).exits(0);
}
