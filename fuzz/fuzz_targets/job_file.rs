// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The job file parser on arbitrary bytes: no panic, no hang, and messages that are safe to print.
//!
//! `cargo +nightly fuzz run job_file fuzz/corpus/job_file crates/workload/tests/data/jobs -- -dict=fuzz/job_file.dict`
//! The first byte chooses whether the rest is the main file or an included one. The promises of accepted jobs are checked
//! by the in-tree twin, `crates/workload/tests/job_fuzz.rs`.

#![no_main]

use std::cell::Cell;
use libfuzzer_sys::fuzz_target;
use workload::job::{IncludeReader, JobFile, ParseContext};

/// The same text for every name, a few times: more would spend the run on one input's includes of itself.
struct Included<'a> {
    text: &'a str,
    left: Cell<u32>,
}

impl IncludeReader for Included<'_> {
    fn read(&self, path: &str) -> Result<String, String> {
        let left = self.left.get();
        if left == 0 {
            return Err(format!("'{path}' is one too many"));
        }
        self.left.set(left - 1);
        Ok(self.text.to_owned())
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    let included = Included { text: &text, left: Cell::new(6) };
    let env = |name: &str| (name.len() % 2 == 0).then(|| text.chars().take(16).collect());
    let context = ParseContext { env: &env, include: &included, ncpus: 4, ..ParseContext::bare("f.fio") };
    let main = if choice & 1 == 1 { "[a]\ninclude x\n" } else { &*text };
    match JobFile::parse_str(main, &context, &[]) {
        Ok(file) => assert!(!file.jobs.is_empty()),
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            assert!(errors.errors.iter().all(|e| !e.to_string().chars().any(char::is_control)));
        }
    }
});
