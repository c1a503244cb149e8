// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images and sockets that are removed or replaced while a daemon serves them are reported, and a reload makes sockets anew.

use crate::common;

use common::{Daemon, Dir, KeepGoing, LONG, NbdClient, POLL};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Instant;
use vuclient::{VerifyOptions, verify};

const CONFIG: &str = r#"
[[disk]]
name = "a"
target = "a.img"
[[disk]]
name = "linked"
target = "link.img"
[[disk]]
name = "wide"
stack = "stripe"
targets = ["s0.img", "s1.img"]
[[disk]]
name = "paths"
stack = "multipath"
targets = ["./m.img", "././m.img"]
[[disk]]
name = "memory"
target = "ram:size=1m"
[[export]]
name = "a.v"
disk = "a"
type = "vhost-user-blk"
socket = "v.sock"
socket_mode = "0600"
[[export]]
name = "a.n"
disk = "a"
type = "nbd"
socket = "n.sock"
[[export]]
name = "linked.n"
disk = "linked"
type = "nbd"
socket = "n.sock"
[[export]]
name = "memory.n"
disk = "memory"
type = "nbd"
socket = "other.sock"
"#;

/// Starts a daemon beside its images.
fn start() -> Daemon {
    let dir = Dir::new("serve-paths");
    for image in ["a.img", "linked.img", "s0.img", "s1.img", "m.img", "new.img"] {
        File::create(dir.path(image)).unwrap().set_len(16 << 20).unwrap();
    }
    symlink("linked.img", dir.path("link.img")).unwrap();
    dir.file("serve.toml", CONFIG);
    Daemon::start(dir, &["--metrics=unix:m.sock"])
}

impl Daemon {
    /// Returns the troubles of a disk, as of the last check of its paths.
    fn troubles(&self, disk: &str) -> String {
        let list = self.json("list");
        let found = list["disks"].as_array().unwrap().iter().find(|d| d["name"] == disk).unwrap();
        let all: Vec<&str> = found["troubles"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        all.join("; ")
    }

    /// Waits until the page of metrics, which may be a moment old, has a line.
    #[track_caller]
    fn shows(&self, line: &str) {
        let end = Instant::now() + LONG;
        loop {
            let mut client = UnixStream::connect(self.dir.path("m.sock")).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut page = String::new();
            client.read_to_string(&mut page).unwrap();
            if page.lines().any(|l| l == line) {
                return;
            }
            assert!(Instant::now() < end, "'{line}' is missing in {page}");
            thread::sleep(POLL);
        }
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.dir.path(from), self.dir.path(to)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.dir.path(name)).unwrap();
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.dir.path("n.sock").display())
    }

    fn verify(&self, options: &VerifyOptions) {
        let report = verify(self.dir.path("v.sock").to_str().unwrap(), options).unwrap();
        assert!(report.writes > 0, "{report:?}");
    }
}

/// Once, writes went to a file without a name, a reload said that nothing had changed, and there was no trouble.
#[test]
fn images_that_are_removed_or_replaced_are_told() {
    let d = start();
    assert_eq!(d.done(&["reload"]), "nothing has changed\n");
    d.shows("mqblk_disk_image_gone{disk=\"a\"} 0");
    d.shows("mqblk_disk_image_gone{disk=\"memory\"} 0");

    // Written, resized, renamed and renamed back.
    d.dir.program("nbdcopy", &["--flush", "new.img", &d.uri("linked")]).exits(0);
    d.done(&["resize", "a", "32m"]);
    d.rename("s0.img", "away.img");
    d.rename("away.img", "s0.img");
    assert_eq!(d.done(&["reload"]), "nothing has changed\n");
    assert_eq!(["a", "linked", "wide", "paths"].map(|disk| d.troubles(disk)), [""; 4]);

    d.remove("a.img");
    symlink("new.img", d.dir.path("next")).unwrap();
    d.rename("next", "link.img");
    File::create(d.dir.path("next")).unwrap().set_len(16 << 20).unwrap();
    d.rename("next", "s1.img");
    d.rename("m.img", "away.img");
    let said = d.done(&["reload"]);
    let lines: Vec<&str> = said.lines().collect();
    let removed = "was removed or renamed: the disk still uses the file that was opened there";
    let replaced = "names another file now: the disk still uses the file that was opened there";
    let expected = [
        ("disk 'a': image 'a.img' ", removed),
        ("disk 'linked': the path 'link.img' ", replaced),
        ("disk 'wide': the path 's1.img' ", replaced),
        ("disk 'paths': image './m.img' ", removed),
        ("disk 'paths': image '././m.img' ", removed),
    ];
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, (begin, what)) in lines.iter().zip(expected) {
        assert!(line.starts_with(&format!("{begin}{what}")), "{line}");
        let disk = begin.split('\'').nth(1).unwrap();
        assert!(d.troubles(disk).contains(what), "{disk}");
        d.shows(&format!("mqblk_disk_image_gone{{disk=\"{disk}\"}} 1"));
    }
    assert!(d.done(&["list"]).contains(&format!("  image 'a.img' {removed}")));

    d.rename("away.img", "m.img");
    assert_eq!(d.done(&["reload"]).lines().count(), 3, "that file is back");
    assert_eq!(d.troubles("paths"), "");
    let done = d.ends();
    assert_eq!(
        done.err.matches("image 'a.img' was removed or renamed: the disk").count(),
        1,
        "it is logged once: {}",
        done.err
    );
}

