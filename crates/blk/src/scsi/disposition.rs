// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides whether a command that a transport has given back completes, is sent again, or needs recovery.
//!
//! Guarantees: the decision depends only on the arguments, and every combination of bytes has one. The kernel decides
//! in two steps: first whether the command is done, then how its request completes. This code does both in one step.
//! Does not do: changes of the device's state after some outcomes (QUEUE FULL, unit attentions): see [`Judged::event`].
//! Source: drivers/scsi/scsi_error.c (`scsi_decide_disposition`, `scsi_check_sense`, `scsi_noretry_cmd`) and scsi_lib.c
//! (`scsi_io_completion_action`, `scsi_result_to_blk_status`) of Linux 6.19.

use super::sense::{Sense, SenseKey};
use crate::status::BlkStatus;
use crate::time::Duration;

/// A transport's report on a command, apart from the device's status (`DID_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostByte {
    /// The command reached the device, and the status is the device's.
    #[default]
    Ok,
    /// There is no connection to the device.
    NoConnect,
    /// The bus stayed busy.
    BusBusy,
    /// It timed out.
    TimeOut,
    /// There is no such target.
    BadTarget,
    /// It was aborted.
    Abort,
    /// The data that arrived was damaged.
    Parity,
    /// The transport failed for an internal reason.
    Error,
    /// The device or the bus was reset.
    Reset,
    /// A transient fault.
    SoftError,
    /// Send again at once; counts as a retry.
    ImmRetry,
    /// Queue again; does not count as a retry.
    Requeue,
    /// The connection was lost, and the transport reconnects.
    TransportDisrupted,
    /// The time limit for reconnecting has expired.
    TransportFailfast,
    /// The connection loses too many commands or packets.
    TransportMarginal,
}

/// Status codes of devices (SAM-5, table 26).
pub mod sam {
    #![allow(missing_docs, reason = "the standard's names")]
    pub const GOOD: u8 = 0x00;
    pub const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const CONDITION_MET: u8 = 0x04;
    pub const BUSY: u8 = 0x08;
    pub const RESERVATION_CONFLICT: u8 = 0x18;
    pub const TASK_SET_FULL: u8 = 0x28;
    pub(crate) const ACA_ACTIVE: u8 = 0x30;
    pub(crate) const TASK_ABORTED: u8 = 0x40;
}

/// Outcome of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The transport's report.
    pub host: HostByte,
    /// The device's status byte, see [`sam`].
    pub status: u8,
    /// The reason of a CHECK CONDITION. `None` if there is no readable sense data.
    pub sense: Option<Sense>,
    /// Bytes that were requested and not transferred, if that matters. If it is not 0 the command has failed,
    /// whatever its status says.
    pub residual: u32,
}

impl Outcome {
    /// The command succeeded.
    pub const GOOD: Outcome = Outcome { host: HostByte::Ok, status: sam::GOOD, sense: None, residual: 0 };

    /// An outcome with this report of the transport.
    pub const fn host(host: HostByte) -> Outcome {
        Outcome { host, ..Outcome::GOOD }
    }

    /// A CHECK CONDITION with this sense data.
    pub const fn check(sense: Sense) -> Outcome {
        Outcome { host: HostByte::Ok, status: sam::CHECK_CONDITION, sense: Some(sense), residual: 0 }
    }

    /// Whether the command succeeded, so that there is nothing to decide.
    #[inline]
    pub fn is_good(&self) -> bool {
        *self == Outcome::GOOD
    }

    /// Whether the device returned CHECK CONDITION without sense data.
    pub(super) fn lacks_sense(&self) -> bool {
        self.host == HostByte::Ok && self.status == sam::CHECK_CONDITION && self.sense.is_none()
    }
}

/// Failures that are not retried, because another path may be faster (`REQ_FAILFAST_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failfast {
    /// Failures of the device.
    pub device: bool,
    /// Failures of the connection to it.
    pub transport: bool,
    /// Failures of the transport's driver.
    pub driver: bool,
}

/// Facts about the command that the decision needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// It has no retries left.
    pub is_last: bool,
    /// It has used up the time of all its tries together: (retries + 1) times the timeout.
    pub is_late: bool,
    /// It unmaps or writes without data of its request (UNMAP, WRITE SAME), and a device need not support it.
    pub is_optional: bool,
    /// Failures that are not retried.
    pub failfast: Failfast,
    /// A device that has stopped is started again (`allow_restart`).
    pub allow_restart: bool,
}

/// The decision about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its request completes with this status.
    End(BlkStatus),
    /// It is sent again; counts as a retry.
    Retry,
    /// It is sent again after this time; does not count as a retry.
    Requeue(Option<Duration>),
    /// It needs error recovery: abort, reset.
    Recover,
}

