// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtqueues in arbitrary memory, split and packed: loops, chains past the table, addresses outside, tables in tables, notes of
//! requests in flight that another process wrote; and the driver keeps writing. No panic, bounded chains, data in memory only.
//!
//! `cargo xtask fuzz vhost_ring`. What the bytes mean is in `crates/host/src/export/vhost/fuzzing.rs`, which
//! has the in-tree twin, too.

#![no_main]

use host::export::vhost::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    fuzzing::ring(data);
});
