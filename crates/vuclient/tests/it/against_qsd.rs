// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client against the reference server, qemu-storage-daemon: null and file exports, one queue and two.
//!
//! Shows that the client works with an independent server, and that it detects faults: a disk that loses writes, a changed byte, an
//! injected error, a server crash.

use crate::qsd;

use std::time::Duration;

use crate::waiting::POLL;
use qsd::{Directory, NULL, Qsd, damage};
use vuclient::bench::Pattern;
use vuclient::{BenchOptions, Error, Verifier, VerifyOptions, bench, disk, verify};

const MIB: u64 = 1 << 20;

/// Long enough for the server process to get a CPU on a busy machine.
fn short() -> BenchOptions {
    BenchOptions { runtime: Duration::from_millis(400), warm_up: Duration::from_millis(20), ..BenchOptions::default() }
}

fn options(queues: u32, seed: u64) -> VerifyOptions {
    VerifyOptions { queues, seed, requests: 400, ..VerifyOptions::default() }
}

#[test]
fn info_tells_what_the_export_was_given() {
    let directory = Directory::new();
    let qsd = Qsd::export(&directory, &[NULL], "num-queues=3,writable=on,logical-block-size=4096");
    let info = disk::info(qsd.socket()).unwrap();
    assert_eq!((info.capacity, info.max_queues, info.block_size), (1 << 30, 3, 4096));
    assert!(info.max_segments >= 64 && info.max_discard_len > 0 && info.max_write_zeroes_len > 0, "{info:?}");
    // The query leaves no connection open, so the same export can be queried again.
    assert_eq!(disk::info(qsd.socket()).unwrap(), info);
}

#[test]
fn bench_counts_every_queue_in_every_mode() {
    let directory = Directory::new();
    let qsd = Qsd::start(&directory, &[NULL], 2);
    for (queues, poll, one_thread) in [(1, false, false), (2, false, false), (1, true, false), (2, true, true)] {
        for pattern in [Pattern::RandRead, Pattern::Write] {
            let options = BenchOptions { queues, poll, one_thread, pattern, iodepth: 4, ..short() };
            let report = bench(qsd.socket(), &options).unwrap();
            assert_eq!(report.queues.len(), queues as usize);
            assert!(report.queues.iter().all(|queue| queue.requests > 0), "{options:?}: {report:?}");
            let little = f64::from(queues) * 4e9 / report.iops;
            assert!((report.little_mean_ns / little - 1.0).abs() < 1e-6, "{report:?}");
            assert!(report.latency.is_none() && report.client_cpu_seconds > 0.0);
        }
    }
}

#[test]
fn latency_is_measured_for_each_request_when_asked_for() {
    let directory = Directory::new();
    let qsd = Qsd::start(&directory, &[NULL], 1);
    let report = bench(qsd.socket(), &BenchOptions { latency: true, iodepth: 128, ..short() }).unwrap();
    let latency = report.latency.as_ref().unwrap();
    assert!(latency.percentiles.is_sorted() && latency.percentiles[3] <= latency.max, "{report:?}");
    assert!(latency.mean > 0.0 && latency.mean <= latency.max as f64, "{report:?}");
}

#[test]
fn data_comes_back_from_a_file_over_one_queue_and_two() {
    for (queues, poll, seed) in [(1, false, 11), (2, false, 12), (2, true, 13)] {
        let directory = Directory::new();
        let (_, blockdev) = directory.image(32 * MIB);
        let qsd = Qsd::start(&directory, &[&blockdev], 2);
        let report = verify(qsd.socket(), &VerifyOptions { poll, ..options(queues, seed) }).unwrap();
        assert!(report.writes > 0 && report.discards > 0 && report.write_zeroes > 0 && report.flushes > 0);
        assert!(report.compared > 10 * MIB, "seed {seed}: {report:?}");
    }
}

#[test]
fn a_disk_with_blocks_of_4096_bytes_is_verified_in_its_blocks() {
    let directory = Directory::new();
    let (_, blockdev) = directory.image(32 * MIB);
    let qsd = Qsd::export(&directory, &[&blockdev], "num-queues=1,writable=on,logical-block-size=4096");
    verify(qsd.socket(), &options(1, 14)).unwrap();
}

#[test]
fn a_disk_that_forgets_is_found_out_and_the_seed_is_told() {
    let directory = Directory::new();
    let zeroes = NULL.replace("read-zeroes=off", "read-zeroes=on");
    let qsd = Qsd::start(&directory, &[&zeroes], 1);
    let error = verify(qsd.socket(), &options(1, 4711)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Difference(_)), "{text}");
    assert!(text.starts_with("seed=4711 queue 0 request ") && text.contains("found zeroes"), "{text}");
    drop(qsd);
    // Without read-zeroes nothing is written into the buffer at all, which the poison shows.
    let qsd = Qsd::start(&directory, &[NULL], 1);
    let text = verify(qsd.socket(), &options(1, 4711)).unwrap_err().to_string();
    assert!(text.contains("foreign bytes beginning 0xa7a7a7a7a7a7a7a7"), "{text}");
}

