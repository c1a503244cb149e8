// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask fuzz`: runs the targets of coverage-guided fuzzing (`fuzz/`) with libFuzzer, each for a given time, or in CI with a fixed
//! number of inputs.
//!
//! Guarantees: each target begins with its [`seeds`], and with what earlier runs have found. With `--fixed`, it begins with a sorted list of
//! its seeds alone, and makes the same inputs in each run, as long as the code and the compilers are the same. An input that
//! breaks a target is kept, and the command that repeats it is printed. A target that has run nothing counts as failed. As many targets
//! run at once as there are CPUs.
//! Does not: find errors of memory that cause no panic (`cargo xtask sanitize` does that for the unsafe code).
//!
//! Source: the compiler flags of `cargo fuzz build --sanitizer none`, which every compiler knows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::ci::appended;
use crate::outcome::Outcome;
use crate::project::{Project, cargo};
use crate::seeds;
use crate::tool;

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Targets [default: all].
    targets: Vec<String>,
    /// Time for each target.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u32,
    /// Run the same inputs each time, as the deep tests do, instead of for a time.
    #[arg(long, conflicts_with = "seconds")]
    fixed: bool,
}

/// How long a target runs.
#[derive(Clone, Copy)]
enum Extent {
    Seconds(u32),
    Inputs(u32),
}

impl Extent {
    /// Returns libFuzzer's options, with the directory that gets what it finds.
    fn options(self, corpus: &Path, target: &str) -> Vec<String> {
        match self {
            // With seed 0, libFuzzer chooses a new seed in each run.
            Extent::Seconds(n) => {
                vec![corpus.join(target).display().to_string(), format!("-max_total_time={n}"), "-seed=0".into()]
            }
            // libFuzzer takes the files of a directory in the order of the file system, and reads them again every second. So the directory
            // is empty at first and not read again, and the seeds are listed.
            Extent::Inputs(n) => vec![
                found(corpus, target).display().to_string(),
                format!("-seed_inputs=@{}", list(corpus, target).display()),
                "-reload=0".into(),
                format!("-runs={n}"),
                "-seed=1".into(),
            ],
        }
    }
}

/// Returns the file with the names of a target's seeds, with `--fixed`.
fn list(corpus: &Path, target: &str) -> PathBuf {
    corpus.join(format!("{target}.seeds"))
}

/// Returns the directory of what fuzzing a target finds, with `--fixed`.
fn found(corpus: &Path, target: &str) -> PathBuf {
    corpus.join(format!("{target}.found"))
}

/// Lists the seeds of a target in the order of their names, and makes the directory of what fuzzing finds.
fn list_seeds(corpus: &Path, target: &str) -> Result<(), String> {
    let (seeds, list) = (corpus.join(target), list(corpus, target));
    let failed = |e| format!("{}: {e}", seeds.display());
    let mut names = Vec::new();
    for entry in seeds.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.path().display().to_string();
        if name.contains(',') {
            return Err(format!("{name}: must have no comma, which ends a name in libFuzzer's lists; move the tree"));
        }
        names.push(name);
    }
    names.sort();
    std::fs::write(&list, names.join(",")).map_err(|e| format!("{}: {e}", list.display()))?;
    seeds::empty(&found(corpus, target))
}

/// Inputs of a target with `--fixed`. Most targets take 1 to 20 s for all of them.
const INPUTS: u32 = 60_000;
/// Targets that need more time for an input, and their number.
const SLOW: [(&str, u32); 1] = [("job_file", 1_500)];

fn fixed_inputs(target: &str) -> u32 {
    SLOW.iter().find(|(name, _)| *name == target).map_or(INPUTS, |(_, inputs)| *inputs)
}

/// Has the compiler count edges and compared values for libFuzzer, and check what debug builds check.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions \
                     -Coverflow-checks --cfg fuzzing";

/// Seconds that one input may take. Far more than any needs, because other targets and checks run at the same time.
const INPUT_SECONDS: u32 = 60;
/// Memory that a target may take, MiB.
const MEMORY_MB: u32 = 2048;

/// Where builds, inputs and broken inputs are.
struct Places {
    programs: PathBuf,
    corpus: PathBuf,
    artifacts: PathBuf,
    dictionaries: PathBuf,
}

/// Runs the targets.
///
/// # Errors
/// On an unknown target, or when Cargo cannot be run.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    let all = seeds::targets(project)?;
    if let Some(unknown) = options.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("{unknown}: must be one of {}", all.join(", ")));
    }
    let chosen = if options.targets.is_empty() { all } else { options.targets.clone() };
    let directory = project.target_directory.join("fuzz");
    let host = host()?;
    let places = Places {
        programs: directory.join(&host).join("release"),
        corpus: directory.join(if options.fixed { "corpus-fixed" } else { "corpus" }),
        artifacts: directory.join("artifacts"),
        dictionaries: project.root.join("fuzz"),
    };
    if options.fixed {
        seeds::empty(&places.corpus)?;
    }
    if seeds::run(project, &seeds::Options { into: places.corpus.clone() })? == Outcome::Failed {
        return Ok(Outcome::Failed);
    }
    std::fs::create_dir_all(&places.artifacts).map_err(|e| format!("{}: {e}", places.artifacts.display()))?;
    if options.fixed {
        chosen.iter().try_for_each(|target| list_seeds(&places.corpus, target))?;
    }
    build(project, &directory, &host)?;
    let all_ok = run_at_once(&chosen, |target| {
        let extent =
            if options.fixed { Extent::Inputs(fixed_inputs(target)) } else { Extent::Seconds(options.seconds) };
        fuzz(&places, target, extent)
    });
    Ok(if all_ok { Outcome::Passed } else { Outcome::Failed })
}

