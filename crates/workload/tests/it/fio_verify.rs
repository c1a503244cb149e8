// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verified data in both directions: fio verifies what the engine wrote, and the engine verifies what fio wrote. Needs fio
//! 3.33; without it the tests print that they skipped.

use crate::common;

use common::{Harness, KIB, MIB, fio_is_3_33};
use std::path::{Path, PathBuf};
use std::process::Command;
use workload::job::*;

const SIZE: u64 = MIB;

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("mqblk-verify-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("f")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fio(dir: &Path, args: &str) -> Result<(), String> {
    let run = Command::new("fio")
        .current_dir(dir)
        .args(["--name=a", "--filename=f", "--ioengine=psync", "--size=1m", "--output=out"])
        .args(args.split_whitespace())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
    if run.status.success() { Ok(()) } else { Err(text) }
}

struct Case {
    name: &'static str,
    kind: VerifyKind,
    /// The same job as fio options, without rw.
    args: &'static str,
    set: fn(&mut Job),
}

const CASES: [Case; 7] = [
    Case { name: "crc32c", kind: VerifyKind::Crc32c, args: "--bs=4k --verify=crc32c", set: |_| () },
    Case { name: "md5", kind: VerifyKind::Md5, args: "--bs=4k --verify=md5", set: |_| () },
    Case { name: "sha256", kind: VerifyKind::Sha256, args: "--bs=4k --verify=sha256", set: |_| () },
    Case { name: "xxhash", kind: VerifyKind::Xxhash, args: "--bs=4k --verify=xxhash", set: |_| () },
    Case {
        name: "pattern",
        kind: VerifyKind::Pattern,
        args: "--bs=4k --verify=pattern --verify_pattern=0xdeadbeef",
        set: |j| j.verify_pattern = Some(deadbeef()),
    },
    Case {
        name: "crc32c-pattern",
        kind: VerifyKind::Crc32c,
        args: "--bs=4k --verify=crc32c --verify_pattern=0xdeadbeef",
        set: |j| j.verify_pattern = Some(deadbeef()),
    },
    Case {
        name: "crc32c-range",
        kind: VerifyKind::Crc32c,
        args: "--bsrange=2k-8k --verify=crc32c",
        set: |j| j.block_sizes = PerDir::all(BlockSizes::Range { min_bytes: 2 * KIB, max_bytes: 8 * KIB }),
    },
];

fn deadbeef() -> Pattern {
    Pattern { bytes: vec![0xde, 0xad, 0xbe, 0xef], offset_at: vec![] }
}

fn job(case: &Case, mode: RwMode, random: bool) -> Job {
    let mut job = Job::new("a");
    job.size = Some(Extent::Bytes(SIZE));
    job.rw = Rw { mode, random };
    job.verify = Some(case.kind);
    (case.set)(&mut job);
    job
}

#[test]
fn fio_verifies_what_we_wrote() {
    if !fio_is_3_33() {
        return;
    }
    for case in &CASES {
        for (random, word) in [(false, "read"), (true, "randread")] {
            if random && case.name == "crc32c-range" {
                // If sizes vary, fio's reader draws other offsets than its writer.
                continue;
            }
            let mut job = job(case, RwMode::Write, random);
            job.iodepth = 8;
            let mut harness = Harness::new(&job, SIZE, 1);
            harness.run();
            assert_eq!(harness.verify_errors.first(), None, "{}: our own verify", case.name);
            let dir = Scratch::new(&format!("ours-{}-{word}", case.name));
            std::fs::write(dir.file(), &harness.data).unwrap();
            if let Err(text) = fio(&dir.0, &format!("--rw={word} {}", case.args)) {
                panic!("{} {word}: {text}", case.name);
            }
            // The same check has to fail for damaged data: change the last byte of a block.
            let mut bad = harness.data.clone();
            bad[5 * 4096 + 4095] ^= 1;
            std::fs::write(dir.file(), &bad).unwrap();
            // Without verify_fatal, fio reports only the result of the last block of an I/O.
            let strict = fio(&dir.0, &format!("--rw={word} --verify_fatal=1 {}", case.args));
            assert!(strict.is_err(), "{}: fio misses damage", case.name);
        }
    }
}

#[test]
fn we_verify_what_fio_wrote() {
    if !fio_is_3_33() {
        return;
    }
    for case in &CASES {
        for word in ["write", "randwrite"] {
            let dir = Scratch::new(&format!("fio-{}-{word}", case.name));
            fio(&dir.0, &format!("--rw={word} --do_verify=0 {}", case.args)).unwrap();
            let data = std::fs::read(dir.file()).unwrap();
            let read = |data: &[u8]| {
                let mut job = job(case, RwMode::Read, false);
                if case.name == "crc32c-range" {
                    job.block_sizes = PerDir::all(BlockSizes::Fixed(2 * KIB));
                }
                let mut harness = Harness::new(&job, SIZE, 1);
                harness.data.copy_from_slice(data);
                harness.run();
                assert_eq!(harness.thread.stats().total_bytes(), SIZE);
                (harness.thread.stats().verify_errors, harness.verify_errors.first().map(ToString::to_string))
            };
            assert_eq!(read(&data), (0, None), "{} {word}", case.name);
            let mut bad = data.clone();
            bad[9 * 4096 + 1000] ^= 0x10;
            let (count, errors) = read(&bad);
            assert_eq!(count, 1, "{} {word}: one damaged block, found {errors:?}", case.name);
        }
    }
}

#[test]
fn the_files_of_equal_jobs_are_equal_but_for_the_time() {
    if !fio_is_3_33() {
        return;
    }
    for case in &CASES {
        let dir = Scratch::new(&format!("equal-{}", case.name));
        fio(&dir.0, &format!("--rw=randwrite --do_verify=0 {}", case.args)).unwrap();
        let mut harness = Harness::new(&job(case, RwMode::Write, true), SIZE, 1);
        harness.run();
        let step = if case.name == "crc32c-range" { 2048 } else { 4096 };
        let strip = |data: &[u8]| {
            let mut data = data.to_vec();
            if case.kind != VerifyKind::Pattern {
                // Time of the write, and the header checksum that covers it.
                data.chunks_mut(step).for_each(|b| (b[24..32].fill(0), b[36..40].fill(0)).0);
            }
            data
        };
        let theirs = strip(&std::fs::read(dir.file()).unwrap());
        let ours = strip(&harness.data);
        let differs = (0..ours.len()).find(|&i| ours[i] != theirs[i]);
        assert_eq!(differs, None, "{}: first difference", case.name);
    }
}
