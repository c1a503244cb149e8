// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bad input: exit status 2, one message with rule, value and remedy, no panic, and no new file.

use crate::common;

use common::Dir;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Runs a job file with arguments. The message must contain all of `says`, and no file may have changed.
#[track_caller]
fn refused(job: &str, args: &[&str], says: &[&str]) {
    let dir = Dir::new("errors");
    dir.file("j.fio", job);
    let all: Vec<&str> = ["run", "j.fio"].iter().chain(args).copied().collect();
    let done = dir.mqblk(&all).exits(2);
    done.says(says);
    assert_eq!(done.out, "", "{done:?}");
    assert_eq!(dir.list(), ["j.fio"], "{done:?}");
}

const GOOD: &str = "[a]\nrw=randread\nsize=1m\n";

#[test]
fn bad_job_files() {
    refused("[a]\nrw=read\niodepth=0\nsize=1m\n", &[], &["j.fio:3: iodepth=0: must be 1..=65536 (job 'a')"]);
    refused("[a]\niodept=4\nsize=1m\n", &[], &["j.fio:2: iodept=4: is no option of fio", "did you mean 'iodepth'?"]);
    let odd = "bs=2300 (job 'a', line 1): must be a multiple of the target's logical block size 512; use 2048 or 2560, or direct=0";
    refused("[a]\nbs=2300\nsize=1m\ndirect=1\n", &[], &[odd]);
    refused("[a]\noffset=100\nsize=1m\n", &["--target", "null:blocksize=4096"], &["offset=100 (job 'a'", "use 4096"]);
    refused("[a]\nbs=7\nsize=1m\nworkload=oltp\n", &[], &["bs=7: must be whole sectors of 512 bytes"]);
    refused("[a]\nioengine=rbd\nsize=1m\n", &[], &["j.fio:2: ioengine=rbd:"]);
    refused("rw=read\n", &[], &["j.fio:1"]);
    refused("", &[], &["has no job section", "add a section"]);
    refused("[a]\nsize=1m\nfilename=${MQBLK_NO_SUCH_VARIABLE}/x\n", &[], &["MQBLK_NO_SUCH_VARIABLE", "set it"]);
    refused("[a]\ninclude other.fio\nsize=1m\n", &[], &["other.fio", "No such file"]);
    refused("[a]\nnumjobs=1025\nsize=1m\n", &[], &["j.fio:2: numjobs=1025: must be 1..=1024 (job 'a')"]);
    // Several mistakes are reported at once, one line each.
    refused("[a]\niodepth=0\nnumjobs=0\n", &[], &["j.fio:2: iodepth=0", "j.fio:3: numjobs=0"]);
}

#[test]
fn job_files_that_cannot_be_read() {
    let dir = Dir::new("errors");
    dir.mqblk(&["run", "none.fio"]).exits(2).says(&["job file 'none.fio': No such file", "name a fio job file"]);
    dir.mqblk(&["run", "."]).exits(2).says(&["job file '.': Is a directory"]);
    fs::write(dir.path("image"), [0; 100]).unwrap();
    dir.mqblk(&["run", "image"]).exits(2).says(&["is not text; is it a job file?"]);
    fs::write(dir.path("j.fio"), b"[a]\ndescription=caf\xe9\nfilename=caf\xe9\nsize=1m\n").unwrap();
    dir.mqblk(&["run", "j.fio"]).exits(2).says(&[
        "j.fio:3: filename=caf",
        "has bytes that are not UTF-8",
        "rename the file",
    ]);
    fs::File::create(dir.path("image")).unwrap().set_len(1 << 30).unwrap();
    dir.mqblk(&["run", "image"]).exits(2).says(&["is larger than", "a job file is a short text"]);
}

#[test]
fn bad_settings() {
    refused(GOOD, &["--set", "nr_hw_queue=1"], &["nr_hw_queue: no such setting; did you mean 'nr_hw_queues'?"]);
    refused(GOOD, &["--set", "nr_hw_queues=4097"], &["nr_hw_queues=4097: must be 0..=4096"]);
    let above = ["--set", "nr_cpus=4", "--set", "nr_hw_queues=5"];
    refused(GOOD, &above, &["nr_hw_queues=5: must be at most the stack's 4 CPUs", "lower it or set nr_cpus=5"]);
    refused(GOOD, &["--set", "queue_depth=99999"], &["queue_depth=99999: must be 1..=10240"]);
    refused(GOOD, &["--set", "queue_depth=many"], &["queue_depth=many: must be a whole number"]);
    refused(GOOD, &["--set", "scheduler=bfqq"], &["scheduler=bfqq: must be one of none, mq-deadline"]);
    refused(GOOD, &["--set", "mode=sq", "--set", "nr_hw_queues=2"], &["mode=sq has one driver queue"]);
    let tunable = ["--set", "scheduler=mq-deadline", "--set", "iosched.read_expir=1"];
    refused(GOOD, &tunable, &["read_expir", "did you mean 'read_expire'?"]);
    refused(GOOD, &["--set", "mode"], &["'mode'", "must be KEY=VALUE, such as mode=sq"]);
    refused(GOOD, &["--set", "max_sectors_kb=1"], &["max_sectors_kb=1: must be"]);
}

