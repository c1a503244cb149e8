// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket of a vhost-user-blk export. It serves one front end at a time.
//!
//! Guarantees: a socket that a daemon serves is not replaced; a stale one is. When an export is dropped, the socket is removed first; then
//! the export waits for its I/O. A front end is dropped if it breaks the protocol, stops in the middle of a message, or removes pages of
//! its memory. This is logged, and the next front end is served; other exports notice nothing.

use super::backend::Connection;
use super::channel;
use super::device::{Cache, Device, SERIAL_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use crate::mem::Alarm;
use crate::net::socket::{self, SocketFile};
use crate::sandbox::{self, Role};
use crate::serve::geometry::Geometry;
use crate::serve::running::{Clients, ExportPlace, RunningExport};
use crate::serve::{IoThreads, ServedDisk};
use crate::served_path::ServedPath;
use blk::id::SECTOR_SIZE;
use rustix::event::{PollFd, PollFlags, poll};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vhost::vhost_user::BackendReqHandler;

/// Longest wait for the rest of a message, and to send an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options of a vhost-user-blk export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The export's name in reports.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// Permissions of the socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// The IOThread of each virtqueue. The number of entries, at least 1, is the number of virtqueues.
    pub mapping: Vec<usize>,
    /// Writes fail.
    pub read_only: bool,
    /// Block sizes that the driver sees instead of the disk's. Requests that are not whole logical blocks of a size that is set here fail.
    pub geometry: Geometry,
    /// Each write is stable when it completes, and the driver cannot change that.
    pub write_through: bool,
    /// See [`VhostUserPlan::allow_file_memory`](crate::serve::plan::VhostUserPlan::allow_file_memory).
    pub allow_file_memory: bool,
    /// The guest's driver may send discards.
    pub discard: bool,
    /// The serial number that GET_ID returns, at most 20 bytes.
    pub serial: String,
    /// Entries of a ring that the front end is told to use.
    pub queue_size: u16,
}

/// A vhost-user-blk export. It ends when it is dropped.
pub struct VhostExport {
    socket: Option<SocketFile>,
    socket_mode: Option<u32>,
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    threads: Arc<IoThreads>,
    front: Arc<parking_lot::Mutex<Front>>,
}

/// The front end's state that the listener's thread shares with others.
struct Front {
    /// The IOThread of each virtqueue.
    mapping: Vec<usize>,
    /// The front end that is served.
    connection: Weak<Mutex<Connection>>,
}

/// The sockets and counters that the listener's thread shares with others.
#[derive(Default)]
struct Shared {
    /// The listener; no other front end is accepted while one is served. `None`: the export is being dropped.
    listener: Mutex<Option<Arc<UnixListener>>>,
    /// The front end that is served.
    stream: Mutex<Option<UnixStream>>,
    /// The front end's channel for messages that the back end initiates.
    channel: Mutex<Option<OwnedFd>>,
    /// Number of front ends that were dropped, and why the last one was.
    dropped: Mutex<(u64, Option<String>)>,
}

impl Shared {
    fn listener(&self) -> Option<Arc<UnixListener>> {
        lock(&self.listener).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock that is held while a message of the front end is handled, which may wait for I/O.
fn lock_within<T>(mutex: &Mutex<T>, limit: Duration) -> Result<std::sync::MutexGuard<'_, T>> {
    let until = Instant::now() + limit;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(e)) => return Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => break,
        }
    }
    let text = format!(
        "its front end stopped a virtqueue, and requests in flight have not completed after {} s; check the disk's \
         storage, then try again",
        limit.as_secs()
    );
    Err(Error::new(ErrorKind::Io, text))
}

