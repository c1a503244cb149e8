// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of the Oracle experiment on a real iSCSI target: transactions with data on a stripe of 16 LUNs and redo on a stripe of 8,
//! all of Debian's tgtd. The command is the one in docs/workloads.md, with smaller sizes.

use crate::common;
use crate::tgtd;

use common::{Dir, Done, number};
use std::fs::{self, File};
use tgtd::Tgtd;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The target's name in the documentation.
const IQN: &str = "iqn.2026-11.com.example:slob";
const MIB: usize = 1 << 20;
/// Bytes of `chunk=1m`.
const CHUNK: usize = MIB;
const BLOCK: usize = 8 << 10;
const DATA: usize = 16;
const REDO: usize = 8;
/// Bytes of a data LUN, and of a redo LUN.
const LUN: usize = 4 * MIB;
/// The byte that the job writes.
const WRITTEN: u8 = 0x5a;

/// Returns the byte at an offset of the striped disk before the job. It is never [`WRITTEN`].
fn laid(at: usize) -> u8 {
    (at / 512 % 89) as u8
}

/// Returns the documentation's command that runs on an iSCSI target, on one line.
fn documented() -> String {
    let text = fs::read_to_string(format!("{ROOT}/docs/workloads.md")).unwrap().replace("\\\n", " ");
    let mut found =
        text.lines().filter(|l| l.starts_with("mqblk run examples/oltp-slob.fio") && l.contains("iscsi://"));
    let command = found.next().expect("docs/workloads.md has a command with iscsi://").to_owned();
    assert_eq!(found.next(), None);
    command
}

/// Makes the files of the LUNs, 1 to 16 for data and 17 to 24 for redo.
fn make_luns(dir: &Dir) -> Vec<String> {
    let names: Vec<String> = (1..=DATA + REDO).map(|n| format!("lun{n}")).collect();
    for (i, name) in names.iter().enumerate() {
        if i < DATA {
            let own = |at: usize| (at / CHUNK * DATA + i) * CHUNK + at % CHUNK;
            fs::write(dir.path(name), (0..LUN).map(|at| laid(own(at))).collect::<Vec<_>>()).unwrap();
        } else {
            File::create(dir.path(name)).unwrap().set_len(LUN as u64).unwrap();
        }
    }
    names
}

fn read(dir: &Dir, names: &[String]) -> Vec<Vec<u8>> {
    names.iter().map(|n| fs::read(dir.path(n)).unwrap()).collect()
}

/// Returns the striped disk: the chunks of the files, round robin.
fn whole(luns: &[Vec<u8>]) -> Vec<u8> {
    (0..LUN / CHUNK).flat_map(|row| luns.iter().flat_map(move |l| &l[row * CHUNK..][..CHUNK]).copied()).collect()
}

/// Runs the documentation's command at this target, with more options.
fn run(dir: &Dir, port: u16, more: &str) -> Done {
    let portal = format!("iscsi://127.0.0.1:{port}/");
    let command = documented().replace("iscsi://10.0.0.5/", &portal).replace("examples/", &format!("{ROOT}/examples/"));
    assert!(command.contains(&format!("{portal}{IQN}/%*1-16")) && command.contains("/%*17-24"), "{command}");
    let mqblk = env!("CARGO_BIN_EXE_mqblk");
    dir.program("sh", &["-c", &format!("mqblk() {{ '{mqblk}' \"$@\"; }}; {command} {more}")])
}

