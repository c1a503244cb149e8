// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's tgtd on a free port of loopback, with files as LUNs. It is killed at the end of its test, because it does not exit while it
//! has targets.

use super::common::{Dir, Running};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(300);

/// A running target.
pub struct Tgtd {
    pub process: Running,
    control: u32,
    pub port: u16,
    iqn: String,
    is_ours: bool,
}

/// Returns a number of 15 bits for a tgtd's control socket, unique on the machine. A tgtd exits if its number is taken.
pub fn control() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    27_500 + (std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed) * 131) % 2_400
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
    #[allow(dead_code, reason = "not every test needs it")]
    pub fn url(&self, lun: u32) -> String {
        format!("iscsi://127.0.0.1:{}/{}/{lun}", self.port, self.iqn)
    }

    fn try_start() -> Option<Tgtd> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let control = control();
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        let process = Running::start(quiet(command.args(["--control-port", &control.to_string()])));
        let mut tgtd = Tgtd { process, control, port, iqn: String::new(), is_ours: true };
        let began = Instant::now();
        while !tgtd.try_admin("--op show --mode sys") {
            if tgtd.process.try_wait().unwrap().is_some() {
                // The tgtd with this number belongs to another process.
                tgtd.is_ours = false;
                return None;
            }
            assert!(began.elapsed() < LONG, "tgtd does not come up");
            std::thread::yield_now();
        }
        // A tgtd that cannot bind its portal listens on any address at port 3260 instead.
        let portals = tgtd.command("--op show --mode portal").output().unwrap().stdout;
        String::from_utf8_lossy(&portals).contains(&format!("127.0.0.1:{port},")).then_some(tgtd)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new("tgtadm");
        command.args(["--control-port", &self.control.to_string(), "--lld", "iscsi"]).args(arguments.split(' '));
        command
    }

    fn try_admin(&self, arguments: &str) -> bool {
        quiet(&mut self.command(arguments)).status().unwrap().success()
    }

    /// Runs tgtadm with these arguments.
    pub fn admin(&self, arguments: &str) {
        assert!(self.try_admin(arguments), "tgtadm {arguments}");
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !self.is_ours {
            return;
        }
        for name in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{name}", self.control));
        }
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}
