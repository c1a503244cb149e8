// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TOML files: configurations of `serve`, scenarios and machine files.
//!
//! Guarantees: every error has file and line, as in `serve.toml:7: queue_size=100: must be ...`; lines come
//! from the parser, not from a search. Does not: know any key, or read a file.
//!
//! [`reader`] reads key by key and reports all errors at once; [`typed`] reads a whole file by serde, and finds a key's line when
//! its value fails a later check.

pub mod reader;
pub mod typed;
