// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of a multipath disk whose logical unit has grown. The targets are scripted, so that each path reports a size of its own.

use crate::common;

use blk::bio::OpFlags;
use blk::driver::Driver;
use blk::id::Sector;
use blk::status::BlkStatus;
use common::paths::{active, open_disk};
use common::scripted::{BUSY, CHECK_CONDITION, Scripted};
use common::{DriverFixture, until};
use host::driver::HostDriver;
use host::driver::multipath::Multipath;
use host::error::{ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const OPTIONS: &str = "path_grouping_policy=multibus,polling_interval=1,max_polling_interval=1";
/// Number of the session that checks a path and reads its size.
const CHECK_SESSION: u16 = u16::MAX;
const READ_CAPACITY_16: u8 = 0x9e;
const HARDWARE_ERROR: u8 = 4;
const ABORTED_COMMAND: u8 = 0x0b;

fn targets() -> [Scripted; 2] {
    [Scripted::new(|_, _| false), Scripted::new(|_, _| false)]
}

fn urls(targets: &[Scripted; 2]) -> [String; 2] {
    targets.each_ref().map(|target| target.url("?sessions=1"))
}

/// Makes a disk of these paths. Each has passed a check, so that later checks can fail it.
fn disk_of(targets: &[Scripted; 2]) -> (DriverFixture, Arc<Multipath>) {
    let (fixture, disk) = open_disk(OPTIONS, &urls(targets));
    until("each path has passed a check", || disk.health().iter().all(|path| path.passes > 0));
    (fixture, disk)
}

fn double(target: &Scripted) {
    target.unit.lock().unwrap().blocks *= 2;
}

fn halve(target: &Scripted) {
    target.unit.lock().unwrap().blocks /= 2;
}

/// Adopts the size that the paths report.
fn resize(disk: &Multipath) -> Result<Sector> {
    let bytes = disk.space().resize(None, false).unwrap()?;
    disk.space().adopt(bytes);
    Ok(Sector(bytes / 512))
}

fn sessions_up(disk: &Multipath) -> u64 {
    disk.path().connections().unwrap().up
}

fn all_used(disk: &Multipath) -> bool {
    active(disk) == 2 && sessions_up(disk) == 2
}

/// Whether a path waits for its logical unit to be back.
fn is_refused(disk: &Multipath) -> bool {
    disk.path().troubles().iter().any(|t| t.contains("no requests are sent, because this may be another disk"))
}

#[test]
fn a_multipath_disk_grows_once_all_paths_have() {
    let targets = targets();
    let (_fixture, disk) = disk_of(&targets);
    let (before, doubled) = (disk.capacity(), Sector(disk.capacity().0 * 2));
    let e = disk.space().resize(Some(1 << 20), false).unwrap().unwrap_err();
    assert!(e.kind() == ErrorKind::Usage && e.to_string().contains("resize it on the target"), "{e}");
    double(&targets[0]);
    let e = resize(&disk).unwrap_err().to_string();
    assert!(e.contains("the disk keeps its size; try again when all paths have the same"), "{e}");
    assert_eq!(disk.capacity(), before);
    double(&targets[1]);
    assert_eq!((resize(&disk).unwrap(), disk.capacity()), (doubled, doubled));
}

/// Cause: a path took over the size that it had read, although the other path had another size. Effect: after the target had undone the
/// growth, the path counted as another disk. Fix: a path adopts a size only together with its disk.
#[test]
fn growth_that_one_path_has_reported_can_be_undone() {
    let targets = targets();
    let (mut fixture, disk) = disk_of(&targets);
    let before = disk.capacity();
    double(&targets[0]);
    assert_eq!(resize(&disk).unwrap_err().kind(), ErrorKind::Usage);
    halve(&targets[0]);
    targets[0].cut();
    until("a session is lost", || disk.path().connections().unwrap().losses > 0);
    until("both paths are used", || all_used(&disk));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!((resize(&disk).unwrap(), disk.capacity()), (before, before));
}

/// Cause: only the paths that could be asked got the new size. Effect: a path that came back with the old size was used beyond its end.
/// Fix: all paths adopt the size of their disk.
#[test]
fn path_that_was_down_needs_the_size_that_was_adopted() {
    let targets = targets();
    let (mut fixture, disk) = disk_of(&targets);
    let doubled = Sector(disk.capacity().0 * 2);
    targets[1].refuses.lock().unwrap().extend([0, CHECK_SESSION]);
    targets[1].cut();
    until("one session is up", || sessions_up(&disk) == 1);
    double(&targets[0]);
    assert_eq!((resize(&disk).unwrap(), disk.capacity()), (doubled, doubled));
    // It is back, but its unit still has the old size.
    targets[1].refuses.lock().unwrap().clear();
    until("one path is active, the other is refused", || is_refused(&disk) && active(&disk) == 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    double(&targets[1]);
    until("both paths are used", || all_used(&disk));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(resize(&disk).unwrap(), doubled);
}

/// The path's session is up, but no other one can be made to ask for the size.
#[test]
fn session_that_has_not_read_the_new_size_is_made_anew() {
    let targets = targets();
    let (mut fixture, disk) = disk_of(&targets);
    let doubled = Sector(disk.capacity().0 * 2);
    targets[1].refuses.lock().unwrap().push(CHECK_SESSION);
    double(&targets[0]);
    assert_eq!((resize(&disk).unwrap(), disk.capacity()), (doubled, doubled));
    until("the path is refused", || is_refused(&disk));
    targets[1].refuses.lock().unwrap().clear();
    until("one path is active", || active(&disk) == 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    double(&targets[1]);
    until("both paths are used", || all_used(&disk));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
}

/// Cause: a path kept the larger size with which it was opened. Effect: if it was the first path, the disk was not opened; if it was opened
/// late, and the target then undid the growth, it counted as another disk. Fix: the disk has the smallest size, and so have its paths.
#[test]
fn path_that_is_opened_larger_gets_the_size_of_its_disk() {
    for (larger, is_late) in [(0, false), (1, false), (1, true)] {
        let targets = targets();
        double(&targets[larger]);
        if is_late {
            targets[larger].refuses.lock().unwrap().push(0);
        }
        let (mut fixture, disk) = open_disk(OPTIONS, &urls(&targets));
        targets[larger].refuses.lock().unwrap().clear();
        let before = disk.capacity();
        until("both paths are used", || all_used(&disk));
        halve(&targets[larger]);
        targets[larger].cut();
        until("a session is lost", || disk.path().connections().unwrap().losses > 0);
        until("both paths are used", || all_used(&disk));
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!((resize(&disk).unwrap(), disk.capacity()), (before, before), "path {larger}, late: {is_late}");
    }
}

/// Cause: a path that could not tell the size now, such as a busy one, counted as refused for good. Effect: the disk was neither opened nor
/// resized, although its other path worked. Fix: only ILLEGAL REQUEST and DATA PROTECT are final.
#[test]
fn path_that_cannot_tell_its_size_now_is_left_out() {
    for (status, key) in [(BUSY, 0), (CHECK_CONDITION, ABORTED_COMMAND), (CHECK_CONDITION, HARDWARE_ERROR)] {
        let fails = Arc::new(AtomicBool::new(true));
        let own = Arc::clone(&fails);
        let failing = Scripted::new(move |peer, request| {
            let is_it = request.cdb()[0] == READ_CAPACITY_16 && own.load(Ordering::Relaxed);
            match status {
                _ if !is_it => {}
                CHECK_CONDITION => peer.check(request.tag(), key, 0, 0),
                _ => peer.end(request.tag(), status),
            }
            is_it
        });
        let targets = [Scripted::new(|_, _| false), failing];
        let (mut fixture, disk) = open_disk(OPTIONS, &urls(&targets));
        let doubled = Sector(disk.capacity().0 * 2);
        let troubles: Vec<String> = disk.health().into_iter().filter_map(|path| path.trouble).collect();
        assert!(troubles.iter().any(|t| t.contains("READ CAPACITY (16) failed")), "{status:#x}: {troubles:?}");
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        fails.store(false, Ordering::Relaxed);
        until("both paths are used", || all_used(&disk));
        fails.store(true, Ordering::Relaxed);
        double(&targets[0]);
        assert_eq!((resize(&disk).unwrap(), disk.capacity()), (doubled, doubled));
        double(&targets[1]);
        fails.store(false, Ordering::Relaxed);
        until("both paths are used", || all_used(&disk));
        assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
}
