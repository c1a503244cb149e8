// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket of an NBD server. The server accepts clients, does each handshake on a thread of its own, and distributes the clients over
//! the IOThreads round robin.
//!
//! Guarantees: a Unix socket that a daemon serves is not replaced; a stale one is. The socket is removed with the server. There are at
//! most 32 handshakes at a time, each of at most 10 s (`places`), and at most `max_connections` clients; others are refused. So is a client
//! for whose buffers there is no memory. A client whose export was confirmed keeps its place and the memory for requests of up to 64 KiB
//! each. When the server is dropped, its clients are dropped, too, and none of their requests is in flight afterwards.
//!
//! Under TLS a client gets the certificates that are loaded when it connects.

use super::buffers::Buffers;
use super::connection::{Connection, SLOTS};
use super::export::{BlockSizes, Export, ExportTable, FastZero};
use super::greet::{Greeted, Line};
use super::places::{Place, Places};
use super::spec::CONNECTIONS_MAX;
use crate::error::{Error, Result};
use crate::event;
use crate::handed;
use crate::nbd::wire::MAX_SERVED;
use crate::net::certificates::Tls;
use crate::net::owner::Owner;
use crate::net::socket::{self, SocketFile};
use crate::sandbox::{self, Role};
use crate::serve::geometry::Geometry;
use crate::serve::running::{Clients as Count, HealthCheck};
use crate::serve::{IoThreads, ServedDisk};
use crate::served_path::ServedPath;
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

/// Longest time that a client which is being dropped gets to receive its last replies.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// At a Unix socket.
    Unix(PathBuf),
    /// At a TCP port; 0 = any free port.
    Tcp(SocketAddr),
}

/// A disk and how clients see it.
#[derive(Clone)]
pub struct NbdDisk {
    /// The disk.
    pub disk: Arc<ServedDisk>,
    /// The export's name, by which clients of this server choose it. Another server may use the same name for another disk.
    pub name: String,
    /// The name in reports and logs; unique among all exports of the process.
    pub label: String,
    /// A description for users.
    pub description: String,
    /// Writes fail.
    pub read_only: bool,
    /// Clients may trim, and zeroed blocks may release their space.
    pub discard: bool,
    /// Every write is stable before it is answered.
    pub write_through: bool,
    /// Block sizes that clients see instead of the disk's. With a logical block size, only whole blocks are served; otherwise any bytes.
    pub geometry: Geometry,
    /// IOThreads that serve its connections, round robin; at least one.
    pub iothreads: Vec<usize>,
}

/// Options of a server.
#[derive(Clone)]
pub struct NbdOptions {
    /// Where it listens.
    pub address: Address,
    /// Disks that it serves.
    pub disks: Vec<NbdDisk>,
    /// The export for a client that gives no name.
    pub default: Option<String>,
    /// Permissions of a Unix socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Clients that are served at the same time, at most 256.
    pub max_connections: usize,
    /// TLS; `None` = clients that ask for TLS are refused it.
    pub tls: Option<Tls>,
}

impl NbdDisk {
    /// Returns the export that is offered to clients.
    ///
    /// # Errors
    /// Usage: the disk does not consist of whole blocks.
    fn export(&self, id: u64) -> Result<Export> {
        let limits = self.disk.shown(self.geometry).map_err(|e| e.within(&format!("export '{}'", self.label)))?;
        let min = self.geometry.logical.unwrap_or(1);
        Ok(Export {
            name: self.name.clone(),
            description: self.description.clone(),
            id,
            label: self.label.clone(),
            size_bytes: self.disk.bytes(),
            read_only: self.read_only || limits.read_only,
            rotational: limits.rotational,
            // If every write is stable there is nothing to flush, so no flush is offered.
            flush: !self.write_through,
            write_through: self.write_through,
            fua: true,
            trim: self.discard && limits.max_discard_sectors > 0,
            write_zeroes: limits.max_write_zeroes_sectors > 0,
            fast_zero: if limits.max_write_zeroes_sectors > 0 { FastZero::Served } else { FastZero::NotOffered },
            cache: self.disk.helper.stored().caches(),
            // All connections use one driver, and nothing is cached in between. A flush reaches the device after all writes that have
            // completed, from any connection.
            multi_conn: true,
            // Whole blocks are faster.
            block: BlockSizes { min, preferred: limits.physical_block_size.max(4096), max: MAX_SERVED },
            base_allocation: true,
            ..Export::default()
        })
    }
}

/// A server. It ends when it is dropped.
pub struct NbdExport {
    shared: Arc<Shared>,
    address: Address,
    /// Of a Unix socket.
    file: Option<SocketFile>,
    socket_mode: Option<u32>,
    /// Each accepts the clients of one socket.
    threads: Vec<JoinHandle<()>>,
}

