// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A blocking NBD server over a Unix socket, whose disks are vectors, with one thread per connection. It is the minimum that connects real
//! clients to the state machines of `host::export::nbd`, and is for tests only.
#![allow(dead_code, reason = "each test crate uses its part")]

use blk::status::BlkStatus;
use host::export::nbd::reply::HEAD_BYTES;
use host::export::nbd::{
    Command, Event, Export, ExportTable, Extent, Handshake, Negotiated, Request, Session, Step, TlsMode, error_of,
    greeting,
};
use host::nbd::wire::extent_flag;
use host::nbd::wire::{BytesIn, NbdError, ReplyStyle};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The unit in which holes and data are reported.
const GRAIN: usize = 4096;

/// A disk in memory. Reads that touch `bad` fail.
#[derive(Default)]
pub struct Disk {
    pub bytes: Mutex<Vec<u8>>,
    pub bad: Option<std::ops::Range<u64>>,
    pub connections: AtomicU64,
    pub flushes: AtomicU64,
    pub fua: AtomicU64,
    pub trims: AtomicU64,
    pub zeroes: AtomicU64,
    pub caches: AtomicU64,
    pub statuses: AtomicU64,
    pub refused: AtomicU64,
    /// The reply style of the latest connection: 0 simple, 1 structured, 2 extended.
    pub style: AtomicU32,
}

impl Disk {
    pub fn of(bytes: Vec<u8>) -> Disk {
        Disk { bytes: Mutex::new(bytes), ..Disk::default() }
    }
}

pub fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The capabilities of a server, and its disks by [`Export::id`].
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    table: Arc<ExportTable>,
    tls: TlsMode,
    disks: Vec<Disk>,
    stop: AtomicBool,
    tls_record: AtomicU32,
}

