// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath over NBD servers. A check is a separate connection, which a server may not accept.

use crate::common;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::id::Sector;
use blk::status::BlkStatus;
use common::paths::{active, add, open_disk, remove};
use common::peers::Peer;
use common::stopping::{signal, stop};
use common::{DriverFixture, TempFile, until};
use host::driver::multipath::Multipath;
use host::driver::{HostDriver, PathCommand};
use host::mem::Regions;
use host::secrets::Unmasked;
use host::target::{Needs, TargetSpec};
use std::sync::Arc;

/// The tests write to one file through two servers.
const STALE: &str = "allow_stale_writes=yes";

/// A server that accepts only one connection cannot be checked with another. Its path stays in use, and that is reported.
#[test]
fn a_check_that_has_never_passed_fails_no_path() {
    let a = Peer::nbdkit_file(&["--filter=limit"], &["limit=1"]);
    let (mut fixture, disk) = open_disk("polling_interval=1", &[a.target("&connections=1")]);
    until("the failed check is reported", || {
        disk.path().troubles().iter().any(|t| t.contains("is used, but its check does not pass"))
    });
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!((active(&disk), disk.health()[0].passes), (1, 0));
}

/// Makes a disk with two servers of one file. The first is in use. It accepts one connection, so no check of it ever passes.
fn two_servers(
    options: &str,
    first: &str,
    config: impl FnOnce(&mut blk::settings::QueueConfig),
) -> (Peer, Peer, DriverFixture, Arc<Multipath>) {
    let a = Peer::nbdkit_file(&["--filter=limit"], &["limit=1"]);
    let path = a.file.as_ref().unwrap().0.clone();
    let b = Peer::nbdkit(&["file", path.to_str().unwrap()]);
    let urls = [a.target(&format!("&connections=1{first}")), b.target("&connections=1")];
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let target = host::driver::multipath::parse(&format!("{STALE},prio=50+10,{options}:{}", urls.join("+"))).unwrap();
    let regions = Arc::new(Regions::new());
    let paths = target.paths_to_open(&needs, &regions).unwrap();
    let disk = Arc::new(Multipath::open(target.options.clone(), paths).unwrap().0);
    let fixture = DriverFixture::on(disk.clone(), regions, |c| {
        c.set("nr_cpus", "1").unwrap();
        config(c);
    });
    (a, b, fixture, disk)
}

