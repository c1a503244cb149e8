// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs on several files: the same I/O, the same files of the same sizes as with fio, on files, targets and both.

use crate::common;

use common::{Dir, did, number};
use std::fs;
use std::path::Path;

/// The files below a directory, with their sizes.
fn files(dir: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(name, size)| (format!("{}/{name}", path.display()), size)));
        } else {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            found.push((name, fs::metadata(&path).expect("a file").len()));
        }
    }
    found.sort();
    found
        .into_iter()
        .map(|(name, size)| (name.rsplit_once("several/").map_or(name.clone(), |n| n.1.to_owned()), size))
        .collect()
}

/// Jobs as lines of options; the first is the global section.
const JOBS: &[&[&str]] = &[
    &[
        "ioengine=psync bs=4k size=200k rw=randrw",
        "nrfiles=3 numjobs=2",
        "filename=a:b\\:c:d rw=write",
        "filename=a:e rw=read",
    ],
    &[
        "ioengine=libaio iodepth=8 bs=4k",
        "nrfiles=5 filesize=8k-200k rw=randwrite",
        "nrfiles=2 directory=x:y size=1m numjobs=3 rw=write",
    ],
    &[
        "ioengine=psync bs=1k rw=randread norandommap=1",
        "nrfiles=3 size=100k",
        "nrfiles=7 size=100001 io_size=300k file_service_type=random:3",
    ],
    &["ioengine=psync bs=4k size=128k filename=g", "rw=write filename=h", "rw=read filename=g nrfiles=1"],
    &["ioengine=psync bs=4k size=128k nrfiles=2 unlink=1", "rw=write", "rw=read numjobs=2"],
    &["ioengine=psync bs=4k size=128k nrfiles=3 create_only=1", "rw=read", "rw=read filename=z filesize=64k"],
    &[
        "ioengine=psync bs=4k size=96k nrfiles=3 rw=read pre_read=1 create_fsync=0",
        "fallocate=none",
        "fallocate=keep",
        "fallocate=posix",
    ],
    &["ioengine=psync bs=4k size=64k opendir=x rw=read", "", "file_service_type=sequential"],
    &[
        "ioengine=psync bs=4k size=64k nrfiles=4 rw=write",
        "openfiles=2 end_fsync=1",
        "openfiles=1 file_service_type=random loops=2",
    ],
    &["ioengine=null bs=4k size=1m nrfiles=3 rw=randrw", "iodepth=1", "rw=trim"],
];

#[test]
fn files_and_io_are_those_of_fio() {
    for sections in JOBS {
        let mut text = String::new();
        for (n, options) in sections.iter().enumerate() {
            let name = if n == 0 { "global".to_owned() } else { format!("j{n}") };
            text += &options.split_whitespace().fold(format!("[{name}]\n"), |text, o| text + o + "\n");
        }
        let run = |program: &str| {
            let dir = Dir::new("several");
            for sub in ["several/x", "several/y"] {
                fs::create_dir_all(dir.path(sub)).expect("a directory for the test");
            }
            for (name, size) in [("p", 20_000), ("q", 70_000)] {
                fs::write(dir.path(&format!("several/x/{name}")), vec![7; size]).expect("a file for the test");
            }
            fs::write(dir.path("several/j.fio"), &text).expect("a file for the test");
            let command = format!("cd several && {program} --output-format=json --output=../out j.fio");
            let done = dir.program("sh", &["-c", &command]).exits(0);
            let out = fs::read_to_string(dir.path("out")).expect("results");
            let json = out.find('{').map(|at| &out[at..]).expect("JSON");
            drop(done);
            (did(&serde_json::from_str(json).expect("JSON")), files(&dir.path("several")))
        };
        let ours = run(&format!("{} fio", env!("CARGO_BIN_EXE_mqblk")));
        assert_eq!(ours, run("fio"), "{text}");
    }
}

/// fio finds in each file what mqblk wrote there, and mqblk finds its own.
#[test]
fn verified_files_are_verified_by_fio() {
    for service in ["roundrobin", "sequential", "random:4", "zipf:1.2"] {
        let dir = Dir::new("several");
        let size = "--size=1m --nrfiles=4 --bs=4k --verify=crc32c --direct=0";
        let write = format!(
            "fio --name=v --rw=randrw --rwmixread=20 --ioengine=libaio --iodepth=8 --file_service_type={service} {size}"
        );
        let written =
            dir.mqblk(&[&write.split(' ').collect::<Vec<_>>()[..], &["--output-format=json"]].concat()).exits(0).json();
        let writes = number(&written, "/jobs/0/write/total_ios");
        assert!(writes > 100.0, "{service}: {writes} writes");
        let write =
            format!("fio --name=v --rw=write --ioengine=libaio --iodepth=8 --file_service_type={service} {size}");
        dir.mqblk(&write.split(' ').collect::<Vec<_>>()).exits(0);
        if service.starts_with("zipf") {
            // Some files are written twice and others not to their end.
            continue;
        }
        let read = format!("--name=v --rw=read --ioengine=psync {size}");
        dir.program("fio", &read.split(' ').collect::<Vec<_>>()).exits(0);
    }
}

