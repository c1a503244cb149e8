// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of every option fio has (3.33 to 3.42), and of our own: one row gives the parser, the default, the help text and what mqblk does with it.
//!
//! Guarantees: names and aliases are unique; the rows are in `table_*`, grouped as in fio's manual.
//! Source of names, types and defaults: `fio --cmdhelp=all` and `fio --enghelp` of 3.33; a test compares.

use super::option::OptionInfo;
use super::{table_engine, table_io, table_newer, table_oltp, table_policy, table_replay, table_report, table_target};

/// Every option, grouped as in fio's manual, then those of later releases and our own.
pub fn options() -> impl Iterator<Item = &'static OptionInfo> {
    table_target::ROWS
        .iter()
        .chain(table_io::ROWS)
        .chain(table_policy::ROWS)
        .chain(table_replay::ROWS)
        .chain(table_report::ROWS)
        .chain(table_engine::ROWS)
        .chain(table_newer::ROWS)
        .chain(table_oltp::ROWS)
}

/// The option of this name or alias.
pub fn find_option(name: &str) -> Option<&'static OptionInfo> {
    options().find(|o| o.name == name || o.aliases.contains(&name))
}

/// The known name nearest to a mistyped one.
pub fn nearest_option(name: &str) -> Option<&'static str> {
    blk::suggest::nearest(name, options().flat_map(|o| std::iter::once(o.name).chain(o.aliases.iter().copied())))
}
