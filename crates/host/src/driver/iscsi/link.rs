// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session in its full feature phase, over its one connection. Sends commands and data, and receives data and responses,
//! as far as that does not block.
//!
//! Guarantees: commands are sent only within the target's command window, numbered in order. Long data is not copied between
//! the socket and requests' memory, unless data digests are on (the digested bytes must not change before they are sent).
//! The amount of data prepared for sending is bounded, whatever the target asks for. Each task, or command of our own, has
//! at most one R2T sequence open, and its messages are built when they can be sent. A command does not succeed before all
//! its data was sent. Every failure is a [`Lost`].
//! Source: RFC 7143, 4.2.2 (numbering), 4.2.5 (data), 11.

use super::dial::Line;
use super::ending::{AsyncAction, SessionEnding};
use super::login::{MAX_RECV_DATA, Params};
use super::own::{Managed, ToSend, is_own};
use super::pdu::{
    BHS_BYTES, DIGEST_BYTES, Direction, Function, Header, Pdu, RESERVED_TAG, Received, Violation, is_before, padding,
};
use super::reader::{MOST_LEFT, PduEvent, Reader};
use super::tasks::Tasks;
use crate::driver::path_log::PathLog;
use crate::driver::remote::keep_alive::KeepAlive;
use crate::driver::remote::stream::{Ends, Inbox, Outbox, ReadPayload, SEND_BATCH, Stream};
use crate::mem::Regions;
use crate::net::vectored::Outgoing;
use blk::scsi::disposition::sam;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum number of unsent answers to NOP-Ins of the target.
const MAX_PONGS: u32 = 64;
/// Reject reasons that mean that the command was not carried out: it is not supported, or there are too many immediate
/// commands (RFC 7143, 11.17.1).
const NOT_TAKEN: [u8; 2] = [0x05, 0x06];
/// Maximum data of one message that is sent from a copy.
const MAX_COPY: u32 = 256 << 10;
/// Tag of our NOP-Out.
const PING_TAG: u32 = 0xfffe_0000;
const TAIL_BYTES: usize = 3 + DIGEST_BYTES;

/// The session cannot be used any more; contains the reason.
#[derive(Debug)]
pub(super) struct Lost(pub(super) String);

impl From<Violation> for Lost {
    fn from(violation: Violation) -> Lost {
        Lost(format!("the target violates the protocol: {violation}"))
    }
}

/// A message that waits to be sent.
struct Out {
    head: [u8; BHS_BYTES + DIGEST_BYTES],
    body: Body,
    tail: [u8; TAIL_BYTES],
    tail_len: u8,
    is_pong: bool,
}

impl Out {
    /// Whether this message carries data of this task.
    fn is_of(&self, task: u16) -> bool {
        matches!(&self.body, Body::Of { tag, .. } | Body::Own(tag, _) if *tag == task)
    }

    /// Whether this message carries data that an R2T has asked for, of our own command with this tag on the wire.
    fn answers_own(&self, wire_tag: u32) -> bool {
        Header::is_asked_for(&self.head) && Header::about(&self.head).is_some_and(|(_, tag)| tag == wire_tag)
    }
}

enum Body {
    None,
    /// Data of a task.
    Of {
        tag: u16,
        at: u32,
        len: u32,
    },
    /// A copy of data of a task.
    Own(u16, Vec<u8>),
    /// Data of a command of our own.
    Ours(Vec<u8>),
}

/// Data of a task that has to be sent and is not in a message yet.
struct Sequence {
    tag: u16,
    /// The target's tag of the R2T that this data answers.
    target_tag: u32,
    at: u32,
    end: u32,
    /// Messages made so far.
    number: u32,
}

/// See the module's text.
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) session: Session,
}

