// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of the block layer as SCSI commands on a debug host, with and without faults.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::queue::{Notify, RequestQueue};
use blk::scsi::cdb::Cdb;
use blk::scsi::cdb::opcode::REQUEST_SENSE;
use blk::scsi::debug::{DebugHost, DebugOptions, EhAid, Fault, InjectedFault, Medium, Reply};
use blk::scsi::device::DeviceState;
use blk::scsi::disk::{DiskOptions, SD_MAX_RETRIES, ScsiDisk};
use blk::scsi::disposition::{Failfast, HostByte, Outcome, sam};
use blk::scsi::failure::{CommandFailure, FailureKind, Failures};
use blk::scsi::host::{HostTemplate, ScsiHost};
use blk::scsi::sense::{Sense, SenseKey};
use blk::scsi::transport::{Busy, Command, LunId, Payload};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::submitter::{Done, Submitter};
use blk::time::{Duration, Instant};
use sim::Lock;
use std::sync::{Arc, Mutex};

struct NoopNotify;

impl Notify for NoopNotify {
    fn notify(&self, _: SubmitterId) {}
}

/// Keeps the commands that it was given.
#[derive(Default)]
struct Seen(Mutex<Vec<(Vec<u8>, Payload)>>);

#[derive(Clone)]
struct Note(Arc<Seen>);

impl Medium for Note {
    fn execute(&self, _: LunId, command: &Command<'_>) -> Outcome {
        self.0.0.lock().unwrap().push((command.cdb.as_bytes().to_vec(), command.payload));
        Outcome::GOOD
    }
}

type Debug = DebugHost<Lock, Note>;

struct Stack {
    seen: Arc<Seen>,
    debug: Arc<Debug>,
    disk: Arc<ScsiDisk>,
    queue: Arc<RequestQueue<Lock>>,
    submitter: Submitter<Lock>,
    now: u64,
}

const DELAY: Duration = Duration::from_us(100);

fn limits() -> Limits {
    Limits {
        max_discard_sectors: 1 << 16,
        max_write_zeroes_sectors: 1 << 16,
        write_cache: true,
        fua: true,
        ..Limits::with_max_hw_sectors(1 << 16)
    }
}

impl Stack {
    fn new(template: HostTemplate, change: impl FnOnce(&mut DiskOptions)) -> Stack {
        let seen = Arc::<Seen>::default();
        let options = DebugOptions { luns: 1, delay: DELAY, host_max_queue: 0 };
        let debug = Arc::new(Debug::new(options, Note(seen.clone())));
        let host = ScsiHost::new::<Lock>(template, debug.clone());
        let mut options = DiskOptions {
            block_size: 512,
            blocks: 1 << 33,
            limits: limits(),
            has_unmap: true,
            unmap_zeroes: true,
            wide: false,
            retries: SD_MAX_RETRIES,
            failfast: Failfast::default(),
        };
        change(&mut options);
        let disk = Arc::new(ScsiDisk::new(host, LunId(0), options).unwrap());
        let config = QueueConfig {
            topology: CpuTopology::uniform(1),
            queue_depth: template.can_queue,
            scheduler: Some("none".into()),
            ..QueueConfig::default()
        };
        let queue = RequestQueue::<Lock>::new(disk.clone(), config, Box::new(NoopNotify)).unwrap();
        let submitter = queue.submitter(CpuId::new(0)).unwrap();
        Stack { seen, debug, disk, queue, submitter, now: 1_000_000 }
    }

    fn plain() -> Stack {
        Stack::new(HostTemplate { can_queue: 64, cmd_per_lun: 64, nr_hw_queues: 1, ..HostTemplate::default() }, |_| ())
    }

    fn submit(&mut self, bio: &Bio) {
        self.submitter.submit(bio, Instant::from_ns(self.now)).unwrap();
    }

    /// Runs until no request is outstanding, or a minute has passed.
    fn run(&mut self) -> Vec<Done> {
        self.run_for(60)
    }

