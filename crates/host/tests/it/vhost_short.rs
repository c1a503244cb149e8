// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of vhost-user-blk that truncate the file of their memory while it is in use.

use crate::common;
use crate::serving;
use crate::vhost_server;
use crate::waiting::LONG;

use common::peers::Peer;
use common::peers::certificates::{Authority, NOW};
use host::export::nbd::{Address, NbdExport, NbdOptions};
use host::export::vhost::{ExportOptions, VhostExport};
use host::net::certificates::NbdTls;
use host::net::certificates::Tls;
use serving::{Served, run, vhost_options};
use std::fs;
use vhost_server::{BOTH, Server};
use vuclient::raw::{Format, Notify, READY_MEMORY, block};
use vuclient::{VerifyOptions, verify};

/// A client that truncates its memory while its requests are in flight is dropped. The I/O of another client continues, in the same
/// process, on the same IOThread and the same disk.
#[test]
fn client_that_truncates_its_memory_is_dropped_alone() {
    for target in ["ram:size=64m", "file", "model:lat_us=2000,over=ram,size=64m"] {
        cut_short_under(target);
    }
}

/// Once, a request whose memory was gone broke its connection to the NBD server. It was sent again on the next connection and broke
/// that one, too, for ever. Other requests on the queue made no progress or failed. Now only that request fails, also if
/// half of it was sent.
#[test]
fn requests_without_memory_fail_alone_on_an_nbd_disk() {
    // Not nbdkit: 1.32 sometimes crashes when a client disconnects while it is answered.
    let mut peer = Peer::qemu(&[]);
    peer.kill();
    fs::OpenOptions::new().write(true).open(&peer.file.as_ref().unwrap().0).unwrap().set_len(64 << 20).unwrap();
    peer.start();
    for delay in ["", "&reconnect_delay=60"] {
        cut_short_under(&peer.target(delay));
        fail_alone_on(&peer.target(delay));
    }
    let server = Served::new("cut", "ram:size=64m", 1);
    let options = server.nbd_options(server.nbd_disk());
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let nbd = NbdExport::start(&server.threads, NbdOptions { address, ..options }).unwrap();
    let Address::Tcp(at) = nbd.address() else { panic!("a TCP server") };
    for delay in ["0", "60"] {
        cut_short_under(&format!("nbd://{at}/d?reconnect_delay={delay}"));
        fail_alone_on(&format!("nbd://{at}/d?reconnect_delay={delay}"));
    }
    drop(nbd);
    fs::remove_dir_all(&server.directory).unwrap();
}

/// A read without memory for its data, and a write whose data is gone, are not reported as successful. The disk copies data itself,
/// so no system call reports an error.
#[test]
fn requests_without_memory_do_not_succeed_on_a_disk_that_copies() {
    const LEN: u32 = 64 << 10;
    let server = Server::new("ram:size=64m", 1, 1);
    for (round, kind) in (0..8).zip([block::IN, block::OUT].into_iter().cycle()) {
        let mut raw = server.raw(BOTH[round / 2 % 2].0, 0, Notify::Both);
        let mut request = raw.block(kind, 0, 0).unwrap();
        (request.data, request.len) = (raw.guest.take(LEN as usize, 4096).unwrap(), LEN);
        raw.guest.cut_short(READY_MEMORY.0, request.data + u64::from(LEN / 2) - READY_MEMORY.0).unwrap();
        raw.submit(0, &request.segments()).unwrap();
        raw.kick(0).unwrap();
        assert!(raw.is_dropped(LONG).unwrap(), "round {round}: still there");
        assert_ne!(request.status(&raw.guest).unwrap(), block::OK, "round {round}");
    }
    server.check_idle();
}

