// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk for tests: keeps one word per sector, has a volatile cache, answers and completes as a seed or the test says.
//!
//! Guarantees: every rule of the driver contract that the core could break is asserted here (tags in range and used
//! once, limits, FUA only where supported, segments that add up). It keeps the promises it makes: DEV_RESOURCE only
//! with a request of the device in flight. A write lands in the cache when it is issued or when it completes; a flush
//! makes durable what had *completed* when the flush was issued, nothing more; FUA is durable at once.

use super::{Mem, Rng};
use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, Driver, InFlight, RqBatch, RqRef};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// How the disk behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub limits: Limits,
    pub capacity: u64,
    /// Of a thousand requests, how many are answered so at issue.
    pub resource: u32,
    pub dev_resource: u32,
    pub issue_error: u32,
    /// Of a thousand accepted requests, how many complete with an error.
    pub complete_error: u32,
    /// Of a thousand accepted requests, how many are given back unfinished, half of them with a delay.
    pub give_back: u32,
    /// Of a thousand accepted requests, how many end while they are being issued.
    pub at_once: u32,
    /// Most requests in flight device-wide; one more is answered DEV_RESOURCE.
    pub device_cap: usize,
    /// A request completes 1..=`max_delay_ns` after its issue, one in sixteen up to 50 times later.
    pub max_delay_ns: u64,
    /// Requests complete only when the test calls [`MemDisk::release`].
    pub manual: bool,
    /// Keep a record of every accepted request.
    pub record: bool,
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
            device_cap: usize::MAX,
            max_delay_ns: 1000,
            manual: false,
            record: true,
        }
    }
}

/// What the disk saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Accepted a request.
    Issue(Issue),
    /// `Issue` number so-and-so was polled out.
    Done(usize),
}

/// A request the disk accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    pub n: usize,
    pub hctx: usize,
    pub tag: usize,
    pub op: Op,
    pub flags: OpFlags,
    pub sector: u64,
    pub nr_sectors: u32,
    /// Bios in the chain, for operations with data.
    pub nr_bios: usize,
    /// Number of the `queue_rqs` call.
    pub batch: usize,
    pub now: u64,
}

/// What a scripted disk answers about one request.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Accept,
    Refuse(QueueRqStatus),
    /// Accept, and complete with this status.
    Fail(BlkStatus),
    /// Accept, and give it back unfinished after so many nanoseconds' delay; `None` = at once.
    GiveBack(Option<u64>),
}

struct Pending {
    /// `None` for one that ends at once.
    rq: Option<InFlight>,
    issue: Issue,
    /// Memory sectors of the data, run by run.
    segs: Vec<(u64, u32)>,
    /// Contents taken at issue, for a write that lands early.
    landed: bool,
    due: u64,
    released: bool,
    status: BlkStatus,
    back: Option<Option<Duration>>,
    completed_before: u64,
}

/// Contents: `cache` over `durable`. The cache has all contents of a sector since the last flush of it, oldest first,
/// each with the number of completions after which a flush has to take it along.
struct Media {
    durable: BTreeMap<u64, u64>,
    cache: BTreeMap<u64, Vec<(u64, u64)>>,
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
    script: VecDeque<Answer>,
    events: Vec<Event>,
    issued: usize,
    batches: usize,
    polls: usize,
    calls: Vec<QueueRqStatus>,
}

type Hook = Box<dyn FnOnce() + Send>;

pub struct MemDisk {
    /// Run at the end of coming `queue_rqs` calls: what "another thread" does before the answer is seen.
    hooks: Mutex<VecDeque<Option<Hook>>>,
    limits: Limits,
    capacity: u64,
    mem: Arc<Mem>,
    inner: Mutex<Inner>,
}

const NEVER_SAFE: u64 = u64::MAX;

