// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From raw sections to jobs: applies the option table in fio's order and collects the errors.
//!
//! Guarantees: `[global]` sections accumulate and apply only to the jobs below them. Overrides come last. There is one
//! error per line, in reading order. An unsupported option is an error only for jobs to which it applies. Needs from
//! callers: a [`ParseContext`]. Does not do: I/O, environment access.

use super::command_line::CommandLine;
use super::draft::{Draft, FileOption, OptionOrigin};
use super::error::{ERRORS_MAX, ErrorKind, JobError, JobErrors, Origin, Reject, Warning, quote};
use super::expand::{self, Lookup};
use super::option::{OptionInfo, Support};
use super::option_table;
use super::parse::{self, IncludeReader, NoIncludes, Raw, RawOption, RawSection};
use super::resolve::{self, ResolveContext};
use super::spec::{Job, JobFile};
use super::units;
use crate::replay::TraceFile;

/// The data that a job file may refer to. The parser itself reads no file and no environment.
#[derive(Clone, Copy)]
pub struct ParseContext<'a> {
    /// Name of the job file, used in messages. Includes are looked up in its directory.
    pub file: &'a str,
    /// `${NAME}`; `None` = not set.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Reads included files.
    pub include: &'a dyn IncludeReader,
    /// CPUs of the machine: `$ncpus`, and the bound of `cpus_allowed`. At least 1.
    pub ncpus: u32,
    /// `$pagesize` in bytes.
    pub pagesize_bytes: u64,
    /// `$mb_memory`: main memory in MiB.
    pub memory_mib: u64,
    /// Whether this `filename` names one of mqblk's targets (such as `null:`), in which `:` does not separate files.
    pub is_target: &'a dyn Fn(&str) -> bool,
    /// The files below a directory, in the order of the directory, or why it cannot be read (`opendir`).
    pub files_below: &'a dyn Fn(&str) -> Result<Vec<String>, String>,
    /// Opens what a name of `read_iolog` stands for: a file, or those of several CPUs. Or says why it cannot be read.
    pub traces: &'a dyn Fn(&str) -> Result<Vec<TraceFile>, String>,
    /// If not empty, only these sections become jobs, and only they are checked.
    pub sections: &'a [String],
}

/// An option from the command line that applies to every job, after those of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The flag it came from, for messages: `--job-set`.
    pub flag: &'static str,
    /// The option.
    pub key: String,
    /// Its value; an empty value sets a flag.
    pub value: String,
}

impl<'a> ParseContext<'a> {
    /// A context without environment, includes or targets, on a machine of one CPU; for tests and as a base to change.
    pub fn bare(file: &'a str) -> Self {
        ParseContext {
            file,
            env: &|_| None,
            include: &NoIncludes,
            ncpus: 1,
            pagesize_bytes: 4096,
            memory_mib: 1024,
            is_target: &|_| false,
            files_below: &|_| Err("directories are not read here".to_owned()),
            traces: &|_| Err("traces are not read here".to_owned()),
            sections: &[],
        }
    }
}

impl JobFile {
    /// Parses and checks a job file; `overrides` apply to every job, last.
    ///
    /// # Errors
    /// The first error of each line, in reading order.
    pub fn parse_str(text: &str, context: &ParseContext<'_>, overrides: &[Override]) -> Result<JobFile, JobErrors> {
        JobFile::parse(&CommandLine::default(), &[(context.file, text)], context, overrides)
    }

    /// As [`JobFile::parse_str`] for the jobs of a command line and of several files, given as names and texts.
    ///
    /// # Errors
    /// As [`JobFile::parse_str`].
    pub fn parse(
        typed: &CommandLine,
        files: &[(&str, &str)],
        context: &ParseContext<'_>,
        overrides: &[Override],
    ) -> Result<JobFile, JobErrors> {
        let mut raw = Raw::default();
        typed.sections(&mut raw);
        let raw = parse::parse(raw, files, context.include);
        let no_job = match files {
            [] => ("the options", "name no job", "begin one with --name=JOB"),
            _ => ("the file", "has no job section", "add a section such as [job1]"),
        };
        Interpreter::new(context, &raw, overrides).run(raw, no_job)
    }
}

struct Interpreter<'a> {
    context: &'a ParseContext<'a>,
    lookup: Lookup<'a>,
    overrides: Vec<RawOption>,
    errors: Vec<(u32, JobError)>,
    warnings: Vec<Warning>,
}

