// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --pidfile`: the file is there while the daemon serves, and only then.

use crate::common;

use common::Dir;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

fn image(name: &str) -> Dir {
    let dir = Dir::new(name);
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    dir
}

#[test]
fn the_pidfile_is_there_while_the_daemon_serves() {
    let dir = image("pidfile");
    // Left behind by an earlier daemon.
    dir.file("a.pid", "1\n");
    let args = ["serve", "a.img", "--control", "ctl.sock", "--pidfile", "a.pid"];
    let daemon = dir.start(&args, "serving on 2 sockets");
    assert_eq!(fs::read_to_string(dir.path("a.pid")).unwrap(), format!("{}\n", daemon.id()));
    assert!(dir.list().iter().all(|name| !name.ends_with(".new")), "{:?}", dir.list());
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert_eq!(dir.list(), ["a.img"]);
    // The file of another daemon stays.
    let daemon = dir.start(&args, "serving on 2 sockets");
    fs::remove_file(dir.path("a.pid")).unwrap();
    dir.file("a.pid", "1\n");
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert_eq!(fs::read_to_string(dir.path("a.pid")).unwrap(), "1\n");
}

/// A script that reads the file may be root's, and signals the process that it names.
#[test]
fn only_its_owner_can_write_to_the_pidfile() {
    let dir = image("pidfile-mode");
    let args = ["serve", "a.img", "--control", "ctl.sock", "--pidfile", "a.pid"];
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_mqblk")]).args(args);
    shell.current_dir(dir.as_path()).stdin(Stdio::null());
    let daemon = Dir::start_command(&mut shell, &args, "serving on 2 sockets");
    assert_eq!(fs::metadata(dir.path("a.pid")).unwrap().mode() & 0o777, 0o644);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn a_pidfile_that_cannot_be_written_is_refused_first() {
    let dir = image("pidfile-refused");
    fs::create_dir(dir.path("directory")).unwrap();
    for (path, why) in [
        ("none/a.pid", "--pidfile=none/a.pid: No such file or directory"),
        ("directory", "--pidfile=directory: exists, and is not a regular file"),
        ("a.img/a.pid", "--pidfile=a.img/a.pid: Not a directory"),
        ("..", "--pidfile=..: is not the name of a file"),
    ] {
        dir.mqblk(&["serve", "a.img", "--control", "ctl.sock", "--pidfile", path]).exits(2).says(&[why]);
        assert_eq!(dir.list(), ["a.img", "directory"]);
    }
    // Nor is there one of a daemon that does not begin.
    let args = ["serve", "a.img", "--control", "none/ctl.sock", "--pidfile", "a.pid"];
    dir.mqblk(&args).exits(2).says(&["none"]);
    assert_eq!(dir.list(), ["a.img", "directory"]);
}
