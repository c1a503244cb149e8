// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of a daemon: its content, for people and for programs. A slow reader of the log blocks nothing.

use crate::common;

use common::{Dir, Running, until, until_reported};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn serving(dir: &Dir, more: &[&str]) -> common::Started {
    File::create(dir.path("a.img")).unwrap().set_len(8 << 20).unwrap();
    let args = ["serve", "a.img", "--control", "ctl.sock", "--num-queues=1"];
    dir.start(&[&args, more].concat(), "serving on 2 sockets")
}

fn nbd(dir: &Dir, what: &str) -> common::Done {
    let uri = format!("nbd+unix:///a.img?socket={}", dir.path("a.img.nbd.sock").display());
    let script = format!("import nbd\nh = nbd.NBD()\nh.connect_uri('{uri}')\n{what}\n");
    dir.program("/usr/bin/python3", &["-c", &script])
}

#[test]
fn each_event_is_an_object_with_fields() {
    let dir = Dir::new("log");
    let mut daemon = serving(&dir, &["--log-format=json"]);
    nbd(&dir, "h.pread(512, 0)").exits(0);
    // The log distinguishes a client that violates the protocol from one that disconnects.
    nbd(&dir, "import os\nos.write(h.aio_get_fd(), b'x' * 64)\ntry:\n  h.pread(512, 0)\nexcept nbd.Error: pass")
        .exits(0);
    let mut hello = UnixStream::connect(dir.path("a.img.nbd.sock")).unwrap();
    hello.read_exact(&mut [0; 18]).unwrap();
    drop(hello);
    daemon.until("before it chose an export");
    // The truncated part of the image cannot be read.
    File::options().write(true).open(dir.path("a.img")).unwrap().set_len(0).unwrap();
    nbd(&dir, "try:\n  h.pread(4096, 0)\nexcept nbd.Error: pass").exits(0);
    let failed: Value = serde_json::from_str(&daemon.until("requests failed")).unwrap();
    assert_eq!((&failed["disk"], &failed["level"]), (&Value::from("a.img"), &Value::from("warning")), "{failed}");
    assert!(failed["errors"].as_u64().unwrap() > 0, "{failed}");
    daemon.signal("HUP");
    daemon.until("reload: done");
    daemon.signal("TERM");
    let done = daemon.ends().exits(0);
    let lines: Vec<Value> = done.err.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let has = |message: &str, key: &str, value: &str| {
        let found = lines
            .iter()
            .any(|l| l["message"].as_str().unwrap().contains(message) && l[key].as_str().unwrap().contains(value));
        assert!(found, "no '{message}' with {key}={value}:\n{}", done.err);
    };
    has("opened disk 'a.img'", "disk", "a.img");
    has("began export 'a.img.vhost'", "export", "a.img.vhost");
    has("a client has connected", "client", "pid ");
    has("a client has connected", "export", "a.img.nbd");
    has("a client is dropped: 0x78787878 in place of a request: client out of step", "export", "a.img");
    has("a client has left", "export", "a.img.nbd");
    has("ended", "time", "Z");
    assert_eq!(lines.last().unwrap()["message"], "ended");
}

/// Once, a second SIGHUP more than a second after the first counted as a second Ctrl-C and ended the daemon.
#[test]
fn any_number_of_reloads_by_signal_leaves_the_daemon_running() {
    let dir = Dir::new("log");
    let mut daemon = serving(&dir, &[]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        daemon.signal("HUP");
        daemon.until("reload: done");
    }
    daemon.signal("HUP");
    daemon.until("reload: done");
    nbd(&dir, "h.pread(512, 0)").exits(0);
    daemon.signal("TERM");
    let err = daemon.ends().exits(0).err;
    assert!(err.lines().last().unwrap().contains("info: ended"), "{err}");
}

