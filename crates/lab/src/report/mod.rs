// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: values turned into the layouts people and scripts read. Nothing here prints; everything returns a string or something that
//! serialises.
//!
//! - [`num`]: fio's short numbers and dates.
//! - [`fio_model`]: what fio reports about a run, as data; [`from_stats`] makes it from what the job threads measured.
//! - [`fio_text`], [`fio_json`]: fio 3.33's text block, JSON and json+.
//! - [`stages`]: where the time went, [`oltp`]: transactions; fio cannot tell.
//! - [`compare_text`], [`compare_json`]: the comparison; [`compare_sides`]: of several sides, [`compare_table`]: for spreadsheets.
//! - [`pages`]: results as documents with charts, which the crate `report` shows as pages.

pub mod num;
pub mod oltp;
pub mod fio_model;
pub mod from_stats;
pub mod fio_text;
pub mod fio_json;
pub mod stages;
pub mod compare_sides;
pub mod compare_table;
pub mod compare_text;
pub mod compare_json;
pub mod pages;
