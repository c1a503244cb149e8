// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits the lines of a job file into sections of raw options, and follows includes.
//!
//! Guarantees: every option keeps the file and line it came from. Includes are bounded in depth and number and cannot form
//! a cycle. An error on one line does not hide errors on others. Needs from callers: an [`IncludeReader`] (this crate opens
//! no file). Does not do: know any option. Text about which fio guesses (`[name` without `]`) is rejected. Source: fio
//! HOWTO, "Job file format", and fio 3.33's handling of `;` and `#` after a value.

use std::sync::Arc;

use super::command_line::is_global;
use super::error::{ERRORS_MAX, ErrorKind, JobError, Origin, Warning, quote};

/// Reads included files.
pub trait IncludeReader {
    /// Returns the text of the file `path`. The path is as typed if absolute, else joined to the directory of the including
    /// file's name.
    ///
    /// # Errors
    /// The reason why it cannot be read, which becomes part of the message.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// An [`IncludeReader`] that has no files.
#[derive(Clone, Copy, Debug)]
pub struct NoIncludes;

impl IncludeReader for NoIncludes {
    fn read(&self, _: &str) -> Result<String, String> {
        Err("no files can be included here".to_owned())
    }
}

/// Deepest nesting of includes.
const INCLUDE_DEPTH_MAX: usize = 16;
/// Maximum number of includes in total. Without it, files that include each other twice would grow exponentially.
const INCLUDES_MAX: u32 = 256;
/// Maximum number of sections; fio's limit on jobs.
const SECTIONS_MAX: usize = 4_096;

/// One `key[=value]` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawOption {
    pub origin: Origin,
    /// Position in reading order.
    pub seq: u32,
    pub key: String,
    pub value: Option<String>,
}

impl RawOption {
    /// `key=value` for messages, shortened.
    pub(super) fn typed(&self) -> String {
        match &self.value {
            Some(value) => quote(&format!("{}={value}", self.key)),
            None => quote(&self.key),
        }
    }
}

/// One `[section]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawSection {
    pub name: String,
    pub global: bool,
    pub line: u32,
    pub origin: Origin,
    /// Position of the header in reading order.
    pub seq: u32,
    pub options: Vec<RawOption>,
    /// Number of its file; 0 is the first one, and the command line.
    pub file: usize,
}

/// All sections of the file, and the errors in its form.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub sections: Vec<RawSection>,
    pub errors: Vec<(u32, JobError)>,
    pub warnings: Vec<Warning>,
    /// The next free position in reading order.
    pub next_seq: u32,
}

impl Raw {
    /// Records an error in the form.
    pub(super) fn refuse(&mut self, origin: &Origin, typed: &str, rule: &str, remedy: &str) {
        let seq = self.take_seq();
        let error = JobError {
            origin: origin.clone(),
            job: self.sections.last().map(|s| s.name.clone()),
            typed: quote(typed),
            kind: ErrorKind::Syntax,
            rule: rule.to_owned(),
            remedy: remedy.to_owned(),
        };
        self.errors.push((seq, error));
    }

    pub(super) fn take_seq(&mut self) -> u32 {
        self.next_seq += 1;
        self.next_seq
    }
}

/// Splits the texts of files, given with their names, into sections after those in `raw`.
pub(super) fn parse(raw: Raw, files: &[(&str, &str)], includes: &dyn IncludeReader) -> Raw {
    let mut reader = Reader { raw, includes, stack: Vec::new(), included: 0, in_section: false, number: 0 };
    for (number, (file, text)) in files.iter().enumerate() {
        (reader.in_section, reader.number) = (false, number);
        reader.file(file, text);
    }
    reader.raw
}

struct Reader<'a> {
    raw: Raw,
    includes: &'a dyn IncludeReader,
    /// Files being read, outermost first.
    stack: Vec<String>,
    included: u32,
    /// The file has begun a section.
    in_section: bool,
    /// Number of the file.
    number: usize,
}

