// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP for one page: `GET /metrics` over TCP or a Unix socket.
//!
//! Guarantees: a client has [`LIMIT`] for all of its request and answer, and [`HEAD_BYTES`] for its request; at most [`CLIENTS`] are served
//! at once, further clients get status 503; a page is made at most once in [`FRESH`], however many clients ask. Each connection is closed
//! after its answer. Its threads open no files and make no connections. Does not do: keep-alive, compression, TLS, other pages.
//!
//! Source: RFC 9112, RFC 9110 section 15.

use crate::acceptor::{Acceptor, Listener, bind};
use crate::status::Failure;
use host::handed::{self, At};
use host::net::listen::TcpListen;
use host::sandbox::Role;
use host::served_path::ServedPath;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for a request and its answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest request.
const HEAD_BYTES: usize = 8 << 10;
/// Maximum number of clients served at the same time.
const CLIENTS: usize = 16;
/// How old a page may be.
const FRESH: Duration = Duration::from_millis(100);
/// Content type of the page.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where to listen: `ADDRESS:PORT`, or `unix:PATH`. Of a name's addresses, the lowest is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(pub At);

impl Listen {
    /// Whether this is the place of a handed-over socket.
    pub fn is_at(&self, at: &At) -> bool {
        match &self.0 {
            At::Tcp(_) => self.0 == *at,
            At::Unix(path) => handed::is_at(at, path),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: must be followed by a path".to_owned()),
            Some(path) => Ok(Listen(At::Unix(path.into()))),
            None => match text.parse::<TcpListen>() {
                Ok(listen) => Ok(Listen(At::Tcp(listen.first()))),
                Err(why) => Err(format!("'{text}': {why}, or unix:PATH")),
            },
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            At::Tcp(address) => write!(f, "http://{address}/metrics"),
            At::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The function that makes the page.
type RenderFn = dyn Fn() -> String + Send + Sync;

/// Serves until it is dropped.
pub struct Server {
    acceptor: Acceptor,
    at: Listen,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

struct Shared {
    make: Box<RenderFn>,
    page: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Server {
    /// Serves the pages that `make` returns. It must not use paths or make connections: its thread has the sandbox's role for clients.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn start(at: &Listen, make: impl Fn() -> String + Send + Sync + 'static) -> Result<Server, Failure> {
        let failed = |e: &dyn fmt::Display| Failure::new(format!("--metrics: cannot listen at {at}: {e}"));
        let (socket, at, file) = match &at.0 {
            At::Tcp(address) => {
                let listener = handed::tcp(address).unwrap_or_else(|| TcpListener::bind(address));
                let listener = listener.map_err(|e| failed(&e))?;
                let at = listener.local_addr().map_err(|e| failed(&e))?;
                (Socket::Tcp(listener), At::Tcp(at), None)
            }
            At::Unix(path) => {
                let (listener, file) = bind(path, None).map_err(|e| failed(&e))?;
                (Socket::Unix(listener), at.0.clone(), Some(file))
            }
        };
        let shared = Shared { make: Box::new(make), page: Mutex::default() };
        // Errors of a client that disconnects or is too slow do not affect the daemon, so they are ignored.
        let serve = move |mut client: Box<dyn Stream>| drop(converse(client.as_mut(), &shared));
        let acceptor = Acceptor::open("mqblk-http", Some(Role::Clients), (socket, file), CLIENTS, serve, reject)
            .map_err(|e| Failure::new(format!("cannot start the thread of --metrics: {e}")))?;
        Ok(Server { acceptor, at: Listen(at) })
    }

    /// Returns the check of whether the path of a Unix socket still names the socket.
    pub fn served(&self) -> Option<&Arc<ServedPath>> {
        self.acceptor.served()
    }

    /// Returns where it listens, with the actual port.
    pub fn at(&self) -> &Listen {
        &self.at
    }

    /// The socket in the file system, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.acceptor.path()
    }
}

/// A connected client, over TCP or a Unix socket.
trait Stream: Read + Write + Send {
    fn limit(&self, left: Duration) -> io::Result<()>;
    fn end(&self);
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }

    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }

    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(l) => l.as_fd(),
            Socket::Unix(l) => l.as_fd(),
        }
    }
}

impl Listener for Socket {
    type Client = Box<dyn Stream>;

    fn do_not_block(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(l) => l.do_not_block(),
            Socket::Unix(l) => l.do_not_block(),
        }
    }

    fn next(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Socket::Tcp(l) => Box::new(l.next()?),
            Socket::Unix(l) => Box::new(l.next()?),
        })
    }
}

/// Answers a client beyond the limit. The answer fits into the socket's buffer at once, or is lost.
fn reject(mut client: Box<dyn Stream>) {
    let answer = answer(503, "too many clients\n", true);
    let _ = client.limit(Duration::from_millis(1)).and_then(|()| client.write_all(&answer));
}

fn converse(client: &mut dyn Stream, shared: &Shared) -> io::Result<()> {
    let until = Instant::now() + LIMIT;
    let answer = match read_head(client, until)? {
        Some(head) => reply(&head, shared),
        None => answer(431, "the request is too long\n", true),
    };
    let mut rest = answer.as_slice();
    while !rest.is_empty() {
        client.limit(left(until)?)?;
        match client.write(rest) {
            Ok(0) => return Ok(()),
            Ok(n) => rest = rest.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // Read what the client still sends: unread input would make the kernel reset the connection, and the client could lose the answer.
    client.end();
    let mut budget = HEAD_BYTES;
    let mut more = [0; 1024];
    while budget > 0 {
        client.limit(left(until)?)?;
        let n = client.read(&mut more)?;
        if n == 0 {
            break;
        }
        budget = budget.saturating_sub(n);
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Returns the request up to its empty line; `None` if there is no empty line within [`HEAD_BYTES`].
fn read_head(client: &mut dyn Stream, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    loop {
        client.limit(left(until)?)?;
        let n = match client.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        head.extend_from_slice(part.get(..n).unwrap_or_default());
        if head.windows(4).any(|w| w == b"\r\n\r\n") || head.windows(2).any(|w| w == b"\n\n") {
            return Ok(Some(head));
        }
        if head.len() >= HEAD_BYTES {
            return Ok(None);
        }
    }
}

fn reply(head: &[u8], shared: &Shared) -> Vec<u8> {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let words: Vec<_> = std::str::from_utf8(line).unwrap_or_default().split_ascii_whitespace().collect();
    let [method, target, "HTTP/1.0" | "HTTP/1.1"] = words[..] else {
        return answer(400, "not an HTTP/1.1 request\n", true);
    };
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => answer(200, &shared.page(), method == "GET"),
        ("GET" | "HEAD", _) => answer(404, "not found: only /metrics is served\n", method == "GET"),
        _ => answer(405, "only GET and HEAD are supported\n", true),
    }
}

impl Shared {
    fn page(&self) -> Arc<str> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, text)) = &*page
            && made.elapsed() < FRESH
        {
            return Arc::clone(text);
        }
        let text: Arc<str> = (self.make)().into();
        *page = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// An answer, with or without its body.
fn answer(status: u16, body: &str, with_body: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let mut out = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {TEXT}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    );
    if with_body {
        out.push_str(body);
    }
    out.into_bytes()
}
