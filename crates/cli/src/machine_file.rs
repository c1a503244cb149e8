// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machine files: read, checked before they are written, never half written.

use crate::status::Failure;
use sim::scenario::file::Scenario;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Largest machine file that is read: a mistyped name may be a disk image.
const BYTES_MAX: u64 = 4 << 20;
/// Maximum number of links that lead to a file, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Maximum number of names that are tried for a temporary file.
const TRIES_MAX: usize = 16;

/// Reads a whole file as text; `what` names the file in messages.
pub fn read_text(what: &str, file: &Path, bytes_max: u64) -> Result<String, Failure> {
    let name = file.display();
    let failed = |e: std::io::Error| Failure::new(format!("{what} '{name}': {e}"));
    let meta = std::fs::metadata(file).map_err(failed)?;
    if meta.is_file() && meta.len() > bytes_max {
        return Err(Failure::new(format!("{what} '{name}': {} bytes: must be at most {bytes_max}", meta.len())));
    }
    let mut bytes = Vec::new();
    let open = std::fs::File::open(file).map_err(failed)?;
    std::io::Read::read_to_end(&mut std::io::Read::take(open, bytes_max), &mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| Failure::new(format!("{what} '{name}': must be text (UTF-8)")))
}

/// Reads a machine file. Returns the machine and the text.
pub fn read(file: &Path) -> Result<(Scenario, String), Failure> {
    let text = read_text("machine file", file, BYTES_MAX)?;
    let scenario = Scenario::parse_machine(&file.display().to_string(), &text).map_err(Failure::new)?;
    Ok((scenario, text))
}

/// Returns the tables `[costs...]` of a machine file, copied unchanged, with the ranges of costs.
pub fn costs_of(file: &Path) -> Result<String, Failure> {
    let (scenario, text) = read(file)?;
    let mut keeps = false;
    let mut out = format!("# Costs of {}:\n", file.display().to_string().replace(char::is_control, " "));
    for line in text.lines() {
        let start = line.trim_start();
        if start.starts_with('[') {
            keeps = start.starts_with("[costs");
        }
        if keeps && !start.is_empty() {
            out += line;
            out.push('\n');
        }
    }
    if !out.contains("\n[costs") {
        let name = file.display();
        return Err(Failure::new(format!("--costs {name}: has no table [costs.path] or [costs.line]")));
    }
    let ranges: Vec<String> = scenario
        .uncertain
        .iter()
        .filter(|(name, _)| name.starts_with("costs."))
        .map(|(name, [low, high])| format!("\"{name}\" = [{low:?}, {high:?}]"))
        .collect();
    if !ranges.is_empty() {
        out += &format!("\n[uncertain]\n{}\n", ranges.join("\n"));
    }
    Ok(out)
}

/// Writes a machine file as a whole, after checking that `text` can be read back; `flag` names the file in messages.
pub fn write(flag: &str, file: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    Scenario::parse_machine(&name, text)
        .map_err(|e| Failure::new(format!("{flag} {name}: would not be a valid machine file: {e}")))?;
    if !force && file.exists() {
        return Err(Failure::new(format!("{flag} {name}: already exists; name another file, or add --force")));
    }
    let failed = |e: std::io::Error| {
        Failure::new(format!("{flag} {name}: cannot be written: {e}; name a file in a directory you may write to"))
    };
    replace(file, text).map_err(failed)
}

/// Replaces the content of a file, or of the file that a link points to. No other existing file is touched.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let old = match fs::metadata(file) {
        // A pipe or a terminal is written to directly, because a rename would replace it.
        Ok(meta) if !meta.is_file() => return fs::write(file, text),
        Ok(meta) => Some(meta.permissions()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let file = &led_to(file)?;
    let (new, mut open) = temporary(file)?;
    let written = open
        .write_all(text.as_bytes())
        .and_then(|()| old.map_or(Ok(()), |old| open.set_permissions(old)))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // Best effort: the failure of the write is reported.
        let _ = fs::remove_file(&new);
    }
    written
}

/// Follows symbolic links. Returns the final name, which need not exist yet.
fn led_to(file: &Path) -> io::Result<PathBuf> {
    let mut at = file.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&at) {
            // A relative link is relative to the directory of the link.
            Ok(to) => at = at.parent().map_or_else(|| to.clone(), |d| d.join(&to)),
            Err(_) => return Ok(at),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Makes a new file in the directory of another one.
fn temporary(file: &Path) -> io::Result<(PathBuf, File)> {
    for n in 0..TRIES_MAX {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".{}-{n}.new", std::process::id()));
        match File::create_new(&name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((PathBuf::from(name), made?)),
        }
    }
    Err(io::Error::other("all names for a temporary file beside it are taken"))
}