impl VhostExport {
    /// Starts an export of a disk.
    pub fn start(threads: &Arc<IoThreads>, disk: &Arc<ServedDisk>, options: ExportOptions) -> Result<VhostExport> {
        let ExportOptions {
            name,
            socket: path,
            socket_mode,
            mapping,
            read_only,
            geometry,
            write_through,
            allow_file_memory,
            discard,
            serial,
            queue_size,
        } = options;
        if mapping.is_empty() || mapping.len() > usize::from(u16::MAX) || mapping.iter().any(|t| *t >= threads.len()) {
            let (n, m) = (mapping.len(), threads.len());
            return Err(Error::usage(format!("{n} virtqueues on {m} IOThreads: each must be on an existing one")));
        }
        if serial.len() > SERIAL_BYTES {
            return Err(Error::usage(format!("serial '{serial}': must be at most {SERIAL_BYTES} bytes")));
        }
        let mut padded = [0; SERIAL_BYTES];
        padded[..serial.len()].copy_from_slice(serial.as_bytes());
        let mut limits = disk.shown(geometry)?;
        if !discard {
            limits.max_discard_sectors = 0;
        }
        let device = Device {
            name,
            read_only: read_only || limits.read_only,
            limits,
            block_size: disk.block_size(),
            checked_block: geometry.logical.unwrap_or(SECTOR_SIZE),
            num_queues: mapping.len() as u16,
            queue_size,
            write_through,
            allow_file_memory,
            serial: padded,
            cache: Cache::default(),
            call_waits: AtomicBool::new(false),
        };
        let (listener, file) = socket::bind(&path, socket_mode)?;
        let stop = Arc::new(event::new()?);
        let front = Arc::new(parking_lot::Mutex::new(Front { mapping, connection: Weak::new() }));
        let shared = Arc::new(Shared { listener: Mutex::new(Some(Arc::new(listener))), ..Shared::default() });
        let server = Server {
            socket: path,
            shared: Arc::clone(&shared),
            threads: Arc::clone(threads),
            disk: Arc::clone(disk),
            device: Arc::new(device),
            front: Arc::clone(&front),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new()
            .name("mqblk-vhost".into())
            .spawn(move || {
                sandbox::enter(Role::Clients);
                server.run();
            })
            .map_err(|e| Error::os(e, "cannot start the thread of a vhost-user export"))?;
        let (socket, thread, threads) = (Some(file), Some(thread), Arc::clone(threads));
        Ok(VhostExport { socket, socket_mode, stop, shared, thread, threads, front })
    }

    /// The IOThread of each virtqueue.
    pub fn mapping(&self) -> Vec<usize> {
        self.front.lock().mapping.clone()
    }

    /// Returns a function that returns whether a front end is connected (1) or not (0). The function never blocks: during a remap it
    /// returns 1.
    pub fn clients(&self) -> Clients {
        let front = Arc::downgrade(&self.front);
        Box::new(move || {
            let Some(front) = front.upgrade() else { return 0 };
            front.try_lock().map_or(1, |front| usize::from(front.connection.strong_count() > 0))
        })
    }

    /// Moves the virtqueues to other IOThreads, also those of a connected front end. The number of virtqueues must not change. A virtqueue
    /// that moves takes no new requests until those in flight have completed; the others continue. Returns the longest such pause.
    ///
    /// # Errors
    /// Usage: a different number of virtqueues, or an unknown IOThread. Or an IOThread cannot take a virtqueue; virtqueues before that one
    /// have then moved.
    pub fn remap(&self, mapping: Vec<usize>) -> Result<blk::time::Duration> {
        // Held until the end, so a front end that connects in the meantime waits and gets the new mapping.
        let mut front = self.front.lock();
        if mapping.len() != front.mapping.len() || mapping.iter().any(|t| !self.threads.contains(*t)) {
            let (n, m) = (mapping.len(), front.mapping.len());
            let text = format!("a mapping of {n} virtqueues: the export has {m}; map each to an existing IOThread");
            return Err(Error::usage(text));
        }
        let longest = match front.connection.upgrade() {
            Some(c) => {
                let mut connection = lock_within(&c, PATIENCE)?;
                let moved = connection.remap(&mapping);
                if moved.is_err() {
                    front.mapping = connection.mapping().to_vec();
                }
                moved?
            }
            None => blk::time::Duration::ZERO,
        };
        front.mapping = mapping;
        Ok(longest)
    }

    /// Notifies the front end of the disk's new capacity, if it gave a channel for that. Returns whether it was notified; otherwise it
    /// sees the new size when it reads the configuration the next time.
    pub fn resized(&self) -> bool {
        lock(&self.shared.channel).as_ref().is_some_and(channel::say_changed)
    }

    /// Returns how many front ends were dropped for errors, and why the last one was.
    pub fn dropped(&self) -> (u64, Option<String>) {
        lock(&self.shared.dropped).clone()
    }
}

impl RunningExport for VhostExport {
    fn place(&self) -> ExportPlace {
        ExportPlace::Socket
    }

    fn clients(&self) -> Clients {
        self.clients()
    }

    fn socket(&self) -> Option<&Arc<ServedPath>> {
        self.socket.as_ref()?.served()
    }

    fn listen_again(&mut self) -> Result<()> {
        let Some(old) = &self.socket else { return Ok(()) };
        let (listener, file) = socket::bind(old.path(), self.socket_mode)?;
        let before = lock(&self.shared.listener).replace(Arc::new(listener));
        // Dropping the old file removes nothing: the path names the new one.
        self.socket = Some(file);
        // The listener's thread takes the new one from here on.
        if let Some(before) = before {
            socket::refuse_clients(&*before);
        }
        Ok(())
    }

