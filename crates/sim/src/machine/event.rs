// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event queue: events in the order of their times, and in the order of creation where the times are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A CPU has finished its work.
    Free {
        /// The CPU.
        cpu: u32,
    },
    /// A device has completions for a hardware queue.
    Interrupt {
        /// The disk.
        disk: u16,
        /// Its hardware queue.
        hctx: u16,
    },
    /// A thread may continue.
    Ready {
        /// The thread.
        task: u32,
        /// Number of its sleep, so that a wake-up for an earlier sleep does not end a later one.
        sleep: u32,
    },
    /// A thread has completed a computation.
    Computed {
        /// The CPU.
        cpu: u32,
        /// Number of the computation on that CPU.
        turn: u32,
    },
    /// A timer of the block layer is due.
    Timer {
        /// The disk.
        disk: u16,
    },
}

/// An event that is too far ahead for the wheel, or earlier than its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

/// An event in a list of the wheel.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: u64,
    event: Event,
    /// The node made after this one; the last node of a list points to the first.
    next: u32,
}

/// Slots of the current block, one for each nanosecond; a power of two.
const FINE: u64 = 1024;
/// Blocks from the current one on, one slot each; a power of two.
const BLOCKS: u64 = 256;
/// No event.
const NONE: u32 = u32::MAX;
/// No event is pending.
const NEVER: u64 = u64::MAX;

/// Slots with a list each, and a bit for each slot that is not empty.
#[derive(Debug)]
struct Slots<const WORDS: usize> {
    /// The last node of each list.
    last: Vec<u32>,
    bits: [u64; WORDS],
}

impl<const WORDS: usize> Slots<WORDS> {
    fn new() -> Self {
        Slots { last: vec![NONE; WORDS * 64], bits: [0; WORDS] }
    }

    #[inline]
    fn push(&mut self, nodes: &mut [Node], slot: usize, node: u32) {
        let last = std::mem::replace(&mut self.last[slot], node);
        let first = if last == NONE { node } else { std::mem::replace(&mut nodes[last as usize].next, node) };
        nodes[node as usize].next = first;
        self.bits[slot / 64] |= 1 << (slot % 64);
    }

    /// Takes the first node of a slot that is not empty.
    #[inline]
    fn pop(&mut self, nodes: &mut [Node], slot: usize) -> u32 {
        let last = self.last[slot];
        let first = nodes[last as usize].next;
        if first == last {
            self.last[slot] = NONE;
            self.bits[slot / 64] &= !(1 << (slot % 64));
        } else {
            nodes[last as usize].next = nodes[first as usize].next;
        }
        first
    }

    #[inline]
    fn is_empty(&self, slot: usize) -> bool {
        self.last[slot] == NONE
    }

    /// The first slot from `slot` on that is not empty, without wrapping round.
    #[inline]
    fn first_from(&self, slot: usize) -> Option<usize> {
        let rest = self.bits.get(slot / 64)? & (u64::MAX << (slot % 64));
        if rest != 0 {
            return Some(slot / 64 * 64 + rest.trailing_zeros() as usize);
        }
        let words = &self.bits[slot / 64 + 1..];
        let (i, word) = words.iter().enumerate().find(|(_, w)| **w != 0)?;
        Some((slot / 64 + 1 + i) * 64 + word.trailing_zeros() as usize)
    }
}

/// The queue of events: a wheel of lists, and a heap for events that are further off. The wheel has a slot for each
/// nanosecond of the current block of time, and a slot for each block that follows. Events of a slot are in the order of
/// creation: earlier ones move into the slot from further off before a new one is put there directly.
#[derive(Debug)]
pub struct Events {
    nodes: Vec<Node>,
    /// First node that is not in use.
    free: u32,
    fine: Slots<{ FINE as usize / 64 }>,
    blocks: Slots<{ BLOCKS as usize / 64 }>,
    far: BinaryHeap<Reverse<Entry>>,
    /// Events before `now`, because some are announced late.
    late: BinaryHeap<Reverse<Entry>>,
    /// Time of the latest event that was handed out: the wheel has none before it.
    now: u64,
    next_at: u64,
    pushed: u64,
    popped: u64,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            nodes: Vec::new(),
            free: NONE,
            fine: Slots::new(),
            blocks: Slots::new(),
            far: BinaryHeap::new(),
            late: BinaryHeap::new(),
            now: 0,
            next_at: NEVER,
            pushed: 0,
            popped: 0,
        }
    }
}

impl Events {
    /// Schedules `event` for `at`.
    #[inline]
    pub fn push(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.next_at = self.next_at.min(at);
        if at < self.now || at / FINE >= self.now / FINE + BLOCKS {
            let entry = Reverse(Entry { at, number: self.pushed, event });
            return if at < self.now { self.late.push(entry) } else { self.far.push(entry) };
        }
        let node = self.new_node(at, event);
        self.put(node, at);
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        if self.popped == self.pushed {
            return None;
        }
        self.popped += 1;
        let at = self.next_at;
        if at < self.now {
            let Reverse(e) = self.late.pop().expect("only what is late is before now");
            self.next_at = self.late.peek().map_or_else(|| self.first_of_wheel(), |Reverse(e)| e.at);
            return Some((e.at, e.event));
        }
        if at / FINE != self.now / FINE {
            self.enter_block(at);
        }
        self.now = at;
        let slot = (at % FINE) as usize;
        let node = self.fine.pop(&mut self.nodes, slot);
        let event = self.nodes[node as usize].event;
        self.nodes[node as usize].next = std::mem::replace(&mut self.free, node);
        if self.fine.is_empty(slot) {
            self.next_at = self.first_of_wheel();
        }
        Some((at, event))
    }

