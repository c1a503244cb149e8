// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that do not complete: each level of SCSI error handling on a debug host. Each action works, fails or never
//! completes. Seeded random runs combine all of these.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::queue::{Notify, RequestQueue};
use blk::scsi::cdb::opcode::{REQUEST_SENSE, START_STOP_UNIT, TEST_UNIT_READY};
use blk::scsi::debug::{DebugHost, DebugOptions, EhAid, Fault, InjectedFault, NoMedium, Reply};
use blk::scsi::device::DeviceState;
use blk::scsi::disk::{DiskOptions, SD_MAX_RETRIES, ScsiDisk};
use blk::scsi::disposition::{Failfast, HostByte, Outcome, sam};
use blk::scsi::host::{HostTemplate, ScsiHost};
use blk::scsi::sense::{Sense, SenseKey};
use blk::scsi::transport::{LunId, Reset};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::submitter::Submitter;
use blk::time::{Duration, Instant};
use sim::Lock;
use sim::rng::Rng;
use std::sync::Arc;

struct NoopNotify;

impl Notify for NoopNotify {
    fn notify(&self, _: SubmitterId) {}
}

type Debug = DebugHost<Lock, NoMedium>;

const SECOND: u64 = 1_000_000_000;
const ABORT: EhAid = EhAid::Abort;
const LUN: EhAid = EhAid::Reset(Reset::Lun);
const TARGET: EhAid = EhAid::Reset(Reset::Target);
const HOST: EhAid = EhAid::Reset(Reset::Host);
const READY: EhAid = EhAid::Probe(TEST_UNIT_READY);
const START: EhAid = EhAid::Probe(START_STOP_UNIT);
const SENSE: EhAid = EhAid::Probe(REQUEST_SENSE);

struct Unit {
    disk: Arc<ScsiDisk>,
    queue: Arc<RequestQueue<Lock>>,
    submitter: Submitter<Lock>,
    done: Vec<(u64, BlkStatus)>,
}

struct Stack {
    debug: Arc<Debug>,
    host: Arc<ScsiHost>,
    units: Vec<Unit>,
    now: u64,
    sent: u64,
}

impl Stack {
    fn new(luns: u16, change: impl FnOnce(&mut HostTemplate)) -> Stack {
        let options = DebugOptions { luns, delay: Duration::from_us(100), host_max_queue: 0 };
        let debug = Arc::new(Debug::new(options, NoMedium));
        let mut template = HostTemplate { can_queue: 32, cmd_per_lun: 32, nr_hw_queues: 1, ..HostTemplate::default() };
        change(&mut template);
        let host = ScsiHost::new::<Lock>(template, debug.clone());
        let unit = |lun| {
            let options = DiskOptions {
                block_size: 512,
                blocks: 1 << 20,
                limits: Limits::with_max_hw_sectors(1 << 10),
                has_unmap: false,
                unmap_zeroes: false,
                wide: false,
                retries: SD_MAX_RETRIES,
                failfast: Failfast::default(),
            };
            let disk = Arc::new(ScsiDisk::new(host.clone(), LunId(lun), options).unwrap());
            let config = QueueConfig {
                topology: CpuTopology::uniform(1),
                queue_depth: template.can_queue,
                scheduler: Some("none".into()),
                ..QueueConfig::default()
            };
            let queue = RequestQueue::<Lock>::new(disk.clone(), config, Box::new(NoopNotify)).unwrap();
            let submitter = queue.submitter(CpuId::new(0)).unwrap();
            Unit { disk, queue, submitter, done: Vec::new() }
        };
        let units = (0..luns).map(unit).collect();
        Stack { debug, host, units, now: SECOND, sent: 0 }
    }

    fn plain() -> Stack {
        Stack::new(1, |_| ())
    }

