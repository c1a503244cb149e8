// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fixed newstyle negotiation, server side: from the greeting to the transmission phase.
//!
//! Guarantees: one option is answered per step, so the export table bounds the size of an answer, whatever a client sends. Memory for an
//! option's data grows as the data arrives, never beyond [`MAX_OPTION_DATA`]. After [`MAX_OPTIONS`] options or [`MAX_HANDSHAKE_BYTES`] the
//! client is dropped, so a handshake is bounded. Steps depend on the bytes only, not on how they were split. With TLS required only
//! STARTTLS and ABORT are answered in plain text, and what was negotiated before TLS is discarded.
//! Needs from callers: they send what is in `out` before the connection continues, start TLS on [`Step::StartTls`], and limit the time of
//! the whole handshake, because there is no clock here.
//! Does not support oldstyle. For clients that are not "fixed", it supports no newstyle option except `NBD_OPT_EXPORT_NAME`.
//!
//! Source: the NBD protocol, sections "Newstyle negotiation", "TLS support", "Option types", "Metadata querying".

use std::fmt;
use std::sync::Arc;

use super::export::{Export, ExportTable};
use crate::nbd::wire::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, BytesIn, EXPORT_NAME_PADDING, MAX_HANDSHAKE_BYTES, MAX_OPTION_DATA,
    MAX_OPTIONS, MAX_STRING, NBD_MAGIC, OPTION_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, ReplyStyle, field,
    handshake_flag, info, opt, rep,
};

/// Whether a connection may, or must, be upgraded to TLS ("Server-side requirements").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// There is no TLS.
    #[default]
    Off,
    /// The client chooses; exports that are `tls_only` require TLS.
    Optional,
    /// Nothing is served without TLS.
    Required,
}

/// What a client and the server agreed on.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// The export that was chosen.
    pub export: Arc<Export>,
    /// The style of replies, and of requests.
    pub style: ReplyStyle,
    /// The client may ask for block status.
    pub base_allocation: bool,
    /// The connection is under TLS.
    pub tls: bool,
}

