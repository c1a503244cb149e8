// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes documents of tables, charts and text as one self-contained HTML file, and their charts also as SVG files.
//!
//! Guarantees: a page loads nothing from the network and runs no script, and its Content-Security-Policy makes the browser enforce that.
//! The template escapes all text from outside. Charts have text alternatives, and their figures in tables. Colours are Okabe and Ito's, and
//! no meaning depends on colour alone. Does not: know what the values mean or where they come from; read files or clocks.
//!
//! - [`document`], [`chart`], [`mod@unit`]: the content of a page, as values that can be serialised.
//! - [`page`]: the document as HTML; [`svg`]: its charts.

pub mod document;
pub mod chart;
pub mod unit;
pub mod page;
pub mod svg;

#[cfg(test)]
mod tests;

// `cargo test --doc` compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
