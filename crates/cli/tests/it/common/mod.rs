// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A separate directory for each test, in which mqblk runs under a time limit.

// Each test file uses only a part of this.
#![allow(dead_code, reason = "shared by several test programs")]

pub mod browser;
mod daemon;

pub use crate::waiting::{LONG, POLL, PROGRAM_POLL, until, until_reported};
pub use daemon::Daemon;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Seconds after which coreutils' `timeout` ends a program that hangs. No test comes near it, even with six busy loops on two CPUs.
/// After a signal through `timeout`, a program has a minute to end.
const LIMIT_S: &str = "600";

/// Longest life of a process that a test starts.
const LIFE_LIMIT: Duration = Duration::from_secs(900);

/// Lets the load continue until this is dropped, also by a test that fails.
pub struct KeepGoing(pub Arc<AtomicBool>);

impl KeepGoing {
    /// Starts in the state in which the load may continue.
    pub fn new() -> KeepGoing {
        KeepGoing(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for KeepGoing {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A directory that is removed at the end of the test.
pub struct Dir(PathBuf);

impl Dir {
    /// Makes a directory below the build directory, which is on a real disk, while /tmp may be memory.
    pub fn new(test: &str) -> Dir {
        Dir::below(Path::new(env!("CARGO_TARGET_TMPDIR")), test)
    }

    /// Makes a directory below the system's directory for temporary files, which every user can access.
    pub fn public(test: &str) -> Dir {
        Dir::below(&std::env::temp_dir(), test)
    }

    fn below(base: &Path, test: &str) -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("{test}-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// Returns a path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it.
    pub fn file(&self, name: &str, text: &str) -> &Dir {
        fs::write(self.path(name), text).unwrap();
        self
    }

    /// Returns the names of its entries, sorted.
    pub fn list(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the command that runs mqblk with these arguments in this directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqblk"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// Starts mqblk and waits until a line on its standard error contains `sign`.
    pub fn start(&self, args: &[&str], sign: &str) -> Started {
        Dir::start_command(&mut self.command(args), args, sign)
    }

    /// As [`Dir::start`], for a command that becomes mqblk with these arguments.
    pub fn start_command(command: &mut Command, args: &[&str], sign: &str) -> Started {
        let mut child = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.lines().last().is_some_and(|l| l.contains(sign)) {
            let n = err.read_line(&mut seen).unwrap();
            assert!(n > 0, "{args:?} ended before it said '{sign}':\n{seen}");
        }
        Started { child, err, seen, args: args.iter().map(|a| (*a).to_owned()).collect() }
    }

    /// Runs any program in this directory, under the time limit.
    pub fn program(&self, program: &str, args: &[&str]) -> Done {
        let mut command = Command::new("timeout");
        command.args(["-k", "60", LIMIT_S, program]).args(args).current_dir(&self.0).stdin(Stdio::null());
        Done::of(command.output().unwrap(), args)
    }

    /// Runs mqblk to its end.
    pub fn mqblk(&self, args: &[&str]) -> Done {
        self.program(env!("CARGO_BIN_EXE_mqblk"), args)
    }

    /// Runs mqblk as an ordinary user: as uid 65534 where the test runs as root, from a copy that this user can reach.
    pub fn as_user_nobody(&self, args: &[&str]) -> Done {
        let home = std::env::temp_dir().join(format!("mqblk-nobody-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let program = home.join("mqblk");
        if !program.exists() {
            // `cp` writes the copy: a child that another test starts meanwhile would briefly inherit a file that this process has open for
            // writing. The kernel does not run a program that is open for writing.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_mqblk")).arg(&program).status().unwrap();
            assert!(copied.success());
        }
        let mut command = Command::new(&program);
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(65534);
        }
        let done = Done::of(command.output().unwrap(), args);
        fs::remove_dir_all(&home).unwrap();
        done
    }

    /// Runs mqblk to its end with `input` on its standard input.
    pub fn mqblk_with_input(&self, args: &[&str], input: &str) -> Done {
        let mut command = Command::new("timeout");
        command.args(["-k", "60", LIMIT_S, env!("CARGO_BIN_EXE_mqblk")]).args(args).current_dir(&self.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Done::of(child.wait_with_output().unwrap(), args)
    }

    /// Makes a disk of so many bytes in a file, and a configuration (`c.toml`) that mounts it over another file, `mount`. `more` is put
    /// in front.
    pub fn mounted_disk(&self, bytes: u64, more: &str) -> &Dir {
        fs::File::create(self.path("disk.img")).unwrap().set_len(bytes).unwrap();
        let export = "[[export]]\ntype = \"fuse\"\ndisk = \"disk.img\"\nmountpoint = \"mount\"\n";
        self.file("c.toml", &[more, "[[disk]]\ntarget = \"disk.img\"\n", export].concat()).file("mount", "")
    }

    /// The directory.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that does not outlive the test, however the test ends, nor [`LIFE_LIMIT`]: a test that waits for its output does not hang.
pub struct Running {
    child: Option<Child>,
    /// Dropping it tells the thread that watches the limit.
    _ends: Sender<()>,
}

impl Running {
    /// Starts a program.
    #[track_caller]
    pub fn start(command: &mut Command) -> Running {
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (ends, ended) = mpsc::channel::<()>();
        let pid = child.id().to_string();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIFE_LIMIT) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
            }
        });
        Running { child: Some(child), _ends: ends }
    }

    /// Waits until the program ends.
    pub fn output(mut self) -> Output {
        self.child.take().expect("it was started").wait_with_output().unwrap()
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.child.as_ref().expect("it was started")
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.child.as_mut().expect("it was started")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // `kill` sends no signal to a process that has already been waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A running mqblk.
pub struct Started {
    child: Running,
    err: BufReader<ChildStderr>,
    /// What has been read of its standard error.
    seen: String,
    args: Vec<String>,
}

impl Started {
    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads its standard error until a line contains `sign`. Returns that line.
    pub fn until(&mut self, sign: &str) -> String {
        loop {
            let mut line = String::new();
            let n = self.err.read_line(&mut line).unwrap();
            self.seen += &line;
            assert!(n > 0, "{:?} ended before it said '{sign}':\n{}", self.args, self.seen);
            if line.contains(sign) {
                return line;
            }
        }
    }

    /// Returns its standard error as far as it was read.
    pub fn seen(&self) -> &str {
        &self.seen
    }

    /// Closes its standard error, which is not read any more.
    pub fn closes_err(self) -> Running {
        self.child
    }

    /// Waits until mqblk ends. The result has all of its standard error, also what was read before.
    pub fn ends(mut self) -> Done {
        let mut rest = self.seen.into_bytes();
        self.err.read_to_end(&mut rest).unwrap();
        let mut output = self.child.output();
        output.stderr = rest;
        Done::of(output, &self.args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// An NBD client that stays connected until [`NbdClient::finds_itself_served`] makes it send a request.
pub struct NbdClient {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl NbdClient {
    /// Connects with libnbd. On return the client is connected, but the daemon may not have counted it yet.
    #[track_caller]
    pub fn connect(uri: &str) -> NbdClient {
        let session = format!(
            "import nbd, sys\nh = nbd.NBD()\nh.connect_uri('{uri}')\nprint('in', flush=True)\nsys.stdin.readline()\n\
             try:\n  h.pread(512, 0)\n  print('served')\nexcept nbd.Error:\n  print('gone')\n"
        );
        let mut command = Command::new("timeout");
        command.args(["60", "/usr/bin/python3", "-c", &session]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().expect("it connects").unwrap(), "in");
        NbdClient { child, lines }
    }

    /// Makes the client read and disconnect. Returns whether it was served.
    pub fn finds_itself_served(mut self) -> bool {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let said = self.lines.next().expect("it reads").unwrap();
        assert!(self.child.wait().unwrap().success());
        said == "served"
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
    args: Vec<String>,
}

/// Returns the row of a command in `docs/json.md`.
pub fn json_row(command: &str) -> Option<&'static str> {
    let document = include_str!("../../../../../docs/json.md");
    document.lines().find(|line| line.starts_with(&format!("| `mqblk {command}` |")))
}

/// Returns the keys that `docs/json.md` lists for a command. `None`: there is no row, or the keys are those of another program or page.
fn json_keys(command: &str) -> Option<Vec<&'static str>> {
    if ["run", "multipath", "report"].contains(&command) {
        return None;
    }
    let quoted = json_row(command)?.split('`').skip(1).step_by(2);
    Some(quoted.chain(["format"]).collect())
}

impl Done {
    /// Makes it of the output of a `Command`.
    pub fn of(output: Output, args: &[&str]) -> Done {
        Done {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            args: args.iter().map(|a| (*a).to_owned()).collect(),
        }
    }

    /// Asserts the exit status.
    #[track_caller]
    pub fn exits(self, status: i32) -> Done {
        assert_eq!(self.status, status, "{:?}\n{}\n{}", self.args, self.out, self.err);
        self
    }

    /// Standard output as JSON, whose keys `docs/json.md` lists.
    #[track_caller]
    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e}: {:?}\n{}\n{}", self.args, self.out, self.err));
        let listed = self.args.first().and_then(|command| json_keys(command));
        if let (Some(keys), Some(object)) = (listed, value.as_object()) {
            for key in object.keys() {
                assert!(keys.contains(&key.as_str()), "docs/json.md has no key {key:?} of {:?}", self.args);
            }
        }
        value
    }

    /// Asserts that each of these is on standard error.
    #[track_caller]
    pub fn says(&self, needles: &[&str]) {
        for needle in needles {
            assert!(self.err.contains(needle), "{needle:?} is not in\n{}\nof {:?}", self.err, self.args);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }

    /// Asserts that each of these is on standard output.
    #[track_caller]
    pub fn prints(&self, needles: &[&str]) {
        for needle in needles {
            assert!(self.out.contains(needle), "{needle:?} is not in\n{}\nof {:?}", self.out, self.args);
        }
    }
}

/// A number in a JSON value, by path.
#[track_caller]
pub fn number(v: &Value, pointer: &str) -> f64 {
    v.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {pointer} in {v:#}"))
}

/// What a run did: names of jobs, I/Os and bytes per direction.
pub fn did(v: &Value) -> Vec<(String, [f64; 6])> {
    let of = |n: usize| {
        let count = |dir: &str, key: &str| number(v, &format!("/jobs/{n}/{dir}/{key}"));
        let ios = ["read", "write", "trim"].map(|d| count(d, "total_ios"));
        let bytes = ["read", "write", "trim"].map(|d| count(d, "io_bytes"));
        (v["jobs"][n]["jobname"].to_string(), [ios[0], ios[1], ios[2], bytes[0], bytes[1], bytes[2]])
    };
    (0..v["jobs"].as_array().expect("a list of jobs").len()).map(of).collect()
}
