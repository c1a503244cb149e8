// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile front ends that misuse the file descriptors that they send. Other clients of the IOThread must be served as before.

use crate::own_process;
use crate::serving;
use crate::waiting::{LONG, until};

use host::export::vhost::{ExportOptions, VhostExport};
use rustix::process::{Pid, Signal, kill_process};
use serving::{Served, vhost_options};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use vuclient::raw::message::feature::{BLK_FLUSH, VERSION_1};
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, Raw, block};

const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::CONFIG
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::INFLIGHT_SHMFD
    | protocol::LOG_SHMFD;

fn export(served: &Served, name: &str) -> VhostExport {
    export_with(served, name, false)
}

fn export_with(served: &Served, name: &str, allow_file_memory: bool) -> VhostExport {
    let socket = served.directory.join(name);
    let options = ExportOptions { name: name.into(), socket, discard: false, allow_file_memory, ..vhost_options() };
    VhostExport::start(&served.threads, &served.disk, options).unwrap()
}

fn ready(directory: &Path, name: &str) -> Raw {
    Raw::ready(directory.join(name).to_str().unwrap(), VERSION_1 | BLK_FLUSH, PROTOCOL).unwrap()
}

fn client(directory: &Path, name: &str) -> Raw {
    let mut raw = ready(directory, name);
    raw.start(0, 64, Format::Split, Notify::Both).unwrap();
    raw
}

fn read(raw: &mut Raw, what: &str) {
    let mark = raw.guest.mark();
    let request = raw.block(block::IN, 0, 512).unwrap();
    let done = raw.execute(0, &request, LONG).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(done, (block::OK, 513), "{what}");
    raw.guest.rewind(mark);
}

/// Fills the eventfd, so that the next write to it waits for a reader.
fn fill(call: impl AsFd) {
    rustix::io::ioctl_fionbio(&call, true).unwrap();
    // Empties its counter first.
    let _ = rustix::io::read(&call, &mut [0; 8]);
    let _ = rustix::io::write(&call, &(u64::MAX - 1).to_le_bytes());
    rustix::io::ioctl_fionbio(&call, false).unwrap();
}

/// O_NONBLOCK belongs to the open file, which the client has, too. Once, a client cleared the flag after we had set it, and filled the
/// counter.
#[test]
fn a_blocking_call_hangs_no_other_client() {
    let served = Served::new("hostile", "ram:size=16m", 1);
    let (bad, good) = (export(&served, "bad"), export(&served, "good"));
    let mut neighbour = client(&served.directory, "good");
    for round in 0..20 {
        let mut hostile = client(&served.directory, "bad");
        fill(hostile.call_fd(0).unwrap());
        for _ in 0..3 {
            read(&mut hostile, &format!("round {round}, the hostile one"));
            read(&mut neighbour, &format!("round {round}, its neighbour"));
        }
    }
    drop((bad, good));
    serving::check_drained(&served.disk);
    let _ = fs::remove_dir_all(&served.directory);
}

/// The flag may change between any check and the write.
#[test]
fn a_call_that_blocks_at_times_hangs_no_other_client() {
    let served = Served::new("hostile", "ram:size=16m", 1);
    let (bad, good) = (export(&served, "bad"), export(&served, "good"));
    let mut neighbour = client(&served.directory, "good");
    let mut hostile = client(&served.directory, "bad");
    let call: OwnedFd = hostile.call_fd(0).unwrap().try_clone_to_owned().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fill(&call);
            while !stop.load(Ordering::Relaxed) {
                let _ = rustix::io::ioctl_fionbio(&call, true);
                let _ = rustix::io::ioctl_fionbio(&call, false);
            }
        });
        for _ in 0..200 {
            read(&mut hostile, "the hostile one");
            read(&mut neighbour, "its neighbour");
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop((bad, good));
    serving::check_drained(&served.disk);
    let _ = fs::remove_dir_all(&served.directory);
}

