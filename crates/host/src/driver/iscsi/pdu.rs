// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of iSCSI (PDUs): headers that we send, and headers that targets send.
//!
//! Guarantees: a header that is built is well-formed; any 48 bytes of a target are accepted as input and parsed into a [`Pdu`] or a
//! [`Violation`].
//! Does not check whether a message is due; the session does.
//! Source: RFC 7143, 11.

use std::fmt;

/// Bytes of a basic header segment.
pub const BHS_BYTES: usize = 48;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// The tag that means "no tag".
pub const RESERVED_TAG: u32 = u32::MAX;

/// What initiators send.
mod request {
    pub(super) const NOP_OUT: u8 = 0x00;
    pub(super) const SCSI_COMMAND: u8 = 0x01;
    pub(super) const TASK_MANAGEMENT: u8 = 0x02;
    pub(super) const LOGIN: u8 = 0x03;
    pub(super) const TEXT: u8 = 0x04;
    pub(super) const DATA_OUT: u8 = 0x05;
    pub(super) const LOGOUT: u8 = 0x06;
    /// The message is not subject to the order of commands.
    pub(super) const IMMEDIATE: u8 = 0x40;
}

/// What targets send.
mod response {
    pub(super) const NOP_IN: u8 = 0x20;
    pub(super) const SCSI_RESPONSE: u8 = 0x21;
    pub(super) const TASK_MANAGEMENT: u8 = 0x22;
    pub(super) const LOGIN: u8 = 0x23;
    pub(super) const TEXT: u8 = 0x24;
    pub(super) const DATA_IN: u8 = 0x25;
    pub(super) const LOGOUT: u8 = 0x26;
    pub(super) const R2T: u8 = 0x31;
    pub(super) const ASYNC: u8 = 0x32;
    pub(super) const REJECT: u8 = 0x3f;
}

/// The last message of a sequence; in a login: transit to the next stage.
const FINAL: u8 = 0x80;
/// More of the same text follows.
const CONTINUE: u8 = 0x40;

/// A target violates the protocol; holds text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A basic header segment that is being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header([u8; BHS_BYTES]);

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the target.
    Read,
    /// To the target.
    Write,
}

/// Task management functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Function {
    /// One task.
    AbortTask = 1,
    /// All tasks of a logical unit, and its state.
    LogicalUnitReset = 5,
    /// All tasks of a target; its sessions continue.
    TargetWarmReset = 6,
}

impl Header {
    /// Kind of a NOP: a ping, or the answer to one.
    pub const NOP_OUT: u8 = request::NOP_OUT;
    /// Kind of a task management function.
    pub const TASK_MANAGEMENT: u8 = request::TASK_MANAGEMENT;

    fn new(opcode: u8, flags: u8, tag: u32) -> Header {
        let mut bytes = [0; BHS_BYTES];
        (bytes[0], bytes[1]) = (opcode, flags);
        Header(bytes).put(16, tag.to_be_bytes())
    }

    fn put<const N: usize>(mut self, at: usize, value: [u8; N]) -> Header {
        self.0[at..at + N].copy_from_slice(&value);
        self
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; BHS_BYTES] {
        &self.0
    }

    /// Sets the length of the data segment, below 2^24.
    pub fn with_data(self, len: u32) -> Header {
        let [zero, length @ ..] = len.to_be_bytes();
        assert!(zero == 0, "a data segment of {len} bytes: must be below 2^24");
        self.put(5, length)
    }

    /// Sets the sequence numbers of the command in its session.
    pub fn with_numbers(self, cmd_sn: u32, exp_stat_sn: u32) -> Header {
        self.put(24, cmd_sn.to_be_bytes()).put(28, exp_stat_sn.to_be_bytes())
    }

    /// Makes a SCSI command; `is_final`: no unsolicited data follows.
    pub fn command(tag: u32, lun: [u8; 8], cdb: &[u8; 16], direction: Direction, len: u32, is_final: bool) -> Header {
        const SIMPLE: u8 = 1;
        let way = match direction {
            Direction::None => 0,
            Direction::Read => 0x40,
            Direction::Write => 0x20,
        };
        let flags = SIMPLE | way | if is_final { FINAL } else { 0 };
        Header::new(request::SCSI_COMMAND, flags, tag).put(8, lun).put(20, len.to_be_bytes()).put(32, *cdb)
    }

