// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulated disk: keeps one word per sector and has a volatile cache. A seed or the test determines its answers and
//! completions.
//!
//! The seed determines the faults of each request, or a test scripts them. [`fault`](crate::fault) describes what each fault
//! does, and how the layer above must react.
//!
//! Guarantees: every rule of the driver contract that the core could break is asserted here. Examples are tags in range and
//! used once, limits, FUA only where supported, segments that add up. The disk keeps its side of the contract: it returns
//! DEV_RESOURCE only while a request of the device is in flight. A write reaches the cache when it is issued or when it
//! completes. A flush makes durable what had *completed* when the flush was issued, nothing more; FUA is durable at once.

mod driver;
pub mod faults;
pub(crate) mod ledger;
mod media;
pub mod service;

use crate::fault::Plant;
use crate::mem::Mem;
use crate::rng::Rng;
use crate::trace::{Trace, clock};
use blk::bio::{Op, OpFlags};
use blk::driver::{InFlight, RqRef};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use faults::Faults;
use ledger::TagLedger;
use media::Media;
use service::{Device, Service};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// How the disk behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The limits that the disk reports.
    pub limits: Limits,
    /// Capacity in sectors.
    pub capacity: u64,
    /// Of a thousand requests, how many are answered with RESOURCE at issue.
    pub resource: u32,
    /// As `resource`, with DEV_RESOURCE, while a request is in flight.
    pub dev_resource: u32,
    /// As `resource`, with an error.
    pub issue_error: u32,
    /// Of a thousand accepted requests, how many complete with an error.
    pub complete_error: u32,
    /// Of a thousand accepted requests, how many are returned unfinished, half of them with a delay.
    pub give_back: u32,
    /// Of a thousand accepted requests, how many complete while they are being issued.
    pub at_once: u32,
    /// Of a thousand accepted requests, how many do not complete until the core reports their timeout.
    pub lost: u32,
    /// Of a thousand completions, how many the device reports a second time, later.
    pub duplicate: u32,
    /// Of a thousand issued requests, how many find that the path to the device has just failed, for up to 50 ms.
    pub path_loss: u32,
    /// Maximum number of requests in flight device-wide; any further request is answered with DEV_RESOURCE.
    pub device_cap: usize,
    /// How long requests take.
    pub service: Service,
    /// Requests complete only when the test calls [`SimDisk::release`].
    pub manual: bool,
    /// Keep a record of every accepted request.
    pub record: bool,
    /// A planted bug of the disk; `None` in ordinary runs.
    pub plant: Option<Plant>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            limits: Limits {
                max_discard_sectors: 1 << 16,
                max_write_zeroes_sectors: 1 << 16,
                ..Limits::with_max_hw_sectors(1024)
            },
            capacity: 1 << 20,
            resource: 0,
            dev_resource: 0,
            issue_error: 0,
            complete_error: 0,
            give_back: 0,
            at_once: 0,
            lost: 0,
            duplicate: 0,
            path_loss: 0,
            device_cap: usize::MAX,
            service: Service::Any { max_ns: 1000 },
            manual: false,
            record: true,
            plant: None,
        }
    }
}

/// An event that the disk recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Accepted a request.
    Issue(Issue),
    /// The `Issue` with this number was reported complete by `poll`.
    Done(usize),
}

/// A request the disk accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Number of the request on this disk, from 0.
    pub n: usize,
    /// Hardware queue.
    pub hctx: usize,
    /// Its tag.
    pub tag: usize,
    /// Operation.
    pub op: Op,
    /// Flags of the operation.
    pub flags: OpFlags,
    /// First sector.
    pub sector: u64,
    /// Length in sectors.
    pub nr_sectors: u32,
    /// Bios in the chain, for operations with data.
    pub nr_bios: usize,
    /// Number of the `queue_rqs` call.
    pub batch: usize,
    /// Virtual time of the call, nanoseconds.
    pub now: u64,
}

/// The answer of a scripted disk to one request.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Accept.
    Accept,
    /// Refuse with this status.
    Refuse(QueueRqStatus),
    /// Accept, and complete with this status.
    Fail(BlkStatus),
    /// Accept, and return it unfinished, to be retried after so many nanoseconds; `None` = at once.
    GiveBack(Option<u64>),
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}+{}", self.op, self.sector, self.nr_sectors)
    }
}

