// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs that are given as options of a command line: `--bs=4k --name=a --rw=randread --name=b --rw=write`.
//!
//! Guarantees: fio's rules. Options before the first `name` are global, `name` begins a job, and later options belong to it.
//! Jobs of a command line come before those of files, and its global options apply to the first file, too. Does not do: tell
//! job options from a program's own flags.

use super::error::Origin;
use super::parse::{self, IncludeReader, Raw, RawOption, RawSection};
use std::fmt;

/// The job options of a command line, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    options: Vec<(String, Option<String>)>,
}

impl CommandLine {
    /// Adds an option; `None` sets a flag.
    pub fn push(&mut self, key: &str, value: Option<&str>) {
        self.options.push((key.to_owned(), value.map(str::to_owned)));
    }

    /// Whether there is no option.
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// Returns these jobs and those of a file, given with its name, as one command line. If `only` is not empty, other jobs
    /// are left out.
    pub fn with_file(&self, file: (&str, &str), includes: &dyn IncludeReader, only: &[String]) -> CommandLine {
        let mut raw = Raw::default();
        self.sections(&mut raw);
        let mut all = CommandLine::default();
        let sections = parse::parse(raw, &[file], includes).sections;
        let asked = |s: &&RawSection| s.global || only.is_empty() || only.contains(&s.name);
        for (n, section) in sections.iter().filter(asked).enumerate() {
            if n > 0 || !section.global {
                all.push("name", Some(&section.name));
            }
            section.options.iter().for_each(|o| all.push(&o.key, o.value.as_deref()));
        }
        all
    }

    /// The options as a shell reads them.
    pub fn words(&self) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-=.,:/%@+^".contains(c);
        let quoted = |text: &str| match text.chars().all(plain) {
            true => text.to_owned(),
            false => format!("'{}'", text.replace('\'', "'\\''")),
        };
        let word = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("--{}={}", quoted(key), quoted(value)),
            None => format!("--{}", quoted(key)),
        };
        self.options.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Adds the sections to those of files.
    pub(super) fn sections(&self, raw: &mut Raw) {
        for (key, value) in &self.options {
            let origin = Origin::CommandLine;
            let name = section_of(key, value.as_deref());
            if name.is_some_and(|name| name.trim().is_empty()) {
                raw.refuse(&origin, "--name=", "is empty", "give the job a name");
            }
            if name.is_some() || raw.sections.is_empty() {
                let name = name.unwrap_or("global").to_owned();
                let (seq, global) = (raw.take_seq(), is_global(&name));
                let origin = origin.clone();
                let options = Vec::new();
                raw.sections.push(RawSection { name, global, line: 0, origin, seq, options, file: 0 });
            }
            if name.is_none() {
                let option = RawOption { origin, seq: raw.take_seq(), key: key.clone(), value: value.clone() };
                raw.sections.last_mut().expect("a section was just made").options.push(option);
            }
        }
    }
}

impl fmt::Display for CommandLine {
    /// The same jobs as a job file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (key, value)) in self.options.iter().enumerate() {
            match (section_of(key, value.as_deref()), value) {
                (Some(name), _) => writeln!(f, "[{name}]")?,
                (None, _) if n == 0 => writeln!(f, "[global]")?,
                (None, _) => {}
            }
            match value {
                _ if key == "name" => {}
                Some(value) => writeln!(f, "{key}={value}")?,
                None => writeln!(f, "{key}")?,
            }
        }
        Ok(())
    }
}

/// The name of the section that an option begins.
fn section_of<'a>(key: &str, value: Option<&'a str>) -> Option<&'a str> {
    value.filter(|_| key == "name")
}

/// fio compares only six letters.
pub(super) fn is_global(name: &str) -> bool {
    name.starts_with("global")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobFile, ParseContext};

    fn line(words: &[&str]) -> CommandLine {
        let mut line = CommandLine::default();
        for word in words {
            let (key, value) = word.split_once('=').map_or((*word, None), |(key, value)| (key, Some(value)));
            line.push(key, value);
        }
        line
    }

    fn jobs(words: &[&str], files: &[(&str, &str)]) -> Vec<(String, u64, u32)> {
        let file = JobFile::parse(&line(words), files, &ParseContext::bare("x"), &[]).unwrap();
        file.jobs.iter().map(|j| (j.name.clone(), j.block_sizes.read.min_bytes(), j.iodepth)).collect()
    }

    #[test]
    fn options_before_the_first_name_are_global() {
        let typed = ["ioengine=libaio", "iodepth=4", "name=a", "bs=8k", "name=b", "iodepth=2"];
        let own = [("a".to_owned(), 8192, 4), ("b".to_owned(), 4096, 2)];
        assert_eq!(jobs(&typed, &[]), own);
        let files = [("1.fio", "[c]\n"), ("2.fio", "[global]\nbs=1k\n[d]\nioengine=libaio\niodepth=2\n[e]\n")];
        let with_files = jobs(&typed, &files);
        assert_eq!(with_files[..2], own);
        assert_eq!(with_files[2..], [("c".to_owned(), 4096, 4), ("d".to_owned(), 1024, 2), ("e".to_owned(), 1024, 1)]);
        let file = JobFile::parse(&line(&typed), &files, &ParseContext::bare("x"), &[]).unwrap();
        let walls: Vec<&str> = file.jobs.iter().filter(|j| j.stonewall).map(|j| j.name.as_str()).collect();
        assert_eq!(walls, ["d"], "the first job of a further file waits");
    }

    #[test]
    fn its_text_means_the_same() {
        for words in [&["bs=8k", "name=a", "time_based", "runtime=3"][..], &["name=a", "rw=write", "name=b"]] {
            let typed = line(words);
            let context = ParseContext::bare("x");
            let direct = JobFile::parse(&typed, &[], &context, &[]).unwrap();
            let mut through_text = JobFile::parse_str(&typed.to_string(), &context, &[]).unwrap();
            through_text.jobs.iter_mut().for_each(|j| j.line = 0);
            assert_eq!(direct, through_text, "{words:?}");
        }
    }

    #[test]
    fn a_file_as_a_command_line_means_the_same() {
        let text =
            "[global]\nbs=8k ; comment\n[a b]\ntime_based\nruntime=3\ndescription=it's one\n[global]\niodepth=1\n[c]\n";
        let all = CommandLine::default().with_file(("x", text), &crate::job::NoIncludes, &[]);
        let words = "--bs=8k --name='a b' --time_based --runtime=3 --description='it'\\''s one' --name=global --iodepth=1 --name=c";
        assert_eq!(all.words(), words);
        let again = JobFile::parse(&all, &[], &ParseContext::bare("x"), &[]).unwrap();
        let file = JobFile::parse_str(text, &ParseContext::bare("x"), &[]).unwrap();
        let shapes = |f: &JobFile| f.jobs.iter().map(|j| (j.name.clone(), j.options.clone())).collect::<Vec<_>>();
        assert_eq!(shapes(&again), shapes(&file));
    }

    #[test]
    fn messages_name_the_option_and_the_job() {
        let typed = line(&["name=a", "bs=4q"]);
        let error = JobFile::parse(&typed, &[], &ParseContext::bare("x"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("command line: bs=4q: "), "{error}");
        assert!(error.contains("(job 'a')"), "{error}");
        let none =
            JobFile::parse(&line(&["bs=4k"]), &[], &ParseContext::bare("command line"), &[]).unwrap_err().to_string();
        assert_eq!(none, "command line: the options: name no job; begin one with --name=JOB");
    }
}
