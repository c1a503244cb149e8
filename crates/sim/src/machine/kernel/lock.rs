// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock of the kernel in virtual time. It guards no data; it only accounts for time.
//!
//! Each hold is known when it begins, so a record of busy times decides which CPU waits: a CPU that asks earlier gets the lock
//! before a hold that was recorded first and begins later.
//!
//! The machine runs a piece of work of a CPU as a whole. So a CPU seems to take a lock several times in a row, where on a real
//! machine other CPUs take it in between. Two rules make up for that:
//!
//! - A hold is spread over the time that recorded holds left free, so no time is lost while a CPU waits.
//! - A CPU that takes the lock again pays for its lines with the probability that another CPU had it meanwhile. The recent
//!   holds give the probability.
//!
//! The length of a hold varies evenly between none and twice its mean. With constant lengths, CPUs that use several locks in
//! the same order would never meet.

use super::sites::LockSite;
use crate::machine::meter;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Number of holds by which the rate of other CPUs is estimated.
const RECENT: usize = 64;

/// Probability 1.
const PPM: u64 = 1_000_000;

#[derive(Clone, Copy)]
struct Hold {
    from: u64,
    to: u64,
    cpu: u32,
    waited: u64,
}

#[derive(Default)]
struct Holds {
    /// When the lock is held, in the order of time; holds without a gap between them are one. Only times at which a CPU may
    /// still ask are kept.
    busy: VecDeque<(u64, u64)>,
    /// The last holds, in the order in which they were recorded.
    recent: VecDeque<Hold>,
    /// State of the random numbers (Knuth's MMIX generator).
    random: u64,
}

impl Holds {
    /// Returns the time to fetch one line for a CPU that asks at `asked`.
    fn line_ns(&self, cpu: u32, asked: u64) -> u64 {
        let Some(last) = self.recent.back() else { return 0 };
        if last.cpu != cpu {
            return meter::line_ns(last.cpu, cpu);
        }
        let (mut first, mut end, mut own, mut waited, mut others, mut other) = (u64::MAX, 0, 0, 0, 0, None);
        for h in &self.recent {
            (first, end) = (first.min(h.from), end.max(h.to));
            waited += h.waited;
            if h.cpu == cpu {
                own += h.to - h.from;
            } else {
                others += 1;
                other = Some(h.cpu);
            }
        }
        let Some(other) = other else { return 0 };
        let span = (end - first).max(1);
        // By Little's law, the mean number of CPUs that wait: if it is below 1, about the probability that one waits.
        let waits = (PPM * waited / span).min(PPM);
        let came = (PPM * others * asked.saturating_sub(last.from) / span.saturating_sub(own).max(1)).min(PPM);
        let likely = PPM - (PPM - waits) * (PPM - came) / PPM;
        meter::line_ns(other, cpu) * likely / PPM
    }

    /// Takes the next `length` nanoseconds from `asked` on in which the lock is free. Returns when they begin and end.
    ///
    /// A CPU's later holds were recorded before another CPU's earlier ones, so a hold is spread over what they left free. No
    /// time is lost in which a CPU waits for the lock and nothing holds it.
    fn fill(&mut self, asked: u64, length: u64) -> (u64, u64) {
        let first = self.busy.partition_point(|(_, to)| *to < asked);
        let (mut begin, mut at, mut left, mut next) = (None, asked, length, first);
        while let Some(&(from, to)) = self.busy.get(next)
            && at + left >= from
        {
            if at < from {
                begin.get_or_insert(at);
                left -= from - at;
            }
            at = at.max(to);
            next += 1;
        }
        let (begin, end) = (begin.unwrap_or(at), at + left);
        let start = self.busy.get(first).filter(|_| next > first).map_or(asked, |(from, _)| asked.min(*from));
        self.busy.drain(first..next);
        self.busy.insert(first, (start, end));
        (begin, end)
    }

