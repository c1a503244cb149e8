// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --user`: a daemon that starts as root becomes user `nobody` in every thread and continues to serve. Needs root.

use crate::common;

use common::{Dir, KeepGoing};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vuclient::{VerifyOptions, verify};

const CONFIG: &str = "[[disk]]\nname = \"a\"\ntarget = \"a.img\"\n\
     [[export]]\nname = \"a.v\"\ntype = \"vhost-user-blk\"\nsocket = \"run/a.sock\"\nnum_queues = 2\n\
     [[export]]\nname = \"a.n\"\ntype = \"nbd\"\nsocket = \"run/nbd.sock\"\n";

/// Returns the name and the value of `key` from the status of each thread.
fn threads(pid: u32, key: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).unwrap().trim().to_owned();
        all.push((field("Name:"), field(key)));
    }
    // The kernel's io_uring workers have the credentials of the submitter.
    all.retain(|(name, _)| !name.starts_with("iou-"));
    all
}

/// Once, a thread that had just ended the handshake of an early client counted as one that was still root, and the daemon ended.
#[test]
fn clients_that_come_during_the_start_do_not_end_the_daemon() {
    let dir = Dir::public("user");
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    fs::create_dir(dir.path("run")).unwrap();
    std::os::unix::fs::chown(dir.path("run"), Some(65534), Some(65534)).unwrap();
    dir.file("serve.toml", CONFIG);
    let (args, socket) =
        (["serve", "serve.toml", "--control", "run/ctl.sock", "--user", "nobody"], dir.path("run/nbd.sock"));
    for _ in 0..10 {
        std::thread::scope(|s| {
            let going = KeepGoing::new();
            for _ in 0..4 {
                let (going, socket) = (Arc::clone(&going.0), &socket);
                s.spawn(move || {
                    while going.load(Ordering::Relaxed) {
                        let _ = UnixStream::connect(socket);
                    }
                });
            }
            let daemon = dir.start(&args, "serving on 2 sockets");
            drop(going);
            daemon.signal("TERM");
            daemon.ends().exits(0);
        });
    }
}

#[test]
fn no_thread_is_root_any_more_and_all_is_served_and_removed() {
    let dir = Dir::public("user");
    File::create(dir.path("a.img")).unwrap().set_len(32 << 20).unwrap();
    // Only root can open the image.
    fs::set_permissions(dir.path("a.img"), fs::Permissions::from_mode(0o600)).unwrap();
    File::create(dir.path("b.img")).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(dir.path("b.img"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(dir.path("run")).unwrap();
    std::os::unix::fs::chown(dir.path("run"), Some(65534), Some(65534)).unwrap();
    dir.file("serve.toml", CONFIG);
    let args = ["serve", "serve.toml", "--control", "run/ctl.sock", "--user", "nobody", "--pidfile", "run/a.pid"];
    let daemon = dir.start(&args, "serving on 2 sockets");
    assert_eq!(fs::read_to_string(dir.path("run/a.pid")).unwrap(), format!("{}\n", daemon.id()));
    let options = VerifyOptions { queues: 2, size: 16 << 20, requests: 2000, ..VerifyOptions::default() };
    let socket = dir.path("run/a.sock");
    let report = verify(socket.to_str().unwrap(), &options).unwrap();
    assert!(report.writes > 100, "{report:?}");
    let uri = format!("nbd+unix:///?socket={}", dir.path("run/nbd.sock").display());
    dir.program("qemu-io", &["-f", "raw", "-c", "write -P 5 1M 1M", "-c", "read -P 5 1M 1M", &uri]).exits(0);
    let expect = |key: &str, value: &str| {
        let all = threads(daemon.id(), key);
        assert!(all.len() >= 6, "{all:?}");
        assert!(all.iter().all(|(_, v)| v == value), "{key} {all:?}");
    };
    expect("Uid:", "65534\t65534\t65534\t65534");
    expect("Gid:", "65534\t65534\t65534\t65534");
    expect("Groups:", "65534");
    expect("CapPrm:", "0000000000000000");
    expect("CapEff:", "0000000000000000");
    expect("NoNewPrivs:", "1");
    for name in ["run/a.sock", "run/nbd.sock", "run/ctl.sock"] {
        assert_eq!(fs::metadata(dir.path(name)).unwrap().uid(), 65534, "{name}");
    }
    // Open files stay open. Opening another one is rejected with the reason.
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "run/ctl.sock"], args].concat());
    ctl(&["set", "a", "scheduler=kyber"]).exits(0);
    ctl(&["resize", "a", "48m"]).exits(0);
    let refused = ctl(&["add", "b.img"]).exits(2);
    refused.says(&["Permission denied", "since --user the daemon runs as 'nobody', which needs this permission"]);
    ctl(&["add", "ram:size=4m"]).exits(2).says(&["Permission denied"]);
    verify(socket.to_str().unwrap(), &options).unwrap();
    daemon.signal("TERM");
    let done = daemon.ends().exits(0);
    done.says(&["dropped root privileges"]);
    assert!(!done.err.contains("warning"), "{}", done.err);
    assert_eq!(fs::read_dir(dir.path("run")).unwrap().count(), 0, "no socket and no file with the process id is left");
}

#[test]
fn sockets_that_cannot_be_removed_are_reported_and_replaced() {
    let dir = Dir::public("user");
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    for _ in 0..2 {
        let daemon = dir.start(&["serve", "a.img", "--user=1234:5678"], "serving on 2 sockets");
        daemon.signal("TERM");
        let done = daemon.ends().exits(0);
        done.says(&["cannot remove this socket at shutdown: give that user write access", "cannot remove the socket"]);
        UnixStream::connect(dir.path("a.img.nbd.sock")).unwrap_err();
    }
    let control = Path::new("/run/mqblk-uid-1234");
    assert_eq!(fs::read_dir(control).unwrap().count(), 0, "but its control socket is in a directory of its own");
    fs::remove_dir(control).unwrap();
}

#[test]
fn an_impossible_user_is_rejected_before_any_change() {
    let dir = Dir::public("user");
    fs::set_permissions(dir.as_path(), fs::Permissions::from_mode(0o777)).unwrap();
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    dir.mqblk(&["serve", "a.img", "--user=no-such-user"]).exits(2).says(&["there is no user 'no-such-user'"]);
    dir.mqblk(&["serve", "a.img", "--user=root"]).exits(2).says(&["is root"]);
    dir.as_user_nobody(&["serve", "a.img", "--user=daemon"]).exits(2).says(&["only root can become another user"]);
    assert_eq!(dir.list(), ["a.img"]);
}
