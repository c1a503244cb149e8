// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path allocates no memory. This counts from the first I/O on, and not after a warm-up, because "allocated at start" is
//! a promise about bounds and not about averages.
//!
//! Every stack runs the same I/O: batches of 32 through a plug, reads and writes that merge with their neighbours, more bios than there
//! are tags, and bios that have to be split. Completions of a second submitter on the same hardware queue are passed on to it. Then the
//! same runs use a driver that requeues requests. The NBD protocol above the stack is counted separately.
#![allow(unsafe_code, reason = "a counting global allocator is an unsafe promise")]

extern crate mqblk_host as host;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::elevator::{LEGACY_NAMES, NAMES};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::Submitter;
use blk::time::{Duration, Instant};
use host::driver::null::{Null, NullOptions};
use host::export::nbd::reply::HEAD_BYTES;
use host::export::nbd::{Command, Event, Export, Negotiated, Session};
use host::nbd::wire::{BytesIn, ReplyStyle};
use host::nbd::wire::{EXTENDED_REPLY_BYTES, RequestHeader, SIMPLE_REPLY_BYTES, command};
use parking_lot::{Mutex, RawMutex};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Counts allocations of threads that have enabled counting.
struct Counting;

thread_local! {
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn count() {
    COUNT.with(|c| c.set(c.get().map(|n| n + 1)));
}

// SAFETY: all work is the system allocator's; counting touches a constant-initialised thread local without a destructor,
// which itself does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on as they are.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how many allocations this thread makes in `f`.
fn allocations(f: impl FnOnce()) -> u64 {
    COUNT.set(Some(0));
    f();
    COUNT.take().expect("counting since the start")
}

const DEPTH: u32 = 32;

struct Traffic {
    subs: [Submitter<RawMutex>; 2],
    x: u64,
    blocks: u64,
    now: Instant,
    submitted: u64,
    ended: u64,
}

impl Traffic {
    fn next(&mut self, n: u64) -> u64 {
        self.x ^= self.x << 13;
        self.x ^= self.x >> 7;
        self.x ^= self.x << 17;
        self.x % n
    }

    fn batch(&mut self) {
        let s = self.next(2) as usize;
        let mut block = self.next(self.blocks);
        self.subs[s].start_plug(DEPTH);
        for _ in 0..DEPTH {
            // Mostly next to the previous one, sometimes large enough to be split.
            block = if self.next(3) == 0 { self.next(self.blocks) } else { block + 1 };
            let nr = if self.next(64) == 0 { 4096 } else { 8 };
            let sector = Sector((block % self.blocks) << 3);
            let mut bio = Bio::read(sector, nr, DataRef::NONE);
            if self.next(3) == 0 {
                bio = Bio::write(sector, nr, DataRef::NONE);
            }
            if self.next(32) == 0 {
                bio = Bio::write(sector, nr, DataRef::NONE).with_flags(OpFlags::FUA);
            }
            if self.subs[s].submit(&bio, self.now).is_ok() {
                self.submitted += 1;
            }
        }
        self.subs[s].finish_plug(self.now);
    }

    fn poll(&mut self) {
        self.now = self.now + Duration::from_us(10);
        for sub in &mut self.subs {
            sub.poll(self.now);
            let ended = &mut self.ended;
            sub.reap(|d| {
                assert!(d.status.is_ok());
                *ended += 1;
            });
        }
    }

    fn run(&mut self, ios: u64) {
        while self.submitted < ios {
            self.batch();
            if self.next(2) == 0 {
                self.poll();
            }
        }
        while self.ended < self.submitted {
            self.poll();
        }
    }
}

/// The requests of a hardware queue, and how many it has completed or requeued.
type Ring = Mutex<(VecDeque<InFlight>, u64)>;

/// A disk that requeues two of seven requests, one at once and one after a delay.
#[derive(Default)]
struct RequeueDriver {
    rings: OnceLock<Vec<Ring>>,
}

impl RequeueDriver {
    fn ring(&self, hctx: HctxId) -> &Ring {
        &self.rings.get().expect("started")[hctx.index()]
    }
}

impl Driver for RequeueDriver {
    fn name(&self) -> &'static str {
        "gives-back"
    }

    fn limits(&self) -> Limits {
        Limits { max_hw_sectors: 2560, max_sectors: 2560, ..Limits::default() }
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 15)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let ring = || Mutex::new((VecDeque::with_capacity(queue_depth as usize), 0));
        self.rings.set((0..nr_hw_queues).map(|_| ring()).collect()).map_err(|_| "started once only".into())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let mut ring = self.ring(batch.hctx()).lock();
        while batch.front().is_some() {
            ring.0.push_back(batch.accept());
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let (rqs, count) = &mut *self.ring(hctx).lock();
        while done.room() > 0
            && let Some(rq) = rqs.pop_front()
        {
            *count += 1;
            match *count % 7 {
                2 => done.requeue(rq, None),
                5 => done.requeue(rq, Some(Duration::from_us(50))),
                _ => done.push(rq, BlkStatus::Ok),
            }
        }
    }
}

fn allocations_of(driver: Arc<dyn Driver>, settings: &[(&str, &str)], ios: u64) -> u64 {
    let mut config =
        QueueConfig { topology: CpuTopology::uniform(2), bios_per_submitter: 256, ..QueueConfig::default() };
    for (key, value) in settings {
        config.set(key, value).expect("a good setting");
    }
    let disk = RequestQueue::<RawMutex>::new(driver, config, Box::new(NoNotify)).expect("good settings");
    let subs = [0, 1].map(|cpu| disk.submitter(CpuId::new(cpu)).expect("a free place"));
    let blocks = (disk.capacity().0 >> 3) - 1024;
    let now = Instant::from_ns(1_000_000);
    let mut traffic = Traffic { subs, x: 0x9e37_79b9_7f4a_7c15, blocks, now, submitted: 0, ended: 0 };
    let n = allocations(|| traffic.run(ios));
    assert!(traffic.submitted >= ios);
    assert!(disk.stats().merges() > ios / 10, "the traffic is meant to merge: {:?}", disk.stats());
    n
}