    /// Makes a message with data for the target: part `number` of a sequence. `target_tag` is the tag of the R2T that it answers, if any.
    pub fn data_out(tag: u32, lun: [u8; 8], target_tag: u32, number: u32, offset: u32, is_final: bool) -> Header {
        let flags = if is_final { FINAL } else { 0 };
        let header = Header::new(request::DATA_OUT, flags, tag).put(8, lun).put(20, target_tag.to_be_bytes());
        header.put(36, number.to_be_bytes()).put(40, offset.to_be_bytes())
    }

    /// Whether bytes begin with a header of [`Header::data_out`].
    pub fn is_data_out(bytes: &[u8]) -> bool {
        bytes.first() == Some(&request::DATA_OUT)
    }

    /// Whether bytes begin with a header of [`Header::data_out`] that answers an R2T of the target.
    pub fn is_asked_for(bytes: &[u8]) -> bool {
        let target_tag = bytes.get(20..).and_then(|rest| rest.first_chunk());
        Header::is_data_out(bytes) && target_tag.is_some_and(|tag| u32::from_be_bytes(*tag) != RESERVED_TAG)
    }

    /// Returns the kind and the tag of the header that bytes begin with.
    pub fn about(bytes: &[u8]) -> Option<(u8, u32)> {
        let tag = bytes.get(16..)?.first_chunk()?;
        Some((bytes[0] & 0x3f, u32::from_be_bytes(*tag)))
    }

    /// Sets the number that acknowledges the last status that has arrived.
    pub fn with_exp_stat_sn(self, exp_stat_sn: u32) -> Header {
        self.put(28, exp_stat_sn.to_be_bytes())
    }

    /// Makes a ping to the target (`tag`), or the answer to the target's ping (`target_tag`).
    pub fn nop_out(tag: u32, lun: [u8; 8], target_tag: u32) -> Header {
        let header = Header::new(request::NOP_OUT | request::IMMEDIATE, FINAL, tag);
        header.put(8, lun).put(20, target_tag.to_be_bytes())
    }

    /// Makes a task management request; `task` is the tag of the task, if the function is about one.
    pub fn task_management(function: Function, tag: u32, lun: [u8; 8], task: u32, task_cmd_sn: u32) -> Header {
        let header = Header::new(request::TASK_MANAGEMENT | request::IMMEDIATE, FINAL | function as u8, tag);
        header.put(8, lun).put(20, task.to_be_bytes()).put(32, task_cmd_sn.to_be_bytes())
    }

    /// Makes a login request of a stage; `next` is the following stage, if this request is the last of its stage.
    pub fn login(tag: u32, isid: [u8; 6], tsih: u16, stage: Stage, next: Option<Stage>, more: bool) -> Header {
        let flags = (stage as u8) << 2 | next.map_or(0, |n| FINAL | n as u8) | if more { CONTINUE } else { 0 };
        let header = Header::new(request::LOGIN | request::IMMEDIATE, flags, tag);
        header.put(8, isid).put(14, tsih.to_be_bytes())
    }

    /// Makes a text request, or a request for more of the answer with this target tag.
    pub fn text(tag: u32, target_tag: u32) -> Header {
        Header::new(request::TEXT | request::IMMEDIATE, FINAL, tag).put(20, target_tag.to_be_bytes())
    }

    /// Makes a request to end the session.
    pub fn logout(tag: u32) -> Header {
        Header::new(request::LOGOUT | request::IMMEDIATE, FINAL, tag)
    }
}

/// A stage of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Authentication.
    Security = 0,
    /// Negotiation of operational parameters.
    Operational = 1,
    /// The session is established.
    FullFeature = 3,
}