impl Reader<'_> {
    fn file(&mut self, file: &str, text: &str) {
        self.stack.push(file.to_owned());
        let name: Arc<str> = file.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, content) in (1..).zip(text.split('\n')) {
            if self.raw.errors.len() > ERRORS_MAX {
                break;
            }
            let origin = Origin::Line { file: Arc::clone(&name), line };
            self.line(&origin, line, content);
        }
        self.stack.pop();
    }

    fn line(&mut self, origin: &Origin, line: u32, content: &str) {
        let body = content.trim();
        if body.is_empty() || body.starts_with([';', '#']) {
            return;
        }
        let code = self.cut_comment(origin, body);
        if code.starts_with('[') {
            self.header(origin, line, code);
        } else if !self.in_section {
            self.error(origin, code, "is outside of a [section]", "start the file with [global] or [job-name]");
        } else if let Some(path) = include_path(code) {
            self.include(origin, code, path);
        } else {
            self.option(origin, code);
        }
    }

    /// Removes a comment after a value. fio cuts at any `;` or `#`, even inside a word; in that case a warning is given.
    fn cut_comment<'t>(&mut self, origin: &Origin, body: &'t str) -> &'t str {
        let Some(at) = body.find([';', '#']) else { return body };
        let code = &body[..at];
        if !code.ends_with(char::is_whitespace) && !code.ends_with('=') {
            self.raw.warnings.push(Warning {
                origin: origin.clone(),
                job: self.section_name(),
                typed: quote(body),
                advice: format!("'{}' begins a comment (fio's rule); the value ends before it", &body[at..=at]),
            });
        }
        code.trim_end()
    }

    fn header(&mut self, origin: &Origin, line: u32, code: &str) {
        if self.stack.len() > 1 {
            self.error(origin, code, "an included file must not have sections", "give options only (fio's rule)");
            return;
        }
        let Some(name) = code.strip_prefix('[').and_then(|c| c.strip_suffix(']')).filter(|n| !n.trim().is_empty())
        else {
            self.error(origin, code, "is not a section header", "write [name] on a line of its own");
            // Further options belong to the malformed section, not to the one before.
            self.push_section(origin, "?", false, line);
            return;
        };
        if self.raw.sections.len() >= SECTIONS_MAX {
            if self.raw.sections.len() == SECTIONS_MAX {
                let rule = format!("is section {}", SECTIONS_MAX + 1);
                self.error(origin, code, &rule, &format!("use at most {SECTIONS_MAX}; numjobs repeats a job"));
                self.push_section(origin, name, false, line);
            }
            return;
        }
        let global = is_global(name);
        if global && name != "global" {
            self.raw.warnings.push(Warning {
                origin: origin.clone(),
                job: None,
                typed: quote(code),
                advice: "is a global section, like every name that begins with 'global' (fio's rule)".to_owned(),
            });
        }
        self.push_section(origin, name, global, line);
    }

    fn push_section(&mut self, origin: &Origin, name: &str, global: bool, line: u32) {
        self.in_section = true;
        let (name, origin, seq) = (name.to_owned(), origin.clone(), self.raw.take_seq());
        self.raw.sections.push(RawSection { name, global, line, origin, seq, options: Vec::new(), file: self.number });
    }

    fn option(&mut self, origin: &Origin, code: &str) {
        let (key, value) = code.split_once('=').map_or((code, None), |(k, v)| (k, Some(v)));
        let seq = self.raw.take_seq();
        let option = RawOption {
            origin: origin.clone(),
            seq,
            key: key.trim().to_owned(),
            value: value.map(|v| v.trim().to_owned()),
        };
        if let Some(section) = self.raw.sections.last_mut() {
            section.options.push(option);
        }
    }

    fn include(&mut self, origin: &Origin, code: &str, path: &str) {
        let Some(including) = self.stack.last() else { return };
        let path = match including.rsplit_once('/') {
            Some((dir, _)) if !path.starts_with('/') => format!("{dir}/{path}"),
            _ => path.to_owned(),
        };
        self.included += 1;
        if self.stack.contains(&path) {
            let chain = format!("{} -> {path}", self.stack.join(" -> "));
            self.error(origin, code, "includes itself", &format!("remove the include cycle {}", quote(&chain)));
        } else if self.stack.len() > INCLUDE_DEPTH_MAX {
            self.error(
                origin,
                code,
                &format!("is nested deeper than {INCLUDE_DEPTH_MAX} includes"),
                "flatten the files",
            );
        } else if self.included > INCLUDES_MAX {
            self.error(origin, code, &format!("is include number {}", self.included), "use fewer includes");
        } else {
            match self.includes.read(&path) {
                Ok(text) => self.file(&path, &text),
                Err(reason) => {
                    let rule = format!("cannot read '{}': {reason}", quote(&path));
                    self.error(origin, code, &rule, "the path is relative to the including file");
                }
            }
        }
    }

    fn section_name(&self) -> Option<String> {
        self.raw.sections.last().map(|s| s.name.clone())
    }

    fn error(&mut self, origin: &Origin, typed: &str, rule: &str, remedy: &str) {
        self.raw.refuse(origin, typed, rule, remedy);
    }
}

/// The path of `include PATH` or `include=PATH`.
fn include_path(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("include")?;
    let path = rest.strip_prefix(|c: char| c == '=' || c.is_whitespace())?;
    Some(path.trim()).filter(|p| !p.is_empty())
}
