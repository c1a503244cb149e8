// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a whole file into a value by serde, and finds the lines of its keys.
//!
//! Does not do: report more than the first error.

use crate::reader::{Lines, one_line, printable};
use serde::de::DeserializeOwned;
use std::fmt;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// What is wrong with a file, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// The line, from 1, where there is one.
    pub line: Option<usize>,
    /// The rule, the value, and what to do; safe to print.
    pub text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = printable(&self.file);
        match self.line {
            Some(line) => write!(f, "{file}:{line}: {}", self.text),
            None => write!(f, "{file}: {}", self.text),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reads the text of `file`.
///
/// # Errors
/// It is not TOML, or not of this type.
pub fn read<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|e| ConfigError {
        file: file.into(),
        line: e.span().map(|span| Lines::of(text).line(&span)),
        text: printable(&one_line(e.message().trim())),
    })
}

/// Makes the error for a value at `key` that breaks `rule`. A key is the path of names to the value, such as `["row", "0", "name"]`. If
/// part of the path is missing, the line is that of the last part found; without the first part there is no line.
pub fn broken(file: &str, text: &str, key: &[String], rule: String) -> ConfigError {
    let line = find(text, key).map(|span| Lines::of(text).line(&span));
    ConfigError { file: file.into(), line, text: printable(&rule) }
}

fn find(text: &str, key: &[String]) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let (first, rest) = key.split_first()?;
    let (name, value) = root.get_ref().get_key_value(first.as_str())?;
    let (mut span, mut value) = (name.span(), value.get_ref());
    for part in rest {
        match value {
            DeValue::Table(table) => {
                let Some((name, inner)) = table.get_key_value(part.as_str()) else { break };
                (span, value) = (name.span(), inner.get_ref());
            }
            DeValue::Array(items) => {
                let Some(item) = part.parse().ok().and_then(|n: usize| items.get(n)) else { break };
                (span, value) = (item.span(), item.get_ref());
            }
            _ => break,
        }
    }
    Some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_lines_of_their_own_tables() {
        let text = "[a]\nn = 1\n[b]\nn = 2\n[[row]]\nn = 3\n[[row]]\n# n\nn = 4\nset = { n = 5 }\n";
        let line = |key: &[&str]| {
            let key: Vec<String> = key.iter().map(|k| (*k).to_owned()).collect();
            broken("f", text, &key, "wrong".into()).line
        };
        assert_eq!((line(&["a", "n"]), line(&["b", "n"]), line(&["b"])), (Some(2), Some(4), Some(3)));
        assert_eq!((line(&["row", "1", "n"]), line(&["row", "1", "set", "n"])), (Some(9), Some(10)));
        assert_eq!((line(&["row", "1", "none"]), line(&["row"]), line(&["none"])), (Some(7), Some(5), None));
    }

    #[test]
    fn what_does_not_fit_the_type_has_a_line() {
        let e = read::<std::collections::BTreeMap<String, u8>>("f.toml", "a = 1\nb = 300\n").unwrap_err();
        assert!(e.to_string().starts_with("f.toml:2: "), "{e}");
    }

    #[test]
    fn messages_are_safe_to_print() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Known {
            #[serde(rename = "a")]
            _a: Option<u8>,
        }
        let e = read::<Known>("f\u{7}.toml", "a = 1\n\"\\u001b[31m\" = 2\n").unwrap_err().to_string();
        assert!(e.starts_with("f\\u{7}.toml:") && e.contains("\\u{1b}[31m"), "{e}");
        assert!(!e.contains(char::is_control), "{e}");
        let e = broken("f.toml", "a = 1\n", &["a".into()], "a=\u{1b}: must be a number".into());
        assert_eq!(e.to_string(), "f.toml:1: a=\\u{1b}: must be a number");
    }
}
