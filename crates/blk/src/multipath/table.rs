// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's table line of a multipath disk (`dmsetup table`): parsing and printing.
//!
//! Guarantees: a printed table is parsed back equal. Every error names the word, its position in the line, and the rule
//! that it breaks. Lines may come from untrusted sources: counts are bounded before anything is allocated for them.
//! `repeat_count` is accepted, and 1 is used in its place, as in the kernel. `queue_mode bio` is rejected, because this driver works on
//! requests.
//!
//! Does not look up the devices that the line names. Source: drivers/md/dm-mpath.c (`multipath_ctr`, `multipath_status`), dm-ps-*.c.

use super::config::{Features, MAX_GROUPS, MAX_PATHS};
use super::cpu_mask::{format_cpu_mask, parse_cpu_mask};
use super::selector::{BASE_WEIGHT, MAX_THROUGHPUT, MAX_WEIGHT, PathArgs, Selector};
use crate::id::MAX_CPUS;
use crate::time::Duration;
use core::fmt;
use core::str::FromStr;

/// An error in a table line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {word} of the table, '{value}': {rule}")]
pub struct TableError {
    /// Number of the wrong word, from 1; one more than the number of words when the line ends too soon.
    pub word: usize,
    /// The word, or nothing.
    pub value: String,
    /// What the word must be.
    pub rule: String,
}

/// A path by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTable {
    /// Name as written in the table.
    pub name: String,
    /// Arguments for the selector.
    pub args: PathArgs,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTable {
    /// Selector with its arguments.
    pub selector: Selector,
    /// Its paths.
    pub paths: Vec<PathTable>,
}

/// The arguments after `multipath`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// `queue_if_no_path`, `pg_init_retries`, `pg_init_delay_msecs`. The table has no `no_path_timeout`.
    pub features: Features,
    /// `retain_attached_hw_handler`.
    pub retain_attached_handler: bool,
    /// Hardware handler and its arguments; empty = none.
    pub handler: Vec<String>,
    /// Number of the group to begin with, from 1; 0 without groups.
    pub first_group: usize,
    /// Groups in order of preference.
    pub groups: Vec<GroupTable>,
}

struct Words<'a> {
    words: std::iter::Enumerate<std::str::SplitAsciiWhitespace<'a>>,
    last: (usize, &'a str),
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, TableError> {
        self.last = self.words.next().map_or((self.last.0 + 1, ""), |(i, w)| (i + 1, w));
        if self.last.1.is_empty() { self.wrong(format!("the line ends where {what} must be")) } else { Ok(self.last.1) }
    }

    /// Returns an error for the last word.
    fn wrong<T>(&self, rule: String) -> Result<T, TableError> {
        Err(TableError { word: self.last.0, value: self.last.1.to_owned(), rule })
    }

    fn number(&mut self, what: &str, min: u64, max: u64) -> Result<u64, TableError> {
        match self.next(what)?.parse() {
            Ok(n) if (min..=max).contains(&n) => Ok(n),
            _ => self.wrong(format!("{what}: must be a number, {min}..={max}")),
        }
    }
}

impl FromStr for Table {
    type Err = TableError;

    /// Parses the words after `multipath`.
    fn from_str(line: &str) -> Result<Table, TableError> {
        let mut w = Words { words: line.split_ascii_whitespace().enumerate(), last: (0, "") };
        let mut table = Table::default();
        table.read_features(&mut w)?;
        let n = w.number("the number of handler arguments", 0, 64)?;
        for _ in 0..n {
            table.handler.push(w.next("a handler argument")?.to_owned());
        }
        let nr_groups = w.number("the number of groups", 0, MAX_GROUPS as u64)?;
        table.first_group = w.number("the first group", nr_groups.min(1), nr_groups)? as usize;
        let mut left = MAX_PATHS as u64;
        for _ in 0..nr_groups {
            table.groups.push(read_group(&mut w, &mut left)?);
        }
        match w.words.next() {
            None => Ok(table),
            Some((i, word)) => {
                w.last = (i + 1, word);
                w.wrong("is unexpected: all groups are already listed".into())
            }
        }
    }
}

