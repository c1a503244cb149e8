// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of a daemon's control socket: finds the daemon, sends one question, reads one answer.
//!
//! Guarantees: no wait for a piece of the answer is longer than the caller allows. Does not: know what questions mean.

use super::message::{Answer, Question};
use crate::runtime_dir;
use crate::status::Failure;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer: a drain waits 30 s for the device.
const PATIENCE: Duration = Duration::from_secs(120);

/// The control socket that was named, or that of the only daemon.
pub fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let dirs = runtime_dir::directories()?;
    let alive: Vec<_> = dirs.iter().flat_map(|dir| runtime_dir::sweep(dir)).collect();
    match &alive[..] {
        [only] => Ok(only.clone()),
        [] => Err(Failure::new(format!(
            "no daemon of this user runs (none listens in {}); start mqblk serve, or name its socket by --control",
            dirs.iter().map(|dir| format!("'{}'", dir.display())).collect::<Vec<_>>().join(", ")
        ))),
        several => {
            let names: Vec<_> = several.iter().map(|p| format!("\n  --control {}", p.display())).collect();
            Err(Failure::new(format!("several daemons are running; name one:{}", names.concat())))
        }
    }
}

/// Sends one question and returns its answer.
pub fn ask(path: &Path, question: &Question) -> Result<Answer, Failure> {
    ask_within(path, question, PATIENCE)
}

/// As [`ask`], with another limit for each wait.
pub fn ask_within(path: &Path, question: &Question, patience: Duration) -> Result<Answer, Failure> {
    let failed = |e: io::Error| Failure::new(format!("daemon at '{}': {e}", path.display()));
    let mut client = UnixStream::connect(path).map_err(failed)?;
    client.set_read_timeout(Some(patience)).map_err(failed)?;
    let mut line = serde_json::to_vec(question).map_err(Failure::new)?;
    line.push(b'\n');
    client.write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(&client).read_line(&mut answer).map_err(failed)?;
    serde_json::from_str(&answer)
        .map_err(|e| Failure::new(format!("daemon at '{}': ended before it answered ({e})", path.display())))
}
