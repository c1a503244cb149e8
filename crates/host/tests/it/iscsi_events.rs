// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous messages of an iSCSI target: requests to log out, announced disconnects, and messages without a meaning for us.

use crate::common;

use blk::bio::{Bio, Op, OpFlags};
use blk::id::Sector;
use blk::status::BlkStatus;
use common::scripted::Scripted;
use common::{DriverFixture, until};
use host::driver::HostDriver;
use host::driver::iscsi::{self, Iscsi};
use host::mem::Regions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const LOGOUT: u8 = 1;
const DROPS_ONE: u8 = 2;
const DROPS_ALL: u8 = 3;

fn open(target: &Scripted, options: &str, is_path: bool, queues: &str) -> (DriverFixture, Arc<Iscsi>) {
    let regions = Arc::new(Regions::new());
    let parsed = iscsi::parse(&target.url(options)).unwrap();
    let driver = match is_path {
        true => Iscsi::open_path(&parsed, true, regions.clone(), false),
        false => Iscsi::open(&parsed, true, regions.clone()),
    };
    let driver = Arc::new(driver.unwrap());
    let fixture = DriverFixture::on(driver.clone(), regions, |c| {
        c.set("nr_cpus", queues).unwrap();
        c.set("nr_hw_queues", queues).unwrap();
    });
    (fixture, driver)
}

fn texts(driver: &Iscsi) -> Vec<String> {
    driver.path().take_messages().into_iter().map(|m| m.text).collect()
}

/// A target that sends this message at the next write once `is_armed`, and does not execute that write.
fn target_with(event: u8, parameters: [u16; 3], is_armed: &Arc<AtomicBool>, data: Arc<Mutex<Vec<u8>>>) -> Scripted {
    let is_armed = is_armed.clone();
    Scripted::storing(data, move |peer, request| {
        let is_it = request.is_write() && is_armed.swap(false, Ordering::Relaxed);
        if is_it {
            peer.asynchronous(event, parameters);
        }
        is_it
    })
}

/// An array moves its sessions to another port, whose portal group is another one, while a write is in flight. Cause: a session
/// that a Logout ended counted as lost, so its writes waited for the whole recovery timeout, here an hour. Fix: a Logout
/// Response of success proves that the target has ended them.
#[test]
fn requested_logout_and_redirect_do_not_delay_writes() {
    for is_path in [false, true] {
        let (data, is_armed) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::new(AtomicBool::new(false)));
        let target = target_with(LOGOUT, [0, 0, 3], &is_armed, data.clone());
        let other = Scripted::storing(data, |_, _| false);
        other.portal.lock().unwrap().group = 2;
        let (mut fixture, driver) = open(&target, "?recovery_timeout=3600", is_path, "1");
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        let before = target.portal.lock().unwrap().logouts.len();
        target.portal.lock().unwrap().redirect = Some(format!("{},2", other.address()));
        is_armed.store(true, Ordering::Relaxed);
        fixture.pool.with_slot(0, |b| b[..4096].fill(2));
        let data = fixture.pool.lend(0);
        fixture.begin(Bio { op: Op::Write, ..Bio::read(Sector(8), 8, data) });
        until("the session is up again", || driver.status().0[0].losses == 1 && driver.status().0[0].connected);
        assert_eq!(fixture.finish(), BlkStatus::Ok);
        common::give_back(&mut fixture.pool, 0);
        assert_eq!(target.portal.lock().unwrap().logouts.len(), before + 1, "one Logout");
        assert_eq!(driver.status().0[0].last_loss.as_deref(), Some("the target requested a logout"));
        assert_eq!(texts(&driver), ["the target requests a logout within 3 s (asynchronous event 1)"]);
        assert!(other.written.lock().unwrap()[4096..8192].iter().all(|b| *b == 2));
    }
}

/// Time2Wait is an hour, so the session that is lost later is made again first.
#[test]
fn next_login_waits_as_long_as_the_target_asks() {
    for (event, parameters, response) in
        [(DROPS_ONE, [0, 3600, 9], 0), (DROPS_ALL, [0, 3600, 9], 0), (LOGOUT, [0, 0, 3], 3)]
    {
        let is_armed = Arc::new(AtomicBool::new(false));
        let target = target_with(event, parameters, &is_armed, Arc::default());
        target.portal.lock().unwrap().logout_response = (response, 3600);
        let (both, driver) = open(&target, "?recovery_timeout=3600&sessions=2", false, "2");
        let (mut told, mut other) = both.split_in_two();
        is_armed.store(true, Ordering::Relaxed);
        let data = told.pool.lend(0);
        told.begin(Bio { op: Op::Write, ..Bio::read(Sector(0), 8, data) });
        until("the first session is lost", || driver.status().0[0].losses == 1);
        target.cut();
        until("the second session is up again", || driver.status().0[1].losses == 1 && driver.status().0[1].connected);
        assert_eq!(other.write(8, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
        assert!(!driver.status().0[0].connected, "event {event}");
        driver.path().set_give_up(true);
        assert_ne!(told.finish(), BlkStatus::Ok);
        common::give_back(&mut told.pool, 0);
    }
}

/// Cause: every message except event 0 dropped the session.
#[test]
fn vendor_specific_and_unknown_messages_leave_the_session() {
    let target = Scripted::new(|peer, request| {
        if request.is_write() {
            [248, 255, 77, 0].into_iter().for_each(|event| peer.asynchronous(event, [1, 2, 3]));
        }
        false
    });
    let (mut fixture, driver) = open(&target, "", false, "1");
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(driver.status().0[0].losses, 0);
    let expected = [
        "the target sent a vendor-specific message, which is ignored: 1, 2, 3 (asynchronous event 248)",
        "the target sent a vendor-specific message, which is ignored: 1, 2, 3 (asynchronous event 255)",
        "the target sent an unknown message, which is ignored: 1, 2, 3 (asynchronous event 77)",
    ];
    assert_eq!(texts(&driver), expected);
    assert_eq!(driver.path().troubles(), [""; 0]);
}
