// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD servers as targets: `mqblk run` on a server, and `mqblk serve` of a server, whose clients do not notice when the server is killed.

use crate::certificates;
use crate::common;

use certificates::{Authority, NOW};
use common::{Dir, LONG, POLL, until};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// nbdkit with a file of the test's directory, at `up.sock` in that directory.
struct Nbdkit(Child);

impl Nbdkit {
    fn start(dir: &Dir, more: &[&str]) -> Nbdkit {
        let _ = std::fs::remove_file(dir.path("up.sock"));
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix", "up.sock"]).args(more).current_dir(dir.as_path());
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let nbdkit = Nbdkit(child);
        until("nbdkit listens", || UnixStream::connect(dir.path("up.sock")).is_ok());
        nbdkit
    }
}

impl Drop for Nbdkit {
    /// Kills the server with SIGKILL.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn disk(dir: &Dir, bytes: u64) {
    File::create(dir.path("disk.img")).unwrap().set_len(bytes).unwrap();
}

const UP: &str = "nbd+unix:///?socket=up.sock";

#[test]
fn jobs_run_and_verify_on_a_server() {
    let dir = Dir::new("nbd-run");
    disk(&dir, 16 << 20);
    let _nbdkit = Nbdkit::start(&dir, &["file", "disk.img"]);
    dir.file(
        "a.fio",
        "[a]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=16\nverify=crc32c\nfsync=64\n[b]\nrw=read\nbs=256k\nsize=8m\n",
    );
    let done = dir.mqblk(&["run", "a.fio", "--target", UP, "--json"]).exits(0);
    assert_eq!(done.json()["jobs"].as_array().unwrap().len(), 2);
    // As `filename`: the `:` does not separate files then. The data that the job writes is in the file.
    dir.file("c.fio", &format!("[c]\nrw=write\nbs=64k\nsize=1m\nfilename={UP}\nbuffer_pattern=0x5a\n"));
    dir.mqblk(&["run", "c.fio"]).exits(0);
    let bytes = std::fs::read(dir.path("disk.img")).unwrap();
    assert!(bytes[..1 << 20].iter().all(|b| *b == 0x5a));
}

#[test]
fn what_cannot_be_used_is_refused_with_a_remedy() {
    let dir = Dir::new("nbd-refused");
    dir.file("a.fio", "[a]\nrw=randwrite\nbs=4k\nsize=4m\n");
    let refused = |target: &str, status: i32, says: &[&str]| {
        dir.mqblk(&["run", "a.fio", "--target", target]).exits(status).says(says);
    };
    refused("nbd://h/?conections=2", 2, &["there is no option 'conections'; did you mean 'connections'?"]);
    refused(
        "nbds://h/?tls-psk-file=k",
        2,
        &["tls_psk_file=k: only X.509 certificates are supported, not pre-shared keys"],
    );
    let none = "tls-certificates=none/ca-cert.pem: No such file or directory (os error 2); name a PEM file";
    refused("nbds://h/?tls-certificates=none", 2, &[none]);
    let e = dir.mqblk(&["run", "a.fio", "--target", UP]);
    assert_ne!(e.status, 0);
    e.says(&["NBD server at up.sock: cannot connect"]);
    let _nbdkit = Nbdkit::start(&dir, &["memory", "1M"]);
    let e = dir.mqblk(&["run", "a.fio", "--target", UP]);
    assert_ne!(e.status, 0);
    e.says(&["has 1048576 bytes, the job needs 4194304"]);
}

