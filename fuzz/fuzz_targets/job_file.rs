// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/job_file.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz job_file`

#![no_main]

#[path = "../bodies/job_file.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
