// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's handshake, from the server's greeting to the first request. No socket, no clock. It is fixed newstyle, with
//! TLS if the client wants it, structured replies if the server has them, and `NBD_OPT_GO` with block sizes. Servers that do
//! not know GO get `NBD_OPT_EXPORT_NAME`.
//!
//! Guarantees: a client that asks for TLS gets TLS or an error. Everything except the greeting's flags (they only set an
//! answer's length) is negotiated after TLS starts. Whatever a server sends: no panic, at most [`MAX_REPLY`] bytes of
//! memory, and an end after [`MAX_REPLIES`] replies. The result is consistent (sizes are powers of two in range). A server's
//! text is truncated and made printable before an error contains it.
//!
//! Needs from callers: exactly [`Handshake::want`] bytes at a time, and that `out` is sent after every call. A server sends nothing
//! unasked, so the caller must not receive more than wanted: what follows the answer to `NBD_OPT_STARTTLS` belongs to TLS. When
//! [`Handshake::wants_tls`] returns true, the caller starts TLS, then calls again with the next bytes (none), received through TLS.
//! Does not do: TLS itself, oldstyle servers.
//! Source: the NBD protocol, sections "Newstyle negotiation", "TLS support" and "Block size constraints".

use crate::driver::remote::dial::printable;
use crate::error::{Error, ErrorKind, Result};
use crate::nbd::wire::{
    BytesIn, EXPORT_NAME_PADDING, MAX_PAYLOAD, MAX_STRING, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, ReplyStyle,
    handshake_flag, info, opt, option_header, rep, transmission_flag,
};

/// Longest accepted reply to an option: the longest string and the fields around it.
pub const MAX_REPLY: usize = MAX_STRING + 64;
/// Maximum number of replies to the options of one handshake.
pub const MAX_REPLIES: u32 = 256;
const GREETING_BYTES: usize = 18;
const REPLY_HEAD_BYTES: usize = 20;

/// An export, as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its size.
    pub size_bytes: u64,
    /// Bits of [`transmission_flag`].
    pub flags: u16,
    /// Smallest unit of offset and length, a power of two, 1..=65536.
    pub min_block: u32,
    /// Preferred block size, a power of two, `min_block`..=2^31.
    pub preferred_block: u32,
    /// Longest read or write, at least `min_block`, at most [`MAX_PAYLOAD`].
    pub max_payload: u32,
}

impl Served {
    /// Whether all of the [`transmission_flag`] bits are set.
    pub fn can(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    /// The head of a reply to this option.
    Head(u32),
    /// The rest of a reply to this option, of this kind.
    Body(u32, u32),
    /// TLS is about to begin.
    Tls,
    /// The answer to `NBD_OPT_EXPORT_NAME`.
    ByName,
}

/// One handshake. See the module's text.
#[derive(Debug)]
pub struct Handshake<'a> {
    export: &'a str,
    tls: bool,
    stage: Stage,
    want: usize,
    no_zeroes: bool,
    style: ReplyStyle,
    replies: u32,
    size_and_flags: Option<(u64, u16)>,
    blocks: Option<[u32; 3]>,
}

