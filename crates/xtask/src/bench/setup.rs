// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine and the versions a figure belongs to.
//!
//! Guarantees: nothing here makes a run fail, except when the CPUs to measure on are unknown. Anything else that cannot be found out is
//! recorded as `unknown`. Records no host name, user or path.

use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::project::Project;

/// Load average up to which the machine counts as idle: a build that has just ended still causes this much.
const BUSY_LOAD: f64 = 0.5;

/// The origin of a result: date, commit and machine.
#[derive(Clone, Serialize)]
pub struct Setup {
    /// Day of the run, UTC.
    pub date: String,
    /// Short hash of the commit.
    pub commit: String,
    /// Whether tracked files differed from the commit.
    pub modified: bool,
    /// How each run was limited.
    pub limit: String,
    kernel: String,
    cpu: String,
    cpus: usize,
    governor: String,
    load_average: String,
    rustc: String,
    fio: String,
}

impl Setup {
    /// Reads it.
    pub fn read(project: &Project, limit: &str) -> Setup {
        let root = project.root.to_string_lossy();
        let git = |arguments: &[&str]| {
            let mut all = vec!["-C", &root];
            all.extend(arguments);
            first_line("git", &all)
        };
        let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
        Setup {
            date: known(first_line("date", &["-u", "+%Y-%m-%d"])),
            commit: known(git(&["rev-parse", "--short", "HEAD"])),
            modified: changes.is_some_and(|line| !line.is_empty()),
            limit: limit.to_owned(),
            kernel: known(file("/proc/sys/kernel/osrelease")),
            cpu: known(fs::read_to_string("/proc/cpuinfo").ok().and_then(|t| model(&t))),
            cpus: allowed_cpus().map_or(0, |cpus| cpus.len()),
            governor: known(file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            load_average: known(file("/proc/loadavg")),
            rustc: known(first_line("rustc", &["--version"])),
            fio: known(first_line("fio", &["--version"])),
        }
    }

    /// A reason to doubt absolute figures of this run, if there is one.
    pub fn warning(&self) -> Option<String> {
        let load: f64 = self.load_average.split(' ').next()?.parse().ok()?;
        let busy = load > BUSY_LOAD;
        busy.then(|| format!("load average {load}: other work shares these CPUs; trust ratios, not absolute figures"))
    }

    /// One for tests.
    #[cfg(test)]
    pub fn sample() -> Setup {
        let text = |s: &str| s.to_owned();
        Setup {
            date: text("2026-01-02"),
            commit: text("abc1234"),
            modified: false,
            limit: text("number_ios=1"),
            kernel: text("6.1"),
            cpu: text("model"),
            cpus: 2,
            governor: text("unknown"),
            load_average: text("0"),
            rustc: text("rustc 1"),
            fio: text("fio-3.33"),
        }
    }
}

/// The CPUs this process may run on, ascending.
///
/// # Errors
/// When the kernel does not say.
pub fn allowed_cpus() -> Result<Vec<usize>, String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|e| format!("cannot read /proc/self/status: {e}"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .and_then(cpu_list)
        .ok_or_else(|| "cannot find the allowed CPUs in /proc/self/status".to_owned())
}

/// Reads `0-3,8`, the form of cpuset(7); `None` when it is another.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    (!cpus.is_empty()).then_some(cpus)
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let (_, name) = line?.split_once(':')?;
    Some(name.trim().to_owned())
}

fn file(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The first line of what a command prints, when it succeeds.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next().unwrap_or_default().trim();
    output.status.success().then(|| line.to_owned())
}

fn known(value: Option<String>) -> String {
    let value = value.filter(|text| !text.is_empty());
    value.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(cpu_list(" 0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list("7"), Some(vec![7]));
        assert_eq!(cpu_list(""), None);
        assert_eq!(cpu_list("1-x"), None);
        assert!(!allowed_cpus().unwrap().is_empty());
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        assert_eq!(known(first_line("no-such-program-of-mqblk", &[])), "unknown");
        assert_eq!(known(first_line("false", &[])), "unknown");
        assert_eq!(known(file("/proc/no-such-file")), "unknown");
        assert_eq!(known(first_line("echo", &["a"])), "a");
    }

    #[test]
    fn a_busy_machine_is_warned_of() {
        let with = |load: &str| Setup { load_average: load.to_owned(), ..Setup::sample() };
        assert!(with("4.65 2.13 1.13 3/200 99").warning().unwrap().contains("load average 4.65"));
        assert_eq!(with("0.50 0.90 1.00 1/200 99").warning(), None);
        assert_eq!(with("unknown").warning(), None);
    }

    #[test]
    fn the_model_name_is_found() {
        let text = "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags : x\n";
        assert_eq!(model(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model("flags : x"), None);
    }
}
