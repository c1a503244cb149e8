// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The RBD driver on a Ceph cluster (`cargo xtask ceph`): Ceph's own programs and fio read what the driver wrote, and the driver reads
//! their data. Also its lock, sizes, holes and snapshots, and an OSD that is killed. Tests of all drivers are in `driver_conformance`.

use crate::common;
use crate::waiting::POLL;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::driver::Driver;
use blk::id::Sector;
use blk::status::BlkStatus;
use common::ceph::{CephImage, Cluster, Osd, doing, program};
use common::paths::{active, open_disk};
use common::{DriverFixture, until};
use host::driver::{Allocation, HostDriver, Rbd, rbd};
use host::error::{ErrorKind, Result};
use host::mem::Regions;
use host::target::{Needs, TargetSpec};
use sim::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn open(target: &str, write: bool) -> Result<(Arc<Rbd>, Arc<Regions>)> {
    let regions = Arc::new(Regions::new());
    Ok((Arc::new(Rbd::open(&rbd::parse(target)?, write, regions.clone())?), regions))
}

fn refused(target: &str, write: bool) -> (ErrorKind, String) {
    let e = open(target, write).err().expect("refused");
    (e.kind(), e.to_string())
}

fn fixture(target: &str, write: bool) -> DriverFixture {
    let (driver, regions) = open(target, write).unwrap();
    DriverFixture::on(driver, regions, |_| ())
}

/// A file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rbd-{}-{name}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn rbd_export_and_import_see_the_same_data() {
    let Some(_cluster) = Cluster::get() else { return };
    // Objects of 4 MiB: some requests cross a boundary.
    let image = CephImage::new(16 * MIB, "layering");
    let mut model = vec![0u8; 16 * MIB as usize];
    let mut rng = Rng::new(0xceb4_0001);
    {
        let mut fixture = fixture(&image.target(":images=2"), true);
        for round in 0..200 {
            let blocks = 1 + rng.below(8);
            let at = if round % 4 == 0 { 4 * MIB - 4096 } else { rng.below(16 * MIB / 4096 - 8) * 4096 };
            let data = rng.bytes(blocks as usize * 4096);
            assert_eq!(fixture.write(at / 512, &data, OpFlags::NONE), BlkStatus::Ok);
            model[at as usize..][..data.len()].copy_from_slice(&data);
        }
    }
    let file = Scratch::new("export");
    program("rbd", &["--no-progress", "export", &image.name, file.path()]);
    assert!(std::fs::read(&file.0).unwrap() == model, "what rbd exports is what was written");
    // Then in the other direction.
    let other = CephImage::new(4096, "layering");
    program("rbd", &["rm", "--no-progress", &other.name]);
    program("rbd", &["--no-progress", "import", file.path(), &other.name]);
    let mut fixture = fixture(&other.target(""), false);
    for at in (0..model.len()).step_by(32 << 10) {
        let (status, read) = fixture.read(at as u64 / 512, 32 << 10);
        assert!(status.is_ok() && read == model[at..][..32 << 10], "at {at}");
    }
    assert_ne!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok, "it was opened for reading only");
}

