// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O of any sectors on a simulated disk with larger blocks, by several threads at once: neighbours' sectors keep their content
//! whatever the disk does, also if power is cut at any moment.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, HctxId, SubmitterId};
use blk::limits::Limits;
use blk::queue::{Notify, RequestQueue};
use blk::rmw::{BUFFER_BYTES, BlockLocks, ByteIo, Entry, Memory, NoBuffer, Wake};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::submitter::{Done, Submitter};
use blk::time::Instant;
use sim::Lock;
use sim::contents::{Contents, Held};
use sim::disk::{Behaviour, SimDisk};
use sim::mem::Mem;
use sim::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads.
const THREADS: usize = 3;
/// Sectors of a buffer.
const BUFFER: u64 = BUFFER_BYTES / 512;
/// Buffers of a thread. Two, so that I/O waits for them.
const BUFFERS: u64 = 2;
/// Sectors of the longest I/O. Longer than two buffers: it takes several steps.
const LONGEST: u64 = 2 * BUFFER + 200;
/// I/Os of a thread in flight.
const DEPTH: u64 = 8;

/// Which threads were woken.
type Woken = Arc<[AtomicBool; THREADS]>;

struct Ring(Woken, Vec<usize>);

impl Notify for Ring {
    fn notify(&self, submitter: SubmitterId) {
        self.0[self.1[submitter.index()]].store(true, Ordering::Relaxed);
    }
}

struct Thread(Woken, usize);

impl Wake for Thread {
    fn wake(&self) {
        self.0[self.1].store(true, Ordering::Relaxed);
    }
}

/// A thread's buffers, in the simulated memory.
struct Buffers {
    mem: Arc<Mem>,
    first: u64,
    free: Vec<u32>,
    /// Of 1000 calls, so many find no memory, or memory that is gone.
    fails: u32,
    rng: Rng,
}

impl Memory for Buffers {
    fn take(&mut self) -> Result<(u32, DataRef), NoBuffer> {
        if self.rng.per_mille(self.fails) {
            return Err(NoBuffer::NoMemory);
        }
        let n = self.free.pop().ok_or(NoBuffer::Busy)?;
        Ok((n, at(self.first + u64::from(n) * BUFFER)))
    }

    fn give_back(&mut self, buffer: u32) {
        assert!(!self.free.contains(&buffer));
        self.free.push(buffer);
    }

    fn copy(&mut self, from: DataRef, to: DataRef, bytes: u64) -> bool {
        if self.rng.per_mille(self.fails) {
            return false;
        }
        (0..bytes / 512).for_each(|i| self.mem.set(to.offset() / 512 + i, self.mem.get(from.offset() / 512 + i)));
        true
    }

    fn zero(&mut self, to: DataRef, bytes: u64) {
        (0..bytes / 512).for_each(|i| self.mem.set(to.offset() / 512 + i, 0));
    }
}

/// Memory of a sector number.
fn at(sector: u64) -> DataRef {
    DataRef::new(0, sector * 512)
}

/// An I/O in flight.
struct Out {
    op: Op,
    flags: OpFlags,
    /// `None`: nothing is known of its sectors.
    held: Option<Held>,
    range: (u64, u64),
    /// First sector of its memory.
    memory: u64,
    /// What its sectors hold after it.
    contents: Vec<u64>,
    /// Of a flush.
    point: u64,
}

struct Stack {
    disk: Arc<SimDisk>,
    q: Arc<RequestQueue<Lock>>,
    locks: Arc<BlockLocks<Lock, Thread>>,
    woken: Woken,
    mem: Arc<Mem>,
    subs: Vec<Submitter<Lock>>,
    entries: Vec<Entry<Lock, Thread>>,
    buffers: Vec<Buffers>,
    done: Vec<Vec<Done>>,
    now: u64,
}

