// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of exports share: a disk on IOThreads in a directory of its own, and clients under a time limit.

#![allow(dead_code, reason = "each test program uses a part")]

use blk::settings::QueueConfig;
use host::mem::Regions;
use host::serve::{IoThreads, Polling, ServedDisk, ThreadOptions};
use host::target::{Needs, TargetSpec};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A disk that is served by nobody yet.
pub struct Served {
    pub directory: PathBuf,
    pub threads: Arc<IoThreads>,
    pub disk: Arc<ServedDisk>,
}

impl Served {
    /// `target`, or a new file of 64 MiB if that is "file", on so many IOThreads.
    pub fn new(test: &str, target: &str, iothreads: usize) -> Served {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("mqblk-{test}-{}-{number}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let target = if target == "file" {
            let image = directory.join("disk.img");
            fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
            image.to_str().unwrap().to_owned()
        } else {
            target.to_owned()
        };
        let option = |i| ThreadOptions { name: format!("io{i}"), cpus: Vec::new(), polling: Polling::default() };
        let threads = Arc::new(IoThreads::start(&(0..iothreads).map(option).collect::<Vec<_>>()).unwrap());
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None };
        let driver = TargetSpec::parse(&target).unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
        let disk = threads.disk("disk", driver, regions, QueueConfig::default()).unwrap();
        Served { directory, threads, disk }
    }
}

/// The exports of a disk have ended: nothing of it may be in use.
#[track_caller]
pub fn check_drained(disk: &ServedDisk) {
    disk.queue.begin_freeze();
    assert!(disk.queue.is_drained(), "a tag is still in use");
    assert_eq!(disk.queue.stats().in_flight, 0);
}

/// Runs a client for at most a minute.
pub fn try_run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments).env("LC_ALL", "C");
    command.output().unwrap_or_else(|e| panic!("cannot run {program} under timeout: {e}"))
}

/// The same; it must succeed. What it prints.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = try_run(program, arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {arguments:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
