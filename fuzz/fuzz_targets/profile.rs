// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/profile.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz profile`

#![no_main]

#[path = "../bodies/profile.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