/// The session over the connection.
pub(super) struct Session {
    params: Params,
    lun: [u8; 8],
    reader: Reader,
    out: VecDeque<Out>,
    /// Sequences that R2Ts have asked for, at most one per task.
    sequences: VecDeque<Sequence>,
    pongs: u32,
    cmd_sn: u32,
    exp_stat_sn: u32,
    max_cmd_sn: u32,
    keep_alive: KeepAlive,
    pub(super) ending: SessionEnding,
}

impl Link {
    /// Takes over a session, and registers its socket with the epoll set `set`. The target's asynchronous messages are noted
    /// in `log`.
    pub(super) fn new(
        line: Line<'_>,
        lun: [u8; 8],
        set: &OwnedFd,
        log: &Arc<PathLog>,
        now: Instant,
    ) -> Result<Link, String> {
        let Line { socket, input: left, params, cmd_sn, exp_stat_sn, max_cmd_sn, .. } = line;
        let mut stream = Stream::new(socket, set)?;
        stream.filled = left.len();
        stream.input.get_mut(..left.len()).ok_or("it sent too much unsolicited data")?.copy_from_slice(&left);
        let reader = Reader::new(params.header_digest, params.data_digest, MAX_RECV_DATA);
        let session = Session {
            params,
            lun,
            reader,
            out: VecDeque::with_capacity(SEND_BATCH),
            sequences: VecDeque::new(),
            pongs: 0,
            cmd_sn,
            exp_stat_sn,
            max_cmd_sn,
            keep_alive: KeepAlive::new(now),
            ending: SessionEnding::new(Arc::clone(log)),
        };
        Ok(Link { stream, session })
    }

    /// Sends a logout if that does not block, and closes the connection.
    pub(super) fn disconnect(mut self, tasks: &Tasks, regions: &Regions, set: &OwnedFd) {
        let Link { stream, session } = &mut self;
        if stream.sent == 0 && !session.ending.is_logging_out() {
            let header = Header::logout(PING_TAG).with_numbers(session.cmd_sn, session.exp_stat_sn);
            session.push(header, Body::None, 0);
            let _ = stream.send(&mut Unsent { session, tasks, regions }, set);
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn transmit(&mut self, tasks: &mut Tasks, regions: &Regions, set: &OwnedFd) -> Result<(), Lost> {
        let Link { stream, session } = self;
        if tasks.own.has_unsent() {
            session.send_own(tasks);
        }
        match stream.send(&mut Unsent { session, tasks, regions }, set) {
            Ok(()) => Ok(()),
            // The command's number is used, and the target waits for its data: the session has to be dropped.
            Err(Unsendable::Gone(tag)) => Err(gone(tasks, tag)),
            Err(Unsendable::Failed(why)) => Err(Lost(why)),
        }
    }

    /// Receives what the socket has.
    pub(super) fn receive(&mut self, tasks: &mut Tasks, regions: &Regions, now: Instant) -> Result<(), Lost> {
        let Link { stream, session } = self;
        let mut inbox = PduReceiver { session, tasks, regions, now };
        // Bytes that came after the login.
        stream.take(&mut inbox)?;
        stream.receive(&mut inbox)
    }
}

/// Messages that wait to be sent.
struct Unsent<'a> {
    session: &'a mut Session,
    tasks: &'a Tasks,
    regions: &'a Regions,
}

/// Why a message could not be sent.
enum Unsendable {
    /// The memory of this task has gone.
    Gone(u16),
    Failed(String),
}

impl Outbox for Unsent<'_> {
    type Lost = Unsendable;

