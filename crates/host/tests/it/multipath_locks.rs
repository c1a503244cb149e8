// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on the images of a disk's paths. Paths of files lead to one inode, so the paths here lock other files in place of devices.

use crate::common;

use blk::time::Duration;
use common::paths::{active, file_path, remove};
use common::{DriverFixture, TempFile, until};
use host::driver::HostDriver;
use host::driver::multipath::{Multipath, MultipathOptions, Opener, Path};
use host::error::{Error, ErrorKind};
use host::image_lock::{ImageLock, SharedLocks};
use host::mem::Regions;
use std::sync::Arc;

/// Once, a removed path kept its device open and locked until its disk was closed.
#[test]
fn lock_ends_with_the_last_path_to_its_image() {
    let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
    let devices = [TempFile::new(), TempFile::new()];
    let path = |name: &str, device: usize| {
        let images = vec![devices[device].0.clone()];
        Path { images, ..file_path(name, &file.0, &regions) }
    };
    let paths = vec![path("a", 0), path("a2", 0), path("b", 1)];
    let disk = Multipath::open(MultipathOptions::default(), paths).unwrap().0;
    let are_locked = || [0, 1].map(|device| ImageLock::probe(&devices[device].0, true).is_err());
    assert_eq!(are_locked(), [false, false]);
    assert!(disk.path().share_locks(&Arc::new(SharedLocks::new(true))).unwrap());
    assert_eq!(are_locked(), [true, true]);
    assert_eq!(remove(&disk, "a"), Ok("removed path 'a'".to_owned()));
    assert_eq!(are_locked(), [true, true]);
    assert_eq!(remove(&disk, "a2"), Ok("removed path 'a2'".to_owned()));
    assert_eq!(are_locked(), [false, true]);
    drop(disk);
    assert_eq!(are_locked(), [false, false]);
}

/// Once, a path that was missing at the start was written without a lock when it appeared.
#[test]
fn late_path_is_locked_before_it_is_used() {
    let (file, device, regions) = (TempFile::new(), TempFile::new(), Arc::new(Regions::new()));
    let away = device.0.with_extension("away");
    std::fs::rename(&device.0, &away).unwrap();
    let plain = file_path("late", &file.0, &regions);
    let (of_file, image) = (plain.open, device.0.clone());
    let open: Opener = Box::new(move || match image.exists() {
        true => of_file(),
        false => Err(Error::new(ErrorKind::NotFound, "is missing")),
    });
    let late = Path { open, images: vec![device.0.clone()], ..plain };
    let options = MultipathOptions { polling_interval: Duration::from_secs(1), ..MultipathOptions::default() };
    let (disk, troubles) = Multipath::open(options, vec![file_path("a", &file.0, &regions), late]).unwrap();
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    let disk = Arc::new(disk);
    assert!(disk.path().share_locks(&Arc::new(SharedLocks::new(true))).unwrap());
    let _fixture = DriverFixture::on(disk.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    let other = ImageLock::take(&away, true).unwrap();
    std::fs::rename(&away, &device.0).unwrap();
    until("the lock of another program is reported", || {
        disk.path().troubles().iter().any(|t| t.contains("is in use: another program"))
    });
    assert_eq!(active(&disk), 1);
    drop(other);
    until("both paths are active", || active(&disk) == 2);
    assert_eq!(ImageLock::probe(&device.0, true).unwrap_err().kind(), ErrorKind::Denied);
}
