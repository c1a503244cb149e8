// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths that are failed, reinstated and removed by hand, and groups that are switched by hand.

use crate::common;

use blk::bio::OpFlags;
use blk::multipath::GroupState;
use blk::status::BlkStatus;
use common::{DriverFixture, TempFile, until};
use host::driver::multipath::{self, Multipath};
use host::driver::{HostDriver, PathCommand};
use host::mem::Regions;
use host::secrets::Unmasked;
use host::target::Needs;
use std::fs;
use std::sync::Arc;

/// Opens a disk over two names of one file, each a group of its own.
fn open(image: &TempFile) -> (DriverFixture, Arc<Multipath>) {
    open_with(image, "no_path_retry=fail")
}

fn open_with(image: &TempFile, options: &str) -> (DriverFixture, Arc<Multipath>) {
    fs::File::options().write(true).open(&image.0).unwrap().set_len(1 << 20).unwrap();
    let file = image.0.display().to_string();
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let text = format!("{options},polling_interval=1,max_polling_interval=1:{file}+/.{file}");
    let parsed = multipath::parse(&text).unwrap();
    let paths = parsed.paths_to_open(&needs, &regions).unwrap();
    let disk = Arc::new(Multipath::open(parsed.options.clone(), paths).unwrap().0);
    (DriverFixture::on(disk.clone(), regions, |c| c.set("nr_cpus", "1").unwrap()), disk)
}

/// Returns, for each path, whether it may carry requests, and the number of the group in use.
fn state(disk: &Multipath) -> ([bool; 2], Option<usize>) {
    let groups = disk.path().topology().unwrap().groups;
    let used = groups.iter().position(|g| g.state == GroupState::Active).map(|at| at + 1);
    ([0, 1].map(|at| groups[at].paths[0].is_active), used)
}

#[test]
fn path_failed_by_hand_stays_failed_until_it_is_reinstated() {
    let image = TempFile::new();
    let (mut fixture, disk) = open(&image);
    let name = disk.path().topology().unwrap().groups[0].paths[0].name.clone();
    let path = disk.path();
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(state(&disk), ([true, true], Some(1)));
    path.command(&PathCommand::FailPath(name.clone())).unwrap();
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(state(&disk), ([false, true], Some(2)));
    assert!(path.troubles()[0].contains("was failed by hand"), "{:?}", path.troubles());
    // The other path's checks show that there was time for this path's.
    let passes = || disk.health().iter().map(|h| h.passes).max().unwrap();
    let before = passes();
    until("three more checks have passed", || passes() >= before + 3);
    assert_eq!(state(&disk).0, [false, true]);
    path.command(&PathCommand::ReinstatePath("1".to_owned())).unwrap();
    assert_eq!((state(&disk).0, path.troubles().len()), ([true, true], 1));
    assert!(path.troubles()[0].contains("has failed 1 times, and is used again"), "{:?}", path.troubles());
}

#[test]
fn group_is_switched_by_hand() {
    let image = TempFile::new();
    let (mut fixture, disk) = open(&image);
    let switch = |number| disk.path().command(&PathCommand::SwitchGroup(number)).map(|outcome| outcome.done);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    for number in [2, 1] {
        assert_eq!(switch(number).unwrap(), format!("switched to group {number}"));
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert_eq!(state(&disk).1, Some(number));
    }
    for number in [0, 3] {
        assert_eq!(switch(number).unwrap_err().to_string(), format!("group {number}: must be 1..=2"));
    }
    disk.path().command(&PathCommand::FailPath("2".to_owned())).unwrap();
    assert!(switch(2).unwrap_err().to_string().contains("group 2 has no usable path"));
    for path in ["0", "3", "none"] {
        let refused = disk.path().command(&PathCommand::FailPath(path.to_owned())).unwrap_err().to_string();
        assert!(refused.contains("1..=2"), "{refused}");
    }
}

/// Groups have the numbers of the list after a removal, too.
#[test]
fn last_usable_path_is_removed_only_by_force() {
    let image = TempFile::new();
    let (mut fixture, disk) = open(&image);
    let command = |command| disk.path().command(&command).map(|o| o.done).map_err(|e| e.to_string());
    let remove = |path: &str, force| command(PathCommand::RemovePath { path: path.to_owned(), force });
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    command(PathCommand::FailPath("2".to_owned())).unwrap();
    let refused = remove("1", false).unwrap_err();
    assert!(refused.contains("is the last usable path") && refused.contains("--force"), "{refused}");
    assert_eq!(remove("1", true), Ok(format!("removed path '{}'", image.0.display())));
    let refused = remove("1", true).unwrap_err();
    assert!(refused.contains("is the only one of its disk"), "{refused}");
    // Only the other path is left, as number 1, in group 1.
    command(PathCommand::ReinstatePath("1".to_owned())).unwrap();
    assert_eq!(command(PathCommand::SwitchGroup(1)), Ok("switched to group 1".to_owned()));
    assert!(command(PathCommand::SwitchGroup(2)).unwrap_err().contains("must be 1..=1"));
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![2; 4096]));
    let add = PathCommand::AddPath { name: "new".to_owned(), target: Unmasked::new("/x"), prio: 1 };
    assert!(command(add).unwrap_err().contains("the program that opened this disk does not support adding paths"));
}

/// Cause: a number of retries counted as waiting. Effect: requests failed after that time. Fix: only `queue` counts.
#[test]
fn last_usable_path_is_removed_if_requests_wait_for_ever() {
    for (no_path_retry, is_removed, left) in [("4", false, "2"), ("queue", true, "1")] {
        let image = TempFile::new();
        let (mut fixture, disk) = open_with(&image, &format!("no_path_retry={no_path_retry}"));
        let command = |command| disk.path().command(&command).map_err(|e| e.to_string());
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        command(PathCommand::FailPath("2".to_owned())).unwrap();
        let removed = command(PathCommand::RemovePath { path: "1".to_owned(), force: false });
        assert_eq!(removed.is_ok(), is_removed, "{no_path_retry}: {removed:?}");
        command(PathCommand::ReinstatePath(left.to_owned())).unwrap();
        assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
}
