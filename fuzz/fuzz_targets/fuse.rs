// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/fuse.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo +nightly fuzz run fuse fuzz/corpus/fuse -- -max_len=300`

#![no_main]

#[path = "../bodies/fuse.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
