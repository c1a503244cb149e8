// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath over real paths: two descriptors of a file, and Debian's iSCSI target under several names and processes. `blk` tests
//! what its layer does with any paths.

use crate::common;
use crate::waiting::LONG;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::id::Sector;
use blk::multipath::GroupState;
use blk::status::BlkStatus;
use blk::time::Duration;
use common::iscsi::Tgt;
use common::paths::{active, add, file_path, open_disk, remove};
use common::peers::Peer;
use common::proxy::Proxy;
use common::{DriverFixture, TempFile, until};
use host::driver::HostDriver;
use host::driver::multipath::{Multipath, MultipathOptions, PathGroupingPolicy};
use host::mem::Regions;
use host::target::{Needs, TargetSpec, TargetWarning};
use sim::rng::Rng;
use std::sync::Arc;
use std::time::Duration as StdDuration;

fn quick() -> MultipathOptions {
    MultipathOptions {
        path_grouping_policy: PathGroupingPolicy::Multibus,
        polling_interval: Duration::from_secs(1),
        ..MultipathOptions::default()
    }
}

#[test]
fn two_descriptors_of_a_file_are_one_disk() {
    let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
    let paths = ["a", "b"].map(|name| file_path(name, &file.0, &regions)).into();
    let (disk, troubles) = Multipath::open(quick(), paths).unwrap();
    assert!(troubles.is_empty(), "{troubles:?}");
    let disk = Arc::new(disk);
    let mut fixture = DriverFixture::on(disk.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    for i in 0..64_u64 {
        assert_eq!(fixture.write(i * 8, &[i as u8; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    // One path is failed manually. The other one does all I/O, and the checker restores the first.
    let a = disk.paths().path("a").unwrap();
    disk.paths().fail_path(a, host::clock::now());
    assert_eq!(active(&disk), 1);
    for i in 0..64_u64 {
        assert_eq!(fixture.read(i * 8, 4096), (BlkStatus::Ok, vec![i as u8; 4096]));
    }
    until("both paths are active", || active(&disk) == 2);
    for path in disk.status().groups.iter().flat_map(|g| &g.paths) {
        assert_eq!(path.in_flight, 0, "{path:?}");
    }
}

/// Makes a disk of these targets under a queue of one CPU.
fn fixture_of(options: &str, urls: &[String]) -> (DriverFixture, Arc<dyn HostDriver>) {
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let text = format!("multipath:{options}:{}", urls.join("+"));
    let open =
        TargetSpec::parse(&text).unwrap().open(&needs, regions.clone()).unwrap_or_else(|e| panic!("{text}: {e}"));
    let on_our_word = |w: &TargetWarning| w.to_string().contains("one disk; late writes are not fenced");
    let is_nbd = urls.len() > 1 && urls[0].starts_with("nbd");
    assert!(open.warnings.iter().filter(|w| on_our_word(w)).count() == usize::from(is_nbd), "{:?}", open.warnings);
    assert!(open.warnings.len() == usize::from(is_nbd), "{:?}", open.warnings);
    let fixture = DriverFixture::on(open.driver.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    (fixture, open.driver)
}

/// Writes blocks that contain the number of their write, and reads them back, while a thread fails paths. No I/O may fail, and each
/// block must have its last write.
struct Load<'a> {
    fixture: &'a mut DriverFixture,
    rng: Rng,
    /// For each block, the number of its last write.
    written: Vec<u64>,
    count: u64,
    /// The duration of the longest round.
    longest: StdDuration,
}

const BLOCKS: u64 = 512;

impl Load<'_> {
    fn new(fixture: &mut DriverFixture, seed: u64) -> Load<'_> {
        Load { fixture, rng: Rng::new(seed), written: vec![0; BLOCKS as usize], count: 0, longest: StdDuration::ZERO }
    }

    fn stamp(block: u64, write: u64) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        let words = if write == 0 { [0, 0] } else { [block, write] };
        for part in bytes.chunks_exact_mut(16) {
            part[..8].copy_from_slice(&words[0].to_le_bytes());
            part[8..].copy_from_slice(&words[1].to_le_bytes());
        }
        bytes
    }

    /// Does 32 writes of different blocks at once, then reads of these and of other blocks.
    fn round(&mut self) {
        let began = std::time::Instant::now();
        let first = self.rng.below(BLOCKS / 32) * 32;
        let blocks: Vec<u64> = (first..first + 32).collect();
        for (slot, block) in blocks.iter().enumerate() {
            self.count += 1;
            self.written[*block as usize] = self.count;
            let stamp = Self::stamp(*block, self.count);
            self.fixture.pool.with_slot(slot as u32, |b| b[..4096].copy_from_slice(&stamp));
        }
        let bios = |make: fn(Sector, u32, DataRef) -> Bio, blocks: &[u64]| -> Vec<(u32, Bio)> {
            // Even positions first, so that neighbours are not merged.
            let at = |(i, b): (usize, &u64)| (i as u32, make(Sector(b * 8), 8, DataRef::NONE));
            let all: Vec<_> = blocks.iter().enumerate().map(at).collect();
            let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().partition(|(i, _)| i % 2 == 0);
            even.into_iter().chain(odd).collect()
        };
        let statuses = self.fixture.io_batch(bios(Bio::write, &blocks));
        assert!(statuses.iter().all(|s| s.is_ok()), "{statuses:?} {:?}", self.fixture.driver.path().troubles());
        let others: Vec<u64> = (0..32).map(|i| if i < 16 { blocks[i] } else { self.rng.below(BLOCKS) }).collect();
        let statuses = self.fixture.io_batch(bios(Bio::read, &others));
        assert!(statuses.iter().all(|s| s.is_ok()), "{statuses:?} {:?}", self.fixture.driver.path().troubles());
        for (slot, block) in others.iter().enumerate() {
            let expected = Self::stamp(*block, self.written[*block as usize]);
            self.fixture
                .pool
                .with_slot(slot as u32, |b| assert!(b[..4096] == expected, "block {block}: {:?}", &b[..16]));
        }
        self.longest = self.longest.max(began.elapsed());
    }

    fn run_until(&mut self, mut what: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !what() {
            assert!(began.elapsed() < LONG, "it does not come to it: {:?}", self.fixture.driver.path().troubles());
            self.round();
        }
    }

    /// Returns the longest round so far, and resets it.
    fn take_longest(&mut self) -> StdDuration {
        std::mem::take(&mut self.longest)
    }

    /// Checks that the file contains the last write of each block.
    fn check_file(&self, path: &std::path::Path) {
        let bytes = std::fs::read(path).unwrap();
        for block in 0..BLOCKS {
            let at = block as usize * 4096;
            assert!(
                bytes[at..at + 4096] == Self::stamp(block, self.written[block as usize]),
                "block {block} in the file"
            );
        }
    }
}

fn up(driver: &dyn HostDriver) -> u64 {
    let c = driver.path().connections().unwrap();
    assert!(c.up <= c.wanted);
    c.up
}

/// Whether all paths are in use.
fn all_used(driver: &dyn HostDriver, paths: u64) -> bool {
    up(driver) == paths && driver.path().troubles().iter().all(|t| !t.contains("is not used now"))
}

/// Calls `what`, which changes paths, under load. Returns the longest round.
fn pull(load: &mut Load<'_>, what: impl FnOnce() + Send) -> StdDuration {
    load.take_longest();
    std::thread::scope(|s| {
        let puller = s.spawn(what);
        load.run_until(|| puller.is_finished());
        puller.join().unwrap();
    });
    (0..20).for_each(|_| load.round());
    load.take_longest()
}

#[test]
fn a_target_that_is_killed_costs_no_write_and_comes_back() {
    let seed = 0x6d70_0001;
    for policy in ["multibus", "failover"] {
        let a = Tgt::new();
        let mut tgts = [a.beside(), a];
        let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
        let options = format!("path_grouping_policy={policy},polling_interval=1,failback=immediate");
        let (mut fixture, driver) = fixture_of(&options, &urls);
        let mut load = Load::new(&mut fixture, seed);
        for pulled in [0, 1, 0] {
            load.run_until(|| all_used(&*driver, 2));
            (0..20).for_each(|_| load.round());
            let quiet = load.take_longest();
            let longest = pull(&mut load, || tgts[pulled].kill());
            println!("{policy}: kill -9 of one of two: longest round {longest:?}, before {quiet:?}, seed {seed:#x}");
            tgts[pulled].start();
        }
        load.run_until(|| all_used(&*driver, 2));
        load.check_file(&tgts[0].file.0);
    }
}

#[test]
fn a_session_that_is_dropped_costs_no_write() {
    let seed = 0x6d70_0002;
    let a = Tgt::new();
    let tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    let (mut fixture, driver) = fixture_of("path_grouping_policy=multibus,polling_interval=1", &urls);
    let mut load = Load::new(&mut fixture, seed);
    for round in 0..3 {
        let mut dropped = 0;
        let longest = pull(&mut load, || dropped = tgts[round % 2].drop_sessions());
        assert!(dropped > 0, "tgtadm dropped no session");
        println!("session dropped: longest round {longest:?}, seed {seed:#x}");
        load.run_until(|| all_used(&*driver, 2));
    }
    assert!(driver.path().connections().unwrap().losses >= 3);
    load.check_file(&tgts[0].file.0);
}

#[test]
fn sixteen_paths_are_pulled_until_one_is_left() {
    let seed = 0x6d70_0003;
    let first = Tgt::new();
    let mut tgts: Vec<Tgt> = (1..16).map(|_| first.beside()).collect();
    tgts.insert(0, first);
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    let (mut fixture, driver) = fixture_of("path_grouping_policy=multibus,polling_interval=1", &urls);
    let mut load = Load::new(&mut fixture, seed);
    load.round();
    let file = tgts[0].file.clone();
    let longest = pull(&mut load, || tgts[..15].iter_mut().for_each(Tgt::kill));
    println!("15 of 16 killed: longest round {longest:?}, seed {seed:#x}");
    load.run_until(|| up(&*driver) == 1);
    pull(&mut load, || tgts[..15].iter_mut().for_each(Tgt::start));
    load.run_until(|| all_used(&*driver, 16));
    load.check_file(&file.0);
}

#[test]
fn a_slow_path_slows_its_own_requests_only() {
    let seed = 0x6d70_0004;
    let tgt = Tgt::new();
    let (slow, fast) = (Proxy::new(tgt.address()), Proxy::new(tgt.address()));
    let urls = [&slow, &fast].map(|p| tgt.url_by(p.address(), "?sessions=1"));
    let options = "path_grouping_policy=multibus,path_selector=service-time,polling_interval=1";
    let (mut fixture, disk) = open_disk(options, &urls);
    let mut load = Load::new(&mut fixture, seed);
    (0..50).for_each(|_| load.round());
    let quiet = load.take_longest();
    slow.set_delay(StdDuration::from_millis(20));
    (0..50).for_each(|_| load.round());
    println!("one path 100 times slower: longest round {:?}, before {quiet:?}, seed {seed:#x}", load.take_longest());
    slow.set_delay(StdDuration::ZERO);
    load.run_until(|| active(&disk) == 2);
    load.check_file(&tgt.file.0);
    // A slow path has not failed.
    assert!(disk.status().groups[0].paths.iter().all(|p| p.fail_count == 0), "{}", disk.status());
}

/// Each of two CPUs has its own path. If one path is silent, the I/O of its CPU waits, and the I/O of the other does not.
#[test]
fn io_affinity_takes_the_path_of_the_cpu() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let urls = [tgt.url_by(proxy.address(), "?sessions=1"), tgt.url("?sessions=1")];
    let options = "path_grouping_policy=multibus,path_selector=io-affinity,path_cpus=0x1+0x2";
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let target = TargetSpec::parse(&format!("multipath:{options}:{}", urls.join("+"))).unwrap();
    let driver = target.open(&needs, regions.clone()).unwrap().driver;
    let fixture = DriverFixture::on(driver, regions, |c| c.set("nr_cpus", "2").unwrap());
    let (mut of_first, mut of_second) = fixture.split_in_two();
    assert_eq!(of_first.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.freeze();
    for _ in 0..32 {
        assert_eq!(of_second.write(8, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    assert!(proxy.held() < 4096, "the other CPU's path was taken: {} bytes", proxy.held());
    std::thread::scope(|s| {
        let writer = s.spawn(|| of_first.write(0, &[3; 4096], OpFlags::NONE));
        until("the write is held", || proxy.held() >= 4096);
        proxy.thaw();
        assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
    });
    drop((of_first, of_second));
    assert_eq!(std::fs::read(&tgt.file.0).unwrap()[..4097], [vec![3; 4096], vec![2; 1]].concat());
}

/// A write is in flight when its path falls silent. The write is retried on another path only after the session was restored as the same
/// nexus. So when the old connection's copy arrives after a newer write was acknowledged, it matches no request.
#[test]
fn a_late_write_of_a_silent_path_does_not_overwrite_a_newer_one() {
    let tgt = Tgt::new();
    let other = tgt.beside();
    let proxy = Proxy::new(tgt.address());
    let patience = "?sessions=1&noop_interval=1&noop_timeout=1";
    let urls = [tgt.url_by(proxy.address(), patience), other.url(patience)];
    let options = "path_grouping_policy=multibus,polling_interval=1,fast_io_fail_tmo=60";
    let (mut fixture, disk) = open_disk(options, &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let ids: Vec<_> = disk.status().groups[0].paths.iter().map(|p| p.id).collect();
    // The write must use the first path.
    disk.paths().fail_path(ids[1], host::clock::now());
    proxy.freeze();
    // New connections are slow. Without a wait for them, the write would be done on the other path long before the old one is dropped.
    proxy.set_delay(StdDuration::from_millis(300));
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || {
            let began = std::time::Instant::now();
            assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
            println!("silent path: a write took {:?}", began.elapsed());
            assert_eq!(fixture.write(0, &[3; 4096], OpFlags::FUA), BlkStatus::Ok);
        });
        until("the write is held", || proxy.held() >= 4096);
        disk.paths().reinstate_path(ids[1]);
        writer.join().unwrap();
    });
    assert!(proxy.held() >= 4096, "the write was not on its way: {}", proxy.held());
    proxy.thaw();
    until("nothing is held", || proxy.held() == 0);
    proxy.set_delay(StdDuration::ZERO);
    until("both paths are used", || all_used(&*disk, 2));
    for _ in 0..100 {
        assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![3; 4096]));
    }
    drop((fixture, disk));
    proxy.cut();
    assert!(std::fs::read(&tgt.file.0).unwrap()[..4096].iter().all(|b| *b == 3));
}

/// The proxy in front of a path stops with a write in it, and refuses new connections. The target behind it still runs and gets the
/// write later. A refused connection proves nothing, so the write waits until the nexus is restored.
#[test]
fn a_portal_that_refuses_connections_proves_nothing() {
    let tgt = Tgt::new();
    let other = tgt.beside();
    let mut proxy = Proxy::new(tgt.address());
    let patience = "?sessions=1&noop_interval=1&noop_timeout=1";
    let urls = [tgt.url_by(proxy.address(), patience), other.url(patience)];
    let options = "path_grouping_policy=multibus,polling_interval=1,fast_io_fail_tmo=3600";
    let (mut fixture, disk) = open_disk(options, &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let ids: Vec<_> = disk.status().groups[0].paths.iter().map(|p| p.id).collect();
    disk.paths().fail_path(ids[1], host::clock::now());
    proxy.freeze();
    proxy.stop_listening();
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || {
            assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
            assert_eq!(fixture.write(0, &[3; 4096], OpFlags::FUA), BlkStatus::Ok);
        });
        until("the write is held", || proxy.held() >= 4096);
        disk.paths().reinstate_path(ids[1]);
        // The message is about sessions, not about checks.
        let is_refused = |t: &String| t.contains("reconnecting failed") && t.contains("refused");
        until("the connection is refused", || disk.path().troubles().iter().any(is_refused));
        assert_eq!(disk.path().connections().unwrap().replayed, 0, "it was given to another path");
        proxy.listen();
        writer.join().unwrap();
    });
    assert!(proxy.held() >= 4096, "the write was not on its way: {}", proxy.held());
    proxy.thaw();
    until("nothing is held", || proxy.held() == 0);
    until("both paths are used", || all_used(&*disk, 2));
    for _ in 0..100 {
        assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![3; 4096]));
    }
    drop((fixture, disk));
    proxy.cut();
    assert!(std::fs::read(&tgt.file.0).unwrap()[..4096].iter().all(|b| *b == 3));
}