impl Stack {
    fn new(seed: u64, behaviour: Behaviour) -> Stack {
        let own = BUFFERS * BUFFER + DEPTH * LONGEST;
        let mem = Arc::new(Mem::new(THREADS * own as usize));
        let block = behaviour.limits.logical_block_size;
        let disk = SimDisk::new(behaviour, mem.clone(), seed);
        let woken = Woken::default();
        let config = QueueConfig {
            topology: CpuTopology::uniform(THREADS as u16),
            nr_hw_queues: Some(2),
            nr_requests: Some(4),
            bios_per_submitter: 6,
            ..QueueConfig::default()
        };
        let ring = Ring(woken.clone(), (0..THREADS).collect());
        let q = RequestQueue::<Lock>::new(disk.clone(), config, Box::new(ring)).unwrap();
        let subs: Vec<_> = (0..THREADS as u32).map(|t| q.submitter(CpuId::new(t)).unwrap()).collect();
        assert!(subs.iter().enumerate().all(|(t, s)| s.id().index() == t));
        let locks = Arc::new(BlockLocks::default());
        let entries = (0..THREADS).map(|t| Entry::new(&locks, Thread(woken.clone(), t), block)).collect();
        let mut rng = Rng::new(seed ^ 1);
        let fails = rng.pick(&[0, 0, 10]);
        let buffers = (0..THREADS as u64).map(|t| Buffers {
            mem: mem.clone(),
            first: t * own,
            free: (0..BUFFERS as u32).collect(),
            fails,
            rng: Rng::new(rng.next()),
        });
        let buffers = buffers.collect();
        Stack { disk, q, locks, woken, mem, subs, entries, buffers, done: vec![Vec::new(); THREADS], now: 1_000_000 }
    }

    /// First sector of the memory of a thread's I/O.
    fn memory(&self, t: usize, own: u64) -> u64 {
        self.buffers[t].first + BUFFERS * BUFFER + own * LONGEST
    }

    /// One round of a thread, with an I/O to submit in it.
    fn round(&mut self, t: usize, io: Option<ByteIo>) {
        self.woken[t].store(false, Ordering::Relaxed);
        let now = Instant::from_ns(self.now);
        let (sub, entry, buffers) = (&mut self.subs[t], &mut self.entries[t], &mut self.buffers[t]);
        entry.begin(sub, buffers, now);
        sub.start_plug(0);
        match io {
            Some(io) if io.op == Op::Flush => {
                entry.submit(sub, buffers, Bio::flush().with_user_data(io.user_data), now);
            }
            Some(io) => entry.submit_bytes(sub, buffers, io, now),
            None => {}
        }
        sub.finish_plug(now);
        sub.poll(now);
        let from = self.done[t].len();
        let done = &mut self.done[t];
        sub.reap(|d| done.push(d));
        entry.end(done, from);
    }

    /// Whether a thread has a reason for a round now.
    fn is_wanted(&self, t: usize) -> bool {
        let ready = |h: HctxId| self.disk.is_ready(h.index(), self.now);
        self.woken[t].load(Ordering::Relaxed) || self.entries[t].has_work() || self.subs[t].hctxs().any(ready)
    }

    /// Gives a thread that has a reason a round; false if none ever has.
    fn step(&mut self, rng: &mut Rng) -> bool {
        self.subs.iter_mut().for_each(Submitter::rest);
        let first = rng.below(THREADS as u64) as usize;
        let timer = self.q.next_timer().map(Instant::as_ns);
        let is_due = timer.is_some_and(|t| t <= self.now);
        let wanted = (0..THREADS).map(|i| (first + i) % THREADS).find(|t| is_due || self.is_wanted(*t));
        if let Some(t) = wanted {
            self.round(t, None);
            return true;
        }
        let next = self.disk.next_due().into_iter().chain(timer).filter(|t| *t < self.now + 1_000_000_000).min();
        next.inspect(|t| self.now = self.now.max(*t)).is_some()
    }
}

/// A run of random I/O.
struct Run {
    stack: Stack,
    contents: Contents,
    rng: Rng,
    out: Vec<BTreeMap<u64, Out>>,
    ended: usize,
    /// Sectors of a block, if whole blocks are written while I/O in flight writes their first sectors. The first sectors are not checked:
    /// which of two writes at once is last is nowhere promised.
    overlaps: Option<u64>,
}

