// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a run, told to others while it goes on: `mqblk inspect --live`.
//!
//! Every `mqblk run` listens on a Unix socket of its own, `PID.sock` in a directory that only its user can enter. Whoever
//! connects gets one JSON object, the files of each disk as debugfs shows them, and the connection is closed. Nothing can
//! be changed this way, and a run that nobody asks pays for a sleeping thread. If the socket cannot be made the run goes on
//! without; it is not what the user asked for.

use crate::output;
use crate::status::{Failure, Outcome, Status};
use blk::debugfs::DebugFile;
use host::run::{Disk, Prepared};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const MOST_BYTES: u64 = 1 << 30;

/// What a run tells.
#[derive(Debug, Serialize, Deserialize)]
struct State {
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

/// Answers until it is dropped.
pub struct Server {
    path: PathBuf,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens for those who ask about these disks. `None` if that is not possible here.
    pub fn start(run: &Prepared) -> Option<Server> {
        let path = directory()?.join(format!("{}.sock", std::process::id()));
        // Left behind by a process that had this number before.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).ok()?;
        let over = Arc::new(AtomicBool::new(false));
        let (disks, stop) = (run.disks.clone(), Arc::clone(&over));
        let serve = move || {
            for client in listener.incoming() {
                // Pairs with: Server::drop
                if stop.load(Ordering::Acquire) {
                    return;
                }
                // One that went away is no concern of the run's.
                let _ = client.and_then(|c| answer(c, &disks));
            }
        };
        let thread = std::thread::Builder::new().name("live".into()).spawn(serve).ok();
        Some(Server { path, over, thread })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release); // Pairs with: Server::start
        // Wakes the thread from its wait for a client.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let (true, Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer(mut client: UnixStream, disks: &[(String, Arc<Disk>)]) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let of = |(name, disk): &(String, Arc<Disk>)| {
        let files = disk.queue.debugfs().into_iter().map(File::from).collect();
        DiskState { name: name.clone(), files }
    };
    let state =
        State { pid: std::process::id(), command: crate::run::command(), disks: disks.iter().map(of).collect() };
    client.write_all(&serde_json::to_vec(&state)?)
}

/// Where sockets are: `$XDG_RUNTIME_DIR/mqblk`, or `mqblk-UID` in the directory for temporary files; made if need be.
/// `None` if it cannot be made or could be entered by others.
fn directory() -> Option<PathBuf> {
    let uid = fs::metadata("/proc/self").ok()?.uid();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_absolute()) {
        Some(run) => Path::new(&run).join("mqblk"),
        None => std::env::temp_dir().join(format!("mqblk-{uid}")),
    };
    // It may exist; whose it is counts.
    let _ = DirBuilder::new().mode(0o700).create(&dir);
    let meta = fs::symlink_metadata(&dir).ok()?;
    (meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0).then_some(dir)
}

/// Prints the state of the run with this process id, or of the only one.
pub fn inspect(pid: Option<u32>, only: &[String], json: bool) -> Outcome {
    let mut state = match pid {
        Some(pid) => ask(pid).ok_or_else(|| {
            Failure::new(format!("--live {pid}: process {pid} is not a run of mqblk by this user; {}", runs_text()))
        })?,
        None => the_only_one()?,
    };
    for disk in &mut state.disks {
        disk.files.retain(|f| only.is_empty() || only.iter().any(|o| is_below(&f.path, o)));
    }
    if !only.is_empty() && state.disks.iter().all(|d| d.files.is_empty()) {
        return Err(Failure::new(format!(
            "--path {}: no such file or directory in it; leave --path out to see all",
            only.join(" --path ")
        )));
    }
    output::print(&if json { super::inspect::json(&state) } else { text(&state) })?;
    Ok(Status::Done)
}

fn the_only_one() -> Result<State, Failure> {
    let mut all: Vec<_> = runs().into_iter().filter_map(ask).collect();
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Failure::new("--live: no run of mqblk by this user is going on; start one with mqblk run")),
        _ => {
            let list: Vec<_> = all.iter().map(|s| format!("\n  {}  {}", s.pid, s.command)).collect();
            Err(Failure::new(format!(
                "--live: several runs are going on; say which, by its process id:{}",
                list.concat()
            )))
        }
    }
}

fn runs_text() -> String {
    match runs().iter().map(u32::to_string).collect::<Vec<_>>() {
        none if none.is_empty() => "none is going on".to_owned(),
        some => format!("there are {}", some.join(", ")),
    }
}

/// Process ids with a socket.
fn runs() -> Vec<u32> {
    let Some(Ok(entries)) = directory().map(fs::read_dir) else { return Vec::new() };
    let pid = |e: io::Result<fs::DirEntry>| e.ok()?.file_name().to_str()?.strip_suffix(".sock")?.parse().ok();
    let mut pids: Vec<u32> = entries.filter_map(pid).collect();
    pids.sort_unstable();
    pids
}

/// What a run says of itself; `None` if there is no such run. A socket that a killed run left behind is removed.
fn ask(pid: u32) -> Option<State> {
    let path = directory()?.join(format!("{pid}.sock"));
    let client = match UnixStream::connect(&path) {
        Ok(client) => client,
        Err(e) => {
            if e.kind() == io::ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(&path);
            }
            return None;
        }
    };
    client.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut bytes = Vec::new();
    client.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn is_below(path: &str, dir: &str) -> bool {
    let dir = dir.trim_end_matches('/');
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// As `grep -r ""` over debugfs would be read: a heading per file, then what it holds.
fn text(state: &State) -> String {
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
}
