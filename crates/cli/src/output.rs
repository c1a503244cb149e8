// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where results go: standard output, or the file the user named.
//!
//! Guarantees: a file that cannot be written is reported before the run. A file created here is removed again if the
//! run has no results. An existing file keeps its content until there are results to write. A reader that closes the
//! pipe early is no error.

use crate::status::Failure;
use host::secrets::without_secrets;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The place for results.
pub enum Output {
    /// Standard output.
    Stdout,
    /// A file.
    File(OutputFile),
}

/// An open file for results.
pub struct OutputFile {
    /// The option that named the file, for messages.
    flag: &'static str,
    path: PathBuf,
    file: File,
    /// Whether the file was created here and is still empty.
    remove: bool,
    /// The old content is gone.
    is_begun: bool,
}

impl Output {
    /// Opens `path`, or standard output if there is none.
    pub fn open(path: Option<&Path>) -> Result<Output, Failure> {
        path.map_or(Ok(Output::Stdout), |path| OutputFile::open("--output", path).map(Output::File))
    }

    /// Writes a part of the results behind the parts before.
    pub fn append(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Output::Stdout => print(text),
            Output::File(out) => out.append(text),
        }
    }

    /// Writes all of the results.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Output::Stdout => print(text),
            Output::File(out) => out.write(text),
        }
    }
}

impl OutputFile {
    /// Opens `path`, which the user named by `flag`.
    pub fn open(flag: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        let failed = |e: io::Error| {
            let path = path.display();
            Failure::new(format!("{flag} {path}: cannot be written: {e}; name a file in a directory you may write to"))
        };
        let (file, remove) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path).map_err(failed)?, false)
            }
            Err(e) => return Err(failed(e)),
        };
        Ok(OutputFile { flag, path: path.to_owned(), file, remove, is_begun: false })
    }

    /// Replaces the content of the file by `text`.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.is_begun = false;
        self.append(text)
    }

    /// Replaces the content of the file by `text`, and then by more.
    fn append(&mut self, text: &str) -> Result<(), Failure> {
        let begun = if self.is_begun { Ok(()) } else { truncate(&self.file) };
        let written = begun.and_then(|()| self.file.write_all(text.as_bytes()));
        (self.remove, self.is_begun) = (false, true);
        written.map_err(|e| Failure::new(format!("{} {}: {e}", self.flag, self.path.display())))
    }
}

/// Empties a regular file; a pipe or terminal has no length.
fn truncate(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.remove {
            // Best effort: the failure that prevented the results is reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Version of the keys of every `--json`: while it is the same, keys are only added. docs/json.md lists them.
pub const FORMAT: u32 = 1;

/// An object as `--json` prints it: its version first.
#[derive(Serialize)]
pub struct Versioned<'a, T> {
    format: u32,
    #[serde(flatten)]
    facts: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    /// Adds the version to `facts`.
    pub fn new(facts: &'a T) -> Versioned<'a, T> {
        Versioned { format: FORMAT, facts }
    }
}

/// Returns an object as pretty JSON with its version, and a line end.
///
/// # Panics
/// `facts` is no object.
pub fn json(facts: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(&Versioned::new(facts)).expect("an object of plain data serialises");
    format!("{text}\n")
}

/// Prints a line on standard error, without passwords and keys of targets; does nothing if standard error is closed.
pub fn tell(line: &str) {
    let _ = io::stderr().write_all(format!("{}\n", without_secrets(line)).as_bytes());
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format!("standard output: {e}"))),
        _ => Ok(()),
    }
}
