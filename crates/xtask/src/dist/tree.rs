// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts every file of a package at its place below a prefix: `bin`, `lib`, `share` and `etc`.
//!
//! Guarantees: the program in the tree itself writes the completions and manual pages. No file of an earlier run is left.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::components::Components;
use super::programs::Programs;
use super::release::{Release, make_directory};
use crate::tool;

/// Shells, and where each looks for the completions of a package.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/mqblk"),
    ("zsh", "share/zsh/site-functions/_mqblk"),
    ("fish", "share/fish/vendor_completions.d/mqblk.fish"),
];

/// Files of the source tree, and their places.
const FILES: [(&str, &str); 12] = [
    ("contrib/systemd/mqblk-serve@.service", "lib/systemd/system/mqblk-serve@.service"),
    ("contrib/systemd/mqblk-serve@.socket", "lib/systemd/system/mqblk-serve@.socket"),
    ("contrib/systemd/mqblk.sysusers", "lib/sysusers.d/mqblk.conf"),
    ("contrib/systemd/mqblk.tmpfiles", "lib/tmpfiles.d/mqblk.conf"),
    ("examples/serve.toml", "etc/mqblk/example.toml"),
    ("README.md", "share/doc/mqblk/README.md"),
    ("ARCHITECTURE.md", "share/doc/mqblk/ARCHITECTURE.md"),
    ("CONTRIBUTING.md", "share/doc/mqblk/CONTRIBUTING.md"),
    ("CHANGELOG.md", "share/doc/mqblk/CHANGELOG.md"),
    ("LICENSE", "share/doc/mqblk/LICENSE"),
    ("LICENSE-APACHE", "share/doc/mqblk/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/mqblk/LICENSE-MIT"),
];

/// Directories of the source tree, and their places.
const DIRECTORIES: [(&str, &str); 4] = [
    ("docs", "share/doc/mqblk/docs"),
    ("examples", "share/doc/mqblk/examples"),
    ("contrib/grafana", "share/doc/mqblk/contrib/grafana"),
    ("contrib/prometheus", "share/doc/mqblk/contrib/prometheus"),
];

/// Makes the tree. Returns its path.
///
/// # Errors
/// A file cannot be written, or the program fails.
pub fn lay_out(release: &Release, programs: &Programs, components: &Components) -> Result<PathBuf, String> {
    let tree = release.dir.join("tree");
    let _ = fs::remove_dir_all(&tree);
    let program = tree.join("bin/mqblk");
    copy(&programs.program, &program, 0o755)?;
    copy(&programs.engine, &tree.join("lib/mqblk/libmqblk_fio.so"), 0o644)?;
    for (shell, at) in COMPLETIONS {
        // A completion script calls the program by the name that the program had when it wrote the script.
        let mut asked = Command::new("env");
        asked.arg(path_with(&tree.join("bin"))).arg(format!("COMPLETE={shell}")).arg("mqblk");
        write(&tree.join(at), &tool::output(&mut asked)?)?;
    }
    manual_pages(release, &program, &tree.join("share/man"))?;
    for (from, to) in FILES {
        copy(&release.project.root.join(from), &tree.join(to), 0o644)?;
    }
    for (from, to) in DIRECTORIES {
        copy_all(&release.project.root.join(from), &tree.join(to))?;
    }
    let bom = format!("{:#}\n", components.bom(&release.version, &release.time()?));
    write(&tree.join("share/doc/mqblk/mqblk.cdx.json"), &bom)?;
    write(&tree.join("share/doc/mqblk/third-party.txt"), &components.notices()?)?;
    Ok(tree)
}

/// Returns `PATH` with a directory before all others.
fn path_with(directory: &Path) -> String {
    format!("PATH={}:{}", directory.display(), std::env::var("PATH").unwrap_or_default())
}

/// Writes each manual page to the directory of its section.
fn manual_pages(release: &Release, program: &Path, to: &Path) -> Result<(), String> {
    let pages = release.dir.join("pages");
    let _ = fs::remove_dir_all(&pages);
    make_directory(&pages)?;
    let example = release.project.root.join("examples/serve.toml");
    tool::run(Command::new(program).arg("manual").arg(&pages).arg("--example").arg(example))?;
    for page in files_of(&pages)? {
        let section = page.extension().unwrap_or_default().to_string_lossy();
        copy(&page, &to.join(format!("man{section}")).join(page.file_name().unwrap_or_default()), 0o644)?;
    }
    Ok(())
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    for file in files_of(from)? {
        let to = to.join(file.file_name().unwrap_or_default());
        if file.is_dir() {
            copy_all(&file, &to)?;
        } else {
            copy(&file, &to, 0o644)?;
        }
    }
    Ok(())
}

fn files_of(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    Ok(entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    make_directory(to.parent().unwrap_or(to))?;
    let copied = fs::copy(from, to).and_then(|_| fs::set_permissions(to, Permissions::from_mode(mode)));
    copied.map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    make_directory(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