#[test]
fn one_changed_byte_is_found_after_a_restart() {
    let directory = Directory::new();
    let (path, blockdev) = directory.image(16 * MIB);
    let mut qsd = Qsd::start(&directory, &[&blockdev], 1);
    let mut verifier = Verifier::new(options(1, 15)).unwrap();
    let first = verifier.run(qsd.socket()).unwrap();
    qsd.kill();
    let mut qsd = Qsd::start(&directory, &[&blockdev], 1);
    let again = verifier.compare(qsd.socket()).unwrap();
    assert!(again.writes == 0 && again.compared > 0 && again.compared <= first.compared, "{first:?} {again:?}");
    qsd.kill();
    // Some block of these is known: 400 requests of up to 1 MiB went to 16 MiB.
    for at in (0..16 * MIB).step_by(MIB as usize) {
        damage(&path, at + 77);
    }
    let qsd = Qsd::start(&directory, &[&blockdev], 1);
    let error = verifier.compare(qsd.socket()).unwrap_err();
    assert!(matches!(error, Error::Difference(_)) && error.to_string().contains("at byte 77"), "{error}");
}

#[test]
fn a_server_killed_under_load_loses_no_acknowledged_write() {
    let directory = Directory::new();
    let (_, blockdev) = directory.image(64 * MIB);
    let mut qsd = Qsd::start(&directory, &[&blockdev], 2);
    let socket = qsd.socket().to_owned();
    let settings = VerifyOptions { requests: u64::MAX, patience: Duration::from_secs(3), ..options(2, 16) };
    let mut verifier = Verifier::new(settings).unwrap();
    let image = directory.join("disk.img");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| verifier.run(&socket));
        // Kill the server only when more is allocated than the requests in flight, of 1 MiB each, could have written: then some have
        // completed.
        while allocated(&image) < 20 * MIB && !run.is_finished() {
            std::thread::sleep(POLL);
        }
        qsd.kill();
        let error = run.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Server(_)) && error.to_string().contains("seed=16"), "{error}");
    });
    let qsd = Qsd::start(&directory, &[&blockdev], 2);
    let report = verifier.compare(qsd.socket()).unwrap();
    assert!(report.compared > 0, "{report:?}");
}

fn allocated(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn an_error_of_the_disk_reaches_the_caller() {
    let directory = Directory::new();
    let (_, _) = directory.image(MIB);
    let file = format!("driver=file,node-name=file,filename={}", directory.join("disk.img").display());
    let bad = "driver=blkdebug,node-name=disk,image=file,inject-error.0.event=none,inject-error.0.iotype=write";
    let qsd = Qsd::start(&directory, &[&file, bad], 1);
    let error = bench(qsd.socket(), &BenchOptions { pattern: Pattern::Write, ..short() }).unwrap_err();
    assert_eq!(error.to_string(), "a request ended with status -5");
    let error = verify(qsd.socket(), &options(1, 17)).unwrap_err();
    assert!(matches!(error, Error::Server(_)) && error.to_string().contains("error -5"), "{error}");
    bench(qsd.socket(), &BenchOptions { pattern: Pattern::Read, ..short() }).unwrap();
}

#[test]
fn a_read_only_export_is_read_and_not_written() {
    let directory = Directory::new();
    let (_, blockdev) = directory.image(MIB);
    let qsd = Qsd::export(&directory, &[&blockdev], "num-queues=1,writable=off");
    bench(qsd.socket(), &short()).unwrap();
    let error = bench(qsd.socket(), &BenchOptions { pattern: Pattern::RandWrite, ..short() }).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[test]
fn settings_out_of_range_say_rule_value_and_limit() {
    let directory = Directory::new();
    let qsd = Qsd::start(&directory, &[NULL], 2);
    let usage = |options: BenchOptions| match bench(qsd.socket(), &options) {
        Err(Error::Usage(text)) => text,
        other => panic!("{options:?}: {other:?}"),
    };
    assert!(usage(BenchOptions { queues: 3, ..short() }).starts_with("queues=3: must be 1..=2"));
    assert!(usage(BenchOptions { iodepth: 0, ..short() }).starts_with("iodepth=0: must be 1..=341"));
    assert!(usage(BenchOptions { block: 1000, ..short() }).starts_with("bs=1000: must be a multiple of 512"));
    assert!(usage(BenchOptions { one_thread: true, ..short() }).contains("add poll"));
    let error = verify(qsd.socket(), &VerifyOptions { size: 1 << 40, ..options(1, 1) }).unwrap_err();
    assert!(error.to_string().contains("must be at most 1073741824"), "{error}");
    let nobody = directory.join("nobody.sock");
    let error = disk::info(nobody.to_str().unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to "), "{error}");
}

#[test]
fn a_server_that_is_silent_is_an_error_and_no_hang() {
    let directory = Directory::new();
    let path = directory.join("silent.sock");
    // The system completes connections to a listener that never accepts.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let options = BenchOptions { patience: Duration::from_millis(50), ..short() };
    let error = bench(path.to_str().unwrap(), &options).unwrap_err();
    assert!(error.to_string().contains("the handshake did not complete"), "{error}");
}
