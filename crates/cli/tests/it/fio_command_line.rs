// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk fio` with the command lines that are typed for fio: the same jobs, the same I/O, the same formats.

use crate::common;

use common::{Dir, Done, did};
use std::fs;

/// The words of a command line, as a shell splits them.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a command line with fio and with mqblk, each in a directory of its own with the same files.
fn both(line: &str, files: &[(&str, &str)]) -> (Done, Done) {
    let run = |program: &str| {
        let dir = Dir::new("fio-command-line");
        for (name, text) in files {
            dir.file(name, text);
        }
        match program {
            "fio" => dir.program("fio", &words(line)),
            _ => dir.mqblk(&[&["fio"], &words(line)[..]].concat()),
        }
    };
    (run("fio"), run("mqblk"))
}

/// Shapes of published command lines: of cloud providers' guides, database and Kubernetes checks, distributions' wikis. Names
/// are changed, sizes and times are short.
const PUBLISHED: &[&str] = &[
    "-filename=disk -direct=0 -iodepth=1 -rw=randread -ioengine=libaio -bs=4k -size=1M -numjobs=1 -group_reporting -name=test",
    "--name=randwrite --ioengine=libaio --iodepth=1 --rw=randwrite --bs=4k --direct=0 --size=512K --numjobs=2 --group_reporting",
    "--name=fiotest --filename=test1 --size=1M --rw=randread --bs=8K --direct=0 --numjobs=2 --ioengine=libaio --iodepth=32 --group_reporting",
    "--randrepeat=1 --ioengine=libaio --direct=0 --gtod_reduce=1 --name=test --filename=test --bs=4k --iodepth=64 --size=1M --readwrite=randrw --rwmixread=75",
    "--rw=write --ioengine=sync --fdatasync=1 --size=64k --bs=2300 --name=mytest",
    "--name=write_throughput --numjobs=2 --size=1M --ioengine=libaio --direct=0 --verify=0 --bs=64k --iodepth=64 --rw=write --group_reporting=1",
    "--name=seqread --rw=read --bs=128k --size=1m --loops=2 --ioengine=psync",
    "--bs=4k --size=256k --name=a --rw=read --name=b --rw=write --stonewall",
    "--name=job1 --rw=read --size=128k --name job2 --rw write --size 64k --bs 8k",
    "--thread --name=trimless --rw=readwrite --size=512k --blocksize=16k --end_fsync=1 --invalidate=1",
];

#[test]
fn command_lines_do_what_they_do_with_fio() {
    for line in PUBLISHED {
        // fio prints lines about jobs unless the format comes before them.
        let line = format!("--output-format=json {line}");
        let (fios, ours) = both(&line, &[]);
        assert_eq!(did(&ours.exits(0).json()), did(&fios.exits(0).json()), "{line}");
    }
}

/// What fio tolerates: sizes that are no sectors, shares that do not sum to 100, remarks behind numbers, files that are called like
/// targets, colons in names, directories that are not there.
#[test]
fn what_fio_tolerates_runs_the_same() {
    let files = [
        ("null", "a file"),
        ("remarks.fio", "[a]\nsize=256k // of the file\nbs=4k // bytes\nrw=write\n"),
        ("colon.fio", "[a]\nfilename=a\\:b\nsize=64k\nrw=write\n[b]\nfilename=c\\:d/e\nsize=64k\nrw=write\n"),
    ];
    for (line, warned) in [
        ("--name=a --size=1000000 --rw=write --bs=4k", ""),
        ("--name=a --size=999999 --rw=randread --bs=12k", ""),
        (
            "--name=a --size=100001 --offset=100 --rw=randrw --bsrange=1000-5000 --bs_unaligned --ioengine=libaio --iodepth=4",
            "",
        ),
        ("--name=a --size=99999 --rw=rw:16 --bs=1000", ""),
        ("--name=a --size=99999 --rw=randwrite --bssplit=700/30:5000/70 --fdatasync=3", ""),
        ("--name=a --size=99999 --rw=randread --bs=3000 --blockalign=1", ""),
        ("--name=a --kb_base=1000 --size=1MB --rw=randwrite --bs=4096 --ioengine=libaio --iodepth=4", ""),
        ("--name=a --size=256k --rw=randread --bssplit=4k/30:8k/30", "do not sum to 100"),
        ("--name=a --size=256k --rw=randwrite --filename=null", "filename=null: the file './null' is used"),
        ("remarks.fio", "is not read (fio's rule)"),
        ("colon.fio", ""),
        ("--name=a --filename=new/dir/file --size=64k --rw=write", ""),
    ] {
        let (fios, ours) = both(&format!("--output-format=json {line}"), &files);
        let ours = ours.exits(0);
        assert_eq!(did(&ours.json()), did(&fios.exits(0).json()), "{line}");
        assert!(
            if warned.is_empty() { ours.err.is_empty() } else { ours.err.contains(warned) },
            "{line}: {}",
            ours.err
        );
    }
}

