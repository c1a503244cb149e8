// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs on devices of the kernel (`--target kernel:/dev/X`), here on loop devices: settings are written and always restored, devices in
//! use are rejected, the I/O is the same as fio's, and the figures are the kernel's.
//!
//! Needs root, losetup, e2fsprogs, fio 3.33 and loop devices. An elevator that this kernel lacks is left out; the test prints which.

use crate::common;

use common::{Dir, Done, LONG, POLL, Started, number};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A loop device over a file of zeroes. It starts with default settings and is detached at the end of the test.
struct Loop {
    node: String,
    dir: Dir,
}

impl Loop {
    fn new(test: &str, bytes: u64) -> Loop {
        Loop::with(test, bytes, &[])
    }

    fn with(test: &str, bytes: u64, flags: &[&str]) -> Loop {
        let dir = Dir::new(test);
        fs::File::create(dir.path("disk.img")).unwrap().set_len(bytes).unwrap();
        let made = dir.program("losetup", &[flags, &["--find", "--show", "disk.img"]].concat()).exits(0);
        let made = Loop { node: made.out.trim().to_owned(), dir };
        // Settings of a loop device survive when it is detached from its file.
        for (name, value) in [("scheduler", "none"), ("nr_requests", "128"), ("nomerges", "0"), ("rq_affinity", "1")] {
            fs::write(made.queue(name), value).unwrap();
        }
        made
    }

    fn target(&self) -> String {
        format!("kernel:{}", self.node)
    }

    fn name(&self) -> &str {
        self.node.trim_start_matches("/dev/")
    }

    fn queue(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.name()).join("queue").join(name)
    }

    fn value(&self, name: &str) -> String {
        let text = fs::read_to_string(self.queue(name)).unwrap_or_default();
        let chosen = text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
        chosen.unwrap_or(text.trim()).to_owned()
    }

    /// Returns all settings in the device's queue directory, tunables included.
    fn settings(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for dir in ["", "iosched/"] {
            for entry in fs::read_dir(self.queue(dir)).into_iter().flatten().flatten() {
                let name = format!("{dir}{}", entry.file_name().to_string_lossy());
                all.insert(name.clone(), self.value(&name));
            }
        }
        all
    }

    fn state(&self) -> PathBuf {
        Path::new("/run/mqblk").join(format!("{}.settings", self.name()))
    }

    fn run(&self, more: &[&str]) -> Done {
        let target = self.target();
        self.dir.mqblk(&[&["run", "j.fio", "--target", &target], more].concat())
    }

    /// Returns the elevators of this kernel, after their modules were requested. Prints those that are missing.
    fn schedulers(&self) -> Vec<&'static str> {
        let all = ["none", "mq-deadline", "kyber", "bfq"];
        let has = |name: &&str| {
            let module = Command::new("modprobe").arg(format!("{name}-iosched")).output();
            drop(module);
            let list = fs::read_to_string(self.queue("scheduler")).unwrap();
            let found = list.split_whitespace().any(|w| w.trim_matches(['[', ']']) == *name);
            if !found {
                println!("left out: this kernel has no elevator {name}");
            }
            found
        };
        all.into_iter().filter(has).collect()
    }

    /// Starts a long run and waits until its setting is in effect.
    fn start(&self, settings: &[&str], scheduler: &str) -> Started {
        self.dir.file(
            "long.fio",
            "[j]\nioengine=io_uring\nrw=randread\nbs=4k\ndirect=1\niodepth=4\ntime_based\nruntime=100\n",
        );
        let target = self.target();
        let args = [&["run", "long.fio", "--eta=always", "--target", &target], settings].concat();
        let started = self.dir.start(&args, "");
        self.waits_for(|| self.value("scheduler") == scheduler && self.state().exists());
        started
    }

    fn waits_for(&self, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "{:?}", self.settings());
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Before another test gets the same device.
        let _ = fs::remove_file(self.state());
        let _ = Command::new("losetup").args(["--detach", &self.node]).output();
    }
}

const JOB: &str = "[j]\nioengine=io_uring\nrw=randwrite\nbs=4k\ndirect=1\niodepth=8\nsize=2m\n";