impl NbdExport {
    /// Starts a server for disks.
    ///
    /// # Errors
    /// Usage: the exports break a rule, or the socket is in use. Others: listening at the address fails.
    pub fn start(threads: &Arc<IoThreads>, options: NbdOptions) -> Result<NbdExport> {
        NbdExport::start_at_several(threads, options, &[])
    }

    /// As [`NbdExport::start`], for a server that listens at more addresses of TCP, too.
    ///
    /// # Errors
    /// The errors of [`NbdExport::start`]; nothing listens then.
    pub fn start_at_several(threads: &Arc<IoThreads>, options: NbdOptions, more: &[SocketAddr]) -> Result<NbdExport> {
        let NbdOptions { address, disks, default, socket_mode, max_connections, tls } = options;
        let table = Table::new(threads, disks, default.as_deref(), &[])?;
        let stop = event::new()?;
        let (listener, address, file) = Listener::bind(&address, socket_mode)?;
        let bind =
            |at: &SocketAddr| -> Result<Arc<Listener>> { Ok(Arc::new(Listener::bind(&Address::Tcp(*at), None)?.0)) };
        let others: Vec<Arc<Listener>> = more.iter().map(bind).collect::<Result<_>>()?;
        let shared = Arc::new(Shared {
            threads: Arc::clone(threads),
            max_connections: AtomicUsize::new(max_connections.min(CONNECTIONS_MAX as usize)),
            table: Mutex::new(table),
            tls,
            stop,
            listener: Mutex::new(Some(Arc::new(listener))),
            next_thread: AtomicUsize::new(0),
            places: Arc::default(),
            registry: Arc::default(),
        });
        // Dropping it ends the threads that were started so far.
        let mut export = NbdExport { shared, address, file, socket_mode, threads: Vec::new() };
        export.begin_to_accept(Shared::listener)?;
        for other in others {
            export.begin_to_accept(move |_| Some(Arc::clone(&other)))?;
        }
        Ok(export)
    }

