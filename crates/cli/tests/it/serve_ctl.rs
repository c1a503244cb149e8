// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon that is changed while it serves, by `mqblk ctl` and SIGHUP. Rejected commands change nothing.

use crate::common;

use common::{Daemon, Dir, Done, KeepGoing, LONG, NbdClient, until_reported};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;
use vuclient::{BenchOptions, VerifyOptions, bench, verify};

const DISK_A: &str = "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n\
     [[disk]]\nname = \"a\"\ntarget = \"a.img\"\n\
     [[export]]\nname = \"a.v\"\ndisk = \"a\"\ntype = \"vhost-user-blk\"\nsocket = \"a.sock\"\nnum_queues = 2\n";
const NBD_OF_A: &str =
    "[[export]]\nname = \"a.n\"\ndisk = \"a\"\ntype = \"nbd\"\nsocket = \"nbd.sock\"\nexport_name = \"a\"\n";
const DISK_B: &str = "[[disk]]\nname = \"b\"\ntarget = \"ram:size=16m\"\n\
     [[export]]\nname = \"b.n\"\ndisk = \"b\"\ntype = \"nbd\"\nsocket = \"nbd.sock\"\nexport_name = \"b\"\n";

/// Starts a daemon beside an image, `a.img`.
fn start(test: &str, config: &str) -> Daemon {
    let dir = Dir::new(test);
    File::create(dir.path("a.img")).unwrap().set_len(32 << 20).unwrap();
    dir.file("serve.toml", config);
    Daemon::start(dir, &[])
}

impl Daemon {
    fn nbdinfo(&self, export: &str) -> Done {
        let uri = format!("nbd+unix:///{export}?socket={}", self.dir.path("nbd.sock").display());
        self.dir.program("nbdinfo", &["--size", &uri])
    }

    /// Runs a verifying load on `a` while `meanwhile` runs.
    fn under_load<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        let socket = self.dir.path("a.sock");
        let go = KeepGoing::new();
        let keep_going = Some(go.0.clone());
        let options = VerifyOptions {
            queues: 2,
            size: 16 << 20,
            requests: 4000,
            keep_going,
            // A daemon on a busy machine takes longer than the default allows.
            patience: LONG,
            ..VerifyOptions::default()
        };
        thread::scope(|scope| {
            let (dir, socket) = (&self.dir, socket.to_str().unwrap());
            let load = scope.spawn(|| {
                let stats = || dir.mqblk(&["ctl", "--control", "ctl.sock", "stats", "--json"]).out;
                // Twice: to ask wakes the IOThreads, so a request that a sleeping one forgot has ended in the second answer.
                verify(socket, &options)
                    .unwrap_or_else(|e| panic!("{e}; the daemon's counters:\n{}{}", stats(), stats()))
            });
            let go = go;
            let result = meanwhile();
            drop(go);
            let report = load.join().unwrap();
            assert!(report.writes > 100, "{report:?}");
            result
        })
    }
}

#[test]
fn disks_and_exports_come_and_go_under_the_load_of_another() {
    let d = start("ctl", DISK_A);
    d.under_load(|| {
        d.dir.file("more.toml", &[NBD_OF_A, DISK_B].concat());
        let said = d.done(&["add", "more.toml"]);
        assert_eq!(said, "opened disk 'b'\nbegan export 'a.n'\nbegan export 'b.n'\n");
        assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "33554432");
        assert_eq!(d.nbdinfo("b").exits(0).out.trim(), "16777216");
        assert_eq!(d.done(&["remove", "b"]), "ended export 'b.n'\nclosed disk 'b'\n");
        assert_ne!(d.nbdinfo("b").status, 0);
        assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "33554432", "the server stays for the other");
        d.refused(&["remove", "a"], "export 'a.v' has clients");
        d.refused(&["remove", "c"], "there is no export 'c'");
        d.refused(&["add", "more.toml"], "another export has this name");
        d.dir.file("bad.toml", &DISK_B.replace("16m", "16q"));
        d.refused(&["add", "bad.toml"], "size=16q");
        d.refused(&["add", "a.img"], "a.img");
    });
    d.done(&["add", "ram:size=8m"]);
    let list = d.json("list");
    assert_eq!(list["disks"].as_array().unwrap().len(), 2, "{list:#}");
    assert_eq!(list["exports"].as_array().unwrap().len(), 4, "{list:#}");
    d.done(&["remove", "--force", list["disks"][1]["name"].as_str().unwrap()]);
    d.done(&["remove", "a"]);
    assert_eq!(d.json("list")["exports"], json!([]), "a daemon may have nothing to serve for a while");
    d.done(&["reload"]);
    d.under_load(|| ());
    d.ends();
}

