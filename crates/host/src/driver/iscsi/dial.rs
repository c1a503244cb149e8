// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a session that is ready for commands: connects to a portal, logs in, follows redirects. Runs single commands, to find out what is
//! needed before the first request.
//!
//! Guarantees: returns within [`DIAL_TIME`] or another time that is given, plus the time to look up the host's name, and
//! soon after `stop` is readable. The socket does not block, and small messages are sent at once.

use super::login::{Failure, Found, Login, MAX_RECV_DATA, Params, Progress, Wanted, found};
use super::pdu::{Direction, Header, Pdu, RESERVED_TAG, Received, is_before, padding};
use super::reader::{PduEvent, Reader};
use super::uri::Portal;
use crate::driver::remote::dial::{Deadline, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::net::socket::wait;
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::sam;
use blk::scsi::sense::{Sense, SenseKey};
use blk::scsi::transport::LunId;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time limit of connecting, the login and the first commands together.
pub(super) const DIAL_TIME: Duration = Duration::from_secs(15);
/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: u32 = 4;
/// Maximum number of consecutive unit attentions of a device.
const MAX_ATTENTIONS: u32 = 16;
/// Maximum number of repetitions of a command for a busy device.
const MAX_BUSY: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum data of one answer.
const MAX_ANSWER: usize = 64 << 10;

/// A session in its full feature phase.
pub(super) struct Line<'a> {
    deadline: Deadline<'a>,
    portal: Portal,
    pub(super) socket: OwnedFd,
    reader: Reader,
    /// Received bytes that are not yet handled.
    pub(super) input: Vec<u8>,
    pub(super) params: Params,
    pub(super) cmd_sn: u32,
    pub(super) exp_stat_sn: u32,
    pub(super) max_cmd_sn: u32,
    tag: u32,
    attentions: u32,
    /// A command got no answer.
    is_lost: bool,
    /// The message if the target closes the connection now.
    closed: &'static str,
}

/// Logs in at a portal, or at the portal that it redirects to.
pub(super) fn dial<'a>(portal: &Portal, wanted: &Wanted, stop: &'a OwnedFd) -> Result<Line<'a>> {
    dial_within(DIAL_TIME, portal, wanted, stop)
}

/// As [`dial`], with another time limit.
pub(super) fn dial_within<'a>(
    within: Duration,
    portal: &Portal,
    wanted: &Wanted,
    stop: &'a OwnedFd,
) -> Result<Line<'a>> {
    let deadline = Deadline::new(within, stop);
    let mut portal = portal.clone();
    for _ in 0..=MAX_REDIRECTS {
        let at = |e: Error| e.within(&format!("iSCSI portal {portal}"));
        let socket = deadline.connect_host(&portal.host, portal.port).map_err(at)?;
        let mut line = Line {
            deadline,
            portal: portal.clone(),
            socket,
            reader: Reader::new(false, false, MAX_RECV_DATA),
            input: Vec::new(),
            params: Params::default(),
            cmd_sn: 1,
            exp_stat_sn: 0,
            max_cmd_sn: 1,
            tag: 0,
            attentions: 0,
            is_lost: false,
            closed: CLOSED,
        };
        match line.log_in(wanted).map_err(at)? {
            None => return Ok(line),
            Some(address) => {
                let address = address.rsplit_once(',').map_or(address.as_str(), |(address, _)| address);
                let elsewhere = Portal::parse(address).map_err(|why| Error::new(ErrorKind::Io, why));
                portal = elsewhere.map_err(at)?;
            }
        }
    }
    Err(Error::new(ErrorKind::Io, format!("iSCSI portal {portal}: too many login redirects")))
}

/// The result of a command.
pub(super) enum Answer {
    Good(Vec<u8>),
    Check(Option<Sense>),
    Status(u8),
}

const CLOSED: &str = "the target closed the connection";
const CLOSED_WITHOUT_USER: &str = "the target closed the connection at a login without a user: Linux's target (LIO) \
                                   does so if it requires CHAP; write USER@ before the host, and its password in \
                                   LIBISCSI_CHAP_PASSWORD";