#[test]
fn every_elevator_is_in_effect_while_it_runs_and_put_back() {
    let disk = Loop::new("kernel-elevators", 16 << 20);
    disk.dir.file("j.fio", JOB);
    let before = disk.settings();
    let target = disk.target();
    for scheduler in disk.schedulers() {
        let set = format!("scheduler={scheduler}");
        let v = disk.run(&["--json", "--set", &set, "--set", "nr_requests=32", "--set", "nomerges=2"]).exits(0).json();
        let settings: Vec<&str> =
            v["mqblk"]["settings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
        for wanted in [target_line(&target).as_str(), &set, "nr_requests=32", "nomerges=2"] {
            assert!(settings.contains(&wanted), "{wanted} is not in {settings:?}");
        }
        // The kernel's count is the job's.
        assert_eq!(number(&v, "/jobs/0/write/total_ios"), 512.0);
        assert_eq!(
            number(&v, "/disk_util/0/write_ios") + number(&v, "/disk_util/0/write_merges"),
            512.0,
            "{scheduler}"
        );
        assert!(number(&v, "/mqblk/iostat/0/counted/write/ios_per_s") > 0.0);
        // Stages of the kernel's requests are not measured.
        assert_eq!(number(&v, "/mqblk/stages/times/n"), 0.0);
        assert_eq!(disk.settings(), before, "{scheduler}");
        let (a, results) = (format!("scheduler={scheduler},nr_requests=64"), format!("{scheduler}.jsonl"));
        let args =
            ["compare", "j.fio", "--target", &target, "--a", &a, "--b", "scheduler=none", "--pairs=10", "--json"];
        let done = disk.dir.mqblk(&[&args[..], &["--results", &results]].concat()).exits(0);
        assert_eq!(number(&done.json(), "/pairs_done"), 10.0);
        assert_eq!(disk.settings(), before, "{scheduler}");
        let lines = fs::read_to_string(disk.dir.path(&results)).unwrap();
        assert!(lines.contains(&format!("\"{}\"", disk.name())), "the device and its settings are in the results");
    }
    assert!(!disk.state().exists());
}

fn target_line(target: &str) -> String {
    format!("target={target}")
}

#[test]
fn what_the_kernel_refuses_or_bends_is_said_and_nothing_stays() {
    let disk = Loop::new("kernel-refused", 16 << 20);
    disk.dir.file("j.fio", JOB);
    let before = disk.settings();
    let refused = disk.run(&["--set", "scheduler=mq-deadline", "--set", "nr_requests=99999999"]).exits(2);
    refused.says(&["nr_requests=99999999: /sys/", "was refused: Invalid argument", "it stays 256", "2048 with one"]);
    assert_eq!(disk.settings(), before);
    assert!(!disk.state().exists());
    // Below the kernel's minimum.
    disk.run(&["--set", "nr_requests=1"]).exits(0).says(&["nr_requests=1: ", "changed it to 4, which is in effect"]);
    assert_eq!(disk.settings(), before);
    // An I/O error: the file below the device is truncated.
    disk.dir.file("j.fio", &JOB.replace("randwrite", "randread").replace("size=2m", "offset=8m\nsize=2m"));
    fs::OpenOptions::new().write(true).open(disk.dir.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
    let failed = disk.run(&["--set", "scheduler=mq-deadline"]);
    assert_eq!(disk.settings(), before, "{}\n{}", failed.out, failed.err);
    assert!(!disk.state().exists());
}

#[test]
fn bad_input_is_refused_before_anything_is_touched() {
    let disk = Loop::new("kernel-bad-input", 16 << 20);
    disk.dir.file("j.fio", JOB).file("file", "");
    let before = disk.settings();
    for (args, says) in [
        (&["--set", "nr_request=64"][..], &["has no such setting", "did you mean 'nr_requests'"][..]),
        (&["--set", "scheduler=mq-deadlin"], &["has no such elevator", "did you mean 'mq-deadline'"]),
        (&["--set", "nr_hw_queues=4"], &["cannot be changed in sysfs", "has 1 from its driver (loop)"]),
        (&["--set", "mode=sq"], &["is a setting of our block layer"]),
        (&["--set", "queue_depth=8"], &["is no SCSI disk (loop)", "it has 128"]),
        (&["--set", "logical_block_size=4096"], &["the kernel does not allow changing it; in effect: 512"]),
        (&["--set", "iosched.read_expire=1"], &["scheduler none", "has no tunables; add scheduler=NAME"]),
        (&["--set", "scheduler=mq-deadline", "--set", "iosched.read_expires=1"], &["did you mean 'read_expire'"]),
        (&["--set", "scsi_mid.use_blk_mq=1"], &["did you mean 'scsi_mod'"]),
        (&["--trace", "t"], &["blktrace -d DEV"]),
        (&["--job-set", "hipri"], &["leave hipri out"]),
        (&["--job-set", "size=1g"], &["has 16777216 bytes, the job needs 1073741824"]),
    ] {
        disk.run(args).exits(2).says(says);
    }
    let other = |target: &str, says: &[&str]| disk.dir.mqblk(&["run", "j.fio", "--target", target]).exits(2).says(says);
    other("kernel:", &["needs a block device"]);
    other("kernel:file", &["must be a block device"]);
    other("kernel:/dev/nothing", &["there is no such device"]);
    other("kernal:/dev/loop0", &["did you mean 'kernel:'"]);
    disk.dir
        .mqblk(&["run", "j.fio", "--target", "null", "--force"])
        .exits(2)
        .says(&["--force: is for devices of the kernel"]);
    disk.dir.mqblk(&["inspect", "--target", &disk.target()]).exits(2).says(&["bypasses mqblk's block layer"]);
    let both = format!("[a]\nsize=1m\nfilename={}\n[b]\nsize=1m\nfilename=null:\n", disk.target());
    disk.dir
        .file("both.fio", &both)
        .mqblk(&["run", "both.fio"])
        .exits(2)
        .says(&[&format!("beside '{}'", disk.target())]);
    assert_eq!(disk.settings(), before);
    assert!(!disk.state().exists());
}

/// Published experiment 5: a SCSI parameter on a disk that is not a SCSI disk.
#[test]
fn a_parameter_of_another_disk_kind_reports_no_effect() {
    let disk = Loop::new("kernel-no-effect", 16 << 20);
    disk.dir.file("j.fio", JOB);
    let set = ["--set", "scsi_mod.use_blk_mq=1", "--set", "wbt_lat_usec=0"];
    let done = disk.run(&set).exits(0);
    done.says(&["scsi_mod.use_blk_mq=1: no effect: ", "is not a SCSI disk (loop)"]);
    done.says(&["wbt_lat_usec=0: no effect", "every job has direct=1"]);
    let (a, b) = ("scsi_mod.use_blk_mq=0", "scsi_mod.use_blk_mq=1");
    let answer = disk.dir.mqblk(&["compare", "j.fio", "--target", &disk.target(), "--a", a, "--b", b]).exits(0);
    assert_eq!(answer.out, format!("no effect: {} is not a SCSI disk (loop)\n", disk.name()));
    assert!(!disk.dir.list().iter().any(|name| name.ends_with(".jsonl")), "nothing was run");
}

#[test]
fn settings_are_put_back_after_a_signal() {
    for signal in ["INT", "TERM"] {
        let disk = Loop::new("kernel-signal", 16 << 20);
        let before = disk.settings();
        let run = disk.start(&["--set", "scheduler=mq-deadline", "--set", "iosched.fifo_batch=7"], "mq-deadline");
        disk.waits_for(|| disk.value("iosched/fifo_batch") == "7");
        run.signal(signal);
        run.ends().exits(130);
        assert_eq!(disk.settings(), before, "{signal}");
        assert!(!disk.state().exists());
    }
}

#[test]
fn next_run_and_restore_put_back_a_killed_runs_settings() {
    let disk = Loop::new("kernel-killed", 16 << 20);
    disk.dir.file("j.fio", JOB);
    // Settings that the user made before are restored, too, tunables included.
    fs::write(disk.queue("scheduler"), "mq-deadline").unwrap();
    fs::write(disk.queue("iosched/fifo_batch"), "9").unwrap();
    fs::write(disk.queue("nr_requests"), "100").unwrap();
    let before = disk.settings();
    let kill = || {
        let run = disk.start(&["--set", "scheduler=none", "--set", "read_ahead_kb=16", "--set", "nomerges=2"], "none");
        disk.waits_for(|| disk.value("nomerges") == "2");
        // While the run exists, other processes do not touch the disk.
        let restore = disk.dir.mqblk(&["restore", &disk.node]).exits(0);
        restore.prints(&[&format!("process {}, which is still running", run.id())]);
        disk.run(&["--set", "nr_requests=64"]).exits(2).says(&["its settings are in use by mqblk, process"]);
        run.signal("KILL");
        run.ends();
        assert_eq!(
            (disk.value("scheduler").as_str(), disk.value("nomerges").as_str()),
            ("none", "2"),
            "a kill puts nothing back"
        );
        assert!(disk.state().exists());
    };
    kill();
    let next = disk.run(&[]).exits(0);
    next.says(&["warning: ", "put back settings that mqblk,", "scheduler none -> mq-deadline", "nomerges 2 -> 0"]);
    assert_eq!(disk.settings(), before);
    kill();
    let restore = disk.dir.mqblk(&["restore", disk.name()]).exits(0);
    restore.prints(&["put back settings that mqblk", "iosched.fifo_batch 16 -> 9", "nr_requests 256 -> 100"]);
    assert_eq!(disk.settings(), before);
    assert!(!disk.state().exists());
    disk.dir.mqblk(&["restore", disk.name()]).exits(0).prints(&["nothing to restore"]);
    // A state file of another boot has no owner.
    kill();
    let text = fs::read_to_string(disk.state()).unwrap();
    let other =
        text.lines().map(|l| if l.starts_with("boot ") { "boot 0" } else { l }.to_owned() + "\n").collect::<String>();
    fs::write(disk.state(), other).unwrap();
    disk.dir.mqblk(&["restore", disk.name()]).exits(0);
    assert_eq!(disk.value("scheduler"), "none");
}

/// A mount or swap that is removed at the end of the test.
struct InUse(&'static str, String);

impl Drop for InUse {
    fn drop(&mut self) {
        let _ = Command::new(self.0).arg(&self.1).output();
    }
}

#[test]
fn a_device_in_use_or_with_data_is_rejected_without_force() {
    let disk = Loop::new("kernel-in-use", 32 << 20);
    disk.dir.file("j.fio", JOB).file("r.fio", &JOB.replace("randwrite", "randread"));
    let before = disk.settings();
    let read = |more: &[&str]| disk.dir.mqblk(&[&["run", "r.fio", "--target", &disk.target()], more].concat());
    disk.dir.program("mkfs.ext4", &["-q", &disk.node]).exits(0);
    fs::create_dir(disk.dir.path("at")).unwrap();
    disk.dir.program("mount", &[&disk.node, "at"]).exits(0);
    let mount = InUse("umount", disk.dir.path("at").display().to_string());
    let at = format!("{} is mounted at {}", disk.name(), mount.1);
    disk.run(&[]).exits(2).says(&["is in use", &at, "the job would write to it", "--force"]);
    read(&["--set", "nomerges=1"]).exits(2).says(&[&at, "its settings would change under its users"]);
    read(&[]).exits(0);
    read(&["--set", "nomerges=1", "--force"]).exits(0).says(&["warning: ", &at, "used anyway because of --force"]);
    drop(mount);
    disk.run(&[]).exits(2).says(&["there is a file system (ext2, ext3 or ext4) on it", "wipefs", "--force"]);
    disk.dir.program("wipefs", &["--all", "-q", &disk.node]).exits(0);
    disk.run(&[]).exits(0);
    disk.dir.program("mkswap", &[&disk.node]).exits(0);
    if disk.dir.program("swapon", &[&disk.node]).status == 0 {
        let _swap = InUse("swapoff", disk.node.clone());
        disk.run(&[]).exits(2).says(&["is swap space"]);
    } else {
        println!("left out: this machine does not swap");
    }
    disk.run(&[]).exits(2).says(&["there is swap space on it"]);
    disk.run(&["--force"]).exits(0).says(&["which is overwritten because of --force"]);
    // A process has the device open exclusively.
    disk.dir.program("dd", &["if=/dev/zero", &format!("of={}", disk.node), "bs=1M", "count=32"]).exits(0);
    let hold =
        "import os,sys\nfd=os.open(sys.argv[1],os.O_RDWR|os.O_EXCL)\nprint('held',flush=True)\nsys.stdin.readline()\n";
    let mut holder = Command::new("timeout");
    holder.args(["60", "python3", "-c", hold, &disk.node]);
    holder.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = common::Running::start(&mut holder);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "held\n");
    disk.run(&[]).exits(2).says(&["has", "open exclusively"]);
    read(&[]).exits(0);
    drop(holder);
    assert_eq!(disk.settings(), before);
}

#[test]
fn verification_passes_and_finds_a_planted_corruption() {
    let disk = Loop::new("kernel-verify", 16 << 20);
    let job =
        "[j]\nioengine=io_uring\nrw=randwrite\nbs=4k\ndirect=1\niodepth=16\nsize=4m\nverify=crc32c\nverify_fatal=0\n";
    disk.dir.file("j.fio", job);
    disk.run(&["--set", "scheduler=mq-deadline"]).exits(0);
    disk.dir.file("j.fio", &job.replace("randwrite", "read"));
    disk.run(&[]).exits(0);
    let plant = ["if=/dev/urandom", &format!("of={}", disk.node), "bs=512", "seek=801", "count=1", "conv=fsync"];
    disk.dir.program("dd", &plant).exits(0);
    disk.run(&[]).exits(1).says(&["blocks do not hold what was written"]);
}

#[test]
fn fio_and_mqblk_leave_the_same_bytes_at_the_same_places() {
    let (ours, fios) = (Loop::new("kernel-fio", 16 << 20), Loop::new("kernel-fio", 16 << 20));
    let jobs = [
        "rw=write:4k\nbs=4k\nsize=16m\niodepth=8\n",
        "rw=randwrite\nbs=16k\noffset=1m\nsize=4m\niodepth=32\niodepth_batch_submit=8\n",
        "rw=write\nbs=64k\nsize=3m\nfsync=4\n",
        "rw=trimwrite\nbs=64k\nsize=4m\n",
        "rw=write\nbs=4k\ndirect=0\nsize=2m\nend_fsync=1\n",
    ];
    for job in jobs {
        let text = |file: &str| {
            format!(
                "[j]\nioengine=io_uring\ndirect=1\nverify=crc32c\ndo_verify=0\nverify_pattern=0xa5\n{job}filename={file}\n"
            )
        };
        ours.dir.file("j.fio", &text(&ours.target().replace(':', "\\:")));
        fios.dir.file("j.fio", &text(&fios.node));
        let mine = ours.dir.mqblk(&["run", "j.fio", "--json", "--force"]).exits(0).json();
        let fio = fios.dir.program("fio", &["--output-format=json", "j.fio"]).exits(0);
        let fio: serde_json::Value = serde_json::from_str(&fio.out[fio.out.find('{').unwrap()..]).unwrap();
        for key in
            ["/jobs/0/write/total_ios", "/jobs/0/write/io_bytes", "/jobs/0/trim/total_ios", "/jobs/0/sync/total_ios"]
        {
            assert_eq!(number(&mine, key), number(&fio, key), "{key} of {job}");
        }
        let written = |disk: &Loop| {
            disk.dir.program("blockdev", &["--flushbufs", &disk.node]).exits(0);
            let bytes = fs::read(disk.dir.path("disk.img")).unwrap();
            bytes.chunks(512).map(|sector| sector.iter().any(|b| *b != 0)).collect::<Vec<bool>>()
        };
        assert_eq!(written(&ours), written(&fios), "{job}");
        // Each program verifies the data of the other.
        if job.starts_with("rw=write\n") {
            let check = |file: &str| text(file).replace("rw=write", "rw=read").replace("do_verify=0\n", "");
            fios.dir.file("c.fio", &check(&ours.node)).program("fio", &["c.fio"]).exits(0);
            ours.dir.file("c.fio", &check(&fios.target().replace(':', "\\:"))).mqblk(&["run", "c.fio"]).exits(0);
        }
    }
}

#[test]
fn transactions_and_buffered_jobs_run_there_too() {
    let disk = Loop::new("kernel-oltp", 32 << 20);
    disk.dir.file(
        "j.fio",
        "[db]\nworkload=oltp\nbs=8k\nsize=8m\nusers=8\nreads_per_tx=4\nwrites_per_tx=2\nredo_bytes=1k\ntransactions=200\ndirect=1\n",
    );
    let v = disk.run(&["--json"]).exits(0).json();
    assert_eq!(number(&v, "/mqblk/oltp/0/transactions"), 200.0);
    disk.dir.file("j.fio", "[a]\nrw=read\nbs=64k\nsize=8m\ndirect=0\nnumjobs=2\n[b]\nstonewall\nrw=randread\nrate_iops=500\nnumber_ios=100\nsize=8m\n");
    let done = disk.run(&["--set", "read_ahead_kb=32"]).exits(0);
    done.prints(&["read_ahead_kb=32", "The kernel's block layer:", "aqu-sz="]);
    assert!(!done.err.contains("no effect"), "{}", done.err);
}

/// Partitions without a partition table, until this value is dropped.
struct Partitions<'a>(&'a Loop);

impl Partitions<'_> {
    fn new(disk: &Loop) -> Partitions<'_> {
        for (number, first) in [("1", "2048"), ("2", "18432")] {
            disk.dir.program("addpart", &[&disk.node, number, first, "16384"]).exits(0);
        }
        Partitions(disk)
    }

    fn target(&self, number: u32) -> String {
        format!("{}p{number}", self.0.target())
    }
}