    /// Starts a thread that accepts the clients of the socket that `listener` returns.
    fn begin_to_accept(&mut self, listener: impl Fn(&Shared) -> Option<Arc<Listener>> + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        // Each client gets the certificates that are in the files when it connects.
        let role = if shared.tls.is_some() { Role::TlsClients } else { Role::Clients };
        let thread = std::thread::Builder::new()
            .name("mqblk-nbd".into())
            .spawn(move || {
                sandbox::enter(role);
                shared.accept(listener);
            })
            .map_err(|e| Error::os(e, "cannot start the thread of an NBD server"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns where it listens, with the actual port; of several addresses the first.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the TLS settings, if there are any.
    pub fn tls(&self) -> Option<&Tls> {
        self.shared.tls.as_ref()
    }

    /// Returns a check that reports why the certificates in use are older than those in the files, as long as the server exists; `None`
    /// without TLS.
    pub(crate) fn certificates(&self) -> Option<HealthCheck> {
        self.tls()?;
        let shared = Arc::downgrade(&self.shared);
        Some(Box::new(move || Some(shared.upgrade()?.tls.as_ref()?.problem()?.to_string())))
    }

    /// Returns the path of its Unix socket.
    pub(crate) fn socket(&self) -> Option<&Arc<ServedPath>> {
        self.file.as_ref()?.served()
    }

    /// Makes its Unix socket anew, at the same path. Connected clients stay.
    ///
    /// # Errors
    /// The errors of [`NbdExport::start`]; the server keeps its old socket then.
    pub(crate) fn listen_again(&mut self) -> Result<()> {
        let (listener, _, file) = Listener::bind(&self.address, self.socket_mode)?;
        let before = self.shared.listener.lock().replace(Arc::new(listener));
        // Dropping the old file removes nothing: the path names the new one.
        self.file = file;
        // The accepting thread takes the new one from here on.
        if let Some(before) = before {
            socket::refuse_clients(before.fd());
        }
        Ok(())
    }

    /// Returns the number of connected clients.
    pub fn connections(&self) -> usize {
        self.shared.registry.clients.lock().there.len()
    }

    /// Returns a function that counts the connected clients of one export.
    pub(crate) fn clients_of(&self, export: &str) -> Count {
        let (registry, export) = (Arc::clone(&self.shared.registry), export.to_owned());
        Box::new(move || registry.clients.lock().of(&export).count())
    }

    /// Replaces the disks that are served at the same address. Clients of an export that remains, with the same disk, stay connected. The
    /// others are dropped when the returned value is dropped, and none of their requests is in flight afterwards.
    ///
    /// # Errors
    /// The errors of [`NbdExport::start`]; nothing has changed then.
    pub fn update(&self, disks: Vec<NbdDisk>, default: Option<&str>, max_connections: usize) -> Result<ClientDrain> {
        // With both locks held, no client connects in between: a counted client belongs to the old table.
        let clients = self.shared.registry.clients.lock();
        let mut table = self.shared.table.lock();
        let new = Table::new(&self.shared.threads, disks, default, &table.served)?;
        self.shared.max_connections.store(max_connections.min(CONNECTIONS_MAX as usize), Ordering::Relaxed);
        let stays = |old: &Served| new.served.iter().any(|s| s.id == old.id);
        let gone = table.served.iter().filter(|s| !stays(s));
        let leaving = gone.flat_map(|s| clients.of(&s.disk.name)).collect();
        *table = new;
        Ok(ClientDrain { registry: Arc::clone(&self.shared.registry), leaving })
    }

    /// Handles a new size of a disk: clients that connect later see it. Connected clients keep the old size, because the protocol has no
    /// message for that which clients support. Requests beyond the disk's end fail.
    pub fn resized(&self) -> Result<()> {
        let mut table = self.shared.table.lock();
        let default = table.exports.find(b"").map(|e| e.name.clone());
        let disks = table.served.iter().map(|s| s.disk.clone()).collect();
        *table = Table::new(&self.shared.threads, disks, default.as_deref(), &table.served)?;
        Ok(())
    }

    /// Drops the clients of an export; new ones may connect.
    pub fn let_go(&self, export: &str) {
        let leaving = self.shared.registry.clients.lock().of(export).collect();
        drop(ClientDrain { registry: Arc::clone(&self.shared.registry), leaving });
    }
}

/// Clients that are to be disconnected. Dropping this value disconnects them and waits until none of their requests is in flight.
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
        self.shared.places.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        drop(self.shared.listener.lock().take());
        drop(self.file.take());
        self.shared.places.wait_empty();
        // No more clients connect.
        let all: Vec<_> = self.shared.registry.clients.lock().there.iter().map(|c| c.number).collect();
        self.shared.registry.end(&all);
    }
}

/// The exports of a server at one time.
struct Table {
    served: Vec<Served>,
    /// The exports as clients see them.
    exports: Arc<ExportTable>,
}

/// A served disk, under a number that is unique in this process. It gets a new number whenever a client could notice a difference.
struct Served {
    id: u64,
    disk: NbdDisk,
}

/// The next number of a served disk.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Table {
    fn new(threads: &IoThreads, disks: Vec<NbdDisk>, default: Option<&str>, before: &[Served]) -> Result<Table> {
        if disks.iter().any(|d| d.iothreads.is_empty() || d.iothreads.iter().any(|t| !threads.contains(*t))) {
            return Err(Error::usage("an NBD export needs one or more IOThreads, all of them existing"));
        }
        let numbered = |disk: NbdDisk| {
            let same = before.iter().find(|s| s.disk.name == disk.name && disk.serves_as(&s.disk));
            // Relaxed: the number only has to be unique.
            Served { id: same.map_or_else(|| NUMBERS.fetch_add(1, Ordering::Relaxed), |s| s.id), disk }
        };
        let served: Vec<_> = disks.into_iter().map(numbered).collect();
        let exports = served.iter().map(|s| s.disk.export(s.id)).collect::<Result<_>>()?;
        Ok(Table { exports: Arc::new(ExportTable::new(exports, default)?), served })
    }
}

impl NbdDisk {
    /// Whether a client of `other` would notice no difference.
    fn serves_as(&self, other: &NbdDisk) -> bool {
        let traits = |d: &NbdDisk| (d.read_only, d.discard, d.write_through, d.geometry);
        Arc::ptr_eq(&self.disk, &other.disk) && traits(self) == traits(other)
    }
}

/// How the log names what clients connect to.
const SERVER: &str = "an NBD server";

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

    /// Accepts the next client. Returns its socket in non-blocking mode.
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
                // Replies are already batched; Nagle's algorithm would only delay them.
                stream.set_nodelay(true)?;
                // Keep-alive detects a client whose machine is gone.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                Ok(stream.into())
            }
        }
    }
}

/// A connected client.
struct Client {
    /// A unique number, which is never reused.
    number: u64,
    export: String,
    socket: Weak<OwnedFd>,
}