/// Sectors of the disk, few enough that neighbours meet.
const CAPACITY: u64 = 2 * BUFFER + 512;

impl Run {
    fn new(seed: u64, block: u32, overlaps: bool) -> Run {
        let mut rng = Rng::new(seed);
        let limits = Limits {
            logical_block_size: block,
            physical_block_size: block,
            write_cache: true,
            fua: rng.below(2) == 0,
            max_write_zeroes_sectors: 1 << 10,
            ..Limits::with_max_hw_sectors(1024)
        };
        let behaviour = Behaviour {
            limits,
            capacity: CAPACITY,
            resource: 20,
            dev_resource: 20,
            issue_error: rng.pick(&[0, 5]),
            complete_error: rng.pick(&[0, 5]),
            give_back: 10,
            at_once: rng.pick(&[0, 100, 500]),
            ..Behaviour::default()
        };
        let out = (0..THREADS).map(|_| BTreeMap::new()).collect();
        let stack = Stack::new(seed, behaviour);
        let overlaps = overlaps.then_some(u64::from(block) / 512);
        Run { stack, contents: Contents::new(CAPACITY, true), rng, out, ended: 0, overlaps }
    }

    /// Draws the sectors of an I/O, and those of them that are checked.
    fn range(&mut self, op: Op) -> (u64, u64, (u64, u64)) {
        if op == Op::Flush {
            return (0, 0, (0, 0));
        }
        if let Some(block) = self.overlaps {
            let first = self.rng.below(4) * block;
            let is_first_only = op == Op::Write && self.rng.below(2) == 0;
            return if is_first_only { (first, 1, (0, 0)) } else { (first, block, (first + 1, block - 1)) };
        }
        let nr = if self.rng.per_mille(20) { self.rng.below(LONGEST) + 1 } else { self.rng.below(20) + 1 };
        // Few blocks, so that I/O meets.
        let span = if nr > 20 { CAPACITY - nr } else { 60 };
        let sector = self.rng.below(span + 1);
        (sector, nr, (sector, nr))
    }

    /// Whether the content of a sector is known.
    fn is_known(&self, sector: u64) -> bool {
        self.overlaps.is_none_or(|block| !sector.is_multiple_of(block))
    }

    /// Submits one I/O, if a thread has room and the range is free.
    fn submit(&mut self) {
        let t = self.rng.below(THREADS as u64) as usize;
        let Some(own) = (0..DEPTH).find(|n| !self.out[t].contains_key(n)) else { return };
        if !self.stack.entries[t].has_capacity() {
            return;
        }
        let op = self.rng.pick(&[Op::Write, Op::Write, Op::Write, Op::Read, Op::WriteZeroes, Op::Flush]);
        let (sector, nr, known) = self.range(op);
        let held = if known.1 > 0 || op == Op::Flush {
            let Some(held) = self.contents.lock(op, known.0, known.1 as u32) else { return };
            Some(held)
        } else {
            None
        };
        let memory = self.stack.memory(t, own);
        let contents: Vec<u64> = (0..nr).map(|_| if op == Op::WriteZeroes { 0 } else { self.rng.next() }).collect();
        (0..nr).for_each(|i| self.stack.mem.set(memory + i, contents[i as usize]));
        let fua = op == Op::Write && self.rng.per_mille(200);
        let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
        let (user_data, data) = ((t as u64) << 32 | own, at(memory));
        let exclusive = op == Op::Write && self.rng.per_mille(100);
        let io = ByteIo { op, flags, offset: sector * 512, bytes: nr * 512, data, user_data, exclusive };
        let point = self.contents.flush_point();
        self.out[t].insert(own, Out { op, flags, held, range: (sector, nr), memory, contents, point });
        self.stack.round(t, Some(io));
    }

    /// Gives a thread a round, if one has a reason for it.
    fn step(&mut self) -> bool {
        let goes_on = self.stack.step(&mut self.rng);
        self.collect();
        goes_on
    }

