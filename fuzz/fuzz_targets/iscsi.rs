// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/iscsi.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo +nightly fuzz run iscsi fuzz/corpus/iscsi -- -max_len=4096`

#![no_main]

#[path = "../bodies/iscsi.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