    fn run_for(&mut self, seconds: u64) -> Vec<Done> {
        let end = self.now + seconds * 1_000_000_000;
        let mut done = Vec::new();
        while self.submitter.outstanding() > 0 && self.now < end {
            let due = self.debug.next_due(LunId(0), HctxId::new(0)).map(Instant::as_ns);
            let timer = self.queue.next_timer().map(Instant::as_ns);
            self.now = due.into_iter().chain(timer).min().map_or(end, |t| t.max(self.now + 1));
            self.submitter.poll(Instant::from_ns(self.now));
            self.submitter.reap(|d| done.push(d));
        }
        done
    }

    fn commands(&self) -> Vec<(Vec<u8>, Payload)> {
        std::mem::take(&mut self.seen.0.lock().unwrap())
    }

    fn fault(&self, what: InjectedFault, times: u32) {
        self.debug.inject(Fault { lun: None, opcode: None, skip: 0, times, what });
    }

    /// Does one read. Returns its outcome.
    fn read(&mut self) -> BlkStatus {
        self.read_within(60)
    }

    fn read_within(&mut self, seconds: u64) -> BlkStatus {
        self.submit(&read(0));
        let done = self.run_for(seconds);
        assert_eq!(done.len(), 1);
        done[0].status
    }
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::new(0, 0))
}

#[test]
fn requests_are_the_commands_of_a_disk() {
    let mut s = Stack::plain();
    s.submit(&read(8));
    s.submit(&Bio::write(Sector((1 << 33) - 16), 16, DataRef::new(0, 0)).with_flags(OpFlags::FUA));
    assert_eq!(s.run().len(), 2);
    let commands = s.commands();
    assert_eq!(commands[0], (vec![0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0], Payload::Read));
    assert_eq!(commands[1].0[..2], [0x8a, 8]);
    assert_eq!(commands[1].1, Payload::Write);
}

/// WRITE SAME with the unmap bit is a discard to a device whose unmapped blocks do not read as zeroes.
#[test]
fn zeroes_are_unmapped_only_if_allowed_and_read_as_zeroes() {
    let template = HostTemplate { can_queue: 64, cmd_per_lun: 64, nr_hw_queues: 1, ..HostTemplate::default() };
    for (unmap_zeroes, flags, byte) in
        [(true, OpFlags::NONE, 8), (true, OpFlags::NOUNMAP, 0), (false, OpFlags::NONE, 0), (false, OpFlags::NOUNMAP, 0)]
    {
        let mut s = Stack::new(template, |o| o.unmap_zeroes = unmap_zeroes);
        s.submit(&Bio { op: Op::WriteZeroes, ..read(8) }.with_flags(flags));
        assert!(s.run().iter().all(|d| d.status.is_ok()));
        let (cdb, payload) = &s.commands()[0];
        assert_eq!((cdb[0], cdb[1], *payload), (0x93, byte, Payload::Zeroes(512)), "{unmap_zeroes} {flags:?}");
    }
}

#[test]
fn retryable_commands_are_retried_up_to_their_limit() {
    let mut s = Stack::plain();
    let soft = Outcome::host(HostByte::SoftError);
    s.fault(InjectedFault::Ends(soft), u32::from(SD_MAX_RETRIES));
    assert_eq!(s.read(), BlkStatus::Ok);
    s.fault(InjectedFault::Ends(soft), u32::from(SD_MAX_RETRIES) + 1);
    assert_eq!(s.read(), BlkStatus::IoErr);
    assert_eq!(s.debug.faults_left(), 0);
    assert_eq!(s.read(), BlkStatus::Ok);
}

#[test]
fn a_unit_attention_is_told_and_the_command_goes_again() {
    let mut s = Stack::plain();
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::UnitAttention, 0x2a, 0x09))), 1);
    assert_eq!(s.read(), BlkStatus::Ok);
    let news = s.disk.take_news(|news| news);
    assert!(news.capacity && !news.identity && !news.state);
    assert!(!s.disk.take_news(|news| news).capacity, "told once");
}

