// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports as one self-contained HTML file, and as JSON with everything that the file shows.
//!
//! Guarantees: a page asks the network for nothing, runs no script, and says so to the browser (Content-Security-Policy); text from outside
//! is escaped by the template, not by hand; charts have text alternatives and their figures in tables; colours are Okabe and Ito's, and
//! never the only sign of anything. Does not: read files or clocks.
//!
//! Modules in the order a result meets them:
//! - [`of_run`], [`of_compare`], [`of_tune`], [`of_scenario`], [`of_whatif`], [`of_study`]: from results to a document; [`parts`] is what they are made of.
//! - [`document`], [`chart`], [`mod@unit`]: the document, which other results (a scenario) may fill as well.
//! - [`page`]: the document as HTML; [`svg`]: its charts.

pub mod document;
pub mod chart;
pub mod unit;
pub mod parts;
pub mod of_run;
pub mod of_compare;
pub mod of_tune;
pub mod of_scenario;
pub mod of_whatif;
pub mod of_study;
pub mod page;
pub mod svg;

#[cfg(test)]
mod tests;
