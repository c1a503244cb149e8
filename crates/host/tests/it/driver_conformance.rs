// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same tests for every driver, through the real core: each I/O completes once, with the right data and status, from one thread and
//! from two.

use crate::common;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::id::{HctxId, Sector};
use blk::status::BlkStatus;
use blk::time::Duration;
use common::{DriverFixture, Kind, SLOT_BYTES, SLOT_SECTORS, until};
use host::driver::Aio;
use sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn with_op(op: Op, sector: u64, nr_sectors: u32) -> Bio {
    Bio { op, ..Bio::read(Sector(sector), nr_sectors, DataRef::NONE) }
}

/// Random writes, reads, discards and zeroes of random size, compared with a copy in memory.
fn data_matches_a_model(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    let mut rng = Rng::new(0x5eed_0001);
    let sectors = 2048;
    let block = fixture.block_sectors();
    let mut model = vec![0u8; sectors * 512];
    fixture.write_zeroes_all(sectors as u32);
    for round in 0..400 {
        let nr = (1 + rng.below(u64::from(SLOT_SECTORS / block))) as u32 * block;
        let sector = rng.below((sectors as u64 - u64::from(nr)) / u64::from(block)) * u64::from(block);
        let range = sector as usize * 512..(sector as usize + nr as usize) * 512;
        match rng.below(8) {
            0..3 => {
                let fill = rng.bytes(range.len());
                assert_eq!(fixture.write(sector, &fill, OpFlags::NONE), BlkStatus::Ok, "round {round}");
                model[range].copy_from_slice(&fill);
            }
            3..6 => {
                let (status, read) = fixture.read(sector, range.len());
                assert_eq!(status, BlkStatus::Ok);
                assert!(
                    !kind.keeps_data() || read == model[range],
                    "round {round}: sector {sector}+{nr}, seed {rng:?}"
                );
            }
            6 if kind.discard_zeroes() => {
                assert_eq!(fixture.io(with_op(Op::Discard, sector, nr)), BlkStatus::Ok);
                model[range].fill(0);
            }
            _ if fixture.driver.limits().max_write_zeroes_sectors == 0 => {
                assert_eq!(fixture.io(with_op(Op::WriteZeroes, sector, nr)), BlkStatus::NotSupp);
            }
            _ => {
                assert_eq!(fixture.io(with_op(Op::WriteZeroes, sector, nr)), BlkStatus::Ok);
                model[range].fill(0);
            }
        }
    }
}

/// Adjacent bios merge into requests whose segments are scattered in memory. Data still reaches the buffer of each bio.
fn merged_requests_scatter_and_gather(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    let mut rng = Rng::new(0x5eed_0002);
    let blocks = 32usize;
    let fill = rng.bytes(blocks * 4096);
    // The slots are ordered so that neighbours on disk are not neighbours in memory, except one pair.
    let order: Vec<u32> = (0..blocks as u32).map(|i| (i * 7) % blocks as u32).collect();
    for op in [Op::Write, Op::Read] {
        for (i, slot) in order.iter().enumerate() {
            let block = &fill[i * 4096..][..4096];
            fixture
                .pool
                .with_slot(*slot, |b| if op == Op::Write { b[..4096].copy_from_slice(block) } else { b.fill(0) });
        }
        let bios = order
            .iter()
            .enumerate()
            .map(|(i, slot)| (*slot, Bio { op, ..Bio::read(Sector(i as u64 * 8), 8, DataRef::NONE) }));
        let before = fixture.disk.stats().merges();
        let statuses = fixture.io_batch(bios.collect());
        assert!(statuses.iter().all(|s| s.is_ok()), "{statuses:?}");
        assert!(fixture.disk.stats().merges() > before, "nothing merged: the test tests nothing");
    }
    for (i, slot) in order.iter().enumerate().filter(|_| kind.keeps_data()) {
        fixture.pool.with_slot(*slot, |b| assert_eq!(b[..4096], fill[i * 4096..][..4096], "block {i}"));
    }
}

