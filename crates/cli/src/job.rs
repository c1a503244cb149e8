// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the name of a job file to checked jobs: file or standard input, includes, environment, overrides, sections.

use crate::args::JobArgs;
use crate::status::Failure;
use lab::setup::Setup;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::path::Path;
use workload::job::{IncludeReader, JobFile, ParseContext};

/// Largest job file that is read: a mistyped name may be a disk image.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// A job file and its text.
pub struct Loaded {
    /// The jobs.
    pub file: JobFile,
    /// What was read.
    pub text: String,
}

/// Reads, parses and checks; warnings go to standard error.
pub fn load(args: &JobArgs, overrides: &[(String, String)]) -> Result<Loaded, Failure> {
    let name = args.job.to_string_lossy();
    let text = if name == "-" { read(std::io::stdin(), "standard input")? } else { read_file(&args.job)? };
    let context = ParseContext {
        file: if name == "-" { "stdin" } else { &name },
        env: &|variable| std::env::var(variable).ok(),
        include: &Includes,
        ncpus: u32::from(host::run::nr_cpus()),
        pagesize_bytes: host::run::page_bytes(),
        memory_mib: Setup::read(&[]).memory_bytes.unwrap_or(0) >> 20,
        is_target: &host::run::is_target,
    };
    let mut all = args.job_set.clone();
    all.extend_from_slice(overrides);
    let mut file = JobFile::parse_str(&text, &context, &all).map_err(Failure::new)?;
    select(&mut file, &args.section, &name)?;
    for warning in &file.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(Loaded { file, text })
}

/// Keeps the sections that were asked for.
fn select(file: &mut JobFile, sections: &[String], name: &str) -> Result<(), Failure> {
    if sections.is_empty() {
        return Ok(());
    }
    let known: Vec<&str> = file.jobs.iter().map(|j| j.name.as_str()).collect();
    if let Some(unknown) = sections.iter().find(|s| !known.contains(&s.as_str())) {
        let list = known.join(", ");
        return Err(Failure::new(format!("--section {unknown}: {name} has no such job; it has {list}")));
    }
    file.jobs.retain(|j| sections.contains(&j.name));
    file.warnings.retain(|w| w.job.as_ref().is_none_or(|job| job == "global" || sections.contains(job)));
    Ok(())
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

/// A number that nobody could foresee, for jobs with `randrepeat=0` and for the order of a comparison.
pub fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}