/// Headers and statuses exist, but data is missing, or half of it. Each such request fails, and the others succeed.
fn fail_alone_on(target: &str) {
    const LEN: u32 = 128 << 10;
    let server = Server::new(target, 1, 1);
    for round in 0..6 {
        let mut raw = server.raw(BOTH[round % 2].0, 0, Notify::Both);
        let kinds = [block::OUT, block::IN, block::OUT, block::OUT, block::IN];
        let mut requests: Vec<_> =
            (0..).step_by(256).zip(kinds).map(|(at, kind)| raw.block(kind, 40000 + at, 0).unwrap()).collect();
        let mut take = |len: u32| raw.guest.take(len as usize, 4096).unwrap();
        let good = [take(LEN), take(LEN)];
        // Two buffers that cross the cut, and one beyond it.
        let halves = [take(LEN / 2), take(LEN / 2)];
        let cut = take(LEN);
        assert_eq!(halves[1] + u64::from(LEN / 2), cut);
        for (request, data) in requests.iter_mut().zip([good[0], halves[1], cut, halves[1], good[1]]) {
            (request.data, request.len) = (data, LEN);
        }
        raw.guest.cut_short(READY_MEMORY.0, cut - READY_MEMORY.0).unwrap();
        for request in &requests {
            raw.submit(0, &request.segments()).unwrap();
        }
        raw.kick(0).unwrap();
        let mut ended = 0;
        while ended < requests.len() {
            let used = raw.wait_used(0, LONG).unwrap();
            assert!(!used.is_empty(), "{target} round {round}: {ended} of {} requests have ended", requests.len());
            ended += used.len();
        }
        let told: Vec<_> = requests.iter().map(|r| r.status(&raw.guest).unwrap()).collect();
        let (ok, failed) = (block::OK, block::IOERR);
        assert_eq!(told, [ok, failed, failed, failed, ok], "{target} round {round}");
    }
    server.check_idle();
}

/// Once, each write that was half sent when its memory was found gone caused an immediate reconnect. A client could
/// keep the server, and all others on the queue, busy with reconnects. Now there are pauses between reconnects, which a test of the
/// driver checks. Other requests wait for them and do not fail.
#[test]
fn a_request_that_breaks_connections_fails_alone() {
    const LEN: u32 = 128 << 10;
    // Our own server, because nbdkit 1.32 sometimes aborts (`sock >= 0`) when a client disconnects while it is answered.
    let far = Served::new("paced", "ram:size=64m", 1);
    let nbd = NbdExport::start(&far.threads, far.nbd_options(far.nbd_disk())).unwrap();
    let socket = far.directory.join("nbd.sock");
    let server = Server::new(&format!("nbd+unix:///d?socket={}&connections=1", socket.display()), 1, 1);
    let beside = server.directory.join("beside.sock");
    let options = ExportOptions { socket: beside.clone(), ..vhost_options() };
    let export = VhostExport::start(&server.threads, &server.disk, options).unwrap();
    let good = std::thread::spawn(move || {
        let load = VerifyOptions { size: 8 << 20, seed: 3, requests: 300, ..VerifyOptions::default() };
        verify(beside.to_str().unwrap(), &load)
    });
    let mut raw = server.raw(Format::Split, 0, Notify::Both);
    let mut request = raw.block(block::OUT, 40000, 0).unwrap();
    (request.data, request.len) = (raw.guest.take(LEN as usize, 4096).unwrap(), LEN);
    raw.guest.cut_short(READY_MEMORY.0, request.data + u64::from(LEN / 2) - READY_MEMORY.0).unwrap();
    let losses = || server.disk.connections().expect("an NBD disk").losses;
    for round in 0.. {
        // Each lost connection belongs to a failed request.
        assert!(losses() <= round, "{} losses for {round} requests", losses());
        if losses() >= 7 {
            break;
        }
        assert!(round < 10_000, "{} losses: {:?}", losses(), server.disk.troubles());
        raw.submit(0, &request.segments()).unwrap();
        raw.kick(0).unwrap();
        assert!(!raw.wait_used(0, LONG).unwrap().is_empty(), "{} losses", losses());
        assert_eq!(request.status(&raw.guest).unwrap(), block::IOERR);
    }
    let report = good.join().unwrap().unwrap();
    assert!(report.writes > 10, "{report:?}");
    drop((raw, export));
    server.check_idle();
    drop(nbd);
    fs::remove_dir_all(&far.directory).unwrap();
}

