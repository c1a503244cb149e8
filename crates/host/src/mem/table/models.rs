// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table whose entries are shown while another thread removes one: a vhost-user front end removes memory while an io_uring is made.

use super::Table;
use loom::sync::Arc as LoomArc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use std::sync::Arc;

/// An entry that knows whether its owner has freed it.
struct Entry {
    freed: AtomicBool,
}

fn entry() -> Arc<Entry> {
    Arc::new(Entry { freed: AtomicBool::new(false) })
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn an_entry_that_is_shown_is_not_freed() {
    explore(|| {
        let table = LoomArc::new(Table::new(2));
        // Kept here, so that a wrong access would find a value.
        let (stays, goes) = (entry(), entry());
        table.add(Arc::clone(&stays));
        let number = table.add(Arc::clone(&goes)).unwrap();
        let remover = {
            let table = LoomArc::clone(&table);
            thread::spawn(move || {
                // SAFETY: nothing calls `get`.
                let entry = unsafe { table.remove(number) };
                entry.freed.store(true, Ordering::Relaxed);
                table.add(self::entry());
            })
        };
        let mut seen = 0;
        table.each(|_, entry| {
            assert!(!entry.freed.load(Ordering::Relaxed), "used after it was freed");
            seen += 1;
        });
        assert!((1..=2).contains(&seen));
        remover.join().unwrap();
    });
}
