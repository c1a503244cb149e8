// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The workspace's tests: built once, then several programs at a time.
//!
//! Guarantees: every test program, bench and documentation example of the workspace runs. Programs that wait run in parallel with
//! programs that compute. The output of a program is shown in one piece when it ends. Only the deep part runs
//! the tests in modules called `deep`, and the benches, these at smoke size. Has no time limit: CI has one.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde::Deserialize;

use crate::outcome::Outcome;
use crate::project::{LIKE_ALL_TESTS, Project, cargo};
use crate::step::{Counts, Found, run_counted};

/// Modules with this name hold tests that take long: suites at their full size, and whole tests.
const DEEP: &str = "deep::";

/// Programs that run at a time.
const AT_A_TIME: usize = 2;

/// Tests of one program that run at a time: most of them wait.
const TEST_THREADS: &str = "8";

/// Programs that run several minutes, in one part or the other. They start first, so that others fill the time in which they wait.
const LONGEST: [&str; 4] = ["cli test it", "xtask bin xtask", "lab test it", "host test it"];

/// Which tests of the programs run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but those in modules called `deep`.
    Quick,
    /// Those alone, and the benches, which run briefly so that they keep working.
    Deep,
}

/// A test program as Cargo has built it.
pub struct Program {
    /// Package and target.
    name: String,
    executable: PathBuf,
    /// The package's folder: Cargo runs tests there.
    folder: PathBuf,
    /// The program has the standard test harness, which takes flags.
    has_harness: bool,
}

/// Cargo's message about an artifact that it built.
#[derive(Deserialize)]
struct Artifact {
    #[serde(default)]
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: BuiltTarget,
    profile: Profile,
}

#[derive(Deserialize)]
struct BuiltTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test programs.
///
/// # Errors
/// When Cargo cannot be run, or a program does not build.
pub fn build(project: &Project) -> Result<Vec<Program>, String> {
    built(project, &[])
}

/// Builds the benches as test programs.
///
/// # Errors
/// When Cargo cannot be run, or a bench does not build.
pub fn build_benches(project: &Project) -> Result<Vec<Program>, String> {
    built(project, &["--bench", "*"])
}

fn built(project: &Project, what: &[&str]) -> Result<Vec<Program>, String> {
    let mut command = cargo();
    command.current_dir(&project.root).args(LIKE_ALL_TESTS).args(what);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err("a program does not build".into());
    }
    let mut programs: Vec<Program> = String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    programs.sort_by_key(|program| LONGEST.iter().position(|name| *name == program.name).unwrap_or(LONGEST.len()));
    Ok(programs)
}

fn program(message: &str) -> Option<Program> {
    let artifact: Artifact = serde_json::from_str(message).ok().filter(|a: &Artifact| a.profile.test)?;
    let folder = artifact.manifest_path.parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let kind = artifact.target.kind.first()?.as_str();
    let name = match kind {
        "lib" | "cdylib" => package.clone(),
        kind => format!("{package} {kind} {}", artifact.target.name),
    };
    Some(Program { name, executable: artifact.executable?, folder, has_harness: kind != "bench" })
}

/// Runs `part` of the programs and counts their tests. `environment` is added to their variables. A program that cannot be started has
/// failed.
///
/// # Errors
/// When there is no program.
pub fn run(programs: &[Program], part: Part, environment: &[(&str, &Path)]) -> Result<Found, String> {
    if programs.is_empty() {
        return Err("no test program was built".into());
    }
    let waiting: Mutex<VecDeque<&Program>> = Mutex::new(programs.iter().collect());
    let sum = Mutex::new(Found::of(Outcome::Passed));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no test runner panics").pop_front();
                    let Some(program) = next else { break };
                    let one = run_one(program, part, environment).unwrap_or_else(|error| {
                        eprintln!("xtask: {}: {error}", program.name);
                        Found { output: format!("{}: {error}\n", program.name), ..Found::default() }
                    });
                    sum.lock().expect("no test runner panics").add(one);
                }
            });
        }
    });
    Ok(sum.into_inner().expect("no test runner panics"))
}

fn run_one(program: &Program, part: Part, environment: &[(&str, &Path)]) -> Result<Found, String> {
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.folder).stdin(Stdio::null()).envs(environment.iter().copied());
    if program.has_harness {
        command.args(if part == Part::Deep { &[DEEP][..] } else { &["--skip", DEEP] });
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.args(["--test-threads", TEST_THREADS]);
        }
    }
    let start = Instant::now();
    let output = command.output().map_err(|e| format!("cannot run {}: {e}", program.executable.display()))?;
    let mut found = Found::captured(&output);
    if found.counts == Counts::default() && found.ok && program.has_harness {
        return Ok(found);
    }
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let (word, shown) = if found.ok { ("ok", summary(&stdout)) } else { ("FAILED", format!("{stdout}{stderr}")) };
    println!("{}: {word} in {:.1} s\n{shown}", program.name, start.elapsed().as_secs_f64());
    found.output.insert_str(0, &format!("{}:\n", program.name));
    Ok(found)
}

/// Returns the output of a program whose tests passed, without the line of each test.
fn summary(stdout: &str) -> String {
    let of_no_test = |line: &&str| !line.is_empty() && !line.starts_with("test ") && !line.starts_with("running ");
    let lines = stdout.lines().filter(|line| of_no_test(line) || line.starts_with("test result: "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Runs the examples in the documentation.
///
/// # Errors
/// When Cargo cannot be run.
pub fn run_documentation(project: &Project) -> Result<Found, String> {
    let mut command = cargo();
    command.current_dir(&project.root).args(LIKE_ALL_TESTS).args(["--doc", "--quiet"]);
    run_counted(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_told_from_other_artifacts() {
        let artifact = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/blk/Cargo.toml","executable":"/w/target/x",
                "target":{{"name":"it","kind":["{kind}"]}},"profile":{{"test":{test}}}}}"#
            )
        };
        let found = program(&artifact("test", true)).unwrap();
        assert_eq!((found.name.as_str(), found.folder.to_str()), ("blk test it", Some("/w/crates/blk")));
        assert!(found.has_harness && program(&artifact("bin", false)).is_none());
        assert!(!program(&artifact("bench", true)).unwrap().has_harness);
        assert!(program(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn passed_tests_are_not_named_one_by_one() {
        let stdout = "\nrunning 2 tests\ntest a ... ok\nnot run: b\n\ntest result: ok. 2 passed; 0 failed\n";
        assert_eq!(summary(stdout), "not run: b\ntest result: ok. 2 passed; 0 failed\n");
    }
}