    fn read(&mut self, unit: usize) {
        // Far apart, so that none are merged.
        let bio = Bio::read(Sector(self.sent * 64 % (1 << 19)), 8, DataRef::new(0, 0));
        self.units[unit].submitter.submit(&bio, Instant::from_ns(self.now)).unwrap();
        self.sent += 1;
    }

    fn lose(&self, times: u32) {
        self.fault(None, InjectedFault::Lost, times);
    }

    fn fault(&self, lun: Option<LunId>, what: InjectedFault, times: u32) {
        self.debug.inject(Fault { lun, opcode: None, skip: 0, times, what });
    }

    fn outstanding(&self) -> usize {
        self.units.iter().map(|u| u.submitter.outstanding() as usize).sum()
    }

    /// Advances to the next time at which something is due. False: nothing is outstanding.
    fn step(&mut self) -> bool {
        if self.outstanding() == 0 {
            return false;
        }
        let hctx = HctxId::new(0);
        let dues = self.units.iter().flat_map(|u| {
            [self.debug.next_due(u.disk.lun(), hctx), u.queue.next_timer(), u.disk.next_due()].into_iter().flatten()
        });
        let next = dues.min().expect("something is outstanding, and no poll would find it");
        self.now = next.as_ns().max(self.now + 1000);
        for unit in &mut self.units {
            unit.submitter.poll(Instant::from_ns(self.now));
            unit.submitter.reap(|d| unit.done.push((self.now, d.status)));
        }
        true
    }

    fn run(&mut self) {
        let end = self.now + 10_000 * SECOND;
        while self.step() {
            assert!(self.now < end, "{} requests do not end", self.outstanding());
        }
        assert!(!self.host.is_recovering());
    }

    /// Does one read whose first command is lost. Returns its outcome.
    fn lost_read(&mut self) -> BlkStatus {
        self.lose(1);
        self.read(0);
        self.run();
        self.units[0].done.pop().unwrap().1
    }

    fn help(&self) -> Vec<EhAid> {
        self.debug.log().into_iter().map(|(aid, _)| aid).collect()
    }
}

#[test]
fn a_late_command_is_aborted_and_goes_again_while_others_go_on() {
    for reply in [Reply::Works, Reply::After(Duration::from_secs(9))] {
        let mut s = Stack::plain();
        s.debug.script(ABORT, None, reply.clone(), 1);
        s.lose(1);
        (0..5).for_each(|_| s.read(0));
        s.run();
        assert!(s.units[0].done.iter().all(|(_, status)| status.is_ok()) && s.units[0].done.len() == 5);
        assert_eq!(s.help(), [ABORT], "{reply:?}");
        let stats = s.host.eh_stats();
        assert_eq!((stats.late, stats.aborted, stats.recoveries), (1, 1, 0));
    }
}

#[test]
fn a_command_that_is_late_each_time_ends_after_its_tries() {
    let mut s = Stack::plain();
    s.lose(100);
    s.read(0);
    s.run();
    assert_eq!(s.units[0].done[0].1, BlkStatus::Timeout);
    let all = s.help();
    assert!(all.iter().all(|aid| *aid == ABORT) && (5..=6).contains(&all.len()), "{all:?}");
    assert_eq!(s.debug.lost(LunId(0)), 0);
}

/// Checks which actions are requested, if all but the last one fail in this way.
#[test]
fn help_that_fails_or_never_ends_is_followed_by_the_next() {
    let rungs: [(&[EhAid], &[EhAid]); 4] = [
        (&[ABORT], &[ABORT, LUN, READY]),
        (&[ABORT, LUN], &[ABORT, LUN, TARGET, READY]),
        (&[ABORT, LUN, TARGET], &[ABORT, LUN, TARGET, HOST, READY]),
        (&[ABORT, LUN, TARGET, HOST], &[ABORT, LUN, TARGET, HOST]),
    ];
    for how in [Reply::Fails, Reply::Never] {
        for (of_no_use, expected) in rungs {
            let mut s = Stack::plain();
            of_no_use.iter().for_each(|aid| s.debug.script(*aid, None, how.clone(), 1));
            let is_given_up = of_no_use.contains(&HOST);
            let status = s.lost_read();
            assert_eq!(s.help(), expected, "{how:?}");
            assert_eq!(status, if is_given_up { BlkStatus::Timeout } else { BlkStatus::Ok }, "{of_no_use:?} {how:?}");
            let state = s.units[0].disk.state();
            assert_eq!(state, if is_given_up { DeviceState::Offline } else { DeviceState::Running });
            assert_eq!(s.debug.lost(LunId(0)), 0);
            // Each action has its time limit and no more.
            assert!(s.now < 100 * SECOND, "{} s", s.now / SECOND);
        }
    }
}