/// Blocks that are no sectors hold the same bytes, whatever program writes them, and each program verifies those of the other.
#[test]
fn bytes_are_the_same_with_both_programs() {
    let pattern = "--name=a --filename=f --size=99999 --rw=randwrite --bs=700 --verify=pattern --verify_pattern=%o";
    let sums = "--name=a --filename=f --size=99999 --rw=randwrite --bs=2300 --offset=100 --verify=crc32c";
    let dir = Dir::new("fio-command-line");
    let run = |ours: bool, line: &str| match ours {
        true => dir.mqblk(&[&["fio"], &words(line)[..]].concat()),
        false => dir.program("fio", &words(line)),
    };
    let mut written = Vec::new();
    for ours in [false, true] {
        run(ours, pattern).exits(0);
        written.push(fs::read(dir.path("f")).expect("it was written"));
        fs::remove_file(dir.path("f")).expect("it is there");
        run(ours, &format!("{sums} --do_verify=0")).exits(0);
        let read = sums.replace("rw=randwrite", "rw=randread");
        run(!ours, &read).exits(0);
        let again = format!("{sums} --verify_only=1 --output-format=json");
        assert_eq!(did(&run(true, &again).exits(0).json()), did(&run(false, &again).exits(0).json()));
        let mut damaged = fs::read(dir.path("f")).expect("it was written");
        damaged[100 + 3 * 2300 + 2000] ^= 1;
        fs::write(dir.path("f"), damaged).expect("it is ours");
        for ours in [false, true] {
            assert_ne!(run(ours, &read).status, 0, "damage is found, ours={ours}");
        }
        fs::remove_file(dir.path("f")).expect("it is there");
    }
    assert!(written[0].len() == 99999 && written[0] == written[1]);
}

/// The limit of open files that most shells set; each job opens several.
#[test]
fn many_jobs_need_no_higher_limit_of_open_files() {
    let dir = Dir::new("fio-command-line");
    let line = format!(
        "ulimit -Sn 64; {} fio --name=a --size=64k --rw=read --numjobs=100 --minimal",
        env!("CARGO_BIN_EXE_mqblk")
    );
    let lines = dir.program("sh", &["-c", &line]).exits(0).out.lines().count();
    assert_eq!(lines, 100);
}

#[test]
fn several_files_and_options_before_them() {
    let files = [("1.fio", "[global]\nbs=8k\n[one]\nrw=read\n"), ("2.fio", "[global]\nsize=64k\n[two]\nrw=write\n")];
    let (fios, ours) = both("--output-format=json --size=128k 1.fio 2.fio", &files);
    let ours = did(&ours.exits(0).json());
    assert_eq!(ours, did(&fios.exits(0).json()));
    assert_eq!(ours.iter().map(|j| j.0.as_str()).collect::<Vec<_>>(), ["\"one\"", "\"two\""]);
}

#[test]
fn terse_lines_have_fio_s_fields() {
    for version in 2..=5 {
        let more = format!("--output-format=terse --terse-version={version}");
        let line = format!("--name=a --rw=randrw --size=256k --ioengine=null {more}");
        let (fios, ours) = both(&line, &[]);
        let (fios, ours) = (fios.exits(0), ours.exits(0));
        let fields = |text: &str| text.trim_end().split(';').map(str::to_owned).collect::<Vec<_>>();
        let (fios, ours) = (fields(&fios.out), fields(&ours.out));
        // Ours has a disk, the null target.
        assert!(ours.len() == fios.len() || ours.len() == fios.len() + 9, "{} {}\n{ours:?}", fios.len(), ours.len());
        // Name, group, error and KiB read and written have the same places; the numbers of I/Os are those of the same job.
        let heads = if more.contains("=2") { 1..5 } else { 2..6 };
        assert_eq!(ours[heads.clone()], fios[heads], "{more}");
        let places: Vec<usize> = (0..fios.len()).filter(|&n| fios[n].contains('%')).collect();
        assert!(places.iter().all(|&n| ours[n].contains('%')), "{more}: {ours:?}");
    }
}