#[derive(Default)]
struct Clients {
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

/// The connected clients. A connection references only this part of its server: if it referenced the whole, the server could be dropped on
/// an IOThread, which the server itself stops.
#[derive(Default)]
struct ClientRegistry {
    clients: Mutex<Clients>,
    /// Signalled when a client has ended.
    changed: Condvar,
}

impl ClientRegistry {
    /// Disconnects these clients. Nothing more is read from them; their requests are answered as long as they receive. Returns when none
    /// of their requests is in flight.
    fn end(&self, numbers: &[u64]) {
        let mut clients = self.clients.lock();
        // To their IOThreads it looks as if the clients had disconnected.
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
    /// `None`: the server is being dropped.
    listener: Mutex<Option<Arc<Listener>>>,
    next_thread: AtomicUsize,
    places: Arc<Places>,
    registry: Arc<ClientRegistry>,
}

/// What a client got when it was admitted. Fields are dropped in this order: a client that is no longer registered has no memory.
struct Admitted {
    buffers: Buffers,
    disk: NbdDisk,
    connected: Connected,
}

/// Keeps a client registered until this value is dropped, which happens after its socket is closed.
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
    fn listener(&self) -> Option<Arc<Listener>> {
        self.listener.lock().clone()
    }

    fn accept(self: &Arc<Shared>, current: impl Fn(&Shared) -> Option<Arc<Listener>>) {
        // Taken anew for each client, because it may have been replaced.
        while let Some(listener) = current(self)
            && socket::wait(listener.fd(), PollFlags::IN, &self.stop, None)
        {
            let accepted = socket::accepted(listener.accept(), SERVER, &self.stop);
            let Some(socket) = accepted.map(Arc::new) else { continue };
            let Some(place) = self.places.take(&socket) else { return };
            let shared = Arc::clone(self);
            socket::spawn_for_client("mqblk-nbd-hello", SERVER, move || {
                shared.welcome(socket, &place);
                // Drop in this order: the thread that waits for the last handshake is then the only owner of the server.
                drop(shared);
                drop(place);
            });
        }
    }

    /// Does the handshake with a client and passes the client to an IOThread; drops the client on any error.
    fn welcome(&self, socket: Arc<OwnedFd>, place: &Place) {
        // No reference to a disk is held during the handshake, whose duration the client determines: the disk may be removed meanwhile.
        let exports = Arc::clone(&self.table.lock().exports);
        let client = socket::peer(&socket);
        let line = Line::new(&socket, &self.stop, &place.has_spoken);
        let mut is_admitted = false;
        let admit = |asked: &Export| {
            self.admit((&socket, place.owner), asked, &client).inspect(|_| {
                // Kept before its export is confirmed: a confirmed client may have requests in flight.
                place.keep();
                is_admitted = true;
            })
        };
        let Some(greeted) = line.shake_hands(&exports, self.tls.as_ref(), admit) else {
            // The end of an admitted client was logged when it was no longer registered.
            if !is_admitted {
                log::info!(client; "a client has left before it chose an export");
            }
            return;
        };
        let Greeted { negotiated, rest, tls, admitted: Admitted { buffers, disk, connected } } = greeted;
        let NbdDisk { disk, iothreads, .. } = disk;
        let connection = Connection::new(Box::new(connected), (socket, tls), &negotiated, &rest, buffers);
        // Relaxed: any distribution is correct.
        let thread = iothreads[self.next_thread.fetch_add(1, Ordering::Relaxed) % iothreads.len()];
        let _ = self.threads.add(thread, &disk, connection);
    }

    /// Takes the memory of a client of the export `asked` for its owner, and registers the client.
    ///
    /// # Errors
    /// The client is refused; returns the reason for its user. The log has the reason, too.
    fn admit(
        &self,
        (socket, owner): (&Arc<OwnedFd>, Owner),
        asked: &Export,
        client: &str,
    ) -> std::result::Result<Admitted, &'static str> {
        let export = asked.label.as_str();
        let mut clients = self.registry.clients.lock();
        let most = self.max_connections.load(Ordering::Relaxed);
        // The export may have been removed during the handshake. The check is under this lock, so that the thread that removes an export
        // finds every registered client.
        let disk = self.table.lock().served.iter().find(|s| s.id == asked.id).map(|s| s.disk.clone());
        let Some(disk) = disk.filter(|_| clients.there.len() < most && !clients.stopped) else {
            log::warn!(export, client; "a client is refused: too many clients, or its export is being removed");
            return Err("too many clients, or the export is being removed");
        };
        let buffers = Buffers::new(&disk.disk, SLOTS, Some(owner)).map_err(|e| {
            log::warn!(export, client; "a client is refused: {e}");
            "the server has no memory for another client"
        })?;
        let number = clients.next_number;
        clients.next_number += 1;
        clients.there.push(Client { number, export: asked.name.clone(), socket: Arc::downgrade(socket) });
        log::info!(export, client; "a client has connected");
        let registry = Arc::clone(&self.registry);
        let connected = Connected { registry, number, export: asked.label.clone(), client: client.to_owned() };
        Ok(Admitted { buffers, disk, connected })
    }
}
