// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detects bursts. Many queues that start shortly after each other, as those of a parallel job or a server, are not
//! interactive.
//!
//! A burst begins when a new queue starts while no other has requests; every further new queue that starts within
//! [`INTERVAL`] of the one before belongs to it. With [`LARGE_BURST`] queues the burst is large, and its queues, also those
//! that join later, are not raised. Source: `bfq_handle_burst`.

use crate::time::{Duration, Instant};

/// Longest time between two starts of a burst.
const INTERVAL: Duration = Duration::from_ms(180);
/// Queues that make a burst large.
pub const LARGE_BURST: u32 = 8;

/// The present burst.
#[derive(Default)]
pub(crate) struct Burst {
    last: Instant,
    members: Vec<u32>,
    large: bool,
}

impl Burst {
    /// Room for a burst's members, so that starts need not allocate.
    pub(crate) fn new() -> Burst {
        Burst { last: Instant::ZERO, members: Vec::with_capacity(LARGE_BURST as usize), large: false }
    }

    /// A new queue starts while `nr_busy` others have requests. `in_large` is called with every queue that is now known
    /// to be part of a large burst.
    pub(crate) fn started(&mut self, id: u32, nr_busy: u32, now: Instant, mut in_large: impl FnMut(u32)) {
        let continues = (self.large || !self.members.is_empty()) && now.since(self.last) <= INTERVAL;
        if !continues {
            self.members.clear();
            self.large = false;
            if nr_busy > 0 {
                return;
            }
        }
        self.last = now;
        if self.large {
            return in_large(id);
        }
        self.members.push(id);
        if self.members.len() as u32 == LARGE_BURST {
            self.large = true;
            self.members.drain(..).for_each(in_large);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of `starts` (ms, busy queues) end up in a large burst.
    fn large(starts: &[(u64, u32)]) -> Vec<usize> {
        let mut burst = Burst::new();
        let mut large = Vec::new();
        for (i, (at, nr_busy)) in starts.iter().enumerate() {
            burst.started(i as u32, *nr_busy, Instant::from_ns(at * 1_000_000), |id| large.push(id as usize));
        }
        large
    }

    #[test]
    fn eight_starts_in_a_row_are_a_large_burst() {
        let starts: Vec<_> = (0..10).map(|i| (1000 + i * 180, i as u32)).collect();
        assert_eq!(large(&starts[..7]), []);
        assert_eq!(large(&starts), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_pause_ends_it() {
        let mut starts: Vec<_> = (0..7).map(|i| (1000 + i, i as u32)).collect();
        starts.push((1006 + 181, 0));
        assert_eq!(large(&starts), [], "the eighth came too late");
        starts.extend((0..7).map(|i| (1200 + i, 1)));
        assert_eq!(large(&starts), (7..15).collect::<Vec<_>>());
        starts.push((1500, 3));
        assert_eq!(large(&starts).len(), 8);
    }

    #[test]
    fn it_begins_on_a_quiet_disk_only() {
        let starts: Vec<_> = (0..20).map(|i| (1000 + i, 1)).collect();
        assert_eq!(large(&starts), []);
    }
}
