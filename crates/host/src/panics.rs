// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends the process if a thread that holds requests panics.
//!
//! Guarantees: the process ends before anything of that thread is dropped, because the panic hook runs before unwinding. Unwinding would
//! free memory that requests still use, and release mutexes in the middle of a change. The requests would never complete. Clients
//! see what they see after a crash. The message of the panic is printed, too. Panics of other threads unwind as usual.
//! Needs from callers: a program that replaces the panic hook later calls the earlier one in its own.

use std::cell::Cell;
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// What this thread is, in messages; `None`: it holds no requests.
    static HOLDER: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// From now on, a panic of the calling thread ends the process. `kind` is what the thread is, in the message.
pub(crate) fn end_process(kind: &'static str) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            earlier(info);
            // A thread without its local values has ended its work.
            if let Ok(Some(kind)) = HOLDER.try_with(Cell::get) {
                abort(kind, info);
            }
        }));
    });
    HOLDER.set(Some(kind));
}

fn abort(kind: &str, info: &PanicHookInfo<'_>) -> ! {
    let text = info.payload().downcast_ref::<&str>().copied();
    let text = text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    // Not `eprintln!`: a test would capture the text and lose it with the process.
    let _ = writeln!(
        io::stderr(),
        "mqblk: {kind} '{name}' panicked: {text}; the process ends, because requests of its clients are lost; start it again and report \
         this bug"
    );
    std::process::abort();
}
