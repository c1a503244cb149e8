// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parser of multipath.conf(5) on arbitrary bytes: no panic, no hang, messages that are safe to print; what is
//! read prints as something that reads as the same, and can be asked about any disk.
//!
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use host::multipath_conf::{Config, Identity};

/// How many options hold for a disk; 0 = it is refused.
pub fn run(data: &[u8]) -> usize {
    let text = String::from_utf8_lossy(data);
    match Config::parse("m.conf", &text) {
        Ok(config) => {
            let printed = config.to_string();
            let again = Config::parse("m.conf", &printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
            assert_eq!(again.to_string(), printed);
            let word: String = text.chars().take(20).collect();
            let disk = Identity { wwid: word.clone(), vendor: word.clone(), product: word, ..Identity::default() };
            let _ = config.blacklisted(&disk);
            let resolved = config.resolve(&disk);
            let _ = resolved.options();
            resolved.found.len()
        }
        Err(errors) => {
            assert!(!errors.problems.is_empty());
            assert!(errors.problems.iter().all(|p| !p.to_string().chars().any(char::is_control)));
            0
        }
    }
}