impl Table {
    fn read_features(&mut self, w: &mut Words<'_>) -> Result<(), TableError> {
        let mut left = w.number("the number of feature arguments", 0, 8)?;
        while left > 0 {
            let name = w.next("a feature")?;
            let takes = u64::from(!matches!(name, "queue_if_no_path" | "retain_attached_hw_handler"));
            if left <= takes {
                return w.wrong("takes an argument that is not counted in the number of feature arguments".into());
            }
            match name {
                "queue_if_no_path" => self.features.queue_if_no_path = true,
                "retain_attached_hw_handler" => self.retain_attached_handler = true,
                "pg_init_retries" => self.features.pg_init_retries = w.number(name, 1, 50)? as u32,
                "pg_init_delay_msecs" => {
                    self.features.pg_init_delay = Some(Duration::from_ms(w.number(name, 0, 60_000)?));
                }
                "queue_mode" => match w.next(name)? {
                    "mq" | "rq" => {}
                    _ => return w.wrong("queue_mode: must be mq or its synonym rq; bio mode is not supported".into()),
                },
                _ => return w.wrong("is no feature: must be queue_if_no_path, retain_attached_hw_handler, pg_init_retries, pg_init_delay_msecs or queue_mode".into()),
            }
            left -= 1 + takes;
        }
        Ok(())
    }
}

