// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues and clients move between IOThreads under load, IOThreads are added and removed, and a mapping changes.

use crate::serving;
use crate::waiting;

use host::export::nbd::{NbdDisk, NbdExport};
use host::export::vhost::{ExportOptions, VhostExport};
use host::serve::{Polling, ThreadOptions};
use serving::{Served, check_drained, run, vhost_options};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use vuclient::verify::{VerifyOptions, verify};
use waiting::until;

fn vhost(served: &Served, mapping: Vec<usize>) -> VhostExport {
    let options = ExportOptions { socket: served.directory.join("vhost.sock"), mapping, ..vhost_options() };
    VhostExport::start(&served.threads, &served.disk, options).unwrap()
}

fn nbd(served: &Served) -> NbdExport {
    let disk = NbdDisk { iothreads: vec![0], ..served.nbd_disk() };
    NbdExport::start(&served.threads, served.nbd_options(disk)).unwrap()
}

/// Runs a client while `change` is made, which counts, and repeats it until there were more changes than `enough`. How many one run has
/// depends on the machine's other load.
fn under_changes<T: Send>(enough: u64, change: impl Fn(&AtomicU64), client: impl Fn() -> T + Sync) -> T {
    let changes = AtomicU64::new(0);
    let result = thread::scope(|scope| {
        let runs = scope.spawn(|| (0..50).map(|_| client()).find(|_| changes.load(Ordering::Relaxed) > enough));
        while !runs.is_finished() {
            change(&changes);
        }
        runs.join().unwrap()
    });
    result.unwrap_or_else(|| panic!("{} changes", changes.into_inner()))
}

/// The same while every source moves to the next IOThread again and again.
fn under_moves<T: Send>(served: &Served, client: impl Fn() -> T + Sync) -> T {
    let move_all = |moves: &AtomicU64| {
        for report in served.threads.report() {
            for source in report.sources {
                let to = (report.number + 1) % served.threads.len();
                // A source that has just ended is not an error.
                moves.fetch_add(u64::from(served.threads.move_to(&source.handle, to).is_ok()), Ordering::Relaxed);
            }
        }
    };
    under_changes(10, move_all, client)
}

#[test]
fn a_guest_finds_what_it_wrote_while_its_virtqueues_move() {
    for (target, virtqueues) in [("ram:size=64m", 3), ("file", 2)] {
        let served = Served::new("moving", target, 3);
        let export = vhost(&served, vec![0; virtqueues]);
        let socket = served.directory.join("vhost.sock");
        let options = VerifyOptions {
            queues: virtqueues as u32,
            size: 32 << 20,
            seed: 5,
            requests: 1500,
            ..VerifyOptions::default()
        };
        let report = under_moves(&served, || verify(socket.to_str().unwrap(), &options).unwrap());
        assert!(report.reads > 100 && report.writes > 100, "{target}: {report:?}");
        drop(export);
        check_drained(&served.disk);
        fs::remove_dir_all(&served.directory).unwrap();
    }
}

#[test]
fn nbd_clients_find_what_they_wrote_while_they_move() {
    for target in ["ram:size=64m", "file"] {
        let served = Served::new("moving", target, 3);
        let export = nbd(&served);
        let uri = format!("nbd+unix:///d?socket={}", served.directory.join("nbd.sock").display());
        let fio = |jobs: &str| {
            let uri = format!("--uri={uri}");
            let jobs = format!("--numjobs={jobs}");
            let state = format!("--aux-path={}", served.directory.display());
            let common = ["--name=j", "--ioengine=nbd", &uri, &jobs, &state, "--rw=randrw", "--bsrange=512-128k"];
            let verify = ["--iodepth=8", "--size=12m", "--offset_increment=16m", "--verify=crc32c", "--verify_fatal=1"];
            run("fio", &[&common[..], &verify].concat())
        };
        under_moves(&served, || fio("3"));
        drop(export);
        check_drained(&served.disk);
        fs::remove_dir_all(&served.directory).unwrap();
    }
}

