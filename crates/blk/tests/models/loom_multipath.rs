// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores the removal of a path while a request chooses it: the path gets the request before it is gone, or not at all.

use crate::model;

use blk::bio::{Bio, DataRef};
use blk::driver::{Completions, Driver, RqBatch};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{Features, Multipath, NewGroup, NewPath, PathArgs, Selector};
use blk::queue::{NoNotify, RequestQueue};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use model::explore::{explore, spawn};
use model::{Lock, config};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A driver that completes requests at once.
#[derive(Default)]
struct Path {
    /// Hidden from the checker, because as a tracked atomic it would order memory.
    gone: AtomicBool,
    /// It fails all requests.
    fails: bool,
}

impl Driver for Path {
    fn name(&self) -> &'static str {
        "path"
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 20)
    }

    fn start(&self, _nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        assert!(!self.gone.load(Ordering::SeqCst), "a path that has gone was given a request");
        let status = if self.fails { BlkStatus::Transport } else { BlkStatus::Ok };
        (0..batch.remaining()).for_each(|_| batch.end(status));
        QueueRqStatus::Queued
    }

    fn poll(&self, _hctx: HctxId, _done: &mut Completions, _now: Instant) {}
}

fn path_goes() {
    let paths: Vec<Arc<Path>> = (0..2).map(|_| Arc::default()).collect();
    let new =
        |(n, p): (usize, &Arc<Path>)| NewPath { name: n.to_string(), driver: p.clone(), args: PathArgs::default() };
    let groups = vec![NewGroup { selector: Selector::QueueLength, paths: paths.iter().enumerate().map(new).collect() }];
    let mp = Arc::new(Multipath::<Lock>::new(groups, Features::default(), None, &[], Box::new(|_| {})).unwrap());
    let q = RequestQueue::<Lock>::new(mp.clone(), config(1, 1, 1, "none"), Box::new(NoNotify)).unwrap();
    let mut sub = q.submitter(CpuId::new(0)).unwrap();
    let read = |n: u64| Bio::read(Sector(n), 8, DataRef::new(0, 0));
    // The group is chosen, and path 1 is next before path 0.
    sub.submit(&read(0), Instant::ZERO).unwrap();
    sub.reap(|_| {});
    let first = mp.path("1").unwrap();
    let goes = paths[1].clone();
    let (removed, disk) = (mp.clone(), mp);
    let remover = spawn(move || {
        if removed.remove_path(first, Instant::ZERO).unwrap() || removed.has_gone(first) {
            goes.gone.store(true, Ordering::SeqCst);
        }
    });
    sub.submit(&read(8), Instant::ZERO).unwrap();
    let mut ended = 0;
    sub.reap(|d| ended += u32::from(d.status.is_ok()));
    assert_eq!(ended, 1);
    remover.join().unwrap();
    assert!(disk.has_gone(first), "nothing of it is in flight");
}

#[test]
fn a_path_that_goes_is_given_nothing_more() {
    explore(path_goes);
}

/// A path that fails a request is removed, and another path gets its number.
fn number_has_a_successor() {
    let path = |n: &str, fails: bool| NewPath {
        name: n.into(),
        driver: Arc::new(Path { fails, ..Path::default() }),
        args: PathArgs::default(),
    };
    let groups =
        vec![NewGroup { selector: Selector::QueueLength, paths: vec![path("good", false), path("bad", true)] }];
    let mp = Arc::new(Multipath::<Lock>::new(groups, Features::default(), None, &[], Box::new(|_| {})).unwrap());
    let q = RequestQueue::<Lock>::new(mp.clone(), config(1, 1, 1, "none"), Box::new(NoNotify)).unwrap();
    let mut sub = q.submitter(CpuId::new(0)).unwrap();
    // The group is chosen, and the bad path is next before the good one.
    sub.submit(&Bio::read(Sector(0), 8, DataRef::new(0, 0)), Instant::ZERO).unwrap();
    sub.reap(|_| {});
    let bad = mp.path("bad").unwrap();
    let disk = mp.clone();
    let changer = spawn(move || {
        // If the path is not gone by now, there is nothing to check.
        (disk.remove_path(bad, Instant::ZERO).unwrap() || disk.has_gone(bad))
            .then(|| disk.add_path(0, path("next", false)).unwrap())
    });
    sub.submit(&Bio::read(Sector(8), 8, DataRef::new(0, 0)), Instant::ZERO).unwrap();
    sub.poll(Instant::ZERO);
    let mut ended = 0;
    sub.reap(|d| ended += u32::from(d.status.is_ok()));
    assert_eq!(ended, 1);
    if let Some(next) = changer.join().unwrap() {
        assert_eq!(next, bad, "the number is free");
        let status = mp.status();
        let next = status.groups[0].paths.iter().find(|p| p.id == next).unwrap();
        assert!(next.is_active && next.fail_count == 0, "it is blamed for what another did: {next:?}");
    }
}

#[test]
fn the_successor_of_a_path_is_not_failed_for_it() {
    explore(number_has_a_successor);
}