/// What to do after a call of [`Handshake::feed`], once the content of `out` is sent.
#[derive(Clone, Debug)]
pub enum Step {
    /// The input is used up: call again with more.
    NeedMore,
    /// An option was answered: call again, with the rest of the input if there is any.
    Replied,
    /// Start TLS, then call [`Handshake::tls_started`]. The client sent the rest of the input before it got the answer: pass the rest to
    /// the TLS library, never to [`Handshake::feed`]. Otherwise plain text could pass for protected data.
    StartTls,
    /// The handshake is over: requests follow, beginning with the rest of the input.
    Transmission(Negotiated),
    /// The handshake is over: close the connection.
    Close(CloseReason),
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client asked for it (`NBD_OPT_ABORT`).
    Aborted,
    /// The client set flags that it was not offered; holds the flags.
    BadFlags(u32),
    /// An option did not begin with the magic; holds what was there instead.
    BadMagic(u64),
    /// A client that is not "fixed" sent something other than `NBD_OPT_EXPORT_NAME`; holds the option.
    NotFixed(u32),
    /// `NBD_OPT_EXPORT_NAME` named an unknown export; the protocol has no error reply for that.
    NoSuchExport,
    /// `NBD_OPT_EXPORT_NAME` came without TLS where TLS is required; the protocol has no error reply for that.
    TlsRequired,
    /// `NBD_OPT_EXPORT_NAME` came after extended headers were negotiated.
    ExportNameAfterExtended,
    /// More than [`MAX_OPTIONS`] options or [`MAX_HANDSHAKE_BYTES`] bytes.
    TooMuch,
    /// The server is shutting down, and `NBD_OPT_EXPORT_NAME` has no answer.
    ShuttingDown,
    /// The handshake had already entered the transmission phase, but the caller fed it more bytes.
    Over,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Aborted => f.write_str("the client aborted the handshake"),
            CloseReason::BadFlags(flags) => write!(f, "client flags {flags:#x}: only 0x3 were offered"),
            CloseReason::BadMagic(magic) => write!(f, "{magic:#018x} in place of an option: not an NBD client"),
            CloseReason::NotFixed(option) => write!(f, "option {option} from a client that is not 'fixed newstyle'"),
            CloseReason::NoSuchExport => f.write_str("the client chose an export that does not exist"),
            CloseReason::TlsRequired => f.write_str("the client chose an export without TLS, which is required"),
            CloseReason::ExportNameAfterExtended => f.write_str("NBD_OPT_EXPORT_NAME after NBD_OPT_EXTENDED_HEADERS"),
            CloseReason::TooMuch => {
                write!(f, "a handshake of more than {MAX_OPTIONS} options or {MAX_HANDSHAKE_BYTES} bytes")
            }
            CloseReason::ShuttingDown => f.write_str("the server is shutting down"),
            CloseReason::Over => f.write_str("the handshake is over"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum HandshakeState {
    /// The client's flags are next.
    Flags,
    /// An option's header is next.
    Header,
    /// The data of this option is next.
    Data { option: u32, bytes: u32 },
    /// Data that is too long is being skipped.
    Skip { option: u32, left: u32 },
    /// STARTTLS was answered; the caller starts TLS.
    Tls,
    /// The handshake is over.
    Closed(CloseReason),
}

/// An option that failed: the type of its reply, and a sentence for the client's user.
type Refusal = (u32, &'static str);

/// The state of one handshake. It takes about 100 bytes, plus the bytes of the current option.
#[derive(Debug)]
pub struct Handshake {
    table: Arc<ExportTable>,
    tls: TlsMode,
    tls_on: bool,
    shutting_down: bool,
    fixed: bool,
    no_zeroes: bool,
    chose_by_go: bool,
    style: ReplyStyle,
    /// The export whose block status the client selected.
    allocation_of: Option<Arc<Export>>,
    options: u32,
    bytes: u64,
    state: HandshakeState,
    /// Bytes that have arrived of the current piece.
    pending: Vec<u8>,
}

impl Handshake {
    /// Makes a handshake that offers `table`. Send [`greeting`] first.
    pub fn new(table: Arc<ExportTable>, tls: TlsMode) -> Handshake {
        Handshake {
            table,
            tls,
            tls_on: false,
            shutting_down: false,
            fixed: false,
            no_zeroes: false,
            chose_by_go: false,
            style: ReplyStyle::Simple,
            allocation_of: None,
            options: 0,
            bytes: 0,
            state: HandshakeState::Flags,
            pending: Vec::new(),
        }
    }

    /// Replaces the answer that confirms the export by an error with the reason `why`, for a client that is not admitted; the handshake goes
    /// on. `None`: drop the client, because the protocol has no error for one that came by EXPORT_NAME.
    ///
    /// # Panics
    /// Unless the last step was [`Step::Transmission`], with its answer in `out`.
    pub fn refuse_entry(&mut self, why: &'static str, out: &mut Vec<u8>) -> Option<()> {
        assert!(matches!(self.state, HandshakeState::Closed(CloseReason::Over)), "no export was chosen");
        out.clear();
        if !self.chose_by_go {
            return None;
        }
        refuse(out, opt::GO, (rep::ERR_POLICY, why));
        self.state = HandshakeState::Header;
        Some(())
    }

    /// Makes all further options fail with `NBD_REP_ERR_SHUTDOWN`.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Continues under TLS. What was negotiated before is discarded.
    ///
    /// # Panics
    /// Unless the last step was [`Step::StartTls`].
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, HandshakeState::Tls), "TLS was not asked for");
        self.tls_on = true;
        self.style = ReplyStyle::Simple;
        self.allocation_of = None;
        self.state = HandshakeState::Header;
    }

