// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon gives up: powers of programs, system calls, and its memory in core dumps. As the kernel reports it, and as
//! `mqblk ctl list` does.

use crate::certificates;
use crate::common;

use certificates::{Authority, NOW};
use common::{Dir, LONG, POLL, Started};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Instant;

const NONE: &str = "0000000000000000";

/// A directory that all users can use, with an image and certificates.
fn directory(test: &str) -> Dir {
    let dir = Dir::public(test);
    fs::set_permissions(dir.as_path(), Permissions::from_mode(0o777)).unwrap();
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(dir.path("a.img"), Permissions::from_mode(0o666)).unwrap();
    let pki = Authority::new("ca").server(dir.as_path(), "pki", NOW);
    for file in fs::read_dir(pki).unwrap() {
        fs::set_permissions(file.unwrap().path(), Permissions::from_mode(0o644)).unwrap();
    }
    dir
}

fn confinement(dir: &Dir) -> Value {
    dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json()["confinement"].clone()
}

/// Returns the values of a field of all threads.
fn threads(pid: u32, key: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    status.map(|s| s.lines().find_map(|l| l.strip_prefix(key)).expect(key).trim().to_owned()).collect()
}

#[track_caller]
fn all_threads(pid: u32, key: &str, value: &str) {
    let all = threads(pid, key);
    assert!(all.len() >= 5 && all.iter().all(|v| v == value), "{key} {all:?}");
}

fn ends(daemon: Started) {
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn no_program_gains_powers_and_after_user_none_has_any() {
    let dir = directory("confinement");
    let daemon = dir.start(&["serve", "a.img", "--control=ctl.sock"], "serving");
    all_threads(daemon.id(), "NoNewPrivs:", "1");
    let is = confinement(&dir);
    assert_eq!((&is["no_new_privs"], &is["dumpable"]), (&true.into(), &true.into()), "{is}");
    assert_eq!(is["bounding_set"].as_str().unwrap(), threads(daemon.id(), "CapBnd:")[0]);
    assert_ne!(is["bounding_set"], NONE, "root may still start programs");
    ends(daemon);
    let daemon = dir.start(&["serve", "a.img", "--control=ctl.sock", "--user=nobody"], "serving");
    for key in ["CapBnd:", "CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        all_threads(daemon.id(), key, NONE);
    }
    all_threads(daemon.id(), "NoNewPrivs:", "1");
    let is = confinement(&dir);
    for key in ["bounding_set", "capabilities", "inherited"] {
        assert_eq!(is[key], NONE, "{is}");
    }
    ends(daemon);
}

/// Returns the number of filters that this process has, as one in a container may. A daemon inherits them.
fn inherited_filters() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let count = status.lines().find_map(|l| l.strip_prefix("Seccomp_filters:")).expect("Linux 5.9");
    count.trim().parse().unwrap()
}

/// Returns the name of each thread, and its number of filters.
fn filters(pid: u32) -> Vec<(String, u32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let field = |s: &str, key: &str| s.lines().find_map(|l| l.strip_prefix(key)).expect(key).trim().to_owned();
    status.map(|s| (field(&s, "Name:"), field(&s, "Seccomp_filters:").parse().unwrap())).collect()
}

#[test]
fn system_calls_are_filtered_unless_switched_off() {
    let dir = directory("sandbox");
    for (sandbox, own) in [(&["--sandbox=on"][..], 1), (&["--sandbox=off"][..], 0), (&[][..], 1)] {
        let args = [&["serve", "a.img", "--control=ctl.sock", "--metrics=unix:m.sock"][..], sandbox].concat();
        let daemon = dir.start(&args, "serving");
        let inherited = inherited_filters();
        let has = |name: &str, count| filters(daemon.id()).contains(&(name.to_owned(), count));
        // Threads of clients have one more of their own, except for those of control clients, which open what is added. Listeners make it
        // soon after they were started. Names have up to 15 bytes.
        let strict = ["iothread0", "mqblk-vhost", "mqblk-nbd", "mqblk-http-acce"].map(|name| (name, 2));
        let expected: Vec<(&str, u32)> = [&strict[..], &["mqblk", "mqblk-ctl-accep"].map(|name| (name, 1))].concat();
        let end = Instant::now() + LONG;
        while !expected.iter().all(|&(name, count)| has(name, inherited + count * own)) {
            assert!(Instant::now() < end, "{sandbox:?} {:?}", filters(daemon.id()));
            std::thread::sleep(POLL);
        }
        let all = filters(daemon.id());
        assert!(all.iter().all(|(_, n)| *n >= inherited + own), "{sandbox:?} {all:?}");
        let is = confinement(&dir);
        let filtered = if inherited + own > 0 { "all" } else { "none" };
        assert_eq!(is["filtered_threads"], filtered, "{sandbox:?} {is}");
        // Otherwise it depends on the kernel.
        assert!(is["paths_denied"].is_boolean() && (own == 1 || is["paths_denied"] == false), "{sandbox:?} {is}");
        ends(daemon);
    }
}

