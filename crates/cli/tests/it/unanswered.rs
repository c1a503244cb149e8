// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk run` that is interrupted while its target does not answer: it still ends and reports its results so far, or exits at once after
//! a second signal. The servers are real ones, stopped by SIGSTOP or killed.

use crate::common;
use crate::tgtd;

use common::{Dir, Done, Running, Started, number, until, until_reported};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use tgtd::Tgtd;

const IQN: &str = "iqn.2026-11.test:still";
const JOB: &str = "[a]\nioengine=libaio\nrw=randrw\nbs=4k\nsize=8m\niodepth=16\nruntime=600\ntime_based\nnorandommap\n";

fn signal(child: &Running, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Starts nbdkit with a disk in memory. It is killed at the end of the test.
fn nbdkit(dir: &Dir) -> Running {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix", "up.sock", "memory", "8m"]).current_dir(dir.as_path());
    let nbdkit = Running::start(quiet(&mut command));
    until("nbdkit listens", || UnixStream::connect(dir.path("up.sock")).is_ok());
    nbdkit
}

/// Starts tgtd with a file as LUN 1. Returns it and the LUN's URL.
fn tgtd(dir: &Dir) -> (Tgtd, String) {
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(8 << 20).unwrap();
    let tgtd = Tgtd::start(dir, IQN, &["disk.img"]);
    let url = format!("iscsi://127.0.0.1:{}/{IQN}/1", tgtd.port);
    (tgtd, url)
}

/// Sessions that read and commit: data and redo on one target.
const TRANSACTIONS: &str = "[a]\nworkload=oltp\nbs=4k\nsize=7m\nusers=16\nreads_per_tx=4\nwrites_per_tx=2\nredo_bytes=1k\nredo_size=512k\n\
                            runtime=600\ntime_based\n";

/// Starts a run on the target, and sends signal `name` to its server during I/O. Returns the run when it hangs.
fn stalled(dir: &Dir, target: &str, server: &Running, name: &str, more: &[&str]) -> Started {
    stalled_at(dir, JOB, target, server, name, more)
}

/// Does the same with the text of a job.
fn stalled_at(dir: &Dir, job: &str, target: &str, server: &Running, name: &str, more: &[&str]) -> Started {
    dir.file("j.fio", job);
    let args = ["run", "j.fio", "--target", target, "--eta=always"];
    // Progress shows only directions that have had I/O, and both must have had some.
    let mut run = dir.start(&[&args[..], more].concat(), ",w=");
    signal(server, name);
    run.until("[r=0,w=0 IOPS]");
    run
}

/// Interrupts the run once. It must end with a report.
fn ends_with_what_it_has(run: Started) -> Done {
    run.signal("INT");
    let done = run.ends().exits(130);
    assert!(number(&done.json(), "/jobs/0/read/total_ios") > 0.0);
    done.says(&[
        "I/Os 2 s after the request to stop the run: they were given up",
        "interrupted; results cover the time until then",
    ]);
    done
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
    ends_with_what_it_has(stalled(&dir, &url, &server.process, "STOP", &["--json"]));
}

#[test]
fn an_iscsi_target_that_is_gone_does_not_hold_up_the_end() {
    let dir = Dir::new("gone-iscsi");
    let (server, url) = tgtd(&dir);
    let patient = format!("{url}?recovery_timeout=600");
    ends_with_what_it_has(stalled(&dir, &patient, &server.process, "KILL", &["--json"]));
}

#[test]
fn transactions_end_though_their_iscsi_target_stands_still() {
    let dir = Dir::new("still-oltp");
    let (server, url) = tgtd(&dir);
    let done = ends_with_what_it_has(stalled_at(&dir, TRANSACTIONS, &url, &server.process, "STOP", &["--json"]));
    assert!(number(&done.json(), "/mqblk/oltp/0/transactions") > 0.0);
}

/// One target of the stripe hangs, while the other one answers.
#[test]
fn a_stripe_ends_though_one_of_its_targets_stands_still() {
    let (dir, other) = (Dir::new("still-stripe"), Dir::new("live-stripe"));
    let (_live, first) = tgtd(&other);
    let (server, second) = tgtd(&dir);
    let stripe = format!("stripe:chunk=64k:{first}+{second}");
    for job in [JOB, TRANSACTIONS] {
        let done = ends_with_what_it_has(stalled_at(&dir, job, &stripe, &server.process, "STOP", &["--json"]));
        done.says(&[&format!("{stripe}#1 had not completed")]);
        assert!(!done.err.contains("#0 had not completed"), "{}", done.err);
        signal(&server.process, "CONT");
    }
}

#[test]
fn told_again_it_ends_at_once() {
    let dir = Dir::new("still-twice");
    let server = nbdkit(&dir);
    let run = stalled(&dir, "nbd+unix:///?socket=up.sock", &server, "STOP", &[]);
    // Signals within a second count as one.
    let pid = run.id().to_string();
    until_reported("the run ends", || {
        let _ = quiet(Command::new("kill").args(["-s", "INT", &pid])).status();
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
    });
    let done = run.ends().exits(130);
    assert!(done.out.is_empty(), "nothing is reported: {}", done.out);
}