fn read_group(w: &mut Words<'_>, left: &mut u64) -> Result<GroupTable, TableError> {
    let mut selector = match w.next("a path selector")? {
        "round-robin" => Selector::RoundRobin,
        "queue-length" => Selector::QueueLength,
        "service-time" => Selector::ServiceTime,
        "historical-service-time" => {
            Selector::HistoricalServiceTime { base_weight: BASE_WEIGHT, threshold_multiplier: 0 }
        }
        "io-affinity" => Selector::IoAffinity,
        _ => {
            return w.wrong(
                "must be round-robin, queue-length, service-time, historical-service-time or io-affinity".into(),
            );
        }
    };
    let is_historical = matches!(selector, Selector::HistoricalServiceTime { .. });
    let nr_args = w.number("the number of selector arguments", 0, if is_historical { 2 } else { 0 })?;
    if let Selector::HistoricalServiceTime { base_weight, threshold_multiplier } = &mut selector {
        if nr_args > 0 {
            *base_weight = w.number("the base weight", 0, MAX_WEIGHT.into())? as u16;
        }
        if nr_args > 1 {
            *threshold_multiplier = w.number("the threshold multiplier", 0, u16::MAX.into())? as u16;
        }
    }
    let nr_paths = w.number("the number of paths", 1, *left)?;
    *left -= nr_paths;
    let (min, max) = match selector {
        Selector::IoAffinity => (1, 1),
        Selector::ServiceTime => (0, 2),
        _ => (0, 1),
    };
    let nr_path_args = w.number("the number of arguments per path", min, max)?;
    let mut paths = Vec::new();
    for _ in 0..nr_paths {
        let name = w.next("a path")?.to_owned();
        let mut args = PathArgs::default();
        if selector == Selector::IoAffinity {
            let mask = w.next("a mask of CPUs")?;
            args.cpus = match parse_cpu_mask(mask) {
                Some(cpus) => cpus,
                None => {
                    return w.wrong(format!(
                        "must be a mask of CPUs below {MAX_CPUS}: hexadecimal, groups of 8 digits separated by ','"
                    ));
                }
            };
        } else if nr_path_args > 0 {
            w.number("repeat_count", 0, u32::MAX.into())?;
            if nr_path_args > 1 {
                args.throughput = w.number("the relative throughput", 0, MAX_THROUGHPUT.into())? as u8;
            }
        }
        paths.push(PathTable { name, args });
    }
    Ok(GroupTable { selector, paths })
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut features: Vec<String> = Vec::new();
        if self.features.queue_if_no_path {
            features.push("queue_if_no_path".into());
        }
        if self.features.pg_init_retries > 0 {
            features.extend(["pg_init_retries".into(), self.features.pg_init_retries.to_string()]);
        }
        if let Some(delay) = self.features.pg_init_delay {
            features.extend(["pg_init_delay_msecs".into(), delay.as_ms().to_string()]);
        }
        if self.retain_attached_handler {
            features.push("retain_attached_hw_handler".into());
        }
        for list in [&features, &self.handler] {
            write!(f, "{} ", list.len())?;
            list.iter().try_for_each(|word| write!(f, "{word} "))?;
        }
        write!(f, "{} {} ", self.groups.len(), self.first_group)?;
        for group in &self.groups {
            let args = group.selector.args();
            write!(f, "{} {} ", group.selector.name(), args.len())?;
            args.iter().try_for_each(|a| write!(f, "{a} "))?;
            let nr_args = if group.selector == Selector::ServiceTime { 2 } else { 1 };
            write!(f, "{} {nr_args} ", group.paths.len())?;
            for path in &group.paths {
                match group.selector {
                    Selector::IoAffinity => write!(f, "{} {} ", path.name, format_cpu_mask(&path.args.cpus))?,
                    Selector::ServiceTime => write!(f, "{} 1 {} ", path.name, path.args.throughput)?,
                    _ => write!(f, "{} 1 ", path.name)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of oracle/multipath-6.1.txt, and a line with every feature.
    #[test]
    fn lines_are_read_and_printed() {
        for line in [
            "0 0 1 1 round-robin 0 2 1 252:0 1 252:1 1 ",
            "0 0 1 1 queue-length 0 2 1 252:0 1 252:1 1 ",
            "0 0 1 1 service-time 0 2 2 252:0 1 1 252:1 1 2 ",
            "6 queue_if_no_path pg_init_retries 50 pg_init_delay_msecs 0 retain_attached_hw_handler 1 alua 3 2 \
             historical-service-time 2 900 3 1 1 a 1 io-affinity 0 2 1 b 3 c 1,80000001 queue-length 0 1 1 d 1 ",
            "0 0 0 0 ",
        ] {
            let table: Table = line.parse().unwrap();
            assert_eq!(table.to_string(), line);
        }
        let table: Table = "3 queue_if_no_path queue_mode mq 0 1 1 service-time 0 1 0 8:0".parse().unwrap();
        assert_eq!(table.to_string(), "1 queue_if_no_path 0 1 1 service-time 0 1 2 8:0 1 1 ");
        let table: Table = "0 0 1 1 io-affinity 0 1 1 8:0 1,80000001".parse().unwrap();
        assert_eq!(table.groups[0].paths[0].args.cpus, [0, 31, 32]);
    }

    #[test]
    fn errors_name_the_word() {
        for (line, word, rule) in [
            ("", 1, "the line ends where the number of feature arguments must be"),
            ("9", 1, "the number of feature arguments: must be a number, 0..=8"),
            ("1 pg_init_retries 5", 2, "takes an argument that is not counted"),
            ("2 pg_init_retries 51", 3, "pg_init_retries: must be a number, 1..=50"),
            ("2 queue_mode bio", 3, "queue_mode: must be mq"),
            ("1 fast 0 0 0", 2, "takes an argument"),
            ("2 fast 1 0 0 0", 2, "is no feature"),
            ("0 0 1 2", 4, "the first group: must be a number, 1..=1"),
            ("0 0 65 1", 3, "the number of groups: must be a number, 0..=64"),
            ("0 0 1 1 fastest", 5, "must be round-robin"),
            ("0 0 1 1 round-robin 1", 6, "the number of selector arguments: must be a number, 0..=0"),
            ("0 0 1 1 round-robin 0 65", 7, "the number of paths: must be a number, 1..=64"),
            ("0 0 1 1 service-time 0 1 2 8:0 1 101", 11, "the relative throughput: must be a number, 0..=100"),
            ("0 0 1 1 service-time 0 1 2 8:0 1", 11, "the line ends where the relative throughput"),
            ("0 0 1 1 historical-service-time 1 1024", 7, "the base weight: must be a number, 0..=1023"),
            ("0 0 1 1 io-affinity 0 1 1 8:0 xyz", 10, "must be a mask of CPUs"),
            ("0 0 1 1 io-affinity 0 1 1 8:0 ,", 10, "must be a mask of CPUs"),
            ("0 0 1 1 round-robin 0 1 1 8:0 1 more", 11, "all groups are already listed"),
        ] {
            let e = line.parse::<Table>().unwrap_err();
            assert_eq!(e.word, word, "{line}: {e}");
            assert!(e.rule.contains(rule), "{line}: {e}");
        }
    }
}
