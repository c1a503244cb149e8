// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost per I/O of the file driver under the core, without the job engine: 4 KiB random reads, as
//! `fio --ioengine=io_uring --rw=randread --bs=4k --direct=1` does them. Prints IOPS, CPU time and context switches per
//! I/O; strace shows the share of system calls.
//!
//! `cargo bench -p mqblk-host --bench file -- FILE [SECONDS]`; without FILE, and under `cargo test --benches`, it reads a small
//! scratch file briefly.
#![allow(unsafe_code, reason = "getrusage")]

extern crate mqblk_host as host;

use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, Sector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use host::clock::{self, now};
use host::driver::HostDriver;
use host::driver::file::{File, FileOptions};
use host::mem::{BufferPool, Regions};
use parking_lot::RawMutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = 4096;

struct Usage {
    cpu_ns: u64,
    switches: u64,
}

fn usage() -> Usage {
    let mut u = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer is a writable rusage, and zeroes are a valid one.
    let u = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, u.as_mut_ptr());
        u.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    Usage { cpu_ns: ns(u.ru_utime) + ns(u.ru_stime), switches: (u.ru_nvcsw + u.ru_nivcsw) as u64 }
}

/// Keeps `depth` reads in flight for `seconds`, submitting as many as completed, as fio does by default.
fn run(path: &Path, depth: u32, lazy: bool, seconds: f64) {
    let regions = Arc::new(Regions::new());
    let mut pool = BufferPool::new(&regions, depth, BLOCK as usize, false).expect("buffers");
    let options = FileOptions { write: false, ..FileOptions::default() };
    let (file, warnings) = File::open(path, &options, regions).expect("file");
    warnings.iter().for_each(|w| println!("warning: {w}"));
    let driver: Arc<dyn HostDriver> = Arc::new(file);
    let mut config = QueueConfig::default();
    config.set("scheduler", "none").expect("setting");
    config.set("queue_depth", &depth.max(2).to_string()).expect("setting");
    let disk = RequestQueue::<RawMutex>::new(driver.clone(), config, Box::new(NoNotify)).expect("disk");
    let mut sub = disk.submitter(CpuId::new(0)).expect("submitter");
    let hctx = sub.hctxs().next().expect("hctx");
    driver.issuer().set_lazy_commit(hctx, if lazy { depth + 1 } else { 0 });
    let blocks = (disk.capacity().0 << 9) / BLOCK;
    let data: Vec<DataRef> = (0..depth).map(|slot| pool.lend(slot)).collect();
    let mut free: Vec<u32> = (0..depth).collect();
    let (mut x, mut ended) = (0x9e37_79b9_7f4a_7c15u64, 0u64);
    let (start, before) = (now(), usage());
    let end = start + blk::time::Duration::from_ns((seconds * 1e9) as u64);
    let mut t = start;
    while t < end || sub.outstanding() > 0 {
        if t < end && !free.is_empty() {
            sub.start_plug(free.len() as u32);
            for slot in free.drain(..) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let block = ((u128::from(x) * u128::from(blocks)) >> 64) as u64;
                let bio = Bio::read(Sector(block * (BLOCK >> 9)), (BLOCK >> 9) as u32, data[slot as usize]);
                sub.submit(&bio.with_user_data(u64::from(slot)), t).expect("a bio slot per buffer");
            }
            sub.finish_plug(t);
        }
        driver.wait(hctx, 1, None);
        t = now();
        sub.poll(t);
        sub.reap(|done| {
            assert!(done.status.is_ok(), "{}", done.status);
            free.push(done.user_data as u32);
            ended += 1;
        });
    }
    let (ns, after) = (now().since(start).as_ns() as f64, usage());
    let per_io = |a: u64, b: u64| (a - b) as f64 / ended as f64;
    println!(
        "depth {depth:3} {}: {:8.0} IOPS, {:6.0} ns CPU per I/O, {:.3} context switches per I/O",
        if lazy { "lazy " } else { "eager" },
        ended as f64 * 1e9 / ns,
        per_io(after.cpu_ns, before.cpu_ns),
        per_io(after.switches, before.switches)
    );
}

fn main() {
    // Cargo passes --bench to a bench run. To a test run it passes names of tests, which are no file.
    let is_bench = std::env::args().any(|a| a == "--bench");
    let mut args = std::env::args().skip(1).filter(|a| is_bench && a != "--bench");
    let path = args.next().map(PathBuf::from);
    let seconds: f64 = args.next().and_then(|s| s.parse().ok()).unwrap_or(if path.is_some() { 3.0 } else { 0.02 });
    println!("clock: {:?}", clock::start());
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-file");
    let path = path.unwrap_or_else(|| {
        std::fs::write(&scratch, vec![0x5a; 1 << 20]).expect("scratch file");
        scratch.clone()
    });
    for depth in [1, 32, 128] {
        for lazy in [false, true] {
            run(&path, depth, lazy, seconds);
        }
    }
}
