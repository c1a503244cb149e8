// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that failed for good: what the midlayer knows about them, for logs and messages.
//!
//! Guarantees: a failure is noted once, when its request completes with an error. Failures that differ only in their
//! address are one kind: the first of them is kept, and the others are counted. Memory is bounded: failures of more than
//! [`MAX_KINDS`] kinds between two calls of [`FailureLog::take`] are only counted. A command that succeeds costs nothing.
//! Does not do: print. The host collects the failures, because only it has a log and a clock.
//! Source of the words: drivers/scsi/scsi_logging.c (`scsi_print_result`, `scsi_print_sense`) of Linux 6.19.

use super::cdb::opcode;
use super::disposition::{HostByte, Outcome, sam};
use super::sense::Sense;
use super::sense_text::{Additional, StatusText};
use crate::lock::Lock;
use crate::status::BlkStatus;
use crate::sync::Mutex;
use core::fmt;

/// Maximum number of kinds of failures that are kept.
pub const MAX_KINDS: usize = 8;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandFailure {
    /// The number of its logical unit.
    pub lun: u16,
    /// Its descriptor block; `None`: the transport does not keep it.
    pub cdb: Option<[u8; 16]>,
    /// The outcome of its last try.
    pub outcome: Outcome,
    /// The status of its request.
    pub status: BlkStatus,
}

impl CommandFailure {
    /// Whether the other command failed in the same way, whatever its address.
    fn is_like(&self, other: &CommandFailure) -> bool {
        let opcode = |f: &CommandFailure| f.cdb.map(|cdb| cdb[0]);
        let sense = |f: &CommandFailure| f.outcome.sense.map(|s| Sense { information: None, ..s });
        let result = |f: &CommandFailure| (f.lun, f.status, f.outcome.host, f.outcome.status, f.outcome.residual > 0);
        opcode(self) == opcode(other) && sense(self) == sense(other) && result(self) == result(other)
    }
}

/// A kind of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureKind {
    /// The first one.
    pub first: CommandFailure,
    /// How many there were, with the first one.
    pub times: u64,
}

/// The failures since the last [`FailureLog::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// By kind, in the order of the first of each kind.
    pub kinds: Vec<FailureKind>,
    /// Number of failures of other kinds.
    pub others: u64,
}

#[derive(Debug, Default)]
struct Noted {
    new: Failures,
    total: u64,
    last: Option<CommandFailure>,
}

impl Noted {
    fn note(&mut self, failure: CommandFailure) {
        self.total += 1;
        self.last = Some(failure);
        let Failures { kinds, others } = &mut self.new;
        match kinds.iter().position(|kind| kind.first.is_like(&failure)) {
            Some(at) => kinds[at].times += 1,
            None if kinds.len() < MAX_KINDS => kinds.push(FailureKind { first: failure, times: 1 }),
            None => *others += 1,
        }
    }
}

/// A lock whose type is erased, so that hosts and disks need not be generic over it.
trait Guarded: Send + Sync {
    fn with(&self, what: &mut dyn FnMut(&mut Noted));
}

impl<L: Lock> Guarded for Mutex<L, Noted> {
    fn with(&self, what: &mut dyn FnMut(&mut Noted)) {
        what(&mut self.lock());
    }
}

/// The failed commands of a host. See the module's text.
pub struct FailureLog(Box<dyn Guarded>);

impl FailureLog {
    pub(super) fn new<L: Lock>() -> FailureLog {
        FailureLog(Box::new(Mutex::<L, Noted>::new(Noted::default())))
    }

    #[cold]
    pub(super) fn note(&self, failure: CommandFailure) {
        self.0.with(&mut |noted| noted.note(failure));
    }

    /// Returns the failures since the last call.
    pub fn take(&self) -> Failures {
        let mut taken = Failures::default();
        self.0.with(&mut |noted| taken = std::mem::take(&mut noted.new));
        taken
    }

    /// Returns how many commands have failed so far, and the last of them; `None`: none.
    pub fn last(&self) -> Option<(u64, CommandFailure)> {
        let mut found = None;
        self.0.with(&mut |noted| found = noted.last.map(|last| (noted.total, last)));
        found
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { host, status, sense, residual } = self.outcome;
        write!(f, "FAILED Result: hostbyte={} driverbyte=DRIVER_OK", host_name(host))?;
        if status != sam::GOOD {
            write!(f, "; Status: {}", StatusText(status))?;
        }
        match sense {
            Some(Sense { key, asc, ascq, is_deferred, information }) => {
                let when = if is_deferred { "deferred" } else { "current" };
                write!(f, "; Sense Key : {key} [{when}]; Add. Sense: {}", Additional(asc, ascq))?;
                if let Some(lba) = information {
                    write!(f, ", at LBA {lba}")?;
                }
            }
            None if status == sam::CHECK_CONDITION => f.write_str("; no sense data")?,
            None => {}
        }
        // If the device reports an error, it has not transferred the data.
        if residual > 0 && status == sam::GOOD {
            write!(f, "; {residual} bytes not transferred")?;
        }
        if let Some(cdb) = &self.cdb {
            f.write_str("; CDB: ")?;
            write_cdb(f, cdb)?;
        }
        write!(f, "; {}", self.status)
    }
}