impl Stage {
    fn from_bits(bits: u8) -> Option<Stage> {
        match bits & 3 {
            0 => Some(Stage::Security),
            1 => Some(Stage::Operational),
            3 => Some(Stage::FullFeature),
            _ => None,
        }
    }
}

/// Sequence numbers that all messages of targets contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Number of this status.
    pub stat_sn: u32,
    /// The command that is expected next.
    pub exp_cmd_sn: u32,
    /// The last command that the target accepts.
    pub max_cmd_sn: u32,
}

/// How a command completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The device's status byte.
    pub status: u8,
    /// Bytes that were not transferred.
    pub underflow: u32,
    /// There was more data than requested.
    pub overflow: bool,
}

/// Data from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// Tag of the task.
    pub tag: u32,
    /// Offset in the task's data.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
    /// Status that comes with the last data.
    pub status: Option<Status>,
}

/// A message of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the RFC's")]
pub enum Pdu {
    NopIn {
        tag: u32,
        target_tag: u32,
        lun: [u8; 8],
    },
    /// `response` is 0 if the target completed the command.
    Response {
        tag: u32,
        response: u8,
        status: Status,
    },
    TaskManagement {
        tag: u32,
        response: u8,
    },
    /// `next` is present if the stage is over.
    Login {
        tag: u32,
        stage: Stage,
        next: Option<Stage>,
        more: bool,
        tsih: u16,
        class: u8,
        detail: u8,
    },
    Text {
        tag: u32,
        target_tag: u32,
        is_final: bool,
        more: bool,
    },
    DataIn(DataIn),
    /// `time2wait`, in seconds.
    Logout {
        tag: u32,
        response: u8,
        time2wait: u16,
    },
    R2t {
        tag: u32,
        target_tag: u32,
        offset: u32,
        len: u32,
    },
    Async {
        event: u8,
        parameters: [u16; 3],
    },
    Reject {
        reason: u8,
    },
}

/// A parsed header of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The message.
    pub pdu: Pdu,
    /// Its sequence numbers.
    pub numbers: Numbers,
    /// Bytes of its data segment, without padding.
    pub data_len: u32,
}

impl Received {
    /// Parses a header.
    pub fn parse(bytes: &[u8; BHS_BYTES]) -> Result<Received, Violation> {
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
        let half = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u16::from_be_bytes(*b));
        let (opcode, flags) = (bytes[0] & 0x3f, bytes[1]);
        if bytes[4] != 0 {
            return Err(Violation(format!(
                "a message of kind {opcode:#x} has additional headers, which targets do not send"
            )));
        }
        let data_len = word(4);
        let tag = word(16);
        let mut lun = [0; 8];
        lun.copy_from_slice(&bytes[8..16]);
        let status = |with: u8| Status {
            status: with,
            underflow: if flags & 0x02 != 0 { word(44) } else { 0 },
            overflow: flags & 0x04 != 0,
        };
        let stage = |bits: u8| Stage::from_bits(bits).ok_or_else(|| Violation("a login is in no stage".into()));
        let pdu = match opcode {
            response::NOP_IN => Pdu::NopIn { tag, target_tag: word(20), lun },
            response::SCSI_RESPONSE => Pdu::Response { tag, response: bytes[2], status: status(bytes[3]) },
            response::TASK_MANAGEMENT => Pdu::TaskManagement { tag, response: bytes[2] },
            response::LOGIN => Pdu::Login {
                tag,
                stage: stage(flags >> 2)?,
                next: if flags & FINAL != 0 { Some(stage(flags)?) } else { None },
                more: flags & CONTINUE != 0,
                tsih: half(14),
                class: bytes[36],
                detail: bytes[37],
            },
            response::TEXT => {
                Pdu::Text { tag, target_tag: word(20), is_final: flags & FINAL != 0, more: flags & CONTINUE != 0 }
            }
            response::DATA_IN => Pdu::DataIn(DataIn {
                tag,
                offset: word(40),
                len: data_len,
                status: (flags & 1 != 0).then(|| status(bytes[3])),
            }),
            response::LOGOUT => Pdu::Logout { tag, response: bytes[2], time2wait: half(40) },
            response::R2T => Pdu::R2t { tag, target_tag: word(20), offset: word(40), len: word(44) },
            response::ASYNC => Pdu::Async { event: bytes[36], parameters: [half(38), half(40), half(42)] },
            response::REJECT => Pdu::Reject { reason: bytes[2] },
            other => return Err(Violation(format!("there is no message of kind {other:#x}"))),
        };
        let numbers = Numbers { stat_sn: word(24), exp_cmd_sn: word(28), max_cmd_sn: word(32) };
        Ok(Received { pdu, numbers, data_len })
    }

    /// Whether this message consumes a status number.
    pub fn has_status(&self) -> bool {
        match self.pdu {
            Pdu::DataIn(data) => data.status.is_some(),
            Pdu::NopIn { tag, .. } => tag != RESERVED_TAG,
            Pdu::R2t { .. } => false,
            _ => true,
        }
    }
}

