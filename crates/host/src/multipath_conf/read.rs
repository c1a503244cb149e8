// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections and lines of multipath.conf(5).
//!
//! Guarantees: one pass, no recursion. After an error, parsing continues at the next line that can be understood, so each error is
//! reported once.

use super::ere::Ere;
use super::options::{self, Kind, OPTIONS, OptionDef, Sections};
use super::words::{self, Unclosed, Word};
use super::{Block, Config, ConfigErrors, Device, Listed, ListedBy, MOST_PROBLEMS, Problem, Setting};
use blk::suggest::did_you_mean;
use std::sync::Arc;

/// Longest part of a word that a message shows, in characters.
const SHOWN: usize = 60;

/// The section that a line is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Top,
    Defaults,
    /// `true`: `blacklist_exceptions`.
    Blacklist(bool),
    BlacklistDevice(bool),
    Devices,
    Device,
    Overrides,
    Protocol,
    Multipaths,
    Multipath,
    /// A section that was reported as an error; its lines are ignored.
    Skipped,
}

impl Section {
    /// Returns the sections that may be inside, by name.
    fn sections(self) -> &'static [(&'static str, Section)] {
        match self {
            Section::Top => &[
                ("defaults", Section::Defaults),
                ("blacklist", Section::Blacklist(false)),
                ("blacklist_exceptions", Section::Blacklist(true)),
                ("devices", Section::Devices),
                ("overrides", Section::Overrides),
                ("multipaths", Section::Multipaths),
            ],
            Section::Blacklist(false) => &[("device", Section::BlacklistDevice(false))],
            Section::Blacklist(true) => &[("device", Section::BlacklistDevice(true))],
            Section::Devices => &[("device", Section::Device)],
            Section::Overrides => &[("protocol", Section::Protocol)],
            Section::Multipaths => &[("multipath", Section::Multipath)],
            _ => &[],
        }
    }

    /// Returns the section's name for messages.
    fn name(self) -> &'static str {
        match self {
            Section::Top => "the file",
            Section::Defaults => "'defaults'",
            Section::Blacklist(false) => "'blacklist'",
            Section::Blacklist(true) => "'blacklist_exceptions'",
            Section::BlacklistDevice(_) => "a 'device' of a blacklist",
            Section::Devices => "'devices'",
            Section::Device => "a 'device' of 'devices'",
            Section::Overrides => "'overrides'",
            Section::Protocol => "a 'protocol' of 'overrides'",
            Section::Multipaths => "'multipaths'",
            Section::Multipath => "a 'multipath' of 'multipaths'",
            Section::Skipped => "this section",
        }
    }

    /// Returns the section as option definitions name it; `None` if it holds no options.
    fn of_options(self) -> Option<Sections> {
        Some(match self {
            Section::Defaults => Sections::DEFAULTS,
            Section::Device => Sections::DEVICE,
            Section::Overrides => Sections::OVERRIDES,
            Section::Protocol => Sections::PROTOCOL,
            Section::Multipath => Sections::MULTIPATH,
            _ => return None,
        })
    }
}

/// Criteria of a blacklist.
const CRITERIA: [&str; 4] = ["devnode", "wwid", "property", "protocol"];
const BLACKLISTED: [&str; 2] = ["vendor", "product"];

struct Reader<'a> {
    config: &'a mut Config,
    /// Open sections, and the lines that they begin in.
    open: Vec<(Section, u32)>,
    /// The innermost open section that has a selector.
    block: Block,
    /// Vendor and product of the `device` of a blacklist that is open.
    listed: (Option<String>, Option<String>),
    problems: Vec<Problem>,
    more: usize,
    file: Arc<str>,
    line: u32,
}

/// Returns a word in a form that is safe to print: without control characters, and shortened.
pub(super) fn shown(word: &str) -> String {
    let mut text: String = word.chars().take(SHOWN).flat_map(printable).collect();
    if word.chars().nth(SHOWN).is_some() {
        text.push_str("...");
    }
    text
}