    fn batch<R>(
        &mut self,
        most: usize,
        ends: &mut Ends,
        send: impl FnOnce(Outgoing<'_>) -> R,
    ) -> Result<Option<R>, Unsendable> {
        let Unsent { session, tasks, regions } = self;
        session.prepare(tasks, regions).map_err(Unsendable::Gone)?;
        if session.out.is_empty() {
            return Ok(None);
        }
        let (mut list, mut bytes, head_len) = (Outgoing::new(), 0, session.head_len());
        for message in session.out.iter().take(most) {
            let pieces = if let Body::Of { tag, .. } = message.body { tasks.pieces(tag) } else { 1 };
            if list.capacity() < 2 + pieces {
                break;
            }
            list.push(&message.head[..head_len]);
            bytes += head_len;
            match &message.body {
                Body::None => {}
                Body::Of { tag, at, len } => {
                    tasks.push_data(*tag, *at, *len, regions, &mut list);
                    bytes += *len as usize;
                }
                Body::Own(_, copy) | Body::Ours(copy) => {
                    list.push(copy);
                    bytes += copy.len();
                }
            }
            let tail = &message.tail[..usize::from(message.tail_len)];
            if !tail.is_empty() {
                list.push(tail);
                bytes += tail.len();
            }
            ends.push(bytes);
        }
        Ok(Some(send(list)))
    }

    fn went_out(&mut self, messages: usize) {
        let session = &mut self.session;
        session.pongs -= session.out.drain(..messages).filter(|message| message.is_pong).count() as u32;
    }

    fn fault(&mut self, error: io::Error, _has_begun: bool) -> Result<(), Unsendable> {
        match self.session.out.front().map(|message| &message.body) {
            Some(Body::Of { tag, .. }) => Err(Unsendable::Gone(*tag)),
            _ => Err(Self::failed(&error)),
        }
    }

    fn has_gone(&self, index: usize) -> bool {
        let body = self.session.out.get(index).map(|message| &message.body);
        matches!(body, Some(Body::Of { tag, .. }) if self.tasks.has_gone(*tag, self.regions))
    }

    fn failed(error: &io::Error) -> Unsendable {
        Unsendable::Failed(format!("sending failed: {error}"))
    }
}

/// Handles messages of the target.
struct PduReceiver<'a> {
    session: &'a mut Session,
    tasks: &'a mut Tasks,
    regions: &'a Regions,
    now: Instant,
}

impl Inbox for PduReceiver<'_> {
    type Lost = Lost;

    const MOST_LEFT: usize = MOST_LEFT;
    const PEER: &'static str = "the target";

    fn heard(&mut self) {
        self.session.keep_alive.heard(self.now);
    }

    fn payload(&self) -> Option<ReadPayload<'_>> {
        let (tag, at, left) = self.session.reader.payload_left().filter(|(tag, ..)| !is_own(*tag))?;
        Some(ReadPayload { pieces: self.tasks.destination(tag)?, regions: self.regions, at, left })
    }

    fn placed(&mut self, bytes: u32) {
        self.session.reader.payload_received(bytes);
    }

    fn has_large_reads(&self) -> bool {
        self.tasks.has_large_reads() && !self.session.params.data_digest
    }

    fn take(&mut self, input: &[u8], is_sending: bool) -> Result<usize, Lost> {
        self.session.take(input, is_sending, self.tasks, self.regions)
    }

    fn discard(&mut self) -> bool {
        let left = self.session.reader.payload_left();
        left.is_some_and(|(tag, ..)| !is_own(tag) && self.tasks.discard(tag))
    }

    fn awaits_more(&self) -> bool {
        self.tasks.in_flight() > 0
    }

    fn lost(why: String) -> Lost {
        Lost(why)
    }
}

impl Session {
    /// Returns the number of messages that wait to be sent or built.
    pub(super) fn unsent(&self) -> usize {
        self.out.len() + self.sequences.len()
    }

    /// Whether the command window is open for one more command.
    pub(super) fn is_open(&self) -> bool {
        !is_before(self.max_cmd_sn, self.cmd_sn) && !self.ending.is_logging_out()
    }

    /// Returns how many more commands fit into the window.
    pub(super) fn window(&self) -> u64 {
        u64::from(self.max_cmd_sn.wrapping_sub(self.cmd_sn).wrapping_add(1))
    }