impl Drop for Partitions<'_> {
    fn drop(&mut self) {
        for number in ["1", "2"] {
            let _ = Command::new("delpart").args([&self.0.node, number]).output();
        }
    }
}

/// Partitions share the disk's queue: its settings are written once, and the disk is claimed once.
#[test]
fn two_partitions_of_one_disk_share_its_settings() {
    let disk = Loop::with("kernel-partitions", 32 << 20, &["--partscan"]);
    let parts = Partitions::new(&disk);
    let before = disk.settings();
    let [one, two] = [1, 2].map(|n| parts.target(n).replace(':', "\\:"));
    let job = format!(
        "[global]\nioengine=io_uring\nrw=randwrite\nbs=4k\niodepth=8\nsize=2m\ndirect=1\n[a]\nfilename={one}\n[b]\nfilename={two}\n"
    );
    let run = |job: &str, more: &[&str]| {
        disk.dir.file("two.fio", job);
        disk.dir.mqblk(&[&["run", "two.fio", "--json"], more].concat())
    };
    let v = run(&job, &["--set", "scheduler=mq-deadline", "--set", "nomerges=1"]).exits(0).json();
    assert_eq!((number(&v, "/jobs/0/write/total_ios"), number(&v, "/jobs/1/write/total_ios")), (512.0, 512.0));
    assert_eq!(disk.settings(), before);
    // A setting of the page cache has an effect if one of the jobs uses the page cache.
    let mixed = job.replace("[b]\n", "[b]\ndirect=0\n");
    let done = run(&mixed, &["--set", "read_ahead_kb=32"]).exits(0);
    assert!(!done.err.contains("no effect"), "{}", done.err);
    run(&job, &["--set", "read_ahead_kb=32"]).exits(0).says(&["read_ahead_kb=32: no effect"]);
    // A disk and its partition share blocks.
    let whole = job.replace(&two, &disk.target().replace(':', "\\:"));
    let refused = run(&whole, &[]).exits(2);
    refused.says(&["is in use", "another job of this run uses"]);
    // Another process with other settings is rejected, with the owner's name.
    let other = disk.start(&["--set", "scheduler=mq-deadline"], "mq-deadline");
    run(&job, &["--set", "scheduler=none", "--set", "nomerges=2"])
        .exits(2)
        .says(&["its settings are in use by mqblk, process"]);
    other.signal("INT");
    other.ends();
    drop(parts);
    assert_eq!(disk.settings(), before);
}

