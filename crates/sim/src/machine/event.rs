// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens next: events in the order of their times, and of their making where the times are the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A CPU is done with what it did.
    Free {
        /// Which.
        cpu: u32,
    },
    /// A device has something for a hardware queue.
    Interrupt {
        /// The disk.
        disk: u16,
        /// Its hardware queue.
        hctx: u16,
    },
    /// A thread may go on.
    Ready {
        /// Which.
        task: u32,
        /// Its sleep, so that what was meant for an earlier one does not end a later one.
        sleep: u32,
    },
    /// A thread has computed what it had to.
    Computed {
        /// Which CPU.
        cpu: u32,
        /// Which of its computations.
        turn: u32,
    },
    /// The block layer wants to look at a disk.
    Timer {
        /// Which.
        disk: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

/// The queue of them.
#[derive(Debug, Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    pushed: u64,
}

impl Events {
    /// `event` happens at `at`.
    #[inline]
    pub fn push(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse(Entry { at, number: self.pushed, event }));
    }

    /// The next one.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(e)| (e.at, e.event))
    }

    /// When it is.
    #[inline]
    pub fn next_at(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |Reverse(e)| e.at)
    }

    /// How many there have been.
    pub fn pushed(&self) -> u64 {
        self.pushed
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
}
