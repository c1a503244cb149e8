// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD state machines with our own client, which does what installed clients do not: extended headers, many requests in one send,
//! replies compared with a model of the disk, and attacks.

use crate::nbd_server;

use host::export::nbd::reply::ReplyHead;
use host::export::nbd::{Export, TlsMode};
use host::nbd::wire::{BytesIn, NbdError, ReplyStyle};
use host::nbd::wire::{RequestHeader, chunk, command, command_flag, opt, option_header};
use nbd_server::{Disk, Server, count};
use sim::rng::Rng;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const SIZE: usize = 1 << 20;
const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

fn server() -> Server {
    Server::start(vec![(Export::with_everything("d"), Disk::of(vec![0; SIZE]))], TlsMode::Off)
}

/// The result of a request.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    error: u32,
    /// The data of a read, with zeroes for holes.
    data: Vec<u8>,
    /// (length, flags).
    extents: Vec<(u64, u32)>,
}

struct Client {
    stream: UnixStream,
    style: ReplyStyle,
    received: Vec<u8>,
}

impl Client {
    fn connect(server: &Server, style: ReplyStyle) -> Client {
        let stream = server.connect();
        // A time limit, so that a hanging server fails the test instead of blocking it.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        let mut client = Client { stream, style, received: Vec::new() };
        client.send(&3u32.to_be_bytes());
        client.receive(18);
        let name = [&1u32.to_be_bytes()[..], b"d"].concat();
        match style {
            ReplyStyle::Simple => {}
            ReplyStyle::Structured => client.option(opt::STRUCTURED_REPLY, &[]),
            ReplyStyle::Extended => client.option(opt::EXTENDED_HEADERS, &[]),
        }
        if style != ReplyStyle::Simple {
            let query = [&name[..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
            client.option(opt::SET_META_CONTEXT, &query);
        }
        client.option(opt::GO, &[&name[..], &[0, 0]].concat());
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Reads until `received` has at least `n` bytes. Removes and returns the first `n`.
    fn receive(&mut self, n: usize) -> Vec<u8> {
        while self.received.len() < n {
            self.more().expect("the server went away");
        }
        self.received.drain(..n).collect()
    }

    fn more(&mut self) -> Option<()> {
        let mut buffer = vec![0; 256 << 10];
        let n = self.stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
        self.received.extend(&buffer[..n]);
        Some(())
    }

    fn option(&mut self, code: u32, data: &[u8]) {
        self.send(&[&option_header(code, data.len() as u32), data].concat());
        loop {
            let head = self.receive(20);
            let mut input = BytesIn::new(&head[12..]);
            let (kind, bytes) = (input.u32().unwrap(), input.u32().unwrap());
            self.receive(bytes as usize);
            match kind {
                1 => return,
                3 | 4 => {}
                _ => panic!("option {code}: {kind:#x}"),
            }
        }
    }

    fn bytes_of(&self, header: RequestHeader, payload: &[u8]) -> Vec<u8> {
        if self.style == ReplyStyle::Extended {
            let carries = if payload.is_empty() { 0 } else { command_flag::PAYLOAD_LEN };
            return [&RequestHeader { flags: header.flags | carries, ..header }.to_extended()[..], payload].concat();
        }
        [&header.to_compact().expect("32 bits")[..], payload].concat()
    }

    /// Sends all requests at once, and reads replies until each request has its last.
    fn batch(&mut self, requests: &[(RequestHeader, Vec<u8>)]) -> HashMap<u64, Outcome> {
        let bytes: Vec<u8> = requests.iter().flat_map(|(h, p)| self.bytes_of(*h, p)).collect();
        // Another thread sends, because otherwise two full sockets would wait for each other.
        let mut writer = self.stream.try_clone().expect("a second descriptor");
        let mut open: HashMap<u64, RequestHeader> = requests.iter().map(|(h, _)| (h.cookie, *h)).collect();
        let mut ended = HashMap::new();
        std::thread::scope(|s| {
            s.spawn(move || writer.write_all(&bytes).expect("the server reads"));
            while !open.is_empty() {
                self.reply(&mut open, &mut ended);
            }
        });
        ended
    }

    fn reply(&mut self, open: &mut HashMap<u64, RequestHeader>, ended: &mut HashMap<u64, Outcome>) {
        let (head, bytes) = loop {
            let mut input = BytesIn::new(&self.received);
            match ReplyHead::take(&mut input).expect("a magic") {
                Some(head) => break (head, input.position()),
                None => self.more().expect("the server went away"),
            }
        };
        self.received.drain(..bytes);
        match head {
            ReplyHead::Simple { error, cookie } => {
                let request = open.remove(&cookie).expect("a request");
                let reads = request.kind == command::READ;
                assert!(self.style == ReplyStyle::Simple || (self.style == ReplyStyle::Structured && !reads));
                let data = if error == 0 && reads { self.receive(request.length as usize) } else { Vec::new() };
                ended.insert(cookie, Outcome { error, data, extents: Vec::new() });
            }
            ReplyHead::Chunk { flags, kind, cookie, offset, length } => {
                let request = open[&cookie];
                assert_eq!(offset, (self.style == ReplyStyle::Extended).then_some(request.offset));
                let payload = self.receive(length as usize);
                absorb(ended.entry(cookie).or_default(), &request, kind, &payload);
                if flags & chunk::DONE != 0 {
                    open.remove(&cookie);
                }
            }
        }
    }

    fn one(&mut self, header: RequestHeader, payload: &[u8]) -> Outcome {
        self.batch(&[(header, payload.to_vec())]).remove(&header.cookie).expect("an outcome")
    }

    /// Whether the server closed the connection, possibly after more data.
    fn is_dropped(&mut self) -> bool {
        while self.more().is_some() {}
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

fn absorb(outcome: &mut Outcome, request: &RequestHeader, kind: u16, payload: &[u8]) {
    let mut input = BytesIn::new(payload);
    if kind == chunk::OFFSET_DATA || kind == chunk::OFFSET_HOLE {
        let at = (input.u64().expect("an offset") - request.offset) as usize;
        assert_eq!(at, outcome.data.len(), "chunks come in order here");
        match kind {
            chunk::OFFSET_DATA => outcome.data.extend(input.rest()),
            _ => outcome.data.resize(at + input.u32().expect("a length") as usize, 0),
        }
        return;
    }
    match kind {
        chunk::NONE => assert!(payload.is_empty()),
        chunk::ERROR | chunk::ERROR_OFFSET => outcome.error = input.u32().expect("an error"),
        chunk::BLOCK_STATUS => {
            input.u32();
            while let Some(length) = input.u32() {
                outcome.extents.push((u64::from(length), input.u32().expect("flags")));
            }
        }
        chunk::BLOCK_STATUS_EXT => {
            let (_, count) = (input.u32(), input.u32());
            while let Some(length) = input.u64() {
                assert_eq!(input.u32(), Some(0), "padding");
                outcome.extents.push((length, input.u32().expect("flags")));
            }
            assert_eq!(count, Some(outcome.extents.len() as u32));
        }
        _ => panic!("chunk of type {kind}"),
    }
}

fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { flags, kind, cookie, offset, length }
}

/// Makes a request, sometimes an invalid one, and its result according to the model.
fn draw(rng: &mut Rng, cookie: u64, model: &mut [u8], style: ReplyStyle) -> ((RequestHeader, Vec<u8>), Outcome) {
    let kind = [0, 0, 0, 1, 1, 1, 3, 4, 5, 6, 7][rng.below(11) as usize];
    let (offset, length) = match kind {
        command::FLUSH => (0, 0),
        _ if rng.below(12) == 0 => (SIZE as u64 - 100, 101 + rng.below(5000)),
        _ => (rng.below(SIZE as u64 - 70_000), 1 + rng.below(70_000)),
    };
    let header = request(kind, u16::from(kind != 0 && rng.below(4) == 0), cookie, offset, length);
    let data: Vec<u8> = match kind {
        command::WRITE => (0..length).map(|i| (i * 7 + cookie) as u8).collect(),
        _ => Vec::new(),
    };
    let mut want = Outcome::default();
    let range = offset as usize..(offset + length) as usize;
    if range.end > SIZE {
        let full = matches!(kind, command::WRITE | command::WRITE_ZEROES);
        want.error = if full { NbdError::NoSpc.code() } else { NbdError::Inval.code() };
    } else {
        match kind {
            command::READ => want.data = model[range].to_vec(),
            command::WRITE => model[range].copy_from_slice(&data),
            command::TRIM | command::WRITE_ZEROES => model[range].fill(0),
            command::BLOCK_STATUS if style == ReplyStyle::Simple => want.error = NbdError::Inval.code(),
            command::BLOCK_STATUS => want.extents = extents(&model[range], offset as usize),
            _ => {}
        }
    }
    ((header, data), want)
}

/// Returns the extents that the server's disk reports for `data`: grains of 4096 bytes that are all zero are holes.
fn extents(data: &[u8], mut at: usize) -> Vec<(u64, u32)> {
    let end = at + data.len();
    let start = at;
    let mut found: Vec<(u64, u32)> = Vec::new();
    while at < end {
        let next = ((at / 4096 + 1) * 4096).min(end);
        let flags = if data[at - start..next - start].iter().all(|b| *b == 0) { 3 } else { 0 };
        match found.last_mut().filter(|last| last.1 == flags) {
            Some(last) => last.0 += (next - at) as u64,
            None => found.push(((next - at) as u64, flags)),
        }
        at = next;
    }
    found
}

#[test]
fn batches_of_32_equal_a_vector_in_every_style() {
    for style in STYLES {
        for seed in 1..=4 {
            let server = server();
            let mut rng = Rng::new(seed);
            let mut model = vec![0; SIZE];
            let mut client = Client::connect(&server, style);
            for batch in 0..12u64 {
                let drawn: Vec<_> = (0..32).map(|i| draw(&mut rng, batch * 100 + i, &mut model, style)).collect();
                let (requests, wants): (Vec<_>, Vec<_>) = drawn.into_iter().unzip();
                let ended = client.batch(&requests);
                for ((header, _), want) in requests.iter().zip(wants) {
                    assert!(ended[&header.cookie] == want, "seed {seed}, {style:?}: {header:?}");
                }
            }
            assert!(*server.disk(0).bytes.lock().unwrap() == model, "seed {seed}, {style:?}");
            assert_eq!(server.disk(0).style.load(std::sync::atomic::Ordering::Relaxed), style as u32);
        }
    }
}

#[test]
fn extended_requests_count_in_64_bits_and_stay_in_step() {
    let server = server();
    let mut client = Client::connect(&server, ReplyStyle::Extended);
    let huge = |kind, cookie| request(kind, 0, cookie, 0, 1 << 40);
    assert_eq!(client.one(huge(command::WRITE_ZEROES, 1), &[]).error, NbdError::NoSpc.code());
    assert_eq!(client.one(huge(command::TRIM, 2), &[]).error, NbdError::Inval.code());
    assert_eq!(client.one(huge(command::READ, 3), &[]).error, NbdError::Inval.code());
    // A write without the flag for a payload has no payload.
    assert_eq!(client.one(request(command::WRITE, 0, 4, 0, 4), &[]).error, NbdError::Inval.code());
    // A flush with a payload is rejected, and the payload is skipped.
    assert_eq!(client.one(request(command::FLUSH, 0, 5, 0, 4), b"data").error, NbdError::Inval.code());
    assert_eq!(client.one(request(command::WRITE, command_flag::FUA, 6, 8, 4), b"data").error, 0);
    assert_eq!(client.one(request(command::READ, command_flag::DF, 7, 7, 6), &[]).data, b"\0data\0");
    let one = request(command::BLOCK_STATUS, command_flag::REQ_ONE, 8, 0, SIZE as u64);
    assert_eq!(client.one(one, &[]).extents, [(4096, 0)]);
    let all = request(command::BLOCK_STATUS, 0, 9, 0, SIZE as u64);
    assert_eq!(client.one(all, &[]).extents, [(4096, 0), (SIZE as u64 - 4096, 3)]);
    assert_eq!(count(&server.disk(0).fua), 1);
}

#[test]
fn what_stood_before_a_disconnect_is_answered() {
    for style in STYLES {
        let server = server();
        let mut client = Client::connect(&server, style);
        let requests: Vec<_> = (0..31).map(|i| (request(command::WRITE, 0, i, i * 512, 512), vec![7; 512])).collect();
        let mut bytes: Vec<u8> = requests.iter().flat_map(|(h, p)| client.bytes_of(*h, p)).collect();
        bytes.extend(client.bytes_of(request(command::DISC, 0, 99, 0, 0), &[]));
        client.send(&bytes);
        let mut open = requests.iter().map(|(h, _)| (h.cookie, *h)).collect();
        let mut ended = HashMap::new();
        while ended.len() < 31 {
            client.reply(&mut open, &mut ended);
        }
        assert!(ended.values().all(|o| o.error == 0) && client.is_dropped(), "{style:?}");
        assert!(server.disk(0).bytes.lock().unwrap()[..31 * 512].iter().all(|b| *b == 7));
    }
}

#[test]
fn bad_clients_are_dropped_and_the_others_go_on() {
    let server = server();
    let mut good = Client::connect(&server, ReplyStyle::Structured);
    let mut alive = |cookie| {
        let read = good.one(request(command::READ, 0, cookie, 0, 4096), &[]);
        assert_eq!((read.error, read.data.len()), (0, 4096));
    };
    alive(1);
    // Not NBD at all.
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut told = Vec::new();
    stream.read_to_end(&mut told).expect("closed in order");
    assert_eq!(told.len(), 18, "the greeting and nothing else");
    // Clients that disconnect in the middle of a handshake, a request or a payload.
    server.connect().write_all(&3u32.to_be_bytes()[..2]).expect("sent");
    for bytes in [10, 28, 40] {
        let mut client = Client::connect(&server, ReplyStyle::Simple);
        let whole = client.bytes_of(request(command::WRITE, 0, 1, 0, 4096), &[7; 4096]);
        client.send(&whole[..bytes]);
    }
    alive(2);
    // Payloads beyond the limit, and invalid requests.
    for style in STYLES {
        let mut client = Client::connect(&server, style);
        let long =
            RequestHeader { flags: command_flag::PAYLOAD_LEN, ..request(command::WRITE, 0, 1, 0, (64 << 20) + 1) };
        client.send(&client.bytes_of(long, &[]));
        assert!(client.is_dropped(), "{style:?}");
        let mut client = Client::connect(&server, style);
        client.send(&[0xee; 32]);
        assert!(client.is_dropped(), "{style:?}");
    }
    alive(3);
    // 32 MiB that do not fit are skipped and not stored, and the connection continues.
    let mut client = Client::connect(&server, ReplyStyle::Structured);
    let long = vec![1; 32 << 20];
    let outcome = client.one(request(command::WRITE, 0, 2, 0, 32 << 20), &long);
    assert_eq!(outcome.error, NbdError::NoSpc.code());
    assert_eq!(client.one(request(command::READ, 0, 3, 0, 1), &[]).data, [0]);
    alive(4);
    assert!(server.disk(0).bytes.lock().unwrap().iter().all(|b| *b == 0), "no half write arrived");
}