#[test]
fn a_reload_does_what_differs_and_nothing_else() {
    let d = start("ctl", &[DISK_A, NBD_OF_A].concat());
    let uri = format!("nbd+unix:///a?socket={}", d.dir.path("nbd.sock").display());
    d.under_load(|| {
        assert_eq!(d.done(&["reload"]), "nothing has changed\n");
        let threads = DISK_A.replace("[[disk]]", "[[iothread]]\nname = \"io2\"\n[[disk]]");
        d.dir.file("serve.toml", &[&threads, NBD_OF_A, DISK_B].concat());
        let said = d.done(&["reload"]);
        assert_eq!(said, "started IOThread 'io2'\nopened disk 'b'\nbegan export 'b.n'\n");
        d.nbdinfo("b").exits(0);
        d.dir.file("serve.toml", &[DISK_A, "scheduler = 5\n"].concat());
        d.refused(&["reload"], "serve.toml:14: scheduler: is no key");
        let tuned =
            DISK_A.replace("target = \"a.img\"", "target = \"a.img\"\nqueue = { nomerges = 2, scheduler = \"kyber\" }");
        d.dir.file("serve.toml", &[&tuned, NBD_OF_A].concat());
        let said = d.done(&["reload"]);
        for part in
            ["ended export 'b.n'\n", "closed disk 'b'\n", "changed settings of disk 'a'", "stopped IOThread 'io2'"]
        {
            assert!(said.contains(part), "'{part}' is missing in {said}");
        }
        assert_eq!(d.json("list")["disks"][0]["scheduler"], "kyber");
        d.dir.file("serve.toml", &[DISK_A, NBD_OF_A].concat());
        assert!(d.done(&["reload"]).starts_with("changed settings of disk 'a'; new I/O was held for "));
        assert_eq!(d.json("list")["disks"][0]["scheduler"], "none");
    });
    // A client of a removed export is disconnected after its requests are answered.
    let client = NbdClient::connect(&uri);
    // A client may be connected before the daemon has counted it.
    until_reported("the client is counted", || d.json("list")["exports"][1]["connected"] == 1);
    d.dir.file("serve.toml", DISK_A);
    d.started.signal("HUP");
    until_reported("the export is removed", || d.json("list")["exports"].as_array().unwrap().len() == 1);
    assert!(!client.finds_itself_served());
    d.ends();
}

#[test]
fn queues_move_settings_change_and_sizes_grow_under_load() {
    let d = start("ctl", &[DISK_A, NBD_OF_A].concat());
    let on = |list: &Value| list["exports"][0]["iothreads"].clone();
    d.under_load(|| {
        d.done(&["move", "a.v", "1", "io0"]);
        assert_eq!(on(&d.json("list")), json!(["io0", "io0"]));
        d.done(&["map", "a.v", "io1:0", "io0:1"]);
        assert_eq!(on(&d.json("list")), json!(["io1", "io0"]));
        let stats = d.json("stats");
        let served = |t: usize| {
            stats["iothreads"][t]["sources"].as_array().unwrap().iter().map(|s| s["index"].clone()).collect::<Value>()
        };
        assert_eq!((served(0), served(1)), (json!([1]), json!([0])), "{stats:#}");
        d.refused(&["move", "a.v", "2", "io0"], "it has 0..=1");
        d.refused(&["move", "a.v", "0", "io7"], "there is no IOThread 'io7'");
        d.refused(&["map", "a.v", "io0:0", "io1"], "has no list of virtqueues");
        d.done(&["map", "a.v", "io1"]);
        d.done(&["map", "a.n", "io1"]);
        d.done(&["set", "a", "scheduler=mq-deadline", "nr_requests=32"]);
        d.refused(&["set", "a", "nr_requests=x"], "nr_requests=x");
        d.refused(&["set", "b", "nr_requests=32"], "there is no disk 'b'");
        d.done(&["resize", "a", "48m"]);
        d.refused(&["resize", "a", "32m"], "would be lost");
        d.refused(&["resize", "a", "50331649"], "a multiple of 512, the largest logical_block_size of");
        let took = d.done(&["drain"]);
        assert!(took.starts_with("disk 'a' is drained; that took "), "{took}");
        let (before, drained) = (d.json("stats"), d.json("list")["disks"][0]["drained"].clone());
        assert_eq!((drained, &before["disks"][0]["in_flight"]), (json!(true), &json!(before["disks"][0]["in_flight"])));
        assert_eq!(d.json("stats")["disks"][0]["ops"], before["disks"][0]["ops"], "nothing ends while it is drained");
        d.refused(&["resize", "a", "64m"], "is drained: resume it first");
        d.refused(&["move", "a.v", "0", "io0"], "is drained: resume it first");
        d.refused(&["remove", "--force", "a.n"], "is drained: resume it first");
        d.done(&["resume", "a"]);
    });
    assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "50331648");
    assert_eq!(fs::metadata(d.dir.path("a.img")).unwrap().len(), 48 << 20);
    d.done(&["resize", "a", "32m", "--force"]);
    File::options().write(true).open(d.dir.path("a.img")).unwrap().set_len(40 << 20).unwrap();
    d.done(&["resize", "a"]);
    assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "41943040", "as its image is now");
    // A truncated image is not adopted by mistake.
    File::options().write(true).open(d.dir.path("a.img")).unwrap().set_len(24 << 20).unwrap();
    d.refused(&["resize", "a"], "size=25165824: the disk has 41943040 bytes; data beyond the new size would be lost");
    assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "41943040");
    // Nor is one truncated that has grown meanwhile.
    File::options().write(true).open(d.dir.path("a.img")).unwrap().set_len(64 << 20).unwrap();
    d.refused(&["resize", "a", "48m"], "size=50331648: the disk has 67108864 bytes; data beyond");
    File::options().write(true).open(d.dir.path("a.img")).unwrap().set_len(24 << 20).unwrap();
    d.done(&["resize", "a", "--force"]);
    assert_eq!(d.nbdinfo("a").exits(0).out.trim(), "25165824");
    let stats = d.json("stats");
    assert!(stats["disks"][0]["ops"]["write"]["ios"].as_u64().unwrap() > 100, "{stats:#}");
    d.ends();
}

