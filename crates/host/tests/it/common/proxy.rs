// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A proxy for a server on loopback that can be slowed down, frozen, or cut. Each client connection has one server connection.

use super::own_address;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// State that the two directions of a connection share.
struct Gate {
    is_frozen: Mutex<bool>,
    changed: Condvar,
    client: TcpStream,
    server: TcpStream,
}

struct Shared {
    upstream: SocketAddr,
    delay_us: AtomicU64,
    /// Bytes towards the server that a frozen connection holds.
    held: AtomicU64,
    altered: Mutex<Option<Altered>>,
    gates: Mutex<Vec<Arc<Gate>>>,
}

/// Bytes to replace, and as many new bytes.
type Altered = (&'static [u8], &'static [u8]);

/// A proxy; see the module's text.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listens: Option<Listens>,
}

/// The thread that accepts connections, and the flag that ends it.
struct Listens {
    thread: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy for the server at this address.
    pub fn new(upstream: SocketAddr) -> Proxy {
        let address = own_address();
        let listener = TcpListener::bind(address).unwrap();
        let (delay_us, held) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { upstream, delay_us, held, altered: Mutex::default(), gates: Mutex::default() });
        let mut proxy = Proxy { address, shared, listens: None };
        proxy.take_connections(listener);
        proxy
    }

    fn take_connections(&mut self, listener: TcpListener) {
        let (shared, is_over) = (self.shared.clone(), Arc::new(AtomicBool::new(false)));
        let is_told = is_over.clone();
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if is_told.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    shared.connect(client);
                }
            }
        });
        self.listens = Some(Listens { thread, is_over });
    }

    /// Refuses new connections. Existing ones stay.
    pub fn stop_listening(&mut self) {
        let Some(Listens { thread, is_over }) = self.listens.take() else { return };
        is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = thread.join();
    }

    /// Accepts connections again.
    pub fn listen(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.take_connections(listener);
    }

    /// Returns the address on which it listens. No other server uses it while this one has stopped listening.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays every piece of data by `delay` in each direction.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_us.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// Freezes existing connections: they forward nothing any more. New connections do.
    pub fn freeze(&self) {
        self.shared.gates.lock().unwrap().iter().for_each(|gate| *gate.is_frozen.lock().unwrap() = true);
    }

    /// Lets frozen connections continue.
    pub fn thaw(&self) {
        for gate in self.shared.gates.lock().unwrap().iter() {
            *gate.is_frozen.lock().unwrap() = false;
            gate.changed.notify_all();
        }
    }

    /// Replaces bytes in data of servers, if one piece contains all of them.
    pub fn alter(&self, altered: Option<Altered>) {
        assert!(altered.is_none_or(|(from, to)| from.len() == to.len()));
        *self.shared.altered.lock().unwrap() = altered;
    }

    /// Returns how many bytes for the server frozen connections hold.
    pub fn held(&self) -> u64 {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Closes all existing connections.
    pub fn cut(&self) {
        self.thaw();
        for gate in self.shared.gates.lock().unwrap().drain(..) {
            let _ = gate.client.shutdown(Shutdown::Both);
            let _ = gate.server.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop_listening();
        self.cut();
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        // Without a server, the client's connection is closed.
        let Ok(server) = TcpStream::connect(self.upstream) else { return };
        for socket in [&client, &server] {
            let _ = socket.set_nodelay(true);
        }
        let copy = |socket: &TcpStream| socket.try_clone().unwrap();
        let gate = Gate {
            is_frozen: Mutex::new(false),
            changed: Condvar::new(),
            client: copy(&client),
            server: copy(&server),
        };
        let gate = Arc::new(gate);
        self.gates.lock().unwrap().push(gate.clone());
        for (from, to, is_up) in [(copy(&client), copy(&server), true), (server, client, false)] {
            let (shared, gate) = (self.clone(), gate.clone());
            std::thread::spawn(move || shared.pump(&gate, from, to, is_up));
        }
    }

    fn pump(&self, gate: &Gate, mut from: TcpStream, mut to: TcpStream, is_up: bool) {
        let mut piece = vec![0; 64 << 10];
        loop {
            let n = from.read(&mut piece).unwrap_or(0);
            if let Some((from, to)) = *self.altered.lock().unwrap()
                && !is_up
                && let Some(at) = piece[..n].windows(from.len()).position(|w| w == from)
            {
                piece[at..][..to.len()].copy_from_slice(to);
            }
            let delay = self.delay_us.load(Ordering::SeqCst);
            let mut is_frozen = gate.is_frozen.lock().unwrap();
            if delay > 0 {
                // The full delay passes, whatever happens meanwhile.
                let delay = Duration::from_micros(delay);
                is_frozen = gate.changed.wait_timeout_while(is_frozen, delay, |_| true).unwrap().0;
            }
            let held = if *is_frozen && is_up { n as u64 } else { 0 };
            self.held.fetch_add(held, Ordering::SeqCst);
            while *is_frozen {
                is_frozen = gate.changed.wait(is_frozen).unwrap();
            }
            drop(is_frozen);
            let is_over = n == 0 || to.write_all(&piece[..n]).is_err();
            self.held.fetch_sub(held, Ordering::SeqCst);
            if is_over {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