struct Pending {
    /// `None` for a request that completes at issue.
    rq: Option<InFlight>,
    issue: Issue,
    /// Memory sectors of the data: the start and length of each run.
    segs: Vec<(u64, u32)>,
    /// The data is taken already, at issue: the write reaches the cache early.
    landed: bool,
    due: u64,
    released: bool,
    status: BlkStatus,
    /// Does not complete until the core reports its timeout.
    lost: bool,
    /// The core reported the timeout, and the answer promised a completion: the request may not be lost again.
    found: bool,
    back: Option<Option<Duration>>,
    completed_before: u64,
}

struct Inner {
    rng: Rng,
    behaviour: Behaviour,
    started: (u16, u32),
    starts: usize,
    refuse_starts: u32,
    pending: Vec<Vec<Pending>>,
    in_flight: usize,
    completed: u64,
    media: Media,
    device: Device,
    trace: Trace,
    script: VecDeque<Answer>,
    events: Vec<Event>,
    issued: usize,
    batches: usize,
    polls: usize,
    calls: Vec<QueueRqStatus>,
    faults: Faults,
    /// The path by which requests arrive at the moment, if there are several.
    via: Option<usize>,
    /// The tag set's ledger and this disk's number in the set, if its tags are shared.
    ledger: Option<(Arc<TagLedger>, usize)>,
}

type Hook = Box<dyn FnOnce() + Send>;

/// The disk. Shared by the core and the test that made it.
pub struct SimDisk {
    /// Hooks, each run at the end of a later `queue_rqs` call: actions of "another thread" before the caller sees the answer.
    hooks: Mutex<VecDeque<Option<Hook>>>,
    limits: Limits,
    capacity: u64,
    mem: Arc<Mem>,
    inner: Mutex<Inner>,
}

const NEVER_SAFE: u64 = u64::MAX;

