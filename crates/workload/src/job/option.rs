// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An option of a job file: one row gives the parser, the default, the help text and what mqblk does with it.
//!
//! Guarantees: an option of a supported row sets the job. Options of other rows change nothing but which logs are written;
//! their form is still checked. Does not do: checks between options (`resolve`). The rows are in `table_*`.

use super::draft::Draft;
use super::error::Reject;
use super::lists;
use super::units::{self, Units};
use super::values::{Extent, PerDir};

/// What mqblk does with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Works as in fio.
    Supported,
    /// Works; fio has no such option.
    Own,
    /// Accepted silently, because it changes nothing here.
    Accepted,
    /// Accepted with this warning: it has no effect, and the results stay comparable.
    Ignored(&'static str),
    /// Rejected with this advice.
    Refused(&'static str),
}

/// One option.
#[derive(Debug)]
pub struct OptionInfo {
    /// Canonical name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Default as a user would type it; empty = none.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// How mqblk handles it.
    pub support: Support,
    /// Values of an unsupported option that, like its default, request nothing; they are accepted silently.
    pub off: &'static [&'static str],
    pub(super) parser: Parser,
}

/// How a value is parsed, and where it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parser {
    /// Text with a grammar of its own.
    Text { syntax: &'static str, set: fn(&mut Draft, &str, Units) -> Result<(), Reject> },
    /// Any text, which may be left out; sets nothing.
    OptionalText,
    /// The beginning of a file name, which may be left out or empty.
    Name(fn(&mut Draft, Option<&str>)),
    /// No value, or 0 / 1.
    Flag(fn(&mut Draft, bool)),
    /// 0 or 1.
    Bool(fn(&mut Draft, bool)),
    /// A number, units allowed.
    Int { min: u64, max: u64, set: fn(&mut Draft, u64) },
    /// Up to three numbers: read,write,trim.
    Ints { min: u64, max: u64, set: fn(&mut Draft, PerDir<Option<u64>>) },
    /// Bytes or a percentage.
    Size(fn(&mut Draft, Extent)),
    /// A time; a bare number counts `unit_ns`.
    Time { unit_ns: u64, set: fn(&mut Draft, u64) },
    /// One of these words.
    Words { words: &'static [&'static str], set: fn(&mut Draft, &'static str) },
}

impl Parser {
    /// Reads `value` and sets the draft.
    pub(super) fn apply(self, draft: &mut Draft, value: Option<&str>, units: Units) -> Result<(), Reject> {
        let value = match (self, value) {
            (Parser::Flag(set), None) => {
                set(draft, true);
                return Ok(());
            }
            (Parser::OptionalText, _) => return Ok(()),
            (Parser::Name(set), value) => {
                set(draft, value);
                return Ok(());
            }
            (_, None) => return Err(Reject::new("needs a value", &format!("write it as option={}", self.syntax()))),
            (_, Some("")) => return Err(Reject::new("has an empty value", &format!("give {}", self.syntax()))),
            (_, Some(value)) => value,
        };
        match self {
            Parser::OptionalText | Parser::Name(_) => {}
            Parser::Text { set, .. } => set(draft, value, units)?,
            Parser::Flag(set) | Parser::Bool(set) => match value {
                "0" => set(draft, false),
                "1" => set(draft, true),
                _ => return Err(Reject::new("must be 0 or 1", "")),
            },
            Parser::Int { min, max, set } => set(draft, units::int_in(value, units, min, max)?),
            Parser::Ints { min, max, set } => {
                set(draft, units::per_dir(value, &[','], |part| units::int_in(part, units, min, max))?);
            }
            Parser::Size(set) => set(draft, units::extent(value, units)?),
            Parser::Time { unit_ns, set } => set(draft, units::time_ns(value, unit_ns)?),
            Parser::Words { words, set } => match words.iter().find(|w| **w == value) {
                Some(word) => set(draft, word),
                None => return Err(Reject::new(&format!("must be one of {}", words.join(", ")), "")),
            },
        }
        Ok(())
    }

    /// The syntax of a value.
    pub(super) fn syntax(self) -> String {
        let range = |min: u64, max: u64| match max {
            u64::MAX => format!("INT>={min}"),
            _ => format!("INT({min}..={max})"),
        };
        match self {
            Parser::Text { syntax, .. } => syntax.to_owned(),
            Parser::OptionalText => "[TEXT]".to_owned(),
            Parser::Name(_) => "[NAME]".to_owned(),
            Parser::Flag(_) => "[0|1]".to_owned(),
            Parser::Bool(_) => "0|1".to_owned(),
            Parser::Int { min, max, .. } => range(min, max),
            Parser::Ints { min, max, .. } => format!("{}[,WRITE[,TRIM]]", range(min, max)),
            Parser::Size(_) => "BYTES|PERCENT%".to_owned(),
            Parser::Time { unit_ns: units::SEC_NS, .. } => "TIME(s)".to_owned(),
            Parser::Time { unit_ns: units::MSEC_NS, .. } => "TIME(ms)".to_owned(),
            Parser::Time { .. } => "TIME(us)".to_owned(),
            Parser::Words { words, .. } => words.join("|"),
        }
    }

    /// Whether the value is a number, or several.
    pub(super) fn is_number(self) -> bool {
        matches!(
            self,
            Parser::Int { .. } | Parser::Ints { .. } | Parser::Size(_) | Parser::Time { .. } | Parser::Bool(_)
        )
    }

    /// Whether the value is an amount of data, so that an unexpected unit gives a warning.
    pub(super) fn counts_data(self) -> bool {
        match self {
            Parser::Int { .. } | Parser::Ints { .. } | Parser::Size(_) => true,
            Parser::Text { syntax, .. } => syntax.contains("SIZE") || syntax.contains("BYTES"),
            _ => false,
        }
    }
}

impl OptionInfo {
    /// The syntax of a value: `0|1`, `BYTES|PERCENT%`, `TIME(s)`, ...
    pub fn syntax(&self) -> String {
        self.parser.syntax()
    }

    /// Whether the option is nothing without a value.
    pub fn needs_value(&self) -> bool {
        !matches!(self.parser, Parser::Flag(_) | Parser::OptionalText | Parser::Name(_))
    }

    /// Whether the option belongs to an engine that mqblk has no counterpart for. The rejection of the engine is then
    /// sufficient.
    pub(super) fn is_foreign(&self) -> bool {
        self.support == Support::Refused(FOREIGN)
    }

    const fn row(
        name: &'static str,
        parser: Parser,
        default: &'static str,
        help: &'static str,
        support: Support,
    ) -> Self {
        OptionInfo { name, aliases: &[], default, help, support, off: &[], parser }
    }

    /// Returns the row with other names.
    pub(super) const fn alias(self, aliases: &'static [&'static str]) -> Self {
        OptionInfo { aliases, ..self }
    }

    /// Returns the row with values that are accepted silently.
    pub(super) const fn off(self, off: &'static [&'static str]) -> Self {
        OptionInfo { off, ..self }
    }
}

