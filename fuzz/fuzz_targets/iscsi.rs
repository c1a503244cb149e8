// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/iscsi.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz iscsi`

#![no_main]

#[path = "../bodies/iscsi.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
