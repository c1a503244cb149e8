// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words for status codes, sense keys and additional sense codes, for messages.
//!
//! Guarantees: every byte has a text. A code without words is printed as hex, with the bytes that a vendor's manual lists.
//! Does not do: decide anything; see [`disposition`](super::disposition).
//! Source: SAM-5 table 26, SPC-5 table 49, and T10's list of additional sense codes: those that disks and arrays return.

use super::disposition::sam;
use super::sense::SenseKey;
use core::fmt;

/// Additional sense code, its qualifier, and T10's words for both; sorted.
const CODES: [(u8, u8, &str); 117] = [
    (0x00, 0x00, "No additional sense information"),
    (0x04, 0x00, "Logical unit not ready, cause not reportable"),
    (0x04, 0x01, "Logical unit is in process of becoming ready"),
    (0x04, 0x02, "Logical unit not ready, initializing command required"),
    (0x04, 0x03, "Logical unit not ready, manual intervention required"),
    (0x04, 0x04, "Logical unit not ready, format in progress"),
    (0x04, 0x05, "Logical unit not ready, rebuild in progress"),
    (0x04, 0x06, "Logical unit not ready, recalculation in progress"),
    (0x04, 0x07, "Logical unit not ready, operation in progress"),
    (0x04, 0x09, "Logical unit not ready, self-test in progress"),
    (0x04, 0x0a, "Logical unit not accessible, asymmetric access state transition"),
    (0x04, 0x0b, "Logical unit not accessible, target port in standby state"),
    (0x04, 0x0c, "Logical unit not accessible, target port in unavailable state"),
    (0x04, 0x11, "Logical unit not ready, notify (enable spinup) required"),
    (0x04, 0x12, "Logical unit not ready, offline"),
    (0x04, 0x14, "Logical unit not ready, space allocation in progress"),
    (0x04, 0x1a, "Logical unit not ready, start stop unit command in progress"),
    (0x04, 0x1b, "Logical unit not ready, sanitize in progress"),
    (0x04, 0x1d, "Logical unit not ready, configuration in progress"),
    (0x04, 0x24, "Depopulation in progress"),
    (0x05, 0x00, "Logical unit does not respond to selection"),
    (0x08, 0x00, "Logical unit communication failure"),
    (0x08, 0x01, "Logical unit communication time-out"),
    (0x08, 0x02, "Logical unit communication parity error"),
    (0x0b, 0x00, "Warning"),
    (0x0b, 0x01, "Warning - specified temperature exceeded"),
    (0x0c, 0x00, "Write error"),
    (0x0c, 0x02, "Write error - auto reallocation failed"),
    (0x0c, 0x03, "Write error - recommend reassignment"),
    (0x0c, 0x0c, "Write error - unexpected unsolicited data"),
    (0x0c, 0x0d, "Write error - not enough unsolicited data"),
    (0x10, 0x00, "Id CRC or ECC error"),
    (0x10, 0x01, "Logical block guard check failed"),
    (0x10, 0x02, "Logical block application tag check failed"),
    (0x10, 0x03, "Logical block reference tag check failed"),
    (0x11, 0x00, "Unrecovered read error"),
    (0x11, 0x01, "Read retries exhausted"),
    (0x11, 0x02, "Error too long to correct"),
    (0x11, 0x04, "Unrecovered read error - auto reallocate failed"),
    (0x11, 0x0b, "Unrecovered read error - recommend reassignment"),
    (0x11, 0x0c, "Unrecovered read error - recommend rewrite the data"),
    (0x11, 0x14, "Read error - LBA marked bad by application client"),
    (0x13, 0x00, "Address mark not found for data field"),
    (0x14, 0x00, "Recorded entity not found"),
    (0x14, 0x01, "Record not found"),
    (0x15, 0x00, "Random positioning error"),
    (0x16, 0x00, "Data synchronization mark error"),
    (0x17, 0x00, "Recovered data with no error correction applied"),
    (0x17, 0x01, "Recovered data with retries"),
    (0x18, 0x00, "Recovered data with error correction applied"),
    (0x1a, 0x00, "Parameter list length error"),
    (0x1d, 0x00, "Miscompare during verify operation"),
    (0x20, 0x00, "Invalid command operation code"),
    (0x20, 0x02, "Access denied - no access rights"),
    (0x21, 0x00, "Logical block address out of range"),
    (0x22, 0x00, "Illegal function"),
    (0x24, 0x00, "Invalid field in CDB"),
    (0x25, 0x00, "Logical unit not supported"),
    (0x26, 0x00, "Invalid field in parameter list"),
    (0x26, 0x01, "Parameter not supported"),
    (0x26, 0x02, "Parameter value invalid"),
    (0x26, 0x04, "Invalid release of persistent reservation"),
    (0x27, 0x00, "Write protected"),
    (0x27, 0x01, "Hardware write protected"),
    (0x27, 0x02, "Logical unit software write protected"),
    (0x27, 0x03, "Associated write protect"),
    (0x27, 0x04, "Persistent write protect"),
    (0x27, 0x05, "Permanent write protect"),
    (0x27, 0x06, "Conditional write protect"),
    (0x27, 0x07, "Space allocation failed write protect"),
    (0x28, 0x00, "Not ready to ready change, medium may have changed"),
    (0x29, 0x00, "Power on, reset, or bus device reset occurred"),
    (0x29, 0x01, "Power on occurred"),
    (0x29, 0x02, "SCSI bus reset occurred"),
    (0x29, 0x03, "Bus device reset function occurred"),
    (0x29, 0x04, "Device internal reset"),
    (0x29, 0x07, "I_T nexus loss occurred"),
    (0x2a, 0x00, "Parameters changed"),
    (0x2a, 0x01, "Mode parameters changed"),
    (0x2a, 0x03, "Reservations preempted"),
    (0x2a, 0x04, "Reservations released"),
    (0x2a, 0x05, "Registrations preempted"),
    (0x2a, 0x06, "Asymmetric access state changed"),
    (0x2a, 0x07, "Implicit asymmetric access state transition failed"),
    (0x2a, 0x09, "Capacity data has changed"),
    (0x2c, 0x00, "Command sequence error"),
    (0x2e, 0x01, "Command timeout before processing"),
    (0x2e, 0x02, "Command timeout during processing"),
    (0x2e, 0x03, "Command timeout during processing due to error recovery"),
    (0x2f, 0x00, "Commands cleared by another initiator"),
    (0x2f, 0x02, "Commands cleared by device server"),
    (0x31, 0x00, "Medium format corrupted"),
    (0x32, 0x00, "No defect spare location available"),
    (0x38, 0x07, "Thin provisioning soft threshold reached"),
    (0x3a, 0x00, "Medium not present"),
    (0x3e, 0x00, "Logical unit has not self-configured yet"),
    (0x3e, 0x01, "Logical unit failure"),
    (0x3e, 0x02, "Timeout on logical unit"),
    (0x3f, 0x00, "Target operating conditions have changed"),
    (0x3f, 0x01, "Microcode has been changed"),
    (0x3f, 0x03, "Inquiry data has changed"),
    (0x3f, 0x05, "Device identifier changed"),
    (0x3f, 0x0e, "Reported LUNs data has changed"),
    (0x44, 0x00, "Internal target failure"),
    (0x47, 0x00, "SCSI parity error"),
    (0x47, 0x01, "Data phase CRC error detected"),
    (0x4b, 0x00, "Data phase error"),
    (0x4e, 0x00, "Overlapped commands attempted"),
    (0x55, 0x00, "System resource failure"),
    (0x55, 0x01, "System buffer full"),
    (0x55, 0x03, "Insufficient resources"),
    (0x5d, 0x00, "Failure prediction threshold exceeded"),
    (0x5e, 0x00, "Low power condition on"),
    (0x67, 0x0a, "Set target port groups command failed"),
    (0x68, 0x00, "Logical unit not configured"),
    (0x69, 0x00, "Data loss on logical unit"),
    (0x6e, 0x00, "Command to logical unit failed"),
];

