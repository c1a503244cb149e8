// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exploration of a small disk by loom: all schedules with up to two preemptions; `LOOM_MAX_PREEMPTIONS` overrides the
//! bound.

use super::Thread;
use loom::thread::{Builder, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PREEMPTIONS: usize = 2;

/// In words. Half of what a Linux thread has by default; the 32 KiB of loom's own threads are too small for a block layer built without
/// full optimisation.
const STACK: usize = 1 << 19;

/// Starts a thread of a model with a large stack.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().stack_size(STACK).spawn(body).expect("loom starts it")
}

/// Runs `model` under every schedule, and prints how many there were.
pub fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 50_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    let schedules = Arc::new(AtomicU64::new(0));
    let (counted, model) = (schedules.clone(), Arc::new(model));
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        let model = model.clone();
        spawn(move || model()).join().unwrap();
    });
    println!("{} schedules", schedules.load(Relaxed));
}

/// Two threads that do the same `work`.
pub fn in_parallel(mut a: Thread, mut b: Thread, work: fn(&mut Thread)) {
    let other = spawn(move || work(&mut b));
    work(&mut a);
    other.join().unwrap();
}

/// Submits one bio and polls until it completes.
pub fn one(t: &mut Thread) {
    t.submit(1);
    t.finish();
}

/// One bio each; the bio of `a` is at the device when the second thread starts. Explore both orders of starting: a
/// thread that does not start first costs a preemption.
pub fn one_each(mut a: Thread, mut b: Thread, a_starts: bool) {
    a.submit(1);
    if a_starts {
        let other = spawn(move || one(&mut b));
        a.finish();
        other.join().unwrap();
        drop(a);
    } else {
        let other = spawn(move || a.finish());
        one(&mut b);
        other.join().unwrap();
        drop(b);
    }
}

/// Submits two bios in a plug and polls until they complete.
pub fn two(t: &mut Thread) {
    t.submit(2);
    t.finish();
}
