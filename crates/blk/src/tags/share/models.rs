// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving of threads that mark one disk active and inactive. What depends on the number of
//! active disks is tested in `tests/models/loom_shared.rs`.

use super::*;
use loom::sync::Arc;
use loom::thread;

/// Runs one thread per function of `sides`. In the end the number of users is 1 if the disk is marked active, and else 0.
/// Catches: a disk that is counted in or out twice.
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