/// Once, no client could connect any more, and nothing told so. Clients that are connected stay.
#[test]
fn sockets_that_are_removed_or_replaced_are_made_anew() {
    let mut d = start();
    d.shows("mqblk_export_gone{export=\"a.n\",type=\"nbd\",disk=\"a\"} 0");
    let client = NbdClient::connect(&d.uri("a"));
    let nbd = "NBD server at n.sock listens again at 'n.sock', which no longer named its socket\n";
    let vhost = "export 'a.v' listens again at 'v.sock', which no longer named its socket\n";

    // With a front end and an NBD client.
    let go = KeepGoing::new();
    let options = VerifyOptions { size: 8 << 20, requests: 1000, keep_going: Some(go.0.clone()), ..Default::default() };
    let brief = VerifyOptions { keep_going: None, ..options.clone() };
    thread::scope(|scope| {
        let load = scope.spawn(|| d.verify(&options));
        d.shows("mqblk_export_clients{export=\"a.v\",type=\"vhost-user-blk\",disk=\"a\"} 1");
        let go = go;
        d.remove("v.sock");
        d.remove("n.sock");
        // Before the reload.
        d.shows("mqblk_export_gone{export=\"a.v\",type=\"vhost-user-blk\",disk=\"a\"} 1");
        d.shows("mqblk_export_gone{export=\"linked.n\",type=\"nbd\",disk=\"linked\"} 1");
        let list = d.done(&["list"]);
        assert_eq!(list.matches("GONE: socket 'n.sock' was removed, so clients cannot connect").count(), 2, "{list}");
        assert_eq!(list.matches("GONE: socket 'v.sock' was removed, so clients cannot connect").count(), 1, "{list}");
        assert_eq!(d.done(&["reload"]), [nbd, vhost].concat());
        assert!(!d.done(&["list"]).contains("GONE"));
        assert_eq!(d.done(&["reload"]), "nothing has changed\n");
        drop(go);
        load.join().unwrap();
    });
    assert!(client.finds_itself_served());
    d.verify(&brief);
    d.dir.program("nbdinfo", &["--size", &d.uri("a")]).exits(0);

    // Without one; the threads wait for clients.
    d.shows("mqblk_export_clients{export=\"a.v\",type=\"vhost-user-blk\",disk=\"a\"} 0");
    d.remove("v.sock");
    d.remove("n.sock");
    assert_eq!(d.done(&["reload"]), [nbd, vhost].concat());
    d.verify(&brief);
    d.dir.program("nbdinfo", &["--size", &d.uri("linked")]).exits(0);

    // Another program listens there, and ends.
    d.remove("n.sock");
    let other = UnixListener::bind(d.dir.path("n.sock")).unwrap();
    let said = d.done(&["reload"]);
    assert!(said.starts_with("failed: NBD server at n.sock: socket 'n.sock' is in use: stop its server"), "{said}");
    assert!(d.done(&["list"]).contains("GONE: another file has replaced socket 'n.sock'"));
    drop(other);
    assert_eq!(d.done(&["reload"]), nbd);
    d.dir.program("nbdinfo", &["--size", &d.uri("a")]).exits(0);

    // Its own sockets.
    d.remove("ctl.sock");
    d.remove("m.sock");
    d.started.until("socket 'ctl.sock' was removed, so clients cannot connect; reload (SIGHUP) to listen there again");
    d.started.signal("HUP");
    d.started.until("listens again at ctl.sock");
    d.started.until("listens again at unix:m.sock");
    assert_eq!(d.done(&["reload"]), "nothing has changed\n");
    d.shows("mqblk_export_gone{export=\"a.n\",type=\"nbd\",disk=\"a\"} 0");
    d.ends();
}
