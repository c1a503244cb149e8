// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An iSCSI target that a test controls. It implements just enough to be a disk of one LUN, and calls a script for every command first.
//! Correct behaviour is tested with real targets; this target is for behaviour that real targets do not show.

use host::driver::iscsi::pdu::{BHS_BYTES, RESERVED_TAG, padding};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub const GOOD: u8 = 0;
pub const BUSY: u8 = 0x08;
pub const TASK_SET_FULL: u8 = 0x28;
pub const CHECK_CONDITION: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
/// Number of blocks of 512 bytes, unless a test changes it: 64 MiB.
const BLOCKS: u64 = 1 << 17;
/// Status class of a failed login (RFC 7143, 11.13.5).
const TARGET_ERROR: u8 = 3;
const OUT_OF_RESOURCES: u8 = 2;
/// Status class and detail of a redirect.
const MOVED_TEMPORARILY: (u8, u8) = (1, 1);
/// The login keys. All data is solicited, in small PDUs.
const KEYS: &[u8] = b"InitialR2T=Yes\0ImmediateData=No\0MaxBurstLength=16776192\0FirstBurstLength=512\0\
    MaxRecvDataSegmentLength=512\0MaxOutstandingR2T=1\0MaxConnections=1\0ErrorRecoveryLevel=0\0";

/// A command, or another PDU of the initiator.
pub struct Request {
    pub header: [u8; BHS_BYTES],
    pub data: Vec<u8>,
}

impl Request {
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(*self.header[at..].first_chunk().unwrap())
    }

    fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    pub fn tag(&self) -> u32 {
        self.word(16)
    }

    /// Returns the expected data transfer length.
    pub fn len(&self) -> u32 {
        self.word(20)
    }

    pub fn cdb(&self) -> &[u8] {
        &self.header[32..]
    }

    pub fn is_write(&self) -> bool {
        matches!(self.cdb()[0], 0x2a | 0x8a)
    }

    /// Returns the byte at which a read or write begins.
    fn byte(&self) -> usize {
        let lba = match self.cdb() {
            [0x28 | 0x2a, rest @ ..] => u64::from(u32::from_be_bytes(*rest[1..].first_chunk().unwrap())),
            cdb => u64::from_be_bytes(*cdb[2..].first_chunk().unwrap()),
        };
        lba as usize * 512
    }

    pub fn is_read(&self) -> bool {
        matches!(self.cdb()[0], 0x28 | 0x88)
    }

    /// Returns its task management function, if it is one.
    pub fn function(&self) -> Option<u8> {
        (self.opcode() == 2).then(|| self.header[1] & 0x7f)
    }

    /// Returns the number of the initiator's session that it logs in to.
    fn session(&self) -> u16 {
        u16::from_be_bytes(*self.header[12..].first_chunk().unwrap())
    }

    /// Returns the page of vital product data that it requests.
    pub fn page(&self) -> Option<u8> {
        (self.cdb()[0] == 0x12 && self.cdb()[1] == 1).then(|| self.cdb()[2])
    }
}

/// The properties of the logical unit.
pub struct Unit {
    /// `None`: it has no pages that identify it.
    pub serial: Option<String>,
    pub blocks: u64,
}

/// The target's end of its sessions.
#[derive(Default)]
pub struct ScriptedPortal {
    /// Its portal group.
    pub group: u16,
    /// The address that logins are redirected to.
    pub redirect: Option<String>,
    /// Connections that have sent a Logout.
    pub logouts: Vec<usize>,
    /// Response and Time2Wait of the Logout Responses.
    pub logout_response: (u8, u16),
}

/// A connection. Connections are numbered from 0.
pub struct Peer {
    pub stream: TcpStream,
    pub number: usize,
    stat_sn: u32,
    cmd_sn: u32,
    unit: Arc<Mutex<Unit>>,
    /// The written data, from block 0 on.
    written: Arc<Mutex<Vec<u8>>>,
    refuses: Arc<Mutex<Vec<u16>>>,
    portal: Arc<Mutex<ScriptedPortal>>,
    /// Commands that arrived while this waited for data.
    later: VecDeque<Request>,
}

