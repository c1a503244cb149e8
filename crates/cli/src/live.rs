// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access to a run in progress: `mqblk inspect --live` and `mqblk set`.
//!
//! Every `mqblk run` listens on a Unix socket of its own, `PID.sock` in a directory that only its user can enter. A client sends one
//! [`Question`] as JSON, shuts down its sending side, and gets one [`Answer`]. Without clients, the cost is a sleeping thread. If the
//! socket cannot be made, the run continues without it, because the user did not ask for it.

use crate::acceptor::Acceptor;
use crate::output;
use crate::replay;
use crate::runtime_dir::{self, directory};
use crate::status::{Failure, Outcome, Status};
use blk::debugfs::DebugFile;
use host::disk::Disk;
use host::run::Prepared;
use lab::stack::{Setting, in_effect};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a change: the disk's own timeout is shorter.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a question.
const MOST_ASKED: u64 = 1 << 20;
/// Clients that may ask at the same time.
const CLIENTS: usize = 64;
/// Maximum number of bytes of an answer.
const MOST_BYTES: u64 = 1 << 30;

/// A request to a run.
#[derive(Debug, Serialize, Deserialize)]
pub enum Question {
    /// Returns the state of the run.
    Show,
    /// Changes settings, `(name, value)` each, of the disk with this name, or of all disks.
    Set {
        /// The target as the user named it.
        disk: Option<String>,
        /// What to change.
        settings: Vec<(String, String)>,
    },
}

/// The answer of a run.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The state of the run; `State` on the wire, as older versions send and expect it.
    #[serde(rename = "State")]
    RunState(RunState),
    /// The changes made, disk by disk, and the error of the first disk that rejected its change, if any.
    Changed(Vec<DiskChange>, Option<String>),
}

/// The change of one disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskChange {
    /// The target as the user named it.
    pub disk: String,
    /// Name, old value and new value of every setting that changed.
    pub changed: Vec<(String, String, String)>,
    /// How long no I/O could start, in microseconds; `None`: I/O was not stopped.
    pub frozen_us: Option<u64>,
    /// Time since the start of the run, in milliseconds.
    pub at_ms: u64,
}

/// The changes of a run so far.
type Changes = Arc<Mutex<Vec<DiskChange>>>;

/// The state of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunState {
    pid: u32,
    command: String,
    disks: Vec<DiskState>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DiskState {
    name: String,
    files: Vec<File>,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    path: String,
    text: String,
}

impl From<DebugFile> for File {
    fn from(f: DebugFile) -> File {
        File { path: f.path, text: f.text }
    }
}

/// Answers clients until it is dropped.
pub struct Server {
    _acceptor: Acceptor,
    changes: Changes,
}

impl Server {
    /// Listens for clients that ask about these disks. `None` if that is not possible here.
    pub fn start(run: &Prepared) -> Option<Server> {
        let path = directory().ok()?.join(format!("{}.sock", std::process::id()));
        // An earlier process with the same id may have left it behind.
        let _ = fs::remove_file(&path);
        let (listener, file) = host::net::socket::listen(&path, Some(0o600)).ok()?;
        let responder = Responder { disks: run.disks.clone(), began: Instant::now(), changes: Changes::default() };
        let changes = Arc::clone(&responder.changes);
        // Errors of a client do not affect the run, so they are ignored. A change may take long, so each client has a thread.
        let serve = move |client| drop(responder.answer(client));
        let acceptor = Acceptor::open("live", None, (listener, Some(file)), CLIENTS, serve, drop).ok()?;
        Some(Server { _acceptor: acceptor, changes })
    }

    /// Returns the changes that clients have made to the run.
    pub fn changes(&self) -> Vec<DiskChange> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// State of the threads that answer clients.
struct Responder {
    disks: Vec<(String, Arc<Disk>)>,
    began: Instant,
    changes: Changes,
}

impl Responder {
    fn answer(&self, mut client: UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let mut asked = Vec::new();
        (&client).take(MOST_ASKED).read_to_end(&mut asked)?;
        let answer = match serde_json::from_slice(&asked)? {
            Question::Show => Answer::RunState(self.state()),
            Question::Set { disk, settings } => self.set(disk.as_deref(), &settings),
        };
        client.write_all(&serde_json::to_vec(&answer)?)
    }

