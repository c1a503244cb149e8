// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files where io_uring is not available, as in containers: threads serve them, every command says so, and no acknowledged write is lost by
//! a kill -9.

use crate::common;
use crate::serve_geometry::survive_kills;

use common::{Dir, Done, Started, until};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

const WRAPPER: &str = "without_io_uring.py";
const WARNING: &str =
    "io_uring is not available (Operation not permitted (os error 1)): file I/O uses threads (aio=threads)";
const REMEDY: &str = "set kernel.io_uring_disabled=0";

/// A directory with two images.
fn directory(test: &str) -> Dir {
    let dir = Dir::new(test);
    dir.file(WRAPPER, include_str!("serve_aio/without_io_uring.py"));
    dir.program("truncate", &["-s", "8m", "a.img", "b.img"]).exits(0);
    dir
}

/// A configuration of two disks with an NBD export each.
fn config(more: &str) -> String {
    let disk = |name: &str| {
        format!(
            "[[disk]]\nname = \"{name}\"\ntarget = \"{name}.img\"\n{more}\n\
             [[export]]\ndisk = \"{name}\"\ntype = \"nbd\"\nsocket = \"{name}.sock\"\nexport_name = \"{name}\"\n"
        )
    };
    disk("a") + &disk("b")
}

/// Runs mqblk without io_uring to its end.
fn refused(dir: &Dir, args: &[&str]) -> Done {
    dir.program("/usr/bin/python3", &[&[WRAPPER, env!("CARGO_BIN_EXE_mqblk")], args].concat())
}

/// Serves `c.toml` without io_uring.
fn serve(dir: &Dir) -> Started {
    let args = ["serve", "c.toml", "--control", "ctl.sock"];
    let mut command = Command::new("/usr/bin/python3");
    command.args([WRAPPER, env!("CARGO_BIN_EXE_mqblk")]).args(args).current_dir(dir.as_path()).stdin(Stdio::null());
    Dir::start_command(&mut command, &args, "serving on")
}

fn list(dir: &Dir, more: &[&str]) -> Done {
    dir.mqblk(&[&["ctl", "--control", "ctl.sock", "list"], more].concat()).exits(0)
}

fn aio(list: &Value) -> [&Value; 2] {
    [0, 1].map(|disk| &list["disks"][disk]["aio"])
}

/// Returns the number of threads that do I/O.
fn threads(daemon: &Started) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "mqblk-aio").count()
}

#[test]
fn without_io_uring_threads_serve_and_all_commands_say_so() {
    let dir = directory("aio");
    dir.file("c.toml", &config(""));
    let checked = refused(&dir, &["serve", "c.toml", "--dry-run"]).exits(0);
    checked.says(&[WARNING, REMEDY]);
    checked.prints(&["disk a: a.img, past the page cache, aio=threads, write back"]);
    assert_eq!(aio(&refused(&dir, &["serve", "c.toml", "--dry-run", "--json"]).exits(0).json()), ["threads"; 2]);
    let shown = refused(&dir, &["inspect", "--target", "a.img"]).exits(0);
    shown.prints(&[&format!("blocks of 512 bytes\naio=threads: {WARNING}"), REMEDY]);
    assert_eq!(refused(&dir, &["inspect", "--target", "a.img", "--json"]).exits(0).json()["aio"], "threads");

    let daemon = serve(&dir);
    assert_eq!(list(&dir, &[]).out.matches(", aio=threads").count(), 2);
    assert_eq!(aio(&list(&dir, &["--json"]).json()), ["threads"; 2]);
    daemon.signal("TERM");
    let said = daemon.ends().exits(0).err;
    assert_eq!(said.matches(WARNING).count(), 1, "once for both disks: {said}");

    dir.file("c.toml", &config("aio = \"io_uring\""));
    let why = "c.toml:4: aio=io_uring: not available (Operation not permitted (os error 1)); leave aio out, or set";
    refused(&dir, &["serve", "c.toml", "--dry-run"]).exits(2).says(&[why]);
    refused(&dir, &["serve", "c.toml"]).exits(2).says(&[why]);

    // Jobs run, too.
    let job = "[j]\nfilename=a.img\nioengine=io_uring\nrw=randwrite\nbs=4k\nsize=2m\niodepth=8\nverify=crc32c\n";
    dir.file("j.fio", job);
    refused(&dir, &["run", "j.fio"]).exits(0).says(&[WARNING]);
}

#[test]
fn threads_can_be_chosen() {
    let dir = directory("aio-chosen");
    dir.file("c.toml", &config("aio = \"threads\""));
    let daemon = dir.start(&["serve", "c.toml", "--control", "ctl.sock"], "serving on");
    assert_eq!(aio(&list(&dir, &["--json"]).json()), ["threads"; 2]);
    // A thread names itself, which may be after the daemon is ready.
    until("each disk has a thread", || threads(&daemon) >= 2);
    for disk in ["a", "b"] {
        dir.mqblk(&["ctl", "--control", "ctl.sock", "remove", "--force", disk]).exits(0);
    }
    until("the threads of a disk end with it", || threads(&daemon) == 0);
    daemon.signal("TERM");
    let said = daemon.ends().exits(0).err;
    assert!(!said.contains("io_uring"), "it is what was asked for: {said}");
    dir.file("c.toml", &config("aio = \"native\""));
    dir.mqblk(&["serve", "c.toml", "--dry-run"])
        .exits(2)
        .says(&["c.toml:4: aio=\"native\": must be one of \"io_uring\", \"threads\""]);
}

/// Two clients write neighbouring sectors, and the daemon is killed under them. A sector is never torn or older than acknowledged.
#[test]
fn writes_by_threads_survive_a_killed_daemon() {
    let dir = directory("aio-kill");
    let uri = format!("nbd+unix:///a?socket={}", dir.path("a.sock").display());
    for (page_cache, more) in [("without", "direct = true"), ("with", "direct = false")] {
        println!("{page_cache} the page cache");
        dir.program("truncate", &["-s", "0", "a.img"]).exits(0);
        dir.program("truncate", &["-s", "8m", "a.img"]).exits(0);
        dir.file("c.toml", &config(more));
        survive_kills(&dir, &uri, 3, &|| serve(&dir));
    }
}
