// SPDX-License-Identifier: Apache-2.0 OR MIT
//! multipath.conf(5): parsed, and resolved for a disk.
//!
//! Guarantees: [`Config::parse`] takes any text and never panics. It reports all errors, each with its line; with any error it returns no
//! configuration. An option that is accepted but has no effect here, or a different effect, is a warning with its line.
//! [`Config::resolve`] returns for each option the value that applies to a disk and the line that sets it. The order of precedence is that
//! of multipath-tools: multipaths, protocol, overrides, devices (the last one that matches), hardware table, defaults, built in.
//!
//! The parser is stricter than multipath-tools, which skips what it does not understand and continues. These are errors: a misspelt
//! option, a value without a closing quote or with text after it, a section that is not closed. An option that resembles no known one,
//! such as one of a newer version, is a warning.
//!
//! | module | what it is |
//! |---|---|
//! | `words` | a line as words |
//! | `ere` | the expressions that vendor, product and revision are |
//! | `options` | all options: their sections, their values, what they do |
//! | `read` | sections and lines |
//! | `drop_ins` | the files of a directory that belong to a file |
//! | `intervals` | two intervals that must fit each other |
//! | `hardware` | the options of known arrays |
//! | `resolve` | what holds for a disk, and why |
//! | `blacklist` | whether a disk is kept out, and by which line |
//! | `show` | what `multipath -t` prints |

mod words;
#[allow(unsafe_code, reason = "regcomp and regexec of libc")]
mod ere;
mod options;
mod read;
mod intervals;
mod drop_ins;
mod hardware;
mod resolve;
mod blacklist;
mod show;
#[cfg(test)]
mod tests;

pub use ere::Ere;
pub use options::{Kind, OPTIONS, OptionDef, Sections};
pub use resolve::{Found, Identity, Origin, Resolved};

use std::fmt::{self, Write as _};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Longest file that is read, in bytes.
pub const MOST_BYTES: usize = 1 << 20;
/// The file that multipath-tools reads.
pub const DEFAULT_FILE: &str = "/etc/multipath.conf";
/// Where the drop-in files of [`DEFAULT_FILE`] are.
pub const DEFAULT_DIRECTORY: &str = "/etc/multipath/conf.d";
/// Maximum number of errors that are reported for a file.
pub const MOST_PROBLEMS: usize = 50;

/// An error or a warning about a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as named by the caller.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The word, and what is wrong with it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        // A value may have escape sequences of a terminal in it.
        self.text
            .chars()
            .try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) })
    }
}

/// All errors of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems, *.more))]
pub struct ConfigErrors {
    /// In order of lines; at least one, at most [`MOST_PROBLEMS`].
    pub problems: Vec<Problem>,
    /// Number of errors that are not in `problems`.
    pub more: usize,
}

fn lines(problems: &[Problem], more: usize) -> String {
    let mut all: Vec<_> = problems.iter().map(Problem::to_string).collect();
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join("\n")
}

/// An option that the file sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option.
    pub option: &'static OptionDef,
    /// Its value, in the canonical spelling of [`OPTIONS`].
    pub value: String,
    /// The file that sets it.
    pub file: Arc<str>,
    /// The line that sets it.
    pub line: u32,
}

/// A section whose options apply to the disks that it selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// All options of the section, those that select disks among them.
    pub settings: Vec<Setting>,
    /// The line that it begins in.
    pub line: u32,
}

impl Block {
    /// Returns the setting of an option, if the section has it.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|s| s.option.name == name)
    }
}

/// An entry of `blacklist` or `blacklist_exceptions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The file that it is in.
    pub file: Arc<str>,
    /// The line that it begins in.
    pub line: u32,
    /// What it says.
    pub by: ListedBy,
}

/// What an entry of a blacklist matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedBy {
    /// `devnode`, `wwid`, `property` or `protocol`, and the expression.
    One(&'static str, String),
    /// `device`: expressions for vendor and product.
    Device(Option<String>, Option<String>),
}

/// A `device` of `devices`, with its compiled selectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it says.
    pub block: Block,
    vendor: Ere,
    product: Ere,
    revision: Option<Ere>,
}

/// A parsed file, with its drop-in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The main file's name, as given by the caller.
    pub file: String,
    /// `defaults`
    pub defaults: Vec<Setting>,
    /// `blacklist`
    pub blacklist: Vec<Listed>,
    /// `blacklist_exceptions`
    pub blacklist_exceptions: Vec<Listed>,
    /// `devices`
    pub devices: Vec<Device>,
    /// `overrides`
    pub overrides: Vec<Setting>,
    /// Each `protocol` of `overrides`.
    pub protocols: Vec<Block>,
    /// `multipaths`
    pub multipaths: Vec<Block>,
    /// Accepted options that have no effect here, or a different one.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// Reads a text that came from `file`, without drop-in files.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(file: &str, text: &str) -> Result<Config, ConfigErrors> {
        let mut config = Config { file: file.to_owned(), ..Config::default() };
        read::read(file, text, &mut config)?;
        config.fit_intervals();
        Ok(config)
    }

    /// Reads a file, and then its drop-in files in alphabetical order: those in the directory that its `config_dir` names, otherwise, for
    /// [`DEFAULT_FILE`], those in [`DEFAULT_DIRECTORY`].
    ///
    /// # Errors
    /// As text: a file cannot be read or is too long, or the errors of [`Config::parse`] for each file. If the main file has errors, no
    /// other is read.
    pub fn open(path: &Path) -> Result<Config, String> {
        let mut config = Config { file: path.display().to_string(), ..Config::default() };
        config.add(path)?;
        let errors: Vec<String> = config.drop_ins(path)?.iter().filter_map(|path| config.add(path).err()).collect();
        if !errors.is_empty() {
            return Err(errors.join("\n"));
        }
        config.warn_of_config_dir();
        config.fit_intervals();
        Ok(config)
    }

    fn add(&mut self, path: &Path) -> Result<(), String> {
        let name = path.display().to_string();
        let mut text = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES as u64 + 1).read_to_end(&mut text))
            .map_err(|e| format!("{name}: cannot be read: {e}"))?;
        if text.len() > MOST_BYTES {
            return Err(format!("{name}: has more than the {MOST_BYTES} bytes that are read: is it the right file?"));
        }
        read::read(&name, &String::from_utf8_lossy(&text), self).map_err(|e| e.to_string())
    }
}