impl<'a> Handshake<'a> {
    /// Begins a handshake for the export with this name, at most [`MAX_STRING`] bytes. `tls`: under TLS, or not at all.
    pub fn new(export: &'a str, tls: bool) -> Handshake<'a> {
        let (stage, style) = (Stage::Greeting, ReplyStyle::Simple);
        let want = GREETING_BYTES;
        Handshake { export, tls, stage, want, no_zeroes: false, style, replies: 0, size_and_flags: None, blocks: None }
    }

    /// Whether the server has agreed to TLS, and TLS is to begin now.
    pub fn wants_tls(&self) -> bool {
        self.stage == Stage::Tls
    }

    /// How many bytes have to be received next.
    pub fn want(&self) -> usize {
        self.want
    }

    /// Handles the bytes that were wanted, and appends to `out` what has to be sent. Returns the export, and how the server
    /// replies, when both sides are ready for requests.
    ///
    /// # Errors
    /// The peer is no NBD server, or does not serve this export.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<(Served, ReplyStyle)>> {
        assert_eq!(bytes.len(), self.want, "bytes that were not wanted");
        let mut input = BytesIn::new(bytes);
        match self.stage {
            Stage::Greeting => self.greeting(&mut input, out)?,
            Stage::Head(option) => return self.head(option, &mut input, out),
            Stage::Body(option, kind) => return self.reply(option, kind, bytes, out),
            Stage::Tls => self.ask(opt::STRUCTURED_REPLY, &[], out),
            Stage::ByName => {
                let (Some(size), Some(flags)) = (input.u64(), input.u16()) else { return Err(garbled("the export")) };
                self.size_and_flags = Some((size, flags));
                return self.finish().map(Some);
            }
        }
        Ok(None)
    }

    fn greeting(&mut self, input: &mut BytesIn<'_>, out: &mut Vec<u8>) -> Result<()> {
        let (magic, option_magic, flags) = (input.u64(), input.u64(), input.u16().unwrap_or(0));
        if magic != Some(NBD_MAGIC) {
            return Err(Error::new(ErrorKind::Io, "this is no NBD server: the greeting does not begin with NBDMAGIC"));
        }
        if option_magic != Some(OPTION_MAGIC) || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            let text = "the server uses oldstyle NBD negotiation (before 2011), which mqblk does not support";
            return Err(Error::new(ErrorKind::Io, text));
        }
        self.no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
        let mine = handshake_flag::FIXED_NEWSTYLE | if self.no_zeroes { handshake_flag::NO_ZEROES } else { 0 };
        out.extend(u32::from(mine).to_be_bytes());
        self.ask(if self.tls { opt::STARTTLS } else { opt::STRUCTURED_REPLY }, &[], out);
        Ok(())
    }

    fn ask(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        out.extend(option_header(option, data.len() as u32));
        out.extend(data);
        (self.stage, self.want) = (Stage::Head(option), REPLY_HEAD_BYTES);
    }

    fn head(
        &mut self,
        option: u32,
        input: &mut BytesIn<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Served, ReplyStyle)>> {
        let (magic, to, kind, bytes) = (input.u64(), input.u32(), input.u32(), input.u32());
        let (Some(OPTION_REPLY_MAGIC), Some(kind), Some(bytes)) = (magic, kind, bytes) else {
            return Err(garbled("a reply to an option"));
        };
        if to != Some(option) || bytes as usize > MAX_REPLY {
            return Err(garbled("a reply to an option"));
        }
        self.replies += 1;
        if self.replies > MAX_REPLIES {
            return Err(garbled("the number of its option replies"));
        }
        if bytes == 0 {
            return self.reply(option, kind, &[], out);
        }
        (self.stage, self.want) = (Stage::Body(option, kind), bytes as usize);
        Ok(None)
    }

    fn reply(
        &mut self,
        option: u32,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Served, ReplyStyle)>> {
        if kind == rep::ERR_TLS_REQD {
            let text = "the server requires TLS: write nbds:// for nbd:// (nbds+unix:// for nbd+unix://) in the target, and add \
                        tls-certificates=DIR if its authority is not one of this system's";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        match (option, kind) {
            (opt::STARTTLS, rep::ACK) if data.is_empty() => (self.stage, self.want) = (Stage::Tls, 0),
            (opt::STARTTLS, kind) if kind & rep::ERROR != 0 => return Err(no_tls(kind, data)),
            (opt::STRUCTURED_REPLY, _) => {
                // If the server refuses, for whatever reason, simple replies are used.
                let structured = kind == rep::ACK;
                self.style = if structured { ReplyStyle::Structured } else { ReplyStyle::Simple };
                self.ask(opt::GO, &go_data(self.export), out);
            }
            (opt::GO, rep::INFO) => {
                self.info(data)?;
                (self.stage, self.want) = (Stage::Head(opt::GO), REPLY_HEAD_BYTES);
            }
            (opt::GO, rep::ACK) => return self.finish().map(Some),
            (opt::GO, rep::ERR_UNSUP) => {
                out.extend(option_header(opt::EXPORT_NAME, self.export.len() as u32));
                out.extend(self.export.as_bytes());
                let padding = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING };
                (self.stage, self.want) = (Stage::ByName, 8 + 2 + padding);
            }
            (opt::GO, kind) if kind & rep::ERROR != 0 => return Err(refusal(kind, self.export, data)),
            _ => return Err(garbled("a reply to an option")),
        }
        Ok(None)
    }

    fn info(&mut self, data: &[u8]) -> Result<()> {
        let mut input = BytesIn::new(data);
        match input.u16() {
            Some(info::EXPORT) => {
                let (Some(size), Some(flags)) = (input.u64(), input.u16()) else { return Err(garbled("the export")) };
                self.size_and_flags = Some((size, flags));
            }
            Some(info::BLOCK_SIZE) => {
                let (Some(min), Some(preferred), Some(max)) = (input.u32(), input.u32(), input.u32()) else {
                    return Err(garbled("the block sizes"));
                };
                self.blocks = Some([min, preferred, max]);
            }
            Some(_) => {}
            None => return Err(garbled("a reply to an option")),
        }
        Ok(())
    }

    fn finish(&self) -> Result<(Served, ReplyStyle)> {
        let Some((size_bytes, flags)) = self.size_and_flags else { return Err(garbled("the export")) };
        // The specification's defaults for servers that send no block sizes: 1 byte, 4096, 32 MiB.
        let [min_block, preferred, max] = self.blocks.unwrap_or([1, 4096, MAX_PAYLOAD]);
        let fits = min_block.is_power_of_two()
            && min_block <= 65536
            && preferred.is_power_of_two()
            && preferred >= min_block
            && max >= min_block;
        if !fits {
            let text = format!("the server's block sizes {min_block}, {preferred}, {max} contradict each other");
            return Err(Error::new(ErrorKind::Io, text));
        }
        let max_payload = max.min(MAX_PAYLOAD) / min_block * min_block;
        // Without this bit, the other bits are invalid.
        let flags = if flags & transmission_flag::HAS_FLAGS == 0 { 0 } else { flags };
        Ok((Served { size_bytes, flags, min_block, preferred_block: preferred, max_payload }, self.style))
    }
}