/// `verify_only` looks for each block in its file.
#[test]
fn an_earlier_write_to_several_files_is_checked() {
    let dir = Dir::new("several");
    let job = "--name=v --rw=randwrite --ioengine=libaio --iodepth=8 --size=1m --nrfiles=4 --bs=4k --verify=crc32c";
    let run = |more: &str| dir.mqblk(&format!("fio {job} {more}").split_whitespace().collect::<Vec<_>>());
    run("--do_verify=0").exits(0);
    let file = dir.path("v.0.2");
    let mut data = std::fs::read(&file).unwrap();
    run("--verify_only=1").exits(0);
    assert_eq!(std::fs::read(&file).unwrap(), data, "nothing is written");
    data[100_000] ^= 1;
    std::fs::write(&file, data).unwrap();
    let bad = run("--verify_only=1");
    assert!(bad.status != 0 && bad.err.contains("v.0.2"), "{}", bad.err);
}

#[test]
fn targets_and_files_are_mixed() {
    let dir = Dir::new("several");
    let job = "[a]\nfilename=disk:ram\\:size=1m:null\\:\nsize=768k\nrw=randwrite\nbs=4k\nioengine=libaio\niodepth=4\n";
    dir.file("j.fio", job);
    let v = dir.mqblk(&["run", "j.fio", "--json"]).exits(0).json();
    let names: Vec<&str> =
        v["disk_util"].as_array().expect("disks").iter().filter_map(|d| d["name"].as_str()).collect();
    assert_eq!(names, ["disk", "ram:size=1m", "null:"]);
    let writes = |n: usize| number(&v, &format!("/disk_util/{n}/write_ios"));
    assert_eq!([writes(0), writes(1), writes(2)], [64.0, 64.0, 64.0]);
    let one = dir.mqblk(&["run", "j.fio", "--json", "--target", "null:"]).exits(0).json();
    assert_eq!(number(&one, "/jobs/0/write/total_ios"), 192.0, "one target replaces all files");
    dir.file("k.fio", &job.replace("null\\:", "kernel\\:/dev/nosuch"));
    dir.mqblk(&["run", "k.fio"]).exits(2).says(&["a run uses the kernel's block layer or mqblk's, not both"]);
}

#[test]
fn a_thousand_files_are_one_line() {
    let dir = Dir::new("several");
    let job = "--name=k --nrfiles=1000 --size=8000k --bs=4k --rw=randwrite --ioengine=libaio --iodepth=16 --create_fsync=0 --unlink=1";
    let args: Vec<&str> = ["fio"].into_iter().chain(job.split(' ')).collect();
    dir.mqblk(&args).exits(0).prints(&["total=0,2000,0,0", "k.0.0 and 999 more: ios=0/2000"]);
    assert!(!dir.list().iter().any(|name| name.starts_with("k.")), "all files are removed");
}

/// On a simulated machine the files are parts of its disk.
#[test]
fn a_simulated_machine_has_several_files() {
    let dir = Dir::new("several");
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/azure-p80.toml");
    let job = |files: &str| format!("[a]\n{files}\nsize=8m\nrw=read\nbs=4k\nioengine=libaio\niodepth=4\n");
    dir.file("j.fio", &job("nrfiles=4"));
    let target = format!("sim:{machine}");
    let v = dir.mqblk(&["run", "j.fio", "--json", "--target", &target]).exits(0).json();
    assert_eq!(number(&v, "/jobs/0/read/total_ios"), 2048.0);
    dir.file("large.fio", &job("nrfiles=4\nfilesize=900t"));
    dir.mqblk(&["run", "large.fio", "--target", &target]).exits(2).says(&["4 files need", "lower size or nrfiles"]);
}

#[test]
fn percentages_of_a_new_file_are_those_of_its_filesize() {
    let dir = Dir::new("several-files");
    let line =
        "fio --name=a --filename=f --filesize=2m --size=40% --offset=50% --rw=write --bs=4k --output-format=json";
    for run in ["the file is made", "it is there"] {
        let json = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0).json();
        // 838,860 bytes, in whole blocks.
        assert_eq!(number(&json, "/jobs/0/write/io_bytes"), f64::from(204 * 4096), "{run}");
        let bytes = fs::read(dir.path("f")).unwrap();
        assert!(bytes.len() == 2 << 20 && bytes[..1 << 20].iter().all(|b| *b == 0), "{run}");
    }
}

#[test]
fn percentages_of_a_new_file_without_filesize_are_fio_s() {
    for options in
        ["--offset=50% --rw=write", "--offset=25% --rw=randread", "--offset_increment=10% --numjobs=2 --rw=randrw"]
    {
        let line = format!("--name=a --filename=f --size=1m --bs=4k --output-format=json {options}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let (fios, ours) = (Dir::new("several-files"), Dir::new("several-files"));
        let fio = fios.program("fio", &words).exits(0).json();
        let done = ours.mqblk(&[&["fio"], &words[..]].concat()).exits(0);
        done.says(&["offset (", "'f' does not exist yet, so a percentage of it is 0 in this run, as in fio"]);
        assert_eq!(did(&done.json()), did(&fio), "{options}");
        if !options.contains("increment") {
            // fio lays out one instance after the other, so the second one finds the file of the first.
            let bytes = |dir: &Dir| fs::metadata(dir.path("f")).unwrap().len();
            assert_eq!(bytes(&ours), bytes(&fios), "{options}");
        }
    }
}
