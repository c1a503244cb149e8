// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's tgtd on a free port of loopback, with files as LUNs. It is killed at the end of its test, because it does not exit while it
//! has targets.

use super::common::{Dir, Running, until_reported};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A running target.
pub struct Tgtd {
    pub process: Running,
    /// The start of its control socket's name, which no other target has.
    ipc: PathBuf,
    pub port: u16,
    iqn: String,
}

impl Tgtd {
    /// Starts a target of this name that any initiator may use. LUNs from 1 on are these files of the directory.
    pub fn start(dir: &Dir, iqn: &str, luns: &[&str]) -> Tgtd {
        let mut tgtd = (0..20).find_map(|_| Tgtd::try_start()).expect("tgtd finds a port");
        iqn.clone_into(&mut tgtd.iqn);
        tgtd.admin(&format!("--op new --mode target --tid 1 -T {iqn}"));
        for (i, lun) in luns.iter().enumerate() {
            let (lun, file) = (i + 1, dir.path(lun));
            let file = file.to_str().unwrap();
            tgtd.admin(&format!("--op new --mode logicalunit --tid 1 --lun {lun} -b {file}"));
        }
        tgtd.admin("--op bind --mode target --tid 1 -I ALL");
        tgtd
    }

    /// Returns the URL of a LUN, as a target of mqblk.
    pub fn url(&self, lun: u32) -> String {
        format!("iscsi://127.0.0.1:{}/{}/{lun}", self.port, self.iqn)
    }

    fn try_start() -> Option<Tgtd> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let ipc = std::env::temp_dir().join(format!("mqblk-cli-tgtd-{}-{n}", std::process::id()));
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        let process = Running::start(quiet(command.env("TGT_IPC_SOCKET", &ipc)));
        let mut tgtd = Tgtd { process, ipc, port, iqn: String::new() };
        until_reported("tgtd answers", || {
            assert!(tgtd.process.try_wait().unwrap().is_none(), "tgtd ended");
            tgtd.try_admin("--op show --mode sys")
        });
        // A tgtd that cannot bind its portal listens on any address at port 3260 instead.
        let portals = tgtd.command("--op show --mode portal").output().unwrap().stdout;
        String::from_utf8_lossy(&portals).contains(&format!("127.0.0.1:{port},")).then_some(tgtd)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new("tgtadm");
        command.args(["--lld", "iscsi"]).args(arguments.split(' ')).env("TGT_IPC_SOCKET", &self.ipc);
        command
    }

    fn try_admin(&self, arguments: &str) -> bool {
        quiet(&mut self.command(arguments)).status().unwrap().success()
    }

    /// Runs tgtadm with these arguments.
    pub fn admin(&self, arguments: &str) {
        assert!(self.try_admin(arguments), "tgtadm {arguments}");
    }

    /// Deletes a LUN. tgtd rejects this while a command of the LUN is in flight, so it is tried again until it succeeds.
    pub fn delete_lun(&self, lun: u32) {
        let arguments = format!("--op delete --mode logicalunit --tid 1 --lun {lun}");
        until_reported(&format!("tgtadm {arguments}"), || self.try_admin(&arguments));
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for name in ["0", "0.lock"] {
            let _ = std::fs::remove_file(self.ipc.with_extension(name));
        }
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}
