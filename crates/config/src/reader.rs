// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of a TOML file, read key by key with the line number of every error.
//!
//! Guarantees: every key is read or refused. A value of the wrong type or out of its range is refused; the message gives both. An error
//! in one place does not hide errors in others. Messages are safe to print. Does not do: know any key. The form of messages is that of
//! job files: `serve.toml:7: queue_size=100: must be ... (export 'a')`.

use blk::suggest::did_you_mean;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Maximum number of messages about one file.
const PROBLEMS_MAX: usize = 100;
/// Longest piece of a file that a message repeats.
const SHOWN_MAX: usize = 80;

/// Makes text safe to print in a message, because a file's text could disturb a terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Makes a piece of a file safe to print in a message, and shortens it.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", printable(&text[..end])),
        None => printable(text),
    }
}

/// Joins the TOML library's message into one line.
pub(crate) fn one_line(message: &str) -> String {
    message.lines().collect::<Vec<_>>().join(", ")
}

/// Offsets of line starts.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Lines {
        Lines(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line, from 1, in which a span begins.
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        self.0.partition_point(|start| *start <= span.start)
    }
}

/// A file being read: its lines, its errors, and the lines of its keys. `P` identifies a section.
pub struct Reader<'a, P> {
    name: &'a str,
    lines: Lines,
    problems: Vec<(usize, String)>,
    /// The line of each key; the line of a section itself is under an empty key.
    places: BTreeMap<(P, String), usize>,
}

impl<'a, P: Copy + Ord> Reader<'a, P> {
    /// Parses the text of the file `name`. Returns the reader and the file's root table.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn open<'t>(name: &'a str, text: &'t str) -> Result<(Reader<'a, P>, DeTable<'t>), String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let reader = Reader { name, lines: Lines::of(text), problems: Vec::new(), places: BTreeMap::new() };
        match DeTable::parse(text) {
            Ok(root) => Ok((reader, root.into_inner())),
            Err(e) => {
                let line = e.span().map(|span| reader.line(&span));
                Err(reader.located(line, format!("is not TOML here: {}", shown(&one_line(e.message())))))
            }
        }
    }

    /// The line, from 1, in which a span begins.
    pub fn line(&self, span: &Range<usize>) -> usize {
        self.lines.line(span)
    }

    /// Records an error; `of` names the object that it concerns, or is empty.
    pub fn refuse(&mut self, line: usize, text: impl Display, of: &str) {
        let of = if of.is_empty() { String::new() } else { format!(" ({of})") };
        self.problems.push((line, format!("{text}{of}")));
    }

    /// Returns the line of a key, or else of its section, if either was read.
    pub fn line_of(&self, place: P, key: &str) -> Option<usize> {
        let of = |key: &str| self.places.get(&(place, key.to_owned())).copied();
        of(key).or_else(|| of(""))
    }

    /// Returns the messages so far, in the file's order; empty without errors.
    pub fn problems(&mut self) -> Vec<String> {
        self.problems.sort_by_key(|(line, _)| *line);
        let more = self.problems.len().saturating_sub(PROBLEMS_MAX);
        let shown = self.problems.iter().take(PROBLEMS_MAX);
        let mut all: Vec<String> = shown.map(|(line, text)| self.located(Some(*line), text)).collect();
        if more > 0 {
            all.push(format!("{}: and {more} more", printable(self.name)));
        }
        all
    }

    /// `FILE:LINE: TEXT`.
    pub fn located(&self, line: Option<usize>, text: impl Display) -> String {
        let name = printable(self.name);
        match line {
            Some(line) => format!("{name}:{line}: {text}"),
            None => format!("{name}: {text}"),
        }
    }
}

/// A table with its name and the object that messages name.
pub struct Section<'t, 'a, P> {
    reader: &'t mut Reader<'a, P>,
    table: &'t DeTable<'t>,
    /// As in the file: `[[disk]]`.
    kind: String,
    /// For messages: `disk 'a'`.
    of: String,
    place: P,
    line: usize,
    /// Put before keys in `places`: `queue.`.
    prefix: &'static str,
    known: Vec<&'static str>,
}