/// Returns the name of the machine that the compiler runs on. With `--target`, the flags are not used for build scripts, which could not be
/// linked with them.
fn host() -> Result<String, String> {
    let version = tool::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

fn build(project: &Project, directory: &Path, host: &str) -> Result<(), String> {
    // The workspace's versions; Cargo adds those of libFuzzer.
    let (ours, theirs) = (project.root.join("Cargo.lock"), project.root.join("fuzz/Cargo.lock"));
    std::fs::copy(&ours, &theirs).map_err(|e| format!("{}: {e}", theirs.display()))?;
    let mut command = cargo();
    command.current_dir(project.root.join("fuzz")).args(["build", "--release", "--target", host]);
    command.env("CARGO_TARGET_DIR", directory).env("RUSTFLAGS", appended("RUSTFLAGS", FLAGS));
    tool::run(&mut command)
}

/// Runs `one` for each target, on as many threads as there are CPUs. Returns whether all succeeded.
fn run_at_once(targets: &[String], one: impl Fn(&str) -> bool + Sync) -> bool {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                // Relaxed: only numbers.
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    failed.fetch_add(usize::from(!one(target)), Ordering::Relaxed);
                }
            });
        }
    });
    failed.into_inner() == 0
}

/// Runs one target. Returns whether it survived its inputs.
fn fuzz(places: &Places, target: &str, extent: Extent) -> bool {
    static OUTPUT: Mutex<()> = Mutex::new(());
    let mut command = Command::new(places.programs.join(target));
    command.args(extent.options(&places.corpus, target)).arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MB}")).args(["-print_final_stats=1", "-max_len=4096"]);
    command.arg(format!("-artifact_prefix={}/{target}-", places.artifacts.display()));
    let dictionary = places.dictionaries.join(format!("{target}.dict"));
    if dictionary.exists() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    let start = Instant::now();
    let done = command.output();
    let seconds = start.elapsed().as_secs();
    let _one = OUTPUT.lock();
    let done = match done {
        Ok(done) => done,
        Err(e) => {
            println!("{target}: cannot be run: {e}");
            return false;
        }
    };
    let said = String::from_utf8_lossy(&done.stderr);
    let inputs = executed(&said);
    if done.status.success() && inputs > 0 {
        let count = |directory: PathBuf| directory.read_dir().map_or(0, Iterator::count);
        // Without `--fixed`, what was found is with the seeds.
        let kept = count(places.corpus.join(target)) + count(found(&places.corpus, target));
        println!("{target}: {inputs} inputs in {seconds} s, {kept} kept");
        return true;
    }
    println!("{said}\n{target}: FAILED after {inputs} inputs; repeat it by: {command:?} with the input named above");
    false
}

/// Returns how many inputs libFuzzer says that it has run.
fn executed(said: &str) -> u64 {
    let count = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_counted_and_none_is_a_failure() {
        assert_eq!(executed("Done 7 runs\nstat::number_of_executed_units: 1234\nstat::x: 1\n"), 1234);
        assert_eq!(executed("error: no such option"), 0);
    }

    /// libFuzzer took the seeds in the order of the file system, so two machines ran different inputs.
    #[test]
    fn fixed_inputs_begin_with_a_sorted_list_of_seeds() {
        let corpus = std::env::temp_dir().join(format!("mqblk-fuzz-{}", std::process::id()));
        seeds::empty(&corpus.join("nbd")).unwrap();
        ["2", "10", "1"].iter().for_each(|name| std::fs::write(corpus.join("nbd").join(name), "seed").unwrap());
        list_seeds(&corpus, "nbd").unwrap();
        let seeds = ["1", "10", "2"].map(|name| corpus.join("nbd").join(name).display().to_string());
        assert_eq!(std::fs::read_to_string(corpus.join("nbd.seeds")).unwrap(), seeds.join(","));
        assert_eq!(corpus.join("nbd.found").read_dir().unwrap().count(), 0);
        let options = Extent::Inputs(7).options(&corpus, "nbd");
        let directories: Vec<_> = options.iter().filter(|option| !option.starts_with('-')).collect();
        assert_eq!(directories, [&corpus.join("nbd.found").display().to_string()]);
        assert!(options.contains(&format!("-seed_inputs=@{}", corpus.join("nbd.seeds").display())), "{options:?}");
        assert!(options.contains(&"-reload=0".to_owned()), "{options:?}");
        std::fs::remove_dir_all(&corpus).unwrap();
    }

    #[test]
    fn a_slow_target_gets_fewer_inputs() {
        let targets = seeds::targets(&Project::load().expect("the tree")).expect("fuzz targets");
        for (name, inputs) in SLOW {
            assert!(targets.iter().any(|t| t == name), "{name} is no target");
            assert_eq!(fixed_inputs(name), inputs);
        }
        assert_eq!(fixed_inputs("nbd"), INPUTS);
    }

    #[test]
    fn every_target_runs_and_one_that_fails_is_not_forgotten() {
        let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let ran = AtomicUsize::new(0);
        let count = |_: &str| ran.fetch_add(1, Ordering::Relaxed) < usize::MAX;
        assert!(run_at_once(&names, count));
        assert_eq!(ran.into_inner(), 20);
        assert!(!run_at_once(&names, |name| name != "7"));
    }
}
