// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of a report, as data: a verdict, and sections of tables, charts and text. A document is written as HTML or as the JSON
//! sidecar.
//!
//! Guarantees: everything that a page shows, except the ticks of its axes, is in this value. A round trip through JSON changes at most
//! the last digit of a float. Missing values are `None`, never NaN. Text is plain text: the renderer escapes it.
//! Needs from callers: ids of sections and charts that are unique in a document and made of `a-z`, `0-9` and `-`.
//! Does not: know what a run or a comparison is (`pages` of crate `lab` does), or draw.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chart::Plot;

/// Version of the layout. Keys are only added, never renamed, while it stays the same.
pub const FORMAT: u32 = 1;

/// The subject of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One run.
    Run,
    /// Two settings.
    Comparison,
    /// A search for settings.
    Tuning,
    /// A simulated machine.
    Scenario,
    /// A simulated machine as it is, compared with a changed one.
    WhatIf,
    /// How simulated rates change when a parameter grows.
    Study,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`FORMAT`].
    pub format: u32,
    /// The subject.
    pub kind: Kind,
    /// One line: `mqblk compare oltp.fio`.
    pub title: String,
    /// Program, machine and time in one line.
    pub subtitle: String,
    /// The result.
    pub verdict: Verdict,
    /// In reading order.
    pub sections: Vec<Section>,
    /// The data that the sections were made from. It is for programs and is not shown.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// How good or bad a value is. It is shown as a colour, and always also with a word or sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Neutral.
    #[default]
    Neutral,
    /// Better, or as expected.
    Good,
    /// A warning to read before relying on any figure.
    Caution,
    /// Worse, or broken.
    Bad,
}

/// The result, which is shown first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its colour.
    pub tone: Tone,
    /// One or two words: `B is faster`.
    pub word: String,
    /// The rest of the sentence, with interval and number of runs.
    pub sentence: String,
    /// The answer to each of several questions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<String>,
    /// Reasons to doubt the result.
    pub warnings: Vec<Caveat>,
}

/// A reason why a result may mean less than it seems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveat {
    /// The fact.
    pub text: String,
    /// What to do about it.
    pub advice: String,
}

/// A heading and what is below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Unique in the document.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What to look for, in one or two sentences. May be empty.
    pub lead: String,
    /// In order.
    pub blocks: Vec<Block>,
}

impl Section {
    /// An empty section.
    pub fn new(id: &str, title: &str, lead: impl Into<String>) -> Section {
        Section { id: id.to_owned(), title: title.to_owned(), lead: lead.into(), blocks: Vec::new() }
    }

    /// Returns the section with one more block.
    #[must_use]
    pub fn with(mut self, block: impl Into<Block>) -> Section {
        self.blocks.push(block.into());
        self
    }
}

/// An element of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "block", rename_all = "snake_case")]
pub enum Block {
    /// Rows and columns.
    Table(Table),
    /// A picture of numbers, with its table.
    Chart(Chart),
    /// A paragraph.
    Note {
        /// The paragraph.
        text: String,
    },
    /// Preformatted text, such as commands.
    Code {
        /// What it is.
        caption: String,
        /// The text.
        text: String,
    },
}

impl From<Table> for Block {
    fn from(table: Table) -> Block {
        Block::Table(table)
    }
}

impl From<Chart> for Block {
    fn from(chart: Chart) -> Block {
        Block::Chart(chart)
    }
}

/// A picture of numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Unique in the document.
    pub id: String,
    /// What it shows: `Latency by percentile`.
    pub title: String,
    /// The text alternative: one or two sentences with the main figures.
    pub summary: String,
    /// The picture.
    pub plot: Plot,
    /// The figures as a table, folded below the picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
}

/// Rows and columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows; may be empty below a heading that already says so.
    pub caption: String,
    /// Headings.
    pub columns: Vec<Column>,
    /// Rows, each with a cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// Text below the table; may be empty.
    pub note: String,
}

/// A column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// The column has numbers, which are aligned to the right.
    pub numeric: bool,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What is shown.
    pub text: String,
    /// The number that the text shows, in the base unit (nanoseconds, bytes, I/Os per second, 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// How good it is.
    #[serde(default)]
    pub tone: Tone,
    /// The cell is emphasised.
    #[serde(default)]
    pub strong: bool,
}

impl Cell {
    /// Text.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A number in the form of `unit`; an empty cell for `None`.
    pub fn number(value: impl Into<Option<f64>>, unit: super::unit::Unit) -> Cell {
        let value = value.into().filter(|v| v.is_finite());
        Cell { text: value.map_or_else(|| "\u{2013}".to_owned(), |v| unit.text(v)), value, ..Cell::default() }
    }

    /// Returns the cell with this tone.
    #[must_use]
    pub fn toned(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    /// Returns the cell, emphasised if `strong`.
    #[must_use]
    pub fn strong(self, strong: bool) -> Cell {
        Cell { strong, ..self }
    }
}

impl Table {
    /// Makes an empty table. A heading that begins with `#` marks a column of numbers.
    pub fn new(caption: impl Into<String>, columns: &[&str]) -> Table {
        let column = |name: &str| match name.strip_prefix('#') {
            Some(name) => Column { name: name.to_owned(), numeric: true },
            None => Column { name: name.to_owned(), numeric: false },
        };
        let columns = columns.iter().map(|name| column(name)).collect();
        Table { caption: caption.into(), columns, rows: Vec::new(), note: String::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When the number of cells is not that of the columns.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row of '{}' has a cell per column", self.caption);
        self.rows.push(cells);
    }
}

impl Document {
    /// Returns the sidecar: the whole document as JSON, with a newline at the end.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data serialises") + "\n"
    }

    /// Reads a sidecar.
    ///
    /// # Errors
    /// When the text is not the JSON of a document, or has another format version.
    pub fn from_json(text: &str) -> Result<Document, String> {
        let document: Document = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match document.format {
            FORMAT => Ok(document),
            other => Err(format!("format {other} of a report: this program reads format {FORMAT}")),
        }
    }
}