#[test]
fn bad_targets() {
    refused(GOOD, &["--target", "nul:size=1g"], &["no target 'nul:'", "did you mean 'null:'?"]);
    refused(GOOD, &["--target", "null:sise=1g"], &["no option 'sise'", "did you mean 'size'?"]);
    refused(GOOD, &["--target", "null:size=1"], &["size=1: must be 4096..=8e"]);
    refused("[a]\nsize=2g\n", &["--target", "null:size=1g"], &["has 1073741824 bytes, the job needs 2147483648"]);
    refused("[a]\nrw=read\n", &["--target", "new"], &["'new' does not exist and the job gives no size", "size=1g"]);
    let part = "'new' does not exist, so size cannot be a percentage of it; add e.g. filesize=1g";
    refused("[a]\nsize=50%\n", &["--target", "new"], &[part]);
    refused("[a]\nsize=1m\nallow_file_create=0\n", &["--target", "new"], &["allow_file_create=0"]);
    refused(GOOD, &["--target", "no/such/dir"], &["directory 'no/such' does not exist: create it"]);
    refused(GOOD, &["--target", "."], &["'.' is a directory: a target must be a regular file or a block device"]);
    refused(GOOD, &["--target", "/dev/null"], &["'/dev/null' is a special file"]);
    refused("[a]\nsize=8000t\n", &[], &["its file system has", "use a smaller size="]);
    refused("[a]\nsize=1m\nhipri\nioengine=io_uring\n", &["--target", "null"], &["hipri", "set nr_poll_queues=1"]);
}

#[test]
fn bad_flags() {
    refused(GOOD, &["--section", "b"], &["--section: b: j.fio has no such job; it has a"]);
    refused(GOOD, &["--job-set", "iodepth=0"], &["--job-set: iodepth=0: must be 1..=65536"]);
    refused(GOOD, &["--output-format", "xml"], &["'xml'", "normal", "json+"]);
    refused(GOOD, &["--output", "no/such/dir/x"], &["--output no/such/dir/x: cannot be written"]);
    refused(GOOD, &["--json", "--json+"], &["cannot be used with"]);
    let dir = Dir::new("errors");
    dir.mqblk(&["frobnicate"]).exits(2).says(&["unrecognized subcommand 'frobnicate'"]);
    dir.mqblk(&[]).exits(0).prints(&["mqblk compare JOB.fio", "mqblk -h"]);
    dir.mqblk(&["inspect", "--target", "no-such-file"]).exits(2).says(&["no-such-file"]);
    dir.mqblk(&["inspect", "--host", "no-such-disk"]).exits(2).says(&["no-such-disk: is no block device"]);
    dir.mqblk(&["cmdhelp", "iodept"]).exits(2).says(&["did you mean 'iodepth'?; 'mqblk cmdhelp' lists all"]);
}

