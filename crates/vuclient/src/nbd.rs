// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closed-loop load on an NBD server, with as little client overhead as sockets allow: one call receives all replies that have arrived, and
//! one call sends a new request for each.
//!
//! Guarantees: every reply is checked (magic, error, length); if the server stops answering, the run fails. Needs a server at a Unix socket
//! that takes `NBD_OPT_EXPORT_NAME`; simple replies, no TLS. Data is neither chosen nor compared.
//! Source: the NBD protocol, sections "Newstyle negotiation", "Transmission phase".

use crate::error::Error;
use crate::random::Random;
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REPLY_BYTES: usize = 16;
const REQUEST_BYTES: usize = 28;

/// Options of the load.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Name of the export; may be empty.
    pub export: String,
    /// Connections, one thread each.
    pub connections: u32,
    /// Requests in flight per connection.
    pub iodepth: u32,
    /// Bytes per request.
    pub block: u32,
    /// Whether to write instead of read.
    pub write: bool,
    /// Duration of the load.
    pub runtime: Duration,
}

/// Result of the load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NbdReport {
    /// Requests per second, all connections together.
    pub iops: f64,
    /// Requests that were answered.
    pub requests: u64,
    /// Receive calls that returned data; requests per call is the mean batch size.
    pub receives: u64,
    /// CPU of this client per request, nanoseconds.
    pub client_cpu_ns_per_request: f64,
}

/// Runs `options` on the server at `socket`.
///
/// # Errors
/// A server that refuses, fails a request, breaks the protocol or stops answering for ten seconds.
pub fn nbd(socket: &str, options: &NbdOptions) -> Result<NbdReport, Error> {
    if options.connections == 0 || options.iodepth == 0 || options.block == 0 || !options.block.is_multiple_of(512) {
        let text = "connections and iodepth must be at least 1, bs must be a multiple of 512".to_owned();
        return Err(Error::Usage(text));
    }
    let clients: Result<Vec<Client>, Error> =
        (0..options.connections).map(|n| Client::connect(socket, options, u64::from(n))).collect();
    let begun = Instant::now();
    let done: Result<Vec<(NbdReport, Duration)>, Error> = std::thread::scope(|s| {
        let run = |mut client: Client| s.spawn(move || client.run(begun + options.runtime));
        let threads: Vec<_> = clients?.into_iter().map(run).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(Error::Server("a client panicked".into()))))
            .collect()
    });
    let took = begun.elapsed().as_secs_f64();
    let (mut all, mut cpu) = (NbdReport::default(), Duration::ZERO);
    for (one, used) in done? {
        all.requests += one.requests;
        all.receives += one.receives;
        cpu += used;
    }
    all.iops = all.requests as f64 / took;
    all.client_cpu_ns_per_request = cpu.as_nanos() as f64 / all.requests.max(1) as f64;
    Ok(all)
}

struct Client {
    stream: UnixStream,
    random: Random,
    blocks: u64,
    depth: usize,
    /// One encoded request with its data; each send fills in the offsets.
    request: Vec<u8>,
    reply_bytes: usize,
    out: Vec<u8>,
}

impl Client {
    fn connect(socket: &str, options: &NbdOptions, number: u64) -> Result<Client, Error> {
        let failed = |what: &str| {
            let what = format!("{what} '{socket}'");
            move |source| Error::Io { what, source }
        };
        let mut stream = UnixStream::connect(socket).map_err(failed("connect to"))?;
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).and(stream.set_write_timeout(patience)).map_err(failed("prepare"))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).map_err(failed("greeting of"))?;
        let name = options.export.as_bytes();
        // Fixed newstyle, no zeroes after the answer.
        let (flags, option, length) = (3u32.to_be_bytes(), 1u32.to_be_bytes(), (name.len() as u32).to_be_bytes());
        let hello = [&flags[..], OPTION_MAGIC, &option, &length, name].concat();
        stream.write_all(&hello).map_err(failed("handshake with"))?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).map_err(failed("answer of"))?;
        let [size @ .., _, _] = answer;
        let blocks = u64::from_be_bytes(size) / u64::from(options.block);
        if blocks == 0 {
            return Err(Error::Usage(format!(
                "export '{}' is smaller than a block of {}",
                options.export, options.block
            )));
        }
        let data = options.block as usize;
        let mut request = vec![0x5a; REQUEST_BYTES + if options.write { data } else { 0 }];
        let kind = u16::from(options.write).to_be_bytes();
        let parts = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0], &kind, &[0; 16], &options.block.to_be_bytes()].concat();
        request.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        Ok(Client {
            stream,
            random: Random::new(1, number),
            blocks,
            depth: options.iodepth as usize,
            request,
            reply_bytes: REPLY_BYTES + if options.write { 0 } else { data },
            out: Vec::new(),
        })
    }

    fn run(&mut self, until: Instant) -> Result<(NbdReport, Duration), Error> {
        let failed = |source| Error::Io { what: "the connection".to_owned(), source };
        let mut input = vec![0; self.reply_bytes * self.depth + REPLY_BYTES];
        let (mut report, mut held, mut out) = (NbdReport::default(), 0, self.depth);
        self.send(self.depth).map_err(failed)?;
        let cpu = thread_cpu();
        while out > 0 {
            let n = self.stream.read(&mut input[held..]).map_err(failed)?;
            if n == 0 {
                return Err(Error::Server("the server has closed the connection".into()));
            }
            report.receives += 1;
            held += n;
            let whole = held / self.reply_bytes;
            for reply in input.chunks_exact(self.reply_bytes).take(whole) {
                check(reply)?;
            }
            input.copy_within(whole * self.reply_bytes..held, 0);
            held -= whole * self.reply_bytes;
            report.requests += whole as u64;
            if Instant::now() < until {
                self.send(whole).map_err(failed)?;
            } else {
                out -= whole;
            }
        }
        Ok((report, thread_cpu().saturating_sub(cpu)))
    }

    fn send(&mut self, count: usize) -> std::io::Result<()> {
        self.out.clear();
        let block = self.request[24..28].try_into().map_or(0, u32::from_be_bytes);
        for _ in 0..count {
            let offset = self.random.below(self.blocks) * u64::from(block);
            self.request[16..24].copy_from_slice(&offset.to_be_bytes());
            self.out.extend_from_slice(&self.request);
        }
        self.stream.write_all(&self.out)
    }
}

fn check(reply: &[u8]) -> Result<(), Error> {
    let word = |at: usize| reply.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    if word(0) != REPLY_MAGIC {
        return Err(Error::Server(format!("{:#x} in place of a simple reply", word(0))));
    }
    match word(4) {
        0 => Ok(()),
        error => Err(Error::Server(format!("a request ended with error {error}"))),
    }
}

fn thread_cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
