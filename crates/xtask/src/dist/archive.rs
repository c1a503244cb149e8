// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs a tree as a tarball and as a Debian package, and writes checksums of both.
//!
//! The tarball is for other distributions: `tar -C /usr/local --strip-components=1 -xf`. debhelper makes the Debian package from
//! `contrib/debian`: it moves files to Debian's directories, strips programs, and writes the scripts for systemd.
//!
//! Guarantees: names, owners and times in the tarball depend on the commit, not on this machine; lintian has no error or warning.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::release::{Release, make_directory};
use crate::tool;

/// The packaging revision of the Debian package.
const REVISION: u32 = 1;

/// What was packed.
pub struct Packages {
    pub debian: PathBuf,
    pub tarball: PathBuf,
}

/// Packs a tree into `out`, which contains nothing else afterwards.
///
/// # Errors
/// A tool fails, or lintian reports an error or a warning.
pub fn make(release: &Release, tree: &Path) -> Result<Packages, String> {
    let out = &release.out;
    let _ = fs::remove_dir_all(out);
    make_directory(out)?;
    let debian = debian(release, tree, out)?;
    let tarball = tarball(release, tree, out)?;
    fs::copy(tree.join("share/doc/mqblk/mqblk.cdx.json"), out.join(format!("mqblk-{}.cdx.json", release.version)))
        .map_err(|e| format!("{}: {e}", out.display()))?;
    let sums = tool::output(Command::new("sh").args(["-c", "sha256sum -- *"]).current_dir(out))?;
    fs::write(out.join("SHA256SUMS"), &sums).map_err(|e| format!("{}: {e}", out.display()))?;
    print!("{sums}");
    Ok(Packages { debian, tarball })
}

fn debian(release: &Release, tree: &Path, out: &Path) -> Result<PathBuf, String> {
    let source = release.dir.join("debian");
    let _ = fs::remove_dir_all(&source);
    make_directory(&source)?;
    let from = release.project.root.join("contrib/debian");
    tool::run(Command::new("cp").arg("--recursive").arg(from).arg(source.join("debian")))?;
    tool::run(Command::new("cp").arg("--archive").arg(tree).arg(source.join("tree")))?;
    let units = release.project.root.join("contrib/systemd");
    for kind in ["sysusers", "tmpfiles"] {
        let name = format!("mqblk.{kind}");
        fs::copy(units.join(&name), source.join("debian").join(&name)).map_err(|e| format!("{name}: {e}"))?;
    }
    fs::write(source.join("debian/changelog"), changelog(release)?).map_err(|e| format!("changelog: {e}"))?;
    let mut build = Command::new("dpkg-buildpackage");
    tool::run(build.args(["--build=binary", "--no-sign", "--no-pre-clean"]).current_dir(&source))?;
    let architecture = tool::output(Command::new("dpkg").arg("--print-architecture"))?;
    for package in ["mqblk", "mqblk-dbgsym"] {
        let name = format!("{package}_{}-{REVISION}_{}.deb", release.version, architecture.trim());
        fs::rename(release.dir.join(&name), out.join(&name)).map_err(|e| format!("{name}: {e}"))?;
    }
    let package = out.join(format!("mqblk_{}-{REVISION}_{}.deb", release.version, architecture.trim()));
    // lintian prints its findings to standard output.
    let lintian = Command::new("lintian").args(["--allow-root", "--fail-on=error,warning"]).arg(&package).output();
    let lintian = lintian.map_err(|e| format!("cannot run lintian: {e}"))?;
    print!("{}", String::from_utf8_lossy(&lintian.stdout));
    if !lintian.status.success() {
        return Err(format!("lintian objects to {}", package.display()));
    }
    Ok(package)
}

/// Returns the text of debian/changelog, whose only entry is this version.
fn changelog(release: &Release) -> Result<String, String> {
    let at = format!("@{}", release.epoch);
    let date = tool::output(Command::new("date").args(["--utc", "--rfc-email", "--date", &at]))?;
    Ok(format!(
        "mqblk ({}-{REVISION}) unstable; urgency=medium\n\n  * CHANGELOG.md lists what has changed.\n\n -- The mqblk authors \
         <mqblk@localhost>  {date}",
        release.version
    ))
}

fn tarball(release: &Release, tree: &Path, out: &Path) -> Result<PathBuf, String> {
    let name = format!("mqblk-{}-{}-linux-gnu", release.version, std::env::consts::ARCH);
    let stripped = release.dir.join("stripped");
    let _ = fs::remove_dir_all(&stripped);
    tool::run(Command::new("cp").arg("--archive").arg(tree).arg(&stripped))?;
    let programs = [stripped.join("bin/mqblk"), stripped.join("lib/mqblk/libmqblk_fio.so")];
    tool::run(Command::new("strip").arg("--strip-debug").args(programs))?;
    let file = out.join(format!("{name}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    // A fixed number of threads, because xz divides its input differently for one thread.
    tar.env("XZ_OPT", "--threads=2");
    tar.arg(format!("--mtime=@{}", release.epoch)).arg(format!("--transform=s,^\\.,{name},")).arg("--file").arg(&file);
    tool::run(tar.arg("--directory").arg(&stripped).arg("."))?;
    Ok(file)
}
