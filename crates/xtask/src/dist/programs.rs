// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the program and fio's engine for every distribution whose C library is at least that of Debian 11.
//!
//! A program that is linked on this machine would need this machine's C library or a newer one. So the linker gets the C library of
//! Debian 11 as its system root. Only linking differs from an ordinary build; the compiled libraries are shared.
//!
//! Guarantees: no symbol of a newer C library is needed. This is checked in the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::release::Release;
use crate::project::cargo;
use crate::tool;

/// The oldest supported C library, and the distribution that has it.
const GLIBC: (u32, u32) = (2, 31);
const SUITE: &str = "bullseye";

/// Makes links to libraries relative, because the linker would follow an absolute one to this machine's library.
const RELATIVE: &str = "--extract-hook=find \"$1/lib64\" \"$1/usr/lib\" -name '*.so*' -lname '/*' | \
                        while read -r link; do ln -sfr \"$1$(readlink \"$link\")\" \"$link\"; done";

/// What was built.
pub struct Programs {
    /// `mqblk`
    pub program: PathBuf,
    /// `libmqblk_fio.so`
    pub engine: PathBuf,
    /// The root of a Debian 11 with the C library and little else. Programs can be started in it.
    pub sysroot: PathBuf,
}

/// Builds the programs with one of Cargo's profiles.
///
/// # Errors
/// No mirror, a build that fails, or a program that needs a newer C library.
pub fn build(release: &Release, profile: &str) -> Result<Programs, String> {
    let sysroot = sysroot(release)?;
    // Without these options, the compiler driver searches this machine's directories before those below the system root.
    let (root, triple) = (sysroot.display(), format!("{}-linux-gnu", std::env::consts::ARCH));
    let link =
        format!("link-args=--sysroot={root} -B{root}/usr/lib/{triple} -L{root}/usr/lib/{triple} -L{root}/lib/{triple}");
    for what in [["-p", "mqblk", "--bin", "mqblk"], ["-p", "mqblk-fio-engine", "--crate-type", "cdylib"]] {
        let mut command = cargo();
        command.current_dir(&release.project.root).args(["rustc", "--locked", "--profile", profile]).args(what);
        let status = command.args(["--", "-C", &link]).status().map_err(|e| format!("cannot run cargo: {e}"))?;
        if !status.success() {
            return Err(format!("{} does not build", what[1]));
        }
    }
    // Cargo's directory for the profile "dev" is "debug".
    let built = release.project.target_directory.join(if profile == "dev" { "debug" } else { profile });
    let programs = Programs { program: built.join("mqblk"), engine: built.join("libmqblk_fio.so"), sysroot };
    for file in [&programs.program, &programs.engine] {
        let symbols = tool::output(Command::new("objdump").arg("--dynamic-syms").arg(file))?;
        if let Some((major, minor)) = newest(&symbols).filter(|version| *version > GLIBC) {
            return Err(format!("{} needs glibc {major}.{minor}; {}.{} was meant", file.display(), GLIBC.0, GLIBC.1));
        }
    }
    Ok(programs)
}

/// Returns the system root with the C library and its start files. The first time, it is fetched from the mirror.
fn sysroot(release: &Release) -> Result<PathBuf, String> {
    let root = release.dir.join(SUITE);
    if !root.is_dir() {
        println!("fetching the C library of Debian 11");
        unpack(&root, &["--variant=extract", "--include=libc6-dev,libgcc-s1,libgcc-10-dev", RELATIVE, SUITE])?;
    }
    Ok(root)
}

/// Makes a root directory with `mmdebstrap`. If that fails, no directory is left.
pub fn unpack(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let part = root.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    tool::run(Command::new("mmdebstrap").args(arguments).arg(&part))?;
    fs::rename(&part, root).map_err(|e| format!("{}: {e}", root.display()))
}

/// Returns the newest version of glibc in the symbol table that `objdump` prints.
fn newest(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|after| {
        let digits = after.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let (major, minor) = digits.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_c_library_is_found_in_a_symbol_table() {
        let table = "0000 DF *UND* 0000 (GLIBC_2.2.5) read\n0000 DF *UND* 0000 (GLIBC_2.34) dlsym\n\
                     0000  w   DF *UND* 0000 (GLIBC_2.9) __x\n0000 DO (GLIBC_PRIVATE) y\n";
        assert_eq!(newest(table), Some((2, 34)));
        assert!((2, 34) > GLIBC && (2, 9) < GLIBC);
        assert_eq!(newest("no symbols\n"), None);
    }
}
