// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What both sides of a row use and neither is: an iSCSI target and a Ceph cluster, started when a row needs them, ended with the bench.
//!
//! Guarantees: on loopback, in the scratch directory; ended also when the bench fails. tgtd has a file in the page cache as LUN 1; the
//! cluster's image `rbd/disk0` has data everywhere, so that a read is one of an object. Their CPU time is nobody's: neither is waited for
//! while a side runs.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ceph::Cluster;
use crate::packages;

const START: Duration = Duration::from_secs(30);
const IQN: &str = "iqn.2026-11.test:bench";
/// Of LUN 1.
const BYTES: u64 = 256 << 20;
/// Ports and control numbers that are tried.
const TRIES: u32 = 20;

/// A tgtd.
pub struct Tgtd {
    child: Child,
    control: String,
    /// Its LUN 1.
    pub url: String,
}

impl Tgtd {
    /// Starts one.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(scratch: &Path) -> Result<Tgtd, String> {
        packages::ensure_iscsi()?;
        let file = scratch.join("iscsi.img");
        let made = File::create(&file).and_then(|f| f.set_len(BYTES));
        made.map_err(|e| format!("cannot create {}: {e}", file.display()))?;
        // The file is in the page cache, and all of it is there.
        let mut fill = Command::new("dd");
        fill.args(["if=/dev/zero", "bs=1M", &format!("count={}", BYTES >> 20), "conv=notrunc", "status=none"]);
        must(fill.arg(format!("of={}", file.display())))?;
        (0..TRIES).find_map(|n| Tgtd::try_start(&file, n).transpose()).unwrap_or(Err("tgtd finds no port".to_owned()))
    }

    /// `None`: the port or the number is another's.
    fn try_start(file: &Path, n: u32) -> Result<Option<Tgtd>, String> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = port.map_err(|e| format!("no free port: {e}"))?.port();
        // Of 15 bits, and one that is taken ends tgtd.
        let control = (1 + (std::process::id() + n * 131) % 32_000).to_string();
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.args(["--control-port", &control]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("cannot run tgtd: {e}"))?;
        let url = format!("iscsi://127.0.0.1:{port}/{IQN}/1");
        let mut tgtd = Tgtd { child, control, url };
        let until = Instant::now() + START;
        // The port is this one's alone: who has the number may be another.
        while !(TcpStream::connect(("127.0.0.1", port)).is_ok() && tgtd.admin("--op show --mode sys").is_ok()) {
            if tgtd.child.try_wait().map_err(|e| e.to_string())?.is_some() {
                return Ok(None);
            }
            if Instant::now() > until {
                return Err("tgtd does not start".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        tgtd.admin(&format!("--op new --mode target --tid 1 -T {IQN}"))?;
        tgtd.admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", file.display()))?;
        tgtd.admin("--op bind --mode target --tid 1 -I ALL")?;
        Ok(Some(tgtd))
    }

    fn admin(&self, arguments: &str) -> Result<(), String> {
        let mut command = Command::new("tgtadm");
        command.args(["--control-port", &self.control, "--lld", "iscsi"]).args(arguments.split(' '));
        must(&mut command)
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for name in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{name}", self.control));
        }
    }
}

/// A Ceph cluster.
pub struct Ceph {
    cluster: Cluster,
}

impl Ceph {
    /// Starts one, in which `rbd/disk0` is written to.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(directory: PathBuf) -> Result<Ceph, String> {
        packages::ensure_ceph()?;
        let ceph = Ceph { cluster: Cluster::new(directory) };
        ceph.cluster.start()?;
        let conf = ceph.cluster.conf();
        // The same without librbd's cache: fio's engine has no option for that.
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
        must(fill.args(["--bs=1m", "--iodepth=4"]).env("CEPH_CONF", &conf))?;
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

fn must(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}: {}", output.status, said.trim())) }
}
