// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transport interface: a transport carries commands to devices (a low-level driver in the kernel); and its rules.
//!
//! - The midlayer passes a batch ([`CommandBatch`]) of one LUN and one hardware queue to a transport. The transport
//!   [`accept`](CommandBatch::accept)s commands from its front and gets an [`AcceptedCommand`] for each, whose outcome
//!   it must report once.
//! - Outcomes are polled: [`Transport::poll`] moves them into [`Outcomes`]. The transport does not interpret them.
//! - The rules of [`crate::driver`] apply here, too: several threads call at once, a transport does its own locking,
//!   and never calls back.
//!
//! Source: include/scsi/scsi_host.h (`scsi_host_template`).

use super::cdb::Cdb;
use super::disk::ScsiDisk;
use super::disposition::Outcome;
use crate::bio::Op;
use crate::driver::{Completions, InFlight, RqBatch, RqRef, TimedOut};
use crate::id::{HctxId, Tag};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::time::{Duration, Instant};

/// Number of a logical unit at its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LunId(pub u16);

impl LunId {
    /// Highest logical unit number that the simple addressing methods can express.
    pub const MAX: u16 = (1 << 14) - 1;

    /// Returns the eight bytes for the wire: peripheral device addressing below 256, flat space addressing from 256 on
    /// (SAM-5, 4.7.7).
    pub fn to_wire(self) -> [u8; 8] {
        assert!(self.0 <= LunId::MAX, "LUN {}: must be at most {}", self.0, LunId::MAX);
        let [high, low] = self.0.to_be_bytes();
        [if self.0 < 256 { 0 } else { high | 0x40 }, low, 0, 0, 0, 0, 0, 0]
    }

    /// Returns the LUN of eight bytes from the wire; `None` if they are no simple address.
    pub fn from_wire(bytes: [u8; 8]) -> Option<LunId> {
        let [high, low, rest @ ..] = bytes;
        let simple = rest == [0; 6] && (high == 0 || high >> 6 == 1);
        simple.then(|| LunId(u16::from_be_bytes([high & 0x3f, low])))
    }
}

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// The data of its request goes to the device.
    Write,
    /// Data from the device goes to the data segments of its request.
    Read,
    /// The parameter list of an UNMAP.
    Unmap([u8; super::cdb::UNMAP_BYTES]),
    /// A block of zeroes, of this many bytes.
    Zeroes(u32),
}

/// A command on its way.
pub struct Command<'a> {
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The data of the command.
    pub payload: Payload,
    /// Its request: tag, length and data.
    pub rq: RqRef<'a>,
}

/// An accepted command, whose outcome the transport must report once.
#[derive(Debug)]
#[must_use = "an accepted command must be given back"]
pub struct AcceptedCommand {
    pub(super) rq: InFlight,
    pub(super) note: Note,
}

impl AcceptedCommand {
    /// Returns the tag, which is unique within the hardware queue until the command is given back.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.rq.tag()
    }
}

/// What the midlayer needs to know about a command when it is given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    /// A device need not support the command: it unmaps or zeroes without data of its request.
    pub(super) is_optional: bool,
    pub(super) retries: u8,
    /// When the first try began (`jiffies_at_alloc`).
    pub(super) began: Instant,
}

/// A [`Note`], and the descriptor block of the command, if the transport keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) note: Note,
    pub(super) cdb: Option<[u8; 16]>,
}

/// Commands of one LUN and hardware queue on their way to the transport, oldest first.
pub struct CommandBatch<'a, 'b> {
    pub(super) batch: &'a mut RqBatch<'b>,
    pub(super) disk: &'a ScsiDisk,
    /// The front command was admitted and is counted in the LUN's depth.
    pub(super) is_admitted: bool,
    /// Why the front command is not shown.
    pub(super) refused: Option<QueueRqStatus>,
    pub(super) now: Instant,
}

impl CommandBatch<'_, '_> {
    /// Returns the hardware queue of the commands.
    #[inline]
    pub fn hctx(&self) -> HctxId {
        self.batch.hctx()
    }

