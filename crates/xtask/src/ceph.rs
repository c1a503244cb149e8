// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask ceph-up`, `ceph-down` and `ceph`: a Ceph cluster of one monitor and one OSD on loopback, and the tests of the RBD driver
//! on it.
//!
//! Guarantees: all files of the cluster are in one directory. The monitor's port is free at the start, and nothing listens beyond
//! 127.0.0.1. Only processes that the directory's pid files name are killed, and only if they still run with its configuration. The OSD
//! keeps its data when it is killed (bluestore on a sparse file of 8 GiB). Needs the packages of [`crate::packages::ensure_ceph`],
//! and for the tests those of [`crate::packages::ensure`].
//! Not for important data: there is one copy and no authentication.
//! Source: doc/install/manual-deployment.rst and doc/rados/configuration of Ceph 16.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::outcome::Outcome;
use crate::packages;
use crate::project::{LIKE_ALL_TESTS, Project, cargo, cargo_within};
use crate::step::{Found, run_named};
use crate::tool;

/// Environment variable with the path of the configuration file of a cluster that tests may use.
const TEST_CEPH: &str = "MQBLK_TEST_CEPH";
/// Time limit for a daemon to start or exit, and for a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// Parts of the names of the tests that use a cluster. Each must match at least one test.
const TESTS: [&str; 3] = ["driver_conformance::rbd_", "rbd_driver::", "serve_rbd::"];
/// Time limit for these tests, several times what they need on a busy machine.
const TESTS_LIMIT_S: &str = "2400";

/// Where the cluster is.
#[derive(Args)]
pub struct Options {
    /// Directory of the cluster; default: ceph in the build directory.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Options {
    fn cluster(&self, project: &Project) -> Result<Cluster, String> {
        let directory = self.dir.clone().unwrap_or_else(|| project.target_directory.join("ceph"));
        let directory = std::path::absolute(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        Ok(Cluster { directory })
    }
}

/// A Ceph cluster, with its own directory.
pub struct Cluster {
    directory: PathBuf,
}

/// Starts a cluster and prints how to use it.
///
/// # Errors
/// The cluster runs already, a package is missing, or a daemon did not start.
pub fn up(project: &Project, options: &Options) -> Result<Outcome, String> {
    packages::ensure_ceph()?;
    let cluster = options.cluster(project)?;
    cluster.start()?;
    let conf = cluster.conf();
    println!("a Ceph cluster with pool rbd and an image disk0 of 512 MiB is up; to use it:");
    println!("export CEPH_CONF={}", conf.display());
    println!("rbd info rbd/disk0");
    println!("mqblk serve rbd:rbd/disk0");
    println!("{TEST_CEPH}={} cargo test -p mqblk-host --test it rbd_driver::", conf.display());
    println!("cargo xtask ceph-down --dir {}", cluster.directory.display());
    Ok(Outcome::Passed)
}

/// Ends a cluster and removes its directory.
///
/// # Errors
/// There is no cluster, or a daemon did not exit.
pub fn down(project: &Project, options: &Options) -> Result<Outcome, String> {
    let cluster = options.cluster(project)?;
    if !cluster.conf().is_file() {
        return Err(format!("there is no cluster in {}: name its directory with --dir", cluster.directory.display()));
    }
    cluster.stop()?;
    Ok(Outcome::Passed)
}

/// Starts a cluster and runs the tests that need one on it.
///
/// # Errors
/// Cargo cannot be run, a daemon did not start or exit, or no test has a name of [`TESTS`].
pub fn check(project: &Project) -> Result<Found, String> {
    let directory = project.target_directory.join(format!("ceph-{}", std::process::id()));
    let cluster = Cluster { directory };
    // The tests are built first, so that the time limit covers only running them.
    let mut build = cargo();
    build.current_dir(&project.root).args(LIKE_ALL_TESTS).args(["--no-run", "--test", "it"]);
    if !build.status().map_err(|e| format!("cannot run cargo: {e}"))?.success() {
        return Ok(Found::default());
    }
    let ran = cluster.start().and_then(|()| {
        let mut sum = Found::of(Outcome::Passed);
        for name in TESTS {
            sum.add(run_named(&mut test_command(project, name, &cluster), name)?);
        }
        Ok(sum)
    });
    if !ran.as_ref().is_ok_and(|found| found.ok) {
        cluster.show_log();
    }
    cluster.stop()?;
    ran
}

fn test_command(project: &Project, name: &str, cluster: &Cluster) -> Command {
    // Each test has its own time limit and reports what it waited for. This limit is for hangs outside of the tests.
    let mut command = cargo_within(TESTS_LIMIT_S);
    command.current_dir(&project.root).args(LIKE_ALL_TESTS).args(["--no-fail-fast", "--test", "it", "--", name]);
    // One test at a time, because they share a cluster and some kill its OSD.
    command.args(["--test-threads", "1"]).env(TEST_CEPH, cluster.conf());
    command
}

impl Cluster {
    /// Returns a cluster that is not started yet.
    pub fn new(directory: PathBuf) -> Cluster {
        Cluster { directory }
    }