#[test]
fn what_tune_recommends_is_written_when_it_is_asked_to() {
    let disk = Loop::new("kernel-apply", 16 << 20);
    disk.dir.file("j.fio", &JOB.replace("randwrite", "randread"));
    disk.dir
        .mqblk(&["tune", "j.fio", "--target", "null", "--maximize", "j.iops", "--apply"])
        .exits(2)
        .says(&["--apply FILE.toml"]);
    // Four requests for a depth of eight.
    fs::write(disk.queue("nr_requests"), "4").unwrap();
    let target = disk.target();
    let args = ["tune", "j.fio", "--target", &target, "--maximize", "j.iops", "--runtime", "100ms", "--seed", "1"];
    let more = ["--knob", "nr_requests=4,128", "--budget", "30s", "--results", "r", "--json", "--apply"];
    let done = disk.dir.mqblk(&[&args[..], &more].concat()).exits(0);
    let winner = done.json()["result"]["winner"]["nr_requests"].as_str().map(str::to_owned);
    // How much that gains depends on the machine.
    match winner {
        Some(value) => done.says(&["written to /sys/block/", &format!("nr_requests={value}")]),
        None => done.says(&["nothing is recommended, and nothing was written"]),
    };
    let expected = done.json()["result"]["winner"]["nr_requests"].as_str().unwrap_or("4").to_owned();
    assert_eq!(disk.value("nr_requests"), expected);
    assert!(!disk.state().exists(), "nothing is to be put back");
}