    /// Takes bytes from the client, at most up to the end of one option, and appends the answer to `out`.
    ///
    /// # Panics
    /// Between [`Step::StartTls`] and [`Handshake::tls_started`].
    pub fn feed(&mut self, input: &mut BytesIn<'_>, out: &mut Vec<u8>) -> Step {
        loop {
            match self.state {
                HandshakeState::Closed(reason) => return Step::Close(reason),
                HandshakeState::Tls => panic!("plain bytes after STARTTLS: call tls_started first"),
                HandshakeState::Flags => {
                    let Some(flags) = self.collect::<4>(input) else { return Step::NeedMore };
                    self.client_flags(u32::from_be_bytes(flags));
                }
                HandshakeState::Header => {
                    let Some(header) = self.collect::<OPTION_BYTES>(input) else { return Step::NeedMore };
                    self.option_header(&header);
                }
                HandshakeState::Skip { option, left } => {
                    let left = left - input.take(left as usize).len() as u32;
                    self.state = HandshakeState::Skip { option, left };
                    if left > 0 {
                        return Step::NeedMore;
                    }
                    self.state = HandshakeState::Header;
                    return self.skipped(option, out);
                }
                HandshakeState::Data { option, bytes } => {
                    if !self.fill(input, bytes as usize) {
                        return Step::NeedMore;
                    }
                    self.state = HandshakeState::Header;
                    let mut data = std::mem::take(&mut self.pending);
                    let step = self.option(option, &data, out);
                    data.clear();
                    self.pending = data;
                    match &step {
                        Step::Close(reason) => self.state = HandshakeState::Closed(*reason),
                        Step::Transmission(_) => self.state = HandshakeState::Closed(CloseReason::Over),
                        Step::StartTls => self.state = HandshakeState::Tls,
                        Step::NeedMore | Step::Replied => {}
                    }
                    return step;
                }
            }
        }
    }

    /// Moves input to `pending` until that has `n` bytes. Returns whether it has.
    fn fill(&mut self, input: &mut BytesIn<'_>, n: usize) -> bool {
        self.pending.extend_from_slice(input.take(n - self.pending.len()));
        self.pending.len() == n
    }

    fn collect<const N: usize>(&mut self, input: &mut BytesIn<'_>) -> Option<[u8; N]> {
        if !self.fill(input, N) {
            return None;
        }
        let piece = self.pending.first_chunk::<N>().copied();
        self.pending.clear();
        piece
    }

    fn client_flags(&mut self, flags: u32) {
        let has = |flag: u16| flags & u32::from(flag) != 0;
        self.fixed = has(handshake_flag::FIXED_NEWSTYLE);
        self.no_zeroes = has(handshake_flag::NO_ZEROES);
        self.state = match flags >> 2 {
            0 => HandshakeState::Header,
            _ => HandshakeState::Closed(CloseReason::BadFlags(flags)),
        };
    }

    fn option_header(&mut self, header: &[u8; OPTION_BYTES]) {
        let magic = u64::from_be_bytes(field::<0, _, _>(header));
        let option = u32::from_be_bytes(field::<8, _, _>(header));
        let bytes = u32::from_be_bytes(field::<12, _, _>(header));
        self.options += 1;
        self.bytes += OPTION_BYTES as u64 + u64::from(bytes);
        self.state = if magic != OPTION_MAGIC {
            HandshakeState::Closed(CloseReason::BadMagic(magic))
        } else if self.options > MAX_OPTIONS || self.bytes > MAX_HANDSHAKE_BYTES {
            HandshakeState::Closed(CloseReason::TooMuch)
        } else if bytes > MAX_OPTION_DATA {
            HandshakeState::Skip { option, left: bytes }
        } else {
            HandshakeState::Data { option, bytes }
        };
    }

