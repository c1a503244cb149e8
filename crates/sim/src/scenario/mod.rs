// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenarios: a machine that is not at hand, a workload, and the rows of a published test of it, as a TOML file.
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@file`] | the file: its fields, and errors with their place |
//! | `disk` | its table `[disk]` |
//! | [`known`] | how well its figures are known, and what was measured |
//! | [`build`] | from a row to a machine with its disk |
//! | [`effect`] | which settings can have an effect on that disk at all |
//! | [`outcome`] | the figures of a row beside the published ones, and how they change from row to row |
//! | [`over_rows`] | changes that were published without a load, beside the range over all loads |
//! | [`unmodelled`] | whether a difference depends on something that the disk's model does not have |
//! | [`why`] | the reason for a change, in words, from where requests spent their time |
//!
//! # Guarantees
//! The same file gives the same figures. A published figure is either fitted or predicted. For a fitted one, a constant of
//! the file says so, with its range and its meaning. Nothing else depends on published figures.

pub mod file;
mod rule;
mod disk;
pub mod known;
pub mod effect;
pub mod build;
pub mod outcome;
pub mod over_rows;
pub mod unmodelled;
pub mod why;
