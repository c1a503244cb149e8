// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Under a service manager: the notifications that it gets, the sockets that it passes, and the units of `contrib/systemd`.

use crate::common;

use common::{Dir, POLL, Running, until};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn image(dir: &Dir) {
    File::create(dir.path("a.img")).unwrap().set_len(8 << 20).unwrap();
}

/// Returns the next notification that contains `sign`.
#[track_caller]
fn told(manager: &UnixDatagram, sign: &str) -> String {
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    loop {
        let mut message = [0; 4096];
        let n = manager.recv(&mut message).unwrap_or_else(|e| panic!("nothing said '{sign}': {e}"));
        let text = String::from_utf8(message[..n].to_vec()).unwrap();
        if text.contains(sign) {
            return text;
        }
    }
}

#[test]
fn the_manager_is_told_of_ready_reload_life_and_end() {
    let dir = Dir::new("systemd");
    image(&dir);
    let name = format!("mqblk-test-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut command = dir.command(&["serve", "a.img", "--control=ctl.sock"]);
    command.env("NOTIFY_SOCKET", format!("@{name}")).env("WATCHDOG_USEC", "20000");
    let mut child = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let ready = "READY=1\nSTATUS=serving on 2 sockets and 0 mounts: 1 disk, 2 exports\n";
    assert_eq!(told(&manager, "READY=1"), ready);
    for _ in 0..3 {
        assert_eq!(told(&manager, "WATCHDOG"), "WATCHDOG=1\n");
    }
    kill("HUP", child.id());
    let reloading = told(&manager, "RELOADING=1\n");
    let usec = reloading.lines().find_map(|l| l.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(usec.parse::<u64>().unwrap() > 0);
    assert_eq!(told(&manager, "READY=1"), ready);
    kill("TERM", child.id());
    told(&manager, "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

/// Once, each reload reported the status of the start again, and changes by `mqblk ctl` reported nothing.
#[test]
fn the_manager_is_told_what_is_served_after_each_change() {
    let dir = Dir::new("systemd");
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    let export = |n: u32| format!("[[export]]\ntype = \"vhost-user-blk\"\nname = \"e{n}\"\nsocket = \"e{n}.sock\"\n");
    let config = ["[[disk]]\nname = \"d\"\ntarget = \"null\"\n".to_owned(), export(0), export(1)];
    dir.file("serve.toml", &config[..2].concat());
    let mut command = dir.command(&["serve", "serve.toml", "--control=ctl.sock"]);
    command.env("NOTIFY_SOCKET", dir.path("notify"));
    let mut child = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let one = "STATUS=serving on 1 socket and 0 mounts: 1 disk, 1 export\n";
    assert_eq!(told(&manager, "READY=1"), format!("READY=1\n{one}"));
    dir.file("serve.toml", &config.concat());
    kill("HUP", child.id());
    let two = "STATUS=serving on 2 sockets and 0 mounts: 1 disk, 2 exports\n";
    assert_eq!(told(&manager, "READY=1"), format!("READY=1\n{two}"));
    let ctl = |words: &[&str]| dir.mqblk(&[&["ctl", "--control=ctl.sock"], words].concat()).exits(0);
    ctl(&["remove", "e1"]);
    assert_eq!(told(&manager, "STATUS"), one);
    ctl(&["add", "ram:size=1m"]);
    assert_eq!(told(&manager, "STATUS"), "STATUS=serving on 3 sockets and 0 mounts: 2 disks, 3 exports\n");
    // Nothing in the status has changed.
    ctl(&["drain", "d"]);
    ctl(&["resume", "d"]);
    ctl(&["remove", "d"]);
    assert_eq!(told(&manager, "STATUS"), "STATUS=serving on 2 sockets and 0 mounts: 1 disk, 2 exports\n");
    kill("TERM", child.id());
    assert!(child.wait().unwrap().success());
}

/// Once, a notification was lost if the manager's queue was full. The manager waited for it until it killed the daemon.
#[test]
fn a_manager_that_is_busy_is_told_when_it_listens() {
    let dir = Dir::new("systemd");
    image(&dir);
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"of others", dir.path("notify")).is_ok() {}
    let mut command = dir.command(&["serve", "a.img", "--control=ctl.sock"]);
    command.env("NOTIFY_SOCKET", dir.path("notify"));
    let mut child = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // The daemon reports that next, and waits for space in the queue.
    assert!(lines.any(|line| line.unwrap().contains("serving on")), "it ended");
    told(&manager, "READY=1");
    kill("TERM", child.id());
    told(&manager, "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

/// Starts mqblk through systemd's socket activation program, which runs it when the first client connects.
fn activated(dir: &Dir, sockets: &[(&str, &str)], args: &[&str]) -> Running {
    let mut command = Command::new("systemd-socket-activate");
    for (at, _) in sockets {
        command.args(["-l", at]);
    }
    let names: Vec<_> = sockets.iter().map(|(_, name)| *name).collect();
    command.arg(format!("--fdname={}", names.join(":")));
    command.arg(format!("--setenv=NOTIFY_SOCKET={}", dir.path("notify").display()));
    command.arg(env!("CARGO_BIN_EXE_mqblk")).args(args).current_dir(dir.as_path());
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

#[test]
fn clients_are_served_on_sockets_that_systemd_has_made() {
    let dir = Dir::new("systemd");
    image(&dir);
    dir.file(
        "serve.toml",
        "[[disk]]\nname = \"a\"\ntarget = \"a.img\"\n\
         [[export]]\nname = \"a.v\"\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\n\
         [[export]]\nname = \"a.n\"\ntype = \"nbd\"\nsocket = \"elsewhere.sock\"\nexport_name = \"a\"\n\
         [[export]]\nname = \"a.m\"\ntype = \"nbd\"\nsocket = \"elsewhere.sock\"\nexport_name = \"b\"\n",
    );
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    let (v, ctl) = (dir.path("v.sock"), dir.path("ctl.sock"));
    let paths = [v.to_str().unwrap(), ctl.to_str().unwrap()];
    // Another process may take the free port before this one listens.
    let begun = (0..10).find_map(|_| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let tcp = free.to_string();
        // Sockets are matched by the export's name, by the path, and for the control socket by its own name.
        let sockets = [(tcp.as_str(), "a.n"), (paths[0], "unknown"), (paths[1], "control")];
        let mut child = activated(&dir, &sockets, &["serve", "serve.toml"]);
        // The program listens before the daemon runs. A client that connects earlier is served once the daemon runs.
        while TcpStream::connect(free).is_err() || UnixStream::connect(&ctl).is_err() {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(POLL);
        }
        Some((child, tcp))
    });
    let (mut child, tcp) = begun.expect("a port is free");
    told(&manager, "READY=1");
    for export in ["a", "b"] {
        let size = dir.program("nbdinfo", &["--size", &format!("nbd://{tcp}/{export}")]).exits(0).out;
        assert_eq!(size.trim(), "8388608");
    }
    let options = vuclient::VerifyOptions { size: 4 << 20, requests: 200, ..vuclient::VerifyOptions::default() };
    vuclient::verify(paths[0], &options).unwrap();
    // An export that is removed and added again uses the same socket.
    dir.mqblk(&["ctl", "--control", paths[1], "remove", "a.v"]).exits(0);
    dir.mqblk(&["ctl", "--control", paths[1], "reload"]).exits(0);
    vuclient::verify(paths[0], &options).unwrap();
    kill("TERM", child.id());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{err}");
    assert!(v.exists() && ctl.exists(), "what systemd has made is not ours to remove");
    assert!(!err.contains("warning"), "{err}");
}

/// As nbdsh and `systemd-socket-activate -l SOCKET` do it. The client, which waits at the socket, used to hang.
#[test]
fn a_socket_without_a_name_is_used_by_nbd() {
    let dir = Dir::new("systemd");
    image(&dir);
    let script = "import nbd, sys\nh = nbd.NBD()\nh.connect_systemd_socket_activation(sys.argv[1:])\nprint(h.get_size())\nh.shutdown()";
    let args = ["-c", script, env!("CARGO_BIN_EXE_mqblk"), "serve", "a.img", "--control=ctl.sock"];
    assert_eq!(dir.program("/usr/bin/python3", &args).exits(0).out.lines().last(), Some("8388608"));
    // No export can use it: better an end than a client that waits.
    dir.file("v.toml", "[[disk]]\ntarget = \"a.img\"\n[[export]]\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\n");
    let path = dir.path("u.sock");
    let mut child = activated(&dir, &[(path.to_str().unwrap(), "unknown")], &["serve", "v.toml", "--control=ctl.sock"]);
    until("the socket is there", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        UnixStream::connect(&path).is_ok()
    });
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(!child.wait().unwrap().success() && err.contains("handed over without a name"), "{err}");
}

#[test]
fn a_socket_of_no_use_is_told() {
    let dir = Dir::new("systemd");
    image(&dir);
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    let path = dir.path("x.sock");
    let mut child = activated(&dir, &[(path.to_str().unwrap(), "x")], &["serve", "a.img", "--control=ctl.sock"]);
    until("the socket is there", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        UnixStream::connect(&path).is_ok()
    });
    told(&manager, "READY=1");
    kill("TERM", child.id());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{err}");
    assert!(
        err.contains("warning: socket 'x' at ") && err.contains("give an export this name or this address"),
        "{err}"
    );
}

#[test]
fn the_units_are_as_systemd_wants_them() {
    let dir = Dir::new("systemd");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let unit = |name: &str, from: &str| {
        // systemd-analyze looks for the program, which need not be installed.
        let text = fs::read_to_string(units.join(from)).unwrap().replace("/usr/bin/mqblk", env!("CARGO_BIN_EXE_mqblk"));
        dir.file(name, &text);
    };
    unit("mqblk-serve@vm.service", "mqblk-serve@.service");
    unit("mqblk-serve@vm.socket", "mqblk-serve@.socket");
    let done =
        dir.program("systemd-analyze", &["verify", "--man=no", "./mqblk-serve@vm.service", "./mqblk-serve@vm.socket"]);
    let ours: Vec<_> = done.err.lines().filter(|l| l.contains("mqblk")).collect();
    assert_eq!(ours, [""; 0], "{}", done.err);
    // It reports errors of wrong units.
    let bad =
        fs::read_to_string(dir.path("mqblk-serve@vm.service")).unwrap().replace("ProtectClock=yes", "ProtectClok=yes");
    dir.file("mqblk-serve@vm.service", &bad);
    let done = dir.program("systemd-analyze", &["verify", "--man=no", "./mqblk-serve@vm.service"]);
    assert!(done.err.contains("ProtectClok"), "{}", done.err);
}
