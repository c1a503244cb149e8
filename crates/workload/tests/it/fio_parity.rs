// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same job, run by fio (null engine, I/O log) and by [`JobThread`]: the sequence of operations, offsets and lengths
//! must be equal for every I/O. Needs fio 3.33, because other versions may differ; without it the test prints that it
//! skipped.

use crate::common;

use blk::bio::Op;
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use common::{KIB, MIB, fio_is_3_33};
use std::collections::{HashMap, VecDeque};
use std::process::Command;
use workload::engine::{IoReq, JobThread, Next, ThreadId};
use workload::error::SetupError;
use workload::job::*;
use workload::stats::JobStats;

/// (operation, offset, length), a flush being ("sync", 0, 0).
pub type Step = (&'static str, u64, u64);

/// Returns the I/O that fio issues for the job in `args`.
pub fn fio_steps(name: &str, args: &str) -> Vec<Step> {
    let dir = std::env::temp_dir().join(format!("mqblk-parity-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let run = Command::new("fio")
        .current_dir(&dir)
        // The null engine logs an I/O twice when its queue is full, so deep queues use a real file.
        .args(["--name=a", "--filename=f", "--write_iolog=log", "--output=out"])
        .arg(if args.contains("iodepth") { "--ioengine=libaio" } else { "--ioengine=null" })
        .args(args.split_whitespace())
        .output()
        .unwrap();
    assert!(run.status.success(), "fio {args}: {}", String::from_utf8_lossy(&run.stderr));
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    log.lines().filter_map(step_of_line).collect()
}

pub fn step_of_line(line: &str) -> Option<Step> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(0);
    match words.get(2)? {
        &"read" => Some(("read", number(3), number(4))),
        &"write" => Some(("write", number(3), number(4))),
        &"trim" => Some(("trim", number(3), number(4))),
        &"sync" | &"datasync" => Some(("sync", 0, 0)),
        _ => None,
    }
}

/// Returns the I/O that thread `number` of a file issues to a device that takes no time, and its measurements.
pub fn our_steps(job: &Job, number: u32, target_bytes: u64) -> Result<(Vec<Step>, JobStats), SetupError> {
    let id = ThreadId { instance: 0, number, entropy: 0 };
    let (steps, stats) = steps_of(JobThread::new(job, id, target_bytes)?);
    Ok((steps.into_iter().map(|(_, step)| step).collect(), stats))
}

/// The data of each file.
pub type Data = HashMap<u32, Vec<u8>>;

/// Returns the I/Os of a thread on devices that take no time, each with the number of its file.
pub fn steps_of(thread: JobThread) -> (Vec<(u32, Step)>, JobStats) {
    steps_on(None, thread)
}

/// As [`steps_of`], on files with this data, if there is any.
pub fn steps_on(mut data: Option<&mut Data>, mut thread: JobThread) -> (Vec<(u32, Step)>, JobStats) {
    let mut bufs = vec![vec![0; thread.max_io_bytes() as usize]; thread.depth() as usize];
    let (mut now, mut out, mut steps) = (Instant::ZERO, VecDeque::new(), Vec::new());
    loop {
        now = now + Duration::from_ns(100);
        match thread.next(now) {
            Next::Io(io) => {
                let op = match io.op {
                    Op::Read => "read",
                    Op::Write => "write",
                    Op::Discard => "trim",
                    _ => "sync",
                };
                if io.fill {
                    thread.fill(io.slot, &mut bufs[io.slot as usize][..io.len_bytes as usize]);
                }
                steps.push((io.target, (op, io.offset_bytes, u64::from(io.len_bytes))));
                out.push_back(io);
            }
            other => {
                thread.submitted(now);
                match other {
                    Next::Reap { min, .. } => {
                        for io in out.drain(..(min as usize).max(1).min(out.len())) {
                            let buf = &mut bufs[io.slot as usize][..io.len_bytes as usize];
                            if let Some(data) = &mut data {
                                transfer(data, &io, buf);
                            }
                            if thread.complete(io.slot, BlkStatus::Ok, now).needs_verify {
                                _ = thread.verify(io.slot, buf);
                            }
                        }
                    }
                    Next::Wait(t) | Next::Spin(t) => now = t,
                    _ => return (steps, thread.stats().clone()),
                }
            }
        }
    }
}

fn transfer(data: &mut Data, io: &IoReq, buf: &mut [u8]) {
    let bytes = data.entry(io.target).or_default();
    let end = io.offset_bytes as usize + buf.len();
    if matches!(io.op, Op::Read | Op::Write) && bytes.len() < end {
        bytes.resize(end, 0);
    }
    match io.op {
        Op::Read => buf.copy_from_slice(&bytes[io.offset_bytes as usize..end]),
        Op::Write => bytes[io.offset_bytes as usize..end].copy_from_slice(buf),
        _ => {}
    }
}

fn same(name: &str, args: &str, set: impl FnOnce(&mut Job)) {
    let mut job = Job::new("a");
    job.size = Some(Extent::Bytes(MIB));
    set(&mut job);
    let (ours, _) = our_steps(&job, 1, if job.size.is_some() { 4 * MIB } else { 64 << 30 }).unwrap();
    let theirs = fio_steps(name, args);
    assert!(theirs.len() > 2, "{name}: fio did {} I/Os", theirs.len());
    if let Some(i) = (0..ours.len().max(theirs.len())).find(|&i| ours.get(i) != theirs.get(i)) {
        panic!(
            "{name}: I/O {i} of {} (fio: {}): {:?}, fio {:?}",
            ours.len(),
            theirs.len(),
            ours.get(i..ours.len().min(i + 4)),
            theirs.get(i..theirs.len().min(i + 4))
        );
    }
}

fn rw(mode: RwMode, random: bool) -> Rw {
    Rw { mode, random }
}

fn depth(job: &mut Job, n: u32) {
    job.iodepth = n;
    job.iodepth_low = n;
}

#[test]
fn uniform_offsets_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    same("map", "--rw=randread --size=1m --bs=4k", |j| j.rw = rw(RwMode::Read, true));
    same("map-odd", "--rw=randwrite --size=1m --bs=12k", |j| {
        j.rw = rw(RwMode::Write, true);
        j.block_sizes = PerDir::all(BlockSizes::Fixed(12 * KIB));
    });
    same("nomap", "--rw=randread --size=1m --bs=4k --norandommap=1", |j| {
        j.rw = rw(RwMode::Read, true);
        j.norandommap = true;
    });
    same("align", "--rw=randread --size=1m --bs=8k --blockalign=4k --number_ios=100", |j| {
        j.rw = rw(RwMode::Read, true);
        j.block_sizes = PerDir::all(BlockSizes::Fixed(8 * KIB));
        j.blockalign_bytes = PerDir::all(Some(4 * KIB));
        j.number_ios = Some(100);
    });
    same("offset", "--rw=randread --size=1m --offset=512k --bs=4k", |j| {
        j.rw = rw(RwMode::Read, true);
        j.offset = Extent::Bytes(512 * KIB);
    });
    same("seed", "--rw=randread --size=1m --bs=4k --randrepeat=0 --randseed=77", |j| {
        j.rw = rw(RwMode::Read, true);
        (j.randrepeat, j.randseed) = (true, Some(77));
    });
    same("large", "--rw=randread --size=64g --bs=4k --norandommap=1 --number_ios=3000", |j| {
        j.rw = rw(RwMode::Read, true);
        j.size = None;
        j.norandommap = true;
        j.number_ios = Some(3000);
        j.offset = Extent::Bytes(0);
    });
}

#[test]
fn mixes_and_sequencers_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    for (i, pct) in [50, 70, 5].into_iter().enumerate() {
        same(&format!("mix{i}"), &format!("--rw=randrw --size=1m --bs=4k --rwmixread={pct}"), |j| {
            j.rw = rw(RwMode::ReadWrite, true);
            j.rwmixread_pct = pct;
        });
    }
    same("seqmix", "--rw=rw --size=1m --bs=4k --iodepth=8", |j| {
        j.rw = rw(RwMode::ReadWrite, false);
        depth(j, 8);
    });
    same("every", "--rw=randread:8 --size=1m --bs=4k --number_ios=200", |j| {
        j.rw = rw(RwMode::Read, true);
        j.rand_offset_every = 8;
        j.number_ios = Some(200);
    });
    same("ident", "--rw=randread:4 --rw_sequencer=identical --size=1m --bs=4k --number_ios=200", |j| {
        j.rw = rw(RwMode::Read, true);
        j.rand_offset_every = 4;
        j.rw_sequencer = RwSequencer::Identical;
        j.number_ios = Some(200);
    });
    same("percent", "--rw=randread --percentage_random=30 --size=1m --bs=4k --norandommap=1", |j| {
        j.rw = rw(RwMode::Read, true);
        j.percentage_random = PerDir::all(30);
        j.norandommap = true;
    });
}

