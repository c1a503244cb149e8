// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk run` that is told to end while its target does not answer: it ends all the same, with what it has, or at once when it is told
//! again. Servers are real ones, stopped by SIGSTOP or killed.

mod common;

use common::{Dir, Running, Started, number};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const IQN: &str = "iqn.2026-11.test:still";
const JOB: &str = "[a]\nioengine=libaio\nrw=randrw\nbs=4k\nsize=8m\niodepth=16\nruntime=600\ntime_based\nnorandommap\n";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

fn signal(child: &Running, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// nbdkit with a disk in memory; kill -9 at the end.
fn nbdkit(dir: &Dir) -> Running {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix", "up.sock", "memory", "8m"]).current_dir(dir.as_path());
    let nbdkit = Running::start(quiet(&mut command));
    until("nbdkit does not listen", || UnixStream::connect(dir.path("up.sock")).is_ok());
    nbdkit
}

/// tgtd with a file as LUN 1, and its URL; kill -9 at the end, for it does not end by itself while it has targets.
fn tgtd(dir: &Dir) -> (Running, String) {
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(8 << 20).unwrap();
    let file = dir.path("disk.img");
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..20 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // It has 15 bits; one that is taken ends tgtd.
        let control = (27_500 + (std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed) * 131) % 2_400).to_string();
        let mut command = Command::new("tgtd");
        command.args(["-f", "--nr_iothreads", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        let mut tgtd = Running::start(quiet(command.args(["--control-port", &control])));
        let admin = |arguments: &str| {
            let mut command = Command::new("tgtadm");
            command.args(["--control-port", &control, "--lld", "iscsi"]).args(arguments.split(' '));
            quiet(&mut command).status().unwrap().success()
        };
        let mut is_gone = false;
        until("tgtd does not come up", || {
            is_gone = tgtd.try_wait().unwrap().is_some();
            // The port is this one's alone: who has the number may be another.
            is_gone || TcpStream::connect(("127.0.0.1", port)).is_ok() && admin("--op show --mode sys")
        });
        if is_gone {
            continue;
        }
        for arguments in [
            format!("--op new --mode target --tid 1 -T {IQN}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", file.to_str().unwrap()),
            "--op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            assert!(admin(&arguments), "tgtadm {arguments}");
        }
        return (tgtd, format!("iscsi://127.0.0.1:{port}/{IQN}/1"));
    }
    panic!("tgtd finds no port");
}

/// A run on the target that has come to a standstill: its server was sent `name` while it was at work.
fn stalled(dir: &Dir, target: &str, server: &Running, name: &str, more: &[&str]) -> Started {
    dir.file("j.fio", JOB);
    let args = ["run", "j.fio", "--target", target, "--eta=always"];
    let mut run = dir.start(&[&args[..], more].concat(), "IOPS]");
    signal(server, name);
    run.until("[r=0,w=0 IOPS]");
    run
}

/// Told to end once: it reports.
fn ends_with_what_it_has(run: Started) {
    run.signal("INT");
    let done = run.ends().exits(130);
    assert!(number(&done.json(), "/jobs/0/read/total_ios") > 0.0);
    done.says(&[
        "I/Os 2 s after the run was told to stop: they were given up",
        "broken off; results are those until then",
    ]);
}

#[test]
fn a_server_that_stands_still_does_not_hold_up_the_end() {
    let dir = Dir::new("still-nbd");
    let server = nbdkit(&dir);
    ends_with_what_it_has(stalled(&dir, "nbd+unix:///?socket=up.sock", &server, "STOP", &["--json"]));
}

#[test]
fn a_server_that_is_gone_does_not_hold_up_the_end() {
    let dir = Dir::new("gone-nbd");
    let server = nbdkit(&dir);
    let patient = "nbd+unix:///?socket=up.sock&reconnect_delay=600";
    ends_with_what_it_has(stalled(&dir, patient, &server, "KILL", &["--json"]));
}

#[test]
fn an_iscsi_target_that_stands_still_does_not_hold_up_the_end() {
    let dir = Dir::new("still-iscsi");
    let (server, url) = tgtd(&dir);
    ends_with_what_it_has(stalled(&dir, &url, &server, "STOP", &["--json"]));
}

#[test]
fn an_iscsi_target_that_is_gone_does_not_hold_up_the_end() {
    let dir = Dir::new("gone-iscsi");
    let (server, url) = tgtd(&dir);
    let patient = format!("{url}?recovery_timeout=600");
    ends_with_what_it_has(stalled(&dir, &patient, &server, "KILL", &["--json"]));
}

#[test]
fn told_again_it_ends_at_once() {
    let dir = Dir::new("still-twice");
    let server = nbdkit(&dir);
    let run = stalled(&dir, "nbd+unix:///?socket=up.sock", &server, "STOP", &[]);
    // What comes within a second is taken for the same wish.
    let pid = run.id().to_string();
    until("it does not end", || {
        let _ = quiet(Command::new("kill").args(["-s", "INT", &pid])).status();
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
    });
    let done = run.ends().exits(130);
    assert!(done.out.is_empty(), "nothing is reported: {}", done.out);
}
