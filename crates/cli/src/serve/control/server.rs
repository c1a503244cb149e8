// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: lines in, lines out.
//!
//! Guarantees: only the daemon's user and root can connect, wherever the socket is, unless systemd made it. A stale socket is
//! replaced, one in use is not. The next daemon removes the sockets of killed daemons. A client that sends no line end, or too long a line, is disconnected and delays
//! no other. The socket is removed when the daemon ends. Needs from callers: an [`Operator`] that answers from any thread.

use super::{Answer, Operator, Question};
use crate::acceptor::{Acceptor, bind};
use crate::runtime_dir;
use crate::status::Failure;
use host::handed::{self, At};
use host::net::socket::SocketFile;
use host::privileges::Account;
use host::served_path::ServedPath;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `FileDescriptorName=` of a control socket that is handed over.
pub const NAME: &str = "control";
/// Permissions of the socket: a client controls the daemon.
const MODE: u32 = 0o600;
/// Longest line: a configuration may be in it.
const LINE_BYTES: u64 = 2 << 20;
/// Maximum number of clients at the same time.
const CLIENTS: usize = 64;
/// How long a client may take to receive an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may be idle.
const IDLE: Duration = Duration::from_secs(300);

/// A control socket that listens already, while there is no daemon yet. Clients wait.
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

impl Socket {
    /// Listens at `path`, or at the default place where `mqblk ctl` of this user, or of `user`, looks.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(path: Option<&Path>, user: Option<&Account>) -> Result<Socket, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None if let Some(at) = handed_over() => at,
            None => {
                let dir = user.map_or_else(runtime_dir::directory, runtime_dir::directory_of)?;
                runtime_dir::sweep(&dir);
                dir.join(format!("serve-{}.sock", std::process::id()))
            }
        };
        let bound = bind(&path, Some(MODE)).map_err(|e| Failure::new(format!("--control {}: {e}", path.display())));
        let (listener, file) = bound?;
        Ok(Socket { listener, file })
    }
}

/// Answers clients until it is dropped.
pub struct Server {
    acceptor: Acceptor,
}

impl Server {
    /// Answers clients of a socket.
    ///
    /// # Errors
    /// No thread can start.
    pub fn start(operator: &Arc<Operator>, socket: Socket) -> Result<Server, Failure> {
        let operator = Arc::clone(operator);
        // Errors of a client do not affect the daemon, so they are ignored.
        let serve = move |client| drop(converse(&client, &operator));
        // No role: commands open files, make sockets, connect and mount, and so may the threads that they start.
        let acceptor = Acceptor::open("mqblk-ctl", None, (socket.listener, Some(socket.file)), CLIENTS, serve, drop)
            .map_err(|e| Failure::new(format!("cannot start the thread of the control socket: {e}")))?;
        Ok(Server { acceptor })
    }

    /// The check of whether the socket's path still names the socket.
    pub fn served(&self) -> Option<&Arc<ServedPath>> {
        self.acceptor.served()
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.acceptor.path().expect("it is in the file system")
    }
}

/// Returns the control socket that the service manager handed over, if any.
fn handed_over() -> Option<PathBuf> {
    let socket = handed::all().iter().find(|s| s.name == NAME)?;
    match &socket.at {
        At::Unix(path) => Some(path.clone()),
        At::Tcp(_) => None,
    }
}

fn converse(client: &UnixStream, operator: &Operator) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    client.set_read_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(client);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES;
        let mut ends = false;
        let answer = match serde_json::from_slice::<Question>(&line) {
            _ if !whole => refused(&format!("a request must be one line of at most {LINE_BYTES} bytes")),
            Err(e) => refused(&format!("not a valid request: {e}")),
            Ok(question) => {
                ends = matches!(question, Question::Shutdown {});
                operator.answer(question)
            }
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        let mut to = client;
        let told = to.write_all(&bytes);
        if ends {
            operator.shut_down();
        }
        told?;
        if !whole {
            return Ok(());
        }
    }
}

fn refused(message: &str) -> Answer {
    Answer::Error { message: message.to_owned(), done: Vec::new() }
}
