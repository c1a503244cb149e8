// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TOML files: configurations of `serve`, scenarios and machine files.
//!
//! Guarantees: everything that is wrong is told with file and line, as in `serve.toml:7: queue_size=100: must be ...`; lines come
//! from the parser, not from a search. Does not: know any key, or read a file.
//!
//! [`reader`] reads key by key and tells all that is wrong at once; [`typed`] reads a whole file by serde, and finds the line of a
//! key whose value breaks a rule later.

pub mod reader;
pub mod typed;