fn what_is_out_of_range_fails_and_changes_nothing(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    let end = fixture.disk.capacity().0;
    let block = fixture.block_sectors();
    assert_eq!(fixture.write(end - 8, &[0x5a; 4096], OpFlags::NONE), BlkStatus::Ok);
    for (sector, nr) in [(end, block), (end - 8, 16), (u64::MAX - 7, 8)] {
        assert_ne!(fixture.io(with_op(Op::Discard, sector, nr)), BlkStatus::Ok);
        assert_ne!(fixture.io_with_slot(0, Bio::write(Sector(sector), nr, DataRef::NONE)), BlkStatus::Ok);
    }
    assert!(!kind.keeps_data() || fixture.read(end - 8, 4096).1 == [0x5a; 4096]);
    if kind.touches_data() {
        let pool = fixture.pool_region();
        let not_lent = DataRef::new(pool, 0);
        for data in [DataRef::new(pool + 1, 0), DataRef::new(pool, DataRef::MAX_OFFSET - 4096), not_lent] {
            assert_eq!(fixture.io(Bio::read(Sector(0), 8, data)), BlkStatus::Inval, "{data:?}");
            assert_eq!(fixture.io(Bio::write(Sector(0), 8, data)), BlkStatus::Inval, "{data:?}");
        }
    }
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::Ok, "the disk goes on");
}

fn flush_and_fua_succeed(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    let fill = Rng::new(0x5eed_0003).bytes(8192);
    assert_eq!(fixture.write(64, &fill, OpFlags::FUA), BlkStatus::Ok);
    assert_eq!(fixture.write(80, &fill, OpFlags::FUA.union(OpFlags::PREFLUSH)), BlkStatus::Ok);
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::Ok);
    for sector in [64, 80] {
        assert!(!kind.keeps_data() || fixture.read(sector, 8192).1 == fill);
    }
}

/// Far more I/Os than tags: the driver is full again and again, and every I/O completes once.
fn many_ios_end_exactly_once(kind: Kind) {
    for (queue_depth, scheduler) in [(1, "none"), (4, "none"), (7, "none"), (100, "none")] {
        let mut fixture = DriverFixture::with(kind, |c| {
            c.set("queue_depth", &queue_depth.to_string()).unwrap();
            c.set("scheduler", scheduler).unwrap();
        });
        let mut rng = Rng::new(0x5eed_0004);
        let slots = fixture.pool.slots();
        for _ in 0..3 {
            let bios = (0..slots).map(|slot| {
                let sector = Sector(rng.below(200) * 8);
                let op = if rng.below(2) == 0 { Op::Read } else { Op::Write };
                (slot, Bio { op, ..Bio::read(sector, 8, DataRef::NONE) })
            });
            let statuses = fixture.io_batch(bios.collect());
            assert_eq!(statuses, vec![BlkStatus::Ok; slots as usize]);
        }
    }
}

/// A thread finds completions of another thread's I/O when it polls the same hctx, and both threads wait, too.
fn two_threads_share_one_hctx(kind: Kind) {
    let fixture = DriverFixture::with(kind, |c| {
        c.set("nr_cpus", "2").unwrap();
        c.set("nr_hw_queues", "1").unwrap();
        c.set("queue_depth", "8").unwrap();
    });
    let (mut a, mut b) = fixture.split_in_two();
    let worker = |fixture: &mut DriverFixture, seed: u64| {
        let mut rng = Rng::new(seed);
        let base = rng.below(2) * 4096 + seed % 2 * 8192;
        for round in 0..200 {
            let fill = rng.bytes(4096);
            let sector = base + rng.below(128) * 8;
            assert_eq!(fixture.write(sector, &fill, OpFlags::NONE), BlkStatus::Ok);
            let (status, read) = fixture.read(sector, 4096);
            assert_eq!(status, BlkStatus::Ok);
            assert!(!kind.keeps_data() || read == fill, "round {round}, seed {seed:#x}");
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| worker(&mut a, 0x5eed_0006));
        s.spawn(|| worker(&mut b, 0x5eed_0007));
    });
}

/// A thread has claimed the hctx, but another one uses it, too: its I/O completes, whether the owner sleeps or not. After the release,
/// all threads are equal.
fn a_claimed_hctx_serves_others_too(kind: Kind) {
    let fixture = DriverFixture::with(kind, |c| {
        c.set("nr_cpus", "2").unwrap();
        c.set("nr_hw_queues", "1").unwrap();
        c.set("queue_depth", "8").unwrap();
    });
    let (mut owner, mut other) = fixture.split_in_two();
    let hctx = HctxId::new(0);
    let turn = |fixture: &mut DriverFixture, base: u64| {
        for i in 0..100 {
            let fill = Rng::new(base + i).bytes(4096);
            assert_eq!(fixture.write(base + i * 8, &fill, OpFlags::NONE), BlkStatus::Ok);
            let (status, read) = fixture.read(base + i * 8, 4096);
            assert_eq!(status, BlkStatus::Ok);
            assert!(!kind.keeps_data() || read == fill, "I/O {i} at {base}");
        }
        let slots = fixture.pool.slots();
        let bios = (0..slots).map(|slot| (slot, Bio::read(Sector(u64::from(slot) * 16), 8, DataRef::NONE)));
        assert!(fixture.io_batch(bios.collect()).iter().all(|s| s.is_ok()));
    };
    let claimed = owner.driver.issuer().claim(hctx);
    // Needs Linux 6.1.
    let has_ring = owner.driver.name() == "file" && owner.driver.aio() == Some(Aio::IoUring);
    assert_eq!(claimed, has_ring, "the file driver makes a ring for one thread");
    assert!(!owner.driver.issuer().claim(hctx), "one claim at a time");
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            turn(&mut other, 4096);
            done.store(true, Ordering::Release);
            other.driver.wake(hctx);
        });
        turn(&mut owner, 0);
        while !done.load(Ordering::Acquire) {
            // The owner of a claimed hctx may wait for several completions, and a wake-up counts as all of them.
            owner.driver.wait(hctx, if claimed { 4 } else { 1 }, Some(Duration::from_ms(50)));
            owner.poll();
        }
    });
    turn(&mut owner, 0);
    if claimed {
        owner.driver.issuer().release(hctx);
    }
    turn(&mut other, 0);
}

