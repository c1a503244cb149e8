// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server under a very fast driver: chains stay at the same place, and kicks and calls come only if the other side requests
//! them. If such a request is overlooked, the run hangs, so each test checks that its run ends.

use crate::serving;

use host::export::vhost::{ExportOptions, VhostExport};
use serving::{Served, vhost_options};
use std::fs;
use std::time::Duration;
use vuclient::{LeanOptions, lean};

#[test]
fn each_ring_framing_and_way_to_notify_is_served() {
    let Served { directory, threads, disk } = Served::new("lean", "null:size=1g", 2);
    let socket = directory.join("vhost.sock");
    let options = ExportOptions { socket: socket.clone(), mapping: vec![0, 1], ..vhost_options() };
    let export = VhostExport::start(&threads, &disk, options).unwrap();
    let mut done = 0;
    for ways in 0..64u32 {
        let has = |bit: u32| ways & 1 << bit != 0;
        let (poll, indirect, event_idx, rewrite, packed) = (has(0), has(1), has(2), has(3), has(4));
        let (queues, iodepth) = if has(5) { (2, 31) } else { (1, 1 + ways) };
        let (runtime, warm_up) = (Duration::from_millis(40), Duration::from_millis(10));
        let patience = Duration::from_secs(120);
        let options = LeanOptions {
            queues,
            iodepth,
            poll,
            indirect,
            event_idx,
            rewrite,
            packed,
            runtime,
            warm_up,
            patience,
            ..LeanOptions::default()
        };
        let report = lean(socket.to_str().unwrap(), &options).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        // On a busy machine, a thread may get no CPU between the warm-up and the end. Then there is nothing to count.
        done += report.queues.iter().map(|queue| queue.requests).sum::<u64>();
    }
    assert!(done > 0, "nothing ended in any run");
    drop(export);
    serving::check_drained(&disk);
    drop(disk);
    fs::remove_dir_all(directory).unwrap();
}
