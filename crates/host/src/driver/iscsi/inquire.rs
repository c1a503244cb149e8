// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the identity of a logical unit before it is opened: a login, a few commands, a logout.
//!
//! Guarantees: uses a session of its own, which disturbs no other; sends no command that a unit in standby refuses. Does not
//! check whether the unit is a disk (`attach` does).

use super::access;
use super::attach::{may, must, settled};
use super::dial::{Line, dial};
use super::initiator::Initiator;
use super::uri::IscsiTarget;
use crate::error::{Error, ErrorKind, Result};
use blk::scsi::alua;
use blk::scsi::cdb::Cdb;
use blk::scsi::inquiry::{Inquiry, vpd};
use blk::scsi::transport::LunId;
use blk::scsi::wwid::wwid;
use std::os::fd::OwnedFd;

/// The unit's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquiryData {
    /// Vendor, product, revision.
    pub inquiry: Inquiry,
    /// The WWID in the form of udev and multipath; `None`: the unit has no name.
    pub wwid: Option<String>,
    /// The ALUA state of the path that was used; `None`: the unit has no port groups, or does not report that path's.
    pub access: Option<alua::Access>,
}

/// Asks the unit; fails when `stop` becomes readable.
///
/// # Errors
/// The errors of [`Iscsi::open`](super::Iscsi::open).
pub fn inquire(target: &IscsiTarget, stop: &OwnedFd) -> Result<InquiryData> {
    let wanted = Initiator::of(target)?.wanted(target, Some(&target.name), 0)?;
    let within = |e: Error| e.within(&target.to_string());
    let mut line = dial(&target.portal, &wanted, stop).map_err(within)?;
    let said = settled(&mut line, target.lun, |line| ask(line, target.lun)).map_err(within)?;
    line.log_out();
    Ok(said)
}

fn ask(line: &mut Line<'_>, lun: LunId) -> Result<InquiryData> {
    let answer = must(line, lun, &Cdb::inquiry(None, 96), 96, "INQUIRY")?;
    let inquiry = Inquiry::parse(&answer)
        .ok_or_else(|| Error::new(ErrorKind::Denied, format!("LUN {}: the INQUIRY data is incomplete", lun.0)))?;
    let names = may(line, lun, &Cdb::inquiry(Some(vpd::DEVICE_IDENTIFICATION), 1024))?;
    let serial = may(line, lun, &Cdb::inquiry(Some(vpd::UNIT_SERIAL_NUMBER), 1024))?;
    let wwid = wwid(&inquiry, &names, &serial);
    Ok(InquiryData { inquiry, wwid, access: access::access(line, lun)? })
}
