// SPDX-License-Identifier: Apache-2.0 OR MIT
//! iSCSI targets as targets of `mqblk run`: Debian's tgtd with a file of the test's directory.

mod common;

use common::Dir;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const IQN: &str = "iqn.2026-11.test:run";

/// tgtd with `disk.img` as LUN 1, for user `me` only.
struct Tgtd {
    child: Child,
    control: String,
    url: String,
}

impl Tgtd {
    fn start(dir: &Dir) -> Tgtd {
        (0..20).find_map(|n| Tgtd::try_start(dir, n)).expect("tgtd finds a port")
    }

    fn try_start(dir: &Dir, number: u32) -> Option<Tgtd> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // It has 15 bits; one that is taken ends tgtd.
        let control = (30_001 + (std::process::id() + number * 131) % 2_700).to_string();
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.args(["--control-port", &control]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let url = format!("iscsi://me@127.0.0.1:{port}/{IQN}/1");
        let mut tgtd = Tgtd { child, control, url };
        let began = Instant::now();
        while !tgtd.admin("--op show --mode sys") {
            if tgtd.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(began.elapsed() < LONG, "tgtd does not come up");
            std::thread::yield_now();
        }
        let disk = dir.path("disk.img");
        for arguments in [
            format!("--op new --mode target --tid 1 -T {IQN}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", disk.to_str().unwrap()),
            "--op new --mode account --user me --password secretsecret1".to_owned(),
            "--op bind --mode account --tid 1 --user me".to_owned(),
            "--op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            assert!(tgtd.admin(&arguments), "tgtadm {arguments}");
        }
        Some(tgtd)
    }

    fn admin(&self, arguments: &str) -> bool {
        let mut command = Command::new("tgtadm");
        command.args(["--control-port", &self.control, "--lld", "iscsi"]).args(arguments.split(' '));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Tgtd {
    /// kill -9, for it does not end by itself while it has targets.
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        for name in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{name}", self.control));
        }
    }
}

#[test]
fn jobs_run_and_verify_on_a_target() {
    let dir = Dir::new("iscsi-run");
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let tgtd = Tgtd::start(&dir);
    dir.file(
        "a.fio",
        "[a]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=16\nverify=crc32c\nfsync=64\n[b]\nrw=read\nbs=1m\nsize=8m\niodepth=4\n",
    );
    let run = |job: &str, url: &str, password: &str| {
        let mut command = dir.command(&["run", job, "--target", url, "--json"]);
        command.env("LIBISCSI_CHAP_PASSWORD", password).output().unwrap()
    };
    let done = run("a.fio", &tgtd.url, "secretsecret1");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let digests = format!("{}?data_digest=none&sessions=2", tgtd.url);
    dir.file("c.fio", "[c]\nrw=write\nbs=64k\nsize=1m\nbuffer_pattern=0x5a\nnumjobs=1\n");
    assert!(run("c.fio", &digests, "secretsecret1").status.success());
    let bytes = std::fs::read(dir.path("disk.img")).unwrap();
    assert!(bytes[..1 << 20].iter().all(|b| *b == 0x5a));
    // Without the password, and with another one.
    for (password, part) in [("", "set LIBISCSI_CHAP_PASSWORD"), ("secretsecret2", "user 'me' was refused")] {
        let refused = run("c.fio", &tgtd.url, password);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(part) && !text.contains("secretsecret"), "{text}");
    }
}