/// The value at a key, and its line.
pub struct Found<'t> {
    /// The value.
    pub value: &'t DeValue<'t>,
    /// The line of the key.
    pub line: usize,
}

impl<'t, 'a, P: Copy + Ord> Section<'t, 'a, P> {
    /// A table that begins in `line`.
    pub fn new(
        reader: &'t mut Reader<'a, P>,
        table: &'t DeTable<'t>,
        kind: &str,
        place: P,
        line: usize,
    ) -> Section<'t, 'a, P> {
        reader.places.insert((place, String::new()), line);
        Section { reader, table, kind: kind.to_owned(), of: String::new(), place, line, prefix: "", known: Vec::new() }
    }

    /// Sets the object that messages name from here on: `disk 'a'`.
    pub fn is(&mut self, of: String) {
        self.of = of;
    }

    /// Sets what messages call the table from here on.
    pub fn is_a(&mut self, kind: &str) {
        kind.clone_into(&mut self.kind);
    }

    /// Records an error at `key`, or at the section if the key is absent.
    pub fn refuse(&mut self, key: &str, text: impl Display) {
        let line = self.table.get_key_value(key).map_or(self.line, |(k, _)| self.reader.line(&k.span()));
        let of = self.of.clone();
        self.reader.refuse(line, text, &of);
    }

    /// Returns the value at `key`, if the key is present.
    pub fn get(&mut self, key: &'static str) -> Option<Found<'t>> {
        self.known.push(key);
        let (k, value) = self.table.get_key_value(key)?;
        let line = self.reader.line(&k.span());
        self.reader.places.insert((self.place, format!("{}{key}", self.prefix)), line);
        Some(Found { value: value.get_ref(), line })
    }

    fn wrong(&mut self, key: &str, value: &DeValue<'_>, must: &str) {
        self.refuse(key, format!("{key}={}: must be {must}", text_of(value)));
    }

    /// Reads a text.
    pub fn string(&mut self, key: &'static str, example: &str) -> Option<String> {
        let found = self.get(key)?;
        match found.value {
            DeValue::String(text) => Some(text.to_string()),
            other => {
                self.wrong(key, other, &format!("a text in quotation marks, such as {key} = \"{example}\""));
                None
            }
        }
    }

    /// Reads a list of texts, which must not be empty; `example` is shown between the brackets in a message.
    pub fn strings(&mut self, key: &'static str, example: &str) -> Option<Vec<String>> {
        let found = self.get(key)?;
        let texts = found.value.as_array().filter(|items| !items.is_empty()).and_then(|items| {
            items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        if texts.is_none() {
            self.wrong(key, found.value, &format!("a list of texts, such as {key} = [{example}]"));
        }
        texts
    }

    /// Reads a whole number in `range`.
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let found = self.get(key)?;
        match whole(found.value).filter(|n| range.contains(n)) {
            None => {
                self.wrong(key, found.value, &format!("a whole number, {}..={}", range.start(), range.end()));
                None
            }
            some => some,
        }
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        let found = self.get(key)?;
        match found.value {
            DeValue::Boolean(b) => Some(*b),
            other => {
                self.wrong(key, other, "true or false");
                None
            }
        }
    }

    /// Reads one of `words`. Returns its value.
    pub fn one_of<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let found = self.get(key)?;
        let typed = found.value.as_str();
        if let Some((_, value)) = words.iter().find(|(word, _)| Some(*word) == typed) {
            return Some(*value);
        }
        let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let hint = typed.map(|t| did_you_mean(t, words.iter().map(|(word, _)| *word))).unwrap_or_default();
        let hint = if hint.is_empty() { hint } else { format!("; {}", hint.trim_end()) };
        self.wrong(key, found.value, &format!("one of {}{hint}", all.join(", ")));
        None
    }

    /// Opens a table within this one. Plan errors name its keys with `prefix` in front.
    pub fn inner(&mut self, key: &'static str, prefix: &'static str) -> Option<Section<'_, 'a, P>> {
        let found = self.get(key)?;
        match found.value {
            DeValue::Table(table) => Some(Section {
                reader: self.reader,
                table,
                kind: format!("{}.{key}", self.kind),
                of: self.of.clone(),
                place: self.place,
                line: found.line,
                prefix,
                known: Vec::new(),
            }),
            other => {
                self.wrong(key, other, "a table");
                None
            }
        }
    }

    /// Returns every key with its value and line, and records the lines for [`Reader::line_of`]. Keys of the table `nested` are returned as
    /// `NESTED.KEY`.
    pub fn each(&mut self, nested: &str) -> Vec<(String, &'t DeValue<'t>, usize)> {
        let mut all = Vec::new();
        for (key, value) in self.table {
            let name = key.get_ref().to_string();
            match value.get_ref() {
                DeValue::Table(inner) if name == nested => {
                    let inner = inner.iter().map(|(key, value)| (format!("{name}.{}", key.get_ref()), key, value));
                    all.extend(inner.map(|(name, key, value)| (name, value.get_ref(), self.reader.line(&key.span()))));
                }
                other => all.push((name, other, self.reader.line(&key.span()))),
            }
        }
        for (name, _, line) in &all {
            self.reader.places.insert((self.place, format!("{}{name}", self.prefix)), *line);
        }
        all
    }

    /// Records an error in a line of this section.
    pub fn refuse_line(&mut self, line: usize, text: impl Display) {
        self.reader.refuse(line, text, &self.of);
    }

    /// Records an error for every key that was not read.
    pub fn end(self) {
        let mut known = self.known;
        known.sort_unstable();
        known.dedup();
        for (key, _) in self.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            let hint = did_you_mean(name, known.iter().copied());
            let text = format!("{}: is no key of {}; {hint}Keys: {}", shown(name), self.kind, known.join(", "));
            let line = self.reader.line(&key.span());
            self.reader.refuse(line, text, &self.of);
        }
    }
}

