// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the name of a job file to checked jobs: file or standard input, includes, environment, overrides, sections.

use crate::args::JobArgs;
use crate::status::Failure;
use host::secrets::without_secrets;
use lab::setup::Setup;
use lab::world;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::path::Path;
use workload::job::{IncludeReader, JobFile, Override, ParseContext};

/// Largest job file that is read: a mistyped name may be a disk image.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// A job file and its text.
pub struct Loaded {
    /// The jobs.
    pub file: JobFile,
    /// The text without passwords of targets, so that it may be stored and shown.
    pub text: String,
}

impl Loaded {
    /// Makes an empty job file, for a target that has a load of its own.
    pub fn none() -> Loaded {
        let file = JobFile { jobs: Vec::new(), global_options: Vec::new(), warnings: Vec::new() };
        Loaded { file, text: String::new() }
    }
}

/// Reads, parses and checks; warnings go to standard error.
pub fn load<const NEEDED: bool>(args: &JobArgs<NEEDED>, overrides: &[Override]) -> Result<Loaded, Failure> {
    if args.job.is_none() {
        let text = "JOB: no job file: name one, or - for standard input; only a sim: target with [guests] needs none";
        return Err(Failure::new(text));
    }
    let name = args.path().to_string_lossy();
    let text = if name == "-" { read(std::io::stdin(), "standard input")? } else { read_file(args.path())? };
    let context = ParseContext {
        file: if name == "-" { "stdin" } else { &name },
        env: &|variable| std::env::var(variable).ok(),
        include: &Includes,
        ncpus: world::cpus_of(args.target.as_deref()).unwrap_or_else(|| host::process::nr_cpus().into()),
        pagesize_bytes: host::process::page_bytes(),
        memory_mib: Setup::read(&[]).memory_bytes.unwrap_or(0) >> 20,
        is_target: &host::target::has_kind,
        sections: &args.section,
    };
    let set =
        args.job_set.iter().map(|(key, value)| Override { flag: "--job-set", key: key.clone(), value: value.clone() });
    let all: Vec<Override> = set.chain(overrides.iter().cloned()).collect();
    let file = JobFile::parse_str(&text, &context, &all).map_err(Failure::new)?;
    for warning in &file.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(Loaded { file, text: without_secrets(&text) })
}

struct Includes;

impl IncludeReader for Includes {
    fn read(&self, path: &str) -> Result<String, String> {
        std::fs::File::open(path).map_err(|e| e.to_string()).and_then(limited)
    }
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
    String::from_utf8(bytes).map_err(|_| "is not text (UTF-8); is it a job file?".to_owned())
}

/// Returns an unpredictable number, for jobs with `randrepeat=0` and for the order of a comparison.
pub fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}