    fn resized(&self, _sectors: u64) -> Result<()> {
        self.resized();
        Ok(())
    }

    fn remap(&self, iothreads: &[usize]) -> Result<blk::time::Duration> {
        self.remap(iothreads.to_vec())
    }

    fn mapping(&self) -> Option<Vec<usize>> {
        Some(self.mapping())
    }
}

impl Drop for VhostExport {
    fn drop(&mut self) {
        // The socket is removed first, because waiting for I/O may take long. Another daemon may listen at the path before that ends.
        drop(self.socket.take());
        event::signal(&*self.stop);
        drop(lock(&self.shared.listener).take());
        // The thread may be waiting in the middle of a message.
        if let Some(stream) = &*lock(&self.shared.stream) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    socket: PathBuf,
    shared: Arc<Shared>,
    threads: Arc<IoThreads>,
    disk: Arc<ServedDisk>,
    device: Arc<Device>,
    front: Arc<parking_lot::Mutex<Front>>,
    stop: Arc<OwnedFd>,
}

impl Server {
    fn run(&self) {
        // Taken anew for each client, because it may have been replaced.
        while let Some(listener) = self.shared.listener()
            && socket::wait(&*listener, PollFlags::IN, &self.stop, None)
        {
            let accepted = socket::accepted(listener.accept(), "a vhost-user export", &self.stop);
            let Some((stream, _)) = accepted else { continue };
            // While a front end is served, dropping the export closes the listener.
            drop(listener);
            if let Err(why) = self.serve(stream) {
                self.say(why);
            }
            *lock(&self.shared.stream) = None;
            *lock(&self.shared.channel) = None;
        }
    }

    /// Serves one front end until it disconnects. Returns an error if the front end must be dropped.
    fn serve(&self, stream: UnixStream) -> std::result::Result<(), String> {
        use vhost::vhost_user::{Error, VhostUserProtocolFeatures as Agreed};
        let failed = |e: &dyn std::fmt::Display| format!("cannot serve it: {e}");
        let both = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        let watched = both.and_then(|()| stream.try_clone()).map_err(|e| failed(&e))?;
        *lock(&self.shared.stream) = Some(stream.try_clone().map_err(|e| failed(&e))?);
        let alarm = Alarm::new().map_err(|e| failed(&e))?;
        let (threads, disk) = (Arc::clone(&self.threads), Arc::clone(&self.disk));
        let mut front = self.front.lock();
        let mapping = front.mapping.clone();
        let connection = Connection::new(threads, disk, Arc::clone(&self.device), mapping, Arc::clone(&alarm));
        let connection = Arc::new(Mutex::new(connection));
        front.connection = Arc::downgrade(&connection);
        drop(front);
        let (export, client) = (self.device.name.as_str(), socket::peer(&watched));
        log::info!(export, client; "a client has connected");
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&connection));
        while self.wait(&watched, &alarm) {
            let agreed = lock(&connection).protocol();
            if agreed.contains(Agreed::BACKEND_REQ) && channel::is_next(&watched) {
                *lock(&self.shared.channel) = Some(channel::take(&watched, agreed.contains(Agreed::REPLY_ACK))?);
                continue;
            }
            match handler.handle_request() {
                Err(Error::Disconnected | Error::SocketBroken(_)) => break,
                Err(_) if alarm.is_raised() => break,
                result => result.map_err(|e| e.to_string())?,
            }
        }
        if alarm.is_raised() {
            return Err("pages of its memory are gone: its file was truncated or has no space left".into());
        }
        if lock(&connection).lacks_memory() {
            log::warn!(
                export, client;
                "a client has left without sharing its guest's memory: the memory must be shared (QEMU: -object \
                 memory-backend-memfd,share=on; libvirt: <access mode='shared'/>)"
            );
        }
        log::info!(export, client; "a client has left");
        Ok(())
    }

    /// Waits for a front end's next message. Returns false when the export stops or the front end's memory is gone.
    fn wait(&self, stream: &UnixStream, alarm: &Alarm) -> bool {
        loop {
            let fds = [stream.as_fd(), self.stop.as_fd(), alarm.fd()];
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) if fds[1..].iter().any(|fd| !fd.revents().is_empty()) => return false,
                Ok(n) if n > 0 => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn say(&self, why: String) {
        let socket = self.socket.display().to_string();
        log::warn!(export = self.device.name.as_str(), socket; "a client was dropped: {why}");
        let mut dropped = lock(&self.shared.dropped);
        *dropped = (dropped.0 + 1, Some(why));
    }
}
