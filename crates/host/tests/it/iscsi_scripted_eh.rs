// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command timeouts, and sessions that are not restored, with a target that behaves as no correct target does: it answers a reset
//! with a late response, rejects task management, refuses one session of several, and sends more R2Ts than allowed.

use crate::common;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::{HctxId, Sector};
use blk::scsi::cdb::Cdb;
use blk::status::BlkStatus;
use common::scripted::{Peer, Request, Scripted};
use common::{DriverFixture, until};
use host::driver::HostDriver;
use host::driver::RawCommand;
use host::driver::iscsi::{self, Iscsi};
use host::driver::multipath::Multipath;
use host::mem::Regions;
use host::target::Needs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
/// Responses to task management functions.
const DONE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const NOT_SUPPORTED: u8 = 5;
/// Reasons of a Reject.
const PROTOCOL_ERROR: u8 = 4;
const TOO_MANY_IMMEDIATE: u8 = 6;

/// What the target is told to do, and what it has received.
#[derive(Default)]
struct TargetState {
    /// Reads that are not answered.
    withhold: u32,
    withheld: Vec<Request>,
    functions: Vec<u8>,
    /// A task management function that is not answered yet.
    unanswered: Option<u32>,
}

type Shared = Arc<Mutex<TargetState>>;

/// Starts a target that withholds reads or writes as its state says, and calls `manage` for task management functions.
fn target(
    writes: bool,
    manage: impl Fn(&mut Peer, &Request, &mut TargetState) + Send + Sync + 'static,
) -> (Scripted, Shared) {
    let state = Shared::default();
    let own = state.clone();
    let target = Scripted::new(move |peer, request| {
        let mut state = own.lock().unwrap();
        if let Some(function) = request.function() {
            state.functions.push(function);
            manage(peer, request, &mut state);
            return true;
        }
        let is_it = if writes { request.is_write() } else { request.is_read() };
        if !is_it || state.withhold == 0 {
            return false;
        }
        state.withhold -= 1;
        if let Some(tag) = state.unanswered.take() {
            peer.managed(tag, DONE);
        }
        state.withheld.push(Request { header: request.header, data: Vec::new() });
        true
    });
    (target, state)
}

