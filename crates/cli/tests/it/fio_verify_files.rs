// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of verified jobs. Verify states: what fio 3.33 or mqblk wrote until it was interrupted, either of them verifies. Bad blocks:
//! both leave the same files.

use crate::common;

use common::{Dir, Done, Running, number, until};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// Writes for longer than any test waits.
const WRITE: &str = "--name=a/b --filename=f --size=8m --bs=4k --verify=crc32c --do_verify=0 --rate_iops=100";
const STATE: &str = "local-a.b-0-verify.state";

fn run(dir: &Dir, ours: bool, line: &str) -> Done {
    let words: Vec<&str> = line.split_whitespace().collect();
    match ours {
        true => dir.mqblk(&[&["fio"], &words[..]].concat()),
        false => dir.program("fio", &words),
    }
}

/// Starts a write, and interrupts it when some blocks are written.
fn interrupted(dir: &Dir, ours: bool, line: &str) {
    let program = if ours { env!("CARGO_BIN_EXE_mqblk") } else { "fio" };
    let mut command = Command::new(program);
    if ours {
        command.arg("fio");
    }
    command.args(line.split_whitespace()).current_dir(dir.as_path());
    let child = Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let file = dir.path("f");
    until("blocks are written", || written(&file) >= 20);
    let status = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    child.output();
}

/// Blocks of the file that have a header.
fn written(file: &std::path::Path) -> usize {
    let Ok(file) = fs::File::open(file) else { return 0 };
    let mut magic = [0; 2];
    let mut has_header = |n: u64| file.read_exact_at(&mut magic, n * 4096).is_ok() && magic == [0xca, 0xac];
    (0..2048).filter(|&n| has_header(n)).count()
}

fn reads(done: &Done) -> usize {
    // fio prints messages before its JSON.
    let text = &done.out[done.out.find('{').unwrap_or(0)..];
    let json = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    number(&json, "/jobs/0/read/total_ios") as usize
}

/// Interrupts a write of each program, and verifies with both what it wrote.
fn compare(rw: &str, more: &str) {
    for writer in [false, true] {
        let dir = Dir::new("verify-state");
        interrupted(&dir, writer, &format!("{WRITE}{more} --rw={rw}"));
        let there = written(&dir.path("f"));
        let state = fs::read(dir.path(STATE)).expect("the job left its state");
        assert_eq!(u64::from_le_bytes(state[40..48].try_into().unwrap()), there as u64, "{rw}{more} {writer}");
        for reader in [false, true] {
            let read = format!(
                "--output-format=json --name=a/b --filename=f --size=8m --bs=4k --verify=crc32c{more} --rw={}",
                rw.replace("write", "read")
            );
            let what = format!("{rw}{more}, written by mqblk: {writer}, verified by mqblk: {reader}");
            let done = run(&dir, reader, &format!("{read} --verify_state_load=1"));
            assert_eq!(done.status, 0, "{what}: {done:?}");
            // fio ends at the first of the last blocks that does not seem to have completed.
            let depth = if more.is_empty() { 0 } else { 8 };
            let n = reads(&done);
            assert!(n <= there && n + depth >= there, "{what}: {n} of {there}");
            assert_ne!(run(&dir, reader, &read).status, 0, "{what}: without the state, unwritten blocks are bad");
            if reader {
                let again = format!("{read} --verify_state_load=1 --verify_only=1").replace("read --", "write --");
                assert_eq!((reads(&run(&dir, true, &again)), n), (there, there), "{what}: verify_only");
                assert!(fs::read(dir.path(STATE)).unwrap() == state, "{what}: verify_only leaves the state");
            }
        }
    }
}

#[test]
fn what_was_written_until_an_interruption_is_verified() {
    compare("randwrite", " --ioengine=libaio --iodepth=8");
}

/// Run by `cargo xtask test --deep`.
mod deep {
    #[test]
    fn each_order_of_writes_is_verified_after_an_interruption() {
        super::compare("write", "");
        super::compare("randwrite", "");
        super::compare("write", " --ioengine=libaio --iodepth=8");
    }
}