    fn push(&mut self, header: Header, body: Body, len: u32) {
        let mut head = [0; BHS_BYTES + DIGEST_BYTES];
        head[..BHS_BYTES].copy_from_slice(header.as_bytes());
        if self.params.header_digest {
            head[BHS_BYTES..].copy_from_slice(&crc32c::crc32c(header.as_bytes()).to_le_bytes());
        }
        let (mut tail, mut tail_len) = ([0; TAIL_BYTES], padding(len));
        let with_digest = match &body {
            Body::Own(_, bytes) => Some(bytes),
            Body::Ours(bytes) if self.params.data_digest && len > 0 => Some(bytes),
            _ => None,
        };
        if let Some(bytes) = with_digest {
            let crc = crc32c::crc32c_append(crc32c::crc32c(bytes), &tail[..tail_len]);
            tail[tail_len..tail_len + DIGEST_BYTES].copy_from_slice(&crc.to_le_bytes());
            tail_len += DIGEST_BYTES;
        }
        self.out.push_back(Out { head, body, tail, tail_len: tail_len as u8, is_pong: false });
    }

    fn head_len(&self) -> usize {
        if self.params.header_digest { BHS_BYTES + DIGEST_BYTES } else { BHS_BYTES }
    }

    /// Returns data of a task as a message body; `None` if its memory has gone.
    fn body(&self, tasks: &Tasks, tag: u16, at: u32, len: u32, regions: &Regions) -> Option<Body> {
        Some(match len {
            0 => Body::None,
            _ if self.params.data_digest => Body::Own(tag, tasks.copy_data(tag, at, len, regions)?),
            _ => Body::Of { tag, at, len },
        })
    }

    /// Queues a command, with the immediate and unsolicited data that may be sent with it.
    pub(super) fn command(&mut self, tag: u16, tasks: &mut Tasks, regions: &Regions) -> Result<(), Lost> {
        let (wire_tag, cdb, way, len) = tasks.command(tag);
        let Params { immediate_data, initial_r2t, first_burst, max_send_data, .. } = self.params;
        let (mut immediate, mut unasked) = (0, 0);
        if way == Direction::Write {
            immediate = if immediate_data { len.min(first_burst).min(max_send_data) } else { 0 };
            unasked = if initial_r2t { immediate } else { len.min(first_burst) };
        }
        let header = Header::command(wire_tag, self.lun, cdb, way, len, unasked == immediate);
        let header = header.with_data(immediate).with_numbers(self.cmd_sn, self.exp_stat_sn);
        tasks.sends_unasked(tag, self.cmd_sn, unasked);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        let Some(body) = self.body(tasks, tag, 0, immediate, regions) else { return Err(gone(tasks, tag)) };
        self.push(header, body, immediate);
        if unasked > immediate {
            // Unsolicited data is sent in the order of the commands, so directly after its own.
            let mut data = Sequence { tag, target_tag: RESERVED_TAG, at: immediate, end: unasked, number: 0 };
            while data.at < data.end {
                if !self.data(&mut data, tasks, regions) {
                    return Err(gone(tasks, tag));
                }
            }
        }
        Ok(())
    }

    /// Queues the next message of a sequence. Returns false if its memory has gone.
    fn data(&mut self, from: &mut Sequence, tasks: &Tasks, regions: &Regions) -> bool {
        let Sequence { tag, target_tag, at, end, number } = *from;
        let (wire_tag, ..) = tasks.command(tag);
        let Params { max_send_data, data_digest, .. } = self.params;
        let n = (end - at).min(if data_digest { max_send_data.min(MAX_COPY) } else { max_send_data });
        let header = Header::data_out(wire_tag, self.lun, target_tag, number, at, at + n == end);
        let Some(body) = self.body(tasks, tag, at, n, regions) else { return false };
        self.push(header.with_data(n).with_exp_stat_sn(self.exp_stat_sn), body, n);
        (from.at, from.number) = (at + n, number + 1);
        true
    }