/// While one thread sleeps in `wait`, another submits to and polls the same hctx. A wake-up ends the sleep.
fn a_waiting_thread_blocks_no_other(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    let driver = fixture.driver.clone();
    let hctx = HctxId::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                driver.wait(hctx, 1, Some(Duration::from_secs(3600)));
                std::thread::yield_now();
            }
        });
        for i in 0..50 {
            assert_eq!(fixture.write(i * 8, &[i as u8; 4096], OpFlags::NONE), BlkStatus::Ok);
        }
        stop.store(true, Ordering::Release);
        until("the waiter has ended", || {
            fixture.driver.wake(hctx);
            waiter.is_finished()
        });
    });
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::Ok, "left-over wake-ups do no harm");
}

fn lazy_commit_reaches_the_device_by_wait_or_poll(kind: Kind) {
    let mut fixture = DriverFixture::new(kind);
    fixture.driver.issuer().set_lazy_commit(HctxId::new(0), 8);
    let slots = fixture.pool.slots();
    for wait in [true, false] {
        fixture.may_wait = wait;
        let bios = (0..slots).map(|slot| (slot, Bio::read(Sector(u64::from(slot) * 16), 8, DataRef::NONE)));
        assert!(fixture.io_batch(bios.collect()).iter().all(|s| s.is_ok()));
        assert_eq!(fixture.write(8, &[1; 512 * 8], OpFlags::FUA), BlkStatus::Ok);
    }
}

fn data_survives_a_change_of_hardware_queues(kind: Kind) {
    let mut fixture = DriverFixture::with(kind, |c| c.set("nr_cpus", "4").unwrap());
    let fill = Rng::new(0x5eed_0005).bytes(8192);
    for (queues, depth) in [("1", "2"), ("4", "200"), ("2", "64")] {
        assert_eq!(fixture.write(8, &fill, OpFlags::NONE), BlkStatus::Ok);
        fixture.disk.begin_freeze();
        assert!(fixture.disk.is_drained());
        let change = |c: &mut blk::settings::QueueConfig| {
            c.set("nr_hw_queues", queues)?;
            c.set("queue_depth", depth)
        };
        fixture.disk.rebuild(change).unwrap();
        fixture.disk.unfreeze();
        let (status, read) = fixture.read(8, 8192);
        assert_eq!(status, BlkStatus::Ok);
        assert!(!kind.keeps_data() || read == fill);
    }
}

fn limits_hold_together(kind: Kind) {
    let fixture = DriverFixture::new(kind);
    let (limits, capacity) = (fixture.driver.limits(), fixture.driver.capacity());
    assert_eq!(limits.check(), Ok(()));
    assert!(capacity.0 > 0 && capacity.0 % u64::from(limits.logical_block_sectors()) == 0);
    assert!(SLOT_BYTES as u32 <= limits.max_segment_size);
}

/// All of the above, one after the other, on a target that exists only once.
fn all_but_lazy(kind: Kind) {
    data_matches_a_model(kind);
    merged_requests_scatter_and_gather(kind);
    what_is_out_of_range_fails_and_changes_nothing(kind);
    flush_and_fua_succeed(kind);
    many_ios_end_exactly_once(kind);
    two_threads_share_one_hctx(kind);
    a_claimed_hctx_serves_others_too(kind);
    a_waiting_thread_blocks_no_other(kind);
    data_survives_a_change_of_hardware_queues(kind);
    limits_hold_together(kind);
}

/// On a real block device, if one may be overwritten.
#[test]
fn file_on_a_block_device() {
    if let Some(path) = common::device() {
        all_but_lazy(Kind::Device);
        a_claim_is_waited_for_if_it_ends_soon(&path);
    }
}