#[test]
fn zones_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    let zones = |list: &[(u32, Extent)]| {
        let zones: Vec<Zone> = list.iter().map(|&(access_pct, span)| Zone { access_pct, span }).collect();
        let d = Distribution::Zoned(zones);
        PerDir { read: d.clone(), write: d.clone(), trim: d }
    };
    let percent = [(60, 10), (30, 20), (8, 30), (2, 40)].map(|(a, p)| (a, Extent::Percent(p)));
    same("zoned", "--rw=randread --random_distribution=zoned:60/10:30/20:8/30:2/40 --size=1m --norandommap=1", |j| {
        (j.rw, j.norandommap) = (rw(RwMode::Read, true), true);
        j.random_distribution = zones(&percent);
    });
    let bytes = [(60, 100 * KIB), (40, 500 * KIB)].map(|(a, b)| (a, Extent::Bytes(b)));
    same("zoned_abs", "--rw=randread --random_distribution=zoned_abs:60/100k:40/500k --size=1m --norandommap=1", |j| {
        (j.rw, j.norandommap) = (rw(RwMode::Read, true), true);
        j.random_distribution = zones(&bytes);
    });
}

#[test]
fn trims_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    same("trim", "--rw=randtrim --size=1m --bs=4k", |j| j.rw = rw(RwMode::Trim, true));
    same("trimwrite", "--rw=trimwrite --size=1m --bsrange=4k-16k", |j| {
        j.rw = rw(RwMode::TrimWrite, false);
        j.block_sizes = PerDir::all(BlockSizes::Range { min_bytes: 4 * KIB, max_bytes: 16 * KIB });
    });
}

