// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a path's ALUA state: INQUIRY, page 0x83, REPORT TARGET PORT GROUPS, in a session of its own.
//!
//! Guarantees: every answer has a result. The result is `None`, not an error, if the unit has no port groups, does not name the path's
//! group, or rejects the command. A state in transition is returned as it is. Does not judge the state (`blk::scsi::alua`). Source:
//! `alua_check_tpgs`, `alua_check_vpd` and `alua_rtpg` of drivers/scsi/device_handler/scsi_dh_alua.c.

use super::attach::must;
use super::dial::{Answer, Line};
use crate::error::{Error, ErrorKind, Result};
use blk::scsi::alua::{ANSWER_BYTES, Access, AccessState, PortGroup, Support, own_group};
use blk::scsi::cdb::Cdb;
use blk::scsi::inquiry::vpd;
use blk::scsi::sense::{Sense, SenseKey};
use blk::scsi::transport::LunId;

/// Maximum number of bytes of an INQUIRY page that are requested.
const PAGE_BYTES: u16 = 1024;

/// Asks the unit. `None`: it has no port groups, or does not report that of this path.
pub(super) fn access(line: &mut Line<'_>, lun: LunId) -> Result<Option<Access>> {
    let inquiry = must(line, lun, &Cdb::inquiry(None, 96), 96, "INQUIRY")?;
    let support = Support::parse(&inquiry);
    if !(support.implicit || support.explicit) {
        return Ok(None);
    }
    let failed = |how: String| Err(Error::new(ErrorKind::Io, format!("LUN {}: {how}", lun.0)));
    let page = Cdb::inquiry(Some(vpd::DEVICE_IDENTIFICATION), PAGE_BYTES);
    let names = match line.ask(lun, &page, u32::from(PAGE_BYTES))? {
        Answer::Good(names) => names,
        Answer::Check(Some(Sense { key: SenseKey::IllegalRequest, .. })) => return Ok(None),
        Answer::Check(_) | Answer::Status(_) => return failed("INQUIRY of page 0x83 failed".into()),
    };
    let Some((group, _)) = own_group(&names) else { return Ok(None) };
    let mut told = line.ask(lun, &Cdb::report_target_port_groups(ANSWER_BYTES, true), ANSWER_BYTES)?;
    if let Answer::Check(Some(Sense { key: SenseKey::IllegalRequest, .. })) = told {
        told = line.ask(lun, &Cdb::report_target_port_groups(ANSWER_BYTES, false), ANSWER_BYTES)?;
    }
    match told {
        Answer::Good(told) => Ok(Access::new(support, &names, &told)),
        Answer::Check(Some(Sense { key: SenseKey::IllegalRequest, .. })) => Ok(None),
        Answer::Check(Some(Sense { key: SenseKey::NotReady, asc: 0x04, ascq: 0x0a, .. })) => {
            let group = PortGroup { group, state: AccessState::Transitioning, preferred: false, ports: Vec::new() };
            Ok(Some(Access { support, group, transition: None }))
        }
        Answer::Check(Some(sense)) => failed(format!("REPORT TARGET PORT GROUPS failed ({sense})")),
        Answer::Check(None) => failed("REPORT TARGET PORT GROUPS failed".into()),
        Answer::Status(status) => failed(format!("REPORT TARGET PORT GROUPS failed (status {status:#04x})")),
    }
}
