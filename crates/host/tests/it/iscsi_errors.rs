// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command timeouts and passthrough commands, with Debian's tgtd. Late commands are aborted, or a reset fixes them, and the session
//! stays. If a target's answers to task management are invalid, it loses only its session.

use crate::common;

use blk::bio::{Bio, Op, OpFlags};
use blk::id::{HctxId, Sector};
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::sam;
use blk::scsi::sense::{Sense, SenseKey};
use blk::status::BlkStatus;
use blk::time::Duration;
use common::DriverFixture;
use common::commands::{raw, reservations};
use common::iscsi::Tgt;
use common::iscsi_proxy::{Proxy, Tampering};
use host::driver::HostDriver;
use host::driver::RawCommand;
use host::driver::iscsi::{self, Iscsi};
use host::error::ErrorKind;
use host::mem::{BufferPool, Regions};
use sim::rng::Rng;
use std::sync::Arc;

const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
const Q0: HctxId = HctxId::new(0);

fn open(url: &str) -> (Arc<Iscsi>, Arc<Regions>) {
    let regions = Arc::new(Regions::new());
    let target = iscsi::parse(url).unwrap();
    (Arc::new(Iscsi::open(&target, true, regions.clone()).unwrap()), regions)
}

fn fixture(url: &str, io_timeout: &str) -> (DriverFixture, Arc<Iscsi>) {
    let (driver, regions) = open(url);
    let mut fixture = DriverFixture::on(driver.clone(), regions, |c| {
        for (name, value) in [("nr_cpus", "1"), ("nr_hw_queues", "1"), ("io_timeout", io_timeout)] {
            c.set(name, value).unwrap();
        }
    });
    // A polling thread has to check for timeouts.
    fixture.may_wait = false;
    (fixture, driver)
}

fn losses(driver: &Iscsi) -> u64 {
    driver.path().connections().unwrap().losses
}

