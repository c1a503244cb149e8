// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The iSCSI driver with Debian's tgtd: logins, sessions, long requests. Also the fate of requests when sessions are closed, or when the
//! target is killed or returns as another disk. Tests of all drivers are in `driver_conformance`.

use crate::common;
use crate::own_process;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::driver::Driver;
use blk::id::Sector;
use blk::status::BlkStatus;
use common::initiator::{an_absence_is_not_noticed, fixture, open, refused, target};
use common::iscsi::{IQN, Tgt};
use common::istgt::{Istgt, Options};
use common::proxy::Proxy;
use common::{DriverFixture, until};
use host::driver::HostDriver;
use host::driver::iscsi::{self, Iscsi};
use host::error::ErrorKind;
use host::mem::{BufferPool, Regions};
use sim::rng::Rng;
use std::sync::Arc;

#[test]
fn chap_accepts_the_password_and_reports_what_is_wrong() {
    let tgt = Tgt::with_users(&[("me", "secretsecret1", false)]);
    let (mut fixture, _) = fixture(&tgt.url_as("me%secretsecret1@", ""), 1);
    assert_eq!(fixture.write(0, &[7; 4096], OpFlags::FUA), BlkStatus::Ok);
    let (kind, text) = refused(&tgt.url_as("me%secretsecret2@", ""));
    assert!(kind == ErrorKind::Denied && text.contains("rejected the login of user 'me'"), "{text}");
    let (kind, text) = refused(&tgt.url_as("you%secretsecret1@", ""));
    assert!(kind == ErrorKind::Denied && text.contains("user 'you'"), "{text}");
    let (kind, text) = refused(&tgt.url(""));
    assert!(kind == ErrorKind::Denied && text.contains("LIBISCSI_CHAP_PASSWORD"), "{text}");
    assert!(!text.contains("secretsecret"), "{text}");
}

#[test]
fn a_target_of_another_make_proves_its_identity() {
    const PASSWORD: &str = "LIBISCSI_CHAP_TARGET_PASSWORD";
    let name = "iscsi_driver::a_target_of_another_make_proves_its_identity";
    if !own_process::is_alone(name, &[(PASSWORD, "secretsecret2")]) {
        return;
    }
    let istgt = Istgt::new(Options { immediate_data: "Yes", auth: "CHAP Mutual" });
    let rightly = target(&istgt.url_as("me%secretsecret1@", "?target_user=them"));
    let regions = Arc::new(Regions::new());
    let driver = Arc::new(Iscsi::open(&rightly, true, regions.clone()).unwrap());
    let mut fixture = DriverFixture::on(driver, regions, |_| ());
    assert_eq!(fixture.write(0, &[9; 8192], OpFlags::FUA), BlkStatus::Ok);
    assert_eq!(fixture.read(0, 8192), (BlkStatus::Ok, vec![9; 8192]));
    let (kind, text) = refused(&istgt.url_as("me%secretsecret2@", "?target_user=them"));
    assert!(kind == ErrorKind::Denied && text.contains("rejected the login of user 'me'"), "{text}");
    let (kind, text) = refused(&istgt.url_as("me%secretsecret1@", "?target_user=others"));
    assert!(kind == ErrorKind::Denied && text.contains("'others'"), "{text}");
}

#[test]
fn what_is_not_there_is_named() {
    let tgt = Tgt::new();
    let url = tgt.url("");
    let (kind, text) = refused(&url.replace(IQN, "iqn.2026-11.test:other"));
    assert!(kind == ErrorKind::NotFound && text.contains("no target iqn.2026-11.test:other"), "{text}");
    let (kind, text) = refused(&format!("{url}9"));
    assert!(kind == ErrorKind::NotFound && text.contains("no LUN 19"), "{text}");
    // LUN 0 is the target's controller and no disk.
    let (_, text) = refused(&format!("{}0", url.strip_suffix('1').unwrap()));
    assert!(text.contains("LUN 0: is not a disk, but a device of type 0x0c"), "{text}");
    drop(tgt);
    let (_, text) = refused(&url);
    assert!(text.contains("cannot connect"), "{text}");
}