#[test]
fn rbd_fio_verifies_what_the_driver_wrote_and_the_other_way() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(8 * MIB, "layering,exclusive-lock");
    let (pool, name) = image.name.split_once('/').unwrap();
    let rbdname = format!("--rbdname={name}");
    let shared = [
        "--name=j",
        "--rw=randwrite",
        "--bs=4k",
        "--size=8m",
        "--iodepth=16",
        "--randseed=7",
        "--ioengine=rbd",
        "--verify_state_save=0",
    ];
    let own = ["--clientname=admin", &format!("--pool={pool}"), &rbdname];
    program("fio", &[&shared[..], &own, &["--verify=crc32c", "--do_verify=0"]].concat());
    // fio's data, with its verification headers.
    let file = Scratch::new("fio");
    program("rbd", &["--no-progress", "export", &image.name, file.path()]);
    let written = std::fs::read(&file.0).unwrap();
    {
        let mut fixture = fixture(&image.target(":exclusive=1"), true);
        for at in (0..written.len()).step_by(32 << 10) {
            assert!(fixture.read(at as u64 / 512, 32 << 10).1 == written[at..][..32 << 10], "at {at}");
        }
        // The driver writes all blocks in reverse order, so that no block has the data that fio expects there.
        let blocks = written.len() / 4096;
        for i in 0..blocks {
            let block = &written[(blocks - 1 - i) * 4096..][..4096];
            assert_eq!(fixture.write(i as u64 * 8, block, OpFlags::NONE), BlkStatus::Ok);
        }
        // Then the driver restores the order.
        for at in (0..written.len()).step_by(32 << 10) {
            assert_eq!(fixture.write(at as u64 / 512, &written[at..][..32 << 10], OpFlags::NONE), BlkStatus::Ok);
        }
    }
    program("fio", &[&shared[..], &own, &["--verify=crc32c", "--verify_only"]].concat());
}

