// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket of an NBD server. Clients are accepted, shake hands on threads of their own, and are distributed over the IOThreads round
//! robin.
//!
//! Guarantees: a Unix socket that a daemon serves is not taken away. One that was left behind is replaced. The socket is gone when the
//! server is. There are at most `MAX_HANDSHAKES` handshakes at a time, each of at most `HANDSHAKE_TIME`, and at most [`MAX_CONNECTIONS`]
//! clients; others wait in the socket's backlog or are dropped. When the server is dropped, its clients are dropped, too, and nothing of
//! theirs is in flight afterwards.
//!
//! Under TLS a client gets the certificates that are loaded when it connects.

use super::connection::Connection;
use super::export::{BlockSizes, Export, ExportTable, FastZero};
use super::greet::Line;
use crate::error::{Error, Result};
use crate::event;
use crate::handed;
use crate::nbd::wire::MAX_PAYLOAD;
use crate::net::certificates::Tls;
use crate::net::socket::{self, SocketFile};
use crate::serve::running::{Clients as Count, HealthCheck};
use crate::serve::{IoThreads, ServedDisk};
use parking_lot::{Condvar, Mutex};
use rustix::event::PollFlags;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients that shake hands at the same time.
const MAX_HANDSHAKES: usize = 32;
/// Clients that are served at the same time.
pub const MAX_CONNECTIONS: usize = 256;
/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a client that is let go may take to receive its last answers.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// At a Unix socket.
    Unix(PathBuf),
    /// At a TCP port; 0 is any that is free.
    Tcp(SocketAddr),
}

/// A disk and what clients see of it.
#[derive(Clone)]
pub struct NbdDisk {
    /// The disk.
    pub disk: Arc<ServedDisk>,
    /// The export's name; clients of this server choose by it. Another server may have it for another disk.
    pub name: String,
    /// What it is called in reports and logs: another one than that of all other exports of the process.
    pub label: String,
    /// For people.
    pub description: String,
    /// Writes fail.
    pub read_only: bool,
    /// Clients may trim, and zeroes may give up their space.
    pub discard: bool,
    /// Every write is stable before it is answered.
    pub write_through: bool,
    /// IOThreads that its connections go to, in turn; at least one.
    pub iothreads: Vec<usize>,
}

/// What a server is to be like.
#[derive(Clone)]
pub struct NbdOptions {
    /// Where it listens.
    pub address: Address,
    /// What it serves.
    pub disks: Vec<NbdDisk>,
    /// The export for a client that gives no name.
    pub default: Option<String>,
    /// Permissions of a Unix socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Clients that are served at the same time, at most [`MAX_CONNECTIONS`].
    pub max_connections: usize,
    /// Encryption; `None` = clients that ask for it are told that there is none.
    pub tls: Option<Tls>,
}

impl NbdDisk {
    /// What is offered to clients.
    fn export(&self, id: u64) -> Export {
        let limits = self.disk.limits();
        let min = limits.logical_block_size;
        Export {
            name: self.name.clone(),
            description: self.description.clone(),
            id,
            label: self.label.clone(),
            size_bytes: self.disk.capacity().0 * 512 / u64::from(min) * u64::from(min),
            read_only: self.read_only || limits.read_only,
            rotational: limits.rotational,
            // Nothing is left to flush where every write is stable: clients that see no flush know that.
            flush: !self.write_through,
            write_through: self.write_through,
            fua: true,
            trim: self.discard && limits.max_discard_sectors > 0,
            write_zeroes: limits.max_write_zeroes_sectors > 0,
            fast_zero: if limits.max_write_zeroes_sectors > 0 { FastZero::Served } else { FastZero::NotOffered },
            cache: self.disk.helper.stored().caches(),
            // The promise of one view: all connections lead to one driver, and a flush goes to its device after all writes
            // that it completed, from any connection. Nothing is cached in between.
            multi_conn: true,
            block: BlockSizes { min, preferred: limits.physical_block_size.max(min).max(4096), max: MAX_PAYLOAD },
            base_allocation: true,
            ..Export::default()
        }
    }
}

/// A server. It ends when it is dropped.
pub struct NbdExport {
    shared: Arc<Shared>,
    address: Address,
    /// Of a Unix socket.
    file: Option<SocketFile>,
    thread: Option<JoinHandle<()>>,
}