/// A value as it might have been typed, for messages.
pub fn text_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", shown(text)),
        DeValue::Integer(n) => shown(&n.to_string()),
        DeValue::Float(n) => shown(&n.to_string()),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(d) => shown(&d.to_string()),
        DeValue::Array(_) => "[...]".to_owned(),
        DeValue::Table(_) => "{...}".to_owned(),
    }
}

/// A whole number that is not negative.
pub fn whole(value: &DeValue<'_>) -> Option<u64> {
    let n = value.as_integer()?;
    u64::from_str_radix(n.as_str(), n.radix()).ok()
}

/// Returns the tables of `[[name]]` with their lines. Records an error for anything else under that name.
pub fn tables<'t, P: Copy + Ord>(
    reader: &mut Reader<'_, P>,
    root: &'t DeTable<'t>,
    name: &str,
) -> Vec<(&'t DeTable<'t>, usize)> {
    let Some((key, value)) = root.get_key_value(name) else { return Vec::new() };
    let DeValue::Array(items) = value.get_ref() else {
        let line = reader.line(&key.span());
        reader.refuse(line, format!("{name}: must be written [[{name}]], once for each"), "");
        return Vec::new();
    };
    let line_of = |reader: &Reader<'_, P>, item: &Spanned<DeValue<'_>>| reader.line(&item.span());
    let mut found = Vec::new();
    for item in items {
        let line = line_of(reader, item);
        match item.get_ref() {
            DeValue::Table(table) => found.push((table, line)),
            other => {
                let text = format!("{name}={}: must be a table, [[{name}]]", text_of(other));
                reader.refuse(line, text, "");
            }
        }
    }
    found
}