#[test]
fn bad_comparisons() {
    let dir = Dir::new("errors");
    dir.file("j.fio", GOOD).file("old.jsonl", "x\n");
    let refused = |args: &[&str], says: &[&str]| {
        let all: Vec<&str> = ["compare", "j.fio"].iter().chain(args).copied().collect();
        dir.mqblk(&all).exits(2).says(says);
        assert_eq!(dir.list(), ["j.fio", "old.jsonl"], "{args:?}");
    };
    let ab = ["--a", "mode=sq", "--b", "mode=mq"];
    let with = |more: &[&'static str]| [&ab[..], more].concat();
    refused(&["--a", "mode=sq"], &["--b <SETTINGS>"]);
    refused(&["--a", "mode=xx", "--b", "mode=mq"], &["--a: mode=xx: must be mq or sq"]);
    refused(&["--a", "mode=sq", "--b", "mode=mq,frob"], &["--b 'frob'", "must be KEY=VALUE"]);
    refused(&["--a", "mode=sq", "--b", "scheduler=bfqq"], &["--b: scheduler=bfqq: must be one of"]);
    refused(&["--a", "mode=sq", "--b", "target=nul:"], &["--b", "did you mean 'null:'?"]);
    refused(&with(&["--pairs", "3"]), &["--pairs=3: must be even and in 10..=10000"]);
    refused(&with(&["--warmup", "999"]), &["--warmup=999: must be in 0..=100"]);
    refused(&with(&["--runtime", "soon"]), &["--runtime: runtime=soon"]);
    refused(&["--a", "", "--b", "mode=mq"], &["--a '': must be KEY=VALUE", "default"]);
    refused(&with(&["--target", "new", "--results", "no/dir/r"]), &["--results no/dir/r: cannot be made", "directory"]);
    refused(&with(&["--results", "old.jsonl"]), &["old.jsonl: exists", "choose another name"]);
    refused(&with(&["--target", "no/such/dir"]), &["A (mode=sq)", "create it"]);
    assert_eq!(fs::read_to_string(dir.path("old.jsonl")).unwrap(), "x\n");
}

/// Root may access all files, so if the test runs as root, the program runs as user `nobody`.
#[test]
fn files_that_may_not_be_used() {
    let dir = Dir::public("errors");
    let open = |name: &str, mode: u32| {
        fs::set_permissions(dir.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    dir.file("j.fio", GOOD).file("data", &"x".repeat(1 << 20));
    fs::create_dir(dir.path("closed")).unwrap();
    let run = |job: &str, target: &str| {
        dir.file("j.fio", job);
        dir.as_user_nobody(&["run", "j.fio", "--target", target]).exits(2)
    };
    open("data", 0o444);
    run("[a]\nrw=write\nsize=1m\n", "data").says(&["'data'", "Permission denied"]);
    open("data", 0o000);
    run("[a]\nrw=read\nsize=1m\n", "data").says(&["'data'", "Permission denied"]);
    open("closed", 0o555);
    run("[a]\nrw=read\nsize=1m\n", "closed/new").says(&["'closed/new'", "Permission denied"]);
    assert_eq!(fs::read_dir(dir.path("closed")).unwrap().count(), 0);
    assert_eq!(fs::read(dir.path("data")).unwrap(), "x".repeat(1 << 20).into_bytes());
}

#[test]
fn a_file_that_cannot_grow_is_taken_away_again() {
    let dir = Dir::new("errors");
    dir.file("j.fio", "[a]\nrw=read\nsize=8m\n");
    // 1 MiB: `ulimit -f` counts blocks of 1024 bytes in bash, of 512 in POSIX shells.
    let script = format!("ulimit -f 1024; exec {} run j.fio --target grown", env!("CARGO_BIN_EXE_mqblk"));
    let done = dir.program("sh", &["-c", &script]).exits(2);
    done.says(&["'grown'", "File too large"]);
    assert_eq!(dir.list(), ["j.fio"]);
}

#[test]
fn a_results_file_is_not_left_behind_when_nothing_ran() {
    let dir = Dir::new("errors");
    dir.file("j.fio", GOOD).file("kept", "old\n");
    let args = ["run", "j.fio", "--target", "no/such/dir", "--output"];
    dir.mqblk(&[&args[..], &["new"]].concat()).exits(2);
    dir.mqblk(&[&args[..], &["kept"]].concat()).exits(2);
    assert_eq!(dir.list(), ["j.fio", "kept"]);
    assert_eq!(fs::read_to_string(dir.path("kept")).unwrap(), "old\n");
}

#[test]
fn memory_that_cannot_be_had_is_refused_with_what_to_lower() {
    let dir = Dir::new("errors");
    let limited = |job: &str, kib: u32| {
        dir.file("j.fio", job);
        let bin = env!("CARGO_BIN_EXE_mqblk");
        let script = format!("ulimit -v {kib}; exec {bin} run j.fio --target null:size=4t");
        dir.program("sh", &["-c", &script]).exits(2)
    };
    let deep = "[a]\nrw=randread\nnorandommap\nbs=1m\nioengine=libaio\niodepth=8192\nnumjobs=2\nsize=64g\n";
    limited(deep, 4 << 20).says(&["job 'a' (line 1): buffers of iodepth=8192 x bs=1048576 x numjobs=2 are 16384 MiB"]);
    let mapped = "[a]\nrw=randread\nbs=512\nsize=4t\n";
    limited(mapped, 900 << 10).says(&["no memory for a random map of 1024 MiB", "norandommap=1", "numjobs", "job 'a'"]);
}
