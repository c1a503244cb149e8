// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers and devices that both sides of a row use: an iSCSI target, a Ceph cluster and a loop device. Each starts when a row needs
//! it, and ends with the bench.
//!
//! Guarantees: all listen on loopback and keep their files in the scratch directory or the build directory. They end also when the bench
//! fails. A tgtd exports a file in the page cache as LUN 1. The LUN has the same identity in every tgtd process, so several processes are
//! paths to one disk. A tgtd can be killed, stopped and started again. The cluster's image `rbd/disk0` has data everywhere, so each read
//! reads an object. Their CPU time counts for no side, because no server is waited for while a side runs.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::ceph::Cluster;
use crate::packages;
use crate::tool;

const START: Duration = Duration::from_secs(30);
const IQN: &str = "iqn.2026-11.test:bench";
/// Size of LUN 1.
const BYTES: u64 = 256 << 20;
/// How many pairs of port and control number are tried.
const TRIES: u32 = 20;

/// A loop device over a file of the scratch directory. It bypasses the page cache where the file system supports that.
pub struct LoopDevice(String);

impl LoopDevice {
    /// Makes one of `bytes` bytes, all of them written.
    ///
    /// # Errors
    /// The system has no loop devices, or the process is not root.
    pub fn new(scratch: &Path, bytes: u64) -> Result<LoopDevice, String> {
        let file = scratch.join("loop.img");
        let mut fill = Command::new("dd");
        fill.args(["if=/dev/urandom", "bs=1M", &format!("count={}", bytes >> 20), "conv=fsync", "status=none"]);
        tool::run(fill.arg(format!("of={}", file.display())))?;
        let mut command = Command::new("losetup");
        let output = command.args(["--find", "--show", "--direct-io=on"]).arg(&file).output();
        let output = output.map_err(|e| format!("cannot run losetup: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(LoopDevice(String::from_utf8_lossy(&output.stdout).trim().to_owned())),
            false => Err(format!("losetup: {}; the kernel rows need root and loop devices", said.trim())),
        }
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Best effort: a failure has no consequence here.
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
    }
}

/// A tgtd.
pub struct Tgtd {
    /// `None`: it was killed.
    child: Option<Child>,
    /// The start of its control socket's name, which no other target has.
    ipc: PathBuf,
    port: u16,
    file: PathBuf,
}

impl Tgtd {
    /// Starts one.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(scratch: &Path) -> Result<Tgtd, String> {
        let file = scratch.join("iscsi.img");
        let made = File::create(&file).and_then(|f| f.set_len(BYTES));
        made.map_err(|e| format!("cannot create {}: {e}", file.display()))?;
        // Writes all of the file, so that it is in the page cache.
        let mut fill = Command::new("dd");
        fill.args(["if=/dev/zero", "bs=1M", &format!("count={}", BYTES >> 20), "conv=notrunc", "status=none"]);
        tool::run(fill.arg(format!("of={}", file.display())))?;
        Tgtd::on(&file)
    }