/// A job that ends by itself leaves the state of all its writes, with the same bytes as fio's.
#[test]
fn states_of_equal_jobs_are_equal() {
    for line in [
        "--rw=write --number_ios=50",
        "--rw=randwrite --number_ios=50",
        "--rw=randwrite --norandommap --number_ios=70 --random_generator=tausworthe64",
        "--rw=randrw --rwmixread=30 --number_ios=60",
        "--rw=write --nrfiles=3 --number_ios=20",
        "--rw=randwrite --do_verify=1 --verify_backlog=8",
        "--rw=write --do_verify=1 --loops=2",
    ] {
        let states = [false, true].map(|ours| {
            let dir = Dir::new("verify-state");
            let jobs = format!("--name=a --size=1m --bs=4k --verify=md5 --do_verify=0 {line} --name=b --size=64k");
            run(&dir, ours, &jobs).exits(0);
            let names: Vec<String> = dir.list().into_iter().filter(|n| n.ends_with(".state")).collect();
            assert_eq!(names, ["local-a-0-verify.state"], "only a job that writes and verifies leaves a state: {line}");
            let mut state = fs::read(dir.path(&names[0])).unwrap();
            if line.contains("do_verify=1") {
                // Before it verifies, fio seeds the generator anew, which is of no use to a reader. The checksum covers it.
                state[16..24].fill(0);
                state[56..112].fill(0);
            }
            state
        });
        assert_eq!(states[0], states[1], "{line}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let dir = Dir::new("verify-state");
    let read = "--name=a --filename=f --size=64k --rw=read --verify=crc32c --verify_state_load=1";
    let write = "--name=a --filename=f --size=64k --rw=write --verify=crc32c";
    run(&dir, true, &format!("{write} --verify_state_save=0")).exits(0);
    let missing = run(&dir, true, read).exits(2);
    missing.says(&["verify_state_load (job 'a'): 'local-a-0-verify.state' cannot be read", "No such file"]);
    fs::create_dir(dir.path("states")).unwrap();
    run(&dir, true, &format!("{write} --aux-path=states")).exits(0);
    assert_eq!(dir.list(), ["f", "states"]);
    run(&dir, true, &format!("{read} --aux-path=states")).exits(0);
    assert_eq!(run(&dir, false, &format!("{read} --aux-path=states")).status, 0, "fio finds it, too");
    let mut state = fs::read(dir.path("states").join("local-a-0-verify.state")).unwrap();
    state[40] ^= 1;
    fs::write(dir.path("local-a-0-verify.state"), &state).unwrap();
    run(&dir, true, read).exits(2).says(&["is damaged: its checksum does not match"]);
    assert_ne!(run(&dir, false, read).status, 0, "fio refuses it, too");
    state[0] = 7;
    fs::write(dir.path("local-a-0-verify.state"), &state).unwrap();
    run(&dir, true, read).exits(2).says(&["has version 7, and only version 3"]);
    run(&dir, true, &format!("{write} --nrfiles=2").replace("--filename=f ", "")).exits(0);
    run(&dir, true, read).exits(2).says(&["has files 2, and this job has 1"]);
    let both = run(&dir, true, &format!("{write} --verify_state_load=1")).exits(0);
    both.says(&["verify_state_load=1: has no effect here"]);
}

/// Names and contents of the files with bad blocks. fio makes the header of what it expected anew, with the time of the read.
fn dumped(dir: &Dir, masks: bool) -> Vec<(String, Vec<u8>)> {
    let names = dir.list().into_iter().filter(|n| n.starts_with("f."));
    let read = |name: String| {
        let mut bytes = fs::read(dir.path(&name)).unwrap();
        if masks && name.ends_with(".expected") {
            bytes[24..40].fill(0);
        }
        (name, bytes)
    };
    names.map(read).collect()
}

#[test]
fn bad_blocks_are_dumped_as_by_fio() {
    for (options, has_header) in [
        ("--bs=4k --verify=crc32c", true),
        ("--bs=8k --verify=md5 --verify_interval=2k", true),
        ("--bs=4k --verify=sha1 --verify_pattern=0xdeadbeef", true),
        ("--bs=4k --verify=pattern --verify_pattern=0xdeadbeef%o", false),
    ] {
        let writer = Dir::new("verify-dump");
        run(&writer, false, &format!("--name=a --filename=f --size=64k --rw=write --do_verify=0 {options}")).exits(0);
        let mut data = fs::read(writer.path("f")).unwrap();
        // In the data of one block, and in the header of another.
        (data[8192 + 1000], data[40960 + 5]) = (data[8192 + 1000] ^ 1, data[40960 + 5] ^ 0x40);
        let dirs = [false, true].map(|ours| {
            let dir = Dir::new("verify-dump");
            fs::create_dir(dir.path("sub")).unwrap();
            fs::write(dir.path("sub/f"), &data).unwrap();
            let read =
                format!("--name=a --filename=sub/f --size=64k --rw=read --verify_dump=1 --verify_fatal=1 {options}");
            // Both end at the first bad block; without verify_fatal, fio succeeds if the last block of an I/O is good.
            for offset in ["0", "32k"] {
                let read = read.replace("--size=64k", &format!("--size=32k --offset={offset}"));
                assert_ne!(run(&dir, ours, &read).status, 0, "{options}");
            }
            dir
        });
        let [theirs, ours] = dirs.each_ref().map(|dir| dumped(dir, has_header));
        assert_eq!(theirs.len(), if has_header { 3 } else { 4 }, "{options}: {:?}", dirs[0].list());
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert!(theirs == ours, "{options}: {}, {}", theirs.0, ours.0);
        }
        assert_eq!(theirs.len(), ours.len(), "{options}");
    }
}

#[test]
fn what_cannot_be_written_is_reported() {
    let dir = Dir::new("verify-nowhere");
    let job = "--name=a --filename=f --size=64k --bs=4k --verify=crc32c --verify_dump=1 --aux-path=gone";
    let done = run(&dir, true, &format!("{job} --rw=write")).exits(0);
    done.says(&["verify state 'gone/local-a-0-verify.state' is not written", "--aux-path"]);
    let mut data = fs::read(dir.path("f")).unwrap();
    data[100] ^= 1;
    fs::write(dir.path("f"), data).unwrap();
    let done = run(&dir, true, &format!("{job} --rw=read")).exits(1);
    done.says(&["bad block 'gone/f.0.received' is not written", "--aux-path"]);
}