impl SimDisk {
    /// A disk of zeroes whose data transfers use `mem`.
    pub fn new(behaviour: Behaviour, mem: Arc<Mem>, seed: u64) -> Arc<SimDisk> {
        let device = Device::new(behaviour.service.clone());
        Arc::new(SimDisk {
            hooks: Mutex::default(),
            limits: behaviour.limits,
            capacity: behaviour.capacity,
            mem,
            inner: Mutex::new(Inner {
                rng: Rng::new(seed ^ 0xd15c),
                behaviour,
                started: (0, 0),
                starts: 0,
                refuse_starts: 0,
                pending: Vec::new(),
                in_flight: 0,
                completed: 0,
                media: Media::default(),
                device,
                trace: Trace::default(),
                script: VecDeque::new(),
                events: Vec::new(),
                issued: 0,
                batches: 0,
                polls: 0,
                calls: Vec::new(),
                faults: Faults::default(),
                via: None,
                ledger: None,
            }),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes the behaviour from now on, except the limits and the service times.
    pub fn behave(&self, f: impl FnOnce(&mut Behaviour)) {
        f(&mut self.inner().behaviour);
    }

    /// Writes all events to `trace` from now on.
    pub fn trace_to(&self, trace: Trace) {
        self.inner().trace = trace;
    }

    /// Shares the tags of a set with other disks, as disk number `disk`. The disk must have nothing in flight.
    pub(crate) fn share_tags(&self, ledger: &Arc<TagLedger>, disk: usize) {
        let mut i = self.inner();
        assert_eq!(i.in_flight, 0, "joins a set with requests in flight");
        i.ledger = Some((ledger.clone(), disk));
    }

    /// Requests arrive by this path until the next call.
    pub(crate) fn comes_by(&self, path: Option<usize>) {
        self.inner().via = path;
    }

    /// Requests accepted so far.
    pub fn issued(&self) -> usize {
        self.inner().issued
    }

    /// Answers the next requests with these answers, one each; later requests are answered as the behaviour determines.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.inner().script.extend(answers);
    }

    /// Skips `skip` calls of `queue_rqs`, then runs `hook` at the end of the next call, after the answer of that call is settled.
    pub fn interleave(&self, skip: usize, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.hooks.lock().expect("no test panics here");
        hooks.extend((0..skip).map(|_| None));
        hooks.push_back(Some(Box::new(hook)));
    }

    /// The next `n` calls of `start` fail.
    pub fn refuse_starts(&self, n: u32) {
        self.inner().refuse_starts = n;
    }

    /// Returns how often `start` was called, and the arguments of the last call.
    pub fn starts(&self) -> (usize, u16, u32) {
        let i = self.inner();
        (i.starts, i.started.0, i.started.1)
    }

    /// Completes the pending requests that `f` chooses. Returns how many there were.
    pub fn release(&self, mut f: impl FnMut(&Issue) -> bool) -> usize {
        let mut i = self.inner();
        let chosen = i.pending.iter_mut().flatten().filter(|p| !p.released && f(&p.issue));
        chosen.map(|p| p.released = true).count()
    }

    /// Completes all pending requests. Returns how many there were.
    pub fn release_all(&self) -> usize {
        self.release(|_| true)
    }

    /// Returns the requests that were accepted and not yet reported by `poll`, oldest first.
    pub fn pending(&self) -> Vec<Issue> {
        let mut all: Vec<Issue> = self.inner().pending.iter().flatten().map(|p| p.issue.clone()).collect();
        all.sort_by_key(|i| i.n);
        all
    }

    /// Returns how many requests were accepted and not yet reported by `poll`.
    pub fn in_flight(&self) -> usize {
        self.inner().in_flight
    }

    /// All events so far, if they are recorded.
    pub fn events(&self) -> Vec<Event> {
        self.inner().events.clone()
    }

    /// All accepted requests so far.
    pub fn issues(&self) -> Vec<Issue> {
        let i = self.inner();
        i.events.iter().filter_map(|e| if let Event::Issue(i) = e { Some(i.clone()) } else { None }).collect()
    }

    /// Accepted requests from number `n` on.
    pub fn issues_from(&self, n: usize) -> Vec<Issue> {
        let i = self.inner();
        let issue = |e: &Event| if let Event::Issue(i) = e { Some(i.clone()) } else { None };
        let mut last: Vec<Issue> = i.events.iter().rev().filter_map(issue).take_while(|i| i.n >= n).collect();
        last.reverse();
        last
    }

    /// Answers of all calls of `queue_rqs` so far.
    pub fn calls(&self) -> Vec<QueueRqStatus> {
        self.inner().calls.clone()
    }

    /// How often `poll` was called so far.
    pub fn polls(&self) -> usize {
        self.inner().polls
    }

    /// Whether polling this hctx at `now` would find something.
    pub fn is_ready(&self, hctx: usize, now: u64) -> bool {
        let i = self.inner();
        i.pending.get(hctx).is_some_and(|list| list.iter().any(|p| p.is_due(i.behaviour.manual, now)))
            || i.faults.is_repeat_due(hctx, now)
    }

    /// Whether the disk has requests of this hctx.
    pub(crate) fn has_requests(&self, hctx: usize) -> bool {
        self.inner().pending.get(hctx).is_some_and(|list| !list.is_empty())
    }

    /// Returns when the next request completes; `None` if none completes by itself.
    pub fn next_due(&self) -> Option<u64> {
        let i = self.inner();
        if i.behaviour.manual {
            return None;
        }
        let ends = i.pending.iter().flatten().map(|p| p.due).filter(|due| *due != u64::MAX);
        ends.min()
    }

    /// Returns the present content of a sector.
    pub fn content(&self, sector: u64) -> u64 {
        self.inner().media.read(sector)
    }

    /// Cuts the power: contents that are only in the volatile cache may be lost.
    pub fn crash(&self) {
        let mut i = self.inner();
        assert_eq!(i.in_flight, 0, "crash is modelled with nothing in flight");
        let i = &mut *i;
        i.media.crash(&mut i.rng);
    }

    /// Describes the requests in flight, for a dump.
    pub fn describe(&self) -> String {
        let i = self.inner();
        let (queues, depth) = i.started;
        let mut text = format!("  device: {} requests in flight, {} issued", i.in_flight, i.issued);
        text += &format!(", {queues} hardware queues of {depth} tags\n");
        for p in i.pending.iter().flatten() {
            let Issue { hctx, tag, now, .. } = p.issue;
            let due = if p.due == u64::MAX { "lost".into() } else { format!("due at {}", clock(p.due)) };
            text += &format!("    hctx {hctx} tag {tag} {} issued at {}, {due}\n", p.issue, clock(now));
        }
        text
    }
}

impl Pending {
    fn is_due(&self, manual: bool, now: u64) -> bool {
        if manual { self.released } else { self.due <= now }
    }
}

impl Inner {
    /// Determines the answer to the next request.
    fn answer(&mut self, now: Instant) -> Answer {
        if let Some(a) = self.script.pop_front() {
            if matches!(a, Answer::Refuse(QueueRqStatus::DevResource)) {
                assert!(self.in_flight > 0, "the script breaks the DEV_RESOURCE promise");
            }
            return a;
        }
        if self.path_is_down(now.as_ns()) {
            let transport = BlkStatus::Transport;
            let early = self.rng.below(2) == 0;
            return if early { Answer::Refuse(QueueRqStatus::Error(transport)) } else { Answer::Fail(transport) };
        }
        let b = &self.behaviour;
        let (resource, dev, error, late) = (b.resource, b.dev_resource, b.issue_error, b.complete_error);
        let give_back = b.give_back;
        if self.in_flight >= b.device_cap || self.in_flight > 0 && self.rng.per_mille(dev) {
            Answer::Refuse(QueueRqStatus::DevResource)
        } else if self.rng.per_mille(resource) {
            Answer::Refuse(QueueRqStatus::Resource)
        } else if self.rng.per_mille(error) {
            Answer::Refuse(QueueRqStatus::Error(BlkStatus::Medium))
        } else if self.rng.per_mille(late) {
            Answer::Fail(BlkStatus::Target)
        } else if give_back > 0 && self.rng.per_mille(give_back) {
            let delay = 1 + self.rng.below(1_000_000);
            Answer::GiveBack((self.rng.below(2) == 0).then_some(delay))
        } else {
            Answer::Accept
        }
    }

    /// Records that the device holds a tag from now on.
    fn has_tag(&self, hctx: usize, tag: usize) {
        if let Some((ledger, disk)) = &self.ledger {
            ledger.give(*disk, hctx, tag);
        }
    }

    /// Records that the device no longer holds the tag.
    fn gives_tag_back(&self, issue: &Issue) {
        if let Some((ledger, _)) = &self.ledger {
            ledger.take_back(issue.hctx, issue.tag);
        }
    }

    /// Makes the record of a request that this call accepts.
    fn issue_of(&self, rq: &RqRef<'_>, hctx: usize, now: Instant) -> Issue {
        Issue {
            n: self.issued,
            hctx,
            tag: rq.tag().index(),
            op: rq.op(),
            flags: rq.flags(),
            sector: rq.sector().0,
            nr_sectors: rq.nr_sectors(),
            nr_bios: rq.segments().count(),
            batch: self.batches - 1,
            now: now.as_ns(),
        }
    }

    /// Returns when a request will complete.
    fn due(&mut self, issue: &Issue, capacity: u64) -> u64 {
        self.device.done_at(&mut self.rng, capacity, issue.now, issue.op, issue.sector, issue.nr_sectors)
    }

    /// Applies a request to contents and memory.
    fn execute(&mut self, mem: &Mem, p: &Pending, limits: &Limits, safe_after: u64) {
        let plant = self.behaviour.plant;
        let durable = !limits.write_cache || p.issue.flags.contains(OpFlags::FUA) && plant != Some(Plant::LyingFua);
        let mut sector = p.issue.sector;
        let chosen = p.issue.n % 50 == 49;
        if plant == Some(Plant::Misplaced) && p.issue.op == Op::Write && chosen {
            sector = sector.saturating_sub(1);
        }
        match p.issue.op {
            Op::Write if plant == Some(Plant::LostWrite) && chosen => {}
            Op::Read => {
                for at in p.segs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n)) {
                    mem.set(at, self.media.read(sector));
                    sector += 1;
                }
                if plant == Some(Plant::Corrupt) && chosen {
                    let at = p.segs[0].0;
                    mem.set(at, mem.get(at) ^ 1 << 33);
                }
            }
            Op::Write => {
                for at in p.segs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n)) {
                    self.media.write(sector, mem.get(at), durable, safe_after);
                    sector += 1;
                }
            }
            Op::Discard | Op::WriteZeroes => {
                for s in sector..sector + u64::from(p.issue.nr_sectors) {
                    self.media.write(s, 0, durable, safe_after);
                }
            }
            Op::Flush if plant == Some(Plant::LyingFlush) => {}
            Op::Flush if plant == Some(Plant::ReorderedFlush) => {
                self.media.flush(p.completed_before.saturating_sub(2));
            }
            Op::Flush => self.media.flush(p.completed_before),
        }
    }

    fn complete(&mut self, mem: &Mem, limits: &Limits, p: &Pending) {
        self.completed += 1;
        self.in_flight -= 1;
        let safe_after = self.completed;
        if p.status.is_ok() {
            if !p.landed {
                self.execute(mem, p, limits, safe_after);
            } else if p.issue.op.is_write() {
                // The write is in the cache already; a flush issued from now on includes it.
                let end = p.issue.sector + u64::from(p.issue.nr_sectors);
                self.media.acknowledge(p.issue.sector..end, safe_after);
            }
        } else if matches!(self.behaviour.plant, Some(Plant::LateWrite | Plant::LatePath)) && !p.landed {
            self.write_late(mem, p);
        } else if !p.landed && self.rng.below(2) == 0 && p.issue.op != Op::Flush {
            // A failed write may have changed the medium nevertheless.
            self.execute(mem, p, limits, NEVER_SAFE);
        }
        self.late_writes();
        if self.behaviour.record {
            self.events.push(Event::Done(p.issue.n));
        }
    }
}