/// Returns the data of `NBD_OPT_GO`: the name, and that the client keeps to block sizes.
fn go_data(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend(1u16.to_be_bytes());
    data.extend(info::BLOCK_SIZE.to_be_bytes());
    data
}

fn garbled(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("the server violates the NBD protocol in {what}"))
}

/// Returns the error for a server without TLS. There is no fallback: an attacker in between could send this answer.
fn no_tls(kind: u32, said: &[u8]) -> Error {
    let text = format!(
        "TLS, which nbds:// requires, is refused by the server (NBD error {kind:#x}){}: turn it on there, or write nbd:// if \
         no third party can read or change the traffic",
        quoted(said)
    );
    Error::new(ErrorKind::Denied, text)
}

/// Returns a server's text for a message, if it has sent any.
fn quoted(said: &[u8]) -> String {
    let said = printable(said);
    if said.is_empty() { said } else { format!(" (it says: {said})") }
}

fn refusal(kind: u32, export: &str, said: &[u8]) -> Error {
    let said = quoted(said);
    let (kind, text) = match kind {
        rep::ERR_UNKNOWN => (ErrorKind::NotFound, format!("the server has no export '{export}'")),
        rep::ERR_POLICY => (ErrorKind::Denied, format!("the server denies access to export '{export}'")),
        rep::ERR_SHUTDOWN => (ErrorKind::Io, "the server is shutting down".to_owned()),
        _ => (ErrorKind::Io, format!("the server refuses export '{export}' (NBD error {kind:#x})")),
    };
    Error::new(kind, text + &said)
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
