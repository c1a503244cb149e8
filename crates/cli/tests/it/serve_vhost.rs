// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve` as a daemon for virtual machines: clients of vhost-user-blk read back what they wrote, also after the daemon was killed.
//! The daemon ends on request and leaves no files behind.

use crate::common;

use common::{Dir, LONG, Started};
use std::fs::File;
use vuclient::raw::message::feature::{BLK_FLUSH, RING_PACKED, VERSION_1};
use vuclient::raw::message::protocol;
use vuclient::raw::{Format, Notify, Raw, block};
use vuclient::{Verifier, VerifyOptions};

const PROTOCOL: u64 =
    protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG | protocol::CONFIGURE_MEM_SLOTS | protocol::INFLIGHT_SHMFD;

fn config(target: &str) -> String {
    format!(
        "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n\
         [[disk]]\nname = \"d\"\ntarget = \"{target}\"\n\
         [[export]]\ntype = \"vhost-user-blk\"\nsocket = \"d.sock\"\nnum_queues = 2\n"
    )
}

/// Starts a daemon that serves `target` at `d.sock`.
fn daemon(dir: &Dir, target: &str) -> Started {
    dir.file("serve.toml", &config(target));
    dir.start(&["serve", "serve.toml"], "serving")
}

fn socket(dir: &Dir) -> String {
    dir.path("d.sock").to_str().unwrap().to_owned()
}

#[test]
fn written_data_survives_a_restart_and_no_socket_is_left() {
    let dir = Dir::new("serve-vhost");
    File::create(dir.path("disk.img")).unwrap().set_len(32 << 20).unwrap();
    let options = VerifyOptions { queues: 2, size: 16 << 20, seed: 5, requests: 600, ..VerifyOptions::default() };
    let mut verifier = Verifier::new(options).unwrap();
    for signal in ["TERM", "INT", "KILL"] {
        let started = daemon(&dir, "disk.img");
        verifier.compare(&socket(&dir)).unwrap();
        let report = verifier.run(&socket(&dir)).unwrap();
        assert!(report.writes > 100, "{report:?}");
        started.signal(signal);
        let done = started.ends();
        assert_eq!(done.status, if signal == "KILL" { -1 } else { 0 }, "{done:?}");
        let left: &[&str] =
            if signal == "KILL" { &["d.sock", "disk.img", "serve.toml"] } else { &["disk.img", "serve.toml"] };
        assert_eq!(dir.list(), left, "after SIG{signal}");
    }
    let started = daemon(&dir, "disk.img");
    verifier.compare(&socket(&dir)).unwrap();
    started.signal("TERM");
    started.ends().exits(0);
}

/// The first daemon's disk takes an hour for each request. The daemon is killed with writes in flight. The second daemon, on the image
/// itself, finds these in the in-flight region and completes them without a new submission.
#[test]
fn requests_in_flight_at_a_kill_are_done_by_the_next_daemon() {
    resume_after_kill(Format::Split, 0);
    resume_after_kill(Format::Packed, RING_PACKED);
}

fn resume_after_kill(format: Format, packed: u64) {
    let features = VERSION_1 | BLK_FLUSH | packed;
    let dir = Dir::new("serve-inflight");
    File::create(dir.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let first = daemon(&dir, "model:lat_us=60000000,over=null,size=16m");
    let mut raw = Raw::ready(&socket(&dir), features, PROTOCOL).unwrap();
    let inflight = raw.inflight(2, 64).unwrap();
    raw.set_inflight(&inflight).unwrap();
    raw.start(0, 64, format, Notify::Both).unwrap();
    let serial = raw.block(block::GET_ID, 0, 20).unwrap();
    assert_eq!(raw.execute(0, &serial, LONG).unwrap().0, block::OK);
    let mut writes = Vec::new();
    for i in 0..5u8 {
        let write = raw.block(block::OUT, 100 * u64::from(i), 4096).unwrap();
        raw.guest.write(write.data, &[i + 1; 4096]).unwrap();
        raw.submit(0, &write.segments()).unwrap();
        writes.push(write);
    }
    raw.kick(0).unwrap();
    // This request is after the writes in the ring and completes at once. So the daemon has taken the writes.
    let serial = raw.block(block::GET_ID, 0, 20).unwrap();
    raw.submit(0, &serial.segments()).unwrap();
    raw.kick(0).unwrap();
    assert_eq!(raw.wait_used(0, LONG).unwrap().len(), 1);
    first.signal("KILL");
    assert_eq!(first.ends().status, -1);
    let second = daemon(&dir, "disk.img");
    raw.resume(&socket(&dir), features, &inflight, Notify::Both).unwrap();
    let mut ended = 0;
    while ended < writes.len() {
        ended += raw.wait_used(0, LONG).unwrap().len();
    }
    for (i, write) in writes.iter().enumerate() {
        assert_eq!(write.status(&raw.guest).unwrap(), block::OK, "write {i}");
        let read = raw.block(block::IN, 100 * i as u64, 4096).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 4097));
        assert_eq!(raw.guest.read(read.data, 4096).unwrap(), vec![i as u8 + 1; 4096]);
    }
    assert_eq!(ended, writes.len(), "nothing was done twice");
    // The ring wraps many times: no count is wrong, and none of the old requests is left.
    for lap in 0..200 {
        let mark = raw.guest.mark();
        let read = raw.block(block::IN, lap, 512).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 513), "{format:?}, lap {lap}");
        raw.guest.rewind(mark);
    }
    drop(raw);
    second.signal("TERM");
    second.ends().exits(0);
}