impl MemDisk {
    pub fn new(behaviour: Behaviour, mem: Arc<Mem>, seed: u64) -> Arc<MemDisk> {
        Arc::new(MemDisk {
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
                media: Media { durable: BTreeMap::new(), cache: BTreeMap::new() },
                script: VecDeque::new(),
                events: Vec::new(),
                issued: 0,
                batches: 0,
                polls: 0,
                calls: Vec::new(),
            }),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes the behaviour from now on (not the limits).
    pub fn behave(&self, f: impl FnOnce(&mut Behaviour)) {
        f(&mut self.inner().behaviour);
    }

    /// The next requests are answered so, one entry each; afterwards as the behaviour says.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.inner().script.extend(answers);
    }

    /// Lets `skip` calls of `queue_rqs` pass and runs `hook` at the end of the next, after its answer is settled.
    pub fn interleave(&self, skip: usize, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.hooks.lock().expect("no test panics here");
        hooks.extend((0..skip).map(|_| None));
        hooks.push_back(Some(Box::new(hook)));
    }

    /// The next `n` calls of `start` fail.
    pub fn refuse_starts(&self, n: u32) {
        self.inner().refuse_starts = n;
    }

    /// How often `start` was called, and with what last.
    pub fn starts(&self) -> (usize, u16, u32) {
        let i = self.inner();
        (i.starts, i.started.0, i.started.1)
    }

    /// Lets the pending requests that `f` chooses complete; how many those were.
    pub fn release(&self, mut f: impl FnMut(&Issue) -> bool) -> usize {
        let mut i = self.inner();
        let chosen = i.pending.iter_mut().flatten().filter(|p| !p.released && f(&p.issue));
        chosen.map(|p| p.released = true).count()
    }

    pub fn release_all(&self) -> usize {
        self.release(|_| true)
    }

    /// Accepted and not yet polled out, oldest first.
    pub fn pending(&self) -> Vec<Issue> {
        let mut all: Vec<Issue> = self.inner().pending.iter().flatten().map(|p| p.issue.clone()).collect();
        all.sort_by_key(|i| i.n);
        all
    }

    pub fn in_flight(&self) -> usize {
        self.inner().in_flight
    }

    pub fn events(&self) -> Vec<Event> {
        self.inner().events.clone()
    }

    /// All accepted requests so far.
    pub fn issues(&self) -> Vec<Issue> {
        let i = self.inner();
        i.events.iter().filter_map(|e| if let Event::Issue(i) = e { Some(i.clone()) } else { None }).collect()
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
    }

    /// When the next request completes; `None` when nothing will by itself.
    pub fn next_due(&self) -> Option<u64> {
        let i = self.inner();
        if i.behaviour.manual {
            return None;
        }
        i.pending.iter().flatten().map(|p| p.due).min()
    }

    /// Present content of a sector.
    pub fn content(&self, sector: u64) -> u64 {
        self.inner().media.read(sector)
    }

    /// Power is cut: what is only in the cache is lost.
    pub fn crash(&self) {
        let mut i = self.inner();
        assert_eq!(i.in_flight, 0, "crash is modelled with nothing in flight");
        i.media.cache.clear();
    }

    /// What is in flight, for a dump.
    pub fn describe(&self) -> String {
        let i = self.inner();
        let mut text = format!("disk: {} in flight, {} issued, started {:?}\n", i.in_flight, i.issued, i.started);
        for p in i.pending.iter().flatten() {
            text += &format!("  {:?} due {} released {}\n", p.issue, p.due, p.released);
        }
        text
    }
}

impl Pending {
    fn is_due(&self, manual: bool, now: u64) -> bool {
        if manual { self.released } else { self.due <= now }
    }
}

impl Media {
    fn read(&self, sector: u64) -> u64 {
        let cached = self.cache.get(&sector).and_then(|list| list.last()).map(|(v, _)| *v);
        cached.or_else(|| self.durable.get(&sector).copied()).unwrap_or(0)
    }

    fn write(&mut self, sector: u64, v: u64, durable: bool, safe_after: u64) {
        if durable {
            self.cache.remove(&sector);
            self.durable.insert(sector, v);
        } else {
            self.cache.entry(sector).or_default().push((v, safe_after));
        }
    }