    /// Returns the logical unit of the commands.
    #[inline]
    pub fn lun(&self) -> LunId {
        self.disk.lun()
    }

    /// Returns the oldest command not yet accepted; `None` when there is none, or when none is admitted now.
    #[inline]
    pub fn front(&mut self) -> Option<Command<'_>> {
        if self.refused.is_some() || self.batch.remaining() == 0 {
            return None;
        }
        if !self.is_admitted {
            if let Err(status) = self.disk.admit(self.batch.hctx()) {
                self.refused = Some(status);
                return None;
            }
            self.is_admitted = true;
        }
        let rq = self.batch.front()?;
        match self.disk.command_of(&rq) {
            Ok((cdb, payload)) => Some(Command { cdb, payload, rq }),
            Err(status) => {
                self.refused = Some(QueueRqStatus::Error(status));
                None
            }
        }
    }

    /// Rejects the front command, because the transport can never carry it: its request fails with this status. No
    /// more commands are shown.
    #[cold]
    pub fn refuse(&mut self, status: BlkStatus) {
        self.refused = Some(QueueRqStatus::Error(status));
    }

    /// Accepts the front command. Panics when [`CommandBatch::front`] has not shown it.
    #[inline]
    pub fn accept(&mut self) -> AcceptedCommand {
        assert!(self.is_admitted, "a command is taken over that was not shown");
        self.is_admitted = false;
        let rq = self.batch.front().expect("an admitted command is in the batch");
        let note = Note {
            is_optional: matches!(rq.op(), Op::Discard | Op::WriteZeroes),
            retries: rq.retries(),
            began: rq.first_issued().unwrap_or(self.now),
        };
        AcceptedCommand { rq: self.batch.accept(), note }
    }
}

impl Drop for CommandBatch<'_, '_> {
    fn drop(&mut self) {
        if self.is_admitted {
            self.disk.release(self.batch.hctx());
        }
    }
}

/// The commands that a transport's poll gives back.
pub struct Outcomes<'a> {
    pub(super) done: &'a mut Completions,
    pub(super) disk: &'a ScsiDisk,
    pub(super) hctx: HctxId,
    pub(super) now: Instant,
}

impl Outcomes<'_> {
    /// Returns how many more outcomes fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.done.room()
    }

    /// Reports the outcome of a command. `cdb`: its descriptor block, for messages if it has failed; `None`: the transport
    /// does not keep it. Panics when there is no room, or when the command is not one of the hardware queue and LUN that
    /// were polled.
    #[inline]
    pub fn push(&mut self, ticket: AcceptedCommand, outcome: &Outcome, cdb: Option<&[u8; 16]>) {
        self.disk.came_back(self.hctx, ticket, (outcome, cdb), self.done, self.now);
    }
}

/// Why a transport takes no more commands now (`SCSI_MLQUEUE_*_BUSY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// The device has as many commands as it can hold.
    Device,
    /// The target has as many as it can hold.
    Target,
    /// The host has as many as it can hold, over all its hardware queues.
    Host,
    /// This hardware queue of the host has as many as it can hold, or has lost its connection for now. The other
    /// queues continue, like separate hosts: in the kernel each iSCSI session is a host.
    Hctx,
}

/// The state of an abort: result of the call that begins it, and of the calls that poll it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The abort is in progress. The command is given back with [`HostByte::Abort`](super::disposition::HostByte::Abort), or with
    /// its own outcome if it completes first.
    Begun,
    /// The abort waits until the abort of another command is done.
    Waits,
    /// The command is not in flight any more: it has been given back, or a coming poll gives it back.
    Gone,
    /// The transport has no abort, or the abort failed: the command is still in flight.
    Failed,
}

/// The state of a reset: result of the call that begins it, and of the calls that poll it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// The reset is in progress.
    Begun,
    /// The reset has worked: coming polls give back all commands that it affects. Returned once.
    Done,
    /// The transport has no such reset, or it failed. Returned once.
    Failed,
}