/// Replaces a character that would change a terminal's state by its number.
fn printable(c: char) -> impl Iterator<Item = char> {
    let escaped =
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let (plain, number) = if escaped { (None, Some(c.escape_unicode())) } else { (Some(c), None) };
    plain.into_iter().chain(number.into_iter().flatten())
}

/// Adds what a file says to a configuration, where it overrides the files before it.
pub(super) fn read(file: &str, text: &str, config: &mut Config) -> Result<(), ConfigErrors> {
    let mut reader = Reader {
        config,
        open: Vec::new(),
        block: Block::default(),
        listed: (None, None),
        problems: Vec::new(),
        more: 0,
        file: file.into(),
        line: 0,
    };
    for line in text.split('\n') {
        reader.line = reader.line.saturating_add(1);
        reader.line(line);
    }
    while let Some((place, line)) = reader.open.pop() {
        reader.line = line;
        reader.wrong(format!("{} begins here and is not closed: put a '}}' behind its last line", place.name()));
    }
    let Reader { mut problems, more, .. } = reader;
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort_by_key(|p| p.line);
    Err(ConfigErrors { problems, more })
}

impl Reader<'_> {
    fn place(&self) -> Section {
        self.open.last().map_or(Section::Top, |(place, _)| *place)
    }

    fn problem(&self, text: String) -> Problem {
        Problem { file: self.file.to_string(), line: self.line, text }
    }

    fn wrong(&mut self, text: String) {
        if self.problems.len() < MOST_PROBLEMS {
            let problem = self.problem(text);
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn warn(&mut self, text: String) {
        let problem = self.problem(text);
        self.config.warnings.push(problem);
    }

    fn line(&mut self, line: &str) {
        let words = match words::split(line) {
            Ok(words) => words,
            Err(Unclosed(rest)) => {
                let rest = shown(rest);
                return self
                    .wrong(format!("'\"{rest}' has no closing quote: put one at its end (inside, a quote is \"\")"));
            }
        };
        match &words[..] {
            [] => {}
            [Word::Close] => self.close(),
            [Word::Close, more, ..] => {
                let more = shown(more.text());
                self.wrong(format!("'{more}' follows '}}': put it on a line of its own"));
                self.close();
            }
            [Word::Open, ..] => {
                self.wrong("'{' is at the beginning of a line: put it behind the name of its section".to_owned());
            }
            [Word::Quoted(text), ..] => {
                let text = shown(text);
                self.wrong(format!(
                    "'{text}' at the beginning of a line is in quotes: must be an option's name, without quotes"
                ));
            }
            [Word::Plain(name), rest @ ..] => match rest {
                [Word::Open, ..] => self.begin(name, rest),
                // An option may have the name of a section, such as `protocol` of a blacklist.
                _ if rest.is_empty() && self.place().sections().iter().any(|(n, _)| n == name) => {
                    self.wrong(format!("'{name}' is a section: put a '{{' behind its name, on the same line"));
                    self.begin(name, &[Word::Open]);
                }
                _ => self.option(name, rest),
            },
        }
    }

    /// `NAME {`
    fn begin(&mut self, name: &str, rest: &[Word<'_>]) {
        let place = self.place();
        let found = place.sections().iter().find(|(n, _)| *n == name).map(|(_, place)| *place);
        let is_closed = rest.contains(&Word::Close);
        if let Some(more) = rest.get(1) {
            let more = shown(more.text());
            self.wrong(format!("'{more}' follows '{{': put it on a line of its own, and the '}}' as well"));
        } else if found.is_none() && place != Section::Skipped {
            self.unknown_section(name);
        }
        if is_closed {
            return;
        }
        match found {
            Some(Section::Device | Section::Protocol | Section::Multipath) => {
                self.block = Block { settings: Vec::new(), line: self.line };
            }
            Some(Section::BlacklistDevice(_)) => self.listed = (None, None),
            _ => {}
        }
        self.open.push((found.unwrap_or(Section::Skipped), self.line));
    }

    fn unknown_section(&mut self, name: &str) {
        const PLACES: [Section; 5] =
            [Section::Top, Section::Devices, Section::Multipaths, Section::Overrides, Section::Blacklist(false)];
        let place = self.place();
        let name = shown(name);
        let elsewhere = PLACES.iter().find(|p| p.sections().iter().any(|(n, _)| *n == name));
        let known = place.sections().iter().map(|(n, _)| *n);
        let hint = did_you_mean(&name, known.clone());
        let rule = match (elsewhere, known.collect::<Vec<_>>()) {
            (Some(other), _) => format!("belongs into {}", other.name()),
            (None, known) if known.is_empty() => "only options are allowed here".to_owned(),
            (None, known) => format!("{hint}must be {}", known.join(", ")),
        };
        self.wrong(format!("'{name}' is no section of {}: {rule}", place.name()));
    }

    /// `NAME VALUE`
    fn option(&mut self, name: &str, rest: &[Word<'_>]) {
        let place = self.place();
        if place == Section::Skipped {
            return;
        }
        let value = match rest {
            [Word::Plain(value)] => (*value).to_owned(),
            [Word::Quoted(value)] => value.clone(),
            [] => return self.wrong(format!("'{}' has no value: put one behind it", shown(name))),
            [Word::Open | Word::Close, ..] => {
                let (name, word) = (shown(name), rest[0].text());
                return self
                    .wrong(format!("{name}: its value is '{word}'; put that in quotes, or on a line of its own"));
            }
            [_, more, ..] => {
                let (name, more) = (shown(name), shown(more.text()));
                return self.wrong(format!(
                    "{name}: unexpected '{more}' after the value; put a value of several words in quotes"
                ));
            }
        };
        match (place, place.of_options()) {
            (_, Some(sections)) => self.set(name, &value, sections),
            (Section::Blacklist(except), None) => self.list(name, value, except),
            (Section::BlacklistDevice(_), None) => self.list_device(name, value),
            (Section::Top, None) => match options::find(name) {
                Some(option) => {
                    let sections = option.sections.names();
                    self.wrong(format!("'{name}' is outside of any section: it belongs in {sections}"));
                }
                None => self.unknown_section(name),
            },
            _ => {
                let inner = place.sections().first().map_or("a section", |(n, _)| *n);
                self.wrong(format!(
                    "'{}' is directly in {}: put it into a '{inner} {{' section of it",
                    shown(name),
                    place.name()
                ));
            }
        }
    }

    fn set(&mut self, name: &str, value: &str, sections: Sections) {
        let Some(option) = options::find(name).filter(|o| o.sections.contains(sections)) else {
            return self.unknown_option(name, sections);
        };
        // In multipath-tools a failback of 0 is one that is not set.
        let is_unset = option.kind == Kind::Failback && value.parse::<u64>() == Ok(0);
        let (value, instead) = match option.read(value) {
            Ok(read) => read,
            Err(rule) => return self.wrong(format!("{name} '{}': {rule}", shown(value))),
        };
        if let Some(why) = option.idle.filter(|_| !is_harmless(option, &value)) {
            self.warn(format!("{name}: has no effect here: {why}"));
        } else if is_unset {
            self.warn(format!("{name} '0': sets nothing, as in multipath-tools; write immediate to switch at once"));
        } else if let Some(instead) = instead {
            self.warn(format!("{name} '{}': {instead}", shown(&value)));
        }
        let list = match sections {
            Sections::DEFAULTS => &mut self.config.defaults,
            Sections::OVERRIDES => &mut self.config.overrides,
            _ => &mut self.block.settings,
        };
        let before = list.iter().position(|s| s.option == option).map(|at| list.remove(at));
        if !is_unset {
            list.push(Setting { option, value, file: Arc::clone(&self.file), line: self.line });
        }
        // A later file is meant to override an earlier one.
        if let Some(before) = before.filter(|before| before.file == self.file) {
            self.warn(format!("{name}: is also in line {} of the same section: this one is used", before.line));
        }
    }

    fn unknown_option(&mut self, name: &str, sections: Sections) {
        let place = self.place().name();
        let rule = match options::find(name) {
            Some(option) => format!("it belongs in {}", option.sections.names()),
            None => {
                let known = OPTIONS.iter().filter(|o| o.sections.contains(sections)).map(|o| o.name);
                let hint = did_you_mean(name, known);
                if hint.is_empty() {
                    return self.warn(format!("{}: has no effect here: mqblk knows no such option", shown(name)));
                }
                hint.trim_end().to_owned()
            }
        };
        self.wrong(format!("'{}' is no option of {place}: {rule}", shown(name)));
    }

    fn list(&mut self, name: &str, value: String, except: bool) {
        let Some(criterion) = CRITERIA.into_iter().find(|c| *c == name) else {
            return self.unknown_of_blacklist(name, &CRITERIA);
        };
        // '!' negates the expression.
        if let Err(rule) = Ere::new(value.strip_prefix('!').unwrap_or(&value)) {
            return self.wrong(format!("{name} '{}': {rule}", shown(&value)));
        }
        let list = if except { &mut self.config.blacklist_exceptions } else { &mut self.config.blacklist };
        list.push(Listed { file: Arc::clone(&self.file), line: self.line, by: ListedBy::One(criterion, value) });
        if ["devnode", "property"].contains(&criterion) {
            self.warn(format!("{criterion}: has no effect here: paths have no kernel names and no udev properties"));
        }
    }

    fn list_device(&mut self, name: &str, value: String) {
        if let Err(rule) = Ere::new(value.strip_prefix('!').unwrap_or(&value)) {
            return self.wrong(format!("{name} '{}': {rule}", shown(&value)));
        }
        match name {
            "vendor" => self.listed.0 = Some(value),
            "product" => self.listed.1 = Some(value),
            _ => self.unknown_of_blacklist(name, &BLACKLISTED),
        }
    }

    fn unknown_of_blacklist(&mut self, name: &str, known: &[&str]) {
        let (place, hint) = (self.place().name(), did_you_mean(name, known.iter().copied()));
        self.wrong(format!("'{}' is no option of {place}: {hint}must be {}", shown(name), known.join(", ")));
    }

    /// `}`
    fn close(&mut self) {
        let Some((place, line)) = self.open.pop() else {
            return self.wrong("'}' closes nothing: all sections before it are closed already".to_owned());
        };
        let block = std::mem::take(&mut self.block);
        let needed: &[&str] = match place {
            Section::Device => &["vendor", "product"],
            Section::Multipath => &["wwid"],
            Section::Protocol => &["type"],
            Section::BlacklistDevice(except) => {
                let (vendor, product) = std::mem::take(&mut self.listed);
                let list = if except { &mut self.config.blacklist_exceptions } else { &mut self.config.blacklist };
                return list.push(Listed { file: Arc::clone(&self.file), line, by: ListedBy::Device(vendor, product) });
            }
            _ => return self.block = block,
        };
        // A selector with a wrong value was reported already.
        let said = self.problems.iter().any(|p| p.line >= line);
        if let Some(missing) = needed.iter().find(|name| block.get(name).is_none()) {
            if !said {
                let now = std::mem::replace(&mut self.line, line);
                self.wrong(format!("{} has no '{missing}', which selects its disks", place.name()));
                self.line = now;
            }
            return;
        }
        match place {
            Section::Device => {
                let ere = |name: &str| block.get(name).and_then(|s| Ere::new(&s.value).ok());
                if let (Some(vendor), Some(product)) = (ere("vendor"), ere("product")) {
                    let revision = ere("revision");
                    self.config.devices.push(Device { vendor, product, revision, block });
                }
            }
            Section::Protocol => self.config.protocols.push(block),
            _ => self.config.multipaths.push(block),
        }
    }
}

/// Whether an option without effect here has a value that has no effect in multipath-tools either.
fn is_harmless(option: &OptionDef, value: &str) -> bool {
    match option.name {
        "rr_min_io_rq" => value == "1",
        "rr_weight" => value == "uniform",
        "hardware_handler" => value == "0",
        "prio_args" | "getuid_callout" => value.is_empty(),
        "user_friendly_names" | "recheck_wwid" | "retain_attached_hw_handler" => true,
        "enable_foreign" => value == "NONE" || value.is_empty(),
        _ => option.name.starts_with("san_path_err") && value == "no",
    }
}
