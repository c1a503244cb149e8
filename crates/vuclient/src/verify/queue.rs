// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One queue's requests: submitted from the plan, and compared when they complete.
//!
//! Guarantees: a request is submitted only when it overlaps no other that is in flight. A block's state is widened before a write is shown
//! to the server, and narrowed when the write is acknowledged. So the state is valid whenever the server may crash. The memory of a read is
//! filled with [`POISON`] before the read.

use std::time::Duration;

use blkio::{Blkioq, ReqFlags, iovec};

use super::pattern::{self, BlockState, Generation, ZERO};
use super::plan::{Kind, Limits, MAX_IO, Op, Plan};
use super::{Area, VerifyReport};
use crate::completion::Queue;
use crate::error::Error;
use crate::memory::Memory;

/// Content of memory before a read; gaps must still hold it after the read.
const POISON: u8 = 0xa7;

/// What a queue's thread needs; its [`Runner`] is made on the thread itself.
pub(crate) struct Setup<'a> {
    pub index: usize,
    pub queue: Queue,
    pub memory: Memory,
    /// Offset of this queue's part of the memory.
    pub base: usize,
    pub area: &'a mut Area,
    pub limits: Limits,
    pub seed: u64,
    /// Number that distinguishes this plan from those of other queues and runs.
    pub stream: u64,
    pub iodepth: u32,
    pub patience: Duration,
}

/// A place for one request.
#[derive(Default)]
struct Slot {
    /// The request in flight.
    under_way: Option<InFlightRequest>,
    /// The request's segments; blkio keeps a pointer to them until the request completes.
    vector: Vec<iovec>,
}

struct InFlightRequest {
    op: Op,
    /// Generation that a write writes.
    generation: Generation,
    /// Number of the request in this run, for messages.
    number: u64,
}

/// Drives one queue over its area.
pub(crate) struct Runner<'a> {
    setup: Setup<'a>,
    plan: Plan,
    slots: Vec<Slot>,
    ended: Vec<(usize, i32)>,
    submitted: u64,
    scratch: Vec<u8>,
    report: VerifyReport,
}