/// A user other than root mounts by a program. A daemon that began without such an export cannot start it any more.
#[test]
fn a_filtered_daemon_starts_no_program_to_mount() {
    let dir = directory("sandbox-mount");
    fs::copy(env!("CARGO_BIN_EXE_mqblk"), dir.path("mqblk")).unwrap();
    let args = ["serve", "a.img", "--control=ctl.sock"];
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./mqblk"]).args(args);
    let daemon = Dir::start_command(command.current_dir(dir.as_path()).stdin(Stdio::null()), &args, "serving");
    let fuse = "[[export]]\ntype = \"fuse\"\ndisk = \"b\"\nmountpoint = \"mount\"\n";
    dir.file("mount", "").file("more.toml", &format!("[[disk]]\nname = \"b\"\ntarget = \"ram:size=1m\"\n{fuse}"));
    let done = dir.mqblk(&["ctl", "--control=ctl.sock", "add", "more.toml"]).exits(2);
    done.says(&["this process may no longer start programs: restart it with this export"]);
    ends(daemon);
}

/// Returns the owner of a daemon's files in /proc, and whether another process of its user may read its memory map.
fn of_proc(pid: u32) -> (u32, bool) {
    let maps = format!("/proc/{pid}/environ");
    let mut read = Command::new("setpriv");
    read.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat", &maps]);
    let can_read = read.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success();
    (fs::metadata(&maps).unwrap().uid(), can_read)
}

/// The files in /proc of a process that is not dumpable belong to root, and the kernel refuses to trace it.
#[test]
fn a_daemon_with_a_private_key_is_not_dumpable() {
    let dir = directory("dumpable");
    fs::copy(env!("CARGO_BIN_EXE_mqblk"), dir.path("mqblk")).unwrap();
    let tls = ["--tls-certificates", "pki"];
    for (more, is_dumpable) in [(&tls[..], false), (&[][..], true), (&[tls[0], tls[1], "--core-dumps"][..], true)] {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "./mqblk",
            "serve",
            "a.img",
            "--control=ctl.sock",
        ]);
        command.args(more).current_dir(dir.as_path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut daemon = common::Running::start(&mut command);
        let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("serving on")), "{more:?}");
        let owner = if is_dumpable { 65534 } else { 0 };
        assert_eq!(of_proc(daemon.id()), (owner, is_dumpable), "{more:?}");
        assert_eq!(confinement(&dir)["dumpable"], is_dumpable, "{more:?}");
        // It still finds its own sockets and images.
        dir.mqblk(&["ctl", "--control=ctl.sock", "reload"]).exits(0);
        dir.mqblk(&["ctl", "--control=ctl.sock", "shutdown"]).exits(0);
        assert!(daemon.wait().unwrap().success());
    }
}

#[test]
fn a_secret_that_is_added_later_ends_core_dumps() {
    let dir = directory("dumpable-later");
    dir.file("c.toml", "[[disk]]\ntarget = \"a.img\"\n[[export]]\ntype = \"vhost-user-blk\"\n");
    let daemon = dir.start(&["serve", "c.toml", "--control=ctl.sock"], "serving");
    assert_eq!(confinement(&dir)["dumpable"], true);
    dir.file(
        "more.toml",
        "[[disk]]\nname = \"b\"\ntarget = \"ram:size=1m\"\n\
         [[export]]\ntype = \"nbd\"\nsocket = \"b.sock\"\ntls = \"require\"\ntls_certificates = \"pki\"\n",
    );
    dir.mqblk(&["ctl", "--control=ctl.sock", "add", "more.toml"]).exits(0);
    assert_eq!(confinement(&dir)["dumpable"], false);
    ends(daemon);
}

#[test]
fn listeners_that_other_machines_reach_without_tls_are_named() {
    let dir = directory("exposed");
    let config = |listen: &str, tls: &str| {
        let nbd = format!("[[export]]\nname = \"e\"\ntype = \"nbd\"\nlisten = \"{listen}\"\n{tls}");
        format!("[[disk]]\ntarget = \"a.img\"\n{nbd}")
    };
    let tls = |word: &str| format!("tls = \"{word}\"\ntls_certificates = \"pki\"\n");
    let none = "export 'e': 0.0.0.0:10809 is not loopback, and a client needs no TLS";
    for (listen, tls, warning) in [
        ("0.0.0.0:10809", String::new(), none),
        ("0.0.0.0:10809", tls("on"), "a client may leave TLS out"),
        ("0.0.0.0:10809", tls("require"), ""),
        ("127.0.0.1:10809", String::new(), ""),
        ("[::1]:10809", String::new(), ""),
    ] {
        dir.file("c.toml", &config(listen, &tls));
        let done = dir.mqblk(&["serve", "c.toml", "--dry-run"]).exits(0);
        assert_eq!(done.err.contains("is not loopback"), !warning.is_empty(), "{listen} {tls}: {}", done.err);
        done.says(&[warning]);
    }
    for (at, is_warned) in [("0.0.0.0:9750", true), ("127.0.0.1:9750", false), ("unix:m.sock", false)] {
        let done = dir.mqblk(&["serve", "a.img", "--dry-run", "--metrics", at]).exits(0);
        assert_eq!(done.err.contains("the page has no TLS"), is_warned, "{at}: {}", done.err);
    }
    // Also of an export that is added later.
    dir.file("c.toml", "[[disk]]\ntarget = \"a.img\"\n[[export]]\ntype = \"vhost-user-blk\"\n");
    let daemon = dir.start(&["serve", "c.toml", "--control=ctl.sock"], "serving");
    let port = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    dir.file("more.toml", &config(&format!("0.0.0.0:{port}"), "").replace("a.img", "ram:size=1m"));
    let done = dir.mqblk(&["ctl", "--control=ctl.sock", "add", "more.toml"]).exits(0);
    done.prints(&["warning: export 'e': 0.0.0.0:", "is not loopback"]);
    ends(daemon);
}