/// The creator of such a descriptor decides the effect of a write, a read or a wait on it.
#[test]
fn descriptors_that_are_no_eventfds_are_refused() {
    let served = Served::new("hostile", "ram:size=16m", 1);
    let export = export(&served, "bad");
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let file = rustix::fs::memfd_create("no event", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for message in [request::SET_VRING_CALL, request::SET_VRING_KICK, request::SET_VRING_ERR] {
        for fd in [reader.as_fd(), writer.as_fd(), file.as_fd()] {
            let mut raw = ready(&served.directory, "bad");
            let refused = raw.call(message, &0u64.to_le_bytes(), &[fd]);
            assert!(refused.is_err(), "message {message} with {fd:?}");
            assert!(raw.is_dropped(LONG).unwrap(), "message {message} with {fd:?}");
        }
    }
    read(&mut client(&served.directory, "bad"), "after them");
    drop(export);
    let _ = fs::remove_dir_all(&served.directory);
}

/// A file on a FUSE mount of qemu-storage-daemon, in a mount namespace of its own: programs that look at all mounts would wait for a
/// stopped server, too.
struct FuseFile {
    server: Child,
    file: File,
}

impl FuseFile {
    fn new(directory: &Path) -> FuseFile {
        fs::write(directory.join("image"), vec![0; 4 << 20]).unwrap();
        fs::write(directory.join("mount"), "").unwrap();
        let node = "driver=file,node-name=n,filename=image";
        let export = "type=fuse,id=e,node-name=n,mountpoint=mount,writable=on";
        let mut command = Command::new("unshare");
        command.args(["--mount", "qemu-storage-daemon", "--blockdev", node, "--export", export]);
        let mut server = command.current_dir(directory).spawn().unwrap();
        let mounted = format!("/proc/{}/root{}", server.id(), directory.join("mount").display());
        until("the file is mounted", || {
            assert!(server.try_wait().unwrap().is_none(), "the server has ended");
            fs::metadata(&mounted).is_ok_and(|m| m.len() > 0)
        });
        FuseFile { server, file: File::options().read(true).write(true).open(&mounted).unwrap() }
    }

    /// Stops its server: a thread that touches a page of the file waits, and so does one that closes it.
    fn hang(&self) {
        kill_process(Pid::from_child(&self.server), Signal::STOP).unwrap();
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Once, an IOThread touched such memory and stood still for good, with all its clients.
#[test]
fn memory_whose_pages_may_never_come_is_refused() {
    // A process that is started while another has the file closes its copy, and so waits, too.
    if !own_process::is_alone("vhost_hostile::memory_whose_pages_may_never_come_is_refused", &[]) {
        return;
    }
    let served = Served::new("hostile", "ram:size=16m", 1);
    let (bad, good, any) = (export(&served, "bad"), export(&served, "good"), export_with(&served, "any", true));
    let mut neighbour = client(&served.directory, "good");
    let fuse = FuseFile::new(&served.directory);
    let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let region = |count: u64| words(&[count, 1 << 40, 1 << 20, 1 << 40, 0]);
    let mut allowed = ready(&served.directory, "any");
    allowed.call(request::ADD_MEM_REG, &region(0), &[fuse.file.as_fd()]).unwrap();
    drop(allowed);

    fuse.hang();
    let messages = [
        ("SET_MEM_TABLE", request::SET_MEM_TABLE, region(1)),
        ("ADD_MEM_REG", request::ADD_MEM_REG, region(0)),
        ("SET_INFLIGHT_FD", request::SET_INFLIGHT_FD, words(&[1 << 20, 0, 1 | 64 << 16])),
        ("SET_LOG_BASE", request::SET_LOG_BASE, words(&[1 << 20, 0])),
    ];
    // As many as are closed aside.
    for _ in 0..4 {
        for (name, message, payload) in &messages {
            let mut raw = ready(&served.directory, "bad");
            let fds = [fuse.file.as_fd()];
            let refused = match *message {
                request::SET_LOG_BASE => raw.ask(*message, payload, &fds).is_err(),
                _ => raw.call(*message, payload, &fds).is_err(),
            };
            assert!(refused, "{name}");
            read(&mut neighbour, name);
        }
    }
    // Any file of tmpfs has its pages in memory, whatever its name.
    let path = format!("/dev/shm/mqblk-memory-{}", std::process::id());
    let memory = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    memory.set_len(1 << 20).unwrap();
    neighbour.call(request::ADD_MEM_REG, &region(0), &[memory.as_fd()]).unwrap();
    read(&mut neighbour, "with a file of tmpfs");
    drop((neighbour, bad, good, any));
    // The server's end fails all that waits for it.
    drop(fuse);
    serving::check_drained(&served.disk);
    let _ = fs::remove_dir_all(&served.directory);
}