impl<'a> Runner<'a> {
    pub fn new(setup: Setup<'a>) -> Runner<'a> {
        let plan = Plan::new(setup.seed, setup.stream, setup.limits);
        let slots = (0..setup.iodepth).map(|_| Slot::default()).collect();
        let report = VerifyReport::default();
        Runner { setup, plan, slots, ended: Vec::new(), submitted: 0, scratch: Vec::new(), report }
    }

    /// What was done so far.
    pub fn report(self) -> VerifyReport {
        self.report
    }

    /// Submits the plan's next request, waiting first for a free slot and for requests that it overlaps.
    pub fn step(&mut self) -> Result<(), Error> {
        let op = self.plan.draw();
        self.submit(op)
    }

    /// Waits for all requests in flight.
    pub fn drain(&mut self) -> Result<(), Error> {
        while self.slots.iter().any(|slot| slot.under_way.is_some()) {
            self.wait()?;
        }
        Ok(())
    }

    /// Flushes, then reads and compares all that is known of the area.
    pub fn compare_all(&mut self) -> Result<(), Error> {
        self.drain()?;
        self.submit(Op { kind: Kind::Flush, first: 0, blocks: 0, segments: Vec::new() })?;
        self.drain()?;
        let Limits { block, area, segment_len, .. } = self.setup.limits;
        let most = (MAX_IO.min(segment_len) / block).max(1);
        let mut first = 0;
        while first < area {
            let blocks = most.min(area - first);
            let known = &self.setup.area.states[first as usize..(first + blocks) as usize];
            if known.iter().any(|state| state.is_known()) {
                let segments = vec![(0, (blocks * block) as usize)];
                self.submit(Op { kind: Kind::Read, first, blocks, segments })?;
            }
            first += blocks;
        }
        self.drain()
    }

    fn submit(&mut self, op: Op) -> Result<(), Error> {
        let index = loop {
            let busy = self.slots.iter().filter_map(|slot| slot.under_way.as_ref());
            let is_clear = !busy.into_iter().any(|other| other.op.overlaps(&op));
            match self.slots.iter().position(|slot| slot.under_way.is_none()) {
                Some(index) if is_clear => break index,
                _ => self.wait()?,
            }
        };
        let generation = match op.kind {
            Kind::Write { .. } => {
                self.setup.area.generation += 1;
                self.setup.area.generation
            }
            _ => ZERO,
        };
        match op.kind {
            Kind::Read => self.poison(index, &op),
            Kind::Write { .. } => self.fill(index, &op, generation),
            _ => {}
        }
        if !matches!(op.kind, Kind::Read | Kind::Flush) {
            for state in states(self.setup.area, &op) {
                *state = state.or(generation);
            }
        }
        let base = self.setup.memory.address() + self.setup.base + index * Limits::SLOT;
        let slot = &mut self.slots[index];
        slot.vector.clear();
        slot.vector
            .extend(op.segments.iter().map(|&(at, len)| iovec { iov_base: (base + at) as *mut _, iov_len: len }));
        let start = (self.setup.area.first + op.first) * self.setup.limits.block;
        put(self.setup.queue.ring(), &op, start, op.blocks * self.setup.limits.block, &slot.vector, index);
        self.submitted += 1;
        slot.under_way = Some(InFlightRequest { op, generation, number: self.submitted });
        // Make the request visible at once, so that the server works while the next request is prepared.
        self.reap(0)
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.reap(1)
    }

    fn reap(&mut self, min: usize) -> Result<(), Error> {
        let ended = &mut self.ended;
        let patience = (min > 0).then_some(self.setup.patience);
        let result = self.setup.queue.reap(min, patience, |_, slot, status| ended.push((slot, status)));
        result.map_err(|e| self.at(None, &e.to_string()))?;
        while let Some((slot, status)) = self.ended.pop() {
            self.end(slot, status)?;
        }
        Ok(())
    }

    fn end(&mut self, index: usize, status: i32) -> Result<(), Error> {
        let under_way = self.slots.get_mut(index).and_then(|slot| slot.under_way.take());
        let Some(under_way) = under_way else {
            return Err(self.at(None, &format!("the server completed request {index} twice")));
        };
        if status != 0 {
            return Err(self.at(Some(&under_way), &format!("the server returned error {status}")));
        }
        let InFlightRequest { op, generation, .. } = &under_way;
        match op.kind {
            Kind::Read => {
                self.report.reads += 1;
                let compared = self.compare(index, op);
                return compared.map_err(|text| Error::Difference(self.at(Some(&under_way), &text).to_string()));
            }
            Kind::Write { .. } => {
                self.report.writes += 1;
                states(self.setup.area, op).fill(BlockState::exactly(*generation));
            }
            Kind::WriteZeroes { .. } => {
                self.report.write_zeroes += 1;
                states(self.setup.area, op).fill(BlockState::exactly(ZERO));
            }
            // The content stays ambiguous (old data or zeroes) until the next write.
            Kind::Discard => self.report.discards += 1,
            Kind::Flush => self.report.flushes += 1,
        }
        Ok(())
    }

    /// Makes an error that names the request. Its text begins with the seed, which reproduces the run.
    fn at(&self, under_way: Option<&InFlightRequest>, text: &str) -> Error {
        let Setup { seed, index, limits, area, .. } = &self.setup;
        let place = under_way.map_or_else(String::new, |InFlightRequest { op, number, .. }| {
            let start = (area.first + op.first) * limits.block;
            let (len, segments) = (op.blocks * limits.block, op.segments.len());
            format!(" request {number} ({:?} of {len} bytes at {start}, {segments} segments)", op.kind)
        });
        Error::Server(format!("seed={seed} queue {index}{place}: {text}"))
    }

    fn span(&self, index: usize, op: &Op) -> (usize, usize) {
        let base = self.setup.base + index * Limits::SLOT;
        let end = op.segments.iter().map(|&(at, len)| at + len).max().unwrap_or(0);
        // One byte more than the last segment's end: a gap follows each.
        (base, end + 1)
    }

    fn poison(&mut self, index: usize, op: &Op) {
        let (base, len) = self.span(index, op);
        self.scratch.clear();
        self.scratch.resize(len, POISON);
        self.setup.memory.slice(base, len).copy_from(&self.scratch);
    }

    fn fill(&mut self, index: usize, op: &Op, generation: Generation) {
        let (base, _) = self.span(index, op);
        let block = self.setup.limits.block as usize;
        self.scratch.resize((op.blocks as usize) * block, 0);
        for (i, bytes) in self.scratch.chunks_exact_mut(block).enumerate() {
            let number = self.setup.area.first + op.first + i as u64;
            pattern::fill(self.setup.seed, number, generation, bytes);
        }
        let mut rest = &self.scratch[..];
        for &(at, len) in &op.segments {
            let (now, later) = rest.split_at(len);
            self.setup.memory.slice(base + at, len).copy_from(now);
            rest = later;
        }
    }

    fn compare(&mut self, index: usize, op: &Op) -> Result<(), String> {
        let (base, len) = self.span(index, op);
        let mut memory = vec![0u8; len];
        self.setup.memory.slice(base, len).copy_to(&mut memory[..]);
        gather(&mut memory, &op.segments, &mut self.scratch)?;
        let block = self.setup.limits.block as usize;
        let first = self.setup.area.first + op.first;
        let states = &self.setup.area.states[op.first as usize..(op.first + op.blocks) as usize];
        for (i, (bytes, state)) in self.scratch.chunks_exact(block).zip(states).enumerate() {
            pattern::check(self.setup.seed, first + i as u64, *state, bytes)?;
            self.report.compared += if state.is_known() { block as u64 } else { 0 };
        }
        Ok(())
    }
}

/// Collects the segments' bytes in data's order and checks that nothing else of `memory` was written.
fn gather(memory: &mut [u8], segments: &[(usize, usize)], data: &mut Vec<u8>) -> Result<(), String> {
    data.clear();
    for &(at, len) in segments {
        let segment = &mut memory[at..at + len];
        data.extend_from_slice(segment);
        segment.fill(POISON);
    }
    match memory.iter().position(|&byte| byte != POISON) {
        None => Ok(()),
        Some(at) => Err(format!("the server wrote outside the segments, at byte {at} of the request's memory")),
    }
}

fn states<'a>(area: &'a mut Area, op: &Op) -> &'a mut [BlockState] {
    &mut area.states[op.first as usize..(op.first + op.blocks) as usize]
}