    /// Checks what has ended.
    fn collect(&mut self) {
        for t in 0..THREADS {
            for d in std::mem::take(&mut self.stack.done[t]) {
                assert_eq!(d.user_data >> 32, t as u64, "another thread's");
                let out = self.out[t].remove(&(d.user_data & 0xffff_ffff)).expect("it ends once");
                assert_eq!(d.op, out.op);
                self.ended += 1;
                self.check(out, d.status);
            }
        }
    }

    fn check(&mut self, out: Out, status: BlkStatus) {
        let Some(held) = out.held else { return };
        let mem = &self.stack.mem;
        // The first sector is not known if I/Os overlap.
        let skip = u64::from(self.overlaps.is_some());
        let content = |i: u64| out.contents[(i + skip) as usize];
        match (out.op, status.is_ok()) {
            (Op::Read, true) => self.contents.was_read(held, |i| mem.get(out.memory + skip + i)),
            (Op::Read, false) => self.contents.nothing_happened(held),
            (Op::Flush, ok) => {
                self.contents.nothing_happened(held);
                if ok {
                    self.contents.was_flushed(out.point);
                }
            }
            (_, true) => self.contents.was_written(held, out.flags.contains(OpFlags::FUA), content),
            (_, false) => self.contents.write_failed(held, content),
        }
    }

    /// Checks what a loss of power at this moment would leave.
    fn cut(&mut self) {
        let survivors = self.stack.disk.if_power_were_cut(self.rng.next());
        let of = |sector: u64| {
            let all = self.out.iter().flat_map(BTreeMap::values);
            let mut hit = all.filter(|o| o.op.is_write() && (o.range.0..o.range.0 + o.range.1).contains(&sector));
            hit.next().map(|o| o.contents[(sector - o.range.0) as usize])
        };
        self.contents.check_survivors(|s| if self.is_known(s) { survivors.content(s) } else { 0 }, of);
    }
}

/// Runs cases of up to `ios` random I/Os. Returns how many I/Os ended.
fn run(seed: u64, cases: u64, ios: u32, blocks: &[u32], overlaps: bool) -> usize {
    let mut ended = 0;
    for (case, block) in (seed..seed + cases).zip(blocks.iter().cycle()) {
        println!("seed {case}, blocks of {block}");
        let mut run = Run::new(case, *block, overlaps);
        for _ in 0..ios {
            run.submit();
            for _ in 0..run.rng.below(4) {
                run.step();
            }
            if run.rng.per_mille(30) {
                run.cut();
            }
        }
        let mut steps = 0;
        while run.step() {
            steps += 1;
            assert!(steps < 100_000, "goes round in circles");
        }
        let left: usize = run.out.iter().map(BTreeMap::len).sum();
        assert_eq!(left, 0, "an I/O waits for ever");
        assert!(run.stack.locks.is_unused() && run.stack.entries.iter().all(Entry::is_idle));
        assert!(run.stack.buffers.iter().all(|b| b.free.len() as u64 == BUFFERS));
        run.contents.check_contents(|s| if run.is_known(s) { run.stack.disk.content(s) } else { 0 });
        run.cut();
        ended += run.ended;
    }
    ended
}

/// In sectors, which the simulated memory counts in; bytes are tried on real memory by the host's tests.
#[test]
fn neighbours_keep_their_content_whatever_happens() {
    let ended = run(20_261_126, 120, 300, &[1024, 4096, 4096, 65536], false);
    assert!(ended > 12_000, "{ended} I/Os: too few to say much");
}

/// A part of a block may not bring back what the block held before a write of the whole block that has ended meanwhile.
#[test]
fn a_write_of_a_whole_block_is_not_undone_by_a_part() {
    let ended = run(20_261_127, 60, 300, &[1024, 4096], true);
    assert!(ended > 4_000, "{ended} I/Os: too few to say much");
}

/// The first part of a block may come while writes of whole blocks are inside that were not recorded.
#[test]
fn writes_from_before_the_first_part_are_waited_for() {
    let ended = run(20_261_128, 1000, 12, &[4096], true);
    assert!(ended > 4_000, "{ended} I/Os: too few to say much");
}

/// Steps that a write takes at most, while others are submitted all the time. It waits for the few writes that came before it; each of
/// them takes some ten steps.
const LONGEST_WAIT: u32 = 1000;