/// A login to another portal group makes another nexus. The target may still execute the commands of the lost one.
#[test]
fn a_session_with_another_portal_group_fences_nothing() {
    let tgt = Tgt::new();
    let other = tgt.beside();
    let proxy = Proxy::new(tgt.address());
    let patience = "?sessions=1&noop_interval=1&noop_timeout=1";
    let urls = [tgt.url_by(proxy.address(), patience), other.url(patience)];
    let options = "path_grouping_policy=multibus,polling_interval=1,fast_io_fail_tmo=3600";
    let (mut fixture, disk) = open_disk(options, &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let ids: Vec<_> = disk.status().groups[0].paths.iter().map(|p| p.id).collect();
    disk.paths().fail_path(ids[1], host::clock::now());
    proxy.freeze();
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=2")));
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("the write is held", || proxy.held() >= 4096);
        disk.paths().reinstate_path(ids[1]);
        until("the other portal group is refused", || {
            writer.is_finished() || disk.path().troubles().iter().any(|t| t.contains("portal group 2"))
        });
        assert_eq!(disk.path().connections().unwrap().replayed, 0, "it was taken for the same nexus");
        proxy.alter(None);
        assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
    });
    until("both paths are used", || all_used(&*disk, 2));
    // Without commands to fence, any group may be used.
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=3")));
    proxy.cut();
    until("both paths are used after two losses", || {
        disk.path().connections().unwrap().losses >= 2 && all_used(&*disk, 2)
    });
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![2; 4096]));
}

