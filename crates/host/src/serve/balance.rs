// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses a queue to move to another IOThread, by load.
//!
//! Guarantees: at most one move per check. A move takes load off the busiest IOThread that can give some, at least [`WORTH`] of that
//! thread's time. The other IOThread never becomes busier than the busiest one was. So under a steady load the moves come to an end. A
//! queue goes only to IOThreads that its export may use. Needs from callers: checks at equal intervals. Does not do the move itself.

use super::{SourceHandle, ThreadReport};
use blk::time::Duration;
use std::collections::HashMap;

/// Minimum gain of a move, as a share of an IOThread's time.
const WORTH: f64 = 0.1;
/// A thread that is busy for a smaller share of its time is left alone.
const BUSY: f64 = 0.4;

/// A queue or client and its load.
#[derive(Clone, Debug)]
struct Queue {
    /// Indices of the report and of the source in it.
    at: (usize, usize),
    thread: usize,
    /// Share of its thread's time.
    load: f64,
}

/// A worthwhile move.
pub struct Move {
    /// The queue or client to move.
    pub handle: SourceHandle,
    /// Kind of its export.
    pub kind: &'static str,
    /// Name of its export.
    pub export: String,
    /// Its number in the export.
    pub index: u32,
    /// Number of the IOThread that serves it.
    pub from: usize,
    /// Number of the IOThread to move it to.
    pub to: usize,
    /// Busy shares of both IOThreads before the move.
    pub loads: (f64, f64),
}

/// The counters of the last check.
#[derive(Default)]
pub struct Balance {
    /// Busy time and age of IOThreads, by number.
    busy: HashMap<usize, (Duration, Duration)>,
    /// Requests served by sources, by number.
    served: HashMap<u64, u64>,
}

impl Balance {
    /// Returns the queue to move, given the reports of all IOThreads. `may_be` returns, for a kind, export and number, which IOThreads may
    /// serve the queue; `None` = it must stay where it is.
    pub fn look(
        &mut self,
        reports: &[ThreadReport],
        may_be: impl Fn(&str, &str, u32) -> Option<Vec<usize>>,
    ) -> Option<Move> {
        let mut loads: HashMap<usize, f64> = HashMap::new();
        let mut queues = Vec::new();
        let (mut busy, mut served) = (HashMap::new(), HashMap::new());
        for (i, report) in reports.iter().enumerate() {
            let known = self.busy.get(&report.number);
            let (before, was_alive) = known.copied().unwrap_or_default();
            let time = report.alive.as_ns().saturating_sub(was_alive.as_ns()).max(1);
            // A new thread, or another one that got this number, has no load yet.
            let load = report.busy.as_ns().saturating_sub(before.as_ns()) as f64 / time as f64;
            let load = if known.is_some() { load.min(1.0) } else { 0.0 };
            loads.insert(report.number, load);
            busy.insert(report.number, (report.busy, report.alive));
            let done = |s: &super::SourceReport| {
                let last = self.served.get(&s.handle.number()).copied().unwrap_or(s.served);
                s.served.saturating_sub(last)
            };
            let all: u64 = report.sources.iter().map(done).sum();
            for (j, source) in report.sources.iter().enumerate() {
                served.insert(source.handle.number(), source.served);
                let share = done(source) as f64 / all.max(1) as f64;
                if source.can_move && share > 0.0 {
                    queues.push(Queue { at: (i, j), thread: report.number, load: load * share });
                }
            }
        }
        (self.busy, self.served) = (busy, served);
        let of = |q: &Queue| &reports[q.at.0].sources[q.at.1];
        let (queue, to) = choose(&loads, &queues, |q| {
            let s = of(q);
            may_be(s.kind, &s.export, s.index)
        })?;
        let source = of(&queue);
        Some(Move {
            handle: source.handle.clone(),
            kind: source.kind,
            export: source.export.clone(),
            index: source.index,
            from: queue.thread,
            to,
            loads: (loads[&queue.thread], loads[&to]),
        })
    }
}

