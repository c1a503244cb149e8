// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test` and `cargo xtask ci`: the checks of this tree, cheapest first. Checks that compute run in parallel with checks that
//! wait.
//!
//! Guarantees: all checks run even when an early one fails. The closing report repeats why a check failed, without what Cargo itself
//! prints. The closing line is `N passed, N failed, N skipped`, alone on its line, over all test programs. The exit code is 0 only when
//! every check passed. With `CI=true` a skipped test is a failure: a machine that cannot run a test must report that, or the test would
//! stay unused without notice.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::oracle::loop_device::Loop;
use crate::outcome::Outcome;
use crate::project::{Project, cargo};
use crate::step::{BackgroundStep, Counts, Found, Report, run_counted, step};
use crate::suite::{self, Part};
use crate::tidy;

/// How much to check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Format, tidy and the tests: what a new user runs.
    Test,
    /// The same with clippy and rustdoc, to be run before every commit.
    Fast,
    /// Everything: suites at full size, benches at smoke size, the kernel's recorded decisions, loom models, fuzzing, ublk
    /// devices, RBD images, documentation, packages and their installation, too.
    Deep,
}

/// Runs the checks of `extent`.
pub fn run(project: &Project, extent: Extent) -> Outcome {
    let start = Instant::now();
    let (device, not_run) = test_device(project);
    let environment: Vec<(&str, &Path)> = device.iter().map(|d| (TEST_DEVICE, d.device.as_path())).collect();
    let mut reports =
        vec![step("format", || run_counted(&mut format(project))), step("tidy", || tidy::run(project).map(Found::of))];
    if extent == Extent::Fast {
        reports.push(step("clippy", || run_counted(&mut clippy(project))));
        reports.push(step("documentation", || run_counted(&mut doc(project))));
    }
    let mut programs = Vec::new();
    reports.push(step("building tests", || {
        programs = suite::build(project)?;
        Ok(Found::of(Outcome::Passed))
    }));
    reports.push(step("tests", || suite::run(&programs, Part::Quick, &environment)));
    reports.push(step("examples in docs", || suite::run_documentation(project)));
    println!("cargo xtask test took {:.1} min", start.elapsed().as_secs_f64() / 60.0);
    if extent == Extent::Deep {
        reports.push(step("building benches", || {
            programs.extend(suite::build_benches(project)?);
            Ok(Found::of(Outcome::Passed))
        }));
        // It computes while the following checks wait.
        let loom = BackgroundStep::start("loom", xtask(project, "loom"));
        reports.push(step("deep tests", || suite::run(&programs, Part::Deep, &environment)));
        reports.push(step("oracle", || crate::oracle::check(project)));
        // In parallel, because ublk waits for a guest and the tests of RBD wait for a cluster.
        let mut fuzz = xtask(project, "fuzz");
        fuzz.arg("--fixed");
        let fuzz = BackgroundStep::start("fuzz", fuzz);
        let ublk = BackgroundStep::start("ublk", xtask(project, "ublk"));
        reports.push(step("RBD images", || crate::ceph::check(project)));
        reports.push(ublk.end());
        // It packs and waits most of the time. Not earlier, because it links mqblk, which tests use, once more.
        let mut dist = xtask(project, "dist");
        dist.args(["--check", "--profile", "dev"]);
        let installation = BackgroundStep::start("installation", dist);
        reports.push(fuzz.end());
        reports.push(step("clippy", || run_counted(&mut clippy(project))));
        reports.push(loom.end());
        reports.push(step("documentation", || run_counted(&mut doc(project))));
        reports.push(step("packages", || run_counted(&mut package(project))));
        reports.push(installation.end());
    }
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    if let Some(why) = &not_run {
        println!("\nnot run: the file driver on a block device: {why}; {TEST_DEVICE}=DEV runs it on DEV");
    }
    match close(&reports, ci) {
        Outcome::Passed if ci && not_run.is_some() => {
            eprintln!("xtask: with CI=true every test must run, and the one on a block device did not");
            Outcome::Failed
        }
        outcome => outcome,
    }
}

/// Environment variable with the path of a block device that tests may write to.
const TEST_DEVICE: &str = "MQBLK_TEST_DEVICE";
/// Size of the device that is made here.
const TEST_DEVICE_BYTES: u64 = 64 << 20;

