// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `oracle`: replays recorded cases and prints what is equal; `cargo xtask oracle` is its way in.
//!
//! Exit codes: 0 everything is equal, 1 something differs, 2 a file or setting is broken.

extern crate mqblk_oracle as oracle;

use clap::Parser;
use oracle::CaseError;
use oracle::case::{self, Case, Verdict};
use oracle::world::Clock;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Replays the kernel's recorded decisions through the whole stack.
#[derive(Parser)]
#[command(name = "oracle", bin_name = "cargo xtask oracle")]
struct Options {
    /// Only this case: FOLDER/NAME of NAME.io, NAME.env and NAME.trace (repeatable).
    #[arg(long, value_name = "FOLDER/NAME")]
    case: Vec<PathBuf>,
    /// All cases of this folder instead of the project's own.
    #[arg(long, value_name = "FOLDER")]
    cases: Option<PathBuf>,
    /// Print the events of both sides as well.
    #[arg(long)]
    events: bool,
    /// Print what we would do with this script, at nominal times, without a trace.
    #[arg(long, value_name = "FOLDER/NAME")]
    simulate: Option<PathBuf>,
    /// Write a random case with this seed.
    #[arg(long, value_name = "SEED", requires = "into")]
    generate: Option<u64>,
    /// Where to.
    #[arg(long, value_name = "FOLDER/NAME")]
    into: Option<PathBuf>,
    /// Of which elevator; otherwise it follows from the seed.
    #[arg(long, requires = "generate", value_parser = oracle::random::SCHEDULERS)]
    scheduler: Option<String>,
}

fn main() -> ExitCode {
    let mut out = String::new();
    let result = run(&Options::parse(), &mut out);
    // A reader that closes the pipe early is no error.
    let _ = std::io::stdout().write_all(out.as_bytes());
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("oracle: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options, out: &mut String) -> Result<bool, CaseError> {
    if let (Some(seed), Some(into)) = (options.generate, &options.into) {
        return generate(seed, options.scheduler.as_deref(), into, out);
    }
    match &options.simulate {
        Some(stem) => simulate(stem, out),
        None => judge(options, out),
    }
}

fn generate(seed: u64, scheduler: Option<&str>, into: &Path, out: &mut String) -> Result<bool, CaseError> {
    let (io, env) = oracle::random::case(seed, scheduler);
    for (extension, text) in [("io", io), ("env", env)] {
        let path = into.with_extension(extension);
        std::fs::write(&path, text).map_err(|e| CaseError(format!("cannot write {}: {e}", path.display())))?;
        *out += &format!("{}\n", path.display());
    }
    Ok(true)
}

fn simulate(stem: &Path, out: &mut String) -> Result<bool, CaseError> {
    let (script, settings) = Case::load_script(stem)?;
    let cpus = settings.cpus_seen(0);
    let events = oracle::free::simulate(&script, &settings, cpus).map_err(CaseError)?;
    for e in events {
        *out += &format!("{:>10} {e}\n", e.us);
    }
    Ok(true)
}

fn judge(options: &Options, out: &mut String) -> Result<bool, CaseError> {
    let stems = stems(options)?;
    let width = stems.iter().filter_map(|s| s.file_name()).map(std::ffi::OsStr::len).max().unwrap_or(0).max(4);
    *out += &format!(
        "{:<width$}  {:>8}  {:>11}  {:>9}  {:>9}  {:>9}  {:>11}  first difference\n",
        "case", "requests", "bios", "inserts", "merges", "issues", "completions"
    );
    let (mut equal, mut broken) = (0, 0);
    for stem in &stems {
        let name = stem.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let judged = match case::tags_file(stem) {
            Some(file) => judge_tags(&file, &name, width, options.events, out),
            None => judge_io(stem, &name, width, options.events, out),
        };
        match judged {
            Ok(is_equal) => equal += usize::from(is_equal),
            Err(e) => {
                *out += &format!("{name:<width$}  {e}\n");
                broken += 1;
            }
        }
    }
    *out += &format!("\n{equal} of {} cases equal\n", stems.len());
    if broken > 0 {
        return Err(CaseError(format!("{broken} of {} cases could not be judged", stems.len())));
    }
    Ok(equal == stems.len())
}

fn judge_io(stem: &Path, name: &str, width: usize, events: bool, out: &mut String) -> Result<bool, CaseError> {
    let case = Case::load(stem)?;
    let verdict = case.judge()?;
    *out += &format!("{}\n", row(name, width, &verdict));
    if events {
        print_events(&case, &verdict, out);
    }
    Ok(verdict.is_equal())
}

fn judge_tags(file: &Path, name: &str, width: usize, events: bool, out: &mut String) -> Result<bool, CaseError> {
    let case = case::load_tags(file)?;
    let (ours, first) = oracle::sharing::judge(&case)?;
    let (lines, text) = (case.answers.len(), first.clone().unwrap_or_else(|| "none".into()));
    *out += &format!(
        "{name:<width$}  shared tags, {lines} lines of structure, users and most in flight; first difference: {text}\n"
    );
    if events {
        ours.iter().for_each(|line| *out += &format!("  {line}\n"));
    }
    Ok(first.is_none())
}

fn stems(options: &Options) -> Result<Vec<PathBuf>, CaseError> {
    if !options.case.is_empty() {
        return Ok(options.case.clone());
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let folder = options.cases.clone().unwrap_or(own);
    let names = case::names(&folder)?;
    if names.is_empty() {
        return Err(CaseError(format!(
            "no case in {}: needs NAME.io, NAME.env, NAME.trace, or NAME.tags",
            folder.display()
        )));
    }
    Ok(names.into_iter().map(|n| folder.join(n)).collect())
}

fn row(name: &str, width: usize, v: &Verdict) -> String {
    let cell = |name: &str| {
        let c = v.columns.iter().find(|c| c.name == name).expect("a column of the table");
        if c.free { "-".to_owned() } else { format!("{}/{}", c.equal, c.theirs) }
    };
    let mut text = format!(
        "{name:<width$}  {:>8}  {:>11}  {:>9}  {:>9}  {:>9}  {:>11}  ",
        v.requests,
        cell("bios"),
        cell("inserts"),
        cell("merges"),
        cell("issues"),
        cell("completions")
    );
    text += &v.first.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    if v.unknown.hint != 0 {
        text += &format!(" (first tag hint {})", v.unknown.hint);
    }
    if let Clock::Ticks { phase_us, .. } = v.unknown.clock {
        text += &format!(" (ticks from {phase_us} us)");
    }
    if let Some(because) = v.rules.because {
        text += &format!(" (not compared: {because})");
    }
    text
}

fn print_events(case: &Case, v: &Verdict, out: &mut String) {
    let start = case.theirs.first().map_or(0, |e| e.us);
    let n = case.theirs.len().max(v.ours.len());
    let text = |e: Option<&oracle::event::Event>| e.map_or(String::new(), |e| format!("{:>9} {e}", e.us - start));
    for i in 0..n {
        *out += &format!("  {:<40} {}\n", text(case.theirs.get(i)), text(v.ours.get(i)));
    }
}