    /// Draws a length between 0 and twice the mean.
    fn vary(&mut self, mean: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (mean * 2 * (self.random >> 48)) >> 16
    }

    fn record(&mut self, hold: Hold) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(hold);
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct KernelLock(Mutex<Holds>);

impl KernelLock {
    /// The running CPU waits for the lock, holds it as the site says, and releases it.
    pub fn take(&self, site: &LockSite) {
        self.take_with(site, (0, 0), 0);
    }

    /// As [`KernelLock::take`], in a hold that `n` more requests prolong, each by a time and by lines.
    pub fn take_with(&self, site: &LockSite, (hold_ns, lines): (u32, u32), n: u64) {
        self.take_scaled(
            u64::from(site.hold_ns) + u64::from(hold_ns) * n,
            u64::from(site.lines) + u64::from(lines) * n,
        );
    }

    fn take_scaled(&self, hold_ns: u64, lines: u64) {
        let Some((cpu, asked, begun)) = meter::ask_for_lock() else { return };
        let mut holds = self.0.lock();
        while holds.busy.front().is_some_and(|(_, to)| *to <= begun) {
            holds.busy.pop_front();
        }
        let (one, costs) = (holds.line_ns(cpu, asked), meter::kernel_costs());
        let mean = (hold_ns * u64::from(costs.hold_pct) + one * lines * u64::from(costs.lines_pct)) / 100;
        let length = holds.vary(mean);
        let (from, to) = holds.fill(asked, length);
        holds.record(Hold { from, to, cpu, waited: to - length - asked });
        meter::held(asked, to - length, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::costs::{KernelCosts, LineCosts, Shape};
    use crate::machine::meter::{charge, run};

    fn configure() {
        let line =
            LineCosts { atomic_ns: 1, core_ns: 10, socket_ns: 100, remote_ns: 1000, lines: 2, ..LineCosts::default() };
        meter::configure(Shape { sockets: 2, cores: 2, threads: 1 }, line, KernelCosts::default());
    }

    #[test]
    fn a_contended_lock_is_never_idle_nor_held_twice() {
        configure();
        let lock = KernelLock::default();
        let mut clocks = [0u64; 4];
        let (mut held, rounds) = (0, 4000);
        for _ in 0..rounds {
            let cpu = (0..4).min_by_key(|c| clocks[*c as usize]).expect("four CPUs");
            let spent = run(cpu, clocks[cpu as usize], 0, || {
                for _ in 0..5 {
                    lock.take_scaled(1_000, 0);
                    charge(20);
                }
            });
            held += spent.end_ns - clocks[cpu as usize] - spent.spun_ns - 5 * 21;
            clocks[cpu as usize] = spent.end_ns;
        }
        let last = clocks.iter().max().expect("four");
        assert!(held <= *last && *last - held < last / 50, "held {held} of {last} ns");
    }

    #[test]
    fn lines_move_with_every_hold_only_if_others_use_the_lock() {
        configure();
        let alone = KernelLock::default();
        let cost = |lock: &KernelLock, cpu, at| {
            let spent = run(cpu, at, 0, || (0..100).for_each(|_| lock.take_scaled(0, 1)));
            spent.end_ns - at - spent.spun_ns - 100
        };
        assert_eq!(cost(&alone, 0, 0), 0);
        // Two CPUs of one socket that keep the lock busy: each hold fetches the line, 100 ns on average.
        let shared = KernelLock::default();
        let mut ends = [0u64; 2];
        let mut moved = 0;
        for round in 0..200 {
            let cpu = round % 2;
            let at = ends[cpu as usize];
            let spent = run(cpu, at, 0, || (0..5).for_each(|_| shared.take_scaled(0, 1)));
            moved += spent.end_ns - at - spent.spun_ns - 5;
            ends[cpu as usize] = spent.end_ns;
        }
        let mean = moved / 1000;
        assert!((80..=105).contains(&mean), "{mean} ns a hold");
    }
}