    /// Answers an option whose data was too long and has been skipped.
    fn skipped(&mut self, option: u32, out: &mut Vec<u8>) -> Step {
        match option {
            opt::EXPORT_NAME => self.state = HandshakeState::Closed(CloseReason::NoSuchExport),
            _ if !self.fixed => self.state = HandshakeState::Closed(CloseReason::NotFixed(option)),
            // The data of an ABORT is ignored, as the protocol says.
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                self.state = HandshakeState::Closed(CloseReason::Aborted);
            }
            _ if self.tls == TlsMode::Required && !self.tls_on => refuse(out, option, TLS_REQUIRED),
            _ => refuse(out, option, (rep::ERR_TOO_BIG, "the option's data is too long")),
        }
        match self.state {
            HandshakeState::Closed(reason) => Step::Close(reason),
            _ => Step::Replied,
        }
    }

    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        if option == opt::EXPORT_NAME {
            return self.export_name(data, out);
        }
        if !self.fixed {
            return Step::Close(CloseReason::NotFixed(option));
        }
        if option == opt::ABORT {
            reply(out, option, rep::ACK, &[]);
            return Step::Close(CloseReason::Aborted);
        }
        let answer = if self.shutting_down {
            Err((rep::ERR_SHUTDOWN, "the server is shutting down"))
        } else if option == opt::STARTTLS {
            self.start_tls(data)
        } else if self.tls == TlsMode::Required && !self.tls_on {
            Err(TLS_REQUIRED)
        } else {
            match option {
                opt::LIST => self.list(data, out),
                opt::INFO | opt::GO => {
                    self.chose_by_go = option == opt::GO;
                    self.info(option, data, out)
                }
                opt::STRUCTURED_REPLY => self.structured_reply(data),
                opt::EXTENDED_HEADERS => self.extended_headers(data),
                opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data, out),
                _ => Err((rep::ERR_UNSUP, "this server does not know the option")),
            }
        };
        match answer {
            Err(refusal) => {
                refuse(out, option, refusal);
                Step::Replied
            }
            Ok(step) => {
                reply(out, option, rep::ACK, &[]);
                step
            }
        }
    }

    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Step {
        if self.shutting_down {
            return Step::Close(CloseReason::ShuttingDown);
        }
        if self.style == ReplyStyle::Extended {
            return Step::Close(CloseReason::ExportNameAfterExtended);
        }
        let export = match self.find(name) {
            Ok(export) => export,
            Err((rep::ERR_TLS_REQD, _)) => return Step::Close(CloseReason::TlsRequired),
            Err(_) => return Step::Close(CloseReason::NoSuchExport),
        };
        // A client that uses this option cannot have asked for the block sizes.
        if export.require_block_size {
            return Step::Close(CloseReason::NoSuchExport);
        }
        self.chose_by_go = false;
        out.extend_from_slice(&export.size_bytes.to_be_bytes());
        out.extend_from_slice(&export.transmission_flags(self.style).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        self.transmission(export)
    }

    fn transmission(&self, export: Arc<Export>) -> Step {
        let base_allocation = self.allocation_of.as_ref().is_some_and(|e| Arc::ptr_eq(e, &export));
        Step::Transmission(Negotiated { export, style: self.style, base_allocation, tls: self.tls_on })
    }

    /// Returns the export of this name, if this client may see it. If some exports require TLS, then without TLS an unknown name gets the
    /// same error as such an export. So a client cannot find their names by guessing.
    fn find(&self, name: &[u8]) -> Result<Arc<Export>, Refusal> {
        let unprotected = !self.tls_on && self.tls != TlsMode::Off;
        if unprotected && self.tls == TlsMode::Required {
            return Err(TLS_REQUIRED);
        }
        match self.table.find(name) {
            Some(export) if !export.tls_only || self.tls_on => Ok(export.clone()),
            None if !unprotected || !self.table.iter().any(|e| e.tls_only) => Err(UNKNOWN_EXPORT),
            Some(_) if !unprotected => Err(UNKNOWN_EXPORT),
            _ => Err(TLS_REQUIRED),
        }
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        if self.tls_on {
            return Err((rep::ERR_INVALID, "the connection is under TLS already"));
        }
        if self.tls == TlsMode::Off {
            return Err((rep::ERR_POLICY, "this server has no TLS configured"));
        }
        no_data(data)?;
        Ok(Step::StartTls)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        no_data(data)?;
        if self.style == ReplyStyle::Extended {
            return Err((rep::ERR_EXT_HEADER_REQD, "extended headers are negotiated already"));
        }
        self.style = ReplyStyle::Structured;
        Ok(Step::Replied)
    }

    fn extended_headers(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        no_data(data)?;
        self.style = ReplyStyle::Extended;
        Ok(Step::Replied)
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refusal> {
        no_data(data)?;
        for export in self.table.iter().filter(|e| !e.tls_only || self.tls_on) {
            let name_bytes = (export.name.len() as u32).to_be_bytes();
            let entry: [&[u8]; 3] = [&name_bytes, export.name.as_bytes(), export.description.as_bytes()];
            reply(out, opt::LIST, rep::SERVER, &entry);
        }
        Ok(Step::Replied)
    }

    /// Answers INFO and GO, which differ only in the next step.
    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refusal> {
        let (name, wanted) = InfoRequest::parse(data).ok_or(MALFORMED)?;
        let export = self.find(name)?;
        let mut item = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            reply(out, option, rep::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        if wanted.name {
            item(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wanted.description {
            item(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        if wanted.block_size || export.require_block_size {
            let b = export.block;
            item(info::BLOCK_SIZE, [&b.min.to_be_bytes(), &b.preferred.to_be_bytes(), &b.max.to_be_bytes()]);
        }
        if export.require_block_size && !wanted.block_size {
            return Err((rep::ERR_BLOCK_SIZE_REQD, "this export is only for clients that ask for its block sizes"));
        }
        let flags = export.transmission_flags(self.style);
        item(info::EXPORT, [&export.size_bytes.to_be_bytes(), &flags.to_be_bytes(), &[]]);
        Ok(match option {
            opt::GO => self.transmission(export),
            _ => Step::Replied,
        })
    }

    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refusal> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.allocation_of = None;
            if self.style == ReplyStyle::Simple {
                return Err((rep::ERR_INVALID, "negotiate structured replies first"));
            }
        }
        let query = MetaQuery::parse(data).ok_or(MALFORMED)?;
        let export = self.find(query.name)?;
        let selected = query.exact || (!set && (query.wildcard || query.count == 0));
        if !selected || !export.base_allocation {
            return Ok(Step::Replied);
        }
        let id = if set { BASE_ALLOCATION_ID } else { 0 };
        reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
        if set {
            self.allocation_of = Some(export);
        }
        Ok(Step::Replied)
    }
}

const TLS_REQUIRED: Refusal = (rep::ERR_TLS_REQD, "TLS is required: send NBD_OPT_STARTTLS first");
const UNKNOWN_EXPORT: Refusal = (rep::ERR_UNKNOWN, "there is no export of this name");
const MALFORMED: Refusal = (rep::ERR_INVALID, "the option's data is malformed");

fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err((rep::ERR_INVALID, "this option has no data")) }
}

/// Returns the server's first message: its magics and flags.
pub fn greeting() -> [u8; 18] {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let mut bytes = [0; 18];
    wire::set::<0, _, _>(&mut bytes, NBD_MAGIC.to_be_bytes());
    wire::set::<8, _, _>(&mut bytes, OPTION_MAGIC.to_be_bytes());
    wire::set::<16, _, _>(&mut bytes, flags.to_be_bytes());
    bytes
}

fn refuse(out: &mut Vec<u8>, option: u32, (kind, text): Refusal) {
    reply(out, option, kind, &[text.as_bytes()]);
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    // The longest reply has a name and a description, and the table bounds both.
    let bytes: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// Items that a client asked for; a set, so an item that is asked for twice is sent once.
#[derive(Default)]
struct InfoRequest {
    name: bool,
    description: bool,
    block_size: bool,
}

impl InfoRequest {
    fn parse(data: &[u8]) -> Option<(&[u8], InfoRequest)> {
        let mut input = BytesIn::new(data);
        let name = string(&mut input)?;
        let count = input.u16()?;
        if input.rest().len() != usize::from(count) * 2 {
            return None;
        }
        let mut wanted = InfoRequest::default();
        while let Some(item) = input.u16() {
            match item {
                info::NAME => wanted.name = true,
                info::DESCRIPTION => wanted.description = true,
                info::BLOCK_SIZE => wanted.block_size = true,
                _ => {}
            }
        }
        Some((name, wanted))
    }
}

/// The queries of LIST_META_CONTEXT and SET_META_CONTEXT. Other namespaces than `base`, and other contexts of `base`, are ignored.
struct MetaQuery<'a> {
    name: &'a [u8],
    count: u32,
    exact: bool,
    wildcard: bool,
}

impl<'a> MetaQuery<'a> {
    fn parse(data: &'a [u8]) -> Option<MetaQuery<'a>> {
        let mut input = BytesIn::new(data);
        let name = string(&mut input)?;
        let count = input.u32()?;
        let mut query = MetaQuery { name, count, exact: false, wildcard: false };
        // Each turn consumes at least the four bytes of a length, or the loop ends.
        for _ in 0..count {
            let text = string(&mut input)?;
            query.exact |= text == BASE_ALLOCATION.as_bytes();
            query.wildcard |= text == b"base:";
        }
        input.is_empty().then_some(query)
    }
}

fn string<'a>(input: &mut BytesIn<'a>) -> Option<&'a [u8]> {
    let bytes = input.u32()? as usize;
    if bytes > MAX_STRING {
        return None;
    }
    input.take_exact(bytes)
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
