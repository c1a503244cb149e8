// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cheap driver against qemu-storage-daemon: split rings, direct and indirect, waiting and polling, with EVENT_IDX and with flags. A
//! failed request or a server crash ends the run.
//!
//! The packed ring is tested in `host`'s tests of mqblk's own server, because this server has none.

use crate::qsd;

use std::time::Duration;

use crate::waiting::POLL;
use qsd::{Directory, NULL, Qsd, damage};
use vuclient::{LeanOptions, lean};

/// A run waits at its end for the requests in flight, so a server that got no CPU before still answers them.
fn short() -> LeanOptions {
    LeanOptions { runtime: Duration::from_millis(100), warm_up: Duration::from_millis(20), ..LeanOptions::default() }
}

#[test]
fn each_way_of_a_split_ring_is_served() {
    let directory = Directory::new();
    let qsd = Qsd::start(&directory, &[NULL], 2);
    let mut done = 0;
    for ways in 0..32u32 {
        let has = |bit: u32| ways & 1 << bit != 0;
        let (poll, indirect, event_idx, rewrite) = (has(0), has(1), has(2), has(3));
        let queues = if has(4) { 2 } else { 1 };
        // Not a power of two: the ring is larger than the number of requests in flight.
        let iodepth = if poll { 7 } else { 100 };
        let options = LeanOptions { queues, iodepth, poll, indirect, event_idx, rewrite, ..short() };
        let report = lean(qsd.socket(), &options).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        assert_eq!(report.queues.len(), usize::from(queues));
        // A busy machine may give a thread no time between the warm-up and the end: then there is nothing to count.
        done += report.queues.iter().map(|queue| queue.requests).sum::<u64>();
        assert!(done == 0 || report.client_cpu_seconds > 0.0, "{report:?}");
    }
    assert!(done > 0, "nothing ended in any run");
}

#[test]
fn a_depth_of_one_and_writes_work() {
    let directory = Directory::new();
    let (path, blockdev) = directory.image(1 << 20);
    let qsd = Qsd::start(&directory, &[&blockdev], 1);
    damage(&path, 4096);
    let options = LeanOptions { iodepth: 1, write: true, block: 1024, rewrite: true, ..short() };
    lean(qsd.socket(), &options).unwrap();
    let data = std::fs::read(&path).unwrap();
    assert!(data.iter().filter(|&&byte| byte == 0x5a).count() >= 1024, "nothing was written");
}

#[test]
fn a_disk_that_fails_ends_it() {
    let directory = Directory::new();
    let (path, _) = directory.image(1 << 20);
    let file = format!("driver=file,node-name=file,filename={}", path.display());
    let bad = "driver=blkdebug,node-name=disk,image=file,inject-error.0.event=none,inject-error.0.iotype=write";
    let qsd = Qsd::start(&directory, &[&file, bad], 1);
    lean(qsd.socket(), &short()).unwrap();
    let error = lean(qsd.socket(), &LeanOptions { write: true, ..short() }).unwrap_err().to_string();
    assert_eq!(error, "a request ended with status 1");
}

#[test]
fn a_server_that_dies_ends_it() {
    for poll in [false, true] {
        let directory = Directory::new();
        let (path, blockdev) = directory.image(16 << 20);
        let mut qsd = Qsd::start(&directory, &[&blockdev], 1);
        let socket = qsd.socket().to_owned();
        let (runtime, patience) = (Duration::from_secs(3600), Duration::from_millis(300));
        let options = LeanOptions { poll, write: true, rewrite: true, runtime, patience, ..short() };
        let client = std::thread::spawn(move || lean(&socket, &options));
        while allocated(&path) < 2 << 20 && !client.is_finished() {
            std::thread::sleep(POLL);
        }
        qsd.kill();
        let error = client.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("completed no request"), "{error}");
    }
}

fn allocated(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn what_the_server_has_not_is_refused_with_its_name() {
    let directory = Directory::new();
    let qsd = Qsd::start(&directory, &[NULL], 1);
    for (options, words) in [
        (LeanOptions { packed: true, ..short() }, "does not offer RING_PACKED"),
        (LeanOptions { queues: 2, ..short() }, "queues=2: must be 1..=1"),
        (LeanOptions { block: 1000, ..short() }, "bs=1000: must be a multiple of 512"),
        (LeanOptions { iodepth: 0, ..short() }, "iodepth=0: must be 1..=10922"),
        (LeanOptions { iodepth: 10_000, block: 1 << 20, ..short() }, "bytes of shared memory"),
        (LeanOptions { queues: 257, ..short() }, "queues=257: must be 1..=256"),
    ] {
        let error = lean(qsd.socket(), &options).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