/// The disk may be mounted or replaced between the tuning and the application of its result.
#[test]
fn a_recommendation_is_not_applied_to_a_busy_or_other_disk() {
    let disk = Loop::new("kernel-apply-in-use", 32 << 20);
    disk.dir.file("j.fio", &JOB.replace("randwrite", "randread"));
    let link = disk.dir.path("disk");
    symlink(&disk.node, &link).unwrap();
    let target = format!("kernel:{}", link.display());
    let tune = |more: &[&str]| {
        let args = ["tune", "j.fio", "--target", &target, "--maximize", "j.iops", "--runtime", "100ms", "--seed", "1"];
        disk.dir.mqblk(
            &[&args[..], &["--knob", "nr_requests=64,2048", "--free", "iodepth=8,9", "--budget", "30s"], more].concat(),
        )
    };
    tune(&["--results", "r"]).exits(0);
    // A setting that the kernel rejects when it is written is missing from that point only.
    let text = fs::read_to_string(disk.dir.path("r")).unwrap();
    let refused = |t: &lab::tune::journal::Tried| matches!(t, lab::tune::journal::Tried::Refused(why) if why.contains("was refused"));
    let past = lab::tune::journal::read(&text, "r").unwrap();
    assert!(past.runs.iter().any(|r| refused(&r.tried)), "nr_requests=2048 was not tried");
    // The recommendation depends on the machine, so the test writes one into the file.
    let recommend = |name: &str, winner: &[(&str, &str)]| {
        let winner: BTreeMap<_, _> = winner.iter().copied().collect();
        let edit = |line: &str| {
            let mut v: serde_json::Value = serde_json::from_str(line).unwrap();
            if v["type"] == "result" {
                v["winner"] = serde_json::to_value(&winner).unwrap();
            }
            format!("{v}\n")
        };
        disk.dir.file(name, &text.lines().map(edit).collect::<String>());
    };
    recommend("load", &[("iodepth", "9")]);
    let before = disk.settings();
    let done = tune(&["--resume", "load", "--apply"]).exits(0);
    done.says(&["--apply: nothing written: the recommendation (iodepth=9) changes only the job file"]);
    assert_eq!(disk.settings(), before);
    recommend("w", &[("nr_requests", "64")]);
    disk.dir.program("mkfs.ext4", &["-q", &disk.node]).exits(0);
    fs::create_dir(disk.dir.path("at")).unwrap();
    disk.dir.program("mount", &[&disk.node, "at"]).exits(0);
    let mount = InUse("umount", disk.dir.path("at").display().to_string());
    let apply = |more: &[&str]| tune(&[&["--resume", "w", "--apply"], more].concat());
    apply(&[]).exits(2).says(&["nothing was written", "is mounted at", "its settings would change under its users"]);
    assert_eq!(disk.settings(), before);
    apply(&["--force"]).exits(0).says(&["used anyway because of --force", "nr_requests=64"]);
    assert_eq!(disk.value("nr_requests"), "64");
    drop(mount);
    fs::write(disk.queue("nr_requests"), "128").unwrap();
    // The same name, but another disk. A device that is detached and attached again may be another test's in between.
    let other = Loop::new("kernel-apply-other", 32 << 20);
    fs::remove_file(&link).unwrap();
    symlink(&other.node, &link).unwrap();
    let before = other.settings();
    apply(&["--force"]).exits(2).says(&["belongs to another tuning: the disk or machine file behind the target"]);
    assert_eq!(other.settings(), before);
}