#[test]
fn without_a_path_requests_wait_or_fail_as_they_are_told() {
    let a = Tgt::new();
    let mut tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    for (retry, ends) in [("queue", false), ("fail", true), ("2", true)] {
        let (mut fixture, driver) = fixture_of(&format!("no_path_retry={retry},polling_interval=1"), &urls);
        assert_eq!(fixture.write(8, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        tgts.iter_mut().for_each(Tgt::kill);
        until("no session is up", || up(&*driver) == 0);
        if ends {
            let status = fixture.write(8, &[2; 4096], OpFlags::NONE);
            assert!(status.is_path_error(), "no_path_retry={retry}: {status:?}");
            tgts.iter_mut().for_each(Tgt::start);
            until("both paths are used", || all_used(&*driver, 2));
        } else {
            std::thread::scope(|s| {
                let writer = s.spawn(|| fixture.write(8, &[2; 4096], OpFlags::NONE));
                until("no path is used", || {
                    driver.path().troubles().iter().filter(|t| t.contains("is not used now")).count() == 2
                });
                assert!(!writer.is_finished());
                tgts.iter_mut().for_each(Tgt::start);
                assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
            });
        }
        assert_eq!(fixture.write(8, &[3; 4096], OpFlags::NONE), BlkStatus::Ok, "no_path_retry={retry}");
        assert_eq!(fixture.read(8, 4096), (BlkStatus::Ok, vec![3; 4096]));
        until("both paths are used", || all_used(&*driver, 2));
    }
}

#[test]
fn nothing_goes_down_a_path_that_leads_to_another_disk() {
    let a = Tgt::new();
    let mut tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    let (mut fixture, driver) = fixture_of("path_grouping_policy=multibus,polling_interval=1", &urls);
    assert_eq!(fixture.write(8192, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let ours = tgts[1].file.clone();
    tgts[0].kill();
    tgts[0].become_another("SN0002");
    tgts[0].start();
    let mut load = Load::new(&mut fixture, 0x6d70_0005);
    load.run_until(|| {
        driver.path().troubles().iter().any(|t| t.contains("no requests are sent, because this may be another disk"))
    });
    (0..20).for_each(|_| load.round());
    load.check_file(&ours.0);
    assert!(std::fs::read(&tgts[0].file.0).unwrap().iter().all(|b| *b == 0), "another disk was written");
    // The two do not become one disk, either.
    let text = refused(&format!("multipath:{}", urls.join("+")));
    assert!(text.contains("it leads to another disk"), "{text}");
    // The original disk is back at its address, so the path is restored.
    let [first, second] = &mut tgts;
    first.kill();
    first.become_disk_of(second);
    first.start();
    load.run_until(|| all_used(&*driver, 2));
    (0..20).for_each(|_| load.round());
    load.check_file(&ours.0);
}

/// The disk moves from one target to another, and never waits.
#[test]
fn paths_are_added_and_removed_under_load() {
    for (policy, group) in [("multibus", 1), ("failover", 2)] {
        let a = Tgt::new();
        let mut tgts = [a.beside(), a];
        let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
        let options = format!("path_grouping_policy={policy},polling_interval=1");
        let (mut fixture, driver) = fixture_of(&options, &urls[..1]);
        let mut load = Load::new(&mut fixture, 0x6d70_0006);
        load.run_until(|| all_used(&*driver, 1));
        let alone = remove(&*driver, "1").unwrap_err();
        assert!(alone.contains("is the only one of its disk; add another path first"), "{alone}");
        let mut said = Err(String::new());
        pull(&mut load, || said = add(&*driver, "new", &urls[1]));
        assert_eq!(said, Ok(format!("added path 'new' in group {group}")));
        load.run_until(|| all_used(&*driver, 2));
        let twice = add(&*driver, "new", &urls[1]).unwrap_err();
        assert!(twice.contains("path new: is a path of this disk already"), "{twice}");
        pull(&mut load, || said = remove(&*driver, "1"));
        let removed = said.unwrap();
        assert!(removed.starts_with("removed path 'iscsi://"), "{removed}");
        assert_eq!(driver.path().connections().unwrap().wanted, 1);
        let shown: Vec<String> =
            driver.path().topology().unwrap().groups.into_iter().flat_map(|g| g.paths).map(|p| p.name).collect();
        assert_eq!(shown, ["new"]);
        // Another disk is at the first address now.
        let ours = tgts[1].file.clone();
        tgts[0].kill();
        tgts[0].become_another("SN0002");
        tgts[0].start();
        let other = add(&*driver, "other", &urls[0]).unwrap_err();
        assert!(other.starts_with("path other: ") && other.contains("it leads to another disk"), "{other}");
        (0..20).for_each(|_| load.round());
        load.check_file(&ours.0);
        assert!(std::fs::read(&tgts[0].file.0).unwrap().iter().all(|b| *b == 0), "another disk was written");
    }
}

fn refused(text: &str) -> String {
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let open = TargetSpec::parse(text).and_then(|t| t.open(&needs, Arc::new(Regions::new())));
    open.err().expect("it is to be refused").to_string()
}

#[test]
fn a_path_that_is_not_there_at_the_start_comes_later() {
    let a = Tgt::new();
    let mut tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    tgts[0].kill();
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let text = format!("multipath:path_grouping_policy=multibus,polling_interval=1:{}", urls.join("+"));
    let open = TargetSpec::parse(&text).unwrap().open(&needs, regions.clone()).unwrap();
    assert_eq!(open.warnings.len(), 1);
    assert!(open.warnings[0].to_string().contains("cannot be used now"), "{}", open.warnings[0]);
    let mut fixture = DriverFixture::on(open.driver.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    let mut load = Load::new(&mut fixture, 0x6d70_0006);
    (0..10).for_each(|_| load.round());
    tgts[0].start();
    load.run_until(|| all_used(&*open.driver, 2));
    load.check_file(&tgts[0].file.0);
    tgts.iter_mut().for_each(Tgt::kill);
    let text = refused(&text);
    assert!(text.contains("no path can be used") && text.matches("cannot connect").count() == 2, "{text}");
}

#[test]
fn nbd_paths_are_checked_over_their_own_connection() {
    let seed = 0x6d70_0007;
    let mut a = Peer::nbdkit_file(&[], &[]);
    let path = a.file.as_ref().unwrap().0.clone();
    let b = Peer::nbdkit(&["file", path.to_str().unwrap()]);
    let urls = [a.target("&connections=1"), b.target("&connections=1")];
    let (mut fixture, driver) =
        fixture_of("allow_stale_writes=yes,path_grouping_policy=multibus,polling_interval=1", &urls);
    let mut load = Load::new(&mut fixture, seed);
    for _ in 0..2 {
        let longest = pull(&mut load, || a.kill());
        println!("NBD server killed: longest round {longest:?}, seed {seed:#x}");
        load.run_until(|| up(&*driver) == 1);
        a.start();
        load.run_until(|| all_used(&*driver, 2));
    }
    load.check_file(&path);
}

/// The better group is used again at once, later, or never, depending on `failback`.
#[test]
fn failback_is_as_it_is_told() {
    let file = TempFile::new();
    let urls = [file.0.to_str().unwrap().to_owned(), format!("/.{}", file.0.display())];
    for (failback, comes_back) in [("manual", false), ("immediate", true), ("followover", true), ("1", true)] {
        let options = format!("prio=50+10,polling_interval=1,failback={failback}");
        let (mut fixture, disk) = open_disk(&options, &urls);
        let group = |disk: &Multipath| {
            let groups = disk.status().groups;
            groups.iter().position(|g| g.state == GroupState::Active)
        };
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(group(&disk), Some(0), "{failback}");
        let best = disk.status().groups[0].paths[0].id;
        disk.paths().fail_path(best, host::clock::now());
        assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
        // On a busy machine, the better group may already be back.
        assert!(group(&disk) == Some(1) || comes_back, "{failback}");
        until("both paths are active, and the group is the expected one", || {
            assert_eq!(fixture.write(0, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
            active(&disk) == 2 && (!comes_back || group(&disk) == Some(0))
        });
        if !comes_back {
            assert_eq!(group(&disk), Some(1), "{failback}");
            disk.paths().switch_group(0).unwrap();
            assert_eq!(fixture.write(0, &[4; 4096], OpFlags::NONE), BlkStatus::Ok);
            assert_eq!(group(&disk), Some(0), "{failback}");
        }
    }
}

/// Without I/O, the group that was switched to is not in use yet when a better one is restored.
#[test]
fn an_idle_disk_fails_back_to_the_best_group_of_several() {
    let file = TempFile::new();
    let urls = ["", "/.", "/../"].map(|before| format!("{before}{}", file.0.display()));
    let (mut fixture, disk) = open_disk("prio=50+40+10,polling_interval=1,failback=immediate", &urls);
    let ids: Vec<_> = disk.status().groups.iter().flat_map(|g| &g.paths).map(|p| p.id).collect();
    ids[..2].iter().for_each(|path| disk.paths().fail_path(*path, host::clock::now()));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    until("three paths are active", || active(&disk) == 3);
    // The checker restores the path first and then fails back.
    until("the second group is used", || disk.status().group == 1);
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(disk.status().groups[0].state, GroupState::Active);
}

/// The checker also finds the failure of a path without I/O, before a request uses the path.
#[test]
fn a_path_that_dies_idle_is_failed_by_its_checker() {
    let a = Tgt::new();
    let mut tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    let (mut fixture, disk) = open_disk("prio=50+10,polling_interval=1", &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    // Until a check has passed once, a failed check does not count.
    until("each path has passed a check", || disk.health().iter().all(|p| p.passes > 0));
    tgts[1].kill();
    until("one path is active", || active(&disk) == 1);
    assert!(disk.path().troubles().iter().any(|t| t.contains("is not used now")), "{:?}", disk.path().troubles());
}

/// An invalid request of a client does not fail paths.
#[test]
fn a_bad_request_fails_no_path() {
    let file = TempFile::new();
    let urls = [file.0.to_str().unwrap().to_owned(), format!("/.{}", file.0.display())];
    let (mut fixture, disk) = open_disk("path_grouping_policy=multibus,no_path_retry=queue", &urls);
    let nowhere = DataRef::new(999, 0);
    for op in [Op::Read, Op::Write] {
        assert_eq!(fixture.io(Bio { op, ..Bio::read(Sector(0), 8, nowhere) }), BlkStatus::Inval);
    }
    assert_eq!(active(&disk), 2);
}

/// When a caller gives up the disk, requests that would wait fail.
#[test]
fn giving_up_ends_what_waits_for_a_path() {
    let a = Tgt::new();
    let mut tgts = [a.beside(), a];
    let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
    let (mut fixture, disk) = open_disk("no_path_retry=queue,polling_interval=1", &urls);
    tgts.iter_mut().for_each(Tgt::kill);
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || fixture.write(8, &[2; 4096], OpFlags::NONE));
        until("no path is active", || active(&disk) == 0);
        assert!(disk.path().set_give_up(true));
        assert!(writer.join().unwrap().is_path_error());
    });
    assert!(disk.path().set_give_up(false));
    tgts.iter_mut().for_each(Tgt::start);
    // When paths return, the disk does not fail requests any more.
    assert_eq!(fixture.write(8, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
}

/// A request that a silent path gives up may still be executed by its target. It fails, and is not retried on another path.
#[test]
fn what_is_given_up_does_not_go_down_another_path() {
    let tgt = Tgt::new();
    let other = tgt.beside();
    let proxy = Proxy::new(tgt.address());
    let patience = "?sessions=1&noop_interval=0";
    let urls = [tgt.url_by(proxy.address(), patience), other.url(patience)];
    let (mut fixture, disk) =
        open_disk("path_grouping_policy=multibus,polling_interval=1,fast_io_fail_tmo=3600", &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let ids: Vec<_> = disk.status().groups[0].paths.iter().map(|p| p.id).collect();
    disk.paths().fail_path(ids[1], host::clock::now());
    proxy.freeze();
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("the write is held", || proxy.held() >= 4096);
        disk.paths().reinstate_path(ids[1]);
        until("the write has ended", || {
            assert!(disk.path().set_give_up(true));
            writer.is_finished()
        });
        let status = writer.join().unwrap();
        assert!(status.is_path_error(), "{status:?}: another path has done it");
    });
    disk.path().set_give_up(false);
    until("both paths are used", || all_used(&*disk, 2));
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.thaw();
    until("nothing is held", || proxy.held() == 0);
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![3; 4096]));
}

/// Otherwise each file would get half of the blocks.
#[test]
fn two_files_are_not_one_disk() {
    let (a, b) = (TempFile::new(), TempFile::new());
    let text = refused(&format!("multipath:{}+{}", a.0.display(), b.0.display()));
    assert!(text.contains("it is file-") && text.contains("it leads to another disk"), "{text}");
}

/// Requests wait for a path again, however a path was restored. Once, after `no_path_retry` had run out and a path was reinstated
/// manually, requests failed at the next loss.
#[test]
fn queueing_is_allowed_again_while_a_path_works() {
    let file = TempFile::new();
    let urls = [file.0.to_str().unwrap().to_owned()];
    let (mut fixture, disk) = open_disk("no_path_retry=2,polling_interval=1", &urls);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    disk.paths().fail_if_no_path(host::clock::now());
    assert!(!disk.status().features.queue_if_no_path);
    until("requests are queued again", || disk.status().features.queue_if_no_path);
    assert_eq!(active(&disk), 1);
}

/// Once, a portal that accepts a connection and stays silent delayed the end of its disk.
#[test]
fn a_path_that_is_being_opened_does_not_hold_up_the_end() {
    let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
    let (began, has_begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (calls, released) = (std::sync::atomic::AtomicU32::new(0), std::sync::Mutex::new(released));
    let mut silent = file_path("silent", &file.0, &regions);
    silent.open = Box::new(move || {
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            began.send(()).unwrap();
            let _ = released.lock().unwrap().recv();
        }
        Err(host::error::Error::new(host::error::ErrorKind::Io, "no answer"))
    });
    let (disk, troubles) = Multipath::open(quick(), vec![file_path("a", &file.0, &regions), silent]).unwrap();
    assert_eq!(troubles.len(), 1);
    has_begun.recv_timeout(LONG).unwrap();
    let ends = std::thread::spawn(move || drop(disk));
    until("the disk has ended", || ends.is_finished());
    ends.join().unwrap();
    drop(release);
}

/// Only the checker closes its path.
#[test]
fn check_in_progress_does_not_hold_up_a_removal() {
    let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
    let (began, has_begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let mut silent = file_path("silent", &file.0, &regions);
    silent.probe = Some(Box::new(move |_| {
        began.send(()).unwrap();
        let _ = released.lock().unwrap().recv();
        Err(host::error::Error::new(host::error::ErrorKind::Io, "no answer"))
    }));
    let (disk, troubles) = Multipath::open(quick(), vec![file_path("a", &file.0, &regions), silent]).unwrap();
    assert_eq!(troubles, [""; 0]);
    has_begun.recv_timeout(LONG).unwrap();
    assert_eq!(remove(&disk, "silent"), Ok("removed path 'silent'".to_owned()));
    drop(release);
}
