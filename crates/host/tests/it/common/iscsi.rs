// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An independent iSCSI target: Debian's tgtd with a file as LUN 1. It can be killed and restarted at the same address, which no other
//! server of any test has, and its sessions can be closed.

use super::{TempFile, own_address, until};
use crate::waiting::until_reported;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The target's name.
pub const IQN: &str = "iqn.2026-11.test:t1";

/// A target that runs or was killed.
pub struct Tgt {
    child: Option<Child>,
    /// The start of its control socket's name, which no other target has.
    ipc: PathBuf,
    address: SocketAddr,
    pub file: Arc<TempFile>,
    /// The serial number that the logical unit reports.
    serial: String,
    users: Vec<(String, String, bool)>,
}

impl Tgt {
    /// Starts a target whose LUN 1 any initiator may use.
    pub fn new() -> Tgt {
        Tgt::with_users(&[])
    }

    /// Starts a target with these users. Users with `false` log in to it; with `true`, it authenticates itself to initiators.
    pub fn with_users(users: &[(&str, &str, bool)]) -> Tgt {
        Tgt::on(Arc::new(TempFile::new()), users)
    }

    /// Starts another process for the same disk: same file, same identity, another address.
    pub fn beside(&self) -> Tgt {
        Tgt::on(self.file.clone(), &[])
    }

    fn on(file: Arc<TempFile>, users: &[(&str, &str, bool)]) -> Tgt {
        let users =
            users.iter().map(|(name, password, is_out)| ((*name).into(), (*password).into(), *is_out)).collect();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let ipc = std::env::temp_dir().join(format!("mqblk-tgtd-{}-{n}", std::process::id()));
        let mut tgt = Tgt { child: None, ipc, address: own_address(), file, serial: "SN0001".to_owned(), users };
        assert!(tgt.try_start(), "tgtd does not listen at {}", tgt.address);
        tgt
    }

    /// Starts it again at the same address.
    pub fn start(&mut self) {
        self.kill();
        until(&format!("tgtd listens at {} again", self.address), || self.try_start());
    }

    fn try_start(&mut self) -> bool {
        let portal = format!("portal={}", self.address);
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &portal]).env("TGT_IPC_SOCKET", &self.ipc);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run tgtd: {e}"));
        until_reported("tgtd answers", || {
            assert!(child.try_wait().unwrap().is_none(), "tgtd ended");
            self.try_admin(&["--op", "show", "--mode", "sys"])
        });
        self.child = Some(child);
        // A tgtd that cannot bind its portal listens on any address at port 3260 instead.
        if !self.show(&["--op", "show", "--mode", "portal"]).contains(&format!("Portal: {},", self.address)) {
            self.kill();
            return false;
        }
        self.set_up();
        true
    }

    fn set_up(&self) {
        let path = self.file.0.to_str().unwrap().to_owned();
        self.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN]);
        self.admin(&[
            "--op",
            "new",
            "--mode",
            "logicalunit",
            "--tid",
            "1",
            "--lun",
            "1",
            "-b",
            &path,
            "--bstype",
            "rdwr",
        ]);
        self.update(&format!("thin_provisioning=1,scsi_id=naa-{0},scsi_sn={0}", self.serial));
        for digest in ["HeaderDigest", "DataDigest"] {
            self.admin(&[
                "--op",
                "update",
                "--mode",
                "target",
                "--tid",
                "1",
                "--name",
                digest,
                "--value",
                "None,CRC32C",
            ]);
        }
        for (user, password, is_out) in &self.users {
            self.admin(&["--op", "new", "--mode", "account", "--user", user, "--password", password]);
            let way: &[&str] = if *is_out { &["--outgoing"] } else { &[] };
            let bind = ["--op", "bind", "--mode", "account", "--tid", "1", "--user", user];
            self.admin(&[&bind, way].concat());
        }
        self.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tgtadm");
        command.args(["--lld", "iscsi"]).args(arguments).env("TGT_IPC_SOCKET", &self.ipc);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn try_admin(&self, arguments: &[&str]) -> bool {
        self.command(arguments).stdout(Stdio::null()).status().expect("tgtadm runs").success()
    }

    /// Runs tgtadm.
    pub fn admin(&self, arguments: &[&str]) {
        assert!(self.try_admin(arguments), "tgtadm {arguments:?} failed");
    }

    /// Runs tgtadm. Returns its output.
    pub fn show(&self, arguments: &[&str]) -> String {
        let mut child = self.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "tgtadm {arguments:?} failed");
        text
    }

    /// Changes parameters of the LUN.
    fn update(&self, params: &str) {
        self.admin(&["--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--params", params]);
    }

    /// Sets another identity at once. Sessions stay, and none is told.
    pub fn exchange(&mut self, serial: &str) {
        self.set_serial(serial);
        self.update(&format!("scsi_id=naa-{serial},scsi_sn={serial}"));
    }

    /// Sets another serial number, from the next start on.
    pub fn set_serial(&mut self, serial: &str) {
        self.serial = serial.to_owned();
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for name in ["0", "0.lock"] {
            let _ = std::fs::remove_file(self.ipc.with_extension(name));
        }
    }

    /// Returns the URL of its LUN 1. `options` begin with `?`.
    pub fn url(&self, options: &str) -> String {
        self.url_as("", options)
    }

    /// Returns the URL of its LUN 1 by the address of a proxy.
    pub fn url_by(&self, address: SocketAddr, options: &str) -> String {
        format!("iscsi://{address}/{IQN}/1{options}")
    }

    /// Makes it another disk from the next start on: another file, another identity.
    pub fn become_another(&mut self, serial: &str) {
        self.file = Arc::new(TempFile::new());
        self.set_serial(serial);
    }

    /// Makes it the other target's disk from the next start on.
    pub fn become_disk_of(&mut self, other: &Tgt) {
        (self.file, self.serial) = (other.file.clone(), other.serial.clone());
    }

    /// Closes all sessions through tgtadm. Returns how many.
    pub fn drop_sessions(&self) -> usize {
        let shown = self.show(&["--op", "show", "--mode", "conn", "--tid", "1"]);
        let number = |line: &str, what: &str| line.trim().strip_prefix(what).map(|n| n.trim().to_owned());
        let (mut session, mut dropped) = (String::new(), 0);
        for line in shown.lines() {
            if let Some(sid) = number(line, "Session:") {
                session = sid;
            } else if let Some(cid) = number(line, "Connection:") {
                let which = ["--tid", "1", "--sid", &session, "--cid", &cid];
                dropped += usize::from(self.try_admin(&[&["--op", "delete", "--mode", "conn"][..], &which].concat()));
            }
        }
        dropped
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the same URL with a login, `USER@` or `USER%PASSWORD@`.
    pub fn url_as(&self, login: &str, options: &str) -> String {
        format!("iscsi://{login}{}/{IQN}/1{options}", self.address)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        self.kill();
    }
}
