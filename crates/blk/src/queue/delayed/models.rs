// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving of threads that arm runs of two hardware queues and serve them.

use super::*;
use loom::sync::Arc;
use loom::thread;

struct Disk {
    first: FirstDue,
    hctxs: [DueTime; 2],
    /// The work that was left for the run of each hctx.
    work: [AtomicU64; 2],
    runs: [AtomicU64; 2],
}

fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

impl Disk {
    fn arm(&self, hctx: usize, ns: u64) {
        self.work[hctx].store(1, Ordering::Relaxed);
        self.hctxs[hctx].arm(&self.first, at(ns));
    }

    /// As `Env::serve_pending`.
    fn serve(&self, now: u64) {
        self.first.begin(at(now));
        let mut left = None;
        for (i, due) in self.hctxs.iter().enumerate() {
            if due.take(at(now)) {
                // Catches: a run that does not see its work.
                assert_eq!(self.work[i].load(Ordering::Relaxed), 1);
                self.runs[i].fetch_add(1, Ordering::Relaxed);
            }
            left = left.into_iter().chain(due.get()).min();
        }
        if let Some(at) = left {
            self.first.put_back(at);
        }
    }
}

fn explore(preemptions: usize, sides: [fn(&Disk); 3]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(move || {
        let new = || [AtomicU64::new(0), AtomicU64::new(0)];
        let disk = Arc::new(Disk {
            first: FirstDue::new(),
            hctxs: [DueTime::new(), DueTime::new()],
            work: new(),
            runs: new(),
        });
        let threads = sides.map(|side| {
            let disk = disk.clone();
            thread::spawn(move || side(&disk))
        });
        for t in threads {
            t.join().unwrap();
        }
        // Catches: a due time that no thread is notified of.
        let first = disk.hctxs.iter().filter_map(DueTime::get).min();
        assert!(first.is_none_or(|due| disk.first.get().is_some_and(|told| told <= due)));
        // Catches: a run that is made twice, or is neither made nor scheduled.
        for (due, runs) in disk.hctxs.iter().zip(&disk.runs) {
            assert_eq!(runs.load(Ordering::Relaxed) + u64::from(due.get().is_some()), 1);
        }
    });
}

#[test]
fn a_run_is_made_once_or_its_time_is_told() {
    explore(3, [|d| d.arm(0, 10), |d| d.arm(1, 30), |d| d.serve(20)]);
}

#[test]
fn two_serving_threads_lose_no_due_time() {
    explore(
        2,
        [
            |d| {
                d.arm(0, 10);
                d.arm(1, 30);
            },
            |d| d.serve(20),
            |d| d.serve(40),
        ],
    );
}