impl NbdExport {
    /// Serves disks from now on.
    ///
    /// # Errors
    /// Usage: the exports break a rule, the socket is in use. Others: the address cannot be listened at.
    pub fn start(threads: &Arc<IoThreads>, options: NbdOptions) -> Result<NbdExport> {
        let NbdOptions { address, disks, default, socket_mode, max_connections, tls } = options;
        let table = Table::new(threads, disks, default.as_deref(), &[])?;
        let stop = event::new()?;
        let (listener, address, file) = Listener::bind(&address, socket_mode)?;
        let shared = Arc::new(Shared {
            threads: Arc::clone(threads),
            max_connections: AtomicUsize::new(max_connections.min(MAX_CONNECTIONS)),
            table: Mutex::new(table),
            tls,
            stop,
            next_thread: AtomicUsize::new(0),
            registry: Arc::default(),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mqblk-nbd".into())
            .spawn(move || accepting.accept(&listener))
            .map_err(|e| Error::os(e, "cannot start the thread of an NBD server"))?;
        Ok(NbdExport { shared, address, file, thread: Some(thread) })
    }

    /// Where it listens, with the port it has.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its TLS, if it has any.
    pub fn tls(&self) -> Option<&Tls> {
        self.shared.tls.as_ref()
    }

    /// Says why its certificates are older than those in the files, for as long as it is there; `None` without TLS.
    pub(crate) fn certificates(&self) -> Option<HealthCheck> {
        self.tls()?;
        let shared = Arc::downgrade(&self.shared);
        Some(Box::new(move || Some(shared.upgrade()?.tls.as_ref()?.problem()?.to_string())))
    }

    /// Clients that are served now.
    pub fn connections(&self) -> usize {
        self.shared.registry.clients.lock().there.len()
    }

    /// Counts the clients of one export that are served, at any time.
    pub(crate) fn clients_of(&self, export: &str) -> Count {
        let (registry, export) = (Arc::clone(&self.shared.registry), export.to_owned());
        Box::new(move || registry.clients.lock().of(&export).count())
    }

    /// Serves other disks from now on, at the same address. Clients of exports that are still there, of the same disk, stay as
    /// they are; the others are let go when what is returned is dropped, and nothing of theirs is in flight afterwards.
    ///
    /// # Errors
    /// As of [`NbdExport::start`]; nothing has changed then.
    pub fn update(&self, disks: Vec<NbdDisk>, default: Option<&str>, max_connections: usize) -> Result<ClientDrain> {
        // No client comes between the two: one that is counted already is of the old table.
        let clients = self.shared.registry.clients.lock();
        let mut table = self.shared.table.lock();
        let new = Table::new(&self.shared.threads, disks, default, &table.served)?;
        self.shared.max_connections.store(max_connections.min(MAX_CONNECTIONS), Ordering::Relaxed);
        let stays = |old: &Served| new.served.iter().any(|s| s.id == old.id);
        let gone = table.served.iter().filter(|s| !stays(s));
        let leaving = gone.flat_map(|s| clients.of(&s.disk.name)).collect();
        *table = new;
        Ok(ClientDrain { registry: Arc::clone(&self.shared.registry), leaving })
    }

    /// A disk has another size: clients that come see it. Those that are there keep what they were told, for the protocol
    /// has nothing to tell them otherwise that clients know; what a disk has no more is answered with errors.
    pub fn resized(&self) -> Result<()> {
        let mut table = self.shared.table.lock();
        let default = table.exports.find(b"").map(|e| e.name.clone());
        let disks = table.served.iter().map(|s| s.disk.clone()).collect();
        *table = Table::new(&self.shared.threads, disks, default.as_deref(), &table.served)?;
        Ok(())
    }

    /// Lets the clients of an export go; new ones may come.
    pub fn let_go(&self, export: &str) {
        let leaving = self.shared.registry.clients.lock().of(export).collect();
        drop(ClientDrain { registry: Arc::clone(&self.shared.registry), leaving });
    }
}

/// Clients that are to go: dropping it lets them, and waits until nothing of theirs is in flight.
#[must_use = "clients are let go when it is dropped"]
pub struct ClientDrain {
    registry: Arc<ClientRegistry>,
    /// Numbers of clients.
    leaving: Vec<u64>,
}

impl Drop for ClientDrain {
    fn drop(&mut self) {
        self.registry.end(&self.leaving);
    }
}

impl Drop for NbdExport {
    fn drop(&mut self) {
        event::signal(&self.shared.stop);
        self.shared.registry.clients.lock().stopped = true;
        self.shared.registry.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        drop(self.file.take());
        let mut clients = self.shared.registry.clients.lock();
        while clients.handshakes > 0 {
            self.shared.registry.changed.wait(&mut clients);
        }
        // No more come.
        let all: Vec<_> = clients.there.iter().map(|c| c.number).collect();
        drop(clients);
        self.shared.registry.end(&all);
    }
}

/// What is served at one time.
struct Table {
    served: Vec<Served>,
    /// What clients are told of it.
    exports: Arc<ExportTable>,
}

/// A disk that is served, under a number that no other one of this process has or had: one from which a client would see a
/// difference.
struct Served {
    id: u64,
    disk: NbdDisk,
}

/// Numbers of what is served.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Table {
    fn new(threads: &IoThreads, disks: Vec<NbdDisk>, default: Option<&str>, before: &[Served]) -> Result<Table> {
        if disks.iter().any(|d| d.iothreads.is_empty() || d.iothreads.iter().any(|t| !threads.contains(*t))) {
            return Err(Error::usage("an NBD export needs at least one existing IOThread"));
        }
        let numbered = |disk: NbdDisk| {
            let same = before.iter().find(|s| s.disk.name == disk.name && disk.serves_as(&s.disk));
            // Relaxed: only different from all others.
            Served { id: same.map_or_else(|| NUMBERS.fetch_add(1, Ordering::Relaxed), |s| s.id), disk }
        };
        let served: Vec<_> = disks.into_iter().map(numbered).collect();
        let exports = served.iter().map(|s| s.disk.export(s.id)).collect();
        Ok(Table { exports: Arc::new(ExportTable::new(exports, default)?), served })
    }
}

impl NbdDisk {
    /// Whether a client of the other one would see no difference.
    fn serves_as(&self, other: &NbdDisk) -> bool {
        let traits = |d: &NbdDisk| (d.read_only, d.discard, d.write_through);
        Arc::ptr_eq(&self.disk, &other.disk) && traits(self) == traits(other)
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn bind(address: &Address, socket_mode: Option<u32>) -> Result<(Listener, Address, Option<SocketFile>)> {
        match address {
            Address::Unix(path) => {
                let (listener, file) = socket::bind(path, socket_mode)?;
                listener.set_nonblocking(true).map_err(|e| Error::os(e, "cannot use a listening socket"))?;
                Ok((Listener::Unix(listener), address.clone(), Some(file)))
            }
            Address::Tcp(at) => {
                let failed = |e: io::Error| Error::os(e, format!("cannot listen at {at}"));
                let listener = handed::tcp(at).unwrap_or_else(|| TcpListener::bind(at)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let at = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tcp(listener), Address::Tcp(at), None))
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(l) => l.as_fd(),
            Listener::Tcp(l) => l.as_fd(),
        }
    }

    /// The next client's socket, which does not block.
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(l) => {
                let stream: UnixStream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Listener::Tcp(l) => {
                let stream: TcpStream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                // Replies are gathered already; waiting for more would only delay them.
                stream.set_nodelay(true)?;
                // A client whose machine is gone is noticed.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                Ok(stream.into())
            }
        }
    }
}

/// A client that is served.
struct Client {
    /// No other has, or will have, the same.
    number: u64,
    export: String,
    socket: Weak<OwnedFd>,
}

#[derive(Default)]
struct Clients {
    handshakes: usize,
    there: Vec<Client>,
    next_number: u64,
    stopped: bool,
}

impl Clients {
    fn of<'a>(&'a self, export: &'a str) -> impl Iterator<Item = u64> + 'a {
        self.there.iter().filter(move |c| c.export == export).map(|c| c.number)
    }

