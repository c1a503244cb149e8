// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the name of a job file to checked jobs: file or standard input, includes, environment, overrides, sections.

use crate::args::JobArgs;
use crate::status::Failure;
use crate::trace_files::Traces;
use host::secrets::without_secrets;
use lab::setup::Setup;
use lab::world;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::path::Path;
use workload::job::{CommandLine, IncludeReader, JobFile, Override, ParseContext};

/// Largest job file that is read: a mistyped name may be a disk image.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// A job file and its text.
pub struct Loaded {
    /// The jobs.
    pub file: JobFile,
    /// The text without passwords of targets, so that it may be stored and shown.
    pub text: String,
    /// Names and texts of the files.
    files: Vec<(String, String)>,
}

impl Loaded {
    /// Returns the jobs as command lines: one, or one for each file.
    pub fn commands<const NEEDED: bool>(&self, args: &JobArgs<NEEDED>) -> Vec<CommandLine> {
        let none = CommandLine::default();
        let typed = std::iter::once(&args.typed.jobs).chain(std::iter::repeat(&none));
        let of_file = |(typed, (name, text)): (&CommandLine, &(String, String))| {
            typed.with_file((name, text), &Includes, &args.section)
        };
        match self.files[..] {
            [] => vec![args.typed.jobs.clone()],
            _ => typed.zip(&self.files).map(of_file).collect(),
        }
    }

    /// Warns about logs, which a command of many runs does not write.
    pub fn without_logs(self) -> Loaded {
        for job in self.file.jobs.iter().filter(|job| job.logs.any()) {
            eprintln!("warning: write_*_log, write_iolog: only mqblk run writes logs ({})", job.place());
        }
        self
    }

    /// Makes an empty job file, for a target that has a load of its own.
    pub fn none() -> Loaded {
        let file = JobFile { jobs: Vec::new(), global_options: Vec::new(), warnings: Vec::new() };
        Loaded { file, text: String::new(), files: Vec::new() }
    }
}

/// Reads, parses and checks; warnings go to standard error.
pub fn load<const NEEDED: bool>(args: &JobArgs<NEEDED>, overrides: &[Override]) -> Result<Loaded, Failure> {
    let mut files = Vec::new();
    for path in args.paths() {
        files.push(match path.to_string_lossy() {
            name if name == "-" => ("stdin".to_owned(), read(std::io::stdin(), "standard input")?),
            name => (name.into_owned(), read_file(path)?),
        });
    }
    if files.is_empty() && args.typed.jobs.is_empty() {
        let text = "JOB: no job file: name one, - for standard input, or to run the options of a job (--name=a --rw=read); only a \
                    sim: target with [guests] needs none";
        return Err(Failure::new(text));
    }
    let traces = Traces::new(args.paths().any(|path| path.as_os_str() == "-"));
    let parts: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let context = ParseContext {
        file: files.first().map_or("command line", |(name, _)| name),
        env: &|variable| std::env::var(variable).ok(),
        include: &Includes,
        ncpus: world::cpus_of(args.target.as_deref()).unwrap_or_else(|| host::process::nr_cpus().into()),
        pagesize_bytes: host::process::page_bytes(),
        memory_mib: Setup::read(&[]).memory_bytes.unwrap_or(0) >> 20,
        is_target: &host::target::has_kind,
        files_below: &|dir| files_below(dir.as_ref()),
        traces: &|name| traces.open(name),
        sections: &args.section,
    };
    let set =
        args.job_set.iter().map(|(key, value)| Override { flag: "--job-set", key: key.clone(), value: value.clone() });
    let all: Vec<Override> = set.chain(overrides.iter().cloned()).collect();
    let file = JobFile::parse(&args.typed.jobs, &parts, &context, &all).map_err(Failure::new)?;
    for warning in &file.warnings {
        eprintln!("warning: {warning}");
    }
    let texts = [args.typed.jobs.to_string()].into_iter().chain(files.iter().map(|(_, text)| text.clone()));
    let text = without_secrets(&texts.filter(|t| !t.is_empty()).collect::<Vec<_>>().join("\n"));
    Ok(Loaded { file, text, files })
}

struct Includes;

impl IncludeReader for Includes {
    fn read(&self, path: &str) -> Result<String, String> {
        std::fs::File::open(path).map_err(|e| e.to_string()).and_then(limited)
    }
}

/// The regular files below a directory, in the order of the directories, as fio adds them.
fn files_below(dir: &Path) -> Result<Vec<String>, String> {
    let failed = |e: std::io::Error| format!("'{}': {e}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            found.extend(files_below(&entry.path())?);
        } else if kind.is_file() {
            let name = entry.path().into_os_string().into_string();
            found.push(name.map_err(|name| format!("{} is not UTF-8; rename it", name.display()))?);
        }
    }
    Ok(found)
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let file = std::fs::File::open(path)
        .map_err(|e| Failure::new(format!("job file '{name}': {e}; name a fio job file, or - for standard input")))?;
    read(file, &format!("job file '{name}'"))
}

fn read(from: impl Read, name: &str) -> Result<String, Failure> {
    limited(from).map_err(|e| Failure::new(format!("{name}: {e}")))
}

fn limited(from: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    from.take(JOB_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > JOB_BYTES_MAX {
        return Err(format!("is larger than {JOB_BYTES_MAX} bytes; a job file is a short text"));
    }
    if bytes.contains(&0) {
        return Err("is not text; is it a job file?".to_owned());
    }
    // fio takes any bytes. Options that name a file are refused if they have such bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns an unpredictable number, for jobs with `randrepeat=0` and for the order of a comparison.
pub fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}