/// An additional sense code and its qualifier, as words and hex.
pub(super) struct Additional(pub(super) u8, pub(super) u8);

impl fmt::Display for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Additional(asc, ascq) = *self;
        match CODES.binary_search_by_key(&(asc, ascq), |(asc, ascq, _)| (*asc, *ascq)) {
            Ok(at) => write!(f, "{} ({asc:02x}/{ascq:02x})", CODES[at].2),
            Err(_) => write!(f, "ASC=0x{asc:02x} ASCQ=0x{ascq:02x}"),
        }
    }
}

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SenseKey::NoSense => "No Sense",
            SenseKey::RecoveredError => "Recovered Error",
            SenseKey::NotReady => "Not Ready",
            SenseKey::MediumError => "Medium Error",
            SenseKey::HardwareError => "Hardware Error",
            SenseKey::IllegalRequest => "Illegal Request",
            SenseKey::UnitAttention => "Unit Attention",
            SenseKey::DataProtect => "Data Protect",
            SenseKey::BlankCheck => "Blank Check",
            SenseKey::VendorSpecific => "Vendor Specific",
            SenseKey::CopyAborted => "Copy Aborted",
            SenseKey::AbortedCommand => "Aborted Command",
            SenseKey::Reserved => "Reserved",
            SenseKey::VolumeOverflow => "Volume Overflow",
            SenseKey::Miscompare => "Miscompare",
            SenseKey::Completed => "Completed",
        })
    }
}

/// A status code of a device as words.
pub(super) struct StatusText(pub(super) u8);

impl fmt::Display for StatusText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            sam::GOOD => "Good",
            sam::CHECK_CONDITION => "Check Condition",
            sam::CONDITION_MET => "Condition Met",
            sam::BUSY => "Busy",
            sam::RESERVATION_CONFLICT => "Reservation Conflict",
            sam::TASK_SET_FULL => "Task Set Full",
            sam::ACA_ACTIVE => "ACA Active",
            sam::TASK_ABORTED => "Task Aborted",
            other => return write!(f, "0x{other:02x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_listed_once_and_found() {
        for pair in CODES.windows(2) {
            let [a, b] = [&pair[0], &pair[1]].map(|(asc, ascq, _)| (*asc, *ascq));
            assert!(a < b, "{a:02x?} before {b:02x?}");
        }
        for (asc, ascq, words) in CODES {
            assert_eq!(Additional(asc, ascq).to_string(), format!("{words} ({asc:02x}/{ascq:02x})"));
        }
    }

    #[test]
    fn unknown_codes_are_printed_as_hex() {
        assert_eq!(Additional(0x11, 0x9a).to_string(), "ASC=0x11 ASCQ=0x9a");
        assert_eq!(StatusText(0x42).to_string(), "0x42");
    }
}