/// Under TLS, we copy the data of a write. Zeroes in place of lost memory could be written. Instead, the write
/// is not sent completely, and its client is dropped, as with other drivers that copy. Other clients continue.
#[test]
fn tls_writes_nothing_in_place_of_lost_memory() {
    const LEN: u32 = 128 << 10;
    let far = Served::new("gone", "ram:size=64m", 1);
    let authority = Authority::new("tests");
    let pki = authority.server(&far.directory, "pki", NOW);
    let tls = Tls::load(&NbdTls::in_directory(&pki, false, false)).map_err(|e| e.text).unwrap();
    let options = NbdOptions { tls: Some(tls), ..far.nbd_options(far.nbd_disk()) };
    let nbd = NbdExport::start(&far.threads, options).unwrap();
    let socket = far.directory.join("nbd.sock").display().to_string();
    let target = format!("nbds+unix:///d?socket={socket}&tls-certificates={}", pki.display());
    cut_short_under(&target);
    let plain = format!("nbd+unix:///d?socket={socket}");
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 16M 4M", &plain]);
    let server = Server::new(&target, 1, 1);
    // The cut is at the beginning, at the end of a page that does not end a record, and in the middle of the last record.
    for (round, there) in [0, 4096, LEN / 2, LEN - 4096, 20480, 0].into_iter().enumerate() {
        let mut raw = server.raw(BOTH[round % 2].0, 0, Notify::Both);
        let mut request = raw.block(block::OUT, (16 << 11) + 512 * round as u64, 0).unwrap();
        (request.data, request.len) = (raw.guest.take(LEN as usize, 4096).unwrap(), LEN);
        raw.guest.write(request.data, &[0x77; LEN as usize]).unwrap();
        raw.guest.cut_short(READY_MEMORY.0, request.data + u64::from(there) - READY_MEMORY.0).unwrap();
        raw.submit(0, &request.segments()).unwrap();
        raw.kick(0).unwrap();
        assert!(raw.is_dropped(LONG).unwrap(), "round {round}: still there");
    }
    server.check_idle();
    let copy = far.directory.join("copy");
    run("nbdcopy", &[&plain, copy.to_str().unwrap()]);
    let bytes = fs::read(&copy).unwrap();
    let at = bytes[16 << 20..20 << 20].iter().position(|byte| ![0x5a, 0x77].contains(byte));
    assert_eq!(at, None, "bytes that were never written");
    drop(nbd);
    fs::remove_dir_all(&far.directory).unwrap();
}

fn cut_short_under(target: &str) {
    let server = Server::new(target, 1, 1);
    let beside = server.directory.join("beside.sock");
    let options = ExportOptions { socket: beside.clone(), ..vhost_options() };
    let export = VhostExport::start(&server.threads, &server.disk, options).unwrap();
    let good = std::thread::spawn(move || {
        let load = VerifyOptions { size: 8 << 20, seed: 3, requests: 3000, ..VerifyOptions::default() };
        verify(beside.to_str().unwrap(), &load)
    });
    for round in 0..12u64 {
        let (format, _) = BOTH[round as usize % 2];
        let mut raw = server.raw(format, 0, Notify::Both);
        let kept = [0, 4096, 1 << 20][round as usize % 3];
        // After the range that the other client verifies.
        let kind = |i| if i % 4 == round % 4 { block::OUT } else { block::IN };
        let requests: Vec<_> = (0..16).map(|i| raw.block(kind(i), 40000 + 256 * i, 128 << 10).unwrap()).collect();
        for request in &requests {
            raw.submit(0, &request.segments()).unwrap();
        }
        let last = raw.block(block::IN, 0, 512).unwrap();
        if round < 6 {
            raw.kick(0).unwrap();
        }
        raw.guest.cut_short(READY_MEMORY.0, kept).unwrap();
        // All requests may have completed before the cut. If the ring is still there, the server has to access other memory that is gone.
        if kept > 0 {
            raw.submit(0, &last.segments()).unwrap();
        }
        raw.kick(0).unwrap();
        assert!(raw.is_dropped(LONG).unwrap(), "{target} round {round}: still there");
    }
    let (dropped, why) = server.export.as_ref().unwrap().dropped();
    assert_eq!(dropped, 12, "{target}: {why:?}");
    assert!(why.as_ref().is_some_and(|w| w.contains("pages of its memory")), "{why:?}");
    let report = good.join().unwrap().unwrap();
    assert!(report.writes > 100, "{report:?}");
    assert_eq!(export.dropped(), (0, None));
    // The next client is served.
    let mut next = server.raw(Format::Split, 0, Notify::Both);
    let read = next.block(block::IN, 0, 512).unwrap();
    assert_eq!(next.execute(0, &read, LONG).unwrap().0, block::OK);
    drop(next);
    drop(export);
    server.check_idle();
}
