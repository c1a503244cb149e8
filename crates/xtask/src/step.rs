// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one check and counts the tests that it reports.
//!
//! Guarantees: a child's output is shown line by line as it comes, and every libtest summary in it is counted. A child that ends by a
//! signal counts as failed. The report of a failed check has its error, or the end of its output if that was captured.
//! Has no time limit: CI has one.

use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::outcome::Outcome;

/// Tests as libtest counts them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were ignored.
    pub skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Counts {
    /// Adds up the summaries in an output.
    fn of(stdout: &str) -> Counts {
        let mut sum = Counts::default();
        stdout.lines().filter_map(Counts::from_summary).for_each(|counts| sum += counts);
        sum
    }

    /// Reads one line of a test program; `None` when it is no summary.
    pub fn from_summary(line: &str) -> Option<Counts> {
        let fields = line.strip_prefix("test result: ")?;
        let fields = fields.split_once(". ")?.1;
        let mut counts = Counts::default();
        for field in fields.split("; ") {
            let (number, what) = field.split_once(' ')?;
            let slot = match what {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.skipped,
                _ => continue,
            };
            *slot = number.parse().ok()?;
        }
        Some(counts)
    }
}

/// What a check found.
#[derive(Default)]
pub struct Found {
    /// Whether it succeeded.
    pub ok: bool,
    /// The tests it ran; zeros when it is no test run.
    pub counts: Counts,
    /// The end of its output, as far as that was captured; shown again in the closing report when the check failed.
    pub output: String,
}

impl Found {
    /// Reads what a program printed: its test summaries, and the end of both streams.
    pub fn captured(output: &Output) -> Found {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Found {
            ok: output.status.success(),
            counts: Counts::of(&stdout),
            output: last_lines(&stdout) + &last_lines(&stderr),
        }
    }

    /// What a check found that runs no tests.
    pub fn of(outcome: Outcome) -> Found {
        Found { ok: outcome == Outcome::Passed, ..Found::default() }
    }

    /// The verdict.
    pub fn outcome(&self) -> Outcome {
        if self.ok { Outcome::Passed } else { Outcome::Failed }
    }

    /// Adds another part of the same check.
    pub fn add(&mut self, part: Found) {
        self.ok &= part.ok;
        self.counts += part.counts;
        if !part.ok {
            self.output += &part.output;
        }
    }
}

/// The result of one check.
pub struct Report {
    /// The check's name in the closing table.
    pub name: &'static str,
    /// Its wall-clock time.
    pub time: Duration,
    /// What it found; its error stands in the place of the output.
    pub found: Found,
}

impl Report {
    fn of(name: &'static str, result: Result<Found, String>, time: Duration) -> Report {
        let found = result.unwrap_or_else(|error| {
            eprintln!("xtask: {name}: {error}");
            Found { output: error, ..Found::default() }
        });
        let word = if found.ok { "ok" } else { "FAILED" };
        println!("<== {name}: {word} in {:.1} s", time.as_secs_f64());
        Report { name, time, found }
    }
}

/// How many lines of each stream of a failed program are repeated.
const REPEATED_LINES: usize = 60;

/// Returns the end of an output, without the lines of tests that passed.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with(" ... ok")).collect();
    lines[lines.len().saturating_sub(REPEATED_LINES)..].iter().map(|line| format!("{line}\n")).collect()
}

/// Runs `body` under a heading and times it. A check that could not be started has failed, and its error is printed: the checks
/// after it still run.
pub fn step(name: &'static str, body: impl FnOnce() -> Result<Found, String>) -> Report {
    println!("==> {name}");
    let start = Instant::now();
    let result = body();
    Report::of(name, result, start.elapsed())
}

/// A check that runs while others do.
pub struct BackgroundStep {
    name: &'static str,
    thread: JoinHandle<(std::io::Result<Output>, Duration)>,
}

impl BackgroundStep {
    /// Starts the check. Its output is kept until [`BackgroundStep::end`].
    pub fn start(name: &'static str, mut command: Command) -> BackgroundStep {
        println!("==> {name}, beside what follows");
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            (command.stdin(Stdio::null()).output(), start.elapsed())
        });
        BackgroundStep { name, thread }
    }

    /// Waits until the check ends. Prints its standard output, then its standard error, and counts the tests in the former. A check that
    /// could not be started has failed.
    pub fn end(self) -> Report {
        let (output, time) = self.thread.join().expect("waiting for a child does not panic");
        println!("==> {}", self.name);
        let result = output.map_err(|e| format!("cannot be run: {e}")).map(|output| {
            String::from_utf8_lossy(&output.stdout).lines().for_each(|line| println!("{line}"));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            Found::captured(&output)
        });
        Report::of(self.name, result, time)
    }
}

