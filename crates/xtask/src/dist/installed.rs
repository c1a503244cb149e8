// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the Debian package on a clean Debian 12 under systemd, the tarball on a Debian 11, fio's engine in the fio of each Debian, and
//! the program as Cargo installs it.
//!
//! Guarantees: each one is used, not only unpacked. `installed.sh` does this for the Debian package: it runs as a unit in a container of
//! systemd-nspawn. The container writes to memory, so the next run starts from the same root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::archive::Packages;
use super::fio_versions;
use super::programs::{Programs, unpack};
use super::release::{Release, make_directory};
use crate::outcome::Outcome;
use crate::project::cargo;
use crate::tool;

/// The distribution of the container, and its packages in addition to the essential ones.
const SUITE: &str = "bookworm";
const INCLUDED: &str = "--include=systemd,systemd-sysv,dbus";

/// The script that runs in the container.
const SCRIPT: &str = include_str!("installed.sh");
const UNIT: &str = "[Unit]\nRequires=multi-user.target\nAfter=multi-user.target\n\
                    [Service]\nType=oneshot\nStandardOutput=file:/mnt/said\nStandardError=file:/mnt/said\n\
                    ExecStart=/bin/sh /mnt/installed.sh\nExecStopPost=/bin/systemctl poweroff --no-block\n";
/// Time limit of the container, in seconds.
const LIMIT: &str = "300";

/// A short comparison of the two modes.
const JOB: &str = "[job]\nrw=randread\nbs=4k\niodepth=8\nruntime=1\ntime_based\n";

/// Tests all of them.
///
/// # Errors
/// A tool is missing or fails. A defect of a package is no error but [`Outcome::Failed`].
pub fn check(release: &Release, programs: &Programs, packages: &Packages) -> Result<Outcome, String> {
    let checks = [
        under_systemd(release, packages)?,
        oldest(release, programs, packages),
        fio_versions::check(release, programs),
        cargo_install(release),
    ];
    let failed: Vec<&String> = checks.iter().filter_map(|check| check.as_ref().err()).collect();
    for why in &failed {
        eprintln!("xtask: {why}");
    }
    Ok(if failed.is_empty() { Outcome::Passed } else { Outcome::Failed })
}

/// Installs, uses and removes the Debian package.
fn under_systemd(release: &Release, packages: &Packages) -> Result<Result<(), String>, String> {
    let root = release.dir.join(SUITE);
    if !root.is_dir() {
        println!("making a root of Debian 12");
        unpack(&root, &["--variant=minbase", INCLUDED, SUITE])?;
    }
    let shared = release.dir.join("shared");
    let _ = fs::remove_dir_all(&shared);
    make_directory(&shared)?;
    let write = |name: &str, text: &str| fs::write(shared.join(name), text).map_err(|e| format!("{name}: {e}"));
    write("installed.sh", SCRIPT)?;
    write("job.fio", JOB)?;
    write("mqblk-installed.service", UNIT)?;
    fs::copy(&packages.debian, shared.join("mqblk.deb")).map_err(|e| format!("{}: {e}", packages.debian.display()))?;
    println!("a container installs, uses and removes the package");
    let mut container = Command::new("timeout");
    container.args(["--kill-after=10", LIMIT, "systemd-nspawn", "--quiet", "--boot", "--volatile=overlay"]);
    // Not registered, because this host may have no service manager.
    container.args(["--register=no", "--keep-unit", "--console=pipe", "--private-network"]);
    container.arg("--directory").arg(&root).arg(format!("--bind={}:/mnt", shared.display()));
    let unit = shared.join("mqblk-installed.service");
    container.arg(format!("--bind-ro={}:/etc/systemd/system/mqblk-installed.service", unit.display()));
    // The remaining arguments go to the container's first process.
    container.args(["--", "--unit=mqblk-installed.service"]);
    let ended = tool::run(&mut container);
    let said = fs::read_to_string(shared.join("said")).unwrap_or_default();
    print!("{said}");
    if ended.is_ok() && said.ends_with("PASSED\n") {
        return Ok(Ok(()));
    }
    let trace = fs::read_to_string(shared.join("trace")).unwrap_or_default();
    let lines: Vec<&str> = trace.lines().collect();
    let last = lines[lines.len().saturating_sub(60)..].join("\n");
    let ended = ended.err().unwrap_or_default();
    Ok(Err(format!("the Debian package failed its check {ended}; the last commands:\n{last}")))
}

/// Runs the tarball's program with the oldest C library.
fn oldest(release: &Release, programs: &Programs, packages: &Packages) -> Result<(), String> {
    println!("the tarball's program runs on the C library of Debian 11");
    let root = &programs.sysroot;
    let place = root.join("opt");
    let _ = fs::remove_dir_all(&place);
    make_directory(&place)?;
    tool::run(
        Command::new("tar").arg("--extract").arg("--file").arg(&packages.tarball).arg("--directory").arg(&place),
    )?;
    fs::write(place.join("job.fio"), JOB).map_err(|e| format!("{}: {e}", place.display()))?;
    let top = format!("/opt/mqblk-{}-{}-linux-gnu", release.version, std::env::consts::ARCH);
    let mut run = Command::new("chroot");
    run.arg(root).arg(format!("{top}/bin/mqblk")).args(["run", "/opt/job.fio", "--target", "ram:size=16m"]);
    let said = tool::output(&mut run)?;
    if said.contains("IOPS=") { Ok(()) } else { Err(format!("no IOPS in\n{said}")) }
}

/// Runs `cargo install` as the README shows it.
fn cargo_install(release: &Release) -> Result<(), String> {
    println!("cargo install --path crates/cli");
    let root: PathBuf = release.dir.join("cargo-install");
    let _ = fs::remove_dir_all(&root);
    let mut install = cargo();
    install.current_dir(&release.project.root).args([
        "install",
        "--quiet",
        "--locked",
        "--debug",
        "--path",
        "crates/cli",
    ]);
    tool::run(install.arg("--root").arg(&root))?;
    let said = tool::output(Command::new(root.join("bin/mqblk")).arg("--version"))?;
    let wanted = format!("mqblk {}", release.version);
    if said.trim() == wanted {
        Ok(())
    } else {
        Err(format!("--version printed '{}'; '{wanted}' was meant", said.trim()))
    }
}