/// A write whose R2T is lost. tgtd has not given it to its disk yet, and says that there is no such task.
#[test]
fn a_late_write_is_helped_and_goes_again_and_the_session_stays() {
    const BYTES: usize = 1 << 20;
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (driver, regions) = open(&tgt.url_by(proxy.address(), "?sessions=1&noop_interval=0"));
    let mut pool = BufferPool::new(&regions, 2, BYTES, false).unwrap();
    let mut fixture = DriverFixture::on(driver.clone(), regions, |c| {
        for (name, value) in [("nr_cpus", "1"), ("nr_hw_queues", "1"), ("io_timeout", "300")] {
            c.set(name, value).unwrap();
        }
    });
    fixture.may_wait = false;
    let fill = Rng::new(0x5eed_0042).bytes(BYTES);
    pool.with_slot(0, |b| b.copy_from_slice(&fill));
    proxy.meddle(Tampering::HoldR2t(1));
    for (slot, op) in [(0, Op::Write), (1, Op::Read)] {
        let data = pool.lend(slot);
        let bio = Bio { op, ..Bio::read(Sector(64), (BYTES >> 9) as u32, data) };
        assert_eq!(fixture.io(bio), BlkStatus::Ok);
        common::give_back(&mut pool, slot);
    }
    assert!(pool.with_slot(1, |b| b[..] == fill[..]));
    assert_eq!((proxy.functions(), proxy.answers()), (vec![ABORT_TASK, LUN_RESET], vec![1, 0]));
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

/// The target has completed the read long ago, and knows no such task.
#[test]
fn a_read_whose_answer_is_lost_is_helped_by_a_reset_of_the_lun() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, driver) = fixture(&tgt.url_by(proxy.address(), "?sessions=1&noop_interval=0"), "300");
    assert_eq!(fixture.write(8, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.meddle(Tampering::HoldReads(1));
    assert_eq!(fixture.read(8, 4096).1, [7; 4096]);
    assert_eq!((proxy.functions(), proxy.answers()), (vec![ABORT_TASK, LUN_RESET], vec![1, 0]));
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

#[test]
fn an_abort_that_works_is_all_that_is_done() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, driver) = fixture(&tgt.url_by(proxy.address(), "?sessions=1&noop_interval=0"), "300");
    assert_eq!(fixture.write(8, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
    // As a target answers that still has the command.
    proxy.meddle(Tampering::Answer(0));
    proxy.meddle(Tampering::HoldReads(2));
    assert_eq!(fixture.read(8, 4096).1, [7; 4096]);
    assert_eq!(proxy.functions(), [ABORT_TASK, ABORT_TASK]);
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

#[test]
fn target_without_task_management_loses_only_its_session() {
    let tgt = Tgt::new();
    let proxy = Proxy::new(tgt.address());
    let (mut fixture, driver) = fixture(&tgt.url_by(proxy.address(), "?sessions=1&noop_interval=0"), "300");
    assert_eq!(fixture.write(8, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
    proxy.meddle(Tampering::Answer(5));
    proxy.meddle(Tampering::HoldReads(1));
    assert_eq!(fixture.read(8, 4096).1, [7; 4096]);
    assert_eq!(proxy.functions(), [ABORT_TASK, LUN_RESET, TARGET_WARM_RESET]);
    assert_eq!(losses(&driver), 1);
    assert!(driver.path().troubles()[0].contains("abort and reset failed"), "{:?}", driver.path().troubles());
}

#[test]
fn malformed_task_management_ends_the_session() {
    for (what, message) in [
        (Tampering::WrongTag, "which is not outstanding"),
        (Tampering::Answer(77), "unknown task management response 77"),
        (Tampering::Unasked, "which is not outstanding"),
    ] {
        let tgt = Tgt::new();
        let proxy = Proxy::new(tgt.address());
        let (mut fixture, driver) = fixture(&tgt.url_by(proxy.address(), "?sessions=1&noop_interval=0"), "300");
        assert_eq!(fixture.write(8, &[7; 4096], OpFlags::NONE), BlkStatus::Ok);
        proxy.meddle(what);
        if what != Tampering::Unasked {
            proxy.meddle(Tampering::HoldReads(1));
        }
        assert_eq!(fixture.read(8, 4096).1, [7; 4096]);
        let (queues, _) = driver.status();
        let why = queues[0].last_loss.as_deref().unwrap_or_default();
        assert!(why.contains("violates the protocol") && why.contains(message), "{what:?}: {why}");
        assert_eq!(losses(&driver), 1, "{what:?}");
    }
}

#[test]
fn reservation_is_preempted_by_a_second_initiator() {
    let tgt = Tgt::new();
    reservations(|options| tgt.url(options));
}

#[test]
fn commands_of_users_bring_data_and_sense_and_are_bounded() {
    let tgt = Tgt::new();
    let (mut fixture, driver) = fixture(&tgt.url("?sessions=1"), "30000");
    assert_eq!(fixture.write(0, &[5; 4096], OpFlags::NONE), BlkStatus::Ok);
    let read = raw(&driver, Cdb::read(0, 8, false).as_bytes(), &[], 4096);
    assert_eq!((read.status, read.data), (sam::GOOD, vec![5; 4096]));
    // The sense data says that this target does not support the command; `iscsi_lio` has one that does.
    let swap = raw(&driver, Cdb::compare_and_write(0, 1).as_bytes(), &[[5; 512], [6; 512]].concat(), 0);
    assert_eq!(Sense::parse(&swap.sense).map(|s| (s.key, s.asc)), Some((SenseKey::IllegalRequest, 0x20)));
    // Larger than the unsolicited data, so the target sends R2Ts.
    let large = vec![9; 256 << 10];
    assert_eq!(raw(&driver, Cdb::write(0, 512, false, true).as_bytes(), &large, 0).status, sam::GOOD);
    assert_eq!(fixture.read(8, 4096).1, [9; 4096]);
    let unknown = raw(&driver, &[0xff; 16], &[], 0);
    assert_eq!((unknown.status, Sense::parse(&unknown.sense).unwrap().key), (2, SenseKey::IllegalRequest));
    let refused = |cdb: &[u8], data_out: &[u8], data_in| {
        let command = RawCommand { cdb, data_out, data_in, timeout: Duration::from_secs(1) };
        driver.execute(Q0, &command).unwrap_err()
    };
    assert!(refused(&[0; 5], &[], 0).to_string().contains("of 5 bytes: must be of 6, 10, 12 or 16"));
    assert!(refused(&[0; 6], &[1], 1).to_string().contains("must transfer in one direction"));
    assert_eq!(refused(&[0; 6], &[], iscsi::MAX_RAW_BYTES + 1).kind(), ErrorKind::Usage);
}