impl<'a> Interpreter<'a> {
    fn new(context: &'a ParseContext<'a>, raw: &Raw, overrides: &[Override]) -> Self {
        let option = |(given, seq): (&Override, u32)| RawOption {
            origin: Origin::Flag(given.flag),
            seq,
            key: given.key.trim().to_owned(),
            value: Some(given.value.trim().to_owned()).filter(|v| !v.is_empty()),
        };
        let keywords = [
            ("pagesize", context.pagesize_bytes),
            ("mb_memory", context.memory_mib),
            ("ncpus", u64::from(context.ncpus)),
        ];
        Interpreter {
            context,
            lookup: Lookup { env: context.env, keywords },
            overrides: overrides.iter().zip(raw.next_seq + 1..).map(option).collect(),
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn run(mut self, mut raw: Raw, no_job: (&str, &str, &str)) -> Result<JobFile, JobErrors> {
        self.errors.append(&mut raw.errors);
        self.warnings.append(&mut raw.warnings);
        self.select(&mut raw);
        let mut global = Draft::new();
        let mut global_options = Vec::new();
        let mut jobs: Vec<Job> = Vec::new();
        let (mut file, mut waits) = (0, false);
        for section in &raw.sections {
            if std::mem::replace(&mut file, section.file) < section.file {
                // fio begins each further file with a stonewall and without the options of the command line.
                (global, waits) = (Draft::new(), true);
            }
            if section.global {
                self.apply_all(&mut global, &section.options, section);
                self.repeat(&section.options, &mut global_options);
            } else {
                let mut draft = global.clone();
                draft.job.stonewall |= std::mem::take(&mut waits);
                let mut job = self.job(draft, section, &jobs);
                self.repeat(&section.options, &mut job.options);
                jobs.push(job);
            }
        }
        self.repeat(&self.overrides, &mut global_options);
        if jobs.is_empty() && self.errors.is_empty() {
            self.no_job(no_job);
        }
        self.finish(jobs, global_options)
    }

    /// Removes the sections that were not selected, with their warnings and errors.
    fn select(&mut self, raw: &mut Raw) {
        let wanted = self.context.sections;
        if wanted.is_empty() {
            return;
        }
        let known: Vec<&str> = raw.sections.iter().filter(|s| !s.global).map(|s| s.name.as_str()).collect();
        let unknown = wanted.iter().find(|s| !known.contains(&s.as_str()));
        // If the file has no job at all, that error is reported instead.
        if let Some(unknown) = unknown.filter(|_| !known.is_empty()) {
            let error = JobError {
                origin: Origin::Flag("--section"),
                job: None,
                typed: quote(unknown),
                kind: ErrorKind::BadValue,
                rule: format!("{} has no such job", self.context.file),
                remedy: format!("it has {}", known.join(", ")),
            };
            self.errors.push((u32::MAX, error));
        }
        let left_out: Vec<String> =
            raw.sections.iter().filter(|s| !s.global && !wanted.contains(&s.name)).map(|s| s.name.clone()).collect();
        raw.sections.retain(|s| !left_out.contains(&s.name));
        self.warnings.retain(|w| w.job.as_ref().is_none_or(|job| !left_out.contains(job)));
    }

    /// Appends the options with a value to a list for reports. A later one replaces an earlier one of the same name.
    fn repeat(&self, options: &[RawOption], list: &mut Vec<(String, String)>) {
        for raw in options {
            let Some(option) = option_table::find_option(&raw.key) else { continue };
            let Ok((Some(value), _)) = self.expanded(option, raw) else { continue };
            list.retain(|(name, _)| name != option.name);
            list.push((option.name.to_owned(), value));
        }
    }

    /// Makes the job of a section from the globals so far, its own options, and the overrides.
    fn job(&mut self, mut draft: Draft, section: &RawSection, above: &[Job]) -> Job {
        draft.job.name.clone_from(&section.name);
        draft.job.line = section.line;
        self.apply_all(&mut draft, &section.options, section);
        let overrides = std::mem::take(&mut self.overrides);
        if overrides.iter().any(|o| o.key == "filename" || o.key == "opendir") {
            draft.files.clear();
        }
        self.apply_all(&mut draft, &overrides, section);
        self.overrides = overrides;
        let named = draft.files.iter().any(|f| !matches!(f, FileOption::Count(_)));
        if !named && draft.job.name.contains(char::REPLACEMENT_CHARACTER) {
            let error = JobError {
                origin: section.origin.clone(),
                job: None,
                typed: quote(&section.name),
                kind: ErrorKind::BadValue,
                rule: "names a file by bytes that are not UTF-8".to_owned(),
                remedy: "rename the job, or give filename=".to_owned(),
            };
            self.errors.push((section.seq, error));
        }
        let around = ResolveContext {
            above,
            header: section.origin.clone(),
            header_seq: section.seq,
            ncpus: self.context.ncpus,
            is_target: self.context.is_target,
            files_below: self.context.files_below,
            traces: self.context.traces,
        };
        let mut resolved = resolve::resolve(draft, &around);
        self.errors.append(&mut resolved.errors);
        self.warnings.append(&mut resolved.warnings);
        resolved.job
    }

    /// Applies all options. `kb_base` affects how the others are parsed, so it is applied first wherever it is, and
    /// `filename` after `nrfiles`, whose value it replaces (as in fio).
    fn apply_all(&mut self, draft: &mut Draft, options: &[RawOption], section: &RawSection) {
        let (bases, others): (Vec<_>, Vec<_>) = options.iter().partition(|o| o.key == "kb_base");
        let (names, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|o| o.key == "filename");
        for option in bases.into_iter().chain(others).chain(names) {
            if self.errors.len() > ERRORS_MAX {
                return;
            }
            self.apply(draft, option, section);
        }
    }

    fn apply(&mut self, draft: &mut Draft, raw: &RawOption, section: &RawSection) {
        let Some(option) = option_table::find_option(&raw.key) else {
            return self.unknown(raw, section);
        };
        if option.name == "name" && section.global {
            return; // fio names jobs by their sections, whatever a global section says.
        }
        draft.refused.remove(option.name);
        let (value, unset) = match self.expanded(option, raw) {
            Ok(expanded) => expanded,
            Err(reject) => return self.reject(draft, option, raw, section, reject),
        };
        let idle = |v: &str| option.off.contains(&v) || (!v.is_empty() && option.default == v);
        let acts = matches!(option.support, Support::Supported | Support::Own);
        let units = draft.units;
        if !acts && value.as_deref().is_some_and(idle) {
            // Requests what happens anyway. It may undo what an earlier section has set for logs.
            let _ = option.parser.apply(draft, value.as_deref(), units);
            return;
        }
        let plain = value.as_deref().map(|v| self.without_remark(option, raw, section, v));
        if let Err(mut reject) = option.parser.apply(draft, plain.as_deref(), units) {
            if let Some(name) = unset.first() {
                reject.remedy = format!("the environment variable '{}' is not set", quote(name));
            }
            return self.reject(draft, option, raw, section, reject);
        }
        if let Some(name) = unset.first() {
            let advice = format!("the environment variable '{}' is not set; it expands to nothing", quote(name));
            self.warn(raw, section, &advice);
        }
        let quirk = value.filter(|_| option.parser.counts_data()).and_then(|v| units::unit_quirk(&v, units));
        if let Some(quirk) = quirk {
            self.warn(raw, section, &quirk);
        }
        match option.support {
            Support::Supported | Support::Own => {
                let given = OptionOrigin { origin: raw.origin.clone(), seq: raw.seq, typed: raw.typed() };
                draft.given.insert(option.name, given);
            }
            Support::Accepted => {}
            Support::Ignored(advice) => self.warn(raw, section, &format!("ignored: {advice}")),
            Support::Refused(advice) => {
                let reject = Reject::unsupported("not supported by mqblk", advice);
                self.reject(draft, option, raw, section, reject);
            }
        }
    }

    /// Returns the value with variables and keywords replaced, and the variables that are not set.
    fn expanded(&self, option: &OptionInfo, raw: &RawOption) -> Result<(Option<String>, Vec<String>), Reject> {
        let Some(value) = &raw.value else { return Ok((None, Vec::new())) };
        if names_a_file(option) && value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(Reject::new("has bytes that are not UTF-8", "rename the file"));
        }
        let expanded = expand::expand(value, &self.lookup).map_err(|rule| Reject::new(&rule, ""))?;
        if let Some(name) = expanded.unset.first().filter(|_| names_a_file(option)) {
            // `${DIR}/data` must not become `/data`, because mqblk writes only to files that the user names.
            let rule = format!("uses the environment variable '{}', which is not set", quote(name));
            return Err(Reject::new(&rule, "set it, or write the path out"));
        }
        Ok((Some(expanded.text), expanded.unset))
    }

    /// Returns a number without a `//` remark behind it, which fio does not read.
    fn without_remark(&mut self, option: &OptionInfo, raw: &RawOption, section: &RawSection, value: &str) -> String {
        match value.split_once("//") {
            Some((number, _)) if option.parser.is_number() => {
                self.warn(raw, section, "what follows // is not read (fio's rule); a comment begins with # or ;");
                number.trim_end().to_owned()
            }
            _ => value.to_owned(),
        }
    }

    fn unknown(&mut self, raw: &RawOption, section: &RawSection) {
        let remedy = match option_table::nearest_option(&raw.key) {
            Some(near) => format!("did you mean '{near}'?"),
            None => "see mqblk cmdhelp".to_owned(),
        };
        let error = error(raw, section, ErrorKind::UnknownOption, "is no option of fio", &remedy);
        self.errors.push((raw.seq, error));
    }

    /// An unsupported option is kept in the draft, because a job may override its global section.
    fn reject(&mut self, draft: &mut Draft, option: &OptionInfo, raw: &RawOption, section: &RawSection, why: Reject) {
        let error = error(raw, section, why.kind, &why.rule, &why.remedy);
        if why.kind == ErrorKind::Unsupported {
            draft.refused.insert(option.name, (raw.seq, error));
        } else {
            self.errors.push((raw.seq, error));
        }
    }

    fn warn(&mut self, raw: &RawOption, section: &RawSection, advice: &str) {
        self.warnings.push(Warning {
            origin: raw.origin.clone(),
            job: job_name(raw, section),
            typed: raw.typed(),
            advice: advice.to_owned(),
        });
    }

    fn no_job(&mut self, (what, rule, remedy): (&str, &str, &str)) {
        let error = JobError { typed: what.to_owned(), ..about_the_file(self.context.file, rule, remedy) };
        self.errors.push((0, error));
    }

    fn finish(mut self, jobs: Vec<Job>, global_options: Vec<(String, String)>) -> Result<JobFile, JobErrors> {
        if self.errors.is_empty() {
            let mut warnings: Vec<Warning> = Vec::new();
            let mut seen = std::collections::BTreeSet::new();
            for warning in self.warnings {
                // A global option or an override applies to every job, but is reported once.
                if seen.insert((warning.origin.to_string(), warning.typed.clone(), warning.advice.clone())) {
                    warnings.push(warning);
                }
            }
            let threads = jobs.iter().map(|job| job.numjobs).sum();
            let mut jobs = jobs;
            for shape in jobs.iter_mut().filter_map(|job| job.shape.as_mut()) {
                shape.global_threads = shape.global_threads.map(|_| threads);
            }
            return Ok(JobFile { jobs, global_options, warnings });
        }
        self.errors.sort_by_key(|(seq, _)| *seq);
        self.errors.dedup_by_key(|(seq, _)| *seq);
        let mut errors: Vec<JobError> = self.errors.into_iter().map(|(_, e)| e).collect();
        if errors.len() > ERRORS_MAX {
            errors.truncate(ERRORS_MAX);
            let rule = format!("has more errors than these {ERRORS_MAX}");
            errors.push(about_the_file(self.context.file, &rule, "fix these first; is it a job file?"));
        }
        Err(JobErrors { errors })
    }
}

/// An error that belongs to no line.
fn about_the_file(file: &str, rule: &str, remedy: &str) -> JobError {
    JobError {
        origin: Origin::Line { file: file.into(), line: 0 },
        job: None,
        typed: "the file".to_owned(),
        kind: ErrorKind::Syntax,
        rule: rule.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// An override applies to all jobs, so it is reported without a job.
fn job_name(raw: &RawOption, section: &RawSection) -> Option<String> {
    (!matches!(raw.origin, Origin::Flag(_))).then(|| section.name.clone())
}

fn error(raw: &RawOption, section: &RawSection, kind: ErrorKind, rule: &str, remedy: &str) -> JobError {
    JobError {
        origin: raw.origin.clone(),
        job: job_name(raw, section),
        typed: raw.typed(),
        kind,
        rule: rule.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn names_a_file(option: &OptionInfo) -> bool {
    matches!(option.name, "filename" | "opendir" | "directory" | "filename_format" | "redo_filename")
        || matches!(option.name, "write_bw_log" | "write_iops_log" | "write_lat_log" | "write_hist_log")
}