    /// The directory of the cluster's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of its configuration file.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    /// Starts it, with an image `rbd/disk0` of 512 MiB.
    ///
    /// # Errors
    /// The cluster runs already, or a daemon did not start.
    pub fn start(&self) -> Result<(), String> {
        if self.daemons().iter().any(|name| self.pid(name).is_some()) {
            let directory = self.directory.display();
            return Err(format!(
                "a cluster in {directory} runs already: end it with cargo xtask ceph-down --dir {directory}"
            ));
        }
        let fresh = self.prepare();
        let started = fresh.and_then(|port| self.bring_up(port));
        if started.is_err() {
            self.show_log();
            let _ = self.stop();
        }
        started
    }

    /// Makes the directory for the first start. Returns the monitor's port.
    fn prepare(&self) -> Result<u16, String> {
        let io = |e: std::io::Error| format!("{}: {e}", self.directory.display());
        if self.directory.exists() {
            if !self.conf().is_file() && fs::read_dir(&self.directory).map_err(io)?.next().is_some() {
                return Err(format!(
                    "{} is not empty and no cluster's: name another one with --dir",
                    self.directory.display()
                ));
            }
            fs::remove_dir_all(&self.directory).map_err(io)?;
        }
        for name in ["mon", "osd0", "run", "log"] {
            fs::create_dir_all(self.directory.join(name)).map_err(io)?;
        }
        // The port was free a moment ago. If another process takes it now, the start fails with that error.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(io)?.port();
        let fsid = uuid()?;
        fs::write(self.conf(), configuration(&self.directory, &fsid, port)).map_err(io)?;
        let address = format!("v1:127.0.0.1:{port}");
        let mut map = self.command("monmaptool");
        map.args(["--create", "--fsid", &fsid, "--addv", "a", &address]).arg(self.directory.join("monmap"));
        tool::run(&mut map)?;
        Ok(port)
    }

    fn bring_up(&self, port: u16) -> Result<(), String> {
        let mut make = self.daemon("ceph-mon", "a")?;
        tool::run(make.arg("--mkfs").arg("--monmap").arg(self.directory.join("monmap")))?;
        tool::run(&mut self.daemon("ceph-mon", "a")?).map_err(|e| format!("{e} (port {port})"))?;
        let osd = uuid()?;
        self.insist("ceph", &["osd", "new", &osd])?;
        tool::run(self.daemon("ceph-osd", "0")?.args(["--mkfs", "--osd-uuid", &osd]))?;
        let until = Instant::now() + PATIENCE;
        // The monitor sometimes rejects the OSD, too ("unable to update_crush_location: Operation not permitted"). The OSD then exits.
        while let Err(why) = tool::run(&mut self.daemon("ceph-osd", "0")?) {
            if Instant::now() > until {
                return Err(why);
            }
        }
        while !self.insist("ceph", &["osd", "stat"])?.contains("1 up") {
            if Instant::now() > until {
                return Err("the OSD did not come up".into());
            }
        }
        self.insist("ceph", &["osd", "pool", "create", "rbd", "8", "8", "replicated"])?;
        self.insist("ceph", &["osd", "pool", "application", "enable", "rbd", "rbd"])?;
        self.insist("rbd", &["create", "--size", "512M", "rbd/disk0"])?;
        Ok(())
    }

    /// Runs a program until it succeeds, and returns its output. A monitor that has just started sometimes rejects clients. Each of these
    /// commands may run twice; an error that persists is returned after [`PATIENCE`].
    fn insist(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match tool::output(self.command(program).args(arguments)) {
                Err(why) if Instant::now() > until => return Err(why),
                Err(_) => {}
                text => return text,
            }
        }
    }

