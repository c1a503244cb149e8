// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machine files: read, checked before they are written, never half written.

use crate::status::Failure;
use sim::scenario::file::Scenario;
use std::path::Path;

/// Largest that is read: a mistyped name may be a disk image.
const BYTES_MAX: u64 = 4 << 20;

/// The text of a file that is read as a whole; `what` is it called in messages.
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

/// A machine file and its text.
pub fn read(file: &Path) -> Result<(Scenario, String), Failure> {
    let text = read_text("machine file", file, BYTES_MAX)?;
    let scenario = Scenario::parse_machine(&file.display().to_string(), &text).map_err(Failure::new)?;
    Ok((scenario, text))
}

/// The tables `[costs...]` of a machine file, as they stand there, with the ranges of costs.
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
        return Err(Failure::new(format!("--costs {name}: there is no table [costs.path] or [costs.line] in it")));
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

/// Writes a machine file in one go, after reading it back; `flag` names it in messages.
pub fn write(flag: &str, file: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    Scenario::parse_machine(&name, text)
        .map_err(|e| Failure::new(format!("{flag} {name}: would not be read back: {e}")))?;
    if !force && file.exists() {
        return Err(Failure::new(format!("{flag} {name}: is there already; name another file, or add --force")));
    }
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let failed = |e: std::io::Error| {
        Failure::new(format!("{flag} {name}: cannot be written: {e}; name a file in a directory you may write to"))
    };
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)).map_err(failed)
}