#[test]
fn a_line_for_people_and_only_as_many_as_wanted() {
    let dir = Dir::new("log");
    let daemon = serving(&dir, &[]);
    daemon.signal("TERM");
    let err = daemon.ends().exits(0).err;
    let opened = err.lines().find(|l| l.contains("opened disk")).unwrap();
    assert!(opened.ends_with("Z info: opened disk 'a.img' disk=a.img"), "{opened}");
    let quiet = ["serve", "a.img", "--control=ctl.sock", "--log-level=error"];
    let mut child = Running::start(dir.command(&quiet).stdout(Stdio::null()).stderr(Stdio::piped()));
    until("the control socket is there", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        dir.path("ctl.sock").exists()
    });
    until_reported("the daemon shuts down", || dir.mqblk(&["ctl", "--control=ctl.sock", "shutdown"]).status == 0);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(err, "");
}

#[test]
fn a_log_without_a_reader_does_not_stop_the_daemon() {
    let dir = Dir::new("log");
    let daemon = serving(&dir, &[]);
    let daemon = daemon.closes_err();
    nbd(&dir, "h.pread(512, 0)").exits(0);
    dir.mqblk(&["ctl", "--control=ctl.sock", "reload"]).exits(0);
    // A protocol violation at the control socket is logged, too.
    UnixStream::connect(dir.path("ctl.sock")).unwrap().write_all(b"{").unwrap();
    dir.mqblk(&["ctl", "--control=ctl.sock", "shutdown"]).exits(0);
    assert!(daemon.output().status.success());
}

/// Once, the daemon of a failed test kept serving and held resources that later runs needed.
#[test]
fn a_daemon_does_not_outlive_its_test() {
    let dir = Dir::new("log");
    let daemon = serving(&dir, &[]);
    let process = format!("/proc/{}", daemon.id());
    assert!(Path::new(&process).exists());
    drop(daemon);
    assert!(!Path::new(&process).exists());
}

/// Returns how many lines of a log in JSON have this message, and how many are counted as suppressed.
fn lines_of(log: &str, message: &str) -> (usize, u64) {
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let about: Vec<Value> = lines.filter(|line| line["message"].as_str().unwrap().contains(message)).collect();
    let (counts, printed): (Vec<_>, Vec<_>) = about.iter().partition(|line| line["suppressed"].is_u64());
    (printed.len(), counts.iter().map(|line| line["suppressed"].as_u64().unwrap()).sum())
}

/// Once, every client wrote two lines: connecting in a loop wrote 24 GB a day.
#[test]
fn clients_in_a_loop_write_few_lines_and_are_counted() {
    const CLIENTS: usize = 2000;
    /// A burst, for each 5 s that have begun.
    const BURST: u64 = 10;
    let dir = Dir::new("log-limit");
    let daemon = serving(&dir, &["--log-format=json"]);
    let began = Instant::now();
    for _ in 0..CLIENTS {
        let mut client = UnixStream::connect(dir.path("a.img.nbd.sock")).unwrap();
        // It is accepted, so that it is logged before the daemon ends.
        client.read_exact(&mut [0; 18]).unwrap();
    }
    for _ in 0..200 {
        UnixStream::connect(dir.path("a.img.vhost.sock")).unwrap();
    }
    for _ in 0..200 {
        let mut client = UnixStream::connect(dir.path("a.img.vhost.sock")).unwrap();
        // Not a message of vhost-user. The daemon logs it, then closes the connection.
        client.write_all(&[0xff; 64]).unwrap();
        let closed = client.read(&mut [0]);
        assert!(matches!(closed, Ok(0)) || closed.is_err(), "{closed:?}");
    }
    nbd(&dir, "h.pread(512, 0)").exits(0);
    daemon.signal("TERM");
    let log = daemon.ends().exits(0).err;
    let bound = BURST * (began.elapsed().as_secs() / 5 + 1);
    let (printed, suppressed) = lines_of(&log, "before it chose an export");
    assert_eq!(printed as u64 + suppressed, CLIENTS as u64, "each client is logged or counted:\n{log}");
    assert!((1..=bound).contains(&(printed as u64)), "{printed} lines:\n{log}");
    let (dropped, _) = lines_of(&log, "a client was dropped");
    assert!((1..=bound).contains(&(dropped as u64)), "{dropped} lines:\n{log}");
    // Four messages of clients, their counts, and what the daemon says of itself.
    assert!((log.lines().count() as u64) < 8 * bound + 20, "{log}");
}