    fn state(&self) -> RunState {
        let of = |(name, disk): &(String, Arc<Disk>)| {
            let files = disk.queue.debugfs().into_iter().map(File::from).collect();
            DiskState { name: name.clone(), files }
        };
        let command = replay::command();
        RunState { pid: std::process::id(), command, disks: self.disks.iter().map(of).collect() }
    }

    fn set(&self, only: Option<&str>, settings: &[(String, String)]) -> Answer {
        // The lock allows one change at a time and keeps the list in their order. A panic cannot leave the list half updated.
        let mut all = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = Vec::new();
        let chosen: Vec<_> = self.disks.iter().filter(|(name, _)| only.is_none_or(|o| is_of(name, o))).collect();
        if let (Some(only), []) = (only, &chosen[..]) {
            let names: Vec<_> = self.disks.iter().map(|(name, _)| name.as_str()).collect();
            return Answer::Changed(
                done,
                Some(format!("--disk {only}: no such disk in the run; it has {}", names.join(", "))),
            );
        }
        let settings_of = |disk: &Disk| in_effect(&disk.queue, &[]);
        // A setting of a shared tag set changes for all its disks, together with the first.
        let mut before: Vec<_> = self.disks.iter().map(|(_, disk)| settings_of(disk)).collect();
        for (name, disk) in chosen {
            let of_set = disk.is_of_set(settings);
            let frozen = if of_set && !done.is_empty() { Ok(None) } else { disk.change(settings) };
            let frozen_us = match frozen {
                Ok(frozen) => frozen.map(|d| d.as_ns() / 1000),
                Err(e) => return Answer::Changed(done, Some(format!("{name}: {e}"))),
            };
            let at_ms = self.began.elapsed().as_millis() as u64;
            for ((name, disk), before) in self.disks.iter().zip(&mut before).filter(|((n, _), _)| of_set || n == name) {
                let after = settings_of(disk);
                let changed = difference(before, &after);
                *before = after;
                if of_set && changed.is_empty() {
                    continue;
                }
                let change = DiskChange { disk: name.clone(), changed, frozen_us, at_ms };
                done.push(change.clone());
                all.push(change);
            }
        }
        Answer::Changed(done, None)
    }
}

/// Returns the settings that have changed. Tunables that came or went with their elevator are not reported.
fn difference(before: &[Setting], after: &[Setting]) -> Vec<(String, String, String)> {
    let change = |after: &Setting| {
        let before = before.iter().find(|s| s.name == after.name)?;
        let differs = before.value != after.value;
        differs.then(|| (after.name.clone(), before.value.clone(), after.value.clone()))
    };
    after.iter().filter_map(change).collect()
}

/// Prints the state of the run with this process id, or of the only one.
pub fn inspect(pid: Option<u32>, only: &[String], json: bool) -> Outcome {
    let mut state = match pid {
        Some(pid) => state(pid).ok_or_else(|| {
            Failure::new(format!("--live {pid}: process {pid} is not a run of mqblk by this user; {}", runs_text()))
        })?,
        None => the_only_one("--live")?,
    };
    for disk in &mut state.disks {
        disk.files.retain(|f| only.is_empty() || only.iter().any(|o| is_below(&f.path, o)));
    }
    if !only.is_empty() && state.disks.iter().all(|d| d.files.is_empty()) {
        return Err(Failure::new(format!(
            "--path {}: the run has no such file or directory; leave --path out to see all",
            only.join(" --path ")
        )));
    }
    output::print(&if json { output::json(&state) } else { text(&state) })?;
    Ok(Status::Done)
}

/// Returns the state of the only run; `what` begins the message of a failure.
fn the_only_one(what: &str) -> Result<RunState, Failure> {
    let mut all: Vec<_> = runs().into_iter().filter_map(state).collect();
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => {
            Err(Failure::new(format!("{what}: no run of mqblk by this user is in progress; start one with mqblk run")))
        }
        _ => {
            let list: Vec<_> = all.iter().map(|s| format!("\n  {}  {}", s.pid, s.command)).collect();
            Err(Failure::new(format!(
                "{what}: several runs are in progress; select one by its process id:{}",
                list.concat()
            )))
        }
    }
}