#[test]
fn bad_requests_to_the_socket_are_answered_or_dropped() {
    let d = start("ctl", DISK_A);
    let ask = |lines: &[u8]| {
        let mut client = UnixStream::connect(d.dir.path("ctl.sock")).unwrap();
        client.write_all(lines).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let answers = BufReader::new(client).lines().map(|l| serde_json::from_str(&l.unwrap()).unwrap());
        answers.collect::<Vec<Value>>()
    };
    let answers = ask(b"{\"command\":\"list\"}\n{\"command\":\"lst\"}\nnonsense\n{\"command\":\"list\",\"x\":1}\n{\"command\":\"stats\"}");
    assert_eq!(answers.len(), 5, "{answers:#?}");
    assert_eq!(answers[0]["ok"]["disks"][0]["name"], "a");
    for answer in &answers[1..4] {
        assert!(answer["error"]["message"].as_str().unwrap().starts_with("not a valid request: "), "{answer}");
    }
    assert!(answers[4]["ok"]["iothreads"][0]["cpu_ns"].is_u64());
    let idle: Vec<_> = (0..100).map(|_| UnixStream::connect(d.dir.path("ctl.sock"))).collect();
    drop(idle);
    d.dir.mqblk(&["ctl", "--control", "none.sock", "list"]).exits(2);
    let second = d.dir.mqblk(&["serve", "ram:size=1m", "--control", "ctl.sock"]).exits(2);
    assert!(second.err.contains("another process listens there"), "{second:?}");
    d.ends();
}

/// Four exports are assigned to two IOThreads by round robin. The two busy ones share an IOThread until the daemon moves one.
#[test]
fn a_busy_queue_goes_to_an_iothread_that_has_time() {
    let mut config = "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n".to_owned();
    for name in ["a", "b", "c", "d"] {
        config += &format!("[[disk]]\nname = \"{name}\"\ntarget = \"ram:size=32m\"\n");
    }
    for name in ["a", "b", "c", "d"] {
        config += &format!(
            "[[export]]\nname = \"{name}\"\ndisk = \"{name}\"\ntype = \"vhost-user-blk\"\nsocket = \"{name}.sock\"\nnum_queues = 1\n"
        );
    }
    let d = start("balance", &config);
    let threads = |name: usize| d.json("list")["exports"][name]["iothreads"][0].clone();
    assert_eq!((threads(0), threads(2)), (json!("io0"), json!("io0")));
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for name in ["a", "c"] {
            let (socket, over) = (d.dir.path(&format!("{name}.sock")), &over);
            scope.spawn(move || {
                let options = BenchOptions { patience: LONG, ..BenchOptions::default() };
                while !over.load(std::sync::atomic::Ordering::Acquire) {
                    bench(socket.to_str().unwrap(), &options).unwrap();
                }
            });
        }
        until_reported("the busy queues have an IOThread each", || threads(0) != threads(2));
        over.store(true, std::sync::atomic::Ordering::Release);
    });
    d.ends();
}