/// The command for which a reset was begun completes by itself meanwhile. The next command gets a reset of its own.
#[test]
fn abandoned_reset_is_not_taken_for_another_one() {
    let rungs: [(&[EhAid], EhAid); 3] = [(&[ABORT], LUN), (&[ABORT, LUN], TARGET), (&[ABORT, LUN, TARGET], HOST)];
    for (of_no_use, reset) in rungs {
        // Late after 30 s; each reset has 10 s.
        let mut s = Stack::plain();
        of_no_use.iter().for_each(|aid| s.debug.script(*aid, None, Reply::Fails, 2));
        s.debug.script(reset, None, Reply::Never, 1);
        s.fault(None, InjectedFault::Slow(Duration::from_secs(35)), 1);
        s.read(0);
        s.run();
        assert_eq!(s.units[0].done.pop().unwrap().1, BlkStatus::Ok);
        let first = [of_no_use, &[reset]].concat();
        assert_eq!(s.help(), first, "it ends with the command");
        assert_eq!(s.debug.resets_under_way(), [], "{reset:?}");
        assert_eq!(s.lost_read(), BlkStatus::Ok);
        assert_eq!(s.help(), [&first[..], of_no_use, &[reset, READY]].concat(), "{reset:?}");
    }
}

/// A reset that works is no help if the device does not answer afterwards: its command waits although it was given back.
#[test]
fn a_device_that_does_not_answer_is_helped_further() {
    for how in [Reply::Fails, Reply::Never, Reply::Says(Outcome::host(HostByte::NoConnect), Vec::new())] {
        let mut s = Stack::plain();
        s.debug.script(ABORT, None, Reply::Fails, 1);
        s.debug.script(READY, None, how.clone(), 2);
        assert_eq!(s.lost_read(), BlkStatus::Ok);
        assert_eq!(s.help(), [ABORT, LUN, READY, TARGET, READY, HOST, READY], "{how:?}");
        let mut s = Stack::plain();
        s.debug.script(ABORT, None, Reply::Fails, 1);
        s.debug.script(READY, None, how.clone(), 3);
        assert_eq!(s.lost_read(), BlkStatus::Timeout);
        assert_eq!(s.units[0].disk.state(), DeviceState::Offline);
        // Later commands fail at once.
        s.read(0);
        s.run();
        assert_eq!(s.units[0].done.pop().unwrap().1, BlkStatus::IoErr);
    }
}

#[test]
fn returned_command_ends_only_after_its_device_answered() {
    let mut s = Stack::plain();
    s.debug.script(ABORT, None, Reply::Fails, 1);
    s.debug.script(READY, None, Reply::Never, 1);
    // It may not be tried again, so it completes.
    s.lose(6);
    s.read(0);
    while s.step() {
        let answered = s.help().ends_with(&[TARGET, READY]);
        assert!(answered || s.units[0].done.is_empty() || !s.host.is_recovering());
    }
    assert_eq!(s.units[0].done.len(), 1);
}