/// What the outcome of a command says about the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Nothing.
    #[default]
    None,
    /// It holds as many commands as it can (TASK SET FULL).
    QueueFull,
    /// A command succeeded.
    Good,
    /// Its size has changed (2a/09).
    CapacityChanged,
    /// Its properties or identity have changed, or the list of LUNs (3f/03, 3f/0e): identify it again.
    Changed,
    /// It was reset, or reservations or ALUA states may have changed (29, 2a).
    StateChanged,
}

/// A verdict on a command, and what its outcome says about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The decision about the command.
    pub verdict: Verdict,
    /// What the device reported.
    pub event: DeviceEvent,
}

/// Delay before a command is sent again to a device that is becoming ready or changes its ALUA state.
pub(crate) const RETRY_DELAY: Duration = Duration::from_ms(1000);
/// Delay for a device that was busy (`BLK_MQ_RESOURCE_DELAY`: the kernel's blocked counters amount to this when
/// nothing is in flight).
const BUSY_DELAY: Duration = Duration::from_ms(3);

/// Decides whether a command completes, is sent again or needs recovery, and what its outcome says about the device.
pub fn judge(outcome: &Outcome, about: &About) -> Judged {
    if outcome.is_good() {
        return Judged { verdict: Verdict::End(BlkStatus::Ok), event: DeviceEvent::Good };
    }
    let event = event(outcome);
    let verdict = match by_host(outcome, about) {
        // The kernel requests only the missing part (`scsi_finish_command`). Sending the whole command again is also
        // correct, and rare.
        Verdict::End(BlkStatus::Ok) if outcome.residual > 0 => Verdict::Retry,
        verdict => verdict,
    };
    let verdict = match verdict {
        // The retries or the time are used up.
        Verdict::Retry if about.is_last => Verdict::End(ended(outcome)),
        Verdict::Retry | Verdict::Requeue(_) if about.is_late => Verdict::End(ended(outcome)),
        verdict => verdict,
    };
    Judged { verdict, event }
}

fn by_host(outcome: &Outcome, about: &About) -> Verdict {
    let fast = about.failfast;
    let unless = |given_up: bool| if given_up { Verdict::End(ended(outcome)) } else { Verdict::Retry };
    match outcome.host {
        HostByte::Ok => by_status(outcome, about),
        HostByte::Error if outcome.status == sam::RESERVATION_CONFLICT => by_status(outcome, about),
        HostByte::NoConnect
        | HostByte::BadTarget
        | HostByte::Abort
        | HostByte::TransportFailfast
        | HostByte::TransportMarginal => Verdict::End(ended(outcome)),
        HostByte::ImmRetry => Verdict::Retry,
        HostByte::Requeue => Verdict::Requeue(None),
        HostByte::SoftError | HostByte::Error => unless(fast.driver),
        HostByte::BusBusy | HostByte::TransportDisrupted => unless(fast.transport),
        HostByte::Parity => unless(fast.device),
        HostByte::Reset => Verdict::Retry,
        HostByte::TimeOut => Verdict::Recover,
    }
}

fn by_status(outcome: &Outcome, about: &About) -> Verdict {
    match outcome.status {
        sam::GOOD | sam::CONDITION_MET => Verdict::End(BlkStatus::Ok),
        sam::CHECK_CONDITION => match &outcome.sense {
            Some(sense) => by_sense(sense, outcome, about),
            // The device did not report why the command failed.
            None => Verdict::Recover,
        },
        sam::BUSY | sam::TASK_SET_FULL => Verdict::Requeue(Some(BUSY_DELAY)),
        sam::TASK_ABORTED => Verdict::Retry,
        sam::RESERVATION_CONFLICT => Verdict::End(BlkStatus::ResvConflict),
        sam::ACA_ACTIVE => Verdict::End(BlkStatus::IoErr),
        _ => Verdict::Recover,
    }
}

