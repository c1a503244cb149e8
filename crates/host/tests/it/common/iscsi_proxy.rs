// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A proxy between our initiator and a target. It parses PDUs, and withholds or changes those that a test names. Only for sessions
//! without digests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const BHS: usize = 48;

/// What the proxy does to PDUs of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// Withholds this number of the next R2Ts.
    HoldR2t(u32),
    /// Withholds all PDUs for this number of the next reads.
    HoldReads(u32),
    /// Replaces the response in answers to task management functions.
    Answer(u8),
    /// Replaces the task tag in answers to task management functions.
    WrongTag,
    /// Inserts an unsolicited task management response before the next PDU.
    Unasked,
}

#[derive(Default)]
struct Shared {
    meddles: Vec<Tampering>,
    /// Reads whose answers are withheld.
    held: Vec<[u8; 4]>,
    /// Task management functions that were requested, and the target's answer to each.
    functions: Vec<u8>,
    answers: Vec<u8>,
    streams: Vec<TcpStream>,
}

/// A proxy; see the module's text.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for the target at this address.
    pub fn new(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (shared, stop) = (Arc::<Mutex<Shared>>::default(), Arc::<AtomicBool>::default());
        let (held, over) = (shared.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut pumps = Vec::new();
            while let Ok((client, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(server) = TcpStream::connect(target) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                held.lock().unwrap().streams.extend(both);
                for (mut from, mut to, is_target) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)]
                {
                    let shared = held.clone();
                    pumps.push(std::thread::spawn(move || {
                        while let Some(message) = next(&mut from) {
                            let out = if is_target { meddle(&shared, message) } else { note(&shared, message) };
                            if to.write_all(&out).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    }));
                }
            }
            pumps.into_iter().for_each(|p| p.join().unwrap());
        });
        Proxy { address, shared, stop, thread: Some(thread) }
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what it does from now on.
    pub fn meddle(&self, what: Tampering) {
        self.shared.lock().unwrap().meddles.push(what);
    }

    /// Returns the task management functions so far.
    pub fn functions(&self) -> Vec<u8> {
        self.shared.lock().unwrap().functions.clone()
    }

    /// Returns the target's answers to them.
    pub fn answers(&self) -> Vec<u8> {
        self.shared.lock().unwrap().answers.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for stream in &self.shared.lock().unwrap().streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Reads the next complete PDU.
fn next(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; BHS];
    from.read_exact(&mut message).ok()?;
    let extra = usize::from(message[4]) * 4;
    let data = u32::from_be_bytes([0, message[5], message[6], message[7]]) as usize;
    message.resize(BHS + extra + data.next_multiple_of(4), 0);
    from.read_exact(&mut message[BHS..]).ok()?;
    Some(message)
}

fn tag(message: &[u8]) -> [u8; 4] {
    message[16..20].try_into().unwrap()
}

/// Handles a PDU of the initiator.
fn note(shared: &Mutex<Shared>, message: Vec<u8>) -> Vec<u8> {
    let mut shared = shared.lock().unwrap();
    match message[0] & 0x3f {
        0x01 if [0x28, 0x88].contains(&message[32]) => {
            let held = shared.meddles.iter_mut().find_map(|m| match m {
                Tampering::HoldReads(n) if *n > 0 => Some(n),
                _ => None,
            });
            if let Some(n) = held {
                *n -= 1;
                shared.held.push(tag(&message));
            }
        }
        0x02 => shared.functions.push(message[1] & 0x7f),
        _ => {}
    }
    message
}

/// Handles a PDU of the target.
fn meddle(shared: &Mutex<Shared>, mut message: Vec<u8>) -> Vec<u8> {
    let mut shared = shared.lock().unwrap();
    let opcode = message[0] & 0x3f;
    if shared.held.contains(&tag(&message)) && [0x21, 0x25].contains(&opcode) {
        return Vec::new();
    }
    if opcode == 0x22 {
        shared.answers.push(message[2]);
    }
    let mut out = Vec::new();
    for m in &mut shared.meddles {
        match m {
            Tampering::HoldR2t(n) if opcode == 0x31 && *n > 0 => {
                *n -= 1;
                return Vec::new();
            }
            Tampering::Answer(code) if opcode == 0x22 => message[2] = *code,
            Tampering::WrongTag if opcode == 0x22 => message[19] ^= 0x55,
            Tampering::Unasked if opcode == 0x21 || opcode == 0x25 => {
                let mut forged = message[..BHS].to_vec();
                (forged[0], forged[1], forged[2], forged[3]) = (0x22, 0x80, 0, 0);
                forged[4..8].fill(0);
                out = forged;
                *m = Tampering::HoldR2t(0);
            }
            _ => {}
        }
    }
    out.extend(message);
    out
}
