// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several paths to one simulated disk, and the multipath disk over them.
//!
//! Guarantees: paths share the disk's contents, limits and tags, so data written by one path is visible to the others. A path
//! breaks, slows down and recovers only when the test says so; the seed decides what a broken path does with each request.
//!
//! A path that is down refuses a request, fails it with `Transport`, at once or later, or does not answer until its timeout.
//! When a path breaks, each of its requests at the disk is lost or fails. Such a request may have taken effect before, but
//! does not take effect later: [`blk::multipath`] requires that of a path's driver.

mod path;

use crate::Lock;
use crate::disk::SimDisk;
use crate::rng::Rng;
use crate::trace::{Trace, clock};
use blk::id::HctxId;
use blk::multipath::{Features, Multipath, NewGroup, NewPath, PathArgs, PathEvent, PathId, Selector};
use blk::status::BlkStatus;
use path::Shared;
pub use path::SimPath;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's text.
pub struct Paths {
    /// The multipath disk over the paths.
    pub mp: Arc<Multipath<Lock>>,
    all: Vec<Arc<SimPath>>,
    /// [`PathEvent::RunQueue`] was reported.
    run: Arc<AtomicBool>,
    disk: Arc<SimDisk>,
    shared: Arc<Shared>,
}

impl Paths {
    /// Makes groups with so many paths each. `error` is the status that a path returns while it is down. It is
    /// [`BlkStatus::Transport`] unless a bug is planted.
    pub fn new(
        seed: u64,
        disk: &Arc<SimDisk>,
        groups: &[(Selector, usize)],
        features: Features,
        error: BlkStatus,
    ) -> Arc<Paths> {
        let shared = Arc::new(Shared::default());
        let n: usize = groups.iter().map(|(_, n)| n).sum();
        let make = |n: usize| {
            let rng = Rng::new(seed ^ 0xba7 ^ (n as u64) << 32);
            Arc::new(SimPath::new(n, disk.clone(), shared.clone(), rng, error))
        };
        let all: Vec<_> = (0..n).map(make).collect();
        let mut left = all.iter();
        let groups = groups.iter().map(|(selector, n)| NewGroup {
            selector: *selector,
            paths: left.by_ref().take(*n).map(new_path).collect(),
        });
        let run = Arc::new(AtomicBool::new(false));
        let told = run.clone();
        let listener = Box::new(move |event| {
            if event == PathEvent::RunQueue {
                told.store(true, Ordering::Relaxed);
            }
        });
        let mp = Multipath::new(groups.collect(), features, None, &[], listener);
        let mp = Arc::new(mp.unwrap_or_else(|e| panic!("seed {seed}: {e}")));
        Arc::new(Paths { mp, all, run, disk: disk.clone(), shared })
    }

    /// Number of paths, including removed ones.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of path `n` on the multipath disk, if the path is not removed.
    pub fn id(&self, n: usize) -> Option<PathId> {
        self.mp.path(&name(n))
    }

    /// Takes path `n` down until `until`.
    pub fn take_down(&self, n: usize, now: u64, until: u64) {
        self.all[n].take_down(until);
        self.disk.sever(now, |issue| self.shared.owner(issue.hctx, issue.tag) == Some(n));
    }

    /// Each request by path `n` takes `ns` longer from now on.
    pub fn slow_down(&self, n: usize, ns: u64) {
        self.all[n].slow_down(ns);
    }

    /// Path `n` refuses so many of a thousand requests from now on.
    pub fn make_busy(&self, n: usize, per_mille: u32) {
        self.all[n].make_busy(per_mille);
    }

    /// Ends all faults of path `n`.
    pub fn repair(&self, n: usize) {
        self.all[n].repair();
    }

    /// Whether path `n` is down, as a path checker would find.
    pub fn is_down(&self, n: usize, now: u64) -> bool {
        self.all[n].is_down(now)
    }

    /// Adds path `n`, which was removed, to a group.
    pub fn add(&self, n: usize, group: usize) {
        self.shared.set_adding(true);
        let added = self.mp.add_path(group, new_path(&self.all[n]));
        self.shared.set_adding(false);
        added.unwrap_or_else(|e| panic!("{e}"));
    }

    /// Whether the queue of the multipath disk has to be run; resets the flag.
    pub(crate) fn take_run(&self) -> bool {
        self.run.swap(false, Ordering::Relaxed)
    }

    /// Whether polling this hctx at `now` would find completions beyond those of the disk below.
    pub(crate) fn is_ready(&self, hctx: HctxId, now: u64) -> bool {
        self.mp.is_ready(hctx) || self.all.iter().any(|p| p.is_ready(hctx, now))
    }

    /// Returns when the first of the requests that paths hold completes.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.all.iter().filter_map(|p| p.next_due()).min()
    }

    /// Writes path events to `trace` from now on.
    pub fn trace_to(&self, trace: &Trace) {
        self.shared.trace_to(trace);
    }

    /// Asserts that no path has a request.
    pub fn check_idle(&self) {
        let status = self.mp.status();
        let busy = status.groups.iter().flat_map(|g| &g.paths).find(|p| p.in_flight > 0);
        assert!(busy.is_none(), "idle, and requests are at a path: {busy:?}");
        assert!(self.shared.is_empty(), "idle, and requests are at the disk by a path");
        assert_eq!(self.all.iter().map(|p| p.kept()).sum::<usize>(), 0, "idle, and a path keeps requests");
    }

    /// Describes the paths, for a failure.
    pub fn describe(&self, now: u64) -> String {
        let mut text = format!("  multipath: {}\n", self.mp.status());
        for (n, path) in self.all.iter().enumerate() {
            let down = if path.is_down(now) { ", down" } else { "" };
            let due = path.next_due().map_or(String::new(), |t| format!(", next end at {}", clock(t)));
            let _ = writeln!(text, "    path {n}: {} requests of its own{down}{due}", path.kept());
        }
        text
    }
}

fn name(n: usize) -> String {
    format!("path{n}")
}

fn new_path(path: &Arc<SimPath>) -> NewPath {
    NewPath { name: name(path.number()), driver: path.clone(), args: PathArgs::default() }
}