#[test]
fn device_becoming_ready_is_awaited_within_its_retries() {
    let mut s = Stack::plain();
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::NotReady, 4, 1))), 10);
    let begun = s.now;
    assert_eq!(s.read(), BlkStatus::Ok);
    assert!(s.now - begun >= 10_000_000_000, "a second each: {}", s.now - begun);
}

/// As with a path that returns after minutes: the time limit of the tries does not include the wait for the first try.
#[test]
fn a_request_that_has_waited_long_has_all_its_tries_yet() {
    let mut s = Stack::plain();
    s.fault(InjectedFault::Busy(Busy::Device), 21_000);
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::NotReady, 4, 1))), 2);
    let begun = s.now;
    assert_eq!(s.read_within(6000), BlkStatus::Ok);
    assert!(s.now - begun > 182_000_000_000, "it has not waited for longer than tries may take: {}", s.now - begun);
    assert_eq!(s.debug.faults_left(), 0);
}

/// Access states that a device reports: a command waits for a state that changes; other states are path errors.
#[test]
fn access_states_are_waited_for_or_are_the_path_s() {
    for (key, (asc, ascq), times, expected, is_news) in [
        (SenseKey::NotReady, (0x04, 0x0a), 2, BlkStatus::Ok, true),
        (SenseKey::UnitAttention, (0x04, 0x0a), 2, BlkStatus::Ok, true),
        (SenseKey::NotReady, (0x04, 0x0b), 1, BlkStatus::Transport, false),
        (SenseKey::NotReady, (0x04, 0x0c), 1, BlkStatus::Transport, false),
        (SenseKey::UnitAttention, (0x2a, 0x06), 1, BlkStatus::Ok, true),
        // The transition does not end: the command is retried for as long as its tries may take.
        (SenseKey::NotReady, (0x04, 0x0a), 100_000, BlkStatus::Transport, true),
    ] {
        let mut s = Stack::plain();
        let begun = s.now;
        s.fault(InjectedFault::Ends(Outcome::check(Sense::new(key, asc, ascq))), times);
        let status = s.read_within(600);
        assert_eq!(
            (status, s.disk.take_news(|news| news).state),
            (expected, is_news),
            "{key:?} {asc:02x}/{ascq:02x} {times}"
        );
        if asc == 0x04 && ascq == 0x0a && times == 2 {
            assert!(s.now - begun >= 2_000_000_000, "a second each");
        }
    }
}

#[test]
fn a_medium_error_ends_at_once() {
    let mut s = Stack::plain();
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::MediumError, 0x11, 0))), 1);
    assert_eq!(s.read(), BlkStatus::Medium);
}

/// A command that succeeds in the end, or that the device need not support, is no failure.
#[test]
fn failed_command_is_noted_with_its_cause() {
    let mut s = Stack::plain();
    let host = s.disk.host().clone();
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::AbortedCommand, 0x47, 0))), 1);
    assert_eq!(s.read(), BlkStatus::Ok);
    s.fault(InjectedFault::Ends(Outcome::check(Sense::new(SenseKey::IllegalRequest, 0x20, 0))), 1);
    s.submit(&Bio { op: Op::Discard, ..read(0) });
    assert_eq!(s.run()[0].status, BlkStatus::NotSupp);
    assert_eq!((host.failures().last(), host.failures().take()), (None, Failures::default()));
    let medium = Outcome::check(Sense::new(SenseKey::MediumError, 0x11, 0));
    // The sense data of the second command comes with error handling.
    for outcome in [medium, Outcome { sense: None, ..medium }] {
        s.fault(InjectedFault::Ends(outcome), 1);
        let sense = medium.sense.unwrap().to_fixed().to_vec();
        s.debug.script(EhAid::Probe(REQUEST_SENSE), None, Reply::Says(Outcome::GOOD, sense), 1);
        s.submit(&read(2048));
        assert_eq!(s.run()[0].status, BlkStatus::Medium);
        let cdb = Some(*Cdb::read(2048, 8, false).padded());
        let first = CommandFailure { lun: 0, cdb, outcome: medium, status: BlkStatus::Medium };
        assert_eq!(host.failures().take(), Failures { kinds: vec![FailureKind { first, times: 1 }], others: 0 });
    }
    assert_eq!(host.failures().last().map(|(total, last)| (total, last.status)), Some((2, BlkStatus::Medium)));
}

