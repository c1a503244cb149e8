// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Thousands of clients connect and disconnect, most of them with protocol errors, while another one works. In a separate process,
//! because the test counts the resources of the process.

use crate::own_process;
use crate::serving;
use crate::waiting::{LONG, POLL};

use host::export::vhost::{ExportOptions, VhostExport};
use serving::{Served, vhost_options};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use vuclient::raw::message::feature::{BLK_FLUSH, RING_PACKED, VERSION_1};
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, READY_MEMORY, Raw, block};
use vuclient::{Verifier, VerifyOptions};

const FEATURES: u64 = VERSION_1 | BLK_FLUSH;
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::CONFIG
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::INFLIGHT_SHMFD
    | protocol::LOG_SHMFD
    | protocol::BACKEND_REQ;
/// More than twice the number of a disk's submitters. Half of the clients use one.
const CLIENTS: u64 = 2500;

fn options(socket: &Path, iothread: usize) -> ExportOptions {
    ExportOptions { socket: socket.to_owned(), mapping: vec![iothread], ..vhost_options() }
}

/// Runs client number `n`. Each client is of another kind than the one before.
fn visit(socket: &str, n: u64) {
    let (format, packed) = if n & 8 == 0 { (Format::Split, 0) } else { (Format::Packed, RING_PACKED) };
    let ready = || Raw::ready(socket, FEATURES | packed, PROTOCOL).unwrap();
    let with_requests = |notify| {
        let mut raw = ready();
        raw.start(0, 64, format, notify).unwrap();
        for i in 0..8 {
            let read = raw.block(block::IN, n + i, 4096).unwrap();
            raw.submit(0, &read.segments()).unwrap();
        }
        raw
    };
    match n % 8 {
        0 => drop(Raw::connect(socket).unwrap()),
        1 => Raw::connect(socket).unwrap().channel.send_bytes(&[2, 0, 0, 0, 1, 0, 0], &[]).unwrap(),
        2 => drop(ready()),
        3 => with_requests(Notify::Both).kick(0).unwrap(),
        // Served without kicks and calls.
        4 => drop(with_requests(Notify::Neither)),
        5 => assert!(ready().call(request::SET_VRING_NUM, &[0; 8], &[]).is_err()),
        6 => {
            let mut raw = with_requests(Notify::Both);
            raw.guest.cut_short(READY_MEMORY.0, 0).unwrap();
            raw.kick(0).unwrap();
        }
        _ => {
            let mut raw = ready();
            let notes = raw.inflight(1, 64).unwrap();
            raw.set_inflight(&notes).unwrap();
            let _channel = raw.backend_channel().unwrap();
            let _log = raw.set_log(4096).unwrap();
            raw.start(0, 64, format, Notify::Both).unwrap();
            let read = raw.block(block::IN, 0, 512).unwrap();
            assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
        }
    }
}

/// Returns the number of the process's descriptors and mappings, and of the disk's memory regions.
fn holdings(served: &Served) -> (usize, usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (descriptors, mappings, served.disk.regions.count())
}

/// A client that writes and verifies until it is told to end.
struct Work {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Work {
    fn start(socket: &Path, seed: u64) -> Work {
        let stop = Arc::new(AtomicBool::new(false));
        let (path, told) = (socket.to_str().unwrap().to_owned(), Arc::clone(&stop));
        let run = move || {
            let options = VerifyOptions { size: 8 << 20, seed, requests: 500, ..VerifyOptions::default() };
            let (mut verifier, mut rounds) = (Verifier::new(options).unwrap(), 0);
            while !told.load(Ordering::Relaxed) {
                verifier.run(&path).unwrap();
                rounds += 1;
            }
            verifier.compare(&path).unwrap();
            rounds
        };
        Work { stop, thread: std::thread::spawn(run) }
    }

    /// Ends the client. Returns how often it wrote and read.
    fn ends(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn thousands_of_clients_leave_nothing_behind() {
    if !own_process::is_alone("vhost_churn::thousands_of_clients_leave_nothing_behind", &[]) {
        return;
    }
    let served = Served::new("churn", "ram:size=64m", 2);
    let (socket, beside) = (served.directory.join("churn.sock"), served.directory.join("beside.sock"));
    let start = |options| VhostExport::start(&served.threads, &served.disk, options).unwrap();
    let (export, other) = (start(options(&socket, 1)), start(options(&beside, 0)));
    let (path, side) = (socket.to_str().unwrap(), beside.to_str().unwrap());
    // Each kind once, so that resources that are kept for the next client exist.
    let work = Work::start(&beside, 9);
    (0..16).for_each(|n| visit(path, n));
    work.ends();
    let before = settled(&served, [path, side], None);
    let work = Work::start(&beside, 10);
    (0..CLIENTS).for_each(|n| visit(path, n));
    let rounds = work.ends();
    assert!(rounds > 1, "{rounds} rounds of the client beside them");
    let after = settled(&served, [path, side], Some(before));
    println!("descriptors, mappings, regions: {before:?} before, {after:?} after; {rounds} rounds beside them");
    let (dropped, _) = export.dropped();
    assert!(dropped >= CLIENTS / 8 * 2, "{dropped} of {CLIENTS} were dropped");
    assert_eq!(other.dropped().0, 0);
    drop((export, other));
    serving::check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}

/// Returns the resources of the process after the last client is gone, which may be after its disconnect. If `right` is given, waits
/// until the resources are those.
fn settled(served: &Served, sockets: [&str; 2], right: Option<(usize, usize, usize)>) -> (usize, usize, usize) {
    let end = Instant::now() + LONG;
    loop {
        // These clients are served after all earlier ones are gone.
        let raws = sockets.map(|socket| Raw::ready(socket, FEATURES, PROTOCOL).unwrap());
        let here = holdings(served);
        drop(raws);
        let Some(right) = right else { return here };
        // The heap of this process may have some more mappings. A queue keeps its bounce buffers; on a busy machine, both queues need some at
        // one time only later.
        if here.0 == right.0 && here.1 < right.1 + 40 && here.2 <= right.2 + 1 {
            return here;
        }
        assert!(Instant::now() < end, "{right:?} before, {here:?} after");
        std::thread::sleep(POLL);
    }
}