/// Makes a loop device for tests that need a block device, unless the developer has named one. If that fails, returns the reason.
fn test_device(project: &Project) -> (Option<Loop>, Option<String>) {
    if std::env::var_os(TEST_DEVICE).is_some() {
        return (None, None);
    }
    let file = project.target_directory.join("tmp").join("test-device.img");
    let made = std::fs::create_dir_all(file.parent().unwrap_or(&project.target_directory))
        .and_then(|()| std::fs::File::create(&file)?.set_len(TEST_DEVICE_BYTES))
        .map_err(|e| format!("cannot create {}: {e}", file.display()))
        .and_then(|()| Loop::new(&file));
    match made {
        Ok(device) => (Some(device), None),
        Err(why) => (None, Some(why)),
    }
}

/// Prints why checks failed, their times and the closing line. Returns the verdict.
fn close(reports: &[Report], ci: bool) -> Outcome {
    let mut counts = Counts::default();
    for Report { name, found, .. } in reports.iter().filter(|r| !r.found.ok && !r.found.output.is_empty()) {
        println!("\n{name}: FAILED:\n{}", found.output.trim_end());
    }
    println!();
    for Report { name, time, found } in reports {
        counts += found.counts;
        let word = if found.ok { "ok" } else { "FAILED" };
        println!("{name:<14} {word:<7} {:>8.1} s", time.as_secs_f64());
    }
    println!();
    println!("{}", closing_line(counts));
    let skipped = ci && counts.skipped > 0;
    if skipped {
        eprintln!(
            "xtask: {} tests skipped: with CI=true every test must run; \
             fix or delete the ignored ones",
            counts.skipped
        );
    }
    if skipped || counts.failed > 0 || reports.iter().any(|r| !r.found.ok) {
        return Outcome::Failed;
    }
    Outcome::Passed
}

fn closing_line(counts: Counts) -> String {
    let Counts { passed, failed, skipped } = counts;
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

fn in_root(project: &Project) -> Command {
    let mut command = cargo();
    command.current_dir(&project.root);
    command
}

fn format(project: &Project) -> Command {
    let mut command = in_root(project);
    command.args(["fmt", "--all", "--check"]);
    command
}

fn clippy(project: &Project) -> Command {
    let mut command = in_root(project);
    command.args(["clippy", "--workspace", "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    command
}

fn xtask(project: &Project, check: &str) -> Command {
    let mut command = in_root(project);
    command.args(["xtask", check]);
    command
}

fn doc(project: &Project) -> Command {
    let mut command = in_root(project);
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", appended("RUSTDOCFLAGS", "-D warnings"));
    command
}

/// Checks what would be published to a registry: every path is in the package, and every dependency has a version. It is not built again,
/// because the tests have built the same sources.
fn package(project: &Project) -> Command {
    let mut command = in_root(project);
    command.args(["package", "--workspace", "--allow-dirty", "--no-verify", "--no-metadata"]);
    command
}

/// Returns the flags in the developer's environment, followed by ours.
pub fn appended(variable: &str, flags: &str) -> String {
    match std::env::var(variable) {
        Ok(set) if !set.is_empty() => format!("{set} {flags}"),
        _ => flags.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(ok: bool, passed: u64, failed: u64, skipped: u64) -> Report {
        let found = Found { ok, counts: Counts { passed, failed, skipped }, output: String::new() };
        Report { name: "sample", time: Duration::from_millis(1200), found }
    }

    #[test]
    fn the_closing_line_has_the_agreed_form() {
        let counts = report(true, 7, 0, 2).found.counts;
        assert_eq!(closing_line(counts), "7 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn one_failed_check_fails_the_run() {
        assert_eq!(close(&[report(true, 3, 0, 0)], true), Outcome::Passed);
        let mixed = [report(true, 3, 0, 0), report(false, 0, 0, 0)];
        assert_eq!(close(&mixed, false), Outcome::Failed);
        assert_eq!(close(&[report(true, 3, 1, 0)], false), Outcome::Failed);
    }

    #[test]
    fn a_skipped_test_fails_only_in_ci() {
        assert_eq!(close(&[report(true, 3, 0, 1)], false), Outcome::Passed);
        assert_eq!(close(&[report(true, 3, 0, 1)], true), Outcome::Failed);
    }

    #[test]
    fn flags_already_set_are_kept() {
        assert_eq!(appended("NO_SUCH_FLAGS_OF_MQBLK", "--cfg loom"), "--cfg loom");
        let path = std::env::var("PATH").unwrap();
        assert_eq!(appended("PATH", "x"), format!("{path} x"));
    }
}