/// Returns the best move: the one after which the busier of both threads is least busy. Starts with the queues of the busiest thread;
/// tries the next thread only if none of them is worth moving.
fn choose(
    loads: &HashMap<usize, f64>,
    queues: &[Queue],
    may_be: impl Fn(&Queue) -> Option<Vec<usize>>,
) -> Option<(Queue, usize)> {
    let mut from: Vec<(usize, f64)> = loads.iter().map(|(t, l)| (*t, *l)).filter(|(_, l)| *l >= BUSY).collect();
    from.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    from.into_iter().find_map(|(thread, load)| {
        let mut best: Option<(f64, &Queue, usize)> = None;
        for queue in queues.iter().filter(|q| q.thread == thread) {
            let mut places = may_be(queue).unwrap_or_default();
            places.sort_unstable();
            for to in places.into_iter().filter(|to| *to != thread) {
                let Some(there) = loads.get(&to) else { continue };
                let after = (load - queue.load).max(there + queue.load);
                if after <= load - WORTH && best.is_none_or(|(least, ..)| after < least) {
                    best = Some((after, queue, to));
                }
            }
        }
        best.map(|(_, queue, to)| (queue.clone(), to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(of: &[(usize, f64)]) -> Vec<Queue> {
        of.iter().enumerate().map(|(i, (thread, load))| Queue { at: (0, i), thread: *thread, load: *load }).collect()
    }

    fn loads(threads: usize, queues: &[Queue]) -> HashMap<usize, f64> {
        (0..threads).map(|t| (t, queues.iter().filter(|q| q.thread == t).map(|q| q.load).sum())).collect()
    }

    fn chosen(threads: usize, of: &[(usize, f64)], places: &[usize]) -> Option<(usize, usize)> {
        let queues = queues(of);
        choose(&loads(threads, &queues), &queues, |_| Some(places.to_vec())).map(|(q, to)| (q.at.1, to))
    }

    #[test]
    fn two_busy_queues_part_and_one_alone_stays() {
        assert_eq!(chosen(2, &[(0, 0.5), (0, 0.5)], &[0, 1]), Some((0, 1)));
        assert_eq!(
            chosen(2, &[(0, 0.9), (0, 0.05)], &[0, 1]),
            None,
            "the small one is not worth it, the large one no gain"
        );
        assert_eq!(chosen(2, &[(0, 1.0)], &[0, 1]), None);
        assert_eq!(chosen(2, &[(0, 0.15), (0, 0.15)], &[0, 1]), None, "no IOThread is busy");
    }

    #[test]
    fn a_queue_goes_where_it_may_be_and_to_the_idlest_there() {
        let of = [(0, 0.4), (0, 0.4), (1, 0.2), (2, 0.0)];
        assert_eq!(chosen(3, &of, &[0, 1, 2]), Some((0, 2)));
        assert_eq!(chosen(3, &of, &[0, 1]), Some((0, 1)));
        assert_eq!(chosen(3, &of, &[0]), None);
        assert_eq!(chosen(3, &of, &[0, 7]), None, "a thread that is not there");
        let queues = queues(&of);
        assert!(choose(&loads(3, &queues), &queues, |_| None).is_none(), "all were put where they are");
    }

    proptest! {
        /// Under a steady load the moves come to an end, and each takes load off the busiest thread that can give some.
        #[test]
        fn a_steady_load_comes_to_rest(of in prop::collection::vec((0usize..4, 0.0f64..0.4), 1..12)) {
            let mut queues = queues(&of);
            for step in 0.. {
                let before = loads(4, &queues);
                let Some((moved, to)) = choose(&before, &queues, |_| Some(vec![0, 1, 2, 3])) else { break };
                prop_assert!(step < 64, "it never ends: {queues:?}");
                let from = moved.thread;
                queues[moved.at.1].thread = to;
                let after = loads(4, &queues);
                prop_assert!(after[&from].max(after[&to]) < before[&from] - WORTH + 1e-9);
            }
            // In the end the load is balanced, as far as whole queues allow.
            let end = loads(4, &queues);
            let (most, least) = end.iter().fold((0.0f64, f64::MAX), |(m, l), (_, x)| (m.max(*x), l.min(*x)));
            prop_assert!(most < BUSY || most - least < 0.4 + 2.0 * WORTH, "{end:?}");
        }
    }
}