#[test]
fn mapping_changes_under_a_guest_and_holds_for_the_next() {
    let served = Served::new("moving", "ram:size=64m", 2);
    let export = vhost(&served, vec![0, 1, 0, 1]);
    let socket = served.directory.join("vhost.sock");
    let seen = |threads: &host::serve::IoThreads| -> BTreeSet<(u32, usize)> {
        let queues = |r: host::serve::ThreadReport| r.sources.into_iter().map(move |s| (s.index, r.number));
        threads.report().into_iter().flat_map(queues).collect()
    };
    let options = VerifyOptions { queues: 4, size: 8 << 20, requests: 2000, ..VerifyOptions::default() };
    let mappings = [vec![1, 1, 1, 1], vec![0, 0, 1, 1], vec![0, 0, 0, 0], vec![1, 0, 1, 0]];
    let remap = |switched: &AtomicU64| {
        let mapping = &mappings[switched.load(Ordering::Relaxed) as usize % mappings.len()];
        export.remap(mapping.clone()).unwrap();
        assert_eq!(export.mapping(), *mapping);
        let placed = seen(&served.threads);
        // Queues of a client that is just disconnecting stay where they were.
        if export.clients()() > 0 {
            for (queue, thread) in placed {
                assert_eq!(thread, mapping[queue as usize], "virtqueue {queue}");
            }
        }
        switched.fetch_add(1, Ordering::Relaxed);
    };
    under_changes(3, remap, || verify(socket.to_str().unwrap(), &options).unwrap());
    assert!(export.remap(vec![0, 1, 2, 0]).unwrap_err().to_string().contains("to an existing IOThread"));
    assert!(export.remap(vec![0]).is_err());
    verify(socket.to_str().unwrap(), &options).unwrap();
    drop(export);
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}

#[test]
fn iothreads_come_and_go_and_one_in_use_stays() {
    let served = Served::new("moving", "ram:size=64m", 1);
    let options = |name: &str| ThreadOptions { name: name.into(), ..ThreadOptions::default() };
    let threads = &served.threads;
    assert_eq!(threads.start_one(&options("late")).unwrap(), 1);
    let export = vhost(&served, vec![1]);
    let socket = served.directory.join("vhost.sock");
    let load = VerifyOptions { size: 8 << 20, requests: 500, ..VerifyOptions::default() };
    verify(socket.to_str().unwrap(), &load).unwrap();
    let nbd = nbd(&served);
    let client = std::os::unix::net::UnixStream::connect(served.directory.join("nbd.sock")).unwrap();
    threads.retune(1, Polling { max: Some(blk::time::Duration::ZERO), ..Polling::default() }, &[0]).unwrap();
    export.remap(vec![0]).unwrap();
    // The virtqueues of a client that is just disconnecting are not moved.
    until("the second IOThread serves nothing", || {
        threads.report().iter().all(|r| r.number != 1 || r.sources.is_empty())
    });
    threads.stop_one(1).unwrap();
    assert!(!threads.contains(1) && threads.stop_one(1).is_err());
    let refused = export.remap(vec![1]).unwrap_err().to_string();
    assert!(refused.contains("an existing IOThread"), "{refused}");
    verify(socket.to_str().unwrap(), &load).unwrap();
    assert_eq!(threads.start_one(&options("again")).unwrap(), 1, "the number is free again");
    export.remap(vec![1]).unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let long = VerifyOptions { requests: 3000, ..load };
            verify(socket.to_str().unwrap(), &long).unwrap();
        });
        while !client.is_finished() {
            let used = threads.report().iter().any(|r| r.number == 1 && !r.sources.is_empty());
            if used {
                match threads.stop_one(1) {
                    Err(e) => assert!(e.to_string().contains("still serves"), "{e}"),
                    Ok(()) => assert_eq!(threads.start_one(&options("once more")).unwrap(), 1),
                }
            }
        }
    });
    drop((export, nbd, client));
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}
