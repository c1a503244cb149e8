// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only some crates may contain: `unsafe` is only in `host` (and [`UNSAFE_ELSEWHERE`]), access to the machine only outside the core.
//!
//! Guarantees: outside their tests, `blk`, `workload`, `sim`, `config` and `report` use no clock, thread, file, socket, environment or
//! type with a random hash order. Full paths and grouped imports are checked. Tests wait for conditions, not for time. Does not follow
//! re-exports of other crates.

use super::finding::Finding;
use super::source::{Source, after_closing, is_name, leading_name, words};

/// Crates that must behave the same in the simulator and on a machine.
const PURE: [&str; 5] =
    ["crates/blk/src/", "crates/workload/src/", "crates/sim/src/", "crates/config/src/", "crates/report/src/"];

/// The crate that may contain `unsafe`.
const HOST: &str = "crates/host/";

/// Single files elsewhere that hold an `unsafe` block which no safe function of `host` can replace, with the reason.
const UNSAFE_ELSEWHERE: [&str; 3] = [
    // A lock that costs virtual time: lock_api's trait for locks is `unsafe`, and a simulated machine cannot be in `host`.
    "crates/sim/src/machine/meter.rs",
    // blkio returns completions in `MaybeUninit` slots, which only `unsafe` can read. This crate is an independent client in tests and must
    // not depend on `host`, whose server it tests.
    "crates/vuclient/src/completion.rs",
    // The C functions that fio calls, and the fields of its structures. A shared library for another program is a separate crate, and the
    // functions that it exports cannot be safe functions of `host`.
    "crates/fio-engine/src/abi.rs",
];

/// Modules of `std` that access the machine.
const MACHINE: [&str; 7] = ["time", "thread", "fs", "net", "env", "process", "os"];

/// Types whose order differs from run to run.
const UNORDERED: [&str; 3] = ["HashMap", "HashSet", "RandomState"];

/// The findings in one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut report = |at: usize, message: String| {
        found.push(Finding::new(&source.path, source.line(at), message));
    };
    if !source.path.starts_with(HOST) && !UNSAFE_ELSEWHERE.contains(&source.path.as_str()) {
        for at in words(&source.code, "unsafe") {
            report(at, "`unsafe` belongs in crate host: give it a safe function there".into());
        }
    }
    for at in words(&source.code, "sleep").filter(|at| source.in_test(*at)) {
        let after = source.code[at + "sleep".len()..].trim_start();
        if after.starts_with('(') && !is_poll(after) {
            report(at, "a test must not sleep: wait for the condition it needs, and sleep(POLL) between checks".into());
        }
    }
    if PURE.iter().any(|path| source.path.starts_with(path)) {
        for (at, name) in machine(&source.code).filter(|(at, _)| !source.in_test(*at)) {
            report(at, format!("`{name}` reaches the machine: take it as an argument"));
        }
        for name in UNORDERED {
            for at in words(&source.code, name).filter(|at| !source.in_test(*at)) {
                report(at, format!("{name} has no fixed order: use a BTree or an index"));
            }
        }
    }
    found
}

/// Whether the arguments of a call are one constant for the time between two checks of a condition: `POLL` or `X_POLL`.
fn is_poll(arguments: &str) -> bool {
    arguments.split(')').next().is_some_and(|argument| argument.trim_end().ends_with("POLL"))
}

/// Returns uses of the modules in [`MACHINE`], as `std::x` or inside `std::{..}`.
fn machine(code: &str) -> impl Iterator<Item = (usize, String)> {
    words(code, "std").flat_map(move |at| {
        let Some(rest) = code[at + 3..].strip_prefix("::") else {
            return Vec::new();
        };
        // `thread::panicking` depends only on this thread, so it is allowed.
        let rest = rest.strip_prefix("thread::panicking").unwrap_or(rest);
        let names =
            if rest.starts_with('{') { group(&rest[..after_closing(rest, 0)]) } else { vec![leading_name(rest)] };
        let names = names.into_iter().filter(|name| MACHINE.contains(name));
        names.map(|name| (at, format!("std::{name}"))).collect()
    })
}

/// Returns the first name of each path in `{a::b, c::{d, e}, f}`.
fn group(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut depth = 0usize;
    let mut expected = false;
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => {
                depth += 1;
                expected = depth == 1;
            }
            b'}' => depth -= 1,
            b',' => expected = depth == 1,
            b if expected && is_name(b) => {
                names.push(leading_name(&text[i..]));
                expected = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str, is_test: bool) -> usize {
        check(&Source::new(path, text, is_test)).len()
    }

    #[test]
    fn unsafe_stands_in_host_only() {
        let text = "fn f() { unsafe { g() } }";
        assert_eq!(count("crates/blk/src/a.rs", text, false), 1);
        assert_eq!(count("crates/cli/tests/a.rs", text, true), 1);
        assert_eq!(count("crates/host/src/a.rs", text, false), 0);
        assert_eq!(count("crates/vuclient/src/completion.rs", text, false), 0);
        assert_eq!(count("crates/vuclient/src/lib.rs", text, false), 1);
        assert_eq!(count("crates/fio-engine/src/abi.rs", text, false), 0);
        assert_eq!(count("crates/fio-engine/src/job.rs", text, false), 1);
        let words = "#![forbid(unsafe_code)] // unsafe\nconst S: &str = \"unsafe\";";
        assert_eq!(count("crates/blk/src/lib.rs", words, false), 0);
    }

    #[test]
    fn tests_do_not_sleep_and_programs_may() {
        let text = "fn f() { std::thread::sleep(d); }";
        assert_eq!(count("crates/host/tests/a.rs", text, true), 1);
        assert_eq!(count("crates/host/src/a.rs", text, false), 0);
        let inner = format!("#[cfg(test)]\nmod tests {{ {text} }}");
        assert_eq!(count("crates/host/src/a.rs", &inner, false), 1);
        assert_eq!(count("crates/host/tests/a.rs", "fn sleep_forever() {}", true), 0);
        for poll in ["POLL", "common::PROGRAM_POLL"] {
            assert_eq!(count("crates/host/tests/a.rs", &format!("fn f() {{ sleep({poll}); g(d) }}"), true), 0);
        }
        assert_eq!(count("crates/host/tests/a.rs", "fn f() { sleep(d); g(POLL) }", true), 1);
    }

    #[test]
    fn the_core_names_no_machine() {
        let bad = "use std::time::Instant;\nuse std::{cell::Cell, thread, io::{fs, Read}};\n\
                   fn f() { std::env::var(n); }\n";
        for path in ["crates/blk/src/a.rs", "crates/workload/src/b/c.rs"] {
            assert_eq!(count(path, bad, false), 3, "{path}");
        }
        assert_eq!(count("crates/host/src/a.rs", bad, false), 0);
        assert_eq!(count("crates/blk/tests/a.rs", bad, true), 0);
        let good = "fn f() -> bool { std::thread::panicking() }\nuse std::{fmt, sync::{atomic, Arc}};\n\
                    use crate::time::Instant; // std::fs\n\
                    #[cfg(test)]\nmod tests { use std::thread; }";
        assert_eq!(count("crates/blk/src/a.rs", good, false), 0);
    }

    #[test]
    fn the_core_has_no_hash_order() {
        let text = "use std::collections::{BTreeMap, HashMap};";
        assert_eq!(count("crates/blk/src/a.rs", text, false), 1);
        assert_eq!(count("crates/lab/src/a.rs", text, false), 0);
    }
}
