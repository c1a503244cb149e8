// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket of a vhost-user-blk export: one front end after the other.
//!
//! Guarantees: a socket that somebody serves is not taken away; one that was left behind is replaced; the socket is gone when
//! the export is. A front end that breaks the protocol is dropped, and the next one is served.

use super::backend::Connection;
use super::device::{Device, SERIAL_BYTES};
use crate::error::{Error, Result};
use crate::event;
use crate::export::socket;
use crate::handed;
use crate::serve::{IoThreads, ServedDisk};
use blk::time::Duration;
use rustix::event::PollFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use vhost::vhost_user::BackendReqHandler;

/// What an export is to be like.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// What it is called, for people.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// Permissions of the socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// The IOThread of each virtqueue; as many virtqueues as entries, at least 1.
    pub mapping: Vec<usize>,
    /// Writes fail.
    pub read_only: bool,
    /// Each write is durable when it ends, and the driver cannot have it otherwise.
    pub write_through: bool,
    /// The driver may discard.
    pub discard: bool,
    /// What GET_ID tells: at most 20 bytes.
    pub serial: String,
}

/// A vhost-user-blk export. It ends when it is dropped.
pub struct VhostExport {
    socket: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    threads: Arc<IoThreads>,
    front: Arc<parking_lot::Mutex<Front>>,
}

/// What the socket's thread and others share.
struct Front {
    /// The IOThread of each virtqueue.
    mapping: Vec<usize>,
    /// The one who is served.
    connection: Weak<Mutex<Connection>>,
}

impl VhostExport {
    /// Serves a disk from now on.
    pub fn start(threads: &Arc<IoThreads>, disk: &Arc<ServedDisk>, options: ExportOptions) -> Result<VhostExport> {
        let ExportOptions { name, socket: path, socket_mode, mapping, read_only, write_through, discard, serial } =
            options;
        if mapping.is_empty() || mapping.len() > usize::from(u16::MAX) || mapping.iter().any(|t| *t >= threads.len()) {
            let (n, m) = (mapping.len(), threads.len());
            return Err(Error::usage(format!("{n} virtqueues on {m} IOThreads: each must be on one that there is")));
        }
        if serial.len() > SERIAL_BYTES {
            return Err(Error::usage(format!("serial '{serial}': must be at most {SERIAL_BYTES} bytes")));
        }
        let mut padded = [0; SERIAL_BYTES];
        padded[..serial.len()].copy_from_slice(serial.as_bytes());
        let mut limits = *disk.queue.limits();
        if !discard {
            limits.max_discard_sectors = 0;
        }
        let device = Device {
            name,
            queue: Arc::clone(&disk.queue),
            read_only: read_only || limits.read_only,
            limits,
            num_queues: mapping.len() as u16,
            write_through,
            serial: padded,
            writeback: AtomicBool::new(false),
        };
        let listener = socket::bind(&path)?;
        if let Some(mode) = socket_mode {
            socket::set_mode(&path, mode)?;
        }
        let stop = Arc::new(event::new()?);
        let front = Arc::new(parking_lot::Mutex::new(Front { mapping, connection: Weak::new() }));
        let server = Server {
            threads: Arc::clone(threads),
            disk: Arc::clone(disk),
            device: Arc::new(device),
            front: Arc::clone(&front),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new()
            .name("mqblk-vhost".into())
            .spawn(move || server.run(&listener))
            .map_err(|e| Error::os(e, "cannot start the thread of a vhost-user export"))?;
        Ok(VhostExport { socket: path, stop, thread: Some(thread), threads: Arc::clone(threads), front })
    }

    /// The IOThread of each virtqueue.
    pub fn mapping(&self) -> Vec<usize> {
        self.front.lock().mapping.clone()
    }

    /// Whether a front end is connected.
    pub fn is_used(&self) -> bool {
        self.front.lock().connection.strong_count() > 0
    }

    /// Has other IOThreads serve the virtqueues from now on, as many as before, also those of a front end that is connected. Each
    /// virtqueue that moves takes no new requests until those in flight have ended; the others go on. The longest such time.
    ///
    /// # Errors
    /// Usage: another number of virtqueues, an IOThread that there is not; or one that cannot take a virtqueue, and those
    /// before it have moved then.
    pub fn remap(&self, mapping: Vec<usize>) -> Result<Duration> {
        // Held until the end: who connects meanwhile waits, and finds the new mapping.
        let mut front = self.front.lock();
        if mapping.len() != front.mapping.len() || mapping.iter().any(|t| !self.threads.contains(*t)) {
            let (n, m) = (mapping.len(), front.mapping.len());
            let text =
                format!("a mapping of {n} virtqueues for {m}: must be as many, each on an IOThread that there is");
            return Err(Error::usage(text));
        }
        let longest = match front.connection.upgrade() {
            Some(c) => c.lock().unwrap_or_else(PoisonError::into_inner).remap(&mapping)?,
            None => Duration::ZERO,
        };
        front.mapping = mapping;
        Ok(longest)
    }
}

impl Drop for VhostExport {
    fn drop(&mut self) {
        event::signal(&*self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        handed::remove(&self.socket);
    }
}

struct Server {
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    device: Arc<Device>,
    front: Arc<parking_lot::Mutex<Front>>,
    stop: Arc<OwnedFd>,
}

impl Server {
    fn run(&self, listener: &UnixListener) {
        while self.wait(listener) {
            let Ok((stream, _)) = listener.accept() else { continue };
            self.serve(stream);
        }
    }

    /// Waits until a descriptor is readable; false when it is time to stop.
    fn wait(&self, fd: impl AsFd) -> bool {
        socket::wait(fd, PollFlags::IN, &self.stop, None)
    }

    fn serve(&self, stream: UnixStream) {
        let Ok(watched) = stream.try_clone() else { return };
        let (threads, disk) = (Arc::clone(&self.threads), Arc::clone(&self.disk));
        let mut front = self.front.lock();
        let connection = Connection::new(threads, disk, Arc::clone(&self.device), front.mapping.clone());
        let connection = Arc::new(Mutex::new(connection));
        front.connection = Arc::downgrade(&connection);
        drop(front);
        let (export, client) = (self.device.name.as_str(), socket::peer(&watched));
        log::info!(export, client; "a client has connected");
        let mut handler = BackendReqHandler::from_stream(stream, connection);
        while self.wait(&watched) {
            match handler.handle_request() {
                Ok(()) => {}
                Err(vhost::vhost_user::Error::Disconnected) => break,
                Err(e) => {
                    log::warn!(export, client; "a client is dropped: {e}");
                    break;
                }
            }
        }
        log::info!(export, client; "a client has left");
    }
}