    /// Returns the command of one of Ceph's programs for this cluster, with a time limit.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(program).arg("-c").arg(self.conf());
        // For programs without the option -c.
        command.env("CEPH_CONF", self.conf());
        command
    }

    /// Returns the command of a daemon. It moves to the background once it has started.
    fn daemon(&self, program: &str, name: &str) -> Result<Command, String> {
        let mut command = self.command(program);
        command.args(["-i", name]);
        if packages::is_root()? {
            command.args(["--setuser", "root", "--setgroup", "root"]);
        }
        Ok(command)
    }

    fn daemons(&self) -> [&'static str; 2] {
        ["osd.0", "mon.a"]
    }

    /// Returns the process id of this cluster's daemon `name`, if it runs.
    fn pid(&self, name: &str) -> Option<u32> {
        let text = fs::read_to_string(self.directory.join("run").join(format!("{name}.pid"))).ok()?;
        let pid: u32 = text.trim().parse().ok()?;
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let conf = self.conf();
        let is_ours = command_line.split(|b| *b == 0).any(|argument| argument == conf.as_os_str().as_encoded_bytes());
        is_ours.then_some(pid)
    }

    /// Kills the cluster's daemons and removes its directory.
    ///
    /// # Errors
    /// A daemon did not exit.
    pub fn stop(&self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        for name in self.daemons() {
            while let Some(pid) = self.pid(name) {
                // SIGKILL, because no data is kept.
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
                if Instant::now() > until {
                    return Err(format!("process {pid} ({name}) did not end"));
                }
            }
        }
        fs::remove_dir_all(&self.directory).map_err(|e| format!("{}: {e}", self.directory.display()))
    }

    /// Prints the last lines of the daemons' logs.
    fn show_log(&self) {
        for name in self.daemons() {
            let text = fs::read(self.directory.join("log").join(format!("{name}.log"))).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(15)..] {
                eprintln!("{name}: {line}");
            }
        }
    }
}

/// Returns the configuration. The OSD does not abort when a busy machine gives its threads no CPU for minutes (150 s by default for
/// request threads). The watch of a dead client, and so its lock, expires after 10 s instead of Ceph's 30. When an OSD was stopped for
/// longer than a placement group's read lease, the group waits for another OSD to renew the lease. With a single OSD it would wait for
/// ever, so leases last two minutes (a ratio to a grace of 20 s). An OSD that restarts after a kill does not wait for its own lease.
fn configuration(directory: &Path, fsid: &str, port: u16) -> String {
    let d = directory.display();
    format!(
        "[global]
fsid = {fsid}
mon_host = v1:127.0.0.1:{port}
ms_bind_msgr2 = false
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_crush_update_on_start = true
osd_class_update_on_start = false
osd_objectstore = bluestore
bluestore_block_size = 8589934592
bluestore_block_create = true
bluestore_block_wal_create = false
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_thread_timeout = 300
osd_op_thread_suicide_timeout = 0
osd_client_watch_timeout = 10
osd_pool_default_read_lease_ratio = 6
threadpool_default_timeout = 600
ms_async_op_threads = 1
mon_data_avail_crit = 1
run_dir = {d}/run
admin_socket = {d}/run/$name.asok
pid_file = {d}/run/$name.pid
log_file = {d}/log/$name.log
mon_data = {d}/mon
osd_data = {d}/osd0
[client]
admin_socket =
pid_file =
log_file = {d}/log/client.log
"
    )
}

fn uuid() -> Result<String, String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|e| format!("no random number: {e}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_none_of_a_cluster_is_left_alone() {
        let directory = std::env::temp_dir().join(format!("mqblk-no-cluster-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("precious"), "x").unwrap();
        let cluster = Cluster { directory: directory.clone() };
        assert!(cluster.prepare().unwrap_err().contains("not empty and no cluster's"));
        assert_eq!(fs::read(directory.join("precious")).unwrap(), b"x");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_process_of_another_user_is_not_ended() {
        let directory = std::env::temp_dir().join(format!("mqblk-pids-{}", std::process::id()));
        fs::create_dir_all(directory.join("run")).unwrap();
        fs::write(directory.join("run/osd.0.pid"), std::process::id().to_string()).unwrap();
        let cluster = Cluster { directory: directory.clone() };
        assert_eq!(cluster.pid("osd.0"), None);
        cluster.stop().unwrap();
        assert!(!directory.exists());
    }
}