/// A separate file system, unmounted at the end of the test.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(dir: &Dir, size: &str) -> Tmpfs {
        let at = dir.path("full");
        fs::create_dir(&at).unwrap();
        dir.program("mount", &["-t", "tmpfs", "-o", size, "tmpfs", at.to_str().unwrap()]).exits(0);
        Tmpfs(at)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_fails_writes_or_holds_them_as_configured() {
    let dir = Dir::new("enospc");
    let full = Tmpfs::mount(&dir, "size=4m");
    for (name, on_enospc) in [("report", "report"), ("stop", "stop")] {
        File::create(full.0.join(format!("{name}.img"))).unwrap().set_len(16 << 20).unwrap();
        let text = format!(
            "[[disk]]\nname = \"{name}\"\ntarget = \"full/{name}.img\"\non_enospc = \"{on_enospc}\"\n\
             [[export]]\ndisk = \"{name}\"\ntype = \"nbd\"\nsocket = \"nbd.sock\"\nexport_name = \"{name}\"\n"
        );
        let config = fs::read_to_string(dir.path("serve.toml")).unwrap_or_default() + &text;
        dir.file("serve.toml", &config);
    }
    let d = Daemon::start(dir, &[]);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", d.dir.path("nbd.sock").display());
    let write =
        |name: &str| d.dir.program("qemu-io", &["-f", "raw", "-c", "write -P 7 0 8m", "-c", "flush", &uri(name)]);
    let failed = write("report");
    assert!(
        failed.out.contains("No space left on device") || failed.err.contains("No space left on device"),
        "{failed:?}"
    );
    d.dir.program("qemu-io", &["-f", "raw", "-c", "discard 0 16m", &uri("report")]).exits(0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| write("stop").exits(0));
        until_reported("the write is held", || {
            assert!(!waits.is_finished(), "the write ended though there is no space");
            d.json("stats")["disks"][1]["held_on_enospc"] != 0
        });
        d.dir.program("mount", &["-o", "remount,size=64m", full.0.to_str().unwrap()]).exits(0);
        waits.join().unwrap();
    });
    d.dir
        .program("qemu-io", &["-f", "raw", "-c", "read -P 7 0 8m", &uri("stop")])
        .exits(0)
        .prints(&["read 8388608/8388608"]);
    drop(full);
    d.ends();
}

/// Once, a data file whose path was given for a socket was replaced by the socket.
#[test]
fn only_a_dead_socket_is_replaced_and_a_drained_daemon_ends() {
    let d = start("ctl", &[DISK_A, NBD_OF_A].concat());
    File::create(d.dir.path("precious.img")).unwrap().set_len(1 << 20).unwrap();
    for flag in [["--control", "precious.img"], ["--metrics", "unix:precious.img"]] {
        let args = [&["serve", "ram:size=1m", "--socket-dir", "/tmp", "--control", "other.sock"][..], &flag].concat();
        let args: Vec<_> = if flag[0] == "--control" { [&args[..4], &flag].concat() } else { args };
        let done = d.dir.mqblk(&args).exits(2);
        assert!(done.err.contains("the file is not a socket"), "{done:?}");
        assert_eq!(fs::metadata(d.dir.path("precious.img")).unwrap().len(), 1 << 20);
    }
    // Requests wait behind the drain when the daemon is told to shut down.
    let socket = d.dir.path("a.sock");
    thread::scope(|scope| {
        // The load runs until the daemon ends. Its limit only bounds the wait for it if this test fails.
        let options = BenchOptions { runtime: Duration::from_secs(60), ..BenchOptions::default() };
        let load = scope.spawn(move || bench(socket.to_str().unwrap(), &options));
        until_reported("requests are in flight", || {
            assert!(!load.is_finished());
            d.json("stats")["disks"][0]["in_flight"] != 0
        });
        d.done(&["drain"]);
        d.done(&["shutdown"]);
        // The load ended with its daemon; its result does not matter.
        drop(load.join().unwrap());
    });
    let done = d.started.ends().exits(0);
    assert!(!done.err.contains("panicked"), "{done:?}");
}

#[test]
fn what_is_added_obeys_the_flags_of_the_start() {
    let dir = Dir::new("ctl");
    File::create(dir.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    File::create(dir.path("b.img")).unwrap().set_len(1 << 20).unwrap();
    let args = ["serve", "a.img", "--read-only", "--set", "nomerges=2", "--control", "ctl.sock"];
    let started = dir.start(&args, "serving");
    dir.mqblk(&["ctl", "--control", "ctl.sock", "add", "b.img"]).exits(0);
    let list: Value = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    assert_eq!(
        (&list["disks"][1]["read_only"], &list["disks"][1]["queue"]["nomerges"]),
        (&json!(true), &json!("2")),
        "{list:#}"
    );
    started.signal("TERM");
    started.ends().exits(0);
}
