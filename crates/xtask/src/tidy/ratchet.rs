// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of exceptions to the size limits. Exceptions can only shrink.
//!
//! Guarantees: an exception must equal the current size. An entry that is larger, smaller or unneeded is a finding.

use std::collections::BTreeMap;

use super::finding::Finding;

/// The file of exceptions: sections `[file-lines]` (keys are paths), `[function-lines]` (`path::function`) and `[circle-files]`
/// (a package's folder), lines `"key" = number`.
pub const RATCHET: &str = "crates/xtask/tidy.toml";

/// The exceptions in the list.
#[derive(Default)]
pub struct Exceptions {
    /// Lines of files.
    pub files: BTreeMap<String, Exception>,
    /// Lines of functions.
    pub functions: BTreeMap<String, Exception>,
    /// Files of a crate's largest import circle.
    pub circles: BTreeMap<String, Exception>,
}

/// One entry.
pub struct Exception {
    /// The allowed size, which must be the current one.
    pub size: usize,
    /// Its line in the list.
    pub at: usize,
}

/// The size of a file, function or circle, and the line where it begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measure {
    /// Its first line.
    pub line: usize,
    /// Its size.
    pub size: usize,
}

/// Finds what is larger than `limit` without an exception, and exceptions that are wrong. `what` and `unit` are words for messages.
pub fn judge(
    measured: &BTreeMap<String, Measure>,
    exceptions: &BTreeMap<String, Exception>,
    limit: usize,
    what: &str,
    unit: &str,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (key, Measure { line, size }) in measured {
        let allowed = exceptions.get(key).map_or(limit, |e| e.size.max(limit));
        if *size > allowed {
            let path = key.split("::").next().unwrap_or(key);
            let name = key.rsplit("::").next().unwrap_or(key);
            let message = format!("{what} {name} has {size} {unit}, at most {allowed}: split it");
            found.push(Finding::new(path, *line, message));
        }
    }
    for (key, exception) in exceptions {
        let size = measured.get(key).map_or(0, |m| m.size);
        let message = if size <= limit {
            format!("{key} needs no exception (any more): delete the entry")
        } else if size < exception.size {
            format!("{key} has shrunk to {size} {unit}: lower the entry to {size}")
        } else {
            continue;
        };
        found.push(Finding::new(RATCHET, exception.at, message));
    }
    found
}

impl Exceptions {
    /// Reads the list.
    ///
    /// # Errors
    /// A line cannot be read.
    pub fn parse(text: &str) -> Result<Exceptions, Finding> {
        let mut exceptions = Exceptions::default();
        let mut section = "";
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = |why: &str| Finding::new(RATCHET, index + 1, format!("`{line}`: {why}"));
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with('[') {
                section = line;
                continue;
            }
            let entry = line.strip_prefix('"').and_then(|l| l.split_once("\" = "));
            let entry = entry.and_then(|(key, size)| Some((key, size.parse().ok()?)));
            let (key, size) = entry.ok_or_else(|| wrong("must read `\"key\" = number`"))?;
            let table = match section {
                "[file-lines]" => &mut exceptions.files,
                "[function-lines]" => &mut exceptions.functions,
                "[circle-files]" => &mut exceptions.circles,
                _ => return Err(wrong("must stand under [file-lines], [function-lines] or [circle-files]")),
            };
            let exception = Exception { size, at: index + 1 };
            if table.insert(key.to_owned(), exception).is_some() {
                return Err(wrong("stands here twice: keep one"));
            }
        }
        Ok(exceptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_a_finding() {
        for bad in ["\"a.rs\" = 900", "[file-lines]\na.rs = 900", "[other]\n\"a\" = 1"] {
            assert!(Exceptions::parse(bad).is_err(), "{bad}");
        }
        let twice = Exceptions::parse("[file-lines]\n\"a\" = 900\n\"a\" = 901\n");
        assert!(twice.err().unwrap().to_string().contains("twice"));
    }
}
