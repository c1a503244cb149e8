// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes what fio allows on its command line out of the arguments of `run`: job options and several job files.
//!
//! Guarantees: a flag of `run` stays a flag. Of the others, options of job files are taken as fio takes them: `--bs=4k`,
//! `-bs=4k` and `--bs 4k` are the same, and a flag such as `--time_based` needs no value. What is neither is left to the
//! parser of the command line, which refuses it. Does not do: the meaning of job options.

use std::ffi::OsString;
use std::path::PathBuf;
use workload::job::{CommandLine, find_option, nearest_option};

/// What was taken.
#[derive(Debug, Default)]
pub struct Taken {
    /// The job options.
    pub jobs: CommandLine,
    /// Job files after the first one.
    pub more_files: Vec<PathBuf>,
}

/// Splits the arguments of the program, its name first. Those of other subcommands than `run` stay as they are.
pub fn take(args: impl Iterator<Item = OsString>, program: &clap::Command) -> (Vec<OsString>, Taken) {
    let mut args: Vec<OsString> = args.collect();
    let run = program.find_subcommand("run").expect("there is a subcommand run");
    let is_run =
        args.get(1).and_then(|a| a.to_str()).is_some_and(|a| a == "run" || run.get_all_aliases().any(|n| n == a));
    if !is_run {
        return (args, Taken::default());
    }
    let rest = args.split_off(2);
    let mut split = Split { run, kept: args, taken: Taken::default(), has_file: false };
    if let Some(instead) = instead(&rest) {
        split.kept.truncate(1);
        split.kept.extend(instead);
        return (split.kept, split.taken);
    }
    split.all(rest);
    (split.kept, split.taken)
}

/// Returns the arguments of another subcommand that one of fio's own flags stands for.
fn instead(args: &[OsString]) -> Option<Vec<OsString>> {
    let flag = args.first()?.to_str()?;
    match flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value))) {
        ("--cmdhelp", Some("all") | None) => Some(vec!["cmdhelp".into()]),
        ("--cmdhelp", Some(option)) => Some(vec!["cmdhelp".into(), option.into()]),
        ("--version" | "-v", None) => Some(vec!["--version".into()]),
        _ => None,
    }
}

struct Split<'a> {
    run: &'a clap::Command,
    kept: Vec<OsString>,
    taken: Taken,
    has_file: bool,
}

impl Split<'_> {
    fn all(&mut self, args: Vec<OsString>) {
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(text) = arg.to_str() else {
                self.file(arg);
                continue;
            };
            if text == "--" {
                self.kept.push(arg);
                args.for_each(|file| self.file(file));
                return;
            }
            let body = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).filter(|body| !body.is_empty());
            let Some(body) = body else {
                self.file(arg);
                continue;
            };
            let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
            if let Some(takes_value) = self.own_flag(name).filter(|_| text.starts_with("--")) {
                let wants = takes_value && value.is_none();
                self.kept.push(arg);
                if wants {
                    self.kept.extend(args.next());
                }
            } else if let Some(option) = find_option(name) {
                let next = if value.is_none() && option.needs_value() { args.next() } else { None };
                let value = value.or_else(|| next.as_ref().and_then(|v| v.to_str()));
                self.taken.jobs.push(name, value);
            } else if value.is_some() && nearest_option(name).is_some() {
                // A misspelt option: the parser of jobs names the one that was meant.
                self.taken.jobs.push(name, value);
            } else {
                self.kept.push(arg);
            }
        }
    }

    fn file(&mut self, arg: OsString) {
        if std::mem::replace(&mut self.has_file, true) {
            self.taken.more_files.push(arg.into());
        } else {
            self.kept.push(arg);
        }
    }

    /// Whether `run` has a flag of this name, and whether it takes a value.
    fn own_flag(&self, name: &str) -> Option<bool> {
        let flag = self.run.get_arguments().find(|a| a.get_long() == Some(name));
        let help = (name == "help").then_some(false);
        flag.map(|f| f.get_action().takes_values()).or(help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;

    fn split(words: &str) -> (String, String, usize) {
        let args = words.split_whitespace().map(OsString::from);
        let (kept, taken) = take(args, &Cli::full_command());
        let kept: Vec<String> = kept.into_iter().map(|a| a.into_string().unwrap()).collect();
        (kept.join(" "), taken.jobs.to_string().replace('\n', " "), taken.more_files.len())
    }

    #[test]
    fn job_options_are_taken_and_flags_of_run_stay() {
        let (kept, jobs, _) =
            split("mqblk run --bs=4k -name=a --rw randread --time_based --target null --json --name=b");
        assert_eq!(kept, "mqblk run --target null --json");
        assert_eq!(jobs, "[global] bs=4k [a] rw=randread time_based [b] ");
        let (kept, jobs, more) = split("mqblk fio 1.fio --output-format=json 2.fio - --runtime=5");
        assert_eq!((kept.as_str(), more), ("mqblk fio 1.fio --output-format=json", 2));
        assert_eq!(jobs, "[global] runtime=5 ");
    }

    #[test]
    fn what_is_no_job_option_is_left_to_be_refused() {
        assert_eq!(split("mqblk run a.fio -- --bs=4k"), ("mqblk run a.fio --".to_owned(), String::new(), 1));
        assert_eq!(split("mqblk run j.fio --jsn -x").0, "mqblk run j.fio --jsn -x");
        assert_eq!(split("mqblk run --iodpeth=4").1, "[global] iodpeth=4 ");
        assert_eq!(
            split("mqblk compare j.fio --b mode=sq --runtime=5").0,
            "mqblk compare j.fio --b mode=sq --runtime=5"
        );
    }

    #[test]
    fn help_and_version_of_fio_become_ours() {
        assert_eq!(split("mqblk fio --cmdhelp=bs").0, "mqblk cmdhelp bs");
        assert_eq!(split("mqblk fio --version").0, "mqblk --version");
    }
}
