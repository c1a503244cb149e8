// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints a configuration as `multipath -t` does: all sections, in the same order and layout. Several `multipath` sections of one WWID are
//! merged into one.
//!
//! Guarantees: the printed text parses to the same configuration, except that built-in defaults are then set explicitly. An option without
//! effect here is followed by a comment that says so.

use super::options::{self, OPTIONS, Sections};
use super::{Block, Config, Listed, ListedBy, Resolved, Setting};
use crate::driver::multipath::MAX_SECONDS;
use std::fmt;
use std::sync::Arc;

/// A value in quotes.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('"', "\"\""))
}

fn option(f: &mut fmt::Formatter<'_>, indent: &str, setting: &Setting) -> fmt::Result {
    let Setting { option, value, .. } = setting;
    let value = if option.is_quoted(value) { quoted(value) } else { value.clone() };
    let idle = if option.idle.is_some() { " # no effect here" } else { "" };
    writeln!(f, "{indent}{} {value}{idle}", option.name)
}

/// Prints settings in the order of [`OPTIONS`].
fn all_of(f: &mut fmt::Formatter<'_>, indent: &str, settings: &[Setting]) -> fmt::Result {
    let in_order = OPTIONS.iter().filter_map(|o| settings.iter().find(|s| s.option == o));
    in_order.into_iter().try_for_each(|s| option(f, indent, s))
}

fn block(f: &mut fmt::Formatter<'_>, name: &str, block: &Block) -> fmt::Result {
    writeln!(f, "\t{name} {{")?;
    all_of(f, "\t\t", &block.settings)?;
    writeln!(f, "\t}}")
}

fn listed(f: &mut fmt::Formatter<'_>, name: &str, all: &[Listed]) -> fmt::Result {
    writeln!(f, "{name} {{")?;
    for one in all {
        match &one.by {
            ListedBy::One(criterion, value) => writeln!(f, "\t{criterion} {}", quoted(value))?,
            ListedBy::Device(vendor, product) => {
                writeln!(f, "\tdevice {{")?;
                for (name, value) in [("vendor", vendor), ("product", product)] {
                    value.iter().try_for_each(|v| writeln!(f, "\t\t{name} {}", quoted(v)))?;
                }
                writeln!(f, "\t}}")?;
            }
        }
    }
    writeln!(f, "}}")
}

impl Config {
    /// Returns `defaults` with the built-in values of options that it does not set.
    fn merged_defaults(&self) -> Vec<Setting> {
        let mut all = self.defaults.clone();
        for o in OPTIONS.iter().filter(|o| o.sections.contains(Sections::DEFAULTS)) {
            if let (Some(value), false) = (o.default, all.iter().any(|s| s.option == o)) {
                all.push(Setting { option: o, value: value.to_owned(), file: Arc::default(), line: 0 });
            }
        }
        let set = |name: &str| all.iter().find(|s| s.option.name == name);
        if let (None, Some(interval), Some(option)) =
            (set("max_polling_interval"), set("polling_interval"), options::find("max_polling_interval"))
        {
            let four = interval.value.parse::<u64>().map_or(MAX_SECONDS, |n| (4 * n).min(MAX_SECONDS));
            all.push(Setting { option, value: four.to_string(), file: Arc::default(), line: 0 });
        }
        all
    }

    /// Returns the `multipath` sections with those of one WWID merged.
    fn merged_multipaths(&self) -> Vec<Block> {
        let mut merged: Vec<Block> = Vec::new();
        for block in &self.multipaths {
            let wwid = |b: &Block| b.get("wwid").map(|s| s.value.clone());
            match merged.iter_mut().find(|b| wwid(b) == wwid(block)) {
                None => merged.push(block.clone()),
                Some(first) => {
                    first.settings.retain(|s| block.settings.iter().all(|later| later.option != s.option));
                    first.settings.extend(block.settings.iter().cloned());
                }
            }
        }
        merged
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "defaults {{")?;
        all_of(f, "\t", &self.merged_defaults())?;
        writeln!(f, "}}")?;
        listed(f, "blacklist", &self.blacklist)?;
        listed(f, "blacklist_exceptions", &self.blacklist_exceptions)?;
        writeln!(f, "devices {{")?;
        self.devices.iter().try_for_each(|d| block(f, "device", &d.block))?;
        writeln!(f, "}}\noverrides {{")?;
        all_of(f, "\t", &self.overrides)?;
        self.protocols.iter().try_for_each(|p| block(f, "protocol", p))?;
        writeln!(f, "}}\nmultipaths {{")?;
        self.merged_multipaths().iter().try_for_each(|m| block(f, "multipath", m))?;
        writeln!(f, "}}")
    }
}

impl Resolved {
    /// Returns the values as a `multipath` section of a disk, each option with its origin: `multipath.conf:7, devices`.
    pub fn show(&self, wwid: &str) -> String {
        let mut out = format!("multipath {{\n\twwid {}\n", quoted(wwid));
        for found in &self.found {
            let value = if found.option.is_quoted(&found.value) { quoted(&found.value) } else { found.value.clone() };
            let place = found.place().map_or_else(String::new, |place| format!("{place}, "));
            let idle = if found.option.idle.is_some() { "; no effect here" } else { "" };
            out += &format!("\t{} {value} # {place}{}{idle}\n", found.option.name, found.origin);
        }
        out + "}\n"
    }
}