    fn shut_down(&self, numbers: &[u64], how: rustix::net::Shutdown) {
        for client in self.there.iter().filter(|c| numbers.contains(&c.number)) {
            if let Some(socket) = client.socket.upgrade() {
                let _ = rustix::net::shutdown(&*socket, how);
            }
        }
    }
}

/// The connected clients. What a connection keeps of its server: the rest of it must not end on an IOThread, which ends
/// with it.
#[derive(Default)]
struct ClientRegistry {
    clients: Mutex<Clients>,
    /// Signalled when a handshake or a client is gone, or it is time to stop.
    changed: Condvar,
}

impl ClientRegistry {
    /// What these clients still send is not read; what they have asked for is answered, as long as they listen, and
    /// then they are let go. Waits until nothing of theirs is in flight.
    fn end(&self, numbers: &[u64]) {
        let mut clients = self.clients.lock();
        // Their IOThreads see an end, as if the clients had disconnected.
        clients.shut_down(numbers, rustix::net::Shutdown::Read);
        let until = Instant::now() + FAREWELL_TIME;
        let there = |clients: &Clients| clients.there.iter().any(|c| numbers.contains(&c.number));
        while there(&clients) && !self.changed.wait_until(&mut clients, until).timed_out() {}
        clients.shut_down(numbers, rustix::net::Shutdown::Both);
        while there(&clients) {
            self.changed.wait(&mut clients);
        }
    }
}

struct Shared {
    threads: Arc<IoThreads>,
    max_connections: AtomicUsize,
    /// Locked after the clients.
    table: Mutex<Table>,
    tls: Option<Tls>,
    stop: OwnedFd,
    next_thread: AtomicUsize,
    registry: Arc<ClientRegistry>,
}

/// Counts a handshake until it is dropped.
struct Shaking(Arc<ClientRegistry>);

impl Drop for Shaking {
    fn drop(&mut self) {
        self.0.clients.lock().handshakes -= 1;
        self.0.changed.notify_all();
    }
}

/// A client is there until it is dropped, which is after its socket.
struct Connected {
    registry: Arc<ClientRegistry>,
    number: u64,
    export: String,
    client: String,
}

impl Drop for Connected {
    fn drop(&mut self) {
        log::info!(export = self.export.as_str(), client = self.client.as_str(); "a client has left");
        self.registry.clients.lock().there.retain(|c| c.number != self.number);
        self.registry.changed.notify_all();
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, listener: &Listener) {
        while socket::wait(listener.fd(), PollFlags::IN, &self.stop, None) {
            let Some(shaking) = self.begin_handshake() else { return };
            let socket = match listener.accept() {
                Ok(socket) => socket,
                // It left before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => {
                    // Out of descriptors, most likely: not again at once.
                    let soon = Instant::now() + Duration::from_millis(100);
                    socket::wait(&self.stop, PollFlags::IN, &self.stop, Some(soon));
                    continue;
                }
            };
            let shared = Arc::clone(self);
            // Without a thread for it the client is dropped.
            let _ = std::thread::Builder::new().name("mqblk-nbd-hello".into()).spawn(move || {
                shared.welcome(socket);
                // The thread that waits for the last handshake then owns the server alone.
                drop(shared);
                drop(shaking);
            });
        }
    }