#[test]
fn a_device_that_tells_of_its_reset_first_is_asked_again() {
    let mut s = Stack::plain();
    s.debug.script(ABORT, None, Reply::Fails, 1);
    let attention = Outcome::check(Sense::new(SenseKey::UnitAttention, 0x29, 3));
    s.debug.script(READY, None, Reply::Says(attention, Vec::new()), 1);
    assert_eq!(s.lost_read(), BlkStatus::Ok);
    assert_eq!(s.help(), [ABORT, LUN, READY, READY]);
}

/// The device reports this once, so the answer to a test command must be examined as well as the answer to a request.
#[test]
fn a_device_that_tells_the_ladder_that_it_has_changed_is_heard() {
    for (asc, ascq) in [(0x3f, 0x0e), (0x2a, 0x09), (0x2a, 0x06)] {
        let mut s = Stack::plain();
        s.debug.script(ABORT, None, Reply::Fails, 1);
        let attention = Outcome::check(Sense::new(SenseKey::UnitAttention, asc, ascq));
        s.debug.script(READY, None, Reply::Says(attention, Vec::new()), 1);
        s.lose(1);
        s.read(0);
        // The receiver may drop the session that would be needed for another test.
        while s.step() {
            assert!(!s.host.is_recovering() || !s.units[0].disk.has_news());
        }
        assert_eq!(s.units[0].done.pop().unwrap().1, BlkStatus::Ok);
        assert_eq!(s.help(), [ABORT, LUN, READY, READY]);
        let news = s.units[0].disk.take_news(|news| news);
        let told = [news.identity, news.capacity, news.state];
        assert_eq!(told, [(0x3f, 0x0e), (0x2a, 0x09), (0x2a, 0x06)].map(|code| code == (asc, ascq)));
    }
}

#[test]
fn sense_that_is_missing_is_asked_for_and_decides() {
    let check = Outcome { status: sam::CHECK_CONDITION, ..Outcome::GOOD };
    let medium = Sense::new(SenseKey::MediumError, 0x11, 0);
    for (answer, expected, help) in [
        (medium.to_fixed().to_vec(), BlkStatus::Medium, &[SENSE][..]),
        (Sense::new(SenseKey::AbortedCommand, 0, 0).to_fixed().to_vec(), BlkStatus::Ok, &[SENSE][..]),
        // This does not say what failed, and must not count as success.
        (Sense::new(SenseKey::NoSense, 0, 0).to_fixed().to_vec(), BlkStatus::Ok, &[SENSE, LUN, READY][..]),
        (vec![0xff; 7], BlkStatus::Ok, &[SENSE, LUN, READY][..]),
        (Vec::new(), BlkStatus::Ok, &[SENSE, LUN, READY][..]),
    ] {
        let mut s = Stack::plain();
        s.fault(None, InjectedFault::Ends(check), 1);
        s.debug.script(SENSE, None, Reply::Says(Outcome::GOOD, answer.clone()), 1);
        s.read(0);
        s.run();
        assert_eq!((s.units[0].done[0].1, s.help().as_slice()), (expected, help), "{answer:?}");
    }
}

#[test]
fn a_device_that_has_stopped_is_started_if_that_is_wanted() {
    let stopped = Outcome::check(Sense::new(SenseKey::NotReady, 4, 2));
    for (allow_restart, expected, help) in
        [(false, BlkStatus::IoErr, &[][..]), (true, BlkStatus::Ok, &[START, READY][..])]
    {
        let mut s = Stack::new(1, |t| t.allow_restart = allow_restart);
        s.fault(None, InjectedFault::Ends(stopped), 1);
        s.read(0);
        s.run();
        assert_eq!((s.units[0].done[0].1, s.help().as_slice()), (expected, help));
    }
}

#[test]
fn past_its_deadline_only_the_host_is_reset() {
    let mut s = Stack::new(1, |t| t.eh_deadline = Some(Duration::from_secs(5)));
    s.debug.script(ABORT, None, Reply::Fails, 1);
    s.debug.script(LUN, None, Reply::Never, 1);
    assert_eq!(s.lost_read(), BlkStatus::Ok);
    assert_eq!(s.help(), [ABORT, LUN, HOST, READY]);
    assert!(s.now < 45 * SECOND);
}

