// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coverage-guided: see `fuzz/bodies/nbd_client.rs`. Seeds come from `cargo xtask seeds`.
//!
//! `cargo xtask fuzz nbd_client`

#![no_main]

#[path = "../bodies/nbd_client.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    body::run(data);
});
