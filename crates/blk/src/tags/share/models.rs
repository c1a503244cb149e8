// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every interleaving of threads that count one disk in and out, explored by loom. What follows from the number is in
//! `tests/models/loom_shared.rs`.

use super::*;
use loom::sync::Arc;
use loom::thread;

/// One thread on each of `sides`; whatever they did, the disk is one of the users, or none, as it says itself. Catches: a disk
/// that is counted in or out twice.
fn explore(counts_before: bool, sides: [fn(&Usage, &AtomicU32); 3]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(move || {
        let shared = Arc::new((Usage::default(), AtomicU32::new(0)));
        if counts_before {
            shared.0.enlist(&shared.1);
        }
        let threads = sides.map(|side| {
            let shared = shared.clone();
            thread::spawn(move || side(&shared.0, &shared.1))
        });
        for t in threads {
            t.join().unwrap();
        }
        let (usage, users) = &*shared;
        assert_eq!(users.load(Ordering::Relaxed), u32::from(usage.counts.load(Ordering::Relaxed)));
    });
}

fn enlist(usage: &Usage, users: &AtomicU32) {
    usage.enlist(users);
}

fn retire(usage: &Usage, users: &AtomicU32) {
    usage.retire(users);
}

#[test]
fn a_disk_is_one_user_however_many_count_it_in_or_out() {
    explore(false, [enlist, enlist, retire]);
    explore(true, [retire, retire, enlist]);
}
