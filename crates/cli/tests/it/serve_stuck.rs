// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk whose NBD server stays down. Sources that are moved continue, removals report that they wait or can be forced, and meanwhile
//! the daemon answers read-only commands.

use crate::common;

use common::{Dir, Done, LONG, PROGRAM_POLL, Started, number, until, until_reported};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use vuclient::raw::message::feature::VERSION_1;
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, Raw, block};

/// nbdkit, which can be killed and restarted.
struct Server<'a> {
    dir: &'a Dir,
    child: Option<Child>,
}

impl Server<'_> {
    fn start(&mut self) {
        let socket = self.dir.path("far.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(["memory", "16m"]);
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("nbdkit listens", || UnixStream::connect(&socket).is_ok());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

fn ctl(dir: &Dir, args: &[&str]) -> Done {
    dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat())
}

fn json_of(dir: &Dir, what: &str) -> Value {
    serde_json::from_str(&ctl(dir, &[what, "--json"]).exits(0).out).unwrap()
}

/// Returns the number of requests of the export's clients in flight.
fn in_flight(dir: &Dir) -> u64 {
    let stats = json_of(dir, "stats");
    let threads = stats["iothreads"].as_array().unwrap().iter();
    threads.flat_map(|t| t["sources"].as_array().unwrap()).map(|s| s["in_flight"].as_u64().unwrap()).sum()
}

/// Runs a command that waits for I/O, and checks meanwhile that the daemon answers.
fn beside(dir: &Dir, args: &[&str]) -> Done {
    thread::scope(|scope| {
        let waits = scope.spawn(|| ctl(dir, args));
        let mut seen = 0;
        while !waits.is_finished() {
            assert!(number(&json_of(dir, "list"), "/pid") > 0.0);
            assert!(number(&json_of(dir, "stats"), "/uptime_ns") > 0.0);
            seen += u32::from(!waits.is_finished());
            thread::sleep(PROGRAM_POLL);
        }
        assert!(seen > 0, "no client was answered while it waited");
        waits.join().unwrap()
    })
}

fn daemon(dir: &Dir) -> Started {
    let target = format!("nbd+unix:///?socket={}&reconnect_delay=3600&connections=2", dir.path("far.sock").display());
    let config = format!(
        "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n[[disk]]\nname = \"n\"\ntarget = \"{target}\"\n\
         [[export]]\nname = \"n.n\"\ndisk = \"n\"\ntype = \"nbd\"\nsocket = \"near.sock\"\nexport_name = \"d\"\niothreads = [\"io0\"]\n"
    );
    dir.file("serve.toml", &config);
    let args = ["serve", "serve.toml", "--control", "ctl.sock", "--metrics", "unix:metrics.sock"];
    dir.start(&args, "serving")
}

/// Starts a write that waits for the dead server.
fn writes<'a>(dir: &'a Dir, scope: &'a thread::Scope<'a, '_>) -> thread::ScopedJoinHandle<'a, Done> {
    let uri = format!("nbd+unix:///d?socket={}", dir.path("near.sock").display());
    let client =
        scope.spawn(move || dir.program("qemu-io", &["-f", "raw", "-c", "write -P 7 0 64k", "-c", "flush", &uri]));
    until_reported("the write is in flight", || in_flight(dir) > 0);
    client
}

#[test]
fn a_move_that_cannot_be_made_leaves_all_as_it_was() {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let mut daemon = daemon(&dir);
    assert_eq!(json_of(&dir, "list")["disks"][0]["troubles"], json!([]));
    server.kill();
    daemon.until("connections were lost");
    let list = ctl(&dir, &["list"]).exits(0).out;
    assert!(list.contains("connections were lost"), "{list}");
    let stats = json_of(&dir, "stats");
    assert!(number(&stats, "/disks/0/connections/losses") > 0.0, "{stats:#}");
    assert_eq!(number(&stats, "/disks/0/connections/up"), 0.0, "{stats:#}");
    let metrics =
        dir.program("curl", &["-s", "--unix-socket", dir.path("metrics.sock").to_str().unwrap(), "http://x/metrics"]);
    let page = metrics.exits(0).out;
    assert!(page.contains("mqblk_disk_connections{disk=\"n\"} 0\n"), "{page}");
    thread::scope(|scope| {
        let client = writes(&dir, scope);
        let done = beside(&dir, &["map", "n.n", "io1"]).exits(2);
        done.says(&["did not end in 10 s", "disk 'n'", "connections were lost", "move it again"]);
        assert!(!client.is_finished());
        server.start();
        client.join().unwrap().exits(0);
    });
    daemon.until("all its connections are up again");
    ctl(&dir, &["map", "n.n", "io0"]).exits(0);
    ctl(&dir, &["map", "n.n", "io1"]).exits(0);
    ctl(&dir, &["shutdown"]).exits(0);
    daemon.ends().exits(0);
}

#[test]
fn shutdown_reports_pending_io_and_a_second_signal_exits() {
    pending_io_is_reported(|_, daemon| daemon.signal("TERM"));
}

/// Once, the first signal after this command had no effect, because only signals were counted.
#[test]
fn shutdown_by_command_reports_pending_io_and_a_signal_exits() {
    pending_io_is_reported(|dir, _| drop(ctl(dir, &["shutdown"]).exits(0)));
}

fn pending_io_is_reported(shut_down: impl FnOnce(&Dir, &Started)) {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let mut daemon = daemon(&dir);
    server.kill();
    thread::scope(|scope| {
        let client = writes(&dir, scope);
        shut_down(&dir, &daemon);
        let said = daemon.until("shutdown waits for 1 request");
        assert!(said.contains("disk 'n'") && said.contains("another SIGTERM"), "{said}");
        daemon.signal("TERM");
        assert_ne!(daemon.ends().status, 0);
        client.join().unwrap();
    });
}

#[test]
fn a_disk_whose_server_is_down_is_removed_by_force() {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let daemon = daemon(&dir);
    server.kill();
    thread::scope(|scope| {
        let client = writes(&dir, scope);
        ctl(&dir, &["remove", "n"]).exits(2).says(&["export 'n.n' has clients", "--force"]);
        let done = beside(&dir, &["remove", "--force", "n"]).exits(0);
        assert_eq!(done.out, "ended export 'n.n'\nclosed disk 'n'\n");
        let failed = client.join().unwrap();
        assert!(failed.status != 0 || failed.err.contains("failed") || failed.out.contains("failed"), "{failed:?}");
    });
    assert_eq!(json_of(&dir, "list")["disks"], json!([]));
    ctl(&dir, &["shutdown"]).exits(0);
    daemon.ends().exits(0);
}

/// The answer says that nothing is in flight, so it comes only when that is true. Only the front end that sent the command
/// waits for it.
#[test]
fn stopping_a_ring_at_a_dead_server_blocks_only_its_front_end() {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let target = format!("nbd+unix:///?socket={}&reconnect_delay=3600", dir.path("far.sock").display());
    let export = |disk: &str| {
        format!(
            "[[export]]\nname = \"{disk}.v\"\ndisk = \"{disk}\"\ntype = \"vhost-user-blk\"\nsocket = \"{disk}.sock\"\nnum_queues = 1\n\
             iothreads = [\"io0\"]\n"
        )
    };
    let config = format!(
        "[[iothread]]\nname = \"io0\"\n[[disk]]\nname = \"n\"\ntarget = \"{target}\"\n[[disk]]\nname = \"r\"\ntarget = \"ram:size=8m\"\n{}{}",
        export("n"),
        export("r")
    );
    dir.file("serve.toml", &config);
    let daemon = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let ready = |name: &str| {
        let mut raw = Raw::ready(dir.path(name).to_str().unwrap(), VERSION_1, protocol::REPLY_ACK).unwrap();
        raw.start(0, 64, Format::Split, Notify::Both).unwrap();
        raw
    };
    let (mut stuck, mut other) = (ready("n.sock"), ready("r.sock"));
    server.kill();
    let request = stuck.block(block::IN, 0, 512).unwrap();
    stuck.submit(0, &request.segments()).unwrap();
    stuck.kick(0).unwrap();
    until_reported("the read is in flight", || in_flight(&dir) > 0);
    let stop = [0; 8];
    stuck.channel.send(request::GET_VRING_BASE, 1, &stop, &[]).unwrap();
    // The queries below come while the request's queue is leaving its IOThread.
    let is_answered = |raw: &Raw| raw.channel.is_closed(Duration::ZERO).is_ok_and(|closed| closed);
    for _ in 0..3 {
        assert_eq!(in_flight(&dir), 1);
        assert_eq!(number(&json_of(&dir, "list"), "/exports/0/connected"), 1.0);
        let request = other.block(block::IN, 0, 512).unwrap();
        assert_eq!(other.execute(0, &request, LONG).unwrap().0, block::OK);
        assert!(!is_answered(&stuck));
    }
    // Changes to other disks work meanwhile, too.
    ctl(&dir, &["set", "r", "nomerges=2"]).exits(0);
    ctl(&dir, &["add", "ram:size=1m"]).exits(0);
    ctl(&dir, &["remove", "n"]).exits(2).says(&["export 'n.v' has clients", "--force"]);
    let done = beside(&dir, &["remove", "--force", "n"]).exits(0);
    assert_eq!(done.out, "ended export 'n.v'\nclosed disk 'n'\n");
    let request = other.block(block::IN, 0, 512).unwrap();
    assert_eq!(other.execute(0, &request, LONG).unwrap().0, block::OK);
    drop((stuck, other));
    ctl(&dir, &["shutdown"]).exits(0);
    daemon.ends().exits(0);
}

/// Another disk, whose export has the same name as that of the first.
const AGAIN: &str = "[[disk]]\nname = \"m\"\ntarget = \"ram:size=1m\"\n\
                     [[export]]\nname = \"n.n\"\ndisk = \"m\"\ntype = \"nbd\"\nsocket = \"other.sock\"\n";

/// Removes the export `n.n` by a reload while a write of a departed client is in flight. The export's end waits for the write.
fn left_behind(dir: &Dir, config: &str) {
    let uri = format!("nbd+unix:///d?socket={}", dir.path("near.sock").display());
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", "-c", "write -P 7 0 64k", &uri]);
    let mut client = client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until_reported("the write is in flight", || in_flight(dir) > 0);
    client.kill().unwrap();
    client.wait().unwrap();
    dir.file("serve.toml", config);
    let lines = ctl(dir, &["reload"]).exits(0).out;
    assert!(lines.contains("export 'n.n' has disconnected its clients, but has not ended"), "{lines}");
    assert!(lines.contains("ctl remove --force n.n"), "{lines}");
}

/// Once, the program exited at once and left sockets and devices behind.
#[test]
fn an_end_waits_for_what_was_removed_before() {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let mut daemon = daemon(&dir);
    server.kill();
    left_behind(&dir, AGAIN);
    daemon.signal("TERM");
    let said = daemon.until("shutdown waits for 1 request");
    assert!(said.contains("disk 'n'"), "{said}");
    // The server is up again, so the waiting I/O completes and the daemon ends.
    server.start();
    daemon.ends().exits(0);
}

/// Once, the first disk could not be addressed any more.
#[test]
fn a_removed_disk_is_force_ended_even_if_its_name_is_reused() {
    let dir = Dir::new("stuck");
    let mut server = Server { dir: &dir, child: None };
    server.start();
    let daemon = daemon(&dir);
    server.kill();
    left_behind(&dir, AGAIN);
    let done = ctl(&dir, &["remove", "--force", "n.n"]).exits(0);
    assert_eq!(done.out, "ended the earlier 'n.n': its removal had not completed\nended export 'n.n'\n");
    ctl(&dir, &["shutdown"]).exits(0);
    daemon.ends().exits(0);
}