#[test]
fn a_job_file_as_a_command_line_runs_the_same() {
    let dir = Dir::new("fio-command-line");
    dir.file("j.fio", "[global]\nsize=256k\n[a b]\nrw=randread\nnorandommap\n[c]\nrw=write\nbs=8k\nstonewall\n");
    let shown = dir.mqblk(&["run", "j.fio", "--showcmd"]).exits(0).out;
    assert_eq!(
        shown,
        "mqblk fio --size=256k --name='a b' --rw=randread --norandommap --name=c --rw=write --bs=8k --stonewall\n"
    );
    assert_eq!(dir.list(), ["j.fio"], "nothing ran");
    let again = shown.trim_end().replace("mqblk ", &format!("{} ", env!("CARGO_BIN_EXE_mqblk")));
    let again = dir.program("sh", &["-c", &format!("{again} --output-format=json")]).exits(0).json();
    assert_eq!(did(&again), did(&dir.mqblk(&["run", "j.fio", "--json"]).exits(0).json()));
}

#[test]
fn flags_that_only_ask_run_nothing() {
    let dir = Dir::new("fio-command-line");
    let job = ["--name=a", "--rw=write", "--size=64k"];
    assert_eq!(dir.mqblk(&[&["fio", "--parse-only"], &job[..]].concat()).exits(0).out, "");
    let refused = dir.mqblk(&[&["fio", "--readonly"], &job[..]].concat()).exits(2);
    refused.says(&["--readonly: job 'a' has rw=write"]);
    let missing = dir.mqblk(&["fio", "--readonly", "--name=a", "--rw=read", "--size=64k"]).exits(2);
    missing.says(&["--readonly: 'a.0.0' (job 'a') is missing or shorter than size"]);
    dir.mqblk(&["fio", "--name="]).exits(2).says(&["--name=: is empty"]);
    dir.mqblk(&["fio", "--name=a", "--iodpeth=4"])
        .exits(2)
        .says(&["iodpeth=4: is no option of fio", "did you mean 'iodepth'?"]);
    dir.mqblk(&["fio", "--bs=4k"]).exits(2).says(&["the options: name no job; begin one with --name=JOB"]);
    assert_eq!(dir.mqblk(&["fio", "--cmdhelp=bs"]).exits(0).out, dir.mqblk(&["cmdhelp", "bs"]).exits(0).out);
    assert_eq!(fs::read_dir(dir.as_path()).expect("the directory").count(), 0, "no file was made");
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    const JOBS: &str = include_str!("../data/published_jobs.txt");
    const LIST: &str = include_str!("../../../../docs/published-jobs.md");

    fn names(done: Vec<(String, [f64; 6])>) -> Vec<String> {
        done.into_iter().map(|(name, _)| name).collect()
    }

    /// Most of the time is waiting, so several run at a time.
    #[test]
    fn published_jobs_run_as_with_fio() {
        let entries: Vec<&str> = JOBS.trim_end().split("\n\n# ").skip(1).collect();
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let mine = entries.iter().skip(lane).step_by(4);
                scope.spawn(|| mine.for_each(|entry| runs_as_with_fio(entry)));
            }
        });
        assert_eq!(LIST.matches("| runs |").count(), entries.len(), "docs/published-jobs.md lists others");
    }

    fn runs_as_with_fio(entry: &str) {
        let (title, job) = entry.split_once('\n').expect("a title and a job");
        let line = job.trim_end().strip_prefix("fio ").unwrap_or("job.fio");
        // fio does not make a file with --readonly.
        let disk = "\0".repeat(if job.contains("--readonly") { 16 << 20 } else { 0 });
        let files = [("job.fio", job), ("disk", disk.as_str())];
        let (fios, ours) = both(&format!("--output-format=json {line}"), &files);
        let (fios, ours) = (did(&fios.exits(0).json()), did(&ours.exits(0).json()));
        if job.contains("time_based") {
            // What they move depends on the machine.
            assert_eq!(names(ours), names(fios), "{title}");
        } else {
            assert_eq!(ours, fios, "{title}");
        }
        assert!(LIST.contains(&format!("| {title} |")), "docs/published-jobs.md does not list: {title}");
    }
}