/// Returns the stacks: every elevator on one hardware queue and on two with few tags, and without an elevator other queue layouts.
fn stacks() -> Vec<Vec<(&'static str, &'static str)>> {
    let mut all = vec![
        vec![("scheduler", "none"), ("nr_hw_queues", "2"), ("max_sectors_kb", "1280")],
        vec![("scheduler", "none"), ("nr_hw_queues", "1"), ("queue_depth", "3"), ("rq_affinity", "2")],
    ];
    for name in NAMES {
        let elevator = ("scheduler", name);
        all.push(vec![elevator, ("nr_hw_queues", "1")]);
        all.push(vec![elevator, ("nr_hw_queues", "2"), ("queue_depth", "2"), ("max_sectors_kb", "256")]);
    }
    for name in LEGACY_NAMES {
        let elevator = [("mode", "sq"), ("scheduler", name)];
        all.push([&elevator[..], &[("queue_depth", "4"), ("nr_requests", "16")]].concat());
        all.push([&elevator[..], &[("max_sectors_kb", "64")]].concat());
    }
    all
}

fn ios_allocate_nothing(ios: u64) {
    let null = || Arc::new(Null::new(NullOptions { size_bytes: 1 << 24, ..NullOptions::default() }));
    let found: Vec<_> =
        stacks().into_iter().map(|s| (allocations_of(null(), &s, ios), s)).filter(|(n, _)| *n > 0).collect();
    assert!(found.is_empty(), "allocations in {ios} I/Os: {found:?}");
}

fn ios_that_the_driver_gives_back_allocate_nothing(ios: u64) {
    let driver = || Arc::new(RequeueDriver::default());
    let found: Vec<_> =
        stacks().into_iter().map(|s| (allocations_of(driver(), &s, ios), s)).filter(|(n, _)| *n > 0).collect();
    assert!(found.is_empty(), "allocations over a driver that gives back: {found:?}");
}

#[test]
fn twenty_thousand_ios_allocate_nothing() {
    ios_allocate_nothing(20_000);
}

#[test]
fn requests_that_the_driver_gives_back_allocate_nothing() {
    ios_that_the_driver_gives_back_allocate_nothing(4_000);
}

/// The same with more I/Os: run by `cargo xtask test --deep`.
mod deep {
    #[test]
    fn a_hundred_thousand_ios_allocate_nothing() {
        super::ios_allocate_nothing(100_000);
    }

    #[test]
    fn requests_that_the_driver_gives_back_allocate_nothing() {
        super::ios_that_the_driver_gives_back_allocate_nothing(20_000);
    }
}

/// Makes 32 NBD requests of all kinds as they arrive from one send of a client, each write with its payload.
fn nbd_batch(style: ReplyStyle) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..32 {
        let kind = if cookie % 4 == 3 { command::WRITE } else { command::READ };
        let flags = if kind == command::WRITE && style == ReplyStyle::Extended { 1 << 5 } else { 0 };
        // One of the requests is rejected.
        let offset = if cookie == 7 { 1 << 30 } else { cookie << 12 };
        let header = RequestHeader { flags, kind, cookie, offset, length: 4096 };
        match style {
            ReplyStyle::Extended => bytes.extend(header.to_extended()),
            _ => bytes.extend(header.to_compact().expect("32 bits")),
        }
        bytes.extend(vec![0x5a; if kind == command::WRITE { 4096 } else { 0 }]);
    }
    bytes
}

#[test]
fn nbd_requests_and_replies_do_not_allocate() {
    for (style, head_bytes) in [(ReplyStyle::Simple, SIMPLE_REPLY_BYTES), (ReplyStyle::Extended, EXTENDED_REPLY_BYTES)]
    {
        let export = Arc::new(Export { size_bytes: 1 << 20, ..Export::default() });
        let mut session = Session::new(&Negotiated { export, style, base_allocation: false, tls: false });
        let bytes = nbd_batch(style);
        let (mut requests, mut payload, mut replies) = (0, 0, 0);
        let mut heads = [[0; HEAD_BYTES]; 32];
        let n = allocations(|| {
            for piece in [1 << 20, 4096, 1000, 29, 7, 1] {
                for part in bytes.chunks(piece) {
                    let mut input = BytesIn::new(part);
                    loop {
                        let head = &mut heads[requests % 32];
                        match session.next_event(&mut input).expect("a good client") {
                            Event::NeedMore => break,
                            Event::Payload { bytes, .. } => payload += bytes.len(),
                            Event::Refused(r) => replies += session.style().error(r.reply_to, r.error, head),
                            Event::Request(r) if r.command == Command::Read => {
                                requests += 1;
                                replies += session.style().data(r.reply_to(), r.offset, 4096, true, head);
                            }
                            Event::Request(r) => {
                                requests += 1;
                                replies += session.style().success(r.reply_to(), head);
                            }
                            Event::Disconnect => panic!("no client disconnects"),
                        }
                    }
                }
            }
        });
        assert_eq!((n, requests, payload), (0, 6 * 31, 6 * 7 * 4096), "{style:?}");
        assert!(replies >= 6 * 32 * head_bytes);
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8]))), 1);
    assert_eq!(allocations(|| ()), 0);
}