#[test]
fn a_portal_tells_its_targets() {
    let tgt = Tgt::new();
    let found = iscsi::discover(&target(&tgt.url(""))).unwrap();
    assert_eq!((found.len(), found[0].name.as_str()), (1, IQN));
    assert!(tgt.url("").contains(&found[0].portals[0].address), "{found:?}");
    let (units, failed) = iscsi::logical_units(&target(&tgt.url("")), IQN).unwrap();
    assert!(units.len() == 1 && failed.is_none(), "the target's controller is no disk: {units:?}");
    assert_eq!((units[0].lun.0, units[0].block_size), (1, 512));
}

#[test]
fn each_hardware_queue_has_a_session_of_its_own() {
    let tgt = Tgt::new();
    let (mut fixture, driver) = fixture(&tgt.url("?sessions=3"), 3);
    assert_eq!(fixture.write(8, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let shown = tgt.show(&["--op", "show", "--mode", "target"]);
    assert_eq!(shown.matches("I_T nexus:").count(), 3, "{shown}");
    assert_eq!(driver.path().connections().unwrap().up, 3);
    drop((fixture, driver));
    until("the target has no session", || !tgt.show(&["--op", "show", "--mode", "target"]).contains("I_T nexus:"));
}

/// Requests longer than the unsolicited data and than a burst: R2Ts and many PDUs, both ways, with and without digests.
#[test]
fn long_requests_go_both_ways() {
    const BYTES: usize = 1 << 20;
    let tgt = Tgt::new();
    for options in ["", "?data_digest=crc32c", "?header_digest=crc32c"] {
        let regions = Arc::new(Regions::new());
        let driver = open(&tgt.url(options), &regions);
        assert!(driver.limits().max_sectors as usize >= BYTES >> 9);
        let mut pool = BufferPool::new(&regions, 2, BYTES, false).unwrap();
        let mut fixture = DriverFixture::on(driver, regions, |c| c.set("nr_cpus", "1").unwrap());
        let fill = Rng::new(0x5eed_1234).bytes(BYTES);
        pool.with_slot(0, |b| b.copy_from_slice(&fill));
        for (slot, op) in [(0, Op::Write), (1, Op::Read)] {
            let data = pool.lend(slot);
            let bio = Bio { op, ..Bio::read(Sector(64), (BYTES >> 9) as u32, data) };
            assert_eq!(fixture.io(bio), BlkStatus::Ok, "{options}");
            common::give_back(&mut pool, slot);
        }
        assert!(pool.with_slot(1, |b| b[..] == fill[..]), "{options}");
        // With scattered segments in memory, too.
        let slots: Vec<_> =
            (0..32).map(|i| (i * 7 % 32, Bio::read(Sector(64 + u64::from(i) * 8), 8, DataRef::NONE))).collect();
        assert!(fixture.io_batch(slots).iter().all(|s| s.is_ok()));
        for i in 0..32_u32 {
            let at = i as usize * 4096;
            fixture.pool.with_slot(i * 7 % 32, |b| assert_eq!(b[..4096], fill[at..][..4096], "block {i}"));
        }
    }
}

#[test]
fn a_target_that_is_killed_and_comes_back_is_not_noticed() {
    let mut tgt = Tgt::new();
    let (mut fixture, driver) = fixture(&tgt.url(""), 2);
    an_absence_is_not_noticed(&mut fixture, &driver, |serves| if serves { tgt.start() } else { tgt.kill() });
}

#[test]
fn requests_end_when_no_target_returns_in_time() {
    let mut tgt = Tgt::new();
    let (mut fixture, driver) = fixture(&tgt.url("?recovery_timeout=1"), 1);
    tgt.kill();
    until("no session is up", || driver.path().connections().unwrap().up == 0);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Transport);
    assert!(driver.path().troubles()[0].contains("cannot connect"), "{:?}", driver.path().troubles());
}

/// A session with another portal group is another nexus: the target keeps the commands of the lost session, and may execute them after
/// newer writes.
#[test]
fn what_was_cut_off_goes_again_by_the_same_portal_group_only() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, driver) =
        fixture(&tgt.url_by(proxy.address(), "?noop_interval=1&noop_timeout=1&recovery_timeout=3600"), 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.freeze();
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=2")));
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("the other portal group is refused", || {
            writer.is_finished() || driver.path().troubles().iter().any(|t| t.contains("portal group 2"))
        });
        assert!(!writer.is_finished(), "it went by another nexus");
        proxy.alter(None);
        assert_eq!(writer.join().unwrap(), BlkStatus::Ok);
    });
    // If no request was in flight, any group may be used.
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=3")));
    proxy.cut();
    until("the session is up again", || {
        driver.path().connections().unwrap().losses >= 2 && driver.path().connections().unwrap().up == 1
    });
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![2; 4096]));
}

