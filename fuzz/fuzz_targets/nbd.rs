// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/nbd.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz nbd`

#![no_main]

#[path = "../bodies/nbd.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