/// Runs a command to its end, showing its standard output and counting test summaries in it.
///
/// # Errors
/// When the command cannot be started or its output cannot be read.
pub fn run_counted(command: &mut Command) -> Result<Found, String> {
    run_shown(command, &mut std::io::stdout().lock())
}

/// Does the same as [`run_counted`] for the tests whose names contain `name`.
///
/// # Errors
/// The errors of [`run_counted`], and when no test has such a name.
pub fn run_named(command: &mut Command, name: &str) -> Result<Found, String> {
    let found = run_counted(command)?;
    if found.ok && found.counts.passed == 0 {
        return Err(format!("no test whose name contains '{name}' ran; check the filter"));
    }
    Ok(found)
}

fn run_shown(command: &mut Command, shown: &mut impl Write) -> Result<Found, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot run {program}: {e}"))?;
    let stdout = child.stdout.take().ok_or("child without standard output")?;
    let mut output = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let mut line = line.map_err(|e| format!("cannot read what {program} prints: {e}"))?;
        line.push(b'\n');
        // If the terminal is closed, the check must still finish with a verdict.
        let _ = shown.write_all(&line);
        output += &String::from_utf8_lossy(&line);
    }
    let status = child.wait().map_err(|e| format!("cannot wait for {program}: {e}"))?;
    Ok(Found { ok: status.success(), counts: Counts::of(&output), output: last_lines(&output) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_counted_and_other_lines_are_not() {
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 5 measured; \
                    6 filtered out; finished in 0.01s";
        let want = Counts { passed: 12, failed: 3, skipped: 4 };
        assert_eq!(Counts::from_summary(line), Some(want));
        assert_eq!(Counts::from_summary("test a ... ok"), None);
        assert_eq!(Counts::from_summary("test result: odd"), None);
    }

    #[test]
    fn counts_of_several_test_programs_add_up() {
        let mut command = Command::new("printf");
        command.arg(
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\\n\
             test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured\\n",
        );
        // Not to standard output: the check that runs this test would count these summaries.
        let mut shown = Vec::new();
        let found = run_shown(&mut command, &mut shown).unwrap();
        assert_eq!(shown.iter().filter(|b| **b == b'\n').count(), 2);
        let want = Counts { passed: 42, failed: 0, skipped: 1 };
        assert_eq!((found.ok, found.counts), (true, want));
    }

    #[test]
    fn a_check_beside_others_is_counted_and_judged() {
        let mut command = Command::new("printf");
        // Not in one line, because the check that runs this test would count it.
        command.arg("test result: %s. 2 passed; 1 failed; 0 ignored; 0 measured\\n").arg("FAILED");
        let report = BackgroundStep::start("sample", command).end();
        assert_eq!((report.found.ok, report.found.counts), (true, Counts { passed: 2, failed: 1, skipped: 0 }));
        let mut failing = Command::new("sh");
        failing.args(["-c", "seq 100; echo test a ... ok; echo the reason >&2; exit 1"]);
        let found = BackgroundStep::start("sample", failing).end().found;
        assert!(!found.ok && found.output.starts_with("41\n42\n") && found.output.ends_with("100\nthe reason\n"));
        assert!(!BackgroundStep::start("sample", Command::new("no-such-program-of-mqblk")).end().found.ok);
    }

    #[test]
    fn a_check_that_cannot_start_fails_alone() {
        let found = step("sample", || Err("no cargo".into())).found;
        assert_eq!((found.ok, found.counts, found.output.as_str()), (false, Counts::default(), "no cargo"));
    }

    #[test]
    fn a_failing_child_fails_and_a_missing_program_is_named() {
        assert!(!run_counted(&mut Command::new("false")).unwrap().ok);
        let error = run_counted(&mut Command::new("no-such-program-of-mqblk")).err().unwrap();
        assert!(error.contains("no-such-program-of-mqblk"), "{error}");
    }
}
