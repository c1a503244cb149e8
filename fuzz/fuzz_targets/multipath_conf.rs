// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/multipath_conf.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz multipath_conf`

#![no_main]

#[path = "../bodies/multipath_conf.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