/// Makes a disk on the target. Commands time out soon, but not so soon that a busy machine alone delays them that long.
fn fixture(target: &Scripted, queues: &str) -> (DriverFixture, Arc<Iscsi>) {
    let regions = Arc::new(Regions::new());
    let url = target.url("?noop_interval=0");
    let driver = Arc::new(Iscsi::open(&iscsi::parse(&url).unwrap(), true, regions.clone()).unwrap());
    let mut fixture = DriverFixture::on(driver.clone(), regions, |c| {
        for (name, value) in [("nr_cpus", queues), ("nr_hw_queues", queues), ("io_timeout", "2000")] {
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

/// The first reset is answered after its command has completed by itself, while another command is under error handling.
#[test]
fn a_late_response_to_a_reset_is_ignored() {
    let (target, state) = target(false, |peer, request, state| match request.function() {
        Some(ABORT_TASK) => peer.managed(request.tag(), NO_SUCH_TASK),
        Some(LUN_RESET) if state.functions.iter().filter(|f| **f == LUN_RESET).count() == 1 => {
            state.unanswered = Some(request.tag());
            let late = state.withheld.pop().unwrap();
            peer.serve(&late);
        }
        _ => peer.managed(request.tag(), DONE),
    });
    let (mut fixture, driver) = fixture(&target, "1");
    for _ in 0..2 {
        state.lock().unwrap().withhold = 1;
        assert_eq!(fixture.read(8, 4096), (BlkStatus::Ok, vec![0; 4096]));
    }
    let functions = state.lock().unwrap().functions.clone();
    assert_eq!(functions, [ABORT_TASK, LUN_RESET, ABORT_TASK, LUN_RESET]);
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

/// Error handling has failed, and no session can be made. A caller that gives up the disk does not wait for one.
#[test]
fn giving_up_ends_what_is_being_helped() {
    let (target, state) = target(false, |peer, request, _| match request.function() {
        Some(ABORT_TASK) => peer.managed(request.tag(), NO_SUCH_TASK),
        _ => peer.managed(request.tag(), NOT_SUPPORTED),
    });
    let (mut fixture, driver) = fixture(&target, "1");
    state.lock().unwrap().withhold = 1;
    target.refuses.lock().unwrap().push(0);
    std::thread::scope(|s| {
        let reader = s.spawn(|| fixture.read(8, 4096).0);
        until("error handling has failed", || {
            driver.path().troubles().iter().any(|t| t.contains("abort and reset failed"))
        });
        assert!(driver.path().set_give_up(true));
        until("the read has ended", || reader.is_finished());
        let status = reader.join().unwrap();
        assert!(status.is_path_error(), "{status:?}");
    });
    let functions = state.lock().unwrap().functions.clone();
    assert_eq!(functions, [ABORT_TASK, LUN_RESET, TARGET_WARM_RESET]);
    assert!(driver.path().set_give_up(false));
    target.refuses.lock().unwrap().clear();
    until("reads succeed again", || fixture.read(8, 4096).0 == BlkStatus::Ok);
}

/// The target may still execute the write.
#[test]
fn given_up_write_under_error_handling_takes_no_other_path() {
    // No other function is answered.
    let (silent, state) = target(true, |peer, request, _| {
        if request.function() == Some(ABORT_TASK) {
            peer.managed(request.tag(), NO_SUCH_TASK);
        }
    });
    let other = Scripted::new(|_, _| false);
    let options = "path_grouping_policy=multibus,polling_interval=1,fast_io_fail_tmo=3600";
    let urls = [&silent, &other].map(|t| t.url("?sessions=1&noop_interval=0")).join("+");
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let regions = Arc::new(Regions::new());
    let parsed = host::driver::multipath::parse(&format!("{options}:{urls}")).unwrap();
    let paths = parsed.paths_to_open(&needs, &regions).unwrap();
    let disk = Arc::new(Multipath::open(parsed.options.clone(), paths).unwrap().0);
    let mut fixture = DriverFixture::on(disk.clone(), regions, |c| {
        c.set("nr_cpus", "1").unwrap();
        c.set("io_timeout", "300").unwrap();
    });
    fixture.may_wait = false;
    let ids: Vec<_> = disk.status().groups[0].paths.iter().map(|p| p.id).collect();
    disk.paths().fail_path(ids[1], host::clock::now());
    state.lock().unwrap().withhold = 1;
    std::thread::scope(|s| {
        let fixture = &mut fixture;
        let writer = s.spawn(move || fixture.write(0, &[2; 4096], OpFlags::NONE));
        until("the unit is reset", || state.lock().unwrap().functions.contains(&LUN_RESET));
        disk.paths().reinstate_path(ids[1]);
        until("the write has ended", || {
            assert!(disk.path().set_give_up(true));
            writer.is_finished()
        });
        let status = writer.join().unwrap();
        assert!(status.is_path_error(), "{status:?}: another path has done it");
    });
    assert!(other.written.lock().unwrap().is_empty(), "another path has it");
    disk.path().set_give_up(false);
    until("writes succeed again", || fixture.write(0, &[3; 4096], OpFlags::NONE) == BlkStatus::Ok);
}

/// The first of the lost sessions is refused. The others are restored.
#[test]
fn a_session_that_is_refused_keeps_no_other_from_being_made() {
    let target = Scripted::new(|_, _| false);
    let (mut fixture, driver) = fixture(&target, "3");
    let up = || driver.path().connections().unwrap().up;
    assert_eq!(up(), 3);
    for refused in [0, 1] {
        target.refuses.lock().unwrap().push(refused);
        target.cut();
        until("two sessions are up again", || up() == 2 && losses(&driver).is_multiple_of(3));
        target.refuses.lock().unwrap().clear();
        until("three sessions are up again", || up() == 3);
    }
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
}

/// The target never gets more immediate commands of a session than RFC 7143 (4.2.2.1) guarantees that it accepts.
#[test]
fn a_session_aborts_one_command_at_a_time() {
    const READS: u32 = 6;
    let crowded = Arc::new(Mutex::new(0));
    let seen = crowded.clone();
    let (target, state) = target(false, move |peer, request, _| {
        // No other function may follow until this one is answered. A wrong driver sends one within this time.
        *seen.lock().unwrap() += u32::from(peer.is_managed_next(Duration::from_millis(100)));
        peer.managed(request.tag(), DONE);
    });
    let (mut fixture, driver) = fixture(&target, "1");
    state.lock().unwrap().withhold = READS;
    let reads = (0..READS).map(|i| (i, Bio::read(Sector(u64::from(i) * 1024), 8, DataRef::NONE))).collect();
    assert!(fixture.io_batch(reads).iter().all(|s| s.is_ok()));
    assert_eq!(state.lock().unwrap().functions, [ABORT_TASK; READS as usize]);
    assert_eq!(*crowded.lock().unwrap(), 0, "one was sent before another was answered");
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

#[test]
fn rejected_task_management_fails_and_keeps_the_session() {
    let (target, state) = target(false, |peer, request, state| match request.function() {
        Some(ABORT_TASK) => peer.reject(request, TOO_MANY_IMMEDIATE),
        Some(LUN_RESET) if state.functions.len() == 2 => peer.reject(request, TOO_MANY_IMMEDIATE),
        _ => peer.managed(request.tag(), DONE),
    });
    let (mut fixture, driver) = fixture(&target, "1");
    state.lock().unwrap().withhold = 1;
    assert_eq!(fixture.read(8, 4096).0, BlkStatus::Ok);
    assert_eq!(state.lock().unwrap().functions, [ABORT_TASK, LUN_RESET, TARGET_WARM_RESET]);
    assert_eq!(losses(&driver), 0, "{:?}", driver.path().troubles());
}

#[test]
fn other_rejects_end_the_session_with_a_message() {
    for (reason, forged, message) in [
        (PROTOCOL_ERROR, false, "rejected a message (reason 0x04)"),
        (TOO_MANY_IMMEDIATE, true, "which is not outstanding"),
    ] {
        let (target, state) = target(false, move |peer, request, _| {
            let mut header = request.header;
            header[19] ^= u8::from(forged);
            peer.reject(&Request { header, data: Vec::new() }, reason);
        });
        let (mut fixture, driver) = fixture(&target, "1");
        state.lock().unwrap().withhold = 1;
        assert_eq!(fixture.read(8, 4096).0, BlkStatus::Ok);
        assert!(driver.path().troubles()[0].contains(message), "{:?}", driver.path().troubles());
    }
}

/// R2Ts of a passthrough command are limited like those of a request.
#[test]
fn a_users_command_is_asked_for_one_piece_of_data_at_a_time() {
    let first = Mutex::new(true);
    let target = Scripted::new(move |peer, request| {
        let is_it = request.is_write() && std::mem::take(&mut *first.lock().unwrap());
        if is_it {
            let wishes: Vec<u8> = (0..1000).flat_map(|i| peer.r2t(request.tag(), i, 1)).collect();
            peer.send(&wishes);
        }
        is_it
    });
    let (_rig, driver) = fixture(&target, "1");
    let data_out = vec![7; 64 << 10];
    let cdb = Cdb::write(0, 128, false, true);
    let write = || {
        let timeout = blk::time::Duration::from_secs(30);
        let command = RawCommand { cdb: cdb.as_bytes(), data_out: &data_out, data_in: 0, timeout };
        driver.execute(HctxId::new(0), &command).unwrap()
    };
    assert_eq!(write().host, blk::scsi::disposition::HostByte::TransportDisrupted);
    assert!(driver.path().troubles()[0].contains("MaxOutstandingR2T is 1"), "{:?}", driver.path().troubles());
    // A command whose R2T requests all data succeeds.
    assert_eq!(write().blk_status, BlkStatus::Ok);
    assert!(*target.written.lock().unwrap() == data_out);
}