#[test]
fn rbd_names_and_options_that_are_wrong_are_said_so() {
    let Some(cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering");
    let (kind, text) = refused(&image.target(":no_such_option_of_ceph=1"), false);
    assert!(kind == ErrorKind::Usage && text.contains("option no_such_option_of_ceph: neither mqblk"), "{text}");
    let (kind, text) = refused(&image.target(":rados_osd_op_timeout=soon"), false);
    assert!(kind == ErrorKind::Usage && text.contains("does not take this value"), "{text}");
    let (kind, text) = refused(&format!("rbd:rbd/nothing-here:conf={}", cluster.conf().display()), false);
    assert!(kind == ErrorKind::NotFound && text.contains("'nothing-here' of pool 'rbd'"), "{text}");
    let (kind, text) = refused(&format!("rbd:nopool/a:conf={}", cluster.conf().display()), false);
    assert!(kind == ErrorKind::NotFound && text.contains("pool 'nopool'"), "{text}");
    let (_, text) = refused("rbd:rbd/a:conf=/no/such/file", false);
    assert!(text.contains("/no/such/file (option conf)"), "{text}");
    // A port without a listener: the attempt ends after the timeout.
    let (_, text) = refused(&image.target(":mon_host=v1\\:127.0.0.1\\:1:client_mount_timeout=1"), false);
    assert!(text.contains("cannot connect to the Ceph cluster") && text.contains("v1:127.0.0.1:1"), "{text}");
    let (kind, text) = refused(&image.target(":images=2:rbd_cache=true"), true);
    assert!(kind == ErrorKind::Usage && text.contains("librbd's cache"), "{text}");
    // An image's own configuration overrides ours.
    program("rbd", &["config", "image", "set", &image.name, "rbd_cache", "true"]);
    let (kind, text) = refused(&image.target(":images=2:rbd_cache=false"), true);
    assert!(kind == ErrorKind::Usage && text.contains("librbd's cache"), "{text}");
    let (driver, _) = open(&image.target(""), true).unwrap();
    assert!(driver.limits().write_cache, "a cache that is there is told");
    drop(driver);
    program("rbd", &["config", "image", "remove", &image.name, "rbd_cache"]);
    assert!(!open(&image.target(""), true).unwrap().0.limits().write_cache);
}

#[test]
fn rbd_exclusive_lock_is_one_clients() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering,exclusive-lock");
    let (kind, text) = refused(&image.target(":images=2"), true);
    assert!(kind == ErrorKind::Usage && text.contains("feature disable"), "{text}");
    let mut first = fixture(&image.target(":exclusive=1"), true);
    assert_eq!(first.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let (kind, text) = refused(&image.target(":exclusive=1"), true);
    assert!(
        kind == ErrorKind::Denied && text.contains("127.0.0.1:") && text.contains("has the exclusive lock"),
        "{text}"
    );
    // A disk without `exclusive=1` may read, but not write.
    let mut second = fixture(&image.target(""), true);
    assert_eq!(second.read(0, 4096), (BlkStatus::Ok, vec![1; 4096]));
    assert_ne!(second.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    drop(second);
    assert_eq!(first.write(8, &[1; 4096], OpFlags::NONE), BlkStatus::Ok, "the owner goes on");
    drop(first);
    // A disk without `exclusive=1` releases the lock when another one writes.
    let (mut a, mut b) = (fixture(&image.target(""), true), fixture(&image.target(""), true));
    for i in 0..3 {
        assert_eq!(a.write(0, &[3 + i; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(b.read(0, 4096).1, [3 + i; 4096]);
        assert_eq!(b.write(8, &[4 + i; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(a.read(8, 4096).1, [4 + i; 4096]);
    }
    // But the lock is not taken from a disk in use.
    let (kind, text) = refused(&image.target(":exclusive=1"), true);
    assert!(kind == ErrorKind::Denied && text.contains("has the exclusive lock"), "{text}");
    drop((a, b));
    drop(open(&image.target(":exclusive=1"), true).unwrap());
    let plain = CephImage::new(MIB, "layering");
    let (kind, text) = refused(&plain.target(":exclusive=1"), true);
    assert!(kind == ErrorKind::Usage && text.contains("feature enable"), "{text}");
}

#[test]
fn rbd_namespaces_are_apart() {
    let Some(_cluster) = Cluster::get() else { return };
    let namespace = format!("rbd/tenant-{}", std::process::id());
    program("rbd", &["namespace", "create", &namespace]);
    {
        let inside = CephImage::in_pool(&namespace, MIB, "layering,exclusive-lock");
        let outside = CephImage { name: inside.name.replacen(&namespace, "rbd", 1) };
        // The same name without the namespace is another image, or does not exist.
        let (kind, text) = refused(&outside.target(""), true);
        assert!(kind == ErrorKind::NotFound && text.contains("cannot open RBD image"), "{text}");
        program("rbd", &["create", "--size", "1M", "--image-feature", "layering", &outside.name]);
        let mut here = fixture(&inside.target(":exclusive=1"), true);
        let mut there = fixture(&outside.target(""), true);
        assert_eq!(here.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(there.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!((here.read(0, 4096).1, there.read(0, 4096).1), (vec![1; 4096], vec![2; 4096]));
        // The second handle of a disk also uses the namespace, and messages name it.
        let (_, text) = refused(&inside.target(":exclusive=1"), true);
        assert!(text.contains(&inside.name) && text.contains("has the exclusive lock"), "{text}");
        drop((here, there));
        for (image, byte) in [(&inside, 1), (&outside, 2)] {
            let file = Scratch::new("namespace");
            program("rbd", &["--no-progress", "export", &image.name, file.path()]);
            let exported = std::fs::read(&file.0).unwrap();
            assert!(exported[..4096] == [byte; 4096] && exported[4096..].iter().all(|b| *b == 0), "{}", image.name);
        }
    }
    program("rbd", &["namespace", "remove", &namespace]);
}

#[test]
fn rbd_snapshots_sizes_and_holes() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(16 * MIB, "layering");
    let (driver, regions) = open(&image.target(""), true).unwrap();
    let mut fixture = DriverFixture::on(driver.clone(), regions, |_| ());
    let told = |from: u64, bytes: u64| {
        let found = driver.space().survey(Sector(from / 512), bytes / 512, 16);
        found.iter().map(|s| (s.nr_sectors * 512, s.is_hole)).collect::<Vec<_>>()
    };
    assert_eq!(driver.space().allocation(), Allocation::Survey);
    assert_eq!(told(0, 16 * MIB), [(16 * MIB, true)]);
    assert_eq!(fixture.write(8 * MIB / 512, &[7; 8192], OpFlags::NONE), BlkStatus::Ok);
    let found = told(0, 16 * MIB);
    assert_eq!((found[0], found[1].1), ((8 * MIB, true), false), "{found:?}");
    assert_eq!(found.iter().map(|(n, _)| n).sum::<u64>(), 16 * MIB);
    // From within an object.
    assert_eq!(told(8 * MIB + 4096, 8192), [(4096, false), (4096, true)]);
    // A snapshot keeps the earlier data.
    let snapshot = format!("{}@s", image.name);
    program("rbd", &["--no-progress", "snap", "create", &snapshot]);
    assert_eq!(fixture.write(8 * MIB / 512, &[8; 8192], OpFlags::NONE), BlkStatus::Ok);
    let discard = Bio { op: Op::Discard, ..Bio::read(Sector(8 * MIB / 512), (4 * MIB / 512) as u32, DataRef::NONE) };
    assert_eq!(fixture.io(discard), BlkStatus::Ok);
    assert_eq!(fixture.read(8 * MIB / 512, 8192).1, [0; 8192]);
    let at_snapshot = image.target("").replacen(&image.name, &snapshot, 1);
    {
        let mut old = fixture_of(&at_snapshot);
        assert_eq!(old.read(8 * MIB / 512, 8192), (BlkStatus::Ok, vec![7; 8192]));
        assert!(old.disk.limits().read_only);
    }
    assert_eq!(refused(&at_snapshot, true).0, ErrorKind::Denied);
    // Zeroes that keep their space, and zeroes that release it.
    let zeroes = |flags| {
        let bio =
            Bio { op: Op::WriteZeroes, ..Bio::read(Sector(12 * MIB / 512), (4 * MIB / 512) as u32, DataRef::NONE) };
        bio.with_flags(flags)
    };
    assert_eq!(fixture.io(zeroes(OpFlags::NOUNMAP)), BlkStatus::Ok);
    assert_eq!(told(12 * MIB, 4 * MIB), [(4 * MIB, false)]);
    assert_eq!(fixture.io(zeroes(OpFlags::NONE)), BlkStatus::Ok);
    assert_eq!(told(12 * MIB, 4 * MIB), [(4 * MIB, true)]);
    assert_eq!(fixture.read(12 * MIB / 512, 8192).1, [0; 8192]);
    // Resizes: by the driver, and by another client.
    assert_eq!(driver.space().resize(Some(32 * MIB), false).unwrap().unwrap(), 32 * MIB);
    assert_eq!(driver.capacity(), Sector(16 * MIB / 512));
    driver.space().adopt(32 * MIB);
    assert_eq!(driver.capacity(), Sector(32 * MIB / 512));
    assert!(program("rbd", &["info", &image.name]).contains("size 32 MiB"));
    program("rbd", &["--no-progress", "resize", "--size", "24M", "--allow-shrink", &image.name]);
    assert_eq!(driver.space().resize(None, false).unwrap().unwrap_err().kind(), ErrorKind::Usage, "it is smaller");
    assert_eq!(driver.space().resize(None, true).unwrap().unwrap(), 24 * MIB);
    driver.space().adopt(24 * MIB);
    assert_eq!(driver.space().resize(Some(1000), true).unwrap().unwrap_err().kind(), ErrorKind::Usage);
    // The queue does not know the new size. I/O beyond the end must fail, and must not be lost silently.
    fixture.disk.set_capacity(Sector(32 * MIB / 512));
    assert_ne!(fixture.write(30 * MIB / 512, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_ne!(fixture.read(24 * MIB / 512 - 4, 4096).0, BlkStatus::Ok, "half of it is behind the end");
    for (size, fault) in [("20000100B", "has 20000100 bytes, which is not whole sectors"), ("0", "is empty")] {
        program("rbd", &["--no-progress", "resize", "--size", size, "--allow-shrink", &image.name]);
        let e = driver.space().resize(None, true).unwrap().unwrap_err();
        assert!(e.kind() == ErrorKind::Usage && e.to_string().contains("the disk keeps its size"), "{e}");
        assert!(e.to_string().contains(fault), "{e}");
        assert!(refused(&image.target(""), false).1.contains(fault));
    }
}

#[test]
fn rbd_stripes_over_objects_are_not_surveyed() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::striped(16 * MIB, "64K", 4);
    let (driver, _) = open(&image.target(""), true).unwrap();
    // The third piece is in the third object, and librbd reports it after all pieces of the first two.
    let mut fixture = fixture(&image.target(""), true);
    assert_eq!(fixture.write(128 << 10 >> 9, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(fixture.write((4 * (64 << 10)) >> 9, &[8; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(driver.space().allocation(), Allocation::Data);
    let found = driver.space().survey(Sector(0), 16 * MIB / 512, 16);
    let at = |sector: u64| {
        let mut end = 0;
        let holds = |s: &&host::driver::Stretch| {
            end += s.nr_sectors;
            end > sector
        };
        found.iter().find(holds).is_some_and(|s| s.is_hole)
    };
    assert!(!at(128 << 10 >> 9) && !at((4 * (64 << 10)) >> 9), "{found:?}");
}

/// A path whose client the cluster has blocklisted is never used again, although another client can open the image.
#[test]
fn rbd_a_path_that_was_shut_out_does_not_come_back() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering");
    let options = "polling_interval=1,path_grouping_policy=multibus,path_selector=round-robin 0";
    let (mut fixture, disk) = open_disk(options, &[image.target(""), image.target("")]);
    until("each path has passed a check", || disk.health().iter().all(|p| p.passes > 0));
    let status = program("rbd", &["status", "--format", "json", &image.name]);
    let (_, behind) = status.split_once("\"address\":\"").unwrap_or_else(|| panic!("{status}"));
    program("ceph", &["osd", "blocklist", "add", behind.split('"').next().unwrap()]);
    for byte in 1..9 {
        assert_eq!(fixture.write(0, &[byte; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    let passes = || disk.health().iter().map(|p| p.passes).max();
    let before = passes();
    until("three more checks have passed", || passes() >= before.map(|n| n + 3));
    assert_eq!(active(&disk), 1);
    assert!(
        disk.path().troubles().iter().any(|t| t.contains("blocklisted this client")),
        "{:?}",
        disk.path().troubles()
    );
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![8; 4096]));
}

#[test]
fn rbd_paths_share_their_data_and_are_checked_beside_a_lock() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering,exclusive-lock");
    let refused = |options: &str, paths: &[String]| {
        let text = format!("multipath:{options}:{}", paths.join("+"));
        let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        TargetSpec::parse(&text).unwrap().open(&needs, Arc::default()).err().unwrap().to_string()
    };
    let (plain, cached) = (image.target(""), image.target(":rbd_cache=true"));
    let said = refused("path_checker=none", &[cached.clone(), cached.clone()]);
    assert!(said.contains("each path would have a separate cache"), "{said}");
    let said = refused("", std::slice::from_ref(&cached));
    assert!(said.contains("path_checker=none"), "{said}");
    drop(open_disk("path_checker=none", &[cached]));
    let said = refused("", &[plain.clone(), plain]);
    assert!(said.contains("only one client can have"), "{said}");
    let (mut fixture, disk) = open_disk("polling_interval=1,no_path_retry=queue", &[image.target(":exclusive=1")]);
    until("the first path has passed a check", || disk.health()[0].passes > 0);
    let path = disk.status().groups[0].paths[0].id;
    disk.paths().fail_path(path, host::clock::now());
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok, "it is brought back");
}

fn fixture_of(target: &str) -> DriverFixture {
    fixture(target, false)
}

#[test]
fn rbd_nothing_acknowledged_is_lost_when_the_osd_is_killed() {
    let Some(cluster) = Cluster::get() else { return };
    let osd = Osd::of(&cluster);
    let image = CephImage::new(8 * MIB, "layering");
    let slots = 32u32;
    let blocks = 8 * MIB / 4096;
    let seed = 0xceb4_0002;
    let mut rng = Rng::new(seed);
    // For each block, the number of its last write.
    let mut last = vec![0u64; blocks as usize];
    let mut number = 0u64;
    let mut fixture = fixture(&image.target(""), true);
    for round in 0..40 {
        let mut bios = Vec::new();
        let mut taken = std::collections::HashSet::new();
        while taken.len() < slots as usize {
            taken.insert(rng.below(blocks));
        }
        for (slot, block) in (0..slots).zip(&taken) {
            number += 1;
            last[*block as usize] = number;
            let stamp = [number.to_le_bytes(), block.to_le_bytes()].concat().repeat(256);
            fixture.pool.with_slot(slot, |b| b[..4096].copy_from_slice(&stamp));
            bios.push((slot, Bio::write(Sector(block * 8), 8, DataRef::NONE)));
        }
        let statuses = if round == 20 {
            // The OSD is killed while writes are in flight. Another thread restarts it, because the writes wait for it.
            doing("writes while the OSD is killed and started again");
            std::thread::scope(|s| {
                let killer = s.spawn(|| {
                    osd.kill();
                    osd.start();
                });
                let statuses = fixture.io_batch(bios);
                killer.join().unwrap();
                statuses
            })
        } else {
            fixture.io_batch(bios)
        };
        assert!(statuses.iter().all(|s| s.is_ok()), "round {round}, seed {seed:#x}: {statuses:?}");
    }
    drop(fixture);
    // Once more after a kill of the OSD, so that nothing is cached.
    osd.kill();
    osd.start();
    let mut fixture = fixture_of(&image.target(""));
    for (block, number) in last.iter().enumerate() {
        let (status, read) = fixture.read(block as u64 * 8, 4096);
        let stamp = [number.to_le_bytes(), (block as u64).to_le_bytes()].concat().repeat(256);
        let is_there = if *number == 0 { read == [0; 4096] } else { read == stamp };
        assert!(status.is_ok() && is_there, "block {block}: write {number}, seed {seed:#x}: {:?}", &read[..16]);
    }
}

#[test]
fn rbd_requests_end_when_the_osd_does_not_answer() {
    let Some(cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering");
    let mut timed = fixture(&image.target(":rados_osd_op_timeout=2"), true);
    let mut patient = fixture(&image.target(""), true);
    // Declared after the disks, so that if the test fails, the OSD runs again before they are closed.
    let osd = Osd::of(&cluster);
    assert_eq!(timed.write(0, &[5; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(patient.write(8, &[5; 4096], OpFlags::NONE), BlkStatus::Ok);
    // The OSD is stopped but not killed, so no connection is closed.
    osd.stop();
    doing("requests of an OSD that stands still");
    assert_eq!(timed.read(0, 4096).0, BlkStatus::Timeout);
    // Without a timeout, a write waits until it is given up.
    let driver = patient.driver.clone();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let status = std::thread::scope(|s| {
        s.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Acquire) {
                assert!(driver.path().set_give_up(true));
                std::thread::sleep(POLL);
            }
        });
        let status = patient.write(8, &[6; 4096], OpFlags::NONE);
        ended.store(true, std::sync::atomic::Ordering::Release);
        status
    });
    osd.go_on();
    assert_eq!(status, BlkStatus::Timeout);
    assert!(driver.path().set_give_up(false));
    assert_eq!(patient.write(16, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(patient.read(16, 4096).1, [7; 4096]);
    assert_eq!(timed.read(0, 4096), (BlkStatus::Ok, vec![5; 4096]));
}
