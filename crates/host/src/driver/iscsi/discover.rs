// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the targets of a portal, and the logical units of a target.
//!
//! Guarantees: the result is printable, whatever the target sends. A discovery session is logged out before the call
//! returns. Does not do: iSNS, SLP. Logs in only to the portal that was given.
//! Source: RFC 7143, 4.3 (discovery), appendix C (SendTargets); SPC-5, 6.33 (REPORT LUNS).

use super::attach::{Unit, identify, must};
use super::dial::dial;
use super::initiator::Initiator;
use super::login::Found;
use super::uri::IscsiTarget;
use crate::driver::remote::dial::printable;
use crate::error::{Error, ErrorKind, Result};
use blk::scsi::cdb::Cdb;
use blk::scsi::transport::LunId;

/// Maximum number of logical units of one target that are examined.
const MAX_LUNS: usize = 1024;
/// Bytes of the header of REPORT LUNS.
const HEADER: usize = 8;

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

/// Returns the disks of the target `name` at the portal of `target`, in the order of the target.
///
/// # Errors
/// The errors of [`Iscsi::open`](super::Iscsi::open), except that a logical unit that is no disk is left out.
pub fn logical_units(target: &IscsiTarget, name: &str) -> Result<Vec<FoundUnit>> {
    let (initiator, never) = (Initiator::of(target)?, crate::event::new()?);
    let wanted = initiator.wanted(target, Some(name), 0)?;
    let mut line = dial(&target.portal, &wanted, &never)?;
    let within = |e: Error| e.within(&format!("iSCSI target {name}"));
    let most = (HEADER + 8 * MAX_LUNS) as u16;
    let list = must(&mut line, LunId(0), &Cdb::report_luns(u32::from(most)), most, "REPORT LUNS").map_err(within)?;
    let mut units = Vec::new();
    for lun in listed(&list) {
        match identify(&mut line, lun) {
            Ok((Unit { identity, blocks, block_size, .. }, _)) => {
                let bytes = blocks.saturating_mul(u64::from(block_size));
                units.push(FoundUnit { lun, bytes, block_size, identity: printable(identity.to_string()) });
            }
            // A controller, or a unit that does not exist: no disk.
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::NotFound) => {}
            Err(e) => return Err(within(e)),
        }
    }
    Ok(units)
}

/// Returns the simple addresses in an answer to REPORT LUNS; others cannot be written in a URL.
fn listed(answer: &[u8]) -> Vec<LunId> {
    let told = answer.first_chunk::<4>().map_or(0, |n| u32::from_be_bytes(*n) as usize);
    let list = answer.get(HEADER..).unwrap_or_default();
    let list = list.get(..told).unwrap_or(list);
    list.chunks_exact(8).filter_map(|c| LunId::from_wire(c.try_into().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_answer_to_report_luns_is_read() {
        let lun = |n: u16| LunId(n).to_wire();
        let answer = [&[0, 0, 0, 24, 0, 0, 0, 0][..], &lun(0), &lun(1), &lun(300)].concat();
        assert_eq!(listed(&answer), [LunId(0), LunId(1), LunId(300)]);
        assert_eq!(listed(&answer[..20]), [LunId(0)], "cut off");
        assert_eq!(
            listed(&[&[0, 0, 0, 8, 0, 0, 0, 0][..], &lun(7), &lun(1)].concat()),
            [LunId(7)],
            "more than it says"
        );
        assert_eq!(listed(&[&[255; 8][..], &[0xc0, 1, 0, 0, 0, 0, 0, 0]].concat()), [], "a well known one is left out");
        assert_eq!((listed(&[]), listed(&[0; 7])), (vec![], vec![]));
    }
}