/// The kernel closes the files of an io_uring some time after the ring is closed.
fn a_claim_is_waited_for_if_it_ends_soon(device: &std::path::Path) {
    use host::driver::file::{File, FileOptions};
    let open = || File::open(device, &FileOptions::default(), Arc::new(host::mem::Regions::new()));
    let (holder, _) = open().unwrap();
    let refused = open().map(drop).unwrap_err().to_string();
    assert!(refused.contains("is in use"), "{refused}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(open);
        drop(holder);
        waiter.join().unwrap().unwrap();
    });
}

/// On a Ceph cluster, if there is one.
#[test]
fn rbd_images_opened_several_times() {
    if let Some(_cluster) = common::ceph::Cluster::get() {
        all_but_lazy(Kind::Rbd);
        lazy_commit_reaches_the_device_by_wait_or_poll(Kind::Rbd);
    }
}

/// A second iSCSI target. It sleeps for a second at each login, so not all tests run on all of its variants.
#[test]
fn iscsi_istgt() {
    for kind in [Kind::IscsiIstgt, Kind::IscsiIstgtSolicited] {
        data_matches_a_model(kind);
        merged_requests_scatter_and_gather(kind);
        flush_and_fua_succeed(kind);
        two_threads_share_one_hctx(kind);
    }
}

/// On a Ceph cluster, through librbd's cache, with the exclusive lock.
#[test]
fn rbd_through_librbds_cache() {
    if let Some(_cluster) = common::ceph::Cluster::get() {
        let kind = Kind::RbdCached;
        data_matches_a_model(kind);
        merged_requests_scatter_and_gather(kind);
        flush_and_fua_succeed(kind);
        a_waiting_thread_blocks_no_other(kind);
        limits_hold_together(kind);
    }
}

/// Two paths whose I/O completes after a fixed time. They have no descriptor that reports it.
const TIMED_PATHS: &str = "multipath:path_grouping_policy=multibus,path_selector=round-robin:\
    model:size=8m,over=null,lat_us=20,jitter_pct=50,parallel=3+model:size=8m,over=null,lat_us=20,jitter_pct=50,parallel=3";

macro_rules! conformance {
    ($($driver:ident: $kind:expr;)*) => {
        /// Names of the drivers that are tested here.
        const DRIVERS: &[&str] = &[$(stringify!($driver)),*];

        $(mod $driver {
            use super::*;
            conformance!(@each $kind; data_matches_a_model, merged_requests_scatter_and_gather,
                what_is_out_of_range_fails_and_changes_nothing, flush_and_fua_succeed, many_ios_end_exactly_once,
                two_threads_share_one_hctx, a_claimed_hctx_serves_others_too, a_waiting_thread_blocks_no_other,
                lazy_commit_reaches_the_device_by_wait_or_poll, data_survives_a_change_of_hardware_queues,
                limits_hold_together);
        })*
    };
    (@each $kind:expr; $($test:ident),*) => { $(#[test] fn $test() { super::$test($kind); })* };
}

conformance! {
    null: Kind::Forgets("null:size=8m");
    null_timer: Kind::Forgets("null:size=8m,completion_nsec=10000");
    ram: Kind::Keeps("ram:size=8m");
    file_direct: Kind::FileDirect;
    file_buffered: Kind::FileBuffered;
    file_direct_threads: Kind::FileDirectThreads;
    file_buffered_threads: Kind::FileBufferedThreads;
    model_over_ram: Kind::Keeps("model:size=8m,over=ram,lat_us=20,jitter_pct=50,iops=500000,parallel=3");
    model_over_null: Kind::Forgets("model:size=8m,over=null,lat_us=20,jitter_pct=50,iops=500000,parallel=3");
    nbd_nbdkit_memory: Kind::NbdMemory;
    nbd_qemu_file: Kind::NbdQemu;
    nbd_nbdkit_tls: Kind::NbdTls;
    iscsi_tgt: Kind::IscsiTgt;
    iscsi_tgt_digests: Kind::IscsiDigests;
    multipath_files: Kind::MultipathFiles;
    multipath_timed: Kind::Forgets(TIMED_PATHS);
    multipath_iscsi_tgt: Kind::MultipathIscsi;
}

#[test]
fn every_kind_of_driver_is_tested() {
    // The tests of RBD need a cluster and are in `rbd_driver.rs`.
    for kind in host::target::DRIVER_KINDS.iter().filter(|kind| **kind != "rbd") {
        assert!(DRIVERS.iter().any(|driver| driver.starts_with(kind)), "add '{kind}' to conformance!");
    }
}
