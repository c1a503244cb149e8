// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: values in the layouts that readers and scripts use. Nothing here prints; every function returns a string or a
//! value that serialises.
//!
//! - [`num`]: fio's short numbers and dates.
//! - [`fio_model`]: what fio reports about a run, as data; [`from_stats`] makes it from what the job threads measured.
//! - [`fio_text`], [`fio_json`], [`fio_terse`]: fio 3.33's text block, JSON and json+, and terse lines.
//! - [`stages`]: where the time went, [`oltp`]: transactions. fio reports neither.
//! - [`compare_text`], [`compare_json`]: the comparison; [`compare_sides`]: several sides, [`compare_table`]: for spreadsheets.
//! - [`pages`]: results as documents with charts, which the crate `report` shows as pages.

pub mod num;
mod steady_state;
pub mod oltp;
pub mod fio_model;
pub mod from_stats;
pub mod fio_text;
pub mod fio_json;
pub mod fio_terse;
pub mod stages;
pub mod compare_sides;
pub mod compare_table;
pub mod compare_text;
pub mod compare_json;
pub mod pages;