    /// Starts a tgtd with this file as its LUN 1.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn on(file: &Path) -> Result<Tgtd, String> {
        packages::ensure_iscsi()?;
        let started = (0..TRIES).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
            let port = port.map_err(|e| format!("no free port: {e}")).map(|a| a.port());
            port.and_then(|port| Tgtd::try_start(file, port)).transpose()
        });
        started.unwrap_or(Err("tgtd finds no port".to_owned()))
    }

    /// `None`: another process has the port.
    fn try_start(file: &Path, port: u16) -> Result<Option<Tgtd>, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let ipc = std::env::temp_dir().join(format!("mqblk-bench-tgtd-{}-{n}", std::process::id()));
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", &ipc).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("cannot run tgtd: {e}"))?;
        let mut tgtd = Tgtd { child: Some(child), ipc, port, file: file.to_owned() };
        let until = Instant::now() + START;
        while tgtd.admin("--op show --mode sys").is_err() {
            let ended = tgtd.child.as_mut().map(Child::try_wait).transpose().map_err(|e| e.to_string())?;
            if let Some(status) = ended.flatten() {
                return Err(format!("tgtd ended: {status}"));
            }
            if Instant::now() > until {
                return Err("tgtd does not start".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A tgtd that cannot bind its portal listens on any address at port 3260 instead.
        if !tool::output(&mut tgtd.admin_command("--op show --mode portal"))?.contains(&format!("127.0.0.1:{port},")) {
            return Ok(None);
        }
        tgtd.admin(&format!("--op new --mode target --tid 1 -T {IQN}"))?;
        tgtd.admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", file.display()))?;
        tgtd.admin("--op update --mode logicalunit --tid 1 --lun 1 --params scsi_id=naa-BENCH1,scsi_sn=BENCH1")?;
        tgtd.admin("--op bind --mode target --tid 1 -I ALL")?;
        Ok(Some(tgtd))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its LUN 1.
    pub fn url(&self) -> String {
        Tgtd::url_by(self.port)
    }

    /// The URL of LUN 1 by another port, which forwards to this target.
    pub fn url_by(port: u16) -> String {
        format!("iscsi://127.0.0.1:{port}/{IQN}/1")
    }

    /// Kills the process with SIGKILL, also when it is stopped.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        let _ = child.wait();
        for name in ["0", "0.lock"] {
            let _ = std::fs::remove_file(self.ipc.with_extension(name));
        }
    }

    /// Stops the process with SIGSTOP.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop(&self) -> Result<(), String> {
        let child = self.child.as_ref().ok_or("tgtd was killed before")?;
        tool::run(Command::new("kill").args(["-STOP", &child.id().to_string()]))
    }

    /// Starts another process in its place, on the same port, after it was killed.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> Result<(), String> {
        self.kill();
        let until = Instant::now() + START;
        loop {
            if let Some(again) = Tgtd::try_start(&self.file, self.port)? {
                *self = again;
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("tgtd does not listen on port {} again", self.port));
            }
        }
    }

    /// Closes all of its connections through tgtadm. Returns how many.
    ///
    /// # Errors
    /// tgtadm fails.
    pub fn drop_connections(&self) -> Result<usize, String> {
        let shown = tool::output(&mut self.admin_command("--op show --mode conn --tid 1"))?;
        let (mut session, mut dropped) = ("", 0);
        for line in shown.lines().map(str::trim) {
            if let Some(sid) = line.strip_prefix("Session:") {
                session = sid.trim();
            } else if let Some(cid) = line.strip_prefix("Connection:") {
                // A connection that has closed by itself meanwhile does not count.
                let which = format!("--op delete --mode conn --tid 1 --sid {session} --cid {}", cid.trim());
                dropped += usize::from(self.admin(&which).is_ok());
            }
        }
        Ok(dropped)
    }

    fn admin(&self, arguments: &str) -> Result<(), String> {
        tool::run(&mut self.admin_command(arguments))
    }

    fn admin_command(&self, arguments: &str) -> Command {
        let mut command = Command::new("tgtadm");
        command.args(["--lld", "iscsi"]).args(arguments.split(' ')).env("TGT_IPC_SOCKET", &self.ipc);
        command
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Ceph cluster.
pub struct Ceph {
    cluster: Cluster,
}

impl Ceph {
    /// Starts a cluster and writes all of `rbd/disk0`.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(directory: PathBuf) -> Result<Ceph, String> {
        packages::ensure_ceph()?;
        let ceph = Ceph { cluster: Cluster::new(directory) };
        ceph.cluster.start()?;
        let conf = ceph.cluster.conf();
        // A second configuration disables librbd's cache, because fio's engine has no option for that.
        let text = std::fs::read_to_string(&conf).map_err(|e| format!("{}: {e}", conf.display()))?;
        std::fs::write(ceph.directory().join("nocache.conf"), text + "rbd_cache = false\n")
            .map_err(|e| e.to_string())?;
        let mut fill = Command::new("fio");
        fill.args([
            "--name=fill",
            "--ioengine=rbd",
            "--clientname=admin",
            "--pool=rbd",
            "--rbdname=disk0",
            "--rw=write",
        ]);
        tool::run(fill.args(["--bs=1m", "--iodepth=4"]).env("CEPH_CONF", &conf))?;
        Ok(ceph)
    }

    /// Where its configurations are: `ceph.conf`, and `nocache.conf` without librbd's cache.
    pub fn directory(&self) -> &Path {
        self.cluster.directory()
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if let Err(why) = self.cluster.stop() {
            eprintln!("xtask: {why}");
        }
    }
}
