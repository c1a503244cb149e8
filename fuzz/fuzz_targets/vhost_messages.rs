// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user front end of arbitrary messages, whose rings run on an IOThread in arbitrary memory, which may be cut short: no
//! panic, no hang, and nothing of it is left behind.
//!
//! `cargo +nightly fuzz run vhost_messages fuzz/corpus/vhost_messages -- -max_len=4096`. What the bytes mean is in `crates/host/src/export/vhost/fuzzing.rs`, which
//! has the in-tree twin, too.

#![no_main]

use host::export::vhost::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    fuzzing::messages(data);
});