/// Writes of `whole` waits among writers of single sectors: each of these threads keeps two in flight in the first `blocks` blocks.
struct Turns {
    stack: Stack,
    rng: Rng,
    small: &'static [usize],
    /// Thread of the writes of all these blocks.
    large: usize,
    blocks: u64,
    /// Step at which each write in flight was submitted, by thread and number.
    since: BTreeMap<(usize, u64), u32>,
    step: u32,
}

/// Number of the write of all blocks, after those of the small writes.
const LARGE: u64 = BUFFERS;

impl Turns {
    fn new(seed: u64, small: &'static [usize], large: usize, blocks: u64) -> Turns {
        let limits =
            Limits { logical_block_size: 4096, physical_block_size: 4096, ..Limits::with_max_hw_sectors(1024) };
        let mut stack = Stack::new(seed, Behaviour { limits, capacity: CAPACITY, ..Behaviour::default() });
        stack.buffers.iter_mut().for_each(|b| b.fails = 0);
        Turns { stack, rng: Rng::new(seed), small, large, blocks, since: BTreeMap::new(), step: 0 }
    }

    /// Submits a write, unless it is in flight or its thread has no room.
    fn submit(&mut self, t: usize, own: u64, sector: u64, nr: u64) {
        if self.since.contains_key(&(t, own)) || !self.stack.entries[t].has_capacity() {
            return;
        }
        self.since.insert((t, own), self.step);
        let data = at(self.stack.memory(t, own));
        let io = ByteIo { user_data: (t as u64) << 32 | own, ..ByteIo::new(Op::Write, sector * 512, nr * 512, data) };
        self.stack.round(t, Some(io));
    }

    /// Submits again what has ended.
    fn refill(&mut self) {
        for t in self.small {
            for own in 0..LARGE {
                let sector = self.rng.below(self.blocks) * 8;
                self.submit(*t, own, sector, 1);
            }
        }
        self.submit(self.large, LARGE, 0, self.blocks * 8);
    }

    /// Gives a thread a round, if one has a reason for it. Checks that no write takes too long. Returns how many writes of all blocks
    /// have ended; `None` if nothing can happen.
    fn step(&mut self) -> Option<u32> {
        if !self.stack.step(&mut self.rng) {
            return None;
        }
        self.step += 1;
        let mut large = 0;
        for d in self.stack.done.iter_mut().flat_map(std::mem::take) {
            assert!(d.status.is_ok());
            let (t, own) = ((d.user_data >> 32) as usize, d.user_data & 0xffff_ffff);
            self.since.remove(&(t, own)).expect("it ends once");
            large += u32::from(own == LARGE);
        }
        for (io, since) in &self.since {
            assert!(self.step - since <= LONGEST_WAIT, "write {io:?} of (thread, number) is passed by all others");
        }
        Some(large)
    }
}

/// Ends if every write has its turn.
fn take_turns(seed: u64, small: &'static [usize], large: usize, blocks: u64) {
    for seed in seed..seed + 10 {
        println!("seed {seed}, small writes of threads {small:?}, large ones of {large}");
        let mut turns = Turns::new(seed, small, large, blocks);
        let mut ended = 0;
        while ended < 20 {
            turns.refill();
            ended += turns.step().expect("a write is in flight");
        }
        while turns.step().is_some() {}
        assert!(turns.since.is_empty(), "a write waits for ever");
        assert!(turns.stack.locks.is_unused() && turns.stack.entries.iter().all(Entry::is_idle));
    }
}

#[test]
fn a_write_of_a_block_has_its_turn_among_parts_of_it() {
    take_turns(20_261_129, &[0], 0, 1);
    take_turns(20_261_130, &[0], 2, 1);
    take_turns(20_261_131, &[0, 1], 2, 1);
    take_turns(20_261_132, &[0, 1], 1, 1);
}

/// In 1 MiB, a part of some block is always being written.
#[test]
fn a_large_write_has_its_turn_among_parts_of_its_blocks() {
    take_turns(20_261_133, &[0, 1], 2, 256);
}