    /// Waits until one more handshake may begin; none when it is time to stop.
    fn begin_handshake(&self) -> Option<Shaking> {
        let mut clients = self.registry.clients.lock();
        while clients.handshakes >= MAX_HANDSHAKES && !clients.stopped {
            self.registry.changed.wait(&mut clients);
        }
        if clients.stopped {
            return None;
        }
        clients.handshakes += 1;
        Some(Shaking(Arc::clone(&self.registry)))
    }

    /// Shakes hands with a client and gives it to an IOThread; drops it when anything goes wrong.
    fn welcome(&self, socket: OwnedFd) {
        // No disk is kept during the handshake, which takes as long as the client likes: it may be removed meanwhile.
        let exports = Arc::clone(&self.table.lock().exports);
        let client = socket::peer(&socket);
        let line = Line::new(&socket, &self.stop, Instant::now() + HANDSHAKE_TIME);
        let Some((negotiated, rest, tls)) = line.shake_hands(&exports, self.tls.as_ref()) else {
            log::info!(client; "a client has left before it chose an export");
            return;
        };
        let asked = &negotiated.export;
        let socket = Arc::new(socket);
        let Some((connected, NbdDisk { disk, iothreads, .. })) = self.connected(&socket, asked, &client) else {
            log::warn!(export = asked.label.as_str(), client; "a client is dropped: too many clients, or its export is \
                                                               being removed");
            return;
        };
        if let Ok(connection) = Connection::new(Box::new(connected), (socket, tls), &negotiated, &rest, &disk) {
            // Relaxed: any distribution is correct.
            let thread = iothreads[self.next_thread.fetch_add(1, Ordering::Relaxed) % iothreads.len()];
            let _ = self.threads.add(thread, &disk, connection);
        }
    }

    /// Counts a client that has asked for `asked`, and what it is served.
    fn connected(&self, socket: &Arc<OwnedFd>, asked: &Export, client: &str) -> Option<(Connected, NbdDisk)> {
        let mut clients = self.registry.clients.lock();
        let most = self.max_connections.load(Ordering::Relaxed);
        // What was asked for may have ended during the handshake. Under this lock: a counted client is found by the
        // thread that ends it.
        let disk = self.table.lock().served.iter().find(|s| s.id == asked.id).map(|s| s.disk.clone())?;
        if clients.there.len() >= most || clients.stopped {
            return None;
        }
        let number = clients.next_number;
        clients.next_number += 1;
        clients.there.push(Client { number, export: asked.name.clone(), socket: Arc::downgrade(socket) });
        log::info!(export = asked.label.as_str(), client; "a client has connected");
        let registry = Arc::clone(&self.registry);
        Some((Connected { registry, number, export: asked.label.clone(), client: client.to_owned() }, disk))
    }
}
