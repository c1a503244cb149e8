// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user front end of arbitrary messages, whose rings run on an IOThread in arbitrary memory, which may be cut short: no
//! panic, no hang, and nothing of it is left behind.
//!
//! `cargo xtask fuzz vhost_messages`. What the bytes mean is in `crates/host/src/export/vhost/fuzzing.rs`, which
//! has the in-tree twin, too.

#![no_main]

use host::export::vhost::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    fuzzing::messages(data);
});