    /// Time of the next event; `u64::MAX` if there is none.
    #[inline]
    pub fn next_at(&self) -> u64 {
        self.next_at
    }

    /// How many events have been scheduled.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    #[inline]
    fn new_node(&mut self, at: u64, event: Event) -> u32 {
        let node = Node { at, event, next: NONE };
        if self.free == NONE {
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        let index = self.free;
        self.free = std::mem::replace(&mut self.nodes[index as usize], node).next;
        index
    }

    /// Puts a node into its slot, in the current block or a later one.
    #[inline]
    fn put(&mut self, node: u32, at: u64) {
        if at / FINE == self.now / FINE {
            self.fine.push(&mut self.nodes, (at % FINE) as usize, node);
        } else {
            self.blocks.push(&mut self.nodes, (at / FINE % BLOCKS) as usize, node);
        }
    }

    /// Time of the first event of the wheel from `now` on, or else of the heap.
    #[inline]
    fn first_of_wheel(&self) -> u64 {
        match self.fine.first_from((self.now % FINE) as usize) {
            Some(slot) => self.now / FINE * FINE + slot as u64,
            None => self.first_of_blocks(),
        }
    }

    /// The same when nothing is left in the current block.
    fn first_of_blocks(&self) -> u64 {
        let after = (self.now / FINE % BLOCKS) as usize + 1;
        let Some(slot) = self.blocks.first_from(after).or_else(|| self.blocks.first_from(0)) else {
            return self.far.peek().map_or(NEVER, |Reverse(e)| e.at);
        };
        let last = self.blocks.last[slot];
        let (mut node, mut first) = (last, NEVER);
        loop {
            let n = &self.nodes[node as usize];
            first = first.min(n.at);
            node = n.next;
            if node == last {
                return first;
            }
        }
    }

    /// Makes the block of `at` the current one; nothing is pending before it. Its events move to their slots, and events
    /// that are no longer far off move to their blocks.
    fn enter_block(&mut self, at: u64) {
        self.now = at / FINE * FINE;
        let block = (at / FINE % BLOCKS) as usize;
        while !self.blocks.is_empty(block) {
            let node = self.blocks.pop(&mut self.nodes, block);
            self.put(node, self.nodes[node as usize].at);
        }
        while let Some(Reverse(e)) = self.far.peek().copied().filter(|Reverse(e)| e.at / FINE < at / FINE + BLOCKS) {
            self.far.pop();
            let node = self.new_node(e.at, e.event);
            self.put(node, e.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_time_then_of_making() {
        let mut q = Events::default();
        for (at, cpu) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            q.push(at, Event::Free { cpu });
        }
        let order: Vec<_> = std::iter::from_fn(|| q.pop()).collect();
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)].map(|(at, cpu)| (at, Event::Free { cpu })));
        assert_eq!(q.next_at(), u64::MAX);
    }

    /// Compares the wheel with a heap of times and numbers: near and far events, equal times, ends of blocks, times in the
    /// past, pauses.
    #[test]
    fn the_order_is_that_of_a_heap_of_times_and_numbers() {
        let mut rng = crate::rng::Rng::new(7);
        let spans = [1, 3, 700, FINE, 3 * FINE, BLOCKS * FINE - 1, BLOCKS * FINE, 3 * BLOCKS * FINE];
        let (mut q, mut heap, mut now, mut number, mut late) = (Events::default(), BinaryHeap::new(), 5_000, 0, 0);
        for round in 0..40_000 {
            // The queue grows and drains alternately.
            let pushes = if round / 100 % 2 == 0 { rng.below(4) } else { rng.below(2) };
            for _ in 0..pushes {
                let span = rng.pick(&spans);
                let at = match rng.below(20) {
                    0 => now - rng.below(2_000),
                    1 => (now / FINE + 1) * FINE - rng.below(2),
                    2 => (now / FINE + BLOCKS) * FINE - rng.below(2),
                    _ => now + rng.below(span),
                };
                number += 1;
                late += u64::from(at < now);
                q.push(at, Event::Computed { cpu: number, turn: round });
                heap.push(Reverse((at, number, round)));
            }
            assert_eq!(q.next_at(), heap.peek().map_or(u64::MAX, |Reverse((at, ..))| *at));
            let expected = heap.pop().map(|Reverse((at, cpu, turn))| (at, Event::Computed { cpu, turn }));
            let got = q.pop();
            assert_eq!(got, expected, "round {round}");
            now = got.map_or(now, |(at, _)| now.max(at));
        }
        assert!(late > 500 && heap.is_empty() == q.pop().is_none());
        assert_eq!(q.pushed(), u64::from(number));
        q.push(u64::MAX, Event::Timer { disk: 1 });
        assert_eq!(std::iter::from_fn(|| q.pop()).last(), Some((u64::MAX, Event::Timer { disk: 1 })));
        assert_eq!(q.pop(), None);
    }
}