/// Once, a request at a silent NBD server had no timeout and waited for ever, though there was another path.
#[test]
fn a_silent_nbd_server_costs_a_request_its_time_and_no_more() {
    let config = |c: &mut blk::settings::QueueConfig| c.set("io_timeout", "1000").unwrap();
    let (a, _b, mut fixture, disk) = two_servers("polling_interval=86400", "", config);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    // A failed path is used again after its next check. The first check is over, and the next one is far away.
    until("the failed check is reported", || {
        disk.path().troubles().iter().any(|t| t.contains("is used, but its check does not pass"))
    });
    stop(a.pid());
    std::thread::scope(|s| {
        let writer = s.spawn(|| fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("the write has ended", || writer.is_finished());
        assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
    });
    assert_eq!(active(&disk), 1);
    signal(a.pid(), "-CONT");
}

/// Returns the number of sockets of a process.
fn sockets(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|to| to.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Once, a check that had begun before its path failed restored the path, whatever had happened meanwhile.
#[test]
fn a_check_from_before_a_failure_brings_nothing_back() {
    let a = Peer::nbdkit_file(&["--filter=delay"], &["delay-open=5"]);
    let b = Peer::nbdkit(&["file", a.file.as_ref().unwrap().0.to_str().unwrap()]);
    let one = "&connections=1";
    // The connection that tested whether the server listens is closed.
    until("the server has no client", || sockets(a.pid()) == 1);
    let options = format!("{STALE},polling_interval=86400");
    let (mut fixture, disk) = open_disk(&options, &[a.target(one), b.target(one)]);
    let slow = disk.status().groups[0].paths[0].id;
    // The check's connection takes 5 s to open.
    until("the server has two clients", || sockets(a.pid()) == 3);
    disk.paths().fail_path(slow, host::clock::now());
    until("the check has passed", || disk.health()[0].passes == 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(active(&disk), 1);
}

/// Once, a path that fell silent before its first check was used for ever.
#[test]
fn path_with_stuck_requests_fails_before_any_check() {
    let (a, _b, mut fixture, disk) = two_servers("polling_interval=1,checker_timeout=1", "&timeout=86400", |_| {});
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    stop(a.pid());
    std::thread::scope(|s| {
        let writer = s.spawn(|| fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("one path is active", || active(&disk) == 1);
        let in_flight: u32 = disk.status().groups.iter().flat_map(|g| &g.paths).map(|p| p.in_flight).sum();
        assert!(in_flight == 1 && !writer.is_finished(), "{}", disk.status());
        signal(a.pid(), "-CONT");
        assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
    });
    until("both paths are active", || active(&disk) == 2);
}

/// A server that accepts one connection cannot be checked with another. Its path is retried as without a checker.
#[test]
fn a_path_that_cannot_be_checked_comes_back() {
    let (_a, _b, mut fixture, disk) = two_servers("polling_interval=1", "", |_| {});
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let first = disk.status().groups[0].paths[0].id;
    disk.paths().fail_path(first, host::clock::now());
    until("both paths are active", || active(&disk) == 2);
    assert_eq!(disk.health()[0].passes, 0);
    assert!(
        disk.path().troubles().iter().any(|t| t.contains("is used, but its check does not pass")),
        "{:?}",
        disk.path().troubles()
    );
}

/// Cause: a flush goes down one path, and each server has a cache of its own. Effect: acknowledged writes in the cache of a server that
/// then died were lost after a successful flush. Fix: all writes carry FUA.
#[test]
fn writes_over_several_servers_carry_fua() {
    let logs = [TempFile::new(), TempFile::new()];
    let [to_first, to_second] = [&logs[0], &logs[1]].map(|log| format!("logfile={}", log.0.display()));
    let a = Peer::nbdkit_file(&["--filter=log"], &[&to_first]);
    let path = a.file.as_ref().unwrap().0.to_str().unwrap().to_owned();
    let b = Peer::nbdkit(&["--filter=log", "file", &path, &to_second]);
    let urls = [a.target("&connections=1"), b.target("&connections=1")];
    let options = format!("{STALE},path_grouping_policy=multibus,path_selector=round-robin,polling_interval=86400");
    let (mut fixture, _disk) = open_disk(&options, &urls);
    let limits = fixture.disk.limits();
    assert!(!limits.write_cache && !limits.fua && limits.max_write_zeroes_sectors > 0);
    for sector in (0..64).step_by(8) {
        assert_eq!(fixture.write(sector, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    fixture.write_zeroes_all(64);
    let discard = Bio { op: Op::Discard, ..Bio::read(Sector(0), 64, DataRef::NONE) };
    assert_eq!(fixture.io(discard), BlkStatus::Ok);
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::Ok);
    let texts = logs.each_ref().map(|log| std::fs::read_to_string(&log.0).unwrap());
    assert!(texts.iter().any(|text| text.contains(" Trim ")), "{texts:?}");
    for text in texts {
        let is_change = |line: &&str| [" Write ", " Zero ", " Trim "].iter().any(|op| line.contains(op));
        let mut writes = text.lines().filter(is_change).peekable();
        assert!(writes.peek().is_some() && writes.all(|line| line.contains(" fua=1")), "{text}");
        assert!(!text.contains(" Flush "), "{text}");
    }
}

#[test]
fn a_server_with_a_cache_and_no_fua_is_no_written_path() {
    let peers = [(); 2].map(|()| Peer::nbdkit(&["--filter=fua", "memory", "8M"]));
    let urls = peers.each_ref().map(|peer| peer.target("&connections=1"));
    let target = TargetSpec::parse(&format!("multipath:{STALE}:{}", urls.join("+"))).unwrap();
    let open = |write| {
        let needs = Needs { write, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        target.open(&needs, Arc::new(Regions::new())).map(|open| open.driver.limits().write_cache)
    };
    let said = open(true).unwrap_err().to_string();
    assert!(said.contains("has a write cache, but no FUA"), "{said}");
    assert_eq!(open(false).ok(), Some(true));
}

/// Opens a disk of these paths, to which others can be added, under a queue of `cpus` CPUs.
fn fixture_of(options: &str, urls: &[String], cpus: &str) -> (DriverFixture, Arc<dyn HostDriver>) {
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let text = format!("multipath:{STALE},{options}:{}", urls.join("+"));
    let driver = TargetSpec::parse(&text).unwrap().open(&needs, regions.clone()).unwrap().driver;
    (DriverFixture::on(driver.clone(), regions, |c| c.set("nr_cpus", cpus).unwrap()), driver)
}

/// Once, the limit was that of the paths at the start. So a larger number was accepted, and the added path failed at every check.
#[test]
fn limit_of_hardware_queues_is_that_of_the_present_paths() {
    let (a, b) = (Peer::nbdkit(&["memory", "8M"]), Peer::nbdkit(&["memory", "8M"]));
    let (_fixture, driver) = fixture_of("polling_interval=1", &[a.target("&connections=4")], "1");
    let narrow = b.target("&connections=1");
    assert_eq!(driver.max_hw_queues(), 4);
    add(&*driver, "narrow", &narrow).unwrap();
    assert_eq!(driver.max_hw_queues(), 1);
    let refused = driver.start(4, 8).unwrap_err();
    assert!(refused.contains("at most 1; set nr_hw_queues=1"), "{refused}");
    remove(&*driver, "narrow").unwrap();
    assert_eq!(driver.max_hw_queues(), 4);
    driver.start(4, 8).unwrap();
    let refused = add(&*driver, "narrow", &narrow).unwrap_err();
    assert!(refused.contains("4 hardware queues"), "{refused}");
}

/// Otherwise the disk could not be started again with the queues that it has.
#[test]
fn late_path_with_few_connections_limits_no_queues() {
    let (a, mut b) = (Peer::nbdkit(&["memory", "8M"]), Peer::nbdkit(&["memory", "8M"]));
    b.kill();
    let urls = [a.target("&connections=4"), b.target("&connections=1")];
    let (_fixture, driver) = fixture_of("polling_interval=1", &urls, "4");
    b.start();
    until("the missing hardware queues are reported", || {
        driver.path().troubles().iter().any(|t| t.contains("4 hardware queues: it has at most 1"))
    });
    assert_eq!(driver.max_hw_queues(), 4);
}

/// Once, the warnings of a path that was added were dropped: a disk that began with one path never said that its paths have no identity.
#[test]
fn added_path_brings_its_warnings() {
    let single = ["--filter=multi-conn", "memory", "8M", "multi-conn-mode=disable"];
    let (a, b) = (Peer::nbdkit(&single), Peer::nbdkit(&single));
    let (_fixture, driver) = fixture_of("polling_interval=1", &[a.target("&connections=1")], "1");
    let target = Unmasked::new(&b.target("&connections=4"));
    let command = PathCommand::AddPath { name: "b".to_owned(), target, prio: 1 };
    let warnings = driver.path().command(&command).unwrap().warnings;
    let warns = |text: &str| warnings.iter().filter(|w| w.contains(text)).count();
    assert_eq!(
        [warns("have no identity: only their sizes are compared"), warns("CAN_MULTI_CONN")],
        [1, 1],
        "{warnings:?}"
    );
}