#[test]
fn sequential_streams_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    same("seq", "--rw=read --size=1m --bs=64k", |j| j.block_sizes = PerDir::all(BlockSizes::Fixed(64 * KIB)));
    same("hole", "--rw=read:4k --size=1m --bs=4k --io_size=256k", |j| {
        j.seq_offset_add_bytes = 4096;
        j.io_size = Some(Extent::Bytes(256 * KIB));
    });
    same("back", "--rw=read:-8k --size=1m --bs=4k --io_size=256k", |j| {
        j.seq_offset_add_bytes = -8192;
        j.io_size = Some(Extent::Bytes(256 * KIB));
    });
    same("tail", "--rw=write --size=1000k --bs=64k", |j| {
        j.rw = rw(RwMode::Write, false);
        j.size = Some(Extent::Bytes(1000 * KIB));
        j.block_sizes = PerDir::all(BlockSizes::Fixed(64 * KIB));
    });
    same("fsync", "--rw=write --size=128k --bs=4k --fsync=4", |j| {
        j.rw = rw(RwMode::Write, false);
        j.size = Some(Extent::Bytes(128 * KIB));
        j.fsync_every = 4;
    });
}

#[test]
fn sizes_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    let range = BlockSizes::Range { min_bytes: 4 * KIB, max_bytes: 32 * KIB };
    same("range", "--rw=read --size=1m --bsrange=4k-32k", |j| j.block_sizes = PerDir::all(range.clone()));
    same("range-rand", "--rw=randread --size=1m --bsrange=4k-32k", |j| {
        j.rw = rw(RwMode::Read, true);
        j.block_sizes = PerDir::all(range.clone());
    });
    same("unaligned", "--rw=read --size=1m --bsrange=4k-32k --bs_unaligned=1", |j| {
        j.block_sizes = PerDir::all(range.clone());
        j.bs_unaligned = true;
    });
    let weights = [(4 * KIB, 20), (8 * KIB, 50), (64 * KIB, 30)];
    let split = BlockSizes::Split(weights.map(|(bytes, pct)| SizeWeight { bytes, pct }).to_vec());
    same("split", "--rw=randread --size=1m --bssplit=4k/20:8k/50:64k/30 --norandommap=1", |j| {
        j.rw = rw(RwMode::Read, true);
        j.block_sizes = PerDir::all(split);
        j.norandommap = true;
    });
    same("per-dir-map", "--rw=randwrite --size=1m --bs=,8k", |j| {
        j.rw = rw(RwMode::Write, true);
        j.block_sizes =
            PerDir { write: BlockSizes::Fixed(8 * KIB), trim: BlockSizes::Fixed(8 * KIB), ..j.block_sizes.clone() };
    });
    same("per-dir", "--rw=randrw --size=1m --bs=4k,16k --norandommap=1", |j| {
        j.rw = rw(RwMode::ReadWrite, true);
        j.block_sizes.write = BlockSizes::Fixed(16 * KIB);
        j.norandommap = true;
    });
}

#[test]
fn limits_and_loops_are_fio_s() {
    if !fio_is_3_33() {
        return;
    }
    same("loops", "--rw=randread --size=128k --bs=4k --loops=3", |j| {
        j.rw = rw(RwMode::Read, true);
        j.size = Some(Extent::Bytes(128 * KIB));
        j.loops = 3;
    });
    same("io_size-short", "--rw=randread --size=1m --io_size=100k --bs=4k", |j| {
        j.rw = rw(RwMode::Read, true);
        j.io_size = Some(Extent::Bytes(100 * KIB));
    });
    same("io_size-long", "--rw=randread --size=128k --io_size=300k --bs=4k", |j| {
        j.rw = rw(RwMode::Read, true);
        j.size = Some(Extent::Bytes(128 * KIB));
        j.io_size = Some(Extent::Bytes(300 * KIB));
    });
    same("io_size-seq", "--rw=write --size=128k --io_size=300k --bs=4k", |j| {
        j.rw = rw(RwMode::Write, false);
        j.size = Some(Extent::Bytes(128 * KIB));
        j.io_size = Some(Extent::Bytes(300 * KIB));
    });
    same("number_ios", "--rw=randwrite --size=1m --bs=4k --number_ios=77 --iodepth=16", |j| {
        j.rw = rw(RwMode::Write, true);
        j.number_ios = Some(77);
        depth(j, 16);
    });
}