/// Data with checksums is also verified in the target's files.
fn checksums_are_right_in_the_files(dir: &Dir, names: &[String], port: u16) {
    let verify = "[v]\nioengine=libaio\niodepth=32\nrw=randwrite\nbs=48k\nsize=64m\nverify=crc32c\ndirect=1\n";
    dir.file("v.fio", verify);
    let urls = format!("stripe:chunk=1m:iscsi://127.0.0.1:{port}/{IQN}/%*1-16");
    let done = dir.mqblk(&["run", "v.fio", "--target", &urls, "--json"]).exits(0).json();
    assert_eq!(number(&done, "/jobs/0/read/io_bytes"), number(&done, "/jobs/0/write/io_bytes"));
    fs::write(dir.path("files"), whole(&read(dir, names))).unwrap();
    dir.mqblk(&["run", "v.fio", "--job-set", "rw=read", "--target", "files"]).exits(0);
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn transactions_on_24_iscsi_luns_change_the_right_blocks() {
        let dir = Dir::new("stripe-iscsi");
        let names = make_luns(&dir);
        let tgtd = Tgtd::start(&dir, IQN, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let before = whole(&read(&dir, &names[..DATA]));
        assert!(before.iter().enumerate().all(|(at, byte)| *byte == laid(at)));

        // Ends when each instance has done 600 transactions and all blocks are written back.
        let smaller = "--job-set size=64m --job-set redo_size=12m --job-set runtime=100 --job-set transactions=600";
        let sets = format!("{smaller} --job-set redo_bytes=128k --job-set buffer_pattern=0x{WRITTEN:02x} --json");
        let v = run(&dir, tgtd.port, &sets).exits(0).json();
        let tx = |key: &str| number(&v, &format!("/mqblk/oltp/0/{key}"));
        assert_eq!((tx("transactions"), tx("instances"), number(&v, "/jobs/0/read/total_ios")), (1200.0, 2.0, 19200.0));
        assert_eq!(tx("block_writes") + tx("rewritten"), 4.0 * tx("commits"));
        let util = |i: u32, key: &str| number(&v, &format!("/disk_util/{i}/{key}"));
        assert_eq!(util(0, "read_ios") + util(0, "read_merges"), 19200.0);
        assert_eq!(util(0, "write_ios") + util(0, "write_merges"), tx("block_writes"));
        // A redo write that crosses the end of a chunk counts as two.
        assert!(util(1, "write_ios") + util(1, "write_merges") >= tx("redo_writes"));
        assert_eq!(util(1, "read_ios"), 0.0);

        let luns = read(&dir, &names);
        // Each block of each data LUN was written completely or is unchanged.
        let mut changed = 0;
        for (i, lun) in luns[..DATA].iter().enumerate() {
            let mut of_lun = 0;
            for (n, block) in lun.chunks(BLOCK).enumerate() {
                let at = (n * BLOCK / CHUNK * DATA + i) * CHUNK + n * BLOCK % CHUNK;
                let is_written = block.iter().all(|b| *b == WRITTEN);
                let is_kept = block.iter().enumerate().all(|(k, b)| *b == laid(at + k));
                assert!(is_written != is_kept, "block {n} of data LUN {i} is neither as it was nor as it was written");
                of_lun += usize::from(is_written);
            }
            // The mean is a sixteenth of about 1100; each bound is six standard deviations away.
            assert!((22..=130).contains(&of_lun), "data LUN {i} has {of_lun} changed blocks");
            changed += of_lun;
        }
        let (written, at_most) = (tx("block_writes"), 4.0 * tx("commits"));
        assert!(
            changed as f64 <= written && changed as f64 > 0.8 * at_most,
            "{changed} of {written}, {at_most} changes"
        );
        // Both logs were written to their ends: 12 chunks each, over all LUNs by round robin.
        assert!(tx("redo_wraps") >= 2.0, "{v:#}");
        for (i, lun) in luns[DATA..].iter().enumerate() {
            let n = lun.iter().filter(|b| **b == WRITTEN).count();
            assert!(lun.iter().all(|b| [0, WRITTEN].contains(b)), "redo LUN {i} has something else");
            assert_eq!(n, 3 * CHUNK, "bytes of redo LUN {i}");
        }

        // Reading through the stripe returns the data of the target's files.
        let list = |numbers: std::ops::RangeInclusive<usize>| -> String {
            numbers.map(|n| format!("\"iscsi://127.0.0.1:{}/{IQN}/{n}?sessions=1\", ", tgtd.port)).collect()
        };
        let disk =
            format!("[[disk]]\nname = \"d\"\nstack = \"stripe\"\nchunk = \"1m\"\ntargets = [{}]\n", list(1..=DATA));
        dir.file("c.toml", &format!("{disk}[[export]]\ntype = \"nbd\"\nsocket = \"d.sock\"\n"));
        let serving = dir.start(&["serve", "c.toml"], "serving");
        dir.program("nbdcopy", &[&format!("nbd+unix:///d?socket={}", dir.path("d.sock").display()), "back"]).exits(0);
        serving.signal("TERM");
        serving.ends().exits(0);
        assert!(fs::read(dir.path("back")).unwrap() == whole(&luns[..DATA]), "read back is something else");

        checksums_are_right_in_the_files(&dir, &names[..DATA], tgtd.port);
    }
}