impl Server {
    /// Serves `exports`. The id of each is replaced by its index.
    pub fn start(exports: Vec<(Export, Disk)>, tls: TlsMode) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mqblk-nbd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).expect("a socket in the temporary directory");
        let (exports, disks): (Vec<Export>, Vec<Disk>) = exports
            .into_iter()
            .enumerate()
            .map(|(at, (export, disk))| {
                let size_bytes = disk.bytes.lock().unwrap().len() as u64;
                (Export { id: at as u64, size_bytes, ..export }, disk)
            })
            .unzip();
        let default = exports[0].name.clone();
        let table = Arc::new(ExportTable::new(exports, Some(&default)).expect("good exports"));
        let shared =
            Arc::new(Shared { table, tls, disks, stop: AtomicBool::new(false), tls_record: AtomicU32::new(0) });
        let accepting = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Server { path, shared, accepting: Some(accepting) }
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path.display())
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).expect("the server listens")
    }

    /// Returns the first byte that a client sent after the answer to STARTTLS.
    pub fn tls_record(&self) -> u32 {
        self.shared.tls_record.load(Ordering::Relaxed)
    }

    pub fn disk(&self, at: usize) -> &Disk {
        &self.shared.disks[at]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the listener, which closes its connections.
        let wake = UnixStream::connect(&self.path);
        let ended = self.accepting.take().map(JoinHandle::join);
        drop(wake);
        let _ = std::fs::remove_file(&self.path);
        if !std::thread::panicking() {
            ended.expect("was started").expect("no connection panicked");
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut clients = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.expect("a connection");
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let handle = stream.try_clone().expect("a second descriptor");
        let shared = shared.clone();
        let thread = std::thread::spawn(move || {
            // A client that disconnects in the middle is not an error of the server.
            let _ = Connection { stream: &stream, out: Vec::new() }.serve(&shared);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        clients.push((handle, thread));
    }
    for (stream, thread) in clients {
        let _ = stream.shutdown(std::net::Shutdown::Both);
        thread.join().expect("a connection panicked");
    }
}

struct Connection<'a> {
    stream: &'a UnixStream,
    out: Vec<u8>,
}

impl Connection<'_> {
    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn serve(mut self, shared: &Shared) -> std::io::Result<()> {
        let mut handshake = Handshake::new(shared.table.clone(), shared.tls);
        self.out.extend(greeting());
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.flush()?;
            let n = self.stream.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            let mut input = BytesIn::new(&buffer[..n]);
            loop {
                let step = handshake.feed(&mut input, &mut self.out);
                self.flush()?;
                match step {
                    Step::NeedMore => break,
                    Step::Replied => {}
                    // This server has no TLS. The client's first byte shows whether the client starts TLS.
                    Step::StartTls => {
                        assert!(input.is_empty(), "a client waits for the answer");
                        let mut record = [0];
                        self.stream.read_exact(&mut record)?;
                        shared.tls_record.store(u32::from(record[0]), Ordering::Relaxed);
                        return Ok(());
                    }
                    Step::Close(reason) => {
                        assert!(!reason.to_string().is_empty());
                        return Ok(());
                    }
                    Step::Transmission(negotiated) => {
                        let left = input.rest().to_vec();
                        return self.transmit(shared, &negotiated, &left, &mut buffer);
                    }
                }
            }
        }
    }

    fn transmit(
        mut self,
        shared: &Shared,
        negotiated: &Negotiated,
        first: &[u8],
        buffer: &mut [u8],
    ) -> std::io::Result<()> {
        let disk = &shared.disks[negotiated.export.id as usize];
        bump(&disk.connections);
        disk.style.store(negotiated.style as u32, Ordering::Relaxed);
        let mut session = Session::new(negotiated);
        let mut writing: Option<(Request, Vec<u8>)> = None;
        if !self.events(disk, &mut session, first, &mut writing)? {
            return Ok(());
        }
        loop {
            // A long payload is read directly to its place, without the buffer.
            let left = session.payload_left() as usize;
            if let Some((request, bytes)) = writing.as_mut().filter(|_| left > buffer.len()) {
                let at = bytes.len();
                bytes.resize(at + left, 0);
                self.stream.read_exact(&mut bytes[at..])?;
                session.payload_received(left as u32);
                let (request, bytes) = (*request, std::mem::take(bytes));
                self.write(disk, session.style(), &request, &bytes);
                self.flush()?;
                continue;
            }
            let n = self.stream.read(buffer)?;
            if n == 0 || !self.events(disk, &mut session, &buffer[..n], &mut writing)? {
                return Ok(());
            }
        }
    }

    /// Handles the session's events. Returns whether the connection continues.
    fn events(
        &mut self,
        disk: &Disk,
        session: &mut Session,
        bytes: &[u8],
        writing: &mut Option<(Request, Vec<u8>)>,
    ) -> std::io::Result<bool> {
        let style = session.style();
        let mut input = BytesIn::new(bytes);
        let mut head = [0; HEAD_BYTES];
        loop {
            match session.next_event(&mut input) {
                Ok(Event::Request(request)) if request.command == Command::Write => {
                    *writing = Some((request, Vec::new()));
                }
                Ok(Event::Request(request)) => self.request(disk, style, &request),
                Ok(Event::Payload { cookie, bytes, left }) => {
                    let (request, data) = writing.as_mut().expect("payload follows its write");
                    assert_eq!(request.cookie, cookie);
                    data.extend(bytes);
                    if left == 0 {
                        let (request, data) = (*request, std::mem::take(data));
                        assert_eq!(data.len() as u64, request.length);
                        self.write(disk, style, &request, &data);
                    }
                }
                Ok(Event::Refused(refusal)) => {
                    bump(&disk.refused);
                    // Half of the errors have a message.
                    if refusal.reply_to.cookie % 2 == 0 {
                        let n = style.error(refusal.reply_to, refusal.error, &mut head);
                        self.out.extend(&head[..n]);
                    } else {
                        style.error_with_message(refusal.reply_to, refusal.error, "refused", &mut self.out);
                    }
                }
                Ok(Event::NeedMore) => {
                    assert!(input.is_empty());
                    self.flush()?;
                    return Ok(true);
                }
                Ok(Event::Disconnect) | Err(_) => {
                    self.flush()?;
                    return Ok(false);
                }
            }
        }
    }

    fn write(&mut self, disk: &Disk, style: ReplyStyle, request: &Request, data: &[u8]) {
        let at = request.offset as usize;
        disk.bytes.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        self.done(disk, style, request, BlkStatus::Ok);
    }

    fn done(&mut self, disk: &Disk, style: ReplyStyle, request: &Request, status: BlkStatus) {
        if request.fua() {
            bump(&disk.fua);
        }
        let mut head = [0; HEAD_BYTES];
        let n = match error_of(status, request) {
            None => style.success(request.reply_to(), &mut head),
            Some(error) => style.error(request.reply_to(), error, &mut head),
        };
        self.out.extend(&head[..n]);
    }

    fn request(&mut self, disk: &Disk, style: ReplyStyle, request: &Request) {
        let mut bytes = disk.bytes.lock().unwrap();
        let range = request.offset as usize..(request.offset + request.length) as usize;
        match request.command {
            Command::Read => return self.read(disk, style, request, &bytes[range]),
            Command::BlockStatus => {
                bump(&disk.statuses);
                // To the end of the grain, as a real disk would report.
                style.block_status(request, extents(&bytes[range], request.offset), &mut self.out);
                return;
            }
            Command::Flush => bump(&disk.flushes),
            Command::Cache => bump(&disk.caches),
            Command::Trim => {
                bump(&disk.trims);
                bytes[range].fill(0);
            }
            Command::WriteZeroes => {
                bump(&disk.zeroes);
                bytes[range].fill(0);
            }
            Command::Write => unreachable!("handled by its payload"),
        }
        drop(bytes);
        self.done(disk, style, request, BlkStatus::Ok);
    }

    /// Sends the data of a read. Holes are not sent if the client supports that.
    fn read(&mut self, disk: &Disk, style: ReplyStyle, request: &Request, data: &[u8]) {
        let (reply_to, start) = (request.reply_to(), request.offset);
        let mut head = [0; HEAD_BYTES];
        let bad = disk.bad.as_ref().filter(|b| b.start < start + request.length && start < b.end);
        if let Some(bad) = bad {
            let error = error_of(BlkStatus::Medium, request).expect("an error");
            assert_eq!(error, NbdError::Io);
            let n = style.error_at(reply_to, error, bad.start.max(start), true, &mut head);
            self.out.extend(&head[..n]);
            return;
        }
        if style == ReplyStyle::Simple || request.unfragmented() {
            let n = style.data(reply_to, start, data.len() as u32, true, &mut head);
            self.out.extend(&head[..n]);
            self.out.extend(data);
            return;
        }
        let mut at = start;
        for Extent { length, flags } in extents(data, start) {
            let n = if flags == 0 {
                let n = style.data(reply_to, at, length as u32, false, &mut head);
                self.out.extend(&head[..n]);
                let from = (at - start) as usize;
                self.out.extend(&data[from..from + length as usize]);
                0
            } else {
                style.hole(reply_to, at, length as u32, false, &mut head)
            };
            self.out.extend(&head[..n]);
            at += length;
        }
        let n = style.end(reply_to, &mut head);
        self.out.extend(&head[..n]);
    }
}

/// Returns the extents, grain by grain: a hole or data.
fn extents(data: &[u8], offset: u64) -> impl Iterator<Item = Extent> {
    let first = (GRAIN - offset as usize % GRAIN).min(data.len());
    let (head, rest) = data.split_at(first);
    [head].into_iter().chain(rest.chunks(GRAIN)).filter(|grain| !grain.is_empty()).map(|grain| Extent {
        length: grain.len() as u64,
        flags: if grain.iter().all(|b| *b == 0) { extent_flag::HOLE | extent_flag::ZERO } else { 0 },
    })
}