fn by_sense(sense: &Sense, outcome: &Outcome, about: &About) -> Verdict {
    let unless_fast = if about.failfast.device { Verdict::End(ended(outcome)) } else { Verdict::Retry };
    if sense.is_deferred {
        return unless_fast;
    }
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed, ..) => Verdict::End(BlkStatus::Ok),
        (SenseKey::AbortedCommand, 0x10, _) => Verdict::End(BlkStatus::Protection),
        (SenseKey::AbortedCommand, 0x2e, 1..=3) => Verdict::End(BlkStatus::DurationLimit),
        (SenseKey::AbortedCommand, ..) => unless_fast,
        (SenseKey::NotReady, ..) if about.allow_restart && sense.wants_start() => Verdict::Recover,
        // The device becomes ready, or is busy with an internal operation: its state will change soon.
        (SenseKey::NotReady, 0x04, 0x01 | 0x04..=0x09 | 0x11 | 0x14 | 0x1a | 0x1b | 0x1d | 0x24) => {
            Verdict::Requeue(Some(RETRY_DELAY))
        }
        (SenseKey::NotReady | SenseKey::UnitAttention, 0x04, 0x0a) => Verdict::Requeue(Some(RETRY_DELAY)),
        // Standby, unavailable, offline (ALUA): other paths may work.
        (SenseKey::NotReady, 0x04, 0x0b | 0x0c | 0x12) => Verdict::End(BlkStatus::Transport),
        (SenseKey::NotReady, ..) => Verdict::End(BlkStatus::IoErr),
        // Reported once per initiator; the device did not execute the command.
        (SenseKey::UnitAttention, ..) => Verdict::Requeue(None),
        (SenseKey::MediumError, 0x11 | 0x13 | 0x14, _) => Verdict::End(BlkStatus::Medium),
        (SenseKey::MediumError, ..) => unless_fast,
        // The device does not support the command: the layer above does it another way.
        (SenseKey::IllegalRequest, 0x20 | 0x24, _) if about.is_optional => Verdict::End(BlkStatus::NotSupp),
        (SenseKey::IllegalRequest, 0x10, _) => Verdict::End(BlkStatus::Protection),
        (SenseKey::DataProtect, 0x27, 0x07) => Verdict::End(BlkStatus::NoSpc),
        _ => Verdict::End(target_or_io(sense)),
    }
}

/// Decides about a command that error handling has finished with, successfully or not (`scsi_eh_flush_done_q`).
pub(super) fn after_help(outcome: &Outcome, about: &About, is_online: bool) -> Judged {
    let may_retry = is_online && !about.is_last && !about.is_late && !about.failfast.device;
    let again = if may_retry { Verdict::Retry } else { Verdict::End(BlkStatus::Timeout) };
    let Judged { verdict, event } = judge(outcome, about);
    let verdict = match verdict {
        // However the command was given back, it did not complete in time.
        _ if matches!(outcome.host, HostByte::Abort | HostByte::Reset | HostByte::TimeOut) => again,
        _ if !is_online && outcome.host != HostByte::Ok => again,
        Verdict::Recover if may_retry => Verdict::Retry,
        Verdict::Recover => Verdict::End(BlkStatus::IoErr),
        Verdict::Retry | Verdict::Requeue(_) if !is_online => Verdict::End(BlkStatus::IoErr),
        verdict => verdict,
    };
    Judged { verdict, event }
}

/// Returns the status of a request whose command has failed and is not sent again.
fn ended(outcome: &Outcome) -> BlkStatus {
    match outcome.host {
        HostByte::TransportFailfast | HostByte::TransportMarginal => BlkStatus::Transport,
        HostByte::TimeOut => BlkStatus::Timeout,
        HostByte::Ok if outcome.status == sam::CHECK_CONDITION => match &outcome.sense {
            // The command was given up while the device was in transition.
            Some(sense) if (sense.asc, sense.ascq) == (0x04, 0x0a) => BlkStatus::Transport,
            Some(sense) => target_or_io(sense),
            None => BlkStatus::IoErr,
        },
        _ => BlkStatus::IoErr,
    }
}

fn target_or_io(sense: &Sense) -> BlkStatus {
    match (sense.key, sense.asc) {
        (SenseKey::MediumError, 0x11 | 0x13 | 0x14) => BlkStatus::Medium,
        (SenseKey::IllegalRequest, 0x20 | 0x21 | 0x22 | 0x24 | 0x26 | 0x27)
        | (
            SenseKey::HardwareError
            | SenseKey::DataProtect
            | SenseKey::BlankCheck
            | SenseKey::CopyAborted
            | SenseKey::VolumeOverflow
            | SenseKey::Miscompare,
            _,
        ) => BlkStatus::Target,
        _ => BlkStatus::IoErr,
    }
}

fn event(outcome: &Outcome) -> DeviceEvent {
    let sense = match outcome {
        Outcome { host: HostByte::Ok, status: sam::TASK_SET_FULL, .. } => return DeviceEvent::QueueFull,
        Outcome { host: HostByte::Ok, status: sam::CHECK_CONDITION, sense: Some(sense), .. } => sense,
        _ => return DeviceEvent::None,
    };
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::UnitAttention, 0x2a, 0x09) => DeviceEvent::CapacityChanged,
        (SenseKey::UnitAttention, 0x3f, _) => DeviceEvent::Changed,
        (SenseKey::UnitAttention, 0x29 | 0x2a, _) => DeviceEvent::StateChanged,
        (SenseKey::NotReady | SenseKey::UnitAttention, 0x04, 0x0a) => DeviceEvent::StateChanged,
        _ => DeviceEvent::None,
    }
}

#[cfg(test)]
#[path = "disposition_tests.rs"]
mod tests;