/// Pending actions are dropped, and outstanding commands are given back and not retried.
#[test]
fn giving_up_commands_takes_a_second_at_most() {
    let cases: [(&[EhAid], EhAid); 4] =
        [(&[ABORT], LUN), (&[ABORT, LUN], TARGET), (&[ABORT, LUN, TARGET], HOST), (&[ABORT], READY)];
    for (of_no_use, silent) in cases {
        let mut s = Stack::plain();
        of_no_use.iter().for_each(|aid| s.debug.script(*aid, None, Reply::Fails, 1));
        s.debug.script(silent, None, Reply::Never, 100);
        s.lose(1);
        s.read(0);
        while s.step() && !s.host.is_recovering() {}
        let began = s.now;
        s.host.set_give_up(true);
        s.run();
        assert!(
            (SECOND..SECOND + SECOND / 10).contains(&(s.now - began)),
            "{silent:?}: {} ms",
            (s.now - began) / 1_000_000
        );
        assert_eq!(s.units[0].done.pop().unwrap().1, BlkStatus::Timeout, "{silent:?}");
        assert_eq!((s.units[0].disk.state(), s.debug.lost(LunId(0))), (DeviceState::Offline, 0));
        assert_eq!(s.debug.resets_under_way(), []);
    }
}

#[test]
fn giving_up_ends_the_wait_for_other_late_commands() {
    let mut s = Stack::plain();
    s.fault(None, InjectedFault::Ends(Outcome::host(HostByte::TimeOut)), 1);
    s.lose(1);
    // Held: recovery begins when the other command, which is not late for half a minute, has completed.
    (0..2).for_each(|_| s.read(0));
    while s.step() && !s.host.is_recovering() {}
    s.host.set_give_up(true);
    let began = s.now;
    s.run();
    assert!(s.now - began < 2 * SECOND, "{} ms", (s.now - began) / 1_000_000);
    let ends: Vec<BlkStatus> = s.units[0].done.iter().map(|(_, status)| *status).collect();
    assert!(ends.len() == 2 && ends.iter().all(|e| !e.is_ok()), "{ends:?}");
    // Giving up has no effect before the second is over.
    let mut s = Stack::plain();
    s.debug.script(ABORT, None, Reply::Fails, 1);
    s.debug.script(LUN, None, Reply::After(Duration::from_secs(5)), 1);
    s.lose(1);
    s.read(0);
    while s.step() && !s.host.is_recovering() {}
    s.host.set_give_up(true);
    s.host.set_give_up(false);
    s.run();
    assert_eq!((s.units[0].done[0].1, s.help().as_slice()), (BlkStatus::Ok, &[ABORT, LUN, READY][..]));
}

/// A host in recovery takes no commands; afterwards all devices continue, except the one that recovery did not help.
#[test]
fn other_luns_wait_and_lose_nothing() {
    let mut s = Stack::new(3, |_| ());
    s.debug.script(ABORT, None, Reply::Fails, 1);
    s.debug.script(READY, Some(LunId(1)), Reply::Never, 3);
    s.fault(Some(LunId(1)), InjectedFault::Lost, 1);
    (0..3).for_each(|unit| s.read(unit));
    let mut stopped = false;
    while s.step() {
        if s.host.is_recovering() && !stopped {
            stopped = true;
            (0..3).for_each(|unit| s.read(unit));
            let waits = |u: &Unit| u.disk.device().unwrap().in_flight();
            assert_eq!((waits(&s.units[0]), waits(&s.units[2])), (0, 0), "nothing new is sent");
        }
    }
    assert!(stopped);
    for unit in [0, 2] {
        assert!(s.units[unit].done.iter().all(|(_, status)| status.is_ok()) && s.units[unit].done.len() == 2);
        assert_eq!(s.units[unit].disk.state(), DeviceState::Running);
    }
    let ends: Vec<BlkStatus> = s.units[1].done.iter().map(|(_, status)| *status).collect();
    assert!(ends.len() == 2 && ends.iter().all(|e| [BlkStatus::Timeout, BlkStatus::IoErr].contains(e)), "{ends:?}");
    assert_eq!(s.units[1].disk.state(), DeviceState::Offline);
}

