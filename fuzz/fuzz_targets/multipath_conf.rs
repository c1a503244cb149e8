// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/multipath_conf.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo +nightly fuzz run multipath_conf fuzz/corpus/multipath_conf -- -max_len=4096`

#![no_main]

#[path = "../bodies/multipath_conf.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