fn put(ring: &mut Blkioq, op: &Op, start: u64, len: u64, vector: &[iovec], id: usize) {
    let count = vector.len() as u32;
    match op.kind {
        Kind::Read => ring.readv(start, vector.as_ptr(), count, id, ReqFlags::empty()),
        Kind::Write { fua } => {
            let flags = if fua { ReqFlags::FUA } else { ReqFlags::empty() };
            ring.writev(start, vector.as_ptr(), count, id, flags);
        }
        Kind::WriteZeroes { no_unmap } => {
            let flags = if no_unmap { ReqFlags::NO_UNMAP } else { ReqFlags::empty() };
            ring.write_zeroes(start, len, id, flags);
        }
        Kind::Discard => ring.discard(start, len, id, ReqFlags::empty()),
        Kind::Flush => ring.flush(id, ReqFlags::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_gathered_in_its_order_and_a_byte_beside_it_is_found() {
        let segments = [(7, 3), (1, 2)];
        let mut clean = vec![POISON; 12];
        clean[7..10].copy_from_slice(b"abc");
        clean[1..3].copy_from_slice(b"de");
        let mut data = Vec::new();
        gather(&mut clean.clone(), &segments, &mut data).unwrap();
        assert_eq!(data, b"abcde");
        for at in [0, 3, 6, 10, 11] {
            let mut memory = clean.clone();
            memory[at] = b'x';
            let text = gather(&mut memory, &segments, &mut data).unwrap_err();
            assert!(text.contains(&format!("outside the segments, at byte {at} ")), "{text}");
        }
    }
}