fn runs_text() -> String {
    match runs().iter().map(u32::to_string).collect::<Vec<_>>() {
        none if none.is_empty() => "none is in progress".to_owned(),
        some => format!("runs in progress: {}", some.join(", ")),
    }
}

/// Returns the process ids that have a socket.
fn runs() -> Vec<u32> {
    let Ok(Ok(entries)) = directory().map(fs::read_dir) else { return Vec::new() };
    let pid = |e: io::Result<fs::DirEntry>| e.ok()?.file_name().to_str()?.strip_suffix(".sock")?.parse().ok();
    let mut pids: Vec<u32> = entries.filter_map(pid).collect();
    pids.sort_unstable();
    pids
}

/// Returns the state that a run reports; `None` if there is no such run.
fn state(pid: u32) -> Option<RunState> {
    match ask(pid, &Question::Show, PATIENCE) {
        Ok(Answer::RunState(state)) => Some(state),
        _ => None,
    }
}

/// Sends a change to the run with this process id, or to the only run. Returns the changes made, and the error if a disk rejected its
/// change.
pub fn change(pid: Option<u32>, question: &Question) -> Result<(Vec<DiskChange>, Option<String>), Failure> {
    let pid = match pid {
        Some(pid) => pid,
        None => the_only_one("set")?.pid,
    };
    match ask(pid, question, CHANGE_PATIENCE) {
        Ok(Answer::Changed(done, refused)) => Ok((done, refused)),
        Err(AskError::NoRun) => {
            Err(Failure::new(format!("--pid {pid}: process {pid} is not a run of mqblk by this user; {}", runs_text())))
        }
        Ok(Answer::RunState(_)) | Err(AskError::NoAnswer) => Err(Failure::new(format!(
            "--pid {pid}: the run did not answer in {} s, or ended; the run's report says whether its \
             settings were changed",
            CHANGE_PATIENCE.as_secs()
        ))),
    }
}

/// Why there is no answer.
enum AskError {
    NoRun,
    NoAnswer,
}

/// Sends a question to a run and returns the answer.
fn ask(pid: u32, question: &Question, patience: Duration) -> Result<Answer, AskError> {
    let path = directory().map_err(|_| AskError::NoRun)?.join(format!("{pid}.sock"));
    let mut client = runtime_dir::connect(&path, pid).map_err(|_| AskError::NoRun)?;
    let mut answer = move || -> io::Result<Answer> {
        client.set_read_timeout(Some(patience))?;
        client.write_all(&serde_json::to_vec(question)?)?;
        client.shutdown(Shutdown::Write)?;
        let mut bytes = Vec::new();
        (&client).take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    answer().map_err(|_| AskError::NoAnswer)
}

/// Whether a device is a target, or one of those that a target is striped over (`TARGET#N`).
pub fn is_of(device: &str, target: &str) -> bool {
    let number = device.strip_prefix(target).and_then(|rest| rest.strip_prefix('#'));
    device == target || number.is_some_and(|n| n.parse::<u16>().is_ok())
}

fn is_below(path: &str, dir: &str) -> bool {
    let dir = dir.trim_end_matches('/');
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the state as text, in the manner of `grep -r ""` over debugfs: a heading per file, then its content.
fn text(state: &RunState) -> String {
    let mut out = format!("process {}: {}\n", state.pid, state.command);
    for disk in &state.disks {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}", disk.name);
        for file in &disk.files {
            let _ = write!(out, "-- {}\n{}", file.path, file.text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_file_or_all_below_a_directory() {
        assert!(is_below("hctx1/tags", "hctx1") && is_below("hctx1/tags", "hctx1/") && is_below("state", "state"));
        assert!(!is_below("hctx10/tags", "hctx1") && !is_below("state", "stat"));
    }

    #[test]
    fn answers_keep_the_names_of_older_versions() {
        let text = r#"{"State":{"pid":7,"command":"mqblk run","disks":[]}}"#;
        let state = RunState { pid: 7, command: "mqblk run".into(), disks: Vec::new() };
        assert_eq!(serde_json::to_string(&Answer::RunState(state)).unwrap(), text);
        assert!(matches!(serde_json::from_str(text), Ok(Answer::RunState(state)) if state.pid == 7));
        assert_eq!(serde_json::to_string(&Answer::Changed(Vec::new(), None)).unwrap(), r#"{"Changed":[[],null]}"#);
    }
}