/// A supported option.
pub(super) const fn yes(name: &'static str, parser: Parser, default: &'static str, help: &'static str) -> OptionInfo {
    OptionInfo::row(name, parser, default, help, Support::Supported)
}

/// A supported option that fio does not have.
pub(super) const fn own(name: &'static str, parser: Parser, default: &'static str, help: &'static str) -> OptionInfo {
    OptionInfo::row(name, parser, default, help, Support::Own)
}

/// An option that changes nothing here.
pub(super) const fn quiet(name: &'static str, parser: Parser, default: &'static str, help: &'static str) -> OptionInfo {
    OptionInfo::row(name, parser, default, help, Support::Accepted)
}

/// An option that is ignored with a warning.
pub(super) const fn warn(
    name: &'static str,
    parser: Parser,
    default: &'static str,
    help: &'static str,
    advice: &'static str,
) -> OptionInfo {
    OptionInfo::row(name, parser, default, help, Support::Ignored(advice))
}

/// An option that is refused.
pub(super) const fn no(
    name: &'static str,
    parser: Parser,
    default: &'static str,
    help: &'static str,
    advice: &'static str,
) -> OptionInfo {
    OptionInfo::row(name, parser, default, help, Support::Refused(advice))
}

const FOREIGN: &str = "belongs to a fio engine that mqblk does not have; mqblk drives its own targets (file, block device, null, ram, model)";

/// An option of an engine that mqblk has no counterpart for.
pub(super) const fn foreign(name: &'static str) -> OptionInfo {
    no(name, Parser::OptionalText, "", "Option of an I/O engine that mqblk does not have", FOREIGN)
}

/// Parsers of options that set nothing.
pub(super) const TEXT: Parser = Parser::Text { syntax: "TEXT", set: |_, _, _| Ok(()) };
pub(super) const FLAG: Parser = Parser::Flag(|_, _| ());
pub(super) const BOOL: Parser = Parser::Bool(|_, _| ());
pub(super) const INT: Parser = Parser::Int { min: 0, max: u64::MAX, set: |_, _| () };
pub(super) const INTS: Parser = Parser::Ints { min: 0, max: u64::MAX, set: |_, _| () };
pub(super) const PCT: Parser = Parser::Int { min: 0, max: 100, set: |_, _| () };
pub(super) const FLOATS: Parser =
    Parser::Text { syntax: "NUMBER[:NUMBER...]", set: |_, v, _| lists::floats(v).map(|_| ()) };

/// One of `words`, setting nothing.
pub(super) const fn words(words: &'static [&'static str]) -> Parser {
    Parser::Words { words, set: |_, _| () }
}
