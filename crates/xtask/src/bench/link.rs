// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A path to an iSCSI target on loopback with a speed limit: it forwards one final response per time interval.
//!
//! Guarantees: PDUs that complete a command are forwarded one after the other, over all connections of the link together. Each is
//! forwarded at least the link's interval after the one before. So a link of 400 us carries at most 2500 commands a second, however
//! many are in flight. All other PDUs pass without delay. Reads and writes are counted on the wire, as the initiator sends them, not
//! by the program that selected the path. The link closes when the value is dropped.
//! Needs: sessions without digests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a basic header segment (RFC 7143, 11.2.1).
const BHS: usize = 48;

/// A proxy with a speed limit; see the module's text.
pub struct Link {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: u16,
    per_answer: Duration,
    /// The time until which the link is busy.
    busy: Mutex<Option<Instant>>,
    commands: AtomicU64,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Link {
    /// Starts a link to the target on port `target`.
    ///
    /// # Errors
    /// No port is free.
    pub fn new(target: u16, per_answer: Duration) -> Result<Link, String> {
        let failed = |e: std::io::Error| format!("no port for a path: {e}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(Shared {
            target,
            per_answer,
            busy: Mutex::default(),
            commands: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if own.is_over.load(Ordering::Relaxed) {
                    return;
                }
                // When the link closes, the client's connection closes, too.
                let _ = client.and_then(|client| own.clone().carry(client));
            }
        });
        Ok(Link { port, shared, thread: Some(thread) })
    }

    /// The port that the link listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reads and writes so far.
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
        if let Ok(streams) = self.shared.streams.lock() {
            streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }
}

impl Shared {
    fn carry(self: Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.target))?;
        let copies = [client.try_clone()?, server.try_clone()?];
        for stream in &copies {
            stream.set_nodelay(true)?;
        }
        let [to_client, to_server] = [client.try_clone()?, server.try_clone()?];
        if let Ok(mut streams) = self.streams.lock() {
            streams.extend(copies);
        }
        let down = self.clone();
        std::thread::spawn(move || pump(client, to_server, |message| self.count(message)));
        std::thread::spawn(move || pump(server, to_client, |message| down.wait(message)));
        Ok(())
    }

    fn count(&self, message: &[u8]) {
        if is_io(message) {
            self.commands.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// If `message` completes a command, waits for its turn on the link.
    fn wait(&self, message: &[u8]) {
        if !ends_command(message) {
            return;
        }
        let Ok(mut busy) = self.busy.lock() else { return };
        let until = busy.map_or_else(Instant::now, |until| until.max(Instant::now())) + self.per_answer;
        *busy = Some(until);
        drop(busy);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, each: impl Fn(&[u8])) {
    let mut message = Vec::new();
    while next(&mut from, &mut message).is_ok() {
        each(&message);
        if to.write_all(&message).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Reads the next complete PDU.
fn next(from: &mut TcpStream, message: &mut Vec<u8>) -> std::io::Result<()> {
    message.resize(BHS, 0);
    from.read_exact(message)?;
    let more = usize::from(message[4]) * 4;
    let data = u32::from_be_bytes([0, message[5], message[6], message[7]]) as usize;
    message.resize(BHS + more + data.next_multiple_of(4), 0);
    from.read_exact(&mut message[BHS..])
}

/// Whether a PDU is a SCSI command that reads or writes (SBC-3: READ and WRITE, of 10 and 16 bytes).
fn is_io(message: &[u8]) -> bool {
    const SCSI_COMMAND: u8 = 0x01;
    message[0] & 0x3f == SCSI_COMMAND && matches!(message[32], 0x28 | 0x2a | 0x88 | 0x8a)
}

/// Whether a PDU completes a command: a SCSI response, or Data-In with a status (RFC 7143, 11.4 and 11.7.3).
fn ends_command(message: &[u8]) -> bool {
    const RESPONSE: u8 = 0x21;
    const DATA_IN: u8 = 0x25;
    const HAS_STATUS: u8 = 0x01;
    match message[0] & 0x3f {
        RESPONSE => true,
        DATA_IN => message[1] & HAS_STATUS != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u8, flags: u8, cdb: u8) -> Vec<u8> {
        let mut message = vec![0; BHS];
        (message[0], message[1], message[32]) = (opcode, flags, cdb);
        message
    }

    #[test]
    fn reads_and_writes_are_told_from_other_commands() {
        assert!([0x28, 0x2a, 0x88, 0x8a].iter().all(|cdb| is_io(&message(0x41, 0, *cdb))));
        // TEST UNIT READY; a response; a NOP-Out.
        assert!(!is_io(&message(0x01, 0, 0x00)) && !is_io(&message(0x21, 0, 0x28)) && !is_io(&message(0x00, 0, 0x28)));
    }

    #[test]
    fn only_what_ends_a_command_takes_the_links_time() {
        assert!(ends_command(&message(0x21, 0x80, 0)) && ends_command(&message(0x25, 0x81, 0)));
        assert!(!ends_command(&message(0x25, 0x80, 0)) && !ends_command(&message(0x31, 0x80, 0)));
    }

    #[test]
    fn a_link_carries_whole_messages_both_ways_and_counts() {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::new(target.local_addr().unwrap().port(), Duration::ZERO).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", link.port())).unwrap();
        let mut sent = message(0x01, 0x80, 0x28);
        sent[7] = 6;
        sent.extend([7; 8]);
        client.write_all(&sent).unwrap();
        let (mut server, _) = target.accept().unwrap();
        let mut got = Vec::new();
        next(&mut server, &mut got).unwrap();
        assert_eq!((got, link.commands()), (sent, 1));
        let answer = message(0x21, 0x80, 0);
        server.write_all(&answer).unwrap();
        let mut got = Vec::new();
        next(&mut client, &mut got).unwrap();
        assert_eq!(got, answer);
        drop(link);
        assert!(next(&mut client, &mut Vec::new()).is_err(), "its connections end with it");
    }
}
