// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The job file parser on arbitrary bytes: no panic, no hang, and messages that are safe to print.
//!
//! The first byte chooses whether the rest is the main file or an included one. The promises of accepted jobs are checked
//! by the in-tree twin, `crates/workload/tests/it/job_fuzz.rs`.
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use std::cell::Cell;
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

/// How many jobs there are; 0 = it is refused.
pub fn run(data: &[u8]) -> usize {
    let Some((choice, rest)) = data.split_first() else { return 0 };
    let text = String::from_utf8_lossy(rest);
    let included = Included { text: &text, left: Cell::new(6) };
    let env = |name: &str| name.len().is_multiple_of(2).then(|| text.chars().take(16).collect());
    let context = ParseContext { env: &env, include: &included, ncpus: 4, ..ParseContext::bare("f.fio") };
    let main = if choice & 1 == 1 { "[a]\ninclude x\n" } else { &*text };
    match JobFile::parse_str(main, &context, &[]) {
        Ok(file) => {
            assert!(!file.jobs.is_empty());
            file.jobs.len()
        }
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            assert!(errors.errors.iter().all(|e| !e.to_string().chars().any(char::is_control)));
            0
        }
    }
}
