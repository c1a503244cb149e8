// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile front ends that misuse the descriptors that they send. Other clients of the IOThread must be served as before.

use crate::serving;

use host::export::vhost::{ExportOptions, VhostExport};
use serving::{Served, vhost_options};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vuclient::raw::message::feature::{BLK_FLUSH, VERSION_1};
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, Raw, block};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;
const LONG: Duration = Duration::from_secs(300);

fn export(served: &Served, name: &str) -> VhostExport {
    let options =
        ExportOptions { name: name.into(), socket: served.directory.join(name), discard: false, ..vhost_options() };
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