/// Without free descriptors new clients wait. The log says so, and they are served when there are descriptors again.
#[test]
fn clients_wait_while_no_descriptor_is_free() {
    let dir = Dir::new("log-descriptors");
    let mut daemon = serving(&dir, &[]);
    let pid = daemon.id().to_string();
    let is_open = |n: &u32| Path::new(&format!("/proc/{pid}/fd/{n}")).exists();
    let free = (0..).find(|n| !is_open(n)).unwrap();
    let limit = |descriptors: u32| {
        dir.program("prlimit", &["--pid", &pid, &format!("--nofile={descriptors}:")]).exits(0);
    };
    limit(free);
    // More than one, because a descriptor below the limit may have been open only for a moment.
    let mut waiting: Vec<UnixStream> =
        (0..16).map(|_| UnixStream::connect(dir.path("a.img.nbd.sock")).unwrap()).collect();
    let line = daemon.until("new clients of an NBD server wait");
    assert!(line.contains("Too many open files") && line.contains("LimitNOFILE="), "{line}");
    waiting.push(UnixStream::connect(dir.path("a.img.vhost.sock")).unwrap());
    daemon.until("new clients of a vhost-user export wait");
    waiting.push(UnixStream::connect(dir.path("ctl.sock")).unwrap());
    daemon.until("new clients of mqblk-ctl wait");
    limit(1024);
    waiting[15].read_exact(&mut [0; 18]).unwrap();
    drop(waiting);
    nbd(&dir, "h.pread(512, 0)").exits(0);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Standard output that takes nothing is no reason not to serve.
#[test]
fn a_daemon_serves_though_its_plan_cannot_be_printed() {
    let dir = Dir::new("log-full");
    File::create(dir.path("a.img")).unwrap().set_len(8 << 20).unwrap();
    let args = ["serve", "a.img", "--control", "ctl.sock"];
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" >/dev/full", env!("CARGO_BIN_EXE_mqblk")]).args(args);
    let daemon = Dir::start_command(command.current_dir(dir.as_path()), &args, "serving on");
    assert!(daemon.seen().contains("the plan is not printed: standard output: No space left"), "{}", daemon.seen());
    nbd(&dir, "h.pread(512, 0)").exits(0);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Once, a VM whose memory is not shared connected again and again, and the log did not say why.
#[test]
fn a_guest_without_shared_memory_is_named() {
    let dir = Dir::new("log-memory");
    let mut daemon = serving(&dir, &[]);
    // As QEMU does before it finds no memory that it could share: SET_OWNER, and SET_FEATURES with VIRTIO_F_VERSION_1.
    let message = |request: u32, body: &[u8]| {
        let head = [request, 1, body.len() as u32];
        [&head.map(u32::to_le_bytes).concat(), body].concat()
    };
    let mut front = UnixStream::connect(dir.path("a.img.vhost.sock")).unwrap();
    front.write_all(&message(3, &[])).unwrap();
    front.write_all(&message(2, &(1u64 << 32).to_le_bytes())).unwrap();
    drop(front);
    let line = daemon.until("has left without sharing its guest's memory");
    assert!(line.contains("share=on"), "{line}");
    // One that only looks is not.
    let mut front = UnixStream::connect(dir.path("a.img.vhost.sock")).unwrap();
    front.write_all(&message(3, &[])).unwrap();
    drop(front);
    daemon.until("a client has left");
    daemon.until("a client has left");
    daemon.signal("TERM");
    let log = daemon.ends().exits(0).err;
    assert_eq!(log.matches("without sharing").count(), 1, "{log}");
}