#[test]
fn tune_rejects_jobs_on_two_kernel_disks() {
    let (one, two) = (Loop::new("kernel-tune-one", 16 << 20), Loop::new("kernel-tune-two", 16 << 20));
    let job = JOB.replace("[j]\n", "").replace("randwrite", "randread");
    let [a, b] = [&one, &two].map(|disk| disk.target().replace(':', "\\:"));
    one.dir.file("two.fio", &format!("[global]\n{job}[a]\nfilename={a}\n[b]\nfilename={b}\n"));
    one.dir
        .mqblk(&["tune", "two.fio", "--maximize", "a.iops", "--results", "r"])
        .exits(2)
        .says(&["tune works on one kernel disk", "or use --target kernel:/dev/loop"]);
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn tuning_leaves_settings_as_found_also_when_interrupted() {
        let disk = Loop::new("kernel-tune", 16 << 20);
        disk.dir.file("j.fio", &JOB.replace("randwrite", "randread"));
        // The user's setting is the baseline of the search, and is restored at the end.
        fs::write(disk.queue("scheduler"), "mq-deadline").unwrap();
        fs::write(disk.queue("iosched/fifo_batch"), "9").unwrap();
        let before = disk.settings();
        let target = disk.target();
        let tune = |more: &[&'static str]| {
            let args =
                ["tune", "j.fio", "--target", &target, "--maximize", "j.iops", "--runtime", "300ms", "--seed", "1"];
            [&args[..], more].concat().iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()
        };
        let run = |args: &[String]| disk.dir.mqblk(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let search = ["--knob", "scheduler", "--knob", "nomerges", "--knob", "iosched.fifo_batch"];
        let form = ["--budget", "30s", "--detect", "20%", "--results", "r", "--json", "--print", "sysfs"];
        let v = run(&tune(&[&search[..], &form].concat())).exits(0).json();
        assert_eq!(disk.settings(), before);
        let knobs = v["plan"]["knobs"].as_array().unwrap();
        let knob =
            |name: &str| knobs.iter().find(|k| k["name"] == name).unwrap_or_else(|| panic!("no {name}: {knobs:#?}"));
        assert_eq!(knob("scheduler")["default"], "mq-deadline");
        let offered: Vec<&str> =
            knob("scheduler")["values"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert!(offered.contains(&"none"), "{offered:?}");
        assert_eq!(knob("iosched.fifo_batch")["default"], "9");
        assert!(v["forms"]["sysfs"].as_str().unwrap().starts_with("# sysfs\n"));
        // Every point that ran is in the file, and its settings were in effect or rejected.
        let past = lab::tune::journal::read(&fs::read_to_string(disk.dir.path("r")).unwrap(), "r").unwrap();
        assert!(past.runs.iter().any(|r| r.ask.point.get("scheduler").is_some()), "no elevator was tried");
        assert!(!disk.state().exists());
        // The run is interrupted, then another one is killed.
        for signal in ["INT", "KILL"] {
            let args = tune(&["--knob", "nomerges=2", "--budget", "30s", "--results", signal, "--eta=always"]);
            // Not every run prints progress. The disk's setting shows when a run with it is active.
            let started =
                disk.dir.start(&args.iter().map(String::as_str).collect::<Vec<_>>(), "first run of the default");
            disk.waits_for(|| disk.value("nomerges") == "2");
            started.signal(signal);
            started.ends();
            if signal == "KILL" {
                disk.dir.mqblk(&["restore", disk.name()]).exits(0);
            }
            assert_eq!(disk.settings(), before, "{signal}");
        }
        run(&tune(&["--knob", "nr_hw_queues"])).exits(2).says(&["nr_hw_queues"]);
        run(&tune(&["--fix", "mode=sq"])).exits(2).says(&["is a setting of our block layer"]);
    }
}