impl Peer {
    fn receive(&mut self) -> Option<Request> {
        let mut header = [0; BHS_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]);
        let mut data = vec![0; len as usize + padding(len)];
        self.stream.read_exact(&mut data).ok()?;
        data.truncate(len as usize);
        Some(Request { header, data })
    }

    fn message(&mut self, opcode: u8, flags: u8, tag: u32, data: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut header = [0; BHS_BYTES];
        (header[0], header[1]) = (opcode, flags);
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        header[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[32..36].copy_from_slice(&self.cmd_sn.wrapping_add(64).to_be_bytes());
        change(&mut header);
        [&header[..], data, &[0; 3][..padding(data.len() as u32)]].concat()
    }

    /// Makes a SCSI response.
    pub fn response(&mut self, tag: u32, status: u8, data: &[u8]) -> Vec<u8> {
        let message = self.message(0x21, 0x80, tag, data, |h| h[3] = status);
        self.stat_sn += 1;
        message
    }

    /// Makes an R2T.
    pub fn r2t(&mut self, tag: u32, offset: u32, len: u32) -> Vec<u8> {
        self.message(0x31, 0x80, tag, &[], |h| {
            h[20..24].copy_from_slice(&7_u32.to_be_bytes());
            h[40..44].copy_from_slice(&offset.to_be_bytes());
            h[44..48].copy_from_slice(&len.to_be_bytes());
        })
    }

    /// Makes a NOP-In that requires no answer.
    pub fn chatter(&mut self) -> Vec<u8> {
        self.message(0x20, 0x80, RESERVED_TAG, &[], |h| h[20..24].fill(0xff))
    }

    /// Sends the response to the task management function of this tag.
    pub fn managed(&mut self, tag: u32, response: u8) {
        let message = self.message(0x22, 0x80, tag, &[], |h| h[2] = response);
        self.stat_sn += 1;
        self.send(&message);
    }

    /// Sends an asynchronous message.
    pub fn asynchronous(&mut self, event: u8, parameters: [u16; 3]) {
        let message = self.message(0x32, 0x80, RESERVED_TAG, &[], |h| {
            h[36] = event;
            for (at, value) in [38, 40, 42].into_iter().zip(parameters) {
                h[at..at + 2].copy_from_slice(&value.to_be_bytes());
            }
        });
        self.stat_sn += 1;
        self.send(&message);
    }

    /// Rejects a PDU.
    pub fn reject(&mut self, request: &Request, reason: u8) {
        let message = self.message(0x3f, 0x80, RESERVED_TAG, &request.header, |h| h[2] = reason);
        self.stat_sn += 1;
        self.send(&message);
    }

    /// Whether a task management function arrives next, within `limit`. It is not consumed.
    pub fn is_managed_next(&mut self, limit: Duration) -> bool {
        let mut first = [0];
        self.stream.set_read_timeout(Some(limit)).unwrap();
        let is_there = matches!(self.stream.peek(&mut first), Ok(1));
        self.stream.set_read_timeout(None).unwrap();
        is_there && first[0] & 0x3f == 2
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn end(&mut self, tag: u32, status: u8) {
        let message = self.response(tag, status, &[]);
        self.send(&message);
    }

    pub fn check(&mut self, tag: u32, key: u8, asc: u8, ascq: u8) {
        let mut sense = [0; 20];
        (sense[1], sense[2], sense[4], sense[9]) = (18, 0x70, key, 10);
        (sense[14], sense[15]) = (asc, ascq);
        let message = self.response(tag, CHECK_CONDITION, &sense);
        self.send(&message);
    }

    /// Sends data, truncated to the requested length, with status GOOD.
    pub fn answer(&mut self, request: &Request, data: &[u8]) {
        let data = &data[..data.len().min(request.len() as usize)];
        let underflow = request.len() - data.len() as u32;
        let flags = 0x81 | if underflow > 0 { 2 } else { 0 };
        let message = self.message(0x25, flags, request.tag(), data, |h| {
            h[44..48].copy_from_slice(&underflow.to_be_bytes());
        });
        self.stat_sn += 1;
        self.send(&message);
    }

    /// Handles a request as a correct target does.
    pub fn serve(&mut self, request: &Request) {
        let unit = self.unit.lock().unwrap();
        let (serial, blocks) = (unit.serial.clone(), unit.blocks);
        drop(unit);
        match (request.cdb()[0], request.page(), serial) {
            (0x00 | 0x35 | 0x91, ..) => self.end(request.tag(), GOOD),
            (0x12, None, _) => self.answer(request, &[&[0, 0, 5, 2, 31, 0, 0, 0][..], &[b'x'; 28]].concat()),
            (0x12, Some(0x80), Some(serial)) => {
                self.answer(request, &[&[0, 0x80, 0, serial.len() as u8], serial.as_bytes()].concat());
            }
            (0x9e, ..) => {
                let mut answer = [0; 32];
                answer[..8].copy_from_slice(&(blocks - 1).to_be_bytes());
                answer[8..12].copy_from_slice(&512_u32.to_be_bytes());
                self.answer(request, &answer);
            }
            (0x28 | 0x88, ..) => {
                let mut data = vec![0; request.len() as usize];
                let at = request.byte();
                let written = self.written.lock().unwrap();
                let there = written.get(at..).unwrap_or_default();
                let n = there.len().min(data.len());
                data[..n].copy_from_slice(&there[..n]);
                drop(written);
                self.answer(request, &data);
            }
            (0x2a | 0x8a, ..) => self.take(request),
            _ => self.check(request.tag(), ILLEGAL_REQUEST, 0x24, 0),
        }
    }

    /// Executes a write.
    fn take(&mut self, request: &Request) {
        let Some(all) = self.collect(request) else { return };
        let at = request.byte();
        let mut written = self.written.lock().unwrap();
        let end = written.len().max(at + all.len());
        written.resize(end, 0);
        written[at..at + all.len()].copy_from_slice(&all);
        drop(written);
        self.end(request.tag(), GOOD);
    }

    /// Requests all data of a command at once. `None`: the connection is closed.
    pub fn collect(&mut self, request: &Request) -> Option<Vec<u8>> {
        let (tag, len) = (request.tag(), request.len());
        let wish = self.r2t(tag, 0, len);
        self.send(&wish);
        let mut all = Vec::new();
        let mut number = 0;
        loop {
            let part = self.receive()?;
            match part.opcode() {
                1 => self.later.push_back(part),
                5 => {
                    assert_eq!((part.tag(), part.word(20)), (tag, 7), "another sequence");
                    assert_eq!((part.word(36), part.word(40) as usize), (number, all.len()), "of {len}");
                    number += 1;
                    all.extend(&part.data);
                    if part.header[1] & 0x80 != 0 {
                        break;
                    }
                }
                _ => self.hear(&part),
            }
        }
        assert_eq!(all.len(), len as usize);
        Some(all)
    }

    /// Handles a PDU that is not a command.
    fn hear(&mut self, request: &Request) {
        let message = match request.opcode() {
            // A NOP-Out that requires an answer.
            0 if request.tag() != RESERVED_TAG => {
                self.message(0x20, 0x80, request.tag(), &[], |h| h[20..24].fill(0xff))
            }
            3 => {
                let operational = request.header[1] & 0x0c != 0;
                let flags = request.header[1];
                let is_refused = self.refuses.lock().unwrap().contains(&request.session());
                let (group, redirect) = {
                    let portal = self.portal.lock().unwrap();
                    (portal.group, portal.redirect.clone())
                };
                let security = format!("AuthMethod=None\0TargetPortalGroupTag={group}\0");
                let elsewhere = redirect.as_ref().map(|address| format!("TargetAddress={address}\0"));
                let keys = match &elsewhere {
                    Some(address) => address.as_bytes(),
                    None if operational => KEYS,
                    None => security.as_bytes(),
                };
                self.message(0x23, flags, request.tag(), keys, |h| {
                    h[15] = 1;
                    if is_refused {
                        (h[36], h[37]) = (TARGET_ERROR, OUT_OF_RESOURCES);
                    } else if elsewhere.is_some() {
                        (h[36], h[37]) = MOVED_TEMPORARILY;
                    }
                })
            }
            6 => {
                let mut portal = self.portal.lock().unwrap();
                portal.logouts.push(self.number);
                let (response, time2wait) = portal.logout_response;
                drop(portal);
                self.message(0x26, 0x80, request.tag(), &[], |h| {
                    h[2] = response;
                    h[40..42].copy_from_slice(&time2wait.to_be_bytes());
                })
            }
            _ => return,
        };
        self.stat_sn += 1;
        self.send(&message);
    }
}

/// Handles a command or a task management function. Returns true if it has handled it. Otherwise a command is served as by a correct
/// target, and a function is not answered.
type Script = dyn Fn(&mut Peer, &Request) -> bool + Send + Sync;

/// A scripted target; see the module's text.
pub struct Scripted {
    address: SocketAddr,
    pub unit: Arc<Mutex<Unit>>,
    pub written: Arc<Mutex<Vec<u8>>>,
    /// Sessions whose login is refused now, by the numbers that initiators give them.
    pub refuses: Arc<Mutex<Vec<u16>>>,
    pub portal: Arc<Mutex<ScriptedPortal>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Scripted {
    pub fn new(script: impl Fn(&mut Peer, &Request) -> bool + Send + Sync + 'static) -> Scripted {
        Scripted::storing(Arc::default(), script)
    }

    /// Starts a target with this storage, which another target may share.
    pub fn storing(
        written: Arc<Mutex<Vec<u8>>>,
        script: impl Fn(&mut Peer, &Request) -> bool + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let unit = Arc::new(Mutex::new(Unit { serial: Some("SN1".to_owned()), blocks: BLOCKS }));
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let over = Arc::new(AtomicBool::new(false));
        let refuses = Arc::<Mutex<Vec<u16>>>::default();
        let portal = Arc::new(Mutex::new(ScriptedPortal { group: 1, ..ScriptedPortal::default() }));
        let own = (unit.clone(), written.clone(), refuses.clone(), portal.clone(), streams.clone(), over.clone());
        let script: Arc<Script> = Arc::new(script);
        let thread = std::thread::spawn(move || {
            let (unit, written, refuses, portal, streams, over) = own;
            let next = AtomicUsize::new(0);
            let mut threads = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if over.load(Ordering::Relaxed) {
                    break;
                }
                stream.set_nodelay(true).unwrap();
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let number = next.fetch_add(1, Ordering::Relaxed);
                let (unit, written, refuses, later) = (unit.clone(), written.clone(), refuses.clone(), VecDeque::new());
                let portal = portal.clone();
                let mut peer = Peer { stream, number, stat_sn: 1, cmd_sn: 1, unit, written, refuses, portal, later };
                let script = script.clone();
                threads.push(std::thread::spawn(move || {
                    while let Some(request) = peer.later.pop_front().or_else(|| peer.receive()) {
                        if request.opcode() != 1 {
                            if request.opcode() != 2 || !script(&mut peer, &request) {
                                peer.hear(&request);
                            }
                            continue;
                        }
                        peer.cmd_sn = request.word(24).wrapping_add(1);
                        if !script(&mut peer, &request) {
                            peer.serve(&request);
                        }
                    }
                    let _ = peer.stream.shutdown(Shutdown::Both);
                }));
            }
            threads.into_iter().for_each(|t| t.join().expect("the initiator kept to the protocol"));
        });
        Scripted { address, unit, written, refuses, portal, streams, over, listener: Some(thread) }
    }

    pub fn url(&self, options: &str) -> String {
        format!("iscsi://{}/iqn.2026-11.test:scripted/1{options}", self.address)
    }

    /// Returns its address, as a redirect names it.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Closes all existing connections.
    pub fn cut(&self) {
        self.streams.lock().unwrap().iter().for_each(|s| drop(s.shutdown(Shutdown::Both)));
    }

    /// Closes the connection of this number.
    pub fn cut_one(&self, number: usize) {
        let _ = self.streams.lock().unwrap()[number].shutdown(Shutdown::Both);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.cut();
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.listener.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a connection of the target has panicked");
        }
    }
}