#[test]
fn a_busy_host_target_or_device_delays_and_loses_nothing() {
    for busy in [Busy::Device, Busy::Target, Busy::Host, Busy::Hctx] {
        let mut s = Stack::plain();
        s.fault(InjectedFault::Busy(busy), 3);
        (0..20).for_each(|i| s.submit(&read(1000 * i)));
        let done = s.run();
        assert_eq!(done.iter().filter(|d| d.status.is_ok()).count(), 20, "{busy:?}");
        assert_eq!(s.debug.faults_left(), 0);
        // With no request in flight, it is also retried by itself.
        s.fault(InjectedFault::Busy(busy), 1);
        assert_eq!(s.read(), BlkStatus::Ok, "{busy:?}");
    }
}

#[test]
fn a_busy_hardware_queue_holds_up_no_other() {
    let wait = |busy| {
        let mut s = Stack::plain();
        s.fault(InjectedFault::Busy(busy), 1);
        let begun = s.now;
        assert_eq!(s.read(), BlkStatus::Ok);
        s.now - begun
    };
    // Attempts that a busy host delays for all devices are 3 ms apart.
    let (hctx, host) = (wait(Busy::Hctx), wait(Busy::Host));
    assert!(hctx < 6_000_000 && host > 2 * hctx, "{hctx} ns, {host} ns");
}

#[test]
fn queue_full_lowers_the_depth_and_the_request_goes_again() {
    let mut s = Stack::plain();
    let before = s.disk.device().unwrap().queue_depth();
    for _ in 0..40 {
        s.now += 100_000_000;
        s.fault(InjectedFault::Ends(Outcome { status: sam::TASK_SET_FULL, ..Outcome::GOOD }), 1);
        assert_eq!(s.read(), BlkStatus::Ok);
    }
    assert_eq!(s.debug.faults_left(), 0);
    assert!(s.disk.device().unwrap().queue_depth() < before);
}

#[test]
fn no_more_commands_than_the_lun_s_depth_are_with_the_device() {
    let template =
        HostTemplate { can_queue: 64, cmd_per_lun: 3, nr_hw_queues: 1, track_queue_depth: false, ..Default::default() };
    let mut s = Stack::new(template, |_| ());
    (0..30).for_each(|i| s.submit(&read(1000 * i)));
    assert_eq!(s.disk.device().unwrap().in_flight(), 3);
    assert_eq!(s.run().len(), 30);
    s.disk.device().unwrap().set_queue_depth(5);
    (0..30).for_each(|i| s.submit(&read(1000 * i)));
    assert_eq!(s.disk.device().unwrap().in_flight(), 5);
    assert_eq!(s.run().len(), 30);
}

#[test]
fn a_device_that_is_gone_fails_what_comes() {
    let mut s = Stack::plain();
    s.disk.device().unwrap().set_state(DeviceState::TransportOffline);
    assert_eq!(s.read(), BlkStatus::Transport);
    s.disk.device().unwrap().set_state(DeviceState::Gone);
    assert_eq!(s.read(), BlkStatus::Offline);
}

#[test]
fn hardware_queues_multiply_the_tags_and_too_many_are_refused() {
    let template = HostTemplate { can_queue: 352, nr_hw_queues: 8, ..HostTemplate::default() };
    assert_eq!(template.hw_queues(32).unwrap(), 8);
    assert_eq!(template.total_depth(8), 2816);
    assert_eq!(HostTemplate { host_tagset: true, ..template }.total_depth(8), 352);
    assert_eq!(HostTemplate { nr_hw_queues: 0, ..template }.hw_queues(32).unwrap(), 32);
    let refused = template.hw_queues(4).unwrap_err().0;
    assert_eq!(refused, "nr_hw_queues=8: must be 0 (one per CPU, here 4) to 4");
}