/// Returns the bytes that pad a segment to whole words.
pub fn padding(len: u32) -> usize {
    (len.wrapping_neg() & 3) as usize
}

/// Whether `a` comes before `b` in serial arithmetic (RFC 1982).
pub fn is_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_the_rfcs_bytes() {
        let mut cdb = [0; 16];
        cdb[0] = 0x2a;
        let lun = [0, 5, 0, 0, 0, 0, 0, 0];
        let header = Header::command(0x0102_0304, lun, &cdb, Direction::Write, 4096, true);
        let bytes = *header.with_data(512).with_numbers(7, 9).as_bytes();
        assert_eq!(bytes[..8], [0x01, 0xa1, 0, 0, 0, 0, 2, 0]);
        assert_eq!(bytes[8..24], [0, 5, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 16, 0]);
        assert_eq!(bytes[24..34], [0, 0, 0, 7, 0, 0, 0, 9, 0x2a, 0]);
        let read = Header::command(1, lun, &cdb, Direction::Read, 512, true);
        assert_eq!(read.as_bytes()[1], 0xc1);
        let data = *Header::data_out(1, lun, 0xaabb_ccdd, 3, 8192, true).as_bytes();
        assert_eq!(
            (data[0], data[1], &data[20..24], data[39], data[42]),
            (5, 0x80, &[0xaa, 0xbb, 0xcc, 0xdd][..], 3, 0x20)
        );
        let login =
            *Header::login(0, [0x80, 1, 2, 3, 0, 4], 0, Stage::Security, Some(Stage::Operational), false).as_bytes();
        assert_eq!((login[0], login[1]), (0x43, 0x81));
    }

    #[test]
    fn messages_of_targets_are_read() {
        let mut bytes = [0; BHS_BYTES];
        (bytes[0], bytes[1], bytes[3]) = (0x25, 0x83, 0x08);
        bytes[6..8].copy_from_slice(&512_u16.to_be_bytes());
        bytes[19] = 7;
        bytes[27] = 5;
        bytes[43] = 64;
        bytes[47] = 9;
        let read = Received::parse(&bytes).unwrap();
        let status = Some(Status { status: 8, underflow: 9, overflow: false });
        assert_eq!(read.pdu, Pdu::DataIn(DataIn { tag: 7, offset: 64, len: 512, status }));
        assert!(read.has_status() && read.numbers.stat_sn == 5 && read.data_len == 512);
        bytes[4] = 1;
        assert!(Received::parse(&bytes).unwrap_err().to_string().contains("additional headers"));
        (bytes[4], bytes[0]) = (0, 0x30);
        assert!(Received::parse(&bytes).unwrap_err().to_string().contains("0x30"));
        (bytes[0], bytes[1]) = (0x23, 0x82);
        assert!(Received::parse(&bytes).is_err(), "stage 2 is none");
    }

    #[test]
    fn numbers_go_round() {
        assert!(is_before(u32::MAX, 0) && is_before(1, 2) && !is_before(2, 1) && !is_before(3, 3));
        assert_eq!([0, 1, 2, 3, 4, 5].map(padding), [0, 3, 2, 1, 0, 3]);
    }
}