    /// Everything that had completed by `completed` becomes durable.
    fn flush(&mut self, completed: u64) {
        let durable = &mut self.durable;
        self.cache.retain(|sector, list| {
            if let Some(last) = list.iter().rposition(|(_, safe_after)| *safe_after <= completed) {
                durable.insert(*sector, list[last].0);
                list.drain(..=last);
            }
            !list.is_empty()
        });
    }
}

impl Inner {
    /// What to say about the next request.
    fn answer(&mut self) -> Answer {
        if let Some(a) = self.script.pop_front() {
            if matches!(a, Answer::Refuse(QueueRqStatus::DevResource)) {
                assert!(self.in_flight > 0, "the script breaks the DEV_RESOURCE promise");
            }
            return a;
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

    /// The record of a request that this call accepts.
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

    fn delay(&mut self) -> u64 {
        let d = 1 + self.rng.below(self.behaviour.max_delay_ns);
        if self.rng.below(16) == 0 { d * (1 + self.rng.below(50)) } else { d }
    }

    /// The effect of a request on contents and memory.
    fn execute(&mut self, mem: &Mem, p: &Pending, limits: &Limits, safe_after: u64) {
        let durable = !limits.write_cache || p.issue.flags.contains(OpFlags::FUA);
        let mut sector = p.issue.sector;
        match p.issue.op {
            Op::Read => {
                for at in p.segs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n)) {
                    mem.set(at, self.media.read(sector));
                    sector += 1;
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
                // It is in the cache already; from now on a flush takes it along.
                let end = p.issue.sector + u64::from(p.issue.nr_sectors);
                for (_, list) in self.media.cache.range_mut(p.issue.sector..end) {
                    list.last_mut().expect("a list in the cache has entries").1 = safe_after;
                }
            }
        } else if !p.landed && self.rng.below(2) == 0 && p.issue.op != Op::Flush {
            // A failed write may have changed the medium all the same.
            self.execute(mem, p, limits, NEVER_SAFE);
        }
        if self.behaviour.record {
            self.events.push(Event::Done(p.issue.n));
        }
    }
}

fn check_limits(l: &Limits, capacity: u64, rq: &RqRef<'_>, segs: &[(u64, u32)]) {
    let (op, sector, nr) = (rq.op(), rq.sector().0, rq.nr_sectors());
    let text = || format!("{op:?} {sector}+{nr}, {} segments", rq.nr_segments());
    let max = match op {
        Op::Read | Op::Write => l.max_sectors,
        Op::Discard => l.max_discard_sectors,
        Op::WriteZeroes => l.max_write_zeroes_sectors,
        Op::Flush => 0,
    };
    assert!(nr <= max, "{}: above the limit {max}", text());
    assert!((nr == 0) == (op == Op::Flush), "{}: length", text());
    let lbs = u64::from(l.logical_block_sectors());
    assert!(sector % lbs == 0 && u64::from(nr) % lbs == 0, "{}: not aligned", text());
    assert!(sector + u64::from(nr) <= capacity, "{}: past the end", text());
    if l.chunk_sectors > 0 && matches!(op, Op::Read | Op::Write | Op::WriteZeroes) {
        let chunk = u64::from(l.chunk_sectors);
        assert_eq!(sector / chunk, (sector + u64::from(nr) - 1) / chunk, "{}: crosses a chunk", text());
    }
    assert!(!rq.flags().contains(OpFlags::PREFLUSH), "{}: PREFLUSH reached the driver", text());
    assert!(!rq.flags().contains(OpFlags::FUA) || l.fua, "{}: FUA reached a driver without it", text());
    assert!(op != Op::Flush || l.write_cache, "flush reached a driver without a cache");
    if op.has_data() {
        let sum: u32 = segs.iter().map(|(_, n)| *n).sum();
        assert_eq!(sum, nr, "{}: segments do not add up", text());
        let phys: u32 = segs.iter().map(|(_, n)| (*n << 9).div_ceil(l.max_segment_size)).sum();
        assert_eq!(phys, u32::from(rq.nr_segments()), "{}: nr_segments is wrong", text());
        assert!(rq.nr_segments() <= l.max_segments, "{}: too many segments", text());
    } else {
        assert!(segs.is_empty(), "{}: data where none belongs", text());
    }
}

impl Driver for MemDisk {
    fn name(&self) -> &'static str {
        "memdisk"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        Sector(self.capacity)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let mut i = self.inner();
        assert_eq!(i.in_flight, 0, "started with requests in flight");
        if i.refuse_starts > 0 {
            i.refuse_starts -= 1;
            return Err("no vectors left".into());
        }
        i.starts += 1;
        i.started = (nr_hw_queues, queue_depth);
        i.pending = (0..nr_hw_queues).map(|_| Vec::with_capacity(queue_depth as usize)).collect();
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let mut guard = self.inner();
        let i = &mut *guard;
        let hctx = batch.hctx().index();
        assert!(hctx < usize::from(i.started.0), "hctx {hctx} of {} used", i.started.0);
        assert!(batch.remaining() > 0, "empty batch");
        i.batches += 1;
        let status = loop {
            let Some(rq) = batch.front() else { break QueueRqStatus::Queued };
            let segs: Vec<(u64, u32)> = rq.segments().map(|s| (s.data.offset() >> 9, s.len_bytes >> 9)).collect();
            check_limits(&self.limits, self.capacity, &rq, &segs);
            let mut back = None;
            let status = match i.answer() {
                Answer::Accept => BlkStatus::Ok,
                Answer::GiveBack(delay) => {
                    back = Some(delay.map(Duration::from_ns));
                    BlkStatus::Ok
                }
                Answer::Fail(s) => s,
                Answer::Refuse(s) => break s,
            };
            let tag = rq.tag().index();
            assert!(tag < i.started.1 as usize, "tag {tag} with a depth of {}", i.started.1);
            assert!(i.pending[hctx].iter().all(|p| p.issue.tag != tag), "tag {tag} of hctx {hctx} in use");
            let issue = i.issue_of(&rq, hctx, now);
            i.issued += 1;
            i.in_flight += 1;
            if i.behaviour.record {
                i.events.push(Event::Issue(issue.clone()));
            }
            let at_once = back.is_none() && i.behaviour.at_once > 0 && i.rng.per_mille(i.behaviour.at_once);
            let mut p = Pending {
                rq: None,
                issue,
                segs,
                landed: false,
                due: now.as_ns() + i.delay(),
                released: false,
                status,
                back,
                completed_before: i.completed,
            };
            if status.is_ok() && back.is_none() && p.issue.op.is_write() && i.rng.below(2) == 0 {
                i.execute(&self.mem, &p, &self.limits, NEVER_SAFE);
                p.landed = true;
            }
            if at_once {
                i.complete(&self.mem, &self.limits, &p);
                batch.end(status);
            } else {
                let rq = batch.accept();
                assert_eq!(rq.tag().index(), tag);
                p.rq = Some(rq);
                i.pending[hctx].push(p);
            }
        };
        if i.behaviour.record {
            i.calls.push(status);
        }
        drop(guard);
        let hook = self.hooks.lock().expect("no test panics here").pop_front().flatten();
        if let Some(hook) = hook {
            hook();
        }
        status
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut guard = self.inner();
        let i = &mut *guard;
        let (h, manual) = (hctx.index(), i.behaviour.manual);
        assert!(h < i.pending.len(), "hctx {h} of {} polled", i.pending.len());
        i.polls += 1;
        while done.room() > 0 {
            let due = i.pending[h].iter().filter(|p| p.is_due(manual, now.as_ns())).count();
            if due == 0 {
                return;
            }
            let chosen = i.rng.below(due as u64) as usize;
            let at = (0..i.pending[h].len())
                .filter(|k| i.pending[h][*k].is_due(manual, now.as_ns()))
                .nth(chosen)
                .expect("counted");
            let mut p = i.pending[h].remove(at);
            let rq = p.rq.take().expect("pending requests are in flight");
            if let Some(delay) = p.back {
                i.in_flight -= 1;
                done.requeue(rq, delay);
                continue;
            }
            i.complete(&self.mem, &self.limits, &p);
            done.push(rq, p.status);
        }
    }
}
