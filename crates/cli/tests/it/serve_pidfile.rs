// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --pidfile`: the file is there while the daemon serves, and only then.

use crate::common;

use common::Dir;
use std::fs::{self, File};

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

#[test]
fn a_pidfile_that_cannot_be_written_is_refused_first() {
    let dir = image("pidfile-refused");
    fs::create_dir(dir.path("directory")).unwrap();
    for (path, why) in [
        ("none/a.pid", "--pidfile=none/a.pid: No such file or directory"),
        ("directory", "--pidfile=directory: something else than a regular file is there"),
        ("a.img/a.pid", "--pidfile=a.img/a.pid: Not a directory"),
        ("..", "--pidfile=..: is no name of a file"),
    ] {
        dir.mqblk(&["serve", "a.img", "--control", "ctl.sock", "--pidfile", path]).exits(2).says(&[why]);
        assert_eq!(dir.list(), ["a.img", "directory"]);
    }
    // Nor is there one of a daemon that does not begin.
    let args = ["serve", "a.img", "--control", "none/ctl.sock", "--pidfile", "a.pid"];
    dir.mqblk(&args).exits(2).says(&["none"]);
    assert_eq!(dir.list(), ["a.img", "directory"]);
}
