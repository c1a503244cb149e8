// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk top` on a daemon under load, and how `top` ends.

use crate::common;

use common::{Dir, KeepGoing, Running};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use vuclient::{VerifyOptions, verify};

#[test]
fn intervals_of_a_daemon_under_load() {
    let dir = Dir::new("top");
    File::create(dir.path("a.img")).unwrap().set_len(32 << 20).unwrap();
    let daemon = dir.start(&["serve", "a.img", "--control=ctl.sock", "--num-queues=2", "--iothreads=2"], "serving on");
    let socket = dir.path("a.img.vhost.sock");
    let go = KeepGoing::new();
    let keep_going = Some(go.0.clone());
    let options = VerifyOptions { queues: 2, size: 16 << 20, requests: 6000, keep_going, ..VerifyOptions::default() };
    let view = thread::scope(|scope| {
        let load = scope.spawn(|| verify(socket.to_str().unwrap(), &options).unwrap());
        let go = go;
        let mut top = dir.command(&["top", "--control=ctl.sock", "-d", "0.1", "--json"]);
        let mut top = Running::start(top.stdout(Stdio::piped()));
        let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
        // Reads until an interval in which both virtqueues had I/O and some of it was writes. `top` ends when its output is closed.
        let found = lines.find_map(|line| {
            let view: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let both_are = |list: &str, keys: &[&str]| {
                let is_busy = |one: &&Value| keys.iter().all(|key| one[*key].as_f64().unwrap() > 0.0);
                view[list].as_array().unwrap().iter().filter(is_busy).count() == 2
            };
            let is_busy = both_are("queues", &["requests_s", "p50_us"]) && both_are("iothreads", &["busy_percent"]);
            (is_busy && view["disks"][0]["writes_s"].as_f64().unwrap() > 0.0).then_some(view)
        });
        drop(lines);
        assert!(top.wait().unwrap().success(), "a closed output is no error");
        drop(go);
        load.join().unwrap();
        found.unwrap()
    });
    for q in view["queues"].as_array().unwrap() {
        let us = |key: &str| q[key].as_f64().unwrap();
        assert!(us("p50_us") <= us("p99_us") && us("p99_us") <= us("p99_9_us"), "{q}");
        assert_eq!(q["disk"], "a.img", "{q}");
    }
    let once = dir.mqblk(&["top", "--control=ctl.sock", "--once"]).exits(0);
    once.prints(&["DISK", "a.img", "IOTHREAD", "iothread1"]);
    assert!(!once.out.contains('\u{1b}'), "no terminal, no sequences");
    let two = dir.mqblk(&["top", "--control=ctl.sock", "-n2", "-d0.1"]).exits(0);
    assert_eq!(two.out.matches("\nDISK ").count(), 2, "{}", two.out);
    for bad in ["0", "x", "nan", "-1", "1e9"] {
        dir.mqblk(&["top", &format!("-d={bad}")]).exits(2).says(&["must be seconds in 0.1..=3600"]);
    }
    dir.mqblk(&["top", "--control=none.sock"]).exits(2).says(&["none.sock"]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn the_next_daemon_removes_the_socket_of_a_killed_one() {
    let dir = Dir::new("top");
    let run = dir.path("run");
    fs::create_dir(&run).unwrap();
    let mut sockets = Vec::new();
    for kill in [true, false] {
        let mut command = dir.command(&["serve", "ram:size=1m"]);
        command.env("MQBLK_RUNTIME_DIR", &run).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|l| l.unwrap().contains("serving on")));
        let found: Vec<_> = fs::read_dir(run.join("mqblk")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        sockets.extend(found);
        if kill {
            child.kill().unwrap();
        } else {
            let pid = child.id().to_string();
            assert!(std::process::Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        }
        child.wait().unwrap();
    }
    assert_ne!(sockets[0], sockets[1]);
    assert_eq!(fs::read_dir(run.join("mqblk")).unwrap().count(), 0);
}