/// The answer to a probe (a command that the midlayer itself sends).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Its outcome.
    pub outcome: Outcome,
    /// The data that it returned: for REQUEST SENSE, the sense data.
    pub data: Vec<u8>,
}

/// Scope of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reset {
    /// One logical unit.
    Lun,
    /// Its target.
    Target,
    /// The transport: every connection is re-established.
    Host,
}

/// Carries commands. See the module's text for the rules.
pub trait Transport: Send + Sync {
    /// Short name of its kind: "iscsi".
    fn name(&self) -> &'static str;

    /// Limits of one command, and timeouts.
    fn limits(&self) -> TransportLimits;

    /// Prepares `nr_hw_queues` hardware queues of `queue_depth` tags each for a LUN that has nothing in flight.
    fn start(&self, lun: LunId, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String>;

    /// Starts commands of one LUN and hardware queue, in order, until [`CommandBatch::front`] shows none; then
    /// returns `None`. If the transport can take no more before that, returns why.
    fn queue(&self, batch: &mut CommandBatch<'_, '_>, now: Instant) -> Option<Busy>;

    /// Moves completed commands of a LUN and hardware queue to `ended`, as many as fit, without waiting.
    fn poll(&self, lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, now: Instant);

    /// Aborts a late command; further calls poll the abort. If the command with this tag was issued at another time
    /// than `late` says, returns [`Abort::Gone`]. A command is never given back while its device may still access its
    /// data.
    fn abort(&self, _lun: LunId, _hctx: HctxId, _late: TimedOut, _now: Instant) -> Abort {
        Abort::Failed
    }

    /// Begins a reset; further calls poll it. All commands that it affects are given back with
    /// [`HostByte::Reset`](super::disposition::HostByte::Reset). The midlayer polls each reset until it is over, or
    /// drops it.
    fn reset(&self, _what: Reset, _lun: LunId, _now: Instant) -> Help {
        Help::Failed
    }

    /// Drops a reset that was begun: its result must not be returned as the result of the next reset.
    fn drop_reset(&self, _what: Reset, _lun: LunId) {}

    /// Sends a probe: a command of the midlayer itself, without data to the device. Returns false if it cannot be sent.
    /// A LUN has one probe at a time.
    ///
    /// A probe uses no request, because commands that do not complete may hold all tags of a LUN. With a reserved tag it
    /// would need a request, and a queue that dispatches this request while all others are stopped.
    fn probe(&self, _lun: LunId, _cdb: &Cdb, _now: Instant) -> bool {
        false
    }

    /// Returns the answer to the probe once it is there.
    fn probed(&self, _lun: LunId, _now: Instant) -> Option<Probed> {
        None
    }

    /// Drops a probe: its answer is not polled any more.
    fn drop_probe(&self, _lun: LunId) {}

    /// The LUN goes offline, because recovery has failed: the next polls must give back all its commands. After that no
    /// device or thread may access their data, even if the transport has to close a connection to ensure that.
    fn abandon(&self, _lun: LunId, _now: Instant) {}
}

/// Limits and timeouts of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Maximum number of sectors of one command.
    pub max_sectors: u32,
    /// Maximum number of data segments of one command.
    pub max_segments: u16,
    /// How long a command may take before it is late.
    pub timeout: Duration,
    /// How long a reset of the host may take.
    pub host_reset: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luns_have_the_standards_addresses() {
        assert_eq!(LunId(5).to_wire(), [0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(LunId(0x123).to_wire(), [0x41, 0x23, 0, 0, 0, 0, 0, 0]);
        for lun in [0, 1, 255, 256, LunId::MAX] {
            assert_eq!(LunId::from_wire(LunId(lun).to_wire()), Some(LunId(lun)));
        }
        assert_eq!(LunId::from_wire([0x80, 1, 0, 0, 0, 0, 0, 0]), None, "logical unit addressing");
        assert_eq!(LunId::from_wire([0, 1, 0, 2, 0, 0, 0, 0]), None, "two levels");
    }
}