    /// Builds messages for the data that R2Ts have asked for, up to one send. The error is the task whose memory has gone.
    fn prepare(&mut self, tasks: &Tasks, regions: &Regions) -> Result<(), u16> {
        while self.out.len() < SEND_BATCH
            && let Some(mut next) = self.sequences.pop_front()
        {
            if !self.data(&mut next, tasks, regions) {
                return Err(next.tag);
            }
            if next.at < next.end {
                self.sequences.push_front(next);
            }
        }
        Ok(())
    }

    /// Queues commands of our own, as far as the command window is open.
    fn send_own(&mut self, tasks: &mut Tasks) {
        while self.is_open()
            && let Some(ToSend { wire_tag, cdb, way, len, out, sent, cmd_sn }) = tasks.own.next_to_send()
        {
            let Params { immediate_data, first_burst, max_send_data, .. } = self.params;
            let immediate = if immediate_data { first_burst.min(max_send_data).min(out.len() as u32) } else { 0 };
            let body = Body::Ours(out[..immediate as usize].to_vec());
            (*sent, *cmd_sn) = (immediate, self.cmd_sn);
            let header = Header::command(wire_tag, self.lun, &cdb, way, len, true).with_data(immediate);
            self.push(header.with_numbers(self.cmd_sn, self.exp_stat_sn), body, immediate);
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
    }

    /// Sends a management function, with the task that it is about, if any (index, tag on the wire, number). Returns false
    /// if too many are in flight.
    pub(super) fn manage(&mut self, function: Function, task: Option<(u16, u32, u32)>, tasks: &mut Tasks) -> bool {
        let (about, number) = task.map_or((RESERVED_TAG, 0), |(_, wire_tag, cmd_sn)| (wire_tag, cmd_sn));
        let task = task.map(|(index, wire_tag, _)| (index, wire_tag));
        let Some(tag) = tasks.own.manage(function, task, self.cmd_sn) else { return false };
        let header = Header::task_management(function, tag, self.lun, about, number);
        self.push(header.with_numbers(self.cmd_sn, self.exp_stat_sn), Body::None, 0);
        true
    }

    /// Handles the answer to a management function.
    fn managed(&mut self, tag: u32, response: u8, is_sending: bool, tasks: &mut Tasks) -> Result<(), Lost> {
        match tasks.own.function_ended(tag, response)? {
            (Managed { task: Some((index, wire_tag)), .. }, true) => {
                if tasks.aborted(index, wire_tag) {
                    self.forget(index, is_sending)?;
                }
            }
            (Managed { task: None, cmd_sn, .. }, true) => {
                tasks.own.reset_before(cmd_sn);
                for index in tasks.reset_before(cmd_sn) {
                    self.forget(index, is_sending)?;
                }
            }
            (_, false) => {}
        }
        Ok(())
    }

    /// Handles received bytes. Returns how many of them were used.
    fn take(&mut self, input: &[u8], is_sending: bool, tasks: &mut Tasks, regions: &Regions) -> Result<usize, Lost> {
        let mut left = input;
        loop {
            match self.reader.next(&mut left)? {
                PduEvent::NeedMore => return Ok(input.len() - left.len()),
                PduEvent::Begin(data) if is_own(data.tag) => tasks.own.data_begins(&data)?,
                PduEvent::Begin(data) => tasks.data_begins(&data)?,
                PduEvent::Data { tag, bytes, .. } if is_own(tag) => tasks.own.put(tag, bytes),
                PduEvent::Data { tag, at, bytes } => tasks.put(tag, at, bytes, regions),
                PduEvent::End(data, read) => {
                    self.note(&read);
                    if is_own(data.tag) && data.status.is_some() {
                        tasks.own.completed(data.tag, data.status, &[])?;
                    } else if let Some(status) = data.status {
                        tasks.completed(data.tag, status, &[], false)?;
                    }
                }
                PduEvent::Pdu(read) => self.hear(&read, is_sending, tasks)?,
            }
        }
    }

    fn note(&mut self, read: &Received) {
        if read.has_status() {
            self.exp_stat_sn = read.numbers.stat_sn.wrapping_add(1);
        }
        let numbers = read.numbers;
        // RFC 7143, 4.2.2.1: a window whose end precedes its beginning is ignored; the window never shrinks.
        if !is_before(numbers.max_cmd_sn, numbers.exp_cmd_sn.wrapping_sub(1))
            && is_before(self.max_cmd_sn, numbers.max_cmd_sn)
        {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
    }

    /// Handles a message other than read data.
    fn hear(&mut self, read: &Received, is_sending: bool, tasks: &mut Tasks) -> Result<(), Lost> {
        self.note(read);
        match read.pdu {
            Pdu::Response { tag, response, status } if is_own(tag) => {
                if response == 0 && status.status == sam::GOOD && self.out.iter().any(|m| m.answers_own(tag)) {
                    return Err(good_too_early());
                }
                let status = (response == 0).then_some(status);
                tasks.own.completed(tag, status, self.reader.kept())?;
            }
            Pdu::Response { tag, response, status } => {
                let has_unsent = self.has_unsent(tag as u16);
                if response == 0 && status.status == sam::GOOD && has_unsent {
                    return Err(good_too_early());
                }
                match response {
                    0 => tasks.completed(tag, status, self.reader.kept(), has_unsent)?,
                    _ => tasks.failed(tag)?,
                }
                self.forget(tag as u16, is_sending)?;
            }
            Pdu::R2t { tag, target_tag, offset, len } if is_own(tag) => {
                if self.out.iter().any(|m| m.answers_own(tag)) {
                    return Err(asks_too_much());
                }
                let bytes = tasks.own.asked_for(tag, offset, len)?;
                self.push_own_data(tag, target_tag, offset, &bytes);
            }
            Pdu::R2t { tag, target_tag, offset, len } => {
                let task = tasks.asked_for(tag, offset, len)?;
                if self.is_answering(task) {
                    return Err(asks_too_much());
                }
                let next = Sequence { tag: task, target_tag, at: offset, end: offset + len, number: 0 };
                self.sequences.push_back(next);
            }
            Pdu::NopIn { target_tag, lun, .. } if target_tag != RESERVED_TAG => {
                self.pongs += 1;
                if self.pongs > MAX_PONGS {
                    return Err(Lost(format!("the target sent {MAX_PONGS} NOP-In requests without reading an answer")));
                }
                let header = Header::nop_out(RESERVED_TAG, lun, target_tag);
                self.push(header.with_numbers(self.cmd_sn, self.exp_stat_sn), Body::None, 0);
                if let Some(last) = self.out.back_mut() {
                    last.is_pong = true;
                }
            }
            Pdu::NopIn { .. } => {}
            Pdu::TaskManagement { tag, response } => self.managed(tag, response, is_sending, tasks)?,
            Pdu::Async { event, parameters } => match self.ending.asynchronous(event, parameters)? {
                AsyncAction::Continue => {}
                AsyncAction::Logout => {
                    let header = Header::logout(PING_TAG).with_numbers(self.cmd_sn, self.exp_stat_sn);
                    self.push(header, Body::None, 0);
                }
            },
            Pdu::Logout { response, time2wait, .. } => return Err(self.ending.logged_out(response, time2wait)),
            Pdu::Reject { reason } => self.rejected(reason, tasks)?,
            Pdu::Login { .. } | Pdu::Text { .. } | Pdu::DataIn(_) => {
                return Err(Violation("a response to no outstanding request".into()).into());
            }
        }
        Ok(())
    }

    /// Queues `bytes` of a command of our own, from `offset` on, as the target requested.
    fn push_own_data(&mut self, tag: u32, target_tag: u32, offset: u32, bytes: &[u8]) {
        let end = offset + bytes.len() as u32;
        let mut at = offset;
        for (number, part) in bytes.chunks(self.params.max_send_data as usize).enumerate() {
            let n = part.len() as u32;
            let header = Header::data_out(tag, self.lun, target_tag, number as u32, at, at + n == end);
            let header = header.with_data(n).with_exp_stat_sn(self.exp_stat_sn);
            self.push(header, Body::Ours(part.to_vec()), n);
            at += n;
        }
    }

    /// Handles a reject; its data holds the header of the rejected message.
    fn rejected(&mut self, reason: u8, tasks: &mut Tasks) -> Result<(), Lost> {
        match Header::about(self.reader.kept()).filter(|_| NOT_TAKEN.contains(&reason)) {
            Some((Header::TASK_MANAGEMENT, tag)) => Ok(tasks.own.function_rejected(tag)?),
            // The target is alive, because it has answered.
            Some((Header::NOP_OUT, PING_TAG)) => Ok(()),
            _ => Err(Lost(format!("the target rejected a message (reason {reason:#04x})"))),
        }
    }

    /// Whether data of a task, or a command with data, waits to be sent.
    fn has_unsent(&self, task: u16) -> bool {
        self.sequences.iter().any(|s| s.tag == task) || self.out.iter().any(|m| m.is_of(task))
    }

    /// Whether data that an R2T has asked for waits to be sent.
    fn is_answering(&self, task: u16) -> bool {
        let is_asked = |m: &Out| m.is_of(task) && Header::is_asked_for(&m.head);
        self.sequences.iter().any(|s| s.tag == task) || self.out.iter().any(is_asked)
    }

    /// A task has completed: drops its unsent data, so that its memory is not read any more.
    fn forget(&mut self, task: u16, is_sending: bool) -> Result<(), Lost> {
        let is_of = |m: &Out| m.is_of(task);
        self.sequences.retain(|s| s.tag != task);
        if !self.out.iter().any(is_of) {
            return Ok(());
        }
        if self.out.iter().any(|m| is_of(m) && !Header::is_data_out(&m.head)) {
            return Err(Violation("a command was answered before it was sent".into()).into());
        }
        // The target waits for the rest of a message whose first bytes were sent. The content no longer matters.
        let begun = if is_sending { self.out.pop_front() } else { None };
        self.out.retain(|m| !is_of(m));
        if let Some(mut begun) = begun {
            if let Body::Of { tag, len, .. } = begun.body
                && tag == task
            {
                begun.body = Body::Own(tag, vec![0; len as usize]);
            }
            self.out.push_front(begun);
        }
        Ok(())
    }

    /// Sends a NOP-Out if the target was silent for `after`. The session is lost if no answer comes within `within`, or if a
    /// Logout is not answered in time.
    pub(super) fn keep_alive(&mut self, after: Option<Duration>, within: Duration, now: Instant) -> Result<(), Lost> {
        if self.ending.is_logging_out() {
            return self.ending.check(now);
        }
        let Some(after) = after else { return Ok(()) };
        let silent =
            |silence: Duration| Lost(format!("the target has not answered for {} s", silence.as_ns() / 1_000_000_000));
        if self.keep_alive.is_due(after, within, now).map_err(silent)? {
            let header = Header::nop_out(PING_TAG, [0; 8], RESERVED_TAG);
            self.push(header.with_numbers(self.cmd_sn, self.exp_stat_sn), Body::None, 0);
        }
        Ok(())
    }
}

fn good_too_early() -> Lost {
    Violation("a command completed with GOOD status before all its data was sent".into()).into()
}

fn asks_too_much() -> Lost {
    Violation("an R2T while an earlier one of the task is outstanding (MaxOutstandingR2T is 1)".into()).into()
}

/// Fails a write whose memory has gone, and returns the loss of its session.
fn gone(tasks: &mut Tasks, tag: u16) -> Lost {
    tasks.fail_one(tag);
    Lost("the memory of a write's data was unmapped, or its memory file truncated, while the write was sent".into())
}
