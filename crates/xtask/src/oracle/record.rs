// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle --record`: records in a guest what a real kernel does with a script.
//!
//! Guarantees: a recording replaces an older one only when the guest ran all of it. Needs x86-64, the packages of
//! [`crate::packages::ensure_guest`] (installed automatically for root), and a Debian mirror for the kernel. Needs no KVM. The
//! steps are those of `crates/oracle/guest/record.sh`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages;
use crate::project::Project;

/// The kernel whose decisions are recorded in the project's cases.
pub const KERNEL: &str = "linux-image-6.12-cloud-amd64";

/// CPUs of the guest whose disks share tags. It needs several, because hardware queues are per CPU.
const TAGS_CPUS: &str = "4";

/// Records `cases` (paths without extension). Returns the new recordings, because recordings of other kernels may be next to them.
///
/// # Errors
/// When this machine cannot run a guest, a file is missing, or the guest fails.
pub fn run(project: &Project, cases: &[PathBuf], kernel: &str, cpus: u8) -> Result<Vec<PathBuf>, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("nothing recorded: the guest is an x86-64 machine and so must this one be".into());
    }
    packages::ensure_guest().map_err(|e| format!("nothing recorded: {e}"))?;
    let own = project.root.join("crates/oracle");
    let cases: Vec<PathBuf> = cases.iter().map(|c| located(c, &own)).collect();
    let out = project.target_directory.join("oracle/out");
    if out.is_dir() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("cannot empty {}: {e}", out.display()))?;
    }
    let mut command = Command::new("bash");
    command.arg(own.join("guest/record.sh")).arg(project.target_directory.join("oracle")).arg(&out);
    command.args([kernel, &cpus.to_string()]);
    for case in &cases {
        for extension in ["io", "env"] {
            let file = case.with_extension(extension);
            if !file.is_file() {
                return Err(format!("no {}: a case to record needs NAME.io and NAME.env", file.display()));
            }
            command.arg(file);
        }
    }
    println!("recording {} cases on {kernel} with {cpus} CPUs", cases.len());
    let status = command.status().map_err(|e| format!("cannot run bash: {e}"))?;
    if !status.success() {
        return Err("nothing recorded: the message above is the guest's".into());
    }
    cases.iter().map(|case| keep(case, &out)).collect()
}

/// Records the maximum number of requests in flight on disks that share tags (`guest/tags.sh`). Copies the recordings into the project's
/// cases and returns their paths.
///
/// # Errors
/// The errors of [`run`].
pub fn run_tags(project: &Project, kernel: &str) -> Result<Vec<PathBuf>, String> {
    packages::ensure_guest().map_err(|e| format!("nothing recorded: {e}"))?;
    let (own, out) = (project.root.join("crates/oracle"), project.target_directory.join("oracle/tags"));
    if out.is_dir() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("cannot empty {}: {e}", out.display()))?;
    }
    let mut command = Command::new("bash");
    command.arg(own.join("guest/record.sh")).arg(project.target_directory.join("oracle")).arg(&out);
    command.args([kernel, TAGS_CPUS]).env("JOB", "tags.sh");
    println!("recording disks that share tags on {kernel} with {TAGS_CPUS} CPUs");
    if !command.status().map_err(|e| format!("cannot run bash: {e}"))?.success() {
        return Err("nothing recorded: the message above is the guest's".into());
    }
    let entries = out.read_dir().map_err(|e| format!("cannot read {}: {e}", out.display()))?;
    let files = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "tags"));
    files.map(|file| keep_tags(&file, &own.join("cases"))).collect()
}

fn keep_tags(file: &Path, cases: &Path) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let version = version(&text).ok_or_else(|| format!("{}: no line 'kernel VERSION'", file.display()))?;
    let folder = cases.join(version);
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let to = folder.join(file.file_name().unwrap_or_default());
    std::fs::copy(file, &to).map_err(|e| format!("cannot copy {} to {}: {e}", file.display(), to.display()))?;
    Ok(to.with_extension(""))
}

/// Returns the path of a case. A bare name is one of the project's own.
fn located(case: &Path, own: &Path) -> PathBuf {
    let bare = case.parent().is_none_or(|p| p.as_os_str().is_empty());
    if bare && !case.with_extension("io").is_file() { own.join("cases").join(case) } else { case.to_path_buf() }
}

/// Moves trace and report of a case into the folder of the kernel's version beside the case. Returns where they are.
fn keep(case: &Path, out: &Path) -> Result<PathBuf, String> {
    let name = case.file_name().map(PathBuf::from).unwrap_or_default();
    let report = out.join(name.with_extension("env"));
    let text = std::fs::read_to_string(&report).map_err(|e| format!("cannot read {}: {e}", report.display()))?;
    let version = version(&text).ok_or_else(|| format!("{}: no line 'kernel VERSION'", report.display()))?;
    let folder = case.parent().unwrap_or(Path::new("")).join(version);
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    for extension in ["trace", "env"] {
        let (from, to) = (out.join(name.with_extension(extension)), folder.join(name.with_extension(extension)));
        std::fs::copy(&from, &to).map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))?;
    }
    Ok(folder.join(name))
}

/// Returns "6.12" of "kernel 6.12.107+deb12-cloud-amd64".
fn version(report: &str) -> Option<String> {
    let kernel = report.lines().find_map(|l| l.strip_prefix("kernel "))?;
    let mut parts = kernel.split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    (digits(major) && digits(minor)).then(|| format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_the_folder() {
        assert_eq!(version("kernel 6.12.107+deb12-cloud-amd64\nnull_blk\n"), Some("6.12".into()));
        assert_eq!(version("kernel 7.1-rc3"), None);
        assert_eq!(version("null_blk"), None);
    }

    #[test]
    fn a_bare_name_is_the_projects_own() {
        let own = Path::new("/own");
        assert_eq!(located(Path::new("dl-x"), own), Path::new("/own/cases/dl-x"));
        assert_eq!(located(Path::new("there/dl-x"), own), Path::new("there/dl-x"));
    }
}
