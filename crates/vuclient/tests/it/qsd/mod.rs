// SPDX-License-Identifier: Apache-2.0 OR MIT
//! qemu-storage-daemon as the reference server, one process per test.
//!
//! Guarantees: [`Qsd::start`] returns when its exports accept connections (the monitor greets after all options were
//! carried out), or fails within [`LIMIT`] with the daemon's output; dropping the value ends the process, by its own
//! pid. Each test has a directory of its own.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Longest time the daemon may take to start.
const LIMIT: Duration = Duration::from_secs(300);

/// A null disk of 1 GiB, answered by QEMU without any storage.
pub const NULL: &str = "driver=null-co,node-name=disk,size=1073741824,read-zeroes=off";

/// A directory that is removed when the value is dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Not below target: a socket's path has 107 bytes at most.
        let path = std::env::temp_dir().join(format!("vuclient-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a sparse image. Returns its path and the option that opens it.
    pub fn image(&self, len: u64) -> (PathBuf, String) {
        let path = self.join("disk.img");
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        let blockdev = format!("driver=file,node-name=disk,filename={},discard=unmap", path.display());
        (path, blockdev)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running daemon with one vhost-user-blk export.
pub struct Qsd {
    child: Child,
    socket: PathBuf,
}

impl Qsd {
    /// Exports the node `disk` of `blockdevs` with `queues` virtqueues, writable.
    pub fn start(directory: &Directory, blockdevs: &[&str], queues: u32) -> Qsd {
        Qsd::export(directory, blockdevs, &format!("num-queues={queues},writable=on"))
    }

    /// Exports with other options.
    pub fn export(directory: &Directory, blockdevs: &[&str], options: &str) -> Qsd {
        let socket = directory.join("disk.sock");
        // A killed daemon leaves its socket.
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--object", "iothread,id=i0"]);
        for blockdev in blockdevs {
            command.args(["--blockdev", blockdev]);
        }
        let export = format!(
            "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},iothread=i0,{options}",
            socket.display()
        );
        command.args(["--export", &export, "--chardev", "stdio,id=m", "--monitor", "chardev=m"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|e| {
            panic!("qemu-storage-daemon: {e}; `cargo xtask test` installs it (Debian package qemu-system-common)")
        });
        let mut qsd = Qsd { child, socket };
        if let Err(e) = qsd.greeting() {
            let _ = qsd.child.kill();
            let mut said = String::new();
            let _ = qsd.child.stderr.take().unwrap().read_to_string(&mut said);
            panic!("qemu-storage-daemon did not greet within {LIMIT:?} ({e}): {said}");
        }
        qsd
    }

    fn greeting(&mut self) -> Result<(), mpsc::RecvTimeoutError> {
        let (sender, receiver) = mpsc::channel();
        let mut stdout = BufReader::new(self.child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut line = String::new();
            if stdout.read_line(&mut line).is_ok() && line.contains("QMP") {
                let _ = sender.send(stdout);
            }
        });
        receiver.recv_timeout(LIMIT).map(|stdout| self.child.stdout = Some(stdout.into_inner()))
    }

    pub fn socket(&self) -> &str {
        self.socket.to_str().unwrap()
    }

    /// Kills the daemon with SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether the process is still there.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Qsd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Changes one byte of a file.
pub fn damage(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}
