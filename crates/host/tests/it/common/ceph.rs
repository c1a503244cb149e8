// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Ceph cluster that tests may use, if `MQBLK_TEST_CEPH` names its configuration (`cargo xtask ceph` and `ci` do): images for each
//! test, Ceph's programs, and a time limit for tests that hang.

use super::stopping::{signal, stop};
use crate::waiting::POLL;
use std::fs;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time limit of a test. The longest one takes 20 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time limit of one of Ceph's programs.
const PROGRAM_LIMIT_S: &str = "600";

/// The test's current step, for the message when the time limit expires.
static DOING: Mutex<String> = Mutex::new(String::new());

/// Returns the path of the cluster's configuration file.
fn conf() -> Option<PathBuf> {
    std::env::var_os("MQBLK_TEST_CEPH").map(PathBuf::from)
}

/// The cluster during one test.
pub struct Cluster {
    directory: PathBuf,
    /// Closed when the test ends, however it ends.
    _running: mpsc::Sender<()>,
}

impl Cluster {
    /// Returns the cluster and starts the time limit. Without a cluster, prints the reason.
    #[track_caller]
    pub fn get() -> Option<Cluster> {
        let Some(conf) = conf() else {
            eprintln!("skipped: MQBLK_TEST_CEPH names no cluster; cargo xtask ceph runs this test on one");
            return None;
        };
        let directory = conf.parent().unwrap().to_owned();
        let (_running, ended) = mpsc::channel::<()>();
        let (place, watched) = (Location::caller(), directory.clone());
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                give_up(&watched, place);
            }
        });
        Some(Cluster { directory, _running })
    }

    /// Returns the directory of the cluster.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the cluster's configuration file.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }
}

/// Ends the test program and prints what it waited for. The message bypasses the captured output, which would be lost.
fn give_up(directory: &Path, place: &Location<'_>) {
    let mut text = format!("\nThe test at {place} did not end within {} s.\n", LIMIT.as_secs());
    let doing = DOING.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !doing.is_empty() {
        text += &format!("It runs: {doing}\n");
    }
    for name in ["mon.a", "osd.0"] {
        let pid = fs::read_to_string(directory.join("run").join(format!("{name}.pid"))).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_else(|e| e.to_string());
        text += &format!("{name}, process {}: {}\n", pid.trim(), stat.trim());
        let log = fs::read(directory.join("log").join(format!("{name}.log"))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        text.extend(lines[lines.len().saturating_sub(10)..].iter().map(|line| format!("    {line}\n")));
        // A test may have stopped the daemon, and the clean-up would wait for it.
        let _ = Command::new("kill").args(["-CONT", pid.trim()]).status();
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    std::process::abort();
}

/// Records the test's current step.
pub fn doing(what: &str) {
    what.clone_into(&mut DOING.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Runs a program for the cluster. Returns its output.
#[track_caller]
pub fn program(name: &str, arguments: &[&str]) -> String {
    let conf = conf().expect("asked for before");
    doing(&format!("{name} {}", arguments.join(" ")));
    let mut command = Command::new("timeout");
    command.args(["-k", "60", PROGRAM_LIMIT_S, name]).args(arguments).env("CEPH_CONF", &conf);
    let output = command.output().unwrap();
    doing("");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (status, err) = (output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments:?}: {status}: {text}{err}");
    text
}

/// An image that is removed at the end of the test.
pub struct CephImage {
    pub name: String,
}

impl CephImage {
    /// Makes an image with these features.
    #[track_caller]
    pub fn new(bytes: u64, features: &str) -> CephImage {
        CephImage::in_pool("rbd", bytes, features)
    }

    /// Makes an image in `POOL` or `POOL/NAMESPACE`.
    #[track_caller]
    pub fn in_pool(pool: &str, bytes: u64, features: &str) -> CephImage {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{pool}/test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        program("rbd", &["create", "--size", &format!("{bytes}B"), "--image-feature", features, &name]);
        CephImage { name }
    }

    /// Makes an image with stripes of `unit` over `count` objects.
    #[track_caller]
    pub fn striped(bytes: u64, unit: &str, count: u32) -> CephImage {
        let name = format!("rbd/test-striped-{}", std::process::id());
        let (size, count) = (format!("{bytes}B"), count.to_string());
        let stripes = ["--stripe-unit", unit, "--stripe-count", &count];
        program(
            "rbd",
            &[&["create", "--size", &size, "--image-feature", "layering,striping"], &stripes[..], &[&name]].concat(),
        );
        CephImage { name }
    }

    /// Returns the image as a target, with options.
    pub fn target(&self, options: &str) -> String {
        let conf = conf().expect("asked for before");
        format!("rbd:{}:conf={}{options}", self.name, conf.display())
    }
}

impl Drop for CephImage {
    fn drop(&mut self) {
        if let Some(conf) = conf() {
            for what in [&["snap", "purge"][..], &["rm"]] {
                doing(&format!("rbd {what:?} {}", self.name));
                let mut command = Command::new("timeout");
                command.args(["-k", "60", PROGRAM_LIMIT_S, "rbd", "--no-progress"]).args(what).arg(&self.name);
                let _ = command.env("CEPH_CONF", &conf).output();
            }
            doing("");
        }
    }
}

/// The cluster's OSD, which a test can stop, kill and restart. When this is dropped, the OSD runs again.
pub struct Osd<'a> {
    cluster: &'a Cluster,
}

impl Osd<'_> {
    pub fn of(cluster: &Cluster) -> Osd<'_> {
        Osd { cluster }
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.cluster.directory.join("run/osd.0.pid")).unwrap().trim().to_owned()
    }

    fn is_ours(pid: &str) -> bool {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("ceph-osd")
    }

    /// Returns its process, which must exist.
    fn running(&self) -> u32 {
        let pid = self.pid();
        assert!(Osd::is_ours(&pid), "the OSD, process {pid}, has ended; {} says why", self.log().display());
        pid.parse().unwrap()
    }

    /// Stops its process by SIGSTOP.
    pub fn stop(&self) {
        stop(self.running());
    }

    pub fn go_on(&self) {
        signal(self.running(), "-CONT");
    }

    fn log(&self) -> PathBuf {
        self.cluster.directory.join("log/osd.0.log")
    }

    /// Kills its process with SIGKILL and waits for the end.
    pub fn kill(&self) {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        signal(self.running(), "-9");
        doing("waiting for the end of the OSD");
        while process.join("status").exists() {
            std::thread::sleep(POLL);
        }
        doing("");
    }

    /// Starts it again. The monitor sometimes rejects it ("unable to update_crush_location: Operation not permitted"). The OSD then
    /// exits and is started again, until the test's time is up.
    pub fn start(&self) {
        let conf = self.cluster.conf();
        loop {
            doing("starting the OSD again");
            let mut command = Command::new("timeout");
            command.args(["-k", "60", PROGRAM_LIMIT_S, "ceph-osd", "-c"]).arg(&conf).args(["-i", "0"]);
            if command.args(["--setuser", "root", "--setgroup", "root"]).output().unwrap().status.success() {
                return doing("");
            }
        }
    }
}

impl Drop for Osd<'_> {
    fn drop(&mut self) {
        let pid = self.pid();
        if Osd::is_ours(&pid) {
            let _ = Command::new("kill").args(["-CONT", &pid]).status();
        }
    }
}
