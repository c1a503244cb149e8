// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks of the iSCSI driver on any target.

use super::{DriverFixture, until};
use blk::bio::OpFlags;
use blk::status::BlkStatus;
use host::driver::HostDriver;
use host::driver::iscsi::{self, Iscsi, IscsiTarget};
use host::error::ErrorKind;
use host::mem::Regions;
use std::sync::Arc;

pub fn target(url: &str) -> IscsiTarget {
    iscsi::parse(url).unwrap()
}

pub fn open(url: &str, regions: &Arc<Regions>) -> Arc<Iscsi> {
    Arc::new(Iscsi::open(&target(url), true, regions.clone()).unwrap_or_else(|e| panic!("{url}: {e}")))
}

pub fn refused(url: &str) -> (ErrorKind, String) {
    let e = Iscsi::open(&target(url), true, Arc::new(Regions::new())).err().expect("it is to be refused");
    (e.kind(), e.to_string())
}

/// Makes a disk with as many CPUs as queues.
pub fn fixture(url: &str, queues: u32) -> (DriverFixture, Arc<Iscsi>) {
    let regions = Arc::new(Regions::new());
    let driver = open(url, &regions);
    let fixture = DriverFixture::on(driver.clone(), regions, |c| {
        c.set("nr_cpus", &queues.to_string()).unwrap();
        c.set("nr_hw_queues", &queues.to_string()).unwrap();
    });
    (fixture, driver)
}

/// `serves` stops and starts the target. Requests meanwhile wait, and all written data is there afterwards.
pub fn an_absence_is_not_noticed(fixture: &mut DriverFixture, driver: &Iscsi, mut serves: impl FnMut(bool)) {
    assert_eq!(fixture.write(8, &[3; 4096], OpFlags::FUA), BlkStatus::Ok);
    for round in 1..=3 {
        serves(false);
        until("no session is up", || driver.path().connections().unwrap().up == 0);
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                assert_eq!(fixture.write(16, &[round; 4096], OpFlags::NONE), BlkStatus::Ok);
                assert!(fixture.read(8, 4096) == (BlkStatus::Ok, vec![3; 4096]));
                assert!(fixture.read(16, 4096) == (BlkStatus::Ok, vec![round; 4096]));
            });
            serves(true);
            writer.join().unwrap();
        });
    }
    assert!(driver.path().troubles()[0].contains("sessions were lost"), "{:?}", driver.path().troubles());
}