/// A chain of a client, `mqblk serve` and nbdkit: data passes through all of them, and the daemon hides from the client that nbdkit is
/// killed.
#[test]
fn a_served_server_may_die() {
    let dir = Dir::new("nbd-chain");
    disk(&dir, 64 << 20);
    let file = ["file", "disk.img"];
    let nbdkit = Nbdkit::start(&dir, &file);
    let daemon = dir.start(&["serve", &format!("{UP}&reconnect_delay=60")], "serving");
    let socket = dir.path("nbd.nbd.sock");
    let ours = format!("nbd+unix:///nbd?socket={}", socket.display());
    let told = dir.program("nbdinfo", &["--json", &ours]).exits(0);
    assert_eq!(told.json()["exports"][0]["export-size"], 64 << 20);
    // Data that is written through the chain is in the file, and is read back.
    dir.program("qemu-io", &["-f", "raw", "-c", "write -P 0x11 0 1M", "-c", "flush", &ours]).exits(0);
    let bytes = std::fs::read(dir.path("disk.img")).unwrap();
    assert!(bytes[..1 << 20].iter().all(|b| *b == 0x11) && bytes[1 << 20] == 0);
    let job = format!(
        "[global]\nioengine=nbd\nuri={ours}\nrw=randwrite\nbs=4k\nsize=16m\niodepth=16\nverify=crc32c\n\
         verify_backlog=256\ntime_based\nruntime=3\n[a]\n"
    );
    dir.file("v.fio", &job);
    let mut fio = Command::new("timeout");
    fio.args(["60", "fio", "v.fio"]).current_dir(dir.as_path()).stdout(Stdio::null());
    let mut fio = fio.spawn().unwrap();
    let mut nbdkit = Some(nbdkit);
    let mut kills = 0;
    let began = Instant::now();
    while fio.try_wait().unwrap().is_none() {
        // Between two kills, some I/O completes: the file changes.
        let changed = || std::fs::metadata(dir.path("disk.img")).unwrap().modified().unwrap();
        let before = changed();
        while changed() == before && fio.try_wait().unwrap().is_none() && began.elapsed() < LONG {
            std::thread::sleep(POLL);
        }
        drop(nbdkit.take());
        nbdkit = Some(Nbdkit::start(&dir, &file));
        kills += 1;
    }
    assert!(fio.wait().unwrap().success(), "fio's verification");
    assert!(kills > 2, "{kills} kills");
    // Copies of the whole disk by the standard tool are equal in both directions.
    dir.program("nbdcopy", &[&ours, "copy.img"]).exits(0);
    assert!(std::fs::read(dir.path("copy.img")).unwrap() == std::fs::read(dir.path("disk.img")).unwrap(), "same bytes");
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert!(!socket.exists());
}

/// A run on a server that requires TLS and a client certificate. Then a daemon in front of that server, whose clients also use TLS.
#[test]
fn tls_holds_all_the_way() {
    let dir = Dir::new("nbd-tls");
    let authority = Authority::new("tests");
    authority.server(dir.as_path(), "pki", NOW);
    authority.client(dir.as_path(), "client", 2);
    disk(&dir, 16 << 20);
    let _nbdkit =
        Nbdkit::start(&dir, &["--tls=require", "--tls-verify-peer", "--tls-certificates=pki", "file", "disk.img"]);
    let target = "nbds+unix:///?socket=up.sock&tls-certificates=client&reconnect_delay=60";
    dir.file("a.fio", "[a]\nrw=randwrite\nbs=1m\nsize=8m\niodepth=8\nverify=crc32c\n");
    dir.mqblk(&["run", "a.fio", "--target", target]).exits(0);
    let e = dir.mqblk(&["run", "a.fio", "--target", UP]);
    assert_ne!(e.status, 0);
    e.says(&["NBD server at up.sock: the server requires TLS: write nbds:// for nbd://"]);
    let daemon = dir.start(&["serve", target, "--tls-certificates=pki"], "serving");
    let certificates = dir.path("client");
    let socket = dir.path("nbd.nbd.sock");
    let ours = format!("nbds+unix:///nbd?socket={}&tls-certificates={}", socket.display(), certificates.display());
    std::fs::write(dir.path("there"), vec![0x3c; 16 << 20]).unwrap();
    dir.program("nbdcopy", &["--flush", "there", &ours]).exits(0);
    dir.program("nbdcopy", &[&ours, "back"]).exits(0);
    for name in ["back", "disk.img"] {
        assert!(std::fs::read(dir.path(name)).unwrap().iter().all(|byte| *byte == 0x3c), "{name}");
    }
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn a_run_says_why_its_io_failed() {
    let dir = Dir::new("nbd-died");
    disk(&dir, 16 << 20);
    let nbdkit = Nbdkit::start(&dir, &["file", "disk.img"]);
    dir.file("a.fio", "[a]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=16\ntime_based\nruntime=60\n");
    let mut run = dir.command(&["run", "a.fio", "--target", UP]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("data is written", || std::fs::read(dir.path("disk.img")).unwrap().iter().any(|b| *b != 0));
    drop(nbdkit);
    let done = common::Done::of(run.wait_with_output().unwrap(), &["run"]);
    assert_ne!(done.status, 0);
    done.says(&["NBD server at up.sock: connections were lost"]);
}