impl Line<'_> {
    /// Logs in. Returns the address that the target redirects to, if it does.
    fn log_in(&mut self, wanted: &Wanted) -> Result<Option<String>> {
        let mut login = Login::new(wanted.clone());
        let mut is_first = true;
        loop {
            let (header, text) = login.request()?;
            self.send(header.with_numbers(self.cmd_sn, self.exp_stat_sn), &text)?;
            if is_first && wanted.chap.is_none() {
                self.closed = CLOSED_WITHOUT_USER;
            }
            let (read, data) = self.receive()?;
            self.closed = CLOSED;
            // The first answer sets the initial number.
            if is_first || !is_before(read.numbers.stat_sn.wrapping_add(1), self.exp_stat_sn) {
                self.exp_stat_sn = read.numbers.stat_sn.wrapping_add(1);
            }
            is_first = false;
            match login.feed(&read.pdu, &data)? {
                Progress::Continue => {}
                Progress::Redirect(address) => return Ok(Some(address)),
                Progress::Done(params) => {
                    self.params = params;
                    self.max_cmd_sn = read.numbers.max_cmd_sn;
                    self.reader = Reader::new(params.header_digest, params.data_digest, MAX_RECV_DATA);
                    return Ok(None);
                }
            }
        }
    }

    fn wait(&self, what: PollFlags, doing: &str) -> Result<()> {
        self.deadline.wait(&self.socket, what, doing)
    }

    fn send(&mut self, header: Header, data: &[u8]) -> Result<()> {
        let mut out = header.as_bytes().to_vec();
        if self.params.header_digest {
            out.extend(crc32c::crc32c(&out).to_le_bytes());
        }
        if !data.is_empty() {
            let padded = [data, &[0; 3][..padding(data.len() as u32)]].concat();
            out.extend(&padded);
            if self.params.data_digest {
                out.extend(crc32c::crc32c(&padded).to_le_bytes());
            }
        }
        self.deadline.send(&self.socket, &out, "sending", "the session ended early")
    }

    /// Returns the next message, with its data.
    fn receive(&mut self) -> Result<(Received, Vec<u8>)> {
        let mut data = Vec::new();
        loop {
            let mut input = &self.input[..];
            let mut whole = None;
            while whole.is_none() {
                match self.reader.next(&mut input).map_err(Failure::from)? {
                    PduEvent::NeedMore => break,
                    PduEvent::Begin(_) => {}
                    PduEvent::Data { bytes, .. } => data.extend_from_slice(bytes),
                    PduEvent::End(_, read) => whole = Some(read),
                    PduEvent::Pdu(read) => {
                        data.extend_from_slice(self.reader.kept());
                        whole = Some(read);
                    }
                }
            }
            let taken = self.input.len() - input.len();
            self.input.drain(..taken);
            if let Some(read) = whole {
                return Ok((read, data));
            }
            // Checked each time, so that a peer that never stops sending cannot exceed the time limit.
            self.wait(PollFlags::IN, "its answer")?;
            let mut room = [0; 4096];
            match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(Error::new(ErrorKind::Io, self.closed)),
                Ok((n, _)) => self.input.extend_from_slice(room.get(..n).unwrap_or_default()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(failed(e, "the session ended early")),
            }
        }
    }

    fn note(&mut self, read: &Received) {
        if read.has_status() {
            self.exp_stat_sn = read.numbers.stat_sn.wrapping_add(1);
        }
        if is_before(self.max_cmd_sn, read.numbers.max_cmd_sn) {
            self.max_cmd_sn = read.numbers.max_cmd_sn;
        }
    }

    /// Returns the next message with this tag; answers NOP-Ins and requests to log out meanwhile.
    fn answer(&mut self, tag: u32) -> Result<(Received, Vec<u8>)> {
        loop {
            let (read, data) = self.receive()?;
            self.note(&read);
            let about = match read.pdu {
                Pdu::NopIn { target_tag, lun, .. } if target_tag != RESERVED_TAG => {
                    let pong = Header::nop_out(RESERVED_TAG, lun, target_tag);
                    self.send(pong.with_numbers(self.cmd_sn, self.exp_stat_sn), &[])?;
                    continue;
                }
                Pdu::Response { tag, .. } | Pdu::Text { tag, .. } => tag,
                Pdu::DataIn(data) => data.tag,
                Pdu::Reject { reason } => {
                    return Err(Error::new(ErrorKind::Io, format!("the target rejected a message ({reason:#04x})")));
                }
                Pdu::Async { event: event @ 1..=4, .. } => {
                    if matches!(event, 1 | 4) {
                        let tag = self.next_tag();
                        let _ = self.send(Header::logout(tag).with_numbers(self.cmd_sn, self.exp_stat_sn), &[]);
                    }
                    let text = format!("the target ends the new session (asynchronous event {event})");
                    return Err(Error::new(ErrorKind::Io, text));
                }
                _ => continue,
            };
            if about == tag {
                return Ok((read, data));
            }
        }
    }

    fn next_tag(&mut self) -> u32 {
        self.tag = (self.tag + 1) & 0xffff;
        self.tag
    }

    /// Runs one command that reads up to `most` bytes. Unit attentions are counted and skipped, and the command is repeated
    /// while the unit is busy.
    pub(super) fn ask(&mut self, lun: LunId, cdb: &Cdb, most: u32) -> Result<Answer> {
        let mut busy = 0;
        for _ in 0..MAX_ATTENTIONS + MAX_BUSY {
            let answer = self.ask_once(lun, cdb, most);
            self.is_lost |= answer.is_err();
            match answer? {
                Answer::Check(Some(Sense { key: SenseKey::UnitAttention, .. })) => self.attentions += 1,
                Answer::Status(sam::BUSY | sam::TASK_SET_FULL) if busy < MAX_BUSY => {
                    busy += 1;
                    // The next attempt checks whether time is left.
                    let stop = self.deadline.stop;
                    wait(stop, PollFlags::IN, stop, Some(Instant::now() + BUSY_PAUSE));
                }
                answer => return Ok(answer),
            }
        }
        Err(Error::new(ErrorKind::Io, format!("LUN {} keeps reporting unit attentions (resets or changes)", lun.0)))
    }

    /// Returns the number of unit attentions so far. An answer from before a unit attention may be from another logical unit.
    pub(super) fn attentions(&self) -> u32 {
        self.attentions
    }

    /// Whether a command got no answer, because the connection was lost or the time was over. Later commands get none, either.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn ask_once(&mut self, lun: LunId, cdb: &Cdb, most: u32) -> Result<Answer> {
        let tag = self.next_tag();
        let way = if most > 0 { Direction::Read } else { Direction::None };
        let header = Header::command(tag, lun.to_wire(), cdb.padded(), way, most, true);
        self.send(header.with_numbers(self.cmd_sn, self.exp_stat_sn), &[])?;
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        let mut all = Vec::new();
        loop {
            let (read, data) = self.answer(tag)?;
            match read.pdu {
                Pdu::DataIn(part) => {
                    if all.len() + data.len() > MAX_ANSWER.min(most as usize) || part.offset as usize != all.len() {
                        return Err(Failure::Violation("a response is longer than requested".into()).into());
                    }
                    all.extend(data);
                    match part.status {
                        None => {}
                        Some(status) if status.status == sam::GOOD => return Ok(Answer::Good(all)),
                        Some(status) => return Ok(Answer::Status(status.status)),
                    }
                }
                Pdu::Response { response: 0, status, .. } => {
                    return Ok(match status.status {
                        sam::GOOD => Answer::Good(all),
                        sam::CHECK_CONDITION => Answer::Check(sense_of(&data)),
                        status => Answer::Status(status),
                    });
                }
                _ => return Err(Failure::Violation("a command was not completed at the target".into()).into()),
            }
        }
    }

    /// Returns the targets that the portal reports.
    pub(super) fn send_targets(&mut self) -> Result<Vec<Found>> {
        let (tag, mut target_tag, mut all) = (self.next_tag(), RESERVED_TAG, Vec::new());
        let mut text = &b"SendTargets=All\0"[..];
        loop {
            let header = Header::text(tag, target_tag).with_data(text.len() as u32);
            self.send(header.with_numbers(self.cmd_sn, self.exp_stat_sn), text)?;
            let (read, data) = self.answer(tag)?;
            let Pdu::Text { target_tag: more, .. } = read.pdu else {
                return Err(Failure::Violation("a Text Request was answered by another PDU".into()).into());
            };
            all.extend(data);
            if all.len() > 1 << 20 {
                return Err(Failure::Violation("more than 1 MiB of targets".into()).into());
            }
            if more == RESERVED_TAG {
                let _ = self.send(Header::logout(tag).with_numbers(self.cmd_sn, self.exp_stat_sn), &[]);
                return Ok(found(&all)?);
            }
            (target_tag, text) = (more, &[]);
        }
    }

    /// Logs out if that does not block, and closes the connection.
    pub(super) fn log_out(mut self) {
        let tag = self.next_tag();
        let _ = self.send(Header::logout(tag).with_numbers(self.cmd_sn, self.exp_stat_sn), &[]);
    }

    /// Returns the portal after redirects.
    pub(super) fn portal(&self) -> &Portal {
        &self.portal
    }
}

/// Returns the sense data of a response.
pub(super) fn sense_of(data: &[u8]) -> Option<Sense> {
    let (len, rest) = data.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_be_bytes(*len));
    Sense::parse(rest.get(..len).unwrap_or(rest))
}
