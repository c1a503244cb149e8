// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the targets of a portal, and the logical units of a target.
//!
//! Guarantees: the result is printable, whatever the target sends. A discovery session is logged out before the call
//! returns. Does not do: iSNS, SLP. Logs in only to the portal that was given.
//! Source: RFC 7143, 4.3 (discovery), appendix C (SendTargets); SPC-5, 6.33 (REPORT LUNS).

use super::attach::{Unit, identify, must};
use super::dial::{Line, dial};
use super::initiator::Initiator;
use super::login::Found;
use super::uri::IscsiTarget;
use crate::driver::remote::dial::printable;
use crate::error::{Error, ErrorKind, Result};
use blk::scsi::cdb::Cdb;
use blk::scsi::inquiry::luns;
use blk::scsi::transport::LunId;

/// Maximum number of logical units of one target that are examined.
const MAX_LUNS: usize = 1024;
/// Bytes of the header of REPORT LUNS.
const HEADER: usize = 8;
/// Allocation length of the first REPORT LUNS, in bytes. istgt does not answer a command with more than 8192.
const FIRST_LENGTH: u16 = 4096;

/// A logical unit that is a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundUnit {
    /// Its number.
    pub lun: LunId,
    /// Its size.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Its identity: the same over all paths to it.
    pub identity: String,
}

/// Returns the targets that a portal reports. Our name and password are those of `target`, whose name and LUN do not matter
/// ([`parse_portal`](super::parse_portal)).
///
/// # Errors
/// The errors of [`Iscsi::open`](super::Iscsi::open).
pub fn discover(target: &IscsiTarget) -> Result<Vec<Found>> {
    let (initiator, never) = (Initiator::of(target)?, crate::event::new()?);
    let wanted = initiator.wanted(target, None, 0)?;
    let mut line = dial(&target.portal, &wanted, &never)?;
    line.send_targets().map_err(|e| e.within(&format!("iSCSI portal {}", line.portal())))
}

/// Returns the disks of the target `name` at the portal of `target`, in the order of the target. Also returns the first error of a unit that
/// could not be examined, and how many units were not examined because the session was lost. A logical unit that is no disk is left out.
///
/// # Errors
/// The errors of [`Iscsi::open`](super::Iscsi::open), for the target as a whole.
pub fn logical_units(target: &IscsiTarget, name: &str) -> Result<(Vec<FoundUnit>, Option<Error>)> {
    let (initiator, never) = (Initiator::of(target)?, crate::event::new()?);
    let wanted = initiator.wanted(target, Some(name), 0)?;
    let mut line = dial(&target.portal, &wanted, &never)?;
    let within = |e: Error| e.within(&format!("iSCSI target {name}"));
    let list = report_luns(&mut line).map_err(within)?;
    let (mut units, mut failed) = (Vec::new(), None::<Error>);
    // Other addresses cannot be written in a URL.
    let all = luns(&list);
    for (at, lun) in all.iter().copied().enumerate() {
        match identify(&mut line, lun) {
            Ok((Unit { identity, blocks, block_size, .. }, _)) => {
                let bytes = blocks.saturating_mul(u64::from(block_size));
                units.push(FoundUnit { lun, bytes, block_size, identity: printable(identity.to_string()) });
            }
            // All units share the time of one session.
            Err(e) if line.is_lost() => {
                let (left, all) = (all.len() - at, all.len());
                let e =
                    e.within(&format!("{left} of its {all} logical units were not examined, from LUN {} on", lun.0));
                failed = Some(match failed {
                    None => within(e),
                    Some(first) => Error::new(first.kind(), format!("{first}; {e}")),
                });
                break;
            }
            // A controller, or a unit that does not exist: no disk.
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::NotFound) => {}
            // Such as a unit behind a standby port.
            Err(e) => failed = failed.or_else(|| Some(within(e))),
        }
    }
    Ok((units, failed))
}

/// Returns the answer to REPORT LUNS. A list that does not fit into the first answer is asked for again.
fn report_luns(line: &mut Line<'_>) -> Result<Vec<u8>> {
    let mut ask = |most: u16| must(line, LunId(0), &Cdb::report_luns(u32::from(most)), most, "REPORT LUNS");
    let list = ask(FIRST_LENGTH)?;
    match longer_length(&list) {
        Some(most) => ask(most),
        None => Ok(list),
    }
}

/// Returns the length to ask for, up to that of [`MAX_LUNS`], if the first answer says that the list is longer.
fn longer_length(answer: &[u8]) -> Option<u16> {
    let told = answer.first_chunk::<4>().map_or(0, |n| u32::from_be_bytes(*n) as usize);
    let whole = told.min(8 * MAX_LUNS) + HEADER;
    (whole > usize::from(FIRST_LENGTH)).then_some(whole as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_list_is_asked_for_within_bounds() {
        let of = |told: u32| longer_length(&[&told.to_be_bytes()[..], &[0; 4]].concat());
        assert_eq!((of(0), of(4088), of(4089), of(4096)), (None, None, Some(4097), Some(4104)));
        assert_eq!((of(8192), of(8200), of(u32::MAX)), (Some(8200), Some(8200), Some(8200)));
        assert_eq!((longer_length(&[]), longer_length(&[0xff; 3])), (None, None));
    }
}