/// Writes operation, address and length of a command.
fn write_cdb(f: &mut fmt::Formatter<'_>, cdb: &[u8; 16]) -> fmt::Result {
    let name = match cdb[0] {
        opcode::TEST_UNIT_READY => "Test Unit Ready",
        opcode::READ_10 => "Read(10)",
        opcode::WRITE_10 => "Write(10)",
        opcode::SYNCHRONIZE_CACHE_10 => "Synchronize Cache(10)",
        opcode::UNMAP => "Unmap",
        opcode::READ_16 => "Read(16)",
        opcode::WRITE_16 => "Write(16)",
        opcode::SYNCHRONIZE_CACHE_16 => "Synchronize Cache(16)",
        opcode::WRITE_SAME_16 => "Write Same(16)",
        other => return write!(f, "opcode 0x{other:02x}"),
    };
    f.write_str(name)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (lba, blocks) = match cdb[0] {
        opcode::READ_10 | opcode::WRITE_10 => (number(&cdb[2..6]), number(&cdb[7..9])),
        opcode::READ_16 | opcode::WRITE_16 | opcode::WRITE_SAME_16 => (number(&cdb[2..10]), number(&cdb[10..14])),
        // The ranges of an UNMAP are in its parameter list; a cache is written back as a whole.
        _ => return Ok(()),
    };
    write!(f, ", LBA {lba}, {blocks} blocks")
}

fn host_name(host: HostByte) -> &'static str {
    match host {
        HostByte::Ok => "DID_OK",
        HostByte::NoConnect => "DID_NO_CONNECT",
        HostByte::BusBusy => "DID_BUS_BUSY",
        HostByte::TimeOut => "DID_TIME_OUT",
        HostByte::BadTarget => "DID_BAD_TARGET",
        HostByte::Abort => "DID_ABORT",
        HostByte::Parity => "DID_PARITY",
        HostByte::Error => "DID_ERROR",
        HostByte::Reset => "DID_RESET",
        HostByte::SoftError => "DID_SOFT_ERROR",
        HostByte::ImmRetry => "DID_IMM_RETRY",
        HostByte::Requeue => "DID_REQUEUE",
        HostByte::TransportDisrupted => "DID_TRANSPORT_DISRUPTED",
        HostByte::TransportFailfast => "DID_TRANSPORT_FAILFAST",
        HostByte::TransportMarginal => "DID_TRANSPORT_MARGINAL",
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::cdb::Cdb;
    use super::super::sense::SenseKey;
    use super::*;

    fn failure(cdb: Cdb, outcome: Outcome, status: BlkStatus) -> CommandFailure {
        CommandFailure { lun: 1, cdb: Some(*cdb.padded()), outcome, status }
    }

    fn medium_error(lba: u64) -> CommandFailure {
        let sense = Sense { information: Some(lba + 3), ..Sense::new(SenseKey::MediumError, 0x11, 0) };
        failure(Cdb::read(lba, 8, false), Outcome::check(sense), BlkStatus::Medium)
    }

    #[test]
    fn a_failure_has_the_words_of_the_kernel() {
        let write = Cdb::write(1 << 33, 16, false, true);
        let deferred = Sense { is_deferred: true, ..Sense::new(SenseKey::HardwareError, 0x99, 0x01) };
        let lacking = Outcome { sense: None, ..Outcome::check(deferred) };
        let conflict = Outcome { status: sam::RESERVATION_CONFLICT, ..Outcome::GOOD };
        let (unmap, flush) = (Cdb::unmap(), Cdb::synchronize_cache(false));
        let cases = [
            (
                medium_error(2048),
                "FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK; Status: Check Condition; Sense Key : Medium Error \
                 [current]; Add. Sense: Unrecovered read error (11/00), at LBA 2051; CDB: Read(10), LBA 2048, 8 blocks; \
                 critical medium error",
            ),
            (
                failure(write, Outcome::check(deferred), BlkStatus::Target),
                "FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK; Status: Check Condition; Sense Key : Hardware Error \
                 [deferred]; Add. Sense: ASC=0x99 ASCQ=0x01; CDB: Write(16), LBA 8589934592, 16 blocks; critical target \
                 error",
            ),
            (
                failure(unmap, conflict, BlkStatus::ResvConflict),
                "FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK; Status: Reservation Conflict; CDB: Unmap; \
                 reservation conflict",
            ),
            (
                failure(flush, Outcome::host(HostByte::TransportFailfast), BlkStatus::Transport),
                "FAILED Result: hostbyte=DID_TRANSPORT_FAILFAST driverbyte=DRIVER_OK; CDB: Synchronize Cache(10); \
                 recoverable transport error",
            ),
            (
                CommandFailure { cdb: None, ..failure(flush, lacking, BlkStatus::IoErr) },
                "FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK; Status: Check Condition; no sense data; I/O error",
            ),
        ];
        for (failure, text) in cases {
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn failures_of_one_kind_are_counted() {
        let mut noted = Noted::default();
        (0..100).for_each(|lba| noted.note(medium_error(lba)));
        let other = failure(Cdb::write(0, 1, false, false), medium_error(0).outcome, BlkStatus::Medium);
        noted.note(other);
        let kinds = [FailureKind { first: medium_error(0), times: 100 }, FailureKind { first: other, times: 1 }];
        assert_eq!(noted.new, Failures { kinds: kinds.to_vec(), others: 0 });
        assert_eq!((noted.total, noted.last), (101, Some(other)));
    }

    #[test]
    fn many_kinds_are_only_counted() {
        let mut noted = Noted::default();
        for ascq in 0..=255 {
            let sense = Sense::new(SenseKey::HardwareError, 0x80, ascq);
            noted.note(failure(Cdb::read(0, 1, false), Outcome::check(sense), BlkStatus::Target));
        }
        assert_eq!((noted.new.kinds.len(), noted.new.others), (MAX_KINDS, 256 - MAX_KINDS as u64));
    }
}