/// After that time, the target has presumably dropped the commands of the lost session, so any session may be used.
#[test]
fn other_portal_group_is_used_after_recovery_timeout() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, driver) =
        fixture(&tgt.url_by(proxy.address(), "?noop_interval=1&noop_timeout=1&recovery_timeout=10"), 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.freeze();
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=2")));
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Ok, "{:?}", driver.path().troubles());
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![2; 4096]));
    assert!(driver.status().0[0].replayed > 0, "the write was cut off");
}

/// A read may be executed twice.
#[test]
fn a_read_that_was_cut_off_goes_again_by_any_portal_group() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, _driver) =
        fixture(&tgt.url_by(proxy.address(), "?noop_interval=1&noop_timeout=1&recovery_timeout=3600"), 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.freeze();
    proxy.alter(Some((b"TargetPortalGroupTag=1", b"TargetPortalGroupTag=2")));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![1; 4096]));
}

#[test]
fn nothing_is_written_to_another_disk() {
    let mut tgt = Tgt::new();
    let (mut fixture, driver) = fixture(&tgt.url(""), 1);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    tgt.kill();
    until("no session is up", || driver.path().connections().unwrap().up == 0);
    tgt.set_serial("SN0002");
    tgt.start();
    // The midlayer reports that the device is gone, once the reconnect thread has noticed. Until then, requests wait.
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Offline);
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Offline);
    // The reason is reported after requests are already rejected.
    until("the other disk is reported", || {
        driver.path().troubles()[0].contains("no requests are sent, because this may be another disk")
    });
    assert!(std::fs::read(&tgt.file.0).unwrap()[..4096].iter().all(|b| *b == 1));
}

/// The target tells no session that the unit was exchanged. Cause: only the check of the path failed, and the sessions wrote
/// to the new unit. Fix: a count of changes that all sessions share.
#[test]
fn another_disk_found_by_a_check_stops_all_sessions() {
    let mut tgt = Tgt::new();
    let (fixture, driver) = fixture(&tgt.url(""), 2);
    let (mut first, mut second) = fixture.split_in_two();
    assert_eq!(first.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    assert_eq!(second.write(8, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    tgt.exchange("SN0002");
    let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let check = driver.path().check(blk::time::Duration::from_secs(60), &never);
    assert!(check.unwrap().unwrap_err().to_string().contains("it was"));
    for fixture in [&mut first, &mut second] {
        assert_eq!(fixture.write(0, &[2; 4096], OpFlags::NONE), BlkStatus::Offline);
    }
    until("the other disk is reported", || {
        driver.path().troubles()[0].contains("no requests are sent, because this may be another disk")
    });
    assert!(std::fs::read(&tgt.file.0).unwrap()[..8192].iter().all(|b| *b == 1));
}

/// A path checker and a prioritizer may log in at the same time. Once, the target closed the first of two sessions of the same
/// name.
#[test]
fn checks_at_the_same_time_do_not_end_each_other() {
    let tgt = Tgt::new();
    let driver = open(&tgt.url("?sessions=1"), &Arc::new(Regions::new()));
    let limit = blk::time::Duration::from_secs(60);
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let never = rustix::event::eventfd(0, flags).unwrap();
                for _ in 0..20 {
                    driver.path().check(limit, &never).expect("it has such a way").unwrap();
                }
            });
        }
    });
}