fn reply(rng: &mut Rng) -> Reply {
    match rng.below(6) {
        0 | 1 => Reply::Fails,
        2 => Reply::Never,
        3 => Reply::After(Duration::from_ms(rng.below(12_000))),
        4 => Reply::Says(Outcome::host(HostByte::NoConnect), vec![0x70; 3]),
        _ => Reply::Works,
    }
}

#[test]
fn every_request_ends_once_whatever_helps_and_what_does_not() {
    let (mut recoveries, mut given_up, mut late) = (0, 0, 0);
    for seed in 1..=300 {
        let (mut rng, mut giving) = (Rng::new(seed), Rng::new(!seed));
        let luns = 1 + rng.below(3) as u16;
        let deadline = (rng.below(4) == 0).then(|| Duration::from_secs(rng.below(40)));
        let mut s = Stack::new(luns, |t| t.eh_deadline = deadline);
        for aid in [ABORT, LUN, TARGET, HOST, READY, START, SENSE] {
            for _ in 0..rng.below(4) {
                let reply = reply(&mut rng);
                s.debug.script(aid, None, reply, 1 + rng.below(3) as u32);
            }
        }
        let faults = [
            InjectedFault::Lost,
            InjectedFault::Slow(Duration::from_secs(20 + rng.below(30))),
            InjectedFault::Ends(Outcome { status: sam::CHECK_CONDITION, ..Outcome::GOOD }),
            InjectedFault::Ends(Outcome::host(HostByte::TimeOut)),
        ];
        for _ in 0..1 + rng.below(6) {
            let what = faults[rng.below(4) as usize];
            let skip = rng.below(10) as u32;
            s.debug.inject(Fault { lun: None, opcode: None, skip, times: 1 + rng.below(3) as u32, what });
        }
        let mut sent = vec![0; usize::from(luns)];
        for _ in 0..20 + rng.below(40) {
            let unit = rng.below(u64::from(luns)) as usize;
            s.read(unit);
            sent[unit] += 1;
            (0..rng.below(30)).for_each(|_| _ = s.step());
            if seed % 3 == 0 && giving.below(8) == 0 {
                s.host.set_give_up(giving.below(2) == 0);
            }
        }
        s.run();
        for (unit, sent) in s.units.iter().zip(sent) {
            assert_eq!(unit.done.len(), sent, "seed {seed}: each ends once");
            assert_eq!(s.debug.lost(unit.disk.lun()), 0, "seed {seed}: the device has one of a request that ended");
            assert_eq!(unit.disk.device().unwrap().in_flight(), 0, "seed {seed}");
        }
        assert_eq!(s.debug.resets_under_way(), [], "seed {seed}: no thread asks about them any more");
        let stats = s.host.eh_stats();
        (recoveries, given_up, late) = (recoveries + stats.recoveries, given_up + stats.offline, late + stats.late);
        // Devices that did not go offline work.
        s.host.set_give_up(false);
        s.run();
        for unit in 0..usize::from(luns) {
            if s.units[unit].disk.state() == DeviceState::Running && s.debug.faults_left() == 0 {
                s.read(unit);
                s.run();
                assert_eq!(s.units[unit].done.last().unwrap().1, BlkStatus::Ok, "seed {seed}");
            }
        }
    }
    assert!(recoveries > 100 && given_up > 20 && late > 200, "{recoveries} {given_up} {late}: seeds that try nothing");
}
